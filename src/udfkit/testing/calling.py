"""Checks of single calls: they run, fit their declarations, write nothing, and repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from udfkit.testing.bench import Bench, Outcome
from udfkit.testing.calls import Result, Snapshot, hooked
from udfkit.testing.cases import Case
from udfkit.testing.compare import first_difference, same_bits, sequences_of, wide
from udfkit.testing.report import Finding
from udfkit.variable import Variable

__all__ = ["declared", "finite", "repeats", "runs", "writes"]


def runs(bench: Bench) -> Outcome:
    """Run every batch forward and backward, and keep what came out."""
    subject = bench.subject
    faults: list[tuple[Case, str]] = []
    for k, case in enumerate(bench.cases):
        phase = "forward"
        try:
            state, values = subject.forward(subject.values(case.data))
            outputs = subject.plain_outputs(values)
            roots = None
            gradients: tuple[Any, ...] = (None,) * len(subject.inputs)
            if subject.differentiable:
                phase = "backward"
                roots = subject.roots(outputs, bench.rng(k))
                gradients = subject.backward(state, roots)
        except Exception as error:  # noqa: BLE001 - whatever user code raises is the finding
            faults.append((case, f"{phase} raised {type(error).__name__}: {error}"))
        else:
            bench.results[case.name] = roots, Result(outputs, gradients)
    if not faults:
        both = "forward and backward" if subject.differentiable else "forward"
        return f"{both} ran on {len(bench.cases)} batches"
    case, text = faults[0]
    others = ", ".join(repr(other.name) for other, _ in faults[1:])
    likely = ""
    if bench.results and all(c.has_empty or not c.count for c, _ in faults):
        likely = "sequences of length 0, or a batch without sequences, are not handled"
    elif not case.given and text.startswith("forward") and "of user function" not in text:
        likely = "the function has a rule for its batches: pass make_batch"
    return Finding(f"{case}: {text}{f'; so on {others}' if others else ''}", likely)


def declared(bench: Bench) -> Outcome:
    """Compare dtypes, sample shapes and lengths with the declarations."""
    subject = bench.subject
    for case in bench.usable:
        _, result = bench.results[case.name]
        for variable, part in zip(subject.outputs, result.outputs, strict=True):
            fault = _not_as_declared(variable, part, case)
            if fault:
                return Finding(f"{case}: output {variable.name!r}, {fault}")
        for variable, part, data in zip(subject.inputs, result.gradients, case.data, strict=True):
            fault = "" if part is None else _not_as_its_input(variable, part, data)
            if fault:
                return Finding(f"{case}: gradient of {variable.name!r}, {fault}")
    return "dtypes, shapes and lengths are as declared"


def _not_as_declared(variable: Variable, part: Any, case: Case) -> str:
    if variable.kind != "none" and case.count != len(part):
        return f"number of sequences: {len(part)}, expected {case.count}"
    for k, array in sequences_of(variable.kind, part):
        sample = array.shape[1:] if variable.kind == "sequence" else array.shape
        if array.dtype != variable.dtype or not variable.accepts_sample(sample):
            return (
                f"sequence {max(k, 0)}: {array.dtype} samples of shape {sample}, declared "
                f"{variable.dtype} {variable.shape}"
            )
    return ""


def _not_as_its_input(variable: Variable, part: Any, data: Any) -> str:
    if variable.kind != "none" and len(part) != len(data):
        return f"number of sequences: {len(part)}, its input has {len(data)}"
    pairs = zip(sequences_of(variable.kind, part), sequences_of(variable.kind, data), strict=True)
    for (k, array), (_, given) in pairs:
        if array.dtype != given.dtype or array.shape != given.shape:
            return (
                f"sequence {max(k, 0)}: {array.dtype} of shape {array.shape}, its input is "
                f"{given.dtype} of shape {given.shape}"
            )
    return ""


def finite(bench: Bench) -> Outcome:
    """Look for NaN in outputs and gradients; cases that have any take no part in later checks."""
    subject, infinite = bench.subject, ""
    first: Finding | None = None
    for case in bench.usable:
        _, result = bench.results[case.name]
        bounded = set(range(-1, case.count)) - bench.unbounded(case)
        parts = [("output", v, p) for v, p in zip(subject.outputs, result.outputs, strict=True)]
        parts += [
            ("gradient of", v, p) for v, p in zip(subject.inputs, result.gradients, strict=True)
        ]
        for word, variable, part in parts:
            if part is None or not variable.is_floating:
                continue
            what = f"{word} {variable.name!r}"
            among = None if word == "output" else sorted(bounded)
            found = first_difference(variable.kind, part, part, _not_nan, among)
            if found:
                bench.results.pop(case.name, None)
                first = first or Finding(
                    f"{case}: {what}, {found.place}: NaN, though every input and root gradient is "
                    f"finite",
                    "0 divided by 0, for a sequence of length 0" if case.has_empty else "",
                )
            elif not infinite and _has_infinity(variable.kind, part):
                infinite = f" (but infinite numbers in {what}, {case})"
    return first or f"no NaN{infinite}"


def _not_nan(array: np.ndarray, _: np.ndarray) -> np.ndarray:
    return np.asarray(~np.isnan(wide(array)))


def _has_infinity(kind: str, part: Any) -> bool:
    return any(bool(np.isinf(wide(array)).any()) for _, array in sequences_of(kind, part))


def writes(bench: Bench) -> Outcome:
    """Look whether methods write to what they are handed."""
    subject = bench.subject
    found: list[str] = []
    names = [f"input {variable.name!r}" for variable in subject.inputs]

    def look(phase: str, kept: list[Snapshot]) -> None:
        found.extend(f"{phase} wrote to {w}" for w in (s.written() for s in kept) if w)

    def forward(method: Callable[..., Any], *args: Any) -> Any:
        given = args[0] if len(names) > 1 else (args[0],)
        kept = [Snapshot(part, name) for part, name in zip(given, names, strict=True)]
        returned = method(*args)
        look("forward", kept)
        return returned

    def backward(method: Callable[..., Any], *args: Any) -> Any:
        kept = [Snapshot(args[1], "the root gradient"), Snapshot(args[0], "the state")]
        returned = method(*args)
        look("backward", kept)
        return returned

    function = subject.function
    for case in bench.usable:
        roots, _ = bench.results[case.name]
        values = subject.values(case.data)
        outer = [Snapshot(v, f"the Value of {n}") for v, n in zip(values, names, strict=True)]
        with hooked(function, "forward", forward), hooked(function, "backward", backward):
            state, _ = subject.forward(values)
            look("the call of forward", outer)
            if roots is not None:
                given = subject.root_values(roots)
                outer += [Snapshot(list(given.values()), "the Values of the root gradients")]
                subject.backward_values(state, given, subject.wrt)
                look("the call of backward", outer)
        if found:
            return Finding(f"{case}: {found[0]}", "an operation in place: work on a copy")
    return "inputs, states and root gradients are left as they are"


def repeats(bench: Bench) -> Outcome:
    """Run every batch a second time."""
    for case in bench.usable:
        roots, result = bench.results[case.name]
        found = bench.compare(bench.subject.run(case.data, roots), result, same_bits)
        if found:
            return Finding(
                f"{case}: run a second time, {found}",
                "random numbers, uninitialised memory, or something kept between calls",
            )
    return "the same batch gives the same bits again"
