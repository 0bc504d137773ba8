"""Reading a tuple of NumPy arrays, and making many arrays, in compiled code.

It reads the memory of Python objects, by ``object_layouts``. What it does is checked when it is
imported, against arrays made for the purpose; where a check fails, and on builds without the global
interpreter lock, plain Python with the same results takes its place (``pyobjects_plain``). The lock
is never let go while objects are read, so nothing can change them meanwhile; the caller's tuple
keeps them alive afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udfkit.kernels import pyobjects_compiled, pyobjects_plain
from udfkit.kernels.object_layouts import layout_problem
from udfkit.kernels.pyobjects_plain import BAD_BATCH, BAD_DTYPE, BAD_SHAPE, BAD_SLOTS

__all__ = ["address", "scan", "scan_samples", "views", "why_plain"]

_INT64 = np.dtype(np.int64)


def scan(
    batch: tuple[Any, ...],
    dtype: np.dtype[Any],
    sample_shape: tuple[int, ...],
    pointers: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Read where the sequences of a batch lie and how long they are.

    An item counts as plain when it is exactly an ndarray, C-contiguous and aligned, of this dtype
    in native byte order and of shape ``(length, *sample_shape)``. Any other item is odd: its
    pointer is 0 and its length -1. Pointers hold while the tuple lives and nobody resizes an item
    in place.

    Parameters
    ----------
    batch
        The sequences. A tuple, so that no other thread can take an item away while it is in use.
    dtype
        What the items should hold.
    sample_shape
        The sizes of one sample.
    pointers, lengths
        int64 of shape ``(n,)`` with ``n >= len(batch)``, C-contiguous; the first ``len(batch)``
        cells are written.

    Returns
    -------
    odd, longest, total
        How many items are odd; the greatest length and the sum of lengths of the others.

    Raises
    ------
    TypeError
        An argument is of another kind than said here.

    Examples
    --------
    >>> import numpy as np
    >>> from udfkit.kernels.pyobjects import scan
    >>> pointers, lengths = np.empty(3, np.int64), np.empty(3, np.int64)
    >>> batch = np.zeros((4, 2)), np.zeros((1, 2)), np.zeros((5, 3))
    >>> scan(batch, np.dtype(np.float64), (2,), pointers, lengths)
    (1, 4, 5)
    >>> lengths.tolist()
    [4, 1, -1]
    """
    if lengths is None:
        raise _scan_error(BAD_SLOTS, batch, dtype, sample_shape)
    found = _read(batch, dtype, sample_shape, pointers, lengths, _INT64)
    if found[0] < 0:
        raise _scan_error(found[0], batch, dtype, sample_shape)
    return found


def scan_samples(
    batch: tuple[Any, ...],
    dtype: np.dtype[Any],
    sample_shape: tuple[int, ...],
    pointers: NDArray[np.int64],
) -> int:
    """Read where the samples of a batch lie; return how many items are odd.

    As ``scan``, for items that are one sample each: a plain item is of shape ``sample_shape``.

    Examples
    --------
    >>> import numpy as np
    >>> from udfkit.kernels.pyobjects import scan_samples
    >>> pointers = np.empty(2, np.int64)
    >>> scan_samples((np.zeros(3), np.zeros(4)), np.dtype(np.float64), (3,), pointers)
    1
    """
    odd: int = _read(batch, dtype, sample_shape, pointers, None, _INT64)[0]
    if odd < 0:
        raise _scan_error(odd, batch, dtype, sample_shape)
    return odd


def views(
    block: NDArray[Any], lengths: NDArray[np.int64], sample_shape: tuple[int, ...]
) -> list[NDArray[Any]]:
    """Make one array a sequence over the memory of a block, one behind the other.

    Parameters
    ----------
    block
        A writeable C-contiguous array with room for all sequences. It lives as long as any of them.
    lengths
        int64 ``(n,)``, none negative.
    sample_shape
        The sizes of one sample, at most 31 of them.

    Returns
    -------
    list of ndarray
        ``n`` writeable C-contiguous arrays ``(length, *sample_shape)`` of the block's dtype.

    Raises
    ------
    ValueError
        A size is negative, or the block has no room for all sequences.
    MemoryError
        There is no memory for the array objects.

    Examples
    --------
    >>> import numpy as np
    >>> from udfkit.kernels.pyobjects import views
    >>> block = np.arange(6.0)
    >>> [view.tolist() for view in views(block, np.array([1, 0, 2]), (2,))]
    [[[0.0, 1.0]], [], [[2.0, 3.0], [4.0, 5.0]]]
    """
    made = _make(block, lengths, sample_shape, _INT64)
    return pyobjects_plain.views(block, lengths, sample_shape) if made is None else made


def _scan_error(code: int, batch: object, dtype: object, sample_shape: object) -> TypeError:
    texts = {
        BAD_BATCH: f"scan: batch is a {type(batch).__name__}; pass tuple(batch)",
        BAD_DTYPE: f"scan: dtype is {dtype!r}; pass a numpy.dtype",
        BAD_SHAPE: f"scan: sample_shape is {sample_shape!r}; pass a tuple of integers",
        BAD_SLOTS: "scan: pointers and lengths must be contiguous writeable int64 vectors with a "
        "cell for each item; pass numpy.empty(len(batch), numpy.int64)",
    }
    return TypeError(texts[code])


def _bind(problem: str | None) -> None:
    global why_plain, address, _read, _make
    why_plain = problem
    if problem is None:
        compiled = pyobjects_compiled
        address, _read, _make = compiled.address, compiled.read, compiled.make_views
    else:
        address, _read, _make = pyobjects_plain.address, pyobjects_plain.read, lambda *_: None


def _problem() -> str | None:
    compiled = pyobjects_compiled
    return layout_problem() or pyobjects_plain.difference(
        compiled.read, compiled.make_views, compiled.address
    )


why_plain: str | None
"""Why plain Python does the work here, or None where compiled code does."""

address: Callable[[NDArray[Any]], int]
"""Return the address of an array's first byte: ``array.ctypes.data`` at a sixteenth of its cost."""

_read: Callable[..., tuple[int, int, int]]
_make: Callable[..., Any]
_bind(_problem())
