"""One forward or backward of a sequence function: Values in, compiled loops, Values out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from udfkit.kernels import lazy, sequences
from udfkit.kernels.sequences import MOST_CHUNKS
from udfkit.layout import Layout
from udfkit.memory import empty
from udfkit.places import HOST
from udfkit.results import CallRecord
from udfkit.sequence_declarations import Declared
from udfkit.sequence_program import Definition, Program
from udfkit.state import UserBackPropState
from udfkit.value import Value
from udfkit.variable import Variable

__all__ = ["State", "fits_all", "run_backward", "run_forward", "wrapped_forward"]

cuda_arrays = lazy("cuda_arrays", globals())
cuda_sequences = lazy("cuda_sequences", globals())
cuda_target = lazy("cuda_target", globals())

CHUNK_BYTES = 64 << 20
"""Room for the sums of one shared gradient, a row a chunk, where that takes several rows."""

SMALL = 2048
"""Outputs with fewer samples are not taken from the pool."""


class State:
    """What a forward keeps for its backward."""

    __slots__ = (
        "arrays",
        "chunks",
        "count",
        "fixed",
        "layouts",
        "needs",
        "place",
        "program",
        "values",
        "weight",
    )

    program: Program
    place: Any
    values: tuple[Value, ...]
    arrays: dict[str, Any]
    layouts: dict[str, Layout]
    fixed: tuple[Any, ...]
    needs: tuple[int, ...]
    chunks: int
    count: int
    weight: int


def run_forward(
    function: Any, definition: Definition, program: Program, values: tuple[Value, ...]
) -> tuple[State, list[Value]]:
    """Run the forward body over all sequences, where the Values are."""
    place = values[0]._place
    if place is HOST:
        return _run_forward(function, definition, program, values, place)
    with cuda_target.on_device(place.index):  # type: ignore[attr-defined]
        return _run_forward(function, definition, program, values, place)


def _run_forward(
    function: Any, definition: Definition, program: Program, values: tuple[Value, ...], place: Any
) -> tuple[State, list[Value]]:
    state = State()
    state.place, state.program, state.values = place, program, values
    state.arrays = arrays = dict(function._options)
    for (name, declared), value in zip(definition.takes.items(), values, strict=False):
        arrays[name] = _flat(declared, value, place)
    shapes = tuple([value._sample_shape for value in values])
    bound = function._bound.get((program, shapes))
    if bound is None:
        bound = function._bound[program, shapes] = _bind(function, definition, program, shapes)
    sizes, vector, outputs = bound
    state.layouts = layouts = _input_layouts(definition, values)
    state.count = values[definition.batch_input]._layout.count
    for name in definition.names[len(values) :]:
        declared = definition.takes[name]
        total = layouts[str(declared.shape[0].symbol)].total
        arrays[name] = place.send(np.full(total, declared.default, declared.dtype))
    if definition.has_indices:
        _check_indices(definition, state, sizes)
    for name, length in definition.output_lengths.items():
        if length not in layouts:
            layouts[length] = _own_layout(definition, state, sizes, name)
    _plan(definition, state, vector)
    results, where = [], values[0]._device
    for name, declared, length, sample, dtype in outputs:
        if length is None:
            made = _make(place, (state.count, *sample), dtype)
            results.append(Value._make(Layout.of_batch(state.count), where, padded=made))
        else:
            layout = layouts[length]
            made = _make(place, (layout.total, *sample), dtype)
            results.append(Value._make(layout, where, flat=made))
        arrays[name] = _seen(declared, made, place)
    _run(state, "forward", arrays)
    return state, results


def _bind(
    function: Any, definition: Definition, program: Program, shapes: tuple[tuple[int, ...], ...]
) -> tuple[dict[str, int], np.ndarray, list[Any]]:
    """Find what sample shapes decide: sizes by name and in order, and what outputs are made of."""
    sizes = function._bind_sizes(definition, shapes, definition.names)
    vector = np.array([sizes[name] for name in program.sizes], np.int64)
    outputs = [
        (
            name,
            declared,
            definition.output_lengths.get(name),
            function._sample_shape(declared, sizes, shapes),
            np.dtype(program.dtypes[name]),
        )
        for name, declared in definition.gives.items()
    ]
    return sizes, vector, outputs


def wrapped_forward(
    function: Any, definition: Definition, arguments: list[Value]
) -> tuple[UserBackPropState, dict[Variable, Value]]:
    """Do what an engine's call of forward does, for Values that fit."""
    try:
        program = function._program(definition)
        state, results = run_forward(function, definition, program, tuple(arguments))
    except BaseException as error:
        kind = type(function).__qualname__
        error.add_note(f"in forward of user function {function.name!r} ({kind})")
        raise
    made = dict(zip(function.outputs, results, strict=True))
    inputs = zip(function.inputs, arguments, strict=True)
    record = CallRecord(
        {variable: (value._layout, value._sample_shape) for variable, value in inputs},
        {variable: (value._layout, value._sample_shape) for variable, value in made.items()},
    )
    where = arguments[0]._device
    kept = UserBackPropState(function, where, state)
    kept._wraps = True
    kept._attach(where, record)
    return kept, made


