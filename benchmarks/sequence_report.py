"""What `sequence_functions.py` writes: tables of ratios, the figures to reach, and the machine."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peer_report import machine

RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A figure to reach, in every row of a section that it speaks of.

    ``measure`` gives what is compared with what is asked: a ratio to a peer, or microseconds; None
    for a row that the figure does not speak of.
    """

    section: str
    text: str
    asked: float
    measure: Callable[[Row], float | None]
    unit: str = "x"
    at_most: bool = False

    def is_reached(self, measured: float) -> bool:
        """Whether so much is enough."""
        return measured <= self.asked if self.at_most else measured >= self.asked

    def worst(self, measured: Iterable[float]) -> float:
        """The one that misses most."""
        return max(measured) if self.at_most else min(measured)


def over(peer: str, **wanted: Any) -> Callable[[Row], float | None]:
    """How many times as long a peer takes, in rows with these values."""

    def measure(row: Row) -> float | None:
        times = row["microseconds"]
        if peer not in times or any(row.get(key) != value for key, value in wanted.items()):
            return None
        return times[peer] / times["udfkit"]

    return measure


def _scaled(dtype: str) -> Callable[[Row], float | None]:
    ratio = over("torch", dtype=dtype)
    return lambda row: None if row["model"] == "certain and wrong" else ratio(row)


def _long(row: Row) -> float | None:
    return over("one thread")(row) if row["microseconds"]["one thread"] > 4000 else None


FIGURES = [
    Figure("ctc_loss", "torch, float32", 2.0, over("torch", dtype="float32")),
    Figure("ctc_loss", "torch, float64", 3.0, over("torch", dtype="float64")),
    Figure("ctc_loss", "aim: torch, float32, in linear space", 6.0, _scaled("float32")),
    Figure("ctc_loss", "aim: torch, float64, in linear space", 10.0, _scaled("float64")),
    Figure("linear_chain_crf", "NumPy loop", 30.0, over("NumPy loop")),
    Figure("linear_chain_crf", "torch autograd", 5.0, over("torch")),
    Figure("soft_dtw", "anti-diagonal NumPy", 12.0, over("NumPy")),
    Figure("attention_pooling", "NumPy user function", 10.0, over("NumPy loop")),
    Figure(
        "empty function",
        "one call from Value to Value",
        15.0,
        lambda row: row["microseconds"]["udfkit"],
        unit=" us",
        at_most=True,
    ),
    Figure("two threads", "one thread, over 4 ms", 1.5, _long),
    Figure(
        "reduction",
        "time of the naive sum",
        1.05,
        lambda row: row["microseconds"]["udfkit"] / row["microseconds"]["one sum"],
        at_most=True,
    ),
]


def about(command: str, seed: int) -> dict[str, Any]:
    """Say where the figures come from."""
    found = {**machine(), "command": command, "seed": seed}
    for name in ("numba", "torch"):
        try:
            found[name] = importlib.import_module(name).__version__
        except ImportError:
            found[name] = "not installed"
    return found


def line(row: Row) -> str:
    """Write a row for a person who waits."""
    times = row["microseconds"]
    own = times["udfkit"]
    others = [f", {name} {t / own:.2f}x" for name, t in times.items() if name != "udfkit"]
    return f"  {_case(row)}: {own:.1f} us{''.join(others)}"


def _case(row: Row) -> str:
    return " ".join(part for part in (row["dtype"], row["shape"], row["model"]) if part)


def table(rows: list[Row], section: str) -> list[str]:
    """Write the rows of a section as a Markdown table."""
    rows = [row for row in rows if row["section"] == section]
    if not rows:
        return []
    names = list(dict.fromkeys(n for r in rows for n in r["microseconds"] if n != "udfkit"))
    head = ["dtype", "shape", "model", "microseconds", *names]
    lines = [
        f"\n## {section}\n",
        f"{rows[0]['what']}\n",
        f"| {' | '.join(head)} |",
        f"|---|---|---|{'---:|' * (1 + len(names))}",
    ]
    for row in rows:
        times = row["microseconds"]
        shown = [row["dtype"], row["shape"], row["model"], f"{times['udfkit']:.1f}"]
        shown += [f"{times[n] / times['udfkit']:.2f}x" if n in times else "" for n in names]
        lines.append(f"| {' | '.join(shown)} |")
    return lines


def figures(rows: list[Row]) -> list[str]:
    """Write what was asked and what was measured, the worst row of each figure."""
    lines = [
        "\n## Figures to reach\n",
        "The worst row of each.\n",
        "| function | against | asked | measured | rows | reached | worst row |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for figure in FIGURES:
        found = [
            (measured, row)
            for row in rows
            if row["section"] == figure.section and (measured := figure.measure(row)) is not None
        ]
        sign = "<=" if figure.at_most else ">="
        asked = f"{sign} {figure.asked:g}{figure.unit}"
        shown = ["", "0", "0", ""]
        if found:
            worst = figure.worst(measured for measured, _ in found)
            row = next(row for measured, row in found if measured == worst)
            reached = sum(figure.is_reached(measured) for measured, _ in found)
            shown = [f"{worst:.2f}{figure.unit}", str(len(found)), str(reached), _case(row)]
        lines.append(f"| {' | '.join([figure.section, figure.text, asked, *shown])} |")
    return lines


def report(rows: list[Row], where: dict[str, Any]) -> str:
    """Write everything."""
    lines = ["# Sequence functions beside what does the same, forward and backward, one thread\n"]
    lines += [f"- {name}: {value}" for name, value in where.items()]
    lines.append(
        "\nMedians of warm calls, in turns of 20 ms; results are compared before anything is "
        "timed. Peers are given as multiples of udfkit's time."
    )
    lines += figures(rows)
    for section in dict.fromkeys(row["section"] for row in rows):
        lines += table(rows, section)
    return "\n".join(lines) + "\n"


def save(rows: list[Row], where: dict[str, Any]) -> None:
    """Write the report, and the rows that it is made of."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sequence_functions.md").write_text(report(rows, where))
    kept = {"machine": where, "rows": rows}
    (RESULTS / "sequence_functions.json").write_text(json.dumps(kept, indent=1) + "\n")
