"""Measure from how many bytes on a second thread pays; prints milliseconds and ratios.

Run it with ``python benchmarks/measure_threads.py`` on a machine with idle cores. Rows of 4 KB are
copied into warm memory: by one thread, by ``udfkit.threads``, and, to show what the machine can do,
by one and two threads of plain ``memmove``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from udfkit.kernels.intrinsics import memcpy
from udfkit.kernels.jit import kernel
from udfkit.kernels.pyobjects import address
from udfkit.threads import run_ranges, thread_count

ROW = 4096
SIZES = (0.5, 1, 2, 3, 4, 6, 8, 16, 26, 52)


@kernel(nogil=True)
def copy_rows(first: int, last: int, out: int, source: int) -> None:
    """Copy rows first to last - 1."""
    for row in range(first, last):
        memcpy(out + row * ROW, source + row * ROW, ROW)


def milliseconds(functions: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Time functions in turn; return the median of each."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, found in zip(functions, times, strict=True):
            start = perf_counter()
            function()
            found.append(perf_counter() - start)
    return [1e3 * median(found) for found in times]


def main() -> None:
    """Print the table."""
    sys.stdout.write(f"{thread_count()} threads\n")
    sys.stdout.write("    MB      one   pool ratio   memmove   two  ratio\n")
    with ThreadPoolExecutor(1) as executor:
        for megabytes in SIZES:
            rows = int(megabytes * 2**20) // ROW
            size = rows * ROW
            source, out = np.ones(size, np.uint8), np.zeros(size, np.uint8)
            begin, end = address(source), address(out)
            half = size // 2

            def two(begin: int = begin, end: int = end, half: int = half, size: int = size) -> None:
                other = executor.submit(ctypes.memmove, end + half, begin + half, size - half)
                ctypes.memmove(end, begin, half)
                other.result()

            one_pool, pool, one_move, two_moves = milliseconds(
                [
                    lambda rows=rows, args=(end, begin): run_ranges(copy_rows, [0, rows], args),
                    lambda rows=rows, args=(end, begin): run_ranges(
                        copy_rows, [0, rows // 2, rows], args
                    ),
                    lambda args=(end, begin, size): ctypes.memmove(*args),
                    two,
                ],
                rounds=max(20, int(400 / megabytes)),
            )
            sys.stdout.write(
                f"{megabytes:6}{one_pool:9.3f}{pool:7.3f}{pool / one_pool:6.2f}"
                f"{one_move:10.3f}{two_moves:7.3f}{two_moves / one_move:6.2f}\n"
            )


if __name__ == "__main__":
    main()