def fits_all(variables: Sequence[Variable], values: Sequence[Any]) -> bool:
    """Whether these are Values for these variables, of one batch size, beyond doubt."""
    if len(values) != len(variables):
        return False
    count = -1
    for variable, value in zip(variables, values, strict=True):
        if type(value) is not Value or value._unbound or value._layout.kind != variable.kind:
            return False
        if value._device is not values[0]._device and value._device != values[0]._device:
            return False
        if value._dtype != variable.dtype or value._sample_shape != variable.shape:
            return False
        if variable.kind != "none":
            if count not in (-1, value._layout.count):
                return False
            count = value._layout.count
    return True


def run_backward(
    definition: Definition, state: State, roots: Sequence[Value]
) -> dict[str, Value | None]:
    """Run the backward body over all sequences; return the gradient of each input that has one."""
    if state.place is HOST:
        return _run_backward(definition, state, roots)
    with cuda_target.on_device(state.place.index):
        return _run_backward(definition, state, roots)


def _run_backward(
    definition: Definition, state: State, roots: Sequence[Value]
) -> dict[str, Value | None]:
    arrays = dict(state.arrays)
    for (name, declared), value in zip(definition.gives.items(), roots, strict=True):
        arrays[f"grad_{name}"] = _flat(declared, value, state.place)
    sums = {}
    for name, declared in definition.takes.items():
        if not definition.has_gradient(name):
            continue
        like = state.arrays[name]
        if declared.kind == "shared":
            rows = max(state.chunks, 1)
            sums[name] = state.place.send(np.zeros((rows, math.prod(like.shape))))
            arrays[f"grad_{name}"] = _shaped(sums[name], (rows, *like.shape), state.place)
        else:
            arrays[f"grad_{name}"] = _make(state.place, like.shape, like.dtype)
    _run(state, "backward", arrays)
    found: dict[str, Value | None] = {}
    for (name, declared), value in zip(definition.takes.items(), state.values, strict=False):
        found[name] = None
        if not definition.has_gradient(name):
            continue
        layout, where = value._layout, value._device
        gradient = arrays[f"grad_{name}"]
        if declared.is_flat and declared.kind != "shared":
            shape = (gradient.shape[0], *value._sample_shape)
            gradient = _shaped(gradient, shape, state.place)
        if declared.kind == "step":
            found[name] = Value._make(layout, where, flat=gradient)
            continue
        if declared.kind == "shared":
            gradient = _sum(state, sums[name], value)
        found[name] = Value._make(layout, where, padded=gradient)
    return found


