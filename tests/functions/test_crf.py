"""Linear-chain CRF against the enumeration of all paths, also where logarithms are needed."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

import udfkit
from function_checks import assert_gradient, differences, ragged

LENGTHS = [3, 0, 1, 4, 2]


def path_score(scores, transitions, path):
    steps = sum(scores[t, k] for t, k in enumerate(path))
    return steps + sum(transitions[i, k] for i, k in pairwise(path))


def all_paths(scores, transitions):
    paths = list(product(range(scores.shape[1]), repeat=len(scores)))
    return paths, np.array([path_score(scores, transitions, path) for path in paths])


def log_likelihood(scores, tags, transitions):
    if len(scores) == 0:
        return 0.0
    _, found = all_paths(scores, transitions)
    high = found.max()
    return path_score(scores, transitions, tags) - high - np.log(np.exp(found - high).sum())


def make(tags, dtype=np.float64, transitions=None):
    scores = udfkit.sequence.input_variable(tags, dtype, needs_gradient=True, name="scores")
    y = udfkit.sequence.input_variable((), np.int64, name="tags")
    a = udfkit.Parameter(init=np.asarray(transitions, dtype), name="a")
    return udfkit.functions.linear_chain_crf(scores, y, a), scores, a


@pytest.mark.parametrize("spread", [1.0, 30.0, 500.0, 5000.0])
@pytest.mark.parametrize("tags", [1, 3, 5])
def test_values_and_gradients(tags, spread):
    rng = np.random.default_rng(tags)
    transitions = rng.normal(0, 1, (tags, tags)) * spread
    batch = ragged(rng, LENGTHS, (tags,), spread)
    labels = [rng.integers(0, tags, n) for n in LENGTHS]
    fn, scores, a = make(tags, transitions=transitions)
    root = rng.normal(size=len(LENGTHS))
    gradients, y = fn.grad({"scores": batch, "tags": labels}, None, root, [fn.output])
    want = [log_likelihood(s, t, transitions) for s, t in zip(batch, labels, strict=True)]
    np.testing.assert_allclose(y, want, rtol=1e-12, atol=1e-12 * spread)

    def value(moved):
        found = [log_likelihood(s, t, moved[-1]) for s, t in zip(moved[:-1], labels, strict=True)]
        return np.dot(found, root)

    step = 1e-6 if spread < 100 else 1e-4
    *by_scores, by_a = differences(value, [*batch, transitions], step)
    atol = 1e-7 if spread < 100 else 1e-6
    assert_gradient(gradients[scores], by_scores, atol)
    assert_gradient([gradients[a]], [by_a], atol)


def test_the_scaled_sums_lose_no_path_up_to_their_limit():
    """A chain that is likely only through tags whose weights are e^-297 of the largest."""
    tags, steps = 3, 5
    transitions = np.zeros((tags, tags))
    transitions[0, :] = -298.0
    for far in (290.0, 600.0, 720.0, 5000.0):
        batch = [np.zeros((steps, tags))]
        batch[0][1, 0] = far
        fn, _, _ = make(tags, transitions=transitions)
        labels = [np.array([0, 1, 2, 1, 0])]
        y = fn.eval({"scores": batch, "tags": labels})
        np.testing.assert_allclose(
            y, [log_likelihood(batch[0], labels[0], transitions)], rtol=1e-13
        )


def test_forbidden_transitions():
    rng = np.random.default_rng(3)
    transitions = rng.normal(size=(3, 3))
    transitions[0, 1] = transitions[2, 2] = -np.inf
    batch = ragged(rng, [4, 3], (3,))
    labels = [np.array([0, 0, 2, 1]), np.array([1, 1, 0])]
    fn, scores, a = make(3, transitions=transitions)
    gradients, y = fn.grad({"scores": batch, "tags": labels}, None, None, [fn.output])
    with np.errstate(invalid="ignore"):
        want = [log_likelihood(s, t, transitions) for s, t in zip(batch, labels, strict=True)]
    np.testing.assert_allclose(y, want, rtol=1e-12)
    assert gradients[a][0, 1] == 0.0
    assert gradients[a][2, 2] == 0.0
    for part in gradients[scores]:
        np.testing.assert_allclose(part.sum(axis=1), 0.0, atol=1e-12)


def test_float32_is_computed_in_float64():
    rng = np.random.default_rng(4)
    transitions = rng.normal(size=(4, 4)).astype(np.float32)
    batch = [s.astype(np.float32) for s in ragged(rng, [5, 2], (4,))]
    labels = [rng.integers(0, 4, n) for n in (5, 2)]
    fn, _, _ = make(4, np.float32, transitions)
    y = fn.eval({"scores": batch, "tags": labels})
    want = [
        log_likelihood(s.astype(float), t, transitions.astype(float))
        for s, t in zip(batch, labels, strict=True)
    ]
    np.testing.assert_allclose(y, want, rtol=3e-7)


def test_a_tag_out_of_range_is_an_error():
    fn, _, _ = make(2, transitions=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="2 in 'tags', sequence 0, step 1"):
        fn.eval({"scores": [np.zeros((2, 2))], "tags": [[0, 2]]})


@pytest.mark.parametrize("seed", range(5))
def test_decode_finds_the_best_path(seed):
    rng = np.random.default_rng(seed)
    transitions = rng.normal(size=(3, 3))
    scores = udfkit.sequence.input_variable(3, np.float64, name="scores")
    fn = udfkit.functions.crf_decode(scores, udfkit.Constant(transitions))
    batch = ragged(rng, LENGTHS, (3,))
    for found, s in zip(fn.eval(batch), batch, strict=True):
        if len(s):
            paths, all_scores = all_paths(s, transitions)
            assert tuple(found) == paths[int(all_scores.argmax())]
        else:
            assert len(found) == 0
