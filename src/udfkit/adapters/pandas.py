"""Ragged batches and columns of arrays in pandas."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

import numpy as np
import pandas as pd

from udfkit.ragged import Ragged

__all__ = ["from_pandas", "to_pandas"]


def from_pandas(
    column: Any, nulls: Literal["error", "empty"] = "error", dtype: Any = None
) -> Ragged:
    """Return a Ragged of a Series of arrays or lists, or of an Arrow list column.

    Examples
    --------
    >>> import numpy as np, pandas as pd, udfkit
    >>> column = pd.Series([np.array([1.0, 2.0]), np.array([3.0])])
    >>> udfkit.Ragged.from_pandas(column).lengths.tolist()
    [2, 1]
    """
    if nulls not in ("error", "empty"):
        raise ValueError(f"nulls is {nulls!r}, expected 'error' or 'empty'")
    if not isinstance(column, pd.Series):
        raise TypeError(
            f"expected a pandas Series, not a {type(column).__name__}: pass one column, df['name']"
        )
    if isinstance(column.dtype, pd.ArrowDtype):
        found: Ragged = import_module("udfkit.adapters.arrow").from_arrow(
            column.array.__arrow_array__(), nulls
        )
        return found if dtype is None else Ragged(found.values.astype(dtype), found.offsets)
    if column.dtype != object:
        raise TypeError(f"the column has dtype {column.dtype}, expected one array or list a row")
    items = column.tolist()
    missing = _missing(items)
    if not missing:
        return Ragged.from_list(items, dtype=dtype)
    if nulls == "error":
        raise ValueError(
            f"row {missing[0]} is missing: pass nulls='empty' to read it as a sequence of length 0"
        )
    present = np.ones(len(items), bool)
    present[missing] = False
    read = Ragged.from_list([items[k] for k in np.flatnonzero(present)], dtype=dtype)
    lengths = np.zeros(len(items), np.int64)
    lengths[present] = read.lengths
    return Ragged(read.values, np.concatenate([[0], np.cumsum(lengths)]))


def _missing(items: list[Any]) -> list[int]:
    """Return the positions of None, NaN and NA."""
    return [k for k, item in enumerate(items) if pd.api.types.is_scalar(item) and pd.isna(item)]


def to_pandas(ragged: Ragged, index: Any = None) -> Any:
    """Return a Series of read-only arrays over the values of a Ragged."""
    cells = np.empty(len(ragged), object)
    for k, sequence in enumerate(ragged):
        cells[k] = sequence
    return pd.Series(cells, index=index, dtype=object)
