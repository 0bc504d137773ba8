"""What the demo prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from udfkit.demo.checking import TOLERANCE, Checked
from udfkit.demo.clock import CONVERSION, REST, USER_CODE
from udfkit.demo.data import Utterances
from udfkit.demo.training import History

if TYPE_CHECKING:
    from udfkit.demo.compiled import Compared

__all__ = ["compiled", "gradients", "summary", "task", "typical_epoch"]

_WHAT = {
    CONVERSION: "batches into the user function and out of it",
    USER_CODE: "AttentionPooling.forward and .backward",
    REST: "noise, dense layers, loss and Adam, in plain NumPy",
}


def task(training: Utterances, test: Utterances) -> str:
    """Say what there is to learn, and from what."""
    speakers = len(np.unique(training.speakers))
    lengths = np.concatenate([training.lengths, test.lengths])
    return "\n".join(
        [
            f"Who is speaking? One of {speakers} speakers says two vowels; name the speaker.",
            _line("utterances", f"{len(training)} to learn from, {len(test)} to be tested with"),
            _line("frames", f"{lengths.min()} to {lengths.max()} an utterance, 12 numbers each"),
        ]
    )


def gradients(checks: Mapping[str, Checked]) -> str:
    """Say how far gradients are from finite differences."""
    lines = ["", "Gradients against finite differences, in float64"]
    for what, check in checks.items():
        verdict = "ok" if check.passed else f"WRONG: more than {TOLERANCE:.0e}"
        text = f"{check.entries:>4} entries, largest relative error {check.error:.1e}   {verdict}"
        lines.append(_line(what, text))
    return "\n".join([*lines, ""])


def typical_epoch(history: History) -> dict[str, float]:
    """Return the seconds of the epoch whose total is the median, by label.

    Examples
    --------
    >>> from udfkit.demo.training import History
    >>> epochs = [{"user code": s, "the rest": 1.0} for s in (9.0, 2.0, 3.0)]
    >>> typical_epoch(History(seconds=epochs))
    {'user code': 3.0, 'the rest': 1.0}
    """
    ordered = sorted(history.seconds, key=lambda seconds: sum(seconds.values()))
    return ordered[len(ordered) // 2]


def summary(history: History, tested: int, picture: Path, seconds: float) -> str:
    """Say how well it went, where the time went, and where the picture is."""
    accuracy = history.accuracies[-1]
    epoch = typical_epoch(history)
    total = sum(epoch.values())
    lines = [
        "",
        "Result",
        _line("accuracy", f"{100 * accuracy:.1f} %, {round(accuracy * tested)} of {tested}"),
        _line("an epoch", f"{1000 * total:5.1f} ms, the median of {len(history.seconds)}"),
    ]
    for label, took in epoch.items():
        share = f"{1000 * took:5.1f} ms {100 * took / total:3.0f} %"
        lines.append(_line(f"  {label}", f"{share}   {_WHAT[label]}"))
    lines += [
        _line("altogether", f"{seconds:5.1f} s"),
        _line("picture", str(picture)),
    ]
    return "\n".join(lines)


def compiled(history: History, tested: int, compared: Compared) -> str:
    """Say how well the compiled function learned, and how much faster it is."""
    accuracy = history.accuracies[-1]
    return "\n".join(
        [
            "",
            "The same model with CompiledPooling, written for one utterance and compiled",
            _line("accuracy", f"{100 * accuracy:.1f} %, {round(accuracy * tested)} of {tested}"),
            _line(
                "a batch",
                f"{1e3 * compared.plain:6.3f} ms of user code and conversion in plain NumPy",
            ),
            _line(
                "",
                f"{1e3 * compared.compiled:6.3f} ms compiled: {compared.factor:.1f} times faster",
            ),
        ]
    )


def _line(label: str, text: str) -> str:
    return f"  {label:<14}{text}"
