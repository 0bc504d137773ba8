"""Faults that users of other bridges reported, where they touch calling user code or gradients.

Each test is named after its fault. `ELSEWHERE` holds the reports of this kind that have no test
here, each with the reason.
"""

import copy
import gc
import itertools
import os
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    Linear,
    Remembering,
    assert_same,
    backward,
    batch,
    form,
    forward,
    linear,
    ones,
    sequences,
    variable,
)
from udfkit import Ragged, Value

F32 = np.float32

# number of the report: why it has no test in this file
ELSEWHERE = {
    14: "the half about saving is test_serialization.py; the half about pickling is below",
    16: "device arrays need the CUDA kernels, which are not part of this package yet",
    18: "a cost, not a result: the benchmarks measure one call of a small batch",
    34: "a gradient checker for users is udfkit.testing; finite differences: test_gradients.py",
    48: "layouts are compared by content: Ragged.equals and Value.equals, test_value.py",
    51: "pad and unpad as functions of their own belong to udfkit.padding",
    57: "there is no max_length: padding never truncates",
    69: "a failure report of a gradient checker belongs to udfkit.testing",
    74: "a cost, not a result: the benchmarks measure it",
    82: "the whole suite runs once with NUMBA_DISABLE_JIT=1",
    83: "segment sums and maxima belong to udfkit.functions; a sum in user code is below",
    97: "the bridge to JAX is an adapter",
    109: "a cost, not a result; lists never become numba lists",
    113: "a kernel writes each slot once; adding up is left to user code",
    122: "launches on a GPU only",
    126: "bfloat16 comes only from a library that supplies it; test_casting.py",
}


def two_inputs(needs=(True, True), **kwargs):
    return linear(("sequence", "sequence"), needs=needs, **kwargs)


def test_01_calling_convention_of_backward_changes_with_what_needs_a_gradient():
    """Backward got an array or a dict of them, by how many gradients were asked for this time."""
    seen = []
    for needs in ((True, True), (True, False), (False, True)):
        fn = two_inputs(needs)
        data = dict.fromkeys(fn.inputs, batch("sequence", (3, 1)))
        fn.grad(data)
        fn.grad(data, wrt=fn.inputs[needs.index(True)])
        seen += [[form(a) for a in args[1:]] for phase, args in fn.log if phase == "backward"]
    assert seen == [["list", "dict"]] * 6


@pytest.mark.parametrize("lengths", [(3, 3), (3, 2), (3,), (1, 1)])
def test_02_input_type_depends_on_the_data(lengths):
    """Forward got a list when lengths differed and one array when they happened to agree."""
    fn = linear()
    fn.grad(batch("sequence", lengths))
    for _, args in fn.log:
        assert next(type(a) for a in args if form(a) in ("list", "array")) is list


def test_04_a_user_function_cannot_drop_the_sequence_axis():
    """A sum over each sequence failed, because an output row was assumed for every step."""

    class Sums(C.UserFunction):
        def infer_outputs(self):
            return C.output_variable(3, F32, self.inputs[0].dynamic_axes[:1])

        def forward(self, x, device, outputs_to_retain):
            return [len(v) for v in x], np.stack([v.sum(0) for v in x])

        def backward(self, state, grad):
            return [np.broadcast_to(g, (n, 3)) for n, g in zip(state, grad, strict=True)]

    fn = Sums([variable("sequence", "x", shape=(3,))])
    data = sequences((4, 2), (3,))
    assert fn.eval(data).shape == (2, 3)
    root = batch("batch", (4, 2), (3,))
    assert_same(fn.grad(data, root_gradients=root), [root[[0] * 4], root[[1] * 2]])


def test_06_memory_grows_every_minibatch_when_one_input_is_sparse():
    """Each call left a converter and its state behind."""
    fn = Linear([C.sequence.input_variable(10, F32, is_sparse=True, name="labels")])
    hot = Value.one_hot([[1, 2, 3, 4, 5], [6, 7]], 10)

    def growth(keep):
        """Bytes that 1,000 calls leave behind, with what user code kept or without."""
        tracemalloc.start()
        try:
            for _ in range(1000):
                forward(fn, [hot])
                if not keep:
                    fn.log.clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    growth(keep=False)
    assert growth(keep=False) < 100_000
    assert growth(keep=True) > 200_000


