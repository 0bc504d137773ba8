"""What several bodies do with rows of positive numbers."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from udfkit.portable import float_bits

__all__ = ["are_between", "dot", "gather_taken", "spread", "total"]


def total(row):
    """The sum of a row, in four parts, so that one addition need not wait for the last."""
    size = row.shape[0]
    whole = size // 4 * 4
    a = b = c = d = 0.0
    for k in range(0, whole, 4):
        a += row[k]
        b += row[k + 1]
        c += row[k + 2]
        d += row[k + 3]
    for k in range(whole, size):
        a += row[k]
    return (a + b) + (c + d)


def dot(x, y):
    """The sum of products of two rows, in eight parts."""
    size = x.shape[0]
    whole = size // 8 * 8
    a = b = c = d = e = f = g = h = 0.0
    for k in range(0, whole, 8):
        a += x[k] * y[k]
        b += x[k + 1] * y[k + 1]
        c += x[k + 2] * y[k + 2]
        d += x[k + 3] * y[k + 3]
        e += x[k + 4] * y[k + 4]
        f += x[k + 5] * y[k + 5]
        g += x[k + 6] * y[k + 6]
        h += x[k + 7] * y[k + 7]
    for k in range(whole, size):
        a += x[k] * y[k]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


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


def are_between(row, least, most):
    """Whether the bits of all numbers, 0 included, are above one bound and below another."""
    low = most
    high = least
    for k in range(row.shape[0]):
        bits = float_bits(row[k])
        low = bits if bits < low else low
        high = bits if bits > high else high
    return (low > least) & (high < most)


def gather_taken(found, targets, blank, taken):
    """Add up, for each class, what its states were found to have: blanks in row 0, labels in 1."""
    count = targets.shape[0]
    for k in range(taken.shape[0]):
        taken[k] = 0.0
    taken[blank] = total(found[0])
    for j in range(count):
        taken[targets[j]] += found[1, j]
