"""Linear-chain conditional random fields: log-likelihood and the best path.

J. Lafferty, A. McCallum and F. Pereira, "Conditional random fields", 2001, section 3. The sums over
all paths are computed with numbers scaled to their row's largest, which is exact as long as the
transitions of a row's tags cannot differ by more than a float64 can hold; else with logarithms.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import math

from udfkit.functions.rows import add_product, largest
from udfkit.portable import dot, exp, log, maximum, total
from udfkit.sequence_functions import (
    SequenceFunction,
    per_sequence,
    per_step,
    scratch,
    sequence_function,
    shared,
)
from udfkit.variable import Variable

__all__ = ["crf_decode", "linear_chain_crf"]

# With R the difference of the largest and the least transition: what is lost of a row is below
# e^-708, its largest weight above e^-R, and the next transition can raise what was lost by e^R. It
# stays below half a unit in the last place of any sum while 2 R is below 708 - ln(2^53), less the
# logarithm of the number of paths between two steps.
_WIDEST = 300.0


def _prepare(transitions, weights, turned):
    """Fill exp(transitions - largest) and its transpose; return the largest, NaN for logarithms."""
    tags = transitions.shape[0]
    high = -math.inf
    low = math.inf
    for i in range(tags):
        for k in range(tags):
            high = maximum(high, transitions[i, k])
            low = transitions[i, k] if transitions[i, k] < low else low
    # Also for a NaN and for infinities, whose difference is no number.
    if not high - low < _WIDEST:
        return math.nan
    for i in range(tags):
        for k in range(tags):
            weights[i, k] = exp(transitions[i, k] - high)
    for i in range(tags):
        for k in range(tags):
            turned[k, i] = weights[i, k]
    return high


def _multiply(row, matrix, result):
    """Fill the product of a row and a matrix."""
    for k in range(result.shape[0]):
        result[k] = 0.0
    add_product(row, matrix, result)


def _normalize(row):
    """Divide by the sum, which is returned."""
    found = total(row)
    inverse = 1.0 / found
    for k in range(row.shape[0]):
        row[k] *= inverse
    return found


def _scaled_forward(scores, weights, high, alpha, rows):
    """Fill normalized sums over paths, and exp of scores; return the log of the sum over all."""
    steps, tags = scores.shape
    partition = 0.0
    for t in range(steps):
        top = largest(scores[t])
        for k in range(tags):
            rows[t, k] = exp(scores[t, k] - top)
        if t == 0:
            for k in range(tags):
                alpha[0, k] = rows[0, k]
        else:
            _multiply(alpha[t - 1], weights, alpha[t])
            for k in range(tags):
                alpha[t, k] *= rows[t, k]
            partition += high
        partition += top + log(_normalize(alpha[t]))
    return partition


def _logs_forward(scores, transitions, alpha, rows):
    """Fill logs of sums over paths; return the log of the sum over all."""
    steps, tags = scores.shape
    for k in range(tags):
        alpha[0, k] = scores[0, k]
    for t in range(1, steps):
        for k in range(tags):
            rows[t, k] = -math.inf
        for i in range(tags):
            for k in range(tags):
                rows[t, k] = maximum(rows[t, k], alpha[t - 1, i] + transitions[i, k])
        for k in range(tags):
            rows[t, k] = 0.0 if rows[t, k] == -math.inf else rows[t, k]
            alpha[t, k] = 0.0
        for i in range(tags):
            for k in range(tags):
                alpha[t, k] += exp(alpha[t - 1, i] + transitions[i, k] - rows[t, k])
        for k in range(tags):
            alpha[t, k] = rows[t, k] + log(alpha[t, k]) + scores[t, k]
    return _log_sum(alpha[steps - 1])


def _log_sum(row):
    top = largest(row)
    base = 0.0 if top == -math.inf else top
    found = 0.0
    for k in range(row.shape[0]):
        found += exp(row[k] - base)
    return base + log(found)


@sequence_function(
    takes={
        "scores": per_step("T", "K"),
        "tags": per_step("T", index_of="K"),
        "transitions": shared("K", "K"),
    },
    gives={"y": per_sequence()},
    saved={
        "alpha": ("T", "K"),
        "rows": ("T", "K"),
        "weights": ("K", "K"),
        "turned": ("K", "K"),
        "kept": (2,),
    },
    work={"beta": (2, "K"), "after": ("T", "K"), "pairs": ("K", "K")},
)
def LinearChainCrf(scores, tags, transitions, y, alpha, rows, weights, turned, kept):
    """The body of `linear_chain_crf`."""
    steps = scores.shape[0]
    if steps == 0:
        return
    path = 0.0
    for t in range(steps):
        path += scores[t, tags[t]]
        if t > 0:
            path += transitions[tags[t - 1], tags[t]]
    high = _prepare(transitions, weights, turned)
    partition = math.nan
    if high == high:
        partition = _scaled_forward(scores, weights, high, alpha, rows)
    else:
        partition = _logs_forward(scores, transitions, alpha, rows)
    kept[0] = high
    kept[1] = partition
    y[0] = -math.inf if partition == -math.inf else path - partition


def _scaled_backward(alpha, rows, turned, beta, after, grad, grad_scores):
    """Subtract the probability of each tag; fill what pairs of tags are weighed with after."""
    steps, tags = alpha.shape
    for k in range(tags):
        beta[0, k] = 1.0
    for t in range(steps - 1, -1, -1):
        share = grad / dot(alpha[t], beta[0])
        for k in range(tags):
            grad_scores[t, k] = -(alpha[t, k] * beta[0, k] * share)
        if t > 0:
            for k in range(tags):
                beta[1, k] = rows[t, k] * beta[0, k]
            _multiply(beta[1], turned, beta[0])
            share = grad / dot(alpha[t - 1], beta[0])
            for k in range(tags):
                after[t, k] = beta[1, k] * share
            _normalize(beta[0])


def _scaled_pairs(alpha, weights, after, pairs, grad_transitions):
    """Subtract the probability of each pair of tags, summed over the steps."""
    steps, tags = alpha.shape
    for i in range(tags):
        for k in range(tags):
            pairs[i, k] = 0.0
    whole = (steps - 1) // 4 * 4
    for t in range(0, whole, 4):
        for i in range(tags):
            a, b, c, d = alpha[t, i], alpha[t + 1, i], alpha[t + 2, i], alpha[t + 3, i]
            for k in range(tags):
                pairs[i, k] += (
                    a * after[t + 1, k]
                    + b * after[t + 2, k]
                    + c * after[t + 3, k]
                    + d * after[t + 4, k]
                )
    for t in range(whole, steps - 1):
        for i in range(tags):
            a = alpha[t, i]
            for k in range(tags):
                pairs[i, k] += a * after[t + 1, k]
    for i in range(tags):
        for k in range(tags):
            grad_transitions[i, k] -= pairs[i, k] * weights[i, k]


def _logs_backward(
    scores, transitions, alpha, beta, partition, grad, grad_scores, grad_transitions
):
    """Subtract the probabilities of tags and of pairs of tags, computed with logarithms."""
    steps, tags = alpha.shape
    for k in range(tags):
        beta[0, k] = 0.0
    for t in range(steps - 1, -1, -1):
        for k in range(tags):
            grad_scores[t, k] = -(exp(alpha[t, k] + beta[0, k] - partition) * grad)
        if t > 0:
            for k in range(tags):
                beta[1, k] = scores[t, k] + beta[0, k]
            for i in range(tags):
                before = alpha[t - 1, i] - partition
                top = -math.inf
                for k in range(tags):
                    pair = transitions[i, k] + beta[1, k]
                    grad_transitions[i, k] -= exp(before + pair) * grad
                    top = maximum(top, pair)
                base = 0.0 if top == -math.inf else top
                total = 0.0
                for k in range(tags):
                    total += exp(transitions[i, k] + beta[1, k] - base)
                beta[0, i] = base + log(total)


@LinearChainCrf.gradient
def _crf_gradient(
    scores,
    tags,
    transitions,
    alpha,
    rows,
    weights,
    turned,
    kept,
    beta,
    after,
    pairs,
    grad_y,
    grad_scores,
    grad_transitions,
):
    steps = scores.shape[0]
    if steps == 0 or kept[1] == -math.inf:
        return
    grad = grad_y[0] * 1.0
    high = kept[0]
    if high == high:
        _scaled_backward(alpha, rows, turned, beta, after, grad, grad_scores)
        _scaled_pairs(alpha, weights, after, pairs, grad_transitions)
    else:
        _logs_backward(
            scores, transitions, alpha, beta, kept[1], grad, grad_scores, grad_transitions
        )
    for t in range(steps):
        grad_scores[t, tags[t]] += grad
        if t > 0:
            grad_transitions[tags[t - 1], tags[t]] += grad


@sequence_function(
    takes={"scores": per_step("T", "K"), "transitions": shared("K", "K")},
    gives={"tags": per_step("T", dtype="int64")},
    work={"best": (2, "K"), "came_from": scratch("T", "K", dtype="int64")},
)
def CrfDecode(scores, transitions, tags, best, came_from):
    """The body of `crf_decode`."""
    steps, count = scores.shape
    if steps == 0:
        return
    for k in range(count):
        best[0, k] = scores[0, k]
    for t in range(1, steps):
        for k in range(count):
            best[1, k] = best[0, 0] + transitions[0, k]
            came_from[t, k] = 0
        for i in range(1, count):
            for k in range(count):
                through = best[0, i] + transitions[i, k]
                came_from[t, k] = i if through > best[1, k] else came_from[t, k]
                best[1, k] = through if through > best[1, k] else best[1, k]
        for k in range(count):
            best[0, k] = best[1, k] + scores[t, k]
    last = 0
    for k in range(count):
        last = k if best[0, k] > best[0, last] else last
    for t in range(steps - 1, -1, -1):
        tags[t] = last
        if t > 0:
            last = came_from[t, last]


def linear_chain_crf(
    scores: Variable, tags: Variable, transitions: Variable, name: str = ""
) -> SequenceFunction:
    r"""Log-likelihood of each sequence's tags under a linear-chain conditional random field.

    .. math::
        \log p(y \mid x) = \sum_t s_t(y_t) + \sum_{t>0} A_{y_{t-1} y_t}
        - \log \sum_{y'} \exp\Bigl(\sum_t s_t(y'_t) + \sum_{t>0} A_{y'_{t-1} y'_t}\Bigr)

    From J. Lafferty, A. McCallum and F. Pereira, "Conditional random fields", 2001, section 3. The
    log-likelihood of an empty sequence is 0. A transition of -inf forbids a pair of tags.

    Parameters
    ----------
    scores : Variable, a sequence of shape (K,), float32 or float64
        s above: unnormalized scores of the tags.
    tags : Variable, a sequence of shape () and an integer dtype
        y above, each from 0 to K - 1; as long as the scores.
    transitions : Variable without axes, shape (K, K)
        A above: a score for each pair (tag, next tag).

    Returns
    -------
    SequenceFunction
        Its output has shape () and a batch axis.

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes, shapes or dtypes; when called, for a tag out of range.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> scores = udfkit.sequence.input_variable(2, needs_gradient=True, name="scores")
    >>> tags = udfkit.sequence.input_variable((), dtype=np.int64, name="tags")
    >>> transitions = udfkit.Parameter(init=np.zeros((2, 2), np.float32))
    >>> crf = udfkit.functions.linear_chain_crf(scores, tags, transitions)
    >>> y = crf.eval({"scores": [[[0.0, 0.0], [0.0, 0.0]]], "tags": [[0, 1]]})
    >>> np.exp(y).round(4).tolist()
    [0.25]
    """
    return LinearChainCrf([scores, tags, transitions], name)


def crf_decode(scores: Variable, transitions: Variable, name: str = "") -> SequenceFunction:
    """Tags of the best path of each sequence, by Viterbi's algorithm; it has no gradient.

    Of several best paths the one whose last tags are lowest is taken. G. D. Forney, "The Viterbi
    algorithm", 1973.

    Parameters
    ----------
    scores, transitions : Variable
        As in `linear_chain_crf`.

    Returns
    -------
    SequenceFunction
        Its output is a sequence of int64 tags of shape ().

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes, shapes or dtypes.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> scores = udfkit.sequence.input_variable(2, name="scores")
    >>> decode = udfkit.functions.crf_decode(scores, udfkit.Constant([[0.0, -5.0], [0.0, 0.0]]))
    >>> [tags.tolist() for tags in decode.eval([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 1.0]]])]
    [[1, 1], [1]]
    """
    return CrfDecode([scores, transitions], name)
