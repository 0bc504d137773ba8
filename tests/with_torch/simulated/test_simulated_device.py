"""Calls on a device, with numba's simulator in its place: what comes out is what the CPU gives."""

from __future__ import annotations

from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest
import torch
from torch_batches import FORMS, LENGTHS, TOTAL, SquareOnDevice, given_in, parts_of

import adapted_functions as adapted
import udfkit
import udfkit.torch
from udfkit.adapters import torch_device
from udfkit.adapters.torch_call import Differentiable
from udfkit.adapters.torch_forms import read
from udfkit.functions import logsumexp


class Owned(np.ndarray):
    """Memory that keeps alive what it belongs to."""


class Simulated(torch_device.Link):
    """The simulator's only device, whose memory is that of the host."""

    def __init__(self):
        self.calls = 0

    def device(self, device):
        return udfkit.gpu(0)

    @contextmanager
    def ordered(self, device):
        self.calls += 1
        yield None

    def tensor(self, array, device):
        memory = array._ary.view(Owned)
        memory.owner = array
        return torch.from_numpy(memory)


@pytest.fixture(autouse=True)
def link(monkeypatch):
    made = Simulated()
    monkeypatch.setattr(torch_device, "link", made)
    return made


def apply_on_device(fn, *inputs, out_form, copy=True):
    """What `udfkit.torch.apply` does with tensors of a device."""
    forms = [read(v, x) for v, x in zip(fn.inputs, inputs, strict=True)]
    device, tensors = torch_device.flat_tensors(fn, forms)
    call = torch_device.DeviceCall(fn, forms, out_form, copy, device)
    made = Differentiable.apply(call, *tensors)[:-1]
    outputs = tuple([call.finish(k, tensor) for k, tensor in enumerate(made)])
    return outputs[0] if len(outputs) == 1 else outputs


KINDS = [adapted.Square, adapted.SquareRagged, SquareOnDevice]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("out_form", FORMS)
@pytest.mark.parametrize("copy", [True, False])
def test_every_form_gives_what_the_cpu_gives(kind, form, out_form, copy, link):
    gradients = []
    results = []
    for apply in (apply_on_device, udfkit.torch.apply):
        kind = adapted.Square if apply is udfkit.torch.apply else kind
        function = kind([adapted.sequences(2, np.float32)])
        flat = torch.arange(1.0, 13).reshape(TOTAL, 2).requires_grad_()
        made = apply(function, given_in(form, flat), out_form=out_form, copy=copy)
        parts = parts_of(made)
        weights = torch.arange(float(parts[0].numel())).reshape(parts[0].shape)
        (parts[0] * weights).sum().backward()
        results.append(parts)
        gradients.append(flat.grad)
    for got, expected in zip(*results, strict=True):
        assert torch.equal(got, expected)
    assert torch.equal(*gradients)
    assert link.calls == 2


def test_a_batch_without_a_sequence_axis():
    function = adapted.Mean([adapted.sequences(2, np.float32)])
    flat = torch.arange(1.0, 13).reshape(TOTAL, 2).requires_grad_()
    made = apply_on_device(function, given_in("offsets", flat), out_form="offsets")
    expected = torch.stack([part.mean(dim=0) for part in flat.detach().split(LENGTHS)])
    torch.testing.assert_close(made, expected)
    made.sum().backward()
    expected = torch.cat([torch.full((n, 2), 1 / n) for n in LENGTHS])
    torch.testing.assert_close(flat.grad, expected)


def test_several_inputs_and_outputs_one_without_gradient():
    offsets = torch.tensor([0, 3, 4])
    results, gradients = [], []
    for apply in (apply_on_device, udfkit.torch.apply):
        function = adapted.Several([adapted.sequences((), np.float32) for _ in range(2)])
        a, b = (torch.arange(k, k + 4.0).requires_grad_() for k in (1, 5))
        (product, _), total, count = apply(function, (a, offsets), (b, offsets), out_form="offsets")
        assert not count.requires_grad
        (product * torch.arange(4.0)).sum().backward(retain_graph=True)
        total.sum().backward()
        results.append([product, total, count])
        gradients.append([a.grad, b.grad])
    for got, expected in zip(*results, strict=True):
        assert torch.equal(got, expected)
    for got, expected in zip(*gradients, strict=True):
        assert torch.equal(got, expected)


def test_a_sequence_function_runs_there():
    function = logsumexp(udfkit.sequence.input_variable(2, needs_gradient=True))
    padded = torch.arange(12.0).reshape(2, 3, 2).requires_grad_()
    made = apply_on_device(function, (padded, torch.tensor([3, 1])), out_form="lengths")
    rows = [padded[0], padded[1, :1]]
    torch.testing.assert_close(made, torch.stack([row.logsumexp(dim=0) for row in rows]))
    made.sum().backward()
    expected = torch.zeros(2, 3, 2)
    expected[0], expected[1, :1] = (row.softmax(dim=0) for row in rows)
    torch.testing.assert_close(padded.grad, expected)


