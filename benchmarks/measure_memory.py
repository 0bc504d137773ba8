"""Measure what the constants of ``udfkit.memory`` rest on; prints two tables in milliseconds.

Run it with ``python benchmarks/measure_memory.py``. The first table fills an array and drops it,
one at a time or four at once, with NumPy's allocation and with the pool. The second makes a padded
array of rows whose first part is copied and whose rest must be zero: written into ``np.empty``, or
left to ``np.zeros``; each array is dropped before the next one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from udfkit import memory

SIZES = (1, 4, 8, 16, 24, 32, 64, 128)
FRACTIONS = (0.25, 0.5, 0.75, 1.0)
ROW = 1 << 16

Allocate = Callable[..., np.ndarray[Any, Any]]


def say(line: str) -> None:
    """Write one line."""
    sys.stdout.write(f"{line}\n")


def fill(allocate: Allocate, megabytes: int, together: int, rounds: int) -> float:
    """Return the median milliseconds of making and filling an array."""
    times = []
    for _ in range(rounds):
        held = []
        for _ in range(together):
            start = perf_counter()
            array = allocate((megabytes << 20,), np.uint8)
            array.fill(1)
            times.append(perf_counter() - start)
            held.append(array)
        del held, array
    return 1e3 * median(times[together * 2 :])


def pad(allocate: Allocate, megabytes: int, fraction: float, *, zero: bool, rounds: int) -> float:
    """Return the median milliseconds of making a padded array."""
    rows = (megabytes << 20) // ROW
    valid = int(ROW * fraction)
    source = np.ones(valid, np.uint8)
    times = []
    for _ in range(rounds):
        start = perf_counter()
        array = allocate((rows, ROW), np.uint8)
        for row in array:
            row[:valid] = source
            if zero:
                row[valid:] = 0
        times.append(perf_counter() - start)
        del array
    return 1e3 * median(times[2:])


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    smallest, memory.SMALLEST_POOLED = memory.SMALLEST_POOLED, 1
    say("fill       one at a time     four at once")
    say("     MB   np.empty    pool  np.empty    pool")
    for megabytes in SIZES:
        cells = [
            fill(allocate, megabytes, together, rounds)
            for together in (1, 4)
            for allocate in (np.empty, memory.empty)
        ]
        memory.clear()
        say(f"{megabytes:7} " + "".join(f"{cell:9.3f}" for cell in cells))
    memory.SMALLEST_POOLED = smallest
    say("\npad, for each valid fraction np.empty and memset, then np.zeros")
    say("     MB " + "".join(f"{fraction:18.0%}" for fraction in FRACTIONS))
    for megabytes in SIZES:
        cells = [
            pad(allocate, megabytes, fraction, zero=zero, rounds=rounds)
            for fraction in FRACTIONS
            for allocate, zero in ((np.empty, True), (np.zeros, False))
        ]
        say(f"{megabytes:7} " + "".join(f"{cell:9.3f}" for cell in cells))


if __name__ == "__main__":
    main()
