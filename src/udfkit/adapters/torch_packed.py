"""The order of the samples in a PackedSequence: by step, then by descending length."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from udfkit.layout import Layout

__all__ = ["packed_order", "packing"]


def packed_order(layout: Layout, sizes: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return where each sample is in data that is ordered by step, then by descending length."""
    begins = np.cumsum(sizes) - sizes
    steps = np.arange(layout.total) - np.repeat(layout.offsets[:-1], layout.lengths)
    return begins[steps] + np.repeat(place, layout.lengths)


def packing(layout: Layout) -> tuple[np.ndarray, PackedSequence]:
    """Return the order, and the rest, of a PackedSequence of these lengths.

    Raises
    ------
    ValueError
        When a sequence is empty, which a PackedSequence cannot hold, with its index.
    """
    lengths = layout.lengths
    if not len(lengths) or not lengths.min():
        what = f"sequence {int(np.argmin(lengths))} is empty" if len(lengths) else "there are none"
        raise ValueError(
            f"a PackedSequence holds one or more sequences of length 1 or more, but {what}: ask "
            f"for another form with out_form="
        )
    descending = np.argsort(-lengths, kind="stable")
    place = np.empty_like(descending)
    place[descending] = np.arange(len(descending))
    sizes = (lengths > np.arange(layout.lengths.max())[:, np.newaxis]).sum(axis=1, dtype=np.int64)
    rest = PackedSequence(
        torch.empty(layout.total),
        torch.from_numpy(sizes),
        torch.from_numpy(descending),
        torch.from_numpy(place),
    )
    return packed_order(layout, sizes, place), rest
