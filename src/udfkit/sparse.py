"""Sparse samples: CSR rows and one-hot codes, made dense by kernels when someone asks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from udfkit.casting import cast_exactly, check_real, warn_cast
from udfkit.errors import shape_text
from udfkit.items import is_scipy_sparse
from udfkit.kernels import cpu_kernel
from udfkit.layout import Layout
from udfkit.memory import check_size
from udfkit.variable import Variable

__all__ = ["ONE_HOT_SKIP", "CsrSamples", "OneHotSamples", "read_csr", "read_one_hot"]

ONE_HOT_SKIP = 4294967295


class CsrSamples:
    """Samples of rank 1 as the rows of one CSR matrix."""

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, columns: int):
        self.indptr = indptr
        self.indices = indices
        self.data = data
        self.sample_shape: tuple[int, ...] = (columns,)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the samples."""
        return self.data.dtype

    def dense(self, positions: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
        """Return zeroed samples (rows * steps, columns) with row i at ``positions[i]``."""
        columns = self.sample_shape[0]
        check_size(*cells, columns * self.dtype.itemsize, [len(positions)])
        out = np.zeros((prod(cells), columns), self.dtype)
        cpu_kernel("csr_to_dense")(
            self.indptr,
            self.indices,
            self.data.ctypes.data,
            columns,
            self.dtype.itemsize,
            positions,
            out.ctypes.data,
        )
        return out

    def nonzeros(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (sample, position in the sample, value) of every item that is not +0."""
        rows = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        kept = (self.data != 0) | _negative(self.data)
        return rows[kept], self.indices[kept], self.data[kept]

    def rows(self, first: int, last: int) -> Any:
        """Return samples ``first`` to ``last - 1`` as a SciPy CSR matrix of copies."""
        begin, end = self.indptr[first], self.indptr[last]
        return _csr(
            self.data[begin:end].copy(),
            self.indices[begin:end].copy(),
            self.indptr[first : last + 1] - begin,
            self.sample_shape[0],
        )


class OneHotSamples:
    """Samples that are zero but for a one at a class index; -1 marks a zero sample."""

    def __init__(self, codes: np.ndarray, sample_shape: tuple[int, ...], dtype: np.dtype):
        self.codes = codes
        self.sample_shape = sample_shape
        self.dtype = dtype

    def dense(self, positions: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
        """Return zeroed samples (rows * steps, *s) with sample i at ``positions[i]``."""
        lead, classes = prod(self.sample_shape[:-1]), self.sample_shape[-1]
        check_size(*cells, lead * classes * self.dtype.itemsize, [len(positions)])
        out = np.zeros((prod(cells), *self.sample_shape), self.dtype)
        one = np.ones(1, self.dtype)
        cpu_kernel("one_hot_to_dense")(
            self.placed(positions, prod(cells)),
            classes,
            self.dtype.itemsize,
            one.ctypes.data,
            out.ctypes.data,
        )
        return out

    def placed(self, positions: np.ndarray, cells: int) -> np.ndarray:
        """Return the codes of so many cells, -1 where no sample is; one vector."""
        lead = prod(self.sample_shape[:-1])
        codes = np.full((cells, lead), -1, np.int64)
        codes[positions] = self.codes.reshape(-1, lead)
        return codes.reshape(-1)

    def nonzeros(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (sample, position in the sample, value) of every one."""
        lead, classes = prod(self.sample_shape[:-1]), self.sample_shape[-1]
        at = np.flatnonzero(self.codes >= 0)
        places = at % max(lead, 1) * classes + self.codes[at]
        return at // max(lead, 1), places, np.ones(len(at), self.dtype)

    def rows(self, first: int, last: int) -> Any:
        """Return samples ``first`` to ``last - 1`` as a SciPy CSR matrix."""
        codes = self.codes[first:last]
        used = codes >= 0
        indptr = np.concatenate([[0], np.cumsum(used)])
        return _csr(
            np.ones(int(indptr[-1]), self.dtype), codes[used], indptr, self.sample_shape[-1]
        )


def _negative(data: np.ndarray) -> np.ndarray:
    return np.signbit(data) if data.dtype.kind == "f" else data < 0


def _csr(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, columns: int) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, columns))


