"""`udfkit.fill_rows`: where first-fit decreasing puts each sequence, and the way back."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
import strategies as own
import udfkit
from checks import raises
from udfkit import PaddedSizeError, Ragged
from udfkit.filling import FilledRows, fill_rows


def naive_first_fit(
    lengths: list[int], row_length: int, continued: list[bool]
) -> list[list[tuple[int, int, int]]]:
    """Rows of (sequence, begin, length) by first-fit decreasing; rests and continued ones first."""
    pieces = []
    for k, length in enumerate(lengths):
        for begin in range(0, length, row_length):
            alone = begin > 0 or continued[k]
            pieces.append((not alone, k, begin, min(row_length, length - begin)))
    pieces.sort(key=lambda piece: (piece[0], -piece[3], piece[1], piece[2]))
    rows: list[list[tuple[int, int, int]]] = []
    for not_alone, k, begin, length in pieces:
        for row in rows if not_alone else []:
            if sum(piece[2] for piece in row) + length <= row_length:
                row.append((k, begin, length))
                break
        else:
            rows.append([(k, begin, length)])
    return rows


def check_against_naive(
    filled: FilledRows, sequences: list[np.ndarray], row_length: int, continued: list[bool]
) -> None:
    lengths = [len(x) for x in sequences]
    rows = naive_first_fit(lengths, row_length, continued)
    shape = (len(rows), row_length)
    sample = sequences[0].shape[1:] if sequences else filled.value.shape[2:]
    data = np.zeros((*shape, *sample), filled.value.dtype)
    mask, ids = np.zeros(shape, np.int8), np.zeros(shape, np.int32)
    positions = np.zeros(shape, np.int32)
    ends, order = [0], []
    bits = np.dtype(f"u{data.itemsize}")
    for r, row in enumerate(rows):
        cell = 0
        for number, (k, begin, length) in enumerate(row):
            for step in range(length):
                data.view(bits)[r, cell + step] = sequences[k].view(bits)[begin + step]
                mask[r, cell + step] = 1
                ids[r, cell + step] = number + 1
                positions[r, cell + step] = begin + step
            mask[r, cell] = 1 if begin or continued[k] else 2
            cell += length
            ends.append(ends[-1] + length)
            order.append(k)
    reference.assert_same(filled.value.data, data)
    reference.assert_same(filled.value.mask, mask)
    reference.assert_same(filled.segment_ids, ids)
    reference.assert_same(filled.positions, positions)
    reference.assert_same(filled.cu_seqlens, np.array(ends, np.int32))
    assert filled.order.tolist() == order
    assert filled.max_seqlen == max(np.diff(ends), default=0)
    reference.assert_same_list(filled.sequences(), sequences)


@own.SETTINGS
@given(
    sizes=st.lists(st.integers(0, 9), max_size=12),
    row_length=st.integers(1, 10),
    shape=st.sampled_from([(), (3,), (2, 0)]),
    dtype=st.sampled_from(own.DTYPES),
    data=st.data(),
)
def test_rows_are_those_of_first_fit_decreasing(sizes, row_length, shape, dtype, data):
    rng = np.random.default_rng(sum(sizes))
    sequences = [own.bit_noise(rng, (size, *shape), dtype) for size in sizes]
    starts = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    ragged = Ragged(reference.flat(sequences, shape, dtype), reference.offsets(sizes), starts)
    filled = fill_rows(ragged, row_length, split=True)
    check_against_naive(filled, sequences, row_length, [not start for start in starts])
    if max(sizes, default=0) <= row_length:
        filled = fill_rows(sequences, row_length, dtype=dtype, sample_shape=shape)
        check_against_naive(filled, sequences, row_length, [False] * len(sizes))


def test_long_tailed_lengths_fill_nearly_all_cells():
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(3.4, 1, 500), 1, 400).astype(int)
    sequences = [np.full(n, k, np.int32) for k, n in enumerate(lengths)]
    filled = fill_rows(sequences, 400)
    check_against_naive(filled, sequences, 400, [False] * 500)
    assert filled.filled > 0.95
    assert filled.filled == lengths.sum() / (filled.value.rows * 400)


def test_a_continued_piece_never_reads_as_part_of_its_neighbour():
    sequences = [np.arange(7), np.arange(10, 12), np.arange(20, 21)]
    filled = fill_rows(sequences, 4, split=True)
    value = filled.value
    pieces = reference.unpad(value.data, value.mask)
    assert sorted(len(piece) for piece in pieces) == [1, 2, 3, 4]
    begins = reference.starts_from_mask(value.mask)
    assert begins.tolist() == (filled.pieces.begin == 0).tolist()


@own.FEW
@given(sizes=st.lists(st.integers(0, 9), max_size=12), row_length=st.integers(1, 10))
def test_the_value_gives_the_batch_back(sizes, row_length):
    sequences = [np.arange(size, dtype=np.float32) + 100 * k for k, size in enumerate(sizes)]
    filled = fill_rows(sequences, row_length, split=True, dtype=np.float32, sample_shape=())
    variable = udfkit.sequence.input_variable(())
    value = udfkit.sanitize_batch(variable, filled.value)
    assert value is filled.value
    reference.assert_same_list(udfkit.variable_value_to_seq(value, variable), sequences)
    assert value.lengths.tolist() == sizes
    assert value.starts.all()
    copied = pickle.loads(pickle.dumps(value))
    assert copied.equals(value)
    reference.assert_same_list(copied.as_sequences(), sequences)
    reference.assert_same(pickle.loads(pickle.dumps(filled)).positions, filled.positions)


def test_a_user_function_over_filled_rows_sees_the_batch():
    class Double(udfkit.UserFunction):
        def forward(self, argument, device=None, outputs_to_retain=None):
            return None, [2 * x for x in argument]

        def backward(self, state, root_gradients):
            return [2 * x for x in root_gradients]

        def infer_outputs(self):
            return [udfkit.output_variable((), np.float32, self.inputs[0].dynamic_axes)]

    sequences = [np.arange(5, dtype=np.float32), np.ones(2, np.float32), np.zeros(0, np.float32)]
    function = Double([udfkit.sequence.input_variable((), needs_gradient=True)])
    filled = fill_rows(sequences, 4, split=True)
    made = function.eval(filled.value)
    reference.assert_same_list(made, [2 * x for x in sequences])


def test_flat_samples_go_row_by_row_and_come_back():
    sequences = [np.arange(n) for n in (1, 3, 0, 6, 2)]
    filled = fill_rows(sequences, 4, split=True)
    flat, bounds = filled.flat, filled.cu_seqlens.tolist()
    pieces = [
        sequences[source][begin : begin + length]
        for source, begin, length in zip(
            filled.order, filled.pieces.begin, filled.pieces.length, strict=True
        )
    ]
    for a, b, piece in zip(bounds[:-1], bounds[1:], pieces, strict=True):
        reference.assert_same(flat[a:b], piece)
    back = filled.sequences(np.stack([flat, -flat], axis=1), flat=True)
    for got, sequence in zip(back, sequences, strict=True):
        reference.assert_same(got, np.stack([sequence, -sequence], axis=1))
    with raises(ValueError, "(12,)", "(11,)"):
        filled.sequences(np.zeros(11), flat=True)
    with raises(ValueError, "flat", "pass data"):
        filled.sequences(flat=True)


def test_what_a_model_made_of_the_rows_comes_back():
    sequences = [np.arange(5.0), np.empty(0), np.arange(2.0), np.arange(3.0)]
    filled = fill_rows(sequences, 4, split=True)
    made = np.stack([filled.value.data * 2, filled.value.data + 1], axis=2)
    for got, sequence in zip(filled.sequences(made), sequences, strict=True):
        assert got.flags.writeable
        reference.assert_same(got, np.stack([sequence * 2, sequence + 1], axis=1))
    strided = made[:, :, ::-1]
    reference.assert_same(filled.sequences(strided)[2][:, 0], np.arange(2.0) + 1)
    with raises(ValueError, "(2, 4)", "(3, 4)"):
        filled.sequences(np.zeros((2, 4)))
    with raises(ValueError, "(1,)"):
        filled.sequences([1.0])


def test_changing_one_sequence_changes_no_other():
    first = fill_rows([np.zeros(4), np.ones(2)], 6)
    second = fill_rows([np.full(4, 9.0), np.ones(2)], 6)
    same = first.segment_ids == first.segment_ids[0, -1]
    reference.assert_same(first.value.data[same], second.value.data[same])
    attend = first.segment_ids[:, :, None] == first.segment_ids[:, None, :]
    assert not attend[0, :4, 4:].any()


def test_empty_batches_and_sequences():
    for batch in ([], [[], []]):
        filled = fill_rows(batch, 4, dtype=np.float32, sample_shape=3)
        assert filled.value.shape == (0, 4, 3)
        assert filled.cu_seqlens.tolist() == [0]
        assert filled.positions.shape == filled.segment_ids.shape == (0, 4)
        assert [x.shape for x in filled.sequences()] == [(0, 3)] * len(batch)
        assert filled.filled == 1.0
    assert fill_rows([np.empty(0)], 0).value.shape == (0, 0)
    assert [len(x) for x in fill_rows([[1], [], [2]], 1).sequences()] == [1, 0, 1]


def test_wide_numbers_when_they_do_not_fit(monkeypatch):
    monkeypatch.setattr("udfkit.filling.INT32_MAX", 5)
    filled = fill_rows([np.arange(7), np.arange(2)], 4, split=True)
    assert filled.cu_seqlens.dtype == np.int64
    assert filled.positions.dtype == np.int64
    assert filled.positions.tolist() == [[4, 5, 6, 0], [0, 1, 2, 3], [0, 1, 0, 0]]


def test_many_threads_give_the_same(monkeypatch):
    monkeypatch.setenv("UDFKIT_NUM_THREADS", "3")
    rng = np.random.default_rng(5)
    sequences = [rng.standard_normal((n, 64), np.float32) for n in rng.integers(1, 300, 150)]
    filled = fill_rows(sequences, 512)
    assert filled.value.data.nbytes > 4 << 20
    reference.assert_same_list(filled.sequences(), sequences)
    cells = filled.pieces.row * 512 + filled.pieces.column
    flat = filled.value.data.reshape(-1, 64)
    for cell, length, source in zip(cells, filled.pieces.length, filled.order, strict=True):
        reference.assert_same(flat[cell : cell + length], sequences[source])
    assert not flat[(filled.value.mask == 0).reshape(-1)].any()


def test_results_cannot_be_changed_by_accident():
    filled = fill_rows([[1, 2], [3]], 4)
    for vector in (*filled.pieces, filled.lengths, filled.value.data):
        assert not vector.flags.writeable
    assert repr(filled) == "FilledRows(2 sequences in 1 rows of 4, 75.0% filled)"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (([[1, 2], [1, 2, 3]], 2), ["sequence 1", "3", "2", "split=True"]),
        (([[1]], 0), ["sequence 0", "1"]),
        (([[1]], -1), ["row_length", "-1"]),
        (([[1]], 2.0), ["row_length", "2.0"]),
        (([[1]], True), ["row_length", "True"]),
        (([np.zeros((1, 2)), np.zeros((1, 3))], 4), ["sequence 1", "(1, 3)"]),
    ],
    ids=str,
)
def test_bad_input(arguments: Any, parts: list[str]):
    with raises(ValueError, *parts):
        fill_rows(*arguments)


def test_a_row_length_of_zero_cannot_split():
    with raises(ValueError, "sequence 0"):
        fill_rows([[1]], 0, split=True)


def test_rows_over_the_limit(monkeypatch):
    monkeypatch.setenv("UDFKIT_MAX_BYTES", "1000")
    with raises(PaddedSizeError, "1,000"):
        fill_rows([[1.0]], 500)


@pytest.mark.parametrize("steps", [2**40, 2**62, 2**63 - 1])
def test_rows_that_no_memory_holds(steps):
    with raises(PaddedSizeError, f"{steps:,}"):
        fill_rows([[1]], steps)


def test_rows_longer_than_any_index():
    with raises(ValueError, "row_length", 2**63):
        fill_rows([[1]], 2**63)


def test_a_sample_shape_of_numpy_integers():
    for shape in (np.int64(3), (np.int64(3),), np.array([3])):
        assert fill_rows([[[1, 2, 3]]], 2, sample_shape=shape).value.shape == (1, 2, 3)
