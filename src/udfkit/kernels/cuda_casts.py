"""Casts on a device, by the rules of `udfkit.casting.cast_exactly`: one launch, one flag.

A value that the target cannot hold sets the flag; which one it is, the host finds out afterwards.
All threads that set it write the same number, so results repeat bit for bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, types
from numba.extending import register_jitable
from numba.np.numpy_support import from_dtype

from udfkit.kernels import cuda_launch, cuda_target
from udfkit.kernels.cuda_access import SIMULATED
from udfkit.kernels.cuda_arrays import as_array, empty, read_array, upload
from udfkit.kernels.cuda_launch import Shape
from udfkit.kernels.cuda_moves import Run

__all__ = ["cast", "holds_every_value", "make_kernel"]

_MANTISSA_BITS = {2: 11, 4: 24, 8: 53}
_HALF_MOST = 65504
# Half a step beyond the largest finite number: from here on a float rounds to infinity.
_ROUNDS_TO_INFINITY = {2: 65520.0, 4: float(np.finfo(np.float32).max) + 2.0**103}


def holds_every_value(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether a cast can lose no value, so that nothing has to be looked at.

    Examples
    --------
    >>> import numpy as np
    >>> holds_every_value(np.dtype(np.int16), np.dtype(np.float32))
    True
    >>> holds_every_value(np.dtype(np.int64), np.dtype(np.float64))
    False
    """
    # NumPy calls int64 to float64 safe, but it is not exact.
    exact = target.kind != "f" or source.kind == "f" or source.itemsize < 8
    return np.can_cast(source, target, "safe") and exact


def cast(values: Any, dtype: Any, *, stream: Any = 0) -> tuple[Any, Any]:
    """Return an array cast to another dtype, and an int32 (1,) that is 1 where a value did not fit.

    The flag is None for a cast that can lose no value. Both dtypes are native NumPy ones; a value
    that did not fit leaves its element undefined.
    """
    run = Run(stream)
    view, dtype = run.read(values, "values"), np.dtype(dtype)
    made = empty(view.shape, dtype, run.stream)
    checks = not holds_every_value(view.dtype, dtype)
    flag = upload(np.zeros(1, np.int32), run.stream) if checks else None
    if view.size:
        out = read_array(made, "made")
        flat = [as_array(x.part(0, (x.size,), x.dtype)) for x in (view, out)]
        if flag is not None:
            flat.append(flag)
        kernel = _compiled(view.dtype, dtype, cuda_target.current_device())
        cuda_target.launch(kernel, _shape(view.size), run.stream, tuple(flat))
    run.finish()
    return made, flag


def _shape(count: int) -> Shape:
    device = cuda_target.current_device()
    full = cuda_target.multiprocessors(device) * cuda_launch.BLOCKS_A_MULTIPROCESSOR
    blocks = min(-(-count // cuda_launch.BLOCK), full * cuda_launch.WAVES)
    return Shape((blocks, 1), (cuda_launch.BLOCK, 1))


@functools.cache
def _compiled(source: np.dtype[Any], target: np.dtype[Any], _: int) -> Any:
    return cuda.jit(make_kernel(source, target))


def make_kernel(source: np.dtype[Any], target: np.dtype[Any]) -> Callable[..., None]:
    """Return the function to compile: ``(values, out)``, with ``flag`` where it has to look."""
    convert = _converter(source, target)
    if holds_every_value(source, target):

        def cast_all(values, out):
            i = cuda.grid(1)
            while i < values.size:
                out[i] = convert(values[i])
                i += cuda.gridsize(1)

        return cast_all

    fits = _fitter(source, target)

    def cast_checked(values, out, flag):
        i = cuda.grid(1)
        while i < values.size:
            if fits(values[i]):
                out[i] = convert(values[i])
            else:
                flag[0] = 1
            i += cuda.gridsize(1)

    return cast_checked


def _converter(source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    """Return what turns a value that fits into one of the target."""
    to: Any = np.bool_ if SIMULATED and target.kind == "b" else from_dtype(target)
    single, wide = types.float32, types.float64
    if target.kind == "b":
        return register_jitable(lambda value: wide(value) != 0.0)
    if source.kind == "b":
        return register_jitable(lambda value: to(1) if value else to(0))
    if source.itemsize == 2 and source.kind == "f":
        return register_jitable(lambda value: to(single(value)))
    if target.itemsize == 2 and target.kind == "f" and source.kind != "f":
        return register_jitable(lambda value: to(single(value)))  # exact for what fits
    return register_jitable(lambda value: to(value))  # noqa: PLW0108 - a type is no function


def _fitter(source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    """Return what says whether the target holds a value."""
    wide = types.float64
    if target.kind == "b":
        return register_jitable(lambda value: wide(value) == 0.0 or wide(value) == 1.0)
    if source.kind != "f":
        return (
            _integer_fits_float(source, target) if target.kind == "f" else _in_range(source, target)
        )
    if target.kind == "f":
        limit = _ROUNDS_TO_INFINITY[target.itemsize]
        infinity = np.inf

        @register_jitable
        def stays_finite(value):
            size = abs(wide(value))
            return not (limit <= size < infinity)

        return stays_finite
    least, beyond = float(np.iinfo(target).min), float(np.iinfo(target).max) + 1.0

    @register_jitable
    def is_whole(value):
        number = wide(value)
        return least <= number < beyond and number == _whole(number)

    return is_whole


@register_jitable
def _whole(number):
    # Beyond 2**53 every double is whole, and inside an int64 holds it.
    return types.float64(types.int64(number)) if abs(number) < 2.0**53 else number


def _in_range(source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    mine, its = np.iinfo(source), np.iinfo(target)
    # In the dtype of the values: two integers of different signs would be compared as floats.
    least, most = source.type(max(mine.min, its.min)), source.type(min(mine.max, its.max))
    return register_jitable(lambda value: least <= value and value <= most)  # noqa: PLR1716


def _integer_fits_float(source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    """An integer fits when the bits from its first 1 to its last are no more than a mantissa's."""
    kind = np.uint64 if source.kind == "u" else np.int64
    to: Any = types.uint64 if source.kind == "u" else types.int64
    bits = _MANTISSA_BITS[target.itemsize]
    zero, one, shift = kind(0), kind(1), kind(bits)
    least = kind(0) if source.kind == "u" else kind(-(2**63))
    is_half = target.itemsize == 2
    most = kind(_HALF_MOST) if is_half else kind(np.iinfo(kind).max)

    @register_jitable
    def fits(value):
        size = to(value)
        if size == zero:
            return True
        if size == least:
            return not is_half
        if size < zero:
            size = -size
        lowest = size & ~(size - one)
        return size <= most and (size >> shift) < lowest

    return fits
