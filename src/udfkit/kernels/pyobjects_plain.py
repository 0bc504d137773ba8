"""What ``pyobjects`` does, in plain Python: for builds with other object layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udfkit.kernels.object_layouts import HALF, LAST_NUMBER

__all__ = ["address", "difference", "read", "scan", "views"]

BAD_BATCH, BAD_DTYPE, BAD_SHAPE, BAD_SLOTS = -1, -2, -3, -4
"""What ``read`` returns as the number of odd items when an argument is not what it should be."""

_INT64 = np.dtype(np.int64)


def address(array: NDArray[Any]) -> int:
    """Return the address of an array's first byte."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"address takes a NumPy array, got {type(array).__name__}")
    return int(array.__array_interface__["data"][0])


def same_kind(dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether two dtypes are the same, or the same number type in native byte order."""
    return dtype is wanted or (
        dtype.num == wanted.num
        and (wanted.num <= LAST_NUMBER or wanted.num == HALF)
        and bool(dtype.isnative)
        and bool(wanted.isnative)
    )


def scan(
    batch: tuple[Any, ...],
    dtype: np.dtype[Any],
    sample_shape: tuple[int, ...],
    pointers: NDArray[np.int64],
    lengths: NDArray[np.int64] | None,
) -> tuple[int, int, int]:
    """Do what ``pyobjects.scan`` does; without lengths, what ``pyobjects.scan_samples`` does."""
    odd = longest = total = 0
    leading = 0 if lengths is None else 1
    for i, item in enumerate(batch):
        pointer, length = 0, -1
        if (
            type(item) is np.ndarray
            and item.flags.c_contiguous
            and item.flags.aligned
            and item.ndim == len(sample_shape) + leading
            and item.shape[leading:] == sample_shape
            and same_kind(item.dtype, dtype)
        ):
            pointer = address(item)
            length = item.shape[0] if leading else 1
        pointers[i] = pointer
        if lengths is not None:
            lengths[i] = length
        if length < 0:
            odd += 1
        else:
            total += length
            longest = max(longest, length)
    return odd, longest, total


def read(
    batch: Any, dtype: Any, sample_shape: Any, pointers: Any, lengths: Any, _: Any = None
) -> tuple[int, int, int]:
    """Check the arguments, then ``scan``."""
    if not isinstance(batch, tuple):
        return BAD_BATCH, 0, 0
    if not isinstance(dtype, np.dtype):
        return BAD_DTYPE, 0, 0
    if not isinstance(sample_shape, tuple):
        return BAD_SHAPE, 0, 0
    for slots in (pointers,) if lengths is None else (pointers, lengths):
        if (
            type(slots) is not np.ndarray
            or slots.dtype is not _INT64
            or slots.ndim != 1
            or not slots.flags.carray
            or slots.size < len(batch)
        ):
            return BAD_SLOTS, 0, 0
    if not all(isinstance(size, int) for size in sample_shape):
        return BAD_SHAPE, 0, 0
    return scan(batch, dtype, sample_shape, pointers, lengths)


def views(
    block: NDArray[Any], lengths: NDArray[np.int64], sample_shape: tuple[int, ...]
) -> list[NDArray[Any]]:
    """Do what ``pyobjects.views`` does."""
    values = block.reshape(-1)
    sample_size = math.prod(sample_shape)
    counts = [int(length) for length in lengths]
    if min(counts, default=0) < 0 or min(sample_shape, default=0) < 0:
        raise ValueError(
            f"views: lengths and sample shape {sample_shape} hold a negative size; "
            "pass sizes of 0 or more"
        )
    if sum(counts) * sample_size > values.size:
        raise ValueError(
            f"views: {sum(counts)} samples of shape {sample_shape} do not fit a block of "
            f"{values.size} elements; pass a larger block"
        )
    made, start = [], 0
    for count in counts:
        stop = start + count * sample_size
        made.append(values[start:stop].reshape(count, *sample_shape))
        start = stop
    return made


def difference(
    read_compiled: Callable[..., tuple[int, int, int]],
    views_compiled: Callable[..., Any],
    address_compiled: Callable[..., int],
) -> str | None:
    """Compare compiled functions with this module's; return what differs, or None."""
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    batch: tuple[Any, ...] = (wide[:, :3], wide, wide.T, wide.astype(">f4"), wide[0], 3, None)
    batch += (wide.astype(np.float64), *(wide[:length].copy() for length in range(4)))
    results, tables = [], np.zeros((2, 2, len(batch)), np.int64)
    for function, (pointers, lengths) in zip((read_compiled, read), tables, strict=True):
        results.append(function(batch, wide.dtype, (6,), pointers, lengths, _INT64))
    if results[0] != results[1]:
        return "compiled reading counts other items than plain reading"
    if not np.array_equal(tables[0], tables[1]):
        return "compiled reading finds other addresses or lengths than plain reading"
    if address_compiled(wide) != address(wide):
        return "compiled code finds another address of an array"
    block, lengths = np.arange(20.0), np.array([2, 0, 3])
    made = views_compiled(block, lengths, (4,), _INT64)
    for view, model in zip(made, views(block, lengths, (4,)), strict=True):
        if view.shape != model.shape or view.flags.num != model.flags.num:
            return "compiled code makes arrays of other shape or flags than slicing"
        if view.base is not block or not np.array_equal(view, model):
            return "compiled code makes arrays of other memory than slicing"
    return None
