"""Reading what people call a batch: one array a sequence, in many forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from udfkit.casting import cast_exactly, check_real
from udfkit.errors import WHAT_A_BATCH_CAN_BE, DeviceError, shape_text
from udfkit.variable import FreeDimension

__all__ = ["Rows", "host_array", "is_scipy_sparse", "read_rows", "refuse_non_batch"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Sequences ready to be moved: contiguous arrays of one dtype, one sample shape.

    ``arrays[i]`` is C-contiguous, native, of shape ``(lengths[i], *sample_shape)``.
    """

    arrays: list[np.ndarray]
    lengths: np.ndarray
    sample_shape: tuple[int, ...]
    dtype: np.dtype


def is_scipy_sparse(obj: Any) -> bool:
    """Whether ``obj`` is a SciPy sparse matrix or array, without importing SciPy."""
    return (
        type(obj).__module__.startswith("scipy.sparse")
        and hasattr(obj, "tocsr")
        and hasattr(obj, "format")
    )


def refuse_non_batch(batch: Any, what: str) -> None:
    """Raise TypeError for objects that look iterable or numeric but are never a batch."""
    if batch is None or isinstance(
        batch, (bool, int, float, complex, str, bytes, bytearray, dict, set, frozenset)
    ):
        raise TypeError(f"{what} is {_describe(batch)}: {WHAT_A_BATCH_CAN_BE}")


def _describe(obj: Any) -> str:
    text = repr(obj)
    text = text if len(text) <= 60 else text[:57] + "..."
    return "None" if obj is None else f"the {type(obj).__name__} {text}"


def host_array(obj: Any, where: str) -> np.ndarray | None:
    """Return ``obj`` as a NumPy array without copying, or None when it is not an array.

    Understands NumPy arrays and scalars, DLPack, the buffer protocol and ``__array__``.

    Raises
    ------
    DeviceError
        For an array that lives on a GPU.
    TypeError
        For a masked array, or an array that its library cannot export.
    """
    if type(obj) is np.ndarray:
        return obj
    if isinstance(obj, np.ma.MaskedArray):
        raise TypeError(
            f"{where} is a masked array, whose mask would be lost: pass the valid samples only, "
            f"or obj.filled(value)"
        )
    if isinstance(obj, (np.ndarray, np.generic)):
        return np.asarray(obj)
    if isinstance(obj, (list, tuple, str, bytes, bytearray, type)):
        return None
    if getattr(obj, "__cuda_array_interface__", None) is not None:
        raise DeviceError(
            f"{where} lives on a GPU, and the batch is asked for on the CPU: copy it to the host "
            f"first, or pass device=udfkit.gpu(i)"
        )
    try:
        if hasattr(obj, "__dlpack__"):
            return np.from_dlpack(obj)
        if _has_buffer(obj) or hasattr(obj, "__array__"):
            return np.asarray(obj)
    except Exception as error:
        raise TypeError(
            f"{where}, a {type(obj).__module__}.{type(obj).__name__}, cannot be read as an array "
            f"({type(error).__name__}: {error}): convert it to a NumPy array first"
        ) from error
    return None


def _has_buffer(obj: Any) -> bool:
    try:
        memoryview(obj)
    except TypeError:
        return False
    return True


def read_rows(
    batch: Any,
    shape: tuple[int, ...] | None,
    dtype: np.dtype | None,
    *,
    what: str = "sequence",
    one_sample: bool = False,
    on_cast: Callable[[np.dtype], None] | None = None,
) -> Rows:
    """Read a list, tuple or other Sequence with one item a sequence.

    Parameters
    ----------
    batch : Sequence
        Items as CONTRACT section 3 describes them; a snapshot of it is taken first.
    shape : tuple of int, or None
        Sample shape, with `FreeDimension` where a size comes from the data; None: the whole
        sample shape is that of the first item without its first axis.
    dtype : dtype, or None
        Items of another dtype are cast exactly; None: all items must have one dtype.
    what : str
        What an item is called in error texts.
    one_sample : bool
        Every item must hold exactly one sample.
    on_cast : callable, optional
        Called with the dtype of a typed item that is cast.

    Raises
    ------
    TypeError, ValueError
        With the index of the first item that does not fit.
    """
    items = tuple(batch)
    found: list[np.ndarray | None] = [None] * len(items)
    typed = [True] * len(items)
    sizes = shape
    for k, item in enumerate(items):
        array, typed[k] = _read_item(item, f"{what} {k}")
        if array is None:
            continue
        if sizes is None:
            sizes = array.shape[1:]
        array = _as_sequence(array, sizes, f"{what} {k}")
        if FreeDimension in sizes:
            sizes = array.shape[1:]
        found[k] = array
    sizes = tuple(0 if n == FreeDimension else n for n in sizes or ())
    dtype = dtype or _common_dtype(found, typed, what)
    empty = np.empty((0, *sizes), dtype)
    arrays: list[np.ndarray] = []
    for k, array in enumerate(found):
        if array is None:
            array = empty
        elif array.dtype != dtype:
            native = array.dtype.newbyteorder("=")
            if on_cast is not None and typed[k] and native != dtype:
                on_cast(native)
            array = cast_exactly(array, dtype, f"{what} {k}")
        arrays.append(np.ascontiguousarray(array))
    lengths = np.fromiter((len(a) for a in arrays), np.int64, len(arrays))
    if one_sample and (lengths != 1).any():
        k = int(np.flatnonzero(lengths != 1)[0])
        raise ValueError(
            f"{what} {k} holds {lengths[k]} samples (shape {shape_text(arrays[k].shape)}), "
            f"expected one sample of shape {shape_text(sizes)}: declare the variable with "
            f"udfkit.sequence.input_variable if these are sequences"
        )
    return Rows(arrays, lengths, sizes, dtype)


