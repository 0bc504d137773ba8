"""What the user's methods are called with, for every calling shape, contract and form of data."""

import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    LENGTHS,
    Linear,
    Remembering,
    arguments_of,
    assert_same,
    backward,
    batch,
    combine,
    form,
    forward,
    linear,
    roots_of,
    variable,
    weight,
)
from udfkit import Ragged, Value

# (contract, the signature that backward has): "star" is backward(self, *args)
CALLED = [
    ("auto", "three"),
    ("auto", "two"),
    ("auto", "star"),
    ("cntk-beta", "star"),
    ("cntk-2.0", "star"),
    ("cntk-2.7", "star"),
]


def expects_variables(contract, signature, needs, asked):
    if contract == "auto" and signature != "star":
        return signature == "three"
    if contract == "cntk-beta":
        return len(asked) > 1
    if contract == "cntk-2.7":
        return len(needs) > 1
    return sum(needs) > 1


def expects_dict(contract, with_variables, n_out, given):
    if contract == "auto":
        return n_out > 1
    if contract == "cntk-beta" and with_variables:
        return True
    return len(given) > 1


def patterns():
    for n_in, n_out in itertools.product((1, 2), (1, 2)):
        for needs in itertools.product((True, False), repeat=n_in):
            wanted = [i for i in range(n_in) if needs[i]]
            for size in range(1, len(wanted) + 1):
                for asked in itertools.combinations(wanted, size):
                    for given in [(0,)] if n_out == 1 else [(0, 1), (0,), (1,)]:
                        yield needs, n_out, asked, given


@pytest.mark.parametrize("kind", ["sequence", "batch"])
@pytest.mark.parametrize(
    ("contract", "signature", "as_numpy"),
    [(*row, True) for row in CALLED] + [(*row, False) for row in CALLED if "beta" not in row[0]],
)
def test_arguments_of_forward_and_backward(contract, signature, as_numpy, kind):
    container = "value" if not as_numpy else {"sequence": "list", "batch": "array"}[kind]
    for needs, n_out, asked, given in patterns():
        if signature == "two" and len(asked) > 1:
            continue
        fn = linear((kind,) * len(needs), n_out, needs, contract, signature, as_numpy=as_numpy)
        inputs, outputs = list(fn.inputs), list(fn.outputs)
        fn.bare, fn.asked = given[0], asked[0]
        data, values = arguments_of(fn)
        retain = [outputs[0]]
        state, results = forward(fn, values, C.cpu(), retain)

        (phase, args) = fn.log[0]
        assert phase == "forward"
        assert len(args) == (3 if n_out == 1 else 4)
        if len(inputs) == 1:
            assert form(args[0]) == container
            assert_same(args[0], data[0])
        else:
            assert type(args[0]) is tuple
            assert [form(a) for a in args[0]] == [container] * len(inputs)
            for got, sent in zip(args[0], data, strict=True):
                assert_same(got, sent)
        if n_out > 1:
            assert type(args[1]) is dict
            assert list(args[1]) == outputs
        assert args[-2] == C.cpu()
        assert list(args[-1]) == retain
        for j, output in enumerate(outputs):
            wanted = combine([(weight(j, i), d) for i, d in enumerate(data)])
            assert isinstance(results[output], Value)
            assert_same(results[output], wanted)

        roots, root_values = roots_of(fn, given)
        gradients = backward(fn, state, root_values, asked)
        (phase, args) = fn.log[1]
        assert phase == "backward"
        with_variables = expects_variables(contract, signature, needs, asked)
        assert len(args) == (3 if with_variables else 2)
        assert args[0] is None
        if expects_dict(contract, with_variables, n_out, given):
            assert type(args[1]) is dict
            present = range(n_out) if contract == "auto" else given
            assert list(args[1]) == [outputs[j] for j in present]
            for j in present:
                got = args[1][outputs[j]]
                assert form(got) == container
                zeros = [0 * x for x in roots[given[0]]]
                zeros = zeros if kind == "sequence" else 0 * roots[given[0]]
                assert_same(got, roots.get(j, zeros))
        else:
            assert form(args[1]) == container
            assert_same(args[1], roots[given[0]])
        if with_variables:
            assert type(args[2]) is dict
            assert list(args[2]) == [inputs[i] for i in asked]
        for i in asked:
            wanted = combine([(weight(j, i), roots[j]) for j in given])
            assert isinstance(gradients[inputs[i]], Value)
            assert_same(gradients[inputs[i]], wanted)


@pytest.mark.parametrize("lengths", [(2, 2), (1, 1, 1), (1,), (4,), (0, 0), ()])
def test_a_sequence_argument_is_a_list_whatever_the_lengths(lengths):
    fn = linear(("sequence",), n_out=2)
    data, values = arguments_of(fn, lengths)
    state, _ = forward(fn, values)
    roots, root_values = roots_of(fn, lengths=lengths)
    backward(fn, state, root_values)
    (_, forward_args), (_, backward_args) = fn.log
    assert type(forward_args[0]) is list
    assert_same(forward_args[0], data[0])
    for j, output in enumerate(fn.outputs):
        assert type(backward_args[1][output]) is list
        assert_same(backward_args[1][output], roots[j])


