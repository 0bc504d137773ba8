"""What kind of fault a wrong gradient looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from udfkit.testing.compare import sequences_of, wide

__all__ = ["likely_fault"]


def likely_fault(
    kind: str,
    analytic: Any,
    numeric: Any,
    of_double: Any,
    lengths: Sequence[int],
    count: int,
    *,
    guess: bool = False,
) -> str:
    """Name the kind of fault, or return ''.

    Parameters
    ----------
    kind : {'sequence', 'batch', 'none'}
    analytic, numeric : plain parts
        NaN in ``numeric`` where it is not known.
    of_double : plain part
        The analytic gradient for root gradients twice as big.
    lengths : sequence of int
        By sequence, () when not known.
    count : int
        Number of sequences.
    guess : bool
        Whether to say where the gradient is right when it looks like none of the known kinds.
    """
    parts = [
        (k, wide(a), np.asarray(n))
        for (k, a), (_, n) in zip(
            sequences_of(kind, analytic), sequences_of(kind, numeric), strict=True
        )
    ]
    a, n = _join([a for _, a, _ in parts]), _join([n for _, _, n in parts])
    known = np.isfinite(n)
    if not known.any():
        return ""
    if not np.isfinite(a[known]).all():
        return "the gradient is not finite where the numeric one is"
    twice = _join([wide(part) for _, part in sequences_of(kind, of_double)])
    if _near(twice[known], a[known]) and a[known].any():
        return "backward ignores the root gradient: twice the root gradient gave the same result"
    if not a[known].any():
        return "the gradient is zero everywhere: backward has not filled it"
    if guess:
        return _first_only(kind, parts)
    return (
        _scale(a[known], n[known], count) or _scale_by_length(parts, lengths) or _order(kind, parts)
    )


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in parts]) if parts else np.empty(0)


def _near(a: np.ndarray, b: np.ndarray) -> bool:
    known = np.isfinite(b)
    room = 2e-3 * np.abs(b[known]) + 1e-3 * max(1e-12, float(np.abs(b[known]).max(initial=0)))
    return bool((np.abs(a[known] - b[known]) <= room).all())


def _factor(a: np.ndarray, n: np.ndarray) -> float | None:
    known = np.isfinite(n)
    a, n = a[known], n[known]
    if not n.any():
        return None
    factor = float((a * n).sum() / (n * n).sum())
    return factor if factor and _near(a, factor * n) else None


def _scale(a: np.ndarray, n: np.ndarray, count: int) -> str:
    factor = _factor(a, n)
    # Of one number, anything is a multiple.
    if factor is None or np.count_nonzero(n) < 2:
        return ""
    if abs(factor - 1) < 5e-3:
        return ""
    if abs(factor + 1) < 1e-2:
        return "wrong sign: every number is the numeric one times -1"
    text = f"wrong scale: every number is {factor:.4g} times the numeric one"
    if count > 1 and abs(factor - count) < 1e-2 * count:
        return f"{text}, the number of sequences: summed over the batch instead of averaged"
    if count > 1 and abs(factor * count - 1) < 1e-2:
        return f"{text}, one over the number of sequences: averaged instead of summed"
    return text


def _scale_by_length(
    parts: list[tuple[int, np.ndarray, np.ndarray]], lengths: Sequence[int]
) -> str:
    if len(lengths) != len(parts):
        return ""
    factors = [(_factor(a, n), lengths[k]) for k, a, n in parts if np.any(n)]
    if len({length for _, length in factors}) < 2 or any(f is None for f, _ in factors):
        return ""
    if all(abs(f - length) < 1e-2 * length for f, length in factors if f is not None):
        return (
            "wrong scale: each sequence's gradient is its length times the numeric one: summed "
            "over the steps instead of averaged"
        )
    if all(abs(f * length - 1) < 1e-2 for f, length in factors if f is not None):
        return (
            "wrong scale: each sequence's gradient is the numeric one divided by its length: "
            "averaged over the steps instead of summed"
        )
    return ""


def _order(kind: str, parts: list[tuple[int, np.ndarray, np.ndarray]]) -> str:
    if kind == "none":
        return ""
    numerics = [n for _, _, n in parts]
    sources = []
    for k, a, _ in parts:
        if not a.size:
            sources.append(k)
            continue
        fits = [j for j, n in enumerate(numerics) if n.shape == a.shape and _near(a, n) and n.any()]
        sources.append(k if k in fits else fits[0] if fits else -1)
    if -1 not in sources and sources != [k for k, _, _ in parts]:
        return (
            f"wrong sequence order: the gradients of sequences {[k for k, _, _ in parts]} are "
            f"those of sequences {sources}"
        )
    if kind == "sequence" and all(_near(a[::-1], n) for _, a, n in parts):
        return "wrong order of steps: each sequence's gradient is reversed"
    return ""


def _first_only(kind: str, parts: list[tuple[int, np.ndarray, np.ndarray]]) -> str:
    right = [_near(a, n) for _, a, n in parts]
    filled = [k for k, (_, a, _) in enumerate(parts) if a.size]
    if len(filled) > 1 and right[filled[0]] and not any(right[k] for k in filled[1:]):
        return f"sequence {filled[0]} is right and all later ones are wrong: an index or a stride"
    if kind == "sequence":
        long = [(a, n) for _, a, n in parts if len(a) > 1]
        if long and all(_near(a[:1], n[:1]) and not _near(a, n) for a, n in long):
            return (
                "step 0 of each sequence is right and later steps are wrong: a stride, or "
                "something carried from step to step"
            )
    return ""
