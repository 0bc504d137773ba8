"""CPU kernels of `udfkit.pad`, `udfkit.unpad` and `udfkit.fill_rows`: byte moves at addresses.

Every argument is an int64: an address, a count of bytes, samples or cells, or a flag. Vectors are
given by address too and hold int64, but for starts and codes, which are bytes. Rows or pieces
``first`` to ``last - 1`` are done by one call; the calls of disjoint ranges may run at the same
time.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from udfkit.kernels import streaming
from udfkit.kernels.intrinsics import (
    fence,
    load_i64,
    load_u8,
    memcpy,
    memset,
    store8,
    store32,
    store64,
)
from udfkit.kernels.jit import driver, kernel
from udfkit.kernels.layout import MASK_BEGIN, MASK_INVALID, MASK_VALID

__all__ = [
    "copy_pieces",
    "first_fit",
    "first_overlap",
    "mark_pieces",
    "number_cells",
    "offsets_in_rows",
    "pad_rows",
    "ragged_rows",
    "unpad_rows",
    "zero_pieces",
]

LEAVE = -1
STREAM = -2


@kernel
def _fill(target, block, extent, count):
    """Fill ``count`` bytes: with the byte ``extent``, or by copies of a block of so many bytes."""
    if block == STREAM:
        streaming.clear(target, count)
        return
    if block == 0:
        memset(target, extent, count)
        return
    while count > extent:
        memcpy(target, block, extent)
        target += extent
        count -= extent
    memcpy(target, block, count)


@driver(f"void({', '.join(['int64'] * 13)})", nogil=True)
def pad_rows(
    first,
    last,
    pointers,
    lengths,
    starts,
    sample_bytes,
    steps,
    left,
    block,
    extent,
    template,
    out,
    mask,
):
    """Copy the samples at ``pointers[i]`` to padded row i, fill its rest, and write its mask.

    ``left`` is 1 where padding comes first, else 0. ``block`` and ``extent`` say what padding holds
    (see ``_fill``); with ``LEAVE`` for a block it is not written, with ``STREAM`` samples and zeros
    go past the caches. ``starts`` 0 stands for new sequences only. ``template`` is room for
    ``2 * steps`` bytes: a mask row is one copy from it, where two fills of unknown length would
    cost more.
    """
    if first == last:
        return
    row_bytes = steps * sample_bytes
    for i in range(first, last):
        valid = load_i64(lengths + 8 * i) * sample_bytes
        rest = row_bytes - valid
        row = out + i * row_bytes
        streaming.copy_as(block == STREAM, row + left * rest, load_i64(pointers + 8 * i), valid)
        if block != LEAVE:
            _fill(row + (1 - left) * valid, block, extent, rest)
    if block == STREAM:
        fence()
    # Masks in a loop of their own: stores elsewhere between the rows cost 50 ns a row.
    memset(template, MASK_INVALID if left else MASK_VALID, steps)
    memset(template + steps, MASK_VALID if left else MASK_INVALID, steps)
    for i in range(first, last):
        length = load_i64(lengths + 8 * i)
        cells = mask + i * steps
        memcpy(cells, template + (length if left else steps - length), steps)
        if length > 0 and (starts == 0 or load_u8(starts + i) != 0):
            store8(cells + left * (steps - length), MASK_BEGIN)


@driver("int64(int64, int64, int64, int64, int64, int64)", nogil=True)
def ragged_rows(count, values, offsets, sample_bytes, pointers, lengths):
    """Fill addresses and lengths of the sequences of flat values; return the greatest length."""
    longest = 0
    begin = load_i64(offsets)
    for i in range(count):
        end = load_i64(offsets + 8 * i + 8)
        store64(pointers + 8 * i, values + begin * sample_bytes)
        store64(lengths + 8 * i, end - begin)
        longest = max(longest, end - begin)
        begin = end
    return longest


@driver("int64(int64, int64, int64, int64, int64, int64)", nogil=True)
def first_overlap(count, pointers, lengths, sample_bytes, begin, end):
    """Return the first sequence with a byte at an address from ``begin`` to ``end`` - 1, or -1."""
    for i in range(count):
        at = load_i64(pointers + 8 * i)
        size = load_i64(lengths + 8 * i) * sample_bytes
        if size > 0 and at < end and at + size > begin:
            return i
    return -1


@driver("int64(int64, int64, int64, int64)", nogil=True)
def offsets_in_rows(count, lengths, steps, offsets):
    """Fill the running sum of lengths; return the first that is not in 0 to ``steps``, or -1."""
    total = 0
    store64(offsets, 0)
    for i in range(count):
        length = load_i64(lengths + 8 * i)
        if length < 0 or length > steps:
            return i
        total += length
        store64(offsets + 8 * i + 8, total)
    return -1


@driver(f"void({', '.join(['int64'] * 9)})", nogil=True)
def unpad_rows(first, last, data, offsets, sample_bytes, steps, left, block, out):
    """Copy the samples of row i to flat position ``offsets[i]``; ``block`` is 0 or ``STREAM``."""
    row_bytes = steps * sample_bytes
    for i in range(first, last):
        begin = load_i64(offsets + 8 * i) * sample_bytes
        valid = load_i64(offsets + 8 * i + 8) * sample_bytes - begin
        streaming.copy_as(
            block == STREAM, out + begin, data + i * row_bytes + left * (row_bytes - valid), valid
        )
    if block == STREAM:
        fence()


@driver("void(int64, int64, int64, int64, int64)", nogil=True)
def copy_pieces(first, last, sources, targets, counts):
    """Copy ``counts[i]`` bytes from the address ``sources[i]`` to the address ``targets[i]``."""
    for i in range(first, last):
        at = 8 * i
        memcpy(load_i64(targets + at), load_i64(sources + at), load_i64(counts + at))


@driver("void(int64, int64, int64, int64)", nogil=True)
def zero_pieces(first, last, targets, counts):
    """Zero ``counts[i]`` bytes at the address ``targets[i]``."""
    for i in range(first, last):
        memset(load_i64(targets + 8 * i), 0, load_i64(counts + 8 * i))


@driver("void(int64, int64, int64, int64, int64, int64)", nogil=True)
def mark_pieces(first, last, cells, lengths, continued, mask):
    """Write the mask of the piece at cell ``cells[i]``, which has at least one cell."""
    for i in range(first, last):
        begin = mask + load_i64(cells + 8 * i)
        memset(begin, MASK_VALID, load_i64(lengths + 8 * i))
        if load_u8(continued + i) == 0:
            store8(begin, MASK_BEGIN)


@driver(f"void({', '.join(['int64'] * 9)})", nogil=True)
def number_cells(first, last, cells, lengths, positions, segments, wide, all_positions, all_ids):
    """Write position and segment id of each cell of the piece at cell ``cells[i]``.

    Positions count from ``positions[i]`` and take 8 bytes where ``wide``, else 4; ids take 4.
    """
    for i in range(first, last):
        cell = load_i64(cells + 8 * i)
        position = load_i64(positions + 8 * i)
        segment = load_i64(segments + 8 * i)
        for step in range(load_i64(lengths + 8 * i)):
            if wide:
                store64(all_positions + 8 * (cell + step), position + step)
            else:
                store32(all_positions + 4 * (cell + step), position + step)
            store32(all_ids + 4 * (cell + step), segment)


@driver("int64(int64[::1], int64, int64, int64[::1], int64, int64[::1], int64[::1])", nogil=True)
def first_fit(lengths, alone, row_length, room, leaves, rows, columns):
    """Place pieces one by one, each in the first row with room for it; return the number of rows.

    The first ``alone`` pieces open a row each. ``room`` is a tree of ``2 * leaves`` nodes over the
    rows: a leaf says how many cells of a row are free, a node above two others the larger of
    theirs. ``leaves`` is a power of two, at least the number of pieces.
    """
    for node in range(2 * leaves):
        room[node] = row_length
    opened = 0
    for i in range(lengths.size):
        length = lengths[i]
        if i < alone:
            node = leaves + i
        else:
            node = 1
            while node < leaves:
                node = 2 * node
                if room[node] < length:
                    node += 1
        row = node - leaves
        rows[i] = row
        columns[i] = row_length - room[node]
        room[node] -= length
        opened = max(opened, row + 1)
        while node > 1:
            node >>= 1
            room[node] = max(room[2 * node], room[2 * node + 1])
    return opened
