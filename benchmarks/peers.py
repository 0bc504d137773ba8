"""Compare udfkit with other libraries and with the limits of memory, in one process, interleaved.

    python benchmarks/peers.py --quick            # a few cells, a few rounds
    python benchmarks/peers.py --save             # the whole grid, into benchmarks/results/

Every library does each job once for the check before anything is timed. Times are medians of warm
calls in turn, one thread each, with the result dropped inside the time. What a peer pays for its
own form of the input (tensors over the same memory) is not timed; the mask is part of every
padding job.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import memmove, memset
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import udfkit
from benchmarks import laws, libraries, peer_report
from udfkit import memory

BATCH_SIZES = (8, 64, 1024, 16384)
SAMPLE_SIZES = (1, 16, 128)
MOST_BYTES = 1_500_000_000
RESULTS = Path(__file__).parent / "results"


def cells() -> Iterator[tuple[str, int, int]]:
    """Yield law, batch size and sample size of every cell that is not too large."""
    for law in laws.LAWS:
        for batch_size in BATCH_SIZES:
            longest = int(laws.lengths(law, batch_size).max())
            for sample_size in SAMPLE_SIZES:
                if 4 * batch_size * longest * sample_size < MOST_BYTES:
                    yield law, batch_size, sample_size


def own_jobs(data: libraries.Data, job: str) -> dict[str, Callable[[], Any]]:
    """What udfkit does for a job, by the names in `peer_report.OWN`."""
    variable = udfkit.sequence.input_variable(data.flat.shape[1:])
    sequences, lengths = data.sequences, data.lengths

    def sanitize() -> Any:
        value = udfkit.sanitize_batch(variable, sequences)
        return value.data, value.mask

    if job == libraries.JOBS[0]:
        return {
            "sanitize_batch": sanitize,
            "sanitize_batch, pool off": sanitize,
            "pad": lambda: tuple(udfkit.pad(sequences)),
        }
    if job == libraries.JOBS[1]:
        value = udfkit.sanitize_batch(variable, sequences)
        return {
            "variable_value_to_seq": lambda: udfkit.variable_value_to_seq(value, variable),
            "unpad": lambda: udfkit.unpad(data.padded, lengths=lengths),
        }
    if job == libraries.JOBS[2]:
        ragged = udfkit.Ragged(data.flat, data.offsets)
        out, mask = np.empty_like(data.padded), np.empty(data.mask.shape, np.int8)
        return {"pad": lambda: tuple(udfkit.pad(ragged, out=out, mask_out=mask))}
    flat = np.empty_like(data.flat)
    return {
        "unpad": lambda: (
            udfkit.unpad(data.padded, lengths=lengths, layout="ragged", out=flat).values
        )
    }


def limits(data: libraries.Data, job: str) -> dict[str, Callable[[], Any]]:
    """Copies and fills of as many bytes as a job cannot do without."""
    source = data.flat.__array_interface__["data"][0]
    valid = data.flat.nbytes
    if job in (libraries.JOBS[1], libraries.JOBS[3]):
        warm_flat = np.empty(valid, np.uint8)
        warm_address = warm_flat.__array_interface__["data"][0]

        def flat_copy() -> Any:
            out = np.empty(valid, np.uint8)
            memmove(out.ctypes.data, source, valid)
            return out

        def warm_copy() -> Any:
            memmove(warm_address, source, valid)
            return warm_flat

        return {peer_report.LIMITS[0]: flat_copy, peer_report.LIMITS[2]: warm_copy}
    total, count = data.padded.nbytes, data.mask.size

    def fresh() -> Any:
        out, mask = np.empty(total, np.uint8), np.empty(count, np.uint8)
        address = out.ctypes.data
        memmove(address, source, valid)
        memset(address + valid, 0, total - valid)
        memset(mask.ctypes.data, 1, count)
        return out, mask

    # Fresh pages are zeroed where they are touched, so the copy must touch as many rows.
    rows, width = len(data.lengths), total // len(data.lengths)
    mean = valid // rows
    pieces = data.flat.reshape(-1).view(np.uint8)[: rows * mean].reshape(rows, mean)

    def zeroed() -> Any:
        out, mask = np.zeros((rows, width), np.uint8), np.empty(count, np.uint8)
        out[:, :mean] = pieces
        memset(mask.ctypes.data, 1, count)
        return out, mask

    warm, warm_mask = np.zeros(total, np.uint8), np.zeros(count, np.uint8)

    def used() -> Any:
        address = warm.ctypes.data
        memmove(address, source, valid)
        memset(address + valid, 0, total - valid)
        memset(warm_mask.ctypes.data, 1, count)
        return warm, warm_mask

    return dict(zip(peer_report.LIMITS, (fresh, zeroed, used), strict=True))


def is_right(result: Any, data: libraries.Data, job: str) -> bool:
    """Whether a job was done."""
    made = libraries.as_numpy(result)
    if job in (libraries.JOBS[0], libraries.JOBS[2]):
        out, mask = made
        return (
            out.dtype == data.padded.dtype
            and np.array_equal(out, data.padded)
            and np.array_equal(np.asarray(mask) != 0, data.mask)
        )
    if job == libraries.JOBS[3]:
        return np.array_equal(made, data.flat)
    return len(made) == len(data.sequences) and all(
        np.array_equal(x, y) for x, y in zip(made, data.sequences, strict=True)
    )


def measure(runs: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, float]:
    """Return the median microseconds of each function; each round calls all, in another order.

    Every turn begins with a call before the clock starts, since a loop that needs a batch finds its
    own code, input and memory warm, and a short one is then called several times. A slow one has
    fewer rounds, so that all together take about ``seconds``.
    """
    mixed = random.Random(0)
    names = list(runs)
    calls, times = {}, {}
    share = seconds / len(runs)
    gc.collect()
    gc.disable()
    try:
        for name, run in runs.items():
            once = min(_time(run, name, 1) for _ in range(2))
            calls[name] = max(1, min(100, int(2e-4 / max(once, 1e-7))))
            times[name] = []
        for _ in range(rounds):
            mixed.shuffle(names)
            for name in names:
                if len(times[name]) < 3 or sum(times[name]) * (calls[name] + 1) < share:
                    times[name].append(_time(runs[name], name, calls[name]))
    finally:
        gc.enable()
    return {name: 1e6 * median(found) for name, found in times.items()}


def _time(run: Callable[[], Any], name: str, calls: int) -> float:
    pooled = not name.endswith("pool off")
    if not pooled:
        memory.configure(pool_bytes=0)
    run()
    start = time.perf_counter()
    for _ in range(calls):
        result = run()
        del result
    spent = (time.perf_counter() - start) / calls
    if not pooled:
        memory.configure()
    return spent


def run_cell(cell: tuple[str, int, int], job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Check and time one job on one batch."""
    law, batch_size, sample_size = cell
    data = libraries.make_data(laws.sequences(law, batch_size, sample_size))
    peers, wrong = {}, {}
    for name, jobs in libraries.load(tuple(options.peers))[0].items():
        heavy = name in libraries.HEAVY and data.padded.nbytes > libraries.HEAVY_BYTES
        if job in jobs and not heavy:
            peers[name] = jobs[job](data)
    runs = {**own_jobs(data, job), **peers}
    for name, run in list(runs.items()):
        try:
            right = is_right(run(), data, job)
            problem = "" if right else "wrong result"
        except Exception as error:  # noqa: BLE001 - a peer that fails is said to fail
            problem = type(error).__name__
        if problem:
            if name not in peers:
                raise RuntimeError(f"{name} on {cell}: {problem}")
            wrong[name] = problem
            del runs[name]
    times = measure({**runs, **limits(data, job)}, options.rounds, options.seconds)
    return {
        "job": job,
        "law": law,
        "batch_size": batch_size,
        "sample_size": sample_size,
        "padded_bytes": data.padded.nbytes,
        "valid_bytes": data.flat.nbytes,
        "microseconds": times,
        "failed": wrong,
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--laws", nargs="+", default=list(laws.LAWS), choices=laws.LAWS)
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=list(BATCH_SIZES))
    parser.add_argument("--sample-sizes", nargs="+", type=int, default=list(SAMPLE_SIZES))
    parser.add_argument("--jobs", nargs="+", default=list(libraries.JOBS), choices=libraries.JOBS)
    parser.add_argument("--peers", nargs="+", default=[], help="only these libraries")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=6.0, help="most time for one cell")
    parser.add_argument("--quick", action="store_true", help="small cells, few rounds")
    parser.add_argument("--save", action="store_true", help="write into benchmarks/results/")
    options = parser.parse_args(arguments)
    if options.quick:
        options.batch_sizes = [n for n in options.batch_sizes if n <= 1024]
        options.sample_sizes = [n for n in options.sample_sizes if n <= 16]
        options.rounds, options.seconds = min(options.rounds, 10), min(options.seconds, 1.0)
    return options


def main() -> None:
    """Run the cells and write the tables."""
    options = parse()
    libraries.use_one_thread()
    said = libraries.load(tuple(options.peers))[1]
    rows = []
    chosen = [
        cell
        for cell in cells()
        if cell[0] in options.laws
        and cell[1] in options.batch_sizes
        and cell[2] in options.sample_sizes
    ]
    for job in options.jobs:
        for cell in chosen:
            rows.append(run_cell(cell, job, options))
            sys.stderr.write(f"{job} {cell}\n")
    about = peer_report.machine()
    lines = ["# udfkit beside other libraries, one thread each\n"]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += [f"- {name}: {value}" for name, value in said.items()]
    for job in options.jobs:
        lines += peer_report.table(rows, job)
    lines += peer_report.figures(rows)
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "peers.md").write_text(text)
        kept = {"machine": about, "libraries": said, "cells": rows}
        (RESULTS / "peers.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
