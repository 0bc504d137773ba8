"""Device arrays in and streams, on a stand-in for ``numba.cuda`` that records what it is told."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from udfkit.errors import DeviceError
from udfkit.kernels import cuda_arrays, cuda_streams, cuda_target
from udfkit.kernels.cuda_arrays import DeviceView, read_array, release, wait
from udfkit.kernels.cuda_pool import DevicePool


class Foreign:
    """An array of another library, by its interface alone."""

    def __init__(self, **changes: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (2, 3),
            "strides": None,
            "data": (0x7F0000000000, False),
            "typestr": "<f4",
            "version": 3,
            **changes,
        }


class Cuda:
    """Records events: (what, on which stream)."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []

    def external_stream(self, number: int) -> str:
        return f"stream {number}"

    def get_current_device(self) -> Any:
        return type("Device", (), {"id": 0})

    def event(self, timing: bool) -> Any:
        assert timing is False, "an event with a time costs more and is not needed"
        cuda = self

        class Event:
            def record(self, stream: Any) -> None:
                cuda.log.append(("record", stream))

            def wait(self, stream: Any) -> None:
                cuda.log.append(("wait", stream))

        return Event()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A machine with two devices that nothing is run on."""
    made = Cuda()
    monkeypatch.setattr(cuda_target, "module", lambda: made)
    monkeypatch.setattr(cuda_target, "is_simulated", lambda: False)
    cuda_streams._external.cache_clear()
    monkeypatch.setattr(cuda_arrays, "device_of", lambda address: address >> 44 & 1)
    return made


class Stream:
    """A stream as numba has them."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __int__(self) -> int:
        return self._number


def test_foreign_array_is_taken_by_address(cuda: Cuda) -> None:
    array = Foreign(stream=5)
    view = read_array(array, "x")
    assert (view.address, view.shape, view.dtype) == (0x7F0000000000, (2, 3), np.float32)
    assert (view.stream, view.owner, view.nbytes) == (5, array, 24)
    assert cuda.log == []


@pytest.mark.parametrize("strides", [(12, 4), None])
def test_explicit_strides_of_a_contiguous_array(cuda: Cuda, strides: Any) -> None:
    assert read_array(Foreign(strides=strides), "x").shape == (2, 3)


def test_strides_of_axes_of_one_do_not_matter(cuda: Cuda) -> None:
    assert read_array(Foreign(shape=(1, 3), strides=(999, 4)), "x").shape == (1, 3)


@pytest.mark.parametrize("data", [(0, False), (None, False), (0x7F0000000000, True)])
def test_array_without_bytes_has_address_0(cuda: Cuda, data: Any) -> None:
    view = read_array(Foreign(shape=(0, 3), data=data, strides=(4, 4)), "x")
    assert (view.address, view.size) == (0, 0)


def test_bfloat16_is_opaque(cuda: Cuda) -> None:
    assert read_array(Foreign(typestr="|V2"), "x").dtype.itemsize == 2


