"""What an engine, or the author of a function, can hand over wrongly: the texts of the errors."""

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    Linear,
    arguments_of,
    backward,
    batch,
    forward,
    linear,
    roots_of,
    variable,
)
from udfkit import BackPropState, Value

F32 = np.float32


def refused(error, words, call):
    with pytest.raises(error) as info:
        call()
    for word in words:
        assert word in str(info.value), str(info.value)


@pytest.fixture
def fn():
    return linear(("sequence", "sequence"), n_out=2, name="pair")


def test_arguments_that_are_not_what_forward_takes(fn):
    data, (a, b) = arguments_of(fn)
    stranger = variable("sequence", "stranger")
    for arguments, error, words in [
        ([a], ValueError, ["pair", "2", "1"]),
        ([a, b, b], ValueError, ["pair", "2", "3"]),
        ([a, data[1]], TypeError, ["x1", "list", "Value"]),
        ([a, None], TypeError, ["x1", "None"]),
        ({fn.inputs[0]: a}, TypeError, ["x1", "None"]),
        ({fn.inputs[0]: a, fn.inputs[1]: b, stranger: b}, ValueError, ["stranger", "x0", "x1"]),
        ({"x0": a, "x1": b}, ValueError, ["x0", "pair"]),
        (a, TypeError, ["Value", "list"]),
        (None, TypeError, ["None", "list"]),
        ([a, Value.create(fn.inputs[1], data[1][:2])], ValueError, ["x0", "3", "x1", "2"]),
        (
            [a, Value.create(variable("sequence", "", shape=(4,)), [np.ones((1, 4), F32)] * 3)],
            ValueError,
            ["x1", "(2,)", "4"],
        ),
    ]:
        refused(error, words, lambda given=arguments: forward(fn, given))
    assert fn.log == []


def test_outputs_that_the_function_does_not_have(fn):
    _, values = arguments_of(fn)
    for unknown in (fn.inputs[0], "o0"):
        refused(ValueError, ["o0", "o1", "pair"], lambda u=unknown: fn._forward(values, {u: None}))


def test_backward_with_what_did_not_come_from_its_forward(fn):
    data, values = arguments_of(fn)
    state, results = forward(fn, values)
    _, roots = roots_of(fn)
    other = linear(("sequence",), name="other")
    foreign, _ = forward(other, values[:1])
    x, o = fn.inputs[0], fn.outputs[0]
    shorter = Value.create(o, data[0][:2])
    longer = Value.create(o, [np.ones((n, 2), F32) for n in (3, 5, 2)])
    for given, root, asked, error, words in [
        (None, roots, {x: None}, TypeError, ["BackPropState", "None"]),
        (object(), roots, {x: None}, TypeError, ["BackPropState", "object"]),
        (foreign, roots, {x: None}, ValueError, ["pair", "another function"]),
        (state, roots, {o: None}, ValueError, ["o0", "x0", "x1"]),
        (state, roots, {"x0": None}, ValueError, ["x0", "pair"]),
        (state, roots, {}, ValueError, ["pair", "none"]),
        (state, {}, {x: None}, ValueError, ["pair", "root gradients"]),
        (state, {x: values[0]}, {x: None}, ValueError, ["x0", "o0"]),
        (state, {o: data[0]}, {x: None}, TypeError, ["o0", "list", "Value"]),
        (state, {o: shorter}, {x: None}, ValueError, ["o0", "2 sequences", "3"]),
        (state, {o: longer}, {x: None}, ValueError, ["o0", "sequence 1", "5", "1"]),
    ]:
        refused(error, words, lambda s=given, r=root, a=asked: fn._backward(s, r, a))
        assert all(v is None for v in asked.values())
    assert [phase for phase, _ in fn.log] == ["forward"]
    assert list(backward(fn, state, roots)) == list(fn.inputs)
    assert results


def test_a_shared_state_cannot_tell_the_zeros_that_are_missing():
    fn = linear(n_out=2)
    fn.state = BackPropState(C.cpu())
    _, values = arguments_of(fn)
    states = [forward(fn, values)[0] for _ in range(2)]
    _, roots = roots_of(fn, [0])
    refused(ValueError, ["o1", "state"], lambda: backward(fn, states[0], roots))
    _, roots = roots_of(fn)
    assert list(backward(fn, states[0], roots)) == list(fn.inputs)


