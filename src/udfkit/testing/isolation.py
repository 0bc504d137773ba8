"""Checks that a sequence gets its own: in any order, beside any others, with any padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from udfkit.testing.awkward import padded_value
from udfkit.testing.bench import Bench, Outcome
from udfkit.testing.calls import Result
from udfkit.testing.cases import Case, change, take
from udfkit.testing.compare import close, same_bits
from udfkit.testing.report import Finding

__all__ = ["neighbours", "order", "padding"]


def order(bench: Bench) -> Outcome:
    """Permute the batch: outputs and gradients must be permuted alike."""
    subject, looked = bench.subject, 0
    for salt, case in enumerate(bench.usable):
        if case.count < 2:
            continue
        looked += 1
        roots, _ = bench.results[case.name]
        turned = [*range(1, case.count), 0] if salt % 2 else list(range(case.count))[::-1]
        data = take(subject.input_kinds, case.data, turned)
        permuted = None if roots is None else take(subject.output_kinds, roots, turned)
        found = bench.compare(subject.run(data, permuted), _taken(bench, case, turned), close)
        if found:
            return Finding(
                f"{case}, its sequences taken in the order {turned}: {found}",
                "results depend on the position in the batch: wrong sequence order, or an index "
                "that fits the first sequence only",
            )
    return bench.outputs_only(f"{looked} permuted batches give permuted results")


def _taken(bench: Bench, case: Case, chosen: list[int]) -> Result:
    _, result = bench.results[case.name]
    return Result(
        take(bench.subject.output_kinds, result.outputs, chosen),
        take(bench.subject.input_kinds, result.gradients, chosen),
    )


def neighbours(bench: Bench) -> Outcome:
    """Change one sequence at a time, and take each alone."""
    looked = 0
    for salt, case in enumerate(bench.usable):
        if case.count < 2:
            continue
        for k in range(case.count):
            looked += 1
            found = _changed(bench, case, k, bench.rng(1000 * salt + k))
            found = found or (None if bench.leaks else _alone(bench, case, k))
            if found:
                return found
    return bench.outputs_only(
        f"{looked} sequences were changed and the others stayed the same, bit for bit; each alone "
        f"gives what it gives in its batch"
    )


def _changed(bench: Bench, case: Case, k: int, rng: np.random.Generator) -> Finding | None:
    subject = bench.subject
    roots, result = bench.results[case.name]
    data = change(subject.input_kinds, case.data, k, rng, gently=case.given) or case.data
    other_roots = roots
    if roots is not None and not bench.wrong_gradients:
        other_roots = change(subject.output_kinds, roots, k, rng, gently=False) or roots
    others = [j for j in range(case.count) if j != k]
    found = bench.compare(subject.run(data, other_roots), result, same_bits, others)
    if not found:
        return None
    return Finding(
        f"{case}: sequence {k} was changed, and {found}",
        "the result of a sequence depends on its neighbours: statistics over the batch, a running "
        "sum through it, or an offset that is off by one",
    )


def _alone(bench: Bench, case: Case, k: int) -> Finding | None:
    subject = bench.subject
    roots, _ = bench.results[case.name]
    data = take(subject.input_kinds, case.data, [k])
    mine = None if roots is None else take(subject.output_kinds, roots, [k])
    found = bench.compare(subject.run(data, mine), _taken(bench, case, [k]), close, [0])
    if not found:
        return None
    return Finding(
        f"{case}: sequence {k} alone (as sequence 0), {found} in its batch",
        "the result of a sequence depends on how many others there are, or on how long they are: "
        "padding, or a size of the batch",
    )


def padding(bench: Bench) -> Outcome:
    """Hand over padded Values whose padding holds NaN and big numbers."""
    looked = 0
    for case in bench.usable:
        if not case.count:
            continue
        looked += 1
        clean = _padded(bench, case, 0.0, 0.0)
        for poison in (np.nan, 1000.0):
            for where, fills in (("inputs", (poison, 0.0)), ("root gradients", (0.0, poison))):
                found = bench.compare(_padded(bench, case, *fills), clean, same_bits)
                if found:
                    bench.leaks = True
                    return Finding(
                        f"{case}, padded, with {poison:g} in the padding of the {where}: {found}",
                        "padding leaks into a result: select valid cells with the mask (do not "
                        "multiply by it), and count lengths, not steps",
                    )
    return bench.outputs_only(f"NaN and 1000 in the padding of {looked} batches change nothing")


def _padded(bench: Bench, case: Case, poison: float, root_poison: float) -> Result:
    subject = bench.subject
    roots, _ = bench.results[case.name]
    values = subject.values(case.data)
    for i, variable in enumerate(subject.inputs):
        if variable.kind == "sequence":
            # A whole number in the padding may be an index into something.
            values[i] = padded_value(case.data[i], poison if variable.is_floating else 0)
    state, made = subject.forward(values)
    outputs = subject.plain_outputs(made)
    gradients: list[Any] = [None] * len(subject.inputs)
    if roots is not None and not bench.wrong_gradients:
        given = subject.root_values(roots)
        for j in given:
            if subject.output_kinds[j] == "sequence":
                given[j] = padded_value(roots[j], root_poison)
        for i, value in subject.backward_values(state, given, subject.wrt).items():
            gradients[i] = value._sequences(subject.input_kinds[i])
    return Result(outputs, tuple(gradients))
