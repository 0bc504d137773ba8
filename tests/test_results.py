"""Checks on what user code returns: each refusal says where, what was expected and what came."""

import re
import warnings

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    LENGTHS,
    Linear,
    arguments_of,
    assert_same,
    batch,
    linear,
    ones,
    variable,
)
from udfkit import Ragged, Value

F32 = np.float32


class Answering(C.UserFunction):
    """Gives back `answer` from one phase, and what is right from the other."""

    def __init__(self, phase, answer, kind="sequence", output_kind=None, dtype=F32, **kwargs):
        super().__init__([variable(kind, "feat")], name="answering", **kwargs)
        self.phase, self.answer = phase, answer
        self.output_kind, self.out_dtype = output_kind or kind, dtype

    def infer_outputs(self):
        axes = variable(self.output_kind, "").dynamic_axes
        return C.output_variable(2, self.out_dtype, axes, name="score")

    def forward(self, x, device, outputs_to_retain):
        return x, self.answer if self.phase == "forward" else x

    def backward(self, state, grad):
        return self.answer if self.phase == "backward" else state


def refused(error, words, phase, answer, kind="sequence", **kwargs):
    """The error's text, after looking for function, phase, variable and `words` in it."""
    fn = Answering(phase, answer, kind, **kwargs)
    with pytest.raises(error) as info:
        (fn.eval if phase == "forward" else fn.grad)(batch(kind))
    text = str(info.value)
    for word in ("answering", phase, "score" if phase == "forward" else "feat", *words):
        assert word in text, text
    return text


def like(*shapes, dtype=F32):
    return [np.ones(s, dtype) for s in shapes]


BAD_SEQUENCES = {
    # name: (what came, words of the text)
    "too few sequences": (like((3, 2), (1, 2)), ["3", "2"]),
    "too many sequences": (like((3, 2), (1, 2), (2, 2), (1, 2)), ["3", "4"]),
    "none at all": ([], ["3", "0"]),
    "sample shape": (like((3, 2), (1, 3), (2, 2)), ["sequence 1", "(1, 3)", "(2,)"]),
    "rank too high": (like((3, 2), (1, 2), (2, 1, 2)), ["sequence 2", "(2, 1, 2)", "(2,)"]),
    "rank too low": ([np.float32(1), *like((1, 2), (2, 2))], ["sequence 0", "(2,)"]),
    "a None in it": ([*like((3, 2)), None, *like((2, 2))], ["sequence 1", "None"]),
    "a text in it": ([*like((3, 2), (1, 2)), "abc"], ["sequence 2", "str"]),
    "complex": (like((3, 2), (1, 2)) + like((2, 2), dtype=complex), ["sequence 2", "complex128"]),
    "objects": ([np.array([[None, 1]], object), *like((1, 2), (2, 2))], ["sequence 0", "object"]),
    "one flat array": (np.ones((6, 2), F32), ["(6, 2)"]),
    "rectangle": (np.ones((3, 3, 2), F32), ["(3, 3, 2)", "padding"]),
    "unmasked Value": (Value(np.ones((3, 3, 2), F32)), ["(3, 3, 2)", "padding"]),
    "a number": (3.0, ["float"]),
    "a dict": ({}, ["dict"]),
    "a text": ("abc", ["str"]),
    "a generator": ((v for v in like((3, 2))), ["generator"]),
}


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("case", BAD_SEQUENCES)
def test_sequences_that_do_not_fit(case, phase):
    answer, words = BAD_SEQUENCES[case]
    refused((TypeError, ValueError), words, phase, answer)


def test_a_gradient_has_the_lengths_of_its_input():
    text = refused(ValueError, ["sequence 1"], "backward", like((3, 2), (4, 2), (2, 2)))
    assert re.search(r"\b4\b", text)
    assert re.search(r"\b1\b", text.replace("sequence 1", ""))
    refused(ValueError, ["sequence 2"], "backward", like((3, 2), (1, 2), (0, 2)))
    ragged = Ragged.from_list(like((3, 2), (2, 2), (1, 2)))
    refused(ValueError, ["sequence 1"], "backward", ragged)
    value = Value.create(C.sequence.input_variable(2), like((2, 2), (1, 2), (2, 2)))
    refused(ValueError, ["sequence 0"], "backward", value)


def test_a_gradient_has_the_size_that_its_inputs_free_dimension_had():
    fn = Linear([variable("sequence", "feat", shape=(C.FreeDimension,))])
    fn.backward = lambda state, grad, variables: variables.update(
        {fn.inputs[0]: like((3, 4), (1, 4), (2, 4))}
    )
    with pytest.raises(ValueError, match="feat") as info:
        fn.grad(batch("sequence", shape=(5,)))
    assert "(4,)" in str(info.value)
    assert "(5,)" in str(info.value)


