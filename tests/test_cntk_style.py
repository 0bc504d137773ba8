"""User functions as CNTK's users wrote them, over `import udfkit as C`."""

import numpy as np
import pytest

import udfkit as C
from udfkit import output_variable, user_function
from udfkit.ops.functions import UserFunction


class MySigmoid(UserFunction):
    def __init__(self, arg, name="MySigmoid"):
        super(MySigmoid, self).__init__([arg], name=name)  # noqa: UP008

    def forward(self, argument, device=None, outputs_to_retain=None):
        sigmoid_x = 1 / (1 + np.exp(-argument))
        return sigmoid_x, sigmoid_x

    def backward(self, state, root_gradients):
        sigmoid_x = state
        return root_gradients * sigmoid_x * (1 - sigmoid_x)

    def infer_outputs(self):
        return [
            C.output_variable(
                self.inputs[0].shape, self.inputs[0].dtype, self.inputs[0].dynamic_axes
            )
        ]

    @staticmethod
    def deserialize(inputs, name, state):
        return MySigmoid(inputs[0], name)


class Plus(C.ops.functions.UserFunction):
    def __init__(self, arg1, arg2, name="f1"):
        super(Plus, self).__init__([arg1, arg2], name=name)  # noqa: UP008
        self.forward_calls = 0
        self.backward_calls = 0

    def infer_outputs(self):
        assert len(self.inputs) == 2
        return [
            output_variable(self.inputs[0].shape, self.inputs[0].dtype, self.inputs[0].dynamic_axes)
        ]

    def forward(self, arguments, device=None, outputs_to_retain=None):
        self.forward_calls += 1
        return None, [a + b for a, b in zip(arguments[0], arguments[1])]  # noqa: B905

    def backward(self, state, root_gradients, variables=None):
        self.backward_calls += 1
        for idx in range(len(self.inputs)):
            if self.inputs[idx] in variables:
                variables[self.inputs[idx]] = [(idx + 1) * g for g in root_gradients]


class SumAndDifference(C.UserFunction):
    def __init__(self, arg1, arg2, name="f2"):
        super(SumAndDifference, self).__init__([arg1, arg2], name=name)  # noqa: UP008

    def infer_outputs(self):
        x = self.inputs[0]
        return [C.output_variable(x.shape, x.dtype, x.dynamic_axes) for _ in range(2)]

    def forward(self, arguments, outputs, device=None, outputs_to_retain=None):
        a, b = arguments
        outputs[self.outputs[0]] = [x + y for x, y in zip(a, b, strict=True)]
        outputs[self.outputs[1]] = [x - y for x, y in zip(a, b, strict=True)]
        return

    def backward(self, state, root_gradients, variables):
        total, difference = (root_gradients[o] for o in self.outputs)
        if self.inputs[0] in variables:
            variables[self.inputs[0]] = [s + d for s, d in zip(total, difference, strict=True)]
        if self.inputs[1] in variables:
            variables[self.inputs[1]] = [s - d for s, d in zip(total, difference, strict=True)]


class ReportsAndPasses(UserFunction):
    """Works on the engine's own values, as functions for the GPU did."""

    def __init__(self, arg, name="report"):
        super(ReportsAndPasses, self).__init__([arg], as_numpy=False, name=name)  # noqa: UP008

    def infer_outputs(self):
        x = self.inputs[0]
        return [C.output_variable(x.shape, x.dtype, x.dynamic_axes, name="out")]

    def forward(self, argument, device=None, outputs_to_retain=None):
        state = C.UserBackPropState(self, device, argument.shape)
        return state, argument

    def backward(self, state, root_gradients):
        assert C.UserBackPropState.data(state) == root_gradients.shape
        assert state.device() == C.cpu()
        return root_gradients


