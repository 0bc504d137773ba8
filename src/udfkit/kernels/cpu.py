"""CPU kernels: loops over byte moves, without allocation, exception or NumPy call.

Buffers of samples are given by address and sample size in bytes, so that one compiled form serves
every dtype and sample shape; masks, lengths and offsets are given as arrays. Rows ``first`` to
``last - 1`` are done by one call; the calls of disjoint ranges may run at the same time.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from udfkit.kernels.intrinsics import memcpy, memset
from udfkit.kernels.jit import kernel
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


@kernel(nogil=True)
def rows_to_padded(first, last, pointers, lengths, sample_bytes, steps, out):
    """Copy the row at ``pointers[i]`` to padded row i and zero the rest of that row."""
    row_bytes = steps * sample_bytes
    for i in range(first, last):
        valid = lengths[i] * sample_bytes
        row = out + i * row_bytes
        memcpy(row, pointers[i], valid)
        memset(row + valid, 0, row_bytes - valid)


@kernel(nogil=True)
def rows_to_ragged(first, last, pointers, offsets, sample_bytes, out):
    """Copy the row at ``pointers[i]`` to flat position ``offsets[i]``."""
    for i in range(first, last):
        begin = offsets[i]
        memcpy(out + begin * sample_bytes, pointers[i], (offsets[i + 1] - begin) * sample_bytes)


@kernel(nogil=True)
def ragged_to_padded(first, last, values, offsets, sample_bytes, steps, out):
    """Copy the flat sequence i to padded row i and zero the rest of that row."""
    row_bytes = steps * sample_bytes
    for i in range(first, last):
        begin = offsets[i] * sample_bytes
        valid = offsets[i + 1] * sample_bytes - begin
        row = out + i * row_bytes
        memcpy(row, values + begin, valid)
        memset(row + valid, 0, row_bytes - valid)


@kernel(nogil=True)
def padded_to_ragged(first, last, data, offsets, sample_bytes, steps, out):
    """Copy the beginning of padded row i to flat position ``offsets[i]``."""
    row_bytes = steps * sample_bytes
    for i in range(first, last):
        begin = offsets[i] * sample_bytes
        memcpy(out + begin, data + i * row_bytes, offsets[i + 1] * sample_bytes - begin)


@kernel(nogil=True)
def ragged_to_cells(values, mask, sample_bytes, out):
    """Copy flat samples, in order, to the valid cells of ``mask`` (flat) and zero the others."""
    cell = 0
    cells = mask.size
    done = 0
    while cell < cells:
        run = cell
        if mask[cell] != MASK_INVALID:
            while run < cells and mask[run] != MASK_INVALID:
                run += 1
            moved = (run - cell) * sample_bytes
            memcpy(out + cell * sample_bytes, values + done, moved)
            done += moved
        else:
            while run < cells and mask[run] == MASK_INVALID:
                run += 1
            memset(out + cell * sample_bytes, 0, (run - cell) * sample_bytes)
        cell = run


@kernel(nogil=True)
def cells_to_ragged(data, mask, sample_bytes, out):
    """Copy the valid cells of ``mask`` (flat), in order, to flat samples."""
    cell = 0
    cells = mask.size
    done = 0
    while cell < cells:
        run = cell
        if mask[cell] != MASK_INVALID:
            while run < cells and mask[run] != MASK_INVALID:
                run += 1
            moved = (run - cell) * sample_bytes
            memcpy(out + done, data + cell * sample_bytes, moved)
            done += moved
        else:
            while run < cells and mask[run] == MASK_INVALID:
                run += 1
        cell = run


@kernel(nogil=True)
def mask_from_lengths(first, last, lengths, starts, mask):
    """Write rows of ``mask`` (rows, steps): valid cells first, a beginning where a row starts."""
    steps = mask.shape[1]
    for i in range(first, last):
        length = lengths[i]
        for step in range(length):
            mask[i, step] = MASK_VALID
        if length > 0 and starts[i]:
            mask[i, 0] = MASK_BEGIN
        for step in range(length, steps):
            mask[i, step] = MASK_INVALID


@kernel(nogil=True)
def scan_mask(mask):
    """Return (sequences, flat index of the first bad cell or -1, whether rows are contiguous).

    Rows are contiguous when each is one sequence whose samples fill its first cells.
    """
    rows, steps = mask.shape
    count = 0
    contiguous = True
    for row in range(rows):
        sequences = 0
        gap = False
        for step in range(steps):
            code = mask[row, step]
            if code == MASK_INVALID:
                gap = True
                continue
            if code != MASK_VALID and code != MASK_BEGIN:
                return count, row * steps + step, False
            if gap:
                contiguous = False
            if code == MASK_BEGIN or sequences == 0:
                sequences += 1
        if sequences > 1:
            contiguous = False
        count += max(sequences, 1)
    return count, -1, contiguous


@kernel(nogil=True)
def lengths_from_mask(mask, lengths, starts):
    """Fill ``lengths`` and ``starts``, a sequence at each beginning, an empty one per empty row."""
    rows, steps = mask.shape
    at = -1
    for row in range(rows):
        open_row = False
        for step in range(steps):
            code = mask[row, step]
            if code == MASK_INVALID:
                continue
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


@kernel(nogil=True)
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


@kernel(nogil=True)
def one_hot_to_dense(indices, columns, item_bytes, one, out):
    """Write the item at address ``one`` into column ``indices[i]`` of zeroed row i; -1 writes none."""
    for i in range(indices.size):
        if indices[i] >= 0:
            memcpy(out + (i * columns + indices[i]) * item_bytes, one, item_bytes)


@kernel(nogil=True)
def csr_to_dense(indptr, indices, data, columns, item_bytes, positions, out):
    """Write the items of CSR row i into the zeroed dense row ``positions[i]``."""
    for i in range(positions.size):
        row = out + positions[i] * columns * item_bytes
        for k in range(indptr[i], indptr[i + 1]):
            memcpy(row + indices[k] * item_bytes, data + k * item_bytes, item_bytes)