def test_an_output_may_have_other_lengths_than_its_input():
    answer = like((1, 2), (0, 2), (5, 2))
    assert_same(Answering("forward", answer).eval(batch("sequence")), answer)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_rectangle_is_fine_where_all_lengths_are_equal(phase):
    data = batch("sequence", (2, 2, 2))
    for answer in (np.ones((3, 2, 2), F32), Value(np.ones((3, 2, 2), F32))):
        fn = Answering(phase, answer)
        got = fn.eval(data) if phase == "forward" else fn.grad(data)
        assert_same(got, ones(data))


def test_a_rectangle_is_fine_where_one_input_has_these_lengths():
    fn = linear(("sequence", "sequence"))
    data = {"x0": batch("sequence"), "x1": batch("sequence", (2, 2, 2))}
    fn.forward = lambda args, device, retain: (None, np.ones((3, steps, 2), F32))
    steps = 2
    assert_same(fn.eval(data), ones(data["x1"]))
    steps = 3
    with pytest.raises(ValueError, match="padding"):
        fn.eval(data)


@pytest.mark.parametrize("case", ["array", "Value"])
def test_a_rectangle_of_another_length_is_no_gradient(case):
    answer = np.ones((3, 4, 2), F32)
    fn = Answering("backward", Value(answer) if case == "Value" else answer)
    with pytest.raises(ValueError, match="feat") as info:
        fn.grad(batch("sequence", (2, 2, 2)))
    assert "4" in str(info.value)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_an_unmasked_value_without_as_numpy(phase):
    def answer(x):
        return Value(np.ones_like(x.data)) if bad else x

    class PassThrough(Answering):
        def forward(self, x, device, outputs_to_retain):
            return x, answer(x) if phase == "forward" else x

        def backward(self, state, grad):
            return answer(grad)

    fn = PassThrough(phase, None, as_numpy=False)
    call = fn.eval if phase == "forward" else fn.grad
    bad = False
    call(batch("sequence"))
    bad = True
    with pytest.raises(ValueError, match="padding"):
        call(batch("sequence"))
    assert len(call(batch("sequence", (2, 2)))) == 2


BAD_BATCHES = {
    "batch size": (np.ones((2, 2), F32), ["3", "2"]),
    "sample shape": (np.ones((3, 4), F32), ["(3, 4)", "(2,)"]),
    "rank": (np.ones((3, 1, 2), F32), ["(3, 1, 2)"]),
    "list with a wrong sample": ([F32([1, 2]), F32([1]), F32([1, 2])], ["1", "(1,)", "(2,)"]),
    "list of two samples in one": (like((1, 2), (2, 2), (1, 2)), ["1", "(2, 2)"]),
    "complex": (np.ones((3, 2), complex), ["complex128"]),
    "None": ([F32([1, 2]), None, F32([1, 2])], ["1", "None"]),
}


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("case", BAD_BATCHES)
def test_batches_that_do_not_fit(case, phase):
    answer, words = BAD_BATCHES[case]
    refused((TypeError, ValueError), words, phase, answer, kind="batch")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_results_without_axes_that_do_not_fit(phase):
    for answer, words in ((np.ones(3, F32), ["(3,)", "(2,)"]), (np.ones((1, 2), F32), ["(1, 2)"])):
        refused(ValueError, words, phase, answer, kind="none")


@pytest.mark.parametrize(
    "answer", [[None, 1], None, 3, {}, (), (None,), (None, 1, 2), np.ones((2, 3)), "ab"], ids=str
)
def test_forward_with_one_output_returns_a_tuple_of_two(answer):
    fn = linear()
    fn.forward = lambda x, device, retain: answer
    with pytest.raises((TypeError, ValueError)) as info:
        fn.eval(batch("sequence"))
    text = str(info.value)
    for word in ("forward", fn.name, "state", type(answer).__name__.removesuffix("Type")):
        assert word in text
    if type(answer) is tuple:
        assert str(len(answer)) in text


def test_a_list_from_forward_is_a_type_error_that_shows_the_form():
    fn = linear()
    fn.forward = lambda x, device, retain: [x[0], x[1]]
    with pytest.raises(TypeError, match=r"state, result"):
        fn.eval(batch("sequence", (2, 2)))


def test_castable_results_are_cast_without_a_warning():
    data = batch("sequence")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (np.float64, np.float16, np.int32, np.uint8, bool, ">f4"):
            for phase in ("forward", "backward"):
                fn = Answering(phase, [np.ones(v.shape, dtype) for v in data])
                assert_same(fn.eval(data) if phase == "forward" else fn.grad(data), ones(data))
        nested = [np.ones(v.shape).tolist() for v in data]
        assert_same(Answering("forward", nested).eval(data), ones(data))


@pytest.mark.parametrize(
    ("dtype", "value", "word"),
    [
        (F32, 1e300, "1e+300"),
        (np.int32, 0.5, "0.5"),
        (np.int8, 300, "300"),
        (np.uint8, -1, "-1"),
        (F32, 2**24 + 1, "16777217"),
    ],
)
def test_results_that_the_dtype_cannot_hold(dtype, value, word):
    answer = [np.full((n, 2), 1, np.asarray(value).dtype) for n in LENGTHS]
    answer[2][1, 0] = value
    text = refused(ValueError, [word, np.dtype(dtype).name], "forward", answer, dtype=dtype)
    assert "2" in text


