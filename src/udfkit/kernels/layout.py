"""Index arithmetic that the CPU and the CUDA kernels share.

Plain integer functions: they mean the same in Python, in compiled CPU code, in a CUDA kernel and in
numba's CUDA simulator.
"""

# mypy: disable-error-code="no-untyped-def, no-any-return"

from __future__ import annotations

from numba.extending import register_jitable

__all__ = [
    "MASK_BEGIN",
    "MASK_INVALID",
    "MASK_VALID",
    "breaks_row",
    "clipped",
    "mask_code",
    "mask_word",
    "opens_sequence",
    "smaller",
]

MASK_INVALID = 0
MASK_VALID = 1
MASK_BEGIN = 2

_EIGHT_VALID = 0x0101_0101_0101_0101


@register_jitable
def mask_code(step, length, is_start):
    """Return the mask value of one cell of a right-padded row."""
    if step >= length:
        return MASK_INVALID
    if step == 0 and is_start:
        return MASK_BEGIN
    return MASK_VALID


@register_jitable
def mask_word(step, length, is_start):
    """Return the mask values of eight cells from ``step`` on, the first in the lowest byte."""
    live = length - step
    if live <= 0:
        return 0
    word = _EIGHT_VALID
    if live < 8:
        word >>= 64 - 8 * live
    if step == 0 and is_start:
        word += MASK_BEGIN - MASK_VALID
    return word


@register_jitable
def opens_sequence(code, is_first):
    """Whether a valid cell opens a sequence: any beginning does, and the first one of a row."""
    return code == MASK_BEGIN or is_first


@register_jitable
def breaks_row(code, before, step):
    """Whether a valid cell shows that its row is not one sequence in the first cells."""
    return step > 0 and (before == MASK_INVALID or code == MASK_BEGIN)


@register_jitable
def smaller(a, b):
    """Return the smaller number; numba's own CUDA target cannot compile ``min`` everywhere."""
    return a if a < b else b


@register_jitable
def clipped(length, steps):
    """Return ``length`` made to fit a row: offsets on a device are not checked before their use."""
    if length < 0:
        return 0
    if length > steps:
        return steps
    return length
