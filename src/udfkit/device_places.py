"""The moves of a Value on a CUDA device: `DevicePlace` is the `udfkit.places.Place` of one.

Nothing waits on the host unless its text says so.
"""

# ruff: noqa: D102 - the methods are documented on Place

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from udfkit import moves
from udfkit.casting import check_real, is_bfloat16
from udfkit.errors import DeviceError
from udfkit.kernels import cuda_arrays, cuda_mask_moves, cuda_moves, cuda_target, dlpack, lazy
from udfkit.kernels.cuda_arrays import DeviceView
from udfkit.kernels.cuda_sharing import share
from udfkit.layout import Layout, read_layout
from udfkit.memory import check_size
from udfkit.rows import Rows
from udfkit.sparse import CsrSamples, OneHotSamples

__all__ = ["DevicePlace", "device_index", "read_foreign"]

cpu = lazy("cpu", globals())
cuda_casts = lazy("cuda_casts", globals())
cuda_strides = lazy("cuda_strides", globals())
pyobjects = lazy("pyobjects", globals())


def _index_of(address: int) -> int | None:
    found = cuda_arrays.device_of(address) if address else None
    return cuda_target.current_device() if address and found is None else found


def device_index(obj: Any) -> int | None:
    """Return the index of the device that a foreign array is on, or None for another object.

    The current device for an array without bytes, whose address says nothing.
    """
    interface = cuda_arrays.interface_of(obj)
    if interface is None:
        return dlpack.device_of(obj)
    address = 0 if 0 in interface["shape"] else int(interface["data"][0] or 0)
    found = _index_of(address)
    return cuda_target.current_device() if found is None else found


def _is_on_device(obj: Any) -> bool:
    return cuda_arrays.interface_of(obj) is not None or dlpack.device_of(obj) is not None


def _typed(array: Any, dtype: np.dtype) -> Any:
    """Return an array with the dtype that it had; the interface of arrays knows no bfloat16."""
    if array.dtype == dtype:
        return array
    return cuda_arrays.read_array(array, "the array").part(0, tuple(array.shape), dtype)


def read_foreign(obj: Any, where: str) -> tuple[DeviceView, int | None] | None:
    """Return an array on any device and the index of that; None for another object.

    The index is None for an array without bytes, which is as good on every device. An array with
    strides is copied by one launch.

    Raises
    ------
    ValueError
        For an array that is masked or not C-contiguous.
    """
    if not _is_on_device(obj):
        return None
    view = cuda_strides.packed(cuda_arrays.read_array(obj, where, strided=True))
    return view, _index_of(view.address)


