"""Device memory that is used again: allocating and freeing wait for the device, a pool does not.

A block goes back when the last array in it is gone, and serves the next one on the same stream:
there, what still uses it is over before what comes next begins. Who uses an array on another stream
keeps it alive until that work is over, or lets the array's stream wait for it, as with any
allocator that is ordered by streams.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ["DevicePool", "rounded"]


def rounded(count: int) -> int:
    """Return the size of a block for so many bytes: at most an eighth more, and 512 at least.

    Examples
    --------
    >>> rounded(1), rounded(1000), rounded(10_000)
    (512, 1024, 10240)
    """
    if count <= 512:
        return 512
    step = max(1 << max(count.bit_length() - 4, 0), 512)
    return -(-count // step) * step


class _Lease:
    """What an array holds instead of its memory."""

    __slots__ = ("__weakref__",)


class DevicePool:
    """Blocks of device memory by device, stream and size.

    Parameters
    ----------
    limit
        Most bytes kept; 0 keeps none. An attribute of that name can be changed at any time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Reentrant: the garbage collector may return a block while this thread takes one.
        self._lock = threading.RLock()
        self._free: dict[tuple[int, int, int], list[Any]] = {}
        self.kept = 0
        """Bytes kept for later arrays."""
        self.made = 0
        """Blocks that were allocated."""

    def take(self, count: int, device: int, stream: int, allocate: Any) -> tuple[Any, _Lease]:
        """Return a block of at least ``count`` bytes, and what keeps it from being used again.

        ``allocate(size)`` makes a new block where none is free.
        """
        key = (device, stream, rounded(count))
        with self._lock:
            blocks = self._free.get(key)
            block = blocks.pop() if blocks else None
            if block is not None:
                self.kept -= key[2]
        if block is None:
            block = allocate(key[2])
            self.made += 1
        lease = _Lease()
        # At the end of the process the driver may be gone before the block is.
        weakref.finalize(lease, self._give_back, key, block).atexit = False
        return block, lease

    def _give_back(self, key: tuple[int, int, int], block: Any) -> None:
        with self._lock:
            if self.kept + key[2] <= self.limit:
                self._free.setdefault(key, []).append(block)
                self.kept += key[2]

    def clear(self) -> None:
        """Let go of all blocks that no array uses."""
        with self._lock:
            self._free.clear()
            self.kept = 0
