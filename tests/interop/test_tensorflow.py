"""Ragged to TensorFlow's RaggedTensor and back: its own lists are the oracle."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

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
def test_round_trip(lengths, shape):
    ragged = batch(lengths, shape)
    made = ragged.to_tensorflow()
    assert isinstance(made, tf.RaggedTensor)
    assert made.to_list() == lists(ragged)
    back = udfkit.Ragged.from_tensorflow(made)
    assert back.equals(ragged)
    if sum(lengths):
        assert shares(back.values, np.asarray(memoryview(made.values)))


@pytest.mark.parametrize("dtype", NUMBERS + FLOATS)
def test_dtypes(dtype):
    ragged = batch([2, 0, 3], (2,), dtype)
    made = ragged.to_tensorflow()
    assert made.to_list() == lists(ragged)
    assert udfkit.Ragged.from_tensorflow(made).equals(ragged)


def test_row_splits_of_32_bits_and_constants():
    made = tf.ragged.constant([[1, 2], [], [3]], row_splits_dtype=tf.int32)
    assert lists(udfkit.Ragged.from_tensorflow(made)) == [[1, 2], [], [3]]
    picked = tf.gather(made, [2, 0])
    assert lists(udfkit.Ragged.from_tensorflow(picked)) == [[3], [1, 2]]


def test_refused():
    with pytest.raises(TypeError, match="ragged_rank 2, expected 1"):
        udfkit.Ragged.from_tensorflow(tf.ragged.constant([[[1], []], []]))
    with pytest.raises(TypeError, match=r"expected a tf\.RaggedTensor"):
        udfkit.Ragged.from_tensorflow(tf.constant([1]))
    with pytest.raises(TypeError, match="strings"):
        udfkit.Ragged.from_tensorflow(tf.ragged.constant([["a"]]))


def test_starts_are_not_lost():
    check_that_starts_are_not_lost("to_tensorflow")


def test_bfloat16_keeps_its_bits():
    ragged = udfkit.Ragged(np.array([1.5, -0.0, 3.0], ml_dtypes.bfloat16), [0, 2, 3])
    made = ragged.to_tensorflow()
    assert made.dtype == tf.bfloat16
    back = udfkit.Ragged.from_tensorflow(made)
    assert back.dtype == ml_dtypes.bfloat16
    assert back.values.tobytes() == ragged.values.tobytes()


def test_other_things_are_refused_with_the_cure():
    for other in (tf.ones((2, 3)), [[1]]):
        with pytest.raises(TypeError, match=r"expected a tf.RaggedTensor, not .* make one"):
            udfkit.Ragged.from_tensorflow(other)
