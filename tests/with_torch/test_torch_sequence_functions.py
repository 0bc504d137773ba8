"""Ready-made sequence functions inside PyTorch's graph, against PyTorch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import udfkit
import udfkit.torch

CLASSES = 5


def ctc(dtype=np.float64):
    x = udfkit.sequence.input_variable(CLASSES, dtype, needs_gradient=True, name="x")
    y = udfkit.sequence.input_variable((), np.int64, name="y")
    return udfkit.functions.ctc_loss(x, y)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_ctc_loss_equals_torchs(compiled, copy):
    torch.manual_seed(3)
    lengths, counts = torch.tensor([7, 3, 5]), torch.tensor([3, 0, 2])
    scores = torch.randn(3, 8, CLASSES, dtype=torch.float64)
    targets = torch.tensor([1, 2, 2, 4, 3])
    mine, theirs = (scores.clone().requires_grad_() for _ in range(2))
    function = ctc()

    def loss(scores):
        return udfkit.torch.apply(
            function,
            (scores.log_softmax(-1), lengths),
            (targets, torch.tensor([0, 3, 3, 5])),
            copy=copy,
        )

    run = torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss
    found = run(mine)
    expected = torch.nn.functional.ctc_loss(
        theirs.log_softmax(-1).transpose(0, 1), targets, lengths, counts, reduction="none"
    )
    torch.testing.assert_close(found, expected)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_gradcheck():
    offsets = torch.tensor([0, 4, 6])
    scores = torch.randn(6, CLASSES, dtype=torch.float64, requires_grad=True)
    function, targets = ctc(), (torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]))
    assert torch.autograd.gradcheck(
        lambda x: udfkit.torch.apply(function, (x.log_softmax(-1), offsets), targets), (scores,)
    )
