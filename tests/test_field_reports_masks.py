"""Faults that people met in other libraries while packing, unpacking and masking.

One test a fault. Those that cannot occur here, or are tested elsewhere, are in `ELSEWHERE`.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import reference
from checks import batch_variable, no_warning, raises, sequence_variable
from udfkit import Ragged, Value, sanitize_batch, variable_value_to_seq

F32 = np.float32

ELSEWHERE = {
    57: "cannot occur: no function has a maximum length, so nothing is ever cut off",
    71: "softmax over an empty sequence: test_field_reports_gradient.py",
    72: "gradients in the padding: test_field_reports_gradient.py",
    78: "cannot occur: see 57; padding is on the right unless a mask says otherwise",
    84: "results with new lengths: test_field_reports_dispatch.py",
    86: "GPU: all-invalid rows on the CPU are in test_empty.py",
    96: "compiled signatures are counted in test_field_reports_dispatch.py",
    104: "cannot occur: padding has no multiple; each Value carries one data and one mask",
    109: "cannot occur: kernels see flat buffers and int64 arrays, never a list of arrays",
    137: "cannot occur: boundaries are never guessed; a mask of ones is a continued sequence",
}


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


def numbers(*shape, dtype=F32):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def round_trip(lengths, shape=(2,), dtype=F32):
    batch = [numbers(length, *shape, dtype=dtype) for length in lengths]
    variable = sequence_variable(shape, dtype)
    value = sanitize_batch(variable, batch)
    reference.assert_same_list(variable_value_to_seq(value, variable), batch)
    return value


@pytest.mark.parametrize(
    "offsets", [[0, 3, 2], [1, 3], [0, 5], [0, np.iinfo(np.int64).min], [0, 6 * 10**18], [0, 9]]
)
def test_54_and_112_corrupt_offsets_never_reach_a_kernel(offsets):
    """Garbage offsets ended in the allocator, or in foreign memory."""
    with raises(ValueError, "position", fix=False):
        Ragged(numbers(4), offsets)


def test_55_offsets_do_not_wrap_in_the_dtype_of_the_lengths():
    """A cumulative sum in int32 or uint8 wrapped around."""
    value = Value(ones(2, 200, dtype=np.int8), lengths=np.array([200, 100], np.uint8))
    assert value.ragged().offsets.tolist() == [0, 200, 300]
    big = Ragged(np.broadcast_to(np.int8(0), (2**31,)), np.array([0, 2**31], np.uint32))
    assert big.lengths.tolist() == [2**31]


@pytest.mark.parametrize("shape", [(), (3,), (0,)], ids=str)
@pytest.mark.parametrize("lengths", [[], [0, 0], [0], [2, 0]])
def test_56_and_90_empty_batches_and_empty_values(lengths, shape):
    """Empty content read values[0], or launched an empty grid."""
    value = round_trip(lengths, shape)
    assert value.shape == (len(lengths), max(lengths, default=0), *shape)


def test_61_holes_at_both_ends_keep_t():
    """T came from the largest row sum of the mask."""
    rng = np.random.default_rng(0)
    mask = np.ones((4, 10), np.int8)
    for row, valid in enumerate((5, 7, 9, 9)):
        mask[row, rng.permutation(10)[: 10 - valid]] = 0
    data = numbers(4, 10)
    value = Value(data, mask)
    assert value.shape == value.asarray().shape == (4, 10)
    assert np.asarray(value.lengths).tolist() == [5, 7, 9, 9]
    reference.assert_same_list(value.as_sequences(), reference.unpad(data, mask))


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "uint8"])
def test_73_what_stands_in_the_padding_changes_nothing(dtype):
    """NaNs behind the valid range spread into the results."""
    dtype = np.dtype(dtype)
    poison = np.nan if dtype.kind == "f" else np.ones(1, dtype)[0] * (dtype.kind != "b" or 1)
    clean = numbers(3, 7, dtype=np.uint8).astype(dtype)
    mask = np.array([[2, 1, 0, 1, 0, 0, 0], [0] * 7, [0, 0, 2, 1, 1, 2, 1]], np.int8)
    dirty = np.where(mask != 0, clean, np.array(poison, dtype)).astype(dtype)
    left, right = Value(clean, mask), Value(dirty, mask)
    assert left.equals(right)
    reference.assert_same_list(right.as_sequences(), left.as_sequences())
    assert left.ragged().equals(right.ragged())
    values = np.full(24, np.nan, F32)
    values[:21] = 1
    trimmed = Ragged(values, [0, 21], trim=True)
    assert not np.isnan(sanitize_batch(sequence_variable(()), trimmed).data).any()


def test_76_floats_are_never_cut_to_integers():
    """A default dtype of int32 made zeros of [[0.2, 0.9]] without a word."""
    batch = [[0.2, 0.9], [-0.7]]
    got = sanitize_batch(sequence_variable((), np.float64), batch).data
    assert got.tolist() == [[0.2, 0.9], [-0.7, 0.0]]
    with raises(ValueError, 0, 0.2):
        sanitize_batch(sequence_variable((), np.int32), batch)


def test_80_samples_of_any_rank_come_with_a_mask():
    """Only scalar samples could be padded, and the mask had to be made by hand."""
    value = round_trip([2, 1], (4, 4))
    assert value.shape == (2, 2, 4, 4)
    assert value.mask.tolist() == [[2, 1], [2, 0]]


def test_88_empty_lists_have_the_dtype_that_is_asked_for():
    """A ragged constant without scalars got an undocumented dtype."""
    with raises(ValueError, "dtype="):
        Ragged.from_list([[], []])
    assert Ragged.from_list([[], []], dtype=F32, sample_shape=()).values.dtype == F32
    kept = Ragged.from_list([np.empty((0, 3), np.int16)] * 2)
    assert kept.values.dtype == np.int16
    assert kept.values.shape == (0, 3)


def test_91_every_cell_of_the_output_is_written(monkeypatch):
    """A buffer that was not fully overwritten showed stale data now and then."""
    real = np.empty

    def poisoned(*args, **kwargs):
        made = real(*args, **kwargs)
        made.view(np.uint8).reshape(-1)[...] = 0xA5 if made.dtype != bool else 1
        return made

    batch = [numbers(n, 3) + 1 for n in (3, 0, 1, 4)]
    data, mask = reference.pad(batch, (3,), F32)
    variable = sequence_variable((3,))
    monkeypatch.setattr(np, "empty", poisoned)
    for source in (batch, Ragged(np.concatenate(batch), [0, 3, 3, 4, 8])):
        value = sanitize_batch(variable, source)
        reference.assert_same(value.data, data)
        reference.assert_same(value.mask, mask)
        reference.assert_same_list(variable_value_to_seq(value, variable), batch)
    hot = Value.one_hot([[1, 2], [0]], 3)
    reference.assert_same(hot.data, np.array([[[0, 1, 0], [0, 0, 1]], [[1, 0, 0], [0] * 3]], F32))


@pytest.mark.parametrize("length", [30_000, 600_000])
def test_91_and_73_memory_that_was_used_before_is_written_again(length):
    """The twin of the test above for large arrays, whose memory may be one that was used before."""
    variable = sequence_variable((16,))
    for first, second in ((7.0, 3.0), (5.0, 2.0)):
        used = sanitize_batch(variable, [np.full((length, 16), first, F32)] * 2)
        assert used.data.min() == first
        del used
        batch = [np.full((length, 16), second, F32), np.full((length // 3, 16), second, F32)]
        value = sanitize_batch(variable, batch)
        assert (value.data[0] == second).all()
        assert (value.data[1, : length // 3] == second).all()
        assert not value.data[1, length // 3 :].view(np.uint32).any()
        got = variable_value_to_seq(value, variable)
        assert [len(sequence) for sequence in got] == [length, length // 3]
        assert all((sequence == second).all() for sequence in got)
        del value, got, batch


def test_93_object_arrays_are_refused_whatever_the_lengths():
    """np.array of a list gave other shapes, or an error, depending on the lengths."""
    whole = np.empty(2, object)
    whole[:] = [numbers(3, 2), numbers(4, 2)]
    with raises(ValueError, "list"):
        sanitize_batch(sequence_variable((2,)), whole)
    for batch in ([numbers(3, 2), numbers(4, 2)], [numbers(3, 2), numbers(3, 2)]):
        variable = sequence_variable((2,))
        got = variable_value_to_seq(sanitize_batch(variable, batch), variable)
        reference.assert_same_list(got, batch)
    with raises(ValueError, 1):
        sanitize_batch(sequence_variable((2,)), [numbers(3, 2), numbers(3, 4)])


def test_94_unsigned_lengths_and_offsets_never_become_floats():
    """uint64 beside int64 gave float64 indices, and differences that wrapped."""
    value = Value(ones(2, 3), lengths=np.array([3, 2], np.uint64))
    reference.assert_same(np.asarray(value.lengths), np.array([3, 2], np.int64))
    ragged = Ragged(ones(5), np.array([0, 3, 5], np.uint64))
    assert ragged.lengths.tolist() == [3, 2]
    assert ragged.lengths.dtype == np.int64
    with raises(ValueError, 2, 3):
        Ragged(ones(5), np.array([0, 5, 3], np.uint64))


def test_100_padding_twice_keeps_the_mask():
    """Padding what was padded gave a mask of ones."""
    variable = sequence_variable((2,))
    once = sanitize_batch(variable, [numbers(n, 2) for n in (3, 1)])
    twice = sanitize_batch(variable, once)
    assert twice is once
    again = sanitize_batch(variable, once.ragged())
    assert again.equals(once)
    reference.assert_same(again.mask, once.mask)


def test_101_the_mask_never_comes_from_the_numbers():
    """Real data that equals the padding value was eaten."""
    value = sanitize_batch(sequence_variable(()), [[0, 5, 0], [7], [0]])
    assert np.asarray(value.lengths).tolist() == [3, 1, 1]
    assert value.mask.tolist() == [[2, 1, 1], [2, 0, 0], [2, 0, 0]]


def test_106_float32_stays_float32():
    """Going through Python floats changed precision, and statistics included the padding."""
    rng = np.random.default_rng(0)
    batch = [rng.normal(size=n).astype(F32) for n in (16000, 12345)]
    variable = sequence_variable(())
    with no_warning():
        value = sanitize_batch(variable, batch)
    assert value.dtype == F32
    reference.assert_same(value.ragged().values, np.concatenate(batch))


def test_134_a_mask_and_lengths_that_contradict_are_refused():
    """Of two sources of the boundaries one won in silence."""
    with raises((ValueError, TypeError), "lengths"):
        Value(ones(1, 6), ones(1, 6, dtype=np.int8), lengths=[3])


def test_139_sequences_in_one_row_do_not_touch_each_other():
    """Changing one document in a row changed the next one."""
    mask = np.array([[2, 1, 1, 1, 2, 1]], np.int8)
    data = numbers(1, 6, 2)
    before = Value(data, mask).as_sequences()
    data = data.copy()
    data[0, :4] = -1
    after = Value(data, mask).as_sequences()
    assert not reference.same_bits(before[0], after[0])
    reference.assert_same(after[1], before[1])


def test_a_batch_only_variable_never_sees_a_sequence_axis():
    """The twin of 31: a batch of samples must not grow an axis either."""
    value = sanitize_batch(batch_variable((4,)), [ones(4), ones(4)])
    assert value.shape == (2, 4)
    assert value.mask.shape == (2,)


def test_every_report_is_tested_or_excused():
    """The table and the tests together cover each report that this file answers for."""
    wanted = {
        54,
        55,
        56,
        57,
        61,
        71,
        72,
        73,
        76,
        78,
        80,
        84,
        86,
        88,
        90,
        91,
        93,
        94,
        96,
        100,
        101,
        104,
        106,
        109,
        112,
        134,
        137,
        139,
    }
    leading = [re.match(r"test_((?:\d+_(?:and_)?)+)", name) for name in globals()]
    tested = {int(n) for found in leading if found for n in re.findall(r"\d+", found[1])}
    assert not tested & set(ELSEWHERE)
    assert tested | set(ELSEWHERE) == wanted
