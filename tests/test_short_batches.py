"""Short batches of plain arrays, which take one compiled call, against the way of all others."""

from __future__ import annotations

import gc
import pickle
import sys

import numpy as np
import pytest

import reference
import udfkit
from udfkit import memory, moves
from udfkit.kernels import pyobjects, pyobjects_flat, pyobjects_short

FLOAT32, INT64, INT8 = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.int8)
compiled = pytest.mark.skipif(pyobjects.why_plain is not None, reason="plain reading only")


def batch_of(lengths, sample_shape=(2,), dtype=np.float32):
    rng = np.random.default_rng(len(lengths))
    return [np.asarray(rng.integers(-99, 99, (n, *sample_shape)), dtype) for n in lengths]


@compiled
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u8", "?"])
@pytest.mark.parametrize("sample_shape", [(), (1,), (3, 2), (0,), (1,) * 20])
@pytest.mark.parametrize("lengths", [[3], [0], [0, 0], [5, 0, 1, 7], [4] * 9])
def test_pad_gives_lengths_data_and_mask(lengths, sample_shape, dtype):
    sequences = batch_of(lengths, sample_shape, dtype)
    made = pyobjects_short.pad(
        tuple(sequences), np.dtype(dtype), sample_shape, INT64, INT8, 1 << 18
    )
    data, mask = reference.pad(sequences, sample_shape, dtype)
    assert type(made) is list
    reference.assert_same(made[0], np.array(lengths, np.int64))
    reference.assert_same(made[1], data)
    reference.assert_same(made[2], mask)
    assert all(array.flags.owndata and array.flags.carray for array in made)


ODD = {
    "a list": [[1.0, 2.0]],
    "another dtype": np.ones((2, 2)),
    "another sample shape": np.ones((2, 3), np.float32),
    "another rank": np.ones(2, np.float32),
    "a subclass": np.ones((2, 2), np.float32).view(np.recarray),
    "Fortran order": np.ones((3, 2), np.float32, order="F"),
    "a slice": np.ones((3, 4), np.float32)[:, ::2],
    "other byte order": np.ones((2, 2), ">f4"),
    "None": None,
}


@compiled
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_anything_else_is_left_to_the_other_way(name, position):
    items = batch_of([2, 1])
    items.insert(position, ODD[name])
    assert pyobjects_short.pad(tuple(items), FLOAT32, (2,), INT64, INT8, 1 << 18) is None


@compiled
def test_no_batch_is_too_large_by_a_byte():
    items = tuple(batch_of([2, 5, 1]))
    needed = 3 * 5 * (2 * 4 + 1)
    assert pyobjects_short.pad(items, FLOAT32, (2,), INT64, INT8, needed) is not None
    assert pyobjects_short.pad(items, FLOAT32, (2,), INT64, INT8, needed - 1) is None
    assert pyobjects_short.pad((), FLOAT32, (2,), INT64, INT8, 1 << 18) is None
    assert pyobjects_short.pad(list(items), FLOAT32, (2,), INT64, INT8, 1 << 18) is None
    assert pyobjects_short.pad(items, FLOAT32, (2.0,), INT64, INT8, 1 << 18) is None
    assert pyobjects_short.pad(items, FLOAT32, (-1,), INT64, INT8, 1 << 18) is None
    assert pyobjects_short.pad(items, FLOAT32, (2**40,) * 3, INT64, INT8, 1 << 18) is None


