"""Throughput of training on up to hundreds of devices, by calculation; docs/scaling.md shows it.

Run it as ``python benchmarks/scaling_model.py``. No time here is measured: times follow from
`Assumptions`. Padding is counted, on batches that are made of the lengths of `benchmarks.laws`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import udfkit
from benchmarks import laws

SEQUENCES = 1 << 20
CELLS = (2048, 8192, 32768)
DEVICES = (1, 8, 64, 256, 512)


@dataclass(frozen=True)
class Assumptions:
    """A model, a device and a network; bytes, operations and seconds."""

    parameters: float = 100e6
    gradient_bytes: float = 4 * parameters
    operations: float = 6 * parameters
    operations_rate: float = 400e12
    optimizer_bytes: float = 28 * parameters
    function_bytes: float = 7 * 4 * 1024
    memory_rate: float = 3.35e12
    input_bytes: float = 4 * 80 + 1
    input_rate: float = 25e9
    node: int = 8
    node_rate: float = 450e9
    network_rate: float = 50e9
    latency: float = 5e-6
    overlap: float = 2 / 3

    def rows(self) -> list[list[str]]:
        """Each assumption in words, and its number."""
        return [
            ["parameters", f"{self.parameters / 1e6:.0f} million"],
            ["gradient: float32", f"{self.gradient_bytes / 1e6:.0f} MB a step"],
            [
                "operations: 2 a parameter forward, 4 backward, on padding too",
                f"{self.operations / 1e9:.1f} GFLOP a cell",
            ],
            ["operations that a device sustains", f"{self.operations_rate / 1e12:.0f} TFLOP/s"],
            [
                "optimizer: Adam, 4 float32 read and 3 written a parameter",
                f"{self.optimizer_bytes / 1e9:.1f} GB a step",
            ],
            [
                "user function, 1,024 float32 a cell: unpad 2 passes, forward 1, backward 2, pad 2",
                f"{self.function_bytes / 1e3:.1f} kB a cell",
            ],
            ["memory of a device", f"{self.memory_rate / 1e12:.2f} TB/s"],
            [
                "input: 80 float32 and a mask byte, moved before the step",
                f"{self.input_bytes:.0f} B a cell",
            ],
            ["host to device", f"{self.input_rate / 1e9:.0f} GB/s"],
            [
                f"network of a device, each way, up to {self.node} devices",
                f"{self.node_rate / 1e9:.0f} GB/s",
            ],
            [
                f"network of a device, each way, above {self.node}",
                f"{self.network_rate / 1e9:.0f} GB/s",
            ],
            ["latency of a message", f"{self.latency * 1e6:.0f} us"],
            [
                "share of the operations behind which the all-reduce hides: the backward",
                f"{self.overlap:.2f}",
            ],
        ]

    def network_seconds(self, devices: int) -> float:
        """Ring all-reduce of the gradient: 2 (p - 1) messages, each of the p-th part of it."""
        rate = self.node_rate if devices <= self.node else self.network_rate
        return 2 * (devices - 1) * (self.gradient_bytes / devices / rate + self.latency)

    def step_seconds(self, cells: np.ndarray, devices: int) -> np.ndarray:
        """Seconds of steps whose largest batch has so many cells: all wait for that one."""
        computing = cells * self.operations / self.operations_rate
        memory = (cells * self.function_bytes + self.optimizer_bytes) / self.memory_rate
        reading = cells * self.input_bytes / self.input_rate
        waiting = np.maximum(self.network_seconds(devices) - self.overlap * computing, 0)
        return computing + memory + reading + waiting


def cells_as_they_come(lengths: np.ndarray, max_cells: int) -> list[int]:
    """Cells of batches without buckets: in the order of the data, while the next one fits."""
    found = []
    longest = count = 0
    for length in lengths.tolist():
        grown = max(longest, length)
        if grown * (count + 1) > max_cells:
            found.append(longest * count)
            grown, count = length, 0
        longest, count = grown, count + 1
    return [*found, longest * count]


def cells_in_buckets(lengths: np.ndarray, max_cells: int, devices: int) -> list[int]:
    """Cells of the batches of `udfkit.bucket_batches`."""
    batches = udfkit.bucket_batches(lengths, max_cells, world_size=devices)
    # Without a seed the longest sequence of a batch is its first.
    return [len(batch) * int(lengths[batch[:1]].sum()) for batch in batches]


def rate(lengths: np.ndarray, cells: list[int], devices: int) -> float:
    """Valid samples a second, when every device takes the next batch in each step."""
    idle = [0] * (-len(cells) % devices)
    largest = np.array([*cells, *idle]).reshape(-1, devices).max(axis=1)
    return float(lengths.sum() / Assumptions().step_seconds(largest, devices).sum())


def waste(lengths: np.ndarray, cells: list[int]) -> float:
    """Share of the cells that are padding."""
    return float(1 - lengths.sum() / sum(cells))


def padding_rows() -> list[list[str]]:
    """Padding without buckets, and with them in data of several sizes."""
    rows = []
    for law in laws.LAWS:
        every = laws.lengths(law, SEQUENCES)
        for max_cells in CELLS:
            parts = [every[:count] for count in (1_000, 10_000, SEQUENCES)]
            found = [
                waste(every, cells_as_they_come(every, max_cells)),
                *[waste(part, cells_in_buckets(part, max_cells, 1)) for part in parts],
            ]
            rows.append([law, f"{max_cells:,}", *[f"{share:.1%}" for share in found]])
    return rows


def throughput_rows() -> list[list[str]]:
    """Million valid samples a second, for each law, batch size and way to make batches."""
    rows = []
    for law in laws.LAWS:
        lengths = laws.lengths(law, SEQUENCES)
        for max_cells in CELLS:
            alone = cells_as_they_come(lengths, max_cells)
            ways = {
                "no": [alone for _ in DEVICES],
                "yes": [cells_in_buckets(lengths, max_cells, p) for p in DEVICES],
            }
            for buckets, made in ways.items():
                rates = [rate(lengths, cells, p) for cells, p in zip(made, DEVICES, strict=True)]
                efficiency = rates[-1] / (rates[0] * DEVICES[-1])
                shown = [f"{found / 1e6:.3g}" for found in rates]
                padding = f"{waste(lengths, made[0]):.1%}"
                rows.append([law, f"{max_cells:,}", buckets, padding, *shown, f"{efficiency:.0%}"])
    return rows


def network_rows() -> list[list[str]]:
    """Devices, megabytes that each sends in a step, and milliseconds of the all-reduce."""
    assumed = Assumptions()
    return [
        [
            f"{p}",
            f"{2 * (p - 1) / p * assumed.gradient_bytes / 1e6:.0f}",
            f"{assumed.network_seconds(p) * 1e3:.1f}",
        ]
        for p in DEVICES
    ]


def table(heads: list[str], rows: list[list[str]], left: int) -> str:
    """Return a Markdown table; all columns but the first ones are aligned to the right."""
    marks = ["---"] * left + ["--:"] * (len(heads) - left)
    return "".join(f"| {' | '.join(row)} |\n" for row in [heads, marks, *rows])


def tables() -> dict[str, str]:
    """Every table of the page, by name."""
    sizes = [f"{count:,} in buckets" for count in (1_000, 10_000, SEQUENCES)]
    devices = ["buckets", "padding", *map(str, DEVICES), f"efficiency at {DEVICES[-1]}"]
    return {
        "assumptions": table(["assumption", "number"], Assumptions().rows(), 1),
        "network": table(["devices", "MB sent by each", "ms"], network_rows(), 0),
        "padding": table(["lengths", "cells", "no buckets", *sizes], padding_rows(), 1),
        "throughput": table(["lengths", "cells", *devices], throughput_rows(), 1),
    }


if __name__ == "__main__":
    sys.stdout.write("\n".join(tables().values()))
