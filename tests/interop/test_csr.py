"""Ragged to CSR matrices, one a sequence, and back: SciPy's toarray is the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import udfkit
from interop_batches import LENGTHS, check_that_starts_are_not_lost


@pytest.mark.parametrize("lengths", [n for n in LENGTHS if n])
@pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
def test_round_trip(lengths, make):
    rng = np.random.default_rng(1)
    dense = [rng.integers(0, 2, (n, 5)) * rng.standard_normal((n, 5)) for n in lengths]
    ragged = udfkit.Ragged.from_csr([make(d) for d in dense])
    assert ragged.lengths.tolist() == lengths
    for got, want in zip(ragged, dense, strict=True):
        np.testing.assert_array_equal(got, want)
    for matrix, want in zip(ragged.to_csr(), dense, strict=True):
        assert matrix.format == "csr"
        assert matrix.nnz == np.count_nonzero(want)
        np.testing.assert_array_equal(matrix.toarray(), want)


def test_one_matrix_is_one_sequence_and_dtypes():
    eye = scipy.sparse.csr_array(np.eye(3, dtype=np.float32))
    assert udfkit.Ragged.from_csr(eye).lengths.tolist() == [3]
    assert udfkit.Ragged.from_csr([eye]).dtype == np.float32
    assert udfkit.Ragged.from_csr([eye], dtype=np.int16).dtype == np.int16


def test_what_udfkit_takes_as_a_batch():
    x = udfkit.sequence.input_variable(2)
    ragged = udfkit.Ragged(np.float32([[1, 0], [0, 0], [0, 2]]), [0, 2, 3])
    value = udfkit.sanitize_batch(x, ragged.to_csr())
    assert value.ragged().equals(ragged)


def test_refused():
    with pytest.raises(TypeError, match="sequence 0 is a sparse csc matrix"):
        udfkit.Ragged.from_csr([scipy.sparse.csc_array(np.eye(2))])
    with pytest.raises(ValueError, match=r"sequence 1 has shape \(3, 3\)"):
        udfkit.Ragged.from_csr([scipy.sparse.csr_array(np.eye(n)) for n in (2, 3)])
    with pytest.raises(ValueError, match="number of columns is not known"):
        udfkit.Ragged.from_csr([])
    with pytest.raises(TypeError, match="not a ndarray"):
        udfkit.Ragged.from_csr(np.eye(2))
    with pytest.raises(ValueError, match="holds samples of rank 1"):
        udfkit.Ragged([1, 2], [0, 2]).to_csr()


def test_starts_are_not_lost():
    check_that_starts_are_not_lost("to_csr")
