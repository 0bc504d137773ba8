"""Sums over the alignments of connectionist temporal classification, scaled a step at a time.

The fast way, taken only where it is exact: every step has one power of two for all of its sums, and
as soon as one of them leaves the middle of float64's range, other than by being 0, all is given up.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from udfkit.functions.rows import gather_taken, spread
from udfkit.portable import bits_float, float_bits, log, maximum

__all__ = ["log_of", "scaled_alphas", "scaled_gradient"]

_LOG_2 = 0.6931471805599453

# The largest sum of a step is brought near 2^900, so that the others have all of the range below.
_TOP = 900
# The bits of 2^-700 and 2^1000. A sum of numbers above 2^-700, times a probability of at least
# 2^-240 over the number of classes and a factor above 2^-100, is not 0. So nothing is lost before
# it is found outside.
_LEAST_BITS = (1023 - 700) << 52
_MOST_BITS = (1023 + 1000) << 52
# The most that two factors, one for alphas and one for betas, can make up for: with more the
# product of one of them and 2^900 could be infinite.
_FARTHEST = 200


def _exponent(bits):
    return (bits >> 52) - 1023


def _power(exponent):
    """2 to the power of an exponent from -1022 to 1023."""
    return bits_float((exponent + 1023) << 52)


def log_of(number, exponent):
    """The logarithm of ``number * 2 ** exponent``, whose exponents are added first."""
    own = _exponent(float_bits(number))
    return log(number * _power(-own)) + (exponent + own) * _LOG_2


def _blanks(here, label, p, out):
    for j in range(out.shape[0]):
        out[j] = (here[j] + label[j]) * p


def _labels(here, blank, label, skip, p, factor, out):
    for j in range(out.shape[0]):
        out[j] = (here[j] + blank[j] + label[j] * skip[j]) * (p[j] * factor)


def scaled_alphas(numbers, wide, targets, blank, skip, emitted, ab, al, powers):
    """Fill the sums over alignments that end in each state; label j is at position j + 1.

    ``skip`` is 1 where an alignment may go from label j - 1 to j at once, else 0. Sums of step t
    are to be multiplied by 2 to the power of ``powers[t]``. Return whether they are exact.
    """
    steps, count = numbers.shape[0], targets.shape[0]
    factor = 1.0
    powers[0] = 0.0
    for t in range(steps):
        if wide[t] != 0.0:
            return False
        for j in range(count):
            emitted[0, j] = numbers[t, targets[j]]
        p = numbers[t, blank]
        al[t, 0] = 0.0
        if t == 0:
            for j in range(count + 1):
                ab[0, j] = 0.0
                al[0, j] = 0.0
            ab[0, 0] = p
            if count > 0:
                al[0, 1] = emitted[0, 0]
        else:
            _blanks(ab[t - 1], al[t - 1], p * factor, ab[t])
            _labels(al[t - 1, 1:], ab[t - 1], al[t - 1], skip[0], emitted[0], factor, al[t, 1:])
        low, high = spread(ab[t], _MOST_BITS, 0)
        low, high = spread(al[t], low, high)
        if (low < _LEAST_BITS) | (high >= _MOST_BITS) | (high == 0):
            return False
        shift = _exponent(high) - _TOP
        factor = _power(-shift)
        if t + 1 < steps:
            powers[t + 1] = powers[t] + shift
    return True


def _beta_blanks(here, label, before, a, b, p, out, found):
    for j in range(found.shape[0]):
        number = here[j] + label[j]
        found[j] = (before[j] * a) * (number * b)
        out[j] = number * p


def _beta_labels(here, blank, label, skip, before, a, b, p, factor, out, found):
    for j in range(found.shape[0]):
        number = here[j] + blank[j] + label[j] * skip[j]
        found[j] = (before[j] * a) * (number * b)
        out[j] = number * (p[j] * factor)


def scaled_gradient(
    numbers, targets, blank, skip, emitted, ab, al, powers, beta, found, taken, slope
):
    """Fill the gradient of the scores, given exact alphas; return whether it is exact.

    ``skip[1]`` is 1 where an alignment may go from label j to j + 1 at once.
    """
    steps, classes = numbers.shape
    count = targets.shape[0]
    final = ab[steps - 1, count] + al[steps - 1, count]
    bits = float_bits(final)
    inverse = _power(_exponent(bits)) / final
    whole = powers[steps - 1] + _exponent(bits)
    for j in range(count + 1):
        for row in range(4):
            beta[row, j] = 0.0
    beta[0, count] = 1.0
    source = 0
    factor = 1.0
    power = 0.0
    for t in range(steps - 1, -1, -1):
        distance = int(powers[t] + power - whole)
        if distance > _FARTHEST:
            return False
        distance = maximum(distance, -2000)
        half = distance // 2
        a, b = inverse * _power(half), _power(distance - half)
        for j in range(count):
            emitted[0, j] = numbers[t, targets[j]]
        out = 2 - source
        here, label = beta[source], beta[source + 1]
        _beta_blanks(here, label, ab[t], a, b, numbers[t, blank] * factor, beta[out], found[0])
        _beta_labels(
            label,
            here[1:],
            label[1:],
            skip[1],
            al[t, 1:],
            a,
            b,
            emitted[0],
            factor,
            beta[out + 1],
            found[1, :count],
        )
        gather_taken(found, targets, blank, taken)
        for k in range(classes):
            slope[t, k] = numbers[t, k] - taken[k]
        low, high = spread(beta[out], _MOST_BITS, 0)
        low, high = spread(beta[out + 1], low, high)
        if (low < _LEAST_BITS) | (high >= _MOST_BITS) | (high == 0):
            return False
        power -= _exponent(float_bits(factor))
        factor = _power(_TOP - _exponent(high))
        source = out
    return True
