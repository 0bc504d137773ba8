"""Ragged: flat values and offsets, and its life as a sequence of arrays."""

from __future__ import annotations

import collections.abc
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
import strategies
from checks import raises
from udfkit import Ragged

F32 = np.float32


def numbers(*shape, dtype=F32):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def ragged_of(batch):
    return Ragged(
        reference.flat(batch.expected, batch.shape, batch.dtype),
        reference.offsets(batch.lengths),
        starts=batch.starts,
    )


@strategies.SETTINGS
@given(batch=strategies.batches(layouts=["C"]))
def test_it_is_a_sequence_of_arrays(batch):
    ragged = ragged_of(batch)
    assert isinstance(ragged, collections.abc.Sequence)
    assert len(ragged) == len(batch.expected)
    reference.assert_same_list(list(ragged), batch.expected)
    for k, sequence in enumerate(batch.expected):
        reference.assert_same(ragged[k], sequence)
        reference.assert_same(ragged[k - len(batch.expected)], sequence)
    reference.assert_same_list(list(reversed(ragged)), batch.expected[::-1])
    reference.assert_same(ragged.lengths, np.array(batch.lengths, np.int64))
    reference.assert_same(ragged.offsets, reference.offsets(batch.lengths))
    reference.assert_same(ragged.starts, np.array(batch.starts, bool))
    for k in (len(batch.expected), -len(batch.expected) - 1):
        with pytest.raises(IndexError):
            ragged[k]


@strategies.SETTINGS
@given(batch=strategies.batches())
def test_from_list_concatenates(batch):
    ragged = Ragged.from_list(batch.sequences, dtype=batch.dtype, sample_shape=batch.shape)
    reference.assert_same(ragged.values, reference.flat(batch.expected, batch.shape, batch.dtype))
    reference.assert_same(ragged.offsets, reference.offsets(batch.lengths))
    assert ragged.starts.all()
    if batch.sequences:
        assert Ragged.from_list(batch.sequences).equals(ragged)


@strategies.SETTINGS
@given(
    batch=strategies.batches(layouts=["C"]),
    cut=st.slices(6),
    picks=st.lists(st.integers(0, 100), max_size=6),
)
def test_slicing_and_take(batch, cut, picks):
    ragged = ragged_of(batch)
    part = ragged[cut]
    assert isinstance(part, Ragged)
    reference.assert_same_list(list(part), batch.expected[cut])
    assert part.starts.tolist() == batch.starts[cut]
    assert part.offsets[0] == 0
    assert part.offsets[-1] == len(part.values)
    count = len(batch.expected)
    picks = [pick % count for pick in picks] if count else []
    taken = ragged.take(picks)
    reference.assert_same_list(list(taken), [batch.expected[pick] for pick in picks])
    assert taken.starts.tolist() == [batch.starts[pick] for pick in picks]


@strategies.SETTINGS
@given(batch=strategies.batches(layouts=["C"]), data=st.data())
def test_concat(batch, data):
    cut = data.draw(st.integers(0, len(batch.expected)))
    ragged = ragged_of(batch)
    whole = Ragged.concat([ragged[:cut], ragged[cut:]])
    assert whole.equals(ragged)


@strategies.SETTINGS
@given(batch=strategies.batches(layouts=["C"]))
def test_with_values_keeps_the_layout(batch):
    ragged = ragged_of(batch)
    new = numbers(len(ragged.values), 2, dtype=np.float64)
    other = ragged.with_values(new)
    reference.assert_same(other.values, new)
    reference.assert_same(other.offsets, ragged.offsets)
    reference.assert_same(other.starts, ragged.starts)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@strategies.FEW
@given(batch=strategies.batches(layouts=["C"]))
def test_pickle_round_trip(protocol, batch):
    ragged = ragged_of(batch)
    again = pickle.loads(pickle.dumps(ragged, protocol))
    assert again.equals(ragged)
    reference.assert_same(again.values, ragged.values)
    reference.assert_same(again.starts, ragged.starts)


