"""The compiled functions behind ``pyobjects``, which says what they do and is the one to import.

Addresses stand for objects. The interpreter lock is held all the time, and no Python code runs.
"""

# mypy: disable-error-code="no-untyped-def, no-any-return"

from __future__ import annotations

from typing import Any

from numba.core import types

from udfkit.kernels.capi import (
    MAX_RANK,
    array_type,
    as_object,
    as_size,
    descr_type,
    dimension_words,
    drop,
    error_clear,
    error_occurred,
    is_subtype,
    keep,
    list_new,
    list_set,
    new_array,
    none,
    object_type,
    reference,
    set_base,
    tuple_item,
    tuple_size,
)
from udfkit.kernels.intrinsics import load_i32, load_i64, load_u8, prefetch, store64
from udfkit.kernels.jit import driver, kernel
from udfkit.kernels.object_layouts import (
    BYTE_ORDER,
    DATA,
    DESCR,
    DIMENSIONS,
    FLAGS,
    HALF,
    ITEM_SIZE,
    ITEM_SIZE_BYTES,
    ITEMS,
    LAST_NUMBER,
    NATIVE,
    NDIM,
    NO_ORDER,
    READABLE,
    TYPE,
    TYPE_NUMBER,
    WRITABLE,
    WRITEABLE_FLAG,
)
from udfkit.kernels.pyobjects_plain import BAD_BATCH, BAD_DTYPE, BAD_SHAPE, BAD_SLOTS

__all__ = ["address", "make_views", "read"]

_types: Any = types
THREE_NUMBERS = _types.Tuple([types.int64] * 3)
LARGEST = 2**62
AHEAD = 12
"""How many items ahead headers are fetched: 16,384 scattered arrays take 6.6 ns each, not 8.2."""


@kernel
def _is_array(item: int, flags: int) -> bool:
    return load_i64(item + TYPE) == array_type() and (load_i32(item + FLAGS) & flags) == flags


@kernel
def _is_native(descr: int) -> bool:
    order = load_u8(descr + BYTE_ORDER)
    return order in (NATIVE, NO_ORDER)


@kernel
def _same_kind(descr: int, wanted: int) -> bool:
    number = load_i32(wanted + TYPE_NUMBER)
    return (
        load_i32(descr + TYPE_NUMBER) == number
        and (number <= LAST_NUMBER or number == HALF)
        and _is_native(descr)
        and _is_native(wanted)
    )


@kernel
def _is_vector(item: int, wanted: int, flags: int) -> bool:
    if not _is_array(item, flags) or load_i32(item + NDIM) != 1:
        return False
    descr = load_i64(item + DESCR)
    return descr == wanted or _same_kind(descr, wanted)


@kernel
def _count(items: int) -> int:
    count = tuple_size(items)
    if count < 0:
        error_clear()
    return count


@kernel
def _slots(vector: int, index_descr: int, count: int) -> int:
    # The address of a vector's cells, or 0 where it is not an int64 vector with enough of them.
    if not _is_vector(vector, index_descr, WRITABLE):
        return 0
    if load_i64(load_i64(vector + DIMENSIONS)) < count:
        return 0
    return load_i64(vector + DATA)


@kernel
def _holds_sizes(shape: int, rank: int) -> bool:
    for axis in range(rank):
        if as_size(tuple_item(shape, axis)) == -1 and error_occurred() != 0:
            error_clear()
            return False
    return True


@kernel
def _fits(sizes: int, shape: int, rank: int) -> bool:
    same = True
    for axis in range(rank):
        same &= load_i64(sizes + 8 * axis) == as_size(tuple_item(shape, axis))
    return same


@kernel
def _equal(sizes: int, model: int, rank: int) -> bool:
    same = True
    for axis in range(rank):
        same &= load_i64(sizes + 8 * axis) == load_i64(model + 8 * axis)
    return same


@kernel
def _sample_sizes(item: int, wanted: int, rank: int, leading: int) -> int:
    # The address of the sizes of an item's samples, or -1 where dtype, rank or flags do not fit.
    if not _is_array(item, READABLE) or load_i32(item + NDIM) != rank + leading:
        return -1
    descr = load_i64(item + DESCR)
    if descr != wanted and not _same_kind(descr, wanted):
        return -1
    return load_i64(item + DIMENSIONS) + 8 * leading


