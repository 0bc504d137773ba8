"""Reading a list with one item a sequence: addresses and lengths, ready to be moved."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from udfkit.casting import cast_exactly, warn_cast
from udfkit.errors import shape_text
from udfkit.items import as_sequence, read_item
from udfkit.kernels import lazy
from udfkit.memory import check_size, max_bytes
from udfkit.variable import FreeDimension, Variable

__all__ = ["Rows", "read_rows"]

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


def read_rows(
    batch: Any,
    shape: tuple[int, ...] | None,
    dtype: np.dtype | None,
    *,
    var: Variable | None = None,
    what: str = "sequence",
    one_sample: bool = False,
    will_pad: bool = False,
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
    var : Variable, optional
        Named in error texts; items with a dtype of their own that are cast cause its `CastWarning`.
    what : str
        What an item is called in error texts.
    one_sample : bool
        Every item must hold exactly one sample.
    will_pad : bool
        Check the size of the padded batch before anything large is allocated.

    Raises
    ------
    TypeError, ValueError
        With the index of the first item that does not fit.
    PaddedSizeError
        When the padded batch would be too large.
    """
    items = tuple(batch)
    pointers = np.empty(len(items), np.int64)
    lengths = np.empty(len(items), np.int64)
    where = _Where(what, var)
    if shape is None or dtype is None or FreeDimension in shape:
        shape, dtype = _settle(items, shape, dtype, where)
    if one_sample:
        odd, longest = pyobjects.scan_samples(items, dtype, shape, pointers), 1
        lengths.fill(1)
        lengths[pointers == 0] = -1
    else:
        odd, longest, _ = pyobjects.scan(items, dtype, shape, pointers, lengths)
    rows = Rows(pointers, lengths, longest, shape, dtype, items)
    if odd:
        _read_odd(items, rows, where, one_sample, will_pad)
    return rows


class _Where:
    """Names an item in error texts, made only when one is needed."""

    __slots__ = ("var", "what")

    def __init__(self, what: str, var: Variable | None):
        self.what = what
        self.var = var

    def __call__(self, k: int) -> str:
        owner = "" if self.var is None else f" for variable {self.var.name!r}"
        return f"{self.what} {k}{owner}"


def _check_padded(rows: Rows) -> None:
    cells = len(rows.lengths) * rows.longest
    sample_bytes = rows.dtype.itemsize * prod(rows.sample_shape)
    if cells * (sample_bytes + 1) > max_bytes():
        check_size(len(rows.lengths), rows.longest, sample_bytes, rows.lengths)


def _read_odd(
    items: tuple[Any, ...], rows: Rows, where: _Where, one_sample: bool, will_pad: bool
) -> None:
    """Read the items that compiled code did not, those of length -1, and complete ``rows``."""
    pointers, lengths, shape, dtype = rows.pointers, rows.lengths, rows.sample_shape, rows.dtype
    odd = np.flatnonzero(lengths < 0).tolist()
    found: dict[int, tuple[np.ndarray, bool]] = {}
    for k in odd:
        array, typed = read_item(items[k], where(k))
        if array is None:
            array = np.empty((0, *shape), dtype)
        array = as_sequence(array, shape, where(k), one_sample)
        lengths[k] = len(array)
        found[k] = array, typed
    rows.longest = int(lengths.max())
    if one_sample and (lengths != 1).any():
        k = int(np.flatnonzero(lengths != 1)[0])
        raise ValueError(
            f"{where(k)} holds {lengths[k]} samples (shape "
            f"{shape_text((int(lengths[k]), *shape))}), expected one of shape {shape_text(shape)}: "
            f"declare the variable with udfkit.sequence.input_variable if these are sequences"
        )
    if will_pad:
        _check_padded(rows)
    if len(odd) == len(items) > 1 and _cast_block(items, rows, where):
        return
    keep: list[Any] = [items]
    for k, (array, typed) in found.items():
        if array.dtype != dtype:
            native = array.dtype.newbyteorder("=")
            if typed and native != dtype:
                warn_cast(where.var, native)
            array = cast_exactly(array, dtype, where(k))
        array = np.ascontiguousarray(array)
        keep.append(array)
        pointers[k] = pyobjects.address(array)
    rows.keep = keep


def _cast_block(items: tuple[Any, ...], rows: Rows, where: _Where) -> bool:
    """Cast arrays that all have one other dtype at once, and point ``rows`` to the result.

    Return False when they do not, or a value does not fit: going item by item then finds out which.
    """
    source = getattr(items[0], "dtype", None)
    if not isinstance(source, np.dtype) or source == rows.dtype or source.kind not in "biuf":
        return False
    pointers, lengths = np.empty_like(rows.pointers), np.empty_like(rows.lengths)
    odd, _, total = pyobjects.scan(items, source, rows.sample_shape, pointers, lengths)
    if odd:
        return False
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    block = np.empty((total, *rows.sample_shape), source)
    cells = prod(rows.sample_shape)
    address = pyobjects.address(block)
    size = source.itemsize * cells
    cpu.rows_to_ragged(0, len(items), pointers, offsets, size, cpu.WRITE, address)
    try:
        cast = cast_exactly(block, rows.dtype, "")
    except ValueError:
        return False
    warn_cast(where.var, source)
    begin = pyobjects.address(cast)
    np.add(offsets[:-1] * (rows.dtype.itemsize * cells), begin, out=rows.pointers)
    rows.keep = cast
    return True


def _settle(
    items: tuple[Any, ...], shape: tuple[int, ...] | None, dtype: np.dtype | None, where: _Where
) -> tuple[tuple[int, ...], np.dtype]:
    """Find the sample shape and dtype that were left open, from the first items that show them."""
    first: tuple[int, np.dtype] | None = None
    untyped: list[np.dtype] = []
    for k, item in enumerate(items):
        if first is not None and shape is not None and FreeDimension not in shape:
            break
        array, typed = read_item(item, where(k))
        if array is None:
            continue
        if shape is None:
            shape = array.shape[1:]
        elif FreeDimension in shape:
            shape = as_sequence(array, shape, where(k)).shape[1:]
        if not typed:
            untyped.append(array.dtype)
        elif first is None:
            first = k, array.dtype.newbyteorder("=")
    shape = tuple(0 if n == FreeDimension else n for n in shape or ())
    if dtype is not None:
        return shape, dtype
    if first is not None:
        _check_one_dtype(items, first, where)
        return shape, first[1]
    if not untyped:
        raise ValueError(
            "an empty batch of Python lists has no dtype: pass dtype= (and sample_shape=), or "
            "arrays"
        )
    return shape, np.result_type(*untyped)


def _check_one_dtype(items: tuple[Any, ...], first: tuple[int, np.dtype], where: _Where) -> None:
    for k, item in enumerate(items):
        found = getattr(item, "dtype", None)
        if isinstance(found, np.dtype) and found.newbyteorder("=") != first[1]:
            raise ValueError(
                f"{where(k)} has dtype {found.newbyteorder('=')}, {where(first[0])} has "
                f"{first[1]}: all must have one dtype; pass dtype= to cast them"
            )
