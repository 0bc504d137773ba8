"""Every form of input that section 3 of the contract accepts."""

from __future__ import annotations

import array
import collections
import collections.abc

import numpy as np
import pytest

import reference
import udfkit
from checks import batch_variable, no_warning, plain_variable, sequence_variable
from udfkit import sanitize_batch, variable_value_to_seq

F32 = np.float32


class Speaker:
    """An object that offers its numbers through DLPack only."""

    def __init__(self, numbers):
        self._numbers = numbers

    def __dlpack__(self, **kwargs):
        return self._numbers.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._numbers.__dlpack_device__()


class OldSpeaker(Speaker):
    """A DLPack producer older than the keyword arguments of version 1."""

    def __dlpack__(self, stream=None):
        return self._numbers.__dlpack__()


class Items(collections.abc.Sequence):
    """A Sequence that is neither list nor tuple."""

    def __init__(self, items):
        self._items = list(items)

    def __getitem__(self, index):
        return self._items[index]

    def __len__(self):
        return len(self._items)


def sequences_of(batch, shape, dtype=F32, **kwargs):
    """What comes back for a batch fed without any warning."""
    variable = sequence_variable(shape, dtype)
    with no_warning():
        value = sanitize_batch(variable, batch, **kwargs)
    return variable_value_to_seq(value, variable)


def ones(*shape):
    return np.arange(1, 1 + int(np.prod(shape)), dtype=F32).reshape(shape)


SCALAR_ITEMS = {
    "array": (ones(2), [1, 2]),
    "0-d array": (np.array(5, F32), [5]),
    "NumPy scalar": (F32(5), [5]),
    "Python float": (5.0, [5]),
    "Python int": (5, [5]),
    "Python bool": (True, [1]),
    "list": ([1.0, 2.0], [1, 2]),
    "list of NumPy scalars": ([F32(1), F32(2)], [1, 2]),
    "list of 0-d arrays": ([np.array(1, F32), np.array(2, F32)], [1, 2]),
    "tuple": ((1.0, 2.0), [1, 2]),
    "empty list": ([], []),
    "empty array": (np.empty(0, F32), []),
    "array.array": (array.array("f", [1, 2]), [1, 2]),
    "memoryview": (memoryview(ones(2)), [1, 2]),
    "DLPack": (Speaker(ones(2)), [1, 2]),
    "old DLPack": (OldSpeaker(ones(2)), [1, 2]),
}


@pytest.mark.parametrize("name", SCALAR_ITEMS)
def test_items_for_a_scalar_sample(name):
    item, expected = SCALAR_ITEMS[name]
    for batch, place in (([item], 0), ([item, ones(3)], 0), ([ones(3), item], 1)):
        got = sequences_of(batch, ())
        reference.assert_same(got[place], np.array(expected, F32))
        assert len(got) == len(batch)


@pytest.mark.parametrize("left", SCALAR_ITEMS)
@pytest.mark.parametrize("right", ["array", "0-d array", "Python float", "list", "empty list"])
def test_items_of_different_kinds_stand_side_by_side(left, right):
    got = sequences_of([SCALAR_ITEMS[left][0], SCALAR_ITEMS[right][0]], ())
    expected = [np.array(SCALAR_ITEMS[name][1], F32) for name in (left, right)]
    reference.assert_same_list(got, expected)


VECTOR_ITEMS = {
    "(length, 3)": (ones(2, 3), ones(2, 3)),
    "(3,), one sample": (ones(3), ones(1, 3)),
    "(0, 3)": (ones(0, 3), ones(0, 3)),
    "nested list": ([[1.0, 2.0, 3.0], [4, 5, 6]], ones(2, 3)),
    "list of arrays": ([ones(2, 3)[0], ones(2, 3)[1]], ones(2, 3)),
    "one sample as a list": ([1.0, 2.0, 3.0], ones(1, 3)),
    "empty list": ([], ones(0, 3)),
    "memoryview": (memoryview(ones(2, 3)), ones(2, 3)),
    "DLPack": (Speaker(ones(2, 3)), ones(2, 3)),
    "Fortran": (np.asfortranarray(ones(2, 3)), ones(2, 3)),
}


@pytest.mark.parametrize("name", VECTOR_ITEMS)
def test_items_for_a_vector_sample(name):
    item, expected = VECTOR_ITEMS[name]
    reference.assert_same_list(sequences_of([item], (3,)), [expected])
    reference.assert_same_list(
        sequences_of([ones(4, 3), item, ones(3)], (3,)), [ones(4, 3), expected, ones(1, 3)]
    )


