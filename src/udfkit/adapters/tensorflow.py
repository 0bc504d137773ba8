"""Ragged batches and TensorFlow's RaggedTensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from udfkit.ragged import Ragged

__all__ = ["from_tensorflow", "to_tensorflow"]


def from_tensorflow(ragged: Any) -> Ragged:
    """Return a Ragged of a RaggedTensor whose samples all have one shape.

    Examples
    --------
    >>> import tensorflow as tf, udfkit
    >>> made = udfkit.Ragged.from_tensorflow(tf.ragged.constant([[1, 2], [], [3]]))
    >>> [x.tolist() for x in made]
    [[1, 2], [], [3]]
    """
    if not isinstance(ragged, tf.RaggedTensor):
        raise TypeError(
            f"expected a tf.RaggedTensor, not a {type(ragged).__name__}: make one, such as with "
            f"tf.RaggedTensor.from_row_splits or tf.RaggedTensor.from_tensor"
        )
    if ragged.ragged_rank != 1:
        raise TypeError(
            f"the RaggedTensor has ragged_rank {ragged.ragged_rank}, expected 1: every sample must "
            f"have one shape"
        )
    if not tf.executing_eagerly() or not hasattr(ragged.values, "numpy"):
        raise TypeError("the RaggedTensor is symbolic: call this outside of tf.function")
    if ragged.values.dtype == tf.string:
        raise TypeError("the RaggedTensor holds strings, expected numbers or bool")
    if ragged.values.dtype == tf.bfloat16:
        # The buffer protocol has no name for it.
        return Ragged(ragged.values.numpy(), ragged.row_splits.numpy())
    return Ragged(np.asarray(memoryview(ragged.values)), ragged.row_splits.numpy())


def to_tensorflow(ragged: Ragged) -> Any:
    """Return a RaggedTensor with copies of the values of a Ragged."""
    values = tf.convert_to_tensor(np.ascontiguousarray(ragged.values))
    return tf.RaggedTensor.from_row_splits(values, np.array(ragged.offsets), validate=False)
