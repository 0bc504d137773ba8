"""Connectionist temporal classification: the loss of unaligned targets.

A. Graves, S. Fernandez, F. Gomez and J. Schmidhuber, "Connectionist temporal classification", 2006:
equations 5 to 11 for the sums over alignments, 14 to 16 for the gradient.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import math

from udfkit.functions.ctc_extended import LOG_BASE, alphas, gradient, probabilities, scale
from udfkit.functions.ctc_scaled import log_of, scaled_alphas, scaled_gradient
from udfkit.portable import log, maximum
from udfkit.sequence_functions import (
    SequenceFunction,
    per_sequence,
    per_step,
    scratch,
    sequence_function,
)
from udfkit.variable import FreeDimension, Variable

__all__ = ["ctc_loss"]


def _find_jumps(targets, skip, no, yes):
    """Fill whether an alignment may go from label j - 1 to j, and from j to j + 1, at once."""
    count = targets.shape[0]
    for j in range(count + 1):
        skip[0, j] = no
        skip[1, j] = no
    for j in range(1, count):
        if targets[j] != targets[j - 1]:
            skip[0, j] = yes
            skip[1, j - 1] = yes


@sequence_function(
    takes={"scores": per_step("T", "C"), "targets": per_step("L", index_of="C")},
    gives={"loss": per_sequence()},
    saved={"slope": scratch("T", "C", dtype_of="scores")},
    work={
        "numbers": ("T", "C"),
        "exponents": ("T", "C"),
        "wide": ("T",),
        "skip": (2, "L + 1"),
        "emitted": (2, "L + 1"),
        "ab": ("T", "L + 1"),
        "abq": ("T", "L + 1"),
        "al": ("T", "L + 1"),
        "alq": ("T", "L + 1"),
        "powers": ("T",),
        "beta": (8, "L + 1"),
        "found": (2, "L + 1"),
        "taken": ("C",),
        # Unsigned, since a signed index is asked whether it counts from the end.
        "labels": scratch("L", dtype="uint64"),
    },
    options={"blank": 0, "zero_infinity": False, "with_gradient": True},
)
def Ctc(
    scores,
    targets,
    loss,
    slope,
    numbers,
    exponents,
    wide,
    skip,
    emitted,
    ab,
    abq,
    al,
    alq,
    powers,
    beta,
    found,
    taken,
    labels,
    blank,
    zero_infinity,
    with_gradient,
):
    """The body of `ctc_loss`.

    The gradient is computed here, since it needs all sums of the loss, and fetching them later
    takes longer than all that backward has to do.
    """
    steps, count = scores.shape[0], targets.shape[0]
    for j in range(count):
        labels[j] = targets[j]
    exact = False
    number = 1.0 if count == 0 else 0.0
    if steps > 0:
        probabilities(scores, numbers, exponents, wide)
        _find_jumps(targets, skip, 0.0, 1.0)
        exact = scaled_alphas(numbers, wide, labels, blank, skip, emitted, ab, al, powers)
        if exact:
            number = ab[steps - 1, count] + al[steps - 1, count]
            if number > 0.0:
                loss[0] = -log_of(number, powers[steps - 1])
            if with_gradient and number > 0.0:
                exact = scaled_gradient(
                    numbers, labels, blank, skip, emitted, ab, al, powers, beta, found, taken, slope
                )
        if not exact:
            _find_jumps(targets, skip, -math.inf, 0.0)
            alphas(numbers, exponents, wide, labels, blank, skip, emitted, ab, abq, al, alq)
            blanks, ends = abq[steps - 1, count], alq[steps - 1, count]
            exponent = maximum(blanks, ends)
            number = ab[steps - 1, count] * scale(blanks - exponent)
            number += al[steps - 1, count] * scale(ends - exponent)
            loss[0] = -(log(number) + exponent * LOG_BASE)
            if with_gradient and number != 0.0:
                gradient(
                    numbers,
                    exponents,
                    wide,
                    labels,
                    blank,
                    skip,
                    emitted,
                    ab,
                    abq,
                    al,
                    alq,
                    number,
                    exponent,
                    beta,
                    found,
                    taken,
                    slope,
                )
    if number == 0.0:
        loss[0] = 0.0 if zero_infinity else math.inf
        for t in range(steps):
            for k in range(scores.shape[1]):
                slope[t, k] = 0.0 if zero_infinity else math.nan


@Ctc.gradient
def _ctc_gradient(slope, grad_loss, grad_scores):
    for t in range(slope.shape[0]):
        for k in range(slope.shape[1]):
            grad_scores[t, k] = slope[t, k] * grad_loss[0]


def ctc_loss(
    scores: Variable,
    targets: Variable,
    blank: int = 0,
    zero_infinity: bool = False,
    name: str = "",
) -> SequenceFunction:
    r"""Negative log-likelihood of each target sequence, summed over its alignments with the steps.

    .. math:: -\log \sum_{\pi \in B^{-1}(z)} \prod_t y_t(\pi_t),
        \qquad y_t = \mathrm{softmax}(x_t)

    where B removes repeated labels, then blanks: A. Graves, S. Fernandez, F. Gomez and
    J. Schmidhuber, "Connectionist temporal classification", 2006, equations 3, 8 and 16.

    Log-probabilities are scores too, since their softmax gives them back: value and gradient are
    then those of `torch.nn.functional.ctc_loss` with ``reduction="none"``.

    Parameters
    ----------
    scores : Variable, a sequence of shape (C,), float32 or float64
        x above: unnormalized scores of the classes. -inf makes a class impossible.
    targets : Variable, a sequence of shape () and an integer dtype
        z above, each from 0 to C - 1 and not the blank; of lengths of their own, which may be 0.
    blank : int, default 0
    zero_infinity : bool, default False
        Where no alignment is possible: 0 as loss and gradient, not inf and NaN.

    Returns
    -------
    SequenceFunction
        Its output has shape () and a batch axis.

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes, shapes or dtypes, or the blank is no class; when called,
        for a target out of range.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> scores = udfkit.sequence.input_variable(3, needs_gradient=True, name="scores")
    >>> targets = udfkit.sequence.input_variable((), dtype=np.int64, name="targets")
    >>> ctc = udfkit.functions.ctc_loss(scores, targets)
    >>> loss = ctc.eval({"scores": [np.zeros((2, 3), np.float32)], "targets": [[1]]})
    >>> float(np.exp(-loss)[0] * 9)  # 3 of 9 paths: 1 1, 0 1, 1 0
    3.0...
    """
    made = Ctc(
        [scores, targets],
        name,
        blank=blank,
        zero_infinity=zero_infinity,
        with_gradient=scores.needs_gradient,
    )
    classes = scores.shape[0]
    if not 0 <= blank < classes and classes != FreeDimension:
        raise ValueError(f"blank is {blank}, expected a class: 0 to {classes - 1}")
    return made
