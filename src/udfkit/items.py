"""Reading one item of a batch: whatever people pass as a sequence, as an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from udfkit.casting import check_real, exact_integers
from udfkit.errors import WHAT_A_BATCH_CAN_BE, DeviceError, shape_text
from udfkit.variable import FreeDimension

__all__ = [
    "as_sequence",
    "host_array",
    "is_scipy_sparse",
    "may_be_on_gpu",
    "plain_array",
    "read_item",
    "refuse_gpu",
    "refuse_non_batch",
]

DEEPEST = 32
"""Levels of nested lists that are looked into; NumPy has no more dimensions to read them into."""

_PLAIN = frozenset([list, tuple, int, float, bool, np.ndarray, type(None)])
_ON_GPU = (2, 13)
"""The kinds of device in DLPack that are CUDA memory, managed memory included."""


def is_scipy_sparse(obj: Any) -> bool:
    """Whether ``obj`` is a SciPy sparse matrix or array, without importing SciPy."""
    return (
        type(obj).__module__.startswith("scipy.sparse")
        and hasattr(obj, "tocsr")
        and hasattr(obj, "format")
    )


def refuse_non_batch(batch: Any, what: str) -> None:
    """Raise TypeError for objects that look iterable or numeric but are never a batch."""
    if isinstance(batch, np.generic):
        return
    if batch is None or isinstance(
        batch, (bool, int, float, complex, str, bytes, bytearray, dict, set, frozenset)
    ):
        raise TypeError(f"{what} is {_describe(batch)}: {WHAT_A_BATCH_CAN_BE}")


def _describe(obj: Any) -> str:
    text = repr(obj)
    text = text if len(text) <= 60 else text[:57] + "..."
    return "None" if obj is None else f"the {type(obj).__name__} {text}"


def may_be_on_gpu(obj: Any) -> bool:
    """Whether an object looks like an array on a GPU; cheap for what is none."""
    if type(obj) in _PLAIN:
        return False
    if getattr(obj, "is_cuda", None) is False:
        return False  # a tensor, which takes long to say what it lacks
    if hasattr(obj, "copy_to_host"):
        return True
    try:
        if hasattr(obj, "__cuda_array_interface__"):
            return True
    except Exception:  # noqa: BLE001 - it is there, and cannot be exported
        return True
    try:
        return int(obj.__dlpack_device__()[0]) in _ON_GPU
    except Exception:  # noqa: BLE001 - it does not speak DLPack, or is nowhere
        return False


def refuse_gpu(obj: Any, where: str) -> None:
    """Raise DeviceError for an array on a GPU, where only one on the host will do."""
    if may_be_on_gpu(obj):
        raise DeviceError(
            f"{where} lives on a GPU, and is asked for on the CPU: copy it to the host first, or "
            f"make a Value of it there with udfkit.sanitize_batch(..., device=udfkit.gpu(i))"
        )


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
    refuse_gpu(obj, where)
    try:
        if hasattr(obj, "__dlpack__"):
            return np.from_dlpack(obj)
        if _has_buffer(obj) or hasattr(obj, "__array__"):
            return np.asarray(obj)
    except Exception as error:
        library = type(obj).__module__
        cure = "convert it to a NumPy array first"
        if library.partition(".")[0] == "torch":
            cure += (
                "; for a nested tensor take udfkit.Ragged.from_torch, and for bfloat16, which "
                "NumPy has not, udfkit.torch.apply or tensor.float()"
            )
        raise TypeError(
            f"{where}, a {library}.{type(obj).__name__}, cannot be read as an array "
            f"({type(error).__name__}: {error}): {cure}"
        ) from error
    return None


def _has_buffer(obj: Any) -> bool:
    try:
        memoryview(obj)
    except TypeError:
        return False
    return True


def read_item(item: Any, where: str) -> tuple[np.ndarray | None, bool]:
    """Return (array, has a dtype of its own); None stands for an empty Python list."""
    array = host_array(item, where)
    if array is not None:
        check_real(array.dtype, where)
        return array, True
    if isinstance(item, (bool, int, float)):
        return plain_array(item, where), False
    if is_scipy_sparse(item):
        raise TypeError(
            f"{where} is a sparse matrix, expected a dense array: convert it with toarray(); only "
            f"udfkit.sanitize_batch takes CSR matrices, where every sequence is one"
        )
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes, bytearray)):
        parts = tuple(item)  # another thread may change a list meanwhile
        if not parts:
            return None, False
        leaf = _first_leaf(parts)
        if is_scipy_sparse(leaf):
            raise TypeError(
                f"{where} is a list of sparse matrices: stack its rows with "
                f"scipy.sparse.vstack(..., format='csr'), one CSR matrix a sequence"
            )
        return plain_array(parts, where), hasattr(leaf, "dtype")
    raise TypeError(f"{where} is {_describe(item)}, expected an array or a nested list of numbers")


def _first_leaf(item: Any) -> Any:
    for _ in range(DEEPEST):
        if not isinstance(item, (list, tuple)) or not item:
            break
        item = item[0]
    return item


def plain_array(item: Any, where: str) -> np.ndarray:
    """Read numbers and small arrays, nested evenly, into an array that holds integers exactly.

    Raises
    ------
    TypeError, ValueError
        For parts that differ in shape, things that are no numbers, integers that do not fit.
    """
    try:
        array = np.asarray(item)
    except ValueError as error:
        raise ValueError(
            f"{where} is a nested list whose parts differ in length or shape ({error}): all steps "
            f"of one sequence need the same sample shape"
        ) from None
    except OverflowError:
        raise ValueError(
            f"{where} holds an integer that does not fit 64 bits: use smaller ones, or floats"
        ) from None
    if array.dtype.kind == "O":
        raise TypeError(
            f"{where} is {_describe(item)}, which NumPy can only read as objects: expected "
            f"numbers that fit 64 bits, nested evenly"
        )
    check_real(array.dtype, where)
    return exact_integers(item, array, where)


def as_sequence(
    array: np.ndarray, shape: tuple[int, ...], where: str, one_sample: bool = False
) -> np.ndarray:
    """Return ``array`` as a sequence (length, *shape); an array of shape ``shape`` is one step.

    Raises
    ------
    ValueError
        When it is neither.
    """

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
    wanted = f"{shape_text(('length', *shape))} or {shape_text(shape)} for one step"
    raise ValueError(
        f"{where} has shape {shape_text(array.shape)}, which does not fit the sample shape "
        f"{shape_text(shape)}: expected {shape_text(shape) if one_sample else wanted}"
    )
