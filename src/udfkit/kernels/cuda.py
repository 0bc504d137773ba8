"""CUDA kernels: the twins of ``kernels/cpu.py`` over the same index arithmetic.

Every argument is an int64: the address of an array on the device, a size or a count. A twin takes
the arguments of the CPU kernel in their order, without those that only a host needs (`HOST_ONLY`);
then come what the CPU kernel reads off its arrays (``rows``, ``steps``) and what one launch does on
top of it (``starts``, ``mask``). 0 as the address of ``starts`` means that every sequence is new,
as that of ``mask`` that no mask is wanted.

A kernel is made for one access width, and for 32 or 64 bits of byte positions inside a row; the
addresses of rows are always 64-bit. No division: a row of the batch is a row of threads, x runs
over the batch and y over parts of a row. Each output byte is written by exactly one thread.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import cuda
from numba.extending import register_jitable

from udfkit.kernels import cuda_masks
from udfkit.kernels.cuda_access import (
    advance,
    index32,
    index64,
    load,
    load_int64,
    load_uint8,
    store,
    store_bits,
    store_uint8,
    store_zero,
)
from udfkit.kernels.cuda_launch import loads_in_flight
from udfkit.kernels.layout import clipped, mask_code, mask_word, smaller

__all__ = ["HELPERS", "HOST_ONLY", "TWINS", "Twin", "parameters"]


HOST_ONLY = ("first", "last", "padding", "template", "way")
"""Arguments of CPU kernels that CUDA twins lack: a range for a thread, ways to write memory."""

MOST_REGISTERS = 32


@dataclass(frozen=True, slots=True)
class Twin:
    """How to make one kernel.

    Attributes
    ----------
    make
        ``make(width, index)`` returns the function to compile.
    has_widths
        Whether the kernel differs by access width.
    has_variants
        Whether the kernel differs by the bits of positions inside a row.
    is_lean
        Whether its 32-bit variant is held to the 32 registers a thread at which a multiprocessor is
        full; the others would spill.
    """

    make: Callable[[int, Any], Callable[..., None]]
    has_widths: bool = True
    has_variants: bool = True
    is_lean: bool = True

    def function(self, width: int = 1, *, is_wide: bool = False) -> Callable[..., None]:
        """Return the function for one access width and one size of positions."""
        return self.make(width, index64 if is_wide else index32)

    def most_registers(self, *, is_wide: bool = False) -> int | None:
        """Return the registers a thread may use, or None where there is no limit."""
        return MOST_REGISTERS if self.is_lean and not is_wide else None


def parameters(function: Callable[..., None]) -> tuple[str, ...]:
    """Return the names of a kernel's parameters; all are int64."""
    return tuple(inspect.signature(function).parameters)


@register_jitable
def _row():
    return index64(cuda.blockIdx.x) * cuda.blockDim.y + cuda.threadIdx.y


@register_jitable
def _write_mask_row(mask, starts, row, steps, length):
    # Bytes side by side in a warp: with the payload beside it a wider store gains nothing.
    if mask != 0:
        step = index64(cuda.blockIdx.y) * cuda.blockDim.x + cuda.threadIdx.x
        while step < steps:
            is_start = step > 0 or starts == 0 or load_uint8(starts + row) != 0
            store_uint8(mask + row * steps + step, mask_code(step, length, is_start))
            step = advance(step, index64(cuda.gridDim.y) * cuda.blockDim.x)


def _row_mover(width: int, index: Any, *, fills: bool) -> Any:
    """Return the function that moves this thread's part of one row, and zeroes the row's rest."""
    load_part, store_part, zero_part = load(width), store(width), store_zero(width)
    count = loads_in_flight(width, is_wide=index is index64)
    is_pair = count == 2

    @register_jitable
    def move_row(target, source, valid, extent):
        step = index(cuda.blockDim.x * width)
        at = index((index64(cuda.blockIdx.y) * cuda.blockDim.x * count + cuda.threadIdx.x) * width)
        while at < extent:
            last = index(at + (count - 1) * step)
            if last < valid:
                first_part = load_part(source + at)
                if is_pair:
                    last_part = load_part(source + last)
                    store_part(target + at, first_part)
                    store_part(target + last, last_part)
                else:
                    second_part = load_part(source + at + step)
                    third_part = load_part(source + at + 2 * step)
                    last_part = load_part(source + last)
                    store_part(target + at, first_part)
                    store_part(target + at + step, second_part)
                    store_part(target + at + 2 * step, third_part)
                    store_part(target + last, last_part)
            else:
                part = at
                while part <= last and part < extent:
                    if not fills or part < valid:
                        store_part(target + part, load_part(source + part))
                    else:
                        zero_part(target + part)
                    part = index(advance(part, step))
            at = index(advance(at, index64(cuda.gridDim.y) * count * step))

    return move_row


