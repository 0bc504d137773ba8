"""`bucket_batches`: which sequences to pad together, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from udfkit.errors import shape_text
from udfkit.sources import whole_number

__all__ = ["bucket_batches"]


def bucket_batches(
    lengths: Any,
    max_cells: int,
    *,
    seed: int | Sequence[int] | None = None,
    max_sequences: int | None = None,
    multiple_of: int = 1,
) -> list[np.ndarray]:
    """Group sequences of similar length into batches of a bounded padded size.

    Parameters
    ----------
    lengths : sequence of int, shape (n,)
        Any integer dtype.
    max_cells : int
        Most cells of a padded batch: its sequences times its longest length.
    seed : int or sequence of int, optional
        Mixes sequences of equal length, and the order of the batches; the same seed gives the same
        batches on every machine and with every NumPy. ``(seed, epoch)`` mixes each epoch anew.
        Without it batches go from the longest sequences to the shortest.
    max_sequences : int, optional
        Most sequences of a batch.
    multiple_of : int, default 1
        Lengths are counted as rounded up to a multiple of it, as `udfkit.pad` will round them.

    Returns
    -------
    list of ndarray
        int64 indices, each of 0 to n - 1 in exactly one batch.

    Raises
    ------
    ValueError
        For a negative length, or one that does not fit ``max_cells``, with its position.

    Examples
    --------
    >>> import udfkit
    >>> [batch.tolist() for batch in udfkit.bucket_batches([5, 1, 4, 2, 1], max_cells=8)]
    [[0], [2, 3], [1, 4]]
    """
    given = np.asarray(lengths, np.int64 if len(lengths) == 0 else None)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(
            f"lengths are {given.dtype} of shape {shape_text(given.shape)}, expected a vector of "
            f"integers"
        )
    budget = whole_number(max_cells, "max_cells")
    factor = whole_number(multiple_of, "multiple_of", 1)
    most = len(given) if max_sequences is None else whole_number(max_sequences, "max_sequences", 1)
    bad = np.flatnonzero((given < 0) | (given > budget // factor * factor))
    if len(bad):
        k = int(bad[0])
        raise ValueError(
            f"length {given[k]} at position {k} is out of range: expected 0 to "
            f"{budget // factor * factor}, what fits max_cells={budget} with "
            f"multiple_of={factor}; raise max_cells, or truncate it"
        )
    steps = -(-given.astype(np.int64) // factor) * factor
    bits = None if seed is None else np.random.PCG64(seed)
    order = _mixed(len(given), bits)
    order = order[np.argsort(-steps[order], kind="stable")]
    batches = []
    begin = 0
    while begin < len(order):
        longest = int(steps[order[begin]])
        count = min(budget // longest, most) if longest else most
        batches.append(order[begin : begin + count])
        begin += count
    return [batches[k] for k in _mixed(len(batches), bits)]


def _mixed(count: int, bits: np.random.PCG64 | None) -> np.ndarray:
    """Return 0 to count - 1 in an order drawn from raw bits, whose stream NumPy never changes."""
    if bits is None:
        return np.arange(count)
    return np.argsort(bits.random_raw(count), kind="stable")
