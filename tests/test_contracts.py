"""The four contracts, row by row of their table."""

import inspect

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    Linear,
    arguments_of,
    assert_same,
    backward,
    form,
    forward,
    linear,
    roots_of,
    variable,
)
from udfkit import BackPropState, Value

CONTRACTS = ["auto", "cntk-beta", "cntk-2.0", "cntk-2.7"]

# contract, which inputs need a gradient, which are asked for, variables given, root gradients:
# for one output; every row is a sentence of the table. "star" is backward(self, *args).
ONE_OUTPUT = [
    ("auto", "three", "1", "1", True, "list"),
    ("auto", "three", "11", "10", True, "list"),
    ("auto", "two", "1", "1", False, "list"),
    ("auto", "two", "11", "01", False, "list"),
    ("auto", "star", "1", "1", False, "list"),
    ("auto", "star", "10", "10", False, "list"),
    ("auto", "star", "11", "10", True, "list"),
    ("cntk-beta", "star", "1", "1", False, "list"),
    ("cntk-beta", "star", "11", "10", False, "list"),
    ("cntk-beta", "star", "11", "01", False, "list"),
    ("cntk-beta", "star", "11", "11", True, "dict"),
    ("cntk-2.0", "star", "1", "1", False, "list"),
    ("cntk-2.0", "star", "10", "10", False, "list"),
    ("cntk-2.0", "star", "01", "01", False, "list"),
    ("cntk-2.0", "star", "11", "10", True, "list"),
    ("cntk-2.0", "star", "11", "11", True, "list"),
    ("cntk-2.7", "star", "1", "1", False, "list"),
    ("cntk-2.7", "star", "10", "10", True, "list"),
    ("cntk-2.7", "star", "01", "01", True, "list"),
    ("cntk-2.7", "star", "11", "01", True, "list"),
]
# the same with two outputs: the numbers of those whose root gradient arrives, and what comes
TWO_OUTPUTS = [
    ("auto", "three", "1", "1", "01", True, "dict"),
    ("auto", "three", "11", "11", "1", True, "dict"),
    ("auto", "two", "1", "1", "0", False, "dict"),
    ("cntk-beta", "star", "1", "1", "01", False, "dict"),
    ("cntk-beta", "star", "1", "1", "1", False, "list"),
    ("cntk-beta", "star", "11", "11", "1", True, "dict"),
    ("cntk-2.0", "star", "1", "1", "01", False, "dict"),
    ("cntk-2.0", "star", "1", "1", "1", False, "list"),
    ("cntk-2.0", "star", "11", "01", "1", True, "list"),
    ("cntk-2.7", "star", "1", "1", "01", False, "dict"),
    ("cntk-2.7", "star", "1", "1", "0", False, "list"),
    ("cntk-2.7", "star", "10", "10", "0", True, "list"),
]


@pytest.mark.parametrize(
    ("contract", "signature", "needs", "asked", "given", "variables", "root"),
    [(*row[:4], "0", *row[4:]) for row in ONE_OUTPUT] + TWO_OUTPUTS,
)
def test_what_backward_gets(contract, signature, needs, asked, given, variables, root, request):
    n_out = 1 + (request.node.callspec.indices["contract"] >= len(ONE_OUTPUT))
    fn = linear(("sequence",) * len(needs), n_out, [n == "1" for n in needs], contract, signature)
    fn.bare, fn.asked = int(given[0]), asked.index("1")
    _, values = arguments_of(fn)
    state, _ = forward(fn, values)
    _, roots = roots_of(fn, [int(j) for j in given])
    wanted = [i for i, a in enumerate(asked) if a == "1"]
    backward(fn, state, roots, wanted)
    (_, args) = fn.log[-1]
    assert len(args) == 2 + variables
    assert form(args[1]) == root
    if variables:
        assert list(args[2]) == [fn.inputs[i] for i in wanted]


