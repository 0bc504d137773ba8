"""Ragged batches for property tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from udfkit.function import UserFunction
from udfkit.testing.cases import draw_parts
from udfkit.variable import Constant, Parameter

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["ragged_batches"]


def ragged_batches(
    function: UserFunction, max_sequences: int = 5, max_length: int = 6
) -> SearchStrategy[Any]:
    """Return a Hypothesis strategy of batches for a function, as `UserFunction.eval` takes them.

    Lengths shrink towards no sequences and zero lengths; numbers are drawn at random.

    Parameters
    ----------
    function : UserFunction
    max_sequences, max_length : int

    Raises
    ------
    ModuleNotFoundError
        When Hypothesis is not installed.

    Examples
    --------
    >>> import hypothesis, udfkit
    >>> from udfkit.testing import ragged_batches
    >>> class Double(udfkit.UserFunction):
    ...     def infer_outputs(self):
    ...         x = self.inputs[0]
    ...         return udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)
    ...     def forward(self, x, device, outputs_to_retain):
    ...         return None, [2 * sequence for sequence in x]
    >>> double = Double([udfkit.sequence.input_variable(2)])
    >>> @hypothesis.settings(max_examples=5, deadline=None, database=None)
    ... @hypothesis.given(ragged_batches(double))
    ... def test_lengths(batch):
    ...     assert [len(y) for y in double.eval(batch)] == [len(x) for x in batch]
    >>> test_lengths()
    """
    try:
        from hypothesis import strategies
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "ragged_batches needs Hypothesis, which is not installed: pip install hypothesis; "
            "check_function needs no such library",
            name="hypothesis",
        ) from None
    fed = [v for v in function.inputs if not isinstance(v, (Parameter, Constant))]

    def build(lengths: list[int], seed: int) -> Any:
        parts = draw_parts(fed, np.random.default_rng(seed), tuple(lengths), 3 + seed % 2)
        return parts[0] if len(fed) == 1 else dict(zip(fed, parts, strict=True))

    lengths = strategies.lists(strategies.integers(0, max_length), max_size=max_sequences)
    return strategies.builds(build, lengths, strategies.integers(0, 2**16))
