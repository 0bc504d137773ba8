"""Masks, lengths and sparse samples on a device, against the naive reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from strategies import EDGE_LENGTHS, bit_noise, masks
from udfkit.kernels import cuda_launch, cuda_mask_moves
from udfkit.kernels.cuda_arrays import DeviceView, download, upload

RUNS_INTERPRETED = True

MASKS = {
    "right-padded": [[2, 1, 1], [2, 0, 0], [2, 1, 0]],
    "continued": [[1, 1, 0], [2, 1, 1]],
    "gaps": [[2, 0, 1, 0, 1], [0, 0, 2, 1, 0]],
    "several in a row": [[2, 1, 2, 2, 1, 1, 1, 2, 1], [1, 1, 2, 0, 0, 2, 0, 1, 1]],
    "all invalid": [[0, 0], [0, 0], [0, 0]],
    "empty rows between": [[2, 1], [0, 0], [1, 2], [0, 0]],
    "left padding, continued": [[0, 0, 1, 1], [0, 1, 2, 1]],
    "no steps": [[], []],
    "one cell": [[1]],
}


def cells_of(name: str) -> Any:
    rows = MASKS[name]
    return np.array(rows, np.int8).reshape(len(rows), len(rows[0]))


@pytest.mark.parametrize("lengths", EDGE_LENGTHS, ids=str)
@pytest.mark.parametrize("extra", [0, 5])
def test_mask_of_lengths(launched: Any, lengths: list[int], extra: int) -> None:
    starts = np.arange(len(lengths)) % 2 == 0
    steps = max(lengths, default=0) + extra
    made = cuda_mask_moves.mask_of(upload(np.array(lengths, np.int64)), upload(starts), steps)
    reference.assert_same(download(made), reference.mask(lengths, list(starts), steps))
    assert launched.names == ["mask_from_lengths"] * (steps > 0 and len(lengths) > 0)


@pytest.mark.parametrize("steps", [16, 8, 4, 2, 1, 21, 40])
def test_mask_of_every_width(launched: Any, steps: int) -> None:
    lengths = [0, 1, steps // 2, steps - 1, steps, 3 if steps > 3 else 0]
    made = cuda_mask_moves.mask_of(upload(np.array(lengths, np.int64)), None, steps)
    reference.assert_same(download(made), reference.mask(lengths, [True] * 6, steps))
    assert launched.launches[0][1] == cuda_launch.width_for([steps])


@pytest.mark.parametrize("name", MASKS)
def test_lengths_and_starts_of_a_mask(launched: Any, name: str) -> None:
    cells = cells_of(name)
    read = cuda_mask_moves.read_mask(upload(cells))
    lengths, starts = reference.lengths_from_mask(cells), reference.starts_from_mask(cells)
    assert (read.count, read.total) == (len(lengths), int(lengths.sum()))
    reference.assert_same(download(read.lengths), lengths)
    reference.assert_same(download(read.starts), starts)
    counts = [int((row != 0).sum()) for row in cells]
    reference.assert_same(download(read.row_offsets), reference.offsets(counts))
    again = ["lengths_from_mask"] * (not read.contiguous)
    assert launched.names == ["scan_mask", "offsets_from_lengths", *again]


@pytest.mark.parametrize(
    ("rows", "contiguous"),
    [
        ([[2, 1, 0], [1, 1, 1]], True),
        ([[0, 0], [2, 0]], True),
        ([[2, 0, 1]], False),
        ([[0, 2, 1]], False),
        ([[2, 2, 0]], False),
        ([[1, 1, 2]], False),
    ],
)
def test_contiguous_rows(rows: list[list[int]], contiguous: bool) -> None:
    read = cuda_mask_moves.read_mask(upload(np.array(rows, np.int8)))
    assert read.contiguous is contiguous


@pytest.mark.parametrize("bad", [3, -1, -128])
def test_bad_mask_value_is_found_at_its_place(bad: int) -> None:
    cells = np.ones((3, 6), np.int8)
    cells[1, 4] = cells[1, 5] = cells[2, 0] = bad
    with pytest.raises(ValueError, match=rf"mask value {bad} at \(1, 4\): expected 0"):
        cuda_mask_moves.read_mask(upload(cells))


def test_mask_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"int32, expected int8 \(rows, steps\): reshape or cast"):
        cuda_mask_moves.read_mask(upload(np.ones((2, 2), np.int32)))


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("right-padded", (12,), np.float32),
        ("continued", (3,), np.float64),
        ("gaps", (), np.int8),
        ("several in a row", (3,), np.float16),
        ("all invalid", (), np.float32),
        ("empty rows between", (2, 4), np.float32),
        ("left padding, continued", (0,), np.float32),
        ("one cell", (3,), np.float32),
    ],
)
def test_cells_both_ways(name: str, shape: tuple[int, ...], dtype: Any, launched: Any) -> None:
    cells = cells_of(name)
    padded = bit_noise(np.random.default_rng(4), (*cells.shape, *shape), dtype)
    mask = upload(cells)
    read = cuda_mask_moves.read_mask(mask)
    before = len(launched.names)
    values = cuda_mask_moves.cells_to_ragged(upload(padded), mask, read.row_offsets, read.total)
    expected = reference.flat(reference.unpad(padded, cells), shape, dtype)
    reference.assert_same(download(values), expected)
    back = cuda_mask_moves.ragged_to_cells(values, mask, read.row_offsets)
    padded[cells == 0] = 0
    reference.assert_same(download(back), padded)
    assert len(launched.names) - before == (padded.size > 0) + (values.size > 0)


def test_long_rows_are_cut_into_segments(launched: Any) -> None:
    cells = np.random.default_rng(5).integers(0, 3, (1, 37)).astype(np.int8)
    padded = bit_noise(np.random.default_rng(6), (1, 37, 2), np.float16)
    mask = upload(cells)
    read = cuda_mask_moves.read_mask(mask)
    values = cuda_mask_moves.cells_to_ragged(upload(padded), mask, read.row_offsets, read.total)
    reference.assert_same(
        download(values), reference.flat(reference.unpad(padded, cells), (2,), np.float16)
    )
    assert launched.launches[-1][3].grid[1] == 3


@settings(max_examples=8, deadline=None)
@given(cells=masks(max_rows=3), seed=st.integers(0, 99))
def test_any_mask(cells: Any, seed: int) -> None:
    mask = upload(cells)
    read = cuda_mask_moves.read_mask(mask)
    reference.assert_same(download(read.lengths), reference.lengths_from_mask(cells))
    reference.assert_same(download(read.starts), reference.starts_from_mask(cells))
    padded = bit_noise(np.random.default_rng(seed), (*cells.shape, 3), np.float32)
    values = cuda_mask_moves.cells_to_ragged(upload(padded), mask, read.row_offsets, read.total)
    expected = reference.flat(reference.unpad(padded, cells), (3,), np.float32)
    reference.assert_same(download(values), expected)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 70, 150])
def test_offsets_of_any_number_of_lengths(launched: Any, count: int) -> None:
    lengths = np.random.default_rng(count).integers(0, 9, count)
    offsets, findings = cuda_mask_moves.offsets_of(upload(lengths))
    reference.assert_same(download(offsets), reference.offsets(lengths))
    assert cuda_mask_moves.check_offsets(findings) == lengths.sum()
    assert len(launched.names) == (1 if count <= 32 else 2)


@pytest.mark.parametrize(
    ("lengths", "position"),
    [
        ([1, -1, 2, -3], 1),
        ([2**63 - 1, 0, 1, 5], 2),
        ([2**62, 2**62 - 1, 0, 1, -1], 3),
        ([0] * 40 + [-1], 40),
        ([2**61] * 60, 3),
    ],
)
def test_bad_length_is_found(lengths: list[int], position: int) -> None:
    _, findings = cuda_mask_moves.offsets_of(upload(np.array(lengths, np.int64)))
    with pytest.raises(ValueError, match=f"position {position} is negative, or"):
        cuda_mask_moves.check_offsets(findings)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64, np.int64])
@pytest.mark.parametrize("columns", [1, 3, 4, 16])
def test_one_hot(launched: Any, dtype: Any, columns: int) -> None:
    codes = np.array([0, -1, columns - 1, columns // 2, -1], np.int64)
    made = cuda_mask_moves.one_hot_to_dense(upload(codes), columns, dtype)
    skip = 2**32 - 1
    indices = np.where(codes < 0, skip, codes)
    (expected,) = reference.one_hot([indices], (columns,), dtype, skip)
    reference.assert_same(download(made), expected)
    assert launched.names == ["one_hot_to_dense"]


def csr(rng: Any, rows: int, columns: int, dtype: Any) -> tuple[Any, Any, Any]:
    counts = rng.integers(0, columns + 1, rows)
    indices = [rng.choice(columns, count, replace=False) for count in counts]
    joined = np.concatenate([np.zeros(0, np.int64), *indices]).astype(np.int64)
    return reference.offsets(counts), joined, bit_noise(rng, (len(joined),), dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 5, 20])
def test_csr_rows(launched: Any, dtype: Any, columns: int) -> None:
    rng = np.random.default_rng(columns)
    indptr, indices, data = csr(rng, 3, columns, dtype)
    positions = np.array([0, 2, 3], np.int64)
    parts = [upload(part) for part in (indptr, indices, data)]
    made = cuda_mask_moves.csr_to_dense(*parts, columns, upload(positions), 5)
    expected = np.zeros((5, columns), dtype)
    expected[positions] = reference.csr_to_dense(data, indices, indptr, (3, columns), dtype)
    reference.assert_same(download(made), expected)
    assert launched.names == ["csr_to_dense"]


def test_csr_without_rows_columns_or_items() -> None:
    none = upload(np.zeros(0, np.int64))
    data = upload(np.zeros(0, np.float32))
    zero = upload(np.zeros(1, np.int64))
    assert cuda_mask_moves.csr_to_dense(zero, none, data, 3, none, 0).shape == (0, 3)
    assert cuda_mask_moves.csr_to_dense(zero, none, data, 0, none, 2).shape == (2, 0)
    empty_rows = cuda_mask_moves.csr_to_dense(zero, none, data, 2, none, 2)
    reference.assert_same(download(empty_rows), np.zeros((2, 2), np.float32))


def test_items_off_their_alignment_are_refused() -> None:
    data = DeviceView(0x1002, (1,), np.dtype(np.float32), None)
    places = upload(np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="expected a multiple of its item size 4: make a copy"):
        cuda_mask_moves.csr_to_dense(upload(np.array([0, 1])), places, data, 2, places, 1)
