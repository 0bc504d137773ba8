"""Times of the operations on a GPU, beside a copy of the same bytes and beside PyTorch."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

import reference
from udfkit.kernels import cuda_arrays, cuda_mask_moves, cuda_moves, cuda_target
from udfkit.kernels.cuda_arrays import upload

__all__ = ["Clock", "brief", "measure", "shapes", "torch_sees_device"]

LARGE = 256 << 20


def torch_sees_device() -> bool:
    """Whether there is a PyTorch that has CUDA and sees a GPU."""
    if find_spec("torch") is None:
        return False
    try:
        import torch  # noqa: TID251

        return bool(torch.cuda.is_available())
    except Exception:  # noqa: BLE001 - a half-installed one raises anything
        return False


def brief(error: BaseException) -> str:
    """Return the end of a traceback."""
    return "".join(traceback.format_exception(error))[-1500:]


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


def measure(clock: Clock, law: str, lengths: Any, size: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each operation on one batch; one that fails does not stop the others."""
    begin = {"law": law, "floats": size}
    try:
        torch_times = against_torch(clock, lengths, size)
        operations, padded_bytes, flat_bytes = operations_of(lengths, size)
    except Exception as error:  # noqa: BLE001 - the next batch still has its say
        yield {**begin, "skipped": f"failed: {brief(error)}"}
        return
    for name, (moved, work) in operations.items():
        try:
            spent, copied = clock.seconds(work), copy_seconds(clock, moved)
        except Exception as error:  # noqa: BLE001 - the next operation still has its say
            yield {**begin, "operation": name, "skipped": f"failed: {brief(error)}"}
            continue
        found = torch_times.get(name, {})
        timed = [t for t in found.values() if isinstance(t, float)]
        yield {
            **begin,
            "operation": name,
            "output_bytes": flat_bytes if name == "padded_to_ragged" else padded_bytes,
            "moved_bytes": moved,
            "seconds": spent,
            "gb_per_second": moved / spent / 1e9,
            "of_copy": copied / spent,
            "torch_seconds": found,
            "times_torch": min(timed) / spent if timed else None,
        }


def operations_of(lengths: Any, size: int) -> tuple[dict[str, Any], int, int]:
    """Return operations by name, with the bytes that each moves; padded and flat bytes."""
    steps, total = int(lengths.max()), int(lengths.sum())
    flat_bytes, padded_bytes = 4 * size * total, 4 * size * steps * len(lengths)
    bounds = reference.offsets(lengths)
    flat = cuda_arrays.empty((total, size), np.float32)
    offsets, device_lengths = upload(bounds), upload(lengths)
    data, mask = cuda_moves.ragged_to_padded(flat, offsets, steps)
    padding = flat_bytes + padded_bytes + steps * len(lengths)
    cells = steps * len(lengths)
    operations: dict[str, tuple[int, Callable[[], Any]]] = {
        "ragged_to_padded": (padding, lambda: cuda_moves.ragged_to_padded(flat, offsets, steps)),
        "padded_to_ragged": (
            2 * flat_bytes,
            lambda: cuda_moves.padded_to_ragged(data, offsets, total),
        ),
        "mask_of": (cells, lambda: cuda_mask_moves.mask_of(device_lengths, None, steps)),
        "read_mask": (cells, lambda: cuda_mask_moves.read_mask(mask)),
        "offsets_of": (16 * len(lengths), lambda: cuda_mask_moves.offsets_of(device_lengths)),
    }
    if len(lengths) <= 4_096:
        whole = cuda_arrays.read_array(flat, "values")
        parts = [
            whole.part(int(b) * 4 * size, (int(n), size), np.float32)
            for b, n in zip(bounds, lengths, strict=False)
        ]
        operations["rows_to_padded"] = padding, lambda: cuda_moves.rows_to_padded(parts, steps)
    return operations, padded_bytes, flat_bytes


def copy_seconds(clock: Clock, moved: int) -> float:
    """Time of a copy on the device that reads and writes ``moved`` bytes together."""
    count = max(moved // 2, 1)
    source, target = (cuda_arrays.empty((count,), np.uint8) for _ in range(2))
    return clock.seconds(lambda: target.copy_to_device(source))


def against_torch(clock: Clock, lengths: Any, size: int) -> dict[str, dict[str, Any]]:
    """Seconds of PyTorch's ways to do the same, or why not; empty where it sees no device."""
    if not clock.has_events or not torch_sees_device():
        return {}
    import torch  # noqa: TID251

    steps = int(lengths.max())
    offsets = torch.from_numpy(reference.offsets(lengths)).cuda()
    flat = torch.ones((int(lengths.sum()), size), device="cuda")
    dense = torch.ones((len(lengths), steps, size), device="cuda")
    kept = torch.arange(steps, device="cuda") < torch.from_numpy(lengths).cuda()[:, None]
    ways: dict[str, dict[str, Callable[[], Any]]] = {
        "ragged_to_padded": {
            "jagged_to_padded_dense": lambda: torch.ops.aten._jagged_to_padded_dense_forward(
                flat, [offsets], [steps], 0.0
            ),
            "nested_to_padded_tensor": lambda: torch.nested.nested_tensor_from_jagged(
                flat, offsets, min_seqlen=1, max_seqlen=steps
            ).to_padded_tensor(0.0),
        },
        "padded_to_ragged": {"boolean_mask": lambda: dense[kept]},
    }
    if len(lengths) <= 4_096:
        # It launches a copy for each sequence: more of them would take the time of all the rest.
        parts = list(flat.split(lengths.tolist()))
        ways["rows_to_padded"] = {
            "pad_sequence": lambda: torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        }
    return {
        name: {way: timed_or_why(clock, work) for way, work in several.items()}
        for name, several in ways.items()
    }


def timed_or_why(clock: Clock, work: Callable[[], Any]) -> float | str:
    """Return seconds, or the error of what this PyTorch cannot do."""
    try:
        return clock.seconds(work)
    except Exception as error:  # noqa: BLE001 - each release lacks something else
        return f"{type(error).__name__}: {error}"[:300]
