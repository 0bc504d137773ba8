"""Sequence functions: kinds of arrays, scratch, options, lengths, empty batches, threads."""

from __future__ import annotations

import numpy as np
import pytest

import udfkit
from udfkit import per_sequence, per_step, scratch, sequence_function, shared
from udfkit.kernels import sequence_compiling, sequences


def variable(shape=(), dtype=np.float64, name="", needs_gradient=True, kind="sequence"):
    if kind == "batch":
        return udfkit.input_variable(shape, dtype, needs_gradient, name=name)
    return udfkit.sequence.input_variable(shape, dtype, needs_gradient, name=name)


def batch_of(rng, lengths, shape=()):
    return [rng.normal(size=(n, *shape)) for n in lengths]


def scale_body(x, weight, per_batch, y, total):
    for t in range(x.shape[0]):
        for k in range(x.shape[1]):
            y[t, k] = x[t, k] * weight[k] + per_batch[0]
            total[k] += y[t, k]


def scale_gradient(x, weight, grad_y, grad_total, grad_x, grad_weight, grad_per_batch):
    for t in range(x.shape[0]):
        for k in range(x.shape[1]):
            grad = grad_y[t, k] + grad_total[k]
            grad_x[t, k] = grad * weight[k]
            grad_weight[k] += grad * x[t, k]
            grad_per_batch[0] += grad


def make_scale():
    made = sequence_function(
        takes={"x": per_step("T", "K"), "weight": shared("K"), "per_batch": per_sequence()},
        gives={"y": per_step("T", "K"), "total": per_sequence("K")},
    )(scale_body)
    made.gradient(scale_gradient)
    return made


def test_every_kind_of_input_and_output_with_gradients():
    rng = np.random.default_rng(0)
    x, weight = variable(2, name="x"), udfkit.Parameter(init=np.array([2.0, -1.0]), name="w")
    per_batch = variable(name="b", kind="batch")
    fn = make_scale()([x, weight, per_batch])
    batch = batch_of(rng, [3, 0, 5], (2,))
    b = rng.normal(size=3)
    y, total = fn.outputs
    roots = {y: batch_of(rng, [3, 0, 5], (2,)), total: rng.normal(size=(3, 2))}
    gradients, outputs = fn.grad({"x": batch, "b": b}, None, roots, [y, total])
    for k, sequence in enumerate(batch):
        want = sequence * weight.value + b[k]
        np.testing.assert_allclose(outputs[y][k], want, rtol=1e-14)
        np.testing.assert_allclose(outputs[total][k], want.sum(axis=0), rtol=1e-12, atol=1e-13)
        grad = roots[y][k] + roots[total][k]
        np.testing.assert_allclose(gradients[x][k], grad * weight.value, rtol=1e-14)
        np.testing.assert_allclose(gradients[per_batch][k], grad.sum(), rtol=1e-12, atol=1e-13)
    want = sum(((roots[y][k] + roots[total][k]) * batch[k]).sum(axis=0) for k in range(len(batch)))
    np.testing.assert_allclose(gradients[weight], want, rtol=1e-12)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 3], [4, 4, 4], [1]])
def test_empty_and_equal_batches(lengths):
    rng = np.random.default_rng(1)
    x, weight = variable(2, name="x"), udfkit.Parameter(init=np.array([2.0, -1.0]), name="w")
    b = variable(name="b", kind="batch")
    fn = make_scale()([x, weight, b])
    batch = batch_of(rng, lengths, (2,))
    arguments = {"x": batch, "b": np.ones(len(lengths))}
    y = fn.eval(arguments)[fn.outputs[0]]
    assert [len(s) for s in y] == lengths
    gradients = fn.grad(arguments)
    assert [len(s) for s in gradients[x]] == lengths
    assert gradients[weight].shape == (2,)
    assert gradients[b].shape == (len(lengths),)


def test_values_starts_and_padded_masks_go_through():
    x = variable(dtype=np.float32, name="x")

    @sequence_function(takes={"x": per_step("T")}, gives={"y": per_step("T")})
    def double(x, y):
        for t in range(x.shape[0]):
            y[t] = 2 * x[t]

    fn = double([x])
    value = udfkit.Value(np.arange(6, dtype=np.float32).reshape(2, 3), mask=[[0, 2, 1], [2, 0, 2]])
    _, outputs = fn._forward([value])
    result = outputs[fn.output]
    assert result.mask.tolist() == value.mask.tolist()
    assert result.data.tolist() == [[0, 2, 4], [6, 0, 10]]
    starts = [True, False]
    value = udfkit.sanitize_batch(x, [[1, 2], [3]], starts)
    assert fn._forward([value])[1][fn.output].starts.tolist() == starts


