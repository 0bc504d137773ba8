"""Arrays that have DLPack and nothing else, and DLPack of the arrays that a Value hands out."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from device_checks import Copies, check_device_value, check_same, on_gpu, read
from dlpack_capsules import BFLOAT, CODES, Consumed, Producer

import reference
import strategies as own
import udfkit
from checks import batch_variable, plain_variable, raises, sequence_variable
from udfkit import DeviceError, Ragged, Value, sanitize_batch
from udfkit.kernels import cuda_arrays, cuda_target, dlpack

F32 = np.float32
ARRAY = np.arange(1, 13, dtype=F32).reshape(2, 3, 2)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def settle() -> None:
    """Let everything that nobody uses any more be freed."""
    gc.collect()
    cuda_target.module().synchronize()
    cuda_arrays._free_what_is_over()


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"versioned": False},
        {"offset": 16},
        {"strides": (6, 2, 1)},
        {"versioned": False, "offset": 4, "strides": (6, 2, 1)},
        {"flags": 1},
        {"version": (1, 7)},
        {"device": (13, 0)},
    ],
    ids=str,
)
def test_a_rectangle_by_dlpack_alone(options: dict[str, Any], copy: bool, copies: Copies) -> None:
    variable, array = sequence_variable(2), Producer(ARRAY, **options)
    value = sanitize_batch(variable, array, [True, False], copy=copy)
    _ = value.data, value.mask, value.values
    assert copies.count == 0
    address = cuda_arrays.read_array(value.data, "data").address
    assert (address == array.address) is not copy
    check_same(value, sanitize_batch(variable, ARRAY, [True, False]), variable)


@pytest.mark.parametrize("knows_versions", [True, False])
def test_what_a_producer_is_asked_for(knows_versions: bool) -> None:
    array = Producer(ARRAY, versioned=knows_versions, knows_versions=knows_versions)
    sanitize_batch(sequence_variable(2), array)
    expected = {"stream": 1, "max_version": (1, 1)}
    if not knows_versions:
        del expected["max_version"]
    assert array.asked == [expected]


def test_an_array_is_freed_when_its_last_user_is_gone_and_once() -> None:
    variable, array = sequence_variable(2), Producer(ARRAY)
    value = sanitize_batch(variable, array, copy=False)
    handed_out = value.data
    del value
    gc.collect()
    assert array.freed == 0
    assert (read(handed_out) == ARRAY).all()
    del handed_out
    settle()
    assert array.freed == 1


def test_a_copy_lets_go_of_the_array() -> None:
    array = Producer(ARRAY)
    value = sanitize_batch(sequence_variable(2), array)
    settle()
    assert array.freed == 1
    assert (value.asarray() == ARRAY).all()


@pytest.mark.parametrize("lengths", [(3, 0, 2), (0,), (0, 0)], ids=str)
def test_a_list(lengths: tuple[int, ...], copies: Copies) -> None:
    batch = [np.full((n, 2), n, F32) for n in lengths]
    variable, starts = sequence_variable(2), [False] * len(lengths)
    value = sanitize_batch(variable, [Producer(x) for x in batch], starts)
    _ = value.data
    assert copies.count == 0
    check_device_value(value, variable, batch, starts)
    copies.count = 0


def test_other_kinds_and_the_constructors() -> None:
    rows = ARRAY[:, 0]
    check_same(
        sanitize_batch(batch_variable(2), Producer(rows)), sanitize_batch(batch_variable(2), rows)
    )
    check_same(
        sanitize_batch(plain_variable(()), Producer(F32(7))),
        sanitize_batch(plain_variable(()), F32(7)),
    )
    mask = np.int8([[2, 1, 0], [0, 2, 2]])
    check_same(Value(Producer(ARRAY), Producer(mask)), Value(ARRAY, mask))
    ragged = Ragged(Producer(ARRAY[0]), [0, 1, 3])
    assert ragged.to(udfkit.cpu()).equals(Ragged(ARRAY[0], [0, 1, 3]))


@pytest.mark.parametrize("dtype", own.DTYPES, ids=str)
def test_every_dtype_comes_and_goes(dtype: Any) -> None:
    dtype = np.dtype(dtype)
    array = own.bit_noise(np.random.default_rng(3), (2, 3, 2), dtype)
    value = sanitize_batch(sequence_variable(2, dtype), Producer(array), copy=False)
    reference.assert_same(value.asarray(), array)
    seen = Consumed(value.data.__dlpack__())
    assert seen.dtype == (CODES[dtype.kind], 8 * dtype.itemsize, 1)
    seen.free()


def test_bfloat16_is_two_opaque_bytes() -> None:
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    bits = own.bit_noise(np.random.default_rng(3), (2, 3, 2), np.uint16)
    value = sanitize_batch(sequence_variable(2, bfloat16), Producer(bits, code=BFLOAT))
    assert value.dtype == bfloat16
    reference.assert_same(value.asarray().view(np.uint16), bits)
    seen = Consumed(value.data.__dlpack__(max_version=(1, 0)))
    assert seen.dtype == (BFLOAT, 16, 1)
    seen.free()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"lanes": 2}, ["2 lanes"]),
        ({"code": 9, "bits": 8}, ["8 bits", "type 9"]),
        ({"code": 5, "bits": 64}, ["complex64"]),
    ],
    ids=str,
)
def test_samples_that_are_no_numbers_of_numpy(changes: dict[str, int], parts: list[str]) -> None:
    with raises(TypeError, "sequence 1", *parts):
        sanitize_batch(sequence_variable(2), [Producer(ARRAY[0]), Producer(ARRAY[0], **changes)])


def test_what_is_refused_is_freed() -> None:
    array = Producer(ARRAY)
    with raises(ValueError, "the batch", "(2, 3, 2)", "(B, T, 3)", fix=False):
        sanitize_batch(sequence_variable(3), array)
    settle()
    assert array.freed == 1


def test_strides_are_followed() -> None:
    array = Producer(ARRAY.transpose(2, 1, 0), strides=(1, 2, 6))
    moved = Producer(ARRAY)
    array.struct.tensor.data = moved.address
    value = sanitize_batch(sequence_variable(2), array, copy=False)
    reference.assert_same(value.asarray(), np.ascontiguousarray(ARRAY.transpose(2, 1, 0)))
    settle()
    assert array.freed == 1, "it was copied"


def test_a_version_to_come_is_refused_and_left_to_its_producer() -> None:
    array = Producer(ARRAY, version=(2, 0))
    with raises(TypeError, "the batch", "DLPack 2.0", "newer", fix=False):
        sanitize_batch(sequence_variable(2), array)
    assert array.freed == 0


def test_a_producer_that_fails() -> None:
    class Failing(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("use tensor.detach()")

    with raises(TypeError, "sequence 0", "BufferError", "use tensor.detach()", fix=False):
        sanitize_batch(sequence_variable(2), [Failing(ARRAY[0])])

    class NoCapsule(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            return "capsule"

    with raises(TypeError, "the batch", "capsule", fix=False):
        sanitize_batch(sequence_variable(2), NoCapsule(ARRAY))


def test_a_capsule_that_was_used_is_refused() -> None:
    capsule = Producer(ARRAY).__dlpack__()
    Consumed(capsule)

    class Again(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            return capsule

    with raises(TypeError, "the batch", "unused", fix=False):
        sanitize_batch(sequence_variable(2), Again(ARRAY))


def test_arrays_without_bytes() -> None:
    for shape in ((0, 3, 2), (2, 0, 2)):
        empty = np.zeros(shape, F32)
        value = sanitize_batch(sequence_variable(2), Producer(empty), device=on_gpu())
        check_same(value, sanitize_batch(sequence_variable(2), empty))
        seen = Consumed(value.data.__dlpack__())
        assert (seen.shape, seen.address) == (shape, 0)
        seen.free()


def test_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    two = cuda_target.CudaStatus(available=True, devices=("one", "two"))
    monkeypatch.setattr(cuda_target, "status", lambda: two)
    here, there = Producer(ARRAY), Producer(ARRAY, device=(2, 1))
    where = {here.address: 0, there.address: 1}
    monkeypatch.setattr(cuda_arrays, "device_of", lambda address: where.get(address, 0))
    monkeypatch.setattr(cuda_target, "on_device", lambda index: cuda_target.module().gpus[0])
    with raises(DeviceError, "the batch", "GPU[1]", "GPU[0]", "device=udfkit.gpu(1)"):
        sanitize_batch(sequence_variable(2), there, device=udfkit.gpu(0))
    assert sanitize_batch(sequence_variable(2), there, copy=False).device == udfkit.gpu(1)
    with raises(DeviceError, "CPU"):
        sanitize_batch(sequence_variable(2), here, device=udfkit.cpu())


def test_dlpack_of_the_host_is_sent_there() -> None:
    class OfTheHost:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            # The host has no streams, and NumPy 1 knows of nothing else.
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    variable = sequence_variable(2)
    for device in (on_gpu(), udfkit.cpu()):
        for batch in (OfTheHost(ARRAY), [OfTheHost(x) for x in ARRAY]):
            value = sanitize_batch(variable, batch, device=device)
            assert value.device == device
            assert (value.asarray() == ARRAY).all()


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 9)], ids=str)
def test_data_is_handed_out(version: tuple[int, int] | None, copies: Copies) -> None:
    value = sanitize_batch(sequence_variable(2), list(ARRAY), device=on_gpu())
    data = value.data
    assert data.__dlpack_device__() == (2, 0)
    seen = Consumed(data.__dlpack__(stream=1, max_version=version, dl_device=(2, 0), copy=False))
    assert copies.count == 0
    assert seen.versioned == (version is not None and version[0] >= 1)
    if seen.versioned:
        assert tuple(seen.struct.version) == (1, 1)
        assert seen.struct.flags == 1, "what a Value hands out must not be written"
    assert (seen.shape, seen.strides) == ((2, 3, 2), (6, 2, 1))
    assert (seen.dtype, seen.device) == ((2, 32, 1), (2, 0))
    assert seen.address == cuda_arrays.read_array(data, "data").address
    seen.free()


@pytest.mark.parametrize("part", ["data", "mask", "values"])
def test_everything_that_is_handed_out_can_be_taken_again(part: str) -> None:
    class ByDlpack:
        """Hides the other protocol."""

        def __init__(self, array: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    value = sanitize_batch(sequence_variable(2), [ARRAY[0], ARRAY[1][:1]], device=on_gpu())
    array = getattr(value, part)
    variable = plain_variable(array.shape, array.dtype)
    again = sanitize_batch(variable, ByDlpack(array), copy=False)
    reference.assert_same(again.asarray(), read(array))


def test_a_consumer_keeps_the_memory() -> None:
    before = len(dlpack._made)
    value = sanitize_batch(sequence_variable(2), list(ARRAY), device=on_gpu())
    seen = Consumed(value.data.__dlpack__())
    del value
    gc.collect()
    junk = [sanitize_batch(sequence_variable(2), list(-ARRAY), device=on_gpu()) for _ in range(5)]
    _ = [other.data for other in junk]
    view = cuda_arrays.DeviceView(seen.address, (2, 3, 2), np.dtype(F32), None)
    assert (read(view) == ARRAY).all()
    assert len(dlpack._made) == before + 1
    seen.free()
    assert len(dlpack._made) == before


def test_a_capsule_that_nobody_takes_is_freed() -> None:
    before = len(dlpack._made)
    data = sanitize_batch(sequence_variable(2), list(ARRAY), device=on_gpu()).data
    for version in (None, (1, 0)):
        capsule = data.__dlpack__(max_version=version)
        assert len(dlpack._made) == before + 1
        del capsule
        assert len(dlpack._made) == before


def test_what_is_not_handed_out() -> None:
    data = sanitize_batch(sequence_variable(2), list(ARRAY), device=on_gpu()).data
    for options in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match=r"GPU\[0\].*leave copy and dl_device out"):
            data.__dlpack__(**options)
    with pytest.raises(ValueError, match=r"stream 0 is ambiguous.*pass 1"):
        data.__dlpack__(stream=0)


@pytest.mark.parametrize("version", [None, (1, 0)], ids=str)
def test_a_consumer_that_fails_loses_no_error_and_no_memory(version: Any) -> None:
    data = sanitize_batch(sequence_variable(2), list(ARRAY), device=on_gpu()).data

    class Failing:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: Any) -> Any:
            return data.__dlpack__(max_version=version)

    before = len(dlpack._made)
    for _ in range(5):
        # What NumPy says of a device that is not its own; the class depends on its release.
        with pytest.raises((BufferError, RuntimeError), match=r"[Dd]evice") as caught:
            np.from_dlpack(Failing())
        assert type(caught.value) in (BufferError, RuntimeError)
        assert len(dlpack._made) == before


@pytest.mark.parametrize("index", [1, 7, -1])
@pytest.mark.parametrize(
    "make",
    {
        "array": lambda x: sanitize_batch(sequence_variable(2), x),
        "list": lambda x: sanitize_batch(sequence_variable(2), [x]),
        "Ragged": lambda x: Ragged(x, [0, 2]),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_device_that_is_not_there(index: int, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = cuda_target.CudaStatus(available=True, devices=("one",))
    monkeypatch.setattr(cuda_target, "status", lambda: one)
    array = Producer(ARRAY, device=(2, index))
    with raises(DeviceError, f"GPU[{index}]", "1 CUDA device(s)", "copy it to the host", fix=False):
        make[1](array)
    assert array.asked == []