def test_protocol_5_sends_the_values_out_of_band():
    ragged = Ragged(numbers(5000, 3), [0, 4000, 5000])
    buffers = []
    stream = pickle.dumps(ragged, protocol=5, buffer_callback=buffers.append)
    assert sum(buffer.raw().nbytes for buffer in buffers) >= ragged.values.nbytes
    assert len(stream) < 2000
    assert pickle.loads(stream, buffers=buffers).equals(ragged)


def test_it_is_a_read_only_alias():
    values = numbers(4, 2)
    ragged = Ragged(values, [0, 1, 4])
    assert np.shares_memory(ragged.values, values)
    assert values.flags.writeable
    for array in (ragged.values, ragged.offsets, ragged.starts, ragged.lengths, ragged[1]):
        assert not array.flags.writeable
    with pytest.raises(ValueError):
        ragged[0][0, 0] = 9


def test_attributes_cannot_be_replaced():
    ragged = Ragged(numbers(4), [0, 1, 4])
    for name in ("starts", "lengths"):
        with pytest.raises(AttributeError):
            setattr(ragged, name, getattr(ragged, name))


@pytest.mark.parametrize("layout", strategies.LAYOUTS)
def test_values_of_any_layout(layout):
    values = strategies.laid_out(numbers(4, 3) + 1, layout)
    ragged = Ragged(values, [0, 1, 1, 4])
    plain = strategies.plain(values)
    for got, expected in zip(ragged, (plain[:1], plain[1:1], plain[1:]), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_offsets_of_any_integer_dtype_become_int64(dtype):
    ragged = Ragged(numbers(4, 2), np.array([0, 1, 4], dtype))
    reference.assert_same(ragged.offsets, np.array([0, 1, 4], np.int64))
    reference.assert_same(ragged.lengths, np.array([1, 3], np.int64))


@pytest.mark.parametrize("kind", [list, tuple])
def test_offsets_may_be_python_numbers(kind):
    assert Ragged(numbers(4), kind([0, 1, 4])).lengths.tolist() == [1, 3]


def test_equals_compares_content_not_identity():
    left = Ragged(numbers(4, 2), [0, 1, 4])
    assert left.equals(Ragged(numbers(4, 2), np.array([0, 1, 4], np.uint8)))
    assert not left.equals(Ragged(numbers(4, 2), [0, 2, 4]))
    assert not left.equals(Ragged(numbers(4, 2), [0, 1, 4], starts=[True, False]))
    assert not left.equals(Ragged(numbers(4, 2) + 1, [0, 1, 4]))
    assert not left.equals(Ragged(numbers(4, 2, dtype=np.float64), [0, 1, 4]))
    assert not Ragged(numbers(0, 2), [0, 0]).equals(Ragged(numbers(0, 3), [0, 0]))
    assert not Ragged(numbers(0, 2), [0, 0]).equals(Ragged(numbers(0, 2), [0, 0, 0]))


def test_equals_compares_bits():
    special = strategies.special_floats("float32")
    for i, left in enumerate(special):
        for j, right in enumerate(special):
            equal = Ragged(left[None], [0, 1]).equals(Ragged(right[None], [0, 1]))
            assert equal == (i == j)


def test_trim_allows_unused_values_behind_the_last():
    ragged = Ragged(numbers(6, 2), [0, 1, 4], trim=True)
    reference.assert_same(ragged.values, numbers(6, 2)[:4])
    assert ragged.lengths.tolist() == [1, 3]
    with raises(ValueError, 4, 6, "trim=True"):
        Ragged(numbers(6, 2), [0, 1, 4])


def test_from_list_of_nothing_needs_a_dtype_and_a_sample_shape():
    ragged = Ragged.from_list([], dtype=F32, sample_shape=(3,))
    assert ragged.values.shape == (0, 3)
    assert ragged.values.dtype == F32
    assert len(ragged) == 0
    kept = Ragged.from_list([np.empty((0, 3), F32)] * 2)
    assert kept.values.shape == (0, 3)
    assert kept.values.dtype == F32
    assert len(kept) == 2


def test_from_list_keeps_the_dtype_of_floats():
    ragged = Ragged.from_list([[0.2, 0.9], [-0.7]])
    assert ragged.values.dtype.kind == "f"
    assert ragged.values.tolist() == [0.2, 0.9, -0.7]


@pytest.mark.parametrize(
    ("offsets", "parts"),
    [
        ([0, 3, 2, 4], [2, 3]),
        ([1, 2, 4], [0, 1]),
        ([0, 2, 5], [5, 4]),
        ([0, -1, 4], [1, -1]),
        ([-1, 2, 4], [0, -1]),
        ([0, np.iinfo(np.int64).min, 4], [1]),
        (np.array([0, 1.0, 4]), ["float64"]),
        ([0, 1.5, 4], []),
        (np.array([0, 2**63, 4], np.uint64), [1, 2**63]),
        ([0, 2**64, 4], []),
        ([], []),
        ([[0, 4]], []),
        ([0, None, 4], []),
        ("abc", []),
        (None, []),
    ],
    ids=str,
)
def test_bad_offsets_are_refused_with_their_position(offsets, parts):
    with raises((ValueError, TypeError) if parts == [] else ValueError, *parts):
        Ragged(numbers(4, 2), offsets)


@pytest.mark.parametrize("starts", [[True], [True] * 3, [1, 0], np.array([1.0, 0.0]), ["a", "b"]])
def test_bad_starts_are_refused(starts):
    with raises((ValueError, TypeError), "starts"):
        Ragged(numbers(4), [0, 1, 4], starts=starts)


@pytest.mark.parametrize("values", [None, "abc", np.array(3.0), np.array(["a", "b"])])
def test_bad_values_are_refused(values):
    with pytest.raises((ValueError, TypeError)):
        Ragged(values, [0])


def test_from_list_names_the_sequence_that_does_not_fit():
    with raises(ValueError, 2):
        Ragged.from_list([numbers(2, 3), numbers(1, 3), numbers(4, 2)])
    with raises(ValueError, 1):
        Ragged.from_list([numbers(2), numbers(2, dtype=np.float64)])


def test_with_values_of_another_count_is_refused():
    with raises(ValueError, 4, 3):
        Ragged(numbers(4), [0, 1, 4]).with_values(numbers(3))


def test_take_out_of_range_is_refused():
    with pytest.raises(IndexError) as caught:
        Ragged(numbers(4), [0, 1, 4]).take([0, 2])
    assert "2" in str(caught.value)


def test_concat_of_parts_that_do_not_fit_is_refused():
    with raises(ValueError, 1):
        Ragged.concat([Ragged(numbers(4), [0, 4]), Ragged(numbers(4, 2), [0, 4])])


def test_concat_of_what_is_no_list_of_batches():
    batch = Ragged([1], [0, 1])
    with raises(TypeError, "batch 1", "int"):
        Ragged.concat([batch, 1])
    for wrong in (batch, 3, None):
        with raises(TypeError, "batches", type(wrong).__name__):
            Ragged.concat(wrong)


@pytest.mark.parametrize(
    ("indices", "shape"), [(5, "()"), (None, "()"), ([[0]], "(1, 1)"), ([0.5], "(1,)")], ids=str
)
def test_take_of_what_is_no_vector_of_integers(indices, shape):
    with raises(TypeError, "indices", shape):
        Ragged([1], [0, 1]).take(indices)


def test_trim_is_a_flag():
    with raises(TypeError, "trim", "'x'"):
        Ragged([1, 2], [0, 1], trim="x")


def test_a_sample_shape_of_numpy_integers():
    for shape in (np.int64(3), (np.int64(3),), np.array([3])):
        assert Ragged.from_list([[[1, 2, 3]]], sample_shape=shape).sample_shape == (3,)
    for shape in ("ab", 1.5, (1.5,)):
        with raises(TypeError, "sample_shape", repr(shape)):
            Ragged.from_list([[[1, 2, 3]]], sample_shape=shape)
