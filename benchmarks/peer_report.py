"""What `peers.py` writes: tables, a summary, the figures to reach, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

import udfkit
from benchmarks.libraries import JOBS

OWN = {
    JOBS[0]: ("sanitize_batch", "sanitize_batch, pool off", "pad"),
    JOBS[1]: ("variable_value_to_seq", "unpad"),
    JOBS[2]: ("pad",),
    JOBS[3]: ("unpad",),
}
LIMITS = ("limit, fresh", "limit, zeroed", "limit, warm")

Row = dict[str, Any]


def table(rows: list[Row], job: str) -> list[str]:
    """Write the rows of one job as a Markdown table of ratios to udfkit's first function."""
    rows = [row for row in rows if row["job"] == job]
    if not rows:
        return []
    own, *others = OWN[job]
    skip = {own, *others, *LIMITS}
    names = list(dict.fromkeys(n for r in rows for n in r["microseconds"] if n not in skip))
    lines = [
        f"\n## {job}\n",
        f"Microseconds of `{own}`, and how many times longer (>1) or shorter the others take.\n",
        "| " + " | ".join(["lengths", "B", "sample", own, *others, *LIMITS, *names]) + " |",
        "|---|" + "---:|" * (3 + len(others) + len(LIMITS) + len(names)),
    ]
    for row in rows:
        times = row["microseconds"]
        shown = [row["law"], str(row["batch_size"]), str(row["sample_size"]), f"{times[own]:.1f}"]
        shown += [
            f"{times[n] / times[own]:.2f}" if n in times else row["failed"].get(n, "")
            for n in (*others, *LIMITS, *names)
        ]
        lines.append("| " + " | ".join(shown) + " |")
    lines += ["", *summary(rows, own, names)]
    return lines


def summary(rows: list[Row], own: str, names: list[str]) -> list[str]:
    """Geometric means, the worst cell, and the distance to the limit."""
    lines = []
    for name in names:
        ratios = [
            r["microseconds"][name] / r["microseconds"][own]
            for r in rows
            if name in r["microseconds"]
        ]
        if ratios:
            mean = exp(sum(map(log, ratios)) / len(ratios))
            lines.append(
                f"- {name}: geometric mean {mean:.2f} times as long in {len(ratios)} cells "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )
    best = []
    for row in rows:
        times = row["microseconds"]
        peers = {n: times[n] for n in names if n in times}
        if peers:
            fastest = min(peers, key=lambda n: peers[n])
            best.append((peers[fastest] / times[own], fastest, row))
    if best:
        mean = exp(sum(log(ratio) for ratio, _, _ in best) / len(best))
        ratio, name, row = min(best, key=lambda found: found[0])
        lines.append(
            f"- fastest peer of each cell: geometric mean {mean:.2f}, least {ratio:.2f} ({name}; "
            f"{row['law']}, B={row['batch_size']}, sample size {row['sample_size']})"
        )
    return lines


def machine() -> dict[str, Any]:
    """Say where the figures come from."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": name,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "udfkit": udfkit.__version__,
    }


def figures(rows: list[Row]) -> list[str]:
    """Say of each figure to reach in how many cells it is reached, and where it is missed most."""
    lines = [
        "\n## Figures to reach\n",
        "Time over allowance, the worst cell; 1.00 or less is reached.\n",
        "| figure | cells | reached | worst | where |",
        "|---|---:|---:|---:|---|",
    ]
    for text, job, wanted, allowed, name in _FIGURES:
        found = [
            (row["microseconds"][name] / allowed(row), row)
            for row in rows
            if row["job"] == job and wanted(row)
        ]
        if found:
            worst, row = max(found, key=lambda pair: pair[0])
            where = f"{row['law']}, B={row['batch_size']}, sample size {row['sample_size']}"
            reached = sum(ratio <= 1.0 for ratio, _ in found)
            lines.append(f"| {text} | {len(found)} | {reached} | {worst:.2f} | {where} |")
    return lines


def _fastest_peer(row: Row) -> float:
    skip = {*OWN[row["job"]], *LIMITS}
    return min(t for name, t in row["microseconds"].items() if name not in skip)


def _has_peer(row: Row) -> bool:
    return len(row["microseconds"]) > len({*OWN[row["job"]], *LIMITS} & {*row["microseconds"]})


def _limit(row: Row) -> float:
    return min(row["microseconds"][name] for name in LIMITS[:2])


def _no_slower(row: Row) -> float:
    peer = _fastest_peer(row)
    return max(peer / 0.9, peer + 2.0)


def _warm(row: Row) -> float:
    return 1.2 * row["microseconds"][LIMITS[2]] + 5.0


def _is_warm_cell(row: Row) -> bool:
    return row["batch_size"] >= 64 and row["sample_size"] >= 16 and row["padded_bytes"] < 80e6


_FIGURES: list[tuple[str, str, Callable[[Row], bool], Callable[[Row], float], str]] = [
    (
        "sanitize_batch: no slower than 0.9x the fastest peer or by 2 us",
        JOBS[0],
        _has_peer,
        _no_slower,
        "sanitize_batch",
    ),
    (
        "sanitize_batch, B >= 1024, sample size 1: a quarter of the fastest peer",
        JOBS[0],
        lambda r: _has_peer(r) and r["batch_size"] >= 1024 and r["sample_size"] == 1,
        lambda r: _fastest_peer(r) / 4,
        "sanitize_batch",
    ),
    (
        "sanitize_batch, pool off, sample size >= 16: 1.3x limit + 8 us",
        JOBS[0],
        lambda r: r["sample_size"] >= 16,
        lambda r: 1.3 * _limit(r) + 8,
        "sanitize_batch, pool off",
    ),
    (
        "sanitize_batch, pool off, sample size 1: 1.5x limit + 30 ns a sequence + 8 us",
        JOBS[0],
        lambda r: r["sample_size"] == 1,
        lambda r: 1.5 * _limit(r) + 0.03 * r["batch_size"] + 8,
        "sanitize_batch, pool off",
    ),
    (
        "sanitize_batch, output over 32 MB: 0.65x of the same with the pool off",
        JOBS[0],
        lambda r: r["padded_bytes"] > 32 << 20,
        lambda r: 0.65 * r["microseconds"]["sanitize_batch, pool off"],
        "sanitize_batch",
    ),
    (
        "sanitize_batch, 8 sequences, sample size 1: 7 us",
        JOBS[0],
        lambda r: r["batch_size"] == 8 and r["sample_size"] == 1,
        lambda _: 7.0,
        "sanitize_batch",
    ),
    (
        "pad, 8 sequences, sample size 1: 5 us",
        JOBS[0],
        lambda r: r["batch_size"] == 8 and r["sample_size"] == 1,
        lambda _: 5.0,
        "pad",
    ),
    (
        "variable_value_to_seq: flat copy + 110 ns a sequence + 4 us",
        JOBS[1],
        lambda _: True,
        lambda r: r["microseconds"][LIMITS[0]] + 0.11 * r["batch_size"] + 4,
        "variable_value_to_seq",
    ),
    (
        "pad from ragged, warm, B >= 64, sample size >= 16, up to 80 MB: 1.2x limit + 5 us",
        JOBS[2],
        _is_warm_cell,
        _warm,
        "pad",
    ),
    (
        "unpad to ragged, the same cells: 1.2x limit + 5 us",
        JOBS[3],
        _is_warm_cell,
        _warm,
        "unpad",
    ),
]
