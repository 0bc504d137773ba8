"""`fill_rows`: several sequences a row, as variable-length attention wants them."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from udfkit import device as devices
from udfkit import memory, moves, threads
from udfkit.arguments import whole_number
from udfkit.errors import shape_text
from udfkit.kernels import lazy
from udfkit.layout import Layout
from udfkit.rows import Rows
from udfkit.sources import read_source
from udfkit.unpadding import native_array
from udfkit.value import Value

__all__ = ["FilledRows", "Pieces", "fill_rows"]

cpu_padding = lazy("cpu_padding", globals())
pyobjects = lazy("pyobjects", globals())

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Pieces(NamedTuple):
    """Where each piece of a sequence lies, row by row; int64 vectors of one length.

    A sequence is one piece unless it was split; an empty one is none.
    """

    row: np.ndarray
    """Its row."""
    column: np.ndarray
    """Its first cell in the row."""
    length: np.ndarray
    """Its cells, at least one."""
    source: np.ndarray
    """Which sequence of the batch it is of."""
    begin: np.ndarray
    """Which sample of that sequence it begins with: 0 unless it continues one."""


class FilledRows:
    """Rows of fixed length that hold several sequences each; what `fill_rows` returns.

    Attributes
    ----------
    value : Value
        Data ``(rows, row_length, *s)``; its mask has a 2 where a sequence begins, and a 1 in the
        first cell of a row whose piece continues a sequence. Its sequences are those of the batch,
        in its order, split ones joined and empty ones kept. It is on the CPU: ``value.to(device)``
        takes it to a GPU.
    pieces : Pieces
        The explicit index of the sequences, row by row.
    lengths : ndarray of int64, shape (B,)
        Of the sequences of the batch, in its order; read-only.

    Examples
    --------
    >>> import udfkit
    >>> filled = udfkit.fill_rows([[1], [2, 3, 4], [5, 6]], row_length=4)
    >>> filled.value.data.tolist()
    [[2, 3, 4, 1], [5, 6, 0, 0]]
    >>> filled.value.mask.tolist()
    [[2, 1, 1, 2], [2, 1, 0, 0]]
    >>> filled.positions.tolist(), filled.segment_ids.tolist()
    ([[0, 1, 2, 0], [0, 1, 0, 0]], [[1, 1, 1, 2], [1, 1, 0, 0]])
    >>> [x.tolist() for x in filled.sequences()]
    [[1], [2, 3, 4], [5, 6]]
    """

    def __init__(self, value: Value, pieces: Pieces, lengths: np.ndarray):
        self.value = value
        self.pieces = pieces
        self.lengths = lengths
        lengths.setflags(write=False)
        for vector in pieces:
            vector.setflags(write=False)

    @property
    def order(self) -> np.ndarray:
        """Which sequence of the batch each piece is of, row by row; int64 (pieces,)."""
        return self.pieces.source

    @cached_property
    def cu_seqlens(self) -> np.ndarray:
        """Where each piece begins in `flat`, and the number of samples.

        Shape (pieces + 1,), int32 where it fits, else int64, as kernels for variable-length
        attention take it.
        """
        offsets = moves.offsets_of(self.pieces.length)
        return offsets.astype(np.int32) if offsets[-1] <= INT32_MAX else offsets

    @property
    def flat(self) -> np.ndarray:
        """The samples of the valid cells, row by row: a new array (total, *s)."""
        return moves.cells_to_ragged(self.value.data, self.value.mask, int(self.lengths.sum()))

    @property
    def max_seqlen(self) -> int:
        """The most cells of a piece."""
        return int(self.pieces.length.max(initial=0))

    @property
    def positions(self) -> np.ndarray:
        """The position of each cell in its sequence, continued ones counted on; 0 in padding.

        Shape (rows, row_length), int32 where it fits, else int64.
        """
        return self._numbers[0]

    @property
    def segment_ids(self) -> np.ndarray:
        """The number of each cell's piece in its row, from 1 on; 0 in padding.

        int32 (rows, row_length). Two cells of a row may attend to each other where their ids agree
        and are not 0.
        """
        return self._numbers[1]

    @cached_property
    def _numbers(self) -> tuple[np.ndarray, np.ndarray]:
        row, column, length, _, begin = self.pieces
        cells = self.value.shape[:2]
        first_of_row = np.searchsorted(row, row)
        ids = np.arange(1, len(row) + 1) - first_of_row
        wide = int(self.lengths.max(initial=0)) > INT32_MAX
        positions = np.zeros(cells, np.int64 if wide else np.int32)
        segments = np.zeros(cells, np.int32)
        at = row * cells[1] + column
        _run("number_cells", at, length, begin, ids, wide, positions, segments)
        return positions, segments

    @property
    def filled(self) -> float:
        """The part of all cells that is valid; 1.0 without cells."""
        rows, steps = self.value.shape[:2]
        return int(self.lengths.sum()) / (rows * steps) if rows * steps else 1.0

    def sequences(self, data: Any = None, *, flat: bool = False) -> list[np.ndarray]:
        """Return the sequences in the order of the batch, split ones joined, empty ones kept.

        Parameters
        ----------
        data : array, shape (rows, row_length, any sample shape), optional
            What a model made of `value`; by default the data of `value` itself.
        flat : bool, default False
            Data is ``(total, any sample shape)`` instead: what a model made of `flat`.

        Returns
        -------
        list of ndarray
            Arrays ``(length, ...)``, writable, in memory of their own.

        Raises
        ------
        ValueError
            When data does not have these cells.
        """
        array = native_array(self.value.data if data is None else data)
        rows, steps = self.value.shape[:2]
        cells = (int(self.lengths.sum()),) if flat else (rows, steps)
        if data is None and flat:
            raise ValueError("flat says what data is: pass data")
        if array.shape[: len(cells)] != cells:
            raise ValueError(
                f"data has shape {shape_text(array.shape)}, expected one that begins with "
                f"{shape_text(cells)}"
            )
        shape = array.shape[len(cells) :]
        size = array.itemsize * prod(shape)
        offsets = moves.offsets_of(self.lengths)
        block = memory.empty((int(offsets[-1]), *shape), array.dtype)
        row, column, length, source, begin = self.pieces
        at = moves.offsets_of(length)[:-1] if flat else row * steps + column
        sources = pyobjects.address(array) + at * size
        targets = pyobjects.address(block) + (offsets[source] + begin) * size
        _copy(sources, targets, length * size, (array, block))
        made: list[np.ndarray] = pyobjects.views(block, self.lengths, shape)
        return made

    def __repr__(self) -> str:
        return (
            f"FilledRows({len(self.lengths)} sequences in {self.value.rows} rows of "
            f"{self.value.shape[1]}, {self.filled:.1%} filled)"
        )


def fill_rows(
    batch: Any,
    row_length: int,
    *,
    split: bool = False,
    dtype: Any = None,
    sample_shape: Any = None,
) -> FilledRows:
    """Place sequences in rows of fixed length, several a row, by first-fit decreasing.

    The longest sequence goes first, each into the first row with room for it; of equal ones the
    earlier in the batch. The same lengths always give the same rows.

    Parameters
    ----------
    batch : list, tuple or other Sequence, Ragged, Value, Padded, or array
        One item a sequence, ``(length, *s)``, as `udfkit.pad` takes it. A sequence that continues
        one of an earlier batch opens a row, so that its mask can say so.
    row_length : int
        Cells a row.
    split : bool, default False
        Cut longer sequences into pieces of ``row_length`` and a rest that opens a row; otherwise
        they are an error.
    dtype : dtype, optional
        Items are cast to it exactly.
    sample_shape : int or tuple of int, optional
        Needed when no item shows it.

    Returns
    -------
    FilledRows

    Raises
    ------
    ValueError
        For a sequence longer than a row, with its index, unless ``split``.
    TypeError
        For a batch that is none, with the index of the first such item.
    PaddedSizeError
        When the rows would not fit in memory.

    Examples
    --------
    >>> import udfkit
    >>> filled = udfkit.fill_rows([[1, 2, 3, 4, 5], [6]], row_length=3, split=True)
    >>> filled.value.data.tolist(), filled.value.mask.tolist()
    ([[4, 5, 6], [1, 2, 3]], [[1, 1, 2], [2, 1, 1]])
    """
    steps = whole_number(row_length, "row_length")
    if steps > INT64_MAX:
        raise ValueError(f"row_length is {steps}, expected an integer of at most {INT64_MAX}")
    source = read_source(batch, dtype, sample_shape)
    rows = source.rows
    if rows.longest > steps and not (split and steps):
        k = int(np.flatnonzero(rows.lengths > steps)[0])
        raise ValueError(
            f"sequence {k} has {rows.lengths[k]} samples, more than the {steps} of a row: raise "
            f"row_length, pass split=True to cut it, or pad(..., overflow='truncate_right') before"
        )
    pieces = _cut(rows.lengths, steps)
    continued = pieces.begin > 0
    if source.starts is not None:
        continued |= ~source.starts[pieces.source]
    count, pieces, continued = _place(pieces, continued, steps)
    size = rows.dtype.itemsize * prod(rows.sample_shape)
    memory.check_size(count, steps, size, rows.lengths)
    mask = _mask(pieces, continued, count, steps)
    data = _data(rows, pieces, count, steps)
    cells = pieces.row * steps + pieces.column
    by_source = np.lexsort((pieces.begin, pieces.source))
    index = cells[by_source], pieces.length[by_source]
    layout = Layout("sequence", rows.lengths, source.starts, count, steps, mask, pieces=index)
    return FilledRows(Value._make(layout, devices.cpu(), padded=data), pieces, rows.lengths)


def _cut(lengths: np.ndarray, steps: int) -> Pieces:
    """Cut sequences into pieces of at most ``steps`` cells, in the order of the batch."""
    parts = -(-lengths // steps) if steps else np.zeros_like(lengths)
    source = np.repeat(np.arange(len(lengths)), parts)
    number = np.arange(len(source)) - np.searchsorted(source, source)
    begin = number * steps
    length = np.minimum(lengths[source] - begin, steps)
    nowhere = np.zeros_like(source)
    return Pieces(nowhere, nowhere, length, source, begin)


def _place(pieces: Pieces, continued: np.ndarray, steps: int) -> tuple[int, Pieces, np.ndarray]:
    """Give each piece a row and a column; return the number of rows, and the pieces row by row."""
    order = np.lexsort((-pieces.length, ~continued))
    alone = int(continued.sum())
    count = len(order)
    leaves = 1 << max(count - 1, 0).bit_length()
    row, column = np.empty(count, np.int64), np.empty(count, np.int64)
    room = np.empty(2 * leaves, np.int64)
    lengths = pieces.length[order]
    rows = cpu_padding.first_fit(lengths, alone, steps, room, leaves, row, column)
    # Within a row columns grow in the order of placement, so a stable sort by row is enough.
    by_row = np.argsort(row, kind="stable")
    order = order[by_row]
    placed = Pieces(
        row[by_row], column[by_row], lengths[by_row], pieces.source[order], pieces.begin[order]
    )
    return rows, placed, continued[order]


def _tails(pieces: Pieces, count: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return first cell and number of the cells that stay free at the end of each row."""
    last = np.searchsorted(pieces.row, np.arange(count), side="right") - 1
    used = pieces.column[last] + pieces.length[last]
    return np.arange(count) * steps + used, steps - used


