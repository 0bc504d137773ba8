"""The check of every gradient against finite differences, or against a float64 twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from udfkit.testing.bench import Bench, Outcome
from udfkit.testing.calls import Subject
from udfkit.testing.cases import Case
from udfkit.testing.compare import first_difference, sequences_of, wide
from udfkit.testing.faults import likely_fault
from udfkit.testing.numeric import Accuracy, Comparison, compare_gradient
from udfkit.testing.report import Finding

__all__ = ["cast_parts", "gradient", "twin_agrees"]

_MOST = 64


def gradient(bench: Bench, accuracy: Accuracy) -> Outcome:
    """Compare gradients with central finite differences."""
    subject = bench.subject
    wrong: list[tuple[Case, int, Comparison]] = []
    right: list[Case] = []
    checked = kinks = 0
    worst = 0.0
    for salt, case in enumerate(bench.usable):
        roots, result = bench.results[case.name]
        if roots is None:
            continue
        before = len(wrong)
        compared = 0
        for i in subject.wrt:
            chosen = _choose(bench, bench.rng(77 * salt + i), case, i)
            found = compare_gradient(
                subject, case.data, roots, i, result.gradients[i], accuracy, chosen
            )
            compared += found.checked
            kinks += found.kinks
            worst = max(worst, found.worst)
            if found.place:
                wrong.append((case, i, found))
        checked += compared
        if len(wrong) == before and compared:
            right.append(case)
    if not wrong and not checked:
        return None
    if not wrong:
        at_kinks = f"; {kinks} at points without a derivative were left out" if kinks else ""
        return f"{checked} numbers agree, the worst to {worst:.1g}{at_kinks}"
    bench.wrong_gradients = True
    case, i, found = wrong[0]
    text = (
        f"gradient of {subject.inputs[i].name!r}, {case}, {found.place}: analytic {found.got}, "
        f"numeric {found.expected}"
    )
    names = list(dict.fromkeys(other.name for other, *_ in wrong))
    if len(names) > 1:
        text += f"; wrong in {len(names)} batches, right in {len(right)}"
    if all(c.has_empty for c, *_ in wrong) and any(not c.has_empty for c in right):
        return Finding(text, "only batches with a sequence of length 0 are wrong")
    return Finding(text, _likely(bench, wrong))


def _choose(bench: Bench, rng: np.random.Generator, case: Case, i: int) -> set[int]:
    """Choose numbers of an input, of sequences whose outputs are finite."""
    unbounded = bench.unbounded(case)
    found: list[int] = []
    position = 0
    for k, array in sequences_of(bench.subject.input_kinds[i], case.data[i]):
        if k not in unbounded:
            found += range(position, position + array.size)
        position += array.size
    if len(found) <= _MOST:
        return set(found)
    return {found[0], found[-1], *rng.choice(found, _MOST, replace=False).tolist()}


def _likely(bench: Bench, wrong: list[tuple[Case, int, Comparison]]) -> str:
    """Ask of each wrong gradient what it looks like, those of most different lengths first."""
    subject = bench.subject
    ordered = sorted(wrong, key=lambda entry: -len(set(entry[0].lengths)))
    for guess in (False, True):
        for case, i, found in ordered:
            roots, result = bench.results[case.name]
            doubled = tuple(
                None if r is None else [2 * a for a in r] if isinstance(r, list) else 2 * r
                for r in roots or ()
            )
            likely = likely_fault(
                subject.input_kinds[i],
                result.gradients[i],
                found.numeric,
                subject.run(case.data, doubled).gradients[i],
                case.lengths,
                case.count,
                guess=guess,
            )
            if likely:
                return likely
    return ""


def twin_agrees(bench: Bench, twin: Subject) -> Outcome:
    """Compare outputs and gradients with those of the function made for float64."""
    subject = bench.subject
    rtol = 2e-3

    def agree(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
        a, b = wide(got), wide(expected)
        if a.dtype.kind != "f":
            return np.asarray(a == b)
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=1.0))
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= rtol * (np.abs(b) + scale)
        return np.asarray(near | (a == b) | (np.isnan(a) & np.isnan(b)))

    for case in bench.usable:
        roots, result = bench.results[case.name]
        data = cast_parts(twin.inputs, case.data)
        exact = twin.run(data, None if roots is None else cast_parts(twin.outputs, roots))
        for word, variables, kinds, got, expected in (
            ("output", subject.outputs, subject.output_kinds, result.outputs, exact.outputs),
            ("gradient of", subject.inputs, subject.input_kinds, result.gradients, exact.gradients),
        ):
            for variable, kind, a, b in zip(variables, kinds, got, expected, strict=True):
                if a is None or b is None:
                    continue
                found = first_difference(kind, a, b, agree)
                if found:
                    return Finding(
                        f"{case}: {word} {variable.name!r}, {found} in float64",
                        "the function computes something else, or too coarsely, in its own dtype",
                    )
    return f"outputs and gradients are within {rtol:g} of those in float64"


def cast_parts(variables: Sequence[Any], data: Sequence[Any]) -> tuple[Any, ...]:
    """Return plain parts in the dtypes of other variables."""
    return tuple(
        None
        if part is None
        else [a.astype(v.dtype) for a in part]
        if isinstance(part, list)
        else np.asarray(part).astype(v.dtype)
        for v, part in zip(variables, data, strict=True)
    )
