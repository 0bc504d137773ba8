"""Ragged batches over device memory, samples for a layout, and what works on the host alone."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from device_checks import Copies, Foreign, check_device_value, check_same, on_gpu, read, to_device
from dlpack_capsules import Producer

import reference
import udfkit
from checks import batch_variable, plain_variable, raises, sequence_variable
from udfkit import DeviceError, Ragged, Value, sanitize_batch
from udfkit.kernels import cuda_arrays

F32 = np.float32
FLAT = np.arange(12, dtype=F32).reshape(6, 2)
OFFSETS = [0, 3, 3, 6]
SEQUENCES = [FLAT[:3], FLAT[:0], FLAT[3:]]
STARTS = [True, False, False]
KINDS = {"numba": to_device, "interface": Foreign, "dlpack": Producer}


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def address(array: Any) -> int:
    return cuda_arrays.read_array(array, "array").address


@pytest.mark.parametrize("kind", KINDS)
def test_a_ragged_over_device_memory(kind: str, copies: Copies) -> None:
    given = KINDS[kind](FLAT)
    ragged = Ragged(given, OFFSETS, STARTS)
    assert len(ragged) == 3
    assert ragged.lengths.tolist() == [3, 0, 3]
    assert ragged.starts.tolist() == STARTS
    assert (ragged.sample_shape, ragged.dtype, ragged.device) == ((2,), F32, on_gpu())
    assert repr(ragged) == "Ragged(3 sequences, 6 samples of float32 (2,) on GPU[0])"
    assert ragged._repr_html_() is None
    assert address(ragged.values) == address(given)
    part, last = ragged[1:], ragged[-1]
    assert (len(part), part.offsets.tolist(), part.starts.tolist()) == (2, [0, 0, 3], STARTS[1:])
    assert address(part.values) == address(last) == address(given) + 24
    assert copies.count == 0
    reference.assert_same_list([read(x) for x in ragged], SEQUENCES)
    reference.assert_same_list([read(x) for x in part], SEQUENCES[1:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", [None, on_gpu])
@pytest.mark.parametrize("copy", [True, False])
def test_it_is_a_batch(kind: str, device: Any, copy: bool, copies: Copies) -> None:
    variable, given = sequence_variable(2), KINDS[kind](FLAT)
    asked = device and device()
    value = sanitize_batch(variable, Ragged(given, OFFSETS, STARTS), None, asked, copy=copy)
    _ = value.data, value.mask
    assert copies.count == 0
    assert (address(value.values) == address(given)) is not copy
    check_device_value(value, variable, SEQUENCES, STARTS)
    value = sanitize_batch(variable, Ragged(given, OFFSETS), STARTS)
    check_device_value(value, variable, SEQUENCES, STARTS)


def test_other_kinds_of_variables() -> None:
    ragged = Ragged(to_device(FLAT), range(7))
    check_same(sanitize_batch(batch_variable(2), ragged), sanitize_batch(batch_variable(2), FLAT))
    with raises(ValueError, "sequence 0", 3):
        sanitize_batch(batch_variable(2), Ragged(to_device(FLAT), OFFSETS))
    with raises(ValueError, "Ragged"):
        sanitize_batch(plain_variable(2), ragged)
    with raises(ValueError, "(2,)", "(3,)", fix=False):
        sanitize_batch(sequence_variable(3), ragged)
    with raises(ValueError, "starts"):
        sanitize_batch(sequence_variable(2), Ragged(to_device(FLAT), OFFSETS, STARTS), STARTS)


def test_bad_offsets_are_refused_as_on_the_host() -> None:
    values = to_device(FLAT)
    for offsets, parts in (
        ([0, 7], (7, 1, "overruns")),
        ([0, 4, 3, 6], (3, 2, "decrease")),
        ([0, 3], (3, 1, "trim=True")),
        ([1, 6], (1, 0)),
    ):
        with raises(ValueError, *parts):
            Ragged(values, offsets)
    assert Ragged(values, [0, 3], trim=True).values.shape == (3, 2)
    with raises(ValueError, "()", fix=False):
        Ragged(to_device(np.ones((1,), F32)).reshape(()), [0])


@pytest.mark.parametrize("shape", [(0, 2), (0,), (3, 0)], ids=str)
def test_empty_ones(shape: tuple[int, ...]) -> None:
    flat = np.zeros(shape, F32)
    offsets = [0, 0, len(flat)]
    variable = sequence_variable(shape[1:])
    ragged = Ragged(to_device(flat), offsets)
    check_same(sanitize_batch(variable, ragged), sanitize_batch(variable, Ragged(flat, offsets)))
    assert [x.shape for x in ragged] == [(0, *shape[1:]), flat.shape]
    none = Ragged(to_device(flat[:0]), [0])
    assert len(none) == 0
    assert sanitize_batch(variable, none).shape == (0, 0, *shape[1:])


def test_asked_for_on_another_device() -> None:
    ragged = Ragged(to_device(FLAT), OFFSETS)
    with raises(DeviceError, "the Ragged", "CPU", "GPU", fix=False):
        sanitize_batch(sequence_variable(2), ragged, device=udfkit.cpu())


def test_it_moves_when_it_is_told_to() -> None:
    host = Ragged(FLAT, OFFSETS, STARTS)
    there = host.to(on_gpu())
    assert there.to(on_gpu()) is there
    assert host.to(udfkit.cpu()) is host
    assert there.device == on_gpu()
    assert there.to(udfkit.cpu()).equals(host)
    scaled = there.with_values(to_device(FLAT * 2))
    assert scaled.device == on_gpu()
    assert scaled.to(udfkit.cpu()).equals(host.with_values(FLAT * 2))


@pytest.mark.parametrize(
    "read_it",
    {
        "take": lambda x: x.take([0]),
        "step": lambda x: x[::2],
        "concat": lambda x: Ragged.concat([x, x]),
        "equals": lambda x: x.equals(x),
        "equals of the host's": lambda x: Ragged(FLAT, OFFSETS).equals(x),
        "to_csr": lambda x: x.to_csr(),
        "pad": udfkit.pad,
        "fill_rows": lambda x: udfkit.fill_rows(x, 4),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_reads_samples_on_the_host_says_how(read_it: Any, copies: Copies) -> None:
    with raises(DeviceError, "GPU[0]", "ragged.to(udfkit.cpu())", fix=False):
        read_it[1](Ragged(to_device(FLAT), OFFSETS))
    assert copies.count == 0


def test_it_is_not_pickled() -> None:
    with raises(TypeError, "GPU[0]", "ragged.to(udfkit.cpu())", fix=False):
        pickle.dumps(Ragged(to_device(FLAT), OFFSETS))


@pytest.mark.parametrize(
    "call",
    {
        "pad": udfkit.pad,
        "pad with a mask": lambda x: udfkit.pad(x, np.ones((2, 3), bool)),
        "unpad": lambda x: udfkit.unpad(x, lengths=[3, 3]),
        "unpad with a mask": lambda x: udfkit.unpad(FLAT.reshape(2, 3, 2), x),
        "fill_rows": lambda x: udfkit.fill_rows(x, 4),
        "pad of a list": lambda x: udfkit.pad([FLAT, x]),
        "fill_rows of a list": lambda x: udfkit.fill_rows([FLAT, x], 9),
        "collate": lambda x: udfkit.Collate()([{"a": x}, {"a": x}]),
        "collate, stacked": lambda x: udfkit.Collate(stack=["a"])([{"a": x}, {"a": x}]),
        "from_list": lambda x: Ragged.from_list([FLAT, x]),
        "a list that begins on the host": lambda x: sanitize_batch(sequence_variable(2), [FLAT, x]),
    }.items(),
    ids=lambda item: item[0],
)
@pytest.mark.parametrize("kind", KINDS)
def test_device_arrays_where_the_host_works(kind: str, call: Any, copies: Copies) -> None:
    with raises(DeviceError, "GPU", "copy it to the host", fix=False):
        call[1](KINDS[kind](FLAT.reshape(2, 3, 2)))
    assert copies.count == 0


@pytest.mark.parametrize(
    "call",
    [udfkit.pad, udfkit.unpad, lambda x: udfkit.fill_rows(x, 4)],
    ids=["pad", "unpad", "fill_rows"],
)
def test_values_on_the_device_where_the_host_works(call: Any, copies: Copies) -> None:
    value = sanitize_batch(sequence_variable(2), SEQUENCES, device=on_gpu())
    with raises(DeviceError, "GPU[0]", "value.to(udfkit.cpu())", fix=False):
        call(value)
    assert copies.count == 0
    call(value.to(udfkit.cpu()))


def test_rows_are_filled_on_the_host_whatever_the_default_device() -> None:
    udfkit.set_default_device(on_gpu())
    try:
        filled = udfkit.fill_rows(SEQUENCES, 4)
        assert filled.value.device == udfkit.cpu()
        assert filled.flat.shape == (6, 2)
    finally:
        udfkit.set_default_device(udfkit.cpu())


def test_filled_rows_are_moved_on_the_device(copies: Copies, launched: Any) -> None:
    host = udfkit.fill_rows(SEQUENCES, 4, split=True).value
    flat = host.to(on_gpu())
    copies.count = 0
    _ = flat.data
    assert copies.count == 0
    assert launched.names == ["rows_to_ragged", "ragged_to_cells"]
    padded = Value._make(host._layout, on_gpu(), padded=to_device(host.data))
    _ = padded.values
    assert copies.count == 0
    assert launched.names[2:] == ["rows_to_ragged"]
    for value in (flat, padded):
        check_same(value, host, sequence_variable(2))
        reference.assert_same(read(value.values), FLAT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copy", [True, False])
def test_samples_for_the_layout_of_a_value(kind: str, copy: bool, copies: Copies) -> None:
    mask = np.int8([[2, 1, 0, 2], [0, 1, 2, 0]])
    for value, host in (
        (sanitize_batch(sequence_variable(2), SEQUENCES, STARTS, on_gpu()), None),
        (Value(np.ones((2, 4), F32), mask, device=on_gpu()), None),
        (udfkit.fill_rows(SEQUENCES, 4, split=True).value.to(on_gpu()), None),
        (sanitize_batch(batch_variable(3), np.ones((6, 3), F32), device=on_gpu()), None),
    ):
        total = int(value.lengths.sum())
        flat = np.arange(total * 3, dtype=np.float64).reshape(total, 3)
        given = KINDS[kind](flat)
        copies.count = 0
        made = value.with_values(given, copy=copy)
        _ = made.data
        assert copies.count == 0
        assert (address(made.values) == address(given)) is not copy
        host = value.to(udfkit.cpu()).with_values(flat)
        assert (made.dtype, made.shape[-1]) == (np.float64, 3)
        check_same(made, host)


def test_samples_that_do_not_fit_the_layout() -> None:
    value = sanitize_batch(sequence_variable(2), SEQUENCES, device=on_gpu())
    for flat in (FLAT[:5], FLAT.reshape(12)):
        with raises(ValueError, str(flat.shape[0]), "(6, ...)", fix=False):
            value.with_values(to_device(flat))
    with raises(DeviceError, "ndarray on the host", "GPU[0]", "copy it there", fix=False):
        value.with_values(FLAT)
    with raises(DeviceError, "GPU", "copy it to the host", fix=False):
        value.to(udfkit.cpu()).with_values(to_device(FLAT))
    ragged = Ragged(to_device(FLAT), OFFSETS)
    with raises(DeviceError, "on CPU", "GPU[0]", "copy them there", fix=False):
        ragged.with_values(FLAT)
    with raises(DeviceError, "GPU[0]", "copy them there", fix=False):
        ragged.to(udfkit.cpu()).with_values(to_device(FLAT))
    with raises(TypeError, "complex64", fix=False):
        value.with_values(to_device(np.ones((6, 2), np.complex64)))


def test_bfloat16_samples_come_as_opaque_bytes() -> None:
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    bits = np.arange(12, dtype=np.uint16).reshape(6, 2)
    opaque = Foreign(bits, typestr="|V2")
    ragged = Ragged(opaque, OFFSETS)
    value = sanitize_batch(sequence_variable(2, bfloat16), ragged, copy=False)
    for made in (value, value.with_values(opaque)):
        assert made.dtype == bfloat16
        reference.assert_same(np.asarray(made.values.copy_to_host()).view(np.uint16), bits)
