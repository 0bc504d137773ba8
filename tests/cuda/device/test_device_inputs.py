"""Batches that are on a device already: taken without a copy to the host, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_checks import Copies, Foreign, check_device_value, check_same, on_gpu, read, to_device

import reference
import udfkit
from checks import batch_variable, plain_variable, raises, sequence_variable
from udfkit import DeviceError, Value, sanitize_batch
from udfkit.kernels import cuda_arrays, cuda_target
from udfkit.places import place_of

F32 = np.float32
KINDS = {"numba": to_device, "foreign": Foreign}


def sequences(*lengths: int) -> list[np.ndarray]:
    chance = np.random.default_rng(0)
    return [chance.normal(size=(length, 2)).astype(F32) for length in lengths]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [(3, 0, 2), (0,), (0, 0), (1,), (0, 4)], ids=str)
@pytest.mark.parametrize("starts", [False, True])
def test_a_list_of_device_arrays(
    kind: str, lengths: tuple[int, ...], starts: bool, copies: Copies
) -> None:
    variable, batch = sequence_variable(2), sequences(*lengths)
    flags = [k % 2 == 1 for k in range(len(lengths))] if starts else None
    arrays = [KINDS[kind](array) for array in batch]
    for device in (None, on_gpu()):
        value = sanitize_batch(variable, arrays, flags, device)
        _ = value.data, value.mask
        assert copies.count == 0
        check_device_value(value, variable, batch, flags)
        copies.count = 0
    assert sanitize_batch(variable, tuple(arrays), flags).equals(value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(2, 3), (0, 3), (2, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("copy", [False, True])
def test_a_rectangle_on_the_device(
    kind: str, size: tuple[int, int], copy: bool, copies: Copies
) -> None:
    variable = sequence_variable(2)
    array = np.random.default_rng(1).normal(size=(*size, 2)).astype(F32)
    starts = [False] * size[0] if size[0] else None
    value = sanitize_batch(variable, KINDS[kind](array), starts, copy=copy)
    _ = value.data, value.mask, value.values
    assert copies.count == 0
    check_same(value, sanitize_batch(variable, array, starts), variable)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_only_and_plain_device_arrays(kind: str) -> None:
    make, array = KINDS[kind], np.arange(6, dtype=F32).reshape(3, 2)
    variable = batch_variable(2)
    expected = sanitize_batch(variable, array)
    check_same(sanitize_batch(variable, make(array)), expected, variable)
    rows = [make(array[0]), make(array[1:2]), make(array[2])]
    check_same(sanitize_batch(variable, rows), expected, variable)
    for shape in ((2,), (2, 0), ()):
        whole, variable = np.ones(shape, F32), plain_variable(shape)
        check_same(sanitize_batch(variable, make(whole)), sanitize_batch(variable, whole), variable)


def test_items_have_the_forms_that_they_have_on_the_host() -> None:
    chance = np.random.default_rng(2)
    for shape, forms in (
        ((3,), [(2, 3), (3,), (0, 3)]),
        ((), [(2,), (), (0,)]),
        ((1,), [(2, 1), (4,), (1,)]),
        ((2, 3), [(2, 3), (2, 2, 3)]),
        ((udfkit.FreeDimension,), [(2, 3), (1, 3)]),
    ):
        variable = sequence_variable(shape)
        batch = [chance.normal(size=form).astype(F32) for form in forms]
        value = sanitize_batch(variable, [to_device(array) for array in batch])
        check_same(value, sanitize_batch(variable, batch), variable)


def test_copy_false_aliases_and_copy_true_does_not() -> None:
    variable = sequence_variable(2)
    for make in KINDS.values():
        array = make(np.zeros((2, 3, 2), F32))
        memory = getattr(array, "memory", array)
        alias = sanitize_batch(variable, array, copy=False)
        own = sanitize_batch(variable, array)
        memory.copy_to_device(np.full((2, 3, 2), 7, F32))
        assert (alias.asarray() == 7).all()
        assert (own.asarray() == 0).all()


def test_an_alias_keeps_the_memory_alive() -> None:
    array = Foreign(np.full((1, 300, 2), 3, F32))
    value = sanitize_batch(sequence_variable(2), array, copy=False)
    handed_out = value.data
    del array, value
    junk = [to_device(np.zeros((1, 300, 2), F32)) for _ in range(20)]
    assert (read(handed_out) == 3).all()
    assert len(junk) == 20


def test_what_a_value_hands_out_can_be_taken_again(copies: Copies) -> None:
    variable, batch = sequence_variable(2), sequences(3, 3)
    value = sanitize_batch(variable, batch, device=on_gpu())
    again = sanitize_batch(variable, value.data, copy=False)
    parts = sanitize_batch(variable, [value.values[:3], value.values[3:]])
    assert copies.count == 0
    assert again.equals(value)
    assert parts.equals(value)


def test_the_constructor_takes_device_arrays() -> None:
    array = np.arange(12, dtype=F32).reshape(2, 6)
    mask = np.int8([[0, 2, 1, 0, 2, 0], [1, 1, 2, 2, 0, 0]])
    expected = Value(array, mask)
    for given in (mask, to_device(mask)):
        check_same(Value(to_device(array), given), expected)
    check_same(Value(Foreign(array), lengths=[6, 2]), Value(array, lengths=[6, 2]))
    check_same(Value(Foreign(array)), Value(array))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"starts": [False, True]},
        {"lengths": [6, 2]},
        {"lengths": np.array([0, 6]), "starts": [False, False]},
        {"lengths": [6, 6]},
        {"mask": np.int8([[0, 2, 1, 0, 2, 0], [1, 1, 2, 2, 0, 0]])},
        {"mask": np.int8([[2, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]])},
        {"mask": np.zeros((2, 6), np.int8)},
    ],
    ids=str,
)
def test_padded_data_is_read_where_it_is(options: dict[str, Any], copies: Copies) -> None:
    array = np.arange(24, dtype=F32).reshape(2, 6, 2)
    given = to_device(array)
    parts = (options.get(name) for name in ("mask", "lengths", "starts"))
    layout, padded, flat = place_of(on_gpu()).read_padded(given, *parts)
    assert copies.count == 0
    value = Value._make(layout, on_gpu(), padded=padded, flat=flat)
    given.copy_to_device(np.full_like(array, 9))
    check_same(value, Value(array, **options))


def test_padded_data_that_does_not_fit_is_refused_where_it_is() -> None:
    place, array = place_of(on_gpu()), to_device(np.ones((2, 3), F32))
    with raises(ValueError, 5, 1, 3):
        place.read_padded(array, None, [3, 5], None)
    with raises(ValueError, 3, "(0, 1)"):
        place.read_padded(array, to_device(np.int8([[2, 3, 0], [0, 0, 0]])), None, None)
    with raises(ValueError, "(2, 2)", "(2, 3)"):
        place.read_padded(array, np.int8([[2, 1], [2, 1]]), None, None)


def test_a_masked_array_is_refused() -> None:
    array = Foreign(np.ones((2, 3, 2), F32), mask=Foreign(np.ones((2, 3, 2), bool)))
    with raises(ValueError, "the batch", "mask"):
        sanitize_batch(sequence_variable(2), array)


def test_host_arrays_among_device_ones() -> None:
    batch = [to_device(np.ones((2, 2), F32)), np.ones((1, 2), F32)]
    with raises(DeviceError, "sequence 1", "ndarray", "host", "sequence 0"):
        sanitize_batch(sequence_variable(2), batch)
    for host in (batch[1], [[1.0, 2.0]]):
        with raises((DeviceError, TypeError, ValueError), 1):
            sanitize_batch(sequence_variable(2), [host, Foreign(np.ones((2, 2), F32))])


def test_device_arrays_asked_for_on_the_cpu() -> None:
    variable = sequence_variable(2)
    for count in (2, 0):
        array = to_device(np.ones((count, 2), F32))
        for batch in ([array], Foreign(np.ones((count, 3, 2), F32))):
            with raises(DeviceError, "CPU"):
                sanitize_batch(variable, batch, device=udfkit.cpu())


@pytest.fixture
def second_device(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Addresses that are on a second device, which the machine seems to have."""
    there: set[int] = set()
    two = cuda_target.CudaStatus(available=True, devices=("one", "two"))
    monkeypatch.setattr(cuda_target, "status", lambda: two)
    monkeypatch.setattr(cuda_arrays, "device_of", lambda address: int(address in there))
    return there


