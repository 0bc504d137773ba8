"""Section 5 of the contract for batches: the class of the error, the place, and the way out."""

from __future__ import annotations

import numpy as np
import pytest

import udfkit
from checks import batch_variable, plain_variable, raises, sequence_variable
from udfkit import Ragged, Value, sanitize_batch, variable_value_to_seq

F32 = np.float32
MAKERS = {"sequence": sequence_variable, "batch": batch_variable, "none": plain_variable}


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


@pytest.mark.parametrize("var", [None, "x", (3,), np.float32, 3, object(), udfkit.Variable])
def test_var_is_not_a_variable(var):
    with raises(TypeError, "Variable"):
        sanitize_batch(var, [ones(2)])
    with raises(TypeError, "Variable"):
        variable_value_to_seq(Value(ones(2, 3)), var)


NOT_A_BATCH = {
    "None": None,
    "int": 5,
    "float": 5.0,
    "bool": True,
    "complex": 5j,
    "str": "abc",
    "bytes": b"abc",
    "bytearray": bytearray(b"abc"),
    "dict": {"a": ones(2)},
    "set": {1.0, 2.0},
    "frozenset": frozenset([1.0]),
    "generator": (ones(2) for _ in range(2)),
    "iterator": iter([1.0, 2.0]),
    "map": map(float, [1, 2]),
    "dict view": {"a": 1.0}.values(),
    "object": object(),
    "class": np.ndarray,
    "function": len,
}


@pytest.mark.parametrize("kind", ["sequence", "batch"])
@pytest.mark.parametrize("name", NOT_A_BATCH)
def test_what_is_never_a_batch(kind, name):
    with raises(TypeError, fix=False) as caught:
        sanitize_batch(MAKERS[kind](()), NOT_A_BATCH[name])
    text = str(caught.value)
    assert all(part in text for part in ("list", "array", "Ragged")), text


@pytest.mark.parametrize("name", sorted(set(NOT_A_BATCH) - {"int", "float", "bool"}))
def test_what_is_never_the_value_of_a_variable_without_axes(name):
    with raises((TypeError, ValueError), "list", fix=False):
        sanitize_batch(plain_variable(()), NOT_A_BATCH[name])


def test_a_refused_generator_is_not_consumed():
    made = []

    def items():
        for k in range(3):
            made.append(k)
            yield ones(2)

    batch = items()
    with raises(TypeError, "list", fix=False):
        sanitize_batch(sequence_variable(()), batch)
    assert made == []
    assert len(list(batch)) == 3


BAD_ITEMS = {
    "None": None,
    "str": "abc",
    "bytes": b"abc",
    "object": object(),
    "dict": {},
    "set": {1.0},
    "generator": (x for x in ()),
    "object array": np.array([1.0, None], object),
    "complex array": np.array([1j, 2j]),
    "complex": 5j,
    "datetime array": np.array(["2020-01-01"], "M8[D]"),
    "timedelta array": np.array([1], "m8[s]"),
    "str array": np.array(["a", "b"]),
    "structured array": np.zeros(2, [("a", "f4")]),
    "list with None": [1.0, None],
    "list with str": [1.0, "a"],
    "list with complex": [1.0, 2j],
}


@pytest.mark.parametrize("kind", ["sequence", "batch"])
@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("name", BAD_ITEMS)
def test_items_that_are_no_numbers(kind, place, name):
    batch = [ones(1) for _ in range(4)]
    batch[place] = BAD_ITEMS[name]
    with raises((TypeError, ValueError), place):
        sanitize_batch(MAKERS[kind](()), batch)


@pytest.mark.parametrize(
    ("shape", "item"),
    [
        ((3,), ones(2, 4)),
        ((3,), ones(4)),
        ((3,), ones(0, 4)),
        ((3,), ones(0)),
        ((3,), ones(2, 1, 3)),
        ((3,), ones()),
        ((3,), 1.0),
        ((3,), [[1.0, 2.0]]),
        ((3,), ones(2, 1)),
        ((2, 3), ones(4, 3, 2)),
        ((2, 3), ones(3)),
        ((2, 3), ones(4, 6)),
        ((), ones(2, 1)),
        ((), ones(0, 3)),
        ((1,), ones(2, 2)),
        ((1,), ones()),
        ((0,), ones(2, 1)),
    ],
    ids=lambda case: str(getattr(case, "shape", case)),
)
def test_wrong_sample_shape_names_sequence_shape_and_sample_shape(shape, item):
    batch = [ones(1, *shape)] * 7 + [item]
    given = np.shape(item)
    with raises(ValueError, 7) as caught:
        sanitize_batch(sequence_variable(shape), batch)
    text = str(caught.value)
    assert str(given) in text, text
    assert str(shape) in text, text