@kernel
def _fetch_ahead(items: int, i: int, count: int) -> None:
    if i + AHEAD < count:
        prefetch(load_i64(items + 8 * (i + AHEAD)) + DATA)
        near = load_i64(items + 8 * (i + AHEAD // 2))
        if load_i64(near + TYPE) == array_type():
            prefetch(load_i64(near + DIMENSIONS))


@kernel
def _read_items(items, count, wanted, sample, rank, pointers, lengths):
    leading = 0 if lengths == 0 else 1
    # The sizes of the first item that fits: comparing with them is cheaper than with the tuple.
    model = -1
    odd = longest = total = 0
    for i in range(count):
        _fetch_ahead(items, i, count)
        item = load_i64(items + 8 * i)
        sizes = _sample_sizes(item, wanted, rank, leading)
        if sizes != -1 and model == -1 and _fits(sizes, sample, rank):
            model = sizes
        pointer, length = 0, -1
        if sizes != -1 and model != -1 and _equal(sizes, model, rank):
            pointer = load_i64(item + DATA)
            length = load_i64(sizes - 8) if leading else 1
            total += length
            longest = max(longest, length)
        else:
            odd += 1
        store64(pointers + 8 * i, pointer)
        if leading:
            store64(lengths + 8 * i, length)
    return odd, longest, total


@driver(THREE_NUMBERS(*[object_type] * 6))
def read(batch, dtype, shape, pointers, lengths, index_dtype):
    items, wanted, sample = reference(batch), reference(dtype), reference(shape)
    index_descr = reference(index_dtype)
    count, rank = _count(items), _count(sample)
    if count < 0:
        return BAD_BATCH, 0, 0
    if rank < 0 or not _holds_sizes(sample, rank):
        return BAD_SHAPE, 0, 0
    if is_subtype(load_i64(wanted + TYPE), descr_type()) == 0:
        return BAD_DTYPE, 0, 0
    pointer_slots = _slots(reference(pointers), index_descr, count)
    length_slots = 0
    if reference(lengths) != none():
        length_slots = _slots(reference(lengths), index_descr, count)
        if length_slots == 0:
            return BAD_SLOTS, 0, 0
    if pointer_slots == 0:
        return BAD_SLOTS, 0, 0
    return _read_items(items + ITEMS, count, wanted, sample, rank, pointer_slots, length_slots)


@kernel
def _item_size(descr: int) -> int:
    return load_i64(descr + ITEM_SIZE) if ITEM_SIZE_BYTES == 8 else load_i32(descr + ITEM_SIZE)


@kernel
def _times(a: int, b: int) -> int:
    # -1 where a size is negative or the product is too large to be one.
    if a < 0 or b < 0 or (b > 0 and a > LARGEST // b):
        return -1
    return a * b


@kernel
def _block_bytes(block: int) -> int:
    size = _item_size(load_i64(block + DESCR))
    for axis in range(load_i32(block + NDIM)):
        size *= load_i64(load_i64(block + DIMENSIONS) + 8 * axis)
    return size


@kernel
def _read_shape(shape: int, rank: int, item_bytes: int, sizes: int) -> int:
    # Write the sizes of a tuple; return the bytes of a sample, or -1 where a size is none.
    sample_bytes = item_bytes
    for axis in range(rank):
        size = as_size(tuple_item(shape, axis))
        store64(sizes + 8 * axis, size)
        sample_bytes = _times(sample_bytes, size)
    return sample_bytes


@kernel
def _have_room(lengths: int, count: int, sample_bytes: int, room: int) -> bool:
    for i in range(count):
        used = _times(sample_bytes, load_i64(lengths + 8 * i))
        if used < 0 or used > room:
            return False
        room -= used
    return True


@kernel
def _make_views(block, lengths, count, dimensions, rank, sample_bytes):
    made = list_new(count)
    if made == 0:
        return 0
    descr, position = load_i64(block + DESCR), load_i64(block + DATA)
    for i in range(count):
        length = load_i64(lengths + 8 * i)
        store64(dimensions, length)
        # Both calls take over a reference, to the dtype and to the block, also when they fail.
        keep(descr)
        view = new_array(array_type(), descr, rank + 1, dimensions, 0, position, WRITEABLE_FLAG, 0)
        if view == 0:
            drop(made)
            return 0
        list_set(made, i, view)
        keep(block)
        if set_base(view, block) < 0:
            drop(made)
            return 0
        position += length * sample_bytes
    return made


@driver(object_type(*[object_type] * 4))
def make_views(block, lengths, shape, index_dtype):
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
        if sample_bytes >= 0 and _have_room(cells, count, sample_bytes, _block_bytes(owner)):
            return as_object(_make_views(owner, cells, count, dimensions, rank, sample_bytes))
    keep(none())
    return as_object(none())


@driver(types.int64(object_type))
def address(array):
    item = reference(array)
    kind = load_i64(item + TYPE)
    if kind != array_type() and is_subtype(kind, array_type()) == 0:
        raise TypeError("address takes a NumPy array")
    return load_i64(item + DATA)
