"""Moving samples between lists, flat values and padded data: allocate, then run the kernels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from udfkit import memory, threads
from udfkit.kernels import lazy
from udfkit.rows import Rows

__all__ = [
    "cells_to_ragged",
    "copy_samples",
    "flatten_short",
    "in_row_order",
    "mask_of",
    "offsets_of",
    "pad_short",
    "pad_short_flat",
    "padded_to_ragged",
    "padded_to_rows",
    "pieces_to_ragged",
    "ragged_to_cells",
    "ragged_to_padded",
    "read_mask",
    "rows_to_padded",
    "rows_to_ragged",
    "split",
]

cpu = lazy("cpu", globals())
pyobjects = lazy("pyobjects", globals())
pyobjects_flat = lazy("pyobjects_flat", globals())
pyobjects_short = lazy("pyobjects_short", globals())
_NO_STARTS = np.empty(0, np.bool_)
_INT8 = np.dtype(np.int8)
_INT64 = np.dtype(np.int64)


def _run(
    kernel: Any,
    count: int,
    nbytes: int,
    offsets: np.ndarray | None,
    keep: tuple[Any, ...],
    *args: Any,
) -> None:
    """Run a kernel over all sequences, in several threads when it moves many bytes.

    ``keep`` owns the memory that ``args`` give by address.
    """
    if nbytes < threads.SERIAL_BYTES:
        kernel(0, count, *args)
    else:
        threads.run_ranges(kernel, threads.split(count, nbytes, offsets), args, keep=keep)


def _empty(shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> np.ndarray:
    if nbytes < memory.SMALLEST_POOLED:
        return np.empty(shape, dtype)
    return memory.empty(shape, dtype)


def _padded(
    shape: tuple[int, ...], dtype: np.dtype, size: int, lengths: np.ndarray
) -> tuple[np.ndarray, int]:
    """Allocate padded data of samples of ``size`` bytes; choose how it is written."""
    rows, steps = shape[0], shape[1]
    nbytes = rows * steps * size
    if nbytes + rows * steps > memory.max_bytes():
        memory.check_size(rows, steps, size, lengths)
    if nbytes < memory.SMALLEST_POOLED:
        return np.empty(shape, dtype), cpu.WRITE
    out, zeroed = memory.zeros_or_empty(shape, dtype)
    return out, cpu.LEAVE if zeroed else _way(nbytes)


def _way(nbytes: int) -> int:
    way: int = cpu.WRITE if nbytes < memory.STREAMED else cpu.STREAM
    return way


def pad_short(
    items: tuple[Any, ...], dtype: np.dtype, sample_shape: tuple[int, ...]
) -> list[np.ndarray] | None:
    """Return lengths, padded data and mask of a short batch of plain arrays; None of any other."""
    if pyobjects.why_plain is not None:
        return None
    made: list[np.ndarray] | None = pyobjects_short.pad(
        items, dtype, sample_shape, _INT64, _INT8, _short()
    )
    return made


def _short() -> int:
    """Return the most bytes, data and mask, of a batch that is padded in one call."""
    most = memory.max_bytes()
    return most if most < memory.SMALLEST_POOLED else memory.SMALLEST_POOLED


def pad_short_flat(
    values: np.ndarray, offsets: np.ndarray, out: Any, mask_out: Any
) -> list[np.ndarray] | None:
    """Return lengths, padded data and mask of short flat values, in memory given or new."""
    if pyobjects.why_plain is not None:
        return None
    made: list[np.ndarray] | None = pyobjects_flat.pad_flat(
        values, offsets, _INT64, _INT8, out, mask_out, _short()
    )
    return made


def flatten_short(
    data: np.ndarray, lengths: np.ndarray, side: str, out: Any
) -> list[np.ndarray] | None:
    """Return offsets and flat samples of short padded data, in given memory or new; or None."""
    if pyobjects.why_plain is not None:
        return None
    made: list[np.ndarray] | None = pyobjects_flat.flatten(
        data, lengths, _INT64, out, side == "left", memory.SMALLEST_POOLED
    )
    return made


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return the int64 offsets of int64 lengths.

    Raises
    ------
    ValueError
        With the position of a negative length, or of one whose sum exceeds int64.
    """
    offsets = np.empty(len(lengths) + 1, np.int64)
    bad = cpu.offsets_from_lengths(lengths, offsets)
    if bad >= 0:
        raise ValueError(
            f"length {lengths[bad]} at position {bad} must not be negative, and the sum of the "
            f"lengths must fit int64"
        )
    return offsets


def mask_of(lengths: np.ndarray, starts: np.ndarray | None, steps: int) -> np.ndarray:
    """Return the int8 mask (rows, steps) of right-padded rows; all new without ``starts``."""
    rows = len(lengths)
    if rows * steps > memory.max_bytes():
        memory.check_size(rows, steps, 0, lengths)
    mask = _empty((rows, steps), _INT8, rows * steps)
    template = np.empty(2 * steps if rows else 0, _INT8)
    _run(
        cpu.mask_from_lengths,
        rows,
        rows * steps,
        None,
        (mask, template),
        lengths,
        _NO_STARTS if starts is None else starts,
        steps,
        pyobjects.address(template),
        pyobjects.address(mask),
    )
    return mask


