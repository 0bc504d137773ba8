"""What several bodies do with rows of numbers."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from udfkit.portable import bits_float, float_bits, total

__all__ = ["add_product", "are_within", "gather_taken", "largest", "spread"]

_MAGNITUDE = 0x7FFF_FFFF_FFFF_FFFF
# Minus infinity, in the order of `_ordered`.
_LOWEST = -0x7FF0_0000_0000_0001


def add_product(weights, rows, result):
    """Add the product of a row of weights and a matrix, four rows of it at a time."""
    count, size = rows.shape
    whole = count // 4 * 4
    for i in range(0, whole, 4):
        a, b, c, d = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        for k in range(size):
            result[k] += (
                a * rows[i, k] + b * rows[i + 1, k] + c * rows[i + 2, k] + d * rows[i + 3, k]
            )
    for i in range(whole, count):
        a = weights[i]
        for k in range(size):
            result[k] += a * rows[i, k]


def _ordered(bits):
    """Bits of a float64 as a whole number in the order of the numbers; the same way back."""
    return bits ^ ((bits >> 63) & _MAGNITUDE)


def largest(row):
    """The largest number of a row, -inf at least; a NaN may be passed over.

    Whole numbers are compared, since the compiler does not reorder comparisons of floats.
    """
    high = _LOWEST
    for k in range(row.shape[0]):
        bits = _ordered(float_bits(1.0 * row[k]))
        high = bits if bits > high else high
    return bits_float(_ordered(high))


def spread(row, low, high):
    """The least and the largest bits of numbers that are not 0, and of what is given.

    Bits of positive float64 are in the order of the numbers. A negative number has negative bits,
    and those of infinity and NaN are above all others.
    """
    for k in range(row.shape[0]):
        bits = float_bits(row[k])
        # 0 becomes the largest of all, which lowers nothing.
        positive = bits if bits != 0 else 0x7FFF_FFFF_FFFF_FFFF
        low = positive if positive < low else low
        high = bits if bits > high else high
    return low, high


def are_within(row, most):
    """Whether no number is farther from 0 than a positive one; a NaN is."""
    high = 0
    for k in range(row.shape[0]):
        bits = float_bits(1.0 * row[k]) & _MAGNITUDE
        high = bits if bits > high else high
    return high <= float_bits(most)


def gather_taken(found, targets, blank, taken):
    """Add up, for each class, what its states were found to have: blanks in row 0, labels in 1."""
    count = targets.shape[0]
    for k in range(taken.shape[0]):
        taken[k] = 0.0
    taken[blank] = total(found[0])
    for j in range(count):
        taken[targets[j]] += found[1, j]
