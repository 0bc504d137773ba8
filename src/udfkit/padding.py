"""`pad`: sequences to a rectangle with a mask, with every option in one place."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from udfkit import memory, threads
from udfkit.arguments import whole_number
from udfkit.casting import cast_exactly, check_real, is_bfloat16
from udfkit.errors import shape_text
from udfkit.items import host_array
from udfkit.kernels import lazy
from udfkit.rows import Rows
from udfkit.sources import Source, pad_plainly, read_source
from udfkit.unpadding import Padded, Side, unpad

__all__ = ["Overflow", "Padded", "check_options", "pad", "unpad"]

Overflow = Literal["error", "truncate_left", "truncate_right"]

cpu_padding = lazy("cpu_padding", globals())
pyobjects = lazy("pyobjects", globals())

BLOCK_BYTES = 4096
"""Most bytes of the block that a padding value is repeated in, which stays in the nearest cache."""

_MASK_DTYPE = np.dtype(np.int8)


def pad(  # noqa: PLR0913 - every option that people ask for, all by keyword
    batch: Any,
    mask: Any = None,
    *,
    side: Side | None = None,
    steps: int | None = None,
    max_length: int | None = None,
    overflow: Overflow = "error",
    multiple_of: int | None = None,
    buckets: Sequence[int] | None = None,
    padding_value: Any = 0,
    dtype: Any = None,
    sample_shape: int | Sequence[int] | None = None,
    out: np.ndarray | None = None,
    mask_out: np.ndarray | None = None,
) -> Padded:
    """Pad sequences to one length; return data and mask, and what it takes to go back.

    Parameters
    ----------
    batch : list, tuple or other Sequence, Ragged, Value, Padded, or array
        One item a sequence, ``(length, *s)``; nested lists of numbers; an array is ``(B, T, *s)``.
        A batch that is padded already keeps its mask, side and T.
    mask : array_like of int8 or bool, shape (B, T), optional
        Which cells of an array are valid; otherwise all are.
    side : {'right', 'left'}, optional
        Where the padding goes; on the right unless the batch is padded on the left.
    steps : int, optional
        The number of steps T of the result; by default the longest length.
    max_length : int, optional
        The most samples a sequence may have; ``steps`` and the largest bucket bound it too.
    overflow : {'error', 'truncate_left', 'truncate_right'}
        What is done with a longer one: refuse it, or drop samples of its beginning ('left') or end.
    multiple_of : int, optional
        T is rounded up to a multiple of it.
    buckets : sequence of int, optional
        T is the smallest of these that is long enough.
    padding_value : scalar, default 0
        What padding cells hold; the dtype must be able to hold it.
    dtype : dtype, optional
        Items are cast to it exactly; without it all must have one dtype, which is kept.
    sample_shape : int or tuple of int, optional
        Needed when no item shows it.
    out : ndarray, shape (B, T, *s), optional
        C-contiguous, of the dtype of the result, apart from the batch; it decides T.
    mask_out : ndarray of int8, shape (B, T), optional
        C-contiguous.

    Returns
    -------
    Padded
        Unpacks to ``data, mask``; ``unpad`` takes it back bit for bit.

    Raises
    ------
    ValueError
        For a sequence that is too long, a padding value or a sample that the dtype cannot hold,
        options that contradict each other, an output that does not fit; nothing is written.
    TypeError
        For a batch that is none, with the index of the first such item.
    PaddedSizeError
        When the padded batch would not fit in memory; nothing is allocated.

    Examples
    --------
    >>> import udfkit
    >>> data, mask = udfkit.pad([[1, 2, 3, 4, 5], [6]], multiple_of=4, padding_value=-1)
    >>> data[1].tolist(), mask[1].tolist()
    ([6, -1, -1, -1, -1, -1, -1, -1], [2, 0, 0, 0, 0, 0, 0, 0])
    >>> udfkit.pad([[1, 2, 3], [4]], max_length=2, overflow="truncate_left").data.tolist()
    [[2, 3], [4, 0]]
    """
    if (
        (mask is None and side is None and dtype is None and sample_shape is None)
        and (steps is None and max_length is None and multiple_of is None and buckets is None)
        and (overflow == "error" and type(padding_value) is int and padding_value == 0)
    ):
        short = pad_plainly(batch, out, mask_out)
        if short is not None:
            lengths, data, made = short
            lengths.setflags(write=False)
            return Padded(data, made, lengths, "right", None)
    source = read_source(
        batch if mask is None else unpad(batch, mask),
        dtype,
        sample_shape,
        will_pad=overflow == "error",
    )
    rows = source.rows
    _check_choices(side, overflow)
    side = source.side if side is None else side
    if out is not None or mask_out is not None:
        steps = _steps_of(mask_out, _steps_of(out, steps, "out"), "mask_out")
    asked = (steps, max_length, multiple_of, buckets)
    if asked == _NOTHING_ASKED and source.steps <= rows.longest:
        steps = rows.longest
    else:
        cap, steps = _choose_steps(rows.longest, source.steps, *asked)
        if cap is not None and rows.longest > cap:
            rows = _truncate(rows, cap, overflow)
    filling: tuple[int, int, object] = (0, 0, None)
    if type(padding_value) is not int or padding_value != 0:
        filling = _filling(padding_value, rows)
    return _fill(source, rows, side, steps, filling, (out, mask_out))


def check_options(
    side: Any = None,
    overflow: Any = "error",
    steps: Any = None,
    max_length: Any = None,
    multiple_of: Any = None,
    buckets: Any = None,
) -> None:
    """Raise ValueError for options of `pad` that no batch could be padded with."""
    _check_choices(side, overflow)
    _choose_steps(0, 0, steps, max_length, multiple_of, buckets)


def _check_choices(side: Any, overflow: Any) -> None:
    if side not in (None, "left", "right"):
        raise ValueError(f"side is {side!r}, expected 'left' or 'right'")
    if overflow not in ("error", "truncate_left", "truncate_right"):
        raise ValueError(
            f"overflow is {overflow!r}, expected 'error', 'truncate_left' or 'truncate_right'"
        )


_NOTHING_ASKED = (None, None, None, None)


def _fill(
    source: Source,
    rows: Rows,
    side: Side,
    steps: int,
    filling: tuple[int, int, object],
    given: tuple[np.ndarray | None, np.ndarray | None],
) -> Padded:
    """Find room for data and mask, and run the kernel."""
    block, extent, keep = filling
    lengths, starts, dtype = rows.lengths, source.starts, rows.dtype
    size = dtype.itemsize * prod(rows.sample_shape)
    count = len(lengths)
    nbytes = count * steps * size
    if nbytes + count * steps > memory.max_bytes():
        memory.check_size(count, steps, size, lengths)
    shape = (count, steps, *rows.sample_shape)
    out, mask_out = given
    if out is not None or mask_out is not None:
        _check_outs(out, mask_out, shape, rows)
    if out is not None:
        data = out
    elif nbytes < memory.SMALLEST_POOLED:
        data = np.empty(shape, dtype)
    elif block == 0 and extent == 0:
        data, zeroed = memory.zeros_or_empty(shape, dtype)
        block = cpu_padding.LEAVE if zeroed else 0
    else:
        data = memory.empty(shape, dtype)
    if mask_out is not None:
        mask = mask_out
    elif count * steps < memory.SMALLEST_POOLED:
        mask = np.empty((count, steps), _MASK_DTYPE)
    else:
        mask = memory.empty((count, steps), _MASK_DTYPE)
    if nbytes >= memory.STREAMED and block == 0 and extent == 0:
        block = cpu_padding.STREAM
    template = np.empty(2 * steps if count else 0, _MASK_DTYPE)
    address = pyobjects.address
    args = (
        address(rows.pointers),
        address(lengths),
        0 if starts is None else address(starts),
        size,
        steps,
        side == "left",
        block,
        extent,
        address(template),
        address(data),
        address(mask),
    )
    if nbytes < threads.SERIAL_BYTES:
        cpu_padding.pad_rows(0, count, *args)
    else:
        alive = (rows, source, template, data, mask, keep)
        threads.run_ranges(cpu_padding.pad_rows, threads.split(count, nbytes), args, keep=alive)
    lengths.setflags(write=False)
    return Padded(data, mask, lengths, side, starts)


def _steps_of(out: Any, steps: int | None, name: str) -> int | None:
    if out is None:
        return steps
    if not isinstance(out, np.ndarray) or out.ndim < 2:
        got = f"of shape {shape_text(out.shape)}" if isinstance(out, np.ndarray) else type(out)
        raise ValueError(f"{name} is {got}, expected a NumPy array that begins with axes (B, T)")
    if steps is not None and steps != out.shape[1]:
        raise ValueError(
            f"{name} has {out.shape[1]} steps, but {steps} were asked for: leave steps out, or "
            f"pass arrays of one T"
        )
    return out.shape[1]


def _choose_steps(
    longest: int,
    remembered: int,
    steps: int | None,
    max_length: int | None,
    multiple_of: int | None,
    buckets: Sequence[int] | None,
) -> tuple[int | None, int]:
    """Return the most samples a sequence may have, or None, and T."""
    if (steps is not None) + (multiple_of is not None) + (buckets is not None) > 1:
        raise ValueError(
            "give one of steps (or an output, which decides it), multiple_of and buckets: each "
            "decides T"
        )
    cap = None if max_length is None else whole_number(max_length, "max_length")
    sizes: list[int] = []
    if steps is not None:
        fixed = whole_number(steps, "steps")
        return (fixed if cap is None else min(cap, fixed)), fixed
    if buckets is not None:
        if not isinstance(buckets, (Sequence, np.ndarray)) or isinstance(buckets, str):
            raise ValueError(f"buckets is {buckets!r}, expected a list of lengths: pass [8, 16]")
        sizes = sorted(whole_number(size, f"buckets[{k}]") for k, size in enumerate(buckets))
        if not sizes:
            raise ValueError("buckets is empty: pass at least one length")
        cap = sizes[-1] if cap is None else min(cap, sizes[-1])
    needed = max(longest, remembered) if cap is None else min(max(longest, remembered), cap)
    if sizes:
        return cap, next(size for size in sizes if size >= needed)
    if multiple_of is not None:
        factor = whole_number(multiple_of, "multiple_of", 1)
        needed = -(-needed // factor) * factor
    return cap, needed


def _truncate(rows: Rows, cap: int, overflow: Overflow) -> Rows:
    if overflow == "error":
        k = int(np.flatnonzero(rows.lengths > cap)[0])
        raise ValueError(
            f"sequence {k} has {rows.lengths[k]} samples, more than the {cap} allowed: raise "
            f"max_length (or steps, or the largest bucket), or pass overflow='truncate_left' or "
            f"'truncate_right'"
        )
    lengths = np.minimum(rows.lengths, cap)
    pointers = rows.pointers
    if overflow == "truncate_left":
        size = rows.dtype.itemsize * prod(rows.sample_shape)
        pointers = pointers + (rows.lengths - lengths) * size
    return Rows(pointers, lengths, cap, rows.sample_shape, rows.dtype, rows.keep)


def _filling(value: Any, rows: Rows) -> tuple[int, int, object]:
    """Return block, extent and owner of a padding value, as the kernel takes them."""
    given = np.asarray(value)
    if given.ndim != 0:
        raise ValueError(f"padding_value has shape {shape_text(given.shape)}, expected one number")
    if given.dtype.kind == "O":
        raise ValueError(
            f"padding_value is {value!r}, expected a number that dtype {rows.dtype} can hold"
        )
    check_real(given.dtype, "padding_value")
    try:
        item = _cast_padding(given, rows.dtype)
    except ValueError:
        raise ValueError(
            f"padding_value {given.item()!r} cannot be held by dtype {rows.dtype}: choose one that "
            f"can be, or pass dtype="
        ) from None
    raw = item.tobytes()
    if raw.count(raw[:1]) == len(raw):
        return 0, raw[0], None
    block = np.frombuffer(raw * (BLOCK_BYTES // len(raw)), np.uint8)
    return pyobjects.address(block), len(block), block


def _cast_padding(given: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Cast one number by the rules of `cast_exactly`, to bfloat16 too."""
    if not is_bfloat16(dtype) or given.dtype == dtype:
        return cast_exactly(given, dtype, "padding_value")
    with np.errstate(all="ignore"):
        cast = given.astype(dtype)
    wide = float(cast)
    rounded = wide != given.item() if given.dtype.kind in "biu" else np.isinf(wide)
    if rounded and not np.isinf(given):
        raise ValueError("padding_value")
    return cast


