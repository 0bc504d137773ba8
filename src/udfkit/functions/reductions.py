"""Softmax, log-softmax, mean, max and logsumexp over the steps of each sequence, with a mask.

Each works on every element of a sample by itself. Steps whose mask is 0 take no part: whatever they
hold, their gradient is 0. A sequence in which no step takes part has results and gradients without
NaN. M. Blondel, A. Martins and V. Niculae, "Learning with Fenchel-Young losses", 2020, section 2
has the gradients of logsumexp and softmax.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import math

from udfkit.portable import exp, log, maximum
from udfkit.sequence_functions import SequenceFunction, per_sequence, per_step, sequence_function
from udfkit.variable import Variable

__all__ = ["log_softmax", "logsumexp", "maximum_over", "mean", "softmax"]

_TAKES = {"x": per_step("T", "*K"), "mask": per_step("T", dtype="bool", default=True)}
_STEPS = {"y": per_step("T", "*K")}
_ONE = {"y": per_sequence("*K")}
_ROWS = {"high": ("K",), "total": ("K",)}


def _find_high(x, mask, high):
    """The largest value of each element; 0 where that is infinite or there is none."""
    for k in range(x.shape[1]):
        high[k] = -math.inf
    for t in range(x.shape[0]):
        if mask[t]:
            for k in range(x.shape[1]):
                high[k] = maximum(high[k], x[t, k])
    for k in range(x.shape[1]):
        high[k] = 0.0 if high[k] == -math.inf else high[k]


def _find_total(x, mask, high, total):
    """The sum of exp(x - high) of each element."""
    _find_high(x, mask, high)
    for k in range(x.shape[1]):
        total[k] = 0.0
    for t in range(x.shape[0]):
        if mask[t]:
            for k in range(x.shape[1]):
                total[k] += exp(x[t, k] - high[k])


def _sum_rows(x, mask, total):
    """The sum of each element over the steps that take part; return how many do."""
    count = 0
    for k in range(x.shape[1]):
        total[k] = 0.0
    for t in range(x.shape[0]):
        if mask[t]:
            count += 1
            for k in range(x.shape[1]):
                total[k] += x[t, k]
    return count


@sequence_function(takes=_TAKES, gives=_STEPS, work=_ROWS)
def Softmax(x, mask, y, high, total):
    """The body of `softmax`."""
    _find_total(x, mask, high, total)
    for t in range(x.shape[0]):
        if mask[t]:
            for k in range(x.shape[1]):
                share = exp(x[t, k] - high[k])
                y[t, k] = share if total[k] == 0.0 else share / total[k]


@Softmax.gradient
def _softmax_gradient(mask, y, total, grad_y, grad_x):
    for k in range(y.shape[1]):
        total[k] = 0.0
    for t in range(y.shape[0]):
        if mask[t]:
            for k in range(y.shape[1]):
                total[k] += y[t, k] * grad_y[t, k]
    for t in range(y.shape[0]):
        if mask[t]:
            for k in range(y.shape[1]):
                grad_x[t, k] = y[t, k] * (grad_y[t, k] - total[k])


@sequence_function(takes=_TAKES, gives=_STEPS, work=_ROWS)
def LogSoftmax(x, mask, y, high, total):
    """The body of `log_softmax`."""
    _find_total(x, mask, high, total)
    for k in range(x.shape[1]):
        total[k] = 0.0 if total[k] == 0.0 else high[k] + log(total[k])
    for t in range(x.shape[0]):
        for k in range(x.shape[1]):
            y[t, k] = x[t, k] - total[k] if mask[t] else -math.inf


@LogSoftmax.gradient
def _log_softmax_gradient(mask, y, total, grad_y, grad_x):
    _sum_rows(grad_y, mask, total)
    for t in range(y.shape[0]):
        if mask[t]:
            for k in range(y.shape[1]):
                grad_x[t, k] = grad_y[t, k] - exp(y[t, k]) * total[k]


@sequence_function(takes=_TAKES, gives=_ONE, work=_ROWS, saved={"lse": ("K",)})
def LogSumExp(x, mask, y, high, total, lse):
    """The body of `logsumexp`."""
    _find_total(x, mask, high, total)
    for k in range(x.shape[1]):
        lse[k] = high[k] + log(total[k])
        y[k] = lse[k]


@LogSumExp.gradient
def _logsumexp_gradient(x, mask, lse, grad_y, grad_x):
    for t in range(x.shape[0]):
        if mask[t]:
            for k in range(x.shape[1]):
                share = exp(x[t, k] - lse[k])
                grad_x[t, k] = 0.0 if lse[k] == -math.inf else share * grad_y[k]


@sequence_function(takes=_TAKES, gives=_ONE, work={"total": ("K",)}, saved={"taken": (1,)})
def Mean(x, mask, y, total, taken):
    """The body of `mean`."""
    count = _sum_rows(x, mask, total)
    taken[0] = count
    for k in range(x.shape[1]):
        y[k] = total[k] / (count if count > 0 else 1)


@Mean.gradient
def _mean_gradient(x, mask, taken, grad_y, grad_x):
    for t in range(x.shape[0]):
        if mask[t]:
            for k in range(x.shape[1]):
                grad_x[t, k] = grad_y[k] / taken[0]


@sequence_function(takes=_TAKES, gives=_ONE)
def Max(x, mask, y):
    """The body of `maximum_over`."""
    for k in range(x.shape[1]):
        y[k] = -math.inf
    for t in range(x.shape[0]):
        if mask[t]:
            for k in range(x.shape[1]):
                y[k] = maximum(y[k], x[t, k])


@Max.gradient
def _max_gradient(x, mask, y, grad_y, grad_x):
    for k in range(x.shape[1]):
        found = False
        for t in range(x.shape[0]):
            if mask[t] and not found and (x[t, k] == y[k] or y[k] != y[k]):
                found = True
                grad_x[t, k] = grad_y[k]


def _inputs(x: Variable, mask: Variable | None) -> list[Variable]:
    return [x] if mask is None else [x, mask]


def softmax(x: Variable, mask: Variable | None = None, name: str = "") -> SequenceFunction:
    r"""Softmax over the steps of each sequence.

    .. math:: y_t = \frac{m_t e^{x_t}}{\sum_s m_s e^{x_s}}

    The result is 0 where the mask is, and in a sequence in which all values are -inf.

    Parameters
    ----------
    x : Variable, a sequence of any sample shape, float32 or float64
    mask : Variable, a sequence of shape () and dtype bool, optional
        m above: whether a step takes part; by default every one does.

    Returns
    -------
    SequenceFunction
        Its output has shape x.shape, over the same steps.

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes or dtypes.

    Examples
    --------
    >>> import udfkit
    >>> x = udfkit.sequence.input_variable(())
    >>> [y.tolist() for y in udfkit.functions.softmax(x).eval([[0.0, 0.0], [3.0], []])]
    [[0.5, 0.5], [1.0], []]
    """
    return Softmax(_inputs(x, mask), name)


def log_softmax(x: Variable, mask: Variable | None = None, name: str = "") -> SequenceFunction:
    r"""Logarithm of `softmax`.

    .. math:: y_t = x_t - \log \sum_s m_s e^{x_s}

    The result is -inf where the mask is 0.

    Parameters
    ----------
    x : Variable, a sequence of any sample shape, float32 or float64
    mask : Variable, a sequence of shape () and dtype bool, optional
        m above: whether a step takes part; by default every one does.

    Returns
    -------
    SequenceFunction
        Its output has shape x.shape, over the same steps.

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes or dtypes.

    Examples
    --------
    >>> import udfkit
    >>> x = udfkit.sequence.input_variable(())
    >>> [y.tolist() for y in udfkit.functions.log_softmax(x).eval([[3.0], []])]
    [[0.0], []]
    """
    return LogSoftmax(_inputs(x, mask), name)


def logsumexp(x: Variable, mask: Variable | None = None, name: str = "") -> SequenceFunction:
    r"""Logarithm of the sum of exponentials over the steps of each sequence.

    .. math:: y = \log \sum_t m_t e^{x_t}

    The result is -inf, its gradient 0, in a sequence in which no step takes part.

    Parameters
    ----------
    x : Variable, a sequence of any sample shape, float32 or float64
    mask : Variable, a sequence of shape () and dtype bool, optional
        m above: whether a step takes part; by default every one does.

    Returns
    -------
    SequenceFunction
        Its output has shape x.shape, one a sequence.

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes or dtypes.

    Examples
    --------
    >>> import udfkit
    >>> x = udfkit.sequence.input_variable(())
    >>> udfkit.functions.logsumexp(x).eval([[3.0], []]).tolist()
    [3.0, -inf]
    """
    return LogSumExp(_inputs(x, mask), name)


def mean(x: Variable, mask: Variable | None = None, name: str = "") -> SequenceFunction:
    r"""Mean over the steps of each sequence.

    .. math:: y = \frac{\sum_t m_t x_t}{\sum_t m_t}

    The result is 0 in a sequence in which no step takes part.

    Parameters
    ----------
    x : Variable, a sequence of any sample shape, float32 or float64
    mask : Variable, a sequence of shape () and dtype bool, optional
        m above: whether a step takes part; by default every one does.

    Returns
    -------
    SequenceFunction
        Its output has shape x.shape, one a sequence.

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes or dtypes.

    Examples
    --------
    >>> import udfkit
    >>> x = udfkit.sequence.input_variable(())
    >>> udfkit.functions.mean(x).eval([[1.0, 2.0], []]).tolist()
    [1.5, 0.0]
    """
    return Mean(_inputs(x, mask), name)


def maximum_over(x: Variable, mask: Variable | None = None, name: str = "") -> SequenceFunction:
    r"""Maximum over the steps of each sequence.

    .. math:: y = \max_{t: m_t = 1} x_t

    The gradient goes to the first step that has the maximum; the result is -inf, its gradient 0, in
    a sequence in which no step takes part.

    Parameters
    ----------
    x : Variable, a sequence of any sample shape, float32 or float64
    mask : Variable, a sequence of shape () and dtype bool, optional
        m above: whether a step takes part; by default every one does.

    Returns
    -------
    SequenceFunction
        Its output has shape x.shape, one a sequence.

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes or dtypes.

    Examples
    --------
    >>> import udfkit
    >>> x = udfkit.sequence.input_variable(())
    >>> udfkit.functions.maximum_over(x).eval([[1.0, 2.0], []]).tolist()
    [2.0, -inf]
    """
    return Max(_inputs(x, mask), name)
