"""Functions for the bodies of sequence functions: one source for every target.

They run as compiled CPU code, as CUDA code, in the simulator and as plain Python. None branches, so
the compiler can work on many elements of a loop at once. The only operations that Python does not
have are two casts between a float64 and its bits.

``exp`` and ``log`` follow the usual scheme (W. J. Cody and W. Waite, *Software Manual for the
Elementary Functions*, 1980): reduce the argument by a power of two, evaluate a polynomial, put the
power back. The coefficients of ``exp`` are a minimax fit made for this file; those of ``log`` are
the ones published with FreeBSD's ``e_log.c`` (Sun Microsystems, 1993).
"""

from __future__ import annotations

import struct
import threading
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload, register_jitable

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


def float_bits(x: float) -> int:
    """Return the bits of a float64 as an int64.

    Examples
    --------
    >>> from udfkit import portable
    >>> hex(portable.float_bits(1.0))
    '0x3ff0000000000000'
    """
    return int(struct.unpack("<q", struct.pack("<d", x))[0])


def bits_float(bits: int) -> float:
    """Return the float64 with these low 64 bits.

    Examples
    --------
    >>> from udfkit import portable
    >>> portable.bits_float(portable.float_bits(-2.5))
    -2.5
    """
    return float(struct.unpack("<d", struct.pack("<Q", bits & 0xFFFF_FFFF_FFFF_FFFF))[0])


@intrinsic
def _bits_cast(typing_context: Any, x: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def _float_cast(typing_context: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@overload(float_bits, jit_options={"forceinline": True})
def _compiled_bits(x):  # type: ignore[no-untyped-def]
    return lambda x: _bits_cast(x)  # noqa: PLW0108 - numba wants Python code


@overload(bits_float, jit_options={"forceinline": True})
def _compiled_float(bits):  # type: ignore[no-untyped-def]
    return lambda bits: _float_cast(bits)  # noqa: PLW0108


def barrier() -> None:
    """Wait until all lanes of a cooperative sequence function are here, on CUDA.

    What a lane wrote before is then seen by all. On the CPU, which has one lane, it does nothing.

    Examples
    --------
    >>> from udfkit import portable
    >>> portable.barrier()
    """
    # Threads of numba's simulator can wait for those of their block.
    wait = getattr(threading.current_thread(), "syncthreads", None)
    if wait is not None:
        wait()


@overload(barrier)
def _compiled_barrier():  # type: ignore[no-untyped-def]
    return lambda: None


_INF = float("inf")
_NAN = float("nan")
_LOG2_E = 1.4426950408889634
# ln 2 in two parts; the high one has few enough bits that its products with exponents are exact.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
# Adding it rounds to an integer, which is then found in the low bits.
_ROUND = 6755399441055744.0
# Below the first exp is 0 and above the second it is infinite.
_EXP_MIN = -746.0
_EXP_MAX = 710.0

# exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2) / 2, relative error 4e-18.
_E2 = 0.5000000000000011
_E3 = 0.16666666666666413
_E4 = 0.04166666666653016
_E5 = 0.008333333333494463
_E6 = 0.001388888894362984
_E7 = 0.00019841269506571107
_E8 = 2.480149309914401e-05
_E9 = 2.7557586382581075e-06
_E10 = 2.763024830872524e-07
_E11 = 2.5000058349050145e-08


@register_jitable(forceinline=True)
def exp(x):  # type: ignore[no-untyped-def]
    """E to the power of x, in float64; right for NaN, infinities and results that are denormal.

    Parameters
    ----------
    x : float or int

    Returns
    -------
    float64
        Within 1 unit in the last place.

    Examples
    --------
    >>> from udfkit import portable
    >>> portable.exp(0.0), portable.exp(float("-inf")), portable.exp(1000.0)
    (1.0, 0.0, inf)
    """
    given = float(x)
    # The order of these comparisons keeps a NaN.
    low = _EXP_MIN if given < _EXP_MIN else given
    held = _EXP_MAX if low > _EXP_MAX else low
    shifted = held * _LOG2_E + _ROUND
    power = shifted - _ROUND
    # 2^power as a product of two, since the power of a denormal result has no float64 of its own.
    half_shifted = power * 0.5 + _ROUND
    half = float_bits(half_shifted)
    rest = float_bits(shifted) - half
    r = (held - power * _LN2_HIGH) - power * _LN2_LOW
    q = _E8 + r * (_E9 + r * (_E10 + r * _E11))
    q = _E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * (_E7 + r * q)))))
    scale = bits_float((half + 1023) << 52)
    return (1.0 + (r + r * r * q)) * scale * bits_float((rest + 1023) << 52)


_MANTISSA = 0x000F_FFFF_FFFF_FFFF
# The bits of sqrt(1/2): subtracting them makes [sqrt(1/2), sqrt(2)) the range of exponent 0.
_ROOT_HALF = 0x3FE6_A09E_667F_3BCD
_TWO_52_BITS = 0x4330_0000_0000_0000
_TWO_52 = 4503599627370496.0
_TWO_54 = 18014398509481984.0
_LEAST_NORMAL = 2.2250738585072014e-308

_L1 = 6.666666666666735130e-01
_L2 = 3.999999999940941908e-01
_L3 = 2.857142874366239149e-01
_L4 = 2.222219843214978396e-01
_L5 = 1.818357216161805012e-01
_L6 = 1.531383769920937332e-01
_L7 = 1.479819860511658591e-01


