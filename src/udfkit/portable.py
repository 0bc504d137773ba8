"""Functions that the bodies of sequence functions may call on every target.

``math.exp`` and the like work there too, at a fraction of the speed on the CPU: these have no
branches, so that a loop over them is compiled to vector instructions. All compute in float64.
"""

from __future__ import annotations

from udfkit.kernels.portable import (
    barrier,
    bits_float,
    dot,
    exp,
    float_bits,
    log,
    log_add,
    log_add_3,
    maximum,
    minimum,
    total,
)

__all__ = [
    "barrier",
    "bits_float",
    "dot",
    "exp",
    "float_bits",
    "log",
    "log_add",
    "log_add_3",
    "maximum",
    "minimum",
    "total",
]
