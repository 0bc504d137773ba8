"""Gradients against finite differences of plain NumPy, and root gradients in awkward layouts."""

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import assert_same, variable
from udfkit import Ragged, Value

F64 = np.float64
LENGTHS = [(3, 1, 4), (0, 2, 0, 3), (0,), (), (2, 2, 2), (1,)]


class Batched(C.UserFunction):
    """A function whose output has the dynamic axes of one of its inputs."""

    like, out_shape = 0, None

    def infer_outputs(self):
        x = self.inputs[self.like]
        return C.output_variable(self.out_shape or x.shape, x.dtype, self.axes(x), name="out")

    def axes(self, x):
        return x.dynamic_axes


def softmax(scores):
    if not scores.size:
        return scores
    e = np.exp(scores - scores.max())
    return e / e.sum()


class AttentionPooling(Batched):
    """Weights from a query without axes; an empty sequence gives zeros."""

    def axes(self, x):
        return x.dynamic_axes[:1]

    def forward(self, args, device, outputs_to_retain):
        frames, query = args
        weights = [softmax(f @ query) for f in frames]
        pooled = [w @ f for w, f in zip(weights, frames, strict=True)]
        return (frames, query, weights, pooled), pooled

    def backward(self, state, grad, variables):
        frames, query, weights, pooled = state
        d_frames, d_query = [], np.zeros_like(query)
        for f, w, p, g in zip(frames, weights, pooled, grad, strict=True):
            d_score = w * (f @ g - p @ g)
            d_frames.append(np.outer(w, g) + np.outer(d_score, query))
            d_query += d_score @ f
        results = dict(zip(self.inputs, (d_frames, d_query), strict=True))
        variables.update({x: results[x] for x in variables})


class RunningProduct(Batched):
    """y[t] = x[t] * y[t-1] + x[t]: every step feels all steps before it."""

    def forward(self, x, device, outputs_to_retain):
        results = []
        for v in x:
            y = np.zeros_like(v)
            for t in range(len(v)):
                y[t] = v[t] * (y[t - 1] if t else 0) + v[t]
            results.append(y)
        return (x, results), results

    def backward(self, state, grad):
        gradients = []
        for v, y, g in zip(*state, grad, strict=True):
            d, carry = np.zeros_like(v), 0
            for t in reversed(range(len(v))):
                carry = g[t] + carry
                d[t] = carry * ((y[t - 1] if t else 0) + 1)
                carry = carry * v[t]
            gradients.append(d)
        return gradients


class Crossed(C.UserFunction):
    """Two inputs, two outputs, on the flat values: o0 = a * b, o1 = a * a + sin(b)."""

    layout = "ragged"

    def infer_outputs(self):
        x = self.inputs[0]
        return [C.output_variable(x.shape, x.dtype, x.dynamic_axes, name=n) for n in ("o0", "o1")]

    def forward(self, args, outputs, device, outputs_to_retain):
        a, b = args
        outputs[self.outputs[0]] = a.with_values(a.values * b.values)
        outputs[self.outputs[1]] = a.with_values(a.values**2 + np.sin(b.values))
        return a, b

    def backward(self, state, grads, variables):
        a, b = state
        g0, g1 = (grads[o].values for o in self.outputs)
        if self.inputs[0] in variables:
            variables[self.inputs[0]] = a.with_values(g0 * b.values + 2 * g1 * a.values)
        if self.inputs[1] in variables:
            variables[self.inputs[1]] = b.with_values(g0 * a.values + g1 * np.cos(b.values))


class Rotated(Batched):
    """A batch of matrices: out = x transposed, each column times its index."""

    def forward(self, x, device, outputs_to_retain):
        return None, np.swapaxes(x, 1, 2) ** 3 if x.size else x.swapaxes(1, 2)

    def backward(self, state, grad):
        return np.swapaxes(grad, 1, 2)


def random_sequences(rng, lengths, shape):
    return [rng.normal(size=(n, *shape)) for n in lengths]


def numeric(loss, array, eps=1e-6):
    """Central differences of `loss()` for every number in `array`."""
    result = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + eps
        above = loss()
        array[index] = kept - eps
        below = loss()
        array[index] = kept
        result[index] = (above - below) / (2 * eps)
    return result


