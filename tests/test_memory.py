"""The pool of large buffers: warm memory comes back, never twice, and nothing is kept for ever."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from processes import run_python
from udfkit import memory

LARGE = memory.SMALLEST_POOLED


@pytest.fixture(autouse=True)
def fresh_pool() -> Iterator[None]:
    memory.configure(pool_bytes=64 << 20)
    memory.clear()
    yield
    memory.clear()
    memory.configure()


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def kept() -> tuple[int, int]:
    found = memory.stats()
    return found.kept_blocks, found.kept_bytes


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "f4", "f8", "c16", "S3", "M8[s]"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3), (LARGE,), (3, LARGE // 2)], ids=str)
def test_arrays_are_like_those_of_numpy(shape: tuple[int, ...], dtype: str) -> None:
    for array in memory.empty(shape, dtype), memory.zeros_or_empty(shape, np.dtype(dtype))[0]:
        model = np.empty(shape, dtype)
        assert type(array) is np.ndarray
        assert (array.shape, array.dtype, array.strides) == (shape, model.dtype, model.strides)
        assert array.flags.carray
        array[...] = np.ones((), dtype)
        assert (array == np.ones((), dtype)).all()


def test_small_arrays_do_not_come_from_the_pool() -> None:
    made = memory.stats().made
    memory.empty((LARGE - 1,), np.uint8)
    memory.empty((LARGE,), object)
    assert memory.stats().made == made
    memory.empty((LARGE,), np.uint8)
    assert memory.stats().made == made + 1


def test_memory_comes_back_for_a_size_close_by() -> None:
    first = memory.empty((LARGE * 3 - 5,), np.uint8)
    where = address(first)
    assert kept() == (0, 0)
    del first
    assert kept()[0] == 1
    second = memory.empty((LARGE * 3 // 8 - 100,), np.float64)
    assert address(second) == where
    assert second.nbytes == LARGE * 3 - 800
    assert kept() == (0, 0)


def test_a_much_smaller_array_does_not_take_a_large_block() -> None:
    del_me = memory.empty((LARGE * 4,), np.uint8)
    del del_me
    memory.empty((LARGE,), np.uint8)
    assert kept()[0] == 2


def test_no_more_than_an_eighth_is_wasted() -> None:
    for nbytes in LARGE, LARGE + 1, LARGE * 3 - 5, LARGE * 8 - 1, LARGE * 8 + 1, 2**40 + 1:
        assert nbytes <= memory._capacity(nbytes) <= nbytes * 1.125 + 4096


def test_the_last_view_returns_the_block() -> None:
    array = memory.empty((LARGE // 4, 4), np.uint8)
    array[:] = 5
    views: list[Any] = [array[3:], array.T, array.view(np.int8)[::2], memoryview(array)]
    views.append(array.reshape(2, -1)[1].reshape(-1, 4))
    views.append(np.asarray(memoryview(array)))
    del array
    while views:
        assert kept() == (0, 0)
        other = memory.empty((LARGE,), np.uint8)
        other[:] = 9
        del other
        memory.clear()
        assert np.asarray(views.pop()).reshape(-1)[0] == 5
    assert kept()[0] == 1


def test_live_arrays_never_share_memory() -> None:
    chance = np.random.default_rng(0)
    alive: list[tuple[np.ndarray, int]] = []
    for step in range(400):
        if alive and chance.random() < 0.5:
            array, value = alive.pop(int(chance.integers(len(alive))))
            assert array[0] == array[-1] == value
        else:
            array = memory.empty((LARGE + int(chance.integers(LARGE)),), np.uint8)
            array[0] = array[-1] = step % 256
            alive.append((array, step % 256))
        spans = sorted((address(array), address(array) + array.size) for array, _ in alive)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert memory.stats().reused > 50


def test_the_pool_keeps_no_more_than_its_limit_and_drops_the_oldest() -> None:
    sizes = [LARGE, LARGE * 2, LARGE * 3, LARGE * 4]
    memory.configure(pool_bytes=LARGE * 8)
    arrays = [memory.empty((size,), np.uint8) for size in sizes]
    while arrays:
        del arrays[0]
        assert kept()[1] <= LARGE * 8
    assert kept() == (2, LARGE * 7)
    memory.configure(pool_bytes=LARGE * 5)
    assert kept() == (1, LARGE * 4)
    memory.clear()
    assert kept() == (0, 0)


def test_an_array_larger_than_the_limit_is_not_pooled() -> None:
    memory.configure(pool_bytes=LARGE)
    made = memory.stats().made
    memory.empty((LARGE + 1,), np.uint8)
    assert memory.stats().made == made


def test_zero_turns_the_pool_off() -> None:
    alive = memory.empty((LARGE,), np.uint8)
    memory.configure(pool_bytes=0)
    before = memory.stats()
    memory.empty((LARGE,), np.uint8)
    del alive
    assert memory.stats() == before
    assert kept() == (0, 0)


def test_fresh_zeros_only_where_they_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "FRESH_ZEROS_WIN", LARGE * 2)
    assert not memory.zeros_or_empty((LARGE,), np.uint8)[1]
    array, zeroed = memory.zeros_or_empty((LARGE * 2,), np.uint8)
    assert zeroed
    assert not array.any()
    array[:] = 1
    del array
    array, zeroed = memory.zeros_or_empty((LARGE * 2,), np.uint8)
    assert not zeroed
    assert array.any()
    memory.configure(pool_bytes=0)
    array, zeroed = memory.zeros_or_empty((LARGE * 2,), np.uint8)
    assert zeroed
    assert not array.any()


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="pool_bytes is -1, expected 0 or more; pass 0"):
        memory.configure(pool_bytes=-1)


def test_arrays_in_cycles_come_back_with_a_collection() -> None:
    cycle: list[Any] = [memory.empty((LARGE,), np.uint8)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert kept()[0] == 1


def test_pooled_arrays_pickle() -> None:
    array = memory.empty((LARGE // 8,), np.float64)
    array[:] = np.arange(array.size)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(array, protocol=5, buffer_callback=buffers.append)
    assert np.array_equal(pickle.loads(data, buffers=buffers), array)
    assert np.array_equal(pickle.loads(pickle.dumps(array)), array)


def test_sixteen_threads_never_get_the_same_block() -> None:
    def work(seed: int) -> bool:
        chance = np.random.default_rng(seed)
        for _ in range(100):
            array = memory.empty((LARGE + 4096 * int(chance.integers(3)),), np.uint8)
            array[:: LARGE // 7] = seed
            other = memory.empty((LARGE,), np.uint8)
            other[:: LARGE // 7] = seed + 100
            if not (array[:: LARGE // 7] == seed).all():
                return False
        return True

    with ThreadPoolExecutor(16) as executor:
        assert all(executor.map(work, range(16)))
    assert memory.stats().reused > 1000
    assert kept()[1] <= 64 << 20


def test_interrupts_cost_the_pool_its_contents_at_worst() -> None:
    run_python(
        """
        import os, random, signal, threading
        from udfkit import memory
        size = memory.SMALLEST_POOLED
        memory.configure(pool_bytes=8 * size)
        armed, stop = False, threading.Event()
        def handle(number, frame):
            global armed
            if armed:
                armed = False
                raise KeyboardInterrupt
        signal.signal(signal.SIGINT, handle)
        def interrupt():
            while not stop.wait(random.uniform(0.0001, 0.001)):
                os.kill(os.getpid(), signal.SIGINT)
        thread = threading.Thread(target=interrupt)
        thread.start()
        interrupted, rounds, alive = 0, 0, []
        while interrupted < 300:
            try:
                armed = True
                for step in range(1000):
                    array = memory.empty((size * (1 + step % 3),), "u1")
                    array[0] = array[-1] = step % 200
                    alive.append((array, step % 200))
                    del array
                    if len(alive) > 5:
                        for kept, value in alive:
                            assert kept[0] == kept[-1] == value
                        alive.clear()
                armed = False
            except KeyboardInterrupt:
                interrupted += 1
                alive = []
        stop.set()
        thread.join()
        alive.clear()
        found = memory.stats()
        assert found.kept_bytes <= found.limit, found
        assert found.reused > 100, found
        memory.clear()
        assert memory.stats().kept_blocks == 0
        """
    )


def test_collections_inside_the_pool_do_not_lock_it() -> None:
    run_python(
        """
        import gc
        from udfkit import memory
        gc.set_threshold(1, 1, 1)
        size = memory.SMALLEST_POOLED
        for _ in range(300):
            cycle = [memory.empty((size,), "u1")]
            cycle.append(cycle)
            del cycle
        gc.collect()
        assert memory.stats().kept_blocks >= 1
        """
    )


def test_the_pool_is_empty_in_a_child_after_a_fork() -> None:
    run_python(
        """
        import os
        from udfkit import memory
        size = memory.SMALLEST_POOLED
        alive = memory.empty((size,), "u1")
        alive[:] = 3
        idle = memory.empty((size,), "u1")
        del idle
        assert memory.stats().kept_blocks == 1
        child = os.fork()
        if child == 0:
            try:
                assert memory.stats().kept_blocks == 0
                fresh = memory.empty((size,), "u1")
                fresh[:] = 4
                assert (alive == 3).all()
                del alive
                assert memory.stats().kept_blocks == 0
                del fresh
                assert memory.stats().kept_blocks == 1
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert memory.stats().kept_blocks == 1
        """
    )


def test_memory_is_flat_and_nothing_complains_at_the_end() -> None:
    written = run_python(
        """
        import os
        from udfkit import memory
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        def calls(count):
            for i in range(count):
                memory.empty((memory.SMALLEST_POOLED + i % 3,), "u1")[::4096] = 1
        calls(2_000)
        before = resident()
        calls(100_000)
        grown = resident() - before
        assert grown < 1_000_000, grown
        left_alive = memory.empty((memory.SMALLEST_POOLED,), "u1")
        """
    )
    assert written == ""


def test_limits_from_the_environment() -> None:
    show = "from udfkit import memory; print(memory.max_bytes(), memory.stats().limit)"
    found = run_python(show, UDFKIT_MAX_BYTES="12345", UDFKIT_POOL_BYTES="678")
    assert found.split() == ["12345", "678"]
    found = run_python(show, UDFKIT_MAX_BYTES=None, UDFKIT_POOL_BYTES="")
    limit, pool = map(int, found.split())
    assert pool == min(2**31, limit // 8)


@pytest.mark.parametrize("text", ["many", "-1", "1.5", "1e9"])
@pytest.mark.parametrize(
    ("name", "ask"), [("UDFKIT_MAX_BYTES", "max_bytes"), ("UDFKIT_POOL_BYTES", "stats")]
)
def test_limits_that_are_no_numbers_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, ask: str, text: str
) -> None:
    memory.configure()
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"{name} is '{text}', expected a whole number.*; set it"):
        getattr(memory, ask)()
    monkeypatch.setenv(name, "1000")
    getattr(memory, ask)()


def test_a_limit_set_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UDFKIT_MAX_BYTES", "100")
    assert memory.max_bytes() == 100
    monkeypatch.setenv("UDFKIT_MAX_BYTES", "200")
    assert memory.max_bytes() == 200
    monkeypatch.delenv("UDFKIT_MAX_BYTES")
    assert memory.max_bytes() > 2**20
