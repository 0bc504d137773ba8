"""Streams of any library, and how one waits for another: by events, not on the host."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from udfkit.kernels import cuda_target

__all__ = ["LEGACY_STREAM", "copy_stream", "numba_stream", "release", "stream_number", "wait"]

LEGACY_STREAM = 1
"""The number of the default stream in the CUDA Array Interface and in DLPack."""


def stream_number(stream: Any) -> int:
    """Return the number of a stream: of numba's or PyTorch's, a bare one, 0 for the default."""
    if not stream:
        return 0
    if hasattr(stream, "__cuda_stream__"):
        number = int(stream.__cuda_stream__()[1])
    else:
        number = int(getattr(stream, "cuda_stream", stream))
    return 0 if number == LEGACY_STREAM else number


def numba_stream(stream: Any) -> Any:
    """Return a stream as numba takes it; 0 for the default one."""
    number = stream_number(stream)
    if number == 0 or cuda_target.is_simulated():
        return 0
    return _external(number, cuda_target.current_device())


def copy_stream(stream: Any) -> Any:
    # numba takes 0 for a copy that waits; the default stream's own number gives one that does not.
    if cuda_target.is_simulated():
        return 0
    return _external(stream_number(stream) or LEGACY_STREAM, cuda_target.current_device())


@lru_cache(maxsize=64)
def _external(number: int, _: int) -> Any:
    return cuda_target.module().external_stream(number)


def wait(producer: int | None, stream: Any) -> None:
    """Let ``stream`` wait for what ``producer`` has been given so far; the host does not wait."""
    if (
        producer is None
        or cuda_target.is_simulated()
        or stream_number(producer) == stream_number(stream)
    ):
        return
    event = cuda_target.module().event(timing=False)
    event.record(numba_stream(producer))
    event.wait(numba_stream(stream))


def release(consumed: int | None, stream: Any) -> None:
    """Let the stream of an input wait for ``stream``: its memory may then be used again there."""
    if consumed is not None and stream_number(consumed) != stream_number(stream):
        wait(stream_number(stream), consumed)
