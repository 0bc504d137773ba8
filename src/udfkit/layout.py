"""Where the sequences of a padded batch are: lengths, starts, and the mask made from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from udfkit import moves
from udfkit.errors import shape_text

__all__ = ["Layout", "all_new", "check_offsets", "check_starts", "no_starts", "read_layout"]


def all_new(count: int) -> np.ndarray:
    """Return the starts of ``count`` new sequences; read-only."""
    starts = np.ones(count, np.bool_)
    starts.flags.writeable = False
    return starts


def check_offsets(offsets: Any, total: int, trim: bool) -> np.ndarray:
    """Return offsets as int64, copied; ValueError with the position of the first bad one."""
    given = np.asarray(offsets)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(
            f"offsets must be a vector of integers, not {given.dtype} of shape "
            f"{shape_text(given.shape)}: B + 1 positions, the first 0"
        )
    if len(given) == 0:
        raise ValueError("offsets are empty: expected B + 1 positions, [0] for an empty batch")
    if given.dtype == np.uint64 and (given > np.uint64(2**63 - 1)).any():
        k = int(np.flatnonzero(given > np.uint64(2**63 - 1))[0])
        raise ValueError(f"offset {given[k]} at position {k} exceeds int64: use smaller offsets")
    checked = np.array(given, dtype=np.int64)
    if checked[0] != 0:
        raise ValueError(f"offset {checked[0]} at position 0: the first offset must be 0")
    down = np.flatnonzero(checked[1:] < checked[:-1])
    if len(down):
        k = int(down[0]) + 1
        raise ValueError(
            f"offset {checked[k]} at position {k} is below {checked[k - 1]} before it: offsets "
            f"must not decrease"
        )
    over = np.flatnonzero(checked > total)
    if len(over):
        k = int(over[0])
        raise ValueError(
            f"offset {checked[k]} at position {k} overruns the {total} values: offsets must end at "
            f"the number of values"
        )
    if checked[-1] != total and not trim:
        raise ValueError(
            f"offset {checked[-1]} at position {len(checked) - 1} leaves "
            f"{total - checked[-1]} of {total} values unused: pass trim=True if that is meant"
        )
    return checked


def check_starts(starts: Any, count: int, name: str = "seq_starts") -> np.ndarray | None:
    """Return ``starts`` as a bool array of shape (count,); None for None or ``[]``.

    Raises
    ------
    ValueError
        When they are not booleans, or not one a sequence.
    """
    if no_starts(starts, name):
        return None
    if not isinstance(starts, np.ndarray):
        for k, flag in enumerate(starts):
            if not isinstance(flag, (bool, np.bool_)):
                raise ValueError(
                    f"{name}[{k}] is {flag!r} of type {type(flag).__name__}, expected a boolean: "
                    f"use True for a new sequence, False for one that continues"
                )
    array = np.array(starts)
    if array.dtype != np.bool_:
        raise ValueError(
            f"{name} has dtype {array.dtype}, expected booleans: use True for a new sequence, "
            f"False for one that continues"
        )
    if array.shape != (count,):
        raise ValueError(
            f"{name} has shape {shape_text(array.shape)}, but the batch has {count} sequence(s): "
            f"pass one boolean a sequence"
        )
    return array


def no_starts(starts: Any, name: str = "seq_starts") -> bool:
    """Whether starts are None or empty, which means the same; TypeError when they are no list."""
    if starts is None:
        return True
    if isinstance(starts, str) or not isinstance(starts, (Sequence, np.ndarray)):
        raise TypeError(
            f"{name} is {starts!r} of type {type(starts).__name__}, expected a list with one "
            f"boolean a sequence"
        )
    return len(starts) == 0 if not isinstance(starts, np.ndarray) else starts.size == 0


_AXES = {"sequence": 2, "batch": 1, "none": 0}


class Layout:
    """The dynamic axes of one batch; immutable.

    Attributes
    ----------
    kind : {'sequence', 'batch', 'none'}
    lengths : ndarray of int64, shape (B,)
    rows, steps : int
        Size of the padded rectangle.
    contiguous : bool
        Whether row i holds sequence i alone, from its first cell on.
    from_rectangle : bool
        Whether every cell is valid only because nobody said which are not.
    pieces : (ndarray, ndarray) or None
        An explicit index of the sequences: first cells and lengths of runs of cells, int64 (P,),
        in the order of the samples. Without one, samples are in row-major order.
    on_device : dict
        Copies of parts of it on devices, by (index, name).
    """

    __slots__ = (
        "_mask",
        "_offsets",
        "_starts",
        "contiguous",
        "from_rectangle",
        "kind",
        "lengths",
        "on_device",
        "pieces",
        "rows",
        "steps",
    )

    def __init__(
        self,
        kind: str,
        lengths: np.ndarray,
        starts: np.ndarray | None,
        rows: int,
        steps: int,
        mask: np.ndarray | None = None,
        from_rectangle: bool = False,
        pieces: tuple[np.ndarray, np.ndarray] | None = None,
    ):
        self.kind = kind
        self.pieces = pieces
        self.on_device: dict[tuple[int, str], Any] = {}
        self.lengths = lengths
        self.rows = rows
        self.steps = steps
        self.contiguous = mask is None
        self.from_rectangle = from_rectangle
        self._starts = starts
        self._mask = mask
        self._offsets: np.ndarray | None = None

    @classmethod
    def of_lengths(
        cls, lengths: np.ndarray, starts: np.ndarray | None = None, steps: int | None = None
    ) -> Layout:
        """One sequence a row, from the first cell on; ``steps`` is the longest unless given."""
        if steps is None:
            steps = int(lengths.max(initial=0))
        return cls("sequence", lengths, starts, len(lengths), steps)

    @classmethod
    def of_new_rows(cls, lengths: np.ndarray, mask: np.ndarray) -> Layout:
        """One new sequence a row, from the first cell on, with the mask that this makes."""
        made = cls("sequence", lengths, None, *mask.shape)
        made._mask = mask
        return made

    @classmethod
    def of_rectangle(cls, rows: int, steps: int, starts: np.ndarray | None = None) -> Layout:
        """Every cell of (rows, steps) is valid, one sequence a row."""
        lengths = np.full(rows, steps, np.int64)
        return cls("sequence", lengths, starts, rows, steps, from_rectangle=True)

    @classmethod
    def of_mask(cls, mask: np.ndarray) -> Layout:
        """Read int8 ``mask`` of shape (rows, steps): samples in order, a sequence at each 2."""
        lengths, starts, contiguous = moves.read_mask(mask)
        rows, steps = mask.shape
        return cls("sequence", lengths, starts, rows, steps, None if contiguous else mask)

    @classmethod
    def of_batch(cls, rows: int) -> Layout:
        """A batch axis and no sequence axis."""
        return cls("batch", np.ones(rows, np.int64), None, rows, 1)

    @classmethod
    def without_axes(cls) -> Layout:
        """One array, without axes."""
        return cls("none", np.ones(1, np.int64), None, 1, 1)

    def with_starts(self, starts: np.ndarray | None) -> Layout:
        """Return the same cells with other starts.

        A sequence that continues within a row keeps its 2 in the mask: a 1 would join it to the
        sequence before.
        """
        mask = None
        if not self.contiguous:
            mask = np.array(self.mask)
            begins = self.positions[self.offsets[:-1][self.lengths > 0]]
            row, column = np.divmod(begins, self.steps)
            inside = column != (mask != 0).argmax(axis=1)[row]
            new = all_new(self.count) if starts is None else starts
            mask.reshape(-1)[begins] = np.where(new[self.lengths > 0] | inside, 2, 1)
        rows, steps, pieces = self.rows, self.steps, self.pieces
        return Layout("sequence", self.lengths, starts, rows, steps, mask, pieces=pieces)

    def same_lengths(self, other: Layout) -> bool:
        """Whether both have the same number of sequences, of the same lengths."""
        return self is other or self.lengths.tobytes() == other.lengths.tobytes()

    @property
    def count(self) -> int:
        """Number of sequences B."""
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        """Whether each sequence is a new one; read-only."""
        if self._starts is None:
            return all_new(self.count)
        self._starts.setflags(write=False)
        return self._starts

    @property
    def offsets(self) -> np.ndarray:
        """Running sum of the lengths, int64 of shape (B + 1,)."""
        if self._offsets is None:
            self._offsets = moves.offsets_of(self.lengths)
        return self._offsets

    @property
    def total(self) -> int:
        """Number of valid samples."""
        return int(self.offsets[-1])

    @property
    def positions(self) -> np.ndarray:
        """The cell of each sample, counted row by row, int64 of shape (total,)."""
        if self.pieces is None:
            return np.flatnonzero(self.mask)
        cells, lengths = self.pieces
        offsets = moves.offsets_of(lengths)
        return np.repeat(cells - offsets[:-1], lengths) + np.arange(int(offsets[-1]))

    @property
    def all_new(self) -> bool:
        """Whether no sequence continues an earlier one."""
        return self._starts is None or bool(self._starts.all())

    @property
    def is_masked(self) -> bool:
        """Whether any cell is invalid or any sequence continued."""
        return self.total != self.rows * self.steps or not self.all_new

    @property
    def axes(self) -> int:
        """Number of dynamic axes."""
        return _AXES[self.kind]

    @property
    def cell_shape(self) -> tuple[int, ...]:
        """Shape of the mask."""
        if self.kind == "sequence":
            return self.rows, self.steps
        return (self.rows,) if self.kind == "batch" else ()

    @property
    def mask(self) -> np.ndarray:
        """The int8 mask of shape `cell_shape`; read-only."""
        if self._mask is None:
            if self.kind == "sequence":
                self._mask = moves.mask_of(self.lengths, self._starts, self.steps)
            else:
                self._mask = np.full(self.cell_shape, 2, np.int8)
        self._mask.setflags(write=False)
        return self._mask


def read_layout(data: np.ndarray, mask: Any, lengths: Any, starts: Any) -> Layout:
    """Return the layout that a mask, or lengths, or neither, give to padded data.

    Raises
    ------
    TypeError, ValueError
        When they do not fit the data or each other, with the position.
    """
    if mask is not None:
        layout = _layout_of_mask(data, np.asarray(mask))
        if lengths is not None and not np.array_equal(
            _check_lengths(lengths, layout.count, layout.steps), layout.lengths
        ):
            raise ValueError(
                f"lengths {np.asarray(lengths).tolist()} contradict the mask, whose sequences have "
                f"lengths {layout.lengths.tolist()}: give one of them"
            )
        return _with_starts(layout, starts)
    if lengths is not None:
        if data.ndim < 2:
            raise ValueError(
                f"data has shape {shape_text(data.shape)}: with lengths it must be (rows, T, *s)"
            )
        checked = _check_lengths(lengths, data.shape[0], data.shape[1])
        flags = check_starts(starts, len(checked), "starts")
        return Layout.of_lengths(checked, flags, data.shape[1])
    if data.ndim >= 2:
        flags = check_starts(starts, data.shape[0], "starts")
        return Layout.of_rectangle(data.shape[0], data.shape[1], flags)
    if starts is not None:
        raise ValueError(
            f"starts were given, but data of shape {shape_text(data.shape)} has no sequence axis: "
            f"leave them out"
        )
    return Layout.of_batch(len(data)) if data.ndim else Layout.without_axes()


def _layout_of_mask(data: np.ndarray, mask: np.ndarray) -> Layout:
    if mask.ndim > 2 or data.shape[: mask.ndim] != mask.shape:
        raise ValueError(
            f"mask of shape {shape_text(mask.shape)} does not fit data of shape "
            f"{shape_text(data.shape)}: expected (rows, T), (B,) or ()"
        )
    if mask.dtype.kind == "b" and mask.ndim == 2:
        codes = mask.astype(np.int8, order="C")
        if mask.size:
            codes[np.arange(len(codes)), mask.argmax(axis=1)] *= 2
    elif mask.dtype.kind in "iu":
        bad = np.argwhere((mask < 0) | (mask > 2))
        if len(bad):
            at = tuple(bad[0].tolist())
            raise ValueError(
                f"mask value {mask[at]} at {at}: expected 0 (invalid), 1 (valid) or 2 (valid and "
                f"the beginning of a sequence)"
            )
        codes = mask.astype(np.int8, order="C")
    else:
        raise TypeError(f"mask has dtype {mask.dtype}, expected int8 codes 0, 1, 2, or bool")
    if mask.ndim == 2:
        return Layout.of_mask(codes)
    if (codes != 2).any():
        k = int(np.flatnonzero(codes != 2)[0])
        raise ValueError(
            f"mask value {codes.reshape(-1)[k]} at position {k}: without a sequence axis every "
            f"cell must be 2"
        )
    return Layout.of_batch(len(data)) if mask.ndim else Layout.without_axes()


def _with_starts(layout: Layout, starts: Any) -> Layout:
    if starts is None:
        return layout
    if layout.kind != "sequence":
        raise ValueError("starts were given, but the mask has no sequence axis: leave them out")
    flags = check_starts(starts, layout.count, "starts")
    if flags is None:
        return layout
    wrong = np.flatnonzero((flags != layout.starts) & (layout.lengths > 0))
    if len(wrong):
        k = int(wrong[0])
        raise ValueError(
            f"starts[{k}] is {bool(flags[k])}, but the mask says {bool(layout.starts[k])} for "
            f"sequence {k}: give one of them"
        )
    return layout.with_starts(flags)


def _check_lengths(lengths: Any, count: int, steps: int) -> np.ndarray:
    given = np.array(lengths, dtype=np.int64 if len(lengths) == 0 else None)
    if given.dtype.kind not in "iu" or given.shape != (count,):
        raise ValueError(
            f"lengths are {given.dtype} of shape {shape_text(given.shape)}, expected {count} "
            f"integers, one a sequence"
        )
    bad = np.flatnonzero((given < 0) | (given > steps))
    if len(bad):
        k = int(bad[0])
        raise ValueError(
            f"length {given[k]} of sequence {k} is out of range: expected 0 to {steps}, the number "
            f"of steps in the data"
        )
    return np.array(given, np.int64)
