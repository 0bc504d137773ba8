"""Softmax and its relatives over each sequence, masked, against NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

import udfkit
from function_checks import assert_gradient, differences, ragged
from udfkit import functions

LENGTHS = [3, 0, 1, 6]


def log_sum(x):
    high = x.max(axis=0)
    return high + np.log(np.exp(x - high).sum(axis=0))


REFERENCES = {
    "softmax": lambda x: np.exp(x - log_sum(x)),
    "log_softmax": lambda x: x - log_sum(x),
    "logsumexp": log_sum,
    "mean": lambda x: x.mean(axis=0),
    "maximum_over": lambda x: x.max(axis=0),
}
OF_NOTHING = {"logsumexp": -np.inf, "maximum_over": -np.inf, "mean": 0.0}
MASKED = {"softmax": 0.0, "log_softmax": -np.inf}


def expected(name, x, mask):
    kept = x[mask]
    if name in MASKED:
        y = np.full(x.shape, MASKED[name])
        if len(kept):
            y[mask] = REFERENCES[name](kept)
        return y
    return REFERENCES[name](kept) if len(kept) else np.full(x.shape[1:], OF_NOTHING[name])


@pytest.mark.parametrize("name", sorted(REFERENCES))
@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_values_and_gradients(name, shape):
    rng = np.random.default_rng(0)
    x = udfkit.sequence.input_variable(shape, np.float64, needs_gradient=True, name="x")
    mask = udfkit.sequence.input_variable((), np.bool_, name="mask")
    batch = [*ragged(rng, LENGTHS, shape), rng.normal(size=(2, *shape))]
    masks = [rng.random(len(s)) < 0.6 for s in batch[:-1]] + [np.zeros(2, bool)]
    unmasked = [np.ones(len(s), bool) for s in batch]
    for fn, used, feed in [
        (getattr(functions, name)(x), unmasked, {"x": batch}),
        (getattr(functions, name)(x, mask), masks, {"x": batch, "mask": masks}),
    ]:
        wants = [expected(name, s, m) for s, m in zip(batch, used, strict=True)]
        shapes = [w.shape for w in wants]
        root = [rng.normal(size=s) for s in shapes]
        gradient, outputs = fn.grad(feed, None, root, [fn.output])
        for got, want in zip(outputs, wants, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-15)

        def value(moved, used=used, root=root):
            total = 0.0
            for s, m, r in zip(moved, used, root, strict=True):
                y = expected(name, s, m)
                total += (np.where(np.isfinite(y), y, 0.0) * r).sum()
            return total

        assert_gradient(gradient, differences(value, batch))


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_what_is_masked_leaks_nothing(name):
    x = udfkit.sequence.input_variable((), np.float32, needs_gradient=True, name="x")
    mask = udfkit.sequence.input_variable((), np.bool_, name="mask")
    fn = getattr(functions, name)(x, mask)
    clean = fn.grad({"x": [[1.0, 0.0, 2.0]], "mask": [[True, False, True]]}, outputs=[fn.output])
    dirty = fn.grad(
        {"x": [np.array([1.0, np.nan, 2.0], np.float32)], "mask": [[True, False, True]]},
        outputs=[fn.output],
    )
    np.testing.assert_array_equal(clean[0], dirty[0])
    np.testing.assert_array_equal(clean[1], dirty[1])
    assert np.isfinite(clean[0]).all()


def test_sequences_of_minus_infinity_have_no_nan():
    x = udfkit.sequence.input_variable((), np.float64, needs_gradient=True, name="x")
    batch = [[-np.inf, -np.inf], [-np.inf, 0.0]]
    for name in ("softmax", "logsumexp"):
        fn = getattr(functions, name)(x)
        gradient, y = fn.grad(batch, None, None, [fn.output])
        assert not np.isnan(np.concatenate([np.ravel(part) for part in [*gradient, *y]])).any()
