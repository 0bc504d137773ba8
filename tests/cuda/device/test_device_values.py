"""Values on a device, made of whatever is on the host, against the naive reference."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from device_checks import check_device_value, check_same, on_gpu, read
from hypothesis import given, settings
from hypothesis import strategies as st

import golden_cases as golden
import reference
import strategies as own
import udfkit
from checks import batch_variable, plain_variable, raises, sequence_variable
from udfkit import Ragged, Value, sanitize_batch

FEW = settings(own.SETTINGS, max_examples=15)
FEWER = settings(own.SETTINGS, max_examples=8)


def noise(lengths: list[int], shape: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    rng = np.random.default_rng(len(lengths))
    return [own.bit_noise(rng, (length, *shape), dtype) for length in lengths]


@FEW
@given(batch=own.batches())
def test_lists(batch: own.Batch) -> None:
    variable = sequence_variable(batch.shape, batch.dtype)
    value = sanitize_batch(variable, batch.sequences, batch.starts, on_gpu())
    check_device_value(value, variable, batch.expected, batch.starts)
    host = value.to(udfkit.cpu())
    assert host.device == udfkit.cpu()
    assert host.equals(sanitize_batch(variable, batch.sequences, batch.starts))


@FEWER
@given(batch=own.batches(layouts=["C"]), copy=st.booleans())
def test_ragged(batch: own.Batch, copy: bool) -> None:
    variable = sequence_variable(batch.shape, batch.dtype)
    ragged = Ragged.from_list(batch.sequences, batch.dtype, batch.shape)
    value = sanitize_batch(variable, ragged, batch.starts, on_gpu(), copy=copy)
    check_device_value(value, variable, batch.expected, batch.starts)


@FEWER
@given(data=st.data(), rows=st.integers(0, 3), steps=st.integers(0, 3))
def test_rectangles_of_every_kind(data: Any, rows: int, steps: int) -> None:
    shape = data.draw(st.sampled_from(own.SAMPLE_SHAPES))
    dtype, layout = data.draw(st.sampled_from(own.DTYPES)), data.draw(st.sampled_from(own.LAYOUTS))
    makers = {"sequence": sequence_variable, "batch": batch_variable, "none": plain_variable}
    for kind, lead in (("sequence", (rows, steps)), ("batch", (rows,)), ("none", ())):
        array = own.laid_out(own.bit_noise(data.draw(own.seeds()), (*lead, *shape), dtype), layout)
        variable = makers[kind](shape, dtype)
        value = sanitize_batch(variable, array, device=on_gpu())
        check_same(value, sanitize_batch(variable, array), variable)
        reference.assert_same(value.asarray(), own.plain(array))
        reference.assert_same(
            read(value.values),
            own.plain(array).reshape(-1, *shape)
            if 0 not in array.shape
            else np.empty((int(np.prod(lead)), *shape), dtype),
        )


@FEW
@given(padded=own.padded())
def test_any_mask(padded: tuple[np.ndarray, np.ndarray]) -> None:
    data, cells = padded
    variable = sequence_variable(data.shape[2:], data.dtype)
    value = Value(data, cells, device=on_gpu())
    expected = data.copy()
    expected[cells == 0] = 0
    reference.assert_same(value.asarray(), expected)
    reference.assert_same(read(value.mask), np.asarray(Value(data, cells).mask))
    reference.assert_same_list(
        udfkit.variable_value_to_seq(value, variable), reference.unpad(data, cells)
    )
    reference.assert_same(value.lengths, reference.lengths_from_mask(cells))
    reference.assert_same(value.starts, reference.starts_from_mask(cells))
    # Made of flat samples this time, whose padded form a kernel makes.
    check_same(value.to(udfkit.cpu()).to(on_gpu()), Value(data, cells), variable)


@FEWER
@given(batch=own.batches(shapes=[(), (3,), (2, 3)], layouts=["C"]), row_length=st.integers(1, 5))
def test_rows_of_several_sequences(batch: own.Batch, row_length: int) -> None:
    variable = sequence_variable(batch.shape, batch.dtype)
    ragged = Ragged.from_list(batch.sequences, batch.dtype, batch.shape)
    filled = udfkit.fill_rows(ragged, row_length=row_length, split=True).value
    moved = filled.to(on_gpu())
    check_same(moved, filled, variable)
    reference.assert_same_list(udfkit.variable_value_to_seq(moved, variable), batch.expected)
    assert moved.to(udfkit.cpu()).equals(filled)


@FEWER
@given(sizes=own.lengths(4, 3), seed=st.integers(0, 99), starts=st.booleans())
def test_csr(sizes: list[int], seed: int, starts: bool) -> None:
    chance = np.random.default_rng(seed)
    dtype = chance.choice([np.float32, np.float64])
    dense = []
    for n in sizes:
        kept = chance.random((n, 3)) < 0.5
        dense.append((chance.integers(-2, 3, (n, 3)) * kept).astype(dtype))
    variable = sequence_variable((3,), dtype, is_sparse=True)
    flags = [bool(k % 2) for k in range(len(sizes))] if starts else None
    matrices = [golden.csr(array) for array in dense]
    value = sanitize_batch(variable, matrices, flags, on_gpu())
    check_device_value(value, variable, dense, flags)
    if sizes:
        assert value.is_sparse
        golden.assert_sequences(value.as_sequences(), matrices, "as_sequences")
    host = sanitize_batch(variable, matrices, flags)
    check_same(host.to(on_gpu()), host, variable)


@FEWER
@given(
    sizes=own.lengths(3, 3),
    seed=st.integers(0, 99),
    shape=st.sampled_from([(4,), (2, 3), (1,)]),
    dtype=st.sampled_from(own.DTYPES),
)
def test_one_hot(sizes: list[int], seed: int, shape: tuple[int, ...], dtype: Any) -> None:
    chance = np.random.default_rng(seed)
    lead = int(np.prod(shape[:-1]))
    choices = [*range(shape[-1]), Value.ONE_HOT_SKIP]
    batch = [chance.choice(choices, n * lead).tolist() for n in sizes]
    variable = sequence_variable(shape, dtype)
    value = Value.one_hot(batch, shape, dtype, on_gpu())
    dense = reference.one_hot(batch, shape, dtype, Value.ONE_HOT_SKIP)
    if sizes:
        check_device_value(value, variable, dense)
    check_same(value, Value.one_hot(batch, shape, dtype))


@pytest.mark.parametrize("dtype", own.DTYPES, ids=str)
def test_all_dtypes(dtype: Any) -> None:
    sequences = noise([2, 0, 3], (3,), dtype)
    variable = sequence_variable((3,), dtype)
    check_device_value(sanitize_batch(variable, sequences, device=on_gpu()), variable, sequences)


def test_bfloat16() -> None:
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    bits = noise([2, 0, 3], (3,), np.uint16)
    sequences = [array.view(bfloat16) for array in bits]
    variable = sequence_variable((3,), bfloat16)
    host = sanitize_batch(variable, sequences)
    for value in (
        sanitize_batch(variable, sequences, device=on_gpu()),
        sanitize_batch(variable, Ragged.from_list(sequences), device=on_gpu()),
        host.to(on_gpu()),
        Value(host.data, host.mask, device=on_gpu()),
    ):
        assert value.dtype == bfloat16
        assert value.asarray().dtype == value.data.dtype == value.values.dtype == bfloat16
        reference.assert_same(value.asarray().view(np.uint16), host.data.view(np.uint16))
        got = udfkit.variable_value_to_seq(value, variable)
        reference.assert_same_list([array.view(np.uint16) for array in got], bits)


@pytest.mark.parametrize("starts", [[False] * 3, [True, False, True]], ids=str)
@pytest.mark.parametrize("lengths", [[0, 0, 0], [0, 2, 0], [2, 0, 1]], ids=str)
def test_starts_of_empty_sequences(lengths: list[int], starts: list[bool]) -> None:
    variable, sequences = sequence_variable((2,)), noise(lengths, (2,))
    value = sanitize_batch(variable, sequences, starts, on_gpu())
    check_device_value(value, variable, sequences, starts)
    again = sanitize_batch(
        variable, udfkit.variable_value_to_seq(value, variable), value.starts, on_gpu()
    )
    assert again.equals(value)


@pytest.mark.parametrize("size", [0, 2])
def test_a_free_dimension(size: int) -> None:
    variable = sequence_variable((udfkit.FreeDimension, 2))
    sequences = noise([2, 0, 1], (size, 2))
    check_device_value(sanitize_batch(variable, sequences, device=on_gpu()), variable, sequences)
    assert sanitize_batch(variable, [], device=on_gpu()).shape == (0, 0, 0, 2)


def test_casts_are_made_before_the_copy() -> None:
    variable = sequence_variable(())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", udfkit.CastWarning)
        value = sanitize_batch(variable, [np.array([1, 2]), np.array([3])], device=on_gpu())
    check_device_value(value, variable, [np.float32([1, 2]), np.float32([3])])


def test_an_input_that_changes_later_changes_nothing() -> None:
    variable = sequence_variable(())
    for make in (lambda a: [a, a], lambda a: a[np.newaxis], lambda a: Ragged(a, [0, 3])):
        array = np.float32([1, 2, 3])
        value = sanitize_batch(variable, make(array), device=on_gpu())
        array[:] = 9
        assert value.asarray()[0].tolist() == [1, 2, 3]


def test_asarray_out_and_array_protocol() -> None:
    value = sanitize_batch(sequence_variable(()), [[1.0, 2.0], [3.0]], device=on_gpu())
    out = np.empty((2, 2), np.float32)
    assert value.asarray(out=out) is out
    assert out.tolist() == np.asarray(value).tolist() == [[1, 2], [3, 0]]
    with pytest.raises(ValueError, match="expected an ndarray float32"):
        value.asarray(out=np.empty((2, 3), np.float32))


def test_pickling_is_refused_and_the_cure_works() -> None:
    value = sanitize_batch(sequence_variable(()), [[1.0, 2.0], [3.0]], device=on_gpu())
    with pytest.raises(TypeError, match=r"GPU\[0\] cannot be pickled: use value.to\(cpu\(\)\)"):
        pickle.dumps(value)
    _ = value.data
    assert pickle.loads(pickle.dumps(value.to(udfkit.cpu()))).equals(value)


def test_the_default_device() -> None:
    variable = sequence_variable(())
    udfkit.set_default_device(on_gpu())
    try:
        assert sanitize_batch(variable, [[1.0]]).device == on_gpu()
        assert Value(np.ones((1, 2), np.float32)).device == on_gpu()
        assert sanitize_batch(variable, [[1.0]], device=udfkit.cpu()).device == udfkit.cpu()
    finally:
        udfkit.set_default_device(udfkit.cpu())
    assert sanitize_batch(variable, [[1.0]]).device == udfkit.cpu()


def test_to_the_device_where_it_is_returns_itself() -> None:
    value = sanitize_batch(sequence_variable(()), [[1.0]], device=on_gpu())
    assert value.to(on_gpu()) is value
    assert repr(value) == "Value(float32 (1, 1) on GPU[0])"


def test_only_what_is_asked_for_is_launched(launched: Any) -> None:
    variable = sequence_variable((3,))
    value = sanitize_batch(variable, noise([2, 0, 3], (3,)), [True, False, True], on_gpu())
    assert launched.names == []
    _ = value.data, value.mask, value.data, value.mask
    # Data and mask in one launch, once.
    assert launched.names == ["ragged_to_padded"]
    udfkit.variable_value_to_seq(value, variable)
    assert launched.names == ["ragged_to_padded"]


def test_the_hot_paths_take_one_launch_each(launched: Any) -> None:
    rectangle = Value(np.ones((2, 3), np.float32), lengths=[3, 1], device=on_gpu())
    _ = rectangle.values
    gaps = Value(np.ones((2, 3), np.float32), [[0, 2, 0], [1, 0, 2]], device=on_gpu())
    _ = gaps.values, gaps.mask
    assert launched.names == ["padded_to_ragged", "cells_to_ragged"]
    dense = Value.one_hot([[1], [0, 2]], 3, device=on_gpu())
    _ = dense.data
    assert launched.names[2:] == ["one_hot_to_dense"]


def test_a_value_on_another_device_than_asked_for() -> None:
    variable = sequence_variable(2)
    host = sanitize_batch(variable, [np.ones((2, 2), np.float32)], device=udfkit.cpu())
    there = host.to(on_gpu())
    for value, device in ((host, on_gpu()), (there, udfkit.cpu())):
        with raises(ValueError, variable.name, "value.to(device)", fix=False):
            sanitize_batch(variable, value, device=device)