def test_a_ragged_nested_list_inside_one_sequence():
    with raises(ValueError, 5):
        sanitize_batch(sequence_variable((3,)), [ones(2, 3)] * 5 + [[[1, 2, 3], [4, 5]]])
    with raises(ValueError, 5):
        sanitize_batch(sequence_variable(()), [ones(2)] * 5 + [[1.0, [2.0]]])


@pytest.mark.parametrize("item", [ones(2, 3), ones(0, 3), [[1, 2, 3]] * 2, []], ids=str)
def test_a_batch_only_item_that_is_not_one_sample(item):
    with raises(ValueError, 5) as caught:
        sanitize_batch(batch_variable((3,)), [ones(3)] * 5 + [item])
    assert "(3,)" in str(caught.value)


def test_a_free_dimension_of_two_sizes():
    variable = sequence_variable((udfkit.FreeDimension, 3))
    with raises(ValueError, 2) as caught:
        sanitize_batch(variable, [ones(1, 4, 3), ones(1, 4, 3), ones(1, 5, 3)])
    assert "5" in str(caught.value)
    assert "4" in str(caught.value)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("shape", [(2,), (2, 3), ()], ids=str)
def test_an_object_array_for_a_whole_batch(kind, shape):
    batch = np.empty(shape, object)
    batch.fill(1.0)
    with raises(ValueError, "list"):
        sanitize_batch(MAKERS[kind](()), batch)


@pytest.mark.parametrize(
    ("kind", "shape", "batch"),
    [
        ("sequence", (3,), ones(2)),
        ("sequence", (3,), ones(2, 4)),
        ("sequence", (3,), ones(2, 4, 5)),
        ("sequence", (3,), ones(2, 4, 3, 1)),
        ("sequence", (1,), ones(2, 4)),
        ("sequence", (), ones(2, 4, 1)),
        ("sequence", (), ones(2)),
        ("sequence", (), ones()),
        ("sequence", (2, 3), ones(4, 2, 3)),
        ("sequence", (3,), ones(0, 0, 4)),
        ("batch", (3,), ones(2, 4)),
        ("batch", (3,), ones(3)),
        ("batch", (3,), ones(2, 1, 3)),
        ("batch", (), ones(2, 3)),
        ("batch", (), ones()),
        ("batch", (1,), ones(4)),
        ("none", (3,), ones(4)),
        ("none", (3,), ones(1, 3)),
        ("none", (), ones(1)),
        ("none", (2, 3), ones(6)),
    ],
    ids=lambda case: str(getattr(case, "shape", case)),
)
def test_rectangles_that_do_not_fit(kind, shape, batch):
    with raises(ValueError) as caught:
        sanitize_batch(MAKERS[kind](shape), batch)
    text = str(caught.value)
    assert str(batch.shape) in text, text
    assert all(str(size) in text for size in shape), text


@pytest.mark.parametrize("batch", [[ones(3)], [ones(3), ones(3)], (ones(3),)], ids=len)
def test_a_list_of_arrays_for_a_variable_without_axes(batch):
    with raises(ValueError):
        sanitize_batch(plain_variable((3,)), batch)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_seq_starts_of_the_wrong_count(count):
    batches = [[ones(2), ones(1)], ones(2, 5), Ragged(ones(5), [0, 2, 5])]
    for batch in batches:
        with raises(ValueError, count, 2) as caught:
            sanitize_batch(sequence_variable(()), batch, seq_starts=[True] * count)
        assert "seq_starts" in str(caught.value)


def test_seq_starts_for_an_empty_batch():
    with raises(ValueError, 1, 0):
        sanitize_batch(sequence_variable(()), [], seq_starts=[True])


@pytest.mark.parametrize(("kind", "batch"), [("batch", ones(2, 3)), ("none", ones(3))])
def test_seq_starts_without_a_sequence_axis(kind, batch):
    with raises(ValueError, "seq_starts"):
        sanitize_batch(MAKERS[kind]((3,)), batch, seq_starts=[True, True])
    # Nothing is asked for by an empty list.
    assert sanitize_batch(MAKERS[kind]((3,)), batch, seq_starts=[]).shape == batch.shape


@pytest.mark.parametrize("starts", [[], [True, True], (), np.array([], bool)], ids=repr)
def test_seq_starts_with_a_value(starts):
    with raises(ValueError, "seq_starts"):
        sanitize_batch(sequence_variable(()), Value(ones(2, 3)), seq_starts=starts)


