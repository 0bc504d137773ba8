"""Sequence functions: when a body is compiled anew, and what is said when it cannot be."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest

import udfkit
from udfkit import per_sequence, per_step, sequence_function, shared
from udfkit.kernels import sequence_compiling
from udfkit.kernels.bodies import Body
from udfkit.kernels.jit import JIT_DISABLED

compiled_only = pytest.mark.skipif(JIT_DISABLED, reason="asks what numba does")

FACTOR = 2.0


def helper(a):
    return a * FACTOR


def outer(a):
    return helper(a) + 1.0


def test_globals_helpers_and_their_globals_take_effect_when_they_change(monkeypatch):
    names = globals()

    @sequence_function(takes={"x": per_step("T")}, gives={"y": per_step("T")})
    def body(x, y):
        for t in range(x.shape[0]):
            y[t] = outer(x[t])

    fn = body([udfkit.sequence.input_variable((), np.float64)])
    assert fn.eval([[1.0]])[0].tolist() == [3.0]
    monkeypatch.setitem(names, "FACTOR", 5.0)
    assert fn.eval([[1.0]])[0].tolist() == [6.0]
    monkeypatch.setitem(names, "helper", lambda a: a - 10.0)
    assert fn.eval([[1.0]])[0].tolist() == [-8.0]
    monkeypatch.undo()
    assert fn.eval([[1.0]])[0].tolist() == [3.0]


def test_objects_of_modules_are_watched_too():
    config = types.ModuleType("config")
    config.K = 3.0
    config.inner = types.ModuleType("config.inner")
    config.inner.shift = lambda a: a + 1.0
    space = {"config": config}
    exec(
        "def forward(x, y):\n"
        "    for t in range(x.shape[0]):\n"
        "        y[t] = config.inner.shift(x[t] * config.K)\n",
        space,
    )
    made = sequence_function(takes={"x": per_step("T")}, gives={"y": per_step("T")})(
        space["forward"]
    )
    fn = made([udfkit.sequence.input_variable((), np.float64)])
    assert fn.eval([[2.0]])[0].tolist() == [7.0]
    config.K = 4.0
    assert fn.eval([[2.0]])[0].tolist() == [9.0]
    config.inner.shift = lambda a: a - 1.0
    assert fn.eval([[2.0]])[0].tolist() == [7.0]


def make_closure(k):
    def forward(x, y):
        for t in range(x.shape[0]):
            y[t] = x[t] + k

    return forward


def test_closures_constants_and_types_have_keys_of_their_own():
    bodies = [make_closure(k) for k in (1, 1.0, True, 2)]
    assert len({Body(body).key for body in bodies}) == 4
    assert Body(make_closure(1)).key == Body(make_closure(1)).key
    assert Body(make_closure(0.0)).key != Body(make_closure(-0.0)).key
    x = udfkit.sequence.input_variable((), np.float64)
    for k, body in zip((1, 1.0, True, 2), bodies, strict=True):
        made = sequence_function(takes={"x": per_step("T")}, gives={"y": per_step("T")})(body)
        assert made([x]).eval([[1.0]])[0].tolist() == [1.0 + k]


def test_a_body_whose_code_is_replaced_in_place_is_compiled_anew():
    def forward(x, y):
        y[0] = x[0] + 1.0

    def other(x, y):
        y[0] = x[0] + 2.0

    made = sequence_function(takes={"x": per_step("T")}, gives={"y": per_sequence()})(forward)
    fn = made([udfkit.sequence.input_variable((), np.float64)])
    assert fn.eval([[1.0]]).tolist() == [2.0]
    forward.__code__ = other.__code__
    assert fn.eval([[1.0]]).tolist() == [3.0]


def test_the_same_source_again_and_other_lengths_compile_nothing():
    def define():
        @sequence_function(takes={"x": per_step("T")}, gives={"y": per_step("T")})
        def body(x, y):
            for t in range(x.shape[0]):
                y[t] = x[t] + 41.0

        return body([udfkit.sequence.input_variable((), np.float64)])

    define().eval([[1.0]])
    before = len(sequence_compiling.compiled)
    for batch in ([[1.0, 2.0]], [[1.0], [2.0, 3.0]], [[]]):
        define().eval(batch)
    assert len(sequence_compiling.compiled) == before


def test_what_could_change_unseen_is_refused_with_file_and_line():
    table = [1.0, 2.0]

    def forward(x, y):
        y[0] = x[0] + table[0]

    made = sequence_function(takes={"x": per_step("T")}, gives={"y": per_sequence()})(forward)
    line = forward.__code__.co_firstlineno
    if not JIT_DISABLED:
        with pytest.raises(TypeError, match=rf"{__file__}:{line}: forward: 'table' is a list"):
            made([udfkit.sequence.input_variable((), np.float64)]).eval([[1.0]])


def test_a_cooperative_body_takes_its_lane():
    declared = {"takes": {"x": per_step("T")}, "gives": {"y": per_step("T")}, "cooperative": True}

    def forward(x, y, lane):
        pass

    def backward(grad_y, grad_x, lanes):
        pass

    def whole(x, y, lane, lanes):
        pass

    with pytest.raises(TypeError, match=r"forward of .* is cooperative and does not take 'lanes'"):
        sequence_function(**declared)(forward)
    with pytest.raises(TypeError, match=r"backward of .* is cooperative and does not take 'lane'"):
        sequence_function(**declared)(whole).gradient(backward)
    with pytest.raises(ValueError, match="'lane' is declared twice"):
        sequence_function(**{**declared, "work": {"lane": (1,)}})(whole)
    with pytest.raises(TypeError, match="takes 'lane', which is not declared"):
        sequence_function(**{**declared, "cooperative": False})(whole)


def test_a_barrier_of_a_body_that_is_not_cooperative_is_refused():
    wait = udfkit.portable.barrier

    def by_attribute():
        udfkit.portable.barrier()

    def by_closure():
        wait()

    for helper in (by_attribute, by_closure):
        space = {"helper": helper}
        exec("def forward(x, y):\n    helper()", space)
        made = sequence_function(takes={"x": per_step("T")}, gives={"y": per_step("T")})
        with pytest.raises(TypeError, match=r"forward of forward waits at a barrier, .*'lanes'"):
            made(space["forward"])([udfkit.sequence.input_variable(())]).eval([[1.0]])


def test_a_function_that_calls_itself_is_refused():
    def again(n):
        return 1 if n == 0 else again(n - 1)

    with pytest.raises(TypeError, match=r"again calls itself, .* write a loop"):
        Body(again)


@compiled_only
def test_typing_errors_are_short_and_name_file_and_line():
    def broken(a):
        return a.no_such_thing

    def forward(x, y):
        total = 0.0
        for t in range(x.shape[0]):
            total += broken(x[t])
        y[0] = total

    made = sequence_function(takes={"x": per_step("T")}, gives={"y": per_sequence()})(forward)
    with pytest.raises(TypeError) as caught:
        made([udfkit.sequence.input_variable((), np.float64)]).eval([[1.0]])
    text = str(caught.value)
    line = broken.__code__.co_firstlineno + 1
    assert text.startswith(f"{__file__}:{line}: forward of ")
    assert "no_such_thing" in text
    assert len(text) < 900
    assert caught.value.__suppress_context__


@compiled_only
def test_an_input_cannot_be_written():
    def forward(x, y):
        x[0] = 1.0
        y[0] = x[0]

    made = sequence_function(takes={"x": per_step("T")}, gives={"y": per_sequence()})(forward)
    with pytest.raises(TypeError, match=r"cannot be compiled: .*readonly"):
        made([udfkit.sequence.input_variable((), np.float64)]).eval([[1.0]])


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"takes": {"x": per_step("2*T")}}, "size '2\\*T' of input 'x' is no name"),
        ({"takes": {"x": per_step("T"), "y": per_step("T")}}, "'y' is declared twice"),
        ({"takes": {"w": shared("K")}}, "takes no sequences"),
        ({"gives": {}}, "gives nothing"),
        ({"saved": {"a": ("S",)}}, "uses 'S', which is no size"),
        ({"takes": {"x": per_step("T", "T")}}, "both a length and a size"),
        ({"options": {"a": "text"}}, "option 'a' has the default 'text'"),
        ({"takes": {"z": per_step("T")}}, "forward of body takes 'x', which is not declared"),
        ({"takes": {"x": (3,)}}, r"takes\['x'\] is \(3,\), expected per_step"),
        ({"work": {"a": per_step("T")}}, "expected a tuple of sizes"),
    ],
)
def test_wrong_declarations(parts, text):
    def body(x, y):
        pass

    body.__qualname__ = "body"
    whole = {"takes": {"x": per_step("T")}, "gives": {"y": per_sequence()}, **parts}
    with pytest.raises((TypeError, ValueError), match=text):
        sequence_function(**whole)(body)


@pytest.mark.parametrize("size", ["T +", "f(T)", "T ** 2", "1.5", "min(T)"])
def test_sizes_that_cannot_be_read(size):
    with pytest.raises(ValueError, match="cannot be read: use numbers"):
        udfkit.scratch(size)


def test_variables_must_fit_the_declarations():
    @sequence_function(
        takes={"x": per_step("T", 2), "w": shared("K"), "i": per_step("T", index_of="K")},
        gives={"y": per_sequence("K")},
    )
    def body(x, w, i, y):
        pass

    x = udfkit.sequence.input_variable(2, name="x")
    w = udfkit.Parameter(3, name="w")
    i = udfkit.sequence.input_variable((), np.int64, name="i")
    assert body([x, w, i]).output.shape == (3,)
    wrong = [
        ([x, w], "got 2 inputs"),
        ([w, x, i], "make it with udfkit.sequence.input_variable"),
        ([x, x, i], "twice"),
        ([udfkit.sequence.input_variable(3, name="v"), w, i], r"shape \(3,\), expected \(2\)"),
        ([udfkit.sequence.input_variable((), name="v"), w, i], r"shape \(\), expected \(2\)"),
        ([udfkit.sequence.input_variable(2, np.float16, name="v"), w, i], "use float32"),
        ([x, w, udfkit.sequence.input_variable((), name="v")], "expected an integer dtype"),
    ]
    for inputs, text in wrong:
        with pytest.raises((TypeError, ValueError), match=text):
            body(inputs)


def test_math_and_portable_and_numpy_scalars_work_in_bodies():
    @sequence_function(takes={"x": per_step("T")}, gives={"y": per_step("T")})
    def body(x, y):
        for t in range(x.shape[0]):
            y[t] = udfkit.portable.exp(math.log(x[t])) + math.pi

    fn = body([udfkit.sequence.input_variable((), np.float64)])
    np.testing.assert_allclose(fn.eval([[2.0]])[0], [2.0 + math.pi], rtol=1e-15)
