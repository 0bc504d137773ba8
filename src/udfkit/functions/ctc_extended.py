"""Sums over the alignments of connectionist temporal classification, right for any probabilities.

Every sum is a float64 and an exponent of its own: its value is ``number * BASE ** exponent``, the
number 0 or from 1 / sqrt(BASE) to sqrt(BASE). Sums and products of these lose nothing whatever the
probabilities are, and take a few operations each, where logarithms take an exp and a log a term.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import math

from udfkit.functions.rows import are_within, gather_taken, largest
from udfkit.portable import exp, log, total

__all__ = ["LOG_BASE", "alphas", "gradient", "power", "probabilities", "scale"]

_BASE = 2.0**512
_INVERSE = 2.0**-512
_HIGH = 2.0**256
_LOW = 2.0**-256
LOG_BASE = 512.0 * 0.6931471805599453
_PER_LOG_BASE = 1.0 / LOG_BASE
# Scores between -83 and 83: none of their exps is below 2^-120 or above 2^120.
_FARTHEST = 83.0
# Adding it rounds to an integer.
_ROUND = 6755399441055744.0


def power(exponent):
    """BASE to the power of -1, 0 or 1; 0 below that, for minus infinity and for NaN."""
    small = _INVERSE if exponent == -1.0 else 0.0
    large = _BASE if exponent == 1.0 else small
    return 1.0 if exponent == 0.0 else large


def scale(exponent):
    """BASE to the power of an exponent that is not positive."""
    small = _INVERSE if exponent == -1.0 else 0.0
    return 1.0 if exponent == 0.0 else small


def _settle(number):
    """What brings a product of two numbers back into range."""
    up = _BASE if number < _LOW else 1.0
    return _INVERSE if number >= _HIGH else up


def _shift(number):
    """The change of the exponent that belongs to `_settle`."""
    up = -1.0 if number < _LOW else 0.0
    return 1.0 if number >= _HIGH else up


def probabilities(scores, numbers, exponents, wide):
    """Softmax of each step; exponents are written only for steps marked as wide."""
    steps, classes = scores.shape
    for t in range(steps):
        number = numbers[t]
        # If all exps are in the middle of float64's range, no largest score is needed.
        wide[t] = 0.0 if are_within(scores[t], _FARTHEST) else 1.0
        if wide[t] == 0.0:
            for k in range(classes):
                number[k] = exp(scores[t, k])
            share = 1.0 / total(number)
            for k in range(classes):
                number[k] *= share
        else:
            _wide_probabilities(scores[t], number, exponents[t])


def _wide_probabilities(row, number, exponent):
    """Softmax of one step, as numbers and exponents."""
    classes = row.shape[0]
    top = largest(row)
    base = 0.0 if top == -math.inf else top
    for k in range(classes):
        number[k] = exp(row[k] - base)
    sum_of_all = total(number)
    rest = log(sum_of_all) if sum_of_all != 0.0 else 0.0
    for k in range(classes):
        x = (row[k] - base) - rest
        near = x * _PER_LOG_BASE
        near = (near + _ROUND) - _ROUND if near > -_ROUND / 4 else near
        remainder = x - near * LOG_BASE
        # Beyond 2^53 the remainder is all rounding error.
        remainder = 0.0 if (remainder > 178.0) | (remainder < -178.0) else remainder
        impossible = x == -math.inf
        exponent[k] = x if impossible else near
        number[k] = 0.0 if impossible else exp(remainder)


def _gather(numbers, exponents, wide, targets, t, emitted):
    """Fill the probabilities of the targets, then of the blank, at one step."""
    count = targets.shape[0]
    for j in range(count):
        emitted[0, j] = numbers[t, targets[j]]
        emitted[1, j] = 0.0
    if wide[t] != 0.0:
        for j in range(count):
            emitted[1, j] = exponents[t, targets[j]]


def _blanks(here, here_q, label, label_q, p, p_q, out, out_q):
    """A blank is reached from itself and from the label before it."""
    for j in range(out.shape[0]):
        q = here_q[j] if here_q[j] > label_q[j] else label_q[j]
        number = (here[j] * scale(here_q[j] - q) + label[j] * scale(label_q[j] - q)) * p
        out[j] = number * _settle(number)
        out_q[j] = q + p_q + _shift(number)


def _labels(here, here_q, blank, blank_q, label, label_q, skip, p, p_q, out, out_q):
    """A label is reached from itself, the blank before it and, if they differ, the label before."""
    for j in range(out.shape[0]):
        jump = label_q[j] + skip[j]
        q = here_q[j] if here_q[j] > blank_q[j] else blank_q[j]
        q = q if q > jump else jump
        number = (
            here[j] * scale(here_q[j] - q)
            + blank[j] * scale(blank_q[j] - q)
            + label[j] * scale(jump - q)
        ) * p[j]
        out[j] = number * _settle(number)
        out_q[j] = q + p_q[j] + _shift(number)


def alphas(numbers, exponents, wide, targets, blank, skip, emitted, ab, abq, al, alq):
    """Fill the sums over alignments that end in each state; label j is at position j + 1."""
    steps, count = numbers.shape[0], targets.shape[0]
    for t in range(steps):
        _gather(numbers, exponents, wide, targets, t, emitted)
        p = numbers[t, blank]
        p_q = exponents[t, blank] if wide[t] != 0.0 else 0.0
        al[t, 0] = 0.0
        alq[t, 0] = -math.inf
        if t == 0:
            for j in range(count + 1):
                ab[0, j] = 0.0
                abq[0, j] = -math.inf
                al[0, j] = 0.0
                alq[0, j] = -math.inf
            ab[0, 0] = p
            abq[0, 0] = p_q
            if count > 0:
                al[0, 1] = emitted[0, 0]
                alq[0, 1] = emitted[1, 0]
        else:
            _blanks(ab[t - 1], abq[t - 1], al[t - 1], alq[t - 1], p, p_q, ab[t], abq[t])
            _labels(
                al[t - 1, 1:],
                alq[t - 1, 1:],
                ab[t - 1],
                abq[t - 1],
                al[t - 1],
                alq[t - 1],
                skip[0],
                emitted[0],
                emitted[1],
                al[t, 1:],
                alq[t, 1:],
            )


def _beta_blanks(
    here, here_q, label, label_q, before, before_q, inverse, q0, p, p_q, out, out_q, found
):
    """Sums over alignments from each blank on; found is what of the total goes through it."""
    for j in range(found.shape[0]):
        q = here_q[j] if here_q[j] > label_q[j] else label_q[j]
        number = here[j] * scale(here_q[j] - q) + label[j] * scale(label_q[j] - q)
        found[j] = before[j] * inverse * number * power(before_q[j] + q - q0)
        number *= p
        out[j] = number * _settle(number)
        out_q[j] = q + p_q + _shift(number)


def _beta_labels(
    here,
    here_q,
    blank,
    blank_q,
    label,
    label_q,
    skip,
    before,
    before_q,
    inverse,
    q0,
    p,
    p_q,
    out,
    out_q,
    found,
):
    """Sums over alignments from each label on; found is what of the total goes through it."""
    for j in range(found.shape[0]):
        jump = label_q[j] + skip[j]
        q = here_q[j] if here_q[j] > blank_q[j] else blank_q[j]
        q = q if q > jump else jump
        number = (
            here[j] * scale(here_q[j] - q)
            + blank[j] * scale(blank_q[j] - q)
            + label[j] * scale(jump - q)
        )
        found[j] = before[j] * inverse * number * power(before_q[j] + q - q0)
        number *= p[j]
        out[j] = number * _settle(number)
        out_q[j] = q + p_q[j] + _shift(number)


def gradient(
    numbers,
    exponents,
    wide,
    targets,
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
):
    """Fill the gradient of the scores; number and exponent are the sum over all alignments."""
    steps, classes = numbers.shape
    count = targets.shape[0]
    inverse = 1.0 / number
    for j in range(count + 1):
        for row in range(0, 8, 2):
            beta[row, j] = 0.0
            beta[row + 1, j] = -math.inf
    beta[0, count] = 1.0
    beta[1, count] = 0.0
    source = 0
    for t in range(steps - 1, -1, -1):
        _gather(numbers, exponents, wide, targets, t, emitted)
        p = numbers[t, blank]
        p_q = exponents[t, blank] if wide[t] != 0.0 else 0.0
        b, b_q, n, n_q = beta[source], beta[source + 1], beta[source + 2], beta[source + 3]
        out = 4 - source
        _beta_blanks(
            b,
            b_q,
            n,
            n_q,
            ab[t],
            abq[t],
            inverse,
            exponent,
            p,
            p_q,
            beta[out],
            beta[out + 1],
            found[0],
        )
        _beta_labels(
            n,
            n_q,
            b[1:],
            b_q[1:],
            n[1:],
            n_q[1:],
            skip[1],
            al[t, 1:],
            alq[t, 1:],
            inverse,
            exponent,
            emitted[0],
            emitted[1],
            beta[out + 2],
            beta[out + 3],
            found[1, :count],
        )
        source = out
        gather_taken(found, targets, blank, taken)
        if wide[t] == 0.0:
            for k in range(classes):
                slope[t, k] = numbers[t, k] - taken[k]
        else:
            for k in range(classes):
                share = numbers[t, k] * power(exponents[t, k])
                slope[t, k] = share - taken[k]
