"""Pictures of batches; they need matplotlib, which the extra ``demo`` brings."""

from __future__ import annotations

from typing import Any

import numpy as np

from udfkit.layout import Layout
from udfkit.occupancy import coverage, waste_of
from udfkit.ragged import Ragged
from udfkit.value import Value

__all__ = ["occupancy"]

GRID = 512
"""Most cells of the picture a side; a larger batch is averaged."""

MARKED = 2000
"""Most sequences whose beginnings are marked."""


def occupancy(value: Value | Ragged, ax: Any = None) -> Any:
    """Draw which cells of a padded batch hold data, and where sequences begin.

    Parameters
    ----------
    value : Value or Ragged
        With a sequence axis. A Ragged is drawn as it would be padded on the right.
    ax : matplotlib Axes, optional
        Drawn into; by default a new figure with one.

    Returns
    -------
    matplotlib Axes
        Rows of the batch run down, steps to the right; valid cells are dark. A dot marks the first
        step of each sequence, a circle that of one that continues the batch before; in batches of
        over 2,000 rows or 512 rows or steps there are no marks, and a cell is a mean.

    Raises
    ------
    TypeError
        For something else, or a Value without a sequence axis.
    ModuleNotFoundError
        When matplotlib is not installed.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import udfkit
    >>> ax = udfkit.plot.occupancy(udfkit.Ragged.from_list([[1, 2, 3], [4]]))
    >>> ax.get_title()
    '2 sequences, 4 of 6 cells valid, 33.3 % padding'
    """
    layout = _layout_of(value)
    ax = _new_axes() if ax is None else ax
    ax.imshow(
        coverage(layout, GRID, GRID) if layout.rows * layout.steps else np.zeros((1, 1)),
        cmap="Blues",
        vmin=0.0,
        vmax=1.25,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, max(layout.steps, 1) - 0.5, max(layout.rows, 1) - 0.5, -0.5),
    )
    if layout.rows <= min(GRID, MARKED) and layout.steps <= GRID:
        _mark_beginnings(ax, layout, value.starts)
    cells = layout.rows * layout.steps
    ax.set_title(
        f"{layout.count:,} sequences, {layout.total:,} of {cells:,} cells valid, "
        f"{100.0 * waste_of(layout):.1f} % padding"
    )
    ax.set_xlabel("step")
    ax.set_ylabel("row")
    return ax


def _layout_of(value: Any) -> Layout:
    if isinstance(value, Ragged):
        return Layout.of_lengths(value.lengths)
    if not isinstance(value, Value):
        raise TypeError(
            f"value is a {type(value).__name__}, expected a Value or a Ragged: make one with "
            f"udfkit.sanitize_batch or udfkit.Ragged.from_list"
        )
    if value._layout.kind != "sequence":
        raise TypeError(
            f"{value!r} has no sequence axis, so it has no padding to draw: pass a Value of a "
            f"sequence variable"
        )
    return value._layout


def _new_axes() -> Any:
    try:
        from matplotlib import pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'a picture needs matplotlib, which is not installed: pip install "udfkit-kernels[demo]"'
            ", or pip install matplotlib",
            name=error.name,
        ) from error
    return plt.subplots()[1]


def _mark_beginnings(ax: Any, layout: Layout, starts: np.ndarray) -> None:
    if layout.contiguous:
        rows = np.flatnonzero(layout.lengths)
        steps = np.zeros_like(rows)
        new = starts[rows]
    else:
        mask = layout.mask
        rows, steps = np.nonzero(mask == 2)
        new = np.ones(len(rows), bool)
        begun = (mask != 0) & (np.cumsum(mask != 0, axis=1) == 1) & (mask == 1)
        continued = np.nonzero(begun)
        rows = np.concatenate([rows, continued[0]])
        steps = np.concatenate([steps, continued[1]])
        new = np.concatenate([new, np.zeros(len(continued[0]), bool)])
    for chosen, style in ((new, {"facecolors": "black"}), (~new, {"facecolors": "none"})):
        ax.scatter(steps[chosen], rows[chosen], s=12, edgecolors="black", linewidths=0.8, **style)
