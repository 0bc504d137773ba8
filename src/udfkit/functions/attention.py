"""Attention pooling: a weighted mean of the steps of each sequence."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from udfkit.functions.rows import dot
from udfkit.portable import exp
from udfkit.sequence_functions import (
    SequenceFunction,
    per_sequence,
    per_step,
    sequence_function,
    shared,
)
from udfkit.variable import Variable

__all__ = ["attention_pooling"]


@sequence_function(
    takes={"x": per_step("T", "D"), "w": shared("D")},
    gives={"y": per_sequence("D")},
    saved={"a": ("T",), "mean": ("D",)},
)
def AttentionPooling(x, w, y, a, mean):
    """The body of `attention_pooling`."""
    steps, size = x.shape
    high = 0.0
    for t in range(steps):
        score = dot(x[t], w)
        a[t] = score
        high = score if (t == 0) | (score > high) | (score != score) else high
    total = 0.0
    for t in range(steps):
        a[t] = exp(a[t] - high)
    for t in range(steps):
        total += a[t]
    for d in range(size):
        mean[d] = 0.0
    for t in range(steps):
        a[t] /= total
        for d in range(size):
            mean[d] += a[t] * x[t, d]
    for d in range(size):
        y[d] = mean[d]


@AttentionPooling.gradient
def _attention_gradient(x, w, a, mean, grad_y, grad_x, grad_w):
    steps, size = x.shape
    base = 0.0
    for d in range(size):
        base += grad_y[d] * mean[d]
    for t in range(steps):
        score = (dot(x[t], grad_y) - base) * a[t]
        for d in range(size):
            grad_x[t, d] = a[t] * grad_y[d] + score * w[d]
            grad_w[d] += score * x[t, d]


def attention_pooling(x: Variable, w: Variable, name: str = "") -> SequenceFunction:
    r"""Pool the steps of each sequence with softmax weights: one vector a sequence.

    .. math:: a_t = \frac{e^{x_t \cdot w}}{\sum_s e^{x_s \cdot w}}, \qquad y = \sum_t a_t x_t

    A learned query over a sequence, as in C. Raffel and D. Ellis, "Feed-forward networks with
    attention can solve some long-term memory problems", 2015 (equations 1 and 2, with a linear
    scoring function). The pooled vector of an empty sequence is 0.

    Parameters
    ----------
    x : Variable, a sequence of shape (D,), float32 or float64
    w : Variable without axes, shape (D,)

    Returns
    -------
    SequenceFunction
        Its output has shape (D,) and a batch axis.

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes or shapes.

    Examples
    --------
    >>> import udfkit
    >>> x = udfkit.sequence.input_variable(2, needs_gradient=True)
    >>> w = udfkit.Parameter(init=[0.0, 0.0])
    >>> pool = udfkit.functions.attention_pooling(x, w)
    >>> pool.eval([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]).tolist()
    [[2.0, 3.0], [5.0, 6.0]]
    """
    return AttentionPooling([x, w], name)
