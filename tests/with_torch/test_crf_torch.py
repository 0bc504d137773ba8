"""linear_chain_crf equals PyTorch's gradient of the forward algorithm."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import udfkit


@pytest.mark.parametrize("spread", [1.0, 1000.0])
def test_values_and_gradients(spread):
    rng = np.random.default_rng(0)
    tags = 7
    lengths = [12, 1, 30, 5]
    batch = [rng.normal(0, spread, (n, tags)) for n in lengths]
    labels = [rng.integers(0, tags, n) for n in lengths]
    transitions = rng.normal(0, spread, (tags, tags))
    root = rng.normal(size=len(lengths))

    x = udfkit.sequence.input_variable(tags, np.float64, needs_gradient=True, name="x")
    y = udfkit.sequence.input_variable((), np.int64, name="y")
    a = udfkit.Parameter(init=transitions, name="a")
    fn = udfkit.functions.linear_chain_crf(x, y, a)
    gradients, values = fn.grad({"x": batch, "y": labels}, None, root, [fn.output])

    a_torch = torch.tensor(transitions, requires_grad=True)
    total, leaves, want = 0.0, [], []
    for s, z, r in zip(batch, labels, root, strict=True):
        scores = torch.tensor(s, requires_grad=True)
        leaves.append(scores)
        path = scores[range(len(z)), z].sum() + a_torch[z[:-1], z[1:]].sum()
        alpha = scores[0]
        for t in range(1, len(z)):
            alpha = torch.logsumexp(alpha[:, None] + a_torch, 0) + scores[t]
        value = path - torch.logsumexp(alpha, 0)
        want.append(value.item())
        total = total + r * value
    total.backward()
    np.testing.assert_allclose(values, want, rtol=1e-11, atol=1e-9)
    for got, leaf in zip(gradients[x], leaves, strict=True):
        np.testing.assert_allclose(got, leaf.grad.numpy(), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(gradients[a], a_torch.grad.numpy(), rtol=1e-8, atol=1e-9)
