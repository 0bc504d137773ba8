"""The same user function, written for one utterance: it runs compiled over the whole batch."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,override"
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import udfkit
from udfkit.demo.clock import CONVERSION, USER_CODE
from udfkit.demo.model import Model
from udfkit.portable import dot, exp

__all__ = ["Compared", "CompiledPooling", "compare"]


class CompiledPooling(udfkit.SequenceFunction):
    """What `udfkit.demo.attention.AttentionPooling` computes, with the same formulas.

    The bodies get the arrays of one utterance and fill what is empty: outputs and gradients are 0
    at first. Scratch is not: ``a``, the weights, and ``q``, the query with a row a head, are kept
    from forward to backward; the rest has no meaning outside one call. Loops run along rows, which
    lets the compiler work on several numbers at once.

    Parameters
    ----------
    inputs : list of Variable
        The frames, a sequence of shape (size,), and the query, of shape (size, heads).

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> features = udfkit.sequence.input_variable(2, needs_gradient=True, name="features")
    >>> query = udfkit.Parameter(init=np.zeros((2, 1), np.float32), name="query")
    >>> pooling = CompiledPooling([features, query])
    >>> pooling.eval([[[1, 2], [3, 4]], [[5, 6]]]).tolist()
    [[[2.0, 3.0]], [[5.0, 6.0]]]
    """

    takes: ClassVar = {
        "x": udfkit.per_step("T", "size"),
        "query": udfkit.shared("size", "heads"),
    }
    gives: ClassVar = {"y": udfkit.per_sequence("heads", "size")}
    saved: ClassVar = {"a": ("heads", "T"), "q": ("heads", "size")}
    work: ClassVar = {"da": ("heads", "T"), "sums": ("heads", "size"), "row": ("size",)}

    @staticmethod
    def forward(x, query, a, q, row, y):
        """Fill the weights and the pooled frames of one utterance."""
        steps, size = x.shape
        for h in range(query.shape[1]):
            for d in range(size):
                q[h, d] = query[d, h]
                row[d] = 0.0
            high = -np.inf
            for t in range(steps):
                a[h, t] = dot(x[t], q[h])
                high = a[h, t] if a[h, t] > high else high
            total = 0.0
            for t in range(steps):
                a[h, t] = exp(a[h, t] - high)
                total += a[h, t]
            for t in range(steps):
                a[h, t] /= total
                for d in range(size):
                    row[d] += a[h, t] * x[t, d]
            for d in range(size):
                y[h, d] = row[d]

    @staticmethod
    def backward(x, a, q, da, sums, row, grad_y, grad_x, grad_query):  # noqa: C901, PLR0913, PLR0917
        """Fill the gradients of one utterance; that of the query is added up over all."""
        steps, size = x.shape
        heads = q.shape[0]
        for h in range(heads):
            mean = 0.0
            for t in range(steps):
                da[h, t] = dot(x[t], grad_y[h])
                mean += a[h, t] * da[h, t]
            for t in range(steps):
                da[h, t] = a[h, t] * (da[h, t] - mean)
            for d in range(size):
                sums[h, d] = 0.0
        for t in range(steps):
            for d in range(size):
                row[d] = 0.0
            for h in range(heads):
                ds = da[h, t]
                for d in range(size):
                    row[d] += a[h, t] * grad_y[h, d] + ds * q[h, d]
                for d in range(size):
                    sums[h, d] += ds * x[t, d]
            for d in range(size):
                grad_x[t, d] = row[d]
        for h in range(heads):
            for d in range(size):
                grad_query[d, h] += sums[h, d]


@dataclass(frozen=True)
class Compared:
    """How long two models took, side by side.

    Attributes
    ----------
    plain, compiled : float
        Seconds of user code and conversion for one batch, forward and backward: the medians.
    """

    plain: float
    compiled: float

    @property
    def factor(self) -> float:
        """How many times faster the compiled one is."""
        return self.plain / self.compiled


def compare(plain: Model, compiled: Model, frames: udfkit.Ragged, repeats: int = 60) -> Compared:
    """Run one batch through two models in turns.

    Parameters
    ----------
    plain, compiled : Model
    frames : Ragged, samples of shape (coefficients,)
    repeats : int
        Turns; the first one of each is not counted, since it compiles.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for model, taken in zip((plain, compiled), seconds, strict=True):
            model.clock.read()
            logits, trace = model.forward(frames)
            model.backward(trace, np.ones_like(logits))
            found = model.clock.read()
            taken.append(found[CONVERSION] + found[USER_CODE])
    first, second = (float(np.median(taken[1:])) for taken in seconds)
    return Compared(first, second)
