"""Drivers for CUDA: an author's body for one sequence, one thread or block a chunk of sequences.

With chunks of one sequence, this is one thread, or one block, a sequence; the sums of a shared
gradient then have a row for each sequence, to be added up in the same order on every device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numba.extending import overload

from udfkit.kernels import cuda_arrays, cuda_target
from udfkit.kernels.bodies import Body, short_error
from udfkit.kernels.cuda_launch import Shape
from udfkit.kernels.cuda_target import module
from udfkit.kernels.portable import barrier
from udfkit.kernels.sequences import Slot, driver_source, is_cooperative

__all__ = ["Kernel", "make_kernel", "sum_rows"]

THREADS = 64
"""Threads of a block: few, since a batch has few sequences and each needs many registers."""

LANES = 128
"""Threads of a block that works on one sequence."""

ROOM_BYTES = 1 << 30
"""Work scratch of all chunks together; more sequences than fit in it take turns."""


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
    each thread's. Launch it with at least ``last - first`` threads; a cooperative one with that
    many blocks.
    """
    cuda = module()
    _teach_barrier()
    lines, types = driver_source(where, slots, scratch, lengths, sizes, on_cuda=True)
    helper = cuda.jit(device=True)
    compiled = helper(body.frozen(lambda function, _: helper(function)))
    return _compiled("\n".join(lines), "drive", {"body": compiled}), types


class Kernel:
    """A body on CUDA.

    Parameters
    ----------
    body, where, slots, scratch, lengths, sizes
        As `make_kernel` takes them.
    """

    def __init__(
        self,
        body: Body,
        where: str,
        slots: Sequence[Slot],
        scratch: Sequence[Slot],
        lengths: Sequence[str],
        sizes: Sequence[str],
    ):
        self._body = body
        self._where = where
        self._kernel, _ = make_kernel(body, where, slots, scratch, lengths, sizes)
        self._is_cooperative = is_cooperative(slots)
        self._work = sorted({slot.dtype for slot in scratch if slot.role == "work"})

    def run(
        self, chunks: int, fixed: Sequence[Any], needs: Sequence[int], arrays: Sequence[Any]
    ) -> None:
        """Launch one thread or block a chunk on the current device; nothing waits.

        Parameters
        ----------
        chunks
            How many there are.
        fixed
            On the device: boundaries of the chunks, offsets, sizes, saved scratch with positions.
        needs
            Elements of work scratch that a sequence needs at most, by dtype.
        arrays
            The other arguments of the body.

        Raises
        ------
        TypeError
            When the body cannot be compiled for CUDA, with the author's file and line.
        """
        sizes = [np.dtype(dtype).itemsize for dtype in self._work]
        each = sum(need * size for need, size in zip(needs, sizes, strict=True))
        together = min(chunks, max(1, ROOM_BYTES // max(each, 1)))
        rooms: list[Any] = []
        for dtype, need in zip(self._work, needs, strict=True):
            rooms += [cuda_arrays.empty((together * need,), dtype), need]
        for first in range(0, chunks, together):
            last = min(first + together, chunks)
            arguments = (first, last, *fixed, *rooms, *arrays)
            try:
                cuda_target.launch(self._kernel, self._shape(last - first), 0, arguments)
            except Exception as error:
                # The class is that of numba or of numba-cuda, which have one each.
                if "NumbaError" not in [kind.__name__ for kind in type(error).__mro__]:
                    raise
                raise short_error(error, self._body, f"{self._where}, for CUDA,") from None

    def _shape(self, chunks: int) -> Shape:
        if self._is_cooperative:
            return Shape((chunks, 1), (LANES, 1))
        return Shape((-(-chunks // THREADS), 1), (THREADS, 1))


def sum_rows(parts: Any, count: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Add up the first rows of a float64 array in the order of `sequences.sum_chunks`.

    Return an array on the current device, of another dtype; ``parts`` is used up.
    """
    size = prod(shape)
    made = cuda_arrays.empty((size,), dtype)
    if size:
        grid = Shape((-(-size // THREADS), 1), (THREADS, 1))
        cuda_target.launch(_sum_kernel(), grid, 0, (parts, count, made))
    return cuda_arrays.as_array(cuda_arrays.read_array(made, "sums").part(0, shape, dtype))


_SUM = """
def sum_columns(parts, count, out):
    j = cuda.grid(1)
    if j < out.shape[0]:
        step = 1
        while step < count:
            for k in range(0, count - step, 2 * step):
                parts[k, j] += parts[k + step, j]
            step *= 2
        out[j] = parts[0, j]
"""


@functools.cache
def _sum_kernel() -> Any:
    return _compiled(_SUM, "sum_columns", {})


def _compiled(text: str, name: str, names: dict[str, Any]) -> Any:
    """Make a kernel of its text; ``cuda`` has to be a global of it, which the simulator swaps."""
    cuda = module()
    names = {"cuda": cuda, "np": np, **names}
    exec(compile(text, f"<udfkit {name}>", "exec"), names)  # noqa: S102
    return cuda.jit(names[name])


@functools.cache
def _teach_barrier() -> None:
    """Tell numba what a barrier is on CUDA; the simulator runs the plain function."""
    cuda = module()
    if cuda_target.is_simulated():
        return

    @overload(barrier, target="cuda")
    def compiled() -> Any:
        return lambda: cuda.syncthreads()  # noqa: PLW0108 - numba wants Python code
