"""Checks of backward: root gradients in any layout, pending states, single gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from udfkit.testing.awkward import FORMS, STRIDE_ZERO, in_form
from udfkit.testing.bench import Bench, Outcome
from udfkit.testing.calls import Result, Snapshot, hooked
from udfkit.testing.cases import Case, change
from udfkit.testing.compare import close, same_bits, same_numbers, sequences_of
from udfkit.testing.report import Finding

__all__ = ["awkward", "pending", "subset"]

_STRIDES = "a stride of the root gradient is taken for granted"


def awkward(bench: Bench) -> Outcome:
    """Give root gradients in awkward layouts to `grad`, and to the user's backward itself."""
    subject, looked = bench.subject, 0
    refused: dict[str, str] = {}
    for salt, case in enumerate(bench.usable):
        roots, result = bench.results[case.name]
        if roots is None or not _any_number(bench, roots):
            continue
        looked += 1
        constant = subject.map_roots(result.outputs, _constant(0.75 + salt))
        for name, form in FORMS.items():
            given = constant if name == STRIDE_ZERO else roots
            expected = subject.run(case.data, given)
            found = _through_grad(bench, case, given, form, expected)
            if found:
                where = f"{case}, root gradient with {name}, through grad"
                return Finding(f"{where}: {found}", _STRIDES)
            found = _to_backward(bench, case, given, name, refused, expected)
            if found:
                where = f"{case}, root gradient with {name}, given to backward itself"
                return Finding(f"{where}: {found}", _STRIDES)
        missing = _missing_roots(bench, case, roots)
        if missing:
            return missing
    notes = "".join(f"; backward itself refuses {form} ({why})" for form, why in refused.items())
    return f"{', '.join(FORMS)}: the same as contiguous, on {looked} batches{notes}"


def _any_number(bench: Bench, roots: tuple[Any, ...]) -> bool:
    return any(
        array.size
        for kind, root in zip(bench.subject.output_kinds, roots, strict=True)
        if root is not None
        for _, array in sequences_of(kind, root)
    )


def _constant(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.full(array.shape, value, array.dtype)


def _through_grad(
    bench: Bench,
    case: Case,
    roots: tuple[Any, ...],
    form: Callable[[np.ndarray], np.ndarray],
    expected: Result,
) -> str:
    subject = bench.subject
    batch = dict(zip(subject.inputs, case.data, strict=True))
    given = {
        subject.outputs[j]: in_form(root, form) for j, root in enumerate(roots) if root is not None
    }
    before = Snapshot([list(batch.values()), list(given.values())], "what grad was given")
    found = subject.function.grad(batch, root_gradients=given, outputs=list(subject.outputs))
    got = Result(
        _by_position(subject.outputs, range(len(subject.outputs)), found[1]),
        _by_position(subject.inputs, subject.wrt, found[0]),
    )
    written = before.written()
    return bench.compare(got, expected, same_bits) or (written and f"it wrote to {written}")


def _by_position(variables: Sequence[Any], asked: Sequence[int], found: Any) -> tuple[Any, ...]:
    parts = found if isinstance(found, dict) else {variables[asked[0]]: found}
    return tuple(parts.get(variable) for variable in variables)


def _to_backward(
    bench: Bench,
    case: Case,
    roots: tuple[Any, ...],
    name: str,
    refused: dict[str, str],
    expected: Result,
) -> str:
    subject = bench.subject

    def backward(method: Callable[..., Any], *args: Any) -> Any:
        return method(args[0], in_form(args[1], FORMS[name]), *args[2:])

    try:
        with hooked(subject.function, "backward", backward):
            got = subject.run(case.data, roots)
    except Exception as error:  # noqa: BLE001 - it may refuse what it is never handed otherwise
        refused.setdefault(name, type(error).__name__)
        return ""
    return bench.compare(got, expected, close)


def _missing_roots(bench: Bench, case: Case, roots: tuple[Any, ...]) -> Finding | None:
    subject = bench.subject
    if len(subject.rooted) < 2:
        return None
    for j in subject.rooted:
        zeros, missing = list(roots), list(roots)
        zeros[j] = [0 * a for a in roots[j]] if isinstance(roots[j], list) else 0 * roots[j]
        missing[j] = None
        expected = subject.run(case.data, zeros)
        found = bench.compare(subject.run(case.data, missing), expected, same_numbers)
        if found:
            return Finding(
                f"{case}, no root gradient for output {subject.outputs[j].name!r}: {found} for "
                f"zeros",
                "a root gradient that does not arrive means zeros",
            )
    return None


def pending(bench: Bench) -> Outcome:
    """Run two forwards, then their backwards in reverse order."""
    looked = 0
    cases = bench.usable
    for salt, case in enumerate(cases):
        twin = cases[(salt + 1) % len(cases)]
        others = [(twin.data, *bench.results[twin.name])]
        others += _of_the_same_lengths(bench, case, salt)
        for other in others:
            looked += 1
            found = _interleaved(bench, case, *other)
            if found:
                return Finding(
                    f"{case}, with another forward before its backward: {found}",
                    "state is shared between calls: return it from forward, keep none on self",
                )
    return bench.outputs_only(f"{looked} pairs of pending forwards do not disturb each other")


def _of_the_same_lengths(
    bench: Bench, case: Case, salt: int
) -> list[tuple[tuple[Any, ...], tuple[Any, ...] | None, Result]]:
    """Return the case with another first sequence and what it gives, when it has any."""
    if not case.count:
        return []
    kinds = bench.subject.input_kinds
    data = change(kinds, case.data, case.count - 1, bench.rng(salt), gently=case.given)
    if data is None:
        return []
    roots, _ = bench.results[case.name]
    return [(data, roots, bench.subject.run(data, roots))]


def _interleaved(
    bench: Bench,
    case: Case,
    data: tuple[Any, ...],
    other_roots: tuple[Any, ...] | None,
    other: Result,
) -> str:
    subject = bench.subject
    roots, result = bench.results[case.name]
    first, values = subject.forward(subject.values(case.data))
    second, other_values = subject.forward(subject.values(data))
    nothing: tuple[Any, ...] = (None,) * len(subject.inputs)
    gradients = [nothing, nothing]
    if roots is not None and other_roots is not None:
        gradients[1] = subject.backward(second, other_roots)
        gradients[0] = subject.backward(first, roots)
    mine = Result(subject.plain_outputs(values), gradients[0])
    theirs = Result(subject.plain_outputs(other_values), gradients[1])
    return bench.compare(mine, result, same_bits) or bench.compare(theirs, other, same_bits)


def subset(bench: Bench) -> Outcome:
    """Ask for one gradient at a time."""
    subject = bench.subject
    for case in bench.usable:
        roots, result = bench.results[case.name]
        for i in subject.wrt:
            alone = subject.run(case.data, roots, [i])
            found = bench.compare(alone, result, same_bits)
            if found:
                return Finding(
                    f"{case}, asked for the gradient of {subject.inputs[i].name!r} alone: {found}",
                    "a gradient is computed from another one, or only when all are asked for",
                )
    return f"each of {len(subject.wrt)} gradients is the same when it is asked for alone"
