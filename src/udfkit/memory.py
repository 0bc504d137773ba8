"""Large host buffers that are used again, and how much memory one padded batch may take.

A page that a process touches for the first time costs more than copying it. So the memory of a
large array goes into a pool when the last array that uses it is gone, and serves the next one of
about its size. The pool keeps at most ``UDFKIT_POOL_BYTES``; 0 turns it off.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from udfkit.errors import padded_size_error
from udfkit.machine import machine_bytes
from udfkit.settings import Setting

__all__ = [
    "STREAMED",
    "PoolStats",
    "check_size",
    "clear",
    "configure",
    "empty",
    "max_bytes",
    "stats",
    "zeros_or_empty",
]

SMALLEST_POOLED = 1 << 18
"""Least bytes of a pooled array; a smaller one is left to the allocator.

The pool costs about 1 us a call. ``benchmarks/measure_memory.py``, glibc, 2 cores, to make and fill
an array: dropped one by one, the allocator's own recycling is as good below 32 MB (8 MB: 0.09 ms
both) and not above (8.0 against 1.3 ms); when four are dropped at once, as a forward and backward
do, it never is (8 MB: 2.4 against 0.3, 1 MB: 0.5 against 0.02). An identity function over 32
sequences, whose arrays have 0.8 MB: 1.4 ms a forward and backward without the pool, 0.22 with it.
"""

FRESH_ZEROS_WIN = 32 << 20
"""Least bytes of an array that is better asked for as zeroed pages than filled with zeros.

The same script, half of each row padding: 32 MB 3.6 against 4.8 ms, 128 MB 14.1 against 16.7;
without padding no difference. Below, the allocator has used memory, and zeroing all of it costs as
much as filling half of it, or more (24 MB: 1.8 against 1.7 ms; without padding 2.6 against 2.0).
"""


STREAMED = 40 << 20
"""Least bytes of an output that kernels write past the caches (``kernels/streaming.py``).

Rows to padded data in used memory, one thread, Xeon: 50 MB with half of it padding 4.1 to 3.1 ms,
58 MB of padding nearly all 5.3 to 2.9, 100 MB 13.3 to 8.5, 468 MB 44 to 24, 512 MB without padding
73 to 56; but 32 MB 2.4 to 2.6, and 6 MB 0.37 to 0.44.
"""


class PoolStats(NamedTuple):
    """What the pool holds and has done in this process.

    Examples
    --------
    >>> from udfkit import memory
    >>> memory.stats().kept_bytes <= memory.stats().limit
    True
    """

    limit: int
    """Most bytes kept."""
    kept_bytes: int
    """Bytes kept for later arrays."""
    kept_blocks: int
    """Blocks kept for later arrays."""
    made: int
    """Arrays that got new memory."""
    reused: int
    """Arrays that got memory out of the pool."""


class _Held(np.ndarray):
    """The bytes of a block while arrays use them: their base, which returns the block at its end.

    A plain array in its place would not do: NumPy drops those from a chain of bases.
    """

    _pool: _Pool
    _block: Any

    def __del__(self) -> None:
        # Only the array that _lease makes has a block; views of it have none.
        block = self.__dict__.get("_block")
        if block is not None:
            self._pool.take_back(block)


class _Pool:
    """Idle blocks by capacity, and the capacities in the order in which blocks came back.

    There is no lock: a lease may end in a garbage collection while this thread is at work here, and
    an interrupt could leave a lock closed. Each step is one operation on a deque or a dict, by
    which one thread alone gets a block; after an interrupt between two steps the order has an entry
    too many, which is passed over, or one too few, which costs the pool its contents some day.
    """

    def __init__(self) -> None:
        self.limit = 0
        self.made = 0
        self.reused = 0
        self._open = True
        self._idle: dict[int, deque[Any]] = {}
        self._order: deque[int] = deque()

    def take(self, capacity: int) -> Any:
        """Take out the block of this capacity that came back last."""
        try:
            block = self._idle[capacity].pop()
        except (KeyError, IndexError):
            self.made += 1
            return None
        with suppress(ValueError):
            self._order.remove(capacity)
        self.reused += 1
        return block

    def take_back(self, block: Any) -> None:
        if self._open:
            self._idle.setdefault(len(block), deque()).append(block)
            self._order.append(len(block))
            self.trim()

    def trim(self) -> None:
        """Drop the oldest blocks above the limit."""
        while self.kept_bytes() > self.limit:
            try:
                oldest = self._order.popleft()
            except IndexError:
                self._idle.clear()
                return
            with suppress(KeyError, IndexError):
                self._idle[oldest].popleft()

    def close(self) -> None:
        """Drop all idle blocks, and later those now in use."""
        self._open = False
        self._idle.clear()

    def kept_bytes(self) -> int:
        return sum(capacity * len(blocks) for capacity, blocks in self._kept())

    def kept_blocks(self) -> int:
        return sum(len(blocks) for _, blocks in self._kept())

    def _kept(self) -> list[tuple[int, deque[Any]]]:
        while True:
            with suppress(RuntimeError):  # a collection brought a block of a new capacity back
                return list(self._idle.items())


_pool = _Pool()
_configured: int | None = None


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return a new array with arbitrary contents, of used memory where the pool has some.

    Parameters
    ----------
    shape
        Its sizes.
    dtype
        Its dtype.

    Returns
    -------
    ndarray
        Writeable and C-contiguous. Its memory is its own until the last array over it is gone.

    Examples
    --------
    >>> import numpy as np
    >>> from udfkit import memory
    >>> memory.empty((2, 3), np.float32).shape
    (2, 3)
    """
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if not _is_pooled(nbytes, dtype):
        return np.empty(shape, dtype)
    return _lease(shape, dtype, nbytes, zeroed=False)[0]