class DevicePlace:
    """The device of this index.

    Lengths, starts and offsets are known on the host; a layout keeps its copies on the device.
    """

    def __init__(self, index: int):
        self.index = index

    def read(self, obj: Any, where: str) -> DeviceView:
        """Return a foreign array on this device as kernels take it."""
        with cuda_target.on_device(self.index):
            view = cuda_arrays.read_array(obj, where, self.index, strided=True)
            return view if view.strides is None else cuda_strides.packed(view)

    def pad(self, flat: Any, layout: Layout) -> Any:
        size = flat.dtype.itemsize * prod(flat.shape[1:])
        check_size(layout.rows, layout.steps, size, layout.lengths)
        with cuda_target.on_device(self.index):
            if layout.contiguous:
                offsets, starts = self._offsets(layout), self._starts(layout)
                data, mask = cuda_moves.ragged_to_padded(flat, offsets, layout.steps, starts)
                layout.on_device[self.index, "mask"] = mask
                return _typed(data, flat.dtype)
            if layout.pieces is not None:
                cells, lengths = layout.pieces
                order = np.argsort(cells)
                begins = moves.offsets_of(lengths)[:-1]
                flat = self._runs(flat, begins[order], lengths[order])
            mask, rows = self.mask(layout), self._rows(layout)
            return _typed(cuda_mask_moves.ragged_to_cells(flat, mask, rows), flat.dtype)

    def unpad(self, padded: Any, layout: Layout) -> Any:
        with cuda_target.on_device(self.index):
            if layout.contiguous:
                flat = cuda_moves.padded_to_ragged(padded, self._offsets(layout), layout.total)
                return _typed(flat, padded.dtype)
            if layout.pieces is not None:
                samples = self.reshape(padded, (layout.rows * layout.steps, *padded.shape[2:]))
                return self._runs(samples, *layout.pieces)
            mask, rows = self.mask(layout), self._rows(layout)
            flat = cuda_mask_moves.cells_to_ragged(padded, mask, rows, layout.total)
            return _typed(flat, padded.dtype)

    def _runs(self, samples: Any, begins: np.ndarray, lengths: np.ndarray) -> Any:
        """Return runs of samples (n, *s), none of them empty, one behind the other."""
        view, dtype = self.read(samples, "the samples"), samples.dtype
        if not len(begins):
            return view.part(0, (0, *view.shape[1:]), dtype)
        size = dtype.itemsize * prod(view.shape[1:])
        runs = zip((begins * size).tolist(), lengths.tolist(), strict=True)
        parts = [view.part(at, (count, *view.shape[1:]), dtype) for at, count in runs]
        return _typed(cuda_moves.rows_to_ragged(parts)[0], dtype)

    def densify(self, samples: CsrSamples | OneHotSamples, layout: Layout) -> Any:
        return self._dense(samples, layout.positions, layout.rows, layout.steps)

    def densify_flat(self, samples: CsrSamples | OneHotSamples, layout: Layout) -> Any:
        return self._dense(samples, np.arange(layout.total), layout.total, 1)

    def _dense(
        self, samples: CsrSamples | OneHotSamples, positions: np.ndarray, rows: int, steps: int
    ) -> Any:
        shape, dtype = samples.sample_shape, samples.dtype
        check_size(rows, steps, dtype.itemsize * prod(shape), [len(positions)])
        cells = rows * steps
        with cuda_target.on_device(self.index):
            if isinstance(samples, OneHotSamples):
                codes = self.send(samples.placed(positions, cells))
                dense = cuda_mask_moves.one_hot_to_dense(codes, shape[-1], dtype)
            elif (np.diff(positions) > 0).all():
                parts = [samples.indptr, samples.indices, samples.data, positions]
                indptr, indices, data, at = (self.send(part) for part in parts)
                dense = cuda_mask_moves.csr_to_dense(indptr, indices, data, shape[0], at, cells)
            else:
                return self.send(samples.dense(positions, (rows, steps)))
        return self.reshape(dense, (cells, *shape))

    def mask(self, layout: Layout) -> Any:
        key = (self.index, "mask")
        if key not in layout.on_device:
            with cuda_target.on_device(self.index):
                if layout.contiguous and layout.kind == "sequence":
                    lengths, starts = self._kept(layout, "lengths"), self._starts(layout)
                    made = cuda_mask_moves.mask_of(lengths, starts, layout.steps)
                else:
                    (made,) = cuda_moves.send_table([layout.mask])
            layout.on_device[key] = made
        return self.protect(layout.on_device[key])

    def gather(self, rows: Rows, offsets: np.ndarray) -> Any:
        size = rows.dtype.itemsize * prod(rows.sample_shape)
        with cuda_target.on_device(self.index):
            staged = cuda_moves.Staged(offsets, rows.sample_shape, rows.dtype)
            target = pyobjects.address(staged.values)
            cpu.rows_to_ragged(
                0, len(rows.lengths), rows.pointers, offsets, size, cpu.WRITE, target
            )
            return staged.send()[0]

    def gather_device(self, views: list[DeviceView]) -> tuple[Any, np.ndarray]:
        """Return flat values of a list of arrays on this device, and their lengths."""
        lengths = np.array([view.shape[0] for view in views], np.int64)
        with cuda_target.on_device(self.index):
            return _typed(cuda_moves.rows_to_ragged(views)[0], views[0].dtype), lengths

    def cast(self, array: Any, dtype: np.dtype, on_host: Callable[[np.ndarray], np.ndarray]) -> Any:
        """Return an array of this device cast to another dtype.

        Waits for the device only where a value may not fit; when one does not, ``on_host`` gets the
        array to say which one.
        """
        with cuda_target.on_device(self.index):
            made, flag = cuda_casts.cast(array, dtype)
            failed = flag is not None and bool(cuda_arrays.download(flag)[0])
        return self.send(on_host(self.fetch(array))) if failed else made

    def read_padded(
        self, data: Any, mask: Any, lengths: Any, starts: Any
    ) -> tuple[Layout, DeviceView | None, Any]:
        """Read what the constructor of a Value takes, when its data is on this device.

        The data stays there. Waits only for a mask that is on a device.

        Returns
        -------
        layout, padded, flat
            Either padded data, a copy, in which every cell is valid; or the valid samples
            ``(total, *s)`` alone. The other one is None.

        Raises
        ------
        TypeError, ValueError
            When they do not fit each other, with the position.
        """
        view = self.read(data, "data of a Value")
        check_real(view.dtype, "data of a Value")
        mask, lengths = (self._on_host(part) for part in (mask, lengths))
        form = np.broadcast_to(np.zeros((), view.dtype), view.shape)
        layout = read_layout(form, mask, lengths, starts)
        if layout.total == layout.rows * layout.steps:
            return layout, self.copy(view), None
        return layout, None, self.unpad(view, layout)

    def _on_host(self, part: Any) -> Any:
        return self.fetch(part) if _is_on_device(part) else part

    def send(self, array: np.ndarray) -> Any:
        with cuda_target.on_device(self.index):
            return cuda_arrays.upload(array)

    def fetch(self, array: Any) -> np.ndarray:
        """Wait for the device, and copy to the host."""
        with cuda_target.on_device(self.index):
            if not hasattr(array, "copy_to_host"):
                array = cuda_arrays.read_array(array, "the array")
                cuda_arrays.wait(array.stream, 0)
            host = cuda_arrays.download(array)
        return host if host.dtype == array.dtype else host.view(array.dtype)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return samples (n, *s) that are 0: the padding behind no sample at all."""
        nothing = DeviceView(0, (0, *shape[1:]), np.dtype(dtype), None)
        with cuda_target.on_device(self.index):
            (offsets,) = cuda_moves.send_table([np.zeros(2, np.int64)])
            made, _ = cuda_moves.ragged_to_padded(nothing, offsets, shape[0])
        return self.reshape(_typed(made, nothing.dtype), shape)

    def take(self, array: Any, where: str, like: np.dtype, copy: bool) -> Any:
        if not _is_on_device(array):
            raise DeviceError(
                f"{where} is a {type(array).__name__} on the host, expected an array on "
                f"GPU[{self.index}], where the Value is: copy it there, or take value.to(cpu())"
            )
        view = self.read(array, where)
        dtype = like if is_bfloat16(like) and view.dtype == np.dtype("V2") else view.dtype
        check_real(dtype, where)
        view = view.part(0, view.shape, dtype)
        return self.copy(view) if copy else view

    def copy(self, array: Any) -> Any:
        view, dtype = self.read(array, "the array"), array.dtype
        samples = view.part(0, (1, view.nbytes), np.uint8)
        with cuda_target.on_device(self.index):
            (offsets,) = cuda_moves.send_table([np.array([0, view.nbytes])])
            copied = cuda_moves.padded_to_ragged(samples, offsets, view.nbytes)
            whole = cuda_arrays.read_array(copied, "the copy")
        return whole.part(0, view.shape, dtype)

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        view = self.read(array, "the array")
        return array if view.shape == shape else view.part(0, shape, array.dtype)

    def protect(self, array: Any) -> Any:
        if isinstance(array, DeviceView):
            with cuda_target.on_device(self.index):
                array = cuda_arrays.as_array(array)
        return share(array)

    def _kept(self, layout: Layout, name: str) -> Any:
        key = (self.index, name)
        if key not in layout.on_device:
            with cuda_target.on_device(self.index):
                (layout.on_device[key],) = cuda_moves.send_table([getattr(layout, name)])
        return layout.on_device[key]

    def _offsets(self, layout: Layout) -> Any:
        return self._kept(layout, "offsets")

    def _starts(self, layout: Layout) -> Any:
        return None if layout.all_new else self._kept(layout, "starts")

    def _rows(self, layout: Layout) -> Any:
        key = (self.index, "row_offsets")
        if key not in layout.on_device:
            counts = np.count_nonzero(layout.mask, axis=1).astype(np.int64)
            with cuda_target.on_device(self.index):
                (layout.on_device[key],) = cuda_moves.send_table([moves.offsets_of(counts)])
        return layout.on_device[key]
