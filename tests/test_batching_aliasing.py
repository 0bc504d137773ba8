"""No memory is shared where the contract forbids it, and inputs stay as they were."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
import strategies
from checks import batch_variable, plain_variable, sequence_variable
from udfkit import Ragged, Value, sanitize_batch, variable_value_to_seq


def scribble(array):
    """Overwrite an array with other bytes."""
    array[...] = ~array if array.dtype == bool else np.array(77, array.dtype)


def sources(batch):
    """The buffers behind a batch, made writable again where the test made them read-only."""
    for sequence in batch.sequences:
        base = sequence
        while isinstance(base.base, np.ndarray):
            base = base.base
        if base.flags.owndata:
            base.flags.writeable = True
        if base.flags.writeable:
            yield base


@strategies.SETTINGS
@given(batch=strategies.batches())
def test_inputs_are_never_changed(batch):
    variable = sequence_variable(batch.shape, batch.dtype)
    before = [sequence.tobytes() for sequence in batch.sequences]
    flags = [sequence.flags.writeable for sequence in batch.sequences]
    starts = list(batch.starts)
    value = sanitize_batch(variable, batch.sequences, seq_starts=batch.starts)
    for sequence in variable_value_to_seq(value, variable):
        scribble(sequence)
    scribble(value.asarray())
    assert [sequence.tobytes() for sequence in batch.sequences] == before
    assert [sequence.flags.writeable for sequence in batch.sequences] == flags
    assert batch.starts == starts


@pytest.mark.parametrize("copy", [True, False])
@strategies.SETTINGS
@given(batch=strategies.batches())
def test_a_value_never_aliases_a_list_of_arrays(copy, batch):
    # copy=False may alias a Ragged, a rectangle or a device array; a list is none of them.
    variable = sequence_variable(batch.shape, batch.dtype)
    value = sanitize_batch(variable, batch.sequences, copy=copy)
    for source in sources(batch):
        scribble(source)
    data, _ = reference.pad(batch.expected, batch.shape, batch.dtype)
    reference.assert_same(value.data, data)
    reference.assert_same_list(variable_value_to_seq(value, variable), batch.expected)


@strategies.SETTINGS
@given(batch=strategies.batches(layouts=["C"]))
def test_a_value_does_not_alias_a_ragged_by_default(batch):
    variable = sequence_variable(batch.shape, batch.dtype)
    values = reference.flat(batch.expected, batch.shape, batch.dtype)
    offsets = reference.offsets(batch.lengths)
    starts = np.array(batch.starts, bool)
    value = sanitize_batch(variable, Ragged(values, offsets, starts=starts))
    scribble(values)
    offsets[:] = 0
    starts[:] = ~starts
    data, mask = reference.pad(batch.expected, batch.shape, batch.dtype, batch.starts)
    reference.assert_same(value.data, data)
    reference.assert_same(value.mask, mask)
    reference.assert_same_list(variable_value_to_seq(value, variable), batch.expected)


@pytest.mark.parametrize("kind", ["sequence", "batch", "none"])
def test_a_value_does_not_alias_a_rectangle_by_default(kind):
    whole = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = whole.copy()
    variable = {
        "sequence": sequence_variable(()),
        "batch": batch_variable((3,)),
        "none": plain_variable((2, 3)),
    }[kind]
    value = sanitize_batch(variable, whole)
    assert not np.shares_memory(value.data, whole)
    scribble(whole)
    reference.assert_same(value.data, expected)
    again = variable_value_to_seq(value, variable)
    reference.assert_same(np.stack(again) if kind == "sequence" else again, expected)


@strategies.SETTINGS
@given(case=strategies.padded())
def test_sequences_share_memory_with_nothing(case):
    data, mask = case
    variable = sequence_variable(data.shape[2:], data.dtype)
    value = Value(data.copy(), mask)
    first = variable_value_to_seq(value, variable)
    second = variable_value_to_seq(value, variable)
    third = value.as_sequences(variable)
    expected = reference.unpad(data, mask)
    every = [*first, *second, *third]
    for i, left in enumerate(every):
        assert not np.shares_memory(left, value.data)
        assert not any(np.shares_memory(left, right) for right in every[i + 1 :])
    for sequence in first:
        scribble(sequence)
    reference.assert_same_list(second, expected)
    reference.assert_same_list(third, expected)
    reference.assert_same_list(variable_value_to_seq(value, variable), expected)
    valid = mask != 0
    reference.assert_same(value.asarray()[valid], data[valid])


@strategies.FEW
@given(batch=strategies.batches(), form=st.sampled_from(["list", "ragged", "rectangle"]))
def test_copy_false_gives_the_same_value_and_fresh_sequences(batch, form):
    variable = sequence_variable(batch.shape, batch.dtype)
    if form == "list":
        source = list(batch.sequences)
    elif form == "ragged":
        source = Ragged(
            reference.flat(batch.expected, batch.shape, batch.dtype),
            reference.offsets(batch.lengths),
        )
    else:
        source = reference.pad(batch.expected, batch.shape, batch.dtype)[0]
    borrowed = sanitize_batch(variable, source, copy=False)
    owned = sanitize_batch(variable, source)
    assert borrowed.equals(owned)
    reference.assert_same(borrowed.data, owned.data)
    sequences = variable_value_to_seq(borrowed, variable)
    for sequence in sequences:
        assert not np.shares_memory(sequence, borrowed.data)
        scribble(sequence)
    assert borrowed.equals(owned)


@pytest.mark.parametrize("form", ["ragged", "rectangle", "batch", "none"])
def test_copy_false_keeps_its_source_alive(form):
    def make():
        whole = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
        if form == "ragged":
            variable = sequence_variable((3,))
            source = Ragged(whole.reshape(8, 3), np.array([0, 3, 8]))
        elif form == "rectangle":
            variable, source = sequence_variable((3,)), whole
        elif form == "batch":
            variable, source = batch_variable((4, 3)), whole
        else:
            variable, source = plain_variable((2, 4, 3)), whole
        return variable, sanitize_batch(variable, source, copy=False)

    variable, value = make()
    gc.collect()
    # Blocks of the same size, to overwrite the source if it had been freed.
    churn = [np.full(24, -1, np.float32) for _ in range(64)]
    result = variable_value_to_seq(value, variable)
    got = np.concatenate(result) if isinstance(result, list) else result
    np.testing.assert_array_equal(got.ravel(), np.arange(24))
    assert len(churn) == 64


def test_copy_false_copies_what_has_to_be_cast_or_moved():
    whole = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1]
    value = sanitize_batch(sequence_variable(()), whole, copy=False)
    np.testing.assert_array_equal(value.data, [[2, 1, 0], [5, 4, 3]])
    assert value.data.flags.c_contiguous


def test_copy_false_leaves_the_source_writable_and_the_value_read_only():
    whole = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = sanitize_batch(sequence_variable(()), whole, copy=False)
    assert whole.flags.writeable
    with pytest.raises(ValueError):
        value.data[0, 0] = 9


@pytest.mark.parametrize("form", ["list", "rectangle"])
def test_a_batch_only_result_is_fresh_each_time(form):
    whole = np.arange(6, dtype=np.float32).reshape(2, 3)
    variable = batch_variable((3,))
    value = sanitize_batch(variable, list(whole) if form == "list" else whole)
    first, second = variable_value_to_seq(value, variable), variable_value_to_seq(value, variable)
    assert first.flags.writeable
    assert first.flags.c_contiguous
    scribble(first)
    reference.assert_same(second, whole)
    reference.assert_same(value.data, whole)


def test_asarray_is_a_fresh_writable_copy():
    value = Value(np.ones((2, 3), np.float32), lengths=[3, 1])
    first = value.asarray()
    scribble(first)
    for again in (value.asarray(), value.data):
        np.testing.assert_array_equal(again, [[1, 1, 1], [1, 0, 0]])


@pytest.mark.parametrize("layout", ["mask", "lengths", "none"])
def test_the_arguments_of_a_value_are_not_aliased(layout):
    data, mask, lengths = (
        np.ones((2, 3)),
        np.array([[2, 1, 1], [2, 0, 0]], np.int8),
        np.array([3, 1]),
    )
    value = {
        "mask": lambda: Value(data, mask),
        "lengths": lambda: Value(data, lengths=lengths),
        "none": lambda: Value(data),
    }[layout]()
    before, cells = value.asarray(), value.mask.copy()
    scribble(data)
    mask[:] = 0
    lengths[:] = 0
    reference.assert_same(value.data, before)
    reference.assert_same(value.mask, cells)


def test_data_and_mask_are_read_only():
    value = Value(np.ones((2, 3), np.float32), lengths=[3, 1])
    for array in (value.data, value.mask, value.lengths, value.starts):
        assert not np.asarray(array).flags.writeable
