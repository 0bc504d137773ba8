"""Reading what people call a batch: one array a sequence, in many forms."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from udfkit.casting import cast_exactly, check_real, warn_cast
from udfkit.errors import WHAT_A_BATCH_CAN_BE, DeviceError, shape_text
from udfkit.kernels import lazy
from udfkit.variable import FreeDimension, Variable

__all__ = ["Rows", "host_array", "is_scipy_sparse", "read_rows", "refuse_non_batch"]

cpu = lazy("cpu", globals())
pyobjects = lazy("pyobjects", globals())


class Rows:
    """Sequences ready to be moved: addresses of contiguous arrays of one dtype and sample shape.

    Attributes
    ----------
    pointers, lengths : ndarray of int64, shape (B,)
        Where each sequence begins, and how many samples it has.
    longest : int
        The greatest length, 0 without sequences.
    sample_shape : tuple of int
    dtype : dtype
    keep : object
        Owns the memory that the pointers point to.
    """

    __slots__ = ("dtype", "keep", "lengths", "longest", "pointers", "sample_shape")

    def __init__(
        self,
        pointers: np.ndarray,
        lengths: np.ndarray,
        longest: int,
        sample_shape: tuple[int, ...],
        dtype: np.dtype,
        keep: object,
    ):
        self.pointers = pointers
        self.lengths = lengths
        self.longest = longest
        self.sample_shape = sample_shape
        self.dtype = dtype
        self.keep = keep


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
    warn_for: Variable | None = None,
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
    warn_for : Variable, optional
        Items with a dtype of their own that are cast cause its `CastWarning`.

    Raises
    ------
    TypeError, ValueError
        With the index of the first item that does not fit.
    """
    items = tuple(batch)
    pointers = np.empty(len(items), np.int64)
    lengths = np.empty(len(items), np.int64)
    if shape is None or dtype is None or FreeDimension in shape:
        shape, dtype = _settle(items, shape, dtype, what)
    if one_sample:
        odd, longest = pyobjects.scan_samples(items, dtype, shape, pointers), 1
        lengths.fill(1)
        lengths[pointers == 0] = -1
    else:
        odd, longest, _ = pyobjects.scan(items, dtype, shape, pointers, lengths)
    keep: list[Any] = [items]
    if odd == len(items) > 1 and not one_sample:
        block = _cast_block(items, shape, dtype, pointers, lengths, warn_for)
        if block is not None:
            return Rows(pointers, lengths, int(lengths.max()), shape, dtype, block)
    if odd:
        for k in np.flatnonzero(lengths < 0).tolist():
            array = _convert(items[k], shape, dtype, f"{what} {k}", warn_for)
            keep.append(array)
            pointers[k] = pyobjects.address(array)
            lengths[k] = len(array)
        longest = int(lengths.max())
    if one_sample and (longest > 1 or (lengths != 1).any()):
        k = int(np.flatnonzero(lengths != 1)[0])
        raise ValueError(
            f"{what} {k} holds {lengths[k]} samples (shape "
            f"{shape_text((int(lengths[k]), *shape))}), expected one of shape {shape_text(shape)}: "
            f"declare the variable with udfkit.sequence.input_variable if "
            f"these are sequences"
        )
    return Rows(pointers, lengths, longest, shape, dtype, keep)


def _cast_block(
    items: tuple[Any, ...],
    shape: tuple[int, ...],
    dtype: np.dtype,
    pointers: np.ndarray,
    lengths: np.ndarray,
    warn_for: Variable | None,
) -> np.ndarray | None:
    """Cast arrays that all have one other dtype at once, and point to the result.

    Return None, with every length -1, when they do not, or a value does not fit: going item by item
    then finds out which.
    """
    source = getattr(items[0], "dtype", None)
    if not isinstance(source, np.dtype) or source == dtype or source.kind not in "biuf":
        return None
    odd, _, total = pyobjects.scan(items, source, shape, pointers, lengths)
    if odd == 0:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        block = np.empty((total, *shape), source)
        size = source.itemsize * prod(shape)
        cpu.rows_to_ragged(0, len(items), pointers, offsets, size, pyobjects.address(block))
        try:
            cast = cast_exactly(block, dtype, "")
        except ValueError:
            odd = 1
        else:
            warn_cast(warn_for, source)
            step = dtype.itemsize * prod(shape)
            np.add(offsets[:-1] * step, pyobjects.address(cast), out=pointers)
            return cast
    lengths.fill(-1)
    return None


def _convert(
    item: Any,
    shape: tuple[int, ...],
    dtype: np.dtype,
    where: str,
    warn_for: Variable | None,
) -> np.ndarray:
    """Return one item as a C-contiguous array (length, *shape) of ``dtype``."""
    array, typed = _read_item(item, where)
    if array is None:
        return np.empty((0, *shape), dtype)
    array = _as_sequence(array, shape, where)
    if array.dtype != dtype:
        native = array.dtype.newbyteorder("=")
        if typed and native != dtype:
            warn_cast(warn_for, native)
        array = cast_exactly(array, dtype, where)
    return np.ascontiguousarray(array)


def _settle(
    items: tuple[Any, ...], shape: tuple[int, ...] | None, dtype: np.dtype | None, what: str
) -> tuple[tuple[int, ...], np.dtype]:
    """Find the sample shape and dtype that were left open, from the first items that show them."""
    first: tuple[int, np.dtype] | None = None
    untyped: list[np.dtype] = []
    for k, item in enumerate(items):
        if first is not None and shape is not None and FreeDimension not in shape:
            break
        array, typed = _read_item(item, f"{what} {k}")
        if array is None:
            continue
        if shape is None:
            shape = array.shape[1:]
        elif FreeDimension in shape:
            shape = _as_sequence(array, shape, f"{what} {k}").shape[1:]
        if not typed:
            untyped.append(array.dtype)
        elif first is None:
            first = k, array.dtype.newbyteorder("=")
    shape = tuple(0 if n == FreeDimension else n for n in shape or ())
    if dtype is not None:
        return shape, dtype
    if first is not None:
        _check_one_dtype(items, first, what)
        return shape, first[1]
    if not untyped:
        raise ValueError(
            "an empty batch of Python lists has no dtype: pass dtype= (and sample_shape=), or "
            "arrays"
        )
    return shape, np.result_type(*untyped)


def _check_one_dtype(items: tuple[Any, ...], first: tuple[int, np.dtype], what: str) -> None:
    for k, item in enumerate(items):
        found = getattr(item, "dtype", None)
        if isinstance(found, np.dtype) and found.newbyteorder("=") != first[1]:
            raise ValueError(
                f"{what} {k} has dtype {found.newbyteorder('=')}, {what} {first[0]} has "
                f"{first[1]}: all must have one dtype; pass dtype= to cast them"
            )


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
    raise TypeError(f"{where} is {_describe(item)}, expected an array or a nested list of numbers")


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
    if array.dtype == np.float64 and np.abs(array).max(initial=0.0) >= 2.0**53:
        _check_integers(item, where)
    return array


def _check_integers(item: Any, where: str) -> None:
    """Raise ValueError for a Python integer that NumPy rounds because floats are beside it."""
    if isinstance(item, (list, tuple)):
        for part in item:
            _check_integers(part, where)
    elif isinstance(item, int) and int(float(item)) != item:
        raise ValueError(
            f"{where} holds the integer {item} among floats, and float64 cannot hold it exactly: "
            f"pass an array of the dtype you mean"
        )


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