@compiled
def test_unpad_gives_views_of_one_new_block():
    sequences = batch_of([3, 0, 5], (2, 2))
    data, _ = reference.pad(sequences, (2, 2), np.float32)
    lengths = np.array([3, 0, 5])
    made = pyobjects_short.unpad(data, lengths, INT64, 1 << 18)
    reference.assert_same_list(made, sequences)
    base = made[0].base
    assert all(view.base is base and view.flags.carray for view in made)
    assert not np.shares_memory(base, data)
    used = 8 * 4 * 4
    assert pyobjects_short.unpad(data, lengths, INT64, used) is not None
    assert pyobjects_short.unpad(data, lengths, INT64, used - 1) is None
    for bad in ([3, 0, 6], [3, -1, 5], [3, 0]):
        assert pyobjects_short.unpad(data, np.array(bad, np.int64), INT64, 1 << 18) is None
    assert pyobjects_short.unpad(data, lengths.astype(np.int32), INT64, 1 << 18) is None
    assert pyobjects_short.unpad(data[:, ::-1], lengths, INT64, 1 << 18) is None
    assert pyobjects_short.unpad(data[0, 0], lengths[:2], INT64, 1 << 18) is None


@compiled
def test_references_are_balanced():
    sequences = batch_of([3, 0, 5])
    items = tuple(sequences)
    lengths = np.array([3, 0, 5])
    data, _ = reference.pad(sequences, (2,), np.float32)
    things = [*sequences, items, FLOAT32, INT64, INT8, lengths, data, data.dtype, lengths.dtype]

    def counts():
        gc.collect()
        return [sys.getrefcount(thing) for thing in things]

    counts()
    before = counts()
    for _ in range(1000):
        pyobjects_short.pad(items, FLOAT32, (2,), INT64, INT8, 1 << 18)
        pyobjects_short.pad(items, FLOAT32, (2,), INT64, INT8, 8)
        pyobjects_short.pad((*items, None), FLOAT32, (2,), INT64, INT8, 1 << 18)
        pyobjects_short.unpad(data, lengths, INT64, 1 << 18)
        pyobjects_short.unpad(data, lengths, INT64, 8)
    # Others hold these dtypes too, now more, now fewer of them.
    assert all(abs(now - then) < 100 for now, then in zip(counts(), before, strict=True))


@pytest.mark.parametrize("lengths", [[3, 0, 5], [0], [1, 1]])
def test_both_ways_give_the_same(monkeypatch, lengths):
    sequences = batch_of(lengths, (3,))
    variable = udfkit.sequence.input_variable(3)

    def results():
        value = udfkit.sanitize_batch(variable, sequences)
        padded = udfkit.pad(sequences)
        back = udfkit.variable_value_to_seq(value, variable)
        return [value.data, value.mask, value.lengths, *padded, padded.lengths, *back], value

    short, value = results()
    monkeypatch.setattr(moves, "pad_short", lambda *_: None)
    monkeypatch.setattr("udfkit.sources.moves.pad_short", lambda *_: None)
    monkeypatch.setattr(moves, "padded_to_rows", lambda *_: None)
    usual, other = results()
    for got, expected in zip(short, usual, strict=True):
        reference.assert_same(got, expected)
        assert got.flags.writeable == expected.flags.writeable
    assert value.equals(other)
    assert (value.is_masked, repr(value)) == (other.is_masked, repr(other))


def test_the_limit_of_memory_holds_for_short_batches(monkeypatch):
    monkeypatch.setenv("UDFKIT_MAX_BYTES", "100")
    variable = udfkit.sequence.input_variable(3)
    with pytest.raises(udfkit.PaddedSizeError, match="100"):
        udfkit.sanitize_batch(variable, batch_of([3, 9], (3,)))
    with pytest.raises(udfkit.PaddedSizeError, match="100"):
        udfkit.pad(batch_of([3, 9], (3,)))
    assert memory.max_bytes() == 100


def flat_batch(lengths, sample_shape=(2,), dtype=np.float32):
    sequences = batch_of(lengths, sample_shape, dtype)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return sequences, np.concatenate(sequences), offsets


