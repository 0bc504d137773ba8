"""Moving samples on a device: allocate, choose width, variant and shape, launch once.

The functions mean what those of ``udfkit.moves`` mean. They take arrays that are on the current
device by their address (see `cuda_arrays.read_array`) and return arrays of numba's on it.
``stream`` is the stream that the work is put on; inputs that are ready on another one are waited
for there, and no function waits on the host unless its text says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from udfkit.kernels import cuda_target
from udfkit.kernels.cuda_arrays import (
    DeviceView,
    Staging,
    empty,
    numba_stream,
    read_array,
    release,
    wait,
)
from udfkit.kernels.cuda_launch import (
    Shape,
    loads_in_flight,
    needs_wide,
    row_shape,
    width_for,
)

__all__ = [
    "Run",
    "Staged",
    "padded_to_ragged",
    "ragged_to_padded",
    "rows_to_padded",
    "rows_to_ragged",
    "sample_bytes",
    "send_table",
]

_staging = Staging()


class Run:
    """One operation on a stream: reads its inputs, launches, hands the inputs back."""

    def __init__(self, stream: Any) -> None:
        self.stream = numba_stream(stream)
        self._consumed: list[int] = []

    def read(self, obj: Any, where: str, dtype: Any = None) -> DeviceView:
        """Return an input as kernels take it, ready on this run's stream."""
        view = read_array(obj, where, stream=self.stream)
        if dtype is not None and view.dtype != dtype:
            raise TypeError(
                f"{where} has dtype {view.dtype}, expected {np.dtype(dtype)}: cast it first"
            )
        if view.stream is not None and view.stream not in self._consumed:
            wait(view.stream, self.stream)
            self._consumed.append(view.stream)
        return view

    def address(self, obj: Any, where: str, dtype: Any) -> int:
        """Return the address of an input, or 0 for None."""
        return 0 if obj is None else self.read(obj, where, dtype).address

    def launch(
        self, name: str, shape: Shape, *arguments: int, width: int = 1, wide: bool = False
    ) -> None:
        """Launch a kernel once, or not at all where there is nothing to do."""
        if not shape.is_empty:
            device = cuda_target.current_device()
            kernel = cuda_target.kernel(name, width, wide, device)
            cuda_target.launch(kernel, shape, self.stream, arguments)

    def finish(self) -> None:
        """Let the streams of the inputs wait for this run, as their memory may be used again."""
        for stream in self._consumed:
            release(stream, self.stream)


def sample_bytes(view: DeviceView, axes: int) -> int:
    """Return the bytes of a sample of an array with so many axes before the sample shape."""
    return view.dtype.itemsize * prod(view.shape[axes:])


