"""Finite differences, and ragged batches for the tests of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def ragged(
    rng: np.random.Generator, lengths: Sequence[int], shape: tuple[int, ...] = (), scale: float = 1
) -> list[np.ndarray]:
    return [rng.normal(0, scale, (n, *shape)) for n in lengths]


def differences(
    value: Callable[[list[np.ndarray]], float], batch: Sequence[Any], step: float = 1e-6
) -> list[np.ndarray]:
    """Central differences of ``value`` by every number of every array of ``batch``."""
    found = []
    for k, array in enumerate(batch):
        gradient = np.zeros(np.shape(array))
        for at in np.ndindex(gradient.shape):
            ends = []
            for sign in (1, -1):
                moved = [np.array(other, np.float64) for other in batch]
                moved[k][at] += sign * step
                ends.append(value(moved))
            gradient[at] = (ends[0] - ends[1]) / (2 * step)
        found.append(gradient)
    return found


def assert_gradient(found: Sequence[Any], expected: Sequence[Any], atol: float = 2e-8) -> None:
    for k, (got, want) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=atol, err_msg=f"sequence {k}")
