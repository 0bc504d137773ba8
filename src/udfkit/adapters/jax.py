"""User functions inside JAX: `apply`, by callbacks to the host forward and backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from udfkit.adapters.arguments import all_inputs
from udfkit.adapters.jax_host import PADDED, Borders, Host, Output
from udfkit.casting import warn_cast
from udfkit.errors import shape_text
from udfkit.function import UserFunction
from udfkit.variable import FreeDimension, Variable

__all__ = ["apply"]

_operators: weakref.WeakKeyDictionary[UserFunction, dict[Borders, Any]] = (
    weakref.WeakKeyDictionary()
)


def apply(fn: UserFunction, *inputs: Any, copy: bool = True) -> Any:
    """Call a user function on JAX arrays, under `jax.jit` and `jax.grad` too.

    User code runs on the host, in a callback that is pure for JAX: it may be called more than once
    or not at all, and a backward runs the forward again, so that nothing is kept in between. With
    padded data only shapes are fixed when JAX compiles: new lengths within a shape compile nothing.
    Under `jax.vmap` the function is called once for each index of the mapped axis, one after the
    other.

    Parameters
    ----------
    fn : UserFunction
    *inputs : one for each input variable, in order
        A sequence variable takes ``(padded (B, T, *s), lengths (B,))``, ``(padded, mask (B, T))``
        or ``(values (total, *s), offsets (B + 1,))``; a batch-only variable an array ``(B, *s)``;
        one without axes an array ``s``. Parameters and Constants of the function may be left out,
        all together; they have their own values then, without gradient.
    copy : bool, default True
        False lets user code see JAX's memory (read-only), which it must not keep.

    Returns
    -------
    array, or tuple
        The output, a sequence in the form of the first sequence input; a tuple of outputs when the
        function declares several. An output on the sequence axis of an input has the lengths of
        that input. One on another axis has lengths of its own, up to T of the first sequence input.
        Where a sequence continues one of the batch before, that input must have a mask.

    Raises
    ------
    TypeError, ValueError
        When shapes or dtypes do not fit, at the time of tracing. What is wrong with lengths, and
        what user code raises, is seen when the computation runs, as JAX's runtime error, which
        holds the text of the original one.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, udfkit
    >>> class Double(udfkit.UserFunction):
    ...     def infer_outputs(self):
    ...         x = self.inputs[0]
    ...         return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]
    ...     def forward(self, arg, device, outputs_to_retain):
    ...         return None, [2 * sequence for sequence in arg]
    ...     def backward(self, state, grad):
    ...         return [2 * sequence for sequence in grad]
    >>> double = Double([udfkit.sequence.input_variable((), needs_gradient=True)])
    >>> def loss(x, lengths):
    ...     return udfkit.jax.apply(double, (x, lengths))[0].sum()
    >>> jax.jit(jax.grad(loss))(jnp.ones((2, 3)), jnp.array([3, 1])).tolist()
    [[2.0, 2.0, 2.0], [2.0, 0.0, 0.0]]
    """
    arguments = all_inputs(fn, inputs, np.asarray)
    arrays, extents, forms = [], [], []
    for variable, given in zip(fn.inputs, arguments, strict=True):
        array, extent, form = _read(variable, given)
        arrays.append(array)
        extents.append(extent)
        forms.append(form)
    form = next((form for form in forms if form != "plain"), "plain")
    outputs = _describe(fn, forms)
    operator = _operator_for(fn, arrays, Borders(tuple(forms), outputs, copy))
    made, new_extents = operator(tuple(arrays), tuple(extents))
    finished = []
    for array, output, extent in zip(made, outputs, new_extents, strict=True):
        if output.source < 0:
            finished.append(array)
        elif output.is_new:
            finished.append((array, extent))
        else:
            finished.append((array, _extents_in(form, forms, extents, output.source, array)))
    return finished[0] if len(finished) == 1 else tuple(finished)


def _read(variable: Variable, given: Any) -> tuple[Any, Any, str]:
    """Return the array, the lengths, mask or offsets, and the form of one argument."""
    if variable.kind != "sequence":
        if isinstance(given, (tuple, list)):
            raise TypeError(
                f"input {variable.name!r} has no sequence axis and is a {type(given).__name__}: "
                f"pass one array"
            )
        array = _array(variable, given, len(variable.dynamic_axes))
        return array, jnp.zeros(0, jnp.int32), "plain"
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(
            f"input {variable.name!r} is {_describe_argument(given)}: pass (padded, lengths), "
            f"(padded, mask) or (values, offsets), as a tuple"
        )
    extent = jnp.asarray(given[1])
    rank = jnp.ndim(given[0]) - len(variable.shape)
    if extent.dtype != jnp.bool_ and not jnp.issubdtype(extent.dtype, jnp.integer):
        raise ValueError(
            f"the lengths, mask or offsets of input {variable.name!r} are {extent.dtype}, expected "
            f"integers, or a mask of bool"
        )
    if (rank, extent.ndim) not in ((2, 1), (2, 2), (1, 1)):
        raise ValueError(
            f"input {variable.name!r} is a pair of shapes {shape_text(jnp.shape(given[0]))} and "
            f"{shape_text(extent.shape)}: expected (padded "
            f"{shape_text(('B', 'T', *variable.shape))}, lengths (B,) or mask (B, T)), or (values "
            f"{shape_text(('total', *variable.shape))}, offsets (B + 1,))"
        )
    form = "offsets" if rank == 1 else ("lengths" if extent.ndim == 1 else "mask")
    array = _array(variable, given[0], rank)
    wanted = {"lengths": array.shape[:1], "mask": array.shape[:2]}.get(form, extent.shape)
    if extent.shape != wanted or (form == "offsets" and not extent.shape[0]):
        raise ValueError(
            f"input {variable.name!r}: {form} of shape {shape_text(extent.shape)}, "
            f"expected {shape_text(wanted) if form != 'offsets' else '(B + 1,)'}"
        )
    return array, extent, form


def _describe_argument(given: Any) -> str:
    if isinstance(given, (jax.Array, np.ndarray)):
        return f"an array of shape {shape_text(given.shape)}"
    return f"a {type(given).__name__}"


def _array(variable: Variable, given: Any, axes: int) -> Any:
    shape = jnp.shape(given)
    if not variable.accepts_sample(shape[axes:]):
        raise ValueError(
            f"input {variable.name!r} has samples of shape {shape_text(shape[axes:])}, expected "
            f"{shape_text(variable.shape)}"
        )
    _check_dtype(variable)
    array = jnp.asarray(given)
    if array.dtype == variable.dtype:
        return array
    if not variable.is_floating or jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(
            f"input {variable.name!r} is {array.dtype}, its variable {variable.dtype}, and what "
            f"values such a cast changes is not known beforehand: convert it with "
            f".astype({variable.dtype.name!r})"
        )
    warn_cast(variable, np.dtype(array.dtype))
    return array.astype(variable.dtype)


def _check_dtype(variable: Variable) -> None:
    if jax.dtypes.canonicalize_dtype(variable.dtype) != variable.dtype:
        raise TypeError(
            f"variable {variable.name!r} has dtype {variable.dtype}, which JAX does not have now: "
            f"declare it with {jax.dtypes.canonicalize_dtype(variable.dtype)}, or set "
            f"jax_enable_x64"
        )


def _describe(fn: UserFunction, forms: Sequence[str]) -> tuple[Output, ...]:
    first = next((k for k, form in enumerate(forms) if form != "plain"), -1)
    made = []
    for variable in fn.outputs:
        _check_dtype(variable)
        if FreeDimension in variable.shape:
            raise TypeError(
                f"output {variable.name!r} of {fn.name!r} has a FreeDimension: JAX needs to know "
                f"every size beforehand"
            )
        if variable.kind != "sequence":
            made.append(Output(-1, is_new=False))
            continue
        axis = variable.dynamic_axes[1]
        same = [k for k, v in enumerate(fn.inputs) if axis in v.dynamic_axes]
        storage = [k for k in same if (forms[k] in PADDED) == (forms[first] in PADDED)]
        if storage:
            made.append(Output(storage[0], is_new=False))
        elif first >= 0 and forms[first] in PADDED:
            made.append(Output(first, is_new=True))
        else:
            raise TypeError(
                f"output {variable.name!r} of {fn.name!r} has lengths of its own, which JAX cannot "
                f"know beforehand: pass (padded, lengths), whose T it then must fit"
            )
    return tuple(made)


def _extents_in(
    form: str, forms: Sequence[str], extents: Sequence[Any], source: int, array: Any
) -> Any:
    """Return the lengths or the mask of one input in the form of another."""
    given = extents[source]
    if forms[source] == form:
        return given
    if form == "mask":
        return jnp.arange(array.shape[1]) < given[:, None]
    return (given != 0).sum(axis=1)


class _Perturbed:
    """Which inputs need a gradient: no array, so a part of the structure of what is saved."""

    def __init__(self, flags: tuple[bool, ...]):
        self.flags = flags


jax.tree_util.register_pytree_node(
    _Perturbed, lambda p: ((), p.flags), lambda flags, _: _Perturbed(flags)
)


def _operator_for(fn: UserFunction, arrays: Sequence[Any], borders: Borders) -> Callable[..., Any]:
    """Return the function of arrays that JAX sees."""
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        # What is compiled must keep the function alive.
        return _operator(Host(lambda: fn, borders))
    operators = _operators.setdefault(fn, {})
    if borders not in operators:
        # What is kept here must not, or its entry would never go.
        operators[borders] = _operator(Host(weakref.ref(fn), borders))
    return operators[borders]


def _operator(host: Host) -> Callable[..., Any]:
    @jax.custom_vjp
    def call(arrays: Any, extents: Any) -> Any:
        return jax.pure_callback(
            host.forward,
            host.result_shapes(arrays, extents),
            arrays,
            extents,
            vmap_method="sequential",
        )

    def forward(arrays: Any, extents: Any) -> Any:
        flags = host.check_gradients([array.perturbed for array in arrays])
        plain = tuple([array.value for array in arrays])
        rest = tuple([extent.value for extent in extents])
        return call(plain, rest), (plain, rest, _Perturbed(flags))

    def backward(saved: Any, cotangents: Any) -> Any:
        arrays, extents, perturbed = saved
        given = [None if _is_zero(g) else g for g in cotangents[0]]
        wanted = tuple([k for k, flag in enumerate(perturbed.flags) if flag])
        found: list[Any] = [None] * len(arrays)
        if wanted and any(g is not None for g in given):
            made = jax.pure_callback(
                lambda *args: host.backward(wanted, *args),
                [jax.ShapeDtypeStruct(arrays[k].shape, arrays[k].dtype) for k in wanted],
                arrays,
                extents,
                given,
                vmap_method="sequential",
            )
            for k, gradient in zip(wanted, made, strict=True):
                found[k] = gradient
        return tuple(found), (None,) * len(extents)

    call.defvjp(forward, backward, symbolic_zeros=True)
    return call


def _is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
