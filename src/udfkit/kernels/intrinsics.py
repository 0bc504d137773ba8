"""Moving and reading bytes at addresses from compiled code.

Every address, count and value is an int64. Nothing is checked and nothing needs to be aligned. Each
function has a plain twin that does the same from Python, used with ``NUMBA_DISABLE_JIT=1``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from udfkit.kernels.jit import JIT_DISABLED

__all__ = [
    "fence",
    "load_i8",
    "load_i16",
    "load_i32",
    "load_i64",
    "load_u8",
    "load_u16",
    "load_u32",
    "memcpy",
    "memmove",
    "memset",
    "popcount",
    "prefetch",
    "store8",
    "store16",
    "store32",
    "store64",
    "stream_line",
    "stream_zeros",
]

_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_BYTES = _I8.as_pointer()
_LINE = ir.VectorType(_I64, 8)


def _compiled(
    argument_count: int, result: Any, emit: Callable[[Any, Any], Any], doc: str
) -> Callable[..., Any]:
    """Make an intrinsic of int64 arguments from a function that emits its instructions."""
    signature = result(*[types.int64] * argument_count)

    def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
        emitted = emit(builder, values)
        return context.get_dummy_value() if result is types.void else emitted

    # numba reads the number of arguments from the function itself.
    if argument_count == 0:

        def typing(typing_context: Any) -> Any:
            return signature, codegen

    elif argument_count == 1:

        def typing(typing_context: Any, a: Any) -> Any:  # type: ignore[misc]
            return signature, codegen

    elif argument_count == 2:

        def typing(typing_context: Any, a: Any, b: Any) -> Any:  # type: ignore[misc]
            return signature, codegen

    else:

        def typing(typing_context: Any, a: Any, b: Any, c: Any) -> Any:  # type: ignore[misc]
            return signature, codegen

    typing.__doc__ = doc
    return intrinsic(typing)


def _load(bits: int, signed: bool) -> Callable[..., Any]:
    width = ir.IntType(bits)

    def emit(builder: Any, values: Any) -> Any:
        value = builder.load(builder.inttoptr(values[0], width.as_pointer()), align=1)
        if bits == 64:
            return value
        return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

    name = f"c_{'' if signed else 'u'}int{bits}"
    if JIT_DISABLED:
        cell = getattr(ctypes, name)
        return lambda address: cell.from_address(int(address)).value
    return _compiled(1, types.int64, emit, f"Read {bits} bits at an address.")


def _store(bits: int) -> Callable[..., Any]:
    width = ir.IntType(bits)

    def emit(builder: Any, values: Any) -> None:
        value = values[1] if bits == 64 else builder.trunc(values[1], width)
        builder.store(value, builder.inttoptr(values[0], width.as_pointer()), align=1)

    if JIT_DISABLED:
        cell = getattr(ctypes, f"c_uint{bits}")

        def store(address: int, value: int) -> None:
            cell.from_address(int(address)).value = int(value) & ((1 << bits) - 1)

        return store
    return _compiled(2, types.void, emit, f"Write the low {bits} bits of a value at an address.")


def _emit_memcpy(builder: Any, values: Any) -> None:
    target, source, count = values
    cgutils.raw_memcpy(
        builder, builder.inttoptr(target, _BYTES), builder.inttoptr(source, _BYTES), count, 1
    )


def _emit_memmove(builder: Any, values: Any) -> None:
    target, source, count = values
    cgutils.raw_memmove(
        builder, builder.inttoptr(target, _BYTES), builder.inttoptr(source, _BYTES), count, 1
    )


def _emit_memset(builder: Any, values: Any) -> None:
    target, byte, count = values
    cgutils.memset(builder, builder.inttoptr(target, _BYTES), count, builder.trunc(byte, _I8))


def _emit_prefetch(builder: Any, values: Any) -> None:
    prefetch_type = ir.FunctionType(ir.VoidType(), [_BYTES, _I32, _I32, _I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTES], prefetch_type)
    for_reading, keep, data_cache = _I32(0), _I32(3), _I32(1)
    builder.call(function, [builder.inttoptr(values[0], _BYTES), for_reading, keep, data_cache])


def _emit_popcount(builder: Any, values: Any) -> Any:
    return builder.ctpop(values[0])


def _store_past_caches(builder: Any, value: Any, address: Any) -> None:
    stored = builder.store(value, builder.inttoptr(address, _LINE.as_pointer()), align=64)
    stored.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))


def _emit_stream_line(builder: Any, values: Any) -> None:
    target, source = values
    line = builder.load(builder.inttoptr(source, _LINE.as_pointer()), align=1)
    _store_past_caches(builder, line, target)


def _emit_stream_zeros(builder: Any, values: Any) -> None:
    _store_past_caches(builder, ir.Constant(_LINE, [0] * 8), values[0])


def _emit_fence(builder: Any, _: Any) -> None:
    builder.fence("seq_cst")


load_i8, load_u8 = _load(8, True), _load(8, False)
load_i16, load_u16 = _load(16, True), _load(16, False)
load_i32, load_u32 = _load(32, True), _load(32, False)
load_i64 = _load(64, True)
store8, store16, store32, store64 = _store(8), _store(16), _store(32), _store(64)

if JIT_DISABLED:

    def memcpy(target: int, source: int, count: int) -> None:
        ctypes.memmove(int(target), int(source), int(count))

    def memmove(target: int, source: int, count: int) -> None:
        ctypes.memmove(int(target), int(source), int(count))

    def memset(target: int, byte: int, count: int) -> None:
        ctypes.memset(int(target), int(byte) & 0xFF, int(count))

    def stream_line(target: int, source: int) -> None:
        memcpy(target, source, 64)

    def stream_zeros(target: int) -> None:
        memset(target, 0, 64)

    def fence() -> None:
        pass

    def prefetch(address: int) -> None:
        pass

    def popcount(value: int) -> int:
        return (int(value) & 0xFFFF_FFFF_FFFF_FFFF).bit_count()

else:
    memcpy = _compiled(
        3, types.void, _emit_memcpy, "memcpy(target, source, count): they must not overlap."
    )
    memmove = _compiled(
        3, types.void, _emit_memmove, "memmove(target, source, count): they may overlap."
    )
    memset = _compiled(3, types.void, _emit_memset, "memset(target, byte, count).")
    stream_line = _compiled(
        2, types.void, _emit_stream_line, "Copy 64 bytes to an aligned line, past the caches."
    )
    stream_zeros = _compiled(
        1, types.void, _emit_stream_zeros, "Write 64 zeros to an aligned line, past the caches."
    )
    fence = _compiled(
        0, types.void, _emit_fence, "Make what was written past the caches visible to all threads."
    )
    prefetch = _compiled(
        1, types.void, _emit_prefetch, "Ask for a cache line; any address is allowed."
    )
    popcount = _compiled(1, types.int64, _emit_popcount, "Count the bits that are 1 in a value.")
