"""CUDA kernels over masks and lengths: counts and running sums inside a block, in shared memory.

A row of threads works on a row of the mask, as many cells at a time as it has threads. Warp
shuffles would save barriers, but the simulator has none, so no test could run such a kernel. Every
thread of a block meets every barrier: loops are over sizes that all rows share.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda, types
from numba.extending import register_jitable

from udfkit.kernels.cuda_access import (
    advance,
    index32,
    index64,
    load,
    load_int64,
    load_uint8,
    opaque,
    store,
    store_int64,
    store_uint8,
    store_zero,
    wrapping_add,
)
from udfkit.kernels.layout import (
    MASK_BEGIN,
    MASK_INVALID,
    MASK_VALID,
    breaks_row,
    opens_sequence,
    smaller,
)

__all__ = [
    "ITEMS",
    "MOST_THREADS",
    "cells_to_ragged",
    "lengths_from_mask",
    "offsets_from_lengths",
    "ragged_to_cells",
    "scan_mask",
    "sums_of_lengths",
]

MOST_THREADS = 256
"""Most threads of a block of these kernels, which is the size of their shared arrays."""

ITEMS = 4
"""Lengths that one thread adds up."""

_INT64 = types.int64
_NONE = 2**63 - 1
_STRIDE = 1 << 16


@register_jitable
def _row():
    return index64(cuda.blockIdx.x) * cuda.blockDim.y + cuda.threadIdx.y


@register_jitable
def _code(mask, rows, steps, row, step):
    # Mask value of a cell, MASK_INVALID outside the mask.
    if row < rows and step < steps:
        return load_uint8(mask + row * steps + step)
    return index64(MASK_INVALID)


@register_jitable
def _running_sum(cells, value):
    """Return the sum of the values of this thread and those before it in its row of threads.

    ``cells`` then holds the sums of all threads; a barrier is needed before its next use.
    """
    lane = cuda.threadIdx.x
    slot = cuda.threadIdx.y * cuda.blockDim.x + lane
    cells[slot] = value
    cuda.syncthreads()
    reach = 1
    while reach < cuda.blockDim.x:
        before = cells[slot - reach] if lane >= reach else 0
        cuda.syncthreads()
        cells[slot] = wrapping_add(cells[slot], before)
        cuda.syncthreads()
        reach *= 2
    return cells[slot]


@register_jitable
def _row_total(cells):
    # What the last thread of this row of threads has in cells.
    return cells[cuda.threadIdx.y * cuda.blockDim.x + cuda.blockDim.x - 1]


@register_jitable
def _row_least(cells, value):
    """Return the smallest value of a row of threads, to all of its threads."""
    lane = cuda.threadIdx.x
    slot = cuda.threadIdx.y * cuda.blockDim.x + lane
    cells[slot] = value
    cuda.syncthreads()
    reach = cuda.blockDim.x // 2
    while reach > 0:
        if lane < reach:
            cells[slot] = smaller(cells[slot], cells[slot + reach])
        cuda.syncthreads()
        reach //= 2
    least = cells[slot - lane]
    cuda.syncthreads()
    return least


def scan_mask(_: int, __: Any) -> Callable[..., None]:
    """Make the kernel that reads each row as one sequence, and finds what is odd.

    ``lengths`` is int64 (rows,): the valid cells of a row, or ``-1 - step`` of its first bad one;
    ``starts`` (rows,) says whether the row is new. ``found`` is int64 (2, rows): the number of
    sequences; 1 where the row is not one sequence in its first cells.
    """

    def scan_mask(mask, rows, steps, lengths, starts, found):
        cells = cuda.shared.array(MOST_THREADS, _INT64)
        row = _row()
        valid = begins = broken = index64(0)
        bad = first = index64(_NONE)
        step = index64(cuda.threadIdx.x)
        while step < steps:
            code = _code(mask, rows, steps, row, step)
            if code != MASK_INVALID:
                valid += 1
                begins += code == MASK_BEGIN
                if code != MASK_VALID and code != MASK_BEGIN:
                    bad = smaller(bad, step)
                if first == _NONE:
                    first = 4 * step + (code & 3)
                before = _code(mask, rows, steps, row, step - 1) if step > 0 else MASK_INVALID
                broken |= breaks_row(code, before, step)
            step = advance(step, cuda.blockDim.x)
        first = _row_least(cells, first)
        bad = _row_least(cells, bad)
        broken = -_row_least(cells, -broken)
        _running_sum(cells, valid)
        valid = _row_total(cells)
        cuda.syncthreads()
        _running_sum(cells, begins)
        begins = _row_total(cells)
        if cuda.threadIdx.x == 0 and row < rows:
            is_new = first == _NONE or first & 3 == MASK_BEGIN
            if first == _NONE or not is_new:
                begins += 1
            store_int64(lengths + 8 * row, valid if bad == _NONE else -1 - bad)
            store_uint8(starts + row, is_new)
            store_int64(found + 8 * row, begins)
            store_int64(found + 8 * (rows + row), broken)

    return scan_mask


def lengths_from_mask(_: int, __: Any) -> Callable[..., None]:
    """Make the kernel that writes lengths and starts of the sequences of each row.

    ``firsts`` is int64 (rows + 1,): the number of sequences in the rows before.
    """

    def lengths_from_mask(mask, lengths, starts, rows, steps, firsts):
        cells = cuda.shared.array(MOST_THREADS, _INT64)
        opened = cuda.shared.array(MOST_THREADS, _INT64)
        row, lane = _row(), cuda.threadIdx.x
        first = load_int64(firsts + 8 * row) if row < rows else index64(0)
        if lane == 0:
            # 1 where the first valid cell of the row is not a beginning, yet opens a sequence.
            opened[cuda.threadIdx.y] = 0
        valid = begins = index64(0)
        base = index64(0)
        while base < steps:
            code = _code(mask, rows, steps, row, base + lane)
            is_valid = code != MASK_INVALID
            sums = _running_sum(cells, is_valid + _STRIDE * (code == MASK_BEGIN))
            rank = valid + sums % _STRIDE - 1
            if is_valid and rank == 0 and code != MASK_BEGIN:
                opened[cuda.threadIdx.y] = 1
            totals = _row_total(cells)
            cuda.syncthreads()
            if is_valid and opens_sequence(code, rank == 0):
                at = first
                if code == MASK_BEGIN:
                    at += begins + sums // _STRIDE - 1 + opened[cuda.threadIdx.y]
                # The rank of the first sample for now; the difference to the next one below.
                store_int64(lengths + 8 * at, rank)
                store_uint8(starts + at, code == MASK_BEGIN)
            valid += totals % _STRIDE
            begins += totals // _STRIDE
            base = advance(base, cuda.blockDim.x)
        cuda.syncthreads()
        count = begins + opened[cuda.threadIdx.y]
        if lane == 0 and row < rows and count == 0:
            store_int64(lengths + 8 * first, 0)
            store_uint8(starts + first, 1)
        base = index64(0)
        while base < steps:
            at = base + lane
            begin = end = index64(0)
            if at < count:
                begin = load_int64(lengths + 8 * (first + at))
                end = load_int64(lengths + 8 * (first + at + 1)) if at + 1 < count else valid
            cuda.syncthreads()
            if at < count:
                store_int64(lengths + 8 * (first + at), end - begin)
            cuda.syncthreads()
            base = advance(base, cuda.blockDim.x)

    return lengths_from_mask


def _cell_mover(width: int, *, to_cells: bool) -> Any:
    load_part, store_part, zero_part = load(width), store(width), store_zero(width)

    @register_jitable
    def move_cells(cells, flat, mask, sample_bytes, rows, steps, offsets, lane_bits, segment):
        ranks = cuda.shared.array(MOST_THREADS, _INT64)
        row, lane = _row(), cuda.threadIdx.x
        slot = cuda.threadIdx.y * cuda.blockDim.x
        base = index64(cuda.blockIdx.y) * segment
        # Samples of this row before the segment: counted here, so that no launch has to do it.
        rank = index64(0)
        step = index64(lane)
        while step < base:
            rank += _code(mask, rows, steps, row, step) != MASK_INVALID
            step = advance(step, cuda.blockDim.x)
        _running_sum(ranks, rank)
        rank = _row_total(ranks)
        cuda.syncthreads()
        if row < rows:
            rank += load_int64(offsets + 8 * row)
        end = smaller(base + segment, steps) if row < rows else index64(0)
        stop = smaller(base + segment, steps)
        while base < stop:
            is_valid = _code(mask, rows, steps, row, base + lane) != MASK_INVALID
            mine = _running_sum(ranks, index64(is_valid))
            total = _row_total(ranks)
            cuda.syncthreads()
            ranks[slot + lane] = rank + mine - 1 if is_valid else -1
            cuda.syncthreads()
            # A group of threads on each cell: 2 ** lane_bits of them move a sample together.
            near = index32(lane >> lane_bits)
            while near < cuda.blockDim.x and base + near < end:
                sample = ranks[slot + near]
                cell = cells + (row * steps + base + near) * sample_bytes
                at = index64(lane & ((1 << lane_bits) - 1)) * width
                while at < sample_bytes:
                    if to_cells:
                        if sample >= 0:
                            store_part(cell + at, load_part(flat + sample * sample_bytes + at))
                        else:
                            zero_part(cell + at)
                    elif sample >= 0:
                        store_part(flat + sample * sample_bytes + at, load_part(cell + at))
                    at = advance(at, index64(width) << lane_bits)
                near = index32(near + (cuda.blockDim.x >> lane_bits))
            rank += total
            cuda.syncthreads()
            base = advance(base, cuda.blockDim.x)

    return move_cells


def ragged_to_cells(width: int, _: Any) -> Callable[..., None]:
    """Make the kernel that moves flat samples to the valid cells of a mask, and zeroes the others.

    ``offsets`` is int64 (rows + 1,): the number of valid cells in the rows before.
    """
    move_cells = _cell_mover(width, to_cells=True)

    def ragged_to_cells(values, mask, sample_bytes, out, rows, steps, offsets, lane_bits, segment):
        move_cells(out, values, mask, sample_bytes, rows, steps, offsets, lane_bits, segment)

    return ragged_to_cells


def cells_to_ragged(width: int, _: Any) -> Callable[..., None]:
    """Make the kernel that moves the valid cells of a mask, in order, to flat samples.

    ``offsets`` is int64 (rows + 1,): the number of valid cells in the rows before.
    """
    move_cells = _cell_mover(width, to_cells=False)

    def cells_to_ragged(data, mask, sample_bytes, out, rows, steps, offsets, lane_bits, segment):
        move_cells(data, out, mask, sample_bytes, rows, steps, offsets, lane_bits, segment)

    return cells_to_ragged


def sums_of_lengths(_: int, __: Any) -> Callable[..., None]:
    """Make the kernel that adds up the lengths of each block, for ``offsets_from_lengths``."""

    def sums_of_lengths(lengths, sums, count):
        cells = cuda.shared.array(MOST_THREADS, _INT64)
        column = index64(cuda.blockIdx.y)
        at = (index64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x) * ITEMS
        total = index64(0)
        for k in range(ITEMS):
            if at + k < count:
                total = wrapping_add(total, load_int64(lengths + 8 * (column * count + at + k)))
        _running_sum(cells, total)
        if cuda.threadIdx.x == 0:
            block = column * cuda.gridDim.x + cuda.blockIdx.x
            store_int64(sums + 8 * block, _row_total(cells))

    return sums_of_lengths


def offsets_from_lengths(_: int, __: Any) -> Callable[..., None]:
    """Make the kernel that turns vectors of lengths into offsets.

    ``lengths`` is int64 (columns, count) and ``offsets`` (columns, count + 1), a column for each y
    of the grid. ``bad`` is int64 (columns, blocks): the first index in the part of each block whose
    length is negative, or whose sum exceeds int64, or -1; behind it the sum of each column. With
    more than one block ``sums`` is what ``sums_of_lengths`` found with the same grid.
    """

    def offsets_from_lengths(lengths, offsets, bad, sums, count):
        cells = cuda.shared.array(MOST_THREADS, _INT64)
        column, block = index64(cuda.blockIdx.y), index64(cuda.blockIdx.x)
        lane = cuda.threadIdx.x
        lengths += 8 * column * count
        offsets += 8 * column * (count + 1)
        totals = bad + 8 * (index64(cuda.gridDim.x) * cuda.gridDim.y + column)
        before = index64(0)
        other = index64(lane)
        while other < block:
            before = wrapping_add(before, load_int64(sums + 8 * (column * cuda.gridDim.x + other)))
            other = advance(other, opaque(cuda.blockDim.x))
        _running_sum(cells, before)
        total = _row_total(cells)
        cuda.syncthreads()
        at = (block * cuda.blockDim.x + lane) * ITEMS
        mine = index64(0)
        for k in range(ITEMS):
            if at + k < count:
                mine = wrapping_add(mine, load_int64(lengths + 8 * (at + k)))
        # Sums wrap, and are right up to the first one that does: it alone is reported.
        total = wrapping_add(total, wrapping_add(_running_sum(cells, mine), -mine))
        cuda.syncthreads()
        first_bad = index64(_NONE)
        for k in range(ITEMS):
            if at + k < count:
                length = load_int64(lengths + 8 * (at + k))
                begin = total
                total = wrapping_add(total, length)
                if length < 0 or begin < 0 or total < 0:
                    first_bad = smaller(first_bad, at + k)
                store_int64(offsets + 8 * (at + k + 1), total)
                if at + k + 1 == count:
                    store_int64(totals, total)
        first_bad = _row_least(cells, first_bad)
        if lane == 0:
            if block == 0:
                store_int64(offsets, 0)
                if count == 0:
                    store_int64(totals, 0)
            store_int64(
                bad + 8 * (column * cuda.gridDim.x + block),
                -1 if first_bad == _NONE else first_bad,
            )

    return offsets_from_lengths