def test_layout_ragged_gives_ragged_objects_with_their_starts():
    fn = linear(("sequence", "sequence"), layout="ragged")
    data, values = arguments_of(fn, starts=[False, True, False])
    state, _ = forward(fn, values)
    _, root_values = roots_of(fn)
    backward(fn, state, root_values)
    for x in (*fn.log[0][1][0], fn.log[1][1][1]):
        assert isinstance(x, Ragged)
    arg = fn.log[0][1][0][0]
    np.testing.assert_array_equal(arg.values, np.concatenate(data[0]))
    np.testing.assert_array_equal(arg.offsets, [0, 3, 4, 6])
    np.testing.assert_array_equal(arg.starts, [False, True, False])


def test_layout_ragged_leaves_other_kinds_as_arrays():
    class First(Linear):
        layout = "ragged"

        def forward(self, args, device, outputs_to_retain):
            self.log.append(("forward", args))
            return None, args[0]

    fn = First([variable("sequence", "x"), variable("batch", "y"), variable("none", "z")])
    _, values = arguments_of(fn)
    forward(fn, values)
    assert [form(a) for a in fn.log[0][1]] == ["ragged", "array", "array"]


def test_layout_must_be_list_or_ragged():
    with pytest.raises(ValueError, match="padded"):
        linear(layout="padded")


RETURNED = {
    "ragged": lambda x: x.with_values(2 * x.values),
    "new ragged": lambda x: Ragged(2 * x.values, x.offsets),
    "list": lambda x: [2 * item for item in x],
    "tuple": lambda x: tuple(2 * item for item in x),
    "nested lists": lambda x: [(2 * item).tolist() for item in x],
    "value": lambda x: Value.create(C.sequence.input_variable(2), [2 * item for item in x]),
    "rectangle": lambda x: np.stack([2 * item for item in x]),
}


@pytest.mark.parametrize("layout", ["list", "ragged"])
@pytest.mark.parametrize("returned", RETURNED)
def test_any_form_may_be_returned(returned, layout):
    class Double(C.UserFunction):
        def infer_outputs(self):
            return C.output_variable(2, np.float32, self.inputs[0].dynamic_axes)

        def forward(self, x, device, outputs_to_retain):
            return None, make(Ragged.from_list(list(x)))

        def backward(self, state, grad):
            return make(Ragged.from_list(list(grad)))

    Double.layout = layout
    make = RETURNED[returned]
    fn = Double([variable("sequence", "x")])
    data = batch("sequence", (2, 2) if returned == "rectangle" else LENGTHS)
    assert_same(fn.eval(data), [2 * x for x in data])
    assert_same(fn.grad(data), [np.full_like(x, 2) for x in data])


def test_infer_outputs_runs_once_at_first_use_also_with_threads():
    calls = []

    class Counted(Linear):
        def infer_outputs(self):
            calls.append(threading.get_ident())
            return super().infer_outputs()

    fn = Counted([variable("sequence", "x")])
    assert calls == []
    barrier = threading.Barrier(8)

    def read(_):
        barrier.wait()
        return tuple(fn.outputs)

    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(read, range(8)))
    assert len(calls) == 1
    assert len(seen) == 1


def test_infer_outputs_may_give_one_variable():
    class One(Linear):
        def infer_outputs(self):
            return super().infer_outputs()[0]

    fn = One([variable("sequence", "x")])
    assert len(fn.outputs) == 1
    assert_same(fn.eval(batch("sequence")), [2 * v for v in batch("sequence")])


@pytest.mark.parametrize("given", [None, [], ["no variable"], 3, [None]])
def test_infer_outputs_that_declares_no_variables(given):
    class Bad(Linear):
        def infer_outputs(self):
            return given

    fn = Bad([variable("sequence", "x")])
    with pytest.raises((TypeError, ValueError), match="infer_outputs"):
        _ = fn.outputs


def test_the_same_variable_twice_is_refused_at_construction():
    x = variable("sequence", "twice")
    with pytest.raises(ValueError, match="twice"):
        Linear([x, variable("batch", "y"), x])


@pytest.mark.parametrize("inputs", [[None], ["x"], [3.0], "x"])
def test_inputs_must_be_variables(inputs):
    with pytest.raises(TypeError, match="Variable"):
        Linear(inputs)


