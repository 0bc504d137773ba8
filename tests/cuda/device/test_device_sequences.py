"""Sequence functions of Values on a device give, on the device, what they give on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import udfkit
from udfkit import per_sequence, per_step, sequence_function, sequence_running, shared
from udfkit.kernels import cuda_sequences
from udfkit.portable import barrier

LENGTHS = [3, 0, 1, 4]


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    monkeypatch.setattr(cuda_sequences, "THREADS", 2)
    monkeypatch.setattr(cuda_sequences, "LANES", 3)


def sequence(shape, dtype, name, needs_gradient):
    return udfkit.sequence.input_variable(shape, dtype, needs_gradient, name=name)


def cases():
    rng = np.random.default_rng(0)
    x, y = sequence(3, np.float32, "x", True), sequence(3, np.float32, "y", True)
    labels, mask = sequence((), np.int64, "labels", False), sequence((), np.bool_, "mask", False)
    batch = [rng.normal(size=(n, 3)).astype(np.float32) for n in LENGTHS]
    other = [rng.normal(size=(n, 3)).astype(np.float32) for n in LENGTHS[::-1]]
    tags = [rng.integers(1, 3, n) for n in LENGTHS]
    few = [rng.integers(1, 3, n // 2) for n in LENGTHS]
    used = [rng.random(n) < 0.5 for n in LENGTHS]
    w = udfkit.Parameter(init=rng.normal(size=3).astype(np.float32))
    a = udfkit.Parameter(init=rng.normal(size=(3, 3)).astype(np.float32))
    f = udfkit.functions
    yield f.attention_pooling(x, w), [batch, w.value]
    yield f.softmax(x), [batch]
    yield f.mean(x, mask), [batch, used]
    yield f.linear_chain_crf(x, labels, a), [batch, tags, a.value]
    yield f.crf_decode(x, a), [batch, a.value]
    yield f.soft_dtw(x, y), [batch, other]
    yield f.ctc_loss(x, labels), [batch, few]


def values_of(fn, batches):
    return [udfkit.sanitize_batch(v, b) for v, b in zip(fn.inputs, batches, strict=True)]


def roots_of(outputs):
    rng = np.random.default_rng(1)
    made = {}
    for variable, value in outputs.items():
        sizes = (n for n in value.lengths) if variable.kind == "sequence" else None
        shape = value.shape[1:] if sizes is None else value.shape[2:]
        batch = (
            rng.normal(size=value.shape).astype(value.dtype)
            if sizes is None
            else [rng.normal(size=(n, *shape)).astype(value.dtype) for n in sizes]
        )
        made[variable] = udfkit.sanitize_batch(variable, batch)
    return made


def assert_same(found, want, device):
    assert set(found) == set(want)
    for variable, value in found.items():
        assert value.device == device
        assert value.dtype == want[variable].dtype
        np.testing.assert_array_equal(value.asarray() == 0, want[variable].asarray() == 0)
        np.testing.assert_allclose(
            value.asarray(), want[variable].asarray(), rtol=2e-5, atol=1e-5, err_msg=variable.name
        )


@pytest.mark.parametrize("fn_and_batch", list(cases()), ids=lambda case: type(case[0]).__name__)
def test_forward_and_backward(fn_and_batch):
    fn, batches = fn_and_batch
    device, values = udfkit.gpu(0), values_of(fn, batches)
    state, want = fn._forward(values)
    kept, found = fn._forward([value.to(device) for value in values])
    assert kept.device() == device
    assert_same(found, want, device)
    if fn._defined().backward is None:
        return
    roots = roots_of(want)
    wrt = [v for v in fn.inputs if v.needs_gradient]
    want = fn._backward(state, roots, dict.fromkeys(wrt))
    on_device = {variable: value.to(device) for variable, value in roots.items()}
    assert_same(fn._backward(kept, on_device, dict.fromkeys(wrt)), want, device)


@sequence_function(
    takes={"x": per_step("T", "K"), "w": shared("K")},
    gives={"y": per_step("T"), "kept": per_step("N", "K")},
    work={"room": (2, "K")},
    lengths={"N": lambda x: (x.shape[0] + 1) // 2},
    options={"factor": 2.0},
)
def halve(x, w, y, kept, room, factor):
    for t in range(x.shape[0]):
        for k in range(x.shape[1]):
            room[t % 2, k] = factor * x[t, k]
            y[t] += room[t % 2, k] * w[k]
            if t % 2 == 0:
                kept[t // 2, k] = room[0, k]


@halve.gradient
def _halve_gradient(x, w, factor, grad_y, grad_kept, grad_x, grad_w):
    for t in range(x.shape[0]):
        for k in range(x.shape[1]):
            grad_x[t, k] = factor * grad_y[t] * w[k]
            if t % 2 == 0:
                grad_x[t, k] += factor * grad_kept[t // 2, k]
            grad_w[k] += factor * grad_y[t] * x[t, k]


def make_halve():
    w = udfkit.Parameter(init=np.float32([1, -2]), name="w")
    fn = halve([sequence(2, np.float32, "x", True), w], factor=0.5)
    rng = np.random.default_rng(2)
    batch = [rng.normal(size=(n, 2)).astype(np.float32) for n in LENGTHS]
    return fn, batch


@pytest.mark.parametrize(("chunk_bytes", "room_bytes"), [(64 << 20, 1 << 30), (40, 1)])
def test_own_lengths_options_and_little_room(chunk_bytes, room_bytes, monkeypatch):
    """With little room several sequences share a chunk, and chunks take turns."""
    monkeypatch.setattr(sequence_running, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(cuda_sequences, "ROOM_BYTES", room_bytes)
    fn, batch = make_halve()
    test_forward_and_backward((fn, [batch, fn.inputs[1].value]))


def test_eval_and_grad_of_plain_arrays_on_a_device():
    fn, batch = make_halve()
    y, _ = fn.outputs
    want, outputs = fn.grad(batch, outputs=[y])
    found, on_device = fn.grad(batch, outputs=[y], device=udfkit.gpu(0))
    np.testing.assert_allclose(found[fn.inputs[1]], want[fn.inputs[1]], rtol=1e-6)
    for got, expected in zip(on_device, outputs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_padded_values_with_gaps_and_starts():
    fn, _ = make_halve()
    data = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    mask = [[0, 2, 1], [1, 0, 2]]
    value = udfkit.Value(data, mask)
    fed = [value, udfkit.sanitize_batch(fn.inputs[1], fn.inputs[1].value)]
    _, want = fn._forward(fed)
    _, found = fn._forward([v.to(udfkit.gpu(0)) for v in fed])
    assert_same(found, want, udfkit.gpu(0))
    y = fn.outputs[0]
    assert found[y].mask.copy_to_host().tolist() == want[y].mask.tolist()


def mirror(x, w, y, room, lane, lanes):
    """Each step is doubled, then taken by the lane that works on the other end."""
    last = x.shape[0] - 1
    for t in range(lane, last + 1, lanes):
        room[t] = 2 * x[t] * w[0]
    barrier()
    for t in range(lane, last + 1, lanes):
        y[t] = room[last - t]


def mirror_gradient(x, w, grad_y, room, grad_x, grad_w, lane, lanes):
    last = x.shape[0] - 1
    for t in range(lane, last + 1, lanes):
        grad_x[t] = 2 * grad_y[last - t] * w[0]
        room[t] = 2 * grad_y[last - t] * x[t]
    barrier()
    if lane == 0:
        for t in range(last + 1):
            grad_w[0] += room[t]


def mirror_gradient_by_every_lane(x, w, grad_y, grad_x, grad_w, lane, lanes):
    """Planted: what one lane should add is added by all."""
    last = x.shape[0] - 1
    for t in range(last + 1):
        grad_x[t] = 2 * grad_y[last - t] * w[0]
        grad_w[0] += 2 * grad_y[last - t] * x[t]


def make_mirror(gradient):
    made = sequence_function(
        takes={"x": per_step("T"), "w": shared(1)},
        gives={"y": per_step("T")},
        work={"room": ("T",)},
        cooperative=True,
    )(mirror)
    made.gradient(gradient)
    w = udfkit.Parameter(init=np.float32([-3]), name="w")
    fn = made([sequence((), np.float32, "x", True), w])
    rng = np.random.default_rng(3)
    return fn, [rng.normal(size=n).astype(np.float32) for n in LENGTHS]


def on_lanes(fn, batches, count, monkeypatch):
    """Outputs and gradients, with blocks of so many threads."""
    monkeypatch.setattr(cuda_sequences, "LANES", count)
    values = [value.to(udfkit.gpu(0)) for value in values_of(fn, batches)]
    state, outputs = fn._forward(values)
    roots = {v: r.to(udfkit.gpu(0)) for v, r in roots_of(outputs).items()}
    wrt = [v for v in fn.inputs if v.needs_gradient]
    found = {**outputs, **fn._backward(state, roots, dict.fromkeys(wrt))}
    return {variable.name: value.asarray() for variable, value in found.items()}


@pytest.mark.parametrize(("lanes", "chunk_bytes"), [(2, 64 << 20), (3, 8), (7, 64 << 20)])
def test_a_block_works_on_one_sequence_as_one_thread_does(lanes, chunk_bytes, monkeypatch):
    monkeypatch.setattr(sequence_running, "CHUNK_BYTES", chunk_bytes)
    pairs = next((fn, b) for fn, b in cases() if type(fn).__name__ == "SoftDtw")
    mirrored, batch = make_mirror(mirror_gradient)
    for fn, batches in [pairs, (mirrored, [batch, mirrored.inputs[1].value])]:
        alone = on_lanes(fn, batches, 1, monkeypatch)
        together = on_lanes(fn, batches, lanes, monkeypatch)
        for name, array in alone.items():
            assert together[name].tobytes() == array.tobytes(), name
        test_forward_and_backward((fn, batches))


def test_a_gradient_that_every_lane_adds_is_noticed(monkeypatch):
    fn, batch = make_mirror(mirror_gradient_by_every_lane)
    batches = [batch, fn.inputs[1].value]
    alone = on_lanes(fn, batches, 1, monkeypatch)
    together = on_lanes(fn, batches, 3, monkeypatch)
    np.testing.assert_array_equal(together["x"], alone["x"])
    assert not np.allclose(together["w"], alone["w"])


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_batches_of_nothing(lengths):
    fn, _ = make_halve()
    batch = [np.zeros((n, 2), np.float32) for n in lengths]
    test_forward_and_backward((fn, [batch, fn.inputs[1].value]))


def test_indices_are_checked():
    @sequence_function(
        takes={"i": per_step("T", index_of=3)}, gives={"n": per_sequence(dtype="int64")}
    )
    def count(i, n):
        n[0] = i.shape[0]

    fn = count([sequence((), np.int64, "i", False)])
    value = udfkit.sanitize_batch(fn.inputs[0], [[1, 2], [0, 3]], device=udfkit.gpu(0))
    with pytest.raises(ValueError, match="3 in 'i', sequence 1, step 1, is out of range"):
        fn._forward([value])


def test_values_on_two_devices_are_refused():
    fn, batch = make_halve()
    values = values_of(fn, [batch, fn.inputs[1].value])
    with pytest.raises(ValueError, match=r"move it with value\.to\(device\)"):
        fn._forward([values[0].to(udfkit.gpu(0)), values[1]])
