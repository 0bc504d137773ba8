"""Sequence functions: forward and backward written for one sequence, run compiled over a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from udfkit.device import DeviceDescriptor
from udfkit.errors import shape_text
from udfkit.function import UserFunction
from udfkit.kernels import sequences
from udfkit.sequence_declarations import Declared, per_sequence, per_step, scratch, shared
from udfkit.sequence_program import Definition, Program
from udfkit.sequence_running import (
    State,
    fits_all,
    run_backward,
    run_forward,
    wrapped_forward,
)
from udfkit.state import BackPropState
from udfkit.value import Value
from udfkit.variable import Axis, FreeDimension, Variable, output_variable

__all__ = [
    "SequenceFunction",
    "per_sequence",
    "per_step",
    "scratch",
    "sequence_function",
    "shared",
]

_KINDS = {"sequence": "step", "batch": "each", "none": "shared"}
_MAKERS = {
    "step": "udfkit.sequence.input_variable, which has a sequence axis",
    "each": "udfkit.input_variable, which has a batch axis only",
    "shared": "udfkit.Parameter or udfkit.Constant, which have no axes",
}
_PARTS = ("takes", "gives", "saved", "work", "options", "lengths", "cooperative")


class SequenceFunction(UserFunction):
    """A user function whose author writes the maths of one sequence; it runs compiled.

    A subclass declares its arrays and defines two static methods without ``self``: ``forward``
    reads inputs and fills outputs of one sequence, ``backward`` fills the gradients of inputs. Both
    name the arrays that they use, in any order: those declared, and in ``backward`` also
    ``grad_<output>`` and ``grad_<input>``. Outputs and gradients are 0 on entry, scratch is not.

    A body is compiled once for each choice of dtypes. It may use numbers, indexing and slices of
    its arrays, loops, ``math``, `udfkit.portable`, and functions of these. Its globals, also those
    of modules, must be numbers, strings, tuples or functions; it is compiled anew when one changes.

    Parameters
    ----------
    inputs : list of Variable
        One for each name in ``takes``, in order.
    name : str, default ''
    **options
        Values for names in ``options``.

    Attributes
    ----------
    takes : dict of str to `per_step`, `per_sequence` or `shared`
        Inputs. An array of one sequence has the declared shape.
    gives : dict of str to `per_step` or `per_sequence`
        Outputs.
    saved : dict of str to tuple of sizes, or `scratch`
        Room that each sequence has for itself, kept from forward to backward: the state.
    work : dict of str to tuple of sizes, or `scratch`
        Room with no meaning outside one call of a body.
    options : dict of str to number
        Defaults of numbers that a body takes by name; another value compiles nothing anew.
    lengths : dict of str to function
        For an output of lengths of its own: a body that takes inputs and returns the length.
    cooperative : bool, default False
        On CUDA, whether a block of threads works on a sequence, and not one thread. Bodies then
        also take ``lane`` and ``lanes``: each lane does its part of the work, and waits for the
        others at `udfkit.portable.barrier`. On the CPU there is one lane, lane 0.

    Raises
    ------
    TypeError
        When inputs have other axes or dtypes than declared; when a body cannot be compiled, with
        the author's file and line.
    ValueError
        When shapes do not fit the declarations.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> class RunningSum(udfkit.SequenceFunction):
    ...     takes = {"x": udfkit.per_step("T")}
    ...     gives = {"y": udfkit.per_step("T")}
    ...     @staticmethod
    ...     def forward(x, y):
    ...         total = 0.0
    ...         for t in range(x.shape[0]):
    ...             total += x[t]
    ...             y[t] = total
    ...     @staticmethod
    ...     def backward(grad_y, grad_x):
    ...         total = 0.0
    ...         for t in range(grad_y.shape[0] - 1, -1, -1):
    ...             total += grad_y[t]
    ...             grad_x[t] = total
    >>> f = RunningSum([udfkit.sequence.input_variable((), needs_gradient=True)])
    >>> [y.tolist() for y in f.eval([[1.0, 2.0], [3.0]])]
    [[1.0, 3.0], [3.0]]
    >>> [g.tolist() for g in f.grad([[1.0, 2.0], [3.0]])]
    [[2.0, 1.0], [1.0]]
    """

    takes: ClassVar[Mapping[str, Declared]] = {}
    gives: ClassVar[Mapping[str, Declared]] = {}
    saved: ClassVar[Mapping[str, Any]] = {}
    work: ClassVar[Mapping[str, Any]] = {}
    options: ClassVar[Mapping[str, Any]] = {}
    lengths: ClassVar[Mapping[str, Callable[..., int]]] = {}
    cooperative: ClassVar[bool] = False
    _definition: ClassVar[Definition | None] = None
    _programs: ClassVar[dict[tuple[str, ...], Program]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" not in cls.__dict__:
            return
        bodies = {}
        for phase in ("forward", "backward"):
            if phase in cls.__dict__:
                body = cls.__dict__[phase]
                bodies[phase] = body.__func__ if isinstance(body, staticmethod) else body
                # The methods of this name that an engine calls are those of SequenceFunction.
                delattr(cls, phase)
        parts = {part: getattr(cls, part) for part in _PARTS}
        cls._definition = Definition.read(
            cls.__qualname__, bodies["forward"], bodies.get("backward"), parts
        )
        cls._programs = {}

    @classmethod
    def gradient(cls, body: Callable[..., None]) -> Callable[..., None]:
        """Take a body as the backward of this class; a decorator."""
        cls._definition = cls._defined().with_backward(body)
        cls._programs = {}
        return body

    @classmethod
    def _defined(cls) -> Definition:
        if cls._definition is None:
            raise TypeError(f"{cls.__name__} must define forward, for one sequence")
        return cls._definition

    def __init__(self, inputs: Sequence[Variable], name: str = "", **options: Any):
        definition = self._defined()
        super().__init__(inputs, as_numpy=False, name=name)
        for key in options:
            if key not in definition.options:
                raise TypeError(
                    f"{definition.name} has no option {key!r}: its options are "
                    f"{sorted(definition.options)}"
                )
        self._options = {
            key: type(default)(options.get(key, default))
            for key, default in definition.options.items()
        }
        self._prepare(definition)

    def _prepare(self, definition: Definition) -> None:
        self._check_inputs(definition)
        dtypes = {n: str(d.dtype) for n, d in definition.takes.items()}
        for key, variable in zip(definition.takes, self.inputs, strict=False):
            dtypes[key] = variable.dtype.name
        for key, declared in definition.gives.items():
            dtypes[key] = (declared.dtype or self.float_dtype).name
        self._dtypes, self._key = dtypes, tuple(dtypes.values())
        self._bound: dict[Any, Any] = {}

    def clone(self, cloned_inputs: Sequence[Variable]) -> UserFunction:
        """Return a copy over other inputs, which are checked as those of a new function are."""
        kept, self._bound = self._bound, {}
        try:
            made = super().clone(cloned_inputs)
        finally:
            self._bound = kept
        if isinstance(made, SequenceFunction):
            made._prepare(self._defined())
        return made

    def _check_inputs(self, definition: Definition) -> None:
        needed = [name for name, d in definition.takes.items() if d.default is None]
        if not len(needed) <= len(self.inputs) <= len(definition.takes):
            raise ValueError(
                f"{definition.name} takes {list(definition.takes)}, got {len(self.inputs)} inputs"
            )
        for variable, (name, declared) in zip(self.inputs, definition.takes.items(), strict=False):
            where = f"input {name!r} of {definition.name}: variable {variable.name!r}"
            if _KINDS[variable.kind] != declared.kind:
                raise TypeError(
                    f"{where} has dynamic axes {list(variable.dynamic_axes)}; make it with "
                    f"{_MAKERS[declared.kind]}"
                )
            if variable.dtype.name in ("float16", "bfloat16"):
                raise TypeError(f"{where} has dtype {variable.dtype}: use float32 or float64")
            whole = declared.index_of is not None and variable.dtype.kind not in "iu"
            if whole or (declared.dtype is not None and variable.dtype != declared.dtype):
                raise TypeError(
                    f"{where} has dtype {variable.dtype}, expected "
                    f"{declared.dtype or 'an integer dtype'}: make it with dtype="
                )
            missing = definition.backward is not None and not definition.has_gradient(name)
            if variable.needs_gradient and missing:
                raise ValueError(
                    f"{where} needs a gradient, which the backward of {definition.name} does not "
                    f"compute: use needs_gradient=False"
                )
        shapes = [variable.shape for variable in self.inputs]
        self._bind_sizes(definition, shapes, [v.name for v in self.inputs])

    def _bind_sizes(
        self, definition: Definition, shapes: Sequence[tuple[int, ...]], names: Sequence[str]
    ) -> dict[str, int]:
        """Find what the names of sizes stand for; free dimensions stay unknown."""
        sizes: dict[str, int] = {k: v for k, v in self._options.items() if type(v) is int}
        of: dict[str, str] = {}
        for declared, shape, name in zip(definition.takes.values(), shapes, names, strict=False):
            expected = ", ".join(size.text for size in declared.sample)
            if declared.is_flat:
                shape = (FreeDimension,) if FreeDimension in shape else (math.prod(shape),)
            if len(shape) != len(declared.sample):
                raise ValueError(
                    f"{definition.name}: {name!r} has samples of shape {shape_text(shape)}, "
                    f"expected ({expected})"
                )
            for size, got in zip(declared.sample, shape, strict=True):
                if got == FreeDimension:
                    continue
                want = size.number if size.symbol is None else sizes.setdefault(size.symbol, got)
                if want != got:
                    raise ValueError(
                        f"{definition.name}: {name!r} has samples of shape {shape_text(shape)}, "
                        f"expected ({expected}) where {size.text} is {want}"
                        + (f", as in {of[size.text]!r}" if size.text in of else "")
                    )
                of.setdefault(size.text, name)
        return sizes

    @property
    def float_dtype(self) -> np.dtype:
        """Dtype of outputs that declare none: that of the first floating input, else float64."""
        floats = (v.dtype for v in self.inputs if v.dtype.kind == "f")
        return next(floats, np.dtype(np.float64))

    def infer_outputs(self) -> list[Variable]:
        """Return the declared outputs."""
        definition = self._defined()
        shapes = [variable.shape for variable in self.inputs]
        sizes = self._bind_sizes(definition, shapes, [v.name for v in self.inputs])
        batch = Axis.default_batch_axis()
        made = []
        for name, declared in definition.gives.items():
            axes = [batch]
            if declared.kind == "step":
                axes.append(self._sequence_axis(definition, name))
            dtype = declared.dtype or self.float_dtype
            shape = self._sample_shape(declared, sizes, shapes)
            made.append(output_variable(shape, dtype, axes))
        return made

    def _sample_shape(
        self, declared: Declared, sizes: dict[str, int], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Return the shape of an output's sample, as far as sizes are known."""
        if declared.is_flat:
            for given, shape in zip(self._defined().takes.values(), shapes, strict=False):
                if given.is_flat and given.sample[0].text == declared.sample[0].text:
                    return shape
        return tuple(
            int(size.value(sizes)) if all(n in sizes for n in size.names) else FreeDimension
            for size in declared.sample
        )

    def _sequence_axis(self, definition: Definition, output: str) -> Axis:
        length = definition.output_lengths[output]
        for variable, declared in zip(self.inputs, definition.takes.values(), strict=False):
            if declared.kind == "step" and declared.shape[0].symbol == length:
                return variable.dynamic_axes[1]
        return Axis.new_unique_dynamic_axis(output)

    def serialize(self) -> dict[str, Any]:
        """Return the options."""
        return dict(self._options)

    def _program(self, definition: Definition) -> Program:
        program = self._programs.get(self._key)
        if program is None or program.definition is not definition or not program.is_current():
            program = Program(definition, self._dtypes, sequences.poisoned)
            self._programs[self._key] = program
        return program

    def _forward(
        self,
        arguments: Any,
        outputs: Any = None,
        device: DeviceDescriptor | None = None,
        outputs_to_retain: Iterable[Variable] | None = None,
    ) -> tuple[BackPropState, dict[Variable, Value]]:
        """Run ``forward`` on Values; in the usual case without checks of what it returns."""
        plain = outputs is None and device is None and type(arguments) is list
        if not plain or not fits_all(self.inputs, arguments):
            return super()._forward(arguments, outputs, device, outputs_to_retain)
        return wrapped_forward(self, self._defined(), arguments)

    def forward(self, arguments: Any, *rest: Any) -> Any:
        """Run the forward body over Values; what `UserFunction._forward` calls."""
        values: tuple[Value, ...] = arguments if isinstance(arguments, tuple) else (arguments,)
        definition = self._defined()
        state, results = run_forward(self, definition, self._program(definition), values)
        if len(results) == 1:
            return state, results[0]
        rest[0].update(zip(self.outputs, results, strict=True))
        return state

    def backward(self, state: State, roots: Any, variables: dict[Variable, Any]) -> None:
        """Run the backward body over Values; what `UserFunction._backward` calls."""
        definition = self._defined()
        if definition.backward is None:
            raise NotImplementedError(
                f"{definition.name} must define backward, for one sequence, to give gradients"
            )
        given = roots if isinstance(roots, Mapping) else {self.outputs[0]: roots}
        found = run_backward(definition, state, [given[variable] for variable in self.outputs])
        for variable, (name, gradient) in zip(self.inputs, found.items(), strict=False):
            if variable in variables:
                if gradient is None:
                    raise ValueError(
                        f"the backward of {definition.name} does not compute the gradient of "
                        f"{name!r}"
                    )
                variables[variable] = gradient


