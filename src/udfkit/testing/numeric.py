"""Central finite differences of a function, number by number, and their comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from udfkit.casting import is_bfloat16
from udfkit.testing.calls import Subject
from udfkit.testing.compare import place_of, wide

__all__ = ["Accuracy", "Comparison", "accuracy_of", "compare_gradient"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How finite differences are taken in a dtype, and how far gradients may be from them.

    Attributes
    ----------
    eps : float
        Relative rounding of the dtype.
    steps : tuple of float
        The first is used with four points; the others, with two, where that disagrees.
    rtol, atol : float
        Allowed: ``rtol * |numeric| + atol * max(1, the largest |numeric|)`` and the rounding.
    """

    dtype: str
    eps: float
    steps: tuple[float, ...]
    rtol: float
    atol: float


_FLOAT64 = Accuracy("float64", 2.0**-52, (2.0**-10, 2.0**-17, 2.0**-22), 1e-5, 1e-7)
_FLOAT32 = Accuracy("float32", 2.0**-23, (2.0**-4, 2.0**-7, 2.0**-10), 5e-3, 2e-4)


def accuracy_of(subject: Subject, rtol: float | None, atol: float | None) -> Accuracy | None:
    """Return what the coarsest floating dtype allows; None when it is too coarse."""
    variables = [*subject.inputs, *(subject.outputs[j] for j in subject.rooted)]
    dtypes = [variable.dtype for variable in variables if variable.is_floating]
    if any(is_bfloat16(dtype) or dtype.itemsize < 4 for dtype in dtypes):
        return None
    base = _FLOAT64 if all(dtype == np.float64 for dtype in dtypes) else _FLOAT32
    return Accuracy(
        base.dtype,
        base.eps,
        base.steps,
        base.rtol if rtol is None else rtol,
        base.atol if atol is None else atol,
    )


@dataclass(slots=True)
class Comparison:
    """One gradient beside its finite differences.

    Attributes
    ----------
    numeric : list of ndarray or ndarray
        In the form of the gradient; NaN where it was not computed or is not defined.
    place, got, expected : str
        The first number that disagrees; '' when all agree.
    sequence : int
    checked, kinks : int
        Numbers compared, and numbers where the function has no derivative that could be told.
    worst : float
        Largest relative distance.
    """

    numeric: Any
    place: str = ""
    got: str = ""
    expected: str = ""
    sequence: int = -1
    checked: int = 0
    kinks: int = 0
    worst: float = 0.0


def compare_gradient(
    subject: Subject,
    data: Sequence[Any],
    roots: Sequence[Any],
    i: int,
    gradient: Any,
    accuracy: Accuracy,
    chosen: set[int],
) -> Comparison:
    """Compare the gradient of input ``i``, at the numbers ``chosen`` by running position."""
    kind = subject.input_kinds[i]
    slope = _Slope(subject, data, roots, i, accuracy)
    numeric = [np.full(np.shape(part), np.nan) for _, part in _parts(kind, data[i])]
    found = Comparison(numeric if kind == "sequence" else None)
    estimates: list[tuple[int, tuple[int, ...], float, float]] = []
    position = 0
    for block, (k, part) in enumerate(_parts(kind, data[i])):
        analytic = wide(gradient[k] if kind == "sequence" else gradient)
        for index in np.ndindex(part.shape):
            if position in chosen:
                value = slope.at(k, index, accuracy.steps[0], 4)
                numeric[block][index] = value
                estimates.append((block, index, float(analytic[index]), value))
            position += 1
    values = [abs(n) for *_, n in estimates if np.isfinite(n)]
    largest = max([1.0, *values])
    for block, index, got, value in estimates:
        if slope.agrees(got, value, largest, accuracy.steps[0]):
            found.checked += 1
            found.worst = max(found.worst, abs(got - value) / largest)
            continue
        verdict, value = slope.look_closer(block, index, got, largest)
        numeric[block][index] = np.nan if verdict == "kink" else value
        found.kinks += verdict == "kink"
        found.checked += verdict != "kink"
        if verdict == "wrong" and not found.place:
            if kind == "batch":
                found.sequence, rest = index[0], index[1:]
            else:
                found.sequence, rest = (block if kind == "sequence" else -1), index
            found.place = place_of(kind, found.sequence, rest)
            found.got, found.expected = f"{got:.9g}", f"{value:.9g}"
    if kind != "sequence":
        found.numeric = numeric[0]
    return found


