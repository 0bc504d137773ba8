"""What crosses the border between another library and user code: samples, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from udfkit import moves
from udfkit.device import cpu
from udfkit.kernels import lazy
from udfkit.layout import Layout, check_offsets
from udfkit.value import Value

__all__ = [
    "ArrayBatch",
    "Batch",
    "check_starts_fit",
    "in_cells",
    "layout_at",
    "layout_of_offsets",
    "padded",
    "stored",
]

cpu_extents = lazy("cpu_extents", globals())
pyobjects = lazy("pyobjects", globals())

_CPU = cpu()
_INT64 = np.dtype(np.int64)


class Batch:
    """A batch at the border of a function: a layout, and samples in one of two storages.

    Attributes
    ----------
    layout : Layout
    padded : bool
        Whether the samples are padded data.
    sample_shape : tuple of int
    dtype : dtype
    array : ndarray
        C-contiguous: ``(rows, T, *s)`` where padded, else flat ``(total, *s)``; ``(B, *s)`` or
        ``s`` without a sequence axis.
    """

    __slots__ = ("dtype", "layout", "padded", "sample_shape")

    array: Any
    dtype: np.dtype
    layout: Layout
    padded: bool
    sample_shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.layout.count

    @property
    def _layout(self) -> Layout:
        # The name under which a Value has it, so that the checks on Values read batches too.
        return self.layout

    @property
    def is_there(self) -> bool:
        """Whether there are samples; without them the batch says what samples would be like."""
        raise NotImplementedError

    @property
    def address(self) -> int:
        """Where `array` begins in memory."""
        raise NotImplementedError

    def flat(self, copy: bool) -> np.ndarray:
        """Return the valid samples ``(total, *s)``; with ``copy``, in memory of their own."""
        array, layout = self.array, self.layout
        if not self.padded:
            return moves.copy_samples(array) if copy else array
        if layout.contiguous:
            return moves.padded_to_ragged(array, layout.offsets)
        return moves.cells_to_ragged(array, layout.mask, layout.total)

    def value(self, copy: bool) -> Value:
        """Return a Value; with ``copy``, in memory of its own."""
        if self.layout.kind == "sequence":
            return Value._make(self.layout, _CPU, flat=self.flat(copy))
        return Value._make(self.layout, _CPU, padded=self.flat(copy).view())


class ArrayBatch(Batch):
    """A batch whose samples are in a NumPy array."""

    __slots__ = ("array",)

    def __init__(self, layout: Layout, padded: bool, array: np.ndarray):
        self.layout = layout
        self.padded = padded
        self.array = array
        self.dtype = array.dtype
        self.sample_shape = array.shape[1 + padded if layout.kind == "sequence" else layout.axes :]

    @property
    def is_there(self) -> bool:
        """Whether there are samples."""
        return self.array is not None

    @property
    def address(self) -> int:
        """Where `array` begins in memory."""
        return pyobjects.address(self.array)


def layout_at(address: int, count: int, limit: int, offsets: bool) -> Layout | None:
    """Return the layout of int64 offsets that end at ``limit``, or of lengths up to ``limit``.

    None where they are no such thing. ``count`` is the number of sequences.
    """
    lengths, ends = np.empty(count, _INT64), np.empty(count + 1, _INT64)
    if offsets:
        steps = cpu_extents.read_offsets(address, limit, ends, lengths)
    else:
        steps = cpu_extents.read_lengths(address, limit, ends, lengths)
        limit = limit if steps >= 0 else -1
    if steps < 0:
        return None
    made = Layout("sequence", lengths, None, count, steps if offsets else limit)
    made._offsets = ends
    return made


def layout_of_offsets(numbers: np.ndarray, total: int) -> Layout:
    """Return the layout of offsets of any integer dtype over ``total`` samples.

    Raises
    ------
    TypeError, ValueError
        When they are no offsets of so many samples, with the position.
    """
    layout = None
    if len(numbers) and numbers.dtype == _INT64 and numbers.flags.c_contiguous:
        layout = layout_at(pyobjects.address(numbers), len(numbers) - 1, total, offsets=True)
    if layout is not None:
        return layout
    checked = check_offsets(numbers, total, trim=True)
    if checked[-1] != total:
        raise ValueError(
            f"the last offset is {checked[-1]}, but there are {total} values: pass those in front "
            f"of it only, values[:{checked[-1]}]"
        )
    return Layout.of_lengths(np.diff(checked))


def padded(flat: np.ndarray, layout: Layout) -> np.ndarray:
    """Return flat samples in the cells of a layout."""
    if layout.contiguous:
        return moves.ragged_to_padded(flat, layout.offsets, layout.steps)
    return moves.ragged_to_cells(flat, layout.mask)


def stored(value: Value, layouts: Sequence[Layout], pad: bool) -> ArrayBatch:
    """Return a Value's samples in a storage, in the cells of the first layout of equal lengths."""
    layout = value._layout
    if layout.kind != "sequence":
        return ArrayBatch(layout, False, value.asarray())
    flat = value._fresh_flat()
    for other in layouts:
        if other.same_lengths(layout):
            layout = other
            break
    else:
        layout = Layout.of_lengths(layout.lengths, layout._starts)
    return ArrayBatch(layout, pad, padded(flat, layout) if pad else flat)


def in_cells(batch: Batch, layout: Layout) -> Batch:
    """Return a batch in the cells, and with the starts, of another layout of equal lengths."""
    if batch.layout is layout:
        return batch
    array = padded(batch.flat(copy=False), layout) if batch.padded else batch.array
    return ArrayBatch(layout, batch.padded, array)


def check_starts_fit(layout: Layout, form: str, origin: str, cure: str) -> None:
    """Raise ValueError for sequences that continue, unless the form is a mask, which can say so."""
    if layout.kind != "sequence" or layout.all_new:
        return
    # A mask has no cell for an empty sequence.
    lost = ~layout.starts & ((layout.lengths == 0) | (form != "mask"))
    if lost.any():
        raise ValueError(
            f"{origin}: sequence {int(lost.argmax())} continues one of the batch before, which the "
            f"form {form!r} cannot say: {cure}, or give the input a mask of bool, by which all "
            f"sequences are new"
        )