def _rows_to_padded(width: int, index: Any) -> Callable[..., None]:
    move_row = _row_mover(width, index, fills=True)

    def rows_to_padded(pointers, lengths, sample_bytes, steps, out, starts, mask, rows):
        row = _row()
        if row < rows:
            length = clipped(load_int64(lengths + 8 * row), steps)
            row_bytes = steps * sample_bytes
            move_row(
                out + row * row_bytes,
                load_int64(pointers + 8 * row),
                index(length * sample_bytes),
                index(row_bytes),
            )
            _write_mask_row(mask, starts, row, steps, length)

    return rows_to_padded


def _rows_to_ragged(width: int, index: Any) -> Callable[..., None]:
    move_row = _row_mover(width, index, fills=False)

    def rows_to_ragged(pointers, offsets, sample_bytes, out, rows):
        row = _row()
        if row < rows:
            begin = load_int64(offsets + 8 * row)
            valid = index((load_int64(offsets + 8 * row + 8) - begin) * sample_bytes)
            move_row(out + begin * sample_bytes, load_int64(pointers + 8 * row), valid, valid)

    return rows_to_ragged


def _ragged_to_padded(width: int, index: Any) -> Callable[..., None]:
    move_row = _row_mover(width, index, fills=True)

    def ragged_to_padded(values, offsets, sample_bytes, steps, out, starts, mask, rows):
        row = _row()
        if row < rows:
            begin = load_int64(offsets + 8 * row)
            length = clipped(load_int64(offsets + 8 * row + 8) - begin, steps)
            row_bytes = steps * sample_bytes
            move_row(
                out + row * row_bytes,
                values + begin * sample_bytes,
                index(length * sample_bytes),
                index(row_bytes),
            )
            _write_mask_row(mask, starts, row, steps, length)

    return ragged_to_padded


def _padded_to_ragged(width: int, index: Any) -> Callable[..., None]:
    move_row = _row_mover(width, index, fills=False)

    def padded_to_ragged(data, offsets, sample_bytes, steps, out, rows):
        row = _row()
        if row < rows:
            begin = load_int64(offsets + 8 * row)
            length = clipped(load_int64(offsets + 8 * row + 8) - begin, steps)
            valid = index(length * sample_bytes)
            move_row(out + begin * sample_bytes, data + row * steps * sample_bytes, valid, valid)

    return padded_to_ragged


def _mask_from_lengths(width: int, _: Any) -> Callable[..., None]:
    store_cells = store_bits(width)

    def mask_from_lengths(lengths, starts, steps, out, rows):
        row = _row()
        if row < rows:
            length = load_int64(lengths + 8 * row)
            step = (index64(cuda.blockIdx.y) * cuda.blockDim.x + cuda.threadIdx.x) * width
            while step < steps:
                is_start = step > 0 or starts == 0 or load_uint8(starts + row) != 0
                low = mask_word(step, length, is_start)
                high = mask_word(step + 8, length, is_start) if width == 16 else 0
                store_cells(out + row * steps + step, low, high)
                step = advance(step, index64(cuda.gridDim.y) * cuda.blockDim.x * width)

    return mask_from_lengths


@register_jitable
def _bits_at(item, byte):
    # The part of an item that falls into eight bytes when it begins at this one of them.
    if byte >= 8 or byte <= -8:
        return 0
    return item << 8 * byte if byte >= 0 else item >> -8 * byte


