"""Hypothesis strategies for ragged batches, padded rectangles with masks, and array layouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FEW = settings(SETTINGS, max_examples=25)

DTYPES = [
    np.dtype(name)
    for name in (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    )
]
SAMPLE_SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (2, 3), (0,), (2, 0)]
LAYOUTS = ["C", "F", "step", "negative", "broadcast", "read-only", "swapped", "offset", "last-axis"]
EDGE_LENGTHS = [
    [],
    [0],
    [1],
    [1, 1, 1],
    [0, 3],
    [2, 0],
    [3, 0, 2],
    [0, 0, 0],
    [0, 3, 0, 2, 0],
    [0, 1, 0, 1],
    [4, 4],
    [3, 1, 2],
]

# Quiet and signalling NaNs with payloads, -NaN, both zeros, infinities, subnormals.
_SPECIAL_BITS = {
    2: [0x7E01, 0x7D01, 0xFE02, 0x8000, 0x0000, 0x7C00, 0xFC00, 0x0001],
    4: [0x7FC00001, 0x7FA00005, 0xFFC01234, 0x80000000, 0, 0x7F800000, 0xFF800000, 1],
    8: [
        0x7FF8000000000001,
        0x7FF4000000000005,
        0xFFF8000000001234,
        0x8000000000000000,
        0,
        0x7FF0000000000000,
        0xFFF0000000000000,
        1,
    ],
}


def special_floats(dtype: Any) -> np.ndarray:
    """Every special bit pattern of a floating dtype, in one vector."""
    size = np.dtype(dtype).itemsize
    return np.array(_SPECIAL_BITS[size], dtype=f"u{size}").view(dtype)


def bit_noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of arbitrary bits (0 and 1 only for bool), floats with special values mixed in."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool).reshape(shape)
    out = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).copy()
    if dtype.kind == "f" and count:
        special = special_floats(dtype)
        where = rng.random(count) < 0.5
        # Moved as integers: an assignment of floats may quiet a signalling NaN.
        bits = np.dtype(f"u{dtype.itemsize}")
        out.view(bits)[where] = rng.choice(special.view(bits), int(where.sum()))
    return out.reshape(shape)


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """`array` in another memory layout; "broadcast" repeats its first row, the rest keep values."""
    if layout == "F":
        return np.array(array, order="F")
    if layout == "read-only":
        out = array.copy()
        out.flags.writeable = False
        return out
    if layout == "swapped":
        return array.byteswap().view(array.dtype.newbyteorder())
    if layout == "offset":
        # An unaligned array: one byte into a byte buffer.
        raw = np.zeros(array.nbytes + 1, np.uint8)
        raw[1:] = np.frombuffer(array.tobytes(), np.uint8)
        return raw[1:].view(array.dtype).reshape(array.shape) if array.size else array
    if array.ndim == 0 or layout == "C":
        return np.ascontiguousarray(array).reshape(array.shape)
    if layout == "broadcast":
        return np.broadcast_to(array[:1], array.shape) if len(array) else array
    if layout == "negative":
        return np.ascontiguousarray(array[::-1])[::-1]
    axis = 0 if layout == "step" else array.ndim - 1
    wide = np.repeat(array, 2, axis=axis)
    return wide[tuple(slice(None, None, 2) if i == axis else slice(None) for i in range(wide.ndim))]


def plain(array: np.ndarray) -> np.ndarray:
    """A native, contiguous, aligned copy with the same numbers."""
    native = array.byteswap().view(array.dtype.newbyteorder("=")) if _swapped(array) else array
    return np.frombuffer(native.tobytes(), native.dtype).reshape(array.shape).copy()


def _swapped(array: np.ndarray) -> bool:
    return not array.dtype.isnative


@dataclass
class Batch:
    """A ragged batch: `sequences` as handed over, `expected` their plain copies."""

    sequences: list[np.ndarray]
    expected: list[np.ndarray]
    shape: tuple[int, ...]
    dtype: np.dtype
    starts: list[bool]
    layouts: list[str] = field(default_factory=list)

    @property
    def lengths(self) -> list[int]:
        """Samples in each sequence."""
        return [len(sequence) for sequence in self.expected]


def lengths(max_count: int = 5, max_length: int = 5) -> st.SearchStrategy[list[int]]:
    """Lengths of a batch, with the edge cases (no sequence, zero lengths anywhere) made common."""
    return st.one_of(
        st.sampled_from(EDGE_LENGTHS).map(list),
        st.lists(st.integers(0, max_length), max_size=max_count),
    )


def seeds() -> st.SearchStrategy[np.random.Generator]:
    """A generator of reproducible bit noise."""
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)


@st.composite
def batches(
    draw: st.DrawFn,
    dtypes: list[np.dtype] = DTYPES,
    shapes: list[tuple[int, ...]] = SAMPLE_SHAPES,
    layouts: list[str] = LAYOUTS,
) -> Batch:
    """A ragged batch of any dtype, sample shape, layout and starts."""
    shape, dtype, rng = draw(st.sampled_from(shapes)), draw(st.sampled_from(dtypes)), draw(seeds())
    sizes = draw(lengths())
    starts = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    chosen = [draw(st.sampled_from(layouts)) for _ in sizes]
    sequences = [
        laid_out(bit_noise(rng, (size, *shape), dtype), layout)
        for size, layout in zip(sizes, chosen, strict=True)
    ]
    expected = [plain(sequence) for sequence in sequences]
    return Batch(sequences, expected, shape, np.dtype(dtype), starts, chosen)


@st.composite
def masks(draw: st.DrawFn, max_rows: int = 4, max_steps: int = 6) -> np.ndarray:
    """Any int8 mask: gaps, left padding, several sequences in a row, continued ones, all-0 rows."""
    rows, steps = draw(st.integers(0, max_rows)), draw(st.integers(0, max_steps))
    cells = draw(st.lists(st.integers(0, 2), min_size=rows * steps, max_size=rows * steps))
    return np.array(cells, np.int8).reshape(rows, steps)


@st.composite
def padded(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """(data (rows, T, *s) with noise in the padding too, any mask (rows, T))."""
    cells = draw(masks())
    shape, dtype = draw(st.sampled_from(SAMPLE_SHAPES)), draw(st.sampled_from(DTYPES))
    return bit_noise(draw(seeds()), (*cells.shape, *shape), dtype), cells
