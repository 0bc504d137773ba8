"""Comparing plain batches: bit for bit or closely, and saying where they differ first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from udfkit.casting import is_bfloat16

__all__ = [
    "Difference",
    "close",
    "first_difference",
    "same_bits",
    "same_numbers",
    "sequences_of",
    "wide",
]

Agree = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two plain batches differ first.

    Attributes
    ----------
    sequence : int
        -1 without a batch axis.
    place, got, expected : str
    """

    sequence: int
    place: str
    got: str
    expected: str

    def __str__(self) -> str:
        return f"{self.place}: {self.got}, expected {self.expected}"


def wide(array: Any) -> np.ndarray:
    """Return floating numbers as float64, others as they are."""
    given = np.asarray(array)
    if given.dtype.kind == "f" or is_bfloat16(given.dtype):
        return given.astype(np.float64)
    return given


def same_bits(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Say of each number whether its bits are the same; one NaN equals another."""
    a, b = wide(got), wide(expected)
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    return np.asarray(((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b)))


def same_numbers(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Say of each number whether it is equal; -0.0 equals 0.0, one NaN equals another."""
    a, b = wide(got), wide(expected)
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def close(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Say of each number whether it is equal up to rounding in another order of summation."""
    a, b = wide(got), wide(expected)
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    eps = 2.0**-52 if np.asarray(got).dtype == np.float64 else _eps(got)
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=1.0))
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= eps * 2e3 * (np.abs(b) + scale)
    return np.asarray(near | same_numbers(a, b))


def _eps(array: np.ndarray) -> float:
    dtype = np.asarray(array).dtype
    return 2.0**-8 if is_bfloat16(dtype) else float(np.finfo(dtype).eps)


def sequences_of(kind: str, part: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (sequence, its array); the sequence is -1 for a part without a batch axis."""
    if kind == "none":
        yield -1, np.asarray(part)
    else:
        for k, array in enumerate(part):
            yield k, np.asarray(array)


def place_of(kind: str, sequence: int, index: Sequence[int]) -> str:
    """Name a number by sequence, step and element."""
    rest = tuple(int(n) for n in index)
    words = [] if sequence < 0 else [f"sequence {sequence}"]
    if kind == "sequence" and rest:
        words.append(f"step {rest[0]}")
        rest = rest[1:]
    if rest:
        words.append(f"element {rest}")
    return ", ".join(words) or "its only number"


def first_difference(
    kind: str, got: Any, expected: Any, agree: Agree, among: Sequence[int] | None = None
) -> Difference | None:
    """Return where two parts of one kind differ first; ``among`` looks at some sequences only."""
    if kind != "none" and len(got) != len(expected):
        return Difference(-1, "number of sequences", str(len(got)), str(len(expected)))
    pairs = zip(sequences_of(kind, got), sequences_of(kind, expected), strict=True)
    for (k, a), (_, b) in pairs:
        if among is not None and k not in among:
            continue
        if a.shape != b.shape:
            return Difference(k, f"shape of sequence {k}", str(a.shape), str(b.shape))
        wrong = np.argwhere(~agree(a, b))
        if len(wrong):
            at = tuple(wrong[0])
            return Difference(k, place_of(kind, k, at), number(a[at]), number(b[at]))
    return None


def number(value: Any) -> str:
    """Write a number in the digits that its dtype has."""
    dtype = np.asarray(value).dtype
    if dtype.kind == "f":
        return f"{float(value):.{9 if dtype == np.float32 else 17 if dtype.itemsize > 4 else 5}g}"
    return str(value)
