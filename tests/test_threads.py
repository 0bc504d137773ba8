"""Ranges of a kernel in several threads: all done, once, whoever forks, nests or interrupts."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from processes import run_python
from udfkit import threads
from udfkit.kernels.intrinsics import memcpy
from udfkit.kernels.jit import kernel
from udfkit.threads import run_ranges, split, thread_count

LARGE = threads.SERIAL_BYTES


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UDFKIT_NUM_THREADS", "4")


@kernel(nogil=True)
def copy_rows(first, last, out, source, row_bytes):  # type: ignore[no-untyped-def]
    for row in range(first, last):
        memcpy(out + row * row_bytes, source + row * row_bytes, row_bytes)


class Notes:
    """Which ranges were run, and in which threads."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.threads: set[str] = set()

    def run(self, first: int, last: int) -> None:
        self.ranges.append((first, last))
        self.threads.add(threading.current_thread().name)


@pytest.mark.parametrize(
    "boundaries", [[0, 5], [0, 2, 5], [0, 1, 2, 3, 4, 5], list(range(60)), [3]]
)
def test_every_range_is_run_once(boundaries: list[int]) -> None:
    for _ in range(50):
        notes = Notes()
        run_ranges(notes.run, boundaries)
        assert sorted(notes.ranges) == list(pairwise(boundaries))


@pytest.mark.parametrize("number", ["1", "2", "3", "16"])
def test_results_are_the_same_for_every_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setenv("UDFKIT_NUM_THREADS", number)
    source = np.random.default_rng(0).integers(0, 256, (1000, 6007), np.uint8)
    out = np.zeros_like(source)
    assert source.nbytes > threads.SERIAL_BYTES
    arguments = (out.ctypes.data, source.ctypes.data, 6007)
    boundaries = split(len(source), source.nbytes)
    assert len(boundaries) == int(number) + 1
    run_ranges(copy_rows, boundaries, arguments, keep=(out, source))
    assert np.array_equal(out, source)


def test_ranges_run_at_the_same_time() -> None:
    # Each range waits for the others, so this ends only if all four are at work at once.
    barrier = threading.Barrier(4, timeout=60)
    notes = Notes()

    def meet(first: int, last: int) -> None:
        barrier.wait()
        notes.run(first, last)

    run_ranges(meet, [0, 1, 2, 3, 4])
    assert len(notes.threads) == 4
    assert threading.current_thread().name in notes.threads


def test_inside_a_worker_there_is_one_thread() -> None:
    counts: dict[str, int] = {}
    barrier = threading.Barrier(2, timeout=60)
    inner = Notes()

    def outer(first: int, last: int) -> None:
        barrier.wait()
        name = threading.current_thread().name
        counts[name] = thread_count()
        if name.startswith("udfkit-"):
            assert split(1000, LARGE * 9) == [0, 1000]
            run_ranges(inner.run, [0, 1, 2, 3])

    run_ranges(outer, [0, 1, 2])
    assert counts.pop(threading.current_thread().name) == 4
    assert list(counts.values()) == [1]
    assert inner.ranges == [(0, 1), (1, 2), (2, 3)]
    assert inner.threads == set(counts)


def test_sixteen_threads_of_the_caller() -> None:
    source = np.arange(100_000, dtype=np.uint8).reshape(100, 1000)

    def work(_: int) -> bool:
        for _ in range(40):
            out = np.zeros_like(source)
            arguments = (out.ctypes.data, source.ctypes.data, 1000)
            run_ranges(copy_rows, [0, 20, 40, 70, 100], arguments, keep=(out, source))
            if not np.array_equal(out, source):
                return False
        return True

    with ThreadPoolExecutor(16) as executor:
        assert all(executor.map(work, range(32)))
    started = [thread for thread in threading.enumerate() if thread.name.startswith("udfkit-")]
    assert len(started) <= 15


@pytest.mark.parametrize("bad", range(4))
def test_an_error_reaches_the_caller_when_all_threads_are_done(bad: int) -> None:
    barrier = threading.Barrier(4, timeout=60)
    ended: list[int] = []

    def work(first: int, last: int) -> None:
        barrier.wait()
        if first == bad:
            raise ArithmeticError(f"range {first}")
        ended.append(first)

    with pytest.raises(ArithmeticError, match=f"range {bad}"):
        run_ranges(work, [0, 1, 2, 3, 4])
    assert sorted(ended) == [first for first in range(4) if first != bad]
    notes = Notes()
    run_ranges(notes.run, [0, 1, 2])
    assert len(notes.ranges) == 2


def test_what_is_kept_is_let_go_afterwards() -> None:
    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    run_ranges(lambda first, last, _: None, [0, 1, 2, 3], (owner,), keep=owner)
    del owner
    gc.collect()
    assert gone() is None


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_team", threads._Team())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    notes = Notes()
    run_ranges(notes.run, [0, 1, 2, 3])
    assert notes.ranges == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 1000])
