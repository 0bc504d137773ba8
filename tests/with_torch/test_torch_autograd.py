"""`udfkit.torch.apply` as a node of PyTorch's graph: gradients, state, memory, errors."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import adapted_functions as adapted
import udfkit
import udfkit.torch

OFFSETS = torch.tensor([0, 3, 3, 5])
LENGTHS = torch.tensor([3, 0, 2])


class Counted:
    alive: ClassVar[weakref.WeakSet] = weakref.WeakSet()

    def __init__(self):
        Counted.alive.add(self)


class Holding(adapted.Square):
    """Its state is an object that can be watched; its gradient is 3."""

    def forward(self, x, device, outputs_to_retain):
        return Counted(), [3 * s for s in x]

    def backward(self, state, grad):
        assert isinstance(state, Counted)
        return [3 * g for g in grad]


class HoldingWide(Holding):
    """The same by the general way."""

    layout = "ragged"

    def infer_outputs(self):
        return [*super().infer_outputs(), udfkit.output_variable((), np.float64, adapted.BATCH)]

    def forward(self, x, outputs, device, outputs_to_retain):
        outputs[self.outputs[0]] = x.with_values(3 * x.values)
        outputs[self.outputs[1]] = np.zeros(len(x))
        return Counted()

    def backward(self, state, grads):
        assert isinstance(state, Counted)
        return grads[self.outputs[0]].with_values(3 * grads[self.outputs[0]].values)


@pytest.fixture(params=[Holding, HoldingWide])
def holding(request):
    Counted.alive.clear()
    function = request.param([adapted.sequences(2)])

    def run(values, offsets=OFFSETS):
        result = udfkit.torch.apply(function, (values, offsets))
        return result[0] if request.param is Holding else result[0][0]

    run.name = function.name
    return run


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_state_is_freed_by_backward(holding):
    values = leaf(5, 2)
    result = holding(values)
    assert len(Counted.alive) == 1
    result.sum().backward()
    assert len(Counted.alive) == 0
    assert torch.equal(values.grad, torch.full_like(values, 3))
    with pytest.raises(RuntimeError, match=f"{holding.name}' a second time.*retain_graph=True"):
        result.sum().backward()


def test_state_is_freed_with_the_result_when_there_is_no_backward(holding):
    gc.disable()
    try:
        result = holding(leaf(5, 2))
        assert len(Counted.alive) == 1
        del result
        assert len(Counted.alive) == 0
    finally:
        gc.enable()


def test_no_state_is_kept_without_gradient(holding):
    kept = [holding(torch.zeros(5, 2, dtype=torch.float64))]
    with torch.no_grad():
        kept.append(holding(leaf(5, 2)))
    with torch.inference_mode():
        kept.append(holding(torch.zeros(5, 2, dtype=torch.float64)))
    assert len(Counted.alive) == 0
    assert not any(result.requires_grad for result in kept)


def test_a_retained_graph_keeps_its_state(holding):
    values = leaf(5, 2)
    result = holding(values)
    result.sum().backward(retain_graph=True)
    assert len(Counted.alive) == 1
    result.sum().backward()
    assert torch.equal(values.grad, torch.full_like(values, 6))
    assert len(Counted.alive) == 0


def test_neither_inputs_nor_outputs_are_leaked(holding):
    values = leaf(5, 2)
    inner = values * 1
    result = holding(inner)
    watched = [weakref.ref(inner), weakref.ref(result)]
    del inner
    result.sum().backward()
    del result
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(holding, reentrant):
    values = leaf(5, 2)
    result = checkpoint(lambda v: holding(v) * 2, values, use_reentrant=reentrant)
    assert len(Counted.alive) == 0
    result.sum().backward()
    assert torch.equal(values.grad, torch.full_like(values, 6))
    assert len(Counted.alive) == 0


def test_saved_tensors_on_the_cpu_and_hooks_that_lose_the_state(holding):
    values = leaf(5, 2)
    with torch.autograd.graph.save_on_cpu():
        result = holding(values)
    result.sum().backward()
    assert torch.equal(values.grad, torch.full_like(values, 3))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        result = holding(values)
    with pytest.raises(
        RuntimeError, match=f"state of '{holding.name}' is lost: saved-tensor hooks"
    ):
        result.sum().backward()


def test_a_second_derivative_is_an_error_never_a_wrong_number(holding):
    values = leaf(5, 2)
    result = holding(values * values)
    (grad,) = torch.autograd.grad(result.sum(), values, create_graph=True)
    assert torch.equal(grad, 6 * values)
    for penalty in (grad.sum(), (grad * values).sum(), (grad.detach() * grad).sum()):
        with pytest.raises(RuntimeError, match=f"second derivative of '{holding.name}'.*first one"):
            penalty.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="second derivative"):
            torch.autograd.grad(penalty, values, retain_graph=True)


def test_a_graph_of_gradients_may_be_made_when_it_is_not_used(holding):
    values = leaf(5, 2)
    (grad,) = torch.autograd.grad(holding(values).sum(), values, create_graph=True)
    values.detach().sub_(grad.detach())
    assert torch.equal(grad.detach(), torch.full_like(values, 3))


GRADIENTS = {
    "stride 0": lambda: torch.ones(1, 1, dtype=torch.float64).expand(5, 2),
    "sliced": lambda: torch.arange(30, dtype=torch.float64).reshape(5, 6)[:, 1:3],
    "transposed": lambda: torch.arange(10, dtype=torch.float64).reshape(2, 5).T,
    "flipped": lambda: torch.arange(10, dtype=torch.float64).reshape(5, 2).flip(0),
    "imaginary": lambda: torch.full((5, 2), 3 + 4j, dtype=torch.complex128).conj().imag,
    "negated in place": lambda: torch._neg_view(torch.arange(10.0).double().reshape(5, 2)),
    "every other": lambda: torch.arange(20, dtype=torch.float64).reshape(10, 2)[::2],
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("kind", [adapted.Square, adapted.SquareRagged, adapted.SquareValue])
@pytest.mark.parametrize("copy", [True, False])
def test_gradients_of_any_strides(kind, copy, name):
    gradient = GRADIENTS[name]()
    values = leaf(5, 2)
    result, _ = udfkit.torch.apply(kind([adapted.sequences(2)]), (values, OFFSETS), copy=copy)
    result.backward(gradient)
    assert torch.equal(values.grad, 2 * values * gradient)


@pytest.mark.parametrize("name", GRADIENTS)
def test_inputs_of_any_strides(name):
    expected = 3 * GRADIENTS[name]().numpy(force=True)
    for copy in (True, False):
        result, _ = udfkit.torch.apply(
            Holding([adapted.sequences(2)]), (GRADIENTS[name](), OFFSETS), copy=copy
        )
        assert np.array_equal(result.numpy(), expected)


def test_only_the_gradients_that_are_needed_are_asked_for():
    function = adapted.scale()
    x, weight, bias = function.inputs
    for needed in ([x], [weight], [x, bias], [x, weight, bias]):
        tensors = [
            torch.ones(5, 2, dtype=torch.float64, requires_grad=x in needed),
            torch.ones(2, dtype=torch.float64, requires_grad=weight in needed),
            torch.ones(2, dtype=torch.float64, requires_grad=bias in needed),
        ]
        result, _ = udfkit.torch.apply(function, (tensors[0], OFFSETS), *tensors[1:])
        result.sum().backward()
        assert function.asked == needed
        assert [t.grad is not None for t in tensors] == [v in needed for v in function.inputs]


def test_gradients_that_do_not_arrive():
    function = adapted.several()
    a, b = leaf(5), leaf(5)
    (product, _), total, count = udfkit.torch.apply(function, (a, OFFSETS), (b, OFFSETS))
    assert not count.requires_grad
    total.sum().backward(retain_graph=True)
    assert torch.equal(a.grad, torch.ones_like(a))
    assert torch.equal(b.grad, torch.zeros_like(b))
    a.grad = b.grad = None
    product.sum().backward()
    assert torch.equal(a.grad, b.detach())
    assert torch.equal(b.grad, a.detach())


def test_a_gradient_for_a_variable_that_needs_none_is_an_error():
    function = adapted.Square([adapted.sequences(2, needs_gradient=False, name="x")])
    with pytest.raises(ValueError, match=r"'x' of .* requires a gradient, but the variable needs"):
        udfkit.torch.apply(function, (leaf(5, 2), OFFSETS))
    with torch.no_grad():
        udfkit.torch.apply(function, (leaf(5, 2), OFFSETS))


def test_pending_calls_in_any_order_and_from_threads():
    function = adapted.Square([adapted.sequences(2)])
    inputs = [leaf(5, 2) for _ in range(4)]
    results = [udfkit.torch.apply(function, (v, OFFSETS))[0] for v in inputs]
    for k in (2, 0, 3):
        results[k].sum().backward()
    thread = threading.Thread(target=lambda: results[1].sum().backward())
    thread.start()
    thread.join()
    for values in inputs:
        assert torch.equal(values.grad, 2 * values)


def test_exceptions_of_user_code_arrive_unchanged_with_a_note():
    class Failing(adapted.Square):
        phase = "forward"

        def forward(self, x, device, outputs_to_retain):
            if self.phase == "forward":
                raise KeyError("mine")
            return super().forward(x, device, outputs_to_retain)

        def backward(self, x, grad):
            raise KeyError("mine too")

    function = Failing([adapted.sequences(2)])
    with pytest.raises(KeyError, match="mine") as caught:
        udfkit.torch.apply(function, (leaf(5, 2), OFFSETS))
    assert len(caught.value.__notes__) == 1
    assert caught.value.__notes__[0].startswith(f"in forward of user function {function.name!r}")
    function.phase = "backward"
    result, _ = udfkit.torch.apply(function, (leaf(5, 2), OFFSETS))
    with pytest.raises(KeyError, match="mine too") as caught:
        result.sum().backward()
    assert any("in backward of user function" in note for note in caught.value.__notes__)


RESULTS = {
    "no tuple": (lambda x: [0, x], TypeError, "expected a tuple of exactly two"),
    "a rectangle": (lambda x: (0, np.zeros((3, 3, 2))), ValueError, "padding would become data"),
    "a batch too small": (lambda x: (0, x[:2]), ValueError, "2 sequences came, expected 3"),
    "a sample shape": (lambda x: (0, [s[:, :1] for s in x]), ValueError, "sequence 0"),
    "None": (lambda x: (0, None), ValueError, "not all outputs have been provided"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_what_user_code_returns_is_checked(name):
    make, kind, text = RESULTS[name]

    class Odd(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            return make(x)

    for grad in (True, False):
        with pytest.raises(kind, match=text):
            udfkit.torch.apply(
                Odd([adapted.sequences(2)]), (leaf(5, 2).requires_grad_(grad), OFFSETS)
            )


@pytest.mark.parametrize("extents", [OFFSETS, LENGTHS])
def test_gradients_of_user_code_are_checked(extents):
    class Odd(adapted.Square):
        def backward(self, x, grad):
            return [g[:1] for g in grad]

    values = leaf(5, 2) if extents is OFFSETS else leaf(3, 4, 2)
    function = Odd([adapted.sequences(2)])
    result, _ = udfkit.torch.apply(function, (values, extents))
    with pytest.raises(ValueError, match=r"gradient of .*: sequence 0 has length 1, expected 3"):
        result.sum().backward()


def test_without_copy_user_code_sees_the_memory_of_the_tensor():
    seen = {}

    class Look(adapted.Square):
        layout = "ragged"

        def forward(self, x, device, outputs_to_retain):
            seen["in"], seen["out"] = x.values, x.values * 2
            return None, x.with_values(seen["out"])

        def backward(self, state, grad):
            return grad

    values = leaf(5, 2)
    function = Look([adapted.sequences(2)])
    result, _ = udfkit.torch.apply(function, (values, OFFSETS), copy=False)
    assert seen["in"].__array_interface__["data"][0] == values.data_ptr()
    assert not seen["in"].flags.writeable
    assert seen["out"].__array_interface__["data"][0] == result.data_ptr()
    gradient = torch.ones_like(values)
    result.backward(gradient)
    values.grad.add_(1)
    assert torch.equal(gradient, torch.ones_like(values))
    udfkit.torch.apply(function, (values, OFFSETS))
    assert not np.shares_memory(seen["in"], values.detach().numpy())


def test_without_copy_an_output_never_is_the_input():
    class Same(adapted.Square):
        layout = "ragged"

        def forward(self, x, device, outputs_to_retain):
            return None, x

        def backward(self, state, grad):
            return grad

    values = leaf(5, 2)
    before = values.detach().clone()
    result, _ = udfkit.torch.apply(Same([adapted.sequences(2)]), (values, OFFSETS), copy=False)
    result.mul_(2)
    assert torch.equal(values, before)


def test_without_copy_a_change_in_place_is_an_error():
    values = leaf(5, 2)
    inner = values * 1
    for kind in (adapted.Square, adapted.SquareRagged):
        result, _ = udfkit.torch.apply(kind([adapted.sequences(2)]), (inner, OFFSETS), copy=False)
        inner.detach().mul_(0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
        inner = values * 1


def test_with_copy_a_change_in_place_does_no_harm():
    values = leaf(5, 2)
    inner = values * 1
    result, _ = udfkit.torch.apply(adapted.Square([adapted.sequences(2)]), (inner, OFFSETS))
    inner.detach().mul_(0)
    result.sum().backward()
    assert torch.equal(values.grad, 2 * values)


def test_transforms_of_torch_func_are_refused():
    function = adapted.Square([adapted.sequences(2)])
    values = torch.zeros(5, 2, dtype=torch.float64)
    text = "called inside of torch.vmap or a transform of torch.func"
    with pytest.raises(RuntimeError, match=text):
        torch.func.grad(lambda v: udfkit.torch.apply(function, (v, OFFSETS))[0].sum())(values)
    with pytest.raises(RuntimeError, match=text):
        torch.vmap(lambda v: udfkit.torch.apply(function, (v, OFFSETS))[0])(values.expand(3, 5, 2))
