"""Short batches of plain arrays padded and unpadded whole, each in one compiled call.

A batch of a few sequences costs its calls, not its bytes, so results are allocated here as well.
The interpreter lock is held meanwhile. Where ``pyobjects.why_plain`` is not None these must not be
called: they rely on the object layouts that are checked there.
"""

# mypy: disable-error-code="no-untyped-def, no-any-return"

from __future__ import annotations

from numba.core import types

from udfkit.kernels.capi import (
    MAX_RANK,
    array_type,
    as_object,
    dimension_words,
    drop,
    keep,
    list_new,
    list_set,
    new_array,
    none,
    object_type,
    reference,
)
from udfkit.kernels.intrinsics import load_i32, load_i64, memcpy, memset, store8, store64
from udfkit.kernels.jit import driver, kernel
from udfkit.kernels.layout import MASK_BEGIN, MASK_INVALID, MASK_VALID
from udfkit.kernels.object_layouts import DATA, DESCR, DIMENSIONS, ITEMS, NDIM, READABLE
from udfkit.kernels.pyobjects_compiled import (
    _count,
    _equal,
    _fits,
    _holds_sizes,
    _is_array,
    _is_vector,
    _item_size,
    _make_views,
    _read_shape,
    _sample_sizes,
)

__all__ = ["pad", "unpad"]


@kernel
def _new(descr: int, rank: int, dimensions: int) -> int:
    keep(descr)
    return new_array(array_type(), descr, rank, dimensions, 0, 0, 0, 0)


@kernel
def _read_lengths(items, count, wanted, sample, rank, most, lengths):
    """Write lengths, return the greatest; -1 where an item is not plain or too long."""
    model = -1
    longest = 0
    for i in range(count):
        sizes = _sample_sizes(load_i64(items + 8 * i), wanted, rank, 1)
        if sizes == -1 or (model == -1 and not _fits(sizes, sample, rank)):
            return -1
        if model == -1:
            model = sizes
        length = load_i64(sizes - 8)
        if length > most or not _equal(sizes, model, rank):
            return -1
        store64(lengths + 8 * i, length)
        longest = max(longest, length)
    return longest


@kernel
def _fill_row(source, used, data, row_bytes):
    memcpy(data, source, used)
    memset(data + used, 0, row_bytes - used)


@kernel
def _fill_mask(lengths, count, steps, mask):
    memset(mask, MASK_INVALID, count * steps)
    for i in range(count):
        length = load_i64(lengths + 8 * i)
        if length > 0:
            memset(mask + i * steps, MASK_VALID, length)
            store8(mask + i * steps, MASK_BEGIN)


@kernel
def _put(made: int, position: int, array: int) -> bool:
    """Hand a new reference to a list; False for none, after an error."""
    return array != 0 and list_set(made, position, array) == 0


@kernel
def _pad(made, items, count, wanted, sample, rank, index_descr, mask_descr, limit):
    """Fill a list with lengths, data and mask; return 1, 0 after an error, or -1."""
    dimensions = dimension_words()
    sample_bytes = _read_shape(sample, rank, _item_size(wanted), dimensions + 16)
    if sample_bytes < 0:
        return -1
    store64(dimensions, count)
    lengths = _new(index_descr, 1, dimensions)
    if not _put(made, 0, lengths):
        return 0
    cells = load_i64(lengths + DATA)
    most = limit // count // (sample_bytes + 1)
    steps = _read_lengths(items, count, wanted, sample, rank, most, cells)
    if steps < 0:
        return -1
    store64(dimensions + 8, steps)
    data = _new(wanted, rank + 2, dimensions)
    if not _put(made, 1, data):
        return 0
    mask = _new(mask_descr, 2, dimensions)
    if not _put(made, 2, mask):
        return 0
    row, row_bytes = load_i64(data + DATA), steps * sample_bytes
    for i in range(count):
        used = load_i64(cells + 8 * i) * sample_bytes
        _fill_row(load_i64(load_i64(items + 8 * i) + DATA), used, row + i * row_bytes, row_bytes)
    _fill_mask(cells, count, steps, load_i64(mask + DATA))
    return 1