def test_methods_that_are_not_written():
    class Bare(C.UserFunction):
        pass

    x = variable("sequence", "x")
    fn = Bare([x], name="bare")
    refused(NotImplementedError, ["Bare", "infer_outputs", "output_variable"], lambda: fn.outputs)
    fn.infer_outputs = lambda: C.output_variable(2, F32, x.dynamic_axes)
    refused(NotImplementedError, ["Bare", "forward"], lambda: fn.eval(batch("sequence")))
    fn.forward = lambda x, device, retain: (None, x)
    refused(NotImplementedError, ["Bare", "backward"], lambda: fn.grad(batch("sequence")))


def test_a_declared_output_may_not_be_there_twice():
    class Twice(Linear):
        def infer_outputs(self):
            return super().infer_outputs() * 2

    refused(ValueError, ["infer_outputs", "twice"], lambda: Twice([variable("batch", "x")]).outputs)


@pytest.mark.parametrize("given", [[None], "x", [], ()])
def test_inputs_that_are_no_list_of_variables(given):
    refused((TypeError, ValueError), ["input"], lambda: Linear(given))


def test_without_as_numpy_results_are_values():
    fn = linear(as_numpy=False)
    fn.forward = lambda x, device, retain: (None, x.as_sequences())
    refused(TypeError, ["forward", "o0", "list", "Value"], lambda: fn.eval(batch("sequence")))
    fn = linear(as_numpy=False)
    fn.backward = lambda state, grad, variables: variables.update(
        {fn.inputs[0]: grad.as_sequences()}
    )
    refused(TypeError, ["backward", "x0", "list", "Value"], lambda: fn.grad(batch("sequence")))


def test_grad_without_anything_to_differentiate():
    fn = linear(needs=(False,))
    refused(ValueError, ["lin", "needs_gradient=True"], lambda: fn.grad(batch("sequence")))
    fn = linear()
    for name, call in (
        ("input", lambda: fn.grad(batch("sequence"), wrt=[])),
        ("output", lambda: fn.grad(batch("sequence"), outputs=[])),
        ("'nobody'", lambda: fn.grad(batch("sequence"), outputs=["nobody"])),
    ):
        refused(ValueError, [name], call)


def test_root_gradients_of_several_outputs_are_a_dict(fn):
    data = {"x0": batch("sequence"), "x1": batch("sequence")}
    for root, words in (
        (batch("sequence"), ["pair", "2 outputs", "o0", "o1", "dict"]),
        ({"nobody": batch("sequence")}, ["nobody", "o0", "o1"]),
    ):
        refused(ValueError, words, lambda r=root: fn.grad(data, root_gradients=r))


def test_registering_what_cannot_be_called():
    for name, callback in ((3, print), ("name", 3), (None, None)):
        refused(
            TypeError,
            ["callable(inputs, name, state)"],
            lambda n=name, c=callback: C.register_udf_deserialize_callback(n, c),
        )
    C.register_udf_deserialize_callback("taken", print)
    C.register_udf_deserialize_callback("taken", print)
    refused(ValueError, ["taken"], lambda: C.register_udf_deserialize_callback("taken", repr))


@pytest.mark.parametrize("call", [C.user_function, C.save_function])
def test_what_is_no_user_function(call):
    refused(TypeError, ["UserFunction", "type"], lambda: call(Linear))
    refused(TypeError, ["UserFunction", "int"], lambda: call(3))


def test_a_backward_without_a_readable_signature_is_called_as_with_any_arguments():
    class Hidden:
        __signature__ = "unreadable"

        def __call__(self, *args):
            seen.append(len(args))
            if len(args) == 3:
                args[2].update(dict.fromkeys(args[2], args[1]))
                return None
            return args[1]

    seen = []
    for count in (1, 2):
        fn = linear(("sequence",) * count)
        fn.backward = Hidden()
        fn.grad({x: batch("sequence") for x in fn.inputs})
    assert seen == [2, 3]


def test_names_and_texts():
    fn = Linear([variable("sequence", "x")], name="shown")
    assert "shown" in repr(fn)
    assert "Linear" in repr(fn)
    assert fn.output is fn.outputs[0]
    one, two = (C.UserFunction([variable("batch", "x")]) for _ in range(2))
    assert one.name
    assert one.name != two.name
    refused(ValueError, ["2 outputs"], lambda: linear(n_out=2).output)


def test_a_layout_that_is_none_is_refused_where_it_is_set_late():
    fn = linear()
    fn.layout = "foo"
    refused(ValueError, ["layout", "'foo'", "'ragged'"], lambda: fn.eval(batch("sequence")))
