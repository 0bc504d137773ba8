"""Every hot path over one batch, against `reference`: what the safety tests run in processes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import reference
import udfkit
from udfkit import Ragged, Value

Array = np.ndarray


class Identity(udfkit.UserFunction):
    """One sequence in, the same one out, forward and backward."""

    def infer_outputs(self) -> Any:
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, arg: Any, device: Any, outputs_to_retain: Any) -> Any:
        return "state", arg

    def backward(self, state: Any, grad: Any) -> Any:
        assert state == "state"
        return grad


class RaggedIdentity(Identity):
    layout = "ragged"


class Swap(udfkit.UserFunction):
    """Two sequences in, both out in the other order."""

    def infer_outputs(self) -> Any:
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes) for x in self.inputs]

    def forward(self, args: Any, outputs: Any, device: Any, outputs_to_retain: Any) -> Any:
        outputs[self.outputs[0]], outputs[self.outputs[1]] = args[1], args[0]

    def backward(self, state: Any, grads: Any, variables: Any) -> Any:
        for variable, output in zip(self.inputs, reversed(self.outputs), strict=True):
            variables[variable] = grads[output]


def noise(chance: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Every bit pattern, NaN payloads included."""
    dtype = np.dtype(dtype)
    raw = chance.bytes(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(bytearray(raw), dtype).reshape(shape)


def sequences_of(
    seed: int = 0,
    count: int = 9,
    longest: int = 7,
    shape: tuple[int, ...] = (3,),
    dtype: Any = "f4",
) -> list[Array]:
    """Sequences of many lengths; the first is empty and the last the longest."""
    chance = np.random.default_rng(seed)
    lengths = [0, *chance.integers(0, longest + 1, count - 2).tolist(), longest]
    return [noise(chance, (length, *shape), dtype) for length in lengths]


class HotPaths:
    """One batch, what every hot path must make of it, and the calls."""

    def __init__(self, sequences: list[Array], *, gaps: bool = True) -> None:
        self.sequences = sequences
        first = sequences[0]
        self.shape, self.dtype = first.shape[1:], first.dtype
        self.starts = [k % 3 != 1 for k in range(len(sequences))]
        self.data, self.mask = reference.pad(sequences, self.shape, self.dtype, self.starts)
        self.flat = reference.flat(sequences, self.shape, self.dtype)
        self.offsets = reference.offsets(map(len, sequences))
        self.left = np.full_like(self.data, 1)
        for row, sequence in enumerate(sequences):
            self.left[row, self.data.shape[1] - len(sequence) :] = sequence
        self.cells = None
        if gaps:
            self.cells = np.random.default_rng(1).integers(0, 3, self.mask.shape, np.int8)
            self.gapped = reference.unpad(self.data, self.cells)
        chance = np.random.default_rng(2)
        self.roots = [noise(chance, sequence.shape, self.dtype) for sequence in sequences]
        x, y = (self.variable() for _ in range(2))
        self.x = x
        self.identity, self.ragged_identity = Identity([x]), RaggedIdentity([x])
        self.swap = Swap([x, y])

    def variable(self) -> Any:
        grad = self.dtype.kind == "f"
        return udfkit.sequence.input_variable(self.shape, self.dtype, needs_gradient=grad)

    def run(self) -> None:
        """Call everything and compare every bit."""
        self.run_values()
        self.run_padding()
        self.run_functions()

    def check_value(self, value: Value) -> None:
        reference.assert_same(value.data, self.data)
        reference.assert_same(value.mask, self.mask)
        ragged = value.ragged()
        reference.assert_same(ragged.values, self.flat)
        reference.assert_same(ragged.offsets, self.offsets)
        self.check_list(udfkit.variable_value_to_seq(value, self.x))

    def check_list(self, got: Any) -> None:
        reference.assert_same_list(got, self.sequences)

    def run_values(self) -> None:
        self.check_value(udfkit.sanitize_batch(self.x, self.sequences, self.starts))
        ragged = Ragged.from_list(self.sequences)
        reference.assert_same(ragged.values, self.flat)
        self.check_value(udfkit.sanitize_batch(self.x, ragged, self.starts))
        self.check_value(Value(self.data, self.mask))
        if self.cells is not None:
            value = Value(self.data, self.cells)
            reference.assert_same_list(udfkit.variable_value_to_seq(value, self.x), self.gapped)
            again = udfkit.sanitize_batch(self.x, value.ragged())
            assert [len(s) for s in again.ragged()] == [len(s) for s in self.gapped]

    def run_padding(self) -> None:
        padded = udfkit.pad(self.sequences)
        reference.assert_same(padded.data, self.data)
        reference.assert_same(padded.mask != 0, self.mask != 0)
        self.check_list(list(udfkit.unpad(padded)))
        self.check_list(list(udfkit.unpad(self.data, padded.mask)))
        left = udfkit.pad(self.sequences, side="left", padding_value=1)
        reference.assert_same(left.data, self.left)
        reference.assert_same(udfkit.unpad(left, layout="ragged").values, self.flat)
        if self.cells is not None:
            reference.assert_same_list(list(udfkit.unpad(self.data, self.cells)), self.gapped)

    def run_functions(self) -> None:
        for function in self.identity, self.ragged_identity:
            self.check_list(function.eval(self.sequences))
            value = udfkit.sanitize_batch(self.x, self.sequences, self.starts)
            state, outputs = function._forward([value], None)
            self.check_value(outputs[function.output])
            if self.dtype.kind == "f":
                roots = {function.output: udfkit.sanitize_batch(function.output, self.roots)}
                found = function._backward(state, roots, [self.x])
                reference.assert_same_list(found[self.x].as_sequences(), self.roots)
                got = function.grad(self.sequences, root_gradients=self.roots)
                reference.assert_same_list(got, self.roots)
        x, y = self.swap.inputs
        result = self.swap.eval({x: self.sequences, y: self.roots})
        reference.assert_same_list(result[self.swap.outputs[0]], self.roots)
        reference.assert_same_list(result[self.swap.outputs[1]], self.sequences)


def small(seed: int = 0) -> HotPaths:
    return HotPaths(sequences_of(seed))


def large(seed: int = 0) -> HotPaths:
    """More bytes than one thread moves alone, padded as well as flat."""
    return HotPaths(sequences_of(seed, 150, 240, (64,)))


def work(seed: int) -> int:
    """Run small and large batches; what a worker process is given."""
    for hot in small(seed), large(seed):
        hot.run()
    return seed


def double(value: Value) -> Any:
    """Read a Value that came through a pipe and send another one back."""
    x = udfkit.sequence.input_variable(value.shape[2:], value.dtype)
    doubled = [2 * sequence for sequence in udfkit.variable_value_to_seq(value, x)]
    return udfkit.sanitize_batch(x, doubled, value.starts), value.ragged()
