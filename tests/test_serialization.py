"""Saving, loading, pickling and cloning of user functions."""

import builtins
import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import Linear, assert_same, batch, variable

F32 = np.float32


class Scale(C.UserFunction):
    """x * factor, with some state of its own and references to its inputs."""

    def __init__(self, x, factor, name="scale"):
        super().__init__([x], name=name)
        self.factor = factor
        self.x = x
        self.pair = [x, "x"]
        self.by_input = {x: {"weight": np.ones(2)}}
        self.tuple = (x, (x,))
        self.history = []
        self.me = self

    def infer_outputs(self):
        return C.output_variable(self.x.shape, self.x.dtype, self.x.dynamic_axes, name="scaled")

    def forward(self, x, device, outputs_to_retain):
        self.history.append(len(x))
        return None, [self.factor * v for v in x]

    def backward(self, state, grad):
        return [self.factor * g for g in grad]

    def serialize(self):
        return {"factor": self.factor, "nested": {"list": [1, 2.5, None, True, "text"]}}

    @staticmethod
    def deserialize(inputs, name, state):
        assert state["nested"] == {"list": [1, 2.5, None, True, "text"]}
        return Scale(inputs[0], state["factor"], name)


class Stateful(Scale):
    """`serialize` gives what the test wants it to."""

    given = None

    def serialize(self):
        return self.given

    @staticmethod
    def deserialize(inputs, name, state):
        result = Stateful(inputs[0], 1.0, name)
        result.given = state
        return result


class Renamed(Scale):
    @property
    def op_name(self):
        return "my.own.name"


@pytest.fixture
def fn():
    return Scale(variable("sequence", "features"), 3.0, name="tripled")


def test_op_name_is_module_and_class(fn):
    assert fn.op_name == f"{__name__}.Scale"
    assert Renamed(variable("sequence", "x"), 1.0).op_name == "my.own.name"


@pytest.mark.parametrize("text", [False, True])
def test_save_and_load_give_an_equal_function(fn, text):
    saved = C.save_function(fn)
    assert type(saved) is dict
    if text:
        saved = json.loads(json.dumps(saved))
    again = C.load_function(saved)
    assert type(again) is Scale
    assert again is not fn
    assert (again.name, again.factor) == ("tripled", 3.0)
    data = batch("sequence")
    assert_same(again.eval(data), fn.eval(data))
    assert_same(again.grad(data), fn.grad(data))


@pytest.mark.parametrize("kind", ["sequence", "batch", "none"])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((), "float64"), ((2, 3), "float16"), ((-3,), "int32")]
)
def test_loaded_inputs_have_everything_that_the_saved_ones_had(kind, shape, dtype):
    x = variable(kind, "same", dtype[0] == "f", shape, np.dtype(dtype).type)
    (got,) = C.load_function(json.loads(json.dumps(C.save_function(Scale(x, 1.0))))).inputs
    for name in ("shape", "dtype", "dynamic_axes", "needs_gradient", "is_sparse", "name", "kind"):
        assert getattr(got, name) == getattr(x, name)


def test_load_with_inputs_of_ones_own(fn):
    x = variable("sequence", "mine", shape=(5,))
    again = C.load_function(C.save_function(fn), [x])
    assert again.inputs[0] is x
    assert again.outputs[0].shape == (5,)
    for wrong in ([], [x, variable("sequence", "y")]):
        with pytest.raises(ValueError, match=str(len(wrong))):
            C.load_function(C.save_function(fn), inputs=wrong)
    with pytest.raises(TypeError, match="Variable"):
        C.load_function(C.save_function(fn), inputs=["x"])


def test_a_registered_callback_gets_inputs_name_and_state():
    calls = []

    def callback(inputs, name, state):
        calls.append((list(inputs), name, state))
        return Scale(inputs[0], 10 * state["factor"], name)

    fn = Renamed(variable("sequence", "x"), 2.0, name="called")
    C.register_udf_deserialize_callback("my.own.name", callback)
    x = variable("sequence", "y")
    again = C.load_function(C.save_function(fn), inputs=[x])
    assert again.factor == 20.0
    ((inputs, name, state),) = calls
    assert (inputs, name, state) == ([x], "called", fn.serialize())
    assert state is not fn.serialize()


