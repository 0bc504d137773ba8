"""Attention pooling: a weighted mean of the steps of each sequence."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import math

from udfkit.functions.rows import add_product
from udfkit.portable import dot, exp, total
from udfkit.sequence_functions import (
    SequenceFunction,
    per_sequence,
    per_step,
    scratch,
    sequence_function,
    shared,
)
from udfkit.variable import Variable

__all__ = ["attention_pooling"]

# In float32, steps with less weight than this have no gradient: it would be denormal numbers, with
# which a processor takes a hundred times as long.
_LEAST = 2.0**-120
_BELOW_FLOAT32 = 2.0**-200


@sequence_function(
    takes={"x": per_step("T", "D"), "w": shared("D")},
    gives={"y": per_sequence("D")},
    saved={"a": ("T",), "mean": ("D",)},
    work={"slope": ("T",), "factors": scratch(2, dtype_of="x")},
)
def AttentionPooling(x, w, y, a, mean):
    """The body of `attention_pooling`."""
    steps, size = x.shape
    if steps == 0:
        return
    high = 0.0
    for t in range(steps):
        score = dot(x[t], w)
        a[t] = score
        high = score if (t == 0) | (score > high) | (score != score) else high
    for t in range(steps):
        a[t] = exp(a[t] - high)
    inverse = 1.0 / total(a)
    for t in range(steps):
        a[t] *= inverse
    for d in range(size):
        mean[d] = 0.0
    add_product(a, x, mean)
    for d in range(size):
        y[d] = mean[d]


def _fill_row(a, b, x, y, row):
    for k in range(row.shape[0]):
        row[k] = a * x[k] + b * y[k]


@AttentionPooling.gradient
def _attention_gradient(x, w, a, mean, slope, factors, grad_y, grad_x, grad_w):
    base = dot(mean, grad_y)
    factors[0] = _BELOW_FLOAT32
    least = _LEAST if factors[0] == 0.0 else 0.0
    for t in range(x.shape[0]):
        slope[t] = (dot(x[t], grad_y) - base) * a[t]
        # Not so for a NaN.
        if not (a[t] < least and math.fabs(slope[t]) < least):
            # In the dtype of x, a row of float32 is filled at twice the speed.
            factors[0] = a[t]
            factors[1] = slope[t]
            _fill_row(factors[0], factors[1], grad_y, w, grad_x[t])
    add_product(slope, x, grad_w)


def attention_pooling(x: Variable, w: Variable, name: str = "") -> SequenceFunction:
    r"""Pool the steps of each sequence with softmax weights: one vector a sequence.

    .. math:: a_t = \frac{e^{x_t \cdot w}}{\sum_s e^{x_s \cdot w}}, \qquad y = \sum_t a_t x_t

    A learned query over a sequence, as in C. Raffel and D. Ellis, "Feed-forward networks with
    attention can solve some long-term memory problems", 2015 (equations 1 and 2, with a linear
    scoring function). The pooled vector of an empty sequence is 0. In float32, steps with a weight
    below 2^-120 have the gradient 0.

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
