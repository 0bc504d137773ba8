"""Comparing gradients with finite differences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import udfkit
from udfkit.demo.attention import AttentionPooling
from udfkit.demo.data import Utterances
from udfkit.demo.model import Model
from udfkit.demo.training import Scaling, cross_entropy

__all__ = ["TOLERANCE", "Checked", "check_all", "check_function", "check_model"]

STEP = 1e-5
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Checked:
    """The outcome of one comparison.

    Attributes
    ----------
    error : float
        Largest difference between a gradient and its finite difference, relative to the largest
        gradient.
    entries : int
        How many numbers were compared.
    """

    error: float
    entries: int

    @property
    def passed(self) -> bool:
        """Whether the error is what rounding leaves."""
        return self.error < TOLERANCE


def check_all(training: Utterances, seed: int) -> dict[str, Checked]:
    """Check the user function by itself, and a new model on its first few utterances."""
    frames = Scaling.of(training).standardize(training.frames[::60])
    return {
        "user function": check_function(np.random.default_rng(seed)),
        "whole model": check_model(frames, training.speakers[::60], seed),
    }


def check_function(rng: np.random.Generator, function: type | None = None) -> Checked:
    """Check every gradient of the attention pooling by itself, with ``eval`` and ``grad``.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws utterances of 3, 1 and 5 frames, a query and root gradients.
    function : type, default AttentionPooling
        The user function's class, made of features and a query.

    Examples
    --------
    >>> import numpy as np
    >>> check_function(np.random.default_rng(0)).error < TOLERANCE
    True
    """
    size, heads = 6, 4
    features = udfkit.sequence.input_variable(
        size, np.float64, needs_gradient=True, name="features"
    )
    query = udfkit.Parameter(init=rng.normal(size=(size, heads)), name="query")
    pooling = (function or AttentionPooling)(features, query)
    utterances = [rng.normal(size=(length, size)) for length in (3, 1, 5)]
    root = rng.normal(size=(len(utterances), heads, size))
    point = query.value.copy()
    inputs = {features: utterances, query: point}

    gradients = pooling.grad(inputs, root_gradients=root)
    return _compare(
        [*gradients[features], gradients[query]],
        [*utterances, point],
        lambda: float((pooling.eval(inputs) * root).sum()),
    )


def check_model(frames: list[np.ndarray], speakers: np.ndarray, seed: int) -> Checked:
    """Check gradients of a whole model's loss, some of each parameter.

    Parameters
    ----------
    frames : list of ndarray, each (length, 12)
        A few standardized utterances.
    speakers : ndarray of int64
    seed : int
        Of the model and of the choice of entries.

    Examples
    --------
    >>> import numpy as np
    >>> utterance = np.random.default_rng(0).normal(size=(7, 12))
    >>> check_model([utterance], np.array([3]), seed=0).error < TOLERANCE
    True
    """
    rng = np.random.default_rng(seed)
    model = Model(rng, dtype=np.float64)
    batch = udfkit.Ragged.from_list([utterance.astype(np.float64) for utterance in frames])

    def loss() -> float:
        return cross_entropy(model.forward(batch)[0], speakers)[0]

    logits, trace = model.forward(batch)
    gradients = model.backward(trace, cross_entropy(logits, speakers)[1])
    worst = Checked(0.0, 0)
    for name, parameter in model.parameters.items():
        value = parameter.value.copy()

        def loss_at(parameter: udfkit.Parameter = parameter, value: np.ndarray = value) -> float:
            parameter.value = value
            return loss()

        chosen = rng.permutation(value.size)[:50]
        found = _compare([gradients[name]], [value], loss_at, chosen)
        parameter.value = value
        worst = Checked(max(worst.error, found.error), worst.entries + found.entries)
    return worst


def _compare(
    gradients: list[np.ndarray],
    points: list[np.ndarray],
    function: Callable[[], float],
    chosen: np.ndarray | None = None,
) -> Checked:
    """Compare with central differences of ``function``, which reads ``points`` at each call."""
    largest = max(float(np.abs(gradient).max()) for gradient in gradients)
    error, entries = 0.0, 0
    for gradient, point in zip(gradients, points, strict=True):
        cells = point.reshape(-1)
        for k in range(cells.size) if chosen is None else chosen:
            kept = cells[k]
            cells[k] = kept + STEP
            above = function()
            cells[k] = kept - STEP
            below = function()
            cells[k] = kept
            difference = (above - below) / (2 * STEP)
            error = max(error, abs(difference - float(gradient.reshape(-1)[k])))
            entries += 1
    return Checked(error / largest, entries)