def test_user_methods_get_dicts_of_their_own():
    class Emptying(Linear):
        def forward(self, *args):
            state = super().forward(*args)
            kept.append(args[1])
            return state

        def backward(self, state, root_gradients, variables):
            super().backward(state, root_gradients, variables)
            root_gradients.clear()
            kept.append(variables)

    kept = []
    fn = Emptying([variable("sequence", "x"), variable("sequence", "y")], n_out=2)
    _, values = arguments_of(fn)
    asked = dict.fromkeys(fn.outputs)
    state, results = fn._forward(values, asked)
    _, roots = roots_of(fn)
    gradients = backward(fn, state, roots)
    assert list(roots) == list(fn.outputs)
    first = {o: v.asarray() for o, v in results.items()}
    for own in kept:
        own.clear()
    assert list(results) == list(fn.outputs)
    assert list(gradients) == list(fn.inputs)
    for output in fn.outputs:
        np.testing.assert_array_equal(results[output].asarray(), first[output])


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("contract", ["auto", "cntk-beta", "cntk-2.0", "cntk-2.7"])
def test_auto_asks_forward_for_every_declared_output_others_for_those_wanted(contract, asked):
    fn = linear(("sequence",), n_out=2, contract=contract)
    data, values = arguments_of(fn)
    wanted = fn.outputs[asked]
    outputs = {wanted: None}
    _, results = fn._forward(values, outputs)
    assert list(fn.log[0][1][1]) == (list(fn.outputs) if contract == "auto" else [wanted])
    assert list(results) == list(outputs) == [wanted]
    assert_same(results[wanted], [weight(asked, 0) * v for v in data[0]])


def test_arguments_may_come_as_a_dict_in_any_order():
    fn = linear(("sequence", "sequence"))
    data, values = arguments_of(fn)
    by_variable = dict(reversed(list(zip(fn.inputs, values, strict=True))))
    _, results = fn._forward(by_variable, dict.fromkeys(fn.outputs))
    assert_same(results[fn.outputs[0]], combine([(weight(0, i), d) for i, d in enumerate(data)]))


def test_user_code_may_write_into_what_it_was_given():
    class Spoiling(Remembering):
        def forward(self, x, device, outputs_to_retain):
            for v in x:
                v[...] = -1
            return None, x

        def backward(self, state, grad):
            for g in grad:
                g[...] = -2
            return grad

    fn = Spoiling(variable("sequence", "x"))
    data, values = arguments_of(fn)
    state, results = forward(fn, values)
    roots, root_values = roots_of(fn)
    got = backward(fn, state, root_values)[fn.inputs[0]]
    assert_same(values[0], data[0])
    assert_same(root_values[fn.outputs[0]], roots[0])
    assert_same(results[fn.outputs[0]], [np.full_like(v, -1) for v in data[0]])
    assert_same(got, [np.full_like(v, -2) for v in data[0]])


def test_results_do_not_follow_later_writes_of_user_code():
    class Keeping(Remembering):
        def forward(self, x, device, outputs_to_retain):
            self.kept = [v.copy() for v in x]
            return None, self.kept

    fn = Keeping(variable("sequence", "x"))
    data, values = arguments_of(fn)
    _, results = forward(fn, values)
    for v in fn.kept:
        v[...] = np.nan
    gc.collect()
    assert_same(results[fn.outputs[0]], data[0])


STARTS = [False, True, False]


@pytest.mark.parametrize("as_numpy", [True, False])
def test_starts_travel_to_outputs_and_gradients(as_numpy):
    fn = linear(("sequence", "sequence"), n_out=2, as_numpy=as_numpy)
    data = [batch("sequence"), batch("sequence")]
    values = [
        Value.create(x, d, s)
        for x, d, s in zip(fn.inputs, data, (STARTS, [True, False, True]), strict=True)
    ]
    state, results = forward(fn, values)
    for output in fn.outputs:
        assert list(results[output].starts) == STARTS
    _, roots = roots_of(fn)
    gradients = backward(fn, state, roots)
    assert list(gradients[fn.inputs[0]].starts) == STARTS
    assert list(gradients[fn.inputs[1]].starts) == [True, False, True]


@pytest.mark.parametrize(("take", "wanted"), [(0, 0), (1, 1), (2, 1)])
def test_an_output_takes_the_starts_of_the_first_input_with_equal_lengths(take, wanted):
    class Second(C.UserFunction):
        def infer_outputs(self):
            return [C.output_variable(2, np.float32, self.inputs[0].dynamic_axes)]

        def forward(self, args, device, outputs_to_retain):
            return None, [2 * v for v in args[take]]

    fn = Second([variable("sequence", n) for n in "abc"])
    lengths = [(3, 1, 2), (2, 0, 2), (2, 0, 2)]
    starts = [(True, False, True), (False, False, True), (True, True, True)]
    values = [
        Value.create(x, batch("sequence", n), list(s))
        for x, n, s in zip(fn.inputs, lengths, starts, strict=True)
    ]
    _, results = forward(fn, values)
    assert tuple(results[fn.outputs[0]].starts) == starts[wanted]


def test_starts_that_travel_never_join_two_sequences_of_a_row():
    fn = linear(("sequence", "sequence"), as_numpy=False)
    fn.forward = lambda args, device, retain: (None, args[1])
    two_rows = Value.create(fn.inputs[0], batch("sequence", (3, 2)), [True, False])
    one_row = Value(np.ones((1, 5, 2), np.float32), np.array([[2, 1, 1, 2, 1]], np.int8))
    _, results = forward(fn, [two_rows, one_row])
    out = results[fn.outputs[0]]
    assert list(out.lengths) == list(Value(out.data, out.mask).lengths) == [3, 2]
