"""The benchmark of sequence functions runs, compares what it times, and reports what is missed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from udfkit.kernels.jit import JIT_DISABLED

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks" / "sequence_functions.py").exists(),
    reason="benchmarks/ is not installed",
)

compiled_only = pytest.mark.skipif(JIT_DISABLED, reason="takes minutes in plain Python")


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import sequence_report

    return sequence_report


def row(section, model="", dtype="float32", **microseconds):
    named = {name.replace("_", " "): t for name, t in microseconds.items()}
    return {
        "section": section,
        "what": f"About {section}.",
        "dtype": dtype,
        "shape": "B=2",
        "model": model,
        "microseconds": named,
    }


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


@compiled_only
def test_a_short_run_writes_tables_and_figures():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        "from benchmarks import sequence_functions; sequence_functions.main()"
    )
    options = ["--sections", "overhead", "attention", "--seconds", "0.001", "--seed", "5"]
    done = subprocess.run(
        [sys.executable, "-c", code, *options],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "- seed: 5" in done.stdout
    assert "## attention_pooling" in done.stdout
    assert done.stdout.count("| float32 | B=1024 ") == 6
    pooling = line_of(done.stdout, "| attention_pooling | NumPy user function | >= 10x |")
    assert pooling.split(" | ")[4] == "6"
    assert line_of(done.stdout, "| soft_dtw |").split(" | ")[3:6] == ["", "0", "0"]


def test_figures_name_the_worst_row(report):
    rows = [
        row("ctc_loss", "untrained", udfkit=10, torch=70),
        row("ctc_loss", "certain and wrong", udfkit=10, torch=15),
        row("ctc_loss", "untrained", "float64", udfkit=10, torch=200),
        row("empty function", udfkit=14.5),
        row("empty function", udfkit=16.5),
        row("two threads", udfkit=3000, one_thread=3500),
        row("two threads", udfkit=3000, one_thread=4800),
        row("reduction", udfkit=103, one_sum=100),
    ]
    text = report.report(rows, {"seed": 1})
    for wanted in (
        "| ctc_loss | torch, float32 | >= 2x | 1.50x | 2 | 1 | float32 B=2 certain and wrong |",
        "| ctc_loss | torch, float64 | >= 3x | 20.00x | 1 | 1 | float64 B=2 untrained |",
        "| ctc_loss | aim: torch, float32, in linear space | >= 6x | 7.00x | 1 | 1 |",
        "| empty function | one call from Value to Value | <= 15 us | 16.50 us | 2 | 1 |",
        "| two threads | one thread, over 4 ms | >= 1.5x | 1.60x | 1 | 1 |",
        "| reduction | time of the naive sum | <= 1.05x | 1.03x | 1 | 1 |",
        "| float32 | B=2 | certain and wrong | 10.0 | 1.50x |",
    ):
        assert wanted in text


def test_what_is_saved_can_be_read_back(report, monkeypatch, tmp_path):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    rows = [row("soft_dtw", udfkit=10, NumPy=130)]
    report.save(rows, report.about("python x.py --save", 7))
    kept = json.loads((tmp_path / "results" / "sequence_functions.json").read_text())
    assert kept["rows"] == rows
    assert kept["machine"]["command"] == "python x.py --save"
    assert {"processor", "numba", "torch", "seed"} <= kept["machine"].keys()
    text = (tmp_path / "results" / "sequence_functions.md").read_text()
    assert text == report.report(rows, kept["machine"])


@compiled_only
def test_a_wrong_result_stops_the_run(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import sequence_functions as measured

    right = measured.dtw_numpy
    monkeypatch.setattr(
        measured, "dtw_numpy", lambda *args: (right(*args)[0], right(*args)[1] * 1.01)
    )
    with pytest.raises(AssertionError, match="Not equal"):
        next(measured.soft_dtw(np.random.default_rng(0)))


def test_saved_results_are_of_this_form(report):
    saved = ROOT / "benchmarks" / "results" / "sequence_functions.json"
    if not saved.exists():
        pytest.skip("no results were saved")
    kept = json.loads(saved.read_text())
    assert (saved.with_suffix(".md")).read_text() == report.report(kept["rows"], kept["machine"])