def _mask(pieces: Pieces, continued: np.ndarray, count: int, steps: int) -> np.ndarray:
    mask = memory.empty((count, steps), np.int8)
    cells, free = _tails(pieces, count, steps)
    _run("zero_pieces", pyobjects.address(mask) + cells, free)
    at = pieces.row * steps + pieces.column
    _run("mark_pieces", at, pieces.length, continued, mask)
    return mask


def _data(rows: Rows, pieces: Pieces, count: int, steps: int) -> np.ndarray:
    size = rows.dtype.itemsize * prod(rows.sample_shape)
    data, zeroed = memory.zeros_or_empty((count, steps, *rows.sample_shape), rows.dtype)
    base = pyobjects.address(data)
    if not zeroed:
        cells, free = _tails(pieces, count, steps)
        _run("zero_pieces", base + cells * size, free * size)
    sources = rows.pointers[pieces.source] + pieces.begin * size
    targets = base + (pieces.row * steps + pieces.column) * size
    _copy(sources, targets, pieces.length * size, (rows, data))
    return data


def _copy(sources: np.ndarray, targets: np.ndarray, counts: np.ndarray, keep: object) -> None:
    """Copy bytes between addresses, in several threads where they are many."""
    total = int(counts.sum())
    if total < threads.SERIAL_BYTES:
        _run("copy_pieces", sources, targets, counts)
        return
    bounds = threads.split(len(counts), total, moves.offsets_of(counts))
    args = (pyobjects.address(sources), pyobjects.address(targets), pyobjects.address(counts))
    alive = (sources, targets, counts, keep)
    threads.run_ranges(cpu_padding.copy_pieces, bounds, args, keep=alive)


def _run(name: str, vector: np.ndarray, *others: Any) -> None:
    """Run a kernel over all cells of a vector; arrays are given by address and held meanwhile."""
    args = [pyobjects.address(x) if isinstance(x, np.ndarray) else x for x in (vector, *others)]
    getattr(cpu_padding, name)(0, len(vector), *args)
