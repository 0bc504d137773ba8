"""Loads and stores at device addresses, for kernels; in the simulator plain Python that checks.

Addresses are int64, so that a kernel takes one integer an array. An access of ``width`` bytes needs
an address that is a multiple of ``width``: the host chooses the width, the simulator checks it.
"""

# mypy: disable-error-code="no-untyped-def, no-any-return"

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic

__all__ = [
    "SIMULATED",
    "WIDTHS",
    "advance",
    "index32",
    "index64",
    "load",
    "load_int64",
    "load_uint8",
    "opaque",
    "store",
    "store_bits",
    "store_int64",
    "store_uint8",
    "store_zero",
    "wrapping_add",
]

SIMULATED: bool = bool(config.ENABLE_CUDASIM)
WIDTHS = (16, 8, 4, 2, 1)
"""Bytes that one access can move, the widest first."""

_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_QUADRUPLE: Any = types.UniTuple(types.uint32, 4)  # type: ignore[attr-defined]
_NUMBERS: dict[int, Any] = {8: types.uint64, 4: types.uint32, 2: types.uint16, 1: types.uint8}


def _checked_bytes(address: Any, width: int) -> Any:
    address = int(address)
    if address % width:
        raise ValueError(
            f"access of {width} bytes at {address:#x}, which is no multiple of {width}: the host "
            f"chose too wide an access"
        )
    return (ctypes.c_uint8 * width).from_address(address)


def _checked_index(bits: int, signed: bool) -> Callable[[Any], int]:
    least = -(1 << (bits - 1)) if signed else 0
    most = (1 << (bits - signed)) - 1

    def index(value: Any) -> int:
        value = int(value)
        if not least <= value <= most:
            raise OverflowError(
                f"index {value} does not fit {bits} bits: the host chose too narrow a variant"
            )
        return value

    return index


# Index arithmetic that would wrap on a device raises in the simulator.
index32: Any = _checked_index(32, False) if SIMULATED else types.uint32
index64: Any = _checked_index(64, True) if SIMULATED else types.int64


def _vector(width: int) -> Any:
    # A vector of words and not an integer of 128 bits: only the vector becomes one access.
    return ir.VectorType(_I32, 4) if width == 16 else ir.IntType(8 * width)


def _typed(width: int) -> Any:
    return _QUADRUPLE if width == 16 else _NUMBERS[width]


def _global(builder: Any, address: Any, kind: Any) -> Any:
    # Address space 1 is global memory; a generic pointer would cost the device a look at each use.
    return builder.inttoptr(address, ir.PointerType(kind, addrspace=1))


def _emit_load(builder: Any, address: Any, width: int) -> Any:
    value = builder.load(_global(builder, address, _vector(width)))
    value.align = width
    return value


def _emit_store(builder: Any, address: Any, value: Any, width: int) -> None:
    builder.store(value, _global(builder, address, _vector(width))).align = width


@cache
def load(width: int) -> Any:
    """Return the function ``load(address)`` that reads ``width`` bytes as one opaque value."""
    if SIMULATED:
        return lambda address: bytes(_checked_bytes(address, width))

    def typing(typing_context, address):
        def codegen(context, builder, signature, arguments):
            value = _emit_load(builder, arguments[0], width)
            if width < 16:
                return value
            words = [builder.extract_element(value, _I32(k)) for k in range(4)]
            return cgutils.pack_array(builder, words)

        return _typed(width)(types.int64), codegen

    return intrinsic(typing)


@cache
def store(width: int) -> Any:
    """Return the function ``store(address, value)`` that writes what ``load`` read."""
    if SIMULATED:

        def simulated(address: int, value: bytes) -> None:
            _checked_bytes(address, width)[:] = value

        return simulated

    def typing(typing_context, address, value):
        def codegen(context, builder, signature, arguments):
            address, value = arguments
            if width == 16:
                words = [builder.extract_value(value, k) for k in range(4)]
                value = ir.Constant(_vector(width), ir.Undefined)
                for k, word in enumerate(words):
                    value = builder.insert_element(value, word, _I32(k))
            _emit_store(builder, address, value, width)
            return context.get_dummy_value()

        return types.void(types.int64, _typed(width)), codegen

    return intrinsic(typing)


