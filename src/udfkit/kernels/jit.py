"""How kernels are compiled: two decorators, one cache policy, one count of what was compiled.

This module imports numba, so only the kernel modules import it, and those are imported at the first
use of a kernel.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import config, sigutils
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock

__all__ = [
    "JIT_DISABLED",
    "cache_folder",
    "compile_drivers",
    "compiled_signatures",
    "driver",
    "kernel",
]

JIT_DISABLED: bool = bool(config.DISABLE_JIT)

_dispatchers: dict[str, Any] = {}
_drivers: dict[str, Callable[[], Any]] = {}


def kernel(function: Callable[..., Any] | None = None, *, nogil: bool = False) -> Any:
    """Compile a function at its first call for each combination of argument types.

    The machine code is kept on disk where a folder is writable, elsewhere for this process only.
    With ``NUMBA_DISABLE_JIT=1`` the function is returned as it is.

    Parameters
    ----------
    function
        The function, when the decorator is written without arguments.
    nogil
        Let other Python threads run while a call from Python is at work.

    Examples
    --------
    >>> from udfkit.kernels.jit import kernel
    >>> @kernel
    ... def add(a, b):
    ...     return a + b
    >>> add(2, 3)
    5
    """
    if function is None:
        return functools.partial(kernel, nogil=nogil)
    if JIT_DISABLED:
        return function
    dispatcher = numba.njit(nogil=nogil)(function)
    _attach_cache(dispatcher)
    _dispatchers[f"{function.__module__}.{function.__qualname__}"] = dispatcher
    return dispatcher


def driver(signature: Any, *, nogil: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for one signature at its first call, and call it the shortest way.

    A call skips the choice of a specialisation, which halves its cost; in exchange nothing checks
    that arguments fit the signature: an array of another dtype is an error of numba's at best.
    After the first call the module's global of the same name is the compiled entry itself, so call
    it as ``module.name(...)``. Compiled code cannot call a driver.

    Parameters
    ----------
    signature
        A numba signature, or its text, such as ``"void(int64, int64)"``.
    nogil
        Let other Python threads run while a call is at work.

    Examples
    --------
    >>> from udfkit.kernels.jit import driver
    >>> @driver("int64(int64, int64)")
    ... def multiply(a, b):
    ...     return a * b
    >>> multiply(6, 7)
    42
    """
    arguments, result = sigutils.normalize_signature(signature)
    if result is None:
        raise ValueError(f"the signature {signature} has no result type; write e.g. void(int64)")

    def decorate(function: Callable[..., Any]) -> Any:
        if JIT_DISABLED:
            return function
        dispatcher = kernel(function, nogil=nogil)
        entry: Callable[..., Any] | None = None

        def compile_entry() -> Callable[..., Any]:
            nonlocal entry
            with global_compiler_lock:
                if entry is None:
                    entry = dispatcher.compile(result(*arguments))
                    dispatcher.disable_compile()
                    names = sys.modules[function.__module__].__dict__
                    if names.get(function.__qualname__) is first_call:
                        names[function.__qualname__] = entry
            return entry

        @functools.wraps(function)
        def first_call(*values: Any) -> Any:
            return (entry or compile_entry())(*values)

        _drivers[f"{function.__module__}.{function.__qualname__}"] = compile_entry
        return first_call

    return decorate


def compile_drivers() -> int:
    """Compile, or load from disk, every driver of the modules imported so far; return their number.

    Examples
    --------
    >>> from udfkit.kernels import jit
    >>> jit.compile_drivers() >= 0
    True
    """
    for compile_entry in list(_drivers.values()):
        compile_entry()
    return len(_drivers)


def compiled_signatures() -> dict[str, int]:
    """Return the number of compiled signatures of each kernel and driver, by its full name.

    Examples
    --------
    >>> from udfkit.kernels.jit import compiled_signatures, kernel
    >>> @kernel
    ... def negate(a):
    ...     return -a
    >>> before = sum(compiled_signatures().values())
    >>> negate(1), negate(2)
    (-1, -2)
    >>> sum(compiled_signatures().values()) - before <= 1
    True
    """
    return {name: len(dispatcher.overloads) for name, dispatcher in _dispatchers.items()}


def cache_folder() -> str | None:
    """Return the folder in which compiled kernels are kept, or None where none is writable.

    None as well when kernels are not compiled, or are compiled with checks, since neither is kept.

    Examples
    --------
    >>> from udfkit.kernels.jit import cache_folder
    >>> cache_folder() is None or isinstance(cache_folder(), str)
    True
    """
    if JIT_DISABLED:
        return None
    cache = _make_cache(kernel)
    return None if cache is None else str(cache.cache_path)


@functools.cache
def _sources_stamp() -> str:
    """Hash the text of every kernel module.

    numba notices an edit of the file that holds a function, not of a file whose functions it calls;
    with this stamp an edit of any kernel module makes all of their machine code stale. Another
    NumPy does too, since object layouts become constants of the machine code.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """A cache on disk that never fails a call: what cannot be read or written is not there."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # noqa: BLE001 - a damaged file raises anything that pickle can raise
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:
            self.disable()


def _make_cache(function: Callable[..., Any]) -> _KernelCache | None:
    # numba's key of a cached function does not say whether it was compiled with bounds checks.
    if config.BOUNDSCHECK:
        return None
    try:
        cache = _KernelCache(function)
        stamp = cache._cache_file._source_stamp
        cache._cache_file._source_stamp = (stamp, _sources_stamp(), np.__version__)
    except (RuntimeError, OSError):
        return None
    return cache


def _attach_cache(dispatcher: Any) -> None:
    cache = _make_cache(dispatcher.py_func)
    if cache is not None:
        dispatcher._cache = cache


# A child forked while another thread compiles would wait for numba's lock for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
