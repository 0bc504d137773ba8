"""Calls on tensors of a CUDA device: what comes out is there, and is what the CPU gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence
from torch_batches import FORMS, TOTAL, SquareOnDevice, given_in, parts_of

import adapted_functions as adapted
import udfkit
import udfkit.torch

KINDS = [adapted.Square, adapted.SquareRagged, SquareOnDevice]


def moved(given, device):
    if type(given) is tuple:
        return tuple([part.to(device) for part in given])
    return given.to(device)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("out_form", FORMS)
@pytest.mark.parametrize("copy", [True, False])
def test_every_form_gives_what_the_cpu_gives(kind, form, out_form, copy):
    results, gradients = [], []
    for device, made_of in (("cuda", kind), ("cpu", adapted.Square)):
        function = made_of([adapted.sequences(2, np.float32)])
        flat = torch.arange(1.0, 13).reshape(TOTAL, 2).requires_grad_()
        given = moved(given_in(form, flat), device)
        made = udfkit.torch.apply(function, given, out_form=out_form, copy=copy)
        parts = parts_of(made)
        assert parts[0].device.type == device
        assert isinstance(made, PackedSequence) or parts[1].device.type == device
        weights = torch.arange(float(parts[0].numel()), device=device).reshape(parts[0].shape)
        (parts[0] * weights).sum().backward()
        results.append([part.cpu() for part in parts])
        gradients.append(flat.grad)
    for got, expected in zip(*results, strict=True):
        assert torch.equal(got, expected)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copy", [True, False])
def test_on_another_stream(kind, copy):
    function = kind([adapted.sequences(2, np.float32)])
    flat = torch.ones(1 << 18, 2, device="cuda", requires_grad=True)
    offsets = torch.tensor([0, 1 << 17, 1 << 18])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for factor in range(1, 6):
            torch.cuda._sleep(10_000_000)
            made, _ = udfkit.torch.apply(function, (flat * factor, offsets), copy=copy)
            (gradient,) = torch.autograd.grad(made.sum(), flat)
            found = made.sum(), gradient.sum()
            assert [x.item() for x in found] == [factor**2 << 19, factor**2 << 20]


def test_parameters_and_dtypes():
    offsets = torch.tensor([0, 2])
    module = udfkit.torch.Module(adapted.scale(np.float32)).cuda()
    made, _ = module((torch.ones(2, 2, device="cuda"), offsets))
    made.sum().backward()
    assert all(parameter.grad.is_cuda for parameter in module.parameters())
    square = adapted.Square([adapted.sequences(2, np.float32, name="x")])
    with pytest.raises(TypeError, match=r"input 'x' is torch.float64 on cuda:0"):
        udfkit.torch.apply(square, (torch.ones(2, 2, dtype=torch.float64).cuda(), offsets))
    with torch.autocast("cuda"):
        made, _ = udfkit.torch.apply(square, (torch.ones(2, 2).half().cuda(), offsets))
    assert made.dtype == torch.float32
