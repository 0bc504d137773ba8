"""Functions that pool sequences, have several inputs or no gradient, and the same with faults."""

import numpy as np

import udfkit as C
from planted_bugs import sample
from udfkit import Value


class Pooled(C.UserFunction):
    """The mean of each sequence; 0 of an empty one."""

    def infer_outputs(self):
        x = self.inputs[0]
        return C.output_variable(x.shape, x.dtype, x.dynamic_axes[:1], name="pooled")

    def forward(self, x, device, outputs_to_retain):
        means = [v.sum(axis=0) / max(len(v), 1) for v in x]
        return [len(v) for v in x], np.reshape(means, (len(x), 2))

    def backward(self, lengths, grad):
        return [
            np.repeat(g[None] / max(n, 1), n, axis=0) for n, g in zip(lengths, grad, strict=True)
        ]


class SummedNotAveraged(Pooled):
    def backward(self, lengths, grad):
        return [np.repeat(g[None], n, axis=0) for n, g in zip(lengths, grad, strict=True)]


class EmptyIsNan(Pooled):
    def forward(self, x, device, outputs_to_retain):
        return [len(v) for v in x], [v.mean(axis=0) for v in x]


class BackwardReversed(Pooled):
    def backward(self, lengths, grad):
        return super().backward(lengths, grad[::-1])


class BothReversed(Pooled):
    def forward(self, x, device, outputs_to_retain):
        lengths, means = super().forward(x, device, outputs_to_retain)
        return lengths, means[::-1]

    def backward(self, lengths, grad):
        return super().backward(lengths, grad[::-1])


class EmptyRaises(Pooled):
    def forward(self, x, device, outputs_to_retain):
        return [len(v) for v in x], [v[-1] + 0 * v.sum() for v in x]

    def backward(self, lengths, grad):
        return [
            np.concatenate([np.zeros((n - 1, 2)), g[None]])
            for n, g in zip(lengths, grad, strict=True)
        ]


class PooledValues(C.UserFunction):
    """The sum of each sequence over padded Values."""

    def __init__(self, inputs):
        super().__init__(inputs, as_numpy=False)

    infer_outputs = Pooled.infer_outputs

    def forward(self, x, device, outputs_to_retain):
        valid = (x.mask > 0)[:, :, None]
        sums = np.where(valid, x.data, 0).sum(axis=1)
        return x, C.sanitize_batch(self.outputs[0], sums)

    def backward(self, x, grad):
        spread = np.broadcast_to(grad.data[:, None], x.shape)
        return Value(spread, x.mask)


class PaddingInTheSum(PooledValues):
    def forward(self, x, device, outputs_to_retain):
        return x, C.sanitize_batch(self.outputs[0], x.data.sum(axis=1))


class RootPaddingInTheSum(C.UserFunction):
    """y = x + b for a sequence x and a sample b, over padded Values."""

    def __init__(self, inputs):
        super().__init__([*inputs, sample()], as_numpy=False)

    def infer_outputs(self):
        x = self.inputs[0]
        return C.output_variable(x.shape, x.dtype, x.dynamic_axes)

    def forward(self, args, device, outputs_to_retain):
        x, b = args
        return x.mask, Value(x.data + b.data[:, None], x.mask)

    def backward(self, mask, grad, variables):
        x, b = self.inputs
        if x in variables:
            variables[x] = Value(grad.data, mask)
        if b in variables:
            variables[b] = C.sanitize_batch(b, grad.data.sum(axis=1))


class MaskMultiplied(PooledValues):
    def forward(self, x, device, outputs_to_retain):
        sums = (x.data * (x.mask > 0)[:, :, None]).sum(axis=1)
        return x, C.sanitize_batch(self.outputs[0], sums)


class StepsForLengths(PooledValues):
    """The mean over the steps of the rectangle."""

    def forward(self, x, device, outputs_to_retain):
        valid = (x.mask > 0)[:, :, None]
        sums = np.where(valid, x.data, 0).sum(axis=1) / max(x.shape[1], 1)
        return x, C.sanitize_batch(self.outputs[0], sums)

    def backward(self, x, grad):
        return Value(np.broadcast_to(grad.data[:, None] / max(x.shape[1], 1), x.shape), x.mask)


class Scaled(C.UserFunction):
    """Two inputs, two outputs: o0 = sum(x) * b, o1 = sum(x * x) + b, for x a sequence."""

    def infer_outputs(self):
        b = self.inputs[1]
        return [C.output_variable(b.shape, b.dtype, b.dynamic_axes, name=n) for n in ("o0", "o1")]

    def forward(self, args, outputs, device, outputs_to_retain):
        x, b = args
        outputs[self.outputs[0]] = [v.sum(axis=0) * c for v, c in zip(x, b, strict=True)]
        outputs[self.outputs[1]] = [(v * v).sum(axis=0) + c for v, c in zip(x, b, strict=True)]
        return x, b

    def backward(self, state, grads, variables):
        (x, b), (g0, g1) = state, (grads[o] for o in self.outputs)
        if self.inputs[0] in variables:
            variables[self.inputs[0]] = [
                g * c + 2 * v * h for v, c, g, h in zip(x, b, g0, g1, strict=True)
            ]
        if self.inputs[1] in variables:
            variables[self.inputs[1]] = self.to_b(x, g0, g1)

    def to_b(self, x, g0, g1):
        return [v.sum(axis=0) * g + h for v, g, h in zip(x, g0, g1, strict=True)]


class OneGradientNone(Scaled):
    def backward(self, state, grads, variables):
        super().backward(state, grads, variables)
        variables[self.inputs[1]] = None


class WrongForLengthZero(Scaled):
    def to_b(self, x, g0, g1):
        right = super().to_b(x, g0, g1)
        return [g if len(v) else 0 * g for v, g in zip(x, right, strict=True)]


class NeedsBoth(Scaled):
    """The gradient of b is right only when that of x is asked for too."""

    def backward(self, state, grads, variables):
        both = len(variables) == 2
        super().backward(state, grads, variables)
        if self.inputs[1] in variables and not both:
            variables[self.inputs[1]] = [2 * g for g in variables[self.inputs[1]]]


class NeedsBothRoots(Scaled):
    """Under a contract that leaves missing root gradients out."""

    contract = "cntk-2.7"

    def backward(self, state, grads, variables):
        if not isinstance(grads, dict):
            grads = dict.fromkeys(self.outputs, grads)
        super().backward(state, grads, variables)


class Argmax(C.UserFunction):
    """Whole numbers out: no gradient."""

    def infer_outputs(self):
        return C.output_variable((), np.int64, self.inputs[0].dynamic_axes)

    def forward(self, x, device, outputs_to_retain):
        return None, [v.argmax(axis=1) for v in x]


class Taken(C.UserFunction):
    """Rows of a table by index: indices have a rule to obey, and the table is a Parameter."""

    def infer_outputs(self):
        table, index = self.inputs
        return C.output_variable(table.shape[1:], table.dtype, index.dynamic_axes)

    def forward(self, args, device, outputs_to_retain):
        table, index = args
        if any((i >= 2).any() for i in index):
            raise IndexError("no such row")
        return (table.shape, index), [table[i] for i in index]

    def backward(self, state, grad, variables):
        shape, index = state
        total = np.zeros(shape)
        for i, g in zip(index, grad, strict=True):
            np.add.at(total, i, g)
        variables[self.inputs[0]] = total