@compiled
@pytest.mark.parametrize("dtype", ["f2", "f8", "i1", "?"])
@pytest.mark.parametrize("sample_shape", [(), (3, 2), (0,)])
@pytest.mark.parametrize("lengths", [[3], [0, 0], [5, 0, 1, 7]])
@pytest.mark.parametrize("given", [False, True])
def test_flat_values_and_back(lengths, sample_shape, dtype, given):
    sequences, flat, offsets = flat_batch(lengths, sample_shape, dtype)
    data, mask = reference.pad(sequences, sample_shape, dtype)
    outs = [np.ones_like(data), np.full_like(mask, 9)] if given else [None, None]
    made = pyobjects_flat.pad_flat(flat, offsets, INT64, INT8, *outs, 1 << 18)
    assert type(made) is list
    reference.assert_same(made[0], np.array(lengths, np.int64))
    reference.assert_same(made[1], data)
    reference.assert_same(made[2], mask)
    assert [x is y for x, y in zip(made[1:], outs, strict=True)] == [given, given]
    for left in (0, 1):
        rows = data.copy()
        if left:
            for row, sequence in zip(rows, sequences, strict=True):
                row[:] = np.roll(row, len(row) - len(sequence), axis=0)
        out = np.ones_like(flat) if given else None
        back = pyobjects_flat.flatten(rows, made[0], INT64, out, left, 1 << 18)
        assert type(back) is list
        reference.assert_same(back[0], offsets)
        reference.assert_same(back[1], flat)
        assert (back[1] is out) == given


@compiled
def test_more_steps_come_with_the_output():
    sequences, flat, offsets = flat_batch([2, 0, 4])
    out = np.ones((3, 6, 2), np.float32)
    made = pyobjects_flat.pad_flat(flat, offsets, INT64, INT8, out, None, 1 << 18)
    assert made[1] is out
    assert made[2].tolist() == [[2, 1, 0, 0, 0, 0], [0] * 6, [2, 1, 1, 1, 0, 0]]
    for row, sequence in zip(out, sequences, strict=True):
        reference.assert_same(row[: len(sequence)], sequence)
        assert not row[len(sequence) :].any()


@compiled
def test_outputs_that_do_not_fit_are_left_to_the_other_way():
    _, flat, offsets = flat_batch([2, 0, 4])
    room = np.zeros(200, np.float32)
    fixed = np.zeros((3, 4, 2), np.float32)
    fixed.flags.writeable = False
    bad = [
        [1.0],
        room[:24].reshape(3, 4, 2).astype(np.float64),
        np.zeros((3, 3, 2), np.float32),
        np.zeros((2, 4, 2), np.float32),
        np.zeros((3, 4, 4), np.float32)[:, :, ::2],
        np.zeros((3, 4), np.float32),
        fixed,
    ]
    for out in bad:
        assert pyobjects_flat.pad_flat(flat, offsets, INT64, INT8, out, None, 1 << 18) is None
    for mask in ([1], np.zeros((3, 5), np.int8), np.zeros((3, 4), np.uint8), np.zeros(12, np.int8)):
        assert pyobjects_flat.pad_flat(flat, offsets, INT64, INT8, None, mask, 1 << 18) is None
    inside = np.zeros(60, np.float32)
    inside[:12] = flat.ravel()
    shared = inside[:12].reshape(6, 2)
    over = inside[11:35].reshape(3, 4, 2)
    apart = inside[12:36].reshape(3, 4, 2)
    codes = inside.view(np.int8)[48:60].reshape(3, 4)
    assert pyobjects_flat.pad_flat(shared, offsets, INT64, INT8, over, None, 1 << 18) is None
    assert pyobjects_flat.pad_flat(shared, offsets, INT64, INT8, apart, codes, 1 << 18) is None
    assert pyobjects_flat.pad_flat(shared, offsets, INT64, INT8, apart, None, 1 << 18) is not None
    needed = 3 * 4 * (2 * 4 + 1)
    assert pyobjects_flat.pad_flat(flat, offsets, INT64, INT8, None, None, needed) is not None
    assert pyobjects_flat.pad_flat(flat, offsets, INT64, INT8, None, None, needed - 1) is None
    data, lengths = apart.copy(), np.array([2, 0, 4])
    for out in ([1.0], np.zeros((5, 2), np.float32), np.zeros((6, 2)), data.reshape(-1, 2)[:6]):
        assert pyobjects_flat.flatten(data, lengths, INT64, out, 0, 1 << 18) is None
    for wrong in ([2, 0, 5], [2, -1, 4], [2, 0]):
        assert pyobjects_flat.flatten(data, np.array(wrong), INT64, None, 0, 1 << 18) is None


