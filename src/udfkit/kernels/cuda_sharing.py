"""Device arrays that other libraries take by DLPack; numba's own have only the other protocol."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from udfkit.errors import DeviceError
from udfkit.kernels import cuda_arrays, cuda_target, dlpack, lazy
from udfkit.kernels.cuda_streams import LEGACY_STREAM, stream_number, wait

cuda_strides = lazy("cuda_strides", globals())

__all__ = ["Sharing", "adopt", "check_usable", "fetch", "rows", "send", "share"]


class Sharing:
    """DLPack for arrays of numba's, which have none."""

    def __dlpack_device__(self) -> tuple[int, int]:
        view = cuda_arrays.read_array(self, "the array")
        index = cuda_arrays.device_of(view.address) if view.address else None
        return dlpack.CUDA, cuda_target.current_device() if index is None else index

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        try:
            view = cuda_arrays.read_array(self, "the array")
        except ValueError as error:
            raise BufferError(str(error)) from None
        device = self.__dlpack_device__()
        if copy or (dl_device is not None and tuple(dl_device) != device):
            raise BufferError(
                f"the array is on GPU[{device[1]}] and is handed out where it is, without a copy: "
                f"leave copy and dl_device out, and copy it afterwards; the samples of a Value go "
                f"to the host by value.to(udfkit.cpu()) or value.asarray()"
            )
        if stream is not None and not isinstance(stream, bool) and stream == 0:
            raise ValueError("stream 0 is ambiguous in DLPack: pass 1, the default stream")
        own = view.stream or LEGACY_STREAM
        consumer = LEGACY_STREAM if stream is None else stream

        def hand_back() -> None:
            # The consumer's stream may be gone by now: what was on it is over then.
            with suppress(Exception), cuda_target.on_device(device[1]):
                wait(stream_number(consumer) or LEGACY_STREAM, own)

        if consumer != -1:
            with cuda_target.on_device(device[1]):
                wait(own, consumer)
        return dlpack.make_capsule(
            view.address,
            view.shape,
            view.dtype,
            device,
            self,
            hand_back if consumer != -1 else _nothing,
            versioned=max_version is not None and max_version[0] >= 1,
        )


def _nothing() -> None:
    return None


@lru_cache
def _sharing(kind: Any) -> type:
    return type(kind.__name__, (Sharing, kind), {})


def share(array: Any) -> Any:
    """Let an array of numba's that was made here speak DLPack; return it."""
    kind: Any = type(array)
    if not issubclass(kind, Sharing):
        array.__class__ = _sharing(kind)
    return array


def check_usable(obj: Any) -> None:
    """Raise DeviceError where an array on a GPU is given to a process that cannot use one."""
    status = cuda_target.status()
    if not status.available:
        raise DeviceError(
            f"a {type(obj).__module__}.{type(obj).__name__} on a GPU was given, but "
            f"{status.reason}: copy it to the host first. {status.advice}"
        )


def adopt(obj: Any, where: str) -> tuple[Any, int]:
    """Return an array on a GPU, of any library, as one that can be handed out; and its device.

    One with strides is copied.

    Raises
    ------
    DeviceError
        When this process cannot use a GPU.
    TypeError, ValueError
        For an array that cannot be read, or is masked.
    """
    check_usable(obj)
    view = cuda_strides.packed(cuda_arrays.read_array(obj, where, strided=True))
    index = cuda_arrays.device_of(view.address) if view.address else dlpack.device_of(obj)
    index = cuda_target.current_device() if index is None else index
    with cuda_target.on_device(index):
        return share(cuda_arrays.as_array(view)), index


def rows(array: Any, first: int, last: int, index: int) -> Any:
    """Return these rows of an array on a GPU, over the same memory."""
    view = cuda_arrays.read_array(array, "the array")
    size = view.dtype.itemsize * prod(view.shape[1:])
    part = view.part(first * size, (last - first, *view.shape[1:]), view.dtype)
    with cuda_target.on_device(index):
        return share(cuda_arrays.as_array(part))


def send(array: np.ndarray[Any, Any], index: int) -> Any:
    """Return a copy of a host array on a GPU."""
    with cuda_target.on_device(index):
        return share(cuda_arrays.upload(array))


def fetch(array: Any, index: int) -> np.ndarray[Any, Any]:
    """Wait for the device, and return a copy on the host."""
    with cuda_target.on_device(index):
        view = cuda_arrays.read_array(array, "the array")
        wait(view.stream, 0)
        return cuda_arrays.download(view)
