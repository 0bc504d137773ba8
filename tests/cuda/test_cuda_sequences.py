"""Every body of udfkit.functions becomes a CUDA kernel, which the simulator could not tell."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import toolchain

import udfkit
from udfkit.functions import attention, crf, ctc, dtw, edits, reductions

pytestmark = pytest.mark.skipif(not toolchain.DEMANDED, reason=toolchain.WHY_NOT)

CLASSES = [
    attention.AttentionPooling,
    crf.CrfDecode,
    crf.LinearChainCrf,
    ctc.Ctc,
    dtw.SoftDtw,
    edits.EditDistance,
    reductions.LogSoftmax,
    reductions.LogSumExp,
    reductions.Max,
    reductions.Mean,
    reductions.Softmax,
]


def compile_kernel(cls: Any, phase: str, floats: str) -> str:
    from udfkit.kernels.bodies import Body
    from udfkit.kernels.cuda_sequences import make_kernel
    from udfkit.sequence_program import Program

    definition = cls._definition
    whole = {**definition.takes, **definition.gives}
    dtypes = {
        name: str(d.dtype) if d.dtype else ("int64" if d.index_of else floats)
        for name, d in whole.items()
    }
    program = Program(definition, dtypes, poisoned=False)
    body = Body(getattr(definition, phase))
    slots = program._slots(phase, body.function)
    kernel, arguments = make_kernel(
        body,
        f"{phase} of {definition.name}",
        slots,
        program._scratch,
        program.lengths,
        program.sizes,
    )
    return compiled_text(kernel, arguments)


def compiled_text(kernel: Any, arguments: Any) -> str:
    from numba import types

    device = mock.MagicMock(compute_capability=(9, 0))
    with mock.patch("numba.cuda.dispatcher.get_current_device", return_value=device):
        text, _ = toolchain.numba_cuda().compile(
            kernel.py_func,
            types.void(*arguments),
            cc=(9, 0),
            output="ptx",
            device=False,
            abi="numba",
        )
    return str(text)


@pytest.mark.parametrize("floats", ["float32", "float64"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_bodies_compile(cls, phase, floats):
    if getattr(cls._definition, phase) is None:
        pytest.skip("it has no gradient")
    assert ".entry" in compile_kernel(cls, phase, floats)


def test_lanes_wait_for_each_other():
    """At the barrier of the body, and at one before it, when a block begins with a sequence."""

    @udfkit.sequence_function(
        takes={"x": udfkit.per_step("T")},
        gives={"y": udfkit.per_step("T")},
        work={"room": ("T",)},
        cooperative=True,
    )
    def halve(x, y, room, lane, lanes):
        for t in range(lane, x.shape[0], lanes):
            room[t] = x[t]
        udfkit.portable.barrier()
        for t in range(lane, x.shape[0], lanes):
            y[t] = room[t // 2]

    assert compile_kernel(halve, "forward", "float32").count("bar.sync") == 2
    assert "bar.sync" not in compile_kernel(reductions.Mean, "forward", "float32")


@pytest.mark.parametrize("floats", ["float32", "float64"])
def test_the_sum_of_shared_gradients_compiles(floats):
    from numba import types

    from udfkit.kernels import cuda_sequences

    parts, out = types.Array(types.float64, 2, "C"), types.Array(getattr(types, floats), 1, "C")
    kernel = cuda_sequences._sum_kernel()
    assert ".entry" in compiled_text(kernel, (parts, types.int64, out))
