"""Compilation: caches that cannot fail a call, drivers, and the byte-moving intrinsics."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from processes import run_python
from udfkit.kernels import intrinsics, jit
from udfkit.kernels.jit import compiled_signatures, driver, kernel

MADE = """
from udfkit.kernels.intrinsics import load_i64, store64
from udfkit.kernels.jit import driver, kernel

@kernel
def twice(a):
    return 2 * a

@driver("int64(int64)", nogil=True)
def four_times(a):
    return twice(twice(a))
"""

USE = """
import sys
sys.path.insert(0, {folder!r})
import made
from udfkit.kernels import jit
assert made.twice(5) == 10, made.twice(5)
assert made.four_times(-3) == -12
hits = sum(sum(d.stats.cache_hits.values()) for n, d in jit._dispatchers.items() if "made" in n)
misses = sum(sum(d.stats.cache_misses.values()) for n, d in jit._dispatchers.items() if "made" in n)
print(hits, misses)
"""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "made.py").write_text(MADE)
    return folder


def use(folder: Path, before: str = "", **environment: str | None) -> tuple[int, int]:
    """Run both functions of `made` in a new process; return cache hits and misses."""
    found = run_python(before + USE.format(folder=str(folder)), **environment)
    hits, misses = found.split()
    return int(hits), int(misses)


def test_machine_code_is_kept_on_disk(made: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    assert use(made, NUMBA_CACHE_DIR=cache) == (0, 2)
    assert list(Path(cache).rglob("made.*.nbc"))
    assert use(made, NUMBA_CACHE_DIR=cache) == (2, 0)


def test_an_edit_of_another_kernel_module_makes_machine_code_stale(
    made: Path, tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    edited = 'from udfkit.kernels import jit\njit._sources_stamp = lambda: "edited"\n'
    use(made, NUMBA_CACHE_DIR=cache)
    assert use(made, edited, NUMBA_CACHE_DIR=cache) == (0, 2)
    assert use(made, edited, NUMBA_CACHE_DIR=cache) == (2, 0)


def test_the_stamp_covers_every_kernel_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("pass")
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "a.py"))
    stamp = jit._sources_stamp.__wrapped__
    first = stamp()
    assert stamp() == first
    (tmp_path / "b.py").write_text("pass  # edited")
    assert stamp() != first


def test_damaged_files_count_as_not_there(made: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    use(made, NUMBA_CACHE_DIR=str(cache))
    for pattern, keep in ("made.*.nbi", 20), ("made.*.nbc", 100), ("made.*.nbi", 0):
        files = list(cache.rglob(pattern))
        assert files
        for file in files:
            file.write_bytes(file.read_bytes()[:keep])
        assert use(made, NUMBA_CACHE_DIR=str(cache)) == (0, 2)
        assert use(made, NUMBA_CACHE_DIR=str(cache)) == (2, 0)


def no_folder_is_writable(made: Path) -> dict[str, str | None]:
    # Permissions do not stop root; files where folders should be stop everybody.
    (made / "__pycache__").write_text("not a folder")
    nowhere = "/dev/null/nowhere"
    return {
        "HOME": nowhere,
        "XDG_CACHE_HOME": nowhere,
        "NUMBA_CACHE_DIR": nowhere,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def test_without_a_writable_folder_code_is_compiled_anew(made: Path) -> None:
    environment = no_folder_is_writable(made)
    hits, _ = use(made, **environment)
    assert hits == 0
    # numba itself refuses here, so the test has found such a place.
    source = (made / "made.py").read_text()
    (made / "made.py").write_text(
        source.replace("@kernel", "@__import__('numba').njit(cache=True)")
    )
    with pytest.raises(AssertionError, match="cannot cache function 'twice'"):
        use(made, **environment)


def test_a_folder_that_becomes_unwritable_fails_no_call(made: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    spoil = f"""
import sys, shutil, pathlib
sys.path.insert(0, {str(made)!r})
import made
for folder in pathlib.Path({str(cache)!r}).iterdir():
    if folder.name.startswith("source"):
        shutil.rmtree(folder)
        folder.write_text("not a folder")
        print("spoiled", file=sys.stderr)
        break
