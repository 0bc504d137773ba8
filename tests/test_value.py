"""Value: padded data and mask, its counts, equality, pickling and immutability."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given

import reference
import strategies
import udfkit
from checks import batch_variable, plain_variable, raises, sequence_variable
from udfkit import Value, sanitize_batch

F32 = np.float32


def numbers(*shape, dtype=F32):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def test_without_mask_and_lengths_everything_is_valid():
    value = Value(numbers(2, 3, 4))
    np.testing.assert_array_equal(value.mask, [[2, 1, 1], [2, 1, 1]])
    assert value.mask.dtype == np.int8
    assert not value.is_masked
    assert (value.rows, len(value), value.shape, value.dtype) == (2, 2, (2, 3, 4), np.dtype(F32))
    assert np.asarray(value.lengths).tolist() == [3, 3]
    assert np.asarray(value.starts).tolist() == [True, True]
    assert value.device == udfkit.cpu()


@pytest.mark.parametrize("kind", [list, tuple, np.array])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint64"])
def test_lengths_may_be_any_integers_and_shorter_than_the_data(kind, dtype):
    given_lengths = [3, 0, 1] if kind is not np.array else np.array([3, 0, 1], dtype)
    value = Value(numbers(3, 5, 2), lengths=kind(given_lengths))
    np.testing.assert_array_equal(value.mask, [[2, 1, 1, 0, 0], [0] * 5, [2, 0, 0, 0, 0]])
    reference.assert_same(np.asarray(value.lengths), np.array([3, 0, 1], np.int64))
    assert value.shape == (3, 5, 2)


@pytest.mark.parametrize("mask_dtype", ["int8", "uint8", "int64"])
def test_the_mask_is_always_int8(mask_dtype):
    value = Value(numbers(2, 3), np.array([[1, 1, 0], [1, 0, 0]], mask_dtype))
    reference.assert_same(value.mask, np.array([[1, 1, 0], [1, 0, 0]], np.int8))
    assert np.asarray(value.starts).tolist() == [False, False]


def test_starts_are_stored_even_for_empty_sequences():
    value = Value(numbers(3, 2), lengths=[0, 2, 0], starts=[False, True, True])
    assert np.asarray(value.starts).tolist() == [False, True, True]
    np.testing.assert_array_equal(value.mask, [[0, 0], [2, 1], [0, 0]])
    again = sanitize_batch(sequence_variable(()), value.as_sequences(), seq_starts=value.starts)
    assert np.asarray(again.starts).tolist() == [False, True, True]
    assert again.equals(value)
    ragged = value.ragged()
    assert ragged.starts.tolist() == [False, True, True]
    assert pickle.loads(pickle.dumps(value)).starts.tolist() == [False, True, True]


def test_several_sequences_in_a_row_count_in_row_major_order():
    mask = np.array([[0, 2, 1, 2], [1, 0, 1, 2], [0, 0, 0, 0]], np.int8)
    value = Value(numbers(3, 4), mask)
    assert (value.rows, len(value)) == (3, 5)
    assert np.asarray(value.lengths).tolist() == [2, 1, 2, 1, 0]
    assert np.asarray(value.starts).tolist() == [True, True, False, True, True]
    reference.assert_same_list(
        value.as_sequences(),
        [np.array(s, F32) for s in ([1, 2], [3], [4, 6], [7], [])],
    )


def test_a_batch_only_value():
    value = sanitize_batch(batch_variable((3,)), numbers(2, 3))
    assert value.shape == (2, 3)
    assert len(value) == 2
    assert value.rows == 2
    reference.assert_same(value.mask, np.full(2, 2, np.int8))
    assert np.asarray(value.lengths).tolist() == [1, 1]
    assert np.asarray(value.starts).tolist() == [True, True]
    assert not value.is_masked


def test_a_value_without_axes_has_no_count():
    value = sanitize_batch(plain_variable((2, 3)), numbers(2, 3))
    assert value.shape == (2, 3)
    assert value.mask.shape == ()
    assert value.mask.dtype == np.int8
    with pytest.raises((TypeError, ValueError)):
        len(value)
    for name in ("lengths", "starts"):
        # AttributeError would make hasattr() lie about a property that exists.
        with pytest.raises((TypeError, ValueError)):
            getattr(value, name)


@strategies.SETTINGS
@given(case=strategies.padded())
def test_equals_looks_at_valid_cells_only(case):
    data, mask = case
    value = Value(data.copy(), mask)
    other = data.copy()
    other[mask == 0] = np.array(1, data.dtype)
    assert value.equals(Value(other, mask))
    assert Value(other, mask).equals(value)
    if (mask != 0).any() and data.size:
        changed = data.copy()
        cell = tuple(np.argwhere(mask != 0)[0])
        raw = changed[cell].reshape(-1).view(np.uint8)
        raw = raw.copy()
        raw[0] ^= 1
        changed[cell] = raw.view(data.dtype).reshape(data.shape[2:])
        if not reference.same_bits(changed, data):
            assert not value.equals(Value(changed, mask))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_equals_compares_bits(dtype):
    special = strategies.special_floats(dtype)
    for i, left in enumerate(special):
        for j, right in enumerate(special):
            equal = Value(left.reshape(1, 1)).equals(Value(right.reshape(1, 1)))
            assert equal == (i == j)


def test_equals_tells_shape_dtype_lengths_and_starts_apart():
    value = Value(numbers(2, 3), lengths=[2, 1])
    assert value.equals(Value(numbers(2, 3), lengths=[2, 1]))
    assert not value.equals(Value(numbers(2, 3, dtype=np.float64), lengths=[2, 1]))
    assert not value.equals(Value(numbers(2, 3), lengths=[2, 2]))
    assert not value.equals(Value(numbers(2, 3), lengths=[2, 1], starts=[True, False]))
    assert not value.equals(Value(numbers(2, 3, 1), lengths=[2, 1]))
    assert not value.equals(Value(numbers(2, 4), lengths=[2, 1]))
    empty = Value(numbers(2, 3), lengths=[0, 1], starts=[False, True])
    assert not empty.equals(Value(numbers(2, 3), lengths=[0, 1]))


@strategies.FEW
@given(case=strategies.padded())
def test_padding_holds_exactly_zero(case):
    data, mask = case
    expected = data.copy()
    expected[mask == 0] = np.zeros((), data.dtype)
    value = Value(data, mask)
    reference.assert_same(value.data, expected)
    reference.assert_same(value.asarray(), expected)


def test_attributes_cannot_be_replaced():
    value = Value(numbers(2, 3))
    for name in ("data", "mask", "lengths", "starts", "shape"):
        with pytest.raises(AttributeError):
            setattr(value, name, getattr(value, name))


def test_to_the_same_device_keeps_everything():
    value = Value(numbers(2, 3), lengths=[2, 1], starts=[True, False])
    assert value.to(udfkit.cpu()).equals(value)


def test_repr_names_shape_and_dtype():
    text = repr(Value(numbers(2, 3, 4), lengths=[3, 1]))
    assert "Value" in text
    assert "float32" in text
    assert "2" in text


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@strategies.FEW
@given(case=strategies.padded())
def test_pickle_round_trip(protocol, case):
    data, mask = case
    value = Value(data, mask)
    again = pickle.loads(pickle.dumps(value, protocol))
    assert again.equals(value)
    reference.assert_same(again.mask, value.mask)
    reference.assert_same(np.asarray(again.starts), np.asarray(value.starts))
    reference.assert_same_list(again.as_sequences(), value.as_sequences())


def test_protocol_5_sends_the_data_out_of_band():
    value = Value(numbers(50, 40, 3), lengths=[40] * 49 + [7])
    buffers = []
    stream = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    assert sum(buffer.raw().nbytes for buffer in buffers) >= value.data.nbytes * 0.9
    assert len(stream) < 4000
    again = pickle.loads(stream, buffers=buffers)
    assert again.equals(value)
    # Shared-memory transports hand over read-only buffers.
    frozen = [bytes(buffer.raw()) for buffer in buffers]
    assert pickle.loads(stream, buffers=frozen).equals(value)


@pytest.mark.parametrize("kind", ["batch", "none"])
def test_values_of_the_other_kinds_pickle_and_compare(kind):
    variable = batch_variable((3,)) if kind == "batch" else plain_variable((2, 3))
    value = sanitize_batch(variable, numbers(2, 3))
    again = pickle.loads(pickle.dumps(value, 5))
    assert again.equals(value)
    assert again.mask.shape == value.mask.shape
    assert sanitize_batch(variable, again) is again
    assert not value.equals(sanitize_batch(variable, numbers(2, 3) + 1))


def test_deepcopy_is_equal_and_apart():
    value = Value(numbers(2, 3), lengths=[2, 1])
    again = copy.deepcopy(value)
    assert again.equals(value)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"lengths": [4, 1]}, [0, 4, 3]),
        ({"lengths": [1, -1]}, [1, -1]),
        ({"lengths": [1]}, [1, 2]),
        ({"lengths": [1, 2, 3]}, [3, 2]),
        ({"lengths": [1, 2], "starts": [True]}, [1, 2]),
        ({"mask": np.array([[2, 1]], np.int8)}, []),
        ({"mask": np.array([[2, 1, 0]] * 3, np.int8)}, []),
        ({"mask": np.array([[2, 1, 0], [2, 3, 0]], np.int8)}, [3]),
        ({"mask": np.array([[2, 1, 0], [2, -1, 0]], np.int8)}, [-1]),
    ],
    ids=str,
)
def test_layouts_that_do_not_fit_are_refused(arguments, parts):
    with raises(ValueError, *parts):
        Value(numbers(2, 3), **arguments)


def test_lengths_of_floats_are_refused():
    with raises((TypeError, ValueError), "lengths"):
        Value(numbers(2, 3), lengths=[1.0, 2.0])


def test_integers_as_starts_are_refused():
    with raises((TypeError, ValueError), "starts"):
        Value(numbers(2, 3), lengths=[1, 2], starts=[1, 0])


def test_mask_and_contradicting_lengths_are_refused():
    mask = np.array([[2, 1, 0], [2, 0, 0]], np.int8)
    with raises((TypeError, ValueError), "lengths"):
        Value(numbers(2, 3), mask, lengths=[3, 1])


@pytest.mark.parametrize("data", [None, "text", np.array([["a"]]), np.zeros((1, 1), complex)])
def test_data_that_is_not_numbers_is_refused(data):
    with pytest.raises((TypeError, ValueError)):
        Value(data)


def test_ragged_of_a_batch_only_value_has_length_one_sequences():
    value = sanitize_batch(batch_variable((3,)), numbers(2, 3))
    ragged = value.ragged()
    reference.assert_same(ragged.values, numbers(2, 3))
    assert ragged.offsets.tolist() == [0, 1, 2]


def test_asarray_writes_into_out_of_any_strides():
    value = sanitize_batch(sequence_variable((2,)), [np.ones((3, 2), F32), np.full((1, 2), 7, F32)])
    wide = np.full((2, 6, 2), -1, np.float32)
    out = wide[:, ::2]
    assert value.asarray(out=out) is out
    assert out.tobytes() == value.data.tobytes()
    assert (wide[:, 1::2] == -1).all()


@pytest.mark.parametrize(
    "out",
    [np.zeros((2, 3, 2)), np.zeros((2, 3), F32), [0.0], np.broadcast_to(F32(0), (2, 3, 2))],
)
def test_asarray_refuses_an_out_that_does_not_fit(out):
    value = sanitize_batch(sequence_variable((2,)), [np.ones((3, 2), F32), np.full((1, 2), 7, F32)])
    with raises(ValueError):
        value.asarray(out=out)