@kernel
def _finish(made, status):
    """Return a list that was filled, 0 after an error, or None."""
    if status == 1:
        return made
    drop(made)
    if status == 0:
        return 0
    keep(none())
    return none()


@driver(object_type(*[object_type] * 5, types.int64))
def pad(batch, dtype, shape, index_dtype, mask_dtype, limit):
    """Pad the arrays of a tuple with zeros, each a new sequence.

    Return a list of int64 lengths ``(n,)``, data ``(n, longest, *shape)`` of ``dtype`` and int8
    mask ``(n, longest)``, all new; or None where the batch is empty, an item is not plain, as
    ``pyobjects.scan`` says, or data and mask would take more than ``limit`` bytes.
    """
    items, sample = reference(batch), reference(shape)
    index_descr, mask_descr = reference(index_dtype), reference(mask_dtype)
    # First of all: making a list may run a garbage collection, and with it any Python code.
    made = list_new(3)
    if made == 0:
        return as_object(0)
    count, rank = _count(items), _count(sample)
    status = -1
    if 0 < count <= limit and 0 <= rank < MAX_RANK and _holds_sizes(sample, rank):
        wanted, first = reference(dtype), items + ITEMS
        status = _pad(made, first, count, wanted, sample, rank, index_descr, mask_descr, limit)
    return as_object(_finish(made, status))


@kernel
def _sample_bytes(array, leading, dimensions):
    """Write the sizes behind the leading axes of an array; return the bytes of a sample."""
    sizes = load_i64(array + DIMENSIONS) + 8 * leading
    sample_bytes = _item_size(load_i64(array + DESCR))
    for axis in range(load_i32(array + NDIM) - leading):
        size = load_i64(sizes + 8 * axis)
        store64(dimensions + 8 * axis, size)
        sample_bytes *= size
    return sample_bytes


@kernel
def _total(lengths, count, steps):
    total = 0
    for i in range(count):
        length = load_i64(lengths + 8 * i)
        if length < 0 or length > steps:
            return -1
        total += length
    return total


@kernel
def _unpad(data, lengths, count, limit):
    """Return a list of arrays, 0 after an error, or -1."""
    sizes, rank = load_i64(data + DIMENSIONS), load_i32(data + NDIM) - 2
    descr, steps = load_i64(data + DESCR), load_i64(sizes + 8)
    total = _total(lengths, count, steps)
    dimensions = dimension_words()
    sample_bytes = _sample_bytes(data, 2, dimensions + 8)
    if total < 0 or total * sample_bytes > limit:
        return -1
    store64(dimensions, total)
    block = _new(descr, rank + 1, dimensions)
    if block == 0:
        return 0
    source, target = load_i64(data + DATA), load_i64(block + DATA)
    for i in range(count):
        used = load_i64(lengths + 8 * i) * sample_bytes
        memcpy(target, source + i * steps * sample_bytes, used)
        target += used
    made = _make_views(block, lengths, count, dimensions, rank, sample_bytes)
    drop(block)
    return made


@driver(object_type(*[object_type] * 3, types.int64))
def unpad(data, lengths, index_dtype, limit):
    """Copy the beginning of each row of padded data ``(n, T, *s)`` to an array of its own.

    Return a list as ``pyobjects.views`` does, over one new block; or None where data, which holds
    no objects, and int64 lengths are not contiguous, do not agree, or the sequences take more than
    ``limit`` bytes.
    """
    owner, vector = reference(data), reference(lengths)
    if (
        _is_array(owner, READABLE)
        and 2 <= load_i32(owner + NDIM) <= MAX_RANK + 2
        and _is_vector(vector, reference(index_dtype), READABLE)
    ):
        count = load_i64(load_i64(vector + DIMENSIONS))
        if count == load_i64(load_i64(owner + DIMENSIONS)):
            made = _unpad(owner, load_i64(vector + DATA), count, limit)
            if made != -1:
                return as_object(made)
    keep(none())
    return as_object(none())
