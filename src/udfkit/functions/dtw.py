"""Soft dynamic time warping: a differentiable distance of two sequences of different lengths.

M. Cuturi and M. Blondel, "Soft-DTW: a differentiable loss function for time-series", 2017:
algorithm 1 for the value, algorithm 2 for the gradient. The cells of an anti-diagonal do not depend
on each other, so the arrays here have a row for each anti-diagonal i + j, and i in it.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import math

from udfkit.portable import barrier, exp, log_add_3, maximum, minimum
from udfkit.sequence_functions import SequenceFunction, per_sequence, per_step, sequence_function
from udfkit.variable import Variable

__all__ = ["soft_dtw"]


def _bounds(d, n, m):
    """The first i of anti-diagonal d that is a cell of both, and the one past the last."""
    return maximum(1, d - m), minimum(n, d - 1) + 1


def _turn(y, turned, lane, lanes):
    for j in range(lane, y.shape[0], lanes):
        for d in range(y.shape[1]):
            turned[d, j] = y[j, d]


def _fill_costs(x, turned, rows, value, gamma, lane, lanes):
    """Fill minus the squared distances over gamma, by anti-diagonals."""
    size, m = turned.shape
    for i in range(lane, x.shape[0], lanes):
        row = rows[i]
        for j in range(m):
            row[j] = 0.0
        for d in range(size):
            here = x[i, d]
            there = turned[d]
            for j in range(m):
                row[j] += (here - there[j]) * (here - there[j])
        for j in range(m):
            value[i + j + 2, i + 1] = -row[j] / gamma


def _step(before, above, left, into, value, lane, lanes):
    """Add the logs of sums over the three ways into each cell to the costs of an anti-diagonal."""
    for k in range(lane, into.shape[0], lanes):
        into[k] = log_add_3(before[k], above[k], left[k])
    for k in range(lane, into.shape[0], lanes):
        value[k] += into[k]


@sequence_function(
    takes={"x": per_step("N", "D"), "y": per_step("M", "D")},
    gives={"distance": per_sequence()},
    saved={"into": ("N + M + 2", "N + 2"), "value": ("N + M + 2", "N + 2")},
    work={"turned": ("D", "M"), "row": ("M",), "flow": (3, "N + 2"), "share": ("N", "M")},
    options={"gamma": 1.0},
    cooperative=True,
)
def SoftDtw(x, y, distance, into, value, turned, share, gamma, lane, lanes):
    """The body of `soft_dtw`.

    With R of the paper: value is -R / gamma, into is that without the cost of the cell itself.
    Lanes share out the cells of an anti-diagonal, then wait for each other.
    """
    n, m = x.shape[0], y.shape[0]
    if n == 0 or m == 0:
        distance[0] = 0.0 if n == m else math.inf
        return
    _turn(y, turned, lane, lanes)
    for i in range(lane, n + 2, lanes):
        value[0, i] = 0.0 if i == 0 else -math.inf
        value[1, i] = -math.inf
        # Past the ends no flow comes back: exp of minus infinity is 0.
        into[n + m + 1, i] = math.inf
    barrier()
    _fill_costs(x, turned, share, value, gamma, lane, lanes)
    barrier()
    for d in range(2, n + m + 1):
        low, high = _bounds(d, n, m)
        _step(
            value[d - 2, low - 1 : high - 1],
            value[d - 1, low - 1 : high - 1],
            value[d - 1, low:high],
            into[d, low:high],
            value[d, low:high],
            lane,
            lanes,
        )
        if lane == 0:
            value[d, low - 1] = -math.inf
            value[d, high] = -math.inf
            into[d, low - 1] = math.inf
            into[d, high] = math.inf
        barrier()
    if lane == 0:
        distance[0] = -gamma * value[n + m, n]


def _flow(here, after, after_into, below, below_into, right, right_into, out, lane, lanes):
    """What flows out of each cell into the three after it, by their shares in them."""
    for k in range(lane, out.shape[0], lanes):
        out[k] = (
            after[k] * exp(here[k] - after_into[k])
            + below[k] * exp(here[k] - below_into[k])
            + right[k] * exp(here[k] - right_into[k])
        )


def _pull(shares, here, there):
    """The sum of differences to here, weighted, in four parts."""
    count = shares.shape[0]
    whole = count // 4 * 4
    a = b = c = d = 0.0
    for j in range(0, whole, 4):
        a += shares[j] * (here - there[j])
        b += shares[j + 1] * (here - there[j + 1])
        c += shares[j + 2] * (here - there[j + 2])
        d += shares[j + 3] * (here - there[j + 3])
    for j in range(whole, count):
        a += shares[j] * (here - there[j])
    return (a + b) + (c + d)


@SoftDtw.gradient
def _soft_dtw_gradient(
    x, y, into, value, turned, row, flow, share, grad_distance, grad_x, grad_y, lane, lanes
):
    n, m, size = x.shape[0], y.shape[0], x.shape[1]
    if n == 0 or m == 0:
        return
    _turn(y, turned, lane, lanes)
    for i in range(lane, n + 2, lanes):
        for k in range(3):
            flow[k, i] = 1.0 if i == n and k == (n + m) % 3 else 0.0
    share[n - 1, m - 1] = 1.0
    barrier()
    for d in range(n + m - 1, 1, -1):
        low, high = _bounds(d, n, m)
        here, next_row, last_row = flow[d % 3], flow[(d + 1) % 3], flow[(d + 2) % 3]
        _flow(
            value[d, low:high],
            last_row[low + 1 : high + 1],
            into[d + 2, low + 1 : high + 1],
            next_row[low + 1 : high + 1],
            into[d + 1, low + 1 : high + 1],
            next_row[low:high],
            into[d + 1, low:high],
            here[low:high],
            lane,
            lanes,
        )
        for i in range(low + lane, high, lanes):
            share[i - 1, d - i - 1] = here[i]
        if lane == 0:
            here[low - 1] = 0.0
            here[high] = 0.0
        barrier()
    twice = 2.0 * grad_distance[0]
    for i in range(lane, n, lanes):
        for d in range(size):
            grad_x[i, d] = twice * _pull(share[i], x[i, d], turned[d])
    for d in range(size):
        there = turned[d]
        for j in range(lane, m, lanes):
            row[j] = 0.0
        for i in range(n):
            shares, here_x = share[i], x[i, d]
            for j in range(lane, m, lanes):
                row[j] += shares[j] * (there[j] - here_x)
        for j in range(lane, m, lanes):
            grad_y[j, d] = twice * row[j]


def soft_dtw(x: Variable, y: Variable, gamma: float = 1.0, name: str = "") -> SequenceFunction:
    r"""Soft dynamic time warping distance of each pair of sequences.

    .. math:: -\gamma \log \sum_{A} e^{-\langle A, \Delta \rangle / \gamma}, \qquad
        \Delta_{ij} = \lVert x_i - y_j \rVert^2

    over all monotone alignments A: M. Cuturi and M. Blondel, "Soft-DTW: a differentiable loss
    function for time-series", 2017, equation 1. Two empty sequences have the distance 0; an empty
    one and another inf, with gradients 0.

    Parameters
    ----------
    x, y : Variable, sequences of one shape (D,), float32 or float64
        Of lengths of their own.
    gamma : float, default 1.0
        Above 0: the smaller, the closer to the plain minimum over alignments.

    Returns
    -------
    SequenceFunction
        Its output has shape () and a batch axis.

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes or shapes, or gamma is not above 0.

    Examples
    --------
    >>> import udfkit
    >>> x = udfkit.sequence.input_variable(1, name="x")
    >>> y = udfkit.sequence.input_variable(1, name="y")
    >>> distance = udfkit.functions.soft_dtw(x, y, gamma=0.01)
    >>> a, b = [[0.0], [1.0], [1.0], [3.0]], [[0.0], [1.0], [5.0]]
    >>> distance.eval({"x": [a], "y": [b]}).round(2).tolist()
    [4.0]
    """
    if not gamma > 0.0:
        raise ValueError(f"gamma is {gamma}, expected a number above 0")
    return SoftDtw([x, y], name, gamma=float(gamma))
