"""What sequence functions are measured against: NumPy a sequence at a time, PyTorch a batch."""

# ruff: noqa: D103
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import udfkit


def crf_numpy(scores: np.ndarray, tags: np.ndarray, a: np.ndarray, grad_a: np.ndarray) -> Any:
    steps, count = scores.shape
    alpha, beta = np.empty((steps, count)), np.zeros((steps, count))
    alpha[0] = scores[0]
    for t in range(1, steps):
        ways = alpha[t - 1][:, None] + a
        top = ways.max(axis=0)
        alpha[t] = top + np.log(np.exp(ways - top).sum(axis=0)) + scores[t]
    top = alpha[-1].max()
    total = top + np.log(np.exp(alpha[-1] - top).sum())
    path = scores[np.arange(steps), tags].sum() + a[tags[:-1], tags[1:]].sum()
    for t in range(steps - 1, 0, -1):
        ways = a + (scores[t] + beta[t])[None]
        grad_a -= np.exp(alpha[t - 1][:, None] + ways - total)
        top = ways.max(axis=1)
        beta[t - 1] = top + np.log(np.exp(ways - top[:, None]).sum(axis=1))
    grad = -np.exp(alpha + beta - total)
    grad[np.arange(steps), tags] += 1
    np.add.at(grad_a, (tags[:-1], tags[1:]), 1)
    return path - total, grad


def dtw_numpy(x: np.ndarray, y: np.ndarray, gamma: float) -> Any:
    n, m = len(x), len(y)
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)
    r = np.full((n + m + 3, n + 2), np.inf)
    d_all = np.zeros((n + m + 3, n + 2))
    r[0, 0] = 0.0
    for d in range(2, n + m + 1):
        i = np.arange(max(1, d - m), min(n, d - 1) + 1)
        d_all[d, i] = cost[i - 1, d - i - 1]
        ways = np.stack([r[d - 2, i - 1], r[d - 1, i - 1], r[d - 1, i]]) / -gamma
        top = ways.max(axis=0)
        r[d, i] = d_all[d, i] - gamma * (top + np.log(np.exp(ways - top).sum(axis=0)))
    value = r[n + m, n]
    e = np.zeros((n + m + 3, n + 2))
    e[n + m, n] = 1.0
    r[~np.isfinite(r)] = -np.inf
    share = np.zeros((n, m))
    for d in range(n + m, 1, -1):
        i = np.arange(max(1, d - m), min(n, d - 1) + 1)
        if d < n + m:
            e[d, i] = (
                e[d + 1, i + 1] * np.exp((r[d + 1, i + 1] - r[d, i] - d_all[d + 1, i + 1]) / gamma)
                + e[d + 1, i] * np.exp((r[d + 1, i] - r[d, i] - d_all[d + 1, i]) / gamma)
                + e[d + 2, i + 1]
                * np.exp((r[d + 2, i + 1] - r[d, i] - d_all[d + 2, i + 1]) / gamma)
            )
        share[i - 1, d - i - 1] = e[d, i]
    return value, 2 * (share.sum(1)[:, None] * x - share @ y)


class NumpyPooling(udfkit.UserFunction):
    """Attention pooling as a loop over sequences."""

    def infer_outputs(self) -> Any:
        x = self.inputs[0]
        return udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes[:1])

    def forward(self, args: Any, device: Any, retain: Any) -> Any:
        xs, w = args
        weights, ys = [], []
        for x in xs:
            score = x @ w
            a = np.exp(score - score.max())
            a /= a.sum()
            weights.append(a)
            ys.append(a @ x)
        return (xs, w, weights, ys), np.stack(ys)

    def backward(self, state: Any, root: Any, variables: Any) -> None:
        xs, w, weights, ys = state
        grad_w, grads = np.zeros_like(w), []
        for x, a, y, g in zip(xs, weights, ys, root, strict=True):
            s = a * (x @ g - g @ y)
            grad_w += s @ x
            grads.append(a[:, None] * g + s[:, None] * w)
        x, w_variable = self.inputs
        variables[x], variables[w_variable] = grads, grad_w


def crf_torch(
    torch: Any, batch: list[np.ndarray], labels: list[np.ndarray], a: np.ndarray
) -> Callable[[], Any]:
    """Return what calls the batched forward algorithm under autograd."""
    count, steps, tags = len(batch), max(len(s) for s in batch), a.shape[0]
    padded = np.zeros((count, steps, tags), a.dtype)
    marks = np.zeros((count, steps), np.int64)
    mask = np.zeros((count, steps), bool)
    for k, (s, z) in enumerate(zip(batch, labels, strict=True)):
        padded[k, : len(s)], marks[k, : len(s)], mask[k, : len(s)] = s, z, True
    leaf = torch.tensor(padded, requires_grad=True)
    weights = torch.tensor(a, requires_grad=True)
    y, m = torch.tensor(marks), torch.tensor(mask)
    valid = m.to(leaf.dtype)

    def call() -> Any:
        leaf.grad = weights.grad = None
        path = (leaf.gather(2, y[:, :, None])[:, :, 0] * valid).sum(1)
        path = path + (weights[y[:, :-1], y[:, 1:]] * valid[:, 1:]).sum(1)
        alpha = leaf[:, 0]
        for t in range(1, steps):
            after = torch.logsumexp(alpha[:, :, None] + weights, 1) + leaf[:, t]
            alpha = torch.where(m[:, t, None], after, alpha)
        value = path - torch.logsumexp(alpha, 1)
        value.sum().backward()
        return value, leaf.grad, weights.grad

    return call


class CtcTorch:
    """torch.nn.functional.ctc_loss with its gradient, over padded log-probabilities."""

    def __init__(self, torch: Any, batch: list[np.ndarray], targets: list[np.ndarray]) -> None:
        self.loss = torch.nn.functional.ctc_loss
        self.padded = np.zeros((max(map(len, batch)), len(batch), batch[0].shape[1]))
        for k, x in enumerate(batch):
            self.padded[: len(x), k] = x
        self.labels = torch.tensor(np.concatenate(targets))
        self.sizes = [torch.tensor([len(s) for s in part]) for part in (batch, targets)]
        self.tensor = torch.tensor

    def call(self, dtype: Any) -> Callable[[], Any]:
        """Return what computes loss and gradient in a dtype."""
        leaf = self.tensor(self.padded.astype(dtype), requires_grad=True)

        def call() -> Any:
            leaf.grad = None
            loss = self.loss(leaf, self.labels, *self.sizes, reduction="none")
            loss.sum().backward()
            return loss.detach().numpy(), leaf.grad.numpy()

        return call
