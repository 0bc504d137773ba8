"""Device arrays in and out: addresses, streams and events, without a wait of the host.

In the simulator device memory is host memory, and every call is over when it returns.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from udfkit.errors import DeviceError
from udfkit.kernels import cuda_target
from udfkit.kernels.cuda_pool import DevicePool

__all__ = [
    "DeviceView",
    "Staging",
    "as_array",
    "device_of",
    "download",
    "empty",
    "numba_stream",
    "pool",
    "read_array",
    "release",
    "stream_number",
    "upload",
    "wait",
]

pool = DevicePool(4 << 30)
"""The memory of all arrays that this module makes; a limit of 0 turns it off."""

_LEGACY_STREAM = 1
_DEVICE_ORDINAL = 9


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A C-contiguous array on a device, as kernels take it.

    Attributes
    ----------
    address
        Where its first byte is; 0 for an array without bytes.
    shape, dtype
        As of a NumPy array. bfloat16 may be an opaque two-byte type.
    owner
        What keeps the memory alive.
    stream
        The stream on which it is ready, as the CUDA Array Interface numbers it; None: at once.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any
    stream: int | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * self.dtype.itemsize

    def part(self, first: int, shape: tuple[int, ...], dtype: Any) -> DeviceView:
        """Return a view of the bytes from ``first`` on, in the same memory."""
        address = self.address + first if prod(shape) else 0
        return DeviceView(address, shape, np.dtype(dtype), self.owner, self.stream)


def read_array(obj: Any, where: str, device: int | None = None) -> DeviceView:
    """Return a device array as kernels take it; nothing is copied and nothing waits.

    Parameters
    ----------
    obj
        A `DeviceView`, an array of numba's, or whatever has ``__cuda_array_interface__``.
    where
        What to call it in an error.
    device
        The device it must be on; None takes any.

    Raises
    ------
    TypeError
        For an object that is no device array.
    ValueError
        For an array that is masked or not C-contiguous.
    DeviceError
        For an array on another device.
    """
    if isinstance(obj, DeviceView):
        return obj
    host = getattr(obj, "_ary", None)
    if isinstance(host, np.ndarray) and cuda_target.is_simulated():
        view = _read_interface(host.__array_interface__, obj, where)
    else:
        interface = getattr(obj, "__cuda_array_interface__", None)
        if not isinstance(interface, dict):
            raise TypeError(
                f"{where} is a {type(obj).__module__}.{type(obj).__name__}, expected a device "
                f"array: pass one that has __cuda_array_interface__, or copy it to the device"
            )
        view = _read_interface(interface, obj, where)
    if device is not None and view.address:
        actual = device_of(view.address)
        if actual not in (None, device):
            raise DeviceError(
                f"{where} is on GPU[{actual}], expected GPU[{device}]: copy it there, or pass "
                f"device=udfkit.gpu({actual})"
            )
    return view


def _read_interface(interface: dict[str, Any], owner: Any, where: str) -> DeviceView:
    shape: tuple[int, ...] = tuple(int(size) for size in interface["shape"])
    dtype = np.dtype(interface["typestr"])
    if interface.get("mask") is not None:
        raise ValueError(f"{where} has a mask, which would be lost: pass the valid elements only")
    strides = interface.get("strides")
    if strides is not None and 0 not in shape:
        expected = _strides(shape, dtype.itemsize)
        unequal = (axis for axis, size in enumerate(shape) if size > 1)
        if any(strides[axis] != expected[axis] for axis in unequal):
            raise ValueError(
                f"{where} has shape {shape} and strides {tuple(strides)}, expected the strides "
                f"{expected} of a C-contiguous array: make a contiguous copy of it first"
            )
    address = 0 if 0 in shape else int(interface["data"][0] or 0)
    return DeviceView(address, shape, dtype, owner, interface.get("stream"))


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def device_of(address: int) -> int | None:
    """Return the device that an address belongs to; None where nothing can tell."""
    if cuda_target.is_simulated():
        return 0
    ordinal = ctypes.c_int(-1)
    try:
        driver = ctypes.CDLL("nvcuda.dll" if _is_windows() else "libcuda.so.1")
    except OSError:
        return None
    failed = driver.cuPointerGetAttribute(
        ctypes.byref(ordinal), _DEVICE_ORDINAL, ctypes.c_uint64(address)
    )
    return None if failed else ordinal.value


def _is_windows() -> bool:
    return hasattr(ctypes, "WinDLL")


def stream_number(stream: Any) -> int:
    """Return the number of a stream: of numba's or PyTorch's, a bare one, 0 for the default."""
    if not stream:
        return 0
    if hasattr(stream, "__cuda_stream__"):
        number = int(stream.__cuda_stream__()[1])
    else:
        number = int(getattr(stream, "cuda_stream", stream))
    return 0 if number == _LEGACY_STREAM else number


def numba_stream(stream: Any) -> Any:
    """Return a stream as numba takes it; 0 for the default one."""
    number = stream_number(stream)
    if number == 0 or cuda_target.is_simulated():
        return 0
    return _external(number, cuda_target.current_device())


def _copy_stream(stream: Any) -> Any:
    # numba takes 0 for a copy that waits; the default stream's own number gives one that does not.
    if cuda_target.is_simulated():
        return 0
    return _external(stream_number(stream) or _LEGACY_STREAM, cuda_target.current_device())


@lru_cache(maxsize=64)
def _external(number: int, _: int) -> Any:
    return cuda_target.module().external_stream(number)


def wait(producer: int | None, stream: Any) -> None:
    """Let ``stream`` wait for what ``producer`` has been given so far; the host does not wait."""
    if (
        producer is None
        or cuda_target.is_simulated()
        or stream_number(producer) == stream_number(stream)
    ):
        return
    event = cuda_target.module().event(timing=False)
    event.record(numba_stream(producer))
    event.wait(numba_stream(stream))


def release(consumed: int | None, stream: Any) -> None:
    """Let the stream of an input wait for ``stream``: its memory may then be used again there."""
    if consumed is not None and stream_number(consumed) != stream_number(stream):
        wait(stream_number(stream), consumed)


def empty(shape: tuple[int, ...], dtype: Any, stream: Any = 0) -> Any:
    """Return an uninitialised device array of numba's on the current device, out of the pool."""
    dtype, number = np.dtype(dtype), stream_number(stream)
    count = prod(shape) * dtype.itemsize
    if count == 0 or cuda_target.is_simulated() or pool.limit == 0:
        return cuda_target.module().device_array(shape, dtype, stream=numba_stream(stream))
    block, lease = pool.take(count, cuda_target.current_device(), number, _block)
    interface = {
        "shape": shape,
        "strides": None,
        "data": (block.device_ctypes_pointer.value, False),
        "typestr": dtype.str,
        # Named also when it is the default one: streams that do not wait for that by themselves can
        # then be made to.
        "stream": number or _LEGACY_STREAM,
        "version": 3,
    }
    return cuda_target.module().from_cuda_array_interface(interface, owner=lease, sync=False)


