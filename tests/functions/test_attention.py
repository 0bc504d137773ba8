"""Attention pooling against NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_of_steps_with_next_to_no_weight(dtype):
    """exp(-100) is denormal in float32, and no longer there at all with exp(-800)."""
    x = udfkit.sequence.input_variable(1, dtype, needs_gradient=True, name="x")
    w = udfkit.Parameter(init=np.ones(1, dtype), name="w")
    batch = [np.array([[0.0], [-20.0], [-100.0], [-800.0], [-np.inf]], dtype)[:n] for n in (4, 5)]
    found = udfkit.functions.attention_pooling(x, w).grad(batch[:1], wrt="x")[0][:, 0]
    weights = np.exp(batch[0][:, 0].astype(np.float64))
    weights /= weights.sum()
    mean = (weights * batch[0][:, 0]).sum()
    want = weights * (1.0 + batch[0][:, 0] - mean)
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-35 if dtype == np.float32 else 0.0)
    assert found[2] != 0.0 or dtype == np.float32
    large = np.array([[0.0], [-100.0]], dtype)
    found = udfkit.functions.attention_pooling(x, w).grad([large], None, [[1e30]])[x][0][1, 0]
    assert found == pytest.approx(1e30 * np.exp(-100.0) * -99.0, rel=1e-6)
    assert np.isnan(udfkit.functions.attention_pooling(x, w).grad(batch[1:], wrt="x")[0]).all()


def test_float32_and_large_scores():
    x = udfkit.sequence.input_variable(1, needs_gradient=True)
    w = udfkit.Parameter(init=[1000.0])
    fn = udfkit.functions.attention_pooling(x, w)
    y = fn.eval([[[1.0], [2.0]], [[-5.0]], [[-900.0], [-901.0]]])
    assert y.dtype == np.float32
    np.testing.assert_allclose(y[:, 0], [2.0, -5.0, -900.0], rtol=1e-6)