def _check_outs(
    out: np.ndarray | None,
    mask_out: np.ndarray | None,
    shape: tuple[int, ...],
    rows: Rows,
) -> None:
    """Raise unless the outputs fit and share no memory with the batch or each other."""
    _check_out(out, shape, rows.dtype, rows, "out")
    _check_out(mask_out, shape[:2], _MASK_DTYPE, rows, "mask_out")
    if out is not None and mask_out is not None:
        begin, mask_begin = pyobjects.address(out), pyobjects.address(mask_out)
        if begin < mask_begin + mask_out.nbytes and mask_begin < begin + out.nbytes:
            raise ValueError("mask_out overlaps out: pass memory of its own")


def _check_out(
    out: np.ndarray | None, shape: tuple[int, ...], dtype: np.dtype, rows: Rows, name: str
) -> None:
    if out is None:
        return
    host_array(out, name)
    flags = out.flags
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(
            f"{name} is {out.dtype} of shape {shape_text(out.shape)}, expected {dtype} of shape "
            f"{shape_text(shape)}"
        )
    if not (flags.c_contiguous and flags.writeable and flags.aligned):
        raise ValueError(f"{name} must be C-contiguous, aligned and writeable: pass such an array")
    begin = pyobjects.address(out)
    k = cpu_padding.first_overlap(
        len(rows.lengths),
        pyobjects.address(rows.pointers),
        pyobjects.address(rows.lengths),
        rows.dtype.itemsize * prod(rows.sample_shape),
        begin,
        begin + out.nbytes,
    )
    if k >= 0:
        raise ValueError(f"{name} overlaps sequence {k} of the batch: pass memory of its own")
