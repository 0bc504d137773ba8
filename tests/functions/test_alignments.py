"""Soft-DTW against a plain double loop and finite differences; edit distance against recursion."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import udfkit
from function_checks import assert_gradient, differences, ragged


def soft_dtw(x, y, gamma):
    n, m = len(x), len(y)
    r = np.full((n + 1, m + 1), np.inf)
    r[0, 0] = 0.0
    for i in range(n):
        for j in range(m):
            ways = np.array([r[i, j], r[i, j + 1], r[i + 1, j]])
            least = ways.min()
            soft = least - gamma * np.log(np.exp(-(ways - least) / gamma).sum())
            r[i + 1, j + 1] = ((x[i] - y[j]) ** 2).sum() + soft
    return r[n, m]


def make(shape, gamma, dtype=np.float64):
    x = udfkit.sequence.input_variable(shape, dtype, needs_gradient=True, name="x")
    y = udfkit.sequence.input_variable(shape, dtype, needs_gradient=True, name="y")
    return udfkit.functions.soft_dtw(x, y, gamma), x, y


@pytest.mark.parametrize("gamma", [0.01, 1.0, 100.0])
def test_soft_dtw_values_and_gradients(gamma):
    rng = np.random.default_rng(0)
    xs, ys = ragged(rng, [4, 1, 5, 3, 1], (2,)), ragged(rng, [3, 5, 1, 8, 1], (2,))
    fn, x, y = make(2, gamma)
    root = rng.normal(size=5)
    gradients, values = fn.grad({"x": xs, "y": ys}, None, root, [fn.output])
    want = [soft_dtw(a, b, gamma) for a, b in zip(xs, ys, strict=True)]
    np.testing.assert_allclose(values, want, rtol=1e-12)

    def value(moved):
        pairs = zip(moved[:5], moved[5:], strict=True)
        return sum(r * soft_dtw(a, b, gamma) for r, (a, b) in zip(root, pairs, strict=True))

    found = differences(value, [*xs, *ys])
    assert_gradient([*gradients[x], *gradients[y]], found, 1e-6)


def test_soft_dtw_of_empty_sequences():
    fn, x, y = make(1, 1.0)
    feed = {
        "x": [np.zeros((0, 1)), np.zeros((0, 1)), [[1.0]]],
        "y": [np.zeros((0, 1)), [[1.0]], [[3.0]]],
    }
    gradients, values = fn.grad(feed, None, None, [fn.output])
    assert values.tolist() == [0.0, np.inf, 4.0]
    assert np.concatenate(gradients[x]).tolist() == [[-4.0]]
    assert np.concatenate(gradients[y]).tolist() == [[0.0], [4.0]]


def test_soft_dtw_of_long_equal_sequences_is_finite():
    """The sum over alignments of 700 steps is far above what a float64 can hold."""
    fn, x, _ = make(1, 1.0)
    same = np.zeros((700, 1))
    gradients, values = fn.grad({"x": [same], "y": [same]}, None, None, [fn.output])
    assert -2000 < values[0] < -700
    assert np.isfinite(gradients[x][0]).all()


@pytest.mark.parametrize("gamma", [0.0, -1.0, np.nan])
def test_soft_dtw_wants_gamma_above_0(gamma):
    with pytest.raises(ValueError, match="expected a number above 0"):
        make(1, gamma)


def edits(x, y):
    @cache
    def least(i, j):
        if i == 0 or j == 0:
            return i + j
        same = least(i - 1, j - 1) + (x[i - 1] != y[j - 1])
        return min(same, least(i - 1, j) + 1, least(i, j - 1) + 1)

    return least(len(x), len(y))


def test_edit_distance():
    rng = np.random.default_rng(1)
    xs = [rng.integers(0, 3, n) for n in rng.integers(0, 12, 40)]
    ys = [rng.integers(0, 3, n) for n in rng.integers(0, 12, 40)]
    x = udfkit.sequence.input_variable((), np.int64, name="x")
    y = udfkit.sequence.input_variable((), np.int64, name="y")
    found = udfkit.functions.edit_distance(x, y).eval({"x": xs, "y": ys})
    assert found.dtype == np.int64
    assert found.tolist() == [edits(a, b) for a, b in zip(xs, ys, strict=True)]