def test_starts_are_carried_and_refused():
    function = SquareOnDevice([adapted.sequences(2, np.float32)])
    padded = torch.ones(2, 3, 2)
    mask = torch.tensor([[1, 1, 0], [2, 1, 1]], dtype=torch.int8)
    made, found = apply_on_device(function, (padded, mask), out_form="mask")
    assert found is mask
    assert torch.equal(made, torch.where(mask[..., None] != 0, 1.0, 0.0).expand(2, 3, 2))
    with pytest.raises(ValueError, match=r"sequence 0 continues .* ask for out_form='mask'"):
        apply_on_device(function, (padded, mask), out_form="offsets")


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [0, 2, 0]])
@pytest.mark.parametrize("out_form", ["nested", "lengths", "mask", "offsets"])
def test_empty_batches(lengths, out_form):
    function = SquareOnDevice([adapted.sequences(2, np.float32)])
    flat = torch.full((sum(lengths), 2), 3.0, requires_grad=True)
    offsets = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int64)
    made = apply_on_device(function, (flat, offsets), out_form=out_form)
    parts = parts_of(made)
    parts[0].sum().backward()
    assert torch.equal(flat.grad, 2 * flat)
    assert parts[0].sum() == 9 * flat.numel()


def test_bfloat16_keeps_its_bits():
    function = adapted.Square([adapted.sequences(2, ml_dtypes.bfloat16)])
    flat = torch.tensor([[1.5, -2.0], [0.25, 3.0]], dtype=torch.bfloat16, requires_grad=True)
    made, _ = apply_on_device(function, (flat, torch.tensor([0, 2])), out_form="offsets")
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, (flat * flat).detach())
    made.sum().backward()
    assert torch.equal(flat.grad, 2 * flat)


class Keep(SquareOnDevice):
    """Gives back what it got."""

    def forward(self, x, device, outputs_to_retain):
        self.seen = x
        return None, x

    def backward(self, state, grad):
        return grad


def address(value) -> int:
    return value.values._ary.ctypes.data


def test_copy_false_sees_the_memory_but_never_hands_it_out():
    function = Keep([adapted.sequences(2, np.float32)])
    flat, offsets = torch.ones(3, 2, requires_grad=True), torch.tensor([0, 3])
    for copy in (False, True):
        made, _ = apply_on_device(function, (flat, offsets), out_form="offsets", copy=copy)
        assert (address(function.seen) == flat.data_ptr()) == (not copy)
        assert made.data_ptr() not in (flat.data_ptr(), address(function.seen))
        gradient = torch.ones(3, 2)
        (found,) = torch.autograd.grad(made, flat, gradient)
        assert torch.equal(found, gradient)
        assert found.data_ptr() != gradient.data_ptr()


def test_copy_false_hands_out_memory_of_its_own():
    made = []

    class Watch(SquareOnDevice):
        def batch(self, values, like):
            made.append(super().batch(values, like))
            return made[-1]

    flat, offsets = torch.ones(3, 2), torch.tensor([0, 3])
    for copy in (False, True):
        function = Watch([adapted.sequences(2, np.float32)])
        result, _ = apply_on_device(function, (flat, offsets), out_form="offsets", copy=copy)
        assert (address(made[-1]) == result.data_ptr()) == (not copy)


def test_strides_and_second_backward():
    function = SquareOnDevice([adapted.sequences(2, np.float32)])
    flat = torch.arange(6.0).reshape(2, 3).T.requires_grad_()
    made, _ = apply_on_device(function, (flat, torch.tensor([0, 3])), out_form="offsets")
    assert torch.equal(made, (flat * flat).detach())
    (found,) = torch.autograd.grad(made.sum(), flat, retain_graph=True)
    assert torch.equal(found, 2 * flat)
    torch.autograd.grad(made.sum(), flat)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(made.sum(), flat)


def test_on_a_stream_of_torchs_own_results_are_torchs_memory(monkeypatch, link):
    recorded = []

    @contextmanager
    def ordered(device):
        yield "side stream"

    monkeypatch.setattr(link, "ordered", ordered)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda t, s: recorded.append((t.data_ptr(), s))
    )
    function = SquareOnDevice([adapted.sequences(2, np.float32)])
    flat = torch.ones(3, 2, requires_grad=True)
    made, _ = apply_on_device(
        function, (flat, torch.tensor([0, 3])), out_form="offsets", copy=False
    )
    made.sum().backward()
    assert [stream for _, stream in recorded] == ["side stream"] * 2
    assert recorded[0][0] == made.data_ptr()