def test_sigmoid_over_a_batch():
    x = C.input_variable(2, needs_gradient=True)
    fn = user_function(MySigmoid(x))
    data = np.array([[0.0, 1.0], [-1.0, 2.0]], np.float32)
    wanted = 1 / (1 + np.exp(-data))
    np.testing.assert_array_equal(fn.eval(data), wanted)
    np.testing.assert_array_equal(fn.grad(data), np.ones_like(data) * wanted * (1 - wanted))


def test_two_inputs_with_counters():
    x = C.sequence.input_variable(shape=(2,), dtype=np.float32, needs_gradient=True, name="x")
    y = C.sequence.input_variable((2,), needs_gradient=True, name="y")
    plus = Plus(x, y)
    fn = C.user_function(plus)
    a = [np.ones((3, 2), np.float32), np.ones((1, 2), np.float32)]
    got = fn.eval({x: a, y: a})
    assert [v.tolist() for v in got] == [(v + v).tolist() for v in a]
    gradients = fn.grad({x: a, y: a}, wrt=[x, y])
    assert gradients[x][0].tolist() == a[0].tolist()
    assert gradients[y][0].tolist() == (2 * a[0]).tolist()
    assert (plus.forward_calls, plus.backward_calls) == (2, 1)
    assert fn.name == "f1"


def test_two_outputs():
    x = C.sequence.input_variable(1, needs_gradient=True)
    y = C.sequence.input_variable(1, needs_gradient=True)
    fn = C.user_function(SumAndDifference(x, y))
    a, b = [np.float32([[3], [4]])], [np.float32([[1], [10]])]
    out = fn.eval({x: a, y: b})
    assert out[fn.outputs[0]][0].tolist() == [[4], [14]]
    assert out[fn.outputs[1]][0].tolist() == [[2], [-6]]
    gradients, outputs = fn.grad({x: a, y: b}, wrt=[x, y], outputs=[fn.outputs[0]])
    assert gradients[x][0].tolist() == [[2], [2]]
    assert gradients[y][0].tolist() == [[0], [0]]
    assert outputs[0].tolist() == [[4], [14]]


def test_values_and_a_state_of_the_engine():
    x = C.sequence.input_variable(2, needs_gradient=True)
    fn = C.user_function(ReportsAndPasses(x))
    data = [np.ones((2, 2), np.float32), np.zeros((1, 2), np.float32)]
    assert [v.tolist() for v in fn.eval(data)] == [v.tolist() for v in data]
    assert [v.shape for v in fn.grad(data)] == [(2, 2), (1, 2)]


@pytest.mark.parametrize("contract", ["auto", "cntk-beta", "cntk-2.0", "cntk-2.7"])
def test_a_class_runs_under_the_contract_that_it_was_written_for(contract):
    class Pinned(MySigmoid):
        pass

    Pinned.contract = contract
    x = C.input_variable((2,), needs_gradient=True)
    assert Pinned(x).grad(np.zeros((1, 2), np.float32)).tolist() == [[0.25, 0.25]]


def test_names_of_the_module():
    assert C.ops.functions.UserFunction is C.UserFunction
    assert C.device.cpu() == C.cpu()
    assert isinstance(C.cpu(), C.DeviceDescriptor)
    batch_axis, time_axis = C.Axis.default_batch_axis(), C.Axis.default_dynamic_axis()
    assert C.input_variable(3).dynamic_axes == (batch_axis,)
    assert C.sequence.input_variable(3).dynamic_axes == (batch_axis, time_axis)
    own = C.sequence.input_variable(3, sequence_axis=C.Axis("words"))
    assert own.dynamic_axes == (batch_axis, C.Axis("words"))
    assert own.kind == "sequence"
    assert C.map_if_possible({}) is None


def test_shapes_and_dtypes_as_cntk_gave_them():
    x = C.input_variable(5)
    assert x.shape == (5,)
    assert x.dtype == np.float32
    out = C.output_variable(x.shape, x.dtype, x.dynamic_axes)
    assert out.needs_gradient
    assert not x.needs_gradient
