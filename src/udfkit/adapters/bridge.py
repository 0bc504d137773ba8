"""One forward or backward over flat or padded arrays: the adapters' way into user code.

What user code may return is decided by `udfkit.user_calls` and `udfkit.results`. The usual cases,
where nothing needs a conversion and lengths stay those of an input, are done here without the
Values in between, which halves the cost of a call on short sequences.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NoReturn, cast

import numpy as np

from udfkit import moves
from udfkit.adapters.bridge_batches import ArrayBatch, Batch, padded, stored
from udfkit.contract import Call, contract_of
from udfkit.device import cpu
from udfkit.dispatch import check_batch_sizes
from udfkit.function import UserFunction
from udfkit.kernels import lazy
from udfkit.layout import Layout
from udfkit.memory import SMALLEST_POOLED
from udfkit.ragged import Ragged
from udfkit.results import (
    CallRecord,
    Returned,
    check_same_lengths,
    gradient_value,
    output_value,
    zeros_like,
)
from udfkit.rows import read_rows
from udfkit.user_calls import (
    call_backward,
    call_forward,
    call_user,
    missing_gradients,
    must_be_value,
    wrap_state,
)
from udfkit.value import Value
from udfkit.variable import FreeDimension, Variable

__all__ = [
    "checked_gradient",
    "checked_output",
    "is_one_to_one",
    "raise_for_returned",
    "run_backward",
    "run_forward",
]

pyobjects = lazy("pyobjects", globals())
borders = lazy("pyobjects_borders", globals())

_CPU = cpu()
_INT64 = np.dtype(np.int64)
_NO_RECORD = CallRecord({}, {})
_ONE_TO_ONE: weakref.WeakKeyDictionary[UserFunction, bool] = weakref.WeakKeyDictionary()


def run_forward(
    function: UserFunction, inputs: Sequence[Batch], copy: bool, pad: bool
) -> tuple[Any, list[ArrayBatch]]:
    """Run forward; return a state for `run_backward` and one Batch an output.

    Parameters
    ----------
    function : UserFunction
    inputs : list of Batch
        One an input variable, checked against it.
    copy : bool
        Whether user code gets arrays of its own, and what it returns is copied.
    pad : bool
        Whether sequences come out padded.

    Raises
    ------
    TypeError, ValueError
        As `UserFunction._forward` does.
    """
    if _runs_itself(function):
        layouts = [b.layout for b in inputs if b.layout.kind == "sequence"]
        state, values = function._forward([batch.value(copy) for batch in inputs])
        return state, [stored(values[v], layouts, pad) for v in function.outputs]
    if len(inputs) > 1:
        check_batch_sizes(function.inputs, cast(list[Value], inputs))
    given = [_for_user(function, batch, copy) for batch in inputs]
    declared = function.outputs
    state, results = call_forward(function, given, list(declared), _CPU, [])
    made = [checked_output(function, v, results[v], inputs, copy, pad) for v in declared]
    if not function.as_numpy:
        state = wrap_state(function, state, _CPU, _NO_RECORD)
    return state, made


def run_backward(
    function: UserFunction,
    state: Any,
    inputs: Sequence[Batch],
    roots: Sequence[Batch],
    wanted: Sequence[int],
    copy: bool,
) -> list[ArrayBatch]:
    """Run backward; return one Batch for each input in ``wanted``, in the storage of that input.

    Parameters
    ----------
    state
        From the `run_forward` that this belongs to.
    inputs : list of Batch
        Those of the forward; their arrays are not needed.
    roots : list of Batch
        One an output; its array is None where no gradient arrived.
    wanted : list of int
        The inputs whose gradient is asked for, at least one.
    copy : bool

    Raises
    ------
    TypeError, ValueError
        As `UserFunction._backward` does.
    """
    if function.as_numpy and len(roots) == 1 == len(wanted) and is_one_to_one(function):
        root = _for_user(function, roots[0], copy)
        result = call_user(function, "backward", function.backward, state, root)
        return [checked_gradient(function, wanted[0], result, inputs, roots, copy)]
    all_outputs = contract_of(function.contract).all_outputs
    values = {}
    for variable, batch in zip(function.outputs, roots, strict=True):
        if batch.is_there:
            values[variable] = batch.value(copy=False)
        elif all_outputs:
            values[variable] = zeros_like(variable, batch.layout, batch.sample_shape, _CPU)
    given = sum(batch.is_there for batch in roots)
    requested = [function.inputs[k] for k in wanted]
    if _runs_itself(function):
        found = function._backward(state, values, requested)
        return [
            stored(found[v], [inputs[k].layout], inputs[k].padded)
            for k, v in zip(wanted, requested, strict=True)
        ]
    wrapped = wrap_state(function, state, _CPU, _NO_RECORD)
    results = call_backward(function, wrapped, values, given, requested)
    return [
        checked_gradient(function, k, results[variable], inputs, roots, copy)
        for k, variable in zip(wanted, requested, strict=True)
    ]


class _Replay:
    """Stands for a function whose forward has returned already."""

    def __init__(self, function: UserFunction, returned: Any):
        self.name = function.name
        self.outputs = function.outputs
        self.forward = lambda *_: returned


def raise_for_returned(function: UserFunction, returned: Any) -> NoReturn:
    """Raise what `UserFunction._forward` does for a forward of one output that returned this.

    Raises
    ------
    TypeError, ValueError
        When it is no tuple of a state and a result.
    """
    call_forward(_Replay(function, returned), [None], list(function.outputs), _CPU, [])  # type: ignore[arg-type]
    raise AssertionError(returned)


def _runs_itself(function: UserFunction) -> bool:
    """Whether the function has a way from Values to Values of its own."""
    return type(function)._forward is not UserFunction._forward


def is_one_to_one(function: UserFunction) -> bool:
    """Whether the user's backward gets one bare gradient and returns one."""
    found = _ONE_TO_ONE.get(function)
    if found is None:
        rules = contract_of(function.contract)
        call = Call(
            inputs=len(function.inputs),
            inputs_needing_gradient=sum(v.needs_gradient for v in function.inputs),
            gradients_requested=1,
            outputs=len(function.outputs),
            roots_given=1,
            backward=function.backward,
        )
        gives_variables = rules.gives_variables(call)
        found = not gives_variables and rules.bare_root(call, gives_variables)
        _ONE_TO_ONE[function] = found
    return found