def test_split_covers_all_sequences(count: int) -> None:
    chance = np.random.default_rng(count)
    laws: list[np.ndarray | None] = [None]
    laws += [np.ones(count, np.int64), np.zeros(count, np.int64), chance.integers(0, 99, count)]
    for lengths in laws:
        offsets = None if lengths is None else np.concatenate([[0], np.cumsum(lengths)])
        for total in 0, LARGE - 1, LARGE, LARGE * 100:
            boundaries = split(count, total, offsets)
            assert boundaries[0] == 0
            assert boundaries[-1] == count
            assert all(type(boundary) is int for boundary in boundaries)
            inner = boundaries[1:] if count else boundaries[1:-1]
            assert all(a < b for a, b in zip(boundaries, inner, strict=False))
            assert len(boundaries) == 2 or total >= LARGE
            assert len(boundaries) <= 5


def test_split_balances_bytes_not_sequences() -> None:
    lengths = np.array([1] * 900 + [300] * 3)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    boundaries = split(len(lengths), LARGE, offsets)
    bytes_of = np.diff(offsets[boundaries])
    assert bytes_of.max() <= 900 / 4 * 2 + 300
    assert np.diff(split(len(lengths), LARGE)).max() <= 226


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert thread_count() == 4
    monkeypatch.delenv("UDFKIT_NUM_THREADS")
    assert thread_count() >= 1
    for text in "0", "-2", "two", "1.5":
        monkeypatch.setenv("UDFKIT_NUM_THREADS", text)
        with pytest.raises(ValueError, match=f"UDFKIT_NUM_THREADS is '{text}', expected a whole"):
            thread_count()


def test_children_of_multiprocessing_use_one_thread_unless_told() -> None:
    for method in "fork", "spawn", "forkserver":
        for number, expected in (None, 1), ("3", 3):
            found = run_python(
                f"""
                import multiprocessing, os
                from udfkit.threads import thread_count
                from udfkit.machine import usable_cores
                if __name__ == "__main__":
                    if "UDFKIT_NUM_THREADS" not in os.environ:
                        assert thread_count() == usable_cores()
                    context = multiprocessing.get_context({method!r})
                    with context.Pool(1) as pool:
                        print(pool.apply(thread_count))
                """,
                UDFKIT_NUM_THREADS=number,
            )
            assert int(found) == expected


SETUP = """
import numpy as np
from udfkit.kernels.intrinsics import memcpy
from udfkit.kernels.jit import kernel
from udfkit.threads import run_ranges
@kernel(nogil=True)
def copy_rows(first, last, out, source, row_bytes):
    for row in range(first, last):
        memcpy(out + row * row_bytes, source + row * row_bytes, row_bytes)
def use():
    source = np.arange(4000, dtype=np.int64).reshape(40, 100)
    out = np.zeros_like(source)
    arguments = (out.ctypes.data, source.ctypes.data, 800)
    run_ranges(copy_rows, [0, 10, 20, 30, 40], arguments, keep=(out, source))
    assert np.array_equal(out, source)
"""


def test_forks_after_use_and_during_use() -> None:
    run_python(
        SETUP
        + """
import os, threading, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
use()
stop = threading.Event()
def busy():
    while not stop.is_set():
        use()
others = [threading.Thread(target=busy) for _ in range(3)]
for other in others:
    other.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        try:
            for _ in range(5):
                use()
            names = [thread.name for thread in threading.enumerate()]
            os._exit(0 if any(name.startswith("udfkit-") for name in names) else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for other in others:
    other.join()
""",
        UDFKIT_NUM_THREADS="4",
    )


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_worker_processes(method: str, tmp_path: Any) -> None:
    (tmp_path / "worker.py").write_text(
        SETUP + "\ndef work(i):\n    for _ in range(20):\n        use()\n    return i\n"
    )
    run_python(
        f"""
        import multiprocessing, sys, warnings
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        sys.path.insert(0, {str(tmp_path)!r})
        import worker
        worker.use()
        with multiprocessing.get_context({method!r}).Pool(3) as pool:
            assert pool.map(worker.work, range(6)) == list(range(6))
        """,
        UDFKIT_NUM_THREADS="3",
    )


def test_interrupts_wait_for_the_workers_and_leave_all_usable() -> None:
    run_python(
        SETUP
        + """
import os, random, signal, threading, time
use()
active = []
def slow(first, last):
    if threading.current_thread() is threading.main_thread():
        time.sleep(0.02)
    else:
        active.append(first)
        time.sleep(0.02)
        active.pop()
interrupted = 0
for attempt in range(25):
    timer = threading.Timer(random.uniform(0.001, 0.05), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            run_ranges(slow, range(9))
    except KeyboardInterrupt:
        interrupted += 1
        assert not active, active
    timer.join()
    use()
assert interrupted == 25
""",
        UDFKIT_NUM_THREADS="4",
    )


def test_a_process_ends_while_its_workers_wait() -> None:
    run_python(SETUP + "use()\n", timeout=60, UDFKIT_NUM_THREADS="4")