def _read_item(item: Any, where: str) -> tuple[np.ndarray | None, bool]:
    """Return (array, has a dtype of its own); None stands for an empty Python list."""
    array = host_array(item, where)
    if array is not None:
        check_real(array.dtype, where)
        return array, True
    if isinstance(item, (bool, int, float)):
        return _from_python(item, where), False
    if is_scipy_sparse(item):
        raise TypeError(
            f"{where} is a sparse matrix beside dense ones: convert it with toarray(), or make "
            f"every sequence a CSR matrix"
        )
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes, bytearray)):
        if len(item) == 0:
            return None, False
        leaf = item[0]
        while isinstance(leaf, (list, tuple)) and leaf:
            leaf = leaf[0]
        if is_scipy_sparse(leaf):
            raise TypeError(
                f"{where} is a list of sparse matrices: stack its rows with "
                f"scipy.sparse.vstack(..., format='csr'), one CSR matrix a sequence"
            )
        return _from_python(item, where), hasattr(leaf, "dtype")
    raise TypeError(
        f"{where} is {_describe(item)}, expected an array or a nested list of numbers"
    )


def _from_python(item: Any, where: str) -> np.ndarray:
    try:
        array = np.asarray(item)
    except ValueError as error:
        raise ValueError(
            f"{where} is a nested list whose parts differ in length or shape ({error}): all steps "
            f"of one sequence need the same sample shape"
        ) from None
    except OverflowError:
        raise ValueError(f"{where} holds an integer that does not fit 64 bits") from None
    if array.dtype.kind == "O":
        raise TypeError(
            f"{where} is {_describe(item)}, which NumPy can only read as objects: expected "
            f"numbers that fit 64 bits, nested evenly"
        )
    check_real(array.dtype, where)
    return array


def _as_sequence(array: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    def fits(sizes: tuple[int, ...]) -> bool:
        return len(sizes) == len(shape) and all(
            want in (FreeDimension, got) for want, got in zip(shape, sizes, strict=True)
        )

    if array.ndim == len(shape) + 1 and fits(array.shape[1:]):
        return array
    if fits(array.shape):
        return array[np.newaxis]
    if shape == (1,) and array.ndim == 1:
        return array[:, np.newaxis]
    raise ValueError(
        f"{where} has shape {shape_text(array.shape)}, which does not fit the sample shape "
        f"{shape_text(shape)}: expected {shape_text(('length', *shape))} "
        f"or {shape_text(shape)} for one step"
    )


def _common_dtype(found: list[np.ndarray | None], typed: list[bool], what: str) -> np.dtype:
    first: tuple[int, np.dtype] | None = None
    for k, array in enumerate(found):
        if array is None or not typed[k]:
            continue
        native = array.dtype.newbyteorder("=")
        if first is None:
            first = k, native
        elif native != first[1]:
            raise ValueError(
                f"{what} {k} has dtype {native}, {what} {first[0]} has {first[1]}: all must have "
                f"one dtype; pass dtype= to cast them"
            )
    if first is not None:
        return first[1]
    plain = [array.dtype for array in found if array is not None]
    if not plain:
        raise ValueError(
            "an empty batch of Python lists has no dtype: pass dtype= (and sample_shape=), or "
            "arrays"
        )
    return np.result_type(*plain)
