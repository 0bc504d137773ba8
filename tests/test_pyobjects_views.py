"""Addresses and views: same results compiled and plain, and nothing leaks."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from udfkit import memory
from udfkit.kernels import pyobjects
from udfkit.kernels.jit import JIT_DISABLED, compiled_signatures

INT64 = np.dtype(np.int64)
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (0,), (2, 3), (2, 0, 4), (1, 2, 1, 3)]


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run every test with compiled code and with the plain path."""
    assert pyobjects.why_plain is None
    if request.param == "plain":
        pyobjects._bind("a test asks for it")
    yield request.param
    pyobjects._bind(None)


def slots(count: int = 3) -> np.ndarray:
    return np.zeros(count, np.int64)


class Subclass(np.ndarray):
    pass


def test_address_of_any_array(tmp_path: Path) -> None:
    base = np.arange(24.0).reshape(4, 6)
    arrays = [base, base[1:, 2:], base[::-1], base.T, np.array(3), np.zeros(0), base.view(Subclass)]
    arrays.append(np.memmap(tmp_path / "data", np.uint8, "w+", shape=9))
    assert [pyobjects.address(a) for a in arrays] == [a.ctypes.data for a in arrays]
    for wrong in None, 3, [1.0], memoryview(b"ab"), np.float32(3):
        with pytest.raises(TypeError, match="NumPy array"):
            pyobjects.address(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_views_are_slices(dtype: str, shape: tuple[int, ...]) -> None:
    lengths = np.array([3, 0, 1, 5, 0], np.int64)
    size = int(np.prod(shape))
    block = (np.arange(9 * size + 2) % 2).astype(dtype)
    made = pyobjects.views(block, lengths, shape)
    assert type(made) is list
    ends = np.cumsum(lengths) * size
    for view, length, end in zip(made, lengths, ends, strict=True):
        expected = block[end - length * size : end].reshape(length, *shape)
        assert type(view) is np.ndarray
        assert view.dtype is block.dtype
        assert view.flags.num == expected.flags.num
        assert view.flags.writeable
        assert view.strides == expected.strides
        assert view.base is block
        assert np.array_equal(view, expected)
        assert view.size == 0 or view.ctypes.data == expected.ctypes.data


def test_no_views() -> None:
    assert pyobjects.views(np.zeros(0), slots(0), (3,)) == []


def test_views_are_made_of_blocks_of_any_rank_and_lengths_of_any_kind() -> None:
    block = np.arange(24.0).reshape(2, 3, 4)
    frozen = np.array([1, 2], np.int64)
    frozen.flags.writeable = False
    for lengths in frozen, frozen.astype(np.int32), np.array([[1, 9], [2, 9]], np.int64)[:, 0]:
        made = pyobjects.views(block, lengths, (4,))
        assert [view.tolist() for view in made] == [block[0, :1].tolist(), block[0, 1:].tolist()]


def test_views_keep_their_block_alive() -> None:
    block = np.arange(12.0)
    alive = weakref.ref(block)
    made = pyobjects.views(block, np.array([2, 1], np.int64), (4,))
    del block
    assert alive() is not None
    last = made.pop()
    del made
    assert last.tolist() == [[8.0, 9.0, 10.0, 11.0]]
    del last
    assert alive() is None


def test_views_of_pooled_memory_hold_it() -> None:
    memory.clear()
    block = memory.empty((memory.SMALLEST_POOLED // 8,), np.float64)
    block[:] = 7
    made = pyobjects.views(block, np.array([100, 50], np.int64), (2,))
    del block
    assert memory.stats().kept_blocks == 0
    assert (made[0] == 7).all()
    del made
    assert memory.stats().kept_blocks == 1
    memory.clear()


@pytest.mark.parametrize(
    ("lengths", "shape"),
    [
        ([3], (4,)),
        ([1, 1, 1], (4,)),
        ([-1], (4,)),
        ([1], (-4,)),
        ([2**62], (4,)),
        ([2**62, 2**62], (4,)),
        ([1], (2**62, 4)),
        ([2], (2**40, 2**40)),
    ],
    ids=str,
)
def test_views_that_do_not_fit_are_refused(lengths: list[int], shape: tuple[int, ...]) -> None:
    block = np.zeros(11)
    before = sys.getrefcount(block), sys.getrefcount(block.dtype)
    with pytest.raises(ValueError, match="pass"):
        pyobjects.views(block, np.array(lengths, np.int64), shape)
    assert (sys.getrefcount(block), sys.getrefcount(block.dtype)) == before


def test_reference_counts_are_flat_over_many_calls(path: str) -> None:
    calls = 100_000 if path == "compiled" and not JIT_DISABLED else 2_000
    block, lengths, shape = np.zeros(12), np.array([1, 0, 2], np.int64), (4,)
    batch: tuple[Any, ...] = (np.zeros((2, 4)), np.zeros((2, 3)), None)
    dtype, pointers = np.dtype(np.float64), slots()
    objects = [block, lengths, shape, batch, dtype, pointers, np.ndarray, None, INT64, *batch]

    def once() -> None:
        pyobjects.views(block, lengths, shape)
        pyobjects.scan(batch, dtype, shape, pointers, lengths)
        pyobjects.scan_samples(batch, dtype, shape, pointers)
        pyobjects.address(block)
        lengths[:] = 1, 0, 2

    once()
    before = [sys.getrefcount(item) for item in objects]
    for _ in range(calls):
        once()
    after = [sys.getrefcount(item) for item in objects]
    # The interpreter itself moves those of None and of types by a few.
    assert np.abs(np.subtract(after, before)).max() < 50


def test_nothing_is_compiled_for_new_arguments() -> None:
    def count() -> int:
        return sum(compiled_signatures().values())

    def use(many: int, shape: tuple[int, ...], dtype: str) -> None:
        batch = (np.zeros((3, *shape), dtype),) * many
        pyobjects.scan(batch, np.dtype(dtype), shape, slots(many), slots(many))

    use(3, (2,), "f4")
    pyobjects.views(np.zeros(4), np.array([1, 1]), (2,))
    before = count()
    for dtype in DTYPES:
        for shape in SHAPES:
            for many in 0, 1, 5:
                use(many, shape, dtype)
                pyobjects.scan_samples((np.zeros(shape),), np.dtype("f8"), shape, slots())
                lengths = np.ones(many, np.int64)
                pyobjects.views(np.zeros(many * int(np.prod(shape)), dtype), lengths, shape)
    assert count() == before