def test_saved_scratch_belongs_to_each_sequence_and_work_scratch_is_garbage(monkeypatch):
    @sequence_function(
        takes={"x": per_step("T")},
        gives={"y": per_sequence()},
        saved={"square": ("T",), "count": scratch(1, dtype="int64")},
        work={"sum": ("2*T + 1",)},
    )
    def sum_of_squares(x, y, square, count, sum):  # noqa: A002
        sum[2 * x.shape[0]] = 0.0
        for t in range(x.shape[0]):
            square[t] = x[t] * x[t]
            sum[2 * x.shape[0]] += square[t]
        count[0] = x.shape[0]
        y[0] = sum[2 * x.shape[0]]

    @sum_of_squares.gradient
    def _(x, square, count, grad_y, grad_x):
        for t in range(count[0]):
            grad_x[t] = grad_y[0] * 2 * square[t] / x[t]

    rng = np.random.default_rng(2)
    batch = batch_of(rng, [3, 0, 7, 1])
    fn = sum_of_squares([variable()])
    plain = fn.grad(batch)
    monkeypatch.setattr(sequences, "poisoned", True)
    for got, again, sequence in zip(fn.grad(batch), plain, batch, strict=True):
        np.testing.assert_allclose(got, 2 * sequence, rtol=1e-13)
        np.testing.assert_array_equal(got, again)


def test_poisoned_scratch_finds_a_body_that_reads_it_unwritten(monkeypatch):
    @sequence_function(takes={"x": per_step("T")}, gives={"y": per_sequence()}, work={"sum": (1,)})
    def careless(x, y, sum):  # noqa: A002
        for t in range(x.shape[0]):
            sum[0] += x[t]
        y[0] = sum[0]

    monkeypatch.setattr(sequences, "poisoned", True)
    assert np.isnan(careless([variable()]).eval([[1.0, 2.0]])).all()


def test_options_are_arguments_and_compile_nothing_anew():
    @sequence_function(
        takes={"x": per_step("T")}, gives={"y": per_step("T")}, options={"a": 1.0, "n": 0}
    )
    def power(x, y, a, n):
        for t in range(x.shape[0]):
            y[t] = a
            for _ in range(n):
                y[t] *= x[t]

    batch = [[2.0, 3.0]]
    assert power([variable()], a=0.5, n=2).eval(batch)[0].tolist() == [2.0, 4.5]
    before = len(sequence_compiling.compiled)
    assert power([variable()], n=1).eval(batch)[0].tolist() == [2.0, 3.0]
    assert len(sequence_compiling.compiled) == before
    with pytest.raises(TypeError, match="no option 'm'"):
        power([variable()], m=1)


def test_outputs_with_lengths_of_their_own():
    @sequence_function(
        takes={"x": per_step("T", dtype="int64")},
        gives={"runs": per_step("N", dtype="int64"), "twice": per_step("2*T", dtype="int64")},
        lengths={"N": lambda x: 0},
    )
    def never(x, runs, twice):
        pass

    def count_runs(x):
        count = 0
        for t in range(x.shape[0]):
            if t == 0 or x[t] != x[t - 1]:
                count += 1
        return count

    @sequence_function(
        takes={"x": per_step("T", dtype="int64")},
        gives={"runs": per_step("N", dtype="int64"), "twice": per_step("2*T", dtype="int64")},
        lengths={"N": count_runs},
    )
    def find(x, runs, twice):
        n = 0
        for t in range(x.shape[0]):
            if t == 0 or x[t] != x[t - 1]:
                runs[n] = x[t]
                n += 1
            twice[2 * t] = x[t]
            twice[2 * t + 1] = -x[t]

    x = variable(dtype=np.int64, needs_gradient=False)
    fn = find([x])
    runs, twice = fn.outputs
    found = fn.eval([[1, 1, 2], [], [3, 3]])
    assert [r.tolist() for r in found[runs]] == [[1, 2], [], [3]]
    assert [r.tolist() for r in found[twice]] == [[1, -1, 1, -1, 2, -2], [], [3, -3, 3, -3]]
    assert [len(r) for r in never([x]).eval([[1, 1]]).values()] == [1, 1]


def test_arrays_of_any_rank_seen_as_one_axis():
    @sequence_function(takes={"x": per_step("T", "*K")}, gives={"y": per_sequence("*K")})
    def total(x, y):
        for t in range(x.shape[0]):
            for k in range(x.shape[1]):
                y[k] += x[t, k]

    @total.gradient
    def _(grad_y, grad_x):
        for t in range(grad_x.shape[0]):
            for k in range(grad_x.shape[1]):
                grad_x[t, k] = grad_y[k]

    rng = np.random.default_rng(3)
    for shape in [(), (3,), (2, 3)]:
        batch = batch_of(rng, [2, 0, 4], shape)
        fn = total([variable(shape)])
        np.testing.assert_allclose(fn.eval(batch), [s.sum(axis=0) for s in batch], rtol=1e-12)
        root = rng.normal(size=(3, *shape))
        for got, r, sequence in zip(fn.grad(batch, None, root), root, batch, strict=True):
            np.testing.assert_array_equal(got, np.broadcast_to(r, sequence.shape))


