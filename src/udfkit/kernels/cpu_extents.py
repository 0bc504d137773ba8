"""CPU kernels that check and copy the lengths or offsets of another library, given by address.

Both return the longest length, or -1 when what is there are no lengths or offsets that fit; then
what they have written is of no use.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from udfkit.kernels.intrinsics import load_i64
from udfkit.kernels.jit import driver

__all__ = ["read_lengths", "read_offsets"]

INT64_MAX = 2**63 - 1


@driver("int64(int64, int64, int64[::1], int64[::1])", nogil=True)
def read_offsets(given, total, offsets, lengths):
    """Copy the int64 offsets at ``given``, which must run from 0 to ``total``."""
    count = lengths.size
    if load_i64(given) != 0 or load_i64(given + 8 * count) != total:
        return -1
    longest = 0
    before = 0
    offsets[0] = 0
    for i in range(count):
        end = load_i64(given + 8 * (i + 1))
        length = end - before
        if end < before:
            return -1
        longest = max(longest, length)
        lengths[i] = length
        offsets[i + 1] = end
        before = end
    return longest


@driver("int64(int64, int64, int64[::1], int64[::1])", nogil=True)
def read_lengths(given, most, offsets, lengths):
    """Copy the int64 lengths at ``given``, each from 0 to ``most``, and sum them up."""
    longest = 0
    total = 0
    offsets[0] = 0
    for i in range(lengths.size):
        length = load_i64(given + 8 * i)
        if length < 0 or length > most or length > INT64_MAX - total:
            return -1
        longest = max(longest, length)
        total += length
        lengths[i] = length
        offsets[i + 1] = total
    return longest