def dot(out, root):
    return sum(float((o * r).sum()) for o, r in zip(out, root, strict=True))


def assert_close(got, wanted):
    got = [got] if isinstance(got, np.ndarray) else got
    wanted = [wanted] if isinstance(wanted, np.ndarray) else wanted
    assert [g.shape for g in got] == [w.shape for w in wanted]
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_attention_pooling(lengths):
    rng = np.random.default_rng(1)
    x, query = (
        variable("sequence", "frames", shape=(3,), dtype=F64),
        C.Parameter(init=rng.normal(size=3), name="query"),
    )
    fn = AttentionPooling([x, query])
    data, q = random_sequences(rng, lengths, (3,)), rng.normal(size=3)
    query.value = q
    root = rng.normal(size=(len(lengths), 3))

    def loss():
        return dot([softmax(f @ q) @ f for f in data], root)

    got = fn.grad({x: data}, root_gradients=root)
    assert_close(got[x], [numeric(loss, f) for f in data])
    assert_close(got[query], numeric(loss, q))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_recurrence(lengths):
    rng = np.random.default_rng(2)
    data, root = (random_sequences(rng, lengths, (2,)) for _ in range(2))
    fn = RunningProduct([variable("sequence", "x", shape=(2,), dtype=F64)])

    def loss():
        total = 0.0
        for v, r in zip(data, root, strict=True):
            y = np.zeros(2)
            for t in range(len(v)):
                y = v[t] * y + v[t]
                total += float(y @ r[t])
        return total

    assert_close(fn.grad(data, root_gradients=root), [numeric(loss, v) for v in data])


