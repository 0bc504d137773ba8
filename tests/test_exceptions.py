"""Exceptions of user code reach the caller as they were raised, and nothing stays behind."""

import gc
import subprocess
import traceback
import weakref

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    Linear,
    arguments_of,
    assert_same,
    backward,
    batch,
    forward,
    linear,
    ones,
    roots_of,
    variable,
)


class Custom(Exception):
    """Takes arguments that a rebuilt exception would not have."""

    def __init__(self, first, *, second):
        super().__init__(first)
        self.second = second


RAISED = [
    lambda: ValueError("not all outputs have been provided"),
    lambda: TypeError("mine"),
    lambda: KeyError("missing"),
    lambda: IndexError(3),
    lambda: StopIteration("stop"),
    StopIteration,
    GeneratorExit,
    KeyboardInterrupt,
    lambda: SystemExit(3),
    MemoryError,
    lambda: RecursionError("deep"),
    lambda: AttributeError("attr", name="outputs"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    lambda: subprocess.CalledProcessError(1, "command"),
    lambda: ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
    lambda: Custom("first", second="second"),
]


class Raising(Linear):
    """Raises `error` in one phase while it is set."""

    phase = None
    error = None

    def this_line_raises(self):
        raise self.error

    def forward(self, *args):
        if self.phase == "forward":
            self.this_line_raises()
        return super().forward(*args)

    def backward(self, state, root_gradients, variables):
        if self.phase == "backward":
            self.this_line_raises()
        return super().backward(state, root_gradients, variables)

    def infer_outputs(self):
        if self.phase == "infer_outputs":
            self.this_line_raises()
        return super().infer_outputs()


def caught(call):
    """What `call` raises; everything, unlike `pytest.raises`, in one place."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return error
    return None


@pytest.mark.parametrize("n_out", [1, 2])
@pytest.mark.parametrize("phase", ["forward", "backward", "infer_outputs"])
@pytest.mark.parametrize("make", RAISED, ids=lambda make: repr(make()))
def test_exceptions_arrive_unchanged_with_a_note(make, phase, n_out):
    fn = Raising([variable("sequence", "x")], n_out, name="raising")
    data = batch("sequence")
    error = make()
    before = (type(error), error.args, str(error), dict(vars(error)))
    fn.phase, fn.error = phase, error
    got = caught(lambda: fn.grad(data))
    assert got is error
    notes = got.__dict__.pop("__notes__")
    assert (type(got), got.args, str(got), dict(vars(got))) == before
    assert len(notes) == 1
    assert "raising" in notes[0]
    assert phase in notes[0]
    frames = traceback.extract_tb(got.__traceback__)
    assert frames[-1].name == "this_line_raises"
    assert frames[-2].name == phase
    assert got.__cause__ is None
    assert got.__context__ is None
    assert not got.__suppress_context__

    fn.phase = None
    factor = 2 if n_out == 1 else 7
    assert_same(fn.grad(data), ones(data, factor))


def test_a_cause_and_a_context_of_user_code_stay():
    def chained(*args):
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner

    fn = linear()
    fn.forward = chained
    got = caught(lambda: fn.eval(batch("sequence")))
    assert repr(got) == "ValueError('outer')"
    assert repr(got.__cause__) == repr(got.__context__) == "KeyError('inner')"


@pytest.mark.parametrize("as_numpy", [True, False])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_pending_forwards_survive_an_exception(phase, as_numpy):
    fn = Raising([variable("sequence", "x")], as_numpy=as_numpy)
    _, values = arguments_of(fn)
    state, _ = forward(fn, values)
    roots, root_values = roots_of(fn)
    variables = dict.fromkeys(fn.inputs)
    fn.phase, fn.error = phase, RuntimeError("once")
    outputs = dict.fromkeys(fn.outputs)
    call = {
        "forward": lambda: fn._forward(values, outputs),
        "backward": lambda: fn._backward(state, root_values, variables),
    }[phase]
    assert caught(call) is fn.error
    assert list(variables.values()) == list(outputs.values()) == [None]
    fn.phase = None
    assert_same(backward(fn, state, root_values)[fn.inputs[0]], [2 * g for g in roots[0]])


def test_a_function_inside_another_adds_its_own_note():
    inner = Raising([variable("sequence", "x")], name="inside")
    inner.phase, inner.error = "forward", ValueError("deep")
    outer = linear(name="outside")
    outer.forward = lambda x, device, retain: (None, inner.eval(x))
    got = caught(lambda: outer.eval(batch("sequence")))
    assert got is inner.error
    assert ["inside" in note for note in got.__notes__] == [True, False]
    assert "outside" in got.__notes__[1]


class Watched:
    """A state that can be watched."""


class Leaving(C.UserFunction):
    """Makes a fresh state in every forward and raises where it is told to."""

    fails = None

    def __init__(self, x, made, **kwargs):
        super().__init__([x], **kwargs)
        self.made = made

    def infer_outputs(self):
        x = self.inputs[0]
        return C.output_variable(x.shape, x.dtype, x.dynamic_axes)

    def forward(self, x, device, outputs_to_retain):
        state = Watched()
        self.made.append(weakref.ref(state))
        if isinstance(x, list):
            self.made.extend(weakref.ref(v) for v in x)
        if self.fails == "forward":
            raise RuntimeError("forward")
        if self.fails == "check":
            return state, [np.ones((1, 5))]
        return state, x

    def backward(self, state, grad):
        if self.fails == "backward":
            raise RuntimeError("backward")
        return [g[:-1] for g in grad] if self.fails == "gradient" else grad


@pytest.mark.parametrize(
    ("fails", "as_numpy"),
    [(f, True) for f in (None, "forward", "check", "backward", "gradient")]
    + [(f, False) for f in (None, "forward", "backward")],
)
def test_no_state_is_kept(fails, as_numpy):
    made = []
    fn = Leaving(variable("sequence", "x"), made, as_numpy=as_numpy)
    fn.fails = fails
    data = batch("sequence")
    for _ in range(3):
        error = caught(lambda: fn.grad(data))
        assert (error is None) is (fails is None)
        del error
    gc.collect()
    assert made
    assert [ref() for ref in made] == [None] * len(made)
    for value in vars(fn).values():
        assert not isinstance(value, Watched)


def test_a_dropped_forward_frees_its_state_without_the_garbage_collector():
    made = []
    fn = Leaving(variable("sequence", "x"), made)
    _, values = arguments_of(fn)
    assert list(fn.outputs)
    gc.collect()
    gc.disable()
    try:
        state, results = forward(fn, values)
        assert made[0]() is not None
        del results
        assert made[0]() is not None
        del state
        assert [ref() for ref in made] == [None] * len(made)
    finally:
        gc.enable()


def test_a_finished_backward_leaves_the_state_to_the_caller_alone():
    made = []
    fn = Leaving(variable("sequence", "x"), made)
    _, values = arguments_of(fn)
    gc.collect()
    gc.disable()
    try:
        state, _ = forward(fn, values)
        _, roots = roots_of(fn)
        gradients = backward(fn, state, roots)
        del state
        assert made[0]() is None
        assert list(gradients) == list(fn.inputs)
    finally:
        gc.enable()


def test_a_function_that_is_dropped_dies():
    fn = linear(("sequence", "sequence"), n_out=2)
    data = batch("sequence")
    fn.grad(dict.fromkeys(fn.inputs, data))
    ref = weakref.ref(fn)
    fn.log.clear()
    del fn
    gc.collect()
    assert ref() is None
