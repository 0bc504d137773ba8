"""DLPack and streams, on a stand-in for ``numba.cuda`` that records what it is told."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from typing import Any

import numpy as np
import pytest

from udfkit.kernels import cuda_arrays, cuda_sharing, cuda_streams, cuda_target, dlpack

KNOWS_FLAGS = "max_version" in str(np.ndarray.__dlpack__.__doc__)
"""Whether this NumPy makes and reads versioned capsules, which 2.1 was the first to do."""


def capsule_of(array: np.ndarray, max_version: Any) -> Any:
    return array.__dlpack__(max_version=max_version) if KNOWS_FLAGS else array.__dlpack__()


class Event:
    """An event that is over when the test says so."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda

    def record(self, stream: Any) -> None:
        self.cuda.log.append(("record", stream))

    def wait(self, stream: Any) -> None:
        self.cuda.log.append(("wait", stream))

    def query(self) -> bool:
        return self.cuda.is_over


class Cuda:
    """Records what is put on which stream."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.is_over = False

    def external_stream(self, number: int) -> str:
        return f"stream {number}"

    def event(self, timing: bool) -> Event:
        assert timing is False
        return Event(self)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(cuda_target, "module", lambda: made)
    monkeypatch.setattr(cuda_target, "is_simulated", lambda: False)
    monkeypatch.setattr(cuda_target, "current_device", lambda: 0)
    two = cuda_target.CudaStatus(available=True, devices=("one", "two"))
    monkeypatch.setattr(cuda_target, "status", lambda: two)

    @contextlib.contextmanager
    def on_device(index: int) -> Any:
        made.log.append(("device", index))
        yield

    monkeypatch.setattr(cuda_target, "on_device", on_device)
    monkeypatch.setattr(cuda_arrays, "device_of", lambda address: 1)
    cuda_streams._external.cache_clear()
    return made


class Producer:
    """NumPy's DLPack, said to be on a device."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1

    def __dlpack__(self, stream: Any = None, max_version: Any = None) -> Any:
        self.asked.append(stream)
        return capsule_of(self.array, max_version)


class Array(cuda_sharing.Sharing):
    """An array of ours, ready on a stream."""

    def __init__(self, array: np.ndarray, stream: int | None) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "stream": stream,
            "version": 3,
        }


@pytest.mark.parametrize(("stream", "number"), [(0, 1), (1, 1), (2, 2), (7, 7)])
def test_a_producer_is_told_the_stream(cuda: Cuda, stream: int, number: int) -> None:
    array = Producer(np.ones((2, 3), np.float32))
    view = cuda_arrays.read_array(array, "x", stream=stream)
    assert array.asked == [number]
    assert (view.stream, view.address) == (number, array.array.ctypes.data)
    assert cuda.log == [("device", 1)]


def test_an_array_is_freed_when_the_work_behind_it_is_over(cuda: Cuda) -> None:
    cuda_arrays._over.clear()
    array = np.ones((2, 3), np.float32)
    references = _references(array)
    view = cuda_arrays.read_array(Producer(array), "x", stream=7)
    assert _references(array) > references
    cuda.log.clear()
    del view
    gc.collect()
    assert cuda.log == [("device", 1), ("record", "stream 7")]
    assert _references(array) > references, "the device may still read it"
    cuda.is_over = True
    cuda_arrays.read_array(Producer(np.ones(1, np.float32)), "y")
    assert _references(array) == references


def _references(array: np.ndarray) -> int:
    return int(ctypes.c_ssize_t.from_address(id(array)).value)


@pytest.mark.parametrize(
    ("own", "consumer", "taken", "freed"),
    [
        (None, None, [], []),
        (None, 1, [], []),
        (7, 7, [], []),
        (7, -1, [], []),
        (7, None, [("record", "stream 7"), ("wait", 0)], [("record", 0), ("wait", "stream 7")]),
        (None, 9, [("record", 0), ("wait", "stream 9")], [("record", "stream 9"), ("wait", 0)]),
        (
            2,
            9,
            [("record", "stream 2"), ("wait", "stream 9")],
            [("record", "stream 9"), ("wait", "stream 2")],
        ),
    ],
)
def test_a_consumer_waits_and_is_waited_for(
    cuda: Cuda, own: int | None, consumer: int | None, taken: list[Any], freed: list[Any]
) -> None:
    capsule = Array(np.ones((2, 3), np.float32), own).__dlpack__(stream=consumer)
    assert [entry for entry in cuda.log if entry[0] != "device"] == taken
    assert ("device", 1) in cuda.log or consumer == -1
    cuda.log.clear()
    del capsule
    assert [entry for entry in cuda.log if entry[0] != "device"] == freed


