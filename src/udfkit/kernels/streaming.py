"""Copies and fills of large outputs that go past the caches.

A store that goes through the caches first reads the line that it is about to overwrite; a
non-temporal one of a whole line does not. It loses where the output would have stayed in a cache.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from udfkit.kernels.intrinsics import memcpy, memset, stream_line, stream_zeros
from udfkit.kernels.jit import kernel

__all__ = ["LINE", "clear", "copy", "copy_as"]

LINE = 64
"""Bytes of one store; every target of one is a multiple of it."""


@kernel
def copy(target, source, count):
    """Copy ``count`` bytes; a fence must follow before another thread reads them."""
    head = -target & (LINE - 1)
    if count < head + LINE:
        memcpy(target, source, count)
        return
    memcpy(target, source, head)
    lines = (count - head) // LINE
    to, at = target + head, source + head
    for i in range(lines):
        stream_line(to + LINE * i, at + LINE * i)
    memcpy(to + LINE * lines, at + LINE * lines, count - head - LINE * lines)


@kernel
def clear(target, count):
    """Write ``count`` zeros; a fence must follow before another thread reads them."""
    head = -target & (LINE - 1)
    if count < head + LINE:
        memset(target, 0, count)
        return
    memset(target, 0, head)
    lines = (count - head) // LINE
    to = target + head
    for i in range(lines):
        stream_zeros(to + LINE * i)
    memset(to + LINE * lines, 0, count - head - LINE * lines)


@kernel
def copy_as(past_caches, target, source, count):
    """Copy ``count`` bytes, past the caches or through them."""
    if past_caches:
        copy(target, source, count)
    else:
        memcpy(target, source, count)
