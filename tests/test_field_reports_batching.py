"""Faults that people met in other libraries while packing, unpacking and masking.

One test a fault. Those that cannot occur here, or are tested elsewhere, are in `ELSEWHERE`.
"""

from __future__ import annotations

import gc
import re
import tracemalloc

import numpy as np
import pytest
import scipy.sparse

import reference
import strategies
import udfkit
from checks import no_warning, raises, sequence_variable
from udfkit import Ragged, Value, sanitize_batch, variable_value_to_seq

F32 = np.float32

ELSEWHERE = {
    4: "a batch-only output: test_field_reports_dispatch.py",
    8: "starts through a user function: test_field_reports_dispatch.py",
    18: "speed: a benchmark, not a test; the batch is packed once a call",
    22: "inputs of unequal lengths: test_field_reports_dispatch.py",
    35: "documentation: the contract's worked example is tested in test_batching.py",
    42: "GPU: on the CPU there is one device, and lengths are always host arrays",
    43: "GPU half: lengths and offsets are host arrays of any integer dtype (test_value.py)",
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


def test_2_an_argument_is_always_a_list_whatever_the_lengths():
    """The container switched between list and array when all lengths happened to agree."""
    for lengths in ([2, 2], [3, 2], [4], [1], [1, 1, 1], []):
        variable = sequence_variable((2,))
        value = sanitize_batch(variable, [ones(n, 2) for n in lengths])
        assert type(variable_value_to_seq(value, variable)) is list
        assert type(value.as_sequences()) is list


def test_6_sparse_conversion_keeps_nothing_between_calls():
    """Memory grew with every minibatch that held one-hot labels."""
    variable = sequence_variable((10,), is_sparse=True)
    batch = [scipy.sparse.csr_matrix(np.eye(10, dtype=F32)[:n]) for n in (5, 2)]

    def run(times):
        for _ in range(times):
            value = sanitize_batch(variable, batch)
            variable_value_to_seq(value, variable)
            _ = value.data

    run(20)
    gc.collect()
    tracemalloc.start()
    try:
        run(50)
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        run(300)
        gc.collect()
        second = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # One batch kept a call would be more than 300 * 280 bytes.
    assert second - first < 20_000


def test_19_data_with_more_steps_than_the_longest_sequence():
    """A mask was built to max(lengths), so data with T above it was refused."""
    data = numbers(2, 10, 5)
    value = Value(data, lengths=[3, 7])
    assert value.mask.shape == (2, 10)
    assert value.data.shape == (2, 10, 5)
    reference.assert_same_list(value.as_sequences(), [data[0, :3], data[1, :7]])


def test_20_flat_values_and_lengths_are_public():
    """Users had to fold over ones to get the lengths of a batch."""
    value = sanitize_batch(sequence_variable((2,)), [numbers(2, 2), numbers(3, 2)])
    ragged = value.ragged()
    assert ragged.values.shape == (5, 2)
    assert ragged.offsets.tolist() == [0, 2, 5]
    assert ragged.lengths.tolist() == [2, 3]


def test_24_the_warning_names_the_variable_and_comes_once():
    """A dtype warning was repeated each step and did not say which argument it meant."""
    x, weights = sequence_variable((), name="x"), sequence_variable((), name="weights")
    with no_warning():
        sanitize_batch(x, [ones(2)])
    with pytest.warns(udfkit.CastWarning, match="weights"):
        sanitize_batch(weights, [np.ones(2)])
    with no_warning():
        sanitize_batch(x, [ones(2)])
        sanitize_batch(weights, [np.ones(2)])


def test_28_a_list_of_csr_matrices_is_accepted_by_every_entry_point():
    """The documented form raised NotImplementedError, nested rows gave an AttributeError."""
    batch = [scipy.sparse.csr_matrix(np.eye(10, dtype=F32)[:n]) for n in (3, 2)]
    variable = sequence_variable((10,), is_sparse=True)
    assert Value.create(variable, batch).equals(sanitize_batch(variable, batch))
    with raises(TypeError):
        sanitize_batch(variable, [[scipy.sparse.csr_matrix((1, 10), dtype=F32)] * 3])


def test_29_indices_of_a_million_classes_stay_small():
    """Going through dense rows made reading sparse labels slow and large."""
    tracemalloc.start()
    try:
        value = Value.one_hot([[1, 5], [4]], 10**6)
        got = value.as_sequences(sequence_variable((10**6,), is_sparse=True))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [matrix.indices.tolist() for matrix in got] == [[1, 5], [4]]
    # One dense row is 4 MB; importing scipy.sparse inside the call is allowed for.
    assert peak < 3_000_000


def test_30_a_one_hot_value_is_checked_against_the_declared_shape():
    """A dense input fed with one-hot indices failed later, on a confusing reshape."""
    value = Value.one_hot([list(range(7))] * 10, 4 + 3)
    with raises(ValueError) as caught:
        sanitize_batch(sequence_variable((7, 4)), value)
    assert "(7, 4)" in str(caught.value)


@pytest.mark.parametrize("lengths", [[1, 1, 1], [1], [0, 1, 0, 1], [0, 1, 0, 2]])
def test_31_and_135_one_time_step_keeps_all_axes(lengths):
    """T = 1 was taken for 'no sequence axis', after hours of training."""
    value = round_trip(lengths, (4,))
    assert value.shape == (len(lengths), max(lengths), 4)
    assert value.mask.shape == value.shape[:2]


def test_36_a_packed_batch_carries_its_starts():
    """Start flags could be given with lists only, not with ready-made values."""
    value = Value(ones(2, 3), lengths=[3, 2], starts=[True, False])
    assert np.asarray(value.starts).tolist() == [True, False]
    assert value.mask.tolist() == [[2, 1, 1], [1, 1, 0]]
    assert sanitize_batch(sequence_variable(()), value) is value


@pytest.mark.parametrize("lengths", [[0, 3, 0, 2, 0], [0, 0], [3, 2, 0], [0], [0, 5]])
def test_37_and_38_zero_lengths_round_trip(lengths):
    """Zero lengths were refused, and before that gave silently wrong packs."""
    value = round_trip(lengths)
    assert np.asarray(value.lengths).tolist() == lengths


def test_39_lengths_above_t_are_an_error_and_a_larger_t_is_kept():
    """Data behind the longest sequence vanished without a word."""
    data = numbers(3, 5, 3)
    assert Value(data, lengths=[4, 2, 3]).shape == (3, 5, 3)
    with raises(ValueError, 0, 6, 5):
        Value(data, lengths=[6, 2, 3])


def test_40_a_part_of_a_batch_keeps_its_number_of_steps():
    """T became the maximum of a shard, so the caller's mask did not fit any more."""
    data, mask = reference.pad([ones(n) for n in (6, 3, 2, 1)], (), F32)
    part = Value(data[2:], mask[2:])
    assert part.shape == part.mask.shape == (2, 6)
    assert part.asarray().shape == (2, 6)


def test_45_left_padding_is_read_as_what_it_says():
    """Left padding needed flips, and one helper flipped the wrong axis."""
    sequences = [numbers(3, 2), numbers(1, 2) + 9, numbers(0, 2)]
    data, mask = np.full((3, 4, 2), np.nan, F32), np.zeros((3, 4), np.int8)
    for row, sequence in enumerate(sequences):
        if len(sequence):
            data[row, -len(sequence) :] = sequence
            mask[row, -len(sequence) :] = 1
            mask[row, -len(sequence)] = 2
    value = Value(data, mask)
    reference.assert_same_list(value.as_sequences(), sequences)
    assert np.asarray(value.starts).all()


def test_46_every_sequence_is_checked_not_only_the_first():
    """The sample shape came from the first sequence; a later (n, 1) was broadcast in silence."""
    with raises(ValueError, 1):
        sanitize_batch(sequence_variable((3,)), [numbers(2, 3), numbers(4, 1)])
    with raises(ValueError, 0):
        sanitize_batch(sequence_variable((3,)), [np.empty(0, F32), numbers(2, 3)])
    with raises(ValueError, 1):
        Ragged.from_list([numbers(2, 3), numbers(4, 1)])


def test_47_the_mask_has_one_dtype_and_one_polarity():
    """Every project had its own mask of lengths; dtype, polarity and T differed."""
    value = Value(ones(3, 4), lengths=[2, 0, 3])
    reference.assert_same(value.mask, np.array([[2, 1, 0, 0], [0, 0, 0, 0], [2, 1, 1, 0]], np.int8))


def test_48_layouts_are_equal_by_content():
    """A batch padded and unpadded again counted as another raggedness."""
    ragged = Ragged.from_list([numbers(n, 2) for n in (1, 1, 2)])
    variable = sequence_variable((2,))
    again = sanitize_batch(variable, ragged).ragged()
    assert again.equals(ragged)
    assert ragged.equals(again)


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (31,), (33,), (256,)], ids=str)
def test_49_every_dtype_and_odd_sample_size_is_exact(dtype, shape):
    """Unpadding was right for float64 and wrong for narrower dtypes of odd widths."""
    rng = np.random.default_rng(3)
    batch = [strategies.bit_noise(rng, (n, *shape), dtype) for n in (3, 1, 0, 4)]
    variable = sequence_variable(shape, dtype)
    value = sanitize_batch(variable, batch)
    data, _mask = reference.pad(batch, shape, dtype)
    reference.assert_same(value.data, data)
    reference.assert_same_list(variable_value_to_seq(value, variable), batch)