def test_a_stream_that_is_gone_when_an_array_is_freed_is_over(cuda: Cuda) -> None:
    before = len(dlpack._made)
    capsule = Array(np.ones((2, 3), np.float32), None).__dlpack__(stream=9)

    def gone(stream: Any) -> None:
        raise RuntimeError("the stream was destroyed")

    cuda.external_stream = gone  # type: ignore[method-assign]
    cuda_streams._external.cache_clear()
    del capsule
    assert len(dlpack._made) == before


class OldInterface(Producer):
    """As PyTorch: an interface that cannot name a stream, and DLPack, which can."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (2,), "typestr": "<f4", "data": (4096, False), "version": 2}


def test_dlpack_is_asked_where_the_interface_is_too_old_for_streams(cuda: Cuda) -> None:
    array = OldInterface(np.ones((2, 3), np.float32))
    view = cuda_arrays.read_array(array, "x")
    assert array.asked == [1]
    assert view.address == array.array.ctypes.data


def test_a_tensor_that_cannot_be_exported_says_why(cuda: Cuda) -> None:
    class Tensor:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        @property
        def __cuda_array_interface__(self) -> Any:
            raise RuntimeError("use var.detach()")

        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("require gradient, use tensor.detach()")

    with pytest.raises(TypeError, match=r"x, a .*Tensor, cannot be read by DLPack.*detach\(\)"):
        cuda_arrays.read_array(Tensor(), "x")


class Host:
    """An array of ours on the host, by the same capsule."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device, self.freed = array, device, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, max_version: Any = None, **options: Any) -> Any:
        def freed() -> None:
            self.freed += 1

        array = self.array
        return dlpack.make_capsule(
            array.ctypes.data if array.size else 0,
            array.shape,
            array.dtype,
            self.device,
            array,
            freed,
            versioned=max_version is not None,
        )


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2), (2, 0, 3)], ids=str)
def test_numpy_takes_what_is_made_here(dtype: str, shape: tuple[int, ...]) -> None:
    made = Host(np.arange(np.prod(shape)).reshape(shape).astype(dtype))
    taken = np.from_dlpack(made)
    assert (taken.dtype, taken.shape) == (made.array.dtype, shape)
    assert (taken == made.array).all()
    # NumPy makes memory of its own for an array without bytes; before 2.1 it knew no flags.
    assert taken.flags.writeable is not (KNOWS_FLAGS and taken.size > 0)
    assert made.freed == 0
    del taken
    assert made.freed == 1


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)], ids=str)
def test_what_numpy_makes_is_taken_here(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    for flag in (True, False) if KNOWS_FLAGS else (True,):
        array.flags.writeable = flag
        taken = dlpack.take(_Stream(array), 1, "x", lambda free: free())
        assert (taken.shape, taken.dtype) == (shape, array.dtype)
        assert array.size == 0 or taken.address == array.ctypes.data
        assert taken.is_read_only is not flag
    strided = dlpack.take(_Stream(np.ones((4, 6), "f4")[::2, 1::2]), 1, "x", lambda free: free())
    assert (strided.shape, strided.strides) == ((2, 3), (48, 8))


class _Stream:
    """NumPy takes no stream: it has none."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, stream: Any, max_version: Any = None) -> Any:
        return capsule_of(self.array, max_version)


def test_a_dtype_that_dlpack_has_not() -> None:
    for dtype in ("M8[s]", "S4", ">f4", "V3"):
        with pytest.raises(BufferError, match="DLPack has no type for dtype"):
            dlpack.make_capsule(
                0, (1,), np.dtype(dtype), (2, 0), None, lambda: None, versioned=False
            )


@pytest.mark.parametrize("kind", [1, 3, 8])
def test_only_cuda_memory_is_on_a_gpu(kind: int) -> None:
    host = Host(np.ones(1), (kind, 0))
    assert dlpack.device_of(host) is None
    assert dlpack.device_of(Host(np.ones(1), (2, 4))) == 4
    assert dlpack.device_of(Host(np.ones(1), (13, 0))) == 0
    assert dlpack.device_of([]) is None


@pytest.mark.parametrize("versioned", [False, KNOWS_FLAGS])
def test_an_error_of_the_consumer_goes_past_the_capsule(versioned: bool) -> None:
    """NumPy raises for a GPU, and lets the capsule go while its error is on its way."""
    array, freed = np.arange(3.0), []

    class OnGpu:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: Any) -> Any:
            return dlpack.make_capsule(
                array.ctypes.data,
                (3,),
                array.dtype,
                (2, 0),
                array,
                lambda: freed.append(len(freed)),
                versioned=versioned,
            )

    before = len(dlpack._made)
    for _ in range(3):
        with pytest.raises((BufferError, RuntimeError), match=r"[Dd]evice"):
            np.from_dlpack(OnGpu())
    assert freed == [0, 1, 2]
    assert len(dlpack._made) == before
