"""States by identity, pending forwards, several threads: a function holds nothing of a call."""

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    Remembering,
    arguments_of,
    assert_same,
    backward,
    batch,
    forward,
    linear,
    roots_of,
    variable,
)
from udfkit import BackPropState, UserBackPropState, Value

STATES = [None, False, True, 0, 7, (), (1, "a"), "", {}, [], object(), np.zeros(3), {"k": object()}]


@pytest.mark.parametrize("as_numpy", [True, False])
@pytest.mark.parametrize("n_out", [1, 2])
@pytest.mark.parametrize("n_in", [1, 2])
def test_state_comes_back_by_identity(n_in, n_out, as_numpy):
    for contract, state in itertools.product(["auto", "cntk-2.7"], STATES):
        fn = linear(
            ("sequence",) * n_in,
            n_out,
            contract=contract,
            signature="star",
            state=state,
            as_numpy=as_numpy,
        )
        _, values = arguments_of(fn)
        engine_state, _ = forward(fn, values)
        _, roots = roots_of(fn)
        backward(fn, engine_state, roots)
        assert fn.log[1][1][0] is state


@pytest.mark.parametrize("made", ["BackPropState", "a class of one's own", "UserBackPropState"])
@pytest.mark.parametrize("contract", ["auto", "cntk-2.0", "cntk-2.7"])
@pytest.mark.parametrize("as_numpy", [True, False])
@pytest.mark.parametrize("n_out", [1, 2])
def test_a_state_made_by_the_user_passes_unwrapped(n_out, as_numpy, contract, made):
    class Own(BackPropState):
        def __init__(self, device):
            super().__init__(device)
            self.extra = 1

    fn = linear(("sequence",), n_out, contract=contract, signature="star", as_numpy=as_numpy)
    fn.state = {
        "BackPropState": lambda: BackPropState(C.cpu()),
        "a class of one's own": lambda: Own(C.cpu()),
        "UserBackPropState": lambda: UserBackPropState(fn, C.cpu(), {"kept": 1}),
    }[made]()
    _, values = arguments_of(fn)
    engine_state, _ = forward(fn, values)
    assert engine_state is fn.state
    assert engine_state.device() == C.cpu()
    _, roots = roots_of(fn)
    backward(fn, engine_state, roots)
    assert fn.log[1][1][0] is fn.state


@pytest.mark.parametrize("count", [2, 3, 4])
def test_one_state_object_for_several_pending_forwards(count):
    fn = linear()
    fn.state = BackPropState(C.cpu())
    (x,), (output,) = fn.inputs, fn.outputs
    pending = []
    for k in range(count):
        data = batch("sequence", range(1, k + 2), offset=k)
        pending.append((data, forward(fn, [Value.create(x, data)])[0]))
    for data, state in pending:
        assert state is fn.state
        got = backward(fn, state, {output: Value.create(output, data)})[x]
        assert_same(got, [2 * v for v in data])


def test_user_back_prop_state_keeps_device_and_data():
    fn = linear()
    data = object()
    state = UserBackPropState(fn, C.cpu(), data)
    assert isinstance(state, BackPropState)
    assert state.device() == C.cpu()
    assert UserBackPropState.data(state) is data


def run_many(fn, seed, count=12):
    """`count` pending forwards, their backwards in a shuffled order, everything checked."""
    rng = random.Random(seed)
    (x,), (output,) = fn.inputs, fn.outputs
    pending = []
    for k in range(count):
        lengths = [rng.randrange(5) for _ in range(rng.randrange(4))]
        data = batch("sequence", lengths, offset=seed * 100 + k)
        starts = [rng.random() < 0.5 for _ in lengths]
        state, results = forward(fn, [Value.create(x, data, starts)])
        assert_same(results[output], [v * v for v in data])
        assert list(results[output].starts) == starts
        pending.append((data, starts, state))
    rng.shuffle(pending)
    for data, starts, state in pending:
        roots = [v + 3 for v in data]
        got = backward(fn, state, {output: Value.create(output, roots)})[x]
        assert_same(got, [2 * v * (v + 3) for v in data])
        assert list(got.starts) == starts


@pytest.mark.parametrize("as_numpy", [True, False])
def test_many_pending_forwards_in_any_order(as_numpy):
    fn = Remembering(variable("sequence", "x"), as_numpy)
    for seed in range(5):
        run_many(fn, seed)


def test_two_backwards_on_one_state():
    fn = Remembering(variable("sequence", "x"))
    (x,), (output,) = fn.inputs, fn.outputs
    data = batch("sequence")
    state, _ = forward(fn, [Value.create(x, data)])
    for factor in (1, 5):
        root = Value.create(output, [np.full_like(v, factor) for v in data])
        assert_same(backward(fn, state, {output: root})[x], [2 * v * factor for v in data])


@pytest.mark.parametrize("as_numpy", [True, False])
def test_eight_threads_on_one_function(as_numpy):
    fn = Remembering(variable("sequence", "x"), as_numpy)
    barrier = threading.Barrier(8)

    def work(seed):
        barrier.wait()
        run_many(fn, seed, count=25)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