def test_an_array_on_another_device(second_device: set[int]) -> None:
    variable = sequence_variable(2)
    here, there = (Foreign(np.ones((2, 3, 2), F32)) for _ in range(2))
    second_device.add(there.address)
    with raises(DeviceError, "the batch", "GPU[1]", "GPU[0]", "device=udfkit.gpu(1)"):
        sanitize_batch(variable, there, device=udfkit.gpu(0))
    assert sanitize_batch(variable, here, device=udfkit.gpu(0)).device == udfkit.gpu(0)


def test_a_list_over_two_devices(second_device: set[int]) -> None:
    variable = sequence_variable(2)
    here, there = (Foreign(np.ones((2, 2), F32)) for _ in range(2))
    empty = Foreign(np.ones((0, 2), F32))
    second_device.add(there.address)
    with raises(DeviceError, "sequence 2", "GPU[1]", "sequence 1", "GPU[0]", "one device"):
        sanitize_batch(variable, [empty, here, there])
    with raises(DeviceError, "sequence 1", "GPU[1]", "GPU[0]", "device=udfkit.gpu(1)"):
        sanitize_batch(variable, [empty, there, here], device=udfkit.gpu(0))


def test_an_array_without_bytes_is_on_every_device(second_device: set[int]) -> None:
    value = sanitize_batch(
        sequence_variable(2), Foreign(np.ones((0, 3, 2), F32)), device=udfkit.gpu(1), copy=False
    )
    assert value.device == udfkit.gpu(1)
    assert value.shape == (0, 3, 2)


def test_samples_without_elements() -> None:
    variable = sequence_variable((2, 0))
    batch = [np.zeros((2, 2, 0), F32), np.zeros((0, 2, 0), F32)]
    value = sanitize_batch(variable, [Foreign(array) for array in batch])
    check_device_value(value, variable, batch)
    reference.assert_same(read(value.mask), np.int8([[2, 1], [0, 0]]))
