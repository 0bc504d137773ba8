"""All hot paths where HOME, the cache or the package itself cannot be written to."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import udfkit
from processes import run_python

USE = "import hot_paths\nhot_paths.work(3)\n"


def test_no_folder_is_writable(tmp_path: Path) -> None:
    package = copy_of_the_package(tmp_path)
    for folder in package, package / "kernels":
        (folder / "__pycache__").write_text("not a folder")
    nowhere = "/dev/null/nowhere"
    found = run_python(
        use_copy(tmp_path)
        + USE
        + "from udfkit.kernels.jit import cache_folder; print(cache_folder())",
        HOME=nowhere,
        XDG_CACHE_HOME=nowhere,
        NUMBA_CACHE_DIR=None,
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert found.strip() == "None"


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run_python(USE, NUMBA_CACHE_DIR=str(cache))
    folders = [path for path in cache.iterdir() if any(path.glob("*.nbi"))]
    assert folders
    for folder in folders:
        for kept in folder.glob("*.nbi"):
            kept.unlink()
            # A folder in the place of the index: it can be neither read nor replaced.
            kept.mkdir()
            (kept / "in the way").touch()
    run_python(USE, NUMBA_CACHE_DIR=str(cache))


# Root may write anywhere by a capability, which a process can give up before it starts anew.
WITHOUT_PRIVILEGES = """
import ctypes, os, sys
if os.geteuid() == 0 and "WITHOUT_PRIVILEGES" not in os.environ:
    for capability in range(3):
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
    os.environ["WITHOUT_PRIVILEGES"] = "yes"
    os.execv(sys.executable, sys.orig_argv)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="gives up a capability of Linux")
@pytest.mark.parametrize("warm", [False, True])
def test_cache_and_package_may_only_be_read(tmp_path: Path, warm: bool) -> None:
    package, cache = copy_of_the_package(tmp_path), tmp_path / "cache"
    cache.mkdir()
    environment = {"NUMBA_CACHE_DIR": str(cache), "HOME": "/dev/null/nowhere"}
    if warm:
        run_python(use_copy(tmp_path) + USE, **environment)
        assert list(cache.rglob("*.nbi"))
    everything = [package, *package.rglob("*"), cache, *cache.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    ask = f"""
import pathlib, pytest
for folder in {str(package)!r}, {str(cache)!r}:
    with pytest.raises(PermissionError):
        pathlib.Path(folder, "new").touch()
"""
    try:
        run_python(WITHOUT_PRIVILEGES + ask + use_copy(tmp_path) + USE, **environment)
    finally:
        for path in everything:
            path.chmod(0o755 if path.is_dir() else 0o644)


def copy_of_the_package(folder: Path) -> Path:
    made = folder / "udfkit"
    source = Path(udfkit.__file__).parent
    shutil.copytree(source, made, ignore=shutil.ignore_patterns("__pycache__"))
    return made


def use_copy(folder: Path) -> str:
    return (
        f"import sys\nsys.path.insert(0, {str(folder)!r})\nimport udfkit\n"
        f"assert udfkit.__file__.startswith({str(folder)!r})\n"
    )


def test_the_copy_is_the_package_that_is_tested(tmp_path: Path) -> None:
    copy_of_the_package(tmp_path)
    code = use_copy(tmp_path) + "print(udfkit.__version__)"
    assert run_python(code).strip() == udfkit.__version__
    assert str(tmp_path) not in sys.path