@register_jitable(forceinline=True)
def _log_normal(x):  # type: ignore[no-untyped-def]
    """Natural logarithm of a normal, positive, finite float64."""
    bits = float_bits(x) - _ROOT_HALF
    # The exponent as a float64, by putting it into the low bits of 2^52.
    power = bits_float(((bits >> 52) + 2048) | _TWO_52_BITS) - (_TWO_52 + 2048.0)
    f = bits_float((bits & _MANTISSA) + _ROOT_HALF) - 1.0
    s = f / (2.0 + f)
    z = s * s
    r = z * (_L1 + z * (_L2 + z * (_L3 + z * (_L4 + z * (_L5 + z * (_L6 + z * _L7))))))
    h = 0.5 * f * f
    return power * _LN2_HIGH - ((h - (s * (h + r) + power * _LN2_LOW)) - f)


@register_jitable(forceinline=True)
def log(x):  # type: ignore[no-untyped-def]
    """Natural logarithm, in float64; right for NaN, infinity, 0, negative numbers and denormals.

    Parameters
    ----------
    x : float or int

    Returns
    -------
    float64
        Within 1 unit in the last place; -inf for 0, NaN for what is negative.

    Examples
    --------
    >>> from udfkit import portable
    >>> portable.log(1.0), portable.log(0.0), portable.log(-1.0)
    (0.0, -inf, nan)
    """
    given = float(x)
    small = given < _LEAST_NORMAL
    value = _log_normal(given * (_TWO_54 if small else 1.0)) - (
        54 * (_LN2_HIGH + _LN2_LOW) if small else 0.0
    )
    finite = value if given < _INF else given
    return finite if given > 0.0 else (-_INF if given == 0.0 else _NAN)


@register_jitable(forceinline=True)
def _log_of_few(total):  # type: ignore[no-untyped-def]
    """Logarithm of a sum of a few exps of which one is 1; 0 for infinity, and NaN is kept."""
    value = _log_normal(total)
    finite = 0.0 if total == _INF else value
    return finite if total == total else total


@register_jitable(forceinline=True)
def minimum(a, b):  # type: ignore[no-untyped-def]
    """The smaller one; NaN if either is.

    Examples
    --------
    >>> from udfkit import portable
    >>> portable.minimum(2, 1), portable.minimum(float("nan"), 1.0)
    (1, nan)
    """
    return a if (a < b) | (a != a) else b


@register_jitable(forceinline=True)
def maximum(a, b):  # type: ignore[no-untyped-def]
    """The larger one; NaN if either is.

    Examples
    --------
    >>> from udfkit import portable
    >>> portable.maximum(2, 1), portable.maximum(float("nan"), 1.0)
    (2, nan)
    """
    return a if (a > b) | (a != a) else b


@register_jitable(forceinline=True)
def log_add(a, b):  # type: ignore[no-untyped-def]
    """log(exp(a) + exp(b)) without overflow; -inf when both are, NaN if either is.

    Examples
    --------
    >>> from udfkit import portable
    >>> portable.log_add(-1000.0, -1000.0) == -1000.0 + portable.log(2.0)
    True
    """
    # One comparison chooses both, so that a NaN ends up in one of them.
    high = a if a > b else b
    low = b if a > b else a
    # Of two equal infinities the difference would be NaN.
    base = 0.0 if high == -_INF else high
    base = 0.0 if high == _INF else base
    total = 1.0 + exp(low - base)
    return high + _log_of_few(total)


@register_jitable(forceinline=True)
def log_add_3(a, b, c):  # type: ignore[no-untyped-def]
    """log(exp(a) + exp(b) + exp(c)) without overflow; -inf when all are, NaN if one is.

    Examples
    --------
    >>> from udfkit import portable
    >>> portable.log_add_3(0.0, float("-inf"), float("-inf"))
    0.0
    """
    first = a if a > b else b
    low = b if a > b else a
    high = first if first > c else c
    middle = c if first > c else first
    base = 0.0 if high == -_INF else high
    base = 0.0 if high == _INF else base
    total = 1.0 + exp(low - base) + exp(middle - base)
    return high + _log_of_few(total)


# An order that is the compiler's lets several additions run at once; it is the same at each call.
_SUMS: dict[str, Any] = {"forceinline": True, "fastmath": {"contract", "reassoc"}}


@register_jitable(**_SUMS)
def total(row):  # type: ignore[no-untyped-def]
    """The sum of a row, in float64, in an order of the compiler's choice.

    Parameters
    ----------
    row : array of shape (n,)

    Returns
    -------
    float64
        0 for an empty row.

    Examples
    --------
    >>> import numpy as np
    >>> from udfkit import portable
    >>> portable.total(np.array([1.0, 2.0, 4.0]))
    7.0
    """
    found = 0.0
    for k in range(row.shape[0]):
        found += float(row[k])
    return float(found)


@register_jitable(**_SUMS)
def dot(x, y):  # type: ignore[no-untyped-def]
    """The sum of the products of two rows, in float64, in an order of the compiler's choice.

    Parameters
    ----------
    x : array of shape (n,)
    y : array of at least as many

    Returns
    -------
    float64
        0 for empty rows.

    Examples
    --------
    >>> import numpy as np
    >>> from udfkit import portable
    >>> portable.dot(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    11.0
    """
    found = 0.0
    for k in range(x.shape[0]):
        # 1.0, since to compiled code the float of a float32 is one too.
        found += (1.0 * float(x[k])) * float(y[k])
    return float(found)