def sequence_function(
    *,
    takes: Mapping[str, Declared],
    gives: Mapping[str, Declared],
    saved: Mapping[str, Any] | None = None,
    work: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    lengths: Mapping[str, Callable[..., int]] | None = None,
    cooperative: bool = False,
) -> Callable[[Callable[..., None]], type[SequenceFunction]]:
    """Make a subclass of `SequenceFunction` of a forward body; a decorator.

    The backward body, if any, is given with the class's decorator ``gradient``. Parameters as the
    attributes of `SequenceFunction`.

    Examples
    --------
    >>> import udfkit
    >>> @udfkit.sequence_function(
    ...     takes={"x": udfkit.per_step("T", "K"), "w": udfkit.shared("K")},
    ...     gives={"y": udfkit.per_step("T")},
    ... )
    ... def project(x, w, y):
    ...     for t in range(x.shape[0]):
    ...         for k in range(x.shape[1]):
    ...             y[t] += x[t, k] * w[k]
    >>> @project.gradient
    ... def project_gradient(x, w, grad_y, grad_x, grad_w):
    ...     for t in range(x.shape[0]):
    ...         for k in range(x.shape[1]):
    ...             grad_x[t, k] = grad_y[t] * w[k]
    ...             grad_w[k] += grad_y[t] * x[t, k]
    >>> w = udfkit.Parameter(init=[1.0, 2.0], name="w")
    >>> x = udfkit.sequence.input_variable(2, needs_gradient=True, name="x")
    >>> f = project([x, w])
    >>> batch = [[[1.0, 1.0], [0.0, 1.0]], [[2.0, 0.0]]]
    >>> f.grad(batch, wrt="w").tolist()
    [3.0, 2.0]
    """

    def decorate(forward: Callable[..., None]) -> type[SequenceFunction]:
        names: dict[str, Any] = {
            name: getattr(forward, name) for name in ("__doc__", "__module__", "__qualname__")
        }
        names |= {"takes": dict(takes), "gives": dict(gives), "cooperative": cooperative}
        names |= {"saved": dict(saved or {}), "work": dict(work or {})}
        names |= {"options": dict(options or {}), "lengths": dict(lengths or {})}
        return type(
            forward.__name__, (SequenceFunction,), {**names, "forward": staticmethod(forward)}
        )

    return decorate
