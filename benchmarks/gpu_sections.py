"""The sections of ``gpu_check.py``; each runs in a process of its own, so none spoils another.

    python benchmarks/gpu_sections.py NAME RESULT.json SECONDS [--smoke]

What is known is written to the file as soon as it is known, so that a section which fails or is
ended half way has said what it could.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT)]

import numpy as np  # noqa: E402

import reference  # noqa: E402
import udfkit  # noqa: E402
from benchmarks.gpu_correctness import kernel_checks  # noqa: E402
from benchmarks.gpu_speed import Clock, brief, measure, shapes, torch_sees_device  # noqa: E402
from benchmarks.gpu_values import square_function, value_checks  # noqa: E402
from udfkit.kernels import cuda_arrays, cuda_moves, cuda_target  # noqa: E402
from udfkit.kernels.cuda_arrays import download, upload  # noqa: E402


class Run:
    """What a section is told, and where it writes what it finds."""

    def __init__(self, result: Path, seconds: float, smoke: bool) -> None:
        self.result = result
        self.deadline = time.monotonic() + seconds
        self.seconds = seconds
        self.smoke = smoke
        self.simulated = cuda_target.is_simulated()

    def save(self, found: Any) -> None:
        """Write what is known by now."""
        waiting = self.result.with_suffix(".part")
        waiting.write_text(json.dumps(found, indent=1) + "\n")
        waiting.replace(self.result)

    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.deadline


def run_checks(run: Run, checks: Iterable[tuple[str, Callable[[], None]]]) -> None:
    """Run checks one by one; one that fails does not stop the others."""
    found: dict[str, Any] = {"passed": 0, "failed": {}, "left_out": 0}
    for name, check in checks:
        if run.is_late():
            found["left_out"] += 1
            continue
        try:
            check()
            found["passed"] += 1
        except Exception as error:  # noqa: BLE001 - the other checks still have their say
            found["failed"][name] = brief(error)
        run.save(found)


def versions(run: Run) -> None:
    """What the numbers were measured with."""
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("numpy", "numba", "numba-cuda", "torch", "pytest", "hypothesis"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    found["devices"] = list(cuda_target.status().devices)
    found["simulated"] = run.simulated
    run.save(found)
    found["multiprocessors"] = cuda_target.multiprocessors(0)
    if not run.simulated:
        cuda = cuda_target.module()
        found["memory_bytes"] = int(cuda.current_context().get_memory_info().total)
        run.save(found)
        found["driver"] = str(cuda.cudadrv.driver.driver.get_version())
    run.save(found)


def first_use(run: Run) -> None:
    """Host seconds until the first result, and of the second call."""
    values, offsets = upload(np.ones((6, 16), np.float32)), upload(np.array([0, 2, 6]))
    ticks = [time.perf_counter()]
    for _ in range(2):
        download(cuda_moves.ragged_to_padded(values, offsets, 4)[0])
        ticks.append(time.perf_counter())
    run.save(dict(zip(("first", "second"), np.diff(ticks).tolist(), strict=True)))


def kernels(run: Run) -> None:
    """Every kernel against the naive reference."""
    run_checks(run, kernel_checks(run.smoke))


def values(run: Run) -> None:
    """Values and user functions against the same on the CPU."""
    run_checks(run, value_checks(run.smoke))


def two_streams(run: Run) -> None:
    """Put dependent work on two streams, the second told only by events."""
    cuda = cuda_target.module()
    first, second = (0, 0) if run.simulated else (cuda.stream(), cuda.stream())
    rows, steps = (3, 4) if run.smoke else (500, 40)
    flat = np.random.default_rng(1).random((rows * steps, 32))
    offsets = upload(reference.offsets(np.full(rows, steps)))
    rounds = 2 if run.smoke else 20
    for k in range(rounds):
        data, _ = cuda_moves.ragged_to_padded(upload(flat + k), offsets, steps, stream=first)
        back = cuda_moves.padded_to_ragged(data, offsets, len(flat), stream=second)
        reference.assert_same(download(back, second), flat + k)
    run.save({"rounds_equal": rounds})


def no_host_wait(run: Run) -> None:
    """See whether forward and backward return while the device is busy with something before."""
    cuda = cuda_target.module()

    @cuda.jit
    def spin(out: Any, count: int) -> None:
        x = out[0]
        for _ in range(count):
            x = x * 0.999999 + 1e-6
        out[0] = x

    x = udfkit.sequence.input_variable(16, needs_gradient=True)
    function = square_function(x)
    lengths = np.arange(1, 4) if run.smoke else np.arange(1, 65)
    offsets = reference.offsets(lengths)
    flat = upload(np.ones((int(offsets[-1]), 16), np.float32))

    def both() -> Any:
        value = udfkit.sanitize_batch(x, udfkit.Ragged(flat, offsets), copy=False)
        state, outputs = function._forward([value], None)
        roots = {function.output: outputs[function.output]}
        (gradient,) = function._backward(state, roots, [x]).values()
        return gradient.data, gradient.mask

    out, count = upload(np.ones(1)), 10 if run.smoke else 5_000_000
    spin[1, 1](out, 1)
    both()
    cuda.synchronize()
    begin = time.perf_counter()
    spin[1, 1](out, count)
    for _ in range(5):
        both()  # fills the pools of memory, the pinned one too
    cuda.synchronize()
    if not run.smoke:
        count = int(count * min(1.0 / (time.perf_counter() - begin), 100))
    times = []
    event = None if run.simulated else cuda.event(timing=False)
    spin[1, 1](out, count)
    if event is not None:
        event.record()
    for _ in range(5):
        begin = time.perf_counter()
        both()
        times.append(time.perf_counter() - begin)
    busy = event is not None and not event.query()
    cuda.synchronize()
    run.save({"returned_while_busy": busy, "host_seconds_of_a_call": times})
    assert busy or run.simulated, f"the calls took {times} s and ended after the work before them"


def device_tests(run: Run) -> None:
    """Run the test suite's device tests where pytest and hypothesis are installed."""
    run_tests(run, "tests/cuda/device", ["pytest", "hypothesis"], {})


