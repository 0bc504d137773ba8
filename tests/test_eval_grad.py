"""`fn.eval` and `fn.grad`: from plain arrays to plain arrays."""

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    LENGTHS,
    Linear,
    assert_same,
    batch,
    combine,
    linear,
    ones,
    variable,
    weight,
)
from udfkit import Ragged, Value

F32 = np.float32


def named(fn, *data):
    return {x.name: d for x, d in zip(fn.inputs, data, strict=True)}


def keyed(fn, *data):
    return dict(zip(fn.inputs, data, strict=True))


@pytest.mark.parametrize("as_numpy", [True, False])
@pytest.mark.parametrize("kind", ["sequence", "batch", "none"])
def test_one_input_one_output(kind, as_numpy):
    fn = linear((kind,), as_numpy=as_numpy)
    data = batch(kind)
    out = fn.eval(data)
    gradient = fn.grad(data)
    assert type(out) is type(gradient) is (list if kind == "sequence" else np.ndarray)
    assert_same(out, combine([(2, data)]))
    assert_same(gradient, ones(data, 2))


@pytest.mark.parametrize("make", [keyed, named, lambda fn, a, b: {fn.inputs[0]: a, "x1": b}])
def test_several_inputs_come_by_variable_or_name(make):
    fn = linear(("sequence", "sequence"))
    a, b = batch("sequence"), batch("sequence", offset=50)
    assert_same(fn.eval(make(fn, a, b)), combine([(2, a), (7, b)]))
    gradients = fn.grad(make(fn, a, b))
    assert list(gradients) == list(fn.inputs)
    assert_same(gradients[fn.inputs[0]], ones(a, 2))
    assert_same(gradients[fn.inputs[1]], ones(b, 7))


@pytest.mark.parametrize("pack", [tuple, list])
def test_a_tuple_is_always_a_batch_never_the_arguments(pack):
    fn = linear(("sequence", "sequence"))
    a = batch("sequence")
    with pytest.raises((TypeError, ValueError), match="dict") as info:
        fn.eval(pack([a, a]))
    assert "x0" in str(info.value)
    one = linear(("sequence",))
    assert_same(one.eval(pack(a)), combine([(2, a)]))
    scalars = C.sequence.input_variable((), F32, needs_gradient=True, name="s")
    pair = Linear([scalars])
    assert_same(pair.eval(([1.0, 2.0], [3.0])), [F32([2, 4]), F32([6])])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d, fn: d.pop("x1"), "x1"),
        (lambda d, fn: d.update(x2=d["x1"]), "x2"),
        (lambda d, fn: d.update({fn.outputs[0]: d["x1"]}), "o0"),
        (lambda d, fn: d.update({fn.inputs[1]: d["x1"]}), "x1"),
    ],
    ids=["missing", "unknown name", "an output", "given twice"],
)
def test_keys_that_do_not_match_the_inputs(change, word):
    fn = linear(("sequence", "sequence"))
    data = named(fn, batch("sequence"), batch("sequence"))
    change(data, fn)
    with pytest.raises((TypeError, ValueError), match=word):
        fn.eval(data)


def test_a_name_that_two_inputs_share_is_refused():
    fn = Linear([variable("sequence", "same"), variable("sequence", "same")])
    a = batch("sequence")
    assert_same(fn.eval(keyed(fn, a, a)), combine([(2, a), (7, a)]))
    with pytest.raises((TypeError, ValueError), match="same"):
        fn.eval({"same": a})


def test_several_outputs_come_by_variable():
    fn = linear(("sequence",), n_out=2)
    data = batch("sequence")
    out = fn.eval(data)
    assert list(out) == list(fn.outputs)
    for j, output in enumerate(fn.outputs):
        assert_same(out[output], combine([(weight(j, 0), data)]))
    assert_same(fn.grad(data), ones(data, weight(0, 0) + weight(1, 0)))


@pytest.mark.parametrize("how", ["variable", "name", "list", "tuple of names"])
def test_wrt_chooses_the_gradients(how):
    fn = linear(("sequence", "sequence", "batch"), needs=(True, True, True))
    fn.forward = lambda args, device, retain: (None, args[0])

    def fill(state, grad, variables):
        asked.append(list(variables))
        for x in variables:
            variables[x] = ones(data[x], 1 + fn.inputs.index(x))

    asked = []
    fn.backward = fill
    data = keyed(fn, batch("sequence"), batch("sequence"), batch("batch"))
    x = fn.inputs[1]
    wrt = {"variable": x, "name": "x1", "list": [x], "tuple of names": ("x1",)}[how]
    assert_same(fn.grad(data, wrt=wrt), ones(data[x], 2))
    several = fn.grad(data, wrt=[fn.inputs[2], "x0"])
    assert set(several) == {fn.inputs[0], fn.inputs[2]}
    assert_same(several[fn.inputs[2]], ones(data[fn.inputs[2]], 3))
    assert set(asked[0]) == {x}
    assert set(asked[1]) == {fn.inputs[0], fn.inputs[2]}


