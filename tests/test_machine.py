"""How much memory and how many cores: read from control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from udfkit import machine
from udfkit.machine import machine_bytes, usable_cores


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


PHYSICAL = machine._physical_bytes()
GROUPS = "proc/self/cgroup"
HERE = "sys/fs/cgroup"

MEMORY: dict[str, tuple[dict[str, str], int]] = {
    "no groups": ({}, PHYSICAL),
    "version 2": ({GROUPS: "0::/a/b\n", f"{HERE}/a/b/memory.max": "5000000\n"}, 5_000_000),
    "no limit": ({GROUPS: "0::/a\n", f"{HERE}/a/memory.max": "max\n"}, PHYSICAL),
    "a group above": (
        {
            GROUPS: "0::/a/b\n",
            f"{HERE}/a/b/memory.max": "max\n",
            f"{HERE}/a/memory.max": "7000000",
        },
        7_000_000,
    ),
    "a namespace": ({GROUPS: "0::/\n", f"{HERE}/memory.max": "6000000\n"}, 6_000_000),
    "version 1": (
        {
            GROUPS: "4:cpu,cpuacct:/x\n3:memory:/a\n1:name=systemd:/\n",
            f"{HERE}/memory/a/memory.limit_in_bytes": "4000000\n",
        },
        4_000_000,
    ),
    "version 1, no limit": (
        {GROUPS: "3:memory:/\n", f"{HERE}/memory/memory.limit_in_bytes": "9223372036854771712\n"},
        PHYSICAL,
    ),
    "both": (
        {
            GROUPS: "3:memory:/a\n0::/a\n",
            f"{HERE}/memory/a/memory.limit_in_bytes": "4000000\n",
            f"{HERE}/unified/a/memory.max": "3000000\n",
        },
        3_000_000,
    ),
    "damaged": ({GROUPS: "0::/a\n", f"{HERE}/a/memory.max": "lots\n"}, PHYSICAL),
}


@pytest.mark.parametrize("case", MEMORY)
def test_memory_is_the_smallest_limit(tmp_path: Path, case: str) -> None:
    files, expected = MEMORY[case]
    assert machine_bytes(write(tmp_path, files)) == expected


CORES: dict[str, tuple[dict[str, str], float]] = {
    "no groups": ({}, 8),
    "version 2": ({GROUPS: "0::/a\n", f"{HERE}/a/cpu.max": "150000 100000\n"}, 2),
    "no quota": ({GROUPS: "0::/a\n", f"{HERE}/a/cpu.max": "max 100000\n"}, 8),
    "less than one": ({GROUPS: "0::/a\n", f"{HERE}/a/cpu.max": "10000 100000\n"}, 1),
    "a large quota": ({GROUPS: "0::/a\n", f"{HERE}/a/cpu.max": "9900000 100000\n"}, 8),
    "version 1": (
        {
            GROUPS: "4:cpu,cpuacct:/x\n",
            f"{HERE}/cpu/x/cpu.cfs_quota_us": "300000\n",
            f"{HERE}/cpu/x/cpu.cfs_period_us": "100000\n",
        },
        3,
    ),
    "version 1, joint mount, no quota": (
        {
            GROUPS: "4:cpu,cpuacct:/\n",
            f"{HERE}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            f"{HERE}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        8,
    ),
}


@pytest.mark.parametrize("case", CORES)
def test_cores_are_the_smallest_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    files, expected = CORES[case]
    assert usable_cores(write(tmp_path, files)) == expected


def test_systems_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores(str(tmp_path)) == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(str(tmp_path)) == 1


def test_systems_that_do_not_tell_their_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", refuse)
    assert machine_bytes(str(tmp_path)) >= 2**31
