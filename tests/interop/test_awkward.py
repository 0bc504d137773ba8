"""Ragged to awkward and back: awkward's own lists are the oracle."""

from __future__ import annotations

import awkward as ak
import numpy as np
import pytest

import udfkit
from interop_batches import (
    FLOATS,
    LENGTHS,
    NUMBERS,
    SHAPES,
    batch,
    check_that_starts_are_not_lost,
    lists,
    shares,
)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_round_trip_without_copies(lengths, shape):
    ragged = batch(lengths, shape)
    array = ragged.to_awkward()
    assert ak.to_list(array) == lists(ragged)
    assert ak.is_valid(array)
    back = udfkit.Ragged.from_awkward(array)
    assert back.equals(ragged)
    if sum(lengths):
        assert shares(back.values, ragged.values)


@pytest.mark.parametrize("dtype", NUMBERS + FLOATS)
def test_dtypes(dtype):
    ragged = batch([2, 0, 3], (2,), dtype)
    array = ragged.to_awkward()
    assert ak.to_list(array) == lists(ragged)
    assert udfkit.Ragged.from_awkward(array).equals(ragged)


def arrays():
    data = ak.Array([[1, 2], [], [3, 4, 5], [6]])
    yield "plain", data
    yield "sliced", data[1:]
    yield "sliced twice", data[1:3][1:]
    yield "picked", data[[2, 0, 0]]
    yield "masked away", data[[True, False, True, True]]
    yield "reversed", data[::-1]
    yield "of NumPy", ak.Array(np.arange(6).reshape(2, 3))
    yield "regular", ak.to_regular(ak.Array([[1, 2], [3, 4]]))
    yield "no rows", data[:0]
    yield "option without None", ak.Array([[1], None, [2, 3]])[[0, 2]]
    yield "field", ak.Array([{"x": [1, 2]}, {"x": []}]).x
    yield "samples", ak.to_regular(ak.Array([[[1, 2]], [], [[3, 4], [5, 6]]]), axis=2)
    yield "union of one", ak.concatenate([data, data[:2]])


@pytest.mark.parametrize(("name", "array"), list(arrays()))
def test_arrays_of_every_layout(name, array):
    ragged = udfkit.Ragged.from_awkward(array)
    assert lists(ragged) == ak.to_list(array)
    assert ragged.offsets[0] == 0


def test_zero_copy_of_a_slice():
    array = ak.Array([[1.0, 2.0], [], [3.0, 4.0]])
    ragged = udfkit.Ragged.from_awkward(array[1:])
    assert shares(ragged.values, np.asarray(array.layout.content.data))
    assert ragged.offsets.tolist() == [0, 0, 2]


def test_nulls():
    array = ak.Array([[1], None, [2, 3], None])
    with pytest.raises(ValueError, match="sequence 1 is None: pass nulls='empty'"):
        udfkit.Ragged.from_awkward(array)
    assert lists(udfkit.Ragged.from_awkward(array, nulls="empty")) == [[1], [], [2, 3], []]
    with pytest.raises(ValueError, match="nulls is 'drop'"):
        udfkit.Ragged.from_awkward(array, nulls="drop")
    with pytest.raises(TypeError, match=r"without None.*ak\.fill_none"):
        udfkit.Ragged.from_awkward(ak.Array([[1, None], [2]]))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (ak.Array([1, 2, 3]), "expected lists of numbers"),
        (ak.Array([[[1, 2], [3]], []]), "every sample of one shape"),
        (ak.Array([{"x": 1}]), "expected lists of numbers"),
        ([[1, 2]], r"expected an awkward Array, not a list: make one with ak\.Array"),
    ],
)
def test_refused(array, text):
    with pytest.raises(TypeError, match=text):
        udfkit.Ragged.from_awkward(array)


def test_strings_are_refused():
    with pytest.raises(TypeError):
        udfkit.Ragged.from_awkward(ak.Array(["ab", "c"]))
    with pytest.raises(TypeError):
        udfkit.Ragged.from_awkward(ak.Array([["ab"], ["c"]]))


def test_starts_are_not_lost():
    check_that_starts_are_not_lost("to_awkward")