def read_csr(
    matrices: Sequence[Any],
    shape: tuple[int, ...],
    dtype: np.dtype,
    warn_for: Variable | None,
) -> tuple[CsrSamples, np.ndarray]:
    """Read CSR matrices, one a sequence, into samples and their lengths.

    Raises
    ------
    TypeError
        For another sparse format, or dense items among the matrices, with the index.
    ValueError
        For a sample rank other than 1, a wrong number of columns, or values that ``dtype`` cannot
        hold, with the index.
    """
    if len(shape) != 1:
        raise ValueError(
            f"CSR batches hold samples of rank 1, but the sample shape is {shape_text(shape)}: "
            f"pass dense arrays"
        )
    columns = shape[0]
    indptrs, indices, data = [np.zeros(1, np.int64)], [], []
    lengths = np.zeros(len(matrices), np.int64)
    stored = 0
    for k, matrix in enumerate(matrices):
        if not is_scipy_sparse(matrix):
            raise TypeError(
                f"sequence {k} is a {type(matrix).__name__} among CSR matrices: make every "
                f"sequence a CSR matrix, or convert all with toarray()"
            )
        if matrix.format != "csr":
            raise TypeError(
                f"sequence {k} is a sparse {matrix.format} matrix, expected CSR: convert it with "
                f"tocsr()"
            )
        if columns < 0:
            columns = matrix.shape[1]
        if matrix.ndim != 2 or matrix.shape[1] != columns:
            raise ValueError(
                f"sequence {k} has shape {shape_text(matrix.shape)}, which does not fit the sample "
                f"shape {shape_text(shape)}: expected (length, {columns})"
            )
        where = f"sequence {k}"
        check_real(matrix.dtype, where)
        matrix = _checked_copy(matrix, where)
        if matrix.dtype != dtype:
            warn_cast(warn_for, matrix.dtype)
        indptrs.append(matrix.indptr[1:].astype(np.int64) + stored)
        used = int(matrix.indptr[-1])
        indices.append(matrix.indices[:used].astype(np.int64))
        data.append(cast_exactly(matrix.data[:used], dtype, where))
        lengths[k] = matrix.shape[0]
        stored += used
    samples = CsrSamples(
        np.concatenate(indptrs),
        np.concatenate([np.zeros(0, np.int64), *indices]),
        np.concatenate([np.zeros(0, dtype), *data]),
        max(columns, 0),
    )
    return samples, lengths


def _checked_copy(matrix: Any, where: str) -> Any:
    """Return a canonical copy; ValueError unless the index arrays of the matrix stay inside it.

    Copied first, so that another thread cannot change what has been checked.
    """
    indptr, indices, data = (np.array(a) for a in (matrix.indptr, matrix.indices, matrix.data))
    stored = min(len(indices), len(data))
    if len(indptr) != matrix.shape[0] + 1 or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise ValueError(
            f"{where} is a corrupt CSR matrix: its indptr {indptr[:8].tolist()} must have "
            f"{matrix.shape[0] + 1} entries, begin with 0 and not decrease"
        )
    if indptr[-1] > stored:
        raise ValueError(
            f"{where} is a corrupt CSR matrix: its indptr ends at {indptr[-1]}, but {stored} items "
            f"are stored; make it again from valid arrays"
        )
    bad = np.flatnonzero((indices < 0) | (indices >= matrix.shape[1]))
    if len(bad):
        raise ValueError(
            f"{where} is a corrupt CSR matrix: column {indices[bad[0]]} of item {bad[0]} must be "
            f"from 0 to {matrix.shape[1] - 1}"
        )
    used = int(indptr[-1])
    copied = _csr(data[:used], indices[:used], indptr, matrix.shape[1])
    copied.sum_duplicates()
    return copied