def test_auto_gives_zeros_for_root_gradients_that_did_not_arrive():
    fn = linear(("sequence",), n_out=2)
    _, values = arguments_of(fn)
    state, _ = forward(fn, values)
    roots, root_values = roots_of(fn, [1])
    backward(fn, state, root_values)
    got = fn.log[-1][1][1]
    assert_same(got[fn.outputs[0]], [np.zeros_like(v) for v in roots[1]])
    assert_same(got[fn.outputs[1]], roots[1])


SIGNATURES = {
    # what backward is written like: does it get `variables` (one input; two inputs that both need)
    "state, root_gradients": (False, False),
    "state, root_gradients, variables": (True, True),
    "state, root_gradients, variables=None": (True, True),
    "state, root_gradients, variables, *, scale=1": (True, True),
    "state, root_gradients, *, variables=None": (False, False),
    "state, root_gradients, **options": (False, False),
    "state, root_gradients, variables, *rest": (True, True),
    "*args": (False, True),
    "state, *rest": (False, True),
    "state, root_gradients, *rest": (False, True),
    "*args, **kwargs": (False, True),
}


@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize("n_in", [1, 2])
@pytest.mark.parametrize("place", ["method", "static", "class method", "instance"])
def test_auto_reads_the_signature_of_backward(signature, n_in, place):
    names = {}
    first = "" if place in ("static", "instance") else "self, "
    exec(  # the signatures are this table's own
        f"def backward({first}{signature}):\n    called.append(dict(locals()))\n"
        "    raise ZeroDivisionError\n",
        names,
    )
    called = names["called"] = []
    method = names["backward"]
    wrap = {"static": staticmethod, "class method": classmethod}.get(place, lambda f: f)
    body = {} if place == "instance" else {"backward": wrap(method)}
    fn = type("Signed", (Linear,), body)([variable("sequence", f"x{i}") for i in range(n_in)])
    if place == "instance":
        fn.backward = method
    _, values = arguments_of(fn)
    state, _ = forward(fn, values)
    _, roots = roots_of(fn)
    with pytest.raises(ZeroDivisionError):
        backward(fn, state, roots, [0])
    seen = called[0]
    extra = [*seen.get("args", ()), *seen.get("rest", ())]
    count = sum(k in inspect.signature(method).parameters for k in ("state", "root_gradients"))
    got_variables = isinstance(seen.get("variables"), dict) or count + len(extra) == 3
    assert got_variables is SIGNATURES[signature][n_in - 1]


def test_auto_without_variables_cannot_answer_for_two_inputs():
    fn = linear(("sequence", "sequence"), signature="two")
    _, values = arguments_of(fn)
    state, _ = forward(fn, values)
    _, roots = roots_of(fn)
    with pytest.raises((TypeError, ValueError)) as info:
        backward(fn, state, roots)
    for word in (fn.name, "backward", "2 gradients", "variables"):
        assert word in str(info.value)


def forgetful(contract, n_in=2, n_out=1, filled=(), as_numpy=True):
    """A function whose backward fills only some inputs, or returns None where it returns one."""

    def backward(self, *args):
        if len(args) == 3:
            for i in filled:
                args[2][self.inputs[i]] = self.gradient({0: next(iter(self.roots(args[1])))}, i)

    fn = linear(("sequence",) * n_in, n_out, contract=contract, signature="star", as_numpy=as_numpy)
    cls = type(fn)
    cls.backward = backward
    cls.roots = lambda self, root: list(root.values()) if isinstance(root, dict) else [root]
    return fn


