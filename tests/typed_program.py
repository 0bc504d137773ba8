"""A program of a user with strict types: `make types` checks it from outside, the tests run it.

An ignore that is not needed is an error there, so the lines with one show what is refused.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import udfkit


class Double(udfkit.UserFunction):
    """Two times its input."""

    def infer_outputs(self) -> list[udfkit.Variable]:
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(
        self, arg: list[np.ndarray], device: udfkit.DeviceDescriptor, outputs_to_retain: list[Any]
    ) -> tuple[None, list[np.ndarray]]:
        return None, [2 * sequence for sequence in arg]

    def backward(self, state: None, grad: list[np.ndarray]) -> list[np.ndarray]:
        return [2 * sequence for sequence in grad]


def main() -> None:
    """Use each part of the public names, and say what type it is."""
    x = udfkit.sequence.input_variable(2, np.float32, needs_gradient=True, name="x")
    assert_type(x, udfkit.Variable)
    batch = [np.ones((3, 2), np.float32), np.zeros((0, 2), np.float32)]
    value = udfkit.sanitize_batch(x, batch)
    assert_type(value, udfkit.Value)
    assert_type(value.lengths, np.ndarray)
    ragged = value.ragged()
    assert_type(ragged, udfkit.Ragged)
    assert_type(ragged[0], np.ndarray)
    assert_type(ragged[:1], udfkit.Ragged)
    assert_type(len(ragged), int)
    double = Double([x])
    assert_type(double.outputs, tuple[udfkit.Variable, ...])
    state, outputs = double._forward([value])
    assert_type(state, udfkit.BackPropState)
    assert_type(outputs, dict[udfkit.Variable, udfkit.Value])
    double.grad(batch)
    padded = udfkit.pad(batch, side="left", multiple_of=4)
    assert_type(padded, udfkit.Padded)
    data, mask = padded
    assert_type(mask, np.ndarray)
    assert data.shape == (2, 4, 2)
    assert_type(udfkit.bucket_batches([3, 1], max_cells=4), list[np.ndarray])
    assert_type(udfkit.fill_rows(batch, 4), udfkit.FilledRows)
    assert_type(udfkit.cpu(), udfkit.DeviceDescriptor)
    assert_type(udfkit.functions.mean(x), udfkit.SequenceFunction)
    assert_type(udfkit.testing.check_function(double).passed, bool)
    assert_type(udfkit.save_function(double), dict[str, Any])


def refused() -> None:
    """What a type checker does not let pass; never run."""
    udfkit.pad([[1]], side="middle")  # type: ignore[arg-type]
    udfkit.sanitize_batch("x", [[1]])  # type: ignore[arg-type]
    udfkit.gpu("0")  # type: ignore[arg-type]
    udfkit.Ragged([1], [0, 1]).no_such  # type: ignore[attr-defined]  # noqa: B018


main()
