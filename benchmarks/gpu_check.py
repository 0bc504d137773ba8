"""Everything that needs a GPU, in one run of under five minutes.

    python benchmarks/gpu_check.py [--out FOLDER] [--seconds 240] [--smoke]

Needs Python 3.11 or newer with numpy, numba and numba-cuda; uses PyTorch and pytest where they are
installed. Fetches nothing and needs no installation: it runs from a checkout. Writes
``gpu_check.json`` and ``gpu_check.txt``. Without a GPU it says what is missing and ends with 2;
with one it ends with 1 when a check failed, and with 0 otherwise, whatever the speed.
``--smoke`` tries the script itself on tiny sizes, also on numba's simulator.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT)]

import numpy as np  # noqa: E402

import reference  # noqa: E402
from benchmarks.gpu_correctness import correctness  # noqa: E402
from udfkit.kernels import cuda_arrays, cuda_mask_moves, cuda_moves, cuda_target  # noqa: E402
from udfkit.kernels.cuda_arrays import download, upload  # noqa: E402

GOAL_OF_COPY = 0.85
LARGE = 256 << 20


def say(line: str) -> None:
    """Write one line."""
    sys.stdout.write(f"{line}\n")


def installed(name: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(name) is not None


class Clock:
    """Times work on the default stream by events; on the simulator, by the host's clock."""

    def __init__(self, repeats: int) -> None:
        self.cuda = cuda_target.module()
        self.repeats = repeats
        self.has_events = not cuda_target.is_simulated()

    def seconds(self, work: Callable[[], Any]) -> float:
        """Median time on the device of one call, after one that is not timed."""
        work()
        self.cuda.synchronize()
        return float(np.median([self._once(work) for _ in range(self.repeats)]))

    def _once(self, work: Callable[[], Any]) -> float:
        if not self.has_events:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        first, last = self.cuda.event(timing=True), self.cuda.event(timing=True)
        first.record()
        work()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def host_seconds(self, work: Callable[[], Any], count: int) -> float:
        """Time of the host for one call, while the device works behind it."""
        work()
        self.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            work()
        spent = time.perf_counter() - begin
        self.cuda.synchronize()
        return spent / count


def versions() -> dict[str, Any]:
    """What the numbers were measured with."""
    from importlib import metadata

    cuda = cuda_target.module()
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("numpy", "numba", "numba-cuda", "torch", "pytest"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    found["devices"] = list(cuda_target.status().devices)
    found["simulated"] = cuda_target.is_simulated()
    found["multiprocessors"] = cuda_target.multiprocessors(0)
    if not cuda_target.is_simulated():
        found["memory_bytes"] = int(cuda.current_context().get_memory_info().total)
    return found


def first_use() -> list[float]:
    """Host seconds until the first result, and of the second call."""
    values, offsets = upload(np.ones((6, 16), np.float32)), upload(np.array([0, 2, 6]))
    ticks = [time.perf_counter()]
    for _ in range(2):
        download(cuda_moves.ragged_to_padded(values, offsets, 4)[0])
        ticks.append(time.perf_counter())
    return np.diff(ticks).tolist()


def two_streams() -> dict[str, bool]:
    """Put dependent work on two streams, the second told only by events."""
    cuda = cuda_target.module()
    first, second = cuda.stream(), cuda.stream()
    lengths = np.full(500, 40)
    flat = np.random.default_rng(1).random((20_000, 32))
    offsets = upload(reference.offsets(lengths))
    for _ in range(20):
        data, _ = cuda_moves.ragged_to_padded(upload(flat), offsets, 40, stream=first)
        back = cuda_moves.padded_to_ragged(data, offsets, len(flat), stream=second)
        reference.assert_same(download(back, second), flat)
    return {"equal": True}


def no_host_wait() -> dict[str, Any]:
    """See whether calls return while the stream is still busy with something long."""
    import torch  # noqa: TID251

    values, offsets = upload(np.ones((64_000, 16), np.float32)), upload(np.arange(0, 64_001, 64))
    data, _ = cuda_moves.ragged_to_padded(values, offsets, 64)
    cuda_moves.padded_to_ragged(data, offsets, 64_000)
    cuda_target.module().synchronize()
    torch.cuda._sleep(400_000_000)
    event = cuda_target.module().event()
    event.record()
    begin = time.perf_counter()
    for _ in range(20):
        data, _ = cuda_moves.ragged_to_padded(values, offsets, 64)
        back = cuda_moves.padded_to_ragged(data, offsets, 64_000)
    spent = time.perf_counter() - begin
    busy = not event.query()
    cuda_target.module().synchronize()
    assert busy, f"40 calls took {spent:.4f} s and ended after the work before them"
    assert download(back).shape == (64_000, 16)
    return {"returned_while_busy": busy, "host_seconds_of_40_calls": spent}


def device_tests() -> dict[str, Any]:
    """Run the test suite's device tests where pytest and hypothesis are installed."""
    if not (installed("pytest") and installed("hypothesis")):
        return {"skipped": "pytest and hypothesis are not installed"}
    environment = {**os.environ, "UDFKIT_TEST_CUDA": "device"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "cuda" / "device")],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return {"summary": done.stdout.strip().splitlines()[-1]}


