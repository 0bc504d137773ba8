"""Root gradients in layouts that break careless readers, and padding that holds no zeros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from udfkit import device as devices
from udfkit.layout import Layout
from udfkit.ragged import Ragged
from udfkit.value import Value

__all__ = ["FORMS", "STRIDE_ZERO", "in_form", "padded_value"]

STRIDE_ZERO = "stride 0"


def _stride_zero(array: np.ndarray) -> np.ndarray:
    return np.broadcast_to(array.reshape(-1)[:1].reshape(()), array.shape) if array.size else array


def _sliced_rows(array: np.ndarray) -> np.ndarray:
    if array.ndim == 0:
        return array
    rows = np.full((2 * len(array) + 1, *array.shape[1:]), 97, array.dtype)
    rows[1::2] = array
    return rows[1::2]


def _sliced_columns(array: np.ndarray) -> np.ndarray:
    if array.ndim == 0:
        return array
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1] + 1), 97, array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide[..., : array.shape[-1]]


def _reversed(array: np.ndarray) -> np.ndarray:
    everywhere = (slice(None, None, -1),) * array.ndim
    return array[everywhere].copy()[everywhere]


def _read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    STRIDE_ZERO: _stride_zero,
    "sliced rows": _sliced_rows,
    "sliced columns": _sliced_columns,
    "Fortran order": np.asfortranarray,
    "reversed": _reversed,
    "read-only": _read_only,
}


def in_form(what: Any, form: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Return what a user's method was handed with every array in another layout.

    Values stay as they are: their data is C-contiguous by contract.
    """
    if isinstance(what, np.ndarray):
        return form(what)
    if isinstance(what, Ragged):
        starts = what.starts if what.has_starts else None
        return Ragged._trusted(form(what.values), what.offsets, starts)
    if isinstance(what, list):
        return [in_form(part, form) for part in what]
    if isinstance(what, dict):
        return {key: in_form(part, form) for key, part in what.items()}
    return what


def padded_value(sequences: Sequence[np.ndarray], poison: float, extra: int = 2) -> Value:
    """Make a Value whose padding, ``extra`` steps beyond the longest, holds ``poison``."""
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    steps = int(lengths.max()) + extra
    first = sequences[0]
    data = np.full((len(sequences), steps, *first.shape[1:]), poison, first.dtype)
    for row, sequence in zip(data, sequences, strict=True):
        row[: len(sequence)] = sequence
    return Value._make(Layout.of_lengths(lengths, None, steps), devices.resolve(None), padded=data)
