"""User functions under `torch.compile`: opaque, and no graph break where shapes are known."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.utils.rnn import pack_padded_sequence

import adapted_functions as adapted
import udfkit
import udfkit.torch

OFFSETS = torch.tensor([0, 3, 3, 5])
MASK = torch.tensor([[0, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)

# torch warns about itself while it traces.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def both(function, *tensors, backend="aot_eager"):
    """Return results and gradients, eager and compiled in one graph."""
    found = []
    for run in (function, torch.compile(function, backend=backend, fullgraph=True)):
        leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
        result = run(*leaves)
        sum((r * r).sum() for r in result).backward()
        found.append([*[r.detach() for r in result], *[leaf.grad for leaf in leaves]])
    return found


def assert_same(found):
    eager, compiled = found
    for a, b in zip(eager, compiled, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("kind", [adapted.Square, adapted.SquareRagged, adapted.SquareValue])
@pytest.mark.parametrize("extents", [OFFSETS, torch.tensor([3, 0, 2]), MASK])
def test_one_to_one(kind, extents):
    function = kind([adapted.sequences(2)])
    shape = (5, 2) if extents is OFFSETS else (3, 4, 2)

    def run(x):
        result, found = udfkit.torch.apply(function, (x * 2, extents))
        assert found is extents
        return (result + 1,)

    assert_same(both(run, torch.randn(*shape, dtype=torch.float64)))


def test_inductor():
    function = adapted.Square([adapted.sequences(2)])

    def run(x):
        return (udfkit.torch.apply(function, (x * 2, OFFSETS))[0] + 1,)

    assert_same(both(run, torch.randn(5, 2, dtype=torch.float64), backend="inductor"))


def test_nested():
    function = adapted.Square([adapted.sequences(2)])

    def run(values):
        nested = torch.nested.nested_tensor_from_jagged(values, OFFSETS)
        return (udfkit.torch.apply(function, nested).values(),)

    assert_same(both(run, torch.randn(5, 2, dtype=torch.float64)))


def test_several_inputs_and_outputs():
    function = adapted.several()

    def run(a, b):
        (product, _), total, count = udfkit.torch.apply(function, (a, OFFSETS), (b, OFFSETS))
        return product, total, count.double()

    assert_same(both(run, torch.randn(5).double(), torch.randn(5).double()))


def test_sequence_to_batch_and_plain_tensors():
    mean = adapted.Mean([adapted.sequences(2)])
    affine = adapted.Affine([udfkit.input_variable(2, np.float64, True)])

    def run(x):
        return (udfkit.torch.apply(affine, udfkit.torch.apply(mean, (x, OFFSETS))),)

    assert_same(both(run, torch.randn(5, 2, dtype=torch.float64)))


def test_module_with_parameters():
    module = udfkit.torch.Module(adapted.scale())
    values = torch.randn(5, 2, dtype=torch.float64)
    grads = []
    for run in (module, torch.compile(module, backend="aot_eager", fullgraph=True)):
        module.zero_grad()
        (run((values, OFFSETS))[0] ** 2).sum().backward()
        grads.append([p.grad.clone() for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_new_lengths_do_not_compile_again():
    function = adapted.Square([adapted.sequences()])
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(
        lambda x, n: udfkit.torch.apply(function, (x, n))[0], backend=counter, fullgraph=True
    )
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    for lengths in ([6, 0, 1], [2, 2, 2], [0, 0, 0], [1, 6, 5]):
        n = torch.tensor(lengths)
        cells = torch.arange(6) < n.unsqueeze(-1)
        assert torch.equal(run(x, n), torch.where(cells, x * x, 0.0))
    assert counter.frame_count == 1
    ragged = torch.compile(
        lambda x, o: udfkit.torch.apply(function, (x, o))[0], backend=counter, fullgraph=True
    )
    for count in (2, 3, 5, 8, 13):
        x = torch.randn(2 * count, dtype=torch.float64, requires_grad=True)
        assert torch.equal(ragged(x, torch.arange(0, 2 * count + 1, 2)), x * x)
    assert counter.frame_count <= 3


def test_another_function_is_another_graph():
    square = adapted.Square([adapted.sequences()])
    affine = adapted.Affine([square.inputs[0]])
    affine.layout = "ragged"
    affine.forward = lambda x, device, retain: (None, x.with_values(2 * x.values + 1))
    run = torch.compile(
        lambda fn, x: udfkit.torch.apply(fn, (x, OFFSETS))[0], backend="aot_eager", fullgraph=True
    )
    x = torch.randn(5, dtype=torch.float64)
    for _ in range(2):
        assert torch.equal(run(square, x), x * x)
        assert torch.equal(run(affine, x), 2 * x + 1)


def test_what_cannot_be_told_breaks_the_graph_and_is_right():
    shorter = adapted.DropFirst([adapted.sequences(2)])
    square = adapted.Square([adapted.sequences(2)])
    x = torch.randn(5, 2, dtype=torch.float64)
    packed = pack_padded_sequence(
        torch.randn(2, 3, 2).double(), torch.tensor([1, 3]), batch_first=True, enforce_sorted=False
    )
    calls = [
        (lambda: udfkit.torch.apply(shorter, (x, OFFSETS)), 2),
        (lambda: udfkit.torch.apply(square, (x, OFFSETS), out_form="lengths"), 2),
        (lambda: udfkit.torch.apply(square, packed), 4),
    ]
    for call, parts in calls:
        eager, compiled = call(), torch.compile(call, backend="aot_eager")()
        assert len(eager) == len(compiled) == parts
        for a, b in zip(eager, compiled, strict=True):
            assert torch.equal(a, b)
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(call, backend="aot_eager", fullgraph=True)()


def test_other_lengths_than_declared_are_an_error():
    class Wrong(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            return x, [s[:1] for s in x]

    function = Wrong([adapted.sequences(2, name="x")])
    run = torch.compile(
        lambda x: udfkit.torch.apply(function, (x, OFFSETS))[0], backend="aot_eager", fullgraph=True
    )
    with pytest.raises(RuntimeError, match="sequence axis of input 'x', but has other lengths"):
        run(torch.randn(5, 2, dtype=torch.float64))


def test_exceptions_of_user_code_and_bad_extents():
    class Failing(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            raise ZeroDivisionError("mine")

    run = torch.compile(
        lambda fn, x, o: udfkit.torch.apply(fn, (x, o))[0], backend="aot_eager", fullgraph=True
    )
    x = torch.randn(5, 2, dtype=torch.float64)
    with pytest.raises(ZeroDivisionError, match="mine"):
        run(Failing([adapted.sequences(2)]), x, OFFSETS)
    with pytest.raises(ValueError, match="overruns the 5 values"):
        run(adapted.Square([adapted.sequences(2)]), x, torch.tensor([0, 3, 3, 6]))


def test_the_state_lives_as_long_as_the_graph():
    class Counted:
        pass

    alive: weakref.WeakSet = weakref.WeakSet()

    class Holding(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            state = Counted()
            alive.add(state)
            return state, x

        def backward(self, state, grad):
            return grad

    function = Holding([adapted.sequences(2)])
    run = torch.compile(
        lambda x: udfkit.torch.apply(function, (x, OFFSETS))[0] * 1,
        backend="aot_eager",
        fullgraph=True,
    )
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    result = run(x)
    assert len(alive) == 1
    result.sum().backward()
    gc.collect()
    assert len(alive) == 0
    result = run(x)
    del result
    gc.collect()
    assert len(alive) == 0
    kept = run(x.detach())
    assert len(alive) == 0
    assert not kept.requires_grad


def test_the_operators_pass_torchs_own_checks():
    function = adapted.Square([adapted.sequences(2)])
    from udfkit.adapters.torch_compile import plan_of

    handle = plan_of(function).handle
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        torch.ops.udfkit.forward.default,
        ([x], [OFFSETS], handle, [0], False),
        test_utils=checks,
    )


# torch hides this warning of its own from users, but not where warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("kind", [adapted.Square, adapted.SquareRagged])
def test_a_function_made_inside_breaks_the_graph(kind):
    variable = adapted.sequences(2)

    def run(x):
        values, _ = udfkit.torch.apply(kind([variable]), (x * 2, OFFSETS))
        return values + 1

    compiled = torch.compile(run, backend="aot_eager")
    for _ in range(2):
        x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
        made = compiled(x)
        made.sum().backward()
        assert torch.equal(made, (2 * x) ** 2 + 1)
        assert torch.allclose(x.grad, 8 * x)
