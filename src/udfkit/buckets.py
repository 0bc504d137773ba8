"""`bucket_batches`: which sequences to pad together, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any

import numpy as np

from udfkit.arguments import whole_number
from udfkit.errors import shape_text

__all__ = ["bucket_batches"]


def bucket_batches(
    lengths: Any,
    max_cells: int,
    *,
    seed: int | Sequence[int] | None = None,
    max_sequences: int | None = None,
    multiple_of: int = 1,
    world_size: int = 1,
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
    world_size : int, default 1
        Number of processes that train together; ``max_cells`` holds for each. Every
        ``world_size`` batches are a step, one for each process, of similar length:
        ``batches[rank::world_size]`` are those of one process, as many as each other has.

    Returns
    -------
    list of ndarray
        int64 indices, each of 0 to n - 1 in exactly one batch. Where batches are left over when
        steps of ``world_size`` are made, those of the shortest sequences are cut, to have one more
        full step. A batch is empty only when there are fewer sequences than batches.

    Raises
    ------
    ValueError
        For a negative length, or one that does not fit ``max_cells``, with its position.

    Examples
    --------
    >>> import udfkit
    >>> [batch.tolist() for batch in udfkit.bucket_batches([5, 1, 4, 2, 1], max_cells=8)]
    [[0], [2, 3], [1, 4]]
    >>> batches = udfkit.bucket_batches([5, 1, 4, 2, 1], max_cells=8, world_size=2)
    >>> [[batch.tolist() for batch in batches[rank::2]] for rank in range(2)]
    [[[0], [1]], [[2, 3], [4]]]
    """
    given = np.asarray(lengths)
    if given.shape == (0,):
        given = np.empty(0, np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(
            f"lengths are {given.dtype} of shape {shape_text(given.shape)}, expected a vector of "
            f"integers"
        )
    budget = whole_number(max_cells, "max_cells")
    factor = whole_number(multiple_of, "multiple_of", 1)
    most = len(given) if max_sequences is None else whole_number(max_sequences, "max_sequences", 1)
    world = whole_number(world_size, "world_size", 1)
    bad = np.flatnonzero((given < 0) | (given > budget // factor * factor))
    if len(bad):
        k = int(bad[0])
        raise ValueError(
            f"length {given[k]} at position {k} is out of range: expected 0 to "
            f"{budget // factor * factor}, what fits max_cells={budget} with "
            f"multiple_of={factor}; raise max_cells, or truncate it"
        )
    steps = -(-given.astype(np.int64) // factor) * factor
    bits = _bits(seed)
    order = _mixed((len(given),), bits)
    order = order[np.argsort(-steps[order], kind="stable")]
    batches = []
    begin = 0
    while begin < len(order):
        longest = int(steps[order[begin]])
        count = min(budget // longest, most) if longest else most
        batches.append(order[begin : begin + count])
        begin += count
    _complete_last_step(batches, steps, world)
    first = world * _mixed((len(batches) // world, 1), bits, axis=0)
    return [batches[k] for k in (first + _mixed((len(first), world), bits)).ravel()]


def _bits(seed: Any) -> np.random.PCG64 | None:
    try:
        return None if seed is None else np.random.PCG64(seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"seed is {seed!r}, expected an integer of at least 0, or several: pass 0, or "
            f"(seed, epoch)"
        ) from None


def _complete_last_step(batches: list[np.ndarray], steps: np.ndarray, world: int) -> None:
    """Cut batches at the end of the list, those with most cells first, until every rank has one."""
    missing = -len(batches) % world
    begin = len(batches) // world * world
    spare = sum(len(batch) - 1 for batch in batches[begin:])
    while spare < missing and begin > 0:
        begin -= world
        spare += sum(len(batch) - 1 for batch in batches[begin : begin + world])
    last = batches[begin:]
    cells = [len(batch) * int(steps[batch[0]]) for batch in last]
    pieces = [1] * len(last)
    largest: list[tuple[float, int]] = [
        (-cells[k], k) for k, batch in enumerate(last) if len(batch) > 1
    ]
    heapify(largest)
    for _ in range(min(missing, spare)):
        k = largest[0][1]
        pieces[k] += 1
        if pieces[k] == len(last[k]):
            heappop(largest)
        else:
            heapreplace(largest, (-cells[k] / pieces[k], k))
    cut = [np.array_split(batch, n) for batch, n in zip(last, pieces, strict=True)]
    batches[begin:] = [piece for parts in cut for piece in parts]
    batches += [np.empty(0, np.int64)] * (missing - min(missing, spare))


def _mixed(shape: tuple[int, ...], bits: np.random.PCG64 | None, axis: int = -1) -> np.ndarray:
    """Return 0 to n - 1 along an axis, in an order drawn from raw bits.

    NumPy promises their stream for all its versions, and not that of a Generator.
    """
    drawn = np.zeros(shape) if bits is None else bits.random_raw(shape)
    return np.argsort(drawn, axis=axis, kind="stable")
