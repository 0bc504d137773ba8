"""Ragged to pandas columns and back."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import udfkit
from interop_batches import LENGTHS, SHAPES, batch, check_that_starts_are_not_lost, lists, shares


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_round_trip(lengths, shape):
    ragged = batch(lengths, shape, "float32")
    column = ragged.to_pandas()
    assert isinstance(column, pd.Series)
    assert [cell.tolist() for cell in column] == lists(ragged)
    for cell, n in zip(column, lengths, strict=True):
        assert cell.shape == (n, *shape)
        assert not n or shares(cell, ragged.values)
        assert not cell.flags.writeable
    if lengths:
        assert udfkit.Ragged.from_pandas(column).equals(ragged)


def test_rows_keep_their_index_and_group():
    ragged = batch([2, 1, 3])
    column = ragged.to_pandas(index=["a", "b", "c"])
    assert column["b"].tolist() == ragged[1].tolist()
    frame = pd.DataFrame({"x": column, "n": column.map(len)})
    picked = udfkit.Ragged.from_pandas(frame[frame.n > 1].x)
    assert lists(picked) == [ragged[0].tolist(), ragged[2].tolist()]


def test_columns_of_lists_and_missing_rows():
    column = pd.Series([[1, 2], [], [3]])
    assert lists(udfkit.Ragged.from_pandas(column)) == [[1, 2], [], [3]]
    for missing in (None, np.nan, pd.NA):
        holed = pd.Series([[1.0], missing, [2.0, 3.0]], dtype=object)
        with pytest.raises(ValueError, match="row 1 is missing: pass nulls='empty'"):
            udfkit.Ragged.from_pandas(holed)
        assert lists(udfkit.Ragged.from_pandas(holed, nulls="empty")) == [[1.0], [], [2.0, 3.0]]
    made = udfkit.Ragged.from_pandas(pd.Series([[1], [2, 3]]), dtype=np.float32)
    assert made.dtype == np.float32
    with pytest.raises(ValueError, match="nulls is 'drop'"):
        udfkit.Ragged.from_pandas(column, nulls="drop")


def test_arrow_columns_are_not_copied():
    array = pa.array([[1, 2], [], [3]])
    column = pd.Series(pd.arrays.ArrowExtensionArray(array))
    ragged = udfkit.Ragged.from_pandas(column)
    assert lists(ragged) == [[1, 2], [], [3]]
    assert shares(ragged.values, np.frombuffer(array.values.buffers()[1], np.int64))
    holed = pd.Series(pd.arrays.ArrowExtensionArray(pa.array([[1], None])))
    assert lists(udfkit.Ragged.from_pandas(holed, nulls="empty")) == [[1], []]


def test_refused():
    with pytest.raises(TypeError, match="expected a pandas Series, not a list: pass one column"):
        udfkit.Ragged.from_pandas([[1]])
    with pytest.raises(TypeError, match="dtype int64, expected one array or list a row"):
        udfkit.Ragged.from_pandas(pd.Series([1, 2]))
    with pytest.raises((TypeError, ValueError), match="1"):
        udfkit.Ragged.from_pandas(pd.Series([[1], "text"]))


def test_starts_are_not_lost():
    check_that_starts_are_not_lost("to_pandas")
