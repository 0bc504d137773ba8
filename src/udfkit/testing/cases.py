"""Batches to feed a function: ragged, with empty sequences in every place; changes to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from udfkit.casting import is_bfloat16
from udfkit.variable import Constant, FreeDimension, Parameter, Variable

__all__ = ["Case", "batch_of", "change", "draw_parts", "generate", "random_array", "take"]

_KINDS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("ragged", (3, 1, 4)),
    ("zero length first", (0, 2, 3)),
    ("zero length in the middle", (2, 0, 3)),
    ("zero length last", (3, 1, 0)),
    ("all lengths zero", (0, 0)),
    ("one sequence", (4,)),
    ("equal lengths", (2, 2, 2)),
    ("no sequences", ()),
)
_BATCH_KINDS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("three samples", (1, 1, 1)),
    ("one sample", (1,)),
    ("no samples", ()),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One batch for every input.

    Attributes
    ----------
    name : str
        Its kind.
    data : tuple
        By input: a list of arrays ``(length, *s)``, one array ``(B, *s)``, or one array ``s``.
    count : int
        Number of sequences B; 0 also when no input has a batch axis.
    lengths : tuple of int
        Of the first sequence input, () without one.
    given : bool
        Whether the user made it: then its numbers may have to obey a rule.
    """

    name: str
    data: tuple[Any, ...]
    count: int
    lengths: tuple[int, ...] = ()
    given: bool = False

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.lengths))
        return f"batch {self.name!r}" + (f" (lengths {shown})" if self.lengths else "")

    @property
    def has_empty(self) -> bool:
        """Whether a sequence has length 0."""
        return 0 in self.lengths


def batch_of(
    name: str, inputs: Sequence[Variable], data: Sequence[Any], given: bool = False
) -> Case:
    """Make a case of plain batches in input order."""
    count, lengths = 0, None
    for variable, part in zip(inputs, data, strict=True):
        if variable.kind != "none":
            count = len(part)
        if variable.kind == "sequence" and lengths is None:
            lengths = tuple(len(sequence) for sequence in part)
    return Case(name, tuple(data), count, lengths or (), given)


def generate(inputs: Sequence[Variable], rng: np.random.Generator, rounds: int) -> list[Case]:
    """Make one case of each kind, and ``rounds`` of random lengths."""
    kinds: tuple[tuple[str, tuple[int, ...]], ...] = (("values", ()),)
    if any(variable.kind == "sequence" for variable in inputs):
        drawn = [
            (f"random {k}", tuple(rng.integers(0, 5, size=rng.integers(2, 5)).tolist()))
            for k in range(rounds)
        ]
        kinds = (*_KINDS, *drawn)
    elif any(variable.kind == "batch" for variable in inputs):
        kinds = _BATCH_KINDS
    cases = []
    for k, (name, lengths) in enumerate(kinds):
        free = 3 + k % 2
        cases.append(batch_of(name, inputs, draw_parts(inputs, rng, lengths, free)))
    return cases


def draw_parts(
    inputs: Sequence[Variable], rng: np.random.Generator, lengths: tuple[int, ...], free: int
) -> list[Any]:
    """Draw a plain batch for each input; ``free`` is the size of a FreeDimension."""
    return [_draw(rng, variable, inputs, lengths, free) for variable in inputs]


def _draw(
    rng: np.random.Generator,
    variable: Variable,
    inputs: Sequence[Variable],
    lengths: tuple[int, ...],
    free: int,
) -> Any:
    if isinstance(variable, (Parameter, Constant)):
        return np.array(variable.value)
    shape = tuple(free if n == FreeDimension else n for n in variable.shape)
    if variable.kind == "none":
        return random_array(rng, shape, variable.dtype)
    if variable.kind == "batch":
        return random_array(rng, (len(lengths), *shape), variable.dtype)
    axes = list(dict.fromkeys(v.dynamic_axes[1] for v in inputs if v.kind == "sequence"))
    turn = axes.index(variable.dynamic_axes[1])
    # Inputs on one axis have equal lengths; those on another one must not seem to.
    mine = [n + turn if n else 0 for n in np.roll(np.array(lengths, np.int64), turn).tolist()]
    return [random_array(rng, (n, *shape), variable.dtype) for n in mine]


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return normal numbers, or small whole ones, or truth values."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 3, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def take(kinds: Sequence[str], data: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Return these sequences of every part, in this order; parts without a batch axis whole."""
    taken: list[Any] = []
    for kind, part in zip(kinds, data, strict=True):
        if part is None or kind == "none":
            taken.append(part)
        elif kind == "sequence":
            taken.append([part[k] for k in order])
        else:
            taken.append(part[np.asarray(order, np.int64)])
    return tuple(taken)


def change(
    kinds: Sequence[str], data: Sequence[Any], k: int, rng: np.random.Generator, *, gently: bool
) -> tuple[Any, ...] | None:
    """Return the parts with other numbers in sequence ``k``; None when no number can change.

    ``gently`` moves floating numbers by a sixteenth and leaves whole ones, which keeps to most
    rules that numbers may have to obey.
    """
    changed, different = [], False
    for kind, part in zip(kinds, data, strict=True):
        if part is None or kind == "none":
            changed.append(part)
            continue
        new = list(part) if kind == "sequence" else np.array(part)
        old = np.asarray(part[k])
        new[k] = _other(old, rng, gently)
        different = different or (math.prod(old.shape) > 0 and not np.array_equal(old, new[k]))
        changed.append(new)
    return tuple(changed) if different else None


def _other(old: np.ndarray, rng: np.random.Generator, gently: bool) -> np.ndarray:
    floating = old.dtype.kind == "f" or is_bfloat16(old.dtype)
    if gently:
        return (old * old.dtype.type(1.0625)).astype(old.dtype) if floating else old
    return random_array(rng, old.shape, old.dtype)
