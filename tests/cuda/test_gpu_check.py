"""The script for a machine with a GPU: it is polite without one, and works on the simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from udfkit.kernels import cuda_target

ROOT = Path(__file__).resolve().parents[2]


def check(tmp_path: Path, *options: str, **environment: str) -> Any:
    script = ROOT / "benchmarks" / "gpu_check.py"
    return subprocess.run(
        [sys.executable, str(script), "--out", str(tmp_path), *options],
        env={**os.environ, "NUMBA_DISABLE_JIT": "0", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_says_what_is_missing(tmp_path: Path) -> None:
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" or cuda_target.status().available:
        pytest.skip("there is something to check on this machine")
    done = check(tmp_path)
    assert done.returncode == 2
    assert done.stdout.startswith("No GPU to check: ")
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_all_sections_run_on_the_simulator(tmp_path: Path) -> None:
    done = check(tmp_path, "--smoke", NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["failed"] == []
    assert report["versions"]["simulated"] is True
    measured = {row["operation"] for row in report["speed"]}
    assert measured >= {"ragged_to_padded", "padded_to_ragged", "mask_of", "rows_to_padded"}
    # A simulator's seconds say nothing about a GPU, so no goal counts as met or missed.
    assert report["goals"]["copy_goal_met"] is None
    assert "ragged_to_padded" in (tmp_path / "gpu_check.txt").read_text()