def test_wrt_defaults_to_the_inputs_that_need_a_gradient():
    fn = linear(("sequence",) * 3, needs=(True, False, True))
    data = keyed(fn, *(batch("sequence") for _ in range(3)))
    assert list(fn.grad(data)) == [fn.inputs[0], fn.inputs[2]]
    one = linear(("sequence",) * 2, needs=(False, True))
    assert_same(
        one.grad(keyed(one, batch("sequence"), batch("sequence"))), ones(batch("sequence"), 7)
    )


def test_wrt_that_needs_no_gradient_says_how_to_set_it():
    fn = linear(("sequence", "sequence"), needs=(True, False))
    data = keyed(fn, batch("sequence"), batch("sequence"))
    for wrt in (fn.inputs[1], "x1", list(fn.inputs)):
        with pytest.raises(ValueError, match="needs_gradient=True") as info:
            fn.grad(data, wrt=wrt)
        assert "x1" in str(info.value)


@pytest.mark.parametrize("wrt", ["nobody", 3, variable("sequence", "nobody")], ids=str)
def test_wrt_that_is_no_input(wrt):
    fn = linear()
    with pytest.raises((TypeError, ValueError), match="x0"):
        fn.grad(batch("sequence"), wrt=wrt)


def test_root_gradients_bare_by_variable_and_ones_by_default():
    fn = linear()
    data, root = batch("sequence"), batch("sequence", offset=3)
    wanted = combine([(2, root)])
    assert_same(fn.grad(data, root_gradients=root), wanted)
    assert_same(fn.grad(data, root_gradients={fn.outputs[0]: root}), wanted)
    assert_same(fn.grad(data, root_gradients=Ragged.from_list(root)), wanted)
    assert_same(fn.grad(data, root_gradients=Value.create(fn.outputs[0], root)), wanted)
    assert_same(fn.grad(data), ones(data, 2))


def test_root_gradients_of_some_outputs_leave_zeros_for_the_others():
    fn = linear(n_out=2)
    data, root = batch("sequence"), batch("sequence", offset=3)
    got = fn.grad(data, root_gradients={fn.outputs[1]: root})
    assert_same(got, combine([(weight(1, 0), root)]))
    assert_same(fn.log[-1][1][1][fn.outputs[0]], ones(data, 0))


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ([np.ones((3, 2), F32)], ["3", "1"]),
        ([np.ones((n, 2), F32) for n in (3, 2, 2)], ["sequence 1", "1", "2"]),
        ([np.ones((n, 3), F32) for n in LENGTHS], ["(3, 3)", "(2,)"]),
        (np.ones((3, 3, 2), F32), ["length"]),
    ],
    ids=["count", "lengths", "sample shape", "rectangle"],
)
def test_root_gradients_have_to_fit_the_output(root, words):
    with pytest.raises(ValueError) as info:
        linear().grad(batch("sequence"), root_gradients=root)
    for word in ("o0", *words):
        assert word in str(info.value)


def test_outputs_makes_it_gradients_and_outputs():
    fn = linear(n_out=2)
    data = batch("sequence")
    for outputs in ([fn.outputs[1]], ["o1"]):
        gradients, out = fn.grad(data, outputs=outputs)
        assert_same(gradients, ones(data, weight(0, 0) + weight(1, 0)))
        assert_same(out, combine([(weight(1, 0), data)]))
    _, out = fn.grad(data, outputs=list(fn.outputs))
    assert list(out) == list(fn.outputs)
    assert_same(out[fn.outputs[0]], combine([(weight(0, 0), data)]))
    assert [phase for phase, _ in fn.log] == ["forward", "backward"] * 3


class Looking(Linear):
    """Keeps the starts that arrive."""

    layout = "ragged"

    def forward(self, *args):
        xs = args[0] if len(self.inputs) > 1 else (args[0],)
        self.seen = [list(x.starts) if isinstance(x, Ragged) else None for x in xs]
        return super().forward(*args)


def test_seq_starts_by_keyword_and_inside_a_ragged():
    fn = Looking([variable("sequence", "x")])
    data, starts = batch("sequence"), [False, True, False]
    fn.eval(data)
    assert fn.seen == [[True] * 3]
    for call in (fn.eval, fn.grad):
        for given in (starts, np.array(starts), {fn.inputs[0]: starts}, {"x": starts}):
            call(data, seq_starts=given)
            assert fn.seen == [starts]
        ragged = Ragged.from_list(data)
        call(Ragged(ragged.values, ragged.offsets, starts))
        assert fn.seen == [starts]
        call(data, seq_starts=[])
        assert fn.seen == [[True] * 3]
    with pytest.raises((TypeError, ValueError), match="starts"):
        fn.eval(data, seq_starts=[0, 1, 0])
    with pytest.raises(ValueError, match="3"):
        fn.eval(data, seq_starts=[True, False])


