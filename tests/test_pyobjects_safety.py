"""Reading objects: wrong layouts are noticed, nothing crashes, leaks or hangs."""

from __future__ import annotations

from typing import Any

import pytest

from processes import run_python
from udfkit.kernels import object_layouts, pyobjects_plain


@pytest.mark.parametrize("shift", [-8, 8, 4])
@pytest.mark.parametrize(
    "name", ["TYPE", "ITEMS", "DATA", "NDIM", "DESCR", "FLAGS", "TYPE_NUMBER", "ITEM_SIZE"]
)
def test_a_wrong_layout_is_noticed(name: str, shift: int) -> None:
    assert object_layouts.layout_problem() is None
    moved = getattr(object_layouts, name) + shift
    problem = object_layouts.layout_problem(**{name: moved})
    assert problem is not None
    assert f"{name} of " in problem
    assert f"is not at offset {moved}" in problem


def test_builds_of_another_kind_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(object_layouts.sysconfig, "get_config_var", lambda name: 1)
        assert "lock" in str(object_layouts.layout_problem())
    with monkeypatch.context() as patch:
        patch.setattr(object_layouts.struct, "calcsize", lambda kind: 4)
        assert "64 bits" in str(object_layouts.layout_problem())
    with monkeypatch.context() as patch:
        patch.setattr(object_layouts.sys, "implementation", type("S", (), {"name": "pypy"}))
        assert "pypy" in str(object_layouts.layout_problem())


def test_wrong_compiled_results_are_noticed() -> None:
    plain = pyobjects_plain

    def good_views(block: Any, lengths: Any, shape: Any, _: Any) -> Any:
        return plain.views(block, lengths, shape)

    def counts_wrong(*arguments: Any) -> Any:
        odd, longest, total = plain.read(*arguments)
        return odd + 1, longest, total

    def writes_wrong(*arguments: Any) -> Any:
        found = plain.read(*arguments)
        arguments[3][-1] += 1
        return found

    def copies(*arguments: Any) -> Any:
        return [view.copy()[:] for view in good_views(*arguments)]

    def reshapes(*arguments: Any) -> Any:
        return [view.ravel() for view in good_views(*arguments)]

    def shifted(array: Any) -> int:
        return plain.address(array) + 8

    assert plain.difference(plain.read, good_views, plain.address) is None
    assert "counts" in str(plain.difference(counts_wrong, good_views, plain.address))
    assert "addresses or" in str(plain.difference(writes_wrong, good_views, plain.address))
    assert "memory" in str(plain.difference(plain.read, copies, plain.address))
    assert "shape" in str(plain.difference(plain.read, reshapes, plain.address))
    assert "another address" in str(plain.difference(plain.read, good_views, shifted))


USE = """
import numpy as np
from udfkit.kernels import pyobjects
batch = tuple(np.full((n, 2), n, np.float32) for n in range(5)) + (None, np.zeros((2, 2)))
pointers, lengths = np.empty((2, 7), np.int64)
assert pyobjects.scan(batch, np.dtype("f4"), (2,), pointers, lengths) == (2, 4, 10)
assert lengths.tolist() == [0, 1, 2, 3, 4, -1, -1]
assert pointers.tolist() == [a.ctypes.data for a in batch[:5]] + [0, 0]
assert pyobjects.scan_samples(batch, np.dtype("f4"), (2, 2), pointers) == 6
made = pyobjects.views(np.arange(6.0), np.array([1, 0, 2]), (2,))
assert [view.tolist() for view in made] == [[[0, 1]], [], [[2, 3], [4, 5]]]
assert pyobjects.address(batch[3]) == batch[3].ctypes.data
print(pyobjects.why_plain)
"""


def test_without_compilation() -> None:
    assert run_python(USE, NUMBA_DISABLE_JIT="1").strip() == "None"


def test_with_bounds_checks() -> None:
    assert run_python(USE, NUMBA_BOUNDSCHECK="1").strip() == "None"


def test_an_unknown_layout_leads_to_the_plain_path() -> None:
    broken = "from udfkit.kernels import object_layouts\nobject_layouts.DATA = 24\n"
    found = run_python(broken + USE)
    assert found.strip() == "DATA of a () array of |b1 is not at offset 24"


