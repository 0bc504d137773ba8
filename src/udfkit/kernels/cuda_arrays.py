"""Device arrays in and out: addresses, streams and events, without a wait of the host.

In the simulator device memory is host memory, and every call is over when it returns.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from udfkit.errors import DeviceError
from udfkit.kernels import cuda_target, dlpack
from udfkit.kernels.cuda_pool import DevicePool
from udfkit.kernels.cuda_streams import (
    LEGACY_STREAM,
    copy_stream,
    numba_stream,
    release,
    stream_number,
    wait,
)

__all__ = [
    "DeviceView",
    "Staging",
    "as_array",
    "device_of",
    "download",
    "empty",
    "interface_of",
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

_DEVICE_ORDINAL = 9
_FIRST_WITH_STREAMS = 3


@dataclass(frozen=True, slots=True)
class DeviceView:
    """An array on a device, as kernels take it: C-contiguous unless it says otherwise.

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
    strides
        In bytes; None for a C-contiguous array.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any
    stream: int | None = None
    strides: tuple[int, ...] | None = None

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


def read_array(
    obj: Any, where: str, device: int | None = None, stream: Any = 0, *, strided: bool = False
) -> DeviceView:
    """Return a device array as kernels take it; nothing is copied and nothing waits.

    Parameters
    ----------
    obj
        A `DeviceView`, an array of numba's, or whatever has ``__cuda_array_interface__`` or, on a
        CUDA device, ``__dlpack__``.
    where
        What to call it in an error.
    device
        The device it must be on; None takes any.
    stream
        Where it will be used; what speaks DLPack is made ready there by its library.
    strided
        Whether it may have strides, which the view then has too.

    Raises
    ------
    TypeError
        For an object that is no device array.
    ValueError
        For an array that is masked, or not C-contiguous where it must be.
    DeviceError
        For an array on another device.
    """
    if isinstance(obj, DeviceView):
        return obj
    interface = interface_of(obj)
    if interface is not None:
        view = _read_interface(interface, obj, where)
    else:
        index = dlpack.device_of(obj)
        if index is None:
            raise TypeError(
                f"{where} is a {type(obj).__module__}.{type(obj).__name__}, expected a device "
                f"array: pass one that has __cuda_array_interface__ or speaks DLPack, or copy it "
                f"to the device"
            )
        view = _read_dlpack(obj, index, stream, where)
    if view.strides is not None and not strided:
        raise ValueError(
            f"{where} has shape {view.shape} and strides {view.strides}, expected the strides "
            f"{_strides(view.shape, view.dtype.itemsize)} of a C-contiguous array: make a "
            f"contiguous copy of it first"
        )
    if device is not None and view.address:
        actual = device_of(view.address)
        if actual not in (None, device):
            raise DeviceError(
                f"{where} is on GPU[{actual}], expected GPU[{device}]: copy it there, or pass "
                f"device=udfkit.gpu({actual})"
            )
    return view


def interface_of(obj: Any) -> dict[str, Any] | None:
    """Return how an array describes itself by the CUDA Array Interface; None for all others.

    None also for an array whose interface is too old to name a stream and that speaks DLPack, by
    which its library makes it ready.
    """
    host = getattr(obj, "_ary", None)
    if isinstance(host, np.ndarray) and cuda_target.is_simulated():
        return {**host.__array_interface__, "stream": getattr(obj, "stream", 0) or None}
    try:
        interface = getattr(obj, "__cuda_array_interface__", None)
    except Exception:  # noqa: BLE001 - a tensor with a gradient; DLPack says the same, and why
        return None
    if not isinstance(interface, dict):
        return None
    too_old = interface.get("version", 0) < _FIRST_WITH_STREAMS
    return None if too_old and dlpack.device_of(obj) is not None else interface


def _read_dlpack(obj: Any, index: int, stream: Any, where: str) -> DeviceView:
    cuda_target.check_index(index, where)
    _free_what_is_over()
    number = stream_number(stream) or LEGACY_STREAM
    with cuda_target.on_device(index):
        found = dlpack.take(obj, number, where, partial(_free_later, index, number))
    strides = _odd_strides(found.shape, found.strides, found.dtype.itemsize)
    address = 0 if 0 in found.shape else found.address
    return DeviceView(address, found.shape, found.dtype, found.lease, number, strides)


_over: deque[tuple[Any, Callable[[], None]]] = deque()
"""Arrays of others that nobody uses any more on the host: (event behind their use, free it)."""


def _free_later(index: int, stream: int, free: Callable[[], None]) -> None:
    """Free an array of another library when the work that ``stream`` has now is over."""
    if cuda_target.is_simulated():
        free()
        return
    with cuda_target.on_device(index):
        event = cuda_target.module().event(timing=False)
        event.record(numba_stream(stream))
    _over.append((event, free))
    _free_what_is_over()


def _free_what_is_over() -> None:
    for _ in range(len(_over)):
        try:
            event, free = _over.popleft()
        except IndexError:  # another thread took it
            return
        if event.query():
            free()
        else:
            _over.append((event, free))


def _read_interface(interface: dict[str, Any], owner: Any, where: str) -> DeviceView:
    shape: tuple[int, ...] = tuple(int(size) for size in interface["shape"])
    dtype = np.dtype(interface["typestr"])
    if interface.get("mask") is not None:
        raise ValueError(f"{where} has a mask, which would be lost: pass the valid elements only")
    strides = _odd_strides(shape, interface.get("strides"), dtype.itemsize)
    address = 0 if 0 in shape else int(interface["data"][0] or 0)
    return DeviceView(address, shape, dtype, owner, interface.get("stream"), strides)


def _odd_strides(shape: tuple[int, ...], strides: Any, itemsize: int) -> tuple[int, ...] | None:
    """Return these strides, in bytes; None for those of a C-contiguous array."""
    if strides is None or 0 in shape:
        return None
    expected = _strides(shape, itemsize)
    unequal = (axis for axis, size in enumerate(shape) if size > 1)
    return tuple(strides) if any(strides[axis] != expected[axis] for axis in unequal) else None


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
        "stream": number or LEGACY_STREAM,
        "version": 3,
    }
    return cuda_target.module().from_cuda_array_interface(interface, owner=lease, sync=False)


def _block(size: int) -> Any:
    return cuda_target.module().device_array((size,), np.uint8)


def upload(array: np.ndarray[Any, Any], stream: Any = 0) -> Any:
    """Return a copy of a host array on the current device.

    The array is read at once, so that the host waits for what the stream has before.
    """
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
    on = copy_stream(stream)
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
    made = type(cuda_target.module().device_array((1,), np.uint8))(host, view.stream or 0)
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


_MOST_STAGED = 16


def _is_over(event: Any) -> bool:
    return event is None or bool(event.query())


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
                if block.nbytes >= count and _is_over(event):
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
        target, on = empty((count,), np.uint8, stream), copy_stream(stream)
        target.copy_to_device(block[:count], stream=on)
        event = None
        if not cuda_target.is_simulated():
            event = cuda.event(timing=False)
            event.record(on)
        with self._lock:
            self._free.append((event, block))
            while len(self._free) > _MOST_STAGED and _is_over(self._free[0][0]):
                del self._free[0]
        return read_array(target, "staging")
