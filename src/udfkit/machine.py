"""How much memory and how many cores this process can have."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["machine_bytes", "usable_cores"]


def machine_bytes(root: str = "/") -> int:
    """Return the memory this process can have: that of the machine, or of its control groups.

    Parameters
    ----------
    root
        Where the ``proc`` and ``sys`` file systems are.

    Examples
    --------
    >>> from udfkit.machine import machine_bytes
    >>> machine_bytes() > 0
    True
    """
    limits = [_physical_bytes()]
    for version, folder in _groups(Path(root), "memory"):
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        limits += _read_numbers(folder / name)
    return min(limits)


def usable_cores(root: str = "/") -> int:
    """Return how many cores this process may use, by its affinity and its control groups' quotas.

    Parameters
    ----------
    root
        Where the ``proc`` and ``sys`` file systems are.

    Examples
    --------
    >>> from udfkit.machine import usable_cores
    >>> usable_cores() >= 1
    True
    """
    try:
        limits = [len(os.sched_getaffinity(0))]
    except AttributeError:
        limits = [os.cpu_count() or 1]
    for version, folder in _groups(Path(root), "cpu"):
        if version == 2:
            share = _read_numbers(folder / "cpu.max")
        else:
            share = _read_numbers(folder / "cpu.cfs_quota_us")
            share += _read_numbers(folder / "cpu.cfs_period_us")
        if len(share) == 2 and share[0] > 0 and share[1] > 0:
            limits.append(math.ceil(share[0] / share[1]))
    return max(1, min(limits))


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _windows_bytes() or sys.maxsize


def _windows_bytes() -> int:
    if sys.platform != "win32":
        return 0
    # MEMORYSTATUSEX: two 32-bit words, length and load, then seven 64-bit sizes, physical first.
    words = (ctypes.c_uint64 * 8)()
    ctypes.cast(words, ctypes.POINTER(ctypes.c_uint32))[0] = ctypes.sizeof(words)
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(words)):
        return 0
    return int(words[1])


def _groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of this process's control groups and of all groups above them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            version, places = 2, [mounted, mounted / "unified"]
        elif controller in controllers.split(","):
            version, places = 1, [mounted / controller, mounted / controllers]
        else:
            continue
        group = Path(path.lstrip("/"))
        for place in places:
            for folder in (group, *group.parents):
                yield version, place / folder


def _read_numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []
