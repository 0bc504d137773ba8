"""ctc_loss equals torch.nn.functional.ctc_loss in values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import udfkit


def run(batch, targets, root, *, blank=0, zero_infinity=False, dtype=np.float64):
    classes = batch[0].shape[1]
    x = udfkit.sequence.input_variable(classes, dtype, needs_gradient=True, name="x")
    y = udfkit.sequence.input_variable((), np.int64, name="y")
    fn = udfkit.functions.ctc_loss(x, y, blank, zero_infinity)
    gradient, loss = fn.grad({"x": batch, "y": targets}, None, root, [fn.output])
    return loss, gradient


def run_torch(batch, targets, root, *, blank=0, zero_infinity=False):
    lengths = [len(s) for s in batch]
    padded = np.zeros((max(lengths), len(batch), batch[0].shape[1]))
    for k, s in enumerate(batch):
        padded[: len(s), k] = s
    x = torch.tensor(padded, requires_grad=True)
    loss = torch.nn.functional.ctc_loss(
        x,
        torch.tensor(np.concatenate(targets), dtype=torch.int64),
        torch.tensor(lengths),
        torch.tensor([len(z) for z in targets]),
        blank=blank,
        reduction="none",
        zero_infinity=zero_infinity,
    )
    loss.backward(torch.tensor(root))
    gradient = x.grad.numpy()
    return loss.detach().numpy(), [gradient[:n, k] for k, n in enumerate(lengths)]


def compare(batch, targets, root, **options):
    loss, gradient = run(batch, targets, root, **options)
    want, want_gradient = run_torch(batch, targets, root, **options)
    np.testing.assert_allclose(loss, want, rtol=1e-9, atol=1e-9)
    for k, (got, expected) in enumerate(zip(gradient, want_gradient, strict=True)):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9, err_msg=f"sequence {k}")


@pytest.mark.parametrize("seed", range(12))
def test_random_batches(seed):
    rng = np.random.default_rng(seed)
    classes, blank = int(rng.integers(2, 12)), 0
    blank = int(rng.integers(classes))
    lengths = rng.integers(1, 60, 24)
    batch = []
    for n in lengths:
        x = rng.normal(0, rng.choice([0.1, 1.0, 10.0, 100.0]), (n, classes))
        batch.append(torch.tensor(x).log_softmax(-1).numpy())
    labels = [k for k in range(classes) if k != blank]
    targets = [rng.choice(labels, rng.integers(0, n // 2 + 2)) for n in lengths]
    root = rng.normal(size=len(batch))
    compare(batch, targets, root, blank=blank, zero_infinity=bool(seed % 2))


def test_corner_cases():
    rng = np.random.default_rng(99)
    batch = [torch.tensor(rng.normal(size=(n, 4))).log_softmax(-1).numpy() for n in (1, 1, 2, 3, 5)]
    targets = [np.array(z, np.int64) for z in ([], [1], [1, 1], [2, 2], [3, 3, 3])]
    root = np.ones(5)
    for zero_infinity in (False, True):
        compare(batch, targets, root, zero_infinity=zero_infinity)


def test_no_steps():
    batch = [np.zeros((0, 3)), np.zeros((0, 3)), np.full((2, 3), -np.log(3.0))]
    targets = [np.array(z, np.int64) for z in ([], [1], [1])]
    loss, _ = run(batch, targets, np.ones(3))
    want, _ = run_torch(batch, targets, np.ones(3))
    np.testing.assert_allclose(loss, want, rtol=1e-12)
