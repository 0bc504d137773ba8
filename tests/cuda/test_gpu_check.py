"""The script for a machine with a GPU: it is polite without one, and works on the simulator."""

from __future__ import annotations

import importlib.util
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


def script() -> Any:
    path = ROOT / "benchmarks" / "gpu_check.py"
    spec = importlib.util.spec_from_file_location("gpu_check", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_section_that_fails_or_hangs_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_check = script()
    outcomes = {
        "versions": ({"simulated": False}, ""),
        "speed": (None, "Traceback: boom"),
        "values": ({"passed": 1, "failed": {"lists": "boom"}}, "failed: lists"),
        "kernels": ({"passed": 3, "failed": {}}, ""),
    }
    monkeypatch.setattr(gpu_check, "SECTIONS", dict.fromkeys(outcomes, 30))
    monkeypatch.setattr(gpu_check, "what_is_missing", lambda: "")
    monkeypatch.setattr(gpu_check, "run_section", lambda name, *_: outcomes[name])
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path)])
    assert gpu_check.main() == 1
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["failed"] == ["speed", "values"]
    assert report["errors"]["speed"] == "Traceback: boom"
    assert report["kernels"] == {"passed": 3, "failed": {}}
    assert report["goals"]["copy_goal_met"] is None
    assert "boom" in (tmp_path / "gpu_check.txt").read_text()


def test_a_section_has_a_process_and_a_time_of_its_own() -> None:
    gpu_check = script()
    found, wrong = gpu_check.run_section("no such section", 60, True)
    assert found is None
    assert "KeyError: 'no such section'" in wrong
    waits = ["-u", "-c", "print('here', flush=True); import time; time.sleep(60)"]
    status, written = gpu_check.run_python(waits, 5)
    assert status is None
    assert "here" in written


def test_the_sections_are_those_that_can_be_run() -> None:
    text = (ROOT / "benchmarks" / "gpu_sections.py").read_text()
    for name in script().SECTIONS:
        assert f"def {name}(run: Run)" in text


def test_goals_of_rows_that_were_measured() -> None:
    row = {
        "operation": "ragged_to_padded", "law": "law", "floats": 16, "seconds": 1.0,
        "output_bytes": 300 << 20, "of_copy": 0.9, "times_torch": 2.0, "gb_per_second": 1.0,
    }  # fmt: skip
    slow = {**row, "of_copy": 0.5, "times_torch": 0.5}
    skipped = {"law": "law", "floats": 16, "skipped": "out of time"}
    goals = script().goals
    good = goals({"speed": [row, skipped], "no_host_wait": {"returned_while_busy": True}})
    assert (good["copy_goal_met"], good["torch_goal_met"], good["no_host_wait"]) == (True,) * 3
    bad = goals({"speed": [row, slow]})
    assert (bad["copy_goal_met"], bad["torch_goal_met"], bad["no_host_wait"]) == (
        False,
        False,
        None,
    )
    assert bad["slower_than_torch"] == ["ragged_to_padded, law, 16"]
    text = script().table({"failed": [], "errors": {}, "speed": [row, skipped]})
    assert "out of time" in text


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
    assert report["failed"] == [], report["errors"]
    assert report["versions"]["simulated"] is True
    measured = {row["operation"] for row in report["speed"]}
    assert measured >= {"ragged_to_padded", "padded_to_ragged", "mask_of", "rows_to_padded"}
    assert report["kernels"]["passed"] >= 20
    assert report["values"]["passed"] >= 15
    assert set(report["section_seconds"]) == set(script().SECTIONS)
    # A simulator's seconds say nothing about a GPU, so no goal counts as met or missed.
    assert report["goals"]["copy_goal_met"] is None
    assert "ragged_to_padded" in (tmp_path / "gpu_check.txt").read_text()
