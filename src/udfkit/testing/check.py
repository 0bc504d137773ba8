"""`check_function`: run all checks in order, each only where the ones before allow a verdict."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from udfkit.function import UserFunction
from udfkit.testing import backwards, calling, gradients, isolation
from udfkit.testing.bench import Bench, Outcome
from udfkit.testing.calls import Subject
from udfkit.testing.cases import Case, generate
from udfkit.testing.numeric import Accuracy, accuracy_of
from udfkit.testing.report import Check, Finding, Report

__all__ = ["CHECKS", "check_function"]

CHECKS = (
    "runs",
    "declared",
    "finite",
    "writes",
    "repeats",
    "gradient",
    "float64",
    "order",
    "padding",
    "neighbours",
    "awkward",
    "pending",
    "subset",
)


def check_function(  # noqa: PLR0913 - options are keywords
    function: UserFunction,
    batch: Any = None,
    *,
    make_batch: Callable[[np.random.Generator], Any] | None = None,
    make: Callable[[Any], UserFunction] | None = None,
    seed: int = 0,
    rounds: int = 2,
    rtol: float | None = None,
    atol: float | None = None,
    skip: Collection[str] = (),
) -> Report:
    """Look for what is wrong with a user function, on batches and gradients that break things.

    Batches are drawn from the function's input variables: ragged, with a sequence of length 0
    first, in the middle, last and everywhere, one sequence, equal lengths, no sequences. Root
    gradients are drawn, and given with stride 0, as sliced rows and columns, in Fortran order,
    reversed, read-only, and not at all for one of several outputs.

    Parameters
    ----------
    function : UserFunction
        Its methods are watched while this runs: do not call it in another thread meanwhile.
    batch : batch, or dict by Variable or name, optional
        As `UserFunction.eval` takes it: check on this one, instead of drawing any.
    make_batch : callable, optional
        ``make_batch(rng)`` returns such a batch; for functions with a rule for theirs. It is called
        ``rounds + 2`` times.
    make : callable, optional
        ``make(dtype)`` returns the same function for another dtype. Finite differences are then
        taken of ``make(numpy.float64)``, and the function is compared with that one.
    seed : int, default 0
    rounds : int, default 2
        Number of batches of random lengths.
    rtol, atol : float, optional
        For finite differences: ``rtol * |numeric| + atol * max(1, the largest |numeric|)`` is
        allowed, and the rounding of the outputs. By default 1e-5 and 1e-7 in float64, 5e-3 and 2e-4
        in float32.
    skip : collection of str
        Names of checks not to make, for functions that are meant to differ: ``'neighbours'`` and
        ``'padding'`` for statistics over a batch, ``'gradient'`` for a straight-through estimator,
        ``'repeats'`` for random numbers (which leaves out all checks that need it too).

    Returns
    -------
    Report
        True when no check failed; ``print`` shows one line a check. Faults of the function never
        raise here: ``raise_if_failed()`` does. The checks are

        ==========  =============================================================================
        runs        forward and backward run on every batch
        declared    dtypes, sample shapes and lengths are as declared
        finite      no NaN comes of finite numbers; where an output is infinite, the gradient of
                    that sequence may be NaN
        writes      inputs, states and root gradients are not written to
        repeats     the same batch gives the same bits again
        gradient    gradients agree with central finite differences
        float64     a function with ``make`` agrees with its float64 form
        order       a permuted batch gives permuted results
        padding     NaN in the padding of Values, and of root gradients, changes nothing
        neighbours  a changed sequence leaves the others as they are, bit for bit; a sequence alone
                    gives what it gives in its batch
        awkward     root gradients in awkward layouts give what contiguous ones give: bit for bit
                    through `UserFunction.grad`, up to the order of summation where ``backward``
                    itself is handed them (it may refuse them: udfkit's own calls never do that,
                    and Values are always contiguous)
        pending     two forwards may be pending, their backwards in reverse order
        subset      a gradient asked for alone is the same as with the others
        ==========  =============================================================================

    Raises
    ------
    TypeError
        For something else than a UserFunction.
    ValueError
        For both ``batch`` and ``make_batch``, or an unknown name in ``skip``.

    Notes
    -----
    A function made for float32 is compared with finite differences of float32 outputs, whose own
    rounding hides faults below about half a percent: give ``make``, or check it in float64.
    At a kink any number between the slopes of both sides is right. Of an input with many numbers 64
    are compared in each batch.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> from udfkit.testing import check_function
    >>> class Square(udfkit.UserFunction):
    ...     layout = "ragged"
    ...     def infer_outputs(self):
    ...         x = self.inputs[0]
    ...         return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]
    ...     def forward(self, x, device, outputs_to_retain):
    ...         return x, x.with_values(x.values**2)
    ...     def backward(self, x, grad):
    ...         return x.with_values(2 * x.values * grad.values)
    >>> square = Square([udfkit.sequence.input_variable(2, np.float64, needs_gradient=True)])
    >>> check_function(square).passed
    True
    """
    if not isinstance(function, UserFunction):
        raise TypeError(
            f"function is a {type(function).__name__}, expected a UserFunction: make one with its "
            f"inputs first"
        )
    if batch is not None and make_batch is not None:
        raise ValueError("batch and make_batch were both given: give one of them")
    unknown = [name for name in skip if name not in CHECKS]
    if unknown:
        raise ValueError(f"skip names {unknown}, which are no checks: use some of {list(CHECKS)}")
    try:
        subject = Subject(function)
    except Exception as error:  # noqa: BLE001 - what infer_outputs raises is the finding
        text = f"infer_outputs raised {type(error).__name__}: {error}"
        return Report(f"of {function!r}", (), (Check("runs", "FAILED", text),))
    cases = _cases(subject, batch, make_batch, seed, rounds)
    bench = Bench(subject, cases, seed)
    twin = None if make is None else Subject(make(np.float64))
    accuracy = accuracy_of(subject if twin is None else twin, rtol, atol)
    with _quiet():
        checks = list(_run(bench, twin, accuracy, skip))
    return Report(_title(subject), tuple(_notes(bench, twin, accuracy)), tuple(checks))


@contextmanager
def _quiet() -> Iterator[None]:
    """Judge functions by their results, not by the warnings that lead to them."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _cases(
    subject: Subject,
    batch: Any,
    make_batch: Callable[[np.random.Generator], Any] | None,
    seed: int,
    rounds: int,
) -> list[Case]:
    rng = np.random.default_rng(seed)
    if batch is not None:
        return [subject.case("given", batch)]
    if make_batch is not None:
        return [subject.case(f"made {k}", make_batch(rng)) for k in range(rounds + 2)]
    return generate(subject.inputs, rng, rounds)


