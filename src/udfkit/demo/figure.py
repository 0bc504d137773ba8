"""The demo's picture: a batch's occupancy, the learning curve, and the attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import udfkit
from udfkit.demo.attention import attention_weights
from udfkit.demo.data import Utterances
from udfkit.demo.training import Classifier, History

__all__ = ["draw", "varied_lengths"]

INK = "#1f2a36"
MUTED = "#66727f"
PAPER = "#ffffff"
GRID = "#e4e8ec"
PADDING = "#eceff2"
VALID = "#3d7ea6"
BEGINNING = "#16324a"
ACCENT = "#d9662b"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}


def draw(
    path: Path,
    batch: udfkit.Value,
    history: History,
    classifier: Classifier,
    utterances: Utterances,
) -> None:
    """Write the picture as a PNG of 1600 x 1000 pixels.

    Parameters
    ----------
    path : Path
        Overwritten when it exists.
    batch : Value
        Of a sequence variable; its mask is shown.
    history : History
    classifier : Classifier
    utterances : Utterances
        Those whose attention is shown, a few; see `varied_lengths`.
    """
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(10, 6.25), dpi=160)
        FigureCanvasAgg(figure)
        columns = figure.add_gridspec(
            1,
            2,
            left=0.055,
            right=0.93,
            top=0.825,
            bottom=0.09,
            wspace=0.26,
            width_ratios=(1, 1.36),
        )
        rows = columns[1].subgridspec(2, 1, hspace=0.62, height_ratios=(1, 1.35))
        left, right, below = map(figure.add_subplot, (columns[0], rows[0], rows[1]))
        _occupancy(left, batch)
        _learning(right, history)
        _attention(figure, below, classifier, utterances)
        share = 100 * history.accuracies[-1]
        headline = f"{share:.1f} % of the test utterances named right"
        line: dict[str, Any] = {"y": 0.95, "fontweight": "bold", "va": "center"}
        figure.text(left.get_position().x0, s="Who is speaking?", fontsize=20, **line)
        figure.text(right.get_position().x0, s=headline, fontsize=13.5, color=ACCENT, **line)
        figure.savefig(path)


def varied_lengths(utterances: Utterances, count: int) -> Utterances:
    """Return a few utterances from the shortest to the longest, of different speakers if possible.

    Examples
    --------
    >>> from udfkit.demo.data import load
    >>> varied_lengths(load()[1], 3).lengths.tolist()
    [7, 18, 29]
    """
    lengths = utterances.lengths
    chosen: list[int] = []
    for wanted in np.linspace(lengths.max(), lengths.min(), count):
        seen = np.isin(utterances.speakers, utterances.speakers[chosen])
        seen[chosen] = True
        distance = np.abs(lengths - wanted) + 2.0 * seen
        distance[chosen] = np.inf
        chosen.insert(0, int(distance.argmin()))
    return Utterances([utterances.frames[k] for k in chosen], utterances.speakers[chosen])


def _heading(axes: Any, text: str, detail: str = "") -> None:
    for words, height, looks in (
        (text, 27, {"fontsize": 12, "fontweight": "bold"}),
        (detail, 11, {"fontsize": 9.5, "color": MUTED}),
    ):
        axes.annotate(
            words,
            (0, 1),
            (0, height),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            annotation_clip=False,
            **looks,
        )


def _occupancy(axes: Any, batch: udfkit.Value) -> None:
    mask = batch.mask
    rows, steps = mask.shape
    axes.pcolormesh(
        np.arange(steps + 1) + 0.5,
        np.arange(rows + 1) + 0.5,
        mask,
        cmap=ListedColormap([PADDING, VALID, BEGINNING]),
        vmin=0,
        vmax=2,
        edgecolors=PAPER,
        linewidth=1.0,
    )
    axes.invert_yaxis()
    axes.set_xlabel("frame")
    axes.set_ylabel("utterance")
    axes.set_xticks([1, *range(5, steps + 1, 5)])
    axes.set_yticks([1, *range(5, rows + 1, 5)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _heading(axes, f"One batch: {100 * float((mask == 0).mean()):.0f} % is padding")
    axes.legend(
        handles=[
            Patch(color=BEGINNING, label="beginning"),
            Patch(color=VALID, label="valid"),
            Patch(color=PADDING, label="padding"),
        ],
        loc="center left",
        bbox_to_anchor=(0, 1.029),
        ncols=3,
        fontsize=9.5,
        labelcolor=MUTED,
        borderpad=0,
        borderaxespad=0,
        handlelength=1.0,
        handleheight=1.0,
        handletextpad=0.5,
        columnspacing=1.4,
    )


def _learning(axes: Any, history: History) -> None:
    epochs = np.arange(1, len(history.losses) + 1)
    right = axes.twinx()
    axes.set_xlabel("epoch")
    axes.set_xlim(1, max(2, len(epochs)))
    axes.set_ylim(0, 1.05 * max(history.losses))
    right.set_ylim(0, 105)
    right.set_yticks([0, 25, 50, 75, 100])
    right.grid(axis="y", color=GRID, linewidth=0.8)
    for side, values, color, label in (
        (axes, np.array(history.losses), VALID, "training loss (nats)"),
        (right, 100 * np.array(history.accuracies), ACCENT, "test accuracy (%)"),
    ):
        side.plot(epochs, values, color=color, linewidth=2.2, solid_capstyle="round", clip_on=False)
        side.plot(epochs[-1:], values[-1:], "o", color=color, markersize=5.5, clip_on=False)
        side.set_ylabel(label, color=color)
        side.tick_params(axis="y", labelcolor=color, length=0, pad=8)
        side.spines[["left", "right", "top"]].set_visible(False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    # The curves belong above the other side's grid.
    axes.set_zorder(right.get_zorder() + 1)
    axes.patch.set_visible(False)
    _heading(
        axes,
        "Learning",
        f"after epoch {len(epochs)}: loss {history.losses[-1]:.2f}, "
        f"accuracy {100 * history.accuracies[-1]:.1f} %",
    )


def _attention(figure: Figure, axes: Any, classifier: Classifier, utterances: Utterances) -> None:
    hidden = classifier.model.hidden(classifier.batch(utterances.frames))
    query = classifier.model.query.value
    named = classifier.name_speakers(utterances.frames)
    heads = query.shape[1]
    colors = LinearSegmentedColormap.from_list("attention", (PADDING, "#9cc3d9", VALID, BEGINNING))
    middles = []
    for k, frames in enumerate(hidden):
        length, top = len(frames), k * (heads + 1.6)
        middles.append(top + heads / 2)
        mesh = axes.pcolormesh(
            np.arange(length + 1) + 0.5,
            top + np.arange(heads + 1),
            length * attention_weights(frames, query).T,
            cmap=colors,
            vmin=0,
            vmax=4,
            edgecolors=PAPER,
            linewidth=0.6,
        )
        right = named[k] == utterances.speakers[k]
        axes.text(
            length + 1.1,
            middles[-1],
            f"{length} frames" if right else f"{length} frames,\ntaken for {named[k] + 1}",
            fontsize=9,
            color=MUTED if right else ACCENT,
            va="center",
        )
    longest = int(utterances.lengths.max())
    axes.invert_yaxis()
    axes.set_xlim(0.5, 1.17 * longest)
    axes.set_xticks([1, *range(5, longest + 1, 5)])
    axes.set_yticks(middles, [f"speaker {speaker + 1}" for speaker in utterances.speakers])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("frame", x=0.5 / 1.17)
    _heading(axes, "Attention", f"where the {heads} heads look, a line each, in test utterances")
    key = axes.inset_axes((0.72, 0.88, 0.27, 0.04))
    bar = figure.colorbar(mesh, cax=key, orientation="horizontal", ticks=range(5))
    bar.outline.set_visible(False)
    bar.set_ticklabels(["0", "1", "2", "3", "4+"])
    key.tick_params(length=0, labelsize=9)
    key.set_title("weight, 1 is the mean", fontsize=9, color=MUTED, pad=4)
