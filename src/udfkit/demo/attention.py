"""The user function of the demo: attention pooling, written over plain sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

import udfkit

__all__ = ["AttentionPooling", "attention_weights"]


def attention_weights(frames: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return how much each head looks at each frame of one utterance.

    Parameters
    ----------
    frames : ndarray, shape (length, size)
        One utterance.
    query : ndarray, shape (size, heads)
        One column a head.

    Returns
    -------
    ndarray, shape (length, heads)
        The softmax of ``frames @ query`` over the frames: each column sums to 1.

    Examples
    --------
    >>> import numpy as np
    >>> attention_weights(np.array([[0.0], [np.log(3.0)]]), np.array([[1.0]])).round(2).tolist()
    [[0.25], [0.75]]
    """
    scores = frames @ query
    weights: np.ndarray = np.exp(scores - scores.max(axis=0, initial=-np.inf))
    weights /= weights.sum(axis=0)
    return weights


class AttentionPooling(udfkit.UserFunction):
    """Sum up each utterance as a few weighted means of its frames, one a head.

    Parameters
    ----------
    features : Variable of sequences, sample shape (size,)
        The frames; an utterance without any gives zeros.
    query : Variable without axes, shape (size, heads)
        What each head looks for: a parameter that is learned like any other.

    Notes
    -----
    The output has one sample of shape (heads, size) an utterance. For the frames ``x[t]`` of one
    utterance and one head with query ``q``, weights ``a`` and output ``y``::

        a = softmax(x @ q)               y = sum(a[t] * x[t])

    Backward gets ``dy``, the gradient of the loss at ``y``. With ``da[t] = dy @ x[t]``::

        ds[t] = a[t] * (da[t] - sum(a * da))                  at the scores x @ q
        dx[t] = a[t] * dy + ds[t] * q                         at the frames
        dq    = sum(ds[t] * x[t])                             at the query, over all utterances

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> features = udfkit.sequence.input_variable(2, needs_gradient=True, name="features")
    >>> query = udfkit.Parameter(init=np.zeros((2, 1), np.float32), name="query")
    >>> utterances = [np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6]], np.float32)]
    >>> pooling = AttentionPooling(features, query)
    >>> pooling.eval({features: utterances, query: query.value}).tolist()
    [[[2.0, 3.0]], [[5.0, 6.0]]]
    """

    def __init__(
        self, features: udfkit.Variable, query: udfkit.Variable, name: str = "attention"
    ) -> None:
        super().__init__([features, query], name=name)

    def infer_outputs(self) -> list[udfkit.Variable]:
        """Declare the output: one sample of shape (heads, size) an utterance."""
        features, query = self.inputs
        size, heads = query.shape
        batch_axis = udfkit.Axis.default_batch_axis()
        return [udfkit.output_variable((heads, size), features.dtype, [batch_axis], name="pooled")]

    def forward(self, arguments: Any, device: Any, outputs_to_retain: Any) -> tuple[Any, Any]:
        """Pool the frames; ``arguments`` are a list of (length, size) arrays, and the query."""
        utterances, query = arguments
        weights = [attention_weights(frames, query) for frames in utterances]
        pooled = [a.T @ frames for a, frames in zip(weights, utterances, strict=True)]
        return (utterances, weights, query), pooled

    def backward(self, state: Any, root_gradients: Any, variables: dict[Any, Any]) -> None:
        """Fill in the gradients; ``root_gradients`` has one (heads, size) array an utterance."""
        utterances, weights, query = state
        features_gradient = []
        query_gradient = np.zeros_like(query)
        for frames, a, dy in zip(utterances, weights, root_gradients, strict=True):
            da = frames @ dy.T
            ds = a * (da - (a * da).sum(axis=0))
            features_gradient.append(a @ dy + ds @ query.T)
            query_gradient += frames.T @ ds
        for variable, gradient in zip(
            self.inputs, (features_gradient, query_gradient), strict=True
        ):
            if variable in variables:
                variables[variable] = gradient
