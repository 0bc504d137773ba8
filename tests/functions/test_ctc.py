"""CTC loss against the enumeration of all alignments and sums of logarithms, at any scale."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import udfkit
from function_checks import assert_gradient, differences, ragged


def log_softmax(x):
    with np.errstate(invalid="ignore"):
        shifted = x - x.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def collapse(path, blank):
    kept = [k for t, k in enumerate(path) if t == 0 or k != path[t - 1]]
    return [k for k in kept if k != blank]


def by_enumeration(scores, target, blank):
    lp = log_softmax(scores)
    total = -np.inf
    for path in product(range(scores.shape[1]), repeat=len(scores)):
        if collapse(path, blank) == list(target):
            total = np.logaddexp(total, sum(lp[t, k] for t, k in enumerate(path)))
    return -total


def by_logs(scores, target, blank):
    """The forward recursion in logarithms, and its gradient by the scores."""
    lp = log_softmax(np.asarray(scores, np.float64))
    steps, states = len(lp), [blank]
    for k in target:
        states += [int(k), blank]
    count = len(states)
    if steps == 0:
        return (0.0 if count == 1 else np.inf), np.zeros(lp.shape)
    jump = [s > 1 and states[s] != blank and states[s] != states[s - 2] for s in range(count)]
    a = np.full((steps, count), -np.inf)
    b = np.full((steps, count), -np.inf)
    a[0, 0] = lp[0, blank]
    if count > 1:
        a[0, 1] = lp[0, states[1]]
    b[-1, count - 1] = 0.0
    if count > 1:
        b[-1, count - 2] = 0.0
    for t in range(1, steps):
        for s in range(count):
            ways = [a[t - 1, s]] + ([a[t - 1, s - 1]] if s else [])
            ways += [a[t - 1, s - 2]] if jump[s] else []
            a[t, s] = np.logaddexp.reduce(ways) + lp[t, states[s]]
    for t in range(steps - 2, -1, -1):
        for s in range(count):
            following = [s] + ([s + 1] if s + 1 < count else [])
            following += [s + 2] if s + 2 < count and jump[s + 2] else []
            b[t, s] = np.logaddexp.reduce([b[t + 1, r] + lp[t + 1, states[r]] for r in following])
    total = np.logaddexp.reduce(a[-1, max(count - 2, 0) :])
    gradient = np.exp(lp)
    if total == -np.inf:
        return np.inf, np.full(lp.shape, np.nan)
    for t in range(steps):
        for s in range(count):
            gradient[t, states[s]] -= np.exp(a[t, s] + b[t, s] - total)
    return -total, gradient


def make(classes, dtype=np.float64, **options):
    scores = udfkit.sequence.input_variable(classes, dtype, needs_gradient=True, name="scores")
    targets = udfkit.sequence.input_variable((), np.int64, name="targets")
    return udfkit.functions.ctc_loss(scores, targets, **options)


@pytest.mark.parametrize("blank", [0, 2])
def test_against_all_alignments(blank):
    rng = np.random.default_rng(blank)
    batch = ragged(rng, [1, 2, 3, 4, 5, 4, 3, 2], (3,))
    labels = [k for k in range(3) if k != blank]
    targets = [rng.choice(labels, n) for n in (1, 1, 0, 2, 2, 3, 3, 2)]
    fn = make(3, blank=blank)
    found = fn.eval({"scores": batch, "targets": targets})
    want = [by_enumeration(s, z, blank) for s, z in zip(batch, targets, strict=True)]
    np.testing.assert_allclose(found, want, rtol=1e-12)


def test_gradients_are_finite_differences():
    rng = np.random.default_rng(1)
    batch = ragged(rng, [5, 3, 6], (4,))
    targets = [np.array([1, 1]), np.array([], int), np.array([3, 2, 3])]
    root = rng.normal(size=3)
    found = make(4).grad({"scores": batch, "targets": targets}, None, root)

    def value(moved):
        return sum(r * by_logs(s, z, 0)[0] for r, s, z in zip(root, moved, targets, strict=True))

    assert_gradient(found, differences(value, batch))


@pytest.mark.parametrize("scale", [1.0, 20.0, 150.0, 700.0, 5000.0])
@pytest.mark.parametrize("fitted", [False, True])
def test_probabilities_of_any_size(scale, fitted):
    """From even ones to those below the least double, on the likely alignment and far from it."""
    rng = np.random.default_rng(int(scale))
    lengths, counts = [40, 25, 12, 60, 9, 7], [12, 20, 0, 5, 9, 6]
    batch = ragged(rng, lengths, (6,), scale)
    targets = [rng.integers(1, 6, n) for n in counts]
    targets[4] = np.arange(9) % 5 + 1
    if fitted:
        for s, z in zip(batch, targets, strict=True):
            for t in range(len(s)):
                s[t, z[t * len(z) // len(s)] if len(z) else 0] += 6 * scale
    fn = make(6)
    found, loss = fn.grad({"scores": batch, "targets": targets}, None, None, [fn.output])
    for k, (s, z) in enumerate(zip(batch, targets, strict=True)):
        want, gradient = by_logs(s, z, 0)
        np.testing.assert_allclose(loss[k], want, rtol=1e-11, atol=1e-13, err_msg=str(k))
        # The reference rounds logarithms of the size of the loss.
        atol = 1e-13 + 1e-14 * (want if np.isfinite(want) else 0)
        np.testing.assert_allclose(found[k], gradient, rtol=1e-9, atol=atol, err_msg=str(k))


@pytest.mark.parametrize("bits", [200, 218, 219, 220, 221, 222, 223, 224, 239])
@pytest.mark.parametrize("turned", [False, True])
def test_the_only_alignment_is_almost_lost_behind_impossible_ones(bits, turned):
    """As many labels as steps, each less likely than the blank by a factor of 2^bits.

    The sums that cannot come to an end stay large, and the only one that can is next to nothing.
    """
    gaps = np.full(10, bits * np.log(2.0))
    gaps[8], gaps[9] = 230 * np.log(2.0), 0.0
    scores = np.stack([gaps, -gaps, -gaps], axis=1) / 2
    scores = scores[::-1].copy() if turned else scores
    target = np.arange(10) % 2 + 1
    feed = {"scores": [scores], "targets": [target]}
    fn = make(3)
    found, loss = fn.grad(feed, None, None, [fn.output])
    want, gradient = by_logs(scores, target, 0)
    np.testing.assert_allclose(loss, [want], rtol=1e-12)
    np.testing.assert_allclose(found[0], gradient, atol=1e-9)


def test_a_long_sequence_leaves_the_range_of_float64_in_every_direction():
    rng = np.random.default_rng(5)
    batch = [rng.normal(0, 30, (600, 5)), rng.normal(0, 3, (600, 5))]
    batch[0][300:, 1:] -= 400.0
    targets = [rng.integers(1, 5, 200), np.array([1, 2])]
    fn = make(5)
    found, loss = fn.grad({"scores": batch, "targets": targets}, None, None, [fn.output])
    for k, (s, z) in enumerate(zip(batch, targets, strict=True)):
        want, gradient = by_logs(s, z, 0)
        np.testing.assert_allclose(loss[k], want, rtol=1e-12)
        np.testing.assert_allclose(found[k], gradient, rtol=1e-6, atol=1e-9)


def test_infeasible_empty_and_impossible():
    batch = [
        np.zeros((0, 3)),
        np.zeros((0, 3)),
        np.zeros((1, 3)),
        np.zeros((2, 3)),
        np.zeros((2, 3)),
    ]
    batch[4][:, 1] = -np.inf
    targets = [[], [1], [1, 2], [1, 1], [1]]
    feed = {"scores": batch, "targets": [np.array(z, np.int64) for z in targets]}
    fn = make(3)
    found, loss = fn.grad(feed, None, None, [fn.output])
    assert loss.tolist() == [0.0, np.inf, np.inf, np.inf, np.inf]
    assert all(np.isnan(part).all() for part in found[2:])
    fn = make(3, zero_infinity=True)
    found, loss = fn.grad(feed, None, None, [fn.output])
    assert loss.tolist() == [0.0] * 5
    assert all((part == 0.0).all() for part in found)


def test_nan_stays_nan_in_its_own_sequence():
    rng = np.random.default_rng(6)
    batch = ragged(rng, [4, 4], (3,))
    batch[0][1, 2] = np.nan
    fn = make(3)
    found, loss = fn.grad({"scores": batch, "targets": [[1], [2]]}, None, None, [fn.output])
    assert np.isnan(loss[0])
    assert np.isfinite(loss[1])
    assert np.isfinite(found[1]).all()


def test_float32_is_computed_in_float64():
    rng = np.random.default_rng(7)
    batch = [s.astype(np.float32) for s in ragged(rng, [50, 30], (5,), 3.0)]
    targets = [rng.integers(1, 5, 10), rng.integers(1, 5, 4)]
    fn = make(5, np.float32)
    found, loss = fn.grad({"scores": batch, "targets": targets}, None, None, [fn.output])
    for k, (s, z) in enumerate(zip(batch, targets, strict=True)):
        want, gradient = by_logs(s, z, 0)
        np.testing.assert_allclose(loss[k], want, rtol=1e-6)
        np.testing.assert_allclose(found[k], gradient, atol=1e-6)


@pytest.mark.parametrize("blank", [-1, 3])
def test_the_blank_is_a_class(blank):
    with pytest.raises(ValueError, match="expected a class: 0 to 2"):
        make(3, blank=blank)
