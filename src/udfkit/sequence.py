"""Variables with a sequence axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from udfkit.variable import Axis, Variable

__all__ = ["input_variable"]


def input_variable(
    shape: int | Iterable[int],
    dtype: Any = np.float32,
    needs_gradient: bool = False,
    is_sparse: bool = False,
    sequence_axis: Axis | None = None,
    name: str = "",
) -> Variable:
    """Make an input variable with a batch axis and a sequence axis.

    Parameters and errors as `udfkit.Variable`; ``sequence_axis`` is the default one unless given.

    Examples
    --------
    >>> import udfkit
    >>> udfkit.sequence.input_variable(3, needs_gradient=True, name="x")
    Input('x', [#, *], [3])
    """
    steps = Axis.default_dynamic_axis() if sequence_axis is None else sequence_axis
    axes = (Axis.default_batch_axis(), steps)
    return Variable(shape, dtype, axes, needs_gradient, is_sparse, name)
