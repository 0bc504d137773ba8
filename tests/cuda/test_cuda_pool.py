"""The pool of device memory, with bytes of the host in the place of a device's."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfkit.kernels.cuda_pool import DevicePool, rounded


@pytest.fixture
def pool() -> DevicePool:
    """A pool that keeps 4 KiB."""
    return DevicePool(4096)


def take(pool: DevicePool, count: int, device: int = 0, stream: int = 0) -> tuple[Any, Any]:
    return pool.take(count, device, stream, bytearray)


@given(st.integers(1, 2**40))
def test_blocks_are_a_little_larger(count: int) -> None:
    size = rounded(count)
    assert count <= size <= max(512, count + max(count // 8, 512))
    assert size % 512 == 0
    assert rounded(size) == size


def test_a_block_is_used_again_when_its_array_is_gone(pool: DevicePool) -> None:
    block, lease = take(pool, 1000)
    other, _kept = take(pool, 1000)
    assert other is not block
    del lease
    gc.collect()
    assert pool.kept == 1024
    assert take(pool, 900)[0] is block
    assert pool.made == 2


@pytest.mark.parametrize(("device", "stream"), [(1, 0), (0, 7)])
def test_other_devices_and_streams_get_other_blocks(
    pool: DevicePool, device: int, stream: int
) -> None:
    block, lease = take(pool, 1000)
    del lease
    gc.collect()
    assert take(pool, 1000, device, stream)[0] is not block


def test_no_more_than_the_limit_is_kept(pool: DevicePool) -> None:
    leases = [take(pool, 1024)[1] for _ in range(6)]
    leases.clear()
    gc.collect()
    assert pool.kept == 4096
    pool.clear()
    assert pool.kept == 0
    take(pool, 1024)
    assert pool.made == 7


def test_a_limit_of_0_keeps_nothing() -> None:
    pool = DevicePool(0)
    take(pool, 10)
    gc.collect()
    assert pool.kept == 0