@pytest.mark.parametrize(
    ("contract", "as_numpy"),
    [(c, True) for c in CONTRACTS] + [(c, False) for c in CONTRACTS if c != "cntk-beta"],
)
@pytest.mark.parametrize(
    ("n_in", "filled", "missing"),
    [(1, (), "x0"), (2, (), "x0 x1"), (2, (0,), "x1"), (2, (1,), "x0")],
)
def test_gradients_that_stay_none(contract, n_in, filled, missing, as_numpy):
    fn = forgetful(contract, n_in, filled=filled, as_numpy=as_numpy)
    data, values = arguments_of(fn, starts=[False, True, True])
    state, _ = forward(fn, values)
    _, roots = roots_of(fn)
    variables = dict.fromkeys(fn.inputs)
    if contract == "cntk-2.7":
        fn._backward(state, roots, variables)
        for i, input_ in enumerate(fn.inputs):
            if i not in filled:
                assert_same(variables[input_], [np.zeros_like(v) for v in data[i]])
                assert list(variables[input_].starts) == [False, True, True]
        return
    with pytest.raises(ValueError, match=r"^gradients were not provided") as info:
        fn._backward(state, roots, variables)
    for name in ("x0", "x1"):
        assert (name in str(info.value)) is (name in missing)
    assert list(variables.values()) == [None] * n_in


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("n_in", [1, 2])
@pytest.mark.parametrize(("n_out", "filled"), [(1, ()), (2, ()), (2, (0,)), (2, (1,))])
def test_outputs_that_stay_none(contract, n_in, n_out, filled):
    class Forgetful(Linear):
        def forward(self, *args):
            if n_out == 1:
                return None, None
            for j in filled:
                args[1][self.outputs[j]] = args[0] if n_in == 1 else args[0][0]
            return None

    Forgetful.contract = contract
    fn = Forgetful([variable("sequence", f"x{i}") for i in range(n_in)], n_out)
    _, values = arguments_of(fn)
    outputs = dict.fromkeys(fn.outputs)
    with pytest.raises(ValueError, match="not all outputs have been provided") as info:
        fn._forward(values, outputs)
    for j in range(n_out):
        assert (f"o{j}" in str(info.value)) is (j not in filled)
    assert list(outputs.values()) == [None] * n_out


def test_beta_is_refused_without_as_numpy():
    with pytest.raises(ValueError, match="cntk-beta") as info:
        linear(contract="cntk-beta", as_numpy=False)
    assert "as_numpy" in str(info.value)


@pytest.mark.parametrize("n_out", [1, 2])
@pytest.mark.parametrize("state", [False, 0, (), "a", [1], {}, np.zeros(2), object()])
def test_cntk_2_0_takes_only_engine_states_without_as_numpy(state, n_out):
    fn = linear(contract="cntk-2.0", n_out=n_out, signature="star", as_numpy=False, state=state)
    _, values = arguments_of(fn)
    with pytest.raises(ValueError, match="BackPropState") as info:
        forward(fn, values)
    assert type(state).__name__ in str(info.value)


@pytest.mark.parametrize("state", [None, BackPropState(C.cpu())])
def test_cntk_2_0_states_without_as_numpy(state):
    fn = linear(contract="cntk-2.0", signature="star", as_numpy=False, state=state)
    _, values = arguments_of(fn)
    engine_state, results = forward(fn, values)
    assert isinstance(results[fn.outputs[0]], Value)
    _, roots = roots_of(fn)
    backward(fn, engine_state, roots)
    assert fn.log[-1][1][0] is state


@pytest.mark.parametrize("contract", ["cntk-1.0", "CNTK-2.7", "", None, 2.7])
def test_an_unknown_contract_is_refused_and_the_known_ones_named(contract):
    with pytest.raises(ValueError) as info:
        linear(contract=contract)
    for known in CONTRACTS:
        assert known in str(info.value)


def test_the_contract_is_inherited_and_chosen_per_class():
    class Old(Linear):
        contract = "cntk-2.7"

    class Newer(Old):
        contract = "auto"

        def backward(self, state, root_gradients):
            return self.run_backward((state, root_gradients))

    assert C.UserFunction.contract == "auto"
    for cls, count in ((Old, 3), (Newer, 2)):
        fn = cls([variable("sequence", "x"), variable("sequence", "y", needs_gradient=False)])
        _, values = arguments_of(fn)
        state, _ = forward(fn, values)
        _, roots = roots_of(fn)
        backward(fn, state, roots, [0])
        assert len(fn.log[-1][1]) == count