def _title(subject: Subject) -> str:
    function = subject.function
    arrow = " and ".join(repr(variable) for variable in subject.outputs)
    return f"of {function!r} -> {arrow}"


def _notes(bench: Bench, twin: Subject | None, accuracy: Accuracy | None) -> Iterator[str]:
    yield f"batches: {', '.join(case.name for case in bench.cases)} (seed {bench.seed})"
    if bench.subject.differentiable and accuracy is not None:
        of = "" if twin is None else "of the float64 form, "
        coarse = "" if accuracy.dtype == "float64" else "; make= gives a sharper check in float64"
        yield (
            f"finite differences: {of}in {accuracy.dtype}, step {accuracy.steps[0]:.2g}, rtol "
            f"{accuracy.rtol:g}, atol {accuracy.atol:g}{coarse}"
        )


def _run(
    bench: Bench, twin: Subject | None, accuracy: Accuracy | None, skip: Collection[str]
) -> Iterator[Check]:
    steps: dict[str, Callable[[], Outcome]] = {
        "runs": lambda: calling.runs(bench),
        "declared": lambda: calling.declared(bench),
        "finite": lambda: calling.finite(bench),
        "writes": lambda: calling.writes(bench),
        "repeats": lambda: calling.repeats(bench),
        "gradient": lambda: _gradient(bench, twin, accuracy),
        "float64": lambda: gradients.twin_agrees(bench, twin) if twin else None,
        "order": lambda: isolation.order(bench),
        "padding": lambda: isolation.padding(bench),
        "neighbours": lambda: isolation.neighbours(bench),
        "awkward": lambda: backwards.awkward(bench),
        "pending": lambda: backwards.pending(bench),
        "subset": lambda: backwards.subset(bench),
    }
    failed: set[str] = set()
    for name, step in steps.items():
        reason = _reason_to_skip(name, bench, twin, accuracy, failed, skip)
        # The others work on what this one brings.
        if reason and not (name == "runs" and name in skip):
            if not (name == "float64" and twin is None):
                yield Check(name, "skipped", reason)
            continue
        try:
            outcome = step()
        except Exception as error:  # noqa: BLE001 - whatever user code raises is the finding
            text = f"the function raised {type(error).__name__}: {error}"
            if "runs" in failed:
                yield Check(name, "skipped", f"{text}; see runs")
                continue
            outcome = Finding(text, _LIKELY_OF_ERRORS.get(name, ""))
        if name in skip:
            yield Check(name, "skipped", "as asked for")
        elif outcome is None:
            yield Check(name, "skipped", "there is nothing to compare")
        elif isinstance(outcome, Finding):
            failed.add(name)
            yield Check(name, "FAILED", outcome.text, outcome.likely)
        else:
            yield Check(name, "passed", outcome)