def _block(size: int) -> Any:
    return cuda_target.module().device_array((size,), np.uint8)


def upload(array: np.ndarray[Any, Any], stream: Any = 0) -> Any:
    """Return a copy of a host array on the current device; a pageable array is read at once."""
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    return cuda_target.module().to_device(contiguous, stream=numba_stream(stream))


def download(array: Any, stream: Any = 0) -> np.ndarray[Any, Any]:
    """Return a fresh host copy of a device array; waits until it is there."""
    if isinstance(array, DeviceView):
        if array.size == 0:
            return np.empty(array.shape, array.dtype)
        if cuda_target.is_simulated():
            return _host_bytes(array.address, array.nbytes).view(array.dtype).reshape(array.shape)
        array = _as_numba(array)
    on = _copy_stream(stream)
    copied: np.ndarray[Any, Any] = array.copy_to_host(stream=on)
    if on:
        on.synchronize()
    return copied


def _host_bytes(address: int, count: int) -> np.ndarray[Any, Any]:
    copied = np.empty(count, np.uint8)
    ctypes.memmove(copied.ctypes.data, address, count)
    return copied


def as_array(view: DeviceView) -> Any:
    """Return a view as an array that others can take: numba's, over the same memory."""
    if not cuda_target.is_simulated():
        return _as_numba(view)
    memory: Any = (ctypes.c_char * view.nbytes).from_address(view.address) if view.nbytes else b""
    host = np.frombuffer(memory, np.uint8).view(view.dtype).reshape(view.shape)
    # The simulator's to_device copies, whatever it is told.
    made = type(cuda_target.module().device_array((1,), np.uint8))(host)
    made.udfkit_owner = view.owner
    return made


def _as_numba(view: DeviceView) -> Any:
    interface: dict[str, Any] = {
        "shape": view.shape,
        "strides": None,
        "data": (view.address, False),
        "typestr": view.dtype.str,
        "version": 3,
    }
    if view.stream is not None:
        interface["stream"] = view.stream
    return cuda_target.module().from_cuda_array_interface(interface, owner=view.owner, sync=False)


class Staging:
    """Pinned host memory on its way to a device, used again once the copy is over.

    Examples
    --------
    >>> from udfkit.kernels.cuda_arrays import Staging
    >>> Staging().held
    0
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[tuple[Any, np.ndarray[Any, Any]]] = []

    @property
    def held(self) -> int:
        """Bytes of pinned memory kept."""
        return sum(block.nbytes for _, block in self._free)

    def take(self, count: int) -> np.ndarray[Any, Any]:
        """Return at least ``count`` pinned bytes that no copy reads any more."""
        with self._lock:
            for k, (event, block) in enumerate(self._free):
                if block.nbytes >= count and (event is None or event.query()):
                    del self._free[k]
                    return block
        size = max(1 << 16, 1 << max(count - 1, 0).bit_length())
        made: np.ndarray[Any, Any] = cuda_target.module().pinned_array(size, np.uint8)
        return made

    def send(self, block: np.ndarray[Any, Any], count: int, stream: Any = 0) -> DeviceView:
        """Copy the first ``count`` bytes to the current device; keep the block for later."""
        cuda = cuda_target.module()
        if count == 0:
            return DeviceView(0, (0,), np.dtype(np.uint8), None)
        target, on = empty((count,), np.uint8, stream), _copy_stream(stream)
        target.copy_to_device(block[:count], stream=on)
        event = None
        if not cuda_target.is_simulated():
            event = cuda.event(timing=False)
            event.record(on)
        with self._lock:
            self._free.append((event, block))
            del self._free[:-8]
        return read_array(target, "staging")
