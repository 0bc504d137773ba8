"""sanitize_batch and variable_value_to_seq against the naive reference, and round trips."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
import strategies
import udfkit
from checks import batch_variable, no_warning, plain_variable, sequence_variable
from udfkit import Value, sanitize_batch, variable_value_to_seq

SEQUENCE_FORMS = ["list", "tuple", "ragged"]


def hand_over(batch, form):
    """The batch in one of the forms that carry sequences of unequal length."""
    if form == "list":
        return list(batch.sequences)
    if form == "tuple":
        return tuple(batch.sequences)
    return udfkit.Ragged(
        reference.flat(batch.expected, batch.shape, batch.dtype), reference.offsets(batch.lengths)
    )


@pytest.mark.parametrize("form", SEQUENCE_FORMS)
@strategies.SETTINGS
@given(batch=strategies.batches())
def test_data_mask_lengths_and_starts_are_those_of_the_reference(form, batch):
    variable = sequence_variable(batch.shape, batch.dtype)
    with no_warning():
        value = sanitize_batch(variable, hand_over(batch, form), seq_starts=batch.starts)
    data, mask = reference.pad(batch.expected, batch.shape, batch.dtype, batch.starts)
    reference.assert_same(value.data, data)
    reference.assert_same(value.mask, mask)
    assert value.shape == data.shape
    assert value.dtype == batch.dtype
    assert value.rows == len(value) == len(batch.lengths)
    reference.assert_same(np.asarray(value.lengths), np.array(batch.lengths, np.int64))
    reference.assert_same(np.asarray(value.starts), np.array(batch.starts, bool))
    assert value.is_masked == (bool((mask == 0).any()) or not all(batch.starts))


@pytest.mark.parametrize("form", SEQUENCE_FORMS)
@strategies.SETTINGS
@given(batch=strategies.batches())
def test_sequences_in_sequences_out_bit_for_bit(form, batch):
    variable = sequence_variable(batch.shape, batch.dtype)
    value = sanitize_batch(variable, hand_over(batch, form), seq_starts=batch.starts)
    sequences = variable_value_to_seq(value, variable)
    reference.assert_same_list(sequences, batch.expected)
    for sequence in sequences:
        assert sequence.flags.c_contiguous
        assert sequence.flags.writeable


@strategies.SETTINGS
@given(batch=strategies.batches())
def test_starts_default_to_new_and_an_empty_list_of_starts_is_none(batch):
    variable = sequence_variable(batch.shape, batch.dtype)
    _, mask = reference.pad(batch.expected, batch.shape, batch.dtype)
    for value in (
        sanitize_batch(variable, batch.sequences),
        sanitize_batch(variable, batch.sequences, seq_starts=None),
        sanitize_batch(variable, batch.sequences, seq_starts=[]),
    ):
        reference.assert_same(value.mask, mask)
        assert np.asarray(value.starts).all()


@strategies.SETTINGS
@given(case=strategies.padded())
def test_any_mask_is_read_as_what_it_says(case):
    data, mask = case
    variable = sequence_variable(data.shape[2:], data.dtype)
    value = Value(data, mask)
    expected = reference.unpad(data, mask)
    reference.assert_same_list(variable_value_to_seq(value, variable), expected)
    reference.assert_same_list(value.as_sequences(variable), expected)
    reference.assert_same_list(value.as_sequences(), expected)
    reference.assert_same(np.asarray(value.lengths), reference.lengths_from_mask(mask))
    reference.assert_same(np.asarray(value.starts), reference.starts_from_mask(mask))
    assert len(value) == len(expected)
    assert value.rows == mask.shape[0]
    ragged = value.ragged()
    reference.assert_same(ragged.values, reference.flat(expected, data.shape[2:], data.dtype))
    reference.assert_same(ragged.offsets, reference.offsets(map(len, expected)))
    reference.assert_same(ragged.starts, reference.starts_from_mask(mask))


@strategies.SETTINGS
@given(case=strategies.padded())
def test_sequences_under_any_mask_go_back_in_as_a_right_padded_value(case):
    data, mask = case
    variable = sequence_variable(data.shape[2:], data.dtype)
    value = Value(data, mask)
    sequences = variable_value_to_seq(value, variable)
    again = sanitize_batch(variable, sequences, seq_starts=value.starts)
    expected, cells = reference.pad(
        sequences, data.shape[2:], data.dtype, list(reference.starts_from_mask(mask))
    )
    reference.assert_same(again.data, expected)
    reference.assert_same(again.mask, cells)


@strategies.SETTINGS
@given(batch=strategies.batches(layouts=["C"]))
def test_right_padded_value_out_and_in_again_is_an_equal_value(batch):
    variable = sequence_variable(batch.shape, batch.dtype)
    data, mask = reference.pad(batch.expected, batch.shape, batch.dtype, batch.starts)
    by_mask = Value(data, mask)
    by_lengths = Value(data, lengths=batch.lengths, starts=batch.starts)
    for value in (by_mask, by_lengths):
        again = sanitize_batch(
            variable, variable_value_to_seq(value, variable), seq_starts=value.starts
        )
        assert again.equals(value)
        assert value.equals(again)
        reference.assert_same(again.data, value.data)
        reference.assert_same(again.mask, value.mask)


@pytest.mark.parametrize("layout", strategies.LAYOUTS)
@strategies.SETTINGS
@given(
    rng=strategies.seeds(),
    shape=st.sampled_from(strategies.SAMPLE_SHAPES),
    dtype=st.sampled_from(strategies.DTYPES),
    count=st.integers(0, 4),
    steps=st.integers(0, 4),
)
def test_rectangles_keep_every_cell_in_every_layout(layout, rng, shape, dtype, count, steps):
    noise = strategies.bit_noise(rng, (count, steps, *shape), dtype)
    whole = strategies.laid_out(noise, layout)
    expected = strategies.plain(whole)
    before = whole.tobytes()
    variable = sequence_variable(shape, dtype)
    with no_warning():
        value = sanitize_batch(variable, whole)
    reference.assert_same(value.data, expected)
    reference.assert_same(value.mask, reference.mask([steps] * count, [True] * count, steps))
    reference.assert_same_list(variable_value_to_seq(value, variable), list(expected))

    per_batch = batch_variable((steps, *shape), dtype)
    with no_warning():
        value = sanitize_batch(per_batch, whole)
    reference.assert_same(value.data, expected)
    reference.assert_same(value.mask, np.full(count, 2, np.int8))
    reference.assert_same(variable_value_to_seq(value, per_batch), expected)

    alone = plain_variable(whole.shape, dtype)
    with no_warning():
        value = sanitize_batch(alone, whole)
    reference.assert_same(value.data, expected)
    reference.assert_same(variable_value_to_seq(value, alone), expected)
    assert whole.tobytes() == before


@strategies.SETTINGS
@given(batch=strategies.batches())
def test_value_create_is_the_same_as_sanitize_batch(batch):
    variable = sequence_variable(batch.shape, batch.dtype)
    left = Value.create(variable, batch.sequences, seq_starts=batch.starts)
    right = sanitize_batch(variable, batch.sequences, seq_starts=batch.starts)
    assert left.equals(right)
    reference.assert_same(left.data, right.data)
    reference.assert_same(left.mask, right.mask)


@strategies.SETTINGS
@given(batch=strategies.batches(layouts=["C"]))
def test_ragged_carries_its_starts_in_and_out(batch):
    variable = sequence_variable(batch.shape, batch.dtype)
    ragged = udfkit.Ragged(
        reference.flat(batch.expected, batch.shape, batch.dtype),
        reference.offsets(batch.lengths),
        starts=batch.starts,
    )
    value = sanitize_batch(variable, ragged)
    _, mask = reference.pad(batch.expected, batch.shape, batch.dtype, batch.starts)
    reference.assert_same(value.mask, mask)
    assert value.ragged().equals(ragged)


@pytest.mark.parametrize(
    "starts",
    [
        [True, False, True],
        (True, False, True),
        np.array([True, False, True]),
        [np.True_, np.False_, np.True_],
        [np.True_, False, True],
    ],
    ids=["list", "tuple", "array", "numpy booleans", "mixed"],
)
def test_starts_are_taken_from_any_sequence_of_booleans(starts):
    batch = [np.ones((2, 1), np.float32), np.ones((0, 1), np.float32), np.ones((3, 1), np.float32)]
    value = sanitize_batch(sequence_variable((1,)), batch, seq_starts=starts)
    np.testing.assert_array_equal(value.mask, [[2, 1, 0], [0, 0, 0], [2, 1, 1]])
    assert np.asarray(value.starts).tolist() == [True, False, True]


@pytest.mark.parametrize("kind", ["sequence", "batch", "none"])
def test_a_value_comes_back_as_the_same_object(kind):
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    variable = {
        "sequence": sequence_variable(()),
        "batch": batch_variable((3,)),
        "none": plain_variable((2, 3)),
    }[kind]
    value = sanitize_batch(variable, data)
    assert sanitize_batch(variable, value) is value
    assert sanitize_batch(variable, value, copy=False) is value


def test_continued_rows_are_masked_even_without_padding():
    variable = sequence_variable(())
    full = [np.ones(2, np.float32), np.ones(2, np.float32)]
    assert not sanitize_batch(variable, full).is_masked
    assert sanitize_batch(variable, full, seq_starts=[True, False]).is_masked
    assert sanitize_batch(variable, [full[0], full[1][:1]]).is_masked


def test_the_contract_example_of_a_mask():
    value = sanitize_batch(sequence_variable(()), [[1, 2, 3], [4], [5, 6]])
    np.testing.assert_array_equal(value.mask, [[2, 1, 1], [2, 0, 0], [2, 1, 0]])
    np.testing.assert_array_equal(value.data, [[1, 2, 3], [4, 0, 0], [5, 6, 0]])


def test_map_if_possible_returns_none_and_changes_nothing():
    for thing in (None, 3, [1, 2], {"a": 1}, np.arange(3), object()):
        before = repr(thing)
        assert udfkit.map_if_possible(thing) is None
        assert repr(thing) == before


def test_special_float_patterns_are_part_of_the_noise():
    # The strategies promise NaN payloads, -0.0 and infinities; without them bit tests prove less.
    rng = np.random.default_rng(0)
    for dtype in ("float16", "float32", "float64"):
        noise = strategies.bit_noise(rng, (400,), dtype)
        bits = f"u{np.dtype(dtype).itemsize}"
        found = set(noise.view(bits).tolist())
        assert found >= set(strategies.special_floats(dtype).view(bits).tolist())