def torch_tests(run: Run) -> None:
    """Run the tests of calls on PyTorch's device tensors where pytest and PyTorch are installed."""
    if not run.simulated and not torch_sees_device():
        run.save({"skipped": "no PyTorch that sees a GPU"})
        return
    run_tests(run, "tests/with_torch/on_device", ["pytest"], {"UDFKIT_TEST_TORCH": "1"})


def run_tests(run: Run, folder: str, needs: list[str], settings: dict[str, str]) -> None:
    """Run the tests of a folder for as long as there is time, and count them."""
    missing = [name for name in needs if find_spec(name) is None]
    if run.simulated or missing:
        run.save({"skipped": "the simulator" if run.simulated else f"{missing} not installed"})
        return
    environment = {**os.environ, "UDFKIT_TEST_CUDA": "device", **settings}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    log = run.result.with_suffix(".log")
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider"]
    found: dict[str, Any] = {}
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, str(ROOT / folder)],
            cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            found["status"] = process.wait(max(run.seconds - 10, 1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            found["status"] = "out of time"
    lines = log.read_text(errors="replace").splitlines()
    for word in ("PASSED", "FAILED", "ERROR", "SKIPPED"):
        found[word.lower()] = sum(f" {word} " in f"{line} " for line in lines if "::" in line)
    found["bad"] = [line for line in lines if " FAILED" in line or " ERROR" in line][:40]
    found["tail"] = lines[-30:] if found["status"] != 0 else lines[-1:]
    run.save(found)
    if found["status"] not in (0, "out of time") or found["failed"] + found["error"]:
        raise AssertionError(f"{found['failed']} failed, {found['error']} errors: {found['bad']}")


def speed(run: Run) -> None:
    """Time each operation against a copy of the same bytes, and against torch."""
    clock, rows = Clock(2 if run.smoke else 15), []
    for law, lengths, size in shapes(run.smoke):
        if run.is_late():
            rows.append({"law": law, "floats": size, "skipped": "out of time"})
        else:
            for row in measure(clock, law, lengths, size):
                rows.append(row)
                run.save(rows)
        run.save(rows)


def launch_cost(run: Run) -> None:
    """Host time of one call on a batch too small to matter, by kind of array."""
    clock, count, found = Clock(1), 2 if run.smoke else 300, {}
    lengths = np.array([1, 2])
    arrays = upload(np.ones((3, 4), np.float32)), upload(reference.offsets(lengths))
    kinds: dict[str, Callable[[], tuple[Any, Any]]] = {
        "views": lambda: tuple(cuda_arrays.read_array(array, "x") for array in arrays),
        "numba": lambda: arrays,
        "torch": lambda: torch_arrays(lengths),
    }
    for kind, make in kinds.items():
        if kind == "torch" and (run.simulated or not torch_sees_device()):
            continue
        try:
            flat, offsets = make()
            found[kind] = clock.host_seconds(
                lambda: cuda_moves.ragged_to_padded(flat, offsets, 2),  # noqa: B023 - called here
                count,
            )
        except Exception as error:  # noqa: BLE001 - the next kind still has its say
            found[kind] = f"failed: {brief(error)}"
        run.save(found)
    bad = [kind for kind, cost in found.items() if isinstance(cost, str)]
    assert not bad, f"{bad} could not be timed"


def torch_arrays(lengths: Any) -> tuple[Any, Any]:
    """Return flat values and offsets as tensors."""
    import torch  # noqa: TID251

    offsets = torch.from_numpy(reference.offsets(lengths)).cuda()
    return torch.ones((int(lengths.sum()), 4), device="cuda"), offsets


SECTIONS: dict[str, Callable[[Run], None]] = {
    section.__name__: section
    for section in (
        versions, first_use, kernels, values, launch_cost, speed, two_streams, no_host_wait,
        torch_tests, device_tests,
    )
}  # fmt: skip


def main(arguments: list[str]) -> None:
    """Run one section."""
    name, result, seconds, *options = arguments
    SECTIONS[name](Run(Path(result), float(seconds), "--smoke" in options))


if __name__ == "__main__":
    main(sys.argv[1:])
