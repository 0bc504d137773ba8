"""The tables of docs/scaling.md are what its script prints, and what follows by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "scaling_model.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="benchmarks/ is not installed")


@pytest.fixture
def model(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import scaling_model

    return scaling_model


def test_the_page_has_the_tables_that_the_script_prints():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    tables = done.stdout.split("\n\n")
    assert len(tables) == 4
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    for table in tables:
        assert f"\n\n{table.strip()}\n\n" in page


def test_the_ring_is_the_one_of_a_simulation(model):
    for p in (1, 2, 5, 8):
        # Rank r holds p parts; in 2 (p - 1) rounds each passes one part to the next rank.
        start = np.random.default_rng(p).integers(0, 9, (p, p))
        parts = start.copy()
        rounds = 0
        for adds in (True, False):
            for k in range(p - 1):
                sent = [(r - k + (not adds)) % p for r in range(p)]
                passed = [parts[r, sent[r]] for r in range(p)]
                for r in range(p):
                    to = (r + 1) % p
                    parts[to, sent[r]] = passed[r] + (parts[to, sent[r]] if adds else 0)
                rounds += 1
        assert (parts == start.sum(axis=0)).all()
        assumed = model.Assumptions(gradient_bytes=1000.0, node_rate=50.0, latency=3.0)
        assert assumed.network_seconds(p) == pytest.approx(rounds * (1000 / p / 50 + 3))


def test_one_step_by_hand(model):
    # 8192 cells on each of 64 devices: milliseconds of operations, memory, input and all-reduce.
    operations = 8192 * 0.6e9 / 400e12 * 1e3
    assert operations == pytest.approx(12.288)
    memory = (8192 * 28672 + 2.8e9) / 3.35e12 * 1e3
    reading = 8192 * 321 / 25e9 * 1e3
    network = 126 * (6.25e6 / 50e9 + 5e-6) * 1e3
    assert network == pytest.approx(16.38)
    expected = operations + memory + reading + network - 8.192
    assumed = model.Assumptions()
    assert 1e3 * assumed.step_seconds(np.array([8192]), 64)[0] == pytest.approx(expected)
    hidden = assumed.step_seconds(np.array([32768]), 64) - assumed.step_seconds(
        np.array([32768]), 1
    )
    assert hidden[0] == 0


def test_a_step_takes_the_time_of_its_largest_batch(model):
    lengths = np.array([4, 4, 4, 2, 2])
    rate = model.rate(lengths, [8, 4, 4], 2)
    seconds = model.Assumptions().step_seconds(np.array([8, 4]), 2).sum()
    assert rate == pytest.approx(16 / seconds)


def test_batches_without_buckets_take_the_next_that_fits(model):
    assert model.cells_as_they_come(np.array([2, 2, 5, 1, 1, 8, 1]), 8) == [4, 5, 2, 8, 1]
    lengths = np.random.default_rng(0).integers(1, 20, 300)
    cells = model.cells_as_they_come(lengths, 64)
    begin = 0
    for found in cells:
        count = next(
            n
            for n in range(len(lengths) - begin, 0, -1)
            if n * lengths[begin : begin + n].max() <= 64
        )
        assert found == count * lengths[begin : begin + count].max()
        begin += count
    assert begin == len(lengths)


def test_cells_in_buckets_are_those_of_the_batches(model):
    import udfkit

    lengths = np.random.default_rng(0).integers(1, 20, 300)
    for devices in (1, 3, 7):
        batches = udfkit.bucket_batches(lengths, 64, world_size=devices)
        expected = [len(batch) * lengths[batch].max() for batch in batches]
        assert model.cells_in_buckets(lengths, 64, devices) == expected
        assert model.waste(lengths, expected) == pytest.approx(1 - lengths.sum() / sum(expected))