@pytest.mark.parametrize(
    ("array", "kind", "text"),
    [
        ([1, 2], TypeError, "x is a builtins.list, expected a device array: pass one that"),
        (np.zeros(3), TypeError, "x is a numpy.ndarray, expected a device array.*or copy it"),
        (Foreign(strides=(4, 8)), ValueError, r"strides \(4, 8\), expected.*\(12, 4\).*make a"),
        (Foreign(mask=Foreign()), ValueError, "x has a mask, which would be lost: pass the valid"),
    ],
)
def test_what_is_refused(cuda: Cuda, array: Any, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        read_array(array, "x")


def test_array_on_another_device_is_refused_with_the_cure(cuda: Cuda) -> None:
    there = Foreign(data=(0x7F0000000000 | 1 << 44, False))
    here = Foreign(data=(0x7F0000000000 & ~(1 << 44), False))
    assert read_array(here, "x", 0).shape == (2, 3)
    with pytest.raises(DeviceError, match=r"x is on GPU\[1\], expected GPU\[0\].*gpu\(1\)"):
        read_array(there, "x", 0)


def test_a_part_of_a_view_shares_its_memory() -> None:
    whole = DeviceView(1024, (64,), np.dtype(np.uint8), "owner", 7)
    part = whole.part(16, (2,), np.int64)
    assert part == DeviceView(1040, (2,), np.dtype(np.int64), "owner", 7)
    assert whole.part(64, (0,), np.int8).address == 0


@pytest.mark.parametrize(
    ("producer", "stream", "log"),
    [
        (None, 0, []),
        (1, 0, []),
        (7, Stream(7), []),
        (7, 0, [("record", "stream 7"), ("wait", 0)]),
        (1, Stream(9), [("record", 0), ("wait", "stream 9")]),
        (2, Stream(9), [("record", "stream 2"), ("wait", "stream 9")]),
    ],
)
def test_streams_wait_for_each_other_by_events(
    cuda: Cuda, producer: int | None, stream: Any, log: list[Any]
) -> None:
    wait(producer, stream)
    assert cuda.log == log


def test_input_is_handed_back_to_its_stream(cuda: Cuda) -> None:
    release(7, 0)
    assert cuda.log == [("record", 0), ("wait", "stream 7")]
    release(1, 0)
    release(None, 0)
    assert len(cuda.log) == 2


class TorchStream:
    """A stream as PyTorch has them."""

    cuda_stream = 77


class ProtocolStream:
    """A stream as cuda.core has them."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 78


@pytest.mark.parametrize(
    ("stream", "number"),
    [
        (0, 0),
        (None, 0),
        (1, 0),
        (2, 2),
        (Stream(9), 9),
        (TorchStream(), 77),
        (ProtocolStream(), 78),
    ],
)
def test_streams_of_other_libraries(cuda: Cuda, stream: Any, number: int) -> None:
    assert cuda_arrays.stream_number(stream) == number
    made = cuda_arrays.numba_stream(stream)
    assert made == (f"stream {number}" if number else 0)
    assert cuda_arrays.numba_stream(stream) is made, "a new object would miss the launch cache"


def test_arrays_come_out_of_the_pool_and_name_their_stream(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    class Block:
        def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
            self.device_ctypes_pointer = type("Pointer", (), {"value": 4096 * (1 + len(made))})

    def adopt(interface: dict[str, Any], owner: Any, sync: bool) -> Any:
        assert sync is False, "taking the interface of an own array would wait on the host"
        made.append(interface)
        return owner

    cuda.device_array = Block
    cuda.from_cuda_array_interface = adopt
    monkeypatch.setattr(cuda_arrays, "pool", DevicePool(1 << 20))
    first = cuda_arrays.empty((3, 5), np.float32)
    second = cuda_arrays.empty((3, 5), np.float32, Stream(9))
    assert [m["stream"] for m in made] == [1, 9]
    assert made[0]["data"] != made[1]["data"]
    del first
    gc.collect()
    third = cuda_arrays.empty((16,), np.float32)
    assert made[2]["data"] == made[0]["data"]
    assert third is not second


class OldMetadata:
    """Distribution metadata of a numba-cuda of long ago."""

    PackageNotFoundError = ModuleNotFoundError

    @staticmethod
    def version(name: str) -> str:
        assert name == "numba-cuda"
        return "0.4.1"


def test_numba_cuda_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_target, "metadata", OldMetadata)
    with pytest.raises(DeviceError, match=r"numba-cuda 0\.4\.1 is installed.*0\.30 or newer: run"):
        cuda_target.module.__wrapped__()


def test_import_of_numba_cuda_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError("libcudart.so is too old")

    monkeypatch.setattr(cuda_target, "import_module", broken)
    with pytest.raises(DeviceError, match=r"cannot be imported .*libcudart.so is too old.*run pip"):
        cuda_target.module.__wrapped__()
