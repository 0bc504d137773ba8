"""Where samples lie, and the moves that are made there: on the host, or on a device."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from udfkit import moves
from udfkit.casting import check_real
from udfkit.device import DeviceDescriptor, gpu
from udfkit.items import host_array, may_be_on_gpu, plain_array
from udfkit.layout import Layout
from udfkit.rows import Rows
from udfkit.sparse import CsrSamples, OneHotSamples

__all__ = ["HOST", "Place", "device_index_of", "on_host", "place_of"]


class Place(Protocol):
    """What a Value asks of the place where it is. Arrays are those of the place."""

    def pad(self, flat: Any, layout: Layout) -> Any:
        """Return padded data (rows, steps, *s) of samples in the order of the sequences."""

    def unpad(self, padded: Any, layout: Layout) -> Any:
        """Return the samples (total, *s) of padded data, in memory of their own."""

    def densify(self, samples: CsrSamples | OneHotSamples, layout: Layout) -> Any:
        """Return padded data of sparse samples."""

    def densify_flat(self, samples: CsrSamples | OneHotSamples, layout: Layout) -> Any:
        """Return the samples (total, *s) of sparse ones."""

    def mask(self, layout: Layout) -> Any:
        """Return the int8 mask."""

    def gather(self, rows: Rows, offsets: np.ndarray) -> Any:
        """Return the flat values (total, *s) of arrays on the host."""

    def send(self, array: np.ndarray) -> Any:
        """Return an array of this place with the contents of one on the host."""

    def fetch(self, array: Any) -> np.ndarray:
        """Return a writable array on the host, in memory of its own."""

    def take(self, array: Any, where: str, like: np.dtype, copy: bool) -> Any:
        """Return what a user gave as samples of this place; ``like`` tells opaque bytes' dtype."""

    def copy(self, array: Any) -> Any:
        """Return a copy in this place."""

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return the same memory with another shape."""

    def protect(self, array: Any) -> Any:
        """Return what outsiders may have of an array: read-only where that can be had."""


class _Host:
    def pad(self, flat: np.ndarray, layout: Layout) -> np.ndarray:
        if layout.contiguous:
            return moves.ragged_to_padded(flat, layout.offsets, layout.steps)
        if layout.pieces is not None:
            flat = moves.in_row_order(flat, *layout.pieces)
        return moves.ragged_to_cells(flat, layout.mask)

    def unpad(self, padded: np.ndarray, layout: Layout) -> np.ndarray:
        if layout.contiguous:
            return moves.padded_to_ragged(padded, layout.offsets)
        if layout.pieces is not None:
            return moves.pieces_to_ragged(padded, *layout.pieces)
        return moves.cells_to_ragged(padded, layout.mask, layout.total)

    def densify(self, samples: CsrSamples | OneHotSamples, layout: Layout) -> np.ndarray:
        return samples.dense(layout.positions, (layout.rows, layout.steps))

    def densify_flat(self, samples: CsrSamples | OneHotSamples, layout: Layout) -> np.ndarray:
        return samples.dense(np.arange(layout.total), (layout.total, 1))

    def mask(self, layout: Layout) -> np.ndarray:
        return layout.mask

    def gather(self, rows: Rows, offsets: np.ndarray) -> np.ndarray:
        return moves.rows_to_ragged(rows, offsets)

    def send(self, array: np.ndarray) -> np.ndarray:
        return array

    def fetch(self, array: np.ndarray) -> np.ndarray:
        return moves.copy_samples(array)

    def take(self, array: Any, where: str, like: np.dtype, copy: bool) -> np.ndarray:  # noqa: ARG002
        found = host_array(array, where)
        found = plain_array(array, where) if found is None else found
        check_real(found.dtype, where)
        native = found.dtype.newbyteorder("=")
        # A view, so that what is made read-only is not the user's own array.
        return found.astype(native, order="C", copy=copy, subok=False).view()

    def copy(self, array: np.ndarray) -> np.ndarray:
        return moves.copy_samples(array)

    def reshape(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return array.reshape(shape)

    def protect(self, array: np.ndarray) -> np.ndarray:
        array.setflags(write=False)
        return array


HOST: Place = _Host()


def place_of(device: DeviceDescriptor) -> Any:
    """Return the place of a device: a `Place`; that of a GPU is a `DevicePlace`."""
    return _device_place(device.index) if device.is_gpu else HOST


@lru_cache
def _device_place(index: int) -> Any:
    from udfkit.device_places import DevicePlace

    return DevicePlace(index)


def device_index_of(obj: Any) -> int | None:
    """Return the index of the GPU that an array is on, or None for whatever else.

    Raises
    ------
    DeviceError
        For an array on a GPU that this process cannot use.
    """
    if not may_be_on_gpu(obj):
        return None
    from udfkit.device_places import device_index
    from udfkit.kernels.cuda_sharing import check_usable

    check_usable(obj)
    return device_index(obj)


def on_host(obj: Any) -> Any:
    """Return a device array's contents on the host, and anything else as it is."""
    index = None if obj is None or isinstance(obj, np.ndarray) else device_index_of(obj)
    return obj if index is None else place_of(gpu(index)).fetch(obj)