def test_what_a_callback_gives_must_be_a_function():
    class Odd(Scale):
        op_name = "odd.name"

    C.register_udf_deserialize_callback("odd.name", lambda inputs, name, state: 3)
    with pytest.raises(TypeError, match=r"odd\.name"):
        C.load_function(C.save_function(Odd(variable("sequence", "x"), 2.0)))


def renamed(saved, old, new):
    return json.loads(json.dumps(saved).replace(old, new))


@pytest.mark.parametrize("name", ["os.system", "nowhere.to_be.Found", "", "__main__.eval"])
def test_an_unknown_op_name_is_a_clear_error(fn, name):
    with pytest.raises((ValueError, LookupError)) as info:
        C.load_function(renamed(C.save_function(fn), fn.op_name, name))
    assert name in str(info.value)
    assert "register_udf_deserialize_callback" in str(info.value)


def test_loading_imports_nothing(fn, tmp_path, monkeypatch):
    (tmp_path / "udf_with_effects.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((ValueError, LookupError), match="udf_with_effects"):
        C.load_function(renamed(C.save_function(fn), fn.op_name, "udf_with_effects.Scale"))
    assert "udf_with_effects" not in sys.modules


def test_loading_evaluates_and_unpickles_nothing(fn, monkeypatch):
    saved = C.save_function(fn)
    C.load_function(saved)

    def forbidden(*args, **kwargs):
        raise AssertionError("loading must not run this")

    with monkeypatch.context() as patch:
        for module, names in (
            (pickle, ("loads", "load", "Unpickler")),
            (builtins, ("eval", "exec")),
        ):
            for name in names:
                patch.setattr(module, name, forbidden)
        again = C.load_function(saved)
    assert again.factor == 3.0


@pytest.mark.parametrize("saved", [None, [], "text", 3, {}, {"op_name": 3}, b"\x80\x04."])
def test_what_is_no_saved_function_is_refused(saved):
    with pytest.raises((TypeError, ValueError), match="save_function"):
        C.load_function(saved)


def test_a_saved_function_without_one_of_its_entries(fn):
    saved = C.save_function(fn)
    for key in saved:
        part = {k: v for k, v in saved.items() if k != key}
        with pytest.raises((TypeError, ValueError), match=key):
            C.load_function(part)


@pytest.mark.parametrize("given", [3, [1], "state", object()])
def test_serialize_must_give_a_dict(given):
    fn = Stateful(variable("sequence", "x"), 1.0)
    fn.given = given
    with pytest.raises(TypeError, match="serialize"):
        C.save_function(fn)


@pytest.mark.parametrize(
    "bad", [lambda: 0, object(), Linear, {"inner": [{1, 2}]}, [1, [open]]], ids=type
)
def test_state_that_is_no_plain_data_fails_at_save(bad):
    fn = Stateful(variable("sequence", "x"), 1.0)
    fn.given = {"fine": 1, "culprit": bad}
    with pytest.raises(TypeError, match="culprit"):
        C.save_function(fn)


def test_a_saved_function_does_not_follow_later_changes():
    fn = Stateful(variable("sequence", "x"), 1.0)
    fn.given = {"list": [1], "dict": {"a": [2]}}
    saved = C.save_function(fn)
    fn.given["list"].append(9)
    fn.given["dict"]["a"].append(9)
    first = C.load_function(saved)
    first.given["list"].append(7)
    assert C.load_function(saved).given == {"list": [1], "dict": {"a": [2]}}


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16"])
def test_arrays_in_the_state_come_back(dtype):
    fn = Stateful(variable("sequence", "x"), 1.0)
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    fn.given = {"array": array.T}
    got = C.load_function(C.save_function(fn)).given["array"]
    assert got.dtype == array.dtype
    assert got.tolist() == array.T.tolist()
    assert not np.shares_memory(got, array)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(fn, protocol):
    data = batch("sequence")
    wanted = fn.eval(data)
    again = pickle.loads(pickle.dumps(fn, protocol))
    assert type(again) is Scale
    assert again is not fn
    assert again.inputs[0] is fn.inputs[0]
    assert again.x is fn.inputs[0]
    assert again.me is again
    assert again.history == [3]
    assert_same(again.eval(data), wanted)
    assert fn.history == [3]
    unused = pickle.loads(pickle.dumps(Scale(variable("sequence", "x"), 3.0), protocol))
    assert_same(unused.eval(data), wanted)


def test_pickle_into_another_process(fn):
    code = (
        "import pickle, sys\n"
        "fn = pickle.loads(sys.stdin.buffer.read())\n"
        "x = fn.inputs[0]\n"
        "assert fn.x is x and x.name == 'features' and x.needs_gradient\n"
        "print(fn.eval([[[1, 2]], [[3, 4], [5, 6]]])[1].tolist())\n"
    )
    paths = [str(Path(C.__file__).parents[1]), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(fn),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.stderr.decode() == ""
    assert done.stdout.decode().split() == ["[[9.0,", "12.0],", "[15.0,", "18.0]]"]


def test_a_function_that_holds_a_lambda_does_not_pickle(fn):
    fn.activation = lambda x: x
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError), match="lambda"):
        pickle.dumps(fn)