@pytest.mark.parametrize(
    "starts",
    [[1, 0], [True, 0], np.array([1, 0]), [1.0, 0.0], ["a", "b"], [None, None], [np.int8(1)] * 2],
    ids=repr,
)
def test_seq_starts_that_are_not_booleans(starts):
    with raises((ValueError, TypeError), "seq_starts"):
        sanitize_batch(sequence_variable(()), [ones(2), ones(1)], seq_starts=starts)


@pytest.mark.parametrize(
    "starts",
    [5, True, iter([True, False]), np.ones((2, 1), bool), "tf", {True, False}],
    ids=lambda starts: type(starts).__name__,
)
def test_seq_starts_that_are_no_sequence(starts):
    for batch in ([ones(2), ones(1)], Ragged(ones(3), [0, 2, 3]), ones(2, 3)):
        with raises((ValueError, TypeError), "seq_starts"):
            sanitize_batch(sequence_variable(()), batch, seq_starts=starts)


def test_seq_starts_of_integers_are_a_value_error():
    for starts in ([1, 0], np.array([1, 0])):
        with raises(ValueError, "seq_starts"):
            sanitize_batch(sequence_variable(()), [ones(2), ones(1)], seq_starts=starts)


def test_seq_starts_beside_a_ragged_that_has_starts():
    ragged = Ragged(ones(5), [0, 2, 5], starts=[True, False])
    with raises(ValueError, "seq_starts"):
        sanitize_batch(sequence_variable(()), ragged, seq_starts=[True, False])
    assert sanitize_batch(sequence_variable(()), ragged, seq_starts=[]).equals(
        sanitize_batch(sequence_variable(()), ragged)
    )


def test_seq_starts_beside_a_ragged_without_them_are_taken():
    value = sanitize_batch(
        sequence_variable(()), Ragged(ones(5), [0, 2, 5]), seq_starts=[True, False]
    )
    assert np.asarray(value.starts).tolist() == [True, False]


@pytest.mark.parametrize(
    ("kind", "shape", "data"),
    [
        ("sequence", (3,), ones(2, 4, 5)),
        ("sequence", (3,), ones(2, 4)),
        ("sequence", (), ones(2, 4, 1)),
        ("sequence", (2, 3), ones(2, 4, 3, 2)),
        ("batch", (3,), ones(2, 4, 3)),
    ],
    ids=lambda case: str(getattr(case, "shape", case)),
)
def test_a_value_whose_shape_does_not_fit(kind, shape, data):
    value = Value(data)
    for call in (
        lambda variable: sanitize_batch(variable, value),
        lambda variable: variable_value_to_seq(value, variable),
    ):
        with raises(ValueError) as caught:
            call(MAKERS[kind](shape))
        assert str(data.shape) in str(caught.value), caught.value


def test_a_value_whose_dtype_does_not_fit():
    with raises(ValueError, "float64", "float32"):
        sanitize_batch(sequence_variable(()), Value(ones(2, 3, dtype=np.float64)))


@pytest.mark.parametrize(
    ("made", "asked"), [(made, asked) for made in MAKERS for asked in MAKERS if made != asked]
)
def test_a_value_of_another_kind_of_variable(made, asked):
    lead = {"sequence": (2, 4), "batch": (2,), "none": ()}[made]
    value = sanitize_batch(MAKERS[made]((3,)), ones(*lead, 3))
    with raises(ValueError):
        sanitize_batch(MAKERS[asked]((3,)), value)


@pytest.mark.parametrize("value", [None, [ones(2)], ones(2, 3), Ragged(ones(2), [0, 2])], ids=repr)
def test_variable_value_to_seq_takes_values_only(value):
    with raises(TypeError, "Value"):
        variable_value_to_seq(value, sequence_variable(()))


@pytest.mark.parametrize("device", ["cpu", 0, -1])
def test_a_device_that_is_no_device(device):
    with pytest.raises(TypeError):
        sanitize_batch(sequence_variable(()), [ones(2)], device=device)


def test_a_ragged_that_does_not_fit_the_variable():
    with raises(ValueError) as caught:
        sanitize_batch(sequence_variable((3,)), Ragged(ones(5, 4), [0, 5]))
    assert "4" in str(caught.value)
    assert "3" in str(caught.value)
    with raises(ValueError):
        sanitize_batch(plain_variable((3,)), Ragged(ones(1, 3), [0, 1]))
    with raises(ValueError, 1):
        sanitize_batch(batch_variable((3,)), Ragged(ones(4, 3), [0, 1, 4]))
