"""Moving samples between lists, flat values and padded data: allocate, then run the kernels."""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from udfkit.errors import padded_size_error
from udfkit.items import Rows
from udfkit.kernels import cpu_kernel

__all__ = [
    "cells_to_ragged",
    "check_size",
    "copy_samples",
    "mask_of",
    "offsets_of",
    "padded_to_ragged",
    "ragged_to_cells",
    "ragged_to_padded",
    "read_mask",
    "rows_to_padded",
    "rows_to_ragged",
    "split",
]

INT64_MAX = 2**63 - 1


@cache
def _kernel(name: str):  # type: ignore[no-untyped-def]
    return cpu_kernel(name)


def _sample_bytes(dtype: np.dtype, sample_shape: tuple[int, ...]) -> int:
    return dtype.itemsize * prod(sample_shape)


def _limit() -> int:
    from udfkit.memory import max_bytes

    return max_bytes()


def check_size(rows: int, steps: int, sample_bytes: int, total: int) -> None:
    """Raise PaddedSizeError when a padded batch, mask included, is over the memory limit."""
    limit = _limit()
    if rows * steps * (sample_bytes + 1) > limit:
        raise padded_size_error(rows, steps, sample_bytes, total, limit)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return the read-only int64 offsets of int64 lengths.

    Raises
    ------
    ValueError
        With the position of a negative length, or of one whose sum exceeds int64.
    """
    offsets = np.empty(len(lengths) + 1, np.int64)
    bad = _kernel("offsets_from_lengths")(lengths, offsets)
    if bad >= 0:
        raise ValueError(
            f"length {lengths[bad]} at position {bad} is negative, or the sum of the lengths "
            f"exceeds int64"
        )
    offsets.flags.writeable = False
    return offsets


def mask_of(lengths: np.ndarray, starts: np.ndarray, steps: int) -> np.ndarray:
    """Return the int8 mask (rows, steps) of right-padded rows."""
    mask = np.empty((len(lengths), steps), np.int8)
    _kernel("mask_from_lengths")(0, len(lengths), lengths, starts, mask)
    return mask


def read_mask(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return (lengths, starts, rows are contiguous) of an int8 mask (rows, steps).

    Raises
    ------
    ValueError
        With the position of a cell that is not 0, 1 or 2.
    """
    count, bad, contiguous = _kernel("scan_mask")(mask)
    if bad >= 0:
        at = tuple(int(i) for i in np.unravel_index(bad, mask.shape))
        raise ValueError(
            f"mask value {mask[at]} at {at}: expected 0 (invalid), 1 (valid) or 2 (valid and the "
            f"beginning of a sequence)"
        )
    lengths = np.empty(count, np.int64)
    starts = np.empty(count, np.bool_)
    _kernel("lengths_from_mask")(mask, lengths, starts)
    return lengths, starts, bool(contiguous)


def _pointers(rows: Rows) -> np.ndarray:
    return np.fromiter((a.ctypes.data for a in rows.arrays), np.int64, len(rows.arrays))


def rows_to_padded(rows: Rows, steps: int) -> np.ndarray:
    """Return padded data (B, steps, *s) of a list of arrays; padding is zero."""
    size = _sample_bytes(rows.dtype, rows.sample_shape)
    count = len(rows.arrays)
    check_size(count, steps, size, int(rows.lengths.sum()))
    out = np.empty((count, steps, *rows.sample_shape), rows.dtype)
    _kernel("rows_to_padded")(
        0, count, _pointers(rows), rows.lengths, size, steps, out.ctypes.data
    )
    return out


def rows_to_ragged(rows: Rows, offsets: np.ndarray) -> np.ndarray:
    """Return flat values (total, *s) of a list of arrays."""
    size = _sample_bytes(rows.dtype, rows.sample_shape)
    out = np.empty((int(offsets[-1]), *rows.sample_shape), rows.dtype)
    _kernel("rows_to_ragged")(
        0, len(rows.arrays), _pointers(rows), offsets, size, out.ctypes.data
    )
    return out


def ragged_to_padded(values: np.ndarray, offsets: np.ndarray, steps: int) -> np.ndarray:
    """Return padded data (B, steps, *s) of contiguous flat values; padding is zero."""
    sample_shape = values.shape[1:]
    size = _sample_bytes(values.dtype, sample_shape)
    count = len(offsets) - 1
    check_size(count, steps, size, int(offsets[-1]))
    out = np.empty((count, steps, *sample_shape), values.dtype)
    _kernel("ragged_to_padded")(
        0, count, values.ctypes.data, offsets, size, steps, out.ctypes.data
    )
    return out


def padded_to_ragged(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return flat values (total, *s) of contiguous padded data (B, steps, *s)."""
    sample_shape = data.shape[2:]
    size = _sample_bytes(data.dtype, sample_shape)
    out = np.empty((int(offsets[-1]), *sample_shape), data.dtype)
    _kernel("padded_to_ragged")(
        0, len(offsets) - 1, data.ctypes.data, offsets, size, data.shape[1], out.ctypes.data
    )
    return out


def ragged_to_cells(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return padded data (rows, steps, *s) with the samples in the valid cells of ``mask``."""
    sample_shape = values.shape[1:]
    size = _sample_bytes(values.dtype, sample_shape)
    check_size(*mask.shape, size, len(values))
    out = np.empty((*mask.shape, *sample_shape), values.dtype)
    _kernel("ragged_to_cells")(values.ctypes.data, mask.reshape(-1), size, out.ctypes.data)
    return out


def cells_to_ragged(data: np.ndarray, mask: np.ndarray, total: int) -> np.ndarray:
    """Return the ``total`` samples in the valid cells of ``mask``, in order."""
    sample_shape = data.shape[2:]
    size = _sample_bytes(data.dtype, sample_shape)
    out = np.empty((total, *sample_shape), data.dtype)
    _kernel("cells_to_ragged")(data.ctypes.data, mask.reshape(-1), size, out.ctypes.data)
    return out


def copy_samples(values: np.ndarray) -> np.ndarray:
    """Return a contiguous copy that keeps every bit."""
    return np.array(values, order="C", copy=True, subok=False)


def split(values: np.ndarray, offsets: np.ndarray) -> list[np.ndarray]:
    """Return one view of ``values`` a sequence."""
    bounds = offsets.tolist()
    return [values[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
