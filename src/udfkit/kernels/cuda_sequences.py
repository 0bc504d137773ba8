"""Drivers for CUDA: an author's body for one sequence, one thread a chunk of sequences.

With chunks of one sequence, this is one thread a sequence; the sums of a shared gradient then have
a row for each sequence, to be added up in the same order on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from udfkit.kernels.bodies import Body
from udfkit.kernels.cuda_target import module
from udfkit.kernels.sequences import Slot, driver_source

__all__ = ["make_kernel"]


def make_kernel(
    body: Body,
    where: str,
    slots: Sequence[Slot],
    scratch: Sequence[Slot],
    lengths: Sequence[str],
    sizes: Sequence[str],
) -> tuple[Any, list[Any]]:
    """Return a kernel, compiled at its first launch, and the numba types of its arguments.

    It takes ``(first, last, chunks, *offsets, sizes, *scratch, *arrays)`` as the drivers of
    `udfkit.kernels.sequences` do, but for work scratch a room for all threads before the size of
    each thread's. Launch it with at least ``last - first`` threads.
    """
    cuda = module()
    lines, types = driver_source(where, slots, scratch, lengths, sizes, on_cuda=True)
    compiled = cuda.jit(device=True)(body.frozen(lambda helper, _: cuda.jit(device=True)(helper)))
    names: dict[str, Any] = {"cuda": cuda, "body": compiled}
    exec(compile("\n".join(lines), "<udfkit drive>", "exec"), names)  # noqa: S102
    return cuda.jit(names["drive"]), types
