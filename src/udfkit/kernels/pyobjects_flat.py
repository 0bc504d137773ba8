"""Short flat values padded, and short padded data flattened, each in one compiled call.

As ``pyobjects_short``, for batches in two arrays instead of a list; results may be written to
memory that is given.
"""

# mypy: disable-error-code="no-untyped-def, no-any-return"

from __future__ import annotations

from numba.core import types

from udfkit.kernels.capi import (
    MAX_RANK,
    as_object,
    dimension_words,
    keep,
    list_new,
    none,
    object_type,
    reference,
)
from udfkit.kernels.intrinsics import load_i32, load_i64, memcpy, store64
from udfkit.kernels.jit import driver, kernel
from udfkit.kernels.object_layouts import DATA, DESCR, DIMENSIONS, NDIM, READABLE, WRITABLE
from udfkit.kernels.pyobjects_compiled import _block_bytes, _equal, _is_array, _is_vector
from udfkit.kernels.pyobjects_short import (
    _fill_mask,
    _fill_row,
    _finish,
    _new,
    _put,
    _sample_bytes,
    _total,
)

__all__ = ["flatten", "pad_flat"]


@kernel
def _is_like(array, descr, rank, dimensions):
    if not _is_array(array, WRITABLE) or load_i32(array + NDIM) != rank:
        return False
    return load_i64(array + DESCR) == descr and _equal(
        load_i64(array + DIMENSIONS), dimensions, rank
    )


@kernel
def _result(given, descr, rank, dimensions):
    """Return a new reference to a given array, or to a new one for None; 0 after an error."""
    if given == none():
        return _new(descr, rank, dimensions)
    keep(given)
    return given


@kernel
def _overlap(first, second):
    begin, other = load_i64(first + DATA), load_i64(second + DATA)
    return begin < other + _block_bytes(second) and other < begin + _block_bytes(first)


@kernel
def _are_apart(out, source, vector):
    """Whether an output shares no memory with what is read while it is written."""
    return not _overlap(out, source) and not _overlap(out, vector)


@kernel
def _pad_flat(made, values, vector, count, index_descr, mask_descr, out, mask_out, limit):
    """Fill a list with lengths, data and mask; return 1, 0 after an error, or -1."""
    ends = load_i64(vector + DATA)
    descr, rank = load_i64(values + DESCR), load_i32(values + NDIM) - 1
    steps = 0
    for i in range(count):
        steps = max(steps, load_i64(ends + 8 * (i + 1)) - load_i64(ends + 8 * i))
    dimensions = dimension_words()
    sample_bytes = _sample_bytes(values, 1, dimensions + 16)
    if _is_array(out, WRITABLE) and load_i32(out + NDIM) == rank + 2:
        steps = max(steps, load_i64(load_i64(out + DIMENSIONS) + 8))
    if steps > limit // count // (sample_bytes + 1):
        return -1
    store64(dimensions, count)
    store64(dimensions + 8, steps)
    if out != none() and not (
        _is_like(out, descr, rank + 2, dimensions) and _are_apart(out, values, vector)
    ):
        return -1
    if mask_out != none() and not (
        _is_like(mask_out, mask_descr, 2, dimensions) and _are_apart(mask_out, values, vector)
    ):
        return -1
    if out != none() and mask_out != none() and _overlap(out, mask_out):
        return -1
    lengths = _new(index_descr, 1, dimensions)
    if not _put(made, 0, lengths):
        return 0
    data = _result(out, descr, rank + 2, dimensions)
    if not _put(made, 1, data):
        return 0
    mask = _result(mask_out, mask_descr, 2, dimensions)
    if not _put(made, 2, mask):
        return 0
    cells, source = load_i64(lengths + DATA), load_i64(values + DATA)
    row, row_bytes = load_i64(data + DATA), steps * sample_bytes
    for i in range(count):
        begin = load_i64(ends + 8 * i)
        length = load_i64(ends + 8 * (i + 1)) - begin
        store64(cells + 8 * i, length)
        at = source + begin * sample_bytes
        _fill_row(at, length * sample_bytes, row + i * row_bytes, row_bytes)
    _fill_mask(cells, count, steps, load_i64(mask + DATA))
    return 1


