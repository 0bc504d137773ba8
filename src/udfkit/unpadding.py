"""What `pad` returns, and `unpad`: padded data back to its sequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, Literal

import numpy as np

from udfkit import memory, moves, threads
from udfkit.casting import check_real
from udfkit.errors import DeviceError, shape_text
from udfkit.items import host_array
from udfkit.kernels import lazy
from udfkit.layout import read_layout
from udfkit.ragged import Ragged
from udfkit.value import Value

__all__ = ["Padded", "Side", "Unpadded", "native_array", "unpad"]

Side = Literal["left", "right"]

cpu_padding = lazy("cpu_padding", globals())
pyobjects = lazy("pyobjects", globals())

_INT64 = np.dtype(np.int64)


class Padded:
    """What `pad` returns: ``data, mask = pad(batch)``, and what `unpad` needs to undo it.

    Attributes
    ----------
    data : ndarray, shape (B, T, *s)
    mask : ndarray of int8, shape (B, T)
        0 invalid (padding), 1 valid, 2 valid and the beginning of a sequence.
    lengths : ndarray of int64, shape (B,)
        Valid cells a row; read-only.
    side : {'right', 'left'}
        Where the padding is.

    Examples
    --------
    >>> import udfkit
    >>> padded = udfkit.pad([[1, 2, 3], [4]], side="left")
    >>> data, mask = padded
    >>> data.tolist(), padded.steps, padded.lengths.tolist()
    ([[1, 2, 3], [0, 0, 4]], 3, [3, 1])
    """

    __slots__ = ("_starts", "data", "lengths", "mask", "side")

    def __init__(
        self,
        data: np.ndarray,
        mask: np.ndarray,
        lengths: np.ndarray,
        side: Side,
        starts: np.ndarray | None,
    ):
        self.data = data
        self.mask = mask
        self.lengths = lengths
        self.side = side
        self._starts = starts

    @property
    def steps(self) -> int:
        """The number of steps T, padding included."""
        return self.data.shape[1]

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.data, self.mask))

    def __len__(self) -> int:
        return 2

    def __repr__(self) -> str:
        return (
            f"Padded({len(self.lengths)} sequences, {self.data.dtype} "
            f"{shape_text(self.data.shape)}, padding on the {self.side})"
        )


class Unpadded(list[np.ndarray]):
    """The list of sequences that `unpad` returns; `pad` of it gives T and side back.

    Attributes
    ----------
    steps : int
        The number of steps T of the padded data.
    side : {'right', 'left'}
    starts : ndarray of bool, shape (B,), or None
        False where a sequence continues one of the batch before; None: all are new.
    sample : ndarray, shape (0, *s)
        Tells dtype and sample shape, also where there is no sequence.
    """

    __slots__ = ("sample", "side", "starts", "steps")

    def __init__(
        self,
        sequences: Iterable[np.ndarray],
        steps: int,
        side: Side,
        starts: np.ndarray | None,
        sample: np.ndarray,
    ):
        super().__init__(sequences)
        self.steps = steps
        self.side: Side = side
        self.starts = starts
        self.sample = sample

    def __reduce__(self) -> tuple[Any, ...]:
        return Unpadded, (list(self), self.steps, self.side, self.starts, self.sample)


def unpad(
    data: Any,
    mask: Any = None,
    *,
    lengths: Any = None,
    side: Side | None = None,
    layout: Literal["list", "ragged"] = "list",
    out: np.ndarray | None = None,
) -> Any:
    """Take the sequences out of padded data, bit for bit.

    Parameters
    ----------
    data : Padded, Value, or array of shape (rows, T, *s)
        What `pad` returned needs nothing else.
    mask : array_like of int8 or bool, shape (rows, T), optional
        0 invalid, 1 valid, 2 the beginning of a sequence; valid cells may lie anywhere.
    lengths : sequence of int, shape (rows,), optional
        Instead of a mask: valid cells a row, any integer dtype.
    side : {'right', 'left'}, optional
        With lengths: where the padding is; on the right by default.
    layout : {'list', 'ragged'}
    out : ndarray, shape (total, *s), optional
        Takes the samples, one sequence behind the other, and is the memory of the result;
        C-contiguous, of the dtype of the data, apart from it.

    Returns
    -------
    Unpadded or Ragged
        A list with an array ``(length, *s)`` a sequence, that keeps T and side for `pad`; writable,
        in memory of its own unless ``out`` is given. Or the same as a Ragged.

    Raises
    ------
    ValueError
        When data, mask and lengths do not agree, or none says which cells are valid, with the
        position; for an output that does not fit, which is not written then.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> data = np.array([[1, 2, 0], [3, 0, 0]])
    >>> [x.tolist() for x in udfkit.unpad(data, lengths=[2, 1])]
    [[1, 2], [3]]
    >>> udfkit.unpad(data, data != 0, layout="ragged").offsets.tolist()
    [0, 2, 3]
    """
    if layout not in ("list", "ragged"):
        raise ValueError(f"layout is {layout!r}, expected 'list' or 'ragged'")
    starts = None
    if isinstance(data, (Padded, Value)):
        if mask is not None or lengths is not None or side is not None:
            raise ValueError(
                f"mask, lengths or side were given beside a {type(data).__name__}, which has its "
                f"own: leave them out"
            )
        if isinstance(data, Value):
            return _unpad_value(data, layout, out)
        data, lengths, side, starts = data.data, data.lengths, data.side, data._starts
        starts = None if starts is None else starts.copy()
    array = native_array(data)
    _check_apart(out, data)
    if array.ndim < 2:
        raise ValueError(f"data has shape {shape_text(array.shape)}, expected (rows, T, *s)")
    if side not in (None, "left", "right"):
        raise ValueError(f"side is {side!r}, expected 'left' or 'right'")
    if mask is None and lengths is None:
        raise ValueError("nothing says which cells are valid: pass mask= or lengths=")
    if mask is None:
        return _unpad_rows(array, lengths, side or "right", starts, layout, out)
    codes = mask if type(mask) is np.ndarray else host_array(mask, "mask")
    codes = np.asarray(mask) if codes is None else codes
    if codes.shape != array.shape[:2]:
        raise ValueError(
            f"mask of shape {shape_text(codes.shape)} does not fit data of shape "
            f"{shape_text(array.shape)}: expected {shape_text(array.shape[:2])}"
        )
    codes = _codes(codes)
    found_lengths, starts, contiguous = moves.read_mask(codes)
    _check_lengths(lengths, found_lengths)
    found_side = "right" if contiguous else _left_if_left(codes, found_lengths)
    if side is not None and found_side != side and (found_lengths != array.shape[1]).any():
        raise ValueError(
            f"side is {side!r}, but the mask says otherwise: leave side out, the mask decides"
        )
    flags = None if starts.all() else starts
    if found_side is not None:
        return _unpad_rows(array, found_lengths, found_side, flags, layout, out)
    total = int(found_lengths.sum())
    given = None if out is None else _check_out(out, array, total)
    block = moves.cells_to_ragged(array, codes, total, given)
    return _hand_over(block, found_lengths, (array.shape[1], "right"), flags, layout)


def native_array(data: Any) -> np.ndarray:
    """Return any array of numbers as a C-contiguous NumPy array of native byte order."""
    array = data if type(data) is np.ndarray else host_array(data, "data")
    array = np.asarray(data) if array is None else array
    check_real(array.dtype, "data")
    if array.flags.c_contiguous and array.dtype.isnative:
        return array
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def _codes(mask: np.ndarray) -> np.ndarray:
    """Return a mask of any integer dtype, or bool, as C-contiguous int8 codes."""
    if mask.dtype.kind == "b":
        codes = mask.astype(np.int8, order="C")
        if codes.size:
            codes[np.arange(len(codes)), mask.argmax(axis=1)] *= 2
        return codes
    if mask.dtype.kind not in "iu":
        raise TypeError(f"mask has dtype {mask.dtype}: pass int8 codes 0, 1, 2, or bool")
    codes = mask.astype(np.int8, order="C")  # a copy, which no other thread can change
    if codes.dtype != mask.dtype:
        wrong = np.argwhere(codes != mask)
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise ValueError(
                f"mask value {mask[at]} at {at}: expected 0 (invalid), 1 (valid) or 2 (valid and "
                f"the beginning of a sequence)"
            )
    return codes


def _check_lengths(lengths: Any, found: np.ndarray) -> None:
    if lengths is not None and not np.array_equal(np.asarray(lengths), found):
        raise ValueError(
            f"lengths {np.asarray(lengths).tolist()} contradict the mask, whose sequences have "
            f"lengths {found.tolist()}: give one of them"
        )


def _left_if_left(codes: np.ndarray, lengths: np.ndarray) -> Side | None:
    """Return 'left' where each row is one sequence that ends at its last cell."""
    if len(lengths) != len(codes):
        return None
    valid = codes != 0
    return "left" if (valid[:, 1:] >= valid[:, :-1]).all() else None


def _check_apart(out: Any, data: Any) -> None:
    arrays = isinstance(out, np.ndarray) and isinstance(data, np.ndarray)
    if arrays and np.may_share_memory(out, data):
        raise ValueError("out overlaps the padded data: pass memory of its own")


def _check_out(out: Any, data: np.ndarray, total: int) -> np.ndarray:
    shape = (total, *data.shape[2:])
    out = out if type(out) is np.ndarray or host_array(out, "out") is None else np.asarray(out)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != data.dtype:
        got = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"out is {got}, expected an ndarray {data.dtype} {shape}")
    if not (out.flags.c_contiguous and out.flags.writeable and out.flags.aligned):
        raise ValueError("out must be C-contiguous, aligned and writeable: pass such an array")
    return out


def _unpad_value(value: Value, layout: str, out: np.ndarray | None) -> Any:
    if value.device.is_gpu:
        raise DeviceError(
            f"data is a Value on {value.device}, and unpad works on the host: pass "
            f"value.to(udfkit.cpu()); value.values and value.lengths are there without it"
        )
    ragged = value.ragged()
    if layout == "ragged" and out is None:
        return ragged
    steps = value.shape[1] if value.mask.ndim == 2 else 1
    if out is None:
        block = moves.copy_samples(ragged.values)
    else:
        block = _check_out(out, ragged.values[:, np.newaxis], len(ragged.values))
        np.copyto(block, ragged.values)
    starts = ragged.starts if ragged.has_starts else None
    return _hand_over(block, ragged.lengths, (steps, "right"), starts, layout)


def _unpad_rows(
    data: np.ndarray,
    lengths: Any,
    side: Side,
    starts: np.ndarray | None,
    layout: str,
    out: np.ndarray | None,
) -> Any:
    rows, steps = data.shape[:2]
    size = data.itemsize * prod(data.shape[2:])
    address = pyobjects.address
    if not (
        type(lengths) is np.ndarray
        and lengths.dtype is _INT64
        and lengths.shape == (rows,)
        and lengths.flags.c_contiguous
    ):
        lengths = read_layout(data, None, lengths, None).lengths
    else:
        lengths = lengths.copy()  # they are read more than once, and others may write them
    short = moves.flatten_short(data, lengths, side, out)
    if short is not None:
        offsets, block = short
        return _hand_over(block, lengths, (steps, side), starts, layout, offsets)
    offsets = np.empty(rows + 1, np.int64)
    if cpu_padding.offsets_in_rows(rows, address(lengths), steps, address(offsets)) >= 0:
        read_layout(data, None, lengths, None)
    total = int(offsets[-1])
    shape = (total, *data.shape[2:])
    nbytes = total * size
    if out is not None:
        block = _check_out(out, data, total)
    elif nbytes < memory.SMALLEST_POOLED:
        block = np.empty(shape, data.dtype)
    else:
        block = memory.empty(shape, data.dtype)
    way = cpu_padding.STREAM if nbytes >= memory.STREAMED else 0
    args = (address(data), address(offsets), size, steps, side == "left", way, address(block))
    if nbytes < threads.SERIAL_BYTES:
        cpu_padding.unpad_rows(0, rows, *args)
    else:
        bounds = threads.split(rows, nbytes, offsets)
        threads.run_ranges(cpu_padding.unpad_rows, bounds, args, keep=(data, offsets, block))
    return _hand_over(block, lengths, (steps, side), starts, layout, offsets)


def _hand_over(
    block: np.ndarray,
    lengths: np.ndarray,
    rectangle: tuple[int, Side],
    starts: np.ndarray | None,
    layout: str,
    offsets: np.ndarray | None = None,
) -> Any:
    if layout == "ragged":
        offsets = moves.offsets_of(lengths) if offsets is None else offsets
        offsets.setflags(write=False)
        return Ragged._trusted(block, offsets, starts)
    sequences = pyobjects.views(block, lengths, block.shape[1:])
    return Unpadded(sequences, *rectangle, starts, np.empty((0, *block.shape[1:]), block.dtype))