@pytest.mark.parametrize("given", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_two_inputs_and_two_outputs(lengths, given):
    rng = np.random.default_rng(3)
    a, b, *roots = (random_sequences(rng, lengths, (2, 2)) for _ in range(4))
    inputs = [variable("sequence", n, shape=(2, 2), dtype=F64) for n in "ab"]
    fn = Crossed(inputs)

    def loss():
        outs = [
            [x * y for x, y in zip(a, b, strict=True)],
            [x * x + np.sin(y) for x, y in zip(a, b, strict=True)],
        ]
        return sum(dot(outs[j], roots[j]) for j in given)

    got = fn.grad({"a": a, "b": b}, root_gradients={fn.outputs[j]: roots[j] for j in given})
    assert_close(got[inputs[0]], [numeric(loss, v) for v in a])
    assert_close(got[inputs[1]], [numeric(loss, v) for v in b])


def test_the_oracle_finds_a_wrong_gradient():
    rng = np.random.default_rng(4)
    data = rng.normal(size=(3, 2, 2))
    fn = Rotated([variable("batch", "x", shape=(2, 2), dtype=F64)])
    root = rng.normal(size=(3, 2, 2))

    def loss():
        return float((np.swapaxes(data, 1, 2) ** 3 * root).sum())

    with pytest.raises(AssertionError):
        assert_close(fn.grad(data, root_gradients=root), numeric(loss, data))


def awkward(root):
    """The numbers of `root` (C-contiguous) in layouts that break careless readers."""
    rows = np.full((2 * len(root) + 3, *root.shape[1:]), np.nan, root.dtype)
    rows[1 : 1 + 2 * len(root) : 2] = root
    columns = np.full((*root.shape[:-1], 2 * root.shape[-1] + 1), np.nan, root.dtype)
    columns[..., : root.shape[-1]] = root
    wide = np.full((*root.shape[:-1], 2 * root.shape[-1]), np.nan, root.dtype)
    wide[..., ::2] = root
    everywhere = (slice(None, None, -1),) * root.ndim
    read_only = root.copy()
    read_only.flags.writeable = False
    return {
        "sliced rows": rows[1 : 1 + 2 * len(root) : 2],
        "sliced columns": columns[..., : root.shape[-1]],
        "strided columns": wide[..., ::2],
        "fortran": np.asfortranarray(root),
        "transposed": np.ascontiguousarray(root.T).T,
        "negative rows": root[::-1].copy()[::-1],
        "negative everywhere": root[everywhere].copy()[everywhere],
        "read-only": read_only,
        "byte-swapped": root.astype(root.dtype.newbyteorder()),
        "misaligned": np.frombuffer(b"\0" + root.tobytes(), np.uint8)[1:]
        .view(root.dtype)
        .reshape(root.shape),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", list(awkward(np.zeros((1, 1), F64))))
def test_root_gradients_in_awkward_layouts_are_read_bit_for_bit(layout, dtype):
    rng = np.random.default_rng(5)
    lengths = (3, 0, 1, 4)
    data = [v.astype(dtype) for v in random_sequences(rng, lengths, (3,))]
    root = [v.astype(dtype) for v in random_sequences(rng, lengths, (3,))]
    before = [v.tobytes() for v in root]
    fn = RunningProduct([variable("sequence", "x", shape=(3,), dtype=dtype)])
    wanted = fn.grad(data, root_gradients=root)
    assert_same(fn.grad(data, root_gradients=[awkward(v)[layout] for v in root]), wanted)
    flat = awkward(np.concatenate(root))[layout]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    assert_same(fn.grad(data, root_gradients=Ragged(flat, offsets)), wanted)
    assert [v.tobytes() for v in root] == before

    equal = [v.astype(dtype) for v in random_sequences(rng, (4, 4), (3,))]
    wanted = fn.grad(data[3:] * 2, root_gradients=equal)
    rectangle = awkward(np.stack(equal))[layout]
    assert_same(fn.grad(data[3:] * 2, root_gradients=rectangle), wanted)

    pool = AttentionPooling([fn.inputs[0], C.Constant(np.ones(3, dtype), name="q")])
    roots = rng.normal(size=(4, 3)).astype(dtype)
    wanted = pool.grad({"x": data}, root_gradients=roots)
    assert_same(pool.grad({"x": data}, root_gradients=awkward(roots)[layout]), wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_root_gradients_with_stride_zero(dtype):
    rng = np.random.default_rng(6)
    lengths = (3, 0, 1, 4)
    data = [v.astype(dtype) for v in random_sequences(rng, lengths, (3,))]
    fn = RunningProduct([variable("sequence", "x", shape=(3,), dtype=dtype)])
    for small in (dtype(1), rng.normal(size=3).astype(dtype)):
        full = [np.broadcast_to(small, v.shape) for v in data]
        assert full[0].strides[0] == 0
        wanted = fn.grad(data, root_gradients=[v.copy() for v in full])
        assert_same(fn.grad(data, root_gradients=full), wanted)
        flat = np.broadcast_to(small, (8, 3))
        assert_same(fn.grad(data, root_gradients=Ragged(flat, [0, 3, 3, 4, 8])), wanted)
        same = fn.grad([data[3]] * 2, root_gradients=np.broadcast_to(small, (2, 4, 3)))
        assert_same(same, [wanted[3]] * 2)


@pytest.mark.parametrize("as_numpy", [True, False])
def test_what_lies_in_the_padding_never_matters(as_numpy):
    class Square(Batched):
        def forward(self, x, device, outputs_to_retain):
            if as_numpy:
                return x, [v * v for v in x]
            return x, Value(x.data * x.data, x.mask)

        def backward(self, state, grad):
            if as_numpy:
                return [2 * v * g for v, g in zip(state, grad, strict=True)]
            return Value(2 * state.data * grad.data, state.mask)

    x = variable("sequence", "x", shape=(2,), dtype=F64)
    fn = Square([x], as_numpy=as_numpy)
    mask = np.array([[2, 1, 0], [0, 0, 0], [0, 2, 1], [2, 0, 1]], np.int8)
    results = []
    for poison in (0.0, np.nan, np.inf):
        data = np.arange(24, dtype=F64).reshape(4, 3, 2)
        root = np.arange(24, dtype=F64)[::-1].reshape(4, 3, 2).copy()
        data[mask == 0] = root[mask == 0] = poison
        state, outputs = fn._forward([Value(data, mask)], dict.fromkeys(fn.outputs))
        variables = {x: None}
        fn._backward(state, {fn.outputs[0]: Value(root, mask)}, variables)
        results.append([outputs[fn.outputs[0]].as_sequences(), variables[x].as_sequences()])
    for out, gradient in results[1:]:
        assert_same(out, results[0][0])
        assert_same(gradient, results[0][1])
    assert [len(v) for v in results[0][0]] == [2, 0, 2, 2]
