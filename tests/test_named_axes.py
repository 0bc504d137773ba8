"""Variables that share a sequence axis with a name of its own have equal lengths."""

from __future__ import annotations

import numpy as np
import pytest

import udfkit
from checks import raises
from udfkit import Axis

F32 = np.float32


def ones(*lengths):
    return [np.ones((length,), F32) for length in lengths]


class Add(udfkit.UserFunction):
    """Adds two sequences; `cut` steps of each are left out of the result."""

    cut = 0

    def infer_outputs(self):
        a = self.inputs[0]
        return [udfkit.output_variable((), F32, a.dynamic_axes, name="total")]

    def forward(self, args, device, outputs_to_retain):
        kept = [len(x) - self.cut for x in args[0]]
        return None, [x[:n] + y[:n] for x, y, n in zip(*args, kept, strict=True)]

    def backward(self, state, grad, variables):
        for variable in variables:
            variables[variable] = grad


def make(cls, first, second):
    a, b = (
        udfkit.sequence.input_variable((), sequence_axis=axis, name=name, needs_gradient=True)
        for axis, name in ((first, "a"), (second, "b"))
    )
    return cls([a, b])


def test_inputs_on_one_named_axis_must_have_equal_lengths():
    fn = make(Add, Axis("words"), Axis("words"))
    with raises(ValueError, "a", "b", "sequence 1", 4, 5):
        fn.eval({"a": ones(3, 5, 2), "b": ones(3, 4, 2)})
    got = fn.eval({"a": ones(3, 5), "b": ones(3, 5)})
    assert [x.tolist() for x in got] == [[2.0] * 3, [2.0] * 5]


@pytest.mark.parametrize("axes", [("words", "letters"), (None, None)])
def test_other_axes_promise_nothing(axes):
    first, second = (None if name is None else Axis(name) for name in axes)
    got = make(Add, first, second).eval({"a": ones(2, 1), "b": ones(3, 4)})
    assert [len(x) for x in got] == [2, 1]


def test_an_output_on_a_named_axis_keeps_the_lengths_of_its_input():
    fn = make(Add, Axis("words"), Axis("words"))
    fn.cut = 1
    with raises(ValueError, "total", "a", "sequence 0", 1, 2):
        fn.eval({"a": ones(2, 1), "b": ones(2, 1)})


def test_unique_axes_differ():
    one, two = Axis.new_unique_dynamic_axis("t"), Axis.new_unique_dynamic_axis("t")
    assert one != two
    assert make(Add, one, two).eval({"a": ones(2), "b": ones(3)})[0].tolist() == [2.0, 2.0]
