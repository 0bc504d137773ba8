"""Ragged to Arrow and back: Arrow's own lists are the oracle."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
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


def buffer(array: pa.Array) -> np.ndarray:
    while not pa.types.is_primitive(array.type):
        array = array.values
    return np.frombuffer(array.buffers()[1], np.uint8)


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_round_trip_without_copies(lengths, shape, large):
    ragged = batch(lengths, shape)
    array = ragged.to_arrow(large=large)
    array.validate(full=True)
    assert isinstance(array, pa.LargeListArray if large else pa.ListArray)
    assert array.to_pylist() == lists(ragged)
    back = udfkit.Ragged.from_arrow(array)
    assert back.equals(ragged)
    if sum(lengths):
        assert shares(back.values, ragged.values)
        assert shares(buffer(array), ragged.values.view(np.uint8))


@pytest.mark.parametrize("dtype", NUMBERS + FLOATS)
def test_dtypes(dtype):
    ragged = batch([2, 0, 3], (2,), dtype)
    array = ragged.to_arrow()
    assert array.to_pylist() == lists(ragged)
    back = udfkit.Ragged.from_arrow(array)
    assert back.equals(ragged)
    assert shares(back.values, ragged.values) == (dtype != "bool")


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("last", range(5))
def test_offsets_that_do_not_start_at_zero(kind, first, last):
    array = pa.array([[1, 2], [], [3, 4, 5], [6]], kind(pa.int16()))
    part = array[first:last]
    ragged = udfkit.Ragged.from_arrow(part)
    assert lists(ragged) == part.to_pylist()
    assert ragged.offsets[0] == 0
    if len(ragged.values):
        assert shares(ragged.values, np.frombuffer(array.values.buffers()[1], np.int16))


def test_slices_of_samples():
    kind = pa.list_(pa.list_(pa.list_(pa.int32(), 2), 3))
    nested = np.arange(36).reshape(6, 3, 2).tolist()
    array = pa.array([nested[:2], [], nested[2:5], nested[5:]], kind)
    for first in range(5):
        part = array[first:]
        ragged = udfkit.Ragged.from_arrow(part)
        assert lists(ragged) == part.to_pylist()
        assert ragged.sample_shape == (3, 2)


def test_chunks_fixed_sizes_and_extensions():
    chunked = pa.chunked_array([pa.array([[1], [2, 3]]), pa.array([[], [4]])])
    assert lists(udfkit.Ragged.from_arrow(chunked)) == [[1], [2, 3], [], [4]]
    empty = pa.chunked_array([], pa.list_(pa.int8()))
    assert len(udfkit.Ragged.from_arrow(empty)) == 0
    fixed = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2))
    assert lists(udfkit.Ragged.from_arrow(fixed)) == [[1, 2], [3, 4], [5, 6]]
    assert lists(udfkit.Ragged.from_arrow(fixed[1:])) == [[3, 4], [5, 6]]
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(4.0).reshape(2, 2))
    assert lists(udfkit.Ragged.from_arrow(tensors)) == [[0, 1], [2, 3]]


def test_nulls():
    array = pa.array([[1], None, [2, 3]])
    with pytest.raises(ValueError, match="sequence 1 is null: pass nulls='empty'"):
        udfkit.Ragged.from_arrow(array)
    assert lists(udfkit.Ragged.from_arrow(array, nulls="empty")) == [[1], [], [2, 3]]
    assert lists(udfkit.Ragged.from_arrow(array[1:], nulls="empty")) == [[], [2, 3]]
    assert lists(udfkit.Ragged.from_arrow(array[2:])) == [[2, 3]]
    with pytest.raises(ValueError, match="nulls is 'drop'"):
        udfkit.Ragged.from_arrow(array, nulls="drop")
    with pytest.raises(ValueError, match="value 1 inside the lists is null"):
        udfkit.Ragged.from_arrow(pa.array([[1, None], [2]]))
    with pytest.raises(ValueError, match="inside the lists is null"):
        udfkit.Ragged.from_arrow(pa.array([[None, [1, 2]]], pa.list_(pa.list_(pa.int8(), 2))))


def test_values_behind_a_null_are_not_read():
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()),
        pa.array([1, 98, 99, 2]),
        mask=pa.array([False, True, False]),
    )
    assert lists(udfkit.Ragged.from_arrow(hidden, nulls="empty")) == [[1], [], [2]]
    fixed = pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int64(), 2))
    assert lists(udfkit.Ragged.from_arrow(fixed, nulls="empty")) == [[1, 2], [], [5, 6]]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([1, 2]), "list or large_list array of Arrow, not int64"),
        (pa.array([["a"]]), "the lists hold string"),
        (pa.array([[[1], [2, 3]]]), "the lists hold list<"),
        ([[1]], "not a list: make one with pyarrow.array"),
        (pa.table({"x": [[1]]}), "not a Table: .* one column of a table"),
    ],
)
def test_refused(array, text):
    with pytest.raises(TypeError, match=text):
        udfkit.Ragged.from_arrow(array)


def test_what_arrow_cannot_hold():
    with pytest.raises(ValueError, match="Arrow cannot tell how many there are"):
        udfkit.Ragged(np.zeros((3, 0)), [0, 3]).to_arrow()
    wide = udfkit.Ragged(np.broadcast_to(np.int8(0), (2**31 + 1,)), [0, 2**31 + 1])
    with pytest.raises(ValueError, match="does not fit the 32 bits of a ListArray"):
        wide.to_arrow(large=False)


def test_starts_are_not_lost():
    check_that_starts_are_not_lost("to_arrow")
