"""Runs the device tests on numba's simulator, which must be chosen before numba is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def test_device_tests_pass_on_the_simulator() -> None:
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        pytest.skip("this process is the simulator's own")
    chosen = {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "0", "UDFKIT_TEST_CUDA": ""}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            str(FOLDER / "device"),
        ],
        env={**os.environ, **chosen},
        cwd=FOLDER.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout, done.stdout[-2000:]
    assert " passed" in done.stdout