def _one_hot_to_dense(width: int, index: Any) -> Callable[..., None]:
    store_part = store_bits(width)

    def one_hot_to_dense(indices, columns, item_bytes, one, out, rows):
        row = _row()
        if row < rows:
            code = load_int64(indices + 8 * row)
            extent = index(columns * item_bytes)
            target = out + row * extent
            place = code * item_bytes if code >= 0 else extent + 16
            at = index((index64(cuda.blockIdx.y) * cuda.blockDim.x + cuda.threadIdx.x) * width)
            while at < extent:
                byte = place - at
                low = _bits_at(one, byte)
                store_part(target + at, low, _bits_at(one, byte - 8) if width == 16 else 0)
                at = index(advance(at, index64(cuda.gridDim.y) * cuda.blockDim.x * width))

    return one_hot_to_dense


def _item_mover() -> Any:
    load_8, load_4, load_2, load_1 = load(8), load(4), load(2), load(1)
    store_8, store_4, store_2, store_1 = store(8), store(4), store(2), store(1)

    @register_jitable
    def move_item(target, source, item_bytes):
        if item_bytes == 4:
            store_4(target, load_4(source))
        elif item_bytes == 8:
            store_8(target, load_8(source))
        elif item_bytes == 2:
            store_2(target, load_2(source))
        else:
            store_1(target, load_1(source))

    return move_item


def _csr_to_dense(width: int, _: Any) -> Callable[..., None]:
    zero_part, move_item = store_zero(width), _item_mover()

    def csr_to_dense(
        indptr, indices, data, columns, item_bytes, positions, out, samples, rows, segment
    ):
        # A block zeroes its segment of a row, then writes the items of that segment over it.
        row = _row()
        first = index64(cuda.blockIdx.y) * segment
        last = smaller(first + segment, columns)
        target = out + row * columns * item_bytes
        if row < rows:
            at = first * item_bytes + index64(cuda.threadIdx.x) * width
            while at < last * item_bytes:
                zero_part(target + at)
                at = advance(at, index64(cuda.blockDim.x) * width)
        cuda.syncthreads()
        if row < rows:
            sample = _find(positions, samples, row)
            if sample >= 0:
                item = load_int64(indptr + 8 * sample) + cuda.threadIdx.x
                end = load_int64(indptr + 8 * sample + 8)
                while item < end:
                    column = load_int64(indices + 8 * item)
                    if first <= column < last:
                        move_item(
                            target + column * item_bytes, data + item * item_bytes, item_bytes
                        )
                    item = advance(item, cuda.blockDim.x)

    return csr_to_dense


@register_jitable
def _find(positions, count, wanted):
    # The index of a number in an increasing vector, or -1.
    low, high = index64(0), index64(count)
    while low < high:
        middle = (low + high) >> 1
        if load_int64(positions + 8 * middle) < wanted:
            low = middle + 1
        else:
            high = middle
    if low < count and load_int64(positions + 8 * low) == wanted:
        return low
    return index64(-1)


TWINS: dict[str, Twin] = {
    "rows_to_padded": Twin(_rows_to_padded),
    "rows_to_ragged": Twin(_rows_to_ragged),
    "ragged_to_padded": Twin(_ragged_to_padded),
    "padded_to_ragged": Twin(_padded_to_ragged),
    "ragged_to_cells": Twin(cuda_masks.ragged_to_cells, has_variants=False, is_lean=False),
    "cells_to_ragged": Twin(cuda_masks.cells_to_ragged, has_variants=False, is_lean=False),
    "mask_from_lengths": Twin(_mask_from_lengths, has_variants=False),
    "scan_mask": Twin(cuda_masks.scan_mask, has_widths=False, has_variants=False),
    "lengths_from_mask": Twin(
        cuda_masks.lengths_from_mask, has_widths=False, has_variants=False, is_lean=False
    ),
    "offsets_from_lengths": Twin(
        cuda_masks.offsets_from_lengths, has_widths=False, has_variants=False, is_lean=False
    ),
    "one_hot_to_dense": Twin(_one_hot_to_dense),
    "csr_to_dense": Twin(_csr_to_dense, has_variants=False),
}
"""Kernel name, as in the registry -> how to make its CUDA twin."""

HELPERS: dict[str, Twin] = {
    "sums_of_lengths": Twin(cuda_masks.sums_of_lengths, has_widths=False, has_variants=False),
}
"""Kernels that a twin needs before it for large inputs, and the registry does not name."""
