"""What a user function that does nothing costs: the price of the way in and out."""

import numpy as np

import udfkit
from benchmarks import laws


class Identity(udfkit.UserFunction):
    """Returns what it gets, forward and backward."""

    def __init__(self, operand):
        super().__init__([operand], name="identity")

    def forward(self, argument, device=None, outputs_to_retain=None):
        return None, argument

    def backward(self, state, root_gradients):
        return root_gradients

    def infer_outputs(self):
        operand = self.inputs[0]
        return [udfkit.output_variable(operand.shape, operand.dtype, operand.dynamic_axes)]


class UserFunctionIdentity:
    """One forward and one backward through the engine's entry, Values in and Values out."""

    param_names = ("law", "batch_size", "sample_size")
    params = (laws.LAWS, laws.BATCH_SIZES, laws.SAMPLE_SIZES)

    def setup(self, law, batch_size, sample_size):
        laws.skip_large(law, batch_size, sample_size)
        self.operand = udfkit.sequence.input_variable((sample_size,), needs_gradient=True)
        self.function = Identity(self.operand)
        batch = laws.sequences(law, batch_size, sample_size)
        self.argument = udfkit.sanitize_batch(self.operand, batch)
        ones = [np.ones_like(sequence) for sequence in batch]
        self.root_gradient = udfkit.sanitize_batch(self.function.outputs[0], ones)
        self.forward_backward()

    def forward_backward(self):
        output = self.function.outputs[0]
        state, outputs = self.function._forward([self.argument], {output: None})
        gradients = {self.operand: None}
        self.function._backward(state, {output: self.root_gradient}, gradients)
        return outputs[output].data, gradients[self.operand].data

    def time_forward_backward(self, *_):
        return self.forward_backward()

    def peakmem_batch_alone(self, *_):
        """The empty reference: what setup costs."""

    def peakmem_forward_backward(self, *_):
        return self.forward_backward()
