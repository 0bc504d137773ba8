"""`pad`, `unpad` and `fill_rows` while things go on around them, in processes of their own."""

from __future__ import annotations

import numpy as np
import pytest

import udfkit
from processes import run_python


def test_fork_after_use():
    run_python(
        """
        import multiprocessing as mp, os, sys
        import numpy as np, udfkit
        xs = [np.full((n, 64), n, np.float32) for n in range(1, 300)]
        def work(_):
            padded = udfkit.pad(xs, side="left")
            filled = udfkit.fill_rows(xs, 512)
            back = udfkit.unpad(padded)
            return all((a == b).all() for a, b in zip(back, xs)) and all(
                (a == b).all() for a, b in zip(filled.sequences(), xs))
        assert work(0)
        with mp.get_context("fork").Pool(2) as pool:
            assert all(pool.map_async(work, range(6)).get(60))
        assert work(0)
        """,
        UDFKIT_NUM_THREADS="2",
        PYTHONWARNINGS="ignore",
    )


def test_sixteen_threads_at_once():
    run_python(
        """
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np, udfkit
        def work(seed):
            rng = np.random.default_rng(seed)
            xs = [rng.standard_normal((n, 64), np.float32) for n in rng.integers(0, 120, 300)]
            for side in ("left", "right"):
                padded = udfkit.pad(xs, side=side, padding_value=seed)
                for row, x in zip(padded.data, xs):
                    begin = padded.steps - len(x) if side == "left" else 0
                    assert (row[begin : begin + len(x)] == x).all()
                    assert (row == seed).all(axis=1).sum() == padded.steps - len(x)
                assert all((a == b).all() for a, b in zip(udfkit.unpad(padded), xs))
            filled = udfkit.fill_rows(xs, 256)
            assert all((a == b).all() for a, b in zip(filled.sequences(), xs))
            return seed
        with ThreadPoolExecutor(16) as executor:
            assert list(executor.map(work, range(24))) == list(range(24))
        """
    )


def test_a_list_that_another_thread_changes():
    run_python(
        """
        import threading
        import numpy as np, udfkit
        xs = [np.full((50, 8), 1.0) for _ in range(200)]
        done = False
        def change():
            k = 0
            while not done:
                k += 1
                xs[k % 200] = np.full((k % 90, 8), 1.0)
                if k % 7 == 0:
                    xs.append(xs.pop())
        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(150):
                padded = udfkit.pad(xs)
                cells = padded.data[padded.mask != 0]
                assert (cells == 1.0).all()
                assert not padded.data[padded.mask == 0].any()
                del cells
        finally:
            done = True
            thread.join()
        """
    )


def test_nothing_leaks_or_dangles():
    run_python(
        """
        import gc, sys
        import numpy as np, udfkit
        xs = [np.ones((n, 3)) for n in (4, 0, 2)]
        def once():
            padded = udfkit.pad(xs)
            udfkit.pad(xs, side="left", padding_value=1.5, multiple_of=8)
            sequences = udfkit.unpad(padded)
            udfkit.pad(sequences)
            udfkit.fill_rows(xs, 4).sequences()
            for bad in ({"padding_value": "x"}, {"max_length": 1}):
                try:
                    udfkit.pad(xs, **bad)
                except (TypeError, ValueError):
                    pass
        def counts():
            gc.collect()
            counted = [sys.getrefcount(x) for x in (*xs, xs[0].dtype)]
            return *counted, len(gc.get_objects())
        for _ in range(100):
            once()
        before = counts()
        for _ in range(1000):
            once()
        after = counts()
        assert all(abs(a - b) < 20 for a, b in zip(before, after)), (before, after)
        """
    )


def test_inputs_that_are_freed_right_after_the_call():
    run_python(
        """
        import numpy as np, udfkit
        for k in range(50):
            filled = udfkit.fill_rows([np.full((n, 500), k) for n in (30, 9, 4)], 64)
            padded = udfkit.pad([np.full((n, 500), k) for n in (30, 0, 7)])
            junk = [np.full((30, 500), -1) for _ in range(4)]
            assert (padded.data[padded.mask != 0] == k).all()
            assert all((x == k).all() for x in filled.sequences())
            sequences = udfkit.unpad(padded)
            del padded, junk
            again = udfkit.pad([np.full((30, 500), -2)])
            assert all((x == k).all() for x in sequences)
        """
    )


def test_no_new_compilations():
    run_python(
        """
        import numpy as np, udfkit
        from udfkit.kernels.jit import compiled_signatures
        def work(count, shape, dtype):
            rng = np.random.default_rng(count)
            xs = [np.zeros((n, *shape), dtype) for n in rng.integers(0, 30, count)]
            padded = udfkit.pad(xs, side="left", padding_value=1)
            udfkit.pad(udfkit.Ragged.from_list(xs), out=np.empty_like(padded.data))
            udfkit.unpad(padded), udfkit.unpad(padded.data, padded.mask)
            filled = udfkit.fill_rows(xs, 40)
            filled.sequences(), filled.positions, filled.flat
        work(3, (2,), np.float32)
        before = compiled_signatures()
        work(1, (), "i1")
        work(50, (3, 2), "f2")
        work(7, (0,), "u8")
        work(9, (), "?")
        assert compiled_signatures() == before
        """
    )


def test_memory_maps_subclasses_and_read_only_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(5, 2))
    mapped[...] = 1

    class Named(np.ndarray):
        pass

    read_only = np.full((2, 2), 3, np.float32)
    read_only.flags.writeable = False
    batch = [mapped, np.full((4, 2), 2, np.float32).view(Named), read_only, mapped[1:2]]
    padded = udfkit.pad(batch)
    assert type(padded.data) is np.ndarray
    assert padded.lengths.tolist() == [5, 4, 2, 1]
    assert padded.data.sum(axis=(1, 2)).tolist() == [10, 16, 12, 2]
    assert [x.tolist() for x in udfkit.fill_rows(batch, 6).sequences()] == [
        np.asarray(x).tolist() for x in batch
    ]


@pytest.mark.parametrize("threads", ["1", "2", "3"])
def test_any_number_of_threads_gives_the_same_bytes(monkeypatch, threads):
    monkeypatch.setenv("UDFKIT_NUM_THREADS", threads)
    rng = np.random.default_rng(0)
    sequences = [rng.standard_normal((n, 32), np.float32) for n in rng.integers(0, 100, 700)]
    reference = np.zeros((700, 99, 32), np.float32)
    for row, sequence in zip(reference, sequences, strict=True):
        row[: len(sequence)] = sequence
    assert udfkit.pad(sequences, steps=99).data.tobytes() == reference.tobytes()
