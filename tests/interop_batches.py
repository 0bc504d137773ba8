"""Ragged batches for the tests of the conversions, and what they are as nested lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import udfkit

LENGTHS = [[], [0], [0, 0], [3], [3, 0, 2, 1], [0, 5, 0], [1, 1, 1]]
SHAPES: list[tuple[int, ...]] = [(), (2,), (2, 3)]
NUMBERS = ["bool", *(f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64))]
FLOATS = ["float16", "float32", "float64"]


def batch(lengths: list[int], shape: tuple[int, ...] = (), dtype: str = "float64") -> udfkit.Ragged:
    total = sum(lengths)
    size = (total, *shape)
    rng = np.random.default_rng(total)
    values = (rng.standard_normal(size) * 50).astype(dtype)
    return udfkit.Ragged(values, np.cumsum([0, *lengths]))


def lists(ragged: Any) -> list[Any]:
    return [sequence.tolist() for sequence in ragged]


def shares(a: np.ndarray, b: np.ndarray) -> bool:
    return a.size > 0 and np.shares_memory(a, b)


def check_that_starts_are_not_lost(method: str) -> None:
    """A conversion refuses sequences that continue, names the first, and takes the cure."""
    values = np.ones((3, 2))
    new = udfkit.Ragged(values, [0, 2, 3], starts=[True, True])
    getattr(new, method)()
    continued = udfkit.Ragged(values, [0, 2, 3], starts=[True, False])
    with pytest.raises(
        ValueError, match=r"sequence 1 continues .* convert udfkit.Ragged\(x.values"
    ):
        getattr(continued, method)()
    getattr(udfkit.Ragged(continued.values, continued.offsets), method)()
