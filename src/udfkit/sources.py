"""Reading whatever `pad` and `fill_rows` take into sequences at addresses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from udfkit import moves
from udfkit.arguments import check_sample_shape
from udfkit.casting import check_dtype, check_real
from udfkit.errors import WHAT_A_BATCH_CAN_BE, DeviceError, shape_text
from udfkit.items import host_array, is_scipy_sparse, refuse_non_batch
from udfkit.kernels import lazy
from udfkit.memory import check_size
from udfkit.ragged import Ragged
from udfkit.rows import Rows, read_rows
from udfkit.unpadding import Padded, Side, Unpadded, native_array, unpad
from udfkit.value import Value

__all__ = ["Source", "pad_plainly", "read_source"]

cpu_padding = lazy("cpu_padding", globals())
pyobjects = lazy("pyobjects", globals())


class Source:
    """Sequences at addresses, and what the batch itself says about how it was padded.

    Attributes
    ----------
    rows : Rows
    starts : ndarray of bool, shape (B,), or None
    steps : int
        T of a batch that was padded before, else 0.
    side : {'right', 'left'}
    """

    __slots__ = ("rows", "side", "starts", "steps")

    def __init__(
        self, rows: Rows, starts: np.ndarray | None = None, steps: int = 0, side: Side = "right"
    ):
        self.rows = rows
        self.starts = starts
        self.steps = steps
        self.side = side


def read_source(
    batch: Any, dtype: Any = None, sample_shape: Any = None, *, will_pad: bool = False
) -> Source:
    """Find the sequences of a batch.

    Parameters
    ----------
    batch : list, tuple or other Sequence, Ragged, Value, Padded, or array
    dtype : dtype, optional
        Items are cast to it exactly; without it all must have one dtype.
    sample_shape : int or tuple of int, optional
    will_pad : bool
        Check the size of the padded batch before anything large is allocated.

    Raises
    ------
    TypeError, ValueError
        With the index of the first item that does not fit.
    """
    if (type(batch) is list or type(batch) is tuple) and dtype is None and sample_shape is None:
        rows = _read_uniform(tuple(batch))
        if rows is not None:
            return Source(rows)
    if dtype is not None:
        dtype = check_dtype(dtype)
    sample_shape = check_sample_shape(sample_shape)
    read = _READERS.get(type(batch)) or next(
        (read for kind, read in _READERS.items() if isinstance(batch, kind)), None
    )
    if read is not None:
        return read(batch, dtype, sample_shape)
    refuse_non_batch(batch, "batch")
    if is_scipy_sparse(batch):
        raise TypeError("batch is a sparse matrix: convert each sequence with toarray()")
    array = host_array(batch, "batch")
    if array is not None:
        return _from_array(array, dtype, sample_shape)
    if not isinstance(batch, Sequence):
        raise TypeError(f"batch is a {type(batch).__name__}: {WHAT_A_BATCH_CAN_BE}")
    return Source(read_rows(batch, sample_shape, dtype, will_pad=will_pad))


def pad_plainly(batch: Any, out: Any, mask_out: Any) -> list[np.ndarray] | None:
    """Return lengths, data and mask of a short batch of the simplest kind; None of others."""
    kind = type(batch)
    if kind is list or kind is tuple:
        items = tuple(batch)
        form = None if out is not None or mask_out is not None else _uniform_form(items)
        return None if form is None else moves.pad_short(items, *form)
    if kind is Ragged and batch._starts is None and batch._gpu is None:
        return moves.pad_short_flat(batch._values, batch._offsets, out, mask_out)
    return None


def _uniform_form(items: tuple[Any, ...]) -> tuple[np.dtype, tuple[int, ...]] | None:
    """Return dtype and sample shape of the first item if it is a plain array, else None."""
    if not items:
        return None
    first = items[0]
    if type(first) is not np.ndarray or first.ndim == 0:
        return None
    dtype = first.dtype
    if dtype.kind not in "fiub" or not dtype.isnative:
        return None
    return dtype, first.shape[1:]


def _read_uniform(items: tuple[Any, ...]) -> Rows | None:
    """Read plain arrays that all have the first one's dtype and sample shape; None for others."""
    form = _uniform_form(items)
    if form is None:
        return None
    count = len(items)
    pointers, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    odd, longest, _ = pyobjects.scan(items, *form, pointers, lengths)
    return None if odd else Rows(pointers, lengths, longest, form[1], form[0], items)


def _from_unpadded(batch: Unpadded, dtype: Any, sample_shape: Any) -> Source:
    if batch.starts is not None and len(batch.starts) != len(batch):
        raise ValueError(
            f"the list has {len(batch)} sequences, but the starts of {len(batch.starts)}: pass "
            f"list(batch) when sequences were added or removed"
        )
    rows = _read_uniform(tuple(batch)) if dtype is None and sample_shape is None else None
    if not batch:
        dtype = batch.sample.dtype if dtype is None else dtype
        sample_shape = batch.sample.shape[1:] if sample_shape is None else sample_shape
    rows = rows or read_rows(tuple(batch), sample_shape, dtype)
    starts = None if batch.starts is None else np.array(batch.starts)
    return Source(rows, starts, batch.steps, batch.side)


