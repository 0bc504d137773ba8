"""Dtypes of samples, and casts that never lose a value in silence."""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from udfkit.errors import CastWarning

if TYPE_CHECKING:
    from udfkit.variable import Variable

__all__ = [
    "cast_exactly",
    "check_dtype",
    "check_real",
    "exact_integers",
    "is_bfloat16",
    "is_floating",
    "warn_cast",
]

_KINDS = "biuf"

_warned: weakref.WeakKeyDictionary[Variable, set[np.dtype]] = weakref.WeakKeyDictionary()
_warned_lock = threading.RLock()


def _unlock_in_child() -> None:
    global _warned_lock
    _warned_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


def check_dtype(dtype: Any) -> np.dtype:
    """Return ``dtype`` as a native NumPy dtype, or raise TypeError if samples cannot have it."""
    if dtype is None:
        raise TypeError("dtype is None, expected a NumPy dtype: pass one, such as np.float32")
    try:
        checked = np.dtype(dtype).newbyteorder("=")
    except TypeError:
        raise TypeError(f"dtype {dtype!r} is not a NumPy dtype") from None
    if (checked.kind in _KINDS and checked.itemsize <= 8) or is_bfloat16(checked):
        return checked
    raise TypeError(
        f"dtype {checked} is not supported: use bool, int8 to int64, uint8 to uint64, float16, "
        f"float32, float64, or bfloat16 from a library that supplies it"
    )


def is_bfloat16(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is the two-byte brain float that other libraries register with NumPy."""
    return dtype.itemsize == 2 and dtype.name == "bfloat16"


def is_floating(dtype: np.dtype) -> bool:
    """Whether values of ``dtype`` can have a gradient."""
    return dtype.kind == "f" or is_bfloat16(dtype)


def check_real(dtype: np.dtype, where: str) -> None:
    """Raise TypeError unless ``dtype`` is one that samples can be read from.

    ``where`` names the array for the error text, for example ``'sequence 3'``.
    """
    if dtype.kind in _KINDS or is_bfloat16(dtype):
        return
    fix = {
        "O": "pass a list with one numeric array a sequence",
        "c": "pass real and imaginary parts as two samples",
        "M": "convert dates to numbers first",
        "m": "convert durations to numbers first",
    }.get(dtype.kind, "convert it to numbers first")
    raise TypeError(f"{where} has dtype {dtype}, expected a real number or bool: {fix}")


def warn_cast(variable: Variable | None, dtype: np.dtype) -> None:
    """Issue the one `CastWarning` for this variable and dtype, at the caller of udfkit.

    Results of user code are cast without a warning: there is no variable then.
    """
    if variable is None:
        return
    with _warned_lock:
        seen = _warned.setdefault(variable, set())
        if dtype in seen:
            return
        seen.add(dtype)
    warnings.warn(
        f"values of dtype {dtype} are cast to {variable.dtype} for variable {variable.name!r}: "
        f"pass arrays of dtype {variable.dtype}, or declare the variable with dtype={dtype}",
        CastWarning,
        stacklevel=_frames_to_caller(),
    )


def _frames_to_caller() -> int:
    """Count the frames from the caller of this function's caller to the first outside udfkit."""
    package = os.path.dirname(__file__)
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def cast_exactly(array: np.ndarray, dtype: np.dtype, where: str) -> np.ndarray:
    """Cast ``array`` to ``dtype``, refusing values that it cannot hold.

    Floats may be rounded to a narrower float, but a finite one may not become infinite; integers
    and bools must be held exactly; a float becomes an integer or bool only when it is one.

    Parameters
    ----------
    array : ndarray
        Of any real dtype and shape; not changed.
    dtype : dtype
        Target.
    where : str
        Names the array in the error text.

    Returns
    -------
    ndarray
        ``array`` itself when no cast is needed.

    Raises
    ------
    ValueError
        With the index and the value of the first element that does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> cast_exactly(np.array([1.0, 2.0]), np.dtype(np.int8), "sequence 0")
    array([1, 2], dtype=int8)
    """
    source = array.dtype
    if source == dtype:
        return array
    if is_bfloat16(source) or is_bfloat16(dtype):
        return _cast_bfloat16(array, dtype, where)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if np.can_cast(source, dtype, "safe") and (dtype.kind != "f" or source.itemsize < 8):
            return cast  # NumPy calls int64 to float64 safe; it is not exact
        if source.kind == "f" and dtype.kind == "f":
            fits = np.isfinite(cast) | ~np.isfinite(array)
        else:
            fits = _round_trips(array, cast)
    if not fits.all():
        at = tuple(int(i) for i in np.argwhere(~fits)[0])
        raise ValueError(
            f"{where}: value {array[at].item()!r} at index {at} (dtype {source}) cannot be held by "
            f"dtype {dtype}: use a dtype that holds it, or change the values before"
        )
    return cast


def _round_trips(array: np.ndarray, cast: np.ndarray) -> np.ndarray:
    """Where the cast value equals the original one; both are compared in range only."""
    source, target = array.dtype, cast.dtype
    if target.kind == "b":
        return (array == 0) | (array == 1)
    if source.kind == "f":
        wide = array.astype(np.float64)
        info = np.iinfo(target)
        inside = (wide >= float(info.min)) & (wide < float(info.max) + 1.0)
        return inside & (np.trunc(wide) == wide)
    if target.kind == "f":
        wide = cast.astype(np.float64)
        info = np.iinfo(source)
        inside = (wide >= float(info.min)) & (wide < float(info.max) + 1.0)
        back = np.where(inside, wide, 0.0).astype(source)
        return inside & (back == array)
    info = np.iinfo(target)
    return (array >= info.min) & (array <= info.max)


def exact_integers(item: Any, array: np.ndarray, where: str) -> np.ndarray:
    """Return ``array``, what NumPy read ``item`` as, or one in which no integer is rounded.

    Raises
    ------
    ValueError
        For an integer that no dtype holds exactly beside the other numbers.
    """
    if array.dtype != np.float64 or not np.abs(array).max(initial=0.0) >= 2.0**53:
        return array
    leaves = list(_leaves(item))
    rounded = [n for n in leaves if isinstance(n, int) and int(float(n)) != n]
    if not rounded:
        return array
    if all(isinstance(n, int) for n in leaves):
        for dtype in (np.int64, np.uint64):
            info = np.iinfo(dtype)
            if info.min <= min(leaves) and max(leaves) <= info.max:
                return np.array(leaves, dtype).reshape(array.shape)
    raise ValueError(
        f"{where} holds the integer {rounded[0]}, which no dtype can hold exactly beside the other "
        f"numbers: pass an array of the dtype you mean"
    )


def _leaves(item: Any) -> Iterator[Any]:
    """Yield the numbers of nested lists and arrays as Python numbers, in C order."""
    if isinstance(item, (list, tuple)):
        for part in item:
            yield from _leaves(part)
    elif isinstance(item, (int, float)):
        yield item
    else:
        yield from np.asarray(item).ravel().tolist()


def _cast_bfloat16(array: np.ndarray, dtype: np.dtype, where: str) -> np.ndarray:
    raise ValueError(
        f"{where}: dtype {array.dtype} is not cast to {dtype}: bfloat16 samples are moved, never "
        f"converted; convert them with the library that supplies bfloat16"
    )
