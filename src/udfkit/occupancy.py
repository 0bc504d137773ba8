"""How much of a padded batch is data, as a small grid, whatever the size of the batch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from udfkit.layout import Layout

__all__ = ["coverage", "waste_of"]

ROWS_A_BAND = 64
"""Most rows that are looked at for one row of the grid; more are sampled evenly."""


def waste_of(layout: Layout) -> float:
    """Return the part of the cells that is padding, 0 to 1; 0 where there are no cells.

    Examples
    --------
    >>> import numpy as np
    >>> from udfkit.layout import Layout
    >>> waste_of(Layout.of_lengths(np.array([3, 0, 1])))
    0.5555555555555556
    """
    cells = layout.rows * layout.steps
    return 1.0 - layout.total / cells if cells else 0.0


def coverage(layout: Layout, bands: int, columns: int) -> np.ndarray:
    """Return what part of the cells is valid, in a grid of at most (bands, columns).

    Parameters
    ----------
    layout : Layout
        Of kind 'sequence'.
    bands, columns : int
        Most rows and columns of the grid; a smaller batch has one for each row and step.

    Returns
    -------
    ndarray of float64, shape (bands, columns)
        0 padding to 1 valid. A band is the mean of its rows, or of 64 rows spread evenly over it.

    Examples
    --------
    >>> import numpy as np
    >>> from udfkit.layout import Layout
    >>> layout = Layout.of_lengths(np.array([4, 1, 2, 0]))
    >>> coverage(layout, 2, 2).tolist()
    [[0.75, 0.5], [0.5, 0.0]]
    """
    grid = np.zeros((min(layout.rows, bands), min(layout.steps, columns)))
    if grid.size == 0:
        return grid
    row_edges = np.arange(len(grid) + 1) * layout.rows // len(grid)
    edges = np.arange(grid.shape[1] + 1) * layout.steps // grid.shape[1]
    for band, (first, last) in enumerate(pairwise(row_edges)):
        count = min(int(last - first), ROWS_A_BAND)
        rows = first + np.arange(count) * (last - first) // count
        if layout.contiguous:
            filled = np.minimum(layout.lengths[rows, np.newaxis], edges).sum(axis=0)
            valid = np.diff(filled)
        else:
            valid = np.add.reduceat((layout.mask[rows] != 0).sum(axis=0), edges[:-1])
        grid[band] = valid / (np.diff(edges) * count)
    return grid