@pytest.mark.parametrize("as_numpy", [True, False])
def test_08_continuation_flags_are_lost_at_the_output(as_numpy):
    """Outputs were packed anew, and every sequence became a new one."""
    fn = linear(as_numpy=as_numpy)
    value = Value.create(fn.inputs[0], batch("sequence", (3, 2)), [True, False])
    state, results = forward(fn, [value])
    out = results[fn.outputs[0]]
    assert list(out.starts) == [True, False]
    assert out.mask.tolist() == [[2, 1, 1], [1, 1, 0]]
    assert list(backward(fn, state, {fn.outputs[0]: out})[fn.inputs[0]].starts) == [True, False]


def test_10_a_missing_gradient_is_a_hard_error_or_a_silent_none():
    """'Zero', 'has none' and 'forgotten' were all None."""
    for needs, fails in (((True, True), True), ((True, False), False)):
        fn = two_inputs(needs)
        first = fn.inputs[0]
        fn.backward = lambda state, grad, variables, first=first: variables.update({first: grad})
        data = dict.fromkeys(fn.inputs, batch("sequence"))
        if fails:
            with pytest.raises(ValueError, match=r"gradients were not provided.*x1"):
                fn.grad(data)
        else:
            assert_same(fn.grad(data), ones(batch("sequence")))


class Kept(Linear):
    """A module-level class, so that it pickles."""

    scale = 2.0


def test_14_saving_fails_late():
    """A function that could not be saved said so after hours of training."""
    fn = Kept([variable("sequence", "x")])
    fn.scale = 5.0
    again = pickle.loads(pickle.dumps(fn))
    assert again.scale == 5.0
    assert_same(again.eval(batch("sequence")), fn.eval(batch("sequence")))
    fn.hook = lambda: None
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(fn)


def test_15_clone_raises_not_implemented():
    """Every author had to write clone, and found out when a graph was cloned."""
    fn = Linear([variable("sequence", "x")])
    fn.k, fn.cache = 3, {"list": [1]}
    for again in (fn.clone([variable("sequence", "y")]), copy.deepcopy(fn), copy.copy(fn)):
        assert again.k == 3
    again = copy.deepcopy(fn)
    again.cache["list"].append(2)
    assert fn.cache == {"list": [1]}


def test_17_which_device_does_my_function_run_on():
    """Nothing told the function where it ran."""
    fn = linear()
    fn.grad(batch("sequence"))
    assert fn.log[0][1][1] == C.cpu()
    fn.eval(batch("sequence"), device=C.cpu())
    assert fn.log[-1][1][1] == C.cpu()
    with pytest.raises((TypeError, ValueError), match=r"cpu|DeviceDescriptor"):
        fn.eval(batch("sequence"), device="cpu")


def test_22_different_minibatch_layouts_without_saying_where():
    """One frame of difference in one utterance, and an error that did not name the utterance."""
    fn = two_inputs()
    fn.forward = lambda args, device, retain: (None, args[0])
    fn.backward = lambda state, grad, variables: variables.update(dict.fromkeys(variables, grad))
    data = {"x0": batch("sequence", (3, 5, 2)), "x1": batch("sequence", (3, 4, 2))}
    with pytest.raises(ValueError, match="sequence 1") as info:
        fn.grad(data)
    for word in ("x1", "4", "5"):
        assert word in str(info.value)