def check_clone(again, fn, x):
    assert type(again) is type(fn)
    assert again is not fn
    assert list(again.inputs) == [x]
    assert again.x is again.pair[0] is again.tuple[0] is again.tuple[1][0] is x
    assert list(again.by_input) == [x]
    assert again.me is again
    assert (again.name, again.factor, again.pair[1]) == (fn.name, fn.factor, "x")
    assert again.history == fn.history
    assert again.history is not fn.history
    weights = again.by_input[x]["weight"], fn.by_input[fn.x]["weight"]
    assert weights[0].tolist() == weights[1].tolist()
    assert not np.shares_memory(*weights)


@pytest.mark.parametrize("used", [False, True])
def test_clone_replaces_the_inputs(fn, used):
    old = fn.inputs[0]
    if used:
        fn.eval(batch("sequence"))
    x = variable("batch", "new", shape=(4,), dtype=np.float64)
    again = fn.clone([x])
    check_clone(again, fn, x)
    assert again.outputs[0] is not fn.outputs[0]
    assert (again.outputs[0].shape, again.outputs[0].kind) == ((4,), "batch")
    assert fn.inputs[0] is fn.x is old
    assert fn.outputs[0].shape == (2,)
    data = np.ones((3, 4))
    again.forward = lambda v, device, retain: (None, again.factor * v)
    assert_same(again.eval(data), 3 * data)
    assert_same(fn.eval(batch("sequence")), [3 * v for v in batch("sequence")])


def test_clone_of_several_inputs_keeps_their_order():
    inputs = [variable("sequence", n) for n in "ab"]
    fn = Linear(inputs, n_out=2)
    fn.second = inputs[1]
    new = [variable("sequence", n) for n in "cd"]
    again = fn.clone(new)
    assert list(again.inputs) == new
    assert again.second is new[1]
    swapped = again.clone(new[::-1])
    assert swapped.second is new[0]
    assert len(again.outputs) == 2


@pytest.mark.parametrize("wrong", [[], [1], [None], "ab"])
def test_clone_wants_as_many_variables(fn, wrong):
    with pytest.raises((TypeError, ValueError), match=r"input|Variable"):
        fn.clone(wrong)
    two = [variable("sequence", "a"), variable("sequence", "b")]
    with pytest.raises(ValueError, match="1"):
        fn.clone(two)
    with pytest.raises(ValueError, match="twice"):
        Linear(two).clone([variable("sequence", "twice")] * 2)


def test_an_own_clone_is_used():
    class Own(Scale):
        def clone(self, cloned_inputs):
            return Own(cloned_inputs[0], -self.factor)

    assert Own(variable("sequence", "x"), 2.0).clone([variable("sequence", "y")]).factor == -2.0


def test_deepcopy_keeps_the_inputs_and_shares_nothing_mutable(fn):
    fn.eval(batch("sequence"))
    again = copy.deepcopy(fn)
    check_clone(again, fn, fn.inputs[0])
    assert_same(again.eval(batch("sequence")), fn.eval(batch("sequence")))
    assert again.history == fn.history == [3, 3]


def test_attributes_of_the_constructor_are_kept():
    fn = C.UserFunction([variable("sequence", "x")], attributes={"axis": 1}, name="with")
    assert fn.attributes == {"axis": 1}
    assert fn.clone([variable("sequence", "y")]).attributes == {"axis": 1}


def test_state_that_nothing_saves_is_refused_at_once():
    class Keeps(Scale):
        serialize = C.UserFunction.serialize

    fn = Keeps(C.sequence.input_variable(()), 3.0, "kept")
    with pytest.raises(TypeError, match=r"factor.*serialize"):
        C.save_function(fn)
