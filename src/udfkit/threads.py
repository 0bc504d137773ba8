"""Running one kernel over ranges of sequences in several threads.

A kernel lets other threads run while it works, so plain Python threads are enough, and they get
along with forks, spawned processes and the caller's own threads. The caller works too: it takes
ranges until none is left, so nothing waits for a thread that cannot start.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udfkit.machine import usable_cores
from udfkit.settings import Setting

__all__ = ["run_ranges", "split", "thread_count"]

SERIAL_BYTES = 5 << 20
"""Fewer bytes are moved by one thread: waking another one costs as much as it would save.

``benchmarks/measure_threads.py``, 2 cores. EPYC: with two threads 4 MB take 1.14 times as long, 6
0.93 and 16 0.72; two threads of plain memmove 1.10, 0.85 and 0.67. Xeon: 2 MB 0.57, 8 MB 0.61.
"""


class _Job:
    """Ranges to work on, and who is at work on one.

    A worker enters itself in ``active`` before it takes a range, so once no range is left and
    nobody is active, all are done. Every step is one operation on a deque or a list, so that an
    interrupt between two steps loses a wake-up at worst, and waiting looks again after a while.
    """

    def __init__(
        self,
        kernel: Callable[..., Any],
        ranges: Sequence[tuple[int, int]],
        args: tuple[Any, ...],
        keep: object,
    ) -> None:
        self.kernel = kernel
        self.args = args
        self.keep = keep
        self.ranges = deque(ranges)
        self.active: list[None] = []
        self.errors: list[BaseException] = []
        self.left: SimpleQueue[None] = SimpleQueue()

    def work(self) -> None:
        """Take ranges until none is left."""
        while True:
            try:
                first, last = self.ranges.popleft()
            except IndexError:
                return
            self.kernel(first, last, *self.args)

    def help(self) -> None:
        """Work in a thread of the pool."""
        self.active.append(None)
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that asked
            self.errors.append(error)
            self.ranges.clear()
        finally:
            self.active.pop()
            self.left.put(None)

    def forget(self) -> None:
        """Let go of what belongs to the caller: the job may still lie in the queue."""
        self.args, self.keep = (), None

    def wait(self) -> None:
        """Wait until no helper is at work, however often this thread is interrupted."""
        while True:
            try:
                while self.active:
                    with suppress(Empty):
                        self.left.get(timeout=0.05)
            except BaseException as error:  # noqa: BLE001 - it is raised when helpers are done
                self.ranges.clear()
                self.errors.insert(0, error)
            else:
                return


class _Team:
    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.size = 0
        self.lock = threading.RLock()  # a signal handler may come back here

    def call(self, job: _Job, helpers: int) -> None:
        """Ask helpers to take part in a job; start those that are not there yet."""
        if self.size < helpers:
            with self.lock:
                while self.size < helpers:
                    name = f"udfkit-{self.size + 1}"
                    thread = threading.Thread(target=self._live, name=name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:  # no more threads to be had: the others do the work
                        break
                    self.size += 1
        for _ in range(min(helpers, self.size)):
            self.jobs.put(job)

    def _live(self) -> None:
        _inside.worker = True
        while True:
            job = self.jobs.get()
            job.help()
            del job


def run_ranges(
    kernel: Callable[..., Any],
    boundaries: Sequence[int],
    args: tuple[Any, ...] = (),
    *,
    keep: object = None,
) -> None:
    """Call ``kernel(first, last, *args)`` for each range between neighbouring boundaries.

    The calls run at the same time where threads are free; all have ended when this returns or
    raises. In a thread of this pool they run one after the other.

    Parameters
    ----------
    kernel
        A function that lets other threads run, and whose calls for disjoint ranges may overlap.
    boundaries
        Increasing indices, as ``split`` makes them.
    args
        The arguments behind first and last.
    keep
        Held until the last call has ended: the owners of memory that ``args`` give by address.

    Raises
    ------
    BaseException
        What a call raised. After an interrupt no new range is begun.

    Examples
    --------
    >>> from udfkit.threads import run_ranges
    >>> squares = [0] * 6
    >>> def square(first, last, out):
    ...     for i in range(first, last):
    ...         out[i] = i * i
    >>> run_ranges(square, [0, 2, 6], (squares,))
    >>> squares
    [0, 1, 4, 9, 16, 25]
    """
    if len(boundaries) == 2:
        kernel(boundaries[0], boundaries[1], *args)
        return
    ranges = list(pairwise(boundaries))
    helpers = min(len(ranges), thread_count()) - 1
    if helpers < 1:
        for first, last in ranges:
            kernel(first, last, *args)
        return
    job = _Job(kernel, ranges, args, keep)
    try:
        _team.call(job, helpers)
        job.work()
        job.wait()
    except BaseException as error:  # noqa: BLE001 - it is raised when helpers are done
        job.ranges.clear()
        job.errors.insert(0, error)
    finally:
        job.wait()
    job.forget()
    errors, job.errors = job.errors, []
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # they hold this frame, and through it the batch


def split(count: int, total_bytes: int, offsets: NDArray[np.int64] | None = None) -> list[int]:
    """Divide sequences into one range for each thread that is worth having.

    Parameters
    ----------
    count
        How many sequences there are.
    total_bytes
        How many bytes a kernel moves for all of them.
    offsets
        int64 ``(count + 1,)``: where each sequence begins, to make ranges of equal bytes. Without
        them all sequences count the same, as rows of a padded batch do.

    Returns
    -------
    list of int
        Increasing boundaries, the first 0 and the last ``count``.

    Examples
    --------
    >>> from udfkit.threads import split
    >>> split(10, 1000)
    [0, 10]
    """
    parts = 1
    if total_bytes >= SERIAL_BYTES and count > 1:
        parts = min(thread_count(), count)
    if parts == 1:
        return [0, count]
    if offsets is None:
        return [count * part // parts for part in range(parts + 1)]
    total = int(offsets[-1])
    inner = np.searchsorted(offsets, [total * part // parts for part in range(1, parts)])
    return sorted({0, *inner.tolist(), count})


def thread_count() -> int:
    """Return how many threads work on one kernel call, the caller's included.

    ``UDFKIT_NUM_THREADS`` where it is set; else the cores this process may use, or 1 in a child
    process of multiprocessing, whose siblings use the other cores. Always 1 in a thread of the
    pool.

    Raises
    ------
    ValueError
        The environment variable holds something else than a whole number from 1 on.

    Examples
    --------
    >>> from udfkit.threads import thread_count
    >>> thread_count() >= 1
    True
    """
    return 1 if getattr(_inside, "worker", False) else _num_threads()


def _default_threads() -> int:
    # A child of multiprocessing has imported it; importing it here would cost every process 10 ms.
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return 1
    return usable_cores()


_inside: threading.local
_team: _Team
_num_threads: Setting


def _start_anew() -> None:
    global _team, _num_threads, _inside
    _team = _Team()
    _num_threads = Setting("UDFKIT_NUM_THREADS", _default_threads, least=1)
    _inside = threading.local()


_start_anew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