@cache
def store_zero(width: int) -> Any:
    """Return the function ``store_zero(address)`` that writes ``width`` zero bytes."""
    if SIMULATED:

        def simulated(address: int) -> None:
            _checked_bytes(address, width)[:] = bytes(width)

        return simulated

    def typing(typing_context, address):
        def codegen(context, builder, signature, arguments):
            _emit_store(builder, arguments[0], ir.Constant(_vector(width), None), width)
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return intrinsic(typing)


@cache
def store_bits(width: int) -> Any:
    """Return ``store_bits(address, low, high)``: the low ``width`` bytes of two int64, in order."""
    if SIMULATED:

        def simulated(address: int, low: int, high: int) -> None:
            both = (int(low) % 2**64) | (int(high) % 2**64) << 64
            _checked_bytes(address, width)[:] = both.to_bytes(16, "little")[:width]

        return simulated

    def typing(typing_context, address, low, high):
        def codegen(context, builder, signature, arguments):
            address, low, high = arguments
            if width == 16:
                value = ir.Constant(ir.VectorType(_I64, 2), ir.Undefined)
                for k, word in enumerate((low, high)):
                    value = builder.insert_element(value, word, _I32(k))
                value = builder.bitcast(value, _vector(16))
            else:
                value = low if width == 8 else builder.trunc(low, _vector(width))
            _emit_store(builder, address, value, width)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return intrinsic(typing)


if SIMULATED:

    def advance(position: int, step: int) -> int:
        return index64(position + step)

    def opaque(value: int) -> int:
        return index64(value)

    def wrapping_add(position: int, step: int) -> int:
        return (int(position) + int(step) + 2**63) % 2**64 - 2**63

    def load_int64(address: int) -> int:
        return int.from_bytes(bytes(_checked_bytes(address, 8)), "little", signed=True)

    def load_uint8(address: int) -> int:
        return int(_checked_bytes(address, 1)[0])

    def store_int64(address: int, value: int) -> None:
        _checked_bytes(address, 8)[:] = (int(value) % 2**64).to_bytes(8, "little")

    def store_uint8(address: int, value: int) -> None:
        _checked_bytes(address, 1)[0] = int(value)

else:

    @intrinsic
    def advance(typing_context, position, step):
        """Add two int64 as a loop does that must stay as it is.

        An ordinary addition promises not to overflow, from which the compiler works out how often a
        loop runs, to unroll it: by a division that costs more than the loop, and many registers.
        """

        def codegen(context, builder, signature, arguments):
            return builder.add(*arguments)

        return types.int64(types.int64, types.int64), codegen

    @intrinsic
    def opaque(typing_context, value):
        """Return an int64 whose range the compiler cannot know, for the steps of `advance`.

        Sizes of blocks and grids have known ranges, from which it may prove that nothing overflows.
        """

        def codegen(context, builder, signature, arguments):
            kind = ir.FunctionType(_I64, [_I64])
            return builder.call(ir.InlineAsm(kind, "mov.b64 $0, $1;", "=l,l"), arguments)

        return types.int64(types.int64), codegen

    # In the simulator this is the only addition that may wrap.
    wrapping_add = advance

    @intrinsic
    def load_int64(typing_context, address):
        """Read an int64."""

        def codegen(context, builder, signature, arguments):
            return _emit_load(builder, arguments[0], 8)

        return types.int64(types.int64), codegen

    @intrinsic
    def load_uint8(typing_context, address):
        """Read one byte as an int64, so that arithmetic with it stays signed."""

        def codegen(context, builder, signature, arguments):
            return builder.zext(_emit_load(builder, arguments[0], 1), _I64)

        return types.int64(types.int64), codegen

    @intrinsic
    def store_int64(typing_context, address, value):
        """Write an int64."""

        def codegen(context, builder, signature, arguments):
            _emit_store(builder, arguments[0], arguments[1], 8)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    @intrinsic
    def store_uint8(typing_context, address, value):
        """Write the lowest byte of an int64."""

        def codegen(context, builder, signature, arguments):
            _emit_store(builder, arguments[0], builder.trunc(arguments[1], _I8), 1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen
