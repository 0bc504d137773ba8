"""Step by step functions, right and with one fault each, for the tests of the checker."""

import itertools

import numpy as np

import udfkit as C
from udfkit import Value

F64 = np.float64


def sequence(name="x", shape=2, dtype=F64, needs_gradient=True, axis=None):
    axis = axis or C.Axis.default_dynamic_axis()
    return C.sequence.input_variable(
        shape, dtype, needs_gradient=needs_gradient, sequence_axis=axis, name=name
    )


def sample(name="b", shape=2, dtype=F64, needs_gradient=True):
    return C.input_variable(shape, dtype, needs_gradient=needs_gradient, name=name)


class PerStep(C.UserFunction):
    """y = x * x, step by step."""

    def infer_outputs(self):
        x = self.inputs[0]
        return C.output_variable(x.shape, x.dtype, x.dynamic_axes, name="y")

    def forward(self, x, device, outputs_to_retain):
        return x, [v * v for v in x]

    def backward(self, x, grad):
        return [2 * v * g for v, g in zip(x, grad, strict=True)]


class SecondRowWrong(PerStep):
    def backward(self, x, grad):
        gradients = super().backward(x, grad)
        for g in gradients:
            g[1:2] *= 3
        return gradients


class SecondSequenceWrong(PerStep):
    def backward(self, x, grad):
        gradients = super().backward(x, grad)
        return [g if k == 0 else g + 1 for k, g in enumerate(gradients)]


class RowStrideAssumed(PerStep):
    """Reads row t of the gradient where it would be, were the rows close together."""

    def backward(self, x, grad):
        return super().backward(x, [self.read(g) for g in grad])

    def read(self, g):
        close = g.shape[1] * g.itemsize
        if len(g) < 2 or g.strides[0] <= close:
            return g
        return np.lib.stride_tricks.as_strided(g, g.shape, (close, g.itemsize))


class WrongForStrideZero(PerStep):
    def backward(self, x, grad):
        return super().backward(x, [g * 2 if g.size > 1 and 0 in g.strides else g for g in grad])


class GradOfItsOwn(PerStep):
    """Takes grad over, and reads a broadcast root gradient as if it had strides."""

    def grad(self, batch, wrt=None, root_gradients=None, outputs=None, **options):
        roots = root_gradients[self.outputs[0]]
        wrong = [g * 2 if g.size > 1 and 0 in g.strides else g for g in roots]
        return super().grad(batch, wrt, {self.outputs[0]: wrong}, outputs, **options)


class RefusesStrides(PerStep):
    """Right, and fussy: what the bridge hands over is always contiguous and writable."""

    def backward(self, x, grad):
        if not all(g.flags.c_contiguous and g.flags.writeable for g in grad):
            raise TypeError("contiguous arrays only")
        return super().backward(x, grad)


class StateOnSelf(PerStep):
    def forward(self, x, device, outputs_to_retain):
        self.kept = x
        return super().forward(x, device, outputs_to_retain)

    def backward(self, x, grad):
        return super().backward(self.kept, grad)


class StateInOneBuffer(PerStep):
    """Lets every call keep its inputs in the same memory."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.buffer = np.zeros((100, 2))

    def forward(self, x, device, outputs_to_retain):
        total = sum(map(len, x))
        self.buffer[:total] = np.concatenate([*x, np.empty((0, 2))])
        bounds = np.cumsum([0, *map(len, x)])
        kept = [self.buffer[a:b] for a, b in itertools.pairwise(bounds)]
        return kept, [v * v for v in x]


class InputInPlace(PerStep):
    def forward(self, x, device, outputs_to_retain):
        kept = [v.copy() for v in x]
        for v in x:
            v *= v
        return kept, x


class StateInPlace(PerStep):
    def backward(self, x, grad):
        for v, g in zip(x, grad, strict=True):
            v *= 2 * g
        return x


class RootInPlace(PerStep):
    def backward(self, x, grad):
        for v, g in zip(x, grad, strict=True):
            g *= 2 * v
        return grad


class IgnoresTheRoot(PerStep):
    def backward(self, x, grad):
        return [2 * v for v in x]


class FactorTwo(PerStep):
    def backward(self, x, grad):
        return [v * g for v, g in zip(x, grad, strict=True)]


class SlightlyWrong(PerStep):
    """By less than float32 shows, and not by the same factor everywhere."""

    def backward(self, x, grad):
        return [(2 + 1e-3 * v) * v * g for v, g in zip(x, grad, strict=True)]


class WrongSign(PerStep):
    def backward(self, x, grad):
        return [-2 * v * g for v, g in zip(x, grad, strict=True)]


class NotFilled(PerStep):
    def backward(self, x, grad):
        return [np.zeros_like(v) for v in x]


class StepsReversed(PerStep):
    def backward(self, x, grad):
        return [g[::-1] for g in super().backward(x, grad)]


class BatchStatistics(PerStep):
    """Subtracts the mean of all steps of all sequences."""

    def forward(self, x, device, outputs_to_retain):
        return None, self.centred(x)

    def backward(self, state, grad):
        return self.centred(grad)

    def centred(self, x):
        every = np.concatenate([*x, np.zeros((0, 2))])
        return [v - every.mean(axis=0) for v in x] if len(every) else x


class RunningSum(PerStep):
    """Sums over each sequence as differences of one sum through the batch."""

    layout = "ragged"

    def infer_outputs(self):
        x = self.inputs[0]
        return C.output_variable(x.shape, x.dtype, x.dynamic_axes[:1])

    def forward(self, x, device, outputs_to_retain):
        sums = np.concatenate([np.zeros((1, 2)), np.cumsum(x.values, axis=0)])
        return x, sums[x.offsets[1:]] - sums[x.offsets[:-1]]

    def backward(self, x, grad):
        return x.with_values(np.repeat(grad, x.lengths, axis=0))


class Unstable(PerStep):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.rng = np.random.default_rng(0)

    def forward(self, x, device, outputs_to_retain):
        return x, [v * v + self.rng.normal() for v in x]


class WrongDtype(PerStep):
    """What an override of the engine's call can get wrong."""

    def _forward(self, *args, **kwargs):
        state, outputs = super()._forward(*args, **kwargs)
        y = self.outputs[0]
        other = C.sequence.input_variable(2, np.float32)
        narrow = [v.astype(np.float32) for v in outputs[y].as_sequences()]
        outputs[y] = Value.create(other, narrow)
        return state, outputs


class Clipped(PerStep):
    """Not differentiable where it begins and ends to be flat."""

    def forward(self, x, device, outputs_to_retain):
        return x, [np.clip(v, -0.5, 0.5) for v in x]

    def backward(self, x, grad):
        return [g * (np.abs(v) < 0.5) for v, g in zip(x, grad, strict=True)]


class BatchMean(PerStep):
    """Takes the mean over the batch for a sum in backward only."""

    def backward(self, x, grad):
        return [len(x) * g for g in super().backward(x, grad)]
