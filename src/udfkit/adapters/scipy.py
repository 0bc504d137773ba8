"""Ragged batches and CSR matrices, one a sequence, whose rows are the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from udfkit import moves
from udfkit.casting import check_dtype
from udfkit.items import is_scipy_sparse
from udfkit.ragged import Ragged
from udfkit.sparse import read_csr
from udfkit.variable import FreeDimension

__all__ = ["from_csr", "to_csr"]


def from_csr(matrices: Any, dtype: Any = None) -> Ragged:
    """Return a Ragged with dense copies of the rows of CSR matrices, one matrix a sequence.

    Examples
    --------
    >>> import numpy as np, scipy.sparse, udfkit
    >>> matrices = [scipy.sparse.csr_array(np.eye(2)), scipy.sparse.csr_array((0, 2))]
    >>> made = udfkit.Ragged.from_csr(matrices)
    >>> made.lengths.tolist(), made[0].tolist()
    ([2, 0], [[1.0, 0.0], [0.0, 1.0]])
    """
    if is_scipy_sparse(matrices):
        matrices = [matrices]
    if not isinstance(matrices, (list, tuple)):
        raise TypeError(
            f"expected a list of CSR matrices, one a sequence, not a {type(matrices).__name__}"
        )
    if not matrices:
        raise ValueError(
            "the list of CSR matrices is empty: the number of columns is not known: "
            "make udfkit.Ragged(np.empty((0, columns)), [0])"
        )
    if dtype is None:
        dtype = np.result_type(*[matrix.dtype for matrix in matrices if hasattr(matrix, "dtype")])
    samples, lengths = read_csr(matrices, (FreeDimension,), check_dtype(dtype), None)
    offsets = moves.offsets_of(lengths)
    total = int(offsets[-1])
    return Ragged._trusted(samples.dense(np.arange(total), (total, 1)), offsets, None)


def to_csr(ragged: Ragged) -> list[Any]:
    """Return one CSR matrix a sequence, of shape ``(length, columns)``."""
    if len(ragged.sample_shape) != 1:
        raise ValueError(
            f"samples have shape {ragged.sample_shape}; a CSR matrix holds samples of rank 1"
        )
    return [scipy.sparse.csr_array(sequence) for sequence in ragged]