def test_no_memory_half_way_leaks_nothing() -> None:
    run_python(
        """
        import sys
        import _testcapi
        import numpy as np
        from udfkit.kernels import pyobjects
        block, lengths, shape = np.zeros(400), np.full(200, 1, np.int64), (2,)
        pyobjects.views(block, lengths, shape)
        dtype = block.dtype
        failed = 0
        for start in range(0, 450):
            before = sys.getrefcount(block), sys.getrefcount(dtype)
            held = None
            try:
                _testcapi.set_nomemory(start, start + 1)
                held = pyobjects.views(block, lengths, shape)
            except MemoryError:
                failed += 1
            finally:
                _testcapi.remove_mem_hooks()
            made = 200 if held else 0
            after = sys.getrefcount(block) - made, sys.getrefcount(dtype) - made
            del held
            assert before == after, (start, before, after)
        assert failed > 100, failed
        """
    )


def test_an_error_of_numpy_half_way_leaks_nothing() -> None:
    run_python(
        """
        import sys
        import numpy as np
        from udfkit.kernels import pyobjects, pyobjects_compiled
        block, lengths = np.zeros(0), np.array([1, 2, 2**62], np.int64)
        before = sys.getrefcount(block), sys.getrefcount(block.dtype)
        for _ in range(1000):
            try:
                pyobjects.views(block, lengths, (0, 2**62))
            except ValueError as error:
                assert "array is too big" in str(error) or "pass" in str(error), error
            else:
                raise AssertionError("not refused")
            try:
                pyobjects.views(block, lengths, (0,))
            except ValueError as error:
                assert "too big" in str(error), error
            else:
                raise AssertionError("not refused")
        assert (sys.getrefcount(block), sys.getrefcount(block.dtype)) == before
        """
    )


def test_resident_memory_is_flat() -> None:
    run_python(
        """
        import os
        import numpy as np
        from udfkit.kernels import pyobjects
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        block, lengths = np.zeros(64), np.full(8, 2, np.int64)
        batch = tuple(np.zeros((3, 4)) for _ in range(8)) + (None,)
        pointers, found = np.empty((2, 9), np.int64)
        def calls(count):
            for _ in range(count):
                pyobjects.views(block, lengths, (4,))
                pyobjects.scan(batch, block.dtype, (4,), pointers, found)
                pyobjects.address(block)
        calls(5_000)
        before = resident()
        calls(100_000)
        grown = resident() - before
        # One lost object of 16 bytes a call would be 1.6 MB.
        assert grown < 1_000_000, grown
        """
    )


def test_a_list_changed_by_other_threads_while_it_is_read() -> None:
    run_python(
        """
        import random, sys, threading, time
        import numpy as np
        from udfkit.kernels import pyobjects
        sys.setswitchinterval(1e-6)
        batch = [np.full((n % 5, 4), 1, np.float32) for n in range(300)]
        stop = threading.Event()
        def change(seed):
            chance = random.Random(seed)
            while not stop.is_set():
                n = chance.randrange(5)
                match chance.randrange(5):
                    case 0:
                        batch.clear()
                    case 1:
                        batch[:] = [np.full((n, 4), 1, np.float32) for _ in range(300)]
                    case 2:
                        batch.append(np.full((n, 4), 1, np.float32))
                    case 3:
                        batch[len(batch) // 2 :] = [None, np.zeros(2)]
                    case _:
                        if batch:
                            del batch[chance.randrange(len(batch)) :]
        threads = [threading.Thread(target=change, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        dtype, end, seen = np.dtype(np.float32), time.monotonic() + 4, 0
        while time.monotonic() < end:
            snapshot = tuple(batch)
            pointers, lengths = np.empty((2, len(snapshot)), np.int64)
            odd, longest, total = pyobjects.scan(snapshot, dtype, (4,), pointers, lengths)
            good = [x for x in snapshot if x is not None and x.shape[1:] == (4,)]
            assert odd == len(snapshot) - len(good)
            assert total == sum(map(len, good)) and (lengths >= 0).sum() == len(good)
            seen += total
        stop.set()
        for thread in threads:
            thread.join()
        assert seen
        """
    )


def test_sixteen_threads_at_once() -> None:
    run_python(
        """
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np
        from udfkit.kernels import pyobjects
        batch = tuple(np.full((n % 7, 3), n, np.float32) for n in range(500))
        expected = [len(item) for item in batch]
        def work(_):
            pointers, lengths = np.empty((2, 500), np.int64)
            for _ in range(50):
                pyobjects.scan(batch, np.dtype("f4"), (3,), pointers, lengths)
                assert lengths.tolist() == expected
                block = np.ones(3 * sum(expected))
                assert sum(map(len, pyobjects.views(block, lengths, (3,)))) == sum(expected)
            return True
        with ThreadPoolExecutor(16) as executor:
            assert all(executor.map(work, range(32)))
        """
    )
