"""All hot paths in forked and spawned processes, in many threads, and when interrupted."""

from __future__ import annotations

import signal

import pytest

from processes import run_python

QUIET = """
import warnings
warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
"""

# Whoever waits for a child here kills it when it hangs, and then fails.
FORK = (
    QUIET
    + """
import os, signal, sys, time
def forked(task):
    child = os.fork()
    if child == 0:
        try:
            task()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"
"""
)


def test_forks_after_use_and_during_use() -> None:
    run_python(
        FORK
        + """
import threading
import hot_paths
small, large = hot_paths.small(), hot_paths.large()
def use():
    small.run()
    large.run()
use()
stop = threading.Event()
def busy(hot):
    while not stop.is_set():
        hot.run()
others = [threading.Thread(target=busy, args=(hot,)) for hot in (small, small, large)]
for other in others:
    other.start()
try:
    found = [forked(use) for _ in range(8)]
finally:
    stop.set()
    for other in others:
        other.join()
use()
assert found == [0] * 8, found
""",
        UDFKIT_NUM_THREADS="3",
    )


def test_a_child_forked_before_the_first_use() -> None:
    run_python(
        FORK
        + """
import threading
import hot_paths, udfkit
assert "numba" not in sys.modules
hot = hot_paths.small()
assert forked(hot.run) == 0
hot.run()
assert forked(hot.run) == 0
"""
    )


def test_a_child_forked_while_another_thread_declares_outputs() -> None:
    run_python(
        FORK
        + """
import threading
import hot_paths, udfkit
begun, go_on = threading.Event(), threading.Event()
class Slow(hot_paths.Identity):
    def infer_outputs(self):
        begun.set()
        go_on.wait()
        return super().infer_outputs()
slow = Slow([udfkit.sequence.input_variable(())])
thread = threading.Thread(target=slow.eval, args=([[1.0]],))
thread.start()
begun.wait()
try:
    found = forked(hot_paths.small().run)
finally:
    go_on.set()
    thread.join()
assert found == 0, found
"""
    )


def test_a_child_forked_while_other_threads_are_warned_of_casts() -> None:
    run_python(
        FORK
        + """
import threading
import numpy as np
import udfkit
sys.setswitchinterval(1e-6)
stop = threading.Event()
doubles = [np.zeros(1)]
def warned():
    udfkit.sanitize_batch(udfkit.sequence.input_variable(()), doubles)
def busy():
    while not stop.is_set():
        warned()
warned()
others = [threading.Thread(target=busy) for _ in range(3)]
for other in others:
    other.start()
found = []
try:
    while len(found) < 150 and "hangs" not in found:
        found.append(forked(warned))
finally:
    stop.set()
    for other in others:
        other.join()
assert found == [0] * 150, found
"""
    )


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_worker_processes(method: str) -> None:
    run_python(
        QUIET
        + f"""
import multiprocessing
import numpy as np
import hot_paths, reference, udfkit
if __name__ == "__main__":
    hot_paths.work(0)
    sequences = hot_paths.sequences_of(5, 200, 200, (64,))
    sequences = [np.nan_to_num(sequence, nan=1.0, posinf=2.0) / 4 for sequence in sequences]
    starts = [k % 5 != 2 for k in range(len(sequences))]
    x = udfkit.sequence.input_variable((64,))
    value = udfkit.sanitize_batch(x, sequences, starts)
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        assert pool.map(hot_paths.work, range(4)) == list(range(4))
        for doubled, ragged in pool.map(hot_paths.double, [value, value]):
            got = udfkit.variable_value_to_seq(doubled, x)
            reference.assert_same_list(got, [2 * sequence for sequence in sequences])
            assert doubled.starts.tolist() == ragged.starts.tolist() == starts
            reference.assert_same_list([*ragged], sequences)
    hot_paths.work(1)
""",
        UDFKIT_NUM_THREADS="3",
    )


def test_sixteen_threads_at_once() -> None:
    run_python(
        """
        from concurrent.futures import ThreadPoolExecutor
        import hot_paths
        batches = [hot_paths.small(k) for k in range(14)] + [hot_paths.large(k) for k in range(2)]
        def work(k):
            for _ in range(3 if k >= 14 else 60):
                batches[k].run()
            return True
        with ThreadPoolExecutor(16) as executor:
            assert all(executor.map(work, range(16)))
            # All on one batch, one variable and one function.
            assert all(executor.map(lambda _: batches[15].run() is None, range(16)))
        """,
        UDFKIT_NUM_THREADS="3",
    )


