"""All hot paths: nothing leaks, threads and pool change no bit, nothing is compiled anew."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import hot_paths
import reference
import udfkit
from processes import run_python
from udfkit import memory, threads
from udfkit.kernels.jit import compiled_signatures

# One round calls every hot path once, good and bad batches alike; each call is counted.
ROUNDS = """
import gc, os, sys, warnings
import numpy as np
import hot_paths, udfkit
warnings.simplefilter("ignore", udfkit.CastWarning)
hot = hot_paths.HotPaths(hot_paths.sequences_of(0, 5, 4, (2,)))
x, batch, roots, cells = hot.x, hot.sequences, hot.roots, hot.cells
identity, ragged_identity, swap = hot.identity, hot.ragged_identity, hot.swap
b = udfkit.input_variable((2,))
doubles = [np.ones(sequence.shape) for sequence in batch]
strided = [np.asfortranarray(sequence) for sequence in batch]
mixed = [*batch[:3], [[1.0, 2.0]], strided[4]]
rectangle, starts = hot.data, hot.starts
bad_shape = [*batch, np.ones((2, 5), np.float32)]
bad_item = [*batch, None]
bad_value = [*doubles, np.full((2, 2), 1e300)]
bad_cells = np.full(rectangle.shape[:2], 3, np.int8)
ones = udfkit.sanitize_batch(identity.output, batch)
class Fails(hot_paths.Identity):
    def forward(self, arg, device, outputs_to_retain):
        raise ArithmeticError("forward")
class Wrong(hot_paths.Identity):
    def backward(self, state, grad):
        return grad[:-1]
fails, wrong = Fails([x]), Wrong([x])
out = np.empty_like(rectangle)

def good():
    value = udfkit.sanitize_batch(x, batch, starts)
    value.data, value.mask, value.lengths
    udfkit.variable_value_to_seq(value, x)
    value.ragged()[1:3]
    for other in tuple(batch), doubles, strided, mixed, rectangle:
        udfkit.sanitize_batch(x, other).mask
    ragged = udfkit.Ragged.from_list(batch)
    udfkit.sanitize_batch(x, ragged).data
    udfkit.sanitize_batch(x, ragged, copy=False).data
    udfkit.sanitize_batch(b, batch[-1])
    udfkit.unpad(udfkit.pad(batch))
    udfkit.unpad(udfkit.pad(batch, side="left", padding_value=1.5, multiple_of=3))
    udfkit.pad(mixed, out=out[:, :4], sample_shape=2)
    udfkit.unpad(rectangle, cells)
    udfkit.variable_value_to_seq(udfkit.Value(rectangle, cells), x)
    for function in identity, ragged_identity:
        state, outputs = function._forward([value], None)
        function._backward(state, outputs, [x])
    identity.eval(batch)
    identity.grad(batch, root_gradients=roots)
    swap.grad({swap.inputs[0]: batch, swap.inputs[1]: roots})

def errors():
    value = udfkit.sanitize_batch(x, batch)
    yield lambda: udfkit.sanitize_batch(x, bad_shape)
    yield lambda: udfkit.sanitize_batch(x, bad_item)
    yield lambda: udfkit.sanitize_batch(x, bad_value)
    yield lambda: udfkit.sanitize_batch(x, batch, [True])
    yield lambda: udfkit.sanitize_batch(x, None)
    yield lambda: udfkit.sanitize_batch(b, batch)
    yield lambda: udfkit.variable_value_to_seq(value, b)
    yield lambda: udfkit.Ragged.from_list(bad_item)
    yield lambda: udfkit.Value(rectangle, bad_cells)
    yield lambda: udfkit.pad(bad_shape)
    yield lambda: udfkit.pad(batch, steps=2**60)
    yield lambda: udfkit.pad([*batch, out[0]], out=np.empty((6, 4, 2), np.float32), steps=5)
    yield lambda: udfkit.pad([*batch[:4], out[0]], out=out)
    yield lambda: udfkit.unpad(rectangle, bad_cells)
    yield lambda: udfkit.unpad(rectangle, lengths=[9] * 5)
    yield lambda: fails.eval(batch)
    yield lambda: wrong.grad(batch)
    yield lambda: identity.eval(bad_shape)
    yield lambda: identity._backward(identity._forward([value])[0], {}, [x])
failing = list(errors())
def bad():
    for call in failing:
        try:
            call()
        except (ValueError, TypeError, MemoryError, ArithmeticError):
            continue
        raise AssertionError("no error")

