"""Arrays with strides made C-contiguous on a device, by one launch.

An array is cut into pieces of one access each; a thread finds the place of its piece by dividing
its number by the sizes of the axes, the last one first.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba import cuda

from udfkit.kernels import cuda_launch, cuda_target
from udfkit.kernels.cuda_access import index64, load, store
from udfkit.kernels.cuda_arrays import DeviceView, device_of, empty, read_array
from udfkit.kernels.cuda_launch import Shape, width_for
from udfkit.kernels.cuda_streams import numba_stream, release, wait

__all__ = ["MOST_AXES", "make_kernel", "packed"]

MOST_AXES = 5
"""Axes that a kernel goes through besides the first, which needs no size."""


def packed(view: DeviceView, *, stream: Any = 0) -> DeviceView:
    """Return a C-contiguous view: a copy of an array with strides, any other as it is.

    Raises
    ------
    ValueError
        For an array of so many axes that cannot be joined that no kernel takes it.
    """
    if view.strides is None:
        return view
    index = device_of(view.address)
    with cuda_target.on_device(cuda_target.current_device() if index is None else index):
        return _copied(view, numba_stream(stream))


def _copied(view: DeviceView, on: Any) -> DeviceView:
    sizes, steps = _joined([*view.shape, view.dtype.itemsize], [*(view.strides or ()), 1])
    width = width_for([view.address, sizes[-1], *map(abs, steps[:-1])])
    sizes[-1], steps[-1] = sizes[-1] // width, width
    spare = MOST_AXES + 1 - len(sizes)
    if spare < 0:
        raise ValueError(
            f"an array of shape {view.shape} and strides {view.strides} has too many axes to be "
            f"copied: make a contiguous copy of it first"
        )
    made = read_array(empty(view.shape, view.dtype, on), "the copy")
    pieces = view.nbytes // width
    wait(view.stream, on)
    blocks = -(-pieces // cuda_launch.BLOCK)
    full = cuda_target.multiprocessors(cuda_target.current_device())
    most = full * cuda_launch.BLOCKS_A_MULTIPROCESSOR * cuda_launch.WAVES
    shape = Shape((min(blocks, most), 1), (cuda_launch.BLOCK, 1))
    kernel = _compiled(width, cuda_target.current_device())
    places = [1] * spare + sizes, [0] * spare + steps
    arguments = (view.address, made.address, pieces, *places[0][1:], *places[1])
    cuda_target.launch(kernel, shape, on, arguments)
    release(view.stream, on)
    return made


def _joined(sizes: list[int], steps: list[int]) -> tuple[list[int], list[int]]:
    """Join axes that lie one behind the other as one axis does, from the last one on."""
    found = [(sizes[-1], steps[-1])]
    for size, step in zip(sizes[-2::-1], steps[-2::-1], strict=True):
        last_size, last_step = found[0]
        if size == 1:
            continue
        if step == last_size * last_step:
            found[0] = size * last_size, last_step
        else:
            found.insert(0, (size, step))
    return [size for size, _ in found], [step for _, step in found]


@functools.cache
def _compiled(width: int, _: int) -> Any:
    return cuda.jit(make_kernel(width))


def make_kernel(width: int) -> Callable[..., None]:
    """Return the function to compile for pieces of ``width`` bytes."""
    load_piece, store_piece = load(width), store(width)

    def copy_strided(source, out, pieces, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, s5):
        i = index64(cuda.grid(1))
        while i < pieces:
            rest = i
            at = source + rest % n5 * s5
            rest //= n5
            at += rest % n4 * s4
            rest //= n4
            at += rest % n3 * s3
            rest //= n3
            at += rest % n2 * s2
            rest //= n2
            at += rest % n1 * s1
            at += rest // n1 * s0
            store_piece(out + i * width, load_piece(at))
            i += cuda.gridsize(1)

    return copy_strided