def test_seq_starts_of_several_inputs_are_a_dict():
    fn = Looking([variable("sequence", "x"), variable("sequence", "y"), variable("batch", "b")])
    fn.layout = "ragged"
    data = named(fn, batch("sequence"), batch("sequence"), batch("batch"))
    fn.forward = lambda args, device, retain: (seen.append(args), (None, args[0]))[1]
    seen = []
    fn.eval(data, seq_starts={"y": [False, False, True]})
    assert [list(x.starts) for x in seen[0][:2]] == [[True] * 3, [False, False, True]]
    with pytest.raises((TypeError, ValueError), match="nobody"):
        fn.eval(data, seq_starts={"nobody": [True] * 3})
    with pytest.raises(ValueError, match="sequence axis"):
        fn.eval(data, seq_starts={"b": [True] * 3})


@pytest.mark.parametrize("kinds", [("sequence", "sequence"), ("sequence", "batch"), ("batch",) * 2])
def test_inputs_must_agree_on_the_number_of_sequences(kinds):
    fn = linear(kinds)
    data = named(fn, batch(kinds[0], (1, 2, 1)), batch(kinds[1], (1, 2)))
    for call in (fn.eval, fn.grad):
        with pytest.raises(ValueError) as info:
            call(data)
        for word in ("x0", "x1", "3", "2"):
            assert word in str(info.value)
    assert fn.log == []


@pytest.mark.parametrize("as_numpy", [True, False])
@pytest.mark.parametrize("n_in", [1, 2])
def test_where_no_output_needs_a_gradient_they_are_zeros(n_in, as_numpy):
    class Quiet(Linear):
        def infer_outputs(self):
            x = self.inputs[0]
            return [C.output_variable(x.shape, x.dtype, x.dynamic_axes, needs_gradient=False)]

        def backward(self, state, root_gradients, variables):
            pytest.fail("backward was called")

    fn = Quiet([variable("sequence", f"x{i}") for i in range(n_in)], as_numpy=as_numpy)
    data = batch("sequence")
    if n_in == 1:
        assert_same(fn.grad(data), ones(data, 0))
    else:
        for gradient in fn.grad(keyed(fn, data, data)).values():
            assert_same(gradient, ones(data, 0))


class Affine(C.UserFunction):
    """x * scale + shift, where scale and shift belong to no batch."""

    def infer_outputs(self):
        x = self.inputs[0]
        return C.output_variable(x.shape, x.dtype, x.dynamic_axes, name="out")

    def forward(self, args, device, outputs_to_retain):
        x, scale, shift = args
        return x, [v * scale + shift for v in x]

    def backward(self, state, grad, variables):
        x, scale, shift = self.inputs
        if x in variables:
            variables[x] = [g * scale.value for g in grad]
        if scale in variables:
            variables[scale] = sum((v * g).sum(0) for v, g in zip(state, grad, strict=True))
        if shift in variables:
            variables[shift] = sum(g.sum(0) for g in grad)


def test_parameters_and_constants_bring_their_own_values():
    x = variable("sequence", "x")
    scale = C.Parameter(init=F32([2, 3]), name="scale")
    shift = C.Constant(F32([1, -1]), name="shift")
    fn = Affine([x, scale, shift])
    data = batch("sequence")
    assert_same(fn.eval({x: data}), [v * F32([2, 3]) + F32([1, -1]) for v in data])
    gradients = fn.grad({"x": data})
    assert list(gradients) == [x, scale]
    assert_same(gradients[x], [np.ones_like(v) * F32([2, 3]) for v in data])
    assert_same(gradients[scale], np.concatenate(data).sum(0))
    with pytest.raises(ValueError, match="shift"):
        fn.grad({x: data}, wrt=shift)


def test_variables_without_axes():
    fn = linear(("none", "none"))
    a, b = batch("none"), batch("none", offset=4)
    assert_same(fn.eval(keyed(fn, a, b)), 2 * a + 7 * b)
    gradients = fn.grad(keyed(fn, a, b), root_gradients=b)
    assert_same(gradients[fn.inputs[1]], 7 * b)
    scalar = Linear([variable("none", "s", shape=())])
    assert_same(scalar.eval(np.array(3, F32)), F32(6))
    assert scalar.grad(np.array(3, F32)).shape == ()