@driver(object_type(*[object_type] * 6, types.int64))
def pad_flat(values, offsets, index_dtype, mask_dtype, out, mask_out, limit):
    """Pad flat values ``(total, *s)`` with zeros, as `pad` does; outputs may be given, or None.

    ``offsets`` are those of a Ragged: int64, not decreasing, within the values, which hold no
    objects. Return None also where an output does not fit or shares memory with another array.
    """
    owner, vector = reference(values), reference(offsets)
    index_descr, mask_descr = reference(index_dtype), reference(mask_dtype)
    # First of all: making a list may run a garbage collection, and with it any Python code.
    made = list_new(3)
    if made == 0:
        return as_object(0)
    status = -1
    if (
        _is_array(owner, READABLE)
        and 1 <= load_i32(owner + NDIM) <= MAX_RANK
        and _is_vector(vector, index_descr, READABLE)
    ):
        count = load_i64(load_i64(vector + DIMENSIONS)) - 1
        outs = reference(out), reference(mask_out)
        if 0 < count <= limit:
            status = _pad_flat(made, owner, vector, count, index_descr, mask_descr, *outs, limit)
    return as_object(_finish(made, status))


@kernel
def _flatten(made, data, vector, count, left, index_descr, out, limit):
    """Fill a list with offsets and flat samples; return 1, 0 after an error, or -1."""
    lengths = load_i64(vector + DATA)
    sizes, rank = load_i64(data + DIMENSIONS), load_i32(data + NDIM) - 2
    descr, steps = load_i64(data + DESCR), load_i64(sizes + 8)
    total = _total(lengths, count, steps)
    dimensions = dimension_words()
    sample_bytes = _sample_bytes(data, 2, dimensions + 8)
    if total < 0 or total * sample_bytes > limit:
        return -1
    store64(dimensions, total)
    if out != none() and not (
        _is_like(out, descr, rank + 1, dimensions) and _are_apart(out, data, vector)
    ):
        return -1
    block = _result(out, descr, rank + 1, dimensions)
    if not _put(made, 1, block):
        return 0
    store64(dimensions, count + 1)
    offsets = _new(index_descr, 1, dimensions)
    if not _put(made, 0, offsets):
        return 0
    source, target, ends = load_i64(data + DATA), load_i64(block + DATA), load_i64(offsets + DATA)
    end = 0
    store64(ends, 0)
    for i in range(count):
        length = load_i64(lengths + 8 * i)
        first = i * steps + left * (steps - length)
        memcpy(target + end * sample_bytes, source + first * sample_bytes, length * sample_bytes)
        end += length
        store64(ends + 8 * (i + 1), end)
    return 1


@driver(object_type(*[object_type] * 4, types.int64, types.int64))
def flatten(data, lengths, index_dtype, out, left, limit):
    """Copy the valid samples of padded data ``(n, T, *s)`` to flat ones; ``out`` may be None.

    They end each row where ``left`` is 1, else begin it. Return a list of int64 offsets and the
    samples; or None as `unpad` does, and where ``out`` does not fit or shares memory with the data.
    """
    owner, vector, descr = reference(data), reference(lengths), reference(index_dtype)
    # First of all: making a list may run a garbage collection, and with it any Python code.
    made = list_new(2)
    if made == 0:
        return as_object(0)
    status = -1
    if (
        _is_array(owner, READABLE)
        and 2 <= load_i32(owner + NDIM) <= MAX_RANK + 2
        and _is_vector(vector, descr, READABLE)
    ):
        count = load_i64(load_i64(vector + DIMENSIONS))
        if count == load_i64(load_i64(owner + DIMENSIONS)):
            status = _flatten(made, owner, vector, count, left, descr, reference(out), limit)
    return as_object(_finish(made, status))
