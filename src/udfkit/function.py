"""User functions: a forward and a backward over sequences, called with Values or plain arrays."""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from udfkit.arguments import check_flag, check_name
from udfkit.contract import check_layout, contract_of
from udfkit.device import DeviceDescriptor
from udfkit.dispatch import run_backward, run_forward
from udfkit.plain import evaluate, gradients
from udfkit.state import BackPropState
from udfkit.user_calls import call_user, describe
from udfkit.value import Value
from udfkit.variable import Variable

__all__ = ["UserFunction", "user_function"]

_numbers = itertools.count()
_infer_lock = threading.RLock()


def _unlock_in_child() -> None:
    global _infer_lock
    _infer_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


class UserFunction:
    """A custom operation: subclass it and write ``forward``, ``backward`` and ``infer_outputs``.

    Parameters
    ----------
    inputs : list of Variable
        In the order in which the user's methods get them; no variable twice.
    as_numpy : bool, default True
        Give user code plain arrays (a list with one a sequence for a sequence variable); False
        gives it Values.
    attributes : dict, optional
        Kept as ``self.attributes``.
    name : str, default ''

    Attributes
    ----------
    contract : {'auto', 'cntk-beta', 'cntk-2.0', 'cntk-2.7'}
        Class attribute: when ``backward`` gets a dict to fill and when root gradients come bare.
    layout : {'list', 'ragged'}
        Class attribute: with ``'ragged'`` user code gets a Ragged for a sequence variable.

    Raises
    ------
    TypeError, ValueError
        When inputs are not Variables, none, or one is there twice; for an unknown contract.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> class Double(udfkit.UserFunction):
    ...     def infer_outputs(self):
    ...         x = self.inputs[0]
    ...         return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]
    ...     def forward(self, arg, device, outputs_to_retain):
    ...         return None, [2 * sequence for sequence in arg]
    ...     def backward(self, state, grad):
    ...         return [2 * sequence for sequence in grad]
    >>> x = udfkit.sequence.input_variable((), needs_gradient=True)
    >>> double = Double([x])
    >>> [y.tolist() for y in double.eval([[1.0, 2.0], [3.0]])]
    [[2.0, 4.0], [6.0]]
    >>> [g.tolist() for g in double.grad([[1.0, 2.0], [3.0]])]
    [[2.0, 2.0], [2.0]]
    """

    contract = "auto"
    layout = "list"

    def __init__(
        self,
        inputs: Sequence[Variable],
        as_numpy: bool = True,
        attributes: Mapping[str, Any] | None = None,
        name: str = "",
    ):
        self._inputs = _check_inputs(inputs)
        self.as_numpy = check_flag(as_numpy, "as_numpy")
        self.attributes = dict(attributes or {})
        self.name = check_name(name) or f"UserDefinedFunction{next(_numbers)}"
        self._outputs: tuple[Variable, ...] | None = None
        rules = contract_of(self.contract)
        check_layout(self.layout)
        if not self.as_numpy and not rules.values_allowed:
            raise ValueError(
                f"as_numpy=False is not part of contract {self.contract!r}: use as_numpy=True, or "
                f"another contract"
            )

    def forward(self, *args: Any) -> Any:
        """Compute the outputs; written by the user, in one of the four calling shapes."""
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def backward(self, *args: Any) -> Any:
        """Compute the gradients; written by the user, in one of the four calling shapes."""
        raise NotImplementedError(f"{type(self).__name__} must define backward")

    def infer_outputs(self) -> Any:
        """Return the output Variable, or a list of them; written by the user."""
        raise NotImplementedError(
            f"{type(self).__name__} must define infer_outputs and return a list of "
            f"udfkit.output_variable(...)"
        )

    @property
    def inputs(self) -> tuple[Variable, ...]:
        """The input variables, in order."""
        try:
            return self._inputs
        except AttributeError:
            raise RuntimeError(
                f"{type(self).__name__} has no inputs yet: its __init__ must call "
                f"super().__init__([...]) first"
            ) from None

    @property
    def outputs(self) -> tuple[Variable, ...]:
        """The output variables that ``infer_outputs`` declared; it runs once, at first use."""
        if self._outputs is None:
            with _infer_lock:
                if self._outputs is None:
                    declared = call_user(self, "infer_outputs", self.infer_outputs)
                    self._outputs = self._check_outputs(declared)
        return self._outputs

    @property
    def output(self) -> Variable:
        """The output variable of a function that has one."""
        if len(self.outputs) != 1:
            raise ValueError(f"{self.name!r} has {len(self.outputs)} outputs: use outputs")
        return self.outputs[0]

    @property
    def op_name(self) -> str:
        """Name under which saved functions of this class are known; override to choose one."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def serialize(self) -> dict[str, Any]:
        """Return what ``deserialize`` needs, as plain data; override when the function has any."""
        return {}

    @classmethod
    def deserialize(cls, inputs: list[Variable], name: str, state: dict[str, Any]) -> UserFunction:
        """Make a function of saved data; override when the constructor takes something else."""
        try:
            return cls(inputs, name=name, **state)
        except TypeError as error:
            error.add_note(
                f"{cls.__qualname__}.deserialize called {cls.__qualname__}(inputs, name=name, "
                f"**state): override deserialize when the constructor takes something else"
            )
            raise

    def clone(self, cloned_inputs: Sequence[Variable]) -> UserFunction:
        """Return a copy over other inputs; attributes are copied, those that are inputs replaced.

        Raises
        ------
        ValueError
            When the number of inputs differs.
        """
        inputs = _check_inputs(cloned_inputs)
        if len(inputs) != len(self._inputs):
            raise ValueError(
                f"{self.name!r} has {len(self._inputs)} inputs, clone got {len(inputs)}"
            )
        memo: dict[int, Any] = {id(old): new for old, new in zip(self._inputs, inputs, strict=True)}
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        kept = {k: v for k, v in self.__dict__.items() if k != "_outputs"}
        made.__dict__.update(copy.deepcopy(kept, memo), _outputs=None)
        return made

    def __repr__(self) -> str:
        inputs = ", ".join(repr(variable) for variable in self._inputs)
        return f"{type(self).__name__}({self.name!r}: {inputs})"

    def _forward(
        self,
        arguments: Sequence[Value] | Mapping[Variable, Value],
        outputs: dict[Variable, Any] | Iterable[Variable] | None = None,
        device: DeviceDescriptor | None = None,
        outputs_to_retain: Iterable[Variable] | None = None,
    ) -> tuple[BackPropState, dict[Variable, Value]]:
        """Run ``forward`` on Values; this is what an engine calls.

        Parameters
        ----------
        arguments : list of Value in input order, or dict by Variable
            Parameters and Constants may be left out of a dict, or be None.
        outputs : dict, optional
            Its keys are the outputs asked for (all of them when None); filled in place.
        device : DeviceDescriptor, optional
        outputs_to_retain : iterable of Variable, optional
            Passed on to user code as a list.

        Returns
        -------
        state : BackPropState
            For `_backward`.
        outputs : dict of Variable to Value
        """
        return run_forward(self, arguments, outputs, device, list(outputs_to_retain or ()))

    def _backward(
        self,
        state: BackPropState,
        root_gradients: Mapping[Variable, Value],
        variables: dict[Variable, Any] | Iterable[Variable] | None = None,
    ) -> dict[Variable, Value]:
        """Run ``backward`` on Values; this is what an engine calls.

        Parameters
        ----------
        state : BackPropState
            From the `_forward` that this belongs to.
        root_gradients : dict of output Variable to Value
        variables : dict or iterable of input Variable
            The inputs whose gradient is asked for, all that need one by default; a dict is filled
            in place.

        Returns
        -------
        dict of Variable to Value
        """
        return run_backward(self, state, root_gradients, variables)

    def eval(
        self, batch: Any, *, seq_starts: Any = None, device: DeviceDescriptor | None = None
    ) -> Any:
        """Run forward from plain arrays to plain arrays.

        Parameters
        ----------
        batch : batch, or dict by Variable or name
            Bare for one input, a dict for several; see `sanitize_batch` for what a batch can be.
        seq_starts : sequence of bool, or dict, optional
        device : DeviceDescriptor, optional

        Returns
        -------
        list of ndarray, ndarray, or dict
            The output itself when there is one, else ``{output: ...}``.
        """
        return evaluate(self, batch, seq_starts, device)

    def grad(
        self,
        batch: Any,
        wrt: Any = None,
        root_gradients: Any = None,
        outputs: Any = None,
        *,
        seq_starts: Any = None,
        device: DeviceDescriptor | None = None,
    ) -> Any:
        """Run forward and backward from plain arrays to plain arrays.

        Parameters
        ----------
        batch, seq_starts, device
            As `eval`.
        wrt : Variable, name, or list of them, optional
            Inputs to differentiate by; by default every input that needs a gradient.
        root_gradients : batch, or dict by output or name, optional
            Ones by default; an output that a dict leaves out has no gradient.
        outputs : list of Variable or name, optional
            Return these outputs too, as ``(gradients, outputs)``.

        Returns
        -------
        list of ndarray, ndarray, or dict
            The gradient itself for one ``wrt``, else ``{input: ...}``.

        Raises
        ------
        ValueError
            When a ``wrt`` needs no gradient, or shapes do not fit.
        """
        return gradients(self, batch, wrt, root_gradients, outputs, seq_starts, device)

    def _check_outputs(self, declared: Any) -> tuple[Variable, ...]:
        outputs = [declared] if isinstance(declared, Variable) else declared
        where = f"infer_outputs of user function {self.name!r}"
        if not isinstance(outputs, (list, tuple)):
            raise TypeError(
                f"{where} returned {describe(declared)}, expected a list of Variables: return "
                f"[udfkit.output_variable(shape, dtype, dynamic_axes)]"
            )
        if not outputs:
            raise ValueError(f"{where} returned no outputs, expected at least one")
        for k, variable in enumerate(outputs):
            if not isinstance(variable, Variable):
                raise TypeError(
                    f"{where} returned {describe(variable)} at position {k}, expected a Variable: "
                    f"make it with udfkit.output_variable"
                )
            if variable in outputs[:k]:
                raise ValueError(f"{where} returned {variable!r} twice")
            variable._name_if_unnamed(f"{self.name}_Output_{k}")
        return tuple(outputs)


def user_function(function: UserFunction) -> UserFunction:
    """Return a user function as it is; kept because CNTK's bridge asks for this call.

    Raises
    ------
    TypeError
        For anything else than a UserFunction.
    """
    if not isinstance(function, UserFunction):
        raise TypeError(f"expected a UserFunction, not a {type(function).__name__}")
    return function


def _check_inputs(inputs: Any) -> tuple[Variable, ...]:
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(f"inputs are a {type(inputs).__name__}, expected a list of Variables")
    if not inputs:
        raise ValueError("inputs are empty: a user function has at least one input")
    for k, variable in enumerate(inputs):
        if not isinstance(variable, Variable):
            raise TypeError(
                f"input {k} is a {type(variable).__name__}, expected a Variable: make it with "
                f"udfkit.input_variable or udfkit.sequence.input_variable"
            )
        if variable in inputs[:k]:
            raise ValueError(
                f"input {k}, {variable.name!r}, is there twice: give each input once, and use it "
                f"twice inside forward"
            )
    return tuple(inputs)
