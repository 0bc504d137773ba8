"""Bodies of sequence functions as CUDA kernels give what they give on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import udfkit
from udfkit.kernels.bodies import Body
from udfkit.kernels.cuda_sequences import make_kernel
from udfkit.kernels.cuda_target import module
from udfkit.sequence_running import State

LENGTHS = [3, 0, 1, 4]


def on_cuda(state: State, phase: str, arrays: dict) -> None:
    """Run a body over all sequences with one thread each; the arrays are those of the CPU."""
    cuda = module()
    program, definition = state.program, state.program.definition
    body = Body(getattr(definition, phase))
    slots = program._slots(phase, body.function)
    where = f"{phase} of {definition.name}"
    kernel, _ = make_kernel(body, where, slots, program._scratch, program.lengths, program.sizes)
    count = state.count
    fixed = list(state.fixed)
    fixed[0] = np.arange(count + 1)
    needs = fixed[len(fixed) - program.work_count :]
    work = sorted({s.dtype for s in program._scratch if s.role == "work"})
    head = fixed[: len(fixed) - program.work_count]
    for dtype, need in zip(work, needs, strict=True):
        head += [np.full(count * need, 7, dtype), need]
    held = {s.name: arrays[s.name] for s in slots if not s.is_scratch and s.role != "option"}
    moved = {name: cuda.to_device(np.array(array)) for name, array in held.items()}
    head = [cuda.to_device(np.array(a)) if isinstance(a, np.ndarray) else a for a in head]
    arguments = [
        state.options[s.name] if s.role == "option" else moved[s.name]
        for s in slots
        if not s.is_scratch
    ]
    kernel[1, count](0, count, *head, *arguments)
    for name, array in held.items():
        result = moved[name].copy_to_host()
        if array.flags.writeable:
            array[...] = result
    for k, array in enumerate(fixed):
        # Saved scratch goes back too: backward reads it.
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            array[...] = head[k].copy_to_host()


def sequence(shape, dtype, name, needs_gradient):
    return udfkit.sequence.input_variable(shape, dtype, needs_gradient, name=name)


def cases():
    rng = np.random.default_rng(0)
    x, y = sequence(3, np.float32, "x", True), sequence(3, np.float32, "y", True)
    labels = sequence((), np.int64, "labels", False)
    batch = [rng.normal(size=(n, 3)).astype(np.float32) for n in LENGTHS]
    other = [rng.normal(size=(n, 3)).astype(np.float32) for n in LENGTHS[::-1]]
    tags = [rng.integers(1, 3, n) for n in LENGTHS]
    few = [rng.integers(1, 3, n // 2) for n in LENGTHS]
    w = udfkit.Parameter(init=rng.normal(size=3).astype(np.float32))
    a = udfkit.Parameter(init=rng.normal(size=(3, 3)).astype(np.float32))
    f = udfkit.functions
    yield f.attention_pooling(x, w), [batch, w.value]
    yield f.softmax(x), [batch]
    yield f.logsumexp(x), [batch]
    yield f.linear_chain_crf(x, labels, a), [batch, tags, a.value]
    yield f.crf_decode(x, a), [batch, a.value]
    yield f.soft_dtw(x, y), [batch, other]
    yield f.ctc_loss(x, labels), [batch, few]


@pytest.mark.parametrize("fn_and_batch", list(cases()), ids=lambda case: type(case[0]).__name__)
def test_forward_and_backward(fn_and_batch):
    fn, batches = fn_and_batch
    values = [udfkit.sanitize_batch(v, b) for v, b in zip(fn.inputs, batches, strict=True)]
    program = fn._program(fn._defined())
    from udfkit.sequence_running import run_forward

    state, results = run_forward(fn, fn._defined(), program, tuple(values))
    want = {name: np.array(state.arrays[name]) for name in fn._defined().gives}
    arrays = dict(state.arrays)
    for name, array in want.items():
        arrays[name] = np.full_like(array, 9)
    on_cuda(state, "forward", arrays)
    for name, array in want.items():
        np.testing.assert_allclose(arrays[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    if fn._defined().backward is None:
        return
    root = (
        udfkit.sanitize_batch(fn.output, np.ones(results[0].shape, np.float32))
        if (fn.output.kind == "batch")
        else udfkit.sanitize_batch(fn.output, [np.ones((n, 3), np.float32) for n in LENGTHS])
    )
    wrt = [v for v in fn.inputs if v.needs_gradient]
    kept, _ = fn._forward(values)
    gradients = fn._backward(kept, {fn.output: root}, dict.fromkeys(wrt))
    grad_name = f"grad_{next(iter(want))}"
    arrays[grad_name] = root._flat_values() if fn.output.kind == "sequence" else root.data
    for variable, (name, declared) in zip(fn.inputs, fn._defined().takes.items(), strict=False):
        if variable.needs_gradient:
            like = state.arrays[name]
            shape = (state.count, *like.shape) if declared.kind == "shared" else like.shape
            arrays[f"grad_{name}"] = np.zeros(
                shape, np.float64 if declared.kind == "shared" else like.dtype
            )
    on_cuda(state, "backward", arrays)
    for variable, (name, declared) in zip(fn.inputs, fn._defined().takes.items(), strict=False):
        if variable.needs_gradient:
            got = arrays[f"grad_{name}"]
            got = got.sum(axis=0) if declared.kind == "shared" else got
            expected = gradients[variable]
            expected = expected.data if declared.kind == "shared" else expected._flat_values()
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5, err_msg=name)