def test_items_for_a_sample_of_shape_one():
    batch = [ones(2, 1), ones(3), ones(1), [1.0], [[1.0], [2.0]], [], ones(0), ones(0, 1)]
    expected = [ones(n, 1) for n in (2, 3, 1, 1, 2, 0, 0, 0)]
    reference.assert_same_list(sequences_of(batch, (1,)), expected)


def test_items_for_a_matrix_sample():
    batch = [ones(2, 2, 3), ones(2, 3), ones(1, 2, 3).tolist(), ones(0, 2, 3), []]
    expected = [ones(2, 2, 3), ones(1, 2, 3), ones(1, 2, 3), ones(0, 2, 3), ones(0, 2, 3)]
    reference.assert_same_list(sequences_of(batch, (2, 3)), expected)


@pytest.mark.parametrize(
    "wrap",
    [list, tuple, Items, collections.deque, collections.UserList],
    ids=["list", "tuple", "Sequence", "deque", "UserList"],
)
@pytest.mark.parametrize("sizes", [[], [0], [2, 2], [3, 0, 1]])
def test_any_sequence_of_items_is_a_batch(wrap, sizes):
    items = [ones(n, 3) for n in sizes]
    reference.assert_same_list(sequences_of(wrap(items), (3,)), items)


def test_a_range_is_a_batch_of_scalars():
    reference.assert_same_list(sequences_of(range(3), ()), [np.array([n], F32) for n in range(3)])
    variable = batch_variable(())
    value = sanitize_batch(variable, range(3))
    reference.assert_same(variable_value_to_seq(value, variable), np.arange(3, dtype=F32))


def test_a_ragged_is_a_batch():
    ragged = udfkit.Ragged(ones(5, 3), np.array([0, 2, 2, 5]))
    reference.assert_same_list(
        sequences_of(ragged, (3,)), [ones(5, 3)[:2], ones(0, 3), ones(5, 3)[2:]]
    )


def test_a_list_of_ragged_slices_is_a_batch():
    ragged = udfkit.Ragged(ones(5, 3), np.array([0, 2, 2, 5]))
    reference.assert_same_list(sequences_of(list(ragged), (3,)), [ragged[i] for i in range(3)])


RECTANGLES = {
    "ndarray": lambda whole: whole,
    "memoryview": memoryview,
    "DLPack": Speaker,
    "old DLPack": OldSpeaker,
    "list of rows": list,
    "nested list": lambda whole: whole.tolist(),
    "tuple of rows": tuple,
}


@pytest.mark.parametrize("form", RECTANGLES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)], ids=str)
def test_rectangles_for_a_sequence_variable(form, shape):
    whole = ones(2, 4, *shape)
    reference.assert_same_list(sequences_of(RECTANGLES[form](whole), shape), list(whole))


@pytest.mark.parametrize("form", RECTANGLES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)], ids=str)
def test_rectangles_for_a_batch_only_variable(form, shape):
    whole = ones(2, *shape)
    variable = batch_variable(shape)
    with no_warning():
        value = sanitize_batch(variable, RECTANGLES[form](whole))
    assert value.shape == (2, *shape)
    assert len(value) == 2
    reference.assert_same(value.mask, np.full(2, 2, np.int8))
    reference.assert_same(np.asarray(value.lengths), np.ones(2, np.int64))
    reference.assert_same(variable_value_to_seq(value, variable), whole)


@pytest.mark.parametrize("form", ["ndarray", "memoryview", "DLPack"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (0,)], ids=str)
def test_rectangles_for_a_variable_without_axes(form, shape):
    whole = ones(*shape)
    variable = plain_variable(shape)
    with no_warning():
        value = sanitize_batch(variable, RECTANGLES[form](whole))
    reference.assert_same(value.data, whole)
    reference.assert_same(value.mask, np.asarray(value.mask).reshape(()))
    assert value.mask.dtype == np.int8
    reference.assert_same(variable_value_to_seq(value, variable), whole)


@pytest.mark.parametrize("scalar", [5.0, 5, True, F32(5), np.array(5, F32)], ids=repr)
def test_a_scalar_is_a_value_for_a_variable_without_axes(scalar):
    # A number is refused as a batch, but without axes there is no batch: the sample is `s` itself.
    variable = plain_variable(())
    value = sanitize_batch(variable, np.asarray(scalar, F32))
    reference.assert_same(variable_value_to_seq(value, variable), np.array(scalar, F32))


