"""CPU kernels: loops over byte moves, without allocation, exception or NumPy call.

Buffers of samples are given by address and sample size in bytes, so that one compiled form serves
every dtype and sample shape; masks, lengths and offsets are given as arrays. Rows ``first`` to
``last - 1`` are done by one call; the calls of disjoint ranges may run at the same time.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from udfkit.kernels import streaming
from udfkit.kernels.intrinsics import fence, load_i8, load_i64, memcpy, memset, popcount
from udfkit.kernels.jit import driver, kernel
from udfkit.kernels.layout import MASK_BEGIN, MASK_INVALID, MASK_VALID

__all__ = [
    "cells_to_ragged",
    "csr_to_dense",
    "lengths_from_mask",
    "mask_from_lengths",
    "offsets_from_lengths",
    "one_hot_to_dense",
    "padded_to_ragged",
    "ragged_to_cells",
    "ragged_to_padded",
    "rows_to_padded",
    "rows_to_ragged",
    "scan_mask",
]

INT64_MAX = 2**63 - 1

WRITE, LEAVE, STREAM = 0, 1, 2
"""How a large output is written: all of it, all but padding, which holds zeros already, or all of
it past the caches."""


@kernel
def _clear(target, count, way):
    if way == STREAM:
        streaming.clear(target, count)
    elif way == WRITE:
        memset(target, 0, count)


@driver("void(int64, int64, int64[::1], int64[::1], int64, int64, int64, int64)", nogil=True)
def rows_to_padded(first, last, pointers, lengths, sample_bytes, steps, way, out):
    """Copy the row at ``pointers[i]`` to padded row i, and zeros behind it."""
    row_bytes = steps * sample_bytes
    for i in range(first, last):
        valid = lengths[i] * sample_bytes
        row = out + i * row_bytes
        streaming.copy_as(way == STREAM, row, pointers[i], valid)
        _clear(row + valid, row_bytes - valid, way)
    if way == STREAM:
        fence()


@driver("void(int64, int64, int64[::1], int64[::1], int64, int64, int64)", nogil=True)
def rows_to_ragged(first, last, pointers, offsets, sample_bytes, way, out):
    """Copy the row at ``pointers[i]`` to flat position ``offsets[i]``."""
    for i in range(first, last):
        begin = offsets[i]
        used = (offsets[i + 1] - begin) * sample_bytes
        streaming.copy_as(way == STREAM, out + begin * sample_bytes, pointers[i], used)
    if way == STREAM:
        fence()


@driver("void(int64, int64, int64, int64[::1], int64, int64, int64, int64)", nogil=True)
def ragged_to_padded(first, last, values, offsets, sample_bytes, steps, way, out):
    """Copy the flat sequence i to padded row i, and zeros behind it."""
    row_bytes = steps * sample_bytes
    for i in range(first, last):
        begin = offsets[i] * sample_bytes
        valid = offsets[i + 1] * sample_bytes - begin
        row = out + i * row_bytes
        streaming.copy_as(way == STREAM, row, values + begin, valid)
        _clear(row + valid, row_bytes - valid, way)
    if way == STREAM:
        fence()


@driver("void(int64, int64, int64, int64[::1], int64, int64, int64, int64)", nogil=True)
def padded_to_ragged(first, last, data, offsets, sample_bytes, steps, way, out):
    """Copy the beginning of padded row i to flat position ``offsets[i]``."""
    row_bytes = steps * sample_bytes
    for i in range(first, last):
        begin = offsets[i] * sample_bytes
        used = offsets[i + 1] * sample_bytes - begin
        streaming.copy_as(way == STREAM, out + begin, data + i * row_bytes, used)
    if way == STREAM:
        fence()


@kernel
def _run_end(mask, cell, valid):
    """Return the end of the run of valid, or of invalid, cells that begins at ``cell``."""
    while cell < mask.size and (mask[cell] != MASK_INVALID) == valid:
        cell += 1
    return cell


@driver("void(int64, int8[::1], int64, int64)", nogil=True)
def ragged_to_cells(values, mask, sample_bytes, out):
    """Copy flat samples, in order, to the valid cells of ``mask`` and zero the others."""
    cell = 0
    done = 0
    while cell < mask.size:
        valid = mask[cell] != MASK_INVALID
        end = _run_end(mask, cell, valid)
        moved = (end - cell) * sample_bytes
        if valid:
            memcpy(out + cell * sample_bytes, values + done, moved)
            done += moved
        else:
            memset(out + cell * sample_bytes, 0, moved)
        cell = end


@driver("void(int64, int8[::1], int64, int64)", nogil=True)
def cells_to_ragged(data, mask, sample_bytes, out):
    """Copy the valid cells of ``mask``, in order, to flat samples."""
    cell = 0
    done = 0
    while cell < mask.size:
        valid = mask[cell] != MASK_INVALID
        end = _run_end(mask, cell, valid)
        if valid:
            moved = (end - cell) * sample_bytes
            memcpy(out + done, data + cell * sample_bytes, moved)
            done += moved
        cell = end


@driver("void(int64, int64, int64[::1], boolean[::1], int64, int64, int64)", nogil=True)
def mask_from_lengths(first, last, lengths, starts, steps, template, out):
    """Write mask rows of valid cells and then invalid ones; the first is a beginning if it starts.

    Without ``starts`` every sequence is new. ``template`` is room for ``2 * steps`` bytes: a row is
    one copy from it, where two fills of unknown length would cost more.
    """
    if first == last:
        return
    memset(template, MASK_VALID, steps)
    memset(template + steps, MASK_INVALID, steps)
    for i in range(first, last):
        row = out + i * steps
        memcpy(row, template + steps - lengths[i], steps)
        if lengths[i] > 0 and (starts.size == 0 or starts[i]):
            memset(row, MASK_BEGIN, 1)


ONES = 0x0101010101010101


@kernel
def _scan_row(row, steps):
    """Return the length of a row that is one sequence from its first cell on, else -1.

    Eight cells at a time: a cell is 0, 1 or 2, so its two low bits say all.
    """
    length = 0
    ended = False
    step = 0
    while step + 8 <= steps:
        word = load_i64(row + step)
        valid = (word | (word >> 1)) & ONES
        begins = (word >> 1) & ONES
        if step == 0:
            begins &= ~1
        count = popcount(valid)
        prefix = ONES if count == 8 else ONES & ((1 << (8 * count)) - 1)
        strange = (word & ~(3 * ONES)) | (word & (word >> 1) & ONES)
        if strange != 0 or begins != 0 or valid != prefix or (ended and count > 0):
            return -1
        ended = ended or count < 8
        length += count
        step += 8
    while step < steps:
        code = load_i8(row + step)
        if code == MASK_INVALID:
            ended = True
        elif ended or not (code == MASK_VALID or (code == MASK_BEGIN and step == 0)):
            return -1
        else:
            length += 1
        step += 1
    return length


@driver("int64(int64, int64, int64, int64[::1], boolean[::1])", nogil=True)
def scan_mask(mask, rows, steps, lengths, starts):
    """Fill lengths and starts of rows that are one sequence each, from the first cell on.

    Return the first row that is not such a one, or -1; what was filled holds up to there.
    """
    for i in range(rows):
        row = mask + i * steps
        length = _scan_row(row, steps)
        if length < 0:
            return i
        lengths[i] = length
        starts[i] = length == 0 or load_i8(row) == MASK_BEGIN
    return -1


@driver("UniTuple(int64, 2)(int8[:, ::1], int64[::1], boolean[::1])", nogil=True)
def lengths_from_mask(mask, lengths, starts):
    """Fill lengths and starts, a sequence at each beginning, an empty one for each empty row.

    Return (sequences, flat index of the first bad cell or -1); there is room for as many sequences
    as cells and rows.
    """
    rows, steps = mask.shape
    at = -1
    for row in range(rows):
        open_row = False
        for step in range(steps):
            code = mask[row, step]
            if code == MASK_INVALID:
                continue
            if code != MASK_VALID and code != MASK_BEGIN:
                return at + 1, row * steps + step
            if code == MASK_BEGIN or not open_row:
                at += 1
                lengths[at] = 0
                starts[at] = code == MASK_BEGIN
                open_row = True
            lengths[at] += 1
        if not open_row:
            at += 1
            lengths[at] = 0
            starts[at] = True
    return at + 1, -1


@driver("int64(int64[::1], int64[::1])", nogil=True)
def offsets_from_lengths(lengths, offsets):
    """Fill ``offsets`` with the running sum; return the first bad length's index, or -1."""
    total = 0
    offsets[0] = 0
    for i in range(lengths.size):
        if lengths[i] < 0 or lengths[i] > INT64_MAX - total:
            return i
        total += lengths[i]
        offsets[i + 1] = total
    return -1


@driver("void(int64[::1], int64, int64, int64, int64)", nogil=True)
def one_hot_to_dense(indices, columns, item_bytes, one, out):
    """Write the item at ``one`` into column ``indices[i]`` of zeroed row i; -1 writes none."""
    for i in range(indices.size):
        if indices[i] >= 0:
            memcpy(out + (i * columns + indices[i]) * item_bytes, one, item_bytes)


@driver("void(int64[::1], int64[::1], int64, int64, int64, int64[::1], int64)", nogil=True)
def csr_to_dense(indptr, indices, data, columns, item_bytes, positions, out):
    """Write the items of CSR row i into the zeroed dense row ``positions[i]``."""
    for i in range(positions.size):
        row = out + positions[i] * columns * item_bytes
        for k in range(indptr[i], indptr[i + 1]):
            memcpy(row + indices[k] * item_bytes, data + k * item_bytes, item_bytes)
