"""Shared by the dispatch tests: small batches and functions that write down their calls."""

import math

import numpy as np

import udfkit as C
from udfkit import Ragged, Value

LENGTHS = (3, 1, 2)


def sequences(lengths=LENGTHS, shape=(2,), dtype=np.float32, offset=0):
    """List of `(length, *shape)` arrays that count upwards from `offset`."""
    total = int(sum(lengths))
    flat = np.arange(total * math.prod(shape), dtype=dtype).reshape(total, *shape) + dtype(offset)
    bounds = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return [flat[bounds[k] : bounds[k + 1]].copy() for k in range(len(lengths))]


def batch(kind, lengths=LENGTHS, shape=(2,), dtype=np.float32, offset=0):
    """A plain batch for a variable of this kind."""
    if kind == "sequence":
        return sequences(lengths, shape, dtype, offset)
    full = (len(lengths), *shape) if kind == "batch" else shape
    return np.arange(math.prod(full), dtype=dtype).reshape(full) + dtype(offset)


def ones(data, factor=1):
    """`factor` in the form of a plain batch."""
    if isinstance(data, list):
        return [np.full_like(x, factor) for x in data]
    return np.full_like(data, factor)


def variable(kind, name, needs_gradient=True, shape=(2,), dtype=np.float32):
    if kind == "sequence":
        return C.sequence.input_variable(shape, dtype, needs_gradient=needs_gradient, name=name)
    axes = [C.Axis.default_batch_axis()] if kind == "batch" else []
    return C.input_variable(
        shape, dtype, needs_gradient=needs_gradient, dynamic_axes=axes, name=name
    )


def form(x):
    """The word for the container that user code was handed."""
    for word, kind in (
        ("value", Value),
        ("ragged", Ragged),
        ("list", list),
        ("array", np.ndarray),
        ("dict", dict),
        ("tuple", tuple),
    ):
        if isinstance(x, kind):
            return word
    return type(x).__name__


def plain(x):
    """Any form of one batch as a list of arrays, for comparing."""
    if isinstance(x, Value):
        x = x.as_sequences() if x.mask.ndim == 2 else x.asarray()
    if isinstance(x, (np.ndarray, np.generic)):
        return [np.asarray(x)]
    return [np.asarray(item) for item in x]


def assert_same(got, expected):
    got, expected = plain(got), plain(expected)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def combine(terms):
    """`sum(weight * x)` over (weight, x) pairs, in the form that the x have."""
    first = terms[0][1]
    if isinstance(first, Value):
        return Value(sum(w * x.data for w, x in terms), first.mask)
    if isinstance(first, Ragged):
        return first.with_values(sum(w * x.values for w, x in terms))
    if isinstance(first, list):
        return [sum(w * x[k] for w, x in terms) for k in range(len(first))]
    return np.asarray(sum(w * x for w, x in terms))


def weight(j, i):
    return 2 + 3 * j + 5 * i


class Linear(C.UserFunction):
    """out_j = sum over i of weight(j, i) * x_i, in whatever form the call comes.

    `log` holds every call with the very objects that arrived. `bare` says which output a root
    gradient without a dict belongs to, `asked` which input a gradient without a dict is for.
    """

    def __init__(self, inputs, n_out=1, as_numpy=True, state=None, name="lin"):
        super().__init__(inputs, as_numpy=as_numpy, name=name)
        self.n_out = n_out
        self.state = state
        self.log = []
        self.bare = 0
        self.asked = 0

    def infer_outputs(self):
        first = self.inputs[0]
        return [
            C.output_variable(first.shape, first.dtype, first.dynamic_axes, name=f"o{j}")
            for j in range(self.n_out)
        ]

    def forward(self, *args):
        self.log.append(("forward", args))
        xs = args[0] if len(self.inputs) > 1 else (args[0],)
        results = [
            combine([(weight(j, i), x) for i, x in enumerate(xs)]) for j in range(self.n_out)
        ]
        if self.n_out == 1:
            return self.state, results[0]
        for output in args[1]:
            args[1][output] = results[self.outputs.index(output)]
        return self.state

    def run_backward(self, args):
        self.log.append(("backward", args))
        root = args[1]
        if isinstance(root, dict):
            grads = {self.outputs.index(output): g for output, g in root.items()}
        else:
            grads = {self.bare: root}
        if len(args) == 2:
            return self.gradient(grads, self.asked)
        for input_ in args[2]:
            args[2][input_] = self.gradient(grads, self.inputs.index(input_))
        return None

    def gradient(self, grads, i):
        return combine([(weight(j, i), g) for j, g in grads.items()])

    def backward(self, state, root_gradients, variables):
        return self.run_backward((state, root_gradients, variables))


class TwoArguments(Linear):
    def backward(self, state, root_gradients):
        return self.run_backward((state, root_gradients))


class AnyArguments(Linear):
    def backward(self, *args):
        return self.run_backward(args)


SIGNATURES = {"three": Linear, "two": TwoArguments, "star": AnyArguments}


def linear(
    kinds=("sequence",),
    n_out=1,
    needs=None,
    contract="auto",
    signature="three",
    layout="list",
    **kwargs,
):
    """A `Linear` with inputs x0, x1, ..., one for each kind."""
    base = SIGNATURES[signature]
    cls = type(f"Lin{contract}", (base,), {"contract": contract, "layout": layout})
    needs = needs or (True,) * len(kinds)
    inputs = [variable(kind, f"x{i}", needs[i]) for i, kind in enumerate(kinds)]
    return cls(inputs, n_out=n_out, **kwargs)


def arguments_of(fn, lengths=LENGTHS, starts=None):
    """(plain batches, Values) for every input of `fn`."""
    data = [batch(x.kind, lengths, offset=100 * i) for i, x in enumerate(fn.inputs)]
    values = [
        Value.create(x, d, starts if x.kind == "sequence" else None)
        for x, d in zip(fn.inputs, data, strict=True)
    ]
    return data, values


def roots_of(fn, given=None, lengths=LENGTHS):
    """(plain root gradients by index, {output: Value}) for the outputs numbered in `given`."""
    given = range(len(fn.outputs)) if given is None else given
    outputs = list(fn.outputs)
    data = {j: batch(outputs[j].kind, lengths, offset=7 * j + 1) for j in given}
    return data, {outputs[j]: Value.create(outputs[j], data[j]) for j in given}


def forward(fn, values, device=None, retain=None):
    """`fn._forward` for every declared output."""
    return fn._forward(values, dict.fromkeys(fn.outputs), device, retain)


def backward(fn, state, roots, asked=None):
    """`fn._backward` for the inputs numbered in `asked`; returns the filled dict."""
    asked = range(len(fn.inputs)) if asked is None else asked
    variables = {list(fn.inputs)[i]: None for i in asked}
    fn._backward(state, roots, variables)
    return variables


class Remembering(C.UserFunction):
    """out = x * x, with the forward argument as state, so that every gradient needs its own."""

    def __init__(self, x, as_numpy=True):
        super().__init__([x], as_numpy=as_numpy)

    def infer_outputs(self):
        x = self.inputs[0]
        return [C.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, x, device, outputs_to_retain):
        if isinstance(x, Value):
            return x, Value(x.data * x.data, x.mask)
        return x, [v * v for v in x]

    def backward(self, state, grad):
        if isinstance(state, Value):
            return Value(2 * state.data * grad.data, state.mask)
        return [2 * v * g for v, g in zip(state, grad, strict=True)]
