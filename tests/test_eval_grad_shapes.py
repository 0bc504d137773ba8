"""`fn.eval` and `fn.grad` where kind, lengths or shape of a batch change, or nothing is in it."""

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    Linear,
    assert_same,
    backward,
    batch,
    forward,
    ones,
    sequences,
    variable,
)
from udfkit import FreeDimension, Value

F32 = np.float32
EDGES = [(), (0,), (0, 0), (0, 3), (3, 0), (2, 0, 1), (1,), (1, 1), (3, 1, 2), (2, 2)]


class Total(C.UserFunction):
    """The sum over each sequence: a sequence comes in, one sample goes out."""

    def infer_outputs(self):
        x = self.inputs[0]
        return C.output_variable(x.shape, x.dtype, x.dynamic_axes[:1], name="total")

    def forward(self, x, device, outputs_to_retain):
        return [len(v) for v in x], [v.sum(0) for v in x]

    def backward(self, state, grad):
        return [np.repeat(g[None], n, 0) for n, g in zip(state, grad, strict=True)]


@pytest.mark.parametrize("lengths", EDGES)
def test_sequence_in_batch_out(lengths):
    fn = Total([variable("sequence", "x")])
    data = sequences(lengths)
    out = fn.eval(data)
    assert isinstance(out, np.ndarray)
    assert_same(out, np.array([v.sum(0) for v in data], F32).reshape(len(lengths), 2))
    root = batch("batch", lengths, offset=5)
    assert_same(
        fn.grad(data, root_gradients=root),
        [np.repeat(g[None], n, 0) for n, g in zip(lengths, root, strict=True)],
    )
    assert_same(fn.grad(data), ones(data))


def test_batch_output_forms():
    fn = Total([variable("sequence", "x")])
    data = sequences((2, 1))
    wanted = np.array([v.sum(0) for v in data])
    for result in (wanted, list(wanted), [v[None] for v in wanted], wanted.tolist()):
        fn.forward = lambda x, device, retain, result=result: (None, result)
        assert_same(fn.eval(data), wanted)


class Repeat(C.UserFunction):
    """A batch comes in, one sequence of `times` equal samples goes out."""

    times = (2, 0, 1)

    def infer_outputs(self):
        axes = [C.Axis.default_batch_axis(), C.Axis.default_dynamic_axis()]
        return C.output_variable(self.inputs[0].shape, F32, axes)

    def forward(self, x, device, outputs_to_retain):
        return None, [np.repeat(v[None], n, 0) for v, n in zip(x, self.times, strict=True)]

    def backward(self, state, grad):
        return np.stack([g.sum(0) for g in grad])


def test_batch_in_sequence_out():
    fn = Repeat([variable("batch", "x")])
    data = batch("batch")
    assert_same(fn.eval(data), [data[[0, 0]], data[:0], data[2:]])
    assert_same(fn.grad(data), np.array([[2, 2], [0, 0], [1, 1]], F32))


class Keep(C.UserFunction):
    """Only the steps that are not negative: an output with lengths of its own."""

    def infer_outputs(self):
        x = self.inputs[0]
        return C.output_variable(x.shape, x.dtype, x.dynamic_axes, name="kept")

    def forward(self, x, device, outputs_to_retain):
        keep = [v >= 0 for v in x]
        return keep, [v[k] for v, k in zip(x, keep, strict=True)]

    def backward(self, state, grad):
        result = []
        for keep, g in zip(state, grad, strict=True):
            result.append(np.zeros(len(keep), g.dtype))
            result[-1][keep] = g
        return result


def test_an_output_may_have_new_lengths():
    fn = Keep([variable("sequence", "x", shape=())])
    data = [F32([-1, 2, -3]), F32([-4, -5]), F32([6]), F32([])]
    assert_same(fn.eval(data), [F32([2]), F32([]), F32([6]), F32([])])
    assert_same(fn.grad(data), [F32([0, 1, 0]), F32([0, 0]), F32([1]), F32([])])
    root = [F32([10]), F32([]), F32([20]), F32([])]
    assert_same(
        fn.grad(data, root_gradients=root), [F32([0, 10, 0]), F32([0, 0]), F32([20]), F32([])]
    )
    with pytest.raises(ValueError, match="kept"):
        fn.grad(data, root_gradients=data)


def test_new_lengths_start_anew_and_gradients_keep_the_starts_of_their_input():
    fn = Keep([variable("sequence", "x", shape=())])
    x, output = fn.inputs[0], fn.outputs[0]
    data, starts = [F32([-1, 2]), F32([3])], [False, False]
    state, results = forward(fn, [Value.create(x, data, starts)])
    assert list(results[output].starts) == [True, True]
    got = backward(fn, state, {output: Value.create(output, [F32([1]), F32([1])])})[x]
    assert list(got.starts) == starts


@pytest.mark.parametrize("n_out", [1, 2])
@pytest.mark.parametrize("n_in", [1, 2])
@pytest.mark.parametrize("lengths", EDGES)
def test_empty_is_normal_for_sequences(lengths, n_in, n_out):
    fn = Linear([variable("sequence", f"x{i}") for i in range(n_in)], n_out)
    data = sequences(lengths)
    given = data if n_in == 1 else dict.fromkeys(fn.inputs, data)
    out = fn.eval(given)
    for result in [out] if n_out == 1 else out.values():
        assert [len(v) for v in result] == list(lengths)
        assert all(v.shape[1:] == (2,) and v.dtype == F32 for v in result)
    gradients = fn.grad(given)
    factor = 2 if n_out == 1 else 7
    assert_same(gradients if n_in == 1 else gradients[fn.inputs[0]], ones(data, factor))


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (2, 3)])
@pytest.mark.parametrize("kind", ["sequence", "batch", "none"])
def test_every_kind_and_sample_shape(kind, shape, count):
    fn = Linear([variable(kind, "x", shape=shape)])
    data = batch(kind, (2, 0, 1)[:count], shape)
    assert_same(fn.eval(data), 2 * data if kind != "sequence" else [2 * v for v in data])
    assert_same(fn.grad(data), ones(data, 2))


@pytest.mark.parametrize("given", [[], (), np.empty((0, 4, 2), F32)])
def test_an_empty_batch_in_any_form(given):
    fn = Linear([variable("sequence", "x")], n_out=2)
    assert [list(v) for v in fn.eval(given).values()] == [[], []]
    assert list(fn.grad(given)) == []
    other = Linear([variable("batch", "x")])
    assert_same(other.eval(given if len(np.shape(given)) == 1 else []), np.empty((0, 2), F32))


@pytest.mark.parametrize("kind", ["sequence", "batch", "none"])
def test_a_free_dimension_is_known_from_the_data(kind):
    fn = Linear([variable(kind, "x", shape=(FreeDimension, 2))])
    for size in (1, 5, 0):
        data = batch(kind, (2, 0, 1), (size, 2))
        assert_same(fn.eval(data), 2 * data if kind != "sequence" else [2 * v for v in data])
        assert_same(fn.grad(data), ones(data, 2))


def test_a_free_dimension_without_sequences_is_zero():
    fn = Linear([variable("sequence", "x", shape=(FreeDimension, 2))])
    assert list(fn.eval([])) == list(fn.grad([])) == []
    other = Linear([variable("batch", "x", shape=(FreeDimension, 2))])
    assert other.eval([]).shape == other.grad([]).shape == (0, 0, 2)


def test_a_free_dimension_is_one_size_a_batch():
    fn = Linear([variable("sequence", "x", shape=(FreeDimension,))])
    good, bad = np.ones((2, 3), F32), np.ones((2, 4), F32)
    with pytest.raises(ValueError, match=r"\(2, 4\)"):
        fn.eval([good, bad])
    fn.forward = lambda x, device, retain: (None, [good, bad])
    with pytest.raises(ValueError, match="sequence 1"):
        fn.eval([good, good])


def test_one_hot_and_csr_inputs_arrive_dense():
    fn = Total([C.sequence.input_variable(4, F32, is_sparse=True, name="x")])
    wanted = np.array([[0, 1, 0, 1], [1, 0, 0, 0]], F32)
    hot = Value.one_hot([[1, 3], [0]], 4)
    assert_same(fn.eval(hot), wanted)
    sparse = pytest.importorskip("scipy.sparse")
    rows = [
        sparse.csr_matrix(F32([[0, 1, 0, 0], [0, 0, 0, 1]])),
        sparse.csr_matrix(F32([[1, 0, 0, 0]])),
    ]
    assert_same(fn.eval(rows), wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtypes_stay(dtype):
    fn = Linear([variable("sequence", "x", dtype=np.dtype(dtype).type)])
    data = sequences((2, 0, 1), dtype=np.dtype(dtype).type)
    assert_same(fn.eval(data), [2 * v for v in data])
    assert_same(fn.grad(data), ones(data, 2))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint16", "uint64"])
def test_inputs_of_other_dtypes_beside_one_that_learns(dtype):
    class Pick(C.UserFunction):
        def infer_outputs(self):
            x = self.inputs[0]
            return C.output_variable(x.shape, x.dtype, x.dynamic_axes)

        def forward(self, args, device, outputs_to_retain):
            seen.extend(args[1])
            return args[1], args[0]

        def backward(self, state, grad, variables):
            variables[self.inputs[0]] = grad

    seen = []
    x, labels = variable("sequence", "x"), variable("sequence", "n", False, (), np.dtype(dtype))
    data = [np.array([1, 0, 1], dtype), np.array([], dtype)]
    gradient = Pick([x, labels]).grad({x: sequences((2, 1)), labels: data})
    assert_same(seen, data)
    assert_same(gradient, ones(sequences((2, 1))))