watched = [None, True, False, (), 0, 1, 2, -1, np.ndarray, np.float32, udfkit.Value, udfkit.Ragged]
watched += [np.dtype(code) for code in ("f4", "f8", "i8", "i1", "?")]
watched += [x, b, identity, ragged_identity, swap, fails, wrong, identity.output, out, rectangle]
watched += [batch, roots, cells, starts, mixed, bad_shape, bad_item, bad_value, x.shape]
watched += [*batch, *doubles, *strided, *roots, udfkit.cpu()]
CALLS = 30 + len(failing)
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def measure(calls):
    gc.collect()
    counts = np.array([sys.getrefcount(item) for item in watched])
    return counts, sys.getallocatedblocks(), resident()
def growth(calls, rounds):
    for _ in range(300):
        calls()
    before = measure(calls)
    for _ in range(rounds):
        calls()
    after = measure(calls)
    counts = {repr(w)[:60]: n for w, n in zip(watched, (after[0] - before[0]).tolist()) if n}
    return counts, after[1] - before[1], after[2] - before[2]
def all_flat(calls, rounds):
    counts, blocks, grown = growth(calls, rounds)
    # The interpreter keeps some hundred objects for later; one lost in each round is `rounds`.
    assert all(abs(n) < rounds // 5 for n in counts.values()), counts
    assert blocks < rounds // 5, blocks
    assert grown < 1_000_000, grown
"""


@pytest.mark.parametrize("pool", [None, "0"], ids=["pool", "no pool"])
def test_nothing_grows_over_100_000_calls(pool: str | None) -> None:
    run_python(
        ROUNDS
        + """
def both():
    good()
    bad()
all_flat(both, -(-100_000 // CALLS))
""",
        UDFKIT_POOL_BYTES=pool,
    )


def test_failing_calls_alone_leave_nothing_behind_for_the_collector() -> None:
    run_python(
        ROUNDS
        + """
gc.disable()
# The interpreter keeps up to 2000 tuples of each size for later; then it has them all.
for _ in range(2500):
    bad()
before = sys.getallocatedblocks()
for _ in range(1000):
    bad()
assert sys.getallocatedblocks() - before < 500, sys.getallocatedblocks() - before
"""
    )


def test_a_leak_would_be_found() -> None:
    run_python(
        ROUNDS
        + """
kept, count = [], 2000
for leak in (lambda: kept.append(None)), (lambda: kept.append(bytes(600))), (
    lambda: kept.append(object())
):
    counts, blocks, grown = growth(leak, count)
    assert counts.get("None", 0) >= count // 5 or blocks >= count // 5 or grown >= 1_000_000
"""
    )


def test_large_batches_are_flat_and_so_are_those_that_fail() -> None:
    run_python(
        ROUNDS
        + """
from udfkit import memory
large = hot_paths.large()
y = large.x
bad_large = [*large.sequences, None]
def calls():
    value = udfkit.sanitize_batch(y, large.sequences)
    udfkit.variable_value_to_seq(value, y)
    udfkit.unpad(udfkit.pad(large.sequences))
    large.identity.grad(large.sequences, root_gradients=large.roots)
    try:
        large.identity.eval(bad_large)
    except TypeError:
        pass
for _ in range(10):
    calls()
before, made = resident(), memory.stats().made
for _ in range(60):
    calls()
assert resident() - before < 20_000_000, resident() - before
assert memory.stats().made == made, memory.stats()
assert memory.stats().kept_bytes <= memory.stats().limit
""",
        UDFKIT_NUM_THREADS="3",
    )


def test_what_an_error_in_a_range_held_is_let_go_with_the_error() -> None:
    # An interrupted call on large arrays must not keep them until some later garbage collection.
    run_python(
        """
        import gc, weakref
        from udfkit.threads import run_ranges
        class Owner:
            pass
        def fails(first, last, owner):
            raise KeyboardInterrupt
        gc.disable()
        owner = Owner()
        gone = weakref.ref(owner)
        try:
            run_ranges(fails, [0, 1, 2, 3], (owner,), keep=owner)
        except KeyboardInterrupt:
            pass
        del owner
        assert gone() is None
        """,
        UDFKIT_NUM_THREADS="3",
    )


@pytest.mark.parametrize("pool", [None, "0"], ids=["pool", "no pool"])
def test_bits_are_the_same_for_all_thread_counts_with_and_without_the_pool(
    pool: str | None,
) -> None:
    found = run_python(
        """
        import os
        import hot_paths
        from udfkit import memory, threads
        batches = [hot_paths.large(k) for k in range(2)]
        cells = hot_paths.sequences_of(4, 4000, 1000, (), "i1")
        batches.append(hot_paths.HotPaths(cells, gaps=False))
        parts = set()
        for number in 1, 2, 3, 4, 7:
            os.environ["UDFKIT_NUM_THREADS"] = str(number)
            for hot in batches:
                hot.run()
                for moved in hot.data.nbytes, hot.flat.nbytes, hot.mask.nbytes:
                    parts.add(len(threads.split(len(hot.sequences), moved)) - 1)
        assert parts == {1, 2, 3, 4, 7}, parts
        print(memory.stats().reused)
        """,
        UDFKIT_POOL_BYTES=pool,
    )
    assert (int(found) > 100) == (pool is None)


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UDFKIT_NUM_THREADS", "3")
    memory.clear()


@pytest.mark.usefixtures("three_threads")
def test_pooled_memory_is_not_used_while_views_of_an_old_value_live() -> None:
    old, new = hot_paths.large(1), hot_paths.large(2)

    def views() -> list[tuple[np.ndarray, np.ndarray]]:
        value = udfkit.sanitize_batch(old.x, old.sequences)
        sequences = udfkit.variable_value_to_seq(value, old.x)
        padded = udfkit.pad(old.sequences)
        _, outputs = old.identity._forward([value])
        output = outputs[old.identity.output]
        last = len(old.sequences) - 1
        return [
            (value.data[-1, 1:], old.data[-1, 1:]),
            (value.data.view(np.uint8)[..., ::7], old.data.view(np.uint8)[..., ::7]),
            (np.asarray(memoryview(value.data[3:5])), old.data[3:5]),
            (value.ragged()[last].T, old.sequences[last].T),
            (sequences[last][5:], old.sequences[last][5:]),
            (padded.data[::2], old.data[::2]),
            (udfkit.unpad(padded)[last], old.sequences[last]),
            (output.data[:, 0], old.data[:, 0]),
            (next(reversed(output.ragged())), old.sequences[last]),
        ]

    alive, reused = views(), memory.stats().reused
    while alive:
        new.run()
        for got, expected in alive:
            assert np.ascontiguousarray(got).tobytes() == expected.tobytes()
        alive.pop()
    assert memory.stats().reused > reused + 20
    # With the last view gone, the memory serves again.
    assert memory.stats().kept_blocks > 0


@pytest.mark.usefixtures("three_threads")
def test_results_do_not_share_pooled_memory() -> None:
    hot = hot_paths.large(3)
    results = []
    for _ in range(3):
        value = udfkit.sanitize_batch(hot.x, hot.sequences)
        results += [value.data, value.ragged().values, udfkit.pad(hot.sequences).data]
        results += udfkit.variable_value_to_seq(value, hot.x)
        del value
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in results if a.size)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_nothing_is_compiled_anew_after_a_warm_up() -> None:
    hot_paths.small().run()
    hot_paths.HotPaths(hot_paths.sequences_of(0, 4, 3, (), "i4")).run()
    before = compiled_signatures()
    assert sum(before.values()) > 10
    dtypes = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
    shapes: list[tuple[int, ...]] = [(), (1,), (5,), (0,), (2, 3), (4, 1, 2), (1,) * 8]
    for k, dtype in enumerate(dtypes):
        for shape in shapes:
            sequences = hot_paths.sequences_of(k, 3 + k * 5, 1 + k * 9, shape, dtype)
            if dtype == "?":
                sequences = [sequence.view(np.int8) % 2 == 1 for sequence in sequences]
            hot_paths.HotPaths(sequences).run()
    hot_paths.large().run()
    assert compiled_signatures() == before


def test_read_only_and_strided_batches_are_not_compiled_for_either() -> None:
    hot = hot_paths.small()
    hot.run()
    before = compiled_signatures()
    for sequences in (
        [np.asfortranarray(sequence) for sequence in hot.sequences],
        [sequence[::-1].copy()[::-1] for sequence in hot.sequences],
        [np.frombuffer(s.tobytes(), s.dtype).reshape(s.shape) for s in hot.sequences],
    ):
        hot.check_value(udfkit.sanitize_batch(hot.x, sequences, hot.starts))
        reference.assert_same(udfkit.pad(sequences).data, hot.data)
        hot.check_list(hot.identity.eval(tuple(sequences)))
    assert compiled_signatures() == before
    assert threads.thread_count() >= 1