def _parts(kind: str, data: Any) -> list[tuple[int, np.ndarray]]:
    return list(enumerate(data)) if kind == "sequence" else [(0, data)]


class _Slope:
    """Derivatives of the sum of all outputs times their root gradients."""

    def __init__(
        self,
        subject: Subject,
        data: Sequence[Any],
        roots: Sequence[Any],
        i: int,
        accuracy: Accuracy,
    ):
        self.subject, self.i = subject, i
        self.sequence = subject.input_kinds[i] == "sequence"
        part = data[i]
        self.parts = [np.array(p) for p in part] if self.sequence else [np.array(part)]
        self.data = list(data)
        self.roots = roots
        self.eps = accuracy.eps
        self.rtol, self.atol = accuracy.rtol, accuracy.atol
        self.steps = accuracy.steps
        self.level = 0.0

    def outputs(self, block: int, index: tuple[int, ...], value: Any) -> tuple[Any, ...]:
        moved = self.parts[block].copy()
        moved[index] = value
        changed: Any = moved
        if self.sequence:
            changed = list(self.parts)
            changed[block] = moved
        data = list(self.data)
        data[self.i] = changed
        return self.subject.evaluate(data)

    def between(self, low: Sequence[Any], high: Sequence[Any]) -> float:
        """Sum the differences before anything else is, so that little is lost to rounding."""
        total, level = 0.0, 0.0
        for a, b, root in zip(low, high, self.roots, strict=True):
            if root is None:
                continue
            lists = (a, b, root) if isinstance(a, list) else ([a], [b], [root])
            for x, y, r in zip(*lists, strict=True):
                x, y, r = wide(x), wide(y), wide(r)
                if x.shape != y.shape or x.shape != r.shape:
                    return float("nan")
                used = r != 0
                total += float(((y - x)[used] * r[used]).sum())
                level += float(np.abs(x[used] * r[used]).sum())
        self.level = max(self.level, level)
        return total

    def at(self, block: int, index: tuple[int, ...], step: float, points: int) -> float:
        here = self.parts[block][index]
        kind = here.dtype.type
        near = [kind(here - kind(step)), kind(here + kind(step))]
        outs = [self.outputs(block, index, x) for x in near]
        inner = self.between(*outs) / (float(near[1]) - float(near[0]))
        if points == 2:
            return inner
        far = [kind(here - kind(2 * step)), kind(here + kind(2 * step))]
        outs = [self.outputs(block, index, x) for x in far]
        outer = self.between(*outs) / (float(far[1]) - float(far[0]))
        return (4 * inner - outer) / 3

    def one_sided(self, block: int, index: tuple[int, ...], step: float) -> float:
        here = self.parts[block][index]
        there = here.dtype.type(here + here.dtype.type(step))
        ends = [self.outputs(block, index, x) for x in (here, there)]
        return self.between(*ends) / (float(there) - float(here))

    def tolerance(self, value: float, largest: float, step: float) -> float:
        return self.rtol * abs(value) + self.atol * largest + 8 * self.eps * (1 + self.level) / step

    def agrees(self, got: float, value: float, largest: float, step: float) -> bool:
        return bool(abs(got - value) <= self.tolerance(value, largest, step))

    def look_closer(
        self, block: int, index: tuple[int, ...], got: float, largest: float
    ) -> tuple[str, float]:
        """Return ('right', 'wrong' or 'kink', numeric value) with smaller steps."""
        if not np.isfinite(got):
            return "wrong", self.at(block, index, self.steps[-1], 2)
        for step in self.steps[1:]:
            value = self.at(block, index, step, 2)
            if self.agrees(got, value, largest, step):
                return "right", value
        step = self.steps[-1]
        left, right = (self.one_sided(block, index, s) for s in (-step, step))
        if not (np.isfinite(left) and np.isfinite(right)):
            return "kink", value
        room = 2 * self.tolerance(max(abs(left), abs(right)), largest, step)
        if abs(left - right) <= room:
            return "wrong", value
        # Where the slopes on both sides differ, anything between them is a subgradient.
        inside = min(left, right) - room <= got <= max(left, right) + room
        return ("kink" if inside else "wrong"), value