def shapes(smoke: bool) -> Iterator[tuple[str, np.ndarray, int]]:
    """Laws of lengths and floats a sample: small batches, and outputs over 256 MB."""
    rng = np.random.default_rng(20_240_229)
    if smoke:
        yield "uniform", rng.integers(1, 6, 4), 4
        return
    for rows in (64, 1_024):
        for size in (1, 16, 64):
            yield f"uniform 1..100, B={rows}", rng.integers(1, 101, rows), size
    for size in (1, 16, 64, 256):
        rows = max(1, (LARGE + LARGE // 8) // (4 * size * 512))
        yield f"uniform 256..512, B={rows}", rng.integers(256, 513, rows), size
    skewed = np.clip(np.rint(rng.lognormal(np.log(50.0) - 0.5, 1.0, 4_096)), 1, 2_000)
    yield "long-tailed, B=4096", skewed.astype(np.int64), 16


def speed(clock: Clock, deadline: float, smoke: bool) -> list[dict[str, Any]]:
    """Time each operation against a copy of the same bytes, and against torch."""
    rows = []
    for law, lengths, size in shapes(smoke):
        if time.monotonic() > deadline:
            rows.append({"law": law, "floats": size, "skipped": "out of time"})
            continue
        rows += measure(clock, law, lengths, size)
    return rows


def measure(clock: Clock, law: str, lengths: Any, size: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each operation on one batch."""
    steps, total = int(lengths.max()), int(lengths.sum())
    flat_bytes, padded_bytes = 4 * size * total, 4 * size * steps * len(lengths)
    values = cuda_arrays.empty((total, size), np.float32)
    offsets, device_lengths = upload(reference.offsets(lengths)), upload(lengths)
    data, mask = cuda_moves.ragged_to_padded(values, offsets, steps)
    torch_times = against_torch(clock, lengths, size) if installed("torch") else {}
    operations: dict[str, tuple[int, Callable[[], Any]]] = {
        "ragged_to_padded": (
            flat_bytes + padded_bytes + steps * len(lengths),
            lambda: cuda_moves.ragged_to_padded(values, offsets, steps),
        ),
        "padded_to_ragged": (
            2 * flat_bytes,
            lambda: cuda_moves.padded_to_ragged(data, offsets, total),
        ),
        "mask_of": (
            steps * len(lengths),
            lambda: cuda_mask_moves.mask_of(device_lengths, None, steps),
        ),
        "read_mask": (steps * len(lengths), lambda: cuda_mask_moves.read_mask(mask)),
        "offsets_of": (16 * len(lengths), lambda: cuda_mask_moves.offsets_of(device_lengths)),
    }
    if len(lengths) <= 4_096:
        bounds = reference.offsets(lengths)
        whole = cuda_arrays.read_array(values, "values")
        parts = [
            whole.part(int(b) * 4 * size, (int(n), size), np.float32)
            for b, n in zip(bounds, lengths, strict=False)
        ]
        operations["rows_to_padded"] = (
            operations["ragged_to_padded"][0],
            lambda: cuda_moves.rows_to_padded(parts, steps),
        )
    for name, (moved, work) in operations.items():
        spent, copied = clock.seconds(work), copy_seconds(clock, moved)
        best = min(torch_times.get(name, {}).values(), default=None)
        yield {
            "law": law,
            "floats": size,
            "operation": name,
            "output_bytes": flat_bytes if name == "padded_to_ragged" else padded_bytes,
            "moved_bytes": moved,
            "seconds": spent,
            "gb_per_second": moved / spent / 1e9,
            "of_copy": copied / spent,
            "torch_seconds": torch_times.get(name, {}),
            "times_torch": None if best is None else best / spent,
        }


def copy_seconds(clock: Clock, moved: int) -> float:
    """Time of a copy on the device that reads and writes ``moved`` bytes together."""
    count = max(moved // 2, 1)
    source, target = (cuda_arrays.empty((count,), np.uint8) for _ in range(2))
    return clock.seconds(lambda: target.copy_to_device(source))


def against_torch(clock: Clock, lengths: Any, size: int) -> dict[str, dict[str, float]]:
    """Seconds of PyTorch's ways to do the same, by operation; empty where it sees no device."""
    import torch  # noqa: TID251

    if not torch.cuda.is_available():
        return {}
    offsets = torch.from_numpy(reference.offsets(lengths)).cuda()
    values = torch.ones((int(lengths.sum()), size), device="cuda")
    parts = list(values.split(lengths.tolist()))
    found: dict[str, dict[str, float]] = {"rows_to_padded": {}, "ragged_to_padded": {}}
    if len(parts) <= 16_384:
        # It launches a copy for each sequence: more of them would take the time of all the rest.
        found["rows_to_padded"]["pad_sequence"] = clock.seconds(
            lambda: torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        )
    steps = int(lengths.max())
    for name, work in {
        "jagged_to_padded_dense": lambda: torch.ops.aten._jagged_to_padded_dense_forward(
            values, [offsets], [steps], 0.0
        ),
        "nested_to_padded_tensor": lambda: torch.nested.nested_tensor_from_jagged(
            values, offsets, min_seqlen=1, max_seqlen=steps
        ).to_padded_tensor(0.0),
    }.items():
        try:
            found["ragged_to_padded"][name] = clock.seconds(work)
        except (RuntimeError, AttributeError, TypeError, NotImplementedError):
            continue
    dense = torch.ones((len(lengths), steps, size), device="cuda")
    kept = torch.arange(steps, device="cuda") < torch.from_numpy(lengths).cuda()[:, None]
    found["padded_to_ragged"] = {"boolean_mask": clock.seconds(lambda: dense[kept])}
    return found


def launch_cost(clock: Clock, smoke: bool) -> dict[str, float]:
    """Host time of one call on a batch too small to matter, by kind of array."""
    count = 2 if smoke else 300
    lengths = np.array([1, 2])
    values, offsets = upload(np.ones((3, 4), np.float32)), upload(reference.offsets(lengths))
    views = [cuda_arrays.read_array(array, "x") for array in (values, offsets)]
    kinds: dict[str, tuple[Any, Any]] = {"views": (views[0], views[1]), "numba": (values, offsets)}
    if installed("torch") and not cuda_target.is_simulated():
        import torch  # noqa: TID251

        kinds["torch"] = (
            torch.ones((3, 4), device="cuda"),
            torch.from_numpy(reference.offsets(lengths)).cuda(),
        )
    return {
        kind: clock.host_seconds(
            lambda pair=pair: cuda_moves.ragged_to_padded(pair[0], pair[1], 2), count
        )
        for kind, pair in kinds.items()
    }


def goals(report: dict[str, Any]) -> dict[str, Any]:
    """Compare the speeds with what they should be; nothing is judged that was not measured."""
    rows = [] if "speed" in report["failed"] else report["speed"]
    rows = [row for row in rows if "seconds" in row]
    moves = ("ragged_to_padded", "padded_to_ragged", "rows_to_padded")
    large = [
        row for row in rows
        if row["operation"] in moves and row["output_bytes"] > LARGE and row["floats"] >= 16
    ]  # fmt: skip
    faced = [row for row in rows if row["times_torch"] is not None]
    slowest = min((row["of_copy"] for row in large), default=None)
    behind = [f"{r['operation']}, {r['law']}, {r['floats']}" for r in faced if r["times_torch"] < 1]
    return {
        "least_of_copy_over_256_mb": slowest,
        "copy_goal_met": None if slowest is None else slowest >= GOAL_OF_COPY,
        "cells_against_torch": len(faced),
        "slower_than_torch": behind,
        "torch_goal_met": not behind if faced else None,
    }


def table(report: dict[str, Any]) -> str:
    """Write the report for people."""
    lines = [f"{name}: {value}" for name, value in report["versions"].items()]
    for name, value in report.items():
        if name not in ("versions", "speed") or name in report["failed"]:
            lines.append(f"{name}: {json.dumps(value)}")
    lines.append(
        f"\n{'operation':18}{'law':26}{'floats':>7}{'out MB':>9}{'us':>11}{'GB/s':>9}"
        f"{'of copy':>9}{'x torch':>9}"
    )
    for row in [] if "speed" in report["failed"] else report["speed"]:
        if "seconds" not in row:
            lines.append(f"{'':18}{row['law']:26}{row['floats']:>7}  {row['skipped']}")
            continue
        times = "" if row["times_torch"] is None else f"{row['times_torch']:.2f}"
        lines.append(
            f"{row['operation']:18}{row['law']:26}{row['floats']:>7}"
            f"{row['output_bytes'] / 2**20:>9.1f}{row['seconds'] * 1e6:>11.1f}"
            f"{row['gb_per_second']:>9.1f}{row['of_copy']:>9.2f}{times:>9}"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run all sections; a section that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    status = cuda_target.status()
    if not status.available:
        say(f"No GPU to check: {status.reason}. {status.advice}")
        return 2
    deadline = time.monotonic() + options.seconds
    clock = Clock(2 if options.smoke else 15)
    report: dict[str, Any] = {"versions": versions()}
    simulated = cuda_target.is_simulated()
    sections: dict[str, Callable[[], Any]] = {
        "first_use": first_use,
        "correctness": lambda: correctness(options.smoke),
        "launch_cost": lambda: launch_cost(clock, options.smoke),
        "speed": lambda: list(speed(clock, deadline - 70, options.smoke)),
    }
    if not simulated:
        sections["two_streams"] = two_streams
        if installed("torch"):
            sections["no_host_wait"] = no_host_wait
        sections["device_tests"] = device_tests
    failed = []
    for name, section in sections.items():
        begin = time.monotonic()
        try:
            report[name] = section()
        except Exception as error:  # noqa: BLE001 - the other sections still have their say
            report[name] = {"failed": f"{type(error).__name__}: {error}"[:4000]}
            failed.append(name)
        say(f"{name}: {time.monotonic() - begin:.1f} s{' FAILED' if name in failed else ''}")
    report["failed"] = failed
    report["goals"] = goals(report)
    texts = {"json": json.dumps(report, indent=1) + "\n", "txt": table(report)}
    options.out.mkdir(parents=True, exist_ok=True)
    for kind, text in texts.items():
        (options.out / f"gpu_check.{kind}").write_text(text)
    say(texts["txt"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
