"""What all checks share: the function, the batches it ran on, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from udfkit.testing.calls import Result, Subject
from udfkit.testing.cases import Case
from udfkit.testing.compare import Agree, first_difference, sequences_of, wide
from udfkit.testing.report import Finding

__all__ = ["Bench", "Outcome"]

Outcome = str | Finding | None
"""What was compared, or a fault; None when there was nothing to compare."""


class Bench:
    """A function, the batches that it ran on, and what came out.

    Attributes
    ----------
    results : dict of case name to (roots, Result)
    wrong_gradients : bool
        Whether gradients are known to be wrong, so that no further check looks at them.
    leaks : bool
        Whether padding is known to change results.
    """

    def __init__(self, subject: Subject, cases: list[Case], seed: int):
        self.subject = subject
        self.cases = cases
        self.seed = seed
        self.results: dict[str, tuple[tuple[Any, ...] | None, Result]] = {}
        self.wrong_gradients = False
        self.leaks = False

    @property
    def usable(self) -> list[Case]:
        """The cases that ran."""
        return [case for case in self.cases if case.name in self.results]

    def rng(self, salt: int) -> np.random.Generator:
        """Return random numbers that do not depend on which checks ran before."""
        return np.random.default_rng([self.seed, salt])

    def compare(
        self, got: Result, expected: Result, agree: Agree, among: Sequence[int] | None = None
    ) -> str:
        """Name the first difference between two results, or return ''."""
        subject = self.subject
        sides = [("output", subject.outputs, got.outputs, expected.outputs)]
        if not self.wrong_gradients:
            sides.append(("gradient of", subject.inputs, got.gradients, expected.gradients))
        for word, variables, mine, theirs in sides:
            for variable, a, b in zip(variables, mine, theirs, strict=True):
                if a is None or b is None or (among is not None and variable.kind == "none"):
                    continue
                found = first_difference(variable.kind, a, b, agree, among)
                if found:
                    return f"{word} {variable.name!r}, {found}"
        return ""

    def unbounded(self, case: Case) -> set[int]:
        """Return the sequences that have an infinite number in an output."""
        found: set[int] = set()
        _, result = self.results[case.name]
        for variable, part in zip(self.subject.outputs, result.outputs, strict=True):
            if variable.is_floating and variable.kind != "none":
                arrays = sequences_of(variable.kind, part)
                found |= {k for k, array in arrays if np.isinf(wide(array)).any()}
        return found

    def outputs_only(self, text: str) -> str:
        """Add to a text which results it is about."""
        return f"{text} (outputs only, since gradients are wrong)" if self.wrong_gradients else text