def checked_output(
    function: UserFunction,
    variable: Variable,
    result: Any,
    inputs: Sequence[Batch],
    copy: bool,
    pad: bool,
) -> ArrayBatch:
    """Return one result of user code's forward as a batch.

    Raises
    ------
    TypeError, ValueError
        When it is no batch for its variable.
    """
    layouts = [b.layout for b in inputs if b.layout.kind == "sequence"]
    made = None
    if function.as_numpy:
        made = _plain(variable, variable.shape, result, layouts, pad, None if copy else inputs)
    if made is None or (variable.kind == "batch" and made.layout.count != _batch_size(inputs)):
        origin = f"forward of user function {function.name!r}, output {variable.name!r}"
        must_be_value(function, origin, result)
        values = [batch.value(copy=False) for batch in inputs]
        value = output_value(Returned(origin, variable), result, values, _CPU)
        made = stored(value, layouts, pad)
    axis = variable.named_axis
    if axis is not None:
        for other, batch in zip(function.inputs, inputs, strict=True):
            if other.named_axis == axis:
                origin = f"forward of user function {function.name!r}, output {variable.name!r}"
                name = f"input {other.name!r}"
                check_same_lengths(origin, cast(Value, made), name, cast(Value, batch))
    return made


def checked_gradient(
    function: UserFunction,
    k: int,
    result: Any,
    inputs: Sequence[Batch],
    roots: Sequence[Batch],
    copy: bool,
) -> ArrayBatch:
    """Return one result of user code's backward, for input ``k``, as a batch.

    Raises
    ------
    TypeError, ValueError
        When it is no gradient for its variable.
    """
    variable, batch = function.inputs[k], inputs[k]
    layout, shape = batch.layout, batch.sample_shape
    if result is None:
        if not contract_of(function.contract).missing_is_zero:
            raise missing_gradients(function, [variable])
        return stored(zeros_like(variable, layout, shape, _CPU), [layout], batch.padded)
    made = None
    if function.as_numpy:
        made = _plain(variable, shape, result, [layout], batch.padded, None if copy else roots)
    if made is None or made.layout.count != layout.count:
        origin = f"backward of user function {function.name!r}, gradient of {variable.name!r}"
        must_be_value(function, origin, result)
        value = gradient_value(Returned(origin, variable), result, layout, shape, _CPU)
        return stored(value, [layout], batch.padded)
    return made