def _make(place: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array without contents where the samples are."""
    if place is not HOST:
        return cuda_arrays.empty(shape, dtype)
    # Small arrays skip the pool, whose bookkeeping would be noticed.
    make = np.empty if shape and shape[0] < SMALL else empty
    return make(shape, dtype)


def _run(state: State, phase: str, arrays: dict[str, Any]) -> None:
    """Run a body where the samples are."""
    if not state.count:
        return
    program = state.program
    args = tuple([arrays[slot.name] for slot in program.arguments(phase)])
    if state.place is HOST:
        program.run(phase, state.chunks, state.weight, state.fixed + state.needs + args)
    else:
        program.kernel(phase).run(state.chunks, state.fixed, state.needs, args)


def _sum(state: State, parts: Any, value: Value) -> Any:
    """Add up the gradients of a shared input, one a chunk, in an order of their own."""
    if state.place is not HOST:
        return cuda_sequences.sum_rows(
            parts, max(state.chunks, 1), value._sample_shape, value.dtype
        )
    if state.chunks > 1:
        sequences.sum_chunks(parts, state.chunks)
    return parts[0].reshape(value._sample_shape).astype(value.dtype)


def _flat(declared: Declared, value: Value, place: Any) -> Any:
    """Return all samples, as compiled code takes them."""
    if place is HOST:
        array = value._flat_values() if declared.kind == "step" else value.data
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
    else:
        given = value._flat_values() if declared.kind == "step" else value._padded_data()
        array = place.read(given, "the samples")
        cuda_arrays.wait(array.stream, 0)
    return _seen(declared, array, place)


def _seen(declared: Declared, array: Any, place: Any) -> Any:
    """Give an array of all samples the rank that a body expects; a lone number has shape (1,)."""
    if place is HOST and not declared.is_flat:
        return array if array.ndim else array.reshape(1)
    shape = tuple(array.shape)
    if declared.is_flat:
        lead = 0 if declared.kind == "shared" else 1
        shape = (*shape[:lead], math.prod(shape[lead:]))
    return _shaped(array, shape or (1,), place)


def _shaped(array: Any, shape: tuple[int, ...], place: Any) -> Any:
    """Return an array with another shape, as compiled code takes it."""
    if place is HOST:
        return array if array.shape == shape else array.reshape(shape)
    return cuda_arrays.as_array(place.read(place.reshape(array, shape), "the samples"))


def _input_layouts(definition: Definition, values: Sequence[Value]) -> dict[str, Layout]:
    """Return the layout of every length of inputs; those of one name must agree."""
    layouts: dict[str, Layout] = {}
    first: dict[str, str] = {}
    for (name, declared), value in zip(definition.takes.items(), values, strict=False):
        if declared.kind != "step":
            continue
        length, layout = str(declared.shape[0].symbol), value._layout
        other = layouts.setdefault(length, layout)
        first.setdefault(length, name)
        if other is not layout and not other.same_lengths(layout):
            k = int(np.flatnonzero(other.lengths != layout.lengths)[0])
            raise ValueError(
                f"{definition.name}: sequence {k} of {name!r} has length {layout.lengths[k]}, "
                f"expected {other.lengths[k]}, the length of {first[length]!r}"
            )
    return layouts


def _check_indices(definition: Definition, state: State, sizes: dict[str, int]) -> None:
    for (name, declared), value in zip(definition.takes.items(), state.values, strict=False):
        if declared.index_of is None:
            continue
        below = int(declared.index_of.value(sizes))
        held = state.arrays[name]
        # A body cannot check them, so those on a device are fetched: this waits for it.
        indices = (held if state.place is HOST else state.place.fetch(held)).reshape(-1)
        at = int(sequences.first_outside(indices, below))
        if at < 0:
            continue
        step = at // (len(indices) // held.shape[0])
        offsets = value._layout.offsets
        k = int(np.searchsorted(offsets, step, "right")) - 1
        raise ValueError(
            f"{definition.name}: {indices[at]} in {name!r}, sequence {k}, step "
            f"{step - int(offsets[k])}, is out of range: expected 0 to {below - 1}"
        )


def _own_layout(definition: Definition, state: State, sizes: dict[str, int], output: str) -> Layout:
    size = definition.gives[output].shape[0]
    lengths: np.ndarray = np.zeros(state.count, np.int64)
    if size.symbol in state.program.counts:
        count, slots = state.program.counts[size.symbol]
        known = [state.layouts[n].offsets for n in definition.length_names]
        values = dict(state.arrays)
        if state.place is not HOST:
            for slot in slots:
                if slot.name in state.arrays:
                    values[slot.name] = state.place.fetch(state.arrays[slot.name])
        count(0, state.count, *known, *(values[slot.name] for slot in slots), lengths)
    else:
        named: dict[str, Any] = {n: state.layouts[n].lengths for n in definition.length_names}
        lengths[...] = size.value({**sizes, **named})
    bad = np.flatnonzero(lengths < 0)
    if len(bad):
        raise ValueError(
            f"{definition.name}: the length of {output!r} is {lengths[bad[0]]} for sequence "
            f"{bad[0]}, expected 0 or more"
        )
    return Layout.of_lengths(lengths)


def _plan(definition: Definition, state: State, sizes: np.ndarray) -> None:
    """Divide the sequences into chunks and give each room for its saved scratch."""
    program, count = state.program, state.count
    offsets = [state.layouts[name].offsets for name in program.lengths]
    groups = len(program.saved_dtypes)
    positions = np.empty((groups + 1, count + 1), np.int64)
    needs = np.empty(program.work_count, np.int64)
    chunks = np.empty(_most_chunks(definition, state) + 1, np.int64)
    state.chunks = program.plan(count, *offsets, sizes, positions, needs, chunks)
    state.weight = int(positions[groups, count])
    state.needs = tuple(needs.tolist())
    where: list[Any] = [*offsets, sizes]
    rows: list[Any] = [positions[k] for k in range(groups)]
    if state.place is not HOST:
        state.chunks = most = _most_rows(definition, state, count)
        chunks = np.arange(most + 1, dtype=np.int64) * count // max(most, 1)
        chunks, *where = (state.place.send(array) for array in (chunks, *where))
        rows = [state.place.send(row) for row in rows]
    fixed = [chunks, *where]
    for k in range(groups):
        room = _make(state.place, (int(positions[k, count]),), program.saved_dtypes[k])
        fixed += [room, rows[k]]
    state.fixed = tuple(fixed)


def _most_chunks(definition: Definition, state: State) -> int:
    return _most_rows(definition, state, MOST_CHUNKS)


def _most_rows(definition: Definition, state: State, most: int) -> int:
    """Return how many chunks there may be, given that each has sums of shared gradients."""
    if not definition.has_shared:
        return most
    shared = (state.arrays[n].shape for n, d in definition.takes.items() if d.kind == "shared")
    largest = max(math.prod(shape) for shape in shared)
    return min(most, max(1, CHUNK_BYTES // (8 * largest + 1)))