def read_one_hot(
    batch: Any, num_classes: int | Sequence[int], dtype: np.dtype
) -> tuple[OneHotSamples, Layout]:
    """Read class indices into samples and the layout of their batch."""
    sample_shape = _check_classes(num_classes)
    lead, classes = prod(sample_shape[:-1]), sample_shape[-1]
    flat, parts = _index_parts(batch)
    for k, part in enumerate(parts):
        bad = np.flatnonzero(((part < 0) | (part >= classes)) & (part != ONE_HOT_SKIP))
        if len(bad):
            step = int(bad[0])
            raise ValueError(
                f"one-hot index {part[step]} at {_place(flat, k, step)} is out of range: expected "
                f"{f'0 to {classes - 1}' if classes else 'none'} for {classes} classes, or "
                f"Value.ONE_HOT_SKIP for a zero sample"
            )
        if lead and len(part) % lead:
            raise ValueError(
                f"{'the batch' if flat else f'sequence {k}'} has {len(part)} indices, expected a "
                f"multiple of {lead}: a sample of shape {shape_text(sample_shape)} takes {lead}"
            )
    joined = np.concatenate([np.zeros(0, np.int64), *parts])
    codes = np.where(joined == ONE_HOT_SKIP, -1, joined)
    samples = OneHotSamples(codes, sample_shape, dtype)
    per_sample = max(lead, 1)
    if flat:
        return samples, Layout.of_batch(len(codes) // per_sample)
    if isinstance(batch, np.ndarray):
        return samples, Layout.of_rectangle(len(batch), batch.shape[1] // per_sample)
    lengths = np.array([len(part) // per_sample for part in parts], np.int64)
    return samples, Layout.of_lengths(lengths, getattr(batch, "_starts", None))


def _check_classes(num_classes: Any) -> tuple[int, ...]:
    sizes = (num_classes,) if isinstance(num_classes, (int, np.integer)) else num_classes
    if (
        not isinstance(sizes, (tuple, list))
        or not sizes
        or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in sizes)
    ):
        raise ValueError(
            f"num_classes is {num_classes!r}, expected a number of classes or a sample shape whose "
            f"last axis is the classes"
        )
    return tuple(int(n) for n in sizes)


def _place(flat: bool, k: int, step: int) -> str:
    return f"position {step}" if flat else f"sequence {k}, position {step}"


def _index_parts(batch: Any) -> tuple[bool, list[np.ndarray]]:
    """Return (whether the batch is one vector of samples, an int64 vector a sequence)."""
    if isinstance(batch, np.ndarray):
        if batch.ndim == 1 and batch.dtype.kind != "O":
            return True, [_indices(batch, True, 0)]
        if batch.ndim != 2:
            raise ValueError(
                f"one-hot indices of shape {shape_text(batch.shape)}: expected (B, T) for "
                f"sequences or (B,) for a batch of samples"
            )
    elif isinstance(batch, (str, bytes)) or not isinstance(batch, Sequence):
        raise TypeError(
            f"one-hot indices are a {type(batch).__name__}, expected a list with the indices of "
            f"one sequence an item, or an integer array"
        )
    items = list(batch)
    flat = bool(items) and not isinstance(items[0], (Sequence, np.ndarray))
    if flat:
        return True, [_indices(items, True, 0)]
    return False, [_indices(item, False, k) for k, item in enumerate(items)]


def _indices(part: Any, flat: bool, k: int) -> np.ndarray:
    array = part if isinstance(part, np.ndarray) else None
    if array is None:
        if isinstance(part, (str, bytes)) or not isinstance(part, Sequence):
            raise ValueError(f"sequence {k} of one-hot indices is {part!r}, expected a list")
        for step, index in enumerate(part):
            if isinstance(index, (bool, np.bool_)) or not isinstance(index, (int, np.integer)):
                raise ValueError(
                    f"one-hot index {index!r} at {_place(flat, k, step)} is a "
                    f"{type(index).__name__}, expected an integer"
                )
            if not -(2**63) <= index < 2**63:
                raise ValueError(
                    f"one-hot index {index} at {_place(flat, k, step)} is out of range: it does "
                    f"not fit int64"
                )
        array = np.array(part, np.int64)
    if array.ndim != 1:
        raise ValueError(
            f"sequence {k} of one-hot indices has shape {shape_text(array.shape)}: "
            f"expected a vector"
        )
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"one-hot indices at {_place(flat, k, 0)} have dtype {array.dtype}, expected integers"
        )
    # A copy, so that another thread cannot change what is checked from here on.
    fresh = np.array(array)
    return cast_exactly(fresh, np.dtype(np.int64), f"one-hot indices, {_place(flat, k, 0)}")