def test_52_53_sizes_above_two_to_the_31_are_counted_in_64_bits():
    """32-bit strides refused large batches, or wrote outside the buffer."""
    # Half a million classes times 5,000 steps: 2.5e9 cells, none of which is made.
    value = Value.one_hot([[0] * 5000, [499_999] * 4000], 500_000)
    assert value.shape == (2, 5000, 500_000)
    ragged = Ragged(np.broadcast_to(F32(1), (2**33,)), [0, 2**32 + 1, 2**33])
    assert ragged.lengths.tolist() == [2**32 + 1, 2**32 - 1]
    assert ragged[-1:].lengths.tolist() == [2**32 - 1]


def test_every_report_is_tested_or_excused():
    """The table and the tests together cover each report that this file answers for."""
    wanted = {
        2,
        4,
        6,
        8,
        18,
        19,
        20,
        22,
        24,
        28,
        29,
        30,
        31,
        35,
        36,
        37,
        38,
        39,
        40,
        42,
        43,
        45,
        46,
        47,
        48,
        49,
        52,
        53,
        135,
    }
    leading = [re.match(r"test_((?:\d+_(?:and_)?)+)", name) for name in globals()]
    tested = {int(n) for found in leading if found for n in re.findall(r"\d+", found[1])}
    assert not tested & set(ELSEWHERE)
    assert tested | set(ELSEWHERE) == wanted