else:
    raise SystemExit("numba keeps its files elsewhere")
"""
    assert use(made, spoil, NUMBA_CACHE_DIR=str(cache))[0] == 0


def test_cache_folder_says_where(tmp_path: Path) -> None:
    ask = "from udfkit.kernels.jit import cache_folder; print(cache_folder())"
    cache = tmp_path / "cache"
    found = run_python(ask, NUMBA_CACHE_DIR=str(cache)).strip()
    assert Path(found).is_dir()
    assert Path(found).is_relative_to(cache)
    for name, value in (
        ("NUMBA_DISABLE_JIT", "1"),
        ("NUMBA_BOUNDSCHECK", "1"),
        ("NUMBA_CACHE_LOCATOR_CLASSES", "IPythonCacheLocator"),
    ):
        assert run_python(ask, **{name: value}).strip() == "None", name


@pytest.mark.parametrize(
    "environment",
    [{}, {"NUMBA_BOUNDSCHECK": "1"}, {"NUMBA_DISABLE_JIT": "1"}],
    ids=["compiled", "checked", "plain"],
)
def test_compiled_and_plain_runs_agree(made: Path, environment: dict[str, str]) -> None:
    use(made, **environment)


def test_importing_the_pools_imports_neither_numba_nor_multiprocessing() -> None:
    run_python(
        """
        import sys
        import udfkit.memory, udfkit.threads
        heavy = {"numba", "llvmlite", "multiprocessing", "scipy"} & set(sys.modules)
        assert not heavy, heavy
        """
    )


def test_a_driver_is_compiled_once_by_many_threads(made: Path) -> None:
    run_python(
        f"""
        import sys, threading
        sys.path.insert(0, {str(made)!r})
        from made import four_times as stub
        import made
        from concurrent.futures import ThreadPoolExecutor
        from udfkit.kernels.jit import compile_drivers, compiled_signatures
        barrier = threading.Barrier(8)
        def first(i):
            barrier.wait()
            return made.four_times(i)
        with ThreadPoolExecutor(8) as executor:
            assert list(executor.map(first, range(8))) == [4 * i for i in range(8)]
        assert made.four_times is not stub and stub(2) == made.four_times(2) == 8
        assert compile_drivers() == 1
        assert compiled_signatures() == {{"made.twice": 1, "made.four_times": 1}}
        """
    )


def test_a_driver_is_never_compiled_for_other_types() -> None:
    @driver("float64(float64)")
    def half(a):  # type: ignore[no-untyped-def]
        return a / 2

    assert half(3.0) == half(3) == half(np.float32(3)) == 1.5
    compiled = [count for name, count in compiled_signatures().items() if name.endswith("half")]
    assert compiled == ([] if jit.JIT_DISABLED else [1])
    with pytest.raises(TypeError):
        half("three")


def test_a_driver_needs_a_result_type() -> None:
    with pytest.raises(ValueError, match=r"no result type; write e\.g\. void\(int64\)"):
        driver("(int64,)")


def test_a_fork_while_another_thread_compiles_does_not_hang() -> None:
    run_python(
        """
        import os, threading, warnings
        from udfkit.kernels.jit import kernel
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        @kernel
        def slow(a, b):
            total = 0
            for i in range(a):
                for j in range(b):
                    total += i * j if i % 2 else j
            return total
        @kernel
        def other(a):
            return a + 1
        thread = threading.Thread(target=slow, args=(3, 4))
        thread.start()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if other(1) == 2 else 1)
            assert os.waitpid(child, 0)[1] == 0
        thread.join()
        """
    )


@kernel
def _move(target, source, count):  # type: ignore[no-untyped-def]
    intrinsics.memcpy(target, source, count)


@kernel
def _move_overlapping(target, source, count):  # type: ignore[no-untyped-def]
    intrinsics.memmove(target, source, count)


@kernel
def _fill(target, byte, count):  # type: ignore[no-untyped-def]
    intrinsics.memset(target, byte, count)


@kernel
def _read_all(address):  # type: ignore[no-untyped-def]
    intrinsics.prefetch(address)
    return (
        intrinsics.load_i8(address),
        intrinsics.load_u8(address),
        intrinsics.load_i16(address),
        intrinsics.load_u16(address),
        intrinsics.load_i32(address),
        intrinsics.load_u32(address),
        intrinsics.load_i64(address),
    )


@kernel
def _write_all(address, value):  # type: ignore[no-untyped-def]
    intrinsics.store8(address, value)
    intrinsics.store16(address + 1, value)
    intrinsics.store32(address + 3, value)
    intrinsics.store64(address + 7, value)


@kernel
def _count_ones(value):  # type: ignore[no-untyped-def]
    return intrinsics.popcount(value)


def buffer(values: Any) -> tuple[np.ndarray, int]:
    array = np.array(values, np.uint8)
    return array, array.ctypes.data


@pytest.mark.parametrize("count", [0, 1, 7, 64, 4099])
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_moving_and_filling_bytes(count: int, shift: int) -> None:
    source, begin = buffer(np.arange(count + 8) % 251)
    target, end = buffer(np.full(count + 8, 255))
    _move(end + shift, begin, count)
    expected = np.full(count + 8, 255, np.uint8)
    expected[shift : shift + count] = source[:count]
    assert np.array_equal(target, expected)
    expected = source.copy()
    _move_overlapping(begin + shift, begin, count)
    expected[shift : shift + count] = expected[:count].copy()
    assert np.array_equal(source, expected)
    _fill(end + shift, 0x1AB, count)
    assert (target[shift : shift + count] == 0xAB).all()
    assert (target[:shift] == 255).all()
    assert (target[shift + count :] == 255).all()


@pytest.mark.parametrize("offset", range(4))
def test_reading_numbers_anywhere(offset: int) -> None:
    raw, address = buffer([0, 0, 0, 0x81, 0xFE, 0xFD, 0xFC, 0xFB, 0xFA, 0xF9, 0x80, 0, 0])
    expected = [
        int.from_bytes(raw[offset : offset + bits // 8].tobytes(), "little", signed=signed)
        for bits, signed in [(8, 1), (8, 0), (16, 1), (16, 0), (32, 1), (32, 0), (64, 1)]
    ]
    assert list(_read_all(address + offset)) == expected


@pytest.mark.parametrize("value", [0, 1, -1, 2**40 + 3, -(2**63), 2**63 - 1])
def test_writing_numbers_keeps_their_low_bits(value: int) -> None:
    raw, address = buffer(np.full(17, 7))
    _write_all(address, value)
    expected = b"".join(
        (value & (2**bits - 1)).to_bytes(bits // 8, "little") for bits in (8, 16, 32, 64)
    )
    assert raw.tobytes() == expected + b"\7\7"
    assert _count_ones(value) == (value & (2**64 - 1)).bit_count()


def test_intrinsics_without_compilation() -> None:
    """The plain twins pass the tests above."""
    if jit.JIT_DISABLED:
        return
    names = "moving_and_filling_bytes or reading_numbers or writing_numbers"
    run_python(
        f"""
        import pytest
        from udfkit.kernels import jit
        assert jit.JIT_DISABLED
        arguments = [{__file__!r}, "-q", "-p", "no:cacheprovider", "-k", {names!r}]
        raise SystemExit(pytest.main(arguments))
        """,
        NUMBA_DISABLE_JIT="1",
    )


def test_kernels_work_in_threads() -> None:
    def fill(i: int) -> bool:
        array = (ctypes.c_uint8 * 1000)()
        _fill(ctypes.addressof(array), i, 1000)
        return bytes(array) == bytes([i]) * 1000

    with ThreadPoolExecutor(16) as executor:
        assert all(executor.map(fill, range(200)))


def test_public_names_exist() -> None:
    def missing(module: ModuleType) -> list[str]:
        return [name for name in module.__all__ if not hasattr(module, name)]

    assert missing(jit) == missing(intrinsics) == []