def _row_launch(rows: int, row_bytes: int, steps: int, width: int) -> tuple[Shape, bool]:
    """Return the shape for moving rows and whether positions in a row need 64 bits."""
    in_flight = loads_in_flight(width)
    work = max(-(-row_bytes // (width * in_flight)), -(-steps // 4))
    shape = row_shape(rows, work, cuda_target.multiprocessors(cuda_target.current_device()))
    return shape, needs_wide(row_bytes, shape, width, in_flight)


def ragged_to_padded(
    values: Any, offsets: Any, steps: int, starts: Any = None, *, stream: Any = 0
) -> tuple[Any, Any]:
    """Return padded data (B, steps, *s) and its int8 mask (B, steps), made by one launch.

    Parameters
    ----------
    values, offsets
        Flat values (total, *s) and int64 offsets (B + 1,), on the device.
    steps
        Steps of a row; what a sequence has beyond them is left out.
    starts
        bool (B,) on the device; None where every sequence is new.
    """
    run = Run(stream)
    flat = run.read(values, "values")
    bounds = run.read(offsets, "offsets", np.int64)
    rows, sample_shape = bounds.size - 1, flat.shape[1:]
    size = sample_bytes(flat, 1)
    data = empty((rows, steps, *sample_shape), flat.dtype, run.stream)
    mask = empty((rows, steps), np.int8, run.stream)
    out, cells = read_array(data, "data"), read_array(mask, "mask")
    width = width_for([flat.address, out.address, size])
    shape, wide = _row_launch(rows, steps * size, steps, width)
    new = run.address(starts, "starts", np.bool_)
    arguments = (flat.address, bounds.address, size, steps, out.address, new, cells.address, rows)
    run.launch("ragged_to_padded", shape, *arguments, width=width, wide=wide)
    run.finish()
    return data, mask


def padded_to_ragged(data: Any, offsets: Any, total: int, *, stream: Any = 0) -> Any:
    """Return flat values (total, *s) of padded data (B, steps, *s) with one sequence a row.

    ``offsets`` is int64 (B + 1,) on the device and ``total`` what its last element holds.
    """
    run = Run(stream)
    padded = run.read(data, "data")
    bounds = run.read(offsets, "offsets", np.int64)
    rows, steps = padded.shape[:2]
    size = sample_bytes(padded, 2)
    values = empty((total, *padded.shape[2:]), padded.dtype, run.stream)
    out = read_array(values, "values")
    width = width_for([padded.address, out.address, size])
    shape, wide = _row_launch(rows, steps * size, 0, width)
    arguments = (padded.address, bounds.address, size, steps, out.address, rows)
    if total:
        run.launch("padded_to_ragged", shape, *arguments, width=width, wide=wide)
    run.finish()
    return values


class Staged:
    """A batch from the host in one block of pinned memory, to be filled and sent by one copy.

    Parameters
    ----------
    offsets
        int64 (B + 1,) on the host.
    sample_shape, dtype
        Of the values.
    starts
        bool (B,) on the host; None where every sequence is new.
    """

    def __init__(
        self,
        offsets: np.ndarray[Any, Any],
        sample_shape: tuple[int, ...],
        dtype: Any,
        starts: np.ndarray[Any, Any] | None = None,
    ) -> None:
        self._shape = (int(offsets[-1]), *sample_shape)
        self._dtype = np.dtype(dtype)
        self._rows = len(offsets) - 1
        self._has_starts = starts is not None
        self._offsets_at = -(-prod(self._shape) * self._dtype.itemsize // 16) * 16
        self._starts_at = self._offsets_at + 8 * (self._rows + 1)
        self._count = self._starts_at + (self._rows if self._has_starts else 0)
        self._block = _staging.take(self._count)
        self._block[self._offsets_at : self._starts_at].view(np.int64)[:] = offsets
        if starts is not None:
            self._block[self._starts_at : self._count] = starts

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """The flat values (total, *s) in pinned memory, to be filled before `send`."""
        used = prod(self._shape) * self._dtype.itemsize
        return self._block[:used].view(self._dtype).reshape(self._shape)

    def send(self, stream: Any = 0) -> tuple[DeviceView, DeviceView, DeviceView | None]:
        """Put the copy on ``stream``; return values, offsets and starts on the device."""
        sent = _staging.send(self._block, self._count, stream)
        starts = sent.part(self._starts_at, (self._rows,), np.bool_) if self._has_starts else None
        return (
            sent.part(0, self._shape, self._dtype),
            sent.part(self._offsets_at, (self._rows + 1,), np.int64),
            starts,
        )


def send_table(columns: Sequence[Any], stream: Any = 0) -> list[DeviceView]:
    """Copy small host arrays to the device by one copy, for which the host does not wait."""
    arrays = [np.require(column, requirements="C") for column in columns]
    ends = np.cumsum([0, *(-(-array.nbytes // 8) * 8 for array in arrays)]).tolist()
    block = _staging.take(ends[-1])
    for array, at in zip(arrays, ends, strict=False):
        block[at : at + array.nbytes] = array.reshape(array.size).view(np.uint8)
    sent = _staging.send(block, ends[-1], stream)
    return [sent.part(at, a.shape, a.dtype) for a, at in zip(arrays, ends, strict=False)]


def _read_rows(run: Run, arrays: Sequence[Any]) -> tuple[list[DeviceView], tuple[int, ...]]:
    views = [run.read(array, f"sequence {k}") for k, array in enumerate(arrays)]
    for k, view in enumerate(views):
        if view.dtype != views[0].dtype or view.shape[1:] != views[0].shape[1:] or not view.shape:
            raise ValueError(
                f"sequence {k} has shape {view.shape} and dtype {view.dtype}, expected samples of "
                f"shape {views[0].shape[1:]} and dtype {views[0].dtype} as in sequence 0: make "
                f"them equal"
            )
    return views, views[0].shape[1:]


def rows_to_padded(
    arrays: Sequence[Any], steps: int, starts: Any = None, *, stream: Any = 0
) -> tuple[Any, Any]:
    """Return padded data (B, steps, *s) and mask (B, steps) of a list of device arrays.

    One copy of addresses and lengths, and one launch. ``starts`` is a host array of bool, or None.
    The list must not be empty, for an empty one has no sample shape.
    """
    run = Run(stream)
    views, sample_shape = _read_rows(run, arrays)
    rows, size = len(views), sample_bytes(views[0], 1)
    columns = [[v.address for v in views], [v.shape[0] for v in views]]
    table = [np.array(column, np.int64) for column in columns]
    if starts is not None:
        table.append(np.asarray(starts, np.bool_))
    sent = send_table(table, run.stream)
    data = empty((rows, steps, *sample_shape), views[0].dtype, run.stream)
    mask = empty((rows, steps), np.int8, run.stream)
    out, cells = read_array(data, "data"), read_array(mask, "mask")
    width = width_for([*columns[0], out.address, size])
    shape, wide = _row_launch(rows, steps * size, steps, width)
    new = sent[2].address if starts is not None else 0
    arguments = (sent[0].address, sent[1].address, size, steps, out.address, new, cells.address)
    run.launch("rows_to_padded", shape, *arguments, rows, width=width, wide=wide)
    run.finish()
    return data, mask


def rows_to_ragged(arrays: Sequence[Any], *, stream: Any = 0) -> tuple[Any, DeviceView]:
    """Return flat values (total, *s) and int64 offsets of a list of device arrays, not empty.

    One copy of addresses and offsets, and one launch.
    """
    run = Run(stream)
    views, sample_shape = _read_rows(run, arrays)
    size = sample_bytes(views[0], 1)
    lengths = [v.shape[0] for v in views]
    pointers = [v.address for v in views]
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    sent = send_table([np.array(pointers, np.int64), offsets], run.stream)
    values = empty((int(offsets[-1]), *sample_shape), views[0].dtype, run.stream)
    out = read_array(values, "values")
    width = width_for([*pointers, out.address, size])
    shape, wide = _row_launch(len(views), max(lengths) * size, 0, width)
    arguments = (sent[0].address, sent[1].address, size, out.address, len(views))
    run.launch("rows_to_ragged", shape, *arguments, width=width, wide=wide)
    run.finish()
    return values, sent[1]