def read_mask(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return (lengths, starts, rows are contiguous) of a C-contiguous int8 mask (rows, steps).

    Raises
    ------
    ValueError
        With the position of a cell that is not 0, 1 or 2.
    """
    rows, steps = mask.shape
    lengths = np.empty(rows, np.int64)
    starts = np.empty(rows, np.bool_)
    if cpu.scan_mask(pyobjects.address(mask), rows, steps, lengths, starts) < 0:
        return lengths, starts, True
    most = rows + int(np.count_nonzero(mask == 2))
    lengths = np.empty(most, np.int64)
    starts = np.empty(most, np.bool_)
    count, bad = cpu.lengths_from_mask(mask, lengths, starts)
    if bad >= 0:
        at = tuple(int(i) for i in np.unravel_index(bad, mask.shape))
        raise ValueError(
            f"mask value {mask[at]} at {at}: expected 0 (invalid), 1 (valid) or 2 (valid and the "
            f"beginning of a sequence)"
        )
    return lengths[:count].copy(), starts[:count].copy(), False


def rows_to_padded(rows: Rows, steps: int) -> np.ndarray:
    """Return padded data (B, steps, *s) of a list of arrays; padding is zero."""
    size = rows.dtype.itemsize * prod(rows.sample_shape)
    count = len(rows.lengths)
    shape = (count, steps, *rows.sample_shape)
    out, way = _padded(shape, rows.dtype, size, rows.lengths)
    _run(
        cpu.rows_to_padded,
        count,
        count * steps * size,
        None,
        (rows, out),
        rows.pointers,
        rows.lengths,
        size,
        steps,
        way,
        pyobjects.address(out),
    )
    return out


def rows_to_ragged(rows: Rows, offsets: np.ndarray) -> np.ndarray:
    """Return flat values (total, *s) of a list of arrays."""
    size = rows.dtype.itemsize * prod(rows.sample_shape)
    total = int(offsets[-1])
    out = _empty((total, *rows.sample_shape), rows.dtype, total * size)
    _run(
        cpu.rows_to_ragged,
        len(rows.lengths),
        total * size,
        offsets,
        (rows, out),
        rows.pointers,
        offsets,
        size,
        _way(total * size),
        pyobjects.address(out),
    )
    return out


def ragged_to_padded(values: np.ndarray, offsets: np.ndarray, steps: int) -> np.ndarray:
    """Return padded data (B, steps, *s) of contiguous flat values; padding is zero."""
    sample_shape = values.shape[1:]
    size = values.itemsize * prod(sample_shape)
    count = len(offsets) - 1
    out, way = _padded((count, steps, *sample_shape), values.dtype, size, np.diff(offsets))
    _run(
        cpu.ragged_to_padded,
        count,
        count * steps * size,
        None,
        (values, out),
        pyobjects.address(values),
        offsets,
        size,
        steps,
        way,
        pyobjects.address(out),
    )
    return out


def padded_to_ragged(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return flat values (total, *s) of contiguous padded data (B, steps, *s)."""
    sample_shape = data.shape[2:]
    size = data.itemsize * prod(sample_shape)
    total = int(offsets[-1])
    out = _empty((total, *sample_shape), data.dtype, total * size)
    _run(
        cpu.padded_to_ragged,
        len(offsets) - 1,
        total * size,
        offsets,
        (data, out),
        pyobjects.address(data),
        offsets,
        size,
        data.shape[1],
        _way(total * size),
        pyobjects.address(out),
    )
    return out


def padded_to_rows(data: np.ndarray, lengths: np.ndarray) -> list[np.ndarray] | None:
    """Return one new writable array a row of contiguous padded data, if it is short; else None."""
    if pyobjects.why_plain is not None:
        return None
    made: list[np.ndarray] | None = pyobjects_short.unpad(
        data, lengths, _INT64, memory.SMALLEST_POOLED
    )
    return made


def ragged_to_cells(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return padded data (rows, steps, *s) with the samples in the valid cells of ``mask``."""
    sample_shape = values.shape[1:]
    size = values.itemsize * prod(sample_shape)
    rows, steps = mask.shape
    memory.check_size(rows, steps, size, [len(values)])
    out = memory.empty((rows, steps, *sample_shape), values.dtype)
    cpu.ragged_to_cells(pyobjects.address(values), mask.reshape(-1), size, pyobjects.address(out))
    return out


def cells_to_ragged(
    data: np.ndarray, mask: np.ndarray, total: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Return the ``total`` samples in the valid cells of ``mask``, in order."""
    sample_shape = data.shape[2:]
    size = data.itemsize * prod(sample_shape)
    if out is None:
        out = memory.empty((total, *sample_shape), data.dtype)
    cpu.cells_to_ragged(pyobjects.address(data), mask.reshape(-1), size, pyobjects.address(out))
    return out


def pieces_to_ragged(data: np.ndarray, cells: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the samples of runs of cells of padded data, one run behind the other."""
    samples = data.reshape(data.shape[0] * data.shape[1], *data.shape[2:])
    return _gather(samples, cells, lengths)


def in_row_order(values: np.ndarray, cells: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return flat samples, which lie run by run, in the row-major order of their cells."""
    order = np.argsort(cells)
    return _gather(values, offsets_of(lengths)[:-1][order], lengths[order])


def _gather(samples: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return runs of contiguous samples, the run ``i`` from ``begins[i]`` on."""
    size = samples.itemsize * prod(samples.shape[1:])
    pointers = begins * size + pyobjects.address(samples)
    longest = int(lengths.max(initial=0))
    rows = Rows(pointers, lengths, longest, samples.shape[1:], samples.dtype, samples)
    return rows_to_ragged(rows, offsets_of(lengths))


def copy_samples(values: np.ndarray) -> np.ndarray:
    """Return a writable C-contiguous copy that keeps every bit."""
    out = memory.empty(values.shape, values.dtype)
    np.copyto(out, values)
    return out


def split(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Return one writable view of the contiguous block ``values`` a sequence."""
    made: list[np.ndarray] = pyobjects.views(values, lengths, values.shape[1:])
    return made
