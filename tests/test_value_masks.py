"""Masks, lengths and starts given to Value: what they say, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import udfkit
from checks import raises, sequence_variable
from udfkit import Value

DATA = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "parts"),
    [
        ({"mask": np.ones((2, 3))}, TypeError, ["float64"]),
        ({"mask": np.ones((3, 2), np.int8)}, ValueError, [(3, 2), (2, 3)]),
        ({"mask": np.full((2, 3), 3)}, ValueError, [3, (0, 0)]),
        ({"mask": np.array([2, 1])}, ValueError, [1, "position 1"]),
        ({"mask": [[2, 1, 0], [2, 0, 0]], "lengths": [2, 2]}, ValueError, [[2, 2], [2, 1]]),
        ({"mask": [[2, 1, 0], [2, 0, 0]], "starts": [True, False]}, ValueError, ["starts[1]"]),
        ({"mask": np.array([2, 2]), "starts": [True, True]}, ValueError, ["starts"]),
        ({"lengths": [3]}, ValueError, [2]),
        ({"lengths": [3, 4]}, ValueError, [4, "sequence 1", "0 to 3"]),
        ({"lengths": [1.0, 2.0]}, ValueError, ["float64"]),
    ],
)
def test_what_contradicts_the_data_is_refused(arguments, error, parts):
    with raises(error, *parts):
        Value(DATA, **arguments)


def test_lengths_and_starts_need_a_sequence_axis():
    with raises(ValueError, (3,)):
        Value(np.zeros(3), lengths=[1, 1, 1])
    with raises(ValueError, (3,)):
        Value(np.zeros(3), starts=[True] * 3)


def test_starts_beside_a_mask_settle_empty_sequences():
    value = Value(DATA, [[0, 0, 0], [2, 1, 0]], starts=[False, True])
    assert value.lengths.tolist() == [0, 2]
    assert value.starts.tolist() == [False, True]
    assert Value(DATA, [[0, 0, 0], [2, 1, 0]]).starts.tolist() == [True, True]


class Passes(udfkit.UserFunction):
    """Hands Values on, and asks for no gradient of its own."""

    def infer_outputs(self):
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes, name=n) for n in "ab"]

    def forward(self, value, outputs, device, outputs_to_retain):
        for variable in outputs:
            outputs[variable] = value

    def backward(self, state, roots):
        return roots[self.outputs[1]]


def test_zeros_for_a_root_gradient_that_did_not_come_have_the_cells_of_a_mask_with_gaps():
    gaps = Value(DATA, [[0, 2, 0], [1, 0, 2]])
    fn = Passes([sequence_variable((), needs_gradient=True)], as_numpy=False)
    state, made = fn._forward([gaps])
    gradient = fn._backward(state, {fn.outputs[0]: made[fn.outputs[0]]}, [fn.inputs[0]])
    zeros = gradient[fn.inputs[0]]
    assert zeros.mask.tolist() == gaps.mask.tolist()
    assert zeros.data.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_filled_rows_keep_the_order_of_the_batch_through_a_function():
    batch = [np.float32([1]), np.float32([2, 3, 4]), np.float32([]), np.float32([5, 6])]
    filled = udfkit.fill_rows(batch, row_length=4).value
    variable = sequence_variable((), needs_gradient=True)
    back = udfkit.variable_value_to_seq(filled, variable)
    assert [x.tolist() for x in back] == [x.tolist() for x in batch]
    double = filled._with_layout(filled._layout.with_starts(np.array([True, False, True, True])))
    again = Value._make(double._layout, udfkit.cpu(), flat=double.ragged().values)
    assert again.data.tolist() == filled.data.tolist()
    assert double.starts.tolist() == [True, False, True, True]
