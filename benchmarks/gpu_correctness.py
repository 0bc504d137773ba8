"""Every CUDA kernel against the naive reference of the tests, without a test framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import reference
from udfkit.kernels import cuda_mask_moves, cuda_moves
from udfkit.kernels.cuda_arrays import download, upload

__all__ = ["kernel_checks"]

Check = tuple[str, Callable[[], None]]


def batch(rng: Any, count: int, longest: int, shape: tuple[int, ...], dtype: Any) -> list[Any]:
    """Sequences of random lengths and bits."""
    lengths = rng.integers(0, longest + 1, count)
    sizes = [(int(n), *shape) for n in lengths]
    item = np.dtype(dtype).itemsize
    bits = [rng.integers(0, 256, (int(np.prod(s)), item), dtype=np.uint8) for s in sizes]
    return [b.reshape(-1).view(dtype).reshape(s) for b, s in zip(bits, sizes, strict=True)]


def kernel_checks(smoke: bool) -> Iterator[Check]:
    """Yield the name of a check and what runs it: bit for bit against the naive reference."""
    counts = (0, 1, 3) if smoke else (0, 1, 7, 300)
    longest = 5 if smoke else 130
    kinds = (
        ((16,), np.float32), ((3,), np.float64), ((), np.float32), ((3,), np.float16),
        ((5,), np.int8), ((2, 0), np.float32),
    )  # fmt: skip
    for count in counts:
        for shape, dtype in kinds:
            name = f"moves, B={count}, samples {shape} of {np.dtype(dtype)}"
            yield name, partial(check_moves, count, longest, shape, dtype)
    for rows, steps in ((3, 9),) if smoke else ((1, 5_000), (40, 333), (2_000, 7)):
        yield f"masks, {rows} x {steps}", partial(check_masks, rows, steps)
    yield "scan of lengths", partial(check_scan, 70 if smoke else 1_000_000)
    yield "sparse samples", partial(check_sparse, 4 if smoke else 500, 6 if smoke else 3_001)


def check_moves(count: int, longest: int, shape: tuple[int, ...], dtype: Any) -> None:
    """Pad and unpad flat values and lists of device arrays."""
    rng = np.random.default_rng(count)
    sequences = batch(rng, count, longest, shape, dtype)
    lengths, starts = [len(s) for s in sequences], rng.random(count) < 0.5
    flat = reference.flat(sequences, shape, dtype)
    padded, cells = reference.pad(sequences, shape, dtype, starts)
    offsets = upload(reference.offsets(lengths))
    data, mask = cuda_moves.ragged_to_padded(upload(flat), offsets, padded.shape[1], upload(starts))
    reference.assert_same(download(data), padded)
    reference.assert_same(download(mask), cells)
    back = cuda_moves.padded_to_ragged(data, offsets, len(flat))
    reference.assert_same(download(back), flat)
    if count:
        arrays = [upload(s) for s in sequences]
        data, mask = cuda_moves.rows_to_padded(arrays, padded.shape[1], starts)
        reference.assert_same(download(data), padded)
        reference.assert_same(download(mask), cells)
        reference.assert_same(download(cuda_moves.rows_to_ragged(arrays)[0]), flat)
    made = cuda_mask_moves.mask_of(
        upload(np.array(lengths, np.int64)), upload(starts), padded.shape[1]
    )
    reference.assert_same(download(made), cells)


def check_masks(rows: int, steps: int) -> None:
    """Read a general mask, and move its cells both ways."""
    rng = np.random.default_rng(rows)
    cells = rng.integers(0, 3, (rows, steps)).astype(np.int8)
    padded = rng.integers(0, 2**32, (rows, steps, 4), dtype=np.uint32)
    mask = upload(cells)
    read = cuda_mask_moves.read_mask(mask)
    reference.assert_same(download(read.lengths), reference.lengths_from_mask(cells))
    reference.assert_same(download(read.starts), reference.starts_from_mask(cells))
    values = cuda_mask_moves.cells_to_ragged(upload(padded), mask, read.row_offsets, read.total)
    reference.assert_same(download(values), padded[cells != 0])
    back = cuda_mask_moves.ragged_to_cells(values, mask, read.row_offsets)
    padded[cells == 0] = 0
    reference.assert_same(download(back), padded)


def check_scan(count: int) -> None:
    """Turn lengths into offsets."""
    lengths = np.random.default_rng(0).integers(0, 1_000, count)
    offsets, findings = cuda_mask_moves.offsets_of(upload(lengths))
    np.testing.assert_array_equal(download(offsets), np.concatenate([[0], np.cumsum(lengths)]))
    assert cuda_mask_moves.check_offsets(findings) == lengths.sum()


def check_sparse(rows: int, columns: int) -> None:
    """Make one-hot codes and CSR rows dense."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-1, columns, rows)
    dense = np.zeros((rows, columns), np.float16)
    dense[codes >= 0, codes[codes >= 0]] = 1
    made = cuda_mask_moves.one_hot_to_dense(upload(codes), columns, np.float16)
    reference.assert_same(download(made), dense)
    counts = rng.integers(0, min(columns, 50), rows)
    columns_of = [rng.choice(columns, n, replace=False) for n in counts]
    indices = np.concatenate(columns_of).astype(np.int64)
    data, indptr = rng.random(len(indices)), reference.offsets(counts)
    positions = 2 * np.arange(rows)
    parts = [upload(part) for part in (indptr, indices, data)]
    made = cuda_mask_moves.csr_to_dense(*parts, columns, upload(positions), 2 * rows)
    expected = np.zeros((2 * rows, columns))
    expected[::2] = reference.csr_to_dense(data, indices, indptr, (rows, columns), np.float64)
    reference.assert_same(download(made), expected)
