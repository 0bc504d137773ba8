"""Faults that users of other bridges reported, where they touch gradients or the bits of a batch.

Each test is named after its fault; the rest, and what has no test, is in
test_field_reports_dispatch.py.
"""

import gc
import itertools
import tracemalloc

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    Linear,
    Remembering,
    assert_same,
    backward,
    batch,
    forward,
    linear,
    ones,
    sequences,
    variable,
)
from udfkit import Ragged, Value

F32 = np.float32


def test_62_gradients_arrive_with_stride_zero_after_a_sum():
    """Kernels took the rows for contiguous and read past the end."""
    fn = linear()
    data = batch("sequence")
    flat = np.broadcast_to(F32(1), (6, 2))
    assert flat.strides == (0, 0)
    assert_same(fn.grad(data, root_gradients=Ragged(flat, [0, 3, 4, 6])), ones(data, 2))
    for _, args in fn.log[1::2]:
        assert all(g.flags.c_contiguous and g.flags.writeable for g in args[1])


def test_63_gradient_after_cat_has_the_wrong_row_stride():
    """The first row was right and the second wrong."""
    big = np.arange(24, dtype=F32).reshape(6, 4)
    fn = linear()
    got = fn.grad(batch("sequence"), root_gradients=Ragged(big[:, :2], [0, 3, 4, 6]))
    assert_same(got, np.split(2 * big[:, :2], [3, 4]))


def test_65_state_that_is_never_used_leaks():
    """Memory climbed by one batch for each forward without a backward."""
    fn = Remembering(variable("sequence", "x"))
    value = Value.create(fn.inputs[0], sequences((2000, 1000)))

    def growth(keep):
        """Bytes after 50 forwards; the garbage collector, which would hide cycles, is off."""
        kept = []
        forward(fn, [value])
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(50):
                state, results = forward(fn, [value])
                if keep:
                    kept.append((state, results))
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            gc.enable()

    one = value.data.nbytes
    assert growth(keep=False) < 5 * one
    assert growth(keep=True) > 40 * one


def test_67_none_arrives_where_a_root_gradient_was_not_used():
    """Code that multiplied by it failed, only in models that used one output of two."""
    fn = linear(n_out=2)
    data = batch("sequence")
    fn.grad(data, root_gradients={fn.outputs[0]: ones(data)})
    roots = fn.log[-1][1][1]
    assert list(roots) == list(fn.outputs)
    assert_same(roots[fn.outputs[1]], ones(data, 0))


def test_71_one_fully_masked_row_poisons_every_gradient():
    """A softmax over nothing is 0/0, and 0 * NaN reached the shared weights."""

    class Softmax(C.UserFunction):
        def infer_outputs(self):
            return C.output_variable((), np.float64, self.inputs[0].dynamic_axes)

        def forward(self, x, device, outputs_to_retain):
            y = [np.exp(v) / np.exp(v).sum() for v in x]
            return y, y

        def backward(self, state, grad):
            return [y * (g - y @ g) for y, g in zip(state, grad, strict=True)]

    fn = Softmax([variable("sequence", "x", shape=(), dtype=np.float64)])
    with np.errstate(all="raise"):
        for lengths in ((3, 0), (0, 0), (0, 2, 0)):
            data = sequences(lengths, (), np.float64)
            for v in [*fn.eval(data), *fn.grad(data)]:
                assert np.isfinite(v).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_72_padding_filled_with_nan_reaches_the_gradient(poison):
    """Masks multiplied; they have to select."""
    fn = linear()
    mask = np.array([[2, 1, 1], [2, 0, 0]], np.int8)
    data = np.full((2, 3, 2), poison, F32)
    data[mask > 0] = 1
    state, results = forward(fn, [Value(data, mask)])
    got = backward(fn, state, {fn.outputs[0]: Value(data, mask)})[fn.inputs[0]]
    for value in (results[fn.outputs[0]], got):
        assert_same(value, [np.full((3, 2), 2, F32), np.full((1, 2), 2, F32)])
        assert (value.data[value.mask == 0] == 0).all()


def test_111_fast_math_makes_nan_disappear():
    """isnan was False in compiled code, and payloads were lost."""
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000], np.uint32)
    data = [bits.view(F32).reshape(2, 2)]

    class Same(C.UserFunction):
        def infer_outputs(self):
            return C.output_variable(2, F32, self.inputs[0].dynamic_axes)

        def forward(self, x, device, outputs_to_retain):
            return None, x

        def backward(self, state, grad):
            return grad

    fn = Same([variable("sequence", "x")])
    for got in (fn.eval(data), fn.grad([ones(data[0])], root_gradients=data)):
        assert got[0].view(np.uint32).ravel().tolist() == bits.tolist()


def test_132_half_precision_is_uneven():
    """Some paths had no float16, others lost its bits."""
    fn = Linear([variable("sequence", "x", shape=(), dtype=np.float16)])
    fn.forward = lambda x, device, retain: (None, x)
    data = [np.array([1.0, np.nan, -0.0], np.float16), np.array([], np.float16)]
    assert_same(fn.eval(data), data)
    assert_same(fn.grad(data), [np.full(3, 2, np.float16), np.array([], np.float16)])


@pytest.mark.parametrize("width", [1, 31, 32, 33, 256])
def test_136_a_zero_length_fails_in_backward_only(width):
    """Forward was guarded, one of the backward kernels was not."""
    for lengths in itertools.product((0, 3), (3, 0), (2,), (0, 1)):
        fn = Linear([variable("sequence", "x", shape=(width,))])
        data = sequences(lengths, (width,))
        assert_same(fn.grad(data, root_gradients=data), [2 * v for v in data])


def test_139_a_change_in_one_sequence_changes_another():
    """Sequences that share a row or a batch have to stay apart."""
    fn = linear()
    value = np.arange(12, dtype=F32).reshape(1, 6, 2)
    mask = np.array([[2, 1, 1, 1, 2, 1]], np.int8)
    changed = value.copy()
    changed[0, :4] = 99
    seen = []
    for data in (value, changed):
        _, results = forward(fn, [Value(data, mask)])
        seen.append(results[fn.outputs[0]].as_sequences())
    assert [len(v) for v in seen[0]] == [4, 2]
    assert seen[0][1].tobytes() == seen[1][1].tobytes()
    assert seen[0][0].tobytes() != seen[1][0].tobytes()