def test_the_first_calls_of_sixteen_threads_at_once() -> None:
    run_python(
        """
        import sys, threading
        from concurrent.futures import ThreadPoolExecutor
        import hot_paths
        sys.setswitchinterval(1e-5)
        assert "numba" not in sys.modules
        batches, barrier = [hot_paths.small(k) for k in range(16)], threading.Barrier(16)
        def work(hot):
            barrier.wait()
            hot.run()
            return True
        with ThreadPoolExecutor(16) as executor:
            assert all(executor.map(work, batches))
        """
    )


def test_sixteen_threads_read_one_value_for_the_first_time() -> None:
    run_python(
        """
        import sys, threading
        from concurrent.futures import ThreadPoolExecutor
        import hot_paths, udfkit
        sys.setswitchinterval(1e-5)
        small, large = hot_paths.small(), hot_paths.large()
        def work(barrier, hot, value):
            barrier.wait()
            hot.check_value(value)
            return True
        with ThreadPoolExecutor(16) as executor:
            for hot in [small] * 40 + [large] * 2:
                ragged = udfkit.Ragged.from_list(hot.sequences)
                for batch in ragged, hot.sequences:
                    value = udfkit.sanitize_batch(hot.x, batch, hot.starts)
                    barrier = threading.Barrier(16)
                    jobs = [executor.submit(work, barrier, hot, value) for _ in range(16)]
                    assert all(job.result() for job in jobs)
        """,
        UDFKIT_NUM_THREADS="2",
    )


INTERRUPTS = """
import os, random, signal, threading, time
import numpy as np
import hot_paths, udfkit
armed, interrupted = False, 0
def handle(number, frame):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, handle)
stop = threading.Event()
def interrupt():
    while not stop.wait(random.uniform(0.0002, 0.004)):
        os.kill(os.getpid(), signal.SIGINT)
def until_interrupted(task, times):
    global armed, interrupted
    for _ in range(times):
        try:
            armed = True
            for _ in range(10_000):
                task()
            raise AssertionError("no interrupt came")
        except KeyboardInterrupt:
            interrupted += 1
        yield
"""


def test_interrupts_leave_everything_usable_and_right() -> None:
    run_python(
        INTERRUPTS
        + """
small, large = hot_paths.small(), hot_paths.large()
small.run()
large.run()
thread = threading.Thread(target=interrupt)
thread.start()
try:
    for _ in until_interrupted(small.run, 200):
        small.run()
    for hot in until_interrupted(large.run, 25):
        small.run()
        large.run()
finally:
    stop.set()
    thread.join()
assert interrupted == 225
small.run()
large.run()
started = [t for t in threading.enumerate() if t.name.startswith("udfkit-")]
assert len(started) <= 4, started
""",
        UDFKIT_NUM_THREADS="3",
    )


def test_nobody_writes_to_the_output_after_an_interrupt() -> None:
    run_python(
        INTERRUPTS
        + """
hot = hot_paths.large()
expected = udfkit.pad(hot.sequences)
out, mask = np.empty_like(expected.data), np.empty_like(expected.mask)
thread = threading.Thread(target=interrupt)
thread.start()
try:
    for _ in until_interrupted(lambda: udfkit.pad(hot.sequences, out=out, mask_out=mask), 60):
        out.fill(7)
        mask.fill(7)
        time.sleep(0.01)
        assert (out == 7).all() and (mask == 7).all()
        # The list may go at once: nobody reads it any more.
        copies = [sequence.copy() for sequence in hot.sequences]
        udfkit.pad(copies, out=out, mask_out=mask)
        del copies
        assert out.tobytes() == expected.data.tobytes()
        assert mask.tobytes() == expected.mask.tobytes()
finally:
    stop.set()
    thread.join()
""",
        UDFKIT_NUM_THREADS="4",
    )


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="takes a signal of POSIX")
def test_a_signal_handler_may_pad_while_threads_are_started() -> None:
    run_python(
        """
        import signal, threading
        import hot_paths
        hot, handled, start = hot_paths.large(), [], threading.Thread.start
        def handle(number, frame):
            if not handled:
                handled.append(number)
                hot.run()
        signal.signal(signal.SIGUSR1, handle)
        def interrupted_start(thread):
            signal.raise_signal(signal.SIGUSR1)
            start(thread)
        threading.Thread.start = interrupted_start
        hot.run()
        assert handled
        """,
        timeout=30,
        UDFKIT_NUM_THREADS="3",
    )
