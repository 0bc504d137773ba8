"""Moving samples on a device, against the naive reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from strategies import EDGE_LENGTHS, bit_noise
from udfkit.kernels import cuda_arrays, cuda_launch, cuda_moves
from udfkit.kernels.cuda_arrays import DeviceView, download, read_array, upload

RUNS_INTERPRETED = True

SAMPLES = [
    ((), np.float32, 4),
    ((), np.int8, 1),
    ((3,), np.float16, 2),
    ((3,), np.float64, 8),
    ((4,), np.float32, 16),
    ((2, 3), np.float64, 16),
]


def batch(lengths: list[int], shape: tuple[int, ...], dtype: Any, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [bit_noise(rng, (length, *shape), dtype) for length in lengths]


def starts_of(count: int) -> Any:
    return np.arange(count) % 3 != 1


@pytest.mark.parametrize("lengths", EDGE_LENGTHS, ids=str)
@pytest.mark.parametrize("with_starts", [False, True])
def test_padding_flat_values(launched: Any, lengths: list[int], with_starts: bool) -> None:
    sequences = batch(lengths, (4,), np.float32)
    starts = starts_of(len(lengths)) if with_starts else None
    data, mask = cuda_moves.ragged_to_padded(
        upload(reference.flat(sequences, (4,), np.float32)),
        upload(reference.offsets(lengths)),
        max(lengths, default=0),
        None if starts is None else upload(starts),
    )
    expected = reference.pad(sequences, (4,), np.float32, starts)
    reference.assert_same(download(data), expected[0])
    reference.assert_same(download(mask), expected[1])
    assert launched.names == ["ragged_to_padded"] * (max(lengths, default=0) > 0)


@pytest.mark.parametrize(("shape", "dtype", "width"), SAMPLES)
@pytest.mark.parametrize("lengths", [[5, 0, 2], [30, 31]], ids=str)
def test_every_width_both_ways(
    launched: Any, shape: tuple[int, ...], dtype: Any, width: int, lengths: list[int]
) -> None:
    sequences = batch(lengths, shape, dtype)
    values = reference.flat(sequences, shape, dtype)
    offsets = upload(reference.offsets(lengths))
    data, mask = cuda_moves.ragged_to_padded(upload(values), offsets, max(lengths))
    expected = reference.pad(sequences, shape, dtype)
    reference.assert_same(download(data), expected[0])
    reference.assert_same(download(mask), expected[1])
    back = cuda_moves.padded_to_ragged(data, offsets, sum(lengths))
    reference.assert_same(download(back), values)
    assert [launch[:2] for launch in launched.launches] == [
        ("ragged_to_padded", width),
        ("padded_to_ragged", width),
    ]


@pytest.mark.parametrize(("skew", "width"), [(0, 16), (8, 8), (4, 4), (2, 2), (1, 1)])
def test_width_falls_with_the_alignment_of_the_input(launched: Any, skew: int, width: int) -> None:
    values = bit_noise(np.random.default_rng(1), (6, 32), np.uint8)
    memory = np.zeros(values.nbytes + skew, np.uint8)
    memory[skew:] = values.ravel()
    block = read_array(upload(memory), "memory")
    assert block.address % 16 == 0
    flat = block.part(skew, values.shape, np.uint8)
    data, _ = cuda_moves.ragged_to_padded(flat, upload(np.array([0, 2, 6])), 4)
    reference.assert_same(
        download(data), reference.pad([values[:2], values[2:]], (32,), np.uint8)[0]
    )
    assert launched.launches[0][1] == width


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_samples_without_elements_still_have_a_mask(launched: Any, shape: tuple[int, ...]) -> None:
    lengths = [2, 0, 3]
    values = upload(np.zeros((5, *shape), np.float32))
    data, mask = cuda_moves.ragged_to_padded(values, upload(reference.offsets(lengths)), 3)
    assert tuple(data.shape) == (3, 3, *shape)
    reference.assert_same(download(mask), reference.mask(lengths, [True] * 3, 3))
    back = cuda_moves.padded_to_ragged(data, upload(reference.offsets(lengths)), 5)
    assert tuple(back.shape) == (5, *shape)


def test_rows_longer_than_the_padded_data_are_cut(launched: Any) -> None:
    sequences = batch([5, 2], (3,), np.float32)
    data, mask = cuda_moves.ragged_to_padded(
        upload(reference.flat(sequences, (3,), np.float32)), upload(np.array([0, 5, 7])), 3
    )
    expected = reference.pad([s[:3] for s in sequences], (3,), np.float32)
    reference.assert_same(download(data), expected[0])
    reference.assert_same(download(mask), expected[1])


def test_offsets_that_decrease_write_nothing_outside(launched: Any) -> None:
    # Offsets on a device are not checked before their use: a negative length counts as none.
    data, mask = cuda_moves.ragged_to_padded(
        upload(np.ones((6, 3), np.float32)), upload(np.array([0, 4, 2, 6])), 4
    )
    reference.assert_same(download(mask), reference.mask([4, 0, 4], [True] * 3, 4))
    assert not download(data)[1].any()


@pytest.mark.parametrize(
    ("offsets", "starts", "text"),
    [
        (np.array([0, 2], np.int32), None, "offsets has dtype int32, expected int64: cast it"),
        (np.array([0, 2]), np.array([1], np.int64), "starts has dtype int64, expected bool: cast"),
    ],
)
def test_wrong_dtypes_are_named(offsets: Any, starts: Any, text: str) -> None:
    values = upload(np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match=text):
        cuda_moves.ragged_to_padded(
            values, upload(offsets), 2, None if starts is None else upload(starts)
        )


@pytest.mark.parametrize("lengths", [c for c in EDGE_LENGTHS if c], ids=str)
def test_list_of_device_arrays(launched: Any, lengths: list[int]) -> None:
    sequences = batch(lengths, (2, 2), np.float64)
    arrays = [upload(sequence) for sequence in sequences]
    starts = starts_of(len(lengths))
    data, mask = cuda_moves.rows_to_padded(arrays, max(lengths), starts)
    expected = reference.pad(sequences, (2, 2), np.float64, starts)
    reference.assert_same(download(data), expected[0])
    reference.assert_same(download(mask), expected[1])
    values, offsets = cuda_moves.rows_to_ragged(arrays)
    reference.assert_same(download(values), reference.flat(sequences, (2, 2), np.float64))
    reference.assert_same(download(offsets), reference.offsets(lengths))
    assert len(launched.names) <= 2


def test_list_of_unlike_arrays_is_refused() -> None:
    arrays = [upload(np.zeros((2, 3), np.float32)), upload(np.zeros((2, 4), np.float32))]
    with pytest.raises(ValueError, match=r"sequence 1 has shape \(2, 4\).*make them equal"):
        cuda_moves.rows_to_padded(arrays, 2)


def test_host_batch_crosses_in_one_block(launched: Any) -> None:
    lengths = [2, 0, 3]
    sequences = batch(lengths, (3,), np.float32)
    starts = np.array([True, False, False])
    staged = cuda_moves.Staged(reference.offsets(lengths), (3,), np.float32, starts)
    staged.values[:] = reference.flat(sequences, (3,), np.float32)
    values, offsets, new = staged.send()
    data, mask = cuda_moves.ragged_to_padded(values, offsets, 3, new)
    expected = reference.pad(sequences, (3,), np.float32, starts)
    reference.assert_same(download(data), expected[0])
    reference.assert_same(download(mask), expected[1])
    assert values.owner is offsets.owner is new.owner


def test_pinned_memory_is_used_again() -> None:
    staging = cuda_arrays.Staging()
    block = staging.take(100)
    staging.send(block, 100)
    cuda_arrays.cuda_target.module().synchronize()
    assert staging.take(50) is block
    assert staging.take(50) is not block


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_round_trip(data: Any) -> None:
    lengths = data.draw(st.lists(st.integers(0, 6), max_size=6))
    shape, dtype, _ = data.draw(st.sampled_from(SAMPLES))
    sequences = batch(lengths, shape, dtype, data.draw(st.integers(0, 99)))
    offsets = upload(reference.offsets(lengths))
    steps = max(lengths, default=0) + data.draw(st.integers(0, 2))
    values = reference.flat(sequences, shape, dtype)
    padded, mask = cuda_moves.ragged_to_padded(upload(values), offsets, steps)
    back = cuda_moves.padded_to_ragged(padded, offsets, sum(lengths))
    reference.assert_same(download(back), values)
    reference.assert_same(download(mask), reference.mask(lengths, [True] * len(lengths), steps))


def test_positions_past_32_bits_take_the_wide_variant(
    launched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The 64-bit variant itself, on a batch that both can do.
    monkeypatch.setattr(cuda_moves, "needs_wide", lambda *_: True)
    lengths = [9, 0, 4]
    sequences = batch(lengths, (3,), np.float32)
    values = reference.flat(sequences, (3,), np.float32)
    offsets = upload(reference.offsets(lengths))
    padded, _ = cuda_moves.ragged_to_padded(upload(values), offsets, 9)
    reference.assert_same(download(padded), reference.pad(sequences, (3,), np.float32)[0])
    back = cuda_moves.padded_to_ragged(padded, offsets, sum(lengths))
    reference.assert_same(download(back), values)
    assert [launch[2] for launch in launched.launches] == [True, True]


def test_bfloat16_as_opaque_two_byte_samples(launched: Any) -> None:
    raw = bit_noise(np.random.default_rng(3), (5, 2), np.uint16).view(np.dtype("V2"))
    flat = read_array(upload(raw.view(np.uint16)), "values")
    opaque = DeviceView(flat.address, raw.shape, raw.dtype, flat.owner)
    data, _ = cuda_moves.ragged_to_padded(opaque, upload(np.array([0, 2, 5])), 3)
    got = download(data)
    assert got.dtype.itemsize == 2
    expected = reference.pad([raw.view("u2")[:2], raw.view("u2")[2:]], (2,), np.uint16)[0]
    reference.assert_same(got.view(np.uint16), expected)
    assert cuda_launch.width_for([4]) == launched.launches[0][1]
