"""`udfkit.pad` and `udfkit.unpad` against loops that can be checked by reading."""

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
from udfkit import Ragged, Value
from udfkit.padding import Padded, pad, unpad
from udfkit.unpadding import Unpadded


def expected_pad(
    sequences: list[np.ndarray],
    steps: int,
    side: str,
    value: Any,
    starts: list[bool] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Padded data and mask, cell by cell; the bits of samples are moved as integers."""
    shape, dtype = sequences[0].shape[1:], sequences[0].dtype
    data = np.full((len(sequences), steps, *shape), value, dtype)
    mask = np.zeros((len(sequences), steps), np.int8)
    bits = np.dtype(f"u{dtype.itemsize}")
    for row, sequence in enumerate(sequences):
        begin = steps - len(sequence) if side == "left" else 0
        for step in range(len(sequence)):
            data.view(bits)[row, begin + step] = sequence.view(bits)[step]
            mask[row, begin + step] = 1
        if len(sequence) and (starts is None or starts[row]):
            mask[row, begin] = 2
    return data, mask


def arrays(*lengths: int, dtype: Any = np.float32, shape: tuple[int, ...] = (2,)) -> list[Any]:
    rng = np.random.default_rng(sum(lengths))
    return [own.bit_noise(rng, (length, *shape), dtype) for length in lengths]


@pytest.mark.parametrize("side", ["left", "right"])
@own.SETTINGS
@given(batch=own.batches(), extra=st.integers(0, 3))
def test_pad_and_back(side, batch, extra):
    if not batch.sequences:
        return
    steps = max(batch.lengths) + extra
    padded = pad(batch.sequences, side=side, steps=steps)
    data, mask = expected_pad(batch.expected, steps, side, 0)
    reference.assert_same(padded.data, data)
    reference.assert_same(padded.mask, mask)
    back = unpad(padded)
    reference.assert_same_list(list(back), batch.expected)
    again = pad(back)
    reference.assert_same(again.data, data)
    reference.assert_same(again.mask, mask)
    reference.assert_same_list(list(unpad(*padded)), batch.expected)
    by_lengths = unpad(padded.data, lengths=batch.lengths, side=side)
    reference.assert_same_list(list(by_lengths), batch.expected)


@pytest.mark.parametrize("side", ["left", "right"])
@own.FEW
@given(batch=own.batches(layouts=["C"]))
def test_starts_of_a_ragged_are_in_the_mask_and_come_back(side, batch):
    ragged = Ragged(
        reference.flat(batch.expected, batch.shape, batch.dtype),
        reference.offsets(batch.lengths),
        batch.starts,
    )
    padded = pad(ragged, side=side)
    if batch.sequences:
        data, mask = expected_pad(batch.expected, max(batch.lengths), side, 0, batch.starts)
        reference.assert_same(padded.mask, mask)
        reference.assert_same(padded.data, data)
    assert unpad(padded, layout="ragged").equals(ragged)
    assert pad(unpad(padded)).mask.tobytes() == padded.mask.tobytes()


@own.SETTINGS
@given(rectangle=own.padded())
def test_unpad_reads_any_mask(rectangle):
    data, mask = rectangle
    expected = reference.unpad(data, mask)
    reference.assert_same_list(list(unpad(data, mask)), expected)
    ragged = unpad(data, mask, layout="ragged")
    assert ragged.lengths.tolist() == reference.lengths_from_mask(mask).tolist()
    assert ragged.starts.tolist() == reference.starts_from_mask(mask).tolist()


@pytest.mark.parametrize("dtype", own.DTYPES, ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("shape", [(), (3,), (700,)], ids=str)
def test_padding_value_in_every_dtype(dtype, side, shape):
    value = {"b": True, "u": 5, "i": -7, "f": 0.25}[dtype.kind]
    sequences = arrays(3, 0, 12, 1, dtype=dtype, shape=shape)
    padded = pad(sequences, side=side, padding_value=value)
    data, mask = expected_pad(sequences, 12, side, value)
    reference.assert_same(padded.data, data)
    reference.assert_same(padded.mask, mask)


def test_padding_value_keeps_its_sign_and_payload():
    zero = pad(arrays(1, 2, dtype=np.float64), padding_value=-0.0).data[0, 1]
    assert np.signbit(zero).all()
    assert np.isnan(pad(arrays(1, 2), padding_value=np.nan).data[0, 1]).all()
    assert np.isposinf(pad(arrays(1, 2), padding_value=np.inf).data[0, 1]).all()
    largest = pad([np.zeros(1, np.uint64), np.zeros(2, np.uint64)], padding_value=2**64 - 1)
    assert largest.data[0, 1] == np.uint64(2**64 - 1)


def test_the_padding_value_may_be_real_data():
    padded = pad([[0, 5, 0], [7]])
    assert padded.lengths.tolist() == [3, 1]
    assert [x.tolist() for x in unpad(padded)] == [[0, 5, 0], [7]]


def test_floats_stay_floats():
    assert pad([[0.2, 0.9], [-0.7]]).data.tolist() == [[0.2, 0.9], [-0.7, 0.0]]
    assert pad([np.zeros(5, np.float32), np.zeros(3, np.float32)]).data.dtype == np.float32
    assert pad([np.zeros(5, np.float32)], dtype=np.float64).data.dtype == np.float64


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 5),
        ({"steps": 9}, 9),
        ({"multiple_of": 4}, 8),
        ({"multiple_of": 5}, 5),
        ({"buckets": [16, 4, 8]}, 8),
        ({"buckets": [5, 10]}, 5),
        ({"max_length": 7}, 5),
        ({"max_length": 7, "multiple_of": 8}, 8),
        ({"steps": 9, "max_length": 5}, 9),
    ],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_number_of_steps(options, steps, side):
    sequences = arrays(5, 2, 0)
    padded = pad(sequences, side=side, **options)
    data, mask = expected_pad(sequences, steps, side, 0)
    assert padded.steps == steps
    reference.assert_same(padded.data, data)
    reference.assert_same(padded.mask, mask)
    reference.assert_same_list(list(unpad(padded)), sequences)
    assert pad(unpad(padded)).steps == steps


@pytest.mark.parametrize("options", [{"max_length": 3}, {"steps": 3}, {"buckets": [1, 3]}])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("overflow", ["truncate_left", "truncate_right"])
def test_truncation(options, side, overflow):
    sequences = arrays(5, 2, 0, 3)
    cut = [x[-3:] if overflow == "truncate_left" else x[:3] for x in sequences]
    padded = pad(sequences, side=side, overflow=overflow, **options)
    data, mask = expected_pad(cut, 3, side, 0)
    reference.assert_same(padded.data, data)
    reference.assert_same(padded.mask, mask)
    reference.assert_same_list(list(unpad(padded)), cut)


def test_nothing_left_after_truncation():
    padded = pad(arrays(2, 1), steps=0, overflow="truncate_right")
    assert padded.data.shape == (2, 0, 2)
    assert [x.shape for x in unpad(padded)] == [(0, 2), (0, 2)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_twice_changes_nothing(side):
    once = pad(arrays(3, 0, 1), side=side, steps=6)
    for twice in (pad(once), pad(once.data, once.mask), pad(unpad(once)), pad(once, dtype="f4")):
        assert twice.side == side
        reference.assert_same(twice.data, once.data)
        reference.assert_same(twice.mask, once.mask)
    assert pad(once, multiple_of=4).steps == 8
    assert pad(once, max_length=4).steps == 4
    other = pad(once, side="left" if side == "right" else "right")
    assert other.steps == 6
    reference.assert_same_list(list(unpad(other)), list(unpad(once)))


@pytest.mark.parametrize(
    "make",
    [
        lambda xs: xs,
        tuple,
        Ragged.from_list,
        lambda xs: Value(*pad(xs)),
        lambda xs: [x.tolist() for x in xs],
        lambda xs: [memoryview(x) for x in xs],
        lambda xs: [np.asfortranarray(x) for x in xs],
        lambda xs: [x[::-1][::-1] for x in xs],
        lambda xs: [x.astype(x.dtype.newbyteorder()) for x in xs],
    ],
    ids=["list", "tuple", "Ragged", "Value", "lists", "buffers", "F", "view", "swapped"],
)
def test_what_a_batch_can_be(make):
    sequences = [np.arange(6.0).reshape(3, 2), np.arange(2.0).reshape(1, 2)]
    padded = pad(make(sequences))
    reference.assert_same(padded.data, expected_pad(sequences, 3, "right", 0)[0])


def test_one_object_array_and_one_rectangle():
    ragged = np.empty(2, object)
    ragged[:] = [np.ones(3), np.ones(1)]
    assert pad(ragged).lengths.tolist() == [3, 1]
    rectangle = np.arange(12.0).reshape(2, 3, 2)
    for laid_out in (rectangle, np.asfortranarray(rectangle), rectangle[:, ::-1][:, ::-1]):
        padded = pad(laid_out, steps=4)
        reference.assert_same(padded.data[:, :3], rectangle)
        assert padded.mask.tolist() == [[2, 1, 1, 0]] * 2
    assert pad(rectangle.astype(">f8")).data.dtype.isnative


def test_batches_without_a_sequence_axis_and_flat_arrays():
    value = udfkit.sanitize_batch(udfkit.input_variable(2), np.ones((3, 2), np.float32))
    padded = pad(value, steps=2)
    assert padded.lengths.tolist() == [1, 1, 1]
    assert pad(unpad(value)).steps == 1
    assert pad(np.arange(3)).data.tolist() == [[0], [1], [2]]
    assert pad(np.zeros((2, 3), np.float32), dtype=np.float64).data.dtype == np.float64


def test_one_hot_values_are_made_dense():
    value = Value.one_hot([[1, 0], [2]], 3)
    assert pad(value).data[0].tolist() == [[0, 1, 0], [1, 0, 0]]
    assert [x.shape for x in unpad(value)] == [(2, 3), (1, 3)]


def test_several_sequences_a_row_become_one_a_row():
    value = Value(np.arange(8.0).reshape(2, 4), np.array([[2, 1, 2, 0], [0, 2, 1, 1]]))
    padded = pad(value)
    assert padded.data.tolist() == [[0, 1, 0], [2, 0, 0], [5, 6, 7]]
    assert unpad(value).steps == 4


def test_ragged_views_and_casts():
    ragged = Ragged(np.arange(12.0).reshape(6, 2)[:, ::-1], [0, 4, 6])
    plain = Ragged(np.ascontiguousarray(ragged.values), [0, 4, 6])
    reference.assert_same(pad(ragged).data, pad(plain).data)
    assert pad(ragged, dtype=np.int8).data.tolist() == pad(ragged).data.tolist()
    reference.assert_same(pad(plain[1:]).data[0], plain[1])

    class Named(Ragged):
        pass

    reference.assert_same(pad(Named(plain.values, [0, 4, 6])).data, pad(plain).data)


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_a_model_made_takes_the_place_of_the_data(side):
    sequences = [np.arange(n * 2, dtype=np.float32).reshape(n, 2) + 1 for n in (3, 1)]
    padded = pad(sequences, side=side)
    padded.data = np.stack([padded.data * 2, padded.data], axis=3).astype(np.float64)[:, :, ::-1]
    for got, sequence in zip(unpad(padded), sequences, strict=True):
        expected = np.stack([sequence * 2, sequence], axis=2).astype(np.float64)[:, ::-1]
        reference.assert_same(got, np.ascontiguousarray(expected))
    reference.assert_same(pad(padded).data, np.ascontiguousarray(padded.data))
    padded.data = padded.data[:, :2]
    with raises(ValueError, "3", "2"):
        unpad(padded)
    with raises(ValueError, "3", "(2, 2, 2, 2)"):
        pad(padded)


def test_one_odd_item_among_plain_ones():
    sequences = arrays(*range(50))
    odd = list(sequences)
    odd[17] = np.asfortranarray(odd[17])
    odd[31] = odd[31][::-1][::-1]
    reference.assert_same(pad(odd).data, pad(sequences).data)


def test_empty_batches():
    padded = pad([], dtype=np.float32, sample_shape=3)
    assert padded.data.shape == (0, 0, 3)
    assert unpad(padded) == []
    assert pad([], dtype="f4", sample_shape=(), steps=4).data.shape == (0, 4)
    assert pad([np.empty((0, 3), np.float32)] * 2).data.shape == (2, 0, 3)
    assert pad([[], []], dtype="i4").mask.shape == (2, 0)
    assert pad(arrays(0, 0), steps=2).mask.tolist() == [[0, 0], [0, 0]]
    assert pad(arrays(2, 1, shape=(0,))).data.shape == (2, 2, 0)
    assert pad(np.empty((0, 4, 2))).data.shape == (0, 4, 2)
    assert pad(np.empty((0, 4, 2)), dtype="i4").data.dtype == np.int32
    assert pad(np.empty(0)).data.shape == (0, 1)
    again = pad(pad([], dtype="i2", sample_shape=3, steps=4))
    assert again.data.shape == (0, 4, 3)
    assert again.data.dtype == np.int16


@pytest.mark.parametrize("side", ["left", "right"])
def test_out_is_filled_and_returned(side):
    sequences = arrays(3, 0, 1)
    out = np.full((3, 5, 2), 9, np.float32)
    mask_out = np.full((3, 5), 9, np.int8)
    padded = pad(sequences, side=side, out=out, mask_out=mask_out)
    assert padded.data is out
    assert padded.mask is mask_out
    data, mask = expected_pad(sequences, 5, side, 0)
    reference.assert_same(out, data)
    reference.assert_same(mask_out, mask)


def test_unpacking_pickling_and_printing():
    padded = pad(arrays(3, 1), side="left")
    data, mask = padded
    assert data is padded.data
    assert mask is padded.mask
    assert len(padded) == 2
    assert repr(padded) == "Padded(2 sequences, float32 (2, 3, 2), padding on the left)"
    copied = pickle.loads(pickle.dumps(padded))
    assert isinstance(copied, Padded)
    reference.assert_same_list(list(unpad(copied)), list(unpad(padded)))
    sequences = pickle.loads(pickle.dumps(unpad(padded)))
    assert isinstance(sequences, Unpadded)
    assert (sequences.steps, sequences.side) == (3, "left")


def test_sequences_have_memory_of_their_own():
    padded = pad(arrays(3, 1))
    before = padded.data.copy()
    for sequence in unpad(padded):
        assert sequence.flags.writeable
        assert sequence.flags.c_contiguous
        sequence[...] = 5
    reference.assert_same(padded.data, before)


def test_inputs_are_never_changed():
    sequences = arrays(3, 1)
    copies = [x.copy() for x in sequences]
    padded = pad(sequences)
    padded.data[...] = 1
    reference.assert_same_list(sequences, copies)


def test_unpad_a_value_and_lengths_of_any_integer_dtype():
    data, mask = pad(arrays(3, 0, 1), steps=4)
    expected = arrays(3, 0, 1)
    assert unpad(Value(data, mask)).steps == 4
    reference.assert_same_list(list(unpad(Value(data, mask))), expected)
    for dtype in (np.uint8, np.int32, np.uint64, np.int64):
        lengths = np.array([3, 0, 1], dtype)
        reference.assert_same_list(list(unpad(data, lengths=lengths)), expected)
    swapped = data.astype(data.dtype.newbyteorder())
    reference.assert_same_list(list(unpad(swapped, mask != 0)), expected)
    reference.assert_same_list(
        list(unpad(data[:, :, ::-1], mask.astype("u8"))), [x[:, ::-1] for x in expected]
    )


def test_large_batches_in_several_threads(monkeypatch):
    monkeypatch.setenv("UDFKIT_NUM_THREADS", "3")
    rng = np.random.default_rng(3)
    sequences = [rng.standard_normal((n, 64), np.float32) for n in rng.integers(0, 200, 200)]
    for side in ("left", "right"):
        for value in (0, 1.5):
            padded = pad(sequences, side=side, padding_value=value)
            assert padded.data.nbytes > 8 << 20
            data, mask = expected_pad(sequences, padded.steps, side, value)
            reference.assert_same(padded.data, data)
            reference.assert_same(padded.mask, mask)
            reference.assert_same_list(list(unpad(padded)), sequences)


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_large_outputs_with_little_valid(monkeypatch, threads, side):
    monkeypatch.setenv("UDFKIT_NUM_THREADS", threads)
    sequences = [np.full((n, 256), n, np.float32) for n in (3, 1, 0, 9000, 2)]
    out = np.full((5, 9000, 256), 7, np.float32)
    padded = pad(sequences, side=side, out=out)
    for row, sequence in zip(out, sequences, strict=True):
        begin = 9000 - len(sequence) if side == "left" else 0
        assert (row[begin : begin + len(sequence)] == len(sequence)).all()
        assert np.count_nonzero(row) == len(sequence) * 256
    reference.assert_same_list(list(unpad(padded)), sequences)


def test_zeroed_pages_and_used_memory_give_the_same():
    sequences = [np.ones((n, 1024), np.float32) for n in (600, 10, 7500)]
    for value in (0, 3, 0):
        data = pad(sequences, padding_value=value).data
        assert data.nbytes > 64 << 20
        for row, sequence in zip(data, sequences, strict=True):
            assert (row[: len(sequence)] == 1).all()
            assert (row[len(sequence) :] == value).all()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("layout", ["list", "ragged"])
def test_unpad_into_given_memory(side, layout):
    sequences = arrays(3, 0, 5)
    padded = pad(sequences, side=side, steps=6)
    spread = np.zeros((1, 8), np.int8)
    spread[0, [1, 2, 5]] = 1
    general = np.arange(16.0).reshape(1, 8, 2)
    cases = [
        ((padded,), {}, sequences),
        ((padded.data,), {"lengths": [3, 0, 5], "side": side}, sequences),
        (tuple(padded), {}, sequences),
        ((Value(padded.data, padded.mask),), {}, sequences),
        ((general, spread), {}, [general[0, [1, 2, 5]]]),
    ]
    for given_, options, expected in cases:
        flat = np.concatenate(expected)
        out = np.full(flat.shape, 9, flat.dtype)
        made = unpad(*given_, **options, layout=layout, out=out)
        reference.assert_same(out, flat)
        reference.assert_same_list([np.array(x) for x in made], expected)
        assert all(np.shares_memory(x, out) for x in made if len(x))
        assert out.flags.writeable


def test_unpad_refuses_memory_that_does_not_fit():
    padded = pad(arrays(3, 5))
    room = np.zeros((9, 2), np.float32)
    read_only = np.zeros((8, 2), np.float32)
    read_only.flags.writeable = False
    bad = {
        "expected an ndarray float32": [room, room[:8].astype(float), [1.0], room[:7]],
        "C-contiguous": [np.zeros((8, 4), np.float32)[:, ::2], read_only],
        "overlaps": [padded.data.reshape(-1, 2)[2:10]],
    }
    with raises(ValueError, "out", "overlaps"):
        unpad(padded.data[:, :4], lengths=[3, 4], out=padded.data.reshape(-1, 2)[2:9])
    before = padded.data.copy()
    for text, outs in bad.items():
        for out in outs:
            with raises(ValueError, "out", text):
                unpad(padded, out=out)
    reference.assert_same(padded.data, before)
    assert not room.any()


def test_lengths_inside_the_memory_for_samples_are_read_first():
    memory_of_both = np.array([2, 1, 7])
    data = np.array([[10, 20], [30, 40]])
    out = unpad(data, lengths=memory_of_both[:2], out=memory_of_both)
    assert [x.tolist() for x in out] == [[10, 20], [30]]


def test_outputs_with_a_mask_of_their_own_are_refused():
    padded = pad(arrays(3, 5))
    with raises(TypeError, "out", "masked array", "pass"):
        unpad(padded, out=np.ma.zeros((8, 2), np.float32))
    with raises(TypeError, "out", "masked array", "pass"):
        pad(arrays(3, 5), out=np.ma.zeros((2, 5, 2), np.float32))
    room = np.zeros((8, 2), np.float32).view(np.recarray)
    assert all(type(x) is np.ndarray for x in unpad(padded, out=room))


def test_starts_are_never_shared():
    data = np.arange(6.0).reshape(2, 3)
    padded = pad(Value(data, lengths=[3, 2], starts=[False, True]))
    sequences = unpad(padded)
    sequences.starts[0] = True
    assert unpad(padded).starts.tolist() == [False, True]
    again = pad(sequences)
    sequences.starts[1] = False
    assert unpad(again).starts.tolist() == [True, True]