@compiled
def test_references_of_flat_batches_are_balanced():
    _, flat, offsets = flat_batch([2, 0, 4])
    lengths = np.diff(offsets)
    out, mask_out = np.zeros((3, 4, 2), np.float32), np.zeros((3, 4), np.int8)
    back = np.zeros_like(flat)
    things = [flat, offsets, lengths, out, mask_out, back, None, FLOAT32, INT64, INT8]

    def counts():
        gc.collect()
        return [sys.getrefcount(thing) for thing in things]

    counts()
    before = counts()
    for _ in range(1000):
        pyobjects_flat.pad_flat(flat, offsets, INT64, INT8, out, mask_out, 1 << 18)
        pyobjects_flat.pad_flat(flat, offsets, INT64, INT8, None, None, 1 << 18)
        pyobjects_flat.pad_flat(flat, offsets, INT64, INT8, back, None, 1 << 18)
        pyobjects_flat.flatten(out, lengths, INT64, back, 0, 1 << 18)
        pyobjects_flat.flatten(out, lengths, INT64, None, 1, 1 << 18)
        pyobjects_flat.flatten(out, lengths, INT64, out, 0, 1 << 18)
    assert all(abs(now - then) < 100 for now, then in zip(counts(), before, strict=True))


@pytest.mark.parametrize("rank", [28, 30, 31, 32, 40, 62])
def test_samples_of_many_axes(rank):
    if rank > 30 and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("NumPy 1 has 32 axes at most")
    shape = (1,) * rank
    data = np.arange(4.0, dtype=np.float32).reshape(2, 2, *shape)
    variable = udfkit.sequence.input_variable(shape)
    value = udfkit.Value(data, lengths=[2, 1])
    expected = [data[0], data[1, :1]]
    reference.assert_same_list(udfkit.variable_value_to_seq(value, variable), expected)
    reference.assert_same_list(list(udfkit.unpad(data, lengths=[2, 1])), expected)
    ragged = udfkit.unpad(data, lengths=[2, 1], layout="ragged")
    reference.assert_same(np.array(ragged.values), np.concatenate(expected))
    for batch in (expected, ragged):
        padded = udfkit.pad(batch)
        reference.assert_same(padded.data[0], data[0])
        assert not padded.data[1, 1].any()


@pytest.mark.parametrize("size", [2**60 - 1, 2**60, 2**62, 2**63 - 1])
def test_sizes_whose_products_wrap(size):
    with pytest.raises(ValueError, match="too big"):  # NumPy has no such array
        udfkit.pad([np.empty((0, size), np.int8)] * 16)
    assert udfkit.pad([np.empty((0, size), np.int8)]).data.shape == (1, 0, size)


@compiled
def test_vectors_out_of_a_pickle_count_as_vectors():
    sequences, flat, offsets = flat_batch([2, 0, 4])
    data, _ = reference.pad(sequences, (2,), np.float32)
    lengths, ends = pickle.loads(pickle.dumps([np.diff(offsets), offsets]))
    assert lengths.dtype is not INT64
    reference.assert_same_list(pyobjects_short.unpad(data, lengths, INT64, 1 << 18), sequences)
    made = pyobjects_flat.flatten(data, lengths, INT64, None, 0, 1 << 18)
    reference.assert_same(made[1], flat)
    assert pyobjects_flat.pad_flat(flat, ends, INT64, INT8, None, None, 1 << 18) is not None
    reference.assert_same_list(pyobjects.views(flat, lengths, (2,)), sequences)