def zeros_or_empty(shape: tuple[int, ...], dtype: DTypeLike) -> tuple[NDArray[Any], bool]:
    """Return a new array, and whether it is known to hold zeros.

    The one place that chooses where padding zeros come from: written by the kernel into used
    memory, or, for a large array that needs fresh pages, left to the system, which hands out zeroed
    pages when they are first touched.

    Parameters
    ----------
    shape
        Its sizes.
    dtype
        Its dtype.

    Returns
    -------
    array, zeroed
        As ``empty``; when ``zeroed``, padding need not be written.

    Examples
    --------
    >>> import numpy as np
    >>> from udfkit import memory
    >>> array, zeroed = memory.zeros_or_empty((2, 3), np.float32)
    >>> zeroed
    False
    """
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    zeroed = nbytes >= FRESH_ZEROS_WIN
    if not _is_pooled(nbytes, dtype):
        return (np.zeros if zeroed else np.empty)(shape, dtype), zeroed
    return _lease(shape, dtype, nbytes, zeroed=zeroed)


def configure(pool_bytes: int | None = None) -> None:
    """Set how many bytes the pool keeps at most, in place of ``UDFKIT_POOL_BYTES``.

    Parameters
    ----------
    pool_bytes
        The limit; 0 turns the pool off; None goes back to the environment or the default, the
        smaller of 2 GiB and an eighth of the machine's memory.

    Raises
    ------
    ValueError
        ``pool_bytes`` is negative.

    Examples
    --------
    >>> from udfkit import memory
    >>> memory.configure(pool_bytes=0)
    >>> memory.stats().kept_bytes
    0
    >>> memory.configure()
    """
    global _configured
    if pool_bytes is not None and pool_bytes < 0:
        raise ValueError(f"pool_bytes is {pool_bytes}, expected 0 or more; pass 0 for no pool")
    _configured = pool_bytes
    _read_limit()
    _pool.trim()


def clear() -> None:
    """Give the memory that the pool keeps back to the system.

    Examples
    --------
    >>> from udfkit import memory
    >>> memory.clear()
    >>> memory.stats().kept_blocks
    0
    """
    _pool.limit = 0
    _pool.trim()
    _read_limit()


def stats() -> PoolStats:
    """Return what the pool holds and has done in this process.

    Examples
    --------
    >>> from udfkit import memory
    >>> memory.stats().limit >= 0
    True
    """
    limit = _read_limit()
    _pool.trim()
    return PoolStats(limit, _pool.kept_bytes(), _pool.kept_blocks(), _pool.made, _pool.reused)


def _is_pooled(nbytes: int, dtype: np.dtype[Any]) -> bool:
    return nbytes >= SMALLEST_POOLED and not dtype.hasobject and nbytes <= _read_limit()


def _read_limit() -> int:
    _pool.limit = _pool_bytes() if _configured is None else _configured
    return _pool.limit


def _capacity(nbytes: int) -> int:
    """Round a size up to one of eight steps between two powers of two, so that blocks fit again."""
    step = 1 << max(nbytes.bit_length() - 4, 12)
    return -(-nbytes // step) * step


def _lease(
    shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int, *, zeroed: bool
) -> tuple[NDArray[Any], bool]:
    capacity = _capacity(nbytes)
    block = _pool.take(capacity)
    if block is None:
        fresh = (np.zeros if zeroed else np.empty)(capacity, np.uint8)
        block = (ctypes.c_char * capacity).from_buffer(fresh.data)
    else:
        zeroed = False
    held = _Held((nbytes,), np.uint8, block)
    held._pool, held._block = _pool, block
    return np.ndarray(shape, dtype, held), zeroed


def _drop_pool() -> None:
    global _pool
    inherited, _pool = _pool, _Pool()
    inherited.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_pool)


def max_bytes() -> int:
    """Return the most bytes that one padded batch may take.

    ``UDFKIT_MAX_BYTES`` where it is set; else the smaller of the machine's memory and the limits of
    the control groups that this process is in.

    Raises
    ------
    ValueError
        The environment variable holds something else than a whole number.

    Examples
    --------
    >>> from udfkit import memory
    >>> memory.max_bytes() > 0
    True
    """
    return _max_bytes()


_max_bytes = Setting("UDFKIT_MAX_BYTES", machine_bytes, least=0)
_pool_bytes = Setting("UDFKIT_POOL_BYTES", lambda: min(2 << 30, machine_bytes() // 8), least=0)


def check_size(rows: int, steps: int, sample_bytes: int, lengths: Iterable[int] | None) -> None:
    """Raise unless a padded batch, mask included, is within the memory limit.

    Parameters
    ----------
    rows, steps, sample_bytes
        Its size.
    lengths
        Of the sequences, for the share of padding in the error text; None where all is valid.

    Raises
    ------
    PaddedSizeError
        With the sizes; nothing was allocated.

    Examples
    --------
    >>> from udfkit import memory
    >>> memory.check_size(2, 3, 4, [3, 1])
    """
    limit = max_bytes()
    if rows * steps * (sample_bytes + 1) > limit:
        total = rows * steps if lengths is None else sum(int(length) for length in lengths)
        raise padded_size_error(rows, steps, sample_bytes, total, limit)
