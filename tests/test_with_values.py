"""`Value.with_values`: other samples for the layout of a Value."""

from __future__ import annotations

import numpy as np
import pytest

import reference
import udfkit
from checks import batch_variable, plain_variable, raises, sequence_variable
from udfkit import Value, sanitize_batch

F32 = np.float32
LENGTHS = [2, 0, 3]
STARTS = [True, False, False]


def sequences(flat: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
    return np.split(flat, np.cumsum(lengths)[:-1])


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "?", ">f4"])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("copy", [True, False])
def test_sequences(dtype: str, shape: tuple[int, ...], copy: bool) -> None:
    batch = [np.ones((n, 4), F32) for n in LENGTHS]
    value = sanitize_batch(sequence_variable(4), batch, STARTS)
    flat = np.arange(5 * int(np.prod(shape))).reshape(5, *shape).astype(dtype)
    made = value.with_values(flat, copy=copy)
    native = flat.astype(flat.dtype.newbyteorder("="))
    data, mask = reference.pad(sequences(native, LENGTHS), shape, native.dtype, STARTS)
    reference.assert_same(made.asarray(), data)
    reference.assert_same(np.asarray(made.mask), mask)
    assert made.lengths.tolist() == LENGTHS
    assert made.starts.tolist() == STARTS


def test_any_mask_and_any_layout() -> None:
    mask = np.int8([[2, 1, 0, 2], [0, 1, 2, 0]])
    made = Value(np.ones((2, 4, 2), F32), mask).with_values(np.arange(1.0, 6.0))
    assert made.asarray().tolist() == [[1, 2, 0, 3], [0, 4, 5, 0]]
    reference.assert_same(np.asarray(made.mask), mask)
    filled = udfkit.fill_rows([[1], [2, 3, 4], [5, 6]], row_length=4).value
    assert filled.with_values([10, 20, 30, 40, 50, 60]).data.tolist() == [
        [20, 30, 40, 10],
        [50, 60, 0, 0],
    ]


def test_other_kinds() -> None:
    made = sanitize_batch(batch_variable(2), np.ones((3, 2), F32)).with_values([[1.0], [2], [3]])
    assert (made.shape, made.data.tolist()) == ((3, 1), [[1], [2], [3]])
    assert udfkit.variable_value_to_seq(made, batch_variable(1, np.float64)).shape == (3, 1)
    plain = sanitize_batch(plain_variable(2), np.ones(2, F32)).with_values([[5.0, 6.0, 7.0]])
    assert (plain.shape, plain.data.tolist()) == ((3,), [5, 6, 7])


def test_a_copy_and_an_alias() -> None:
    value = sanitize_batch(sequence_variable(()), [[1.0, 2.0], [3.0]])
    flat = np.array([4.0, 5.0, 6.0], F32)
    own, alias = value.with_values(flat), value.with_values(flat, copy=False)
    flat[0] = 9
    assert own.values.tolist() == [4, 5, 6]
    assert alias.values.tolist() == [9, 5, 6]
    assert not alias.values.flags.writeable
    assert flat.flags.writeable, "the user's array stays as it was"


@pytest.mark.parametrize("flat", [np.ones(4), np.ones((2, 3)), np.ones(()), np.ones(0)], ids=str)
def test_as_many_samples_as_there_are_cells(flat: np.ndarray) -> None:
    value = sanitize_batch(sequence_variable(()), [[1.0, 2.0], [3.0]])
    with raises(ValueError, "(3, ...)", fix=False):
        value.with_values(flat)


def test_what_is_no_number() -> None:
    value = sanitize_batch(sequence_variable(()), [[1.0, 2.0], [3.0]])
    for flat in (np.ones(3, complex), ["a", "b", "c"], np.array([None] * 3)):
        with pytest.raises(TypeError, match="values"):
            value.with_values(flat)


def test_a_ragged_moves_only_to_a_device() -> None:
    ragged = udfkit.Ragged([1.0, 2.0], [0, 2])
    assert ragged.device == udfkit.cpu()
    assert ragged.to(udfkit.cpu()) is ragged
    with raises(TypeError, "str", "udfkit.cpu()"):
        ragged.to("cuda")  # type: ignore[arg-type]