def test_24_a_dtype_warning_on_each_call_for_arrays_of_the_library():
    """The warning came every step, also for arrays that the user had not made."""
    fn = two_inputs()
    a, b = batch("sequence"), batch("sequence", dtype=np.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            fn.grad({"x0": a, "x1": b})
    assert len(caught) == 1
    assert caught[0].category is C.CastWarning
    for word in ("x1", "float64", "float32"):
        assert word in str(caught[0].message)


def test_30_dense_input_treated_as_sparse_because_it_came_from_one_hot():
    """The storage followed the value, not the declared input."""
    fn = Linear([variable("sequence", "x", shape=(4,))])
    hot = Value.one_hot([[1, 3], [0]], 4)
    eye = np.eye(4, dtype=F32)
    assert_same(fn.eval(hot), [2 * eye[[1, 3]], 2 * eye[[0]]])
    assert all(type(v) is np.ndarray for v in fn.log[0][1][0])
    with pytest.raises(ValueError, match="7"):
        fn.eval(Value.one_hot([[1, 3], [0]], 7))


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


def test_84_a_python_function_cannot_return_ragged():
    """Results became one dense tensor; a filter or an expansion was impossible."""

    class Positive(C.UserFunction):
        def infer_outputs(self):
            return C.output_variable((), F32, self.inputs[0].dynamic_axes)

        def forward(self, x, device, outputs_to_retain):
            return None, [v[v > 0] for v in x]

    fn = Positive([variable("sequence", "x", shape=())])
    assert_same(fn.eval([F32([-1, -1, 3]), F32([-2, -2])]), [F32([3]), F32([])])


def test_85_shape_and_dtype_are_unknown_before_data_comes():
    """A bridge has to know the result from the declared inputs alone."""
    fn = linear(("sequence",), n_out=2)
    for output in fn.outputs:
        assert (output.shape, output.dtype, output.kind) == ((2,), np.float32, "sequence")
        assert output.needs_gradient
    assert fn.log == []


def count_of_compilations():
    """How many specializations all kernels hold together."""
    from numba.core.dispatcher import Dispatcher

    from udfkit.kernels import cpu, pyobjects

    kernels = [k for m in (cpu, pyobjects) for k in vars(m).values() if isinstance(k, Dispatcher)]
    return len(kernels), sum(len(k.signatures) for k in kernels)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_96_and_110_each_new_length_or_batch_size_compiles_again():
    """Compile after compile, because lengths or the number of sequences were in the type."""
    fn = linear(("sequence", "batch"))
    rng = np.random.default_rng(0)

    def call(lengths):
        fn.grad({"x0": batch("sequence", lengths), "x1": batch("batch", lengths)})

    fn.forward = lambda args, device, retain: (None, args[0])
    fn.backward = lambda state, grad, variables: variables.update(
        {x: ones(batch(x.kind, sizes)) for x in variables}
    )
    for sizes in ((3, 1), (2, 2), (0, 0), ()):
        call(sizes)
    kernels, before = count_of_compilations()
    assert before > 0
    for _ in range(100):
        sizes = tuple(rng.integers(0, 6, rng.integers(1, 9)))
        call(sizes)
    assert count_of_compilations() == (kernels, before)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint32", "int64", "uint64"])
def test_107_unsigned_and_signed_indices_mixed_give_float_indices(dtype):
    """The index of a loop and an offset of another dtype made a float64."""
    fn = linear()
    data = batch("sequence")
    ragged = Ragged(np.concatenate(data), np.array([0, 3, 4, 6], dtype))
    assert_same(fn.eval(ragged), [2 * v for v in data])
    assert_same(fn.grad(ragged, root_gradients=ragged), [2 * v for v in data])


def test_108_read_only_arrays_do_not_match_a_compiled_signature():
    """Arrays from frombuffer, memory maps and broadcasts had no matching definition."""
    fn = linear()
    data = [np.frombuffer(v.tobytes(), F32).reshape(v.shape) for v in batch("sequence")]
    assert not data[0].flags.writeable
    assert_same(fn.eval(data), [2 * v for v in data])
    assert_same(fn.grad(data, root_gradients=data), [2 * v for v in data])
    returned = linear()
    returned.forward = lambda x, device, retain: (None, data)
    assert_same(returned.eval(batch("sequence")), data)


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


def test_112_out_of_bounds_is_silent():
    """Offsets past the end read foreign memory."""
    with pytest.raises(ValueError, match="9"):
        linear().eval(Ragged(np.zeros((4, 2), F32), [0, 9]))
    with pytest.raises(ValueError, match="9"):
        linear().grad(batch("sequence"), root_gradients=Ragged(np.zeros((4, 2), F32), [0, 9]))


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
