"""Compiled ways of short batches in and out of user code, each one call: for what is small.

They hold the interpreter lock while they copy. Where ``pyobjects.why_plain`` is not None they must
not be called: they rely on the object layouts that are checked there.
"""

# mypy: disable-error-code="no-untyped-def, no-any-return"

from __future__ import annotations

from numba.core import types

from udfkit.kernels.capi import (
    MAX_RANK,
    as_object,
    dimension_words,
    keep,
    none,
    object_type,
    reference,
)
from udfkit.kernels.intrinsics import load_i64, memcpy, memset
from udfkit.kernels.jit import driver, kernel
from udfkit.kernels.object_layouts import DATA, DESCR, DIMENSIONS, ITEMS, READABLE, WRITABLE
from udfkit.kernels.pyobjects_compiled import (
    _block_bytes,
    _count,
    _equal,
    _fits,
    _have_room,
    _holds_sizes,
    _is_array,
    _is_vector,
    _item_size,
    _make_views,
    _read_shape,
    _sample_sizes,
)

__all__ = ["copy_views", "gather"]


@kernel
def _gather(items, count, wanted, sample, rank, ends, row_bytes, sample_bytes, out):
    model = -1
    for i in range(count):
        item = load_i64(items + 8 * i)
        sizes = _sample_sizes(item, wanted, rank, 1)
        if sizes == -1:
            return False
        if model == -1:
            if not _fits(sizes, sample, rank):
                return False
            model = sizes
        begin = load_i64(ends + 8 * i)
        length = load_i64(sizes - 8)
        if not _equal(sizes, model, rank) or length != load_i64(ends + 8 * (i + 1)) - begin:
            return False
        if row_bytes < 0:
            memcpy(out + begin * sample_bytes, load_i64(item + DATA), length * sample_bytes)
        else:
            row, used = out + i * row_bytes, length * sample_bytes
            if used > row_bytes:
                return False
            memcpy(row, load_i64(item + DATA), used)
            memset(row + used, 0, row_bytes - used)
    return True


@driver(types.int64(*[object_type] * 6, types.int64))
def gather(batch, dtype, shape, offsets, index_dtype, out, steps):
    """Copy the arrays of a tuple to ``out``: flat, or with ``steps >= 0`` padded with zeros.

    Return 0, or -1 where an item is not plain, as ``pyobjects.scan`` says, or has another length
    than the int64 vector ``offsets`` says; ``out`` is unspecified then. It must be contiguous, of
    ``dtype``, and have the size of the result.
    """
    items, wanted, sample, vector = (
        reference(batch),
        reference(dtype),
        reference(shape),
        reference(offsets),
    )
    count, rank = _count(items), _count(sample)
    target = reference(out)
    if (
        count < 0
        or not 0 <= rank <= MAX_RANK
        or not _holds_sizes(sample, rank)
        or not _is_vector(vector, reference(index_dtype), READABLE)
        or load_i64(load_i64(vector + DIMENSIONS)) != count + 1
        or not _is_array(target, WRITABLE)
    ):
        return -1
    sample_bytes = _read_shape(sample, rank, _item_size(wanted), dimension_words())
    ends = load_i64(vector + DATA)
    rows_needed = load_i64(ends + 8 * count) if steps < 0 else count * steps
    if sample_bytes < 0 or rows_needed * sample_bytes != _block_bytes(target):
        return -1
    row_bytes = -1 if steps < 0 else steps * sample_bytes
    data = load_i64(target + DATA)
    done = _gather(items + ITEMS, count, wanted, sample, rank, ends, row_bytes, sample_bytes, data)
    return 0 if done else -1


@driver(object_type(*[object_type] * 4, types.int64, types.int64))
def copy_views(block, lengths, shape, index_dtype, source, steps):
    """Copy samples from the address ``source`` to ``block``; make one view of it a sequence.

    The samples at ``source`` are flat, or with ``steps >= 0`` padded. Return a list as
    ``pyobjects.views`` does, or None where the arguments are not such as it takes, or the block has
    another size than all sequences.
    """
    owner, vector, sample = reference(block), reference(lengths), reference(shape)
    rank = _count(sample)
    dimensions = dimension_words()
    if (
        0 <= rank <= MAX_RANK
        and _holds_sizes(sample, rank)
        and _is_vector(vector, reference(index_dtype), READABLE)
        and _is_array(owner, WRITABLE)
    ):
        item_bytes = _item_size(load_i64(owner + DESCR))
        sample_bytes = _read_shape(sample, rank, item_bytes, dimensions + 8)
        count, cells = load_i64(load_i64(vector + DIMENSIONS)), load_i64(vector + DATA)
        room = _block_bytes(owner)
        total = 0
        for i in range(count):
            total += load_i64(cells + 8 * i)
        fits = sample_bytes >= 0 and _have_room(cells, count, sample_bytes, room)
        if fits and total * sample_bytes == room:
            target = load_i64(owner + DATA)
            if steps < 0:
                memcpy(target, source, room)
            else:
                for i in range(count):
                    used = load_i64(cells + 8 * i) * sample_bytes
                    memcpy(target, source + i * steps * sample_bytes, used)
                    target += used
            return as_object(_make_views(owner, cells, count, dimensions, rank, sample_bytes))
    keep(none())
    return as_object(none())
