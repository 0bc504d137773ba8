"""Memory of the PTX interpreter: buffers at addresses, shared memory, and who touched what last."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SECTOR = 32
NOBODY, _MANY = -1, -2


class Fault(Exception):
    """The program did something that a device would not forgive."""


@dataclass
class Buffer:
    """Bytes at an address, and who touched them last."""

    base: int
    data: Any
    writable: bool
    writer: Any = field(init=False)
    epoch: Any = field(init=False)

    def __post_init__(self) -> None:
        self.writer = np.full(self.data.size, NOBODY, np.int64)
        self.epoch = np.zeros(self.data.size, np.int64)


class Memory:
    """Global memory: buffers far from each other, so that a step over an end finds nothing."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._next = 0x7F00_0000_0000

    def place(
        self, array: Any, *, skew: int = 0, writable: bool = False, at: int | None = None
    ) -> int:
        """Put an array's own bytes at a fresh address (a multiple of 256, plus ``skew``)."""
        data = array.reshape(-1).view(np.uint8)
        if array.size and not np.shares_memory(data, array):
            raise ValueError("the array must be contiguous: a copy would not see what is written")
        base = self._next + skew if at is None else at
        self._next += -(-(data.size + 65_536) // 256) * 256
        self.buffers.append(Buffer(base, data, writable))
        return base

    def find(self, addresses: Any, width: int, what: str) -> Any:
        """Return the index of the buffer that holds each access."""
        if (addresses % width).any():
            raise Fault(f"misaligned {what} of {width} bytes at {hex(addresses[0])}")
        found = np.full(addresses.shape, -1)
        for k, buffer in enumerate(self.buffers):
            inside = (addresses >= buffer.base) & (
                addresses + width <= buffer.base + buffer.data.size
            )
            found[inside] = k
        if (found < 0).any():
            raise Fault(
                f"{what} of {width} bytes outside all buffers at {hex(addresses[found < 0][0])}"
            )
        return found


@dataclass
class Statistics:
    """What a launch did to global memory."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    sectors: Counter[tuple[str, int]] = field(default_factory=Counter)
    moved: Counter[tuple[str, int]] = field(default_factory=Counter)
    steps: int = 0

    def sectors_of(self, kind: str, buffer: int) -> int:
        """Sectors that all warps together asked of one buffer."""
        return self.sectors[kind, buffer]


class Shared:
    """Shared memory of every block; two threads may meet in it only across a barrier."""

    def __init__(self, blocks: int, size: int) -> None:
        shape = (blocks, max(size, 1))
        self.size = size
        self.data = np.zeros(shape, np.uint8)
        self.writer, self.reader = (np.full(shape, NOBODY) for _ in range(2))
        self.written, self.read_at = (np.full(shape, -1) for _ in range(2))

    def _place(self, addresses: Any, width: int, blocks: Any) -> tuple[Any, Any]:
        if (addresses % width).any() or (addresses < 0).any():
            raise Fault(f"misaligned access of {width} bytes to shared memory")
        if (addresses + width > self.size).any():
            raise Fault("access outside shared memory")
        return blocks[:, None], addresses[:, None] + np.arange(width)

    def read(self, addresses: Any, width: int, who: Any, blocks: Any, epoch: Any) -> Any:
        """Return the bytes (threads, width) at each thread's address in its block."""
        place = self._place(addresses, width, blocks)
        now = epoch[blocks][:, None]
        writer = self.writer[place]
        if (writer == NOBODY).any():
            raise Fault("load of shared memory that nothing was stored to")
        if ((writer != who[:, None]) & (self.written[place] == now)).any():
            raise Fault("race: shared memory is read before a barrier after the store")
        other = (self.read_at[place] == now) & (self.reader[place] != who[:, None])
        repeated = np.unique(addresses + blocks * 2**32).size != who.size
        self.reader[place] = np.where(other | repeated, _MANY, who[:, None])
        self.read_at[place] = now
        return self.data[place]

    def write(self, addresses: Any, data: Any, who: Any, blocks: Any, epoch: Any) -> None:
        """Store the bytes (threads, width) at each thread's address in its block."""
        place = self._place(addresses, data.shape[1], blocks)
        now = epoch[blocks][:, None]
        if np.unique(addresses + blocks * 2**32).size != who.size:
            raise Fault("two threads store to the same shared memory at once")
        for person, moment in ((self.writer, self.written), (self.reader, self.read_at)):
            last = person[place]
            if ((last != NOBODY) & (last != who[:, None]) & (moment[place] == now)).any():
                raise Fault("race: shared memory is written while another thread uses it")
        self.data[place] = data
        self.writer[place], self.written[place] = who[:, None], now
