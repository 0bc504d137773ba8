"""Compiling the bodies of sequence functions and the drivers that call them, once for each key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.core.errors import NumbaError
from numba.extending import intrinsic

from udfkit.kernels.bodies import Body, short_error
from udfkit.kernels.jit import JIT_DISABLED

__all__ = ["build", "compile_text", "compiled", "remember"]

# A compiled body may contract a*b + c to one operation, which keeps NaN and infinities right.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}

# Nothing but compiled code calls bodies and helpers; a way in for Python would hold all that is
# inlined there once more, and take as long to compile.
_INSIDE = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

LARGE_BODY = 4000
"""Bytes of bytecode from which on a driver calls a body and never inlines it."""

compiled: dict[Any, Any] = {}
"""All that was compiled, by keys that say what of."""

_lock = threading.RLock()


def remember(key: Any, make: Callable[[], Any]) -> Any:
    """Return what was made for a key, and make it at the first use."""
    with _lock:
        if key not in compiled:
            compiled[key] = make()
        return compiled[key]


def build(
    lines: list[str],
    body: Body,
    where: str,
    seen: Sequence[Any],
    args: Sequence[Any],
    *,
    inlined: bool = False,
) -> Any:
    """Compile a driver, given as text, and the body that it calls.

    Parameters
    ----------
    lines
        The text of a function ``drive`` that calls ``body``.
    body
        The author's.
    where
        What to call it in an error.
    seen, args
        The numba types of the arguments of the body, and of the driver.
    inlined
        Whether the body is to be optimized for the numbers that the driver gives it.

    Raises
    ------
    TypeError
        When the body cannot be compiled, with the author's file and line.
    """
    if JIT_DISABLED:
        return compile_text(lines, "drive", {"body": body.function}, types.void, args)
    try:
        made = numba.njit(forceinline=inlined, **_INSIDE, **_OPTIONS)(body.frozen(_compile_helper))
        signature = tuple(seen)
        made.compile(signature)
        if body.size > LARGE_BODY and not inlined:
            made = _by_name(made.overloads[signature])
        return compile_text(lines, "drive", {"body": made}, types.void, args)
    except NumbaError as error:
        raise short_error(error, body, where) from None


def _compile_helper(function: Any, key: Any) -> Any:
    """Compile a helper; a body of other dtypes, or another body, may have had the same one."""
    made = numba.njit(forceinline=True, **_INSIDE, **_OPTIONS)
    return remember(("helper", key), lambda: made(function))


def _by_name(result: Any) -> Any:
    """Return what calls compiled code where it is, so that a driver does not optimize a copy."""
    signature, name = result.signature, result.fndesc.llvm_func_name
    expected = signature.args

    @intrinsic
    def body(typing_context: Any, *arguments: Any) -> Any:
        def codegen(context: Any, builder: Any, _: Any, packed: Any) -> Any:
            values = cgutils.unpack_tuple(builder, packed[0], len(expected))
            convention = context.call_conv
            kind = convention.get_function_type(signature.return_type, expected)
            called = cgutils.get_or_insert_function(builder.module, kind, name)
            given = [
                context.cast(builder, value, source, target)
                for value, source, target in zip(values, arguments, expected, strict=True)
            ]
            status, returned = convention.call_function(
                builder, called, signature.return_type, expected, given
            )
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return returned

        packed = types.StarArgTuple(arguments)  # type: ignore[attr-defined]
        return signature.return_type(packed), codegen

    body.udfkit_keeps = result
    return body


def compile_text(
    lines: list[str], name: str, names: dict[str, Any], result: Any, args: Sequence[Any]
) -> Any:
    """Compile the text of a function for one signature; return its entry."""
    names = {"np": np, **names}
    exec(compile("\n".join(lines), f"<udfkit {name}>", "exec"), names)  # noqa: S102
    if JIT_DISABLED:
        return names[name]
    dispatcher = numba.njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)(names[name])
    return dispatcher.compile(result(*args))