_BITWISE = ("gradient", "float64", "order", "padding", "neighbours", "awkward", "pending", "subset")
_LIKELY_OF_ERRORS = {
    "pending": "state is shared between calls: return it from forward, keep none on self",
    "repeats": "something is kept between calls",
    "neighbours": "numbers have a rule to obey: pass make_batch",
    "gradient": "numbers have a rule to obey: pass make_batch",
}
_OF_BACKWARD = ("gradient", "awkward", "subset")


def _reason_to_skip(
    name: str,
    bench: Bench,
    twin: Subject | None,
    accuracy: Accuracy | None,
    failed: set[str],
    skip: Collection[str],
) -> str:
    subject = bench.subject
    if name in skip:
        return "as asked for"
    if name != "runs" and not bench.usable:
        return "no batch ran" if "runs" in failed else "no batch is left"
    if name in _BITWISE and ("repeats" in failed or "repeats" in skip):
        return "results do not repeat"
    if name in _BITWISE and "declared" in failed:
        return "results are not as declared"
    if name in _OF_BACKWARD and not subject.differentiable:
        return f"no {'output' if subject.wrt else 'input'} needs a gradient"
    reasons = {
        "gradient": accuracy is None and "float16 is too coarse: give make=",
        "float64": twin is None and "no make was given",
        "padding": "sequence" not in subject.input_kinds and "no input has a sequence axis",
        "order": not any(case.count > 1 for case in bench.usable) and "no batch of two sequences",
        "neighbours": ("order" in failed and "the order is wrong already")
        or (not any(case.count > 1 for case in bench.usable) and "no batch of two sequences"),
        "subset": len(subject.wrt) < 2 and "one input needs a gradient",
    }
    return reasons.get(name) or ""


def _gradient(bench: Bench, twin: Subject | None, accuracy: Accuracy | None) -> Outcome:
    if twin is None or accuracy is None:
        return gradients.gradient(bench, accuracy) if accuracy else None
    exact = Bench(
        twin,
        [
            Case(c.name, gradients.cast_parts(twin.inputs, c.data), c.count, c.lengths, c.given)
            for c in bench.usable
        ],
        bench.seed,
    )
    outcome = calling.runs(exact)
    if isinstance(outcome, Finding):
        return Finding(f"the float64 form: {outcome.text}", outcome.likely)
    outcome = gradients.gradient(exact, accuracy)
    bench.wrong_gradients = exact.wrong_gradients
    return outcome
