"""Launch shapes, access widths and variants of the CUDA kernels: arithmetic on the host.

The device checks none of this: a misaligned wide access, a position that wraps at 32 bits or a grid
over the limits is found here or by nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "Shape",
    "cell_shape",
    "lanes_bits",
    "loads_in_flight",
    "mask_shape",
    "needs_wide",
    "row_shape",
    "scan_shape",
    "width_for",
]

BLOCK = 256
"""Threads of a block; eight such blocks fill a multiprocessor."""

FEWEST_LANES = 32
"""Fewest threads on one row: a warp, so that its accesses lie side by side."""

MOST_Y = 65_535
MOST_X = 2**31 - 1
WAVES = 4
BLOCKS_A_MULTIPROCESSOR = 8
SEGMENT = 4096
"""Cells, or columns, of a row that one block works on when a row is cut into segments."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Grid and block of a launch: x, then y; a row of threads works on a row of the batch."""

    grid: tuple[int, int]
    block: tuple[int, int]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch, which CUDA would call an error."""
        return 0 in self.grid


def width_for(numbers: Iterable[int]) -> int:
    """Return the widest access, 16 to 1 bytes, that divides every address and size.

    Examples
    --------
    >>> width_for([0x7F00, 64]), width_for([0x7F04, 64]), width_for([0x7F00, 6])
    (16, 4, 2)
    """
    merged = 16
    for number in numbers:
        merged |= number
    return merged & -merged


def loads_in_flight(width: int, *, is_wide: bool = False) -> int:
    """Return how many loads a thread issues before it stores the first.

    Four of 16 bytes, or with 64-bit positions, would need more than the 32 registers at which a
    multiprocessor is full.
    """
    return 2 if width == 16 or is_wide else 4


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _lanes(work: int) -> int:
    lanes = FEWEST_LANES
    while lanes < BLOCK and lanes < work:
        lanes *= 2
    return min(lanes, BLOCK)


def _checked(grid: tuple[int, int], block: tuple[int, int]) -> Shape:
    if grid[0] > MOST_X:
        raise ValueError(
            f"a batch of {grid[0] * block[1]:,} rows needs more blocks than a grid has "
            f"({MOST_X:,}): split the batch"
        )
    return Shape(grid, block)


def row_shape(rows: int, work: int, multiprocessors: int) -> Shape:
    """Return the shape for ``rows`` rows with ``work`` accesses each that any thread may do.

    Blocks loop over what is left of a row, so that long rows do not start blocks without number,
    and a block reads the offsets of its rows once.
    """
    if rows == 0 or work == 0:
        return Shape((0, 0), (FEWEST_LANES, 1))
    lanes = _lanes(work)
    together = BLOCK // lanes
    x = _ceil(rows, together)
    enough = _ceil(multiprocessors * BLOCKS_A_MULTIPROCESSOR * WAVES, x)
    return _checked((x, max(1, min(_ceil(work, lanes), enough, MOST_Y))), (lanes, together))


def mask_shape(rows: int, steps: int) -> Shape:
    """Return the shape for kernels that go through a whole row of the mask in one block."""
    if rows == 0:
        return Shape((0, 0), (FEWEST_LANES, 1))
    lanes = _lanes(steps)
    together = BLOCK // lanes
    return _checked((_ceil(rows, together), 1), (lanes, together))


def cell_shape(rows: int, steps: int, per_thread: int = 1) -> tuple[Shape, int]:
    """Return the shape for kernels whose blocks each take a segment of a row, and its length."""
    if rows == 0 or steps == 0:
        return Shape((0, 0), (FEWEST_LANES, 1)), SEGMENT
    lanes = _lanes(_ceil(steps, per_thread))
    together = BLOCK // lanes
    segment = SEGMENT
    while _ceil(steps, segment) > MOST_Y:
        segment *= 2
    return _checked((_ceil(rows, together), _ceil(steps, segment)), (lanes, together)), segment


def scan_shape(count: int, columns: int, items: int) -> Shape:
    """Return the shape that turns ``columns`` vectors of ``count`` lengths into offsets."""
    return _checked((max(1, _ceil(count, BLOCK * items)), columns), (BLOCK, 1))


def lanes_bits(sample_bytes: int, width: int, lanes: int) -> int:
    """Return the binary logarithm of how many of ``lanes`` threads move one sample together."""
    bits = 0
    while (1 << bits) * width < sample_bytes and 2 << bits <= lanes:
        bits += 1
    return bits


def needs_wide(row_bytes: int, shape: Shape, width: int, in_flight: int) -> bool:
    """Whether positions in a row, with what a loop adds before it looks, leave 32 bits."""
    stride = shape.grid[1] * shape.block[0] * width * in_flight
    return row_bytes + 2 * stride >= 2**32
