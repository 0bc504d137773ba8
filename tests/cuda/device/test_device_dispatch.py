"""User functions on Values of a device: the four calling shapes, both ways of calling."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from device_checks import Copies, check_same, on_gpu

import dispatch_helpers as helpers
import reference
import udfkit
from checks import raises, sequence_variable
from dispatch_helpers import linear, roots_of, weight
from udfkit import Value, sanitize_batch
from udfkit.kernels import cuda_target

LENGTHS = (3, 0, 2)
STARTS = [True, False, False]
SHAPES = [(1, 1), (2, 1), (1, 2), (2, 2)]
cuda = cuda_target.module()

# Numba warns of launches that do not fill a device.
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")


@cuda.jit
def add_scaled(out: Any, values: Any, factor: float) -> None:
    """``out += factor * values``, one thread an element."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] += factor * values[i]


def scaled_sum(terms: list[tuple[float, Value]]) -> Value:
    """The sum of weight * value, by a kernel over the flat samples."""
    first = terms[0][1]
    variable = udfkit.sequence.input_variable(first.shape[2:], first.dtype)
    out = cuda.to_device(np.zeros(first.values.shape, first.dtype))
    for factor, value in terms:
        if out.size:
            launch = add_scaled[-(-out.size // 4), 4]
            launch(out.reshape(out.size), value.values.reshape(out.size), factor)
    bounds = np.cumsum([0, *first.lengths])
    parts = [out[a:b] for a, b in pairwise(bounds)]
    return sanitize_batch(variable, parts, device=on_gpu())


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "combine", scaled_sum)


def values_of(function: Any, starts: Any, device: Any) -> list[Value]:
    return [
        sanitize_batch(
            x,
            helpers.batch(x.kind, LENGTHS, offset=100 * i),
            starts if x.kind == "sequence" else None,
            device,
        )
        for i, x in enumerate(function.inputs)
    ]


def both_ways(function: Any, device: Any, given: Any = None, starts: Any = STARTS) -> Any:
    """Outputs and gradients of one forward and one backward, by number."""
    state, outputs = function._forward(values_of(function, starts, device), None)
    assert state.device() == device
    roots = {
        o: Value.create(o, x, device=device)
        for o, x in zip(function.outputs, roots_data(function, given), strict=False)
        if x is not None
    }
    found = function._backward(state, roots, list(function.inputs))
    return [outputs[o] for o in function.outputs], [found[x] for x in function.inputs]


def roots_data(function: Any, given: Any) -> list[Any]:
    data, _ = roots_of(function, given, LENGTHS)
    return [data.get(j) for j in range(len(function.outputs))]


@pytest.mark.parametrize("layout", ["list", "ragged"])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_four_shapes_with_arrays(inputs: int, outputs: int, layout: str) -> None:
    function = linear(("sequence",) * inputs, outputs, layout=layout, signature="three")
    if inputs == 1:
        function = linear(("sequence",), outputs, layout=layout, signature="two")
    results = [both_ways(function, device) for device in (on_gpu(), udfkit.cpu())]
    for got, expected in zip(*results, strict=True):
        for value, wanted in zip(got, expected, strict=True):
            check_same(value, wanted)
            assert value.starts.tolist() == STARTS
    phases = [(phase, args) for phase, args in function.log if phase == "forward"]
    argument = phases[0][1][0]
    first = argument if inputs == 1 else argument[0]
    assert helpers.form(first) == layout
    assert on_gpu() in phases[0][1]


@pytest.mark.parametrize("kinds", [("batch",), ("sequence", "batch"), ("none",)], ids=str)
def test_other_kinds_with_arrays(kinds: tuple[str, ...]) -> None:
    class Halves(udfkit.UserFunction):
        def infer_outputs(self) -> Any:
            x = self.inputs[-1]
            return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

        def forward(self, arg: Any, device: Any, outputs_to_retain: Any) -> Any:
            return None, (arg[-1] if len(self.inputs) > 1 else arg) / 2

        def backward(self, state: Any, grad: Any, variables: Any) -> None:
            for x in variables:
                variables[x] = (
                    grad / 2 if x is self.inputs[-1] else [np.zeros((n, 2), "f4") for n in LENGTHS]
                )

    function = Halves([helpers.variable(kind, f"x{i}") for i, kind in enumerate(kinds)])
    results = []
    for device in (on_gpu(), udfkit.cpu()):
        state, outputs = function._forward(values_of(function, STARTS, device), None)
        roots = {function.output: outputs[function.output]}
        found = function._backward(state, roots, list(function.inputs))
        results.append([outputs[function.output], *found.values()])
    for value, wanted in zip(*results, strict=True):
        check_same(value, wanted)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_four_shapes_with_values_never_leave_the_device(
    inputs: int, outputs: int, on_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = "two" if inputs == 1 else "three"
    function = linear(("sequence",) * inputs, outputs, signature=signature, as_numpy=False)
    copies = Copies(monkeypatch)
    got = both_ways(function, on_gpu())
    assert copies.count == 0
    data = [helpers.batch("sequence", LENGTHS, offset=100 * i) for i in range(inputs)]
    for j, value in enumerate(got[0]):
        wanted = [sum(weight(j, i) * x[k] for i, x in enumerate(data)) for k in range(len(LENGTHS))]
        reference.assert_same_list(value.as_sequences(), wanted)
    roots, _ = roots_of(function, None, LENGTHS)
    for i, value in enumerate(got[1]):
        wanted = [sum(weight(j, i) * roots[j][k] for j in roots) for k in range(len(LENGTHS))]
        reference.assert_same_list(value.as_sequences(), wanted)
    for value in got[0] + got[1]:
        assert value.device == on_gpu()
        assert value.starts.tolist() == STARTS
    for phase, args in function.log:
        given = args[0] if phase == "forward" else args[1]
        several = given.values() if isinstance(given, dict) else given
        several = [several] if isinstance(several, Value) else several
        assert all(value.device == on_gpu() for value in several)


def test_the_copies_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    function = linear(("sequence",), signature="two")
    copies = Copies(monkeypatch)
    both_ways(function, on_gpu())
    # One array goes to the host for forward and one for backward.
    assert copies.count >= 2


@pytest.mark.parametrize("as_numpy", [True, False])
def test_a_root_gradient_that_did_not_arrive_is_zeros(as_numpy: bool, on_kernels: None) -> None:
    function = linear(("sequence",), 2, signature="two", as_numpy=as_numpy)
    if as_numpy:
        helpers.combine = COMBINE
    (_, (gradient,)) = both_ways(function, on_gpu(), given=[1])
    roots, _ = roots_of(function, [1], LENGTHS)
    reference.assert_same_list(gradient.as_sequences(), [weight(1, 0) * g for g in roots[1]])
    dicts = [args[1] for phase, args in function.log if phase == "backward"]
    zeros = dicts[0][function.outputs[0]]
    zeros = zeros.as_sequences() if isinstance(zeros, Value) else zeros
    reference.assert_same_list(zeros, [np.zeros((n, 2), np.float32) for n in LENGTHS])


COMBINE = helpers.combine


@pytest.mark.parametrize("as_numpy", [True, False])
def test_eval_and_grad(as_numpy: bool, request: pytest.FixtureRequest) -> None:
    if not as_numpy:
        request.getfixturevalue("on_kernels")
    function = linear(("sequence", "sequence"), as_numpy=as_numpy)
    a, b = function.inputs
    batch = {a: helpers.sequences(LENGTHS), b: helpers.sequences(LENGTHS, offset=50)}
    got = function.eval(batch, device=on_gpu())
    wanted = [weight(0, 0) * x + weight(0, 1) * y for x, y in zip(*batch.values(), strict=True)]
    reference.assert_same_list(got, wanted)
    gradients, outputs = function.grad(
        batch, outputs=[function.output], device=on_gpu(), seq_starts={a: STARTS}
    )
    for i, x in enumerate((a, b)):
        ones = [np.full((n, 2), weight(0, i), np.float32) for n in LENGTHS]
        reference.assert_same_list(gradients[x], ones)
    reference.assert_same_list(outputs, wanted)
    assert all(args[-2] == on_gpu() for phase, args in function.log if phase == "forward")


class Scale(udfkit.UserFunction):
    """x times a Parameter; the weight comes as the form says."""

    def infer_outputs(self) -> Any:
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, args: Any, device: Any, outputs_to_retain: Any) -> Any:
        self.seen = [a.device if isinstance(a, Value) else type(a) for a in args]
        if not self.as_numpy:
            return args, scaled_sum([(2.0, args[0])])
        return args, [s * args[1] for s in args[0]]

    def backward(self, state: Any, grads: Any, variables: Any) -> None:
        x, w = state
        for v in variables:
            if not self.as_numpy:
                variables[v] = scaled_sum([(2.0, grads)]) if v.kind == "sequence" else w
            elif v is self.inputs[0]:
                variables[v] = [g * w for g in grads]
            else:
                variables[v] = sum((g * s).sum(axis=0) for g, s in zip(grads, x, strict=True))


@pytest.mark.parametrize("as_numpy", [True, False])
def test_a_parameter_comes_to_the_device(as_numpy: bool) -> None:
    parameter = udfkit.Parameter(init=np.float32([2, 2]), name="w")
    x = sequence_variable(2, needs_gradient=True, name="x")
    function = Scale([x, parameter], as_numpy=as_numpy)
    batch = helpers.sequences(LENGTHS)
    value = sanitize_batch(x, batch, device=on_gpu())
    state, outputs = function._forward({x: value}, None)
    reference.assert_same_list(outputs[function.output].as_sequences(), [2 * s for s in batch])
    found = function._backward(state, {function.output: value}, [x, parameter])
    assert all(v.device == on_gpu() for v in found.values())
    expected = sum((s * s).sum(axis=0) for s in batch) if as_numpy else np.float32([2, 2])
    reference.assert_same(found[parameter].asarray(), expected)
    assert function.seen == ([list, np.ndarray] if as_numpy else [on_gpu()] * 2)


@pytest.mark.parametrize("as_numpy", [True, False])
def test_mixed_devices_are_refused_with_both_named(as_numpy: bool, on_kernels: None) -> None:
    function = linear(("sequence", "sequence"), as_numpy=as_numpy)
    here, there = values_of(function, None, on_gpu()), values_of(function, None, udfkit.cpu())
    for mixed in ([here[0], there[1]], [there[0], here[1]]):
        with raises(ValueError, "x1", "CPU", "GPU[0]", "value.to", fix=False):
            function._forward(mixed, None)
    for values, device in ((there, on_gpu()), (here, udfkit.cpu())):
        with raises(ValueError, "x0", "CPU", "GPU[0]", "value.to", fix=False):
            function._forward(values, None, device)


def test_a_root_gradient_on_another_device_is_refused() -> None:
    function = linear(("sequence",), signature="two")
    state, outputs = function._forward(values_of(function, None, on_gpu()), None)
    root = {function.output: outputs[function.output].to(udfkit.cpu())}
    with raises(ValueError, "CPU", "GPU[0]", "value.to", fix=False):
        function._backward(state, root, list(function.inputs))


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_result_on_another_device_is_refused(phase: str) -> None:
    class Elsewhere(udfkit.UserFunction):
        def infer_outputs(self) -> Any:
            x = self.inputs[0]
            return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

        def forward(self, arg: Any, device: Any, outputs_to_retain: Any) -> Any:
            return None, arg.to(udfkit.cpu()) if phase == "forward" else arg

        def backward(self, state: Any, grad: Any) -> Any:
            return grad.to(udfkit.cpu())

    function = Elsewhere([sequence_variable(2, needs_gradient=True)], as_numpy=False)
    value = sanitize_batch(function.inputs[0], helpers.sequences(LENGTHS), device=on_gpu())
    with raises(ValueError, phase, "CPU", "GPU[0]", "value.to", fix=False):
        state, outputs = function._forward([value], None)
        function._backward(state, {function.output: outputs[function.output]}, None)


def test_pending_forwards_on_both_devices() -> None:
    function = helpers.Remembering(sequence_variable(2, needs_gradient=True))
    x, out = function.inputs[0], function.output
    data = [helpers.sequences(LENGTHS, offset=k) for k in range(4)]
    devices = [on_gpu(), udfkit.cpu()] * 2
    pending = [
        function._forward([sanitize_batch(x, batch, device=device)], None)
        for batch, device in zip(data, devices, strict=True)
    ]
    for k in (2, 0, 3, 1):
        state, outputs = pending[k]
        assert state.device() == devices[k]
        (gradient,) = function._backward(state, {out: outputs[out]}, [x]).values()
        assert gradient.device == devices[k]
        reference.assert_same_list(gradient.as_sequences(), [2 * s * (s * s) for s in data[k]])
