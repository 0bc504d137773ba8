"""Naive NumPy answers to what udfkit computes: loops that can be checked by reading.

Nothing here imports udfkit, so a fault there cannot hide behind the same fault here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def same_bits(left: Array, right: Array) -> bool:
    """True if shape, dtype and every byte agree (a NaN equals the same NaN, -0.0 is not 0.0)."""
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()
    )


def assert_same(got: Array, expected: Array) -> None:
    """Assert that two arrays agree in shape, dtype and bytes."""
    assert isinstance(got, np.ndarray), f"got {type(got).__name__}, not an array"
    assert got.dtype == expected.dtype, f"dtype {got.dtype}, expected {expected.dtype}"
    assert got.shape == expected.shape, f"shape {got.shape}, expected {expected.shape}"
    assert same_bits(got, expected), f"got\n{got!r}\nexpected\n{expected!r}"


def assert_same_list(got: object, expected: Sequence[Array]) -> None:
    """Assert that `got` is a list of arrays with the bytes of `expected`."""
    assert type(got) is list, f"got {type(got).__name__}, not a list"
    assert len(got) == len(expected), f"{len(got)} sequences, expected {len(expected)}"
    for left, right in zip(got, expected, strict=True):
        assert_same(left, right)


def mask(lengths: Sequence[int], starts: Sequence[bool], steps: int) -> Array:
    """int8 mask (B, steps): 2 opens a new sequence, 1 is valid, 0 is padding."""
    cells = np.zeros((len(lengths), steps), np.int8)
    for row, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        for step in range(length):
            cells[row, step] = 2 if step == 0 and start else 1
    return cells


def pad(
    sequences: Sequence[Array],
    sample_shape: tuple[int, ...],
    dtype: Any,
    starts: Sequence[bool] | None = None,
) -> tuple[Array, Array]:
    """Padded data (B, T, *s), zero in the padding, and its mask (B, T), T the longest length."""
    lengths = [len(sequence) for sequence in sequences]
    steps = max(lengths, default=0)
    data = np.zeros((len(sequences), steps, *sample_shape), dtype)
    for row, sequence in enumerate(sequences):
        for step in range(len(sequence)):
            data[row, step] = sequence[step]
    return data, mask(lengths, [True] * len(sequences) if starts is None else starts, steps)


def _sequence_cells(cells: Array) -> list[tuple[list[tuple[int, int]], bool]]:
    """The valid cells of each sequence in row-major order, and whether it opened with a 2."""
    found: list[tuple[list[tuple[int, int]], bool]] = []
    for row in range(cells.shape[0]):
        members: list[tuple[int, int]] = []
        start = True
        for step in range(cells.shape[1]):
            if cells[row, step] == 2 and members:
                found.append((members, start))
                members, start = [], True
            if cells[row, step] == 1 and not members:
                start = False
            if cells[row, step]:
                members.append((row, step))
        found.append((members, start))
    return found


def unpad(data: Array, cells: Array) -> list[Array]:
    """The sequences of padded data under any mask: gaps, left padding, several in a row."""
    sample_shape = data.shape[2:]
    out = []
    for members, _ in _sequence_cells(cells):
        sequence = np.empty((len(members), *sample_shape), data.dtype)
        for position, (row, step) in enumerate(members):
            sequence[position] = data[row, step]
        out.append(sequence)
    return out


def lengths_from_mask(cells: Array) -> Array:
    """int64 length of each sequence; an all-0 row is one sequence of length 0."""
    return np.array([len(members) for members, _ in _sequence_cells(cells)], np.int64)


def starts_from_mask(cells: Array) -> Array:
    """True where a sequence opens with a 2; a sequence without cells counts as new."""
    return np.array([start for _, start in _sequence_cells(cells)], bool)


def offsets(lengths: Iterable[int]) -> Array:
    """int64 offsets (B + 1,) of sequences laid one after another."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + int(length))
    return np.array(ends, np.int64)


def flat(sequences: Sequence[Array], sample_shape: tuple[int, ...], dtype: Any) -> Array:
    """Flat values (total, *s) of sequences laid one after another."""
    total = sum(len(sequence) for sequence in sequences)
    values = np.empty((total, *sample_shape), dtype)
    position = 0
    for sequence in sequences:
        for sample in sequence:
            values[position] = sample
            position += 1
    return values


def one_hot(
    batch: Sequence[Sequence[int]],
    sample_shape: tuple[int, ...],
    dtype: Any,
    skip: int,
) -> list[Array]:
    """Dense one-hot sequences; the last axis of `sample_shape` is the classes."""
    classes = sample_shape[-1]
    group = 1
    for size in sample_shape[:-1]:
        group *= size
    out = []
    for indices in batch:
        rows = np.zeros((len(indices), classes), dtype)
        for row, index in enumerate(indices):
            if int(index) != skip:
                rows[row, int(index)] = 1
        out.append(rows.reshape(len(indices) // group, *sample_shape))
    return out


def csr_to_dense(
    data: Array, indices: Array, indptr: Array, shape: tuple[int, int], dtype: Any
) -> Array:
    """Dense rows of a CSR triple without duplicates."""
    dense = np.zeros(shape, dtype)
    for row in range(shape[0]):
        for position in range(int(indptr[row]), int(indptr[row + 1])):
            dense[row, int(indices[position])] = data[position]
    return dense
