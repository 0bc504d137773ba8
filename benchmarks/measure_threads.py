"""Measure from how many bytes on a second thread pays; prints milliseconds and ratios.

Run it with ``python benchmarks/measure_threads.py`` on a machine with idle cores. Rows of 4 KB are
copied into warm memory: by one thread, by ``udfkit.threads``, and, to show what the machine can do,
by one and two threads of plain ``memmove``. Then whole batches are padded by one thread and by two.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import udfkit
from benchmarks import laws
from udfkit.kernels.intrinsics import memcpy
from udfkit.kernels.jit import kernel
from udfkit.kernels.pyobjects import address
from udfkit.threads import run_ranges, thread_count

ROW = 4096
SIZES = (0.5, 1, 2, 3, 4, 6, 8, 16, 26, 52)
BATCHES = (
    ("long_tailed", 64, 128),
    ("uniform_1_100", 1024, 32),
    ("equal_64", 1024, 64),
    ("long_tailed", 256, 64),
    ("uniform_1_100", 1024, 128),
    ("long_tailed", 1024, 16),
    ("equal_64", 16384, 16),
)


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


def pad_batches() -> None:
    """Print what `sanitize_batch`, with data and mask read, takes by one thread and by two."""
    sys.stdout.write("    MB  sanitize_batch of          one    two  ratio\n")
    for law, batch_size, sample_size in BATCHES:
        sequences = laws.sequences(law, batch_size, sample_size)
        variable = udfkit.sequence.input_variable(sample_size)

        def read(threads: str, sequences: Any = sequences, variable: Any = variable) -> Any:
            os.environ["UDFKIT_NUM_THREADS"] = threads
            value = udfkit.sanitize_batch(variable, sequences)
            return value.data, value.mask

        megabytes = read("1")[0].nbytes / 2**20
        runs = [lambda read=read: read("1"), lambda read=read: read("2")]
        one, two = milliseconds(runs, rounds=40)
        name = f"{law}, {batch_size}, {sample_size}"
        sys.stdout.write(f"{megabytes:6.1f}  {name:22}{one:9.3f}{two:7.3f}{two / one:7.2f}\n")


def main() -> None:
    """Print the tables."""
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
    pad_batches()


if __name__ == "__main__":
    main()
