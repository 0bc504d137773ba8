"""The comparison with other libraries runs, checks what it compares, and says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks" / "peers.py").exists(), reason="benchmarks/ is not installed"
)


def run(*options: str) -> str:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from benchmarks import peers; peers.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *options],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_short_run_writes_every_table():
    text = run(
        *("--quick", "--laws", "uniform_1_100", "--batch-sizes", "8", "--sample-sizes", "1"),
        *("--rounds", "1", "--seconds", "0.01", "--peers", "numpy loop", "ragged-buffer"),
    )
    for job in ("list to padded", "padded to list", "ragged to padded", "padded to ragged"):
        assert f"## {job}" in text
    assert text.count("| uniform_1_100 | 8 | 1 |") == 4
    assert "fastest peer of each cell" in text
    assert "- ragged-buffer: " in text
    assert "## Figures to reach" in text


def test_wrong_results_are_noticed(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import libraries, peers

    data = libraries.make_data([np.ones((n, 2), np.float32) for n in (3, 1)])
    for job in libraries.JOBS:
        for make in (libraries.numpy_jobs()[job], lambda d, job=job: peers.own_jobs(d, job)):
            jobs = make(data)
            for work in jobs.values() if isinstance(jobs, dict) else [jobs]:
                assert peers.is_right(work(), data, job)
    padded, mask = data.padded.copy(), data.mask.copy()
    assert peers.is_right((padded, mask), data, libraries.JOBS[0])
    padded[1, 2] = 5
    assert not peers.is_right((padded, mask), data, libraries.JOBS[0])
    assert not peers.is_right((data.padded, ~mask), data, libraries.JOBS[2])
    assert not peers.is_right(data.sequences[:1], data, libraries.JOBS[1])
    assert not peers.is_right(data.flat[:-1], data, libraries.JOBS[3])


def test_the_grid_leaves_out_what_is_too_large(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import laws, peers

    cells = set(peers.cells())
    for law in laws.LAWS:
        for batch_size in peers.BATCH_SIZES:
            steps = max(laws.lengths(law, batch_size))
            for sample_size in peers.SAMPLE_SIZES:
                fits = batch_size * steps * sample_size * 4 < 1_500_000_000
                assert ((law, batch_size, sample_size) in cells) == fits
    assert ("long_tailed", 16384, 128) not in cells


def test_saved_results_are_of_this_form():
    saved = ROOT / "benchmarks" / "results" / "peers.json"
    if not saved.exists():
        pytest.skip("no results were saved")
    kept = json.loads(saved.read_text())
    assert {"machine", "libraries", "cells"} <= kept.keys()
    assert all(row["microseconds"] for row in kept["cells"])
