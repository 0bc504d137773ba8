"""What the host decides about a launch: widths, variants, shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfkit.kernels import cuda_launch
from udfkit.kernels.cuda_launch import (
    cell_shape,
    lanes_bits,
    loads_in_flight,
    mask_shape,
    needs_wide,
    row_shape,
    scan_shape,
    width_for,
)


@pytest.mark.parametrize(
    ("numbers", "width"),
    [
        ([0x7F0000000000, 64], 16),
        ([0x7F0000000010, 0x7F0000000008, 64], 8),
        ([0x7F0000000000, 12], 4),
        ([0x7F0000000000, 6], 2),
        ([0x7F0000000000, 5], 1),
        ([0x7F0000000001, 64], 1),
        ([0, 0], 16),
        ([], 16),
    ],
)
def test_width_divides_every_address_and_size(numbers: list[int], width: int) -> None:
    assert width_for(numbers) == width


def covers(shape: cuda_launch.Shape, rows: int, work: int) -> bool:
    return shape.grid[0] * shape.block[1] >= rows and (shape.grid[0] - 1) * shape.block[1] < rows


@given(
    rows=st.integers(1, 2**31),
    work=st.integers(1, 2**40),
    multiprocessors=st.sampled_from([1, 16, 132]),
)
def test_row_shapes_keep_the_limits_of_a_grid(rows: int, work: int, multiprocessors: int) -> None:
    shape = row_shape(min(rows, 2**31 - 1), work, multiprocessors)
    threads = shape.block[0] * shape.block[1]
    assert threads == cuda_launch.BLOCK
    assert 1 <= shape.grid[1] <= 65_535
    assert shape.grid[0] < 2**31
    assert covers(shape, min(rows, 2**31 - 1), work)


def test_a_long_row_does_not_start_blocks_without_number() -> None:
    # 64 rows of 64 MB: enough blocks for every multiprocessor several times, not 262,144.
    shape = row_shape(64, 64 * 2**20 // 32, 132)
    blocks = shape.grid[0] * shape.grid[1]
    assert 132 * 8 <= blocks <= 132 * 8 * 8


def test_short_rows_share_a_block() -> None:
    shape = row_shape(1_000, 20, 132)
    assert shape.block == (32, 8)
    assert shape.grid == (125, 1)


@pytest.mark.parametrize("made", [row_shape(0, 5, 1), row_shape(5, 0, 1), mask_shape(0, 3)])
def test_nothing_to_do_is_an_empty_shape(made: cuda_launch.Shape) -> None:
    assert made.is_empty


def test_nothing_to_do_in_cells() -> None:
    assert cell_shape(0, 3)[0].is_empty
    assert cell_shape(3, 0)[0].is_empty
    assert not mask_shape(3, 0).is_empty, "an empty row is a sequence of its own"
    assert not scan_shape(0, 1, 4).is_empty, "offsets of nothing are one zero"


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs more blocks than a grid has.*split the batch"):
        row_shape(2**40, 300, 132)


def test_segments_grow_until_the_grid_holds_them() -> None:
    shape, segment = cell_shape(1, 2**33)
    assert shape.grid[1] <= 65_535
    assert shape.grid[1] * segment >= 2**33


@pytest.mark.parametrize("width", [16, 8, 4, 2, 1])
@given(row_bytes=st.integers(2**31, 2**34))
def test_32_bit_variant_never_wraps(width: int, row_bytes: int) -> None:
    count = loads_in_flight(width)
    shape = row_shape(1, -(-row_bytes // (width * count)), 132)
    wide = needs_wide(row_bytes, shape, width, count)
    # The largest number that a loop forms: the last position, one stride on, and its last load.
    stride = shape.grid[1] * shape.block[0] * width * count
    largest = row_bytes - 1 + stride + shape.block[0] * width * count
    assert wide or largest < 2**32
    assert not (wide and row_bytes < 2**31 + 2**30), "the wide variant for a row of 3 GB"


@pytest.mark.parametrize(
    ("sample_bytes", "width", "lanes", "bits"),
    [(64, 16, 256, 2), (4, 4, 256, 0), (0, 16, 256, 0), (4096, 16, 32, 5), (48, 16, 256, 2)],
)
def test_threads_that_share_a_sample(sample_bytes: int, width: int, lanes: int, bits: int) -> None:
    assert lanes_bits(sample_bytes, width, lanes) == bits
