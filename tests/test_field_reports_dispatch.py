"""Faults that users of other bridges reported, where they touch calling user code or gradients.

Each test is named after its fault. `ELSEWHERE` holds the reports of this kind that have no test
here, each with the reason.
"""

import copy
import gc
import os
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest

import udfkit as C
from dispatch_helpers import (
    Linear,
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
    126: "bfloat16 comes only from a library that supplies it; test_variable.py",
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


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_96_and_110_each_new_length_or_batch_size_compiles_again():
    """Compile after compile, because lengths or the number of sequences were in the type."""
    from udfkit.kernels.jit import compiled_signatures

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
    used = {name: count for name, count in compiled_signatures().items() if count}
    assert used
    for _ in range(100):
        sizes = tuple(rng.integers(0, 6, rng.integers(1, 9)))
        call(sizes)
    after = compiled_signatures()
    assert {name: after[name] for name in used} == used


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


def test_112_out_of_bounds_is_silent():
    """Offsets past the end read foreign memory."""
    with pytest.raises(ValueError, match="9"):
        linear().eval(Ragged(np.zeros((4, 2), F32), [0, 9]))
    with pytest.raises(ValueError, match="9"):
        linear().grad(batch("sequence"), root_gradients=Ragged(np.zeros((4, 2), F32), [0, 9]))
