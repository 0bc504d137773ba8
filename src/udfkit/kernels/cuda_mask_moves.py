"""Masks, lengths and sparse samples on a device: the host side of their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from udfkit.kernels import cuda_target
from udfkit.kernels.cuda_arrays import DeviceView, download, empty, read_array
from udfkit.kernels.cuda_launch import (
    cell_shape,
    lanes_bits,
    mask_shape,
    needs_wide,
    row_shape,
    scan_shape,
    width_for,
)
from udfkit.kernels.cuda_masks import ITEMS
from udfkit.kernels.cuda_moves import Run, sample_bytes

__all__ = [
    "MaskLayout",
    "cells_to_ragged",
    "check_offsets",
    "csr_to_dense",
    "mask_of",
    "offsets_of",
    "one_hot_to_dense",
    "ragged_to_cells",
    "read_mask",
]


@dataclass(frozen=True, slots=True)
class MaskLayout:
    """What a mask on a device says.

    Attributes
    ----------
    lengths, starts
        int64 (count,) and bool (count,), on the device: arrays, or `DeviceView` into one.
    count, total
        Number of sequences and of valid cells.
    contiguous
        Whether each row is one sequence in its first cells.
    row_offsets
        int64 (rows + 1,) on the device: valid cells in the rows before.
    """

    lengths: Any
    starts: Any
    count: int
    total: int
    contiguous: bool
    row_offsets: DeviceView


def mask_of(lengths: Any, starts: Any, steps: int, *, stream: Any = 0) -> Any:
    """Return the int8 mask (B, steps) of right-padded rows; ``starts`` None: all are new."""
    run = Run(stream)
    counts = run.read(lengths, "lengths", np.int64)
    mask = empty((counts.size, steps), np.int8, run.stream)
    out = read_array(mask, "mask").address
    width = width_for([out, steps])
    device = cuda_target.current_device()
    shape = row_shape(counts.size, -(-steps // width), cuda_target.multiprocessors(device))
    new = run.address(starts, "starts", np.bool_)
    run.launch(
        "mask_from_lengths", shape, counts.address, new, steps, out, counts.size, width=width
    )
    run.finish()
    return mask


def _scan(run: Run, lengths: int, count: int, columns: int) -> tuple[Any, Any]:
    """Return offsets (columns, count + 1) and the findings (columns * blocks + columns,)."""
    shape = scan_shape(count, columns, ITEMS)
    blocks = shape.grid[0]
    offsets = empty((columns, count + 1), np.int64, run.stream)
    findings = empty((columns * blocks + columns,), np.int64, run.stream)
    sums = 0
    scratch = None
    if blocks > 1:
        scratch = empty((columns, blocks), np.int64, run.stream)
        sums = read_array(scratch, "sums").address
        run.launch("sums_of_lengths", shape, lengths, sums, count)
    addresses = [read_array(array, "scan").address for array in (offsets, findings)]
    run.launch("offsets_from_lengths", shape, lengths, *addresses, sums, count)
    return offsets, findings


def offsets_of(lengths: Any, *, stream: Any = 0) -> tuple[Any, Any]:
    """Return int64 offsets (B + 1,) of int64 lengths, and findings for `check_offsets`.

    One launch up to 1,024 lengths, two above; the host does not wait.
    """
    run = Run(stream)
    counts = run.read(lengths, "lengths", np.int64)
    offsets, findings = _scan(run, counts.address, counts.size, 1)
    run.finish()
    return offsets.reshape(counts.size + 1), findings


def check_offsets(findings: Any, *, stream: Any = 0) -> int:
    """Wait, and return the sum of the lengths.

    Raises
    ------
    ValueError
        With the position of a negative length, or of one whose sum exceeds int64.
    """
    numbers = download(findings, stream)
    bad = numbers[:-1][numbers[:-1] >= 0]
    if len(bad):
        raise ValueError(
            f"the length at position {bad[0]} is negative, or the sum of the lengths exceeds int64"
        )
    return int(numbers[-1])


def read_mask(mask: Any, *, stream: Any = 0) -> MaskLayout:
    """Return what an int8 mask (rows, steps) on the device says; waits once.

    Two launches where each row is one sequence in its first cells, three otherwise.

    Raises
    ------
    ValueError
        With the position of a cell that is not 0, 1 or 2.
    """
    run = Run(stream)
    cells = run.read(mask, "mask")
    if cells.dtype.itemsize != 1 or len(cells.shape) != 2:
        raise ValueError(
            f"mask has shape {cells.shape} and dtype {cells.dtype}, expected int8 (rows, steps): "
            f"reshape or cast it"
        )
    rows, steps = cells.shape
    table = read_array(empty((3, rows), np.int64, run.stream), "table")
    starts = empty((rows,), np.bool_, run.stream)
    lengths, found = table.part(0, (rows,), np.int64), table.part(8 * rows, (2, rows), np.int64)
    shape = mask_shape(rows, steps)
    targets = [lengths.address, read_array(starts, "starts").address, found.address]
    run.launch("scan_mask", shape, cells.address, rows, steps, *targets)
    offsets, findings = _scan(run, table.address, rows, 3)
    numbers = download(findings, run.stream)
    if (numbers[: len(numbers) // 3 - 1] >= 0).any():
        raise _bad_cell(cells, lengths, numbers, run.stream)
    total, count, broken = (int(number) for number in numbers[-3:])
    tables = read_array(offsets, "offsets")
    row_offsets = tables.part(0, (rows + 1,), np.int64)
    if broken == 0:
        run.finish()
        return MaskLayout(lengths, starts, count, total, True, row_offsets)
    several = empty((count,), np.int64, run.stream), empty((count,), np.bool_, run.stream)
    targets = [read_array(array, "lengths").address for array in several]
    firsts = tables.part(8 * (rows + 1), (rows + 1,), np.int64).address
    run.launch("lengths_from_mask", shape, cells.address, *targets, rows, steps, firsts)
    run.finish()
    return MaskLayout(*several, count, total, False, row_offsets)


def _bad_cell(cells: DeviceView, lengths: DeviceView, numbers: Any, stream: Any) -> ValueError:
    """Build the error for the first cell of a mask that is not 0, 1 or 2."""
    row = int(numbers[numbers >= 0][0])
    step = -1 - int(download(lengths.part(8 * row, (1,), np.int64), stream)[0])
    value = int(download(cells.part(row * cells.shape[1] + step, (1,), np.int8), stream)[0])
    return ValueError(
        f"mask value {value} at ({row}, {step}): expected 0 (invalid), 1 (valid) or 2 (valid and "
        f"the beginning of a sequence)"
    )


def _move_cells(
    name: str, run: Run, flat: int, cells: int, mask: DeviceView, size: int, offsets: int
) -> None:
    rows, steps = mask.shape
    width = width_for([flat, cells, size])
    shape, segment = cell_shape(rows, steps)
    bits = lanes_bits(size, width, shape.block[0])
    ends = (flat, cells) if name == "ragged_to_cells" else (cells, flat)
    arguments = (ends[0], mask.address, size, ends[1], rows, steps, offsets, bits, segment)
    run.launch(name, shape, *arguments, width=width)


def ragged_to_cells(values: Any, mask: Any, row_offsets: Any, *, stream: Any = 0) -> Any:
    """Return padded data (rows, steps, *s) with the samples in the valid cells of ``mask``."""
    run = Run(stream)
    flat, cells = run.read(values, "values"), run.read(mask, "mask")
    offsets = run.read(row_offsets, "row_offsets", np.int64)
    data = empty((*cells.shape, *flat.shape[1:]), flat.dtype, run.stream)
    out = read_array(data, "data").address
    if out:
        size = sample_bytes(flat, 1)
        _move_cells("ragged_to_cells", run, flat.address, out, cells, size, offsets.address)
    run.finish()
    return data


def cells_to_ragged(data: Any, mask: Any, row_offsets: Any, total: int, *, stream: Any = 0) -> Any:
    """Return the ``total`` samples in the valid cells of ``mask``, in order."""
    run = Run(stream)
    padded, cells = run.read(data, "data"), run.read(mask, "mask")
    offsets = run.read(row_offsets, "row_offsets", np.int64)
    values = empty((total, *padded.shape[2:]), padded.dtype, run.stream)
    out = read_array(values, "values").address
    if out:
        size = sample_bytes(padded, 2)
        _move_cells("cells_to_ragged", run, out, padded.address, cells, size, offsets.address)
    run.finish()
    return values


def one_hot_to_dense(indices: Any, columns: int, dtype: Any, *, stream: Any = 0) -> Any:
    """Return dense samples (n, columns) with a one in column ``indices[i]`` of row i.

    ``indices`` is int64 (n,) on the device; -1 makes a row of zeros. Nothing has to be zeroed
    before the one launch.
    """
    run = Run(stream)
    codes = run.read(indices, "indices", np.int64)
    dtype = np.dtype(dtype)
    dense = empty((codes.size, columns), dtype, run.stream)
    out = read_array(dense, "dense").address
    one = int.from_bytes(np.ones(1, dtype).tobytes(), "little")
    row_bytes = columns * dtype.itemsize
    width = width_for([out, row_bytes])
    device = cuda_target.current_device()
    shape = row_shape(codes.size, -(-row_bytes // width), cuda_target.multiprocessors(device))
    run.launch(
        "one_hot_to_dense",
        shape,
        *(codes.address, columns, dtype.itemsize, one, out, codes.size),
        width=width,
        wide=needs_wide(row_bytes, shape, width, 1),
    )
    run.finish()
    return dense


def csr_to_dense(
    indptr: Any,
    indices: Any,
    data: Any,
    columns: int,
    positions: Any,
    rows: int,
    *,
    stream: Any = 0,
) -> Any:
    """Return dense samples (rows, columns) with CSR row i at ``positions[i]``, zeros elsewhere.

    ``indptr``, ``indices`` and ``positions`` are int64 on the device; ``positions`` increases, and
    no column comes twice in a row.
    """
    run = Run(stream)
    bounds = run.read(indptr, "indptr", np.int64)
    codes = run.read(indices, "indices", np.int64)
    items = run.read(data, "data")
    places = run.read(positions, "positions", np.int64)
    size = items.dtype.itemsize
    if items.address % size:
        raise ValueError(
            f"data is at the address {items.address:#x}, expected a multiple of its item size "
            f"{size}: make a copy of it"
        )
    dense = empty((rows, columns), items.dtype, run.stream)
    out = read_array(dense, "dense").address
    width = width_for([out, columns * size])
    shape, segment = cell_shape(rows, columns, width // size if width > size else 1)
    arguments = (bounds.address, codes.address, items.address, columns, size, places.address, out)
    if prod(dense.shape):
        run.launch("csr_to_dense", shape, *arguments, places.size, rows, segment, width=width)
    run.finish()
    return dense