def test_batch_only_items_are_samples_with_or_without_an_axis_of_one():
    variable = batch_variable((3,))
    items = [ones(3), ones(1, 3), [1.0, 2.0, 3.0], [[1.0, 2.0, 3.0]], Speaker(ones(3))]
    with no_warning():
        value = sanitize_batch(variable, items)
    reference.assert_same(value.data, np.stack([ones(3)] * 5))


def test_batch_only_scalars():
    variable = batch_variable(())
    items = [1.0, 2, F32(3), np.array(4, F32), np.array([5], F32), [6.0], True]
    with no_warning():
        value = sanitize_batch(variable, items)
    reference.assert_same(value.data, np.array([1, 2, 3, 4, 5, 6, 1], F32))


def test_batch_only_from_a_buffer():
    variable = batch_variable(())
    with no_warning():
        value = sanitize_batch(variable, array.array("f", [1, 2, 3]))
    reference.assert_same(value.data, ones(3))


@pytest.mark.parametrize(
    ("code", "dtype"),
    [("b", "int8"), ("B", "uint8"), ("h", "int16"), ("i", "int32"), ("q", "int64"), ("d", "f8")],
)
def test_buffers_bring_their_own_dtype(code, dtype):
    reference.assert_same_list(
        sequences_of([array.array(code, [1, 2])], (), dtype), [np.array([1, 2], dtype)]
    )


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint64", "float64", "int64"])
def test_dlpack_brings_every_dtype(dtype):
    whole = np.array([[0, 1, 2], [3, 4, 5]], dtype)
    reference.assert_same_list(sequences_of(Speaker(whole), (), dtype), list(whole))


def test_a_read_only_memoryview_and_an_array_over_bytes():
    whole = np.frombuffer(ones(2, 3).tobytes(), F32).reshape(2, 3)
    reference.assert_same_list(sequences_of(memoryview(whole), ()), list(whole))
    reference.assert_same_list(sequences_of([whole[0], whole[1, :1]], ()), [whole[0], whole[1, :1]])


def test_a_memory_mapped_array(tmp_path):
    whole = ones(2, 3)
    whole.tofile(tmp_path / "numbers")
    mapped = np.memmap(tmp_path / "numbers", F32, "r", shape=(2, 3))
    got = sequences_of(mapped, ())
    reference.assert_same_list(got, list(whole))
    assert all(type(sequence) is np.ndarray for sequence in got)


def test_subclasses_of_ndarray_come_back_as_plain_arrays():
    class Tagged(np.ndarray):
        pass

    got = sequences_of([ones(2).view(Tagged)], ())
    assert type(got[0]) is np.ndarray
    reference.assert_same_list(got, [ones(2)])


def test_free_dimension_takes_its_size_from_the_data():
    shape = (udfkit.FreeDimension, 3)
    got = sequences_of([ones(2, 4, 3), ones(4, 3), ones(0, 4, 3)], shape)
    reference.assert_same_list(got, [ones(2, 4, 3), ones(1, 4, 3), ones(0, 4, 3)])
    got = sequences_of(ones(2, 5, 4, 3), shape)
    reference.assert_same_list(got, list(ones(2, 5, 4, 3)))


def test_free_dimension_may_change_from_batch_to_batch():
    variable = batch_variable((udfkit.FreeDimension,))
    for size in (0, 1, 4):
        assert sanitize_batch(variable, ones(2, size)).shape == (2, size)


def test_free_dimension_is_zero_for_an_empty_batch():
    variable = sequence_variable((udfkit.FreeDimension, 3))
    assert sanitize_batch(variable, []).shape == (0, 0, 0, 3)


def test_the_default_dtype_is_float32():
    assert sanitize_batch(sequence_variable(()), [[1, 2]]).dtype == F32


def test_bfloat16_passes_through_untouched():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.array([[0x3F80, 0x7FC1, 0x8000], [0xFF80, 0x0001, 0x4049]], np.uint16)
    whole = bits.view(ml_dtypes.bfloat16)
    variable = sequence_variable((), ml_dtypes.bfloat16)
    got = variable_value_to_seq(sanitize_batch(variable, [whole[0], whole[1, :1]]), variable)
    assert got[0].dtype == ml_dtypes.bfloat16
    reference.assert_same(got[0].view(np.uint16), bits[0])
    reference.assert_same(got[1].view(np.uint16), bits[1, :1])
