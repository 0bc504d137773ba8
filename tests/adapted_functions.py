"""User functions for the tests of the adapters, each of a formula that others have too."""

from __future__ import annotations

from typing import Any

import numpy as np

import udfkit

BATCH = [udfkit.Axis.default_batch_axis()]


def sequences(shape: Any = (), dtype: Any = np.float64, **options: Any) -> udfkit.Variable:
    options.setdefault("needs_gradient", True)
    return udfkit.sequence.input_variable(shape, dtype, **options)


class Square(udfkit.UserFunction):
    """x * x; keeps what it was given."""

    def infer_outputs(self):
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, x, device, outputs_to_retain):
        return x, [s * s for s in x]

    def backward(self, x, grad):
        return [2 * s * g for s, g in zip(x, grad, strict=True)]


class SquareRagged(Square):
    """x * x over flat values."""

    layout = "ragged"

    def forward(self, x, device, outputs_to_retain):
        return x, x.with_values(x.values * x.values)

    def backward(self, x, grad):
        return grad.with_values(2 * x.values * grad.values)


class SquareValue(Square):
    """x * x over Values; its padding would be infinite if it were not zero."""

    def __init__(self, inputs):
        super().__init__(inputs, as_numpy=False)

    def forward(self, x, device, outputs_to_retain):
        assert not x.data[x.mask == 0].any()
        return x, udfkit.Value(x.data * x.data, x.mask)

    def backward(self, x, grad):
        return udfkit.Value(2 * x.data * grad.data, grad.mask)


class SquareBroken(Square):
    """x * x whose results come in another dtype and memory order: they need the slow way."""

    def forward(self, x, device, outputs_to_retain):
        return x, [np.asfortranarray((s * s).astype(np.float32)) for s in x]

    def backward(self, x, grad):
        return [(2 * s * g)[::-1].copy()[::-1] for s, g in zip(x, grad, strict=True)]


class Mean(udfkit.UserFunction):
    """The mean of each sequence, 0 for an empty one."""

    def infer_outputs(self):
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, BATCH)]

    def forward(self, x, device, outputs_to_retain):
        means = [s.mean(axis=0) if len(s) else np.zeros(s.shape[1:]) for s in x]
        shape = (len(x), *self.inputs[0].shape)
        return [len(s) for s in x], np.array(means, x[0].dtype if x else None).reshape(shape)

    def backward(self, lengths, grad):
        return [
            np.repeat(g[np.newaxis] / max(n, 1), n, axis=0)
            for n, g in zip(lengths, grad, strict=True)
        ]


class Scale(udfkit.UserFunction):
    """weight * x + bias."""

    def infer_outputs(self):
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, args, device, outputs_to_retain):
        x, weight, bias = args
        return (x, weight), [weight * s + bias for s in x]

    def backward(self, state, grad, variables):
        (x, weight), (vx, vweight, vbias) = state, self.inputs
        self.asked = list(variables)
        if vx in variables:
            variables[vx] = [weight * g for g in grad]
        if vweight in variables:
            parts = [(g * s).sum(axis=0) for g, s in zip(grad, x, strict=True)]
            variables[vweight] = np.sum(parts, axis=0)
        if vbias in variables:
            variables[vbias] = np.sum([g.sum(axis=0) for g in grad], axis=0)


def scale(dtype: Any = np.float64, size: int = 2) -> Scale:
    x = sequences(size, dtype, name="x")
    weight = udfkit.Parameter(init=np.arange(1, size + 1, dtype=dtype), name="weight")
    bias = udfkit.Parameter(init=np.full(size, 0.5, dtype), name="layer.bias")
    return Scale([x, weight, bias])


class Several(udfkit.UserFunction):
    """a * b by step, the sum of each a, and how long each is: n inputs, m outputs."""

    def infer_outputs(self):
        a = self.inputs[0]
        return [
            udfkit.output_variable((), a.dtype, a.dynamic_axes, name="product"),
            udfkit.output_variable((), a.dtype, BATCH, name="total"),
            udfkit.output_variable((), np.int64, BATCH, name="count"),
        ]

    def forward(self, args, outputs, device, outputs_to_retain):
        a, b = args
        product, total, count = self.outputs
        outputs[product] = [s * t for s, t in zip(a, b, strict=True)]
        outputs[total] = np.array([s.sum() for s in a], a[0].dtype)
        outputs[count] = np.array([len(s) for s in a], np.int64)
        return a, b

    def backward(self, state, grads, variables):
        (a, b), (va, vb) = state, self.inputs
        product, total, _ = self.outputs
        if va in variables:
            rows = zip(grads[product], b, grads[total], strict=True)
            variables[va] = [g * t + h for g, t, h in rows]
        if vb in variables:
            variables[vb] = [g * s for g, s in zip(grads[product], a, strict=True)]


def several(dtype: Any = np.float64) -> Several:
    return Several([sequences((), dtype, name="a"), sequences((), dtype, name="b")])


class DropFirst(udfkit.UserFunction):
    """All steps of each sequence but the first."""

    def infer_outputs(self):
        x = self.inputs[0]
        axis = udfkit.Axis.new_unique_dynamic_axis("shorter")
        return [udfkit.output_variable(x.shape, x.dtype, [*BATCH, axis])]

    def forward(self, x, device, outputs_to_retain):
        return [len(s) for s in x], [s[1:] for s in x]

    def backward(self, lengths, grad):
        empty = np.zeros((1, *self.inputs[0].shape), self.inputs[0].dtype)
        return [np.concatenate([empty[: n > 0], g]) for n, g in zip(lengths, grad, strict=True)]


class Affine(udfkit.UserFunction):
    """2 x + 1 over one array: for variables without a sequence axis."""

    def infer_outputs(self):
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, x, device, outputs_to_retain):
        return None, 2 * x + 1

    def backward(self, state, grad):
        return 2 * grad