def test_two_sequence_inputs_must_agree_where_they_share_a_length():
    @sequence_function(takes={"x": per_step("T"), "y": per_step("T")}, gives={"z": per_step("T")})
    def add(x, y, z):
        for t in range(x.shape[0]):
            z[t] = x[t] + y[t]

    fn = add([variable(name="p"), variable(name="q")])
    with pytest.raises(ValueError, match=r"sequence 1 of 'y' has length 3, expected 2, .* 'x'"):
        fn.eval({"p": [[1.0], [1.0, 2.0]], "q": [[1.0], [1.0, 2.0, 3.0]]})


def test_indices_are_checked_before_a_body_sees_them():
    @sequence_function(
        takes={"table": shared("K"), "at": per_step("T", index_of="K")}, gives={"y": per_step("T")}
    )
    def look_up(table, at, y):
        for t in range(at.shape[0]):
            y[t] = table[at[t]]

    table = udfkit.Constant(np.array([5.0, 7.0]))
    fn = look_up([table, variable(dtype=np.int32, needs_gradient=False)])
    assert fn.eval([[1, 0], [1]])[0].tolist() == [7.0, 5.0]
    for bad in (2, -1):
        with pytest.raises(ValueError, match=f"{bad} in 'at', sequence 1, step 2, .* 0 to 1"):
            fn.eval([[1], [0, 1, bad]])


@pytest.mark.parametrize("count", [1, 7, 300])
def test_shared_gradients_repeat_bit_for_bit_for_any_thread_count(monkeypatch, count):
    from udfkit import sequence_program, threads

    monkeypatch.setattr(sequence_program, "THREAD_NANOSECONDS", -1)
    rng = np.random.default_rng(4)
    x, weight = variable(8, np.float32, "x"), udfkit.Parameter(8, 1.0, name="w")
    b = variable((), np.float32, "b", kind="batch")
    fn = make_scale()([x, weight, b])
    batch = [s.astype(np.float32) for s in batch_of(rng, rng.integers(0, 60, count), (8,))]
    arguments = {"x": batch, "b": np.ones(count, np.float32)}
    found = []
    for n in (1, 2, 4):
        monkeypatch.setattr(threads, "_num_threads", lambda n=n: n)
        gradients = fn.grad(arguments)
        flat = [np.concatenate(gradients[x]), gradients[weight], gradients[b]]
        found.append(b"".join(a.tobytes() for a in flat))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("helper_lines", [0, 400])
def test_a_cooperative_body_has_one_lane_on_the_cpu(helper_lines):
    """Also a body so long that others are not inlined."""
    space = {}
    exec("def shift(a):\n" + "    a += 1.0\n" * helper_lines + "    return a", space)
    shift = space["shift"]

    @sequence_function(
        takes={"x": per_step("T")}, gives={"y": per_step("T")}, work={"w": ("T",)}, cooperative=True
    )
    def turn(x, y, w, lane, lanes):
        for t in range(lane, x.shape[0], lanes):
            w[t] = shift(x[t])
        udfkit.portable.barrier()
        for t in range(lane, x.shape[0], lanes):
            y[t] = w[x.shape[0] - 1 - t] + lane + 10 * lanes

    @turn.gradient
    def _(grad_y, grad_x, lane, lanes):
        for t in range(lane, grad_x.shape[0], lanes):
            grad_x[t] = grad_y[grad_x.shape[0] - 1 - t]

    fn = turn([variable()])
    found = fn.eval([[1.0, 2.0], [], [3.0]])
    assert [y.tolist() for y in found] == [
        [12.0 + helper_lines, 11.0 + helper_lines],
        [],
        [13.0 + helper_lines],
    ]
    root = [np.array([1.0, 2.0]), np.zeros(0), np.array([3.0])]
    gradient = fn.grad([[1.0, 2.0], [], [3.0]], None, root)
    assert [g.tolist() for g in gradient] == [[2.0, 1.0], [], [3.0]]


def test_class_form_clone_and_serialization():
    class Shift(udfkit.SequenceFunction):
        takes = {"x": per_step("T")}  # noqa: RUF012
        gives = {"y": per_step("T")}  # noqa: RUF012
        options = {"by": 1.0}  # noqa: RUF012

        @staticmethod
        def forward(x, y, by):
            for t in range(x.shape[0]):
                y[t] = x[t] + by

    fn = Shift([variable()], by=2.5)
    assert fn.serialize() == {"by": 2.5}
    again = Shift.deserialize([variable()], "again", fn.serialize())
    copy = fn.clone([variable(dtype=np.float32)])
    for made in (fn, again, copy):
        assert made.eval([[1.0]])[0].tolist() == [3.5]
    assert copy.output.dtype == np.float32
    with pytest.raises(NotImplementedError, match="must define backward"):
        fn.grad([[1.0]])
