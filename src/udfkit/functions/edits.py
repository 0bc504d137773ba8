"""Edit distance of pairs of sequences.

R. A. Wagner and M. J. Fischer, "The string-to-string correction problem", 1974.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from udfkit.sequence_functions import (
    SequenceFunction,
    per_sequence,
    per_step,
    scratch,
    sequence_function,
)
from udfkit.variable import Variable

__all__ = ["edit_distance"]


@sequence_function(
    takes={"x": per_step("N"), "y": per_step("M")},
    gives={"distance": per_sequence(dtype="int64")},
    work={"row": scratch("M + 1", dtype="int64")},
)
def EditDistance(x, y, distance, row):
    """The body of `edit_distance`."""
    n, m = x.shape[0], y.shape[0]
    for j in range(m + 1):
        row[j] = j
    for i in range(n):
        before = row[0]
        row[0] = i + 1
        for j in range(m):
            best = before + (0 if x[i] == y[j] else 1)
            before = row[j + 1]
            best = before + 1 if before + 1 < best else best
            best = row[j] + 1 if row[j] + 1 < best else best
            row[j + 1] = best
    distance[0] = row[m]


def edit_distance(x: Variable, y: Variable, name: str = "") -> SequenceFunction:
    """Least number of insertions, deletions and substitutions that turn x into y; no gradient.

    R. A. Wagner and M. J. Fischer, "The string-to-string correction problem", 1974, algorithm X.

    Parameters
    ----------
    x, y : Variable, sequences of shape () and one dtype
        Of lengths of their own.

    Returns
    -------
    SequenceFunction
        Its output is int64 of shape (), with a batch axis.

    Raises
    ------
    TypeError, ValueError
        When the variables have other axes or shapes.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> x = udfkit.sequence.input_variable((), dtype=np.int64, name="x")
    >>> y = udfkit.sequence.input_variable((), dtype=np.int64, name="y")
    >>> batch = {"x": [[1, 2, 3], []], "y": [[1, 3], [7]]}
    >>> udfkit.functions.edit_distance(x, y).eval(batch).tolist()
    [1, 1]
    """
    return EditDistance([x, y], name)
