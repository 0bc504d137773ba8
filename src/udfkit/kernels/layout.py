"""Index arithmetic that the CPU and the CUDA kernels share."""

from __future__ import annotations

from numba.extending import register_jitable

__all__ = ["MASK_BEGIN", "MASK_INVALID", "MASK_VALID", "mask_code"]

MASK_INVALID = 0
MASK_VALID = 1
MASK_BEGIN = 2


@register_jitable
def mask_code(step, length, is_start):  # type: ignore[no-untyped-def]
    """Return the mask value of one cell of a right-padded row."""
    if step >= length:
        return MASK_INVALID
    if step == 0 and is_start:
        return MASK_BEGIN
    return MASK_VALID