def test_awkward_layouts_give_right_results():
    data = batch("sequence")
    wide = [np.repeat(np.repeat(v, 2, 0), 2, 1) for v in data]
    forms = {
        "strided": [w[::2, ::2] for w in wide],
        "negative": [v[::-1].copy()[::-1] for v in data],
        "fortran": [np.asfortranarray(v) for v in data],
        "swapped": [v.astype(">f4") for v in data],
        "misaligned": [
            np.frombuffer(b"\0" + v.tobytes(), np.uint8)[1:].view(F32).reshape(v.shape)
            for v in data
        ],
    }
    for form in forms.values():
        for phase in ("forward", "backward"):
            fn = Answering(phase, form)
            assert_same(fn.eval(data) if phase == "forward" else fn.grad(data), data)
    broadcast = [np.broadcast_to(F32(7), v.shape) for v in data]
    assert_same(Answering("backward", broadcast).grad(data), ones(data, 7))


@pytest.mark.parametrize("as_numpy", [True, False])
@pytest.mark.parametrize("n_in", [1, 2])
@pytest.mark.parametrize("returned", [[], 0, False, "grad", "variables"])
def test_backward_that_must_fill_a_dict_returns_nothing(n_in, returned, as_numpy):
    class Returning(Linear):
        def backward(self, state, root_gradients, variables):
            super().backward(state, root_gradients, variables)
            return {"grad": root_gradients, "variables": variables}.get(str(returned), returned)

    fn = Returning([variable("sequence", f"x{i}") for i in range(n_in)], as_numpy=as_numpy)
    data = batch("sequence")
    with pytest.raises(TypeError) as info:
        fn.grad(data if n_in == 1 else dict.fromkeys(fn.inputs, data))
    for word in ("backward", fn.name, "variables"):
        assert word in str(info.value)


def keyed(fill):
    class Keyed(Linear):
        def backward(self, state, root_gradients, variables):
            super().backward(state, root_gradients, variables)
            fill(self, variables)

    return Keyed([variable("sequence", "x"), variable("sequence", "y")])


def test_gradients_of_inputs_that_nobody_asked_for_are_ignored():
    fn = keyed(lambda fn, variables: variables.setdefault(fn.inputs[1], "anything"))
    data = batch("sequence")
    assert_same(fn.grad(dict.fromkeys(fn.inputs, data), wrt="x"), ones(data, 2))


@pytest.mark.parametrize("key", ["x", "nobody", None, 0, "output", "stranger"])
def test_any_other_key_is_a_type_error(key):
    def fill(fn, target):
        others = {"output": fn.outputs[0], "stranger": variable("sequence", "stranger")}
        target[others.get(key, key)] = batch("sequence")

    fn = keyed(fill)
    data = dict.fromkeys(fn.inputs, batch("sequence"))
    word = {"output": "o0"}.get(key, str(key))
    with pytest.raises(TypeError, match=word) as info:
        fn.grad(data)
    assert "backward" in str(info.value)

    class Outputs(Linear):
        def forward(self, *args):
            state = super().forward(*args)
            name = {"output": self.inputs[0]}.get(key)
            fill(self, args[1]) if name is None else args[1].update({name: batch("sequence")})
            return state

    fn = Outputs([variable("sequence", "x")], n_out=2)
    with pytest.raises(TypeError, match={"output": "x"}.get(key, word)) as info:
        fn.eval(batch("sequence"))
    assert "forward" in str(info.value)


def test_a_filled_dict_is_checked_as_a_returned_value_is():
    fn = keyed(lambda fn, variables: variables.update({fn.inputs[1]: like((3, 2), (2, 2), (2, 2))}))
    with pytest.raises(ValueError, match="sequence 1") as info:
        fn.grad(dict.fromkeys(fn.inputs, batch("sequence")))
    for word in ("backward", "y", fn.name):
        assert word in str(info.value)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_failed_check_leaves_the_arguments_as_they_were(phase):
    fn = keyed(lambda fn, variables: variables.update({fn.inputs[1]: like((1, 2))}))
    if phase == "forward":
        fn = Linear([variable("sequence", "x")], n_out=2)
        fn.forward = lambda x, outputs, device, retain: outputs.update(
            {fn.outputs[0]: x, fn.outputs[1]: x[:1]}
        )
    _, values = arguments_of(fn)
    outputs = dict.fromkeys(fn.outputs)
    before = [v.asarray().tobytes() for v in values]
    if phase == "forward":
        with pytest.raises(ValueError, match="o1"):
            fn._forward(values, outputs)
        assert list(outputs.values()) == [None, None]
    else:
        state, results = fn._forward(values, outputs)
        variables = dict.fromkeys(fn.inputs)
        root = dict(results)
        with pytest.raises(ValueError, match="y"):
            fn._backward(state, root, variables)
        assert list(variables.values()) == [None, None]
        assert root == results
    assert [v.asarray().tobytes() for v in values] == before
