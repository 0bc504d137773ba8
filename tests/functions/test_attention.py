"""Attention pooling against NumPy and finite differences."""

from __future__ import annotations

import numpy as np

import udfkit
from function_checks import assert_gradient, differences, ragged


def pool(x, w):
    if len(x) == 0:
        return np.zeros(x.shape[1])
    score = x @ w
    a = np.exp(score - score.max())
    return (a / a.sum()) @ x


def test_values_and_gradients():
    rng = np.random.default_rng(0)
    batch, weight = ragged(rng, [4, 0, 1, 7], (3,)), rng.normal(size=3)
    x = udfkit.sequence.input_variable(3, np.float64, needs_gradient=True, name="x")
    w = udfkit.Parameter(init=weight, name="w")
    fn = udfkit.functions.attention_pooling(x, w)
    root = rng.normal(size=(4, 3))
    gradients, y = fn.grad(batch, None, root, [fn.output])
    np.testing.assert_allclose(y, [pool(s, weight) for s in batch], rtol=1e-13, atol=1e-15)

    def value(moved):
        return sum((pool(s, moved[-1]) * r).sum() for s, r in zip(moved[:-1], root, strict=True))

    *by_x, by_w = differences(value, [*batch, weight])
    assert_gradient(gradients[x], by_x)
    assert_gradient([gradients[w]], [by_w])


def test_float32_and_large_scores():
    x = udfkit.sequence.input_variable(1, needs_gradient=True)
    w = udfkit.Parameter(init=[1000.0])
    fn = udfkit.functions.attention_pooling(x, w)
    y = fn.eval([[[1.0], [2.0]], [[-5.0]], [[-900.0], [-901.0]]])
    assert y.dtype == np.float32
    np.testing.assert_allclose(y[:, 0], [2.0, -5.0, -900.0], rtol=1e-6)