def _from_padded(batch: Padded, dtype: Any, sample_shape: Any) -> Source:
    data, lengths = native_array(batch.data), batch.lengths.copy()
    count, steps = data.shape[:2]
    if len(lengths) != count or ((lengths > steps) | (lengths < 0)).any():
        raise ValueError(
            f"the Padded holds data of shape {shape_text(data.shape)}, but {len(lengths)} lengths "
            f"from {lengths.min(initial=0)} to {lengths.max(initial=0)}: pass data and mask= or "
            f"lengths= to unpad instead"
        )
    if not _has(data.dtype, data.shape[2:], dtype, sample_shape):
        return _from_unpadded(unpad(batch), dtype, sample_shape)
    step_bytes = data.itemsize * prod(data.shape[2:])
    pointers = pyobjects.address(data) + np.arange(count, dtype=np.int64) * (steps * step_bytes)
    if batch.side == "left":
        pointers += (steps - lengths) * step_bytes
    rows = Rows(pointers, lengths, int(lengths.max(initial=0)), data.shape[2:], data.dtype, data)
    starts = None if batch._starts is None else batch._starts.copy()
    return Source(rows, starts, steps, batch.side)


def _from_value(batch: Value, dtype: Any, sample_shape: Any) -> Source:
    if batch.device.is_gpu:
        raise DeviceError(
            f"the batch is a Value on {batch.device}, and this works on the host: pass "
            f"value.to(udfkit.cpu()); value.data and value.mask are padded on the device"
        )
    source = _from_ragged(batch.ragged(), dtype, sample_shape)
    if batch.mask.ndim == 1:
        source.steps = 1
    elif len(batch) == batch.rows:
        source.steps = batch.shape[1]
    return source


def _from_ragged(batch: Ragged, dtype: Any, sample_shape: Any) -> Source:
    batch._needs_host("this")
    starts = np.array(batch.starts) if batch.has_starts else None
    if not _has(batch.dtype, batch.sample_shape, dtype, sample_shape):
        return Source(read_rows(list(batch), sample_shape, dtype), starts)
    values = batch.values
    if not values.flags.c_contiguous:
        values = np.ascontiguousarray(values)
    count, shape, dtype = len(batch), values.shape[1:], values.dtype
    pointers, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    address = pyobjects.address
    longest = cpu_padding.ragged_rows(
        count,
        address(values),
        address(batch.offsets),
        dtype.itemsize * prod(shape),
        address(pointers),
        address(lengths),
    )
    return Source(Rows(pointers, lengths, longest, shape, dtype, values), starts)


def _from_array(array: np.ndarray, dtype: Any, sample_shape: Any) -> Source:
    if array.dtype.kind == "O" and array.ndim == 1:
        return Source(read_rows(array.tolist(), sample_shape, dtype))
    if array.dtype.kind == "O":
        raise ValueError(
            f"batch is an object array of shape {shape_text(array.shape)}: pass a list with one "
            f"array a sequence, for example list(batch)"
        )
    check_real(array.dtype, "batch")
    if array.ndim == 0:
        raise ValueError("batch has shape (): expected (B, T, *s), or a list of sequences")
    if array.ndim == 1:
        array = array[:, np.newaxis]
    steps = array.shape[1]
    native = array.dtype.newbyteorder("=")
    if not _has(native, array.shape[2:], dtype, sample_shape):
        shape = array.shape[2:] if sample_shape is None else sample_shape
        rows = read_rows(list(array), shape, native if dtype is None else dtype)
        return Source(rows, steps=steps)
    count = len(array)
    if not array.flags.c_contiguous:
        check_size(count, steps, array.itemsize * prod(array.shape[2:]), None)
    array = np.ascontiguousarray(array, native)
    row_bytes = steps * array.itemsize * prod(array.shape[2:])
    pointers = pyobjects.address(array) + np.arange(count, dtype=np.int64) * row_bytes
    lengths = np.full(count, steps, np.int64)
    rows = Rows(pointers, lengths, steps if count else 0, array.shape[2:], native, array)
    return Source(rows, steps=steps)


def _has(
    dtype: np.dtype, shape: tuple[int, ...], wanted: np.dtype | None, wanted_shape: Any
) -> bool:
    same_dtype = wanted is None or wanted == dtype
    return same_dtype and (wanted_shape is None or wanted_shape == shape)


_READERS: dict[type, Any] = {
    Padded: _from_padded,
    Ragged: _from_ragged,
    Unpadded: _from_unpadded,
    Value: _from_value,
}