def _plain(
    variable: Variable,
    shape: tuple[int, ...],
    result: Any,
    layouts: Sequence[Layout],
    pad: bool,
    owners: Sequence[Batch] | None,
) -> ArrayBatch | None:
    """Convert a result that has the dtype, the shape and the lengths it should have.

    None for any other result, which is for `udfkit.results` to judge. ``owners`` hold memory that
    the result must not share; with None it is copied in any case.
    """
    if type(result) is list and variable.kind == "sequence":
        return _plain_list(variable.dtype, shape, result, layouts, pad)
    if type(result) is Ragged and variable.kind == "sequence":
        fits = result._gpu is None and result.dtype == variable.dtype
        if not fits or _differ(shape, result.sample_shape):
            return None
        ends = result._offsets
        for layout in layouts:
            if ends is layout.offsets or np.array_equal(ends, layout.offsets):
                values = result._values
                if pad:
                    values = padded(np.ascontiguousarray(values), layout)
                else:
                    values = _given_away(values, owners)
                return ArrayBatch(layout, pad, values)
        return None
    if type(result) is np.ndarray and variable.kind != "sequence":
        axes = len(variable.dynamic_axes)
        if (
            result.dtype != variable.dtype
            or result.ndim < axes
            or _differ(shape, result.shape[axes:])
        ):
            return None
        layout = Layout.of_batch(len(result)) if axes else Layout.without_axes()
        return ArrayBatch(layout, False, _given_away(result, owners))
    return None


def _plain_list(
    dtype: np.dtype, shape: tuple[int, ...], result: list[Any], layouts: Sequence[Layout], pad: bool
) -> ArrayBatch | None:
    if layouts and pyobjects.why_plain is None and FreeDimension not in shape:
        layout = layouts[0]
        out_shape = (layout.rows, layout.steps, *shape) if pad else (layout.total, *shape)
        if layout.contiguous and prod(out_shape) * dtype.itemsize < SMALLEST_POOLED:
            out = np.empty(out_shape, dtype)
            steps = layout.steps if pad else -1
            if not borders.gather(tuple(result), dtype, shape, layout.offsets, _INT64, out, steps):
                return ArrayBatch(layout, pad, out)
    try:
        rows = read_rows(result, shape, dtype)
    except (TypeError, ValueError):
        return None
    lengths = rows.lengths.tobytes()
    for layout in layouts:
        if layout.lengths.tobytes() == lengths:
            if pad and layout.contiguous:
                return ArrayBatch(layout, True, moves.rows_to_padded(rows, layout.steps))
            flat = moves.rows_to_ragged(rows, layout.offsets)
            return ArrayBatch(layout, pad, padded(flat, layout) if pad else flat)
    return None


def _given_away(array: np.ndarray, owners: Sequence[Batch] | None) -> np.ndarray:
    """Return a writable array that nobody else holds, as far as ``owners`` tell."""
    if owners is None or not array.flags.c_contiguous:
        return moves.copy_samples(array)
    for batch in owners:
        if batch.is_there and np.may_share_memory(array, batch.array):
            return moves.copy_samples(array)
    view = array.view()
    try:
        view.flags.writeable = True
    except ValueError:
        return moves.copy_samples(array)
    return view


def _differ(shape: tuple[int, ...], got: tuple[int, ...]) -> bool:
    """Whether an actual sample shape does not fit a declared one."""
    if shape == got:
        return False
    return len(shape) != len(got) or any(
        want not in (FreeDimension, have) for want, have in zip(shape, got, strict=True)
    )


def _for_user(function: UserFunction, batch: Batch, copy: bool) -> Any:
    layout = batch.layout
    if not function.as_numpy:
        return batch.value(copy)
    if layout.kind != "sequence":
        return batch.flat(copy) if copy else _read_only(batch.flat(copy))
    if function.layout == "ragged":
        starts = None if layout.all_new else layout.starts
        return Ragged._trusted(batch.flat(copy), layout.offsets, starts)
    if copy or not layout.contiguous:
        return _copied_list(layout, batch)
    array = _read_only(batch.array)
    if batch.padded:
        return [row[:n] for row, n in zip(array, layout.lengths.tolist(), strict=True)]
    bounds = layout.offsets.tolist()
    return [array[a:b] for a, b in pairwise(bounds)]


def _copied_list(layout: Layout, batch: Batch) -> list[np.ndarray]:
    shape = batch.sample_shape
    total = layout.total
    if pyobjects.why_plain is None and layout.contiguous:
        block = np.empty((total, *shape), batch.dtype)
        if block.nbytes < SMALLEST_POOLED:
            steps = layout.steps if batch.padded else -1
            made = borders.copy_views(block, layout.lengths, shape, _INT64, batch.address, steps)
            if made is not None:
                return made
    return pyobjects.views(batch.flat(copy=True), layout.lengths, shape)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _batch_size(inputs: Sequence[Batch]) -> int | None:
    return next((b.layout.count for b in inputs if b.layout.kind != "none"), None)
