"""Python objects as arguments of compiled code, and the C functions that it calls on them.

Compiled code handles objects by their addresses. Whoever calls these functions holds the
interpreter lock. With ``NUMBA_DISABLE_JIT=1`` each has a twin that does the same from Python.
"""

# mypy: disable-error-code="no-untyped-def", disallow-subclassing-any=False

from __future__ import annotations

import ctypes
import threading
from importlib import import_module
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import NativeValue, box, intrinsic, models, register_model, unbox

from udfkit.kernels.jit import JIT_DISABLED

__all__ = [
    "MAX_RANK",
    "array_type",
    "as_object",
    "as_size",
    "descr_type",
    "dimension_words",
    "drop",
    "error_clear",
    "error_occurred",
    "is_subtype",
    "keep",
    "list_new",
    "list_set",
    "new_array",
    "none",
    "object_type",
    "reference",
    "set_base",
    "tuple_item",
    "tuple_size",
]

MAX_RANK = 31
"""Most axes of a sample: with the axis of steps it makes 32, the limit of NumPy 1."""

# Positions in NumPy's table of C functions, part of its binary interface.
_NEW_FROM_DESCR, _SET_BASE_OBJECT = 94, 282


class ObjectType(types.Type):
    """A Python object that compiled code is lent for the time of a call."""

    def __init__(self) -> None:
        super().__init__(name="udfkit.object")


object_type = ObjectType()
register_model(ObjectType)(models.OpaqueModel)


@unbox(ObjectType)
def _unbox_object(_: Any, value: Any, __: Any) -> Any:
    return NativeValue(value)


@box(ObjectType)
def _box_object(_: Any, value: Any, __: Any) -> Any:
    # A null result means that an exception is set, which is what numba's wrapper passes on.
    return value


def _array_functions() -> tuple[int, int]:
    core = "numpy._core" if hasattr(np, "_core") else "numpy.core"
    capsule = vars(import_module(f"{core}._multiarray_umath"))["_ARRAY_API"]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    table = (ctypes.c_void_p * (_SET_BASE_OBJECT + 1)).from_address(get_pointer(capsule, None))
    return int(table[_NEW_FROM_DESCR] or 0), int(table[_SET_BASE_OBJECT] or 0)


_new_from_descr, _set_base_object = _array_functions()

if JIT_DISABLED:
    _word: Any = ctypes.c_ssize_t
    _int: Any = ctypes.c_int
    _own = threading.local()

    def _object(address: int) -> Any:
        return ctypes.cast(address, ctypes.py_object).value

    def _function(name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))

    reference = id
    keep = _function("Py_IncRef", None, _word)
    drop = _function("Py_DecRef", None, _word)
    is_subtype = _function("PyType_IsSubtype", _int, _word, _word)
    tuple_item = _function("PyTuple_GetItem", _word, _word, _word)
    list_new = _function("PyList_New", _word, _word)
    list_set = _function("PyList_SetItem", _int, _word, _word, _word)
    set_base = ctypes.PYFUNCTYPE(_int, _word, _word)(_set_base_object)
    new_array = ctypes.PYFUNCTYPE(_word, _word, _word, _int, _word, _word, _word, _int, _word)(
        _new_from_descr
    )

    def as_object(address: int) -> Any:
        value = _object(address)
        drop(address)
        return value

    def dimension_words() -> int:
        _own.buffer = (ctypes.c_int64 * (MAX_RANK + 1))()
        return ctypes.addressof(_own.buffer)

    def array_type() -> int:
        return id(np.ndarray)

    def descr_type() -> int:
        return id(np.dtype)

    def none() -> int:
        return id(None)

    def tuple_size(address: int) -> int:
        value = _object(address)
        return len(value) if isinstance(value, tuple) else -1

    def as_size(address: int) -> int:
        value = _object(address)
        return value if isinstance(value, int) else -1

    def error_occurred() -> int:
        return 1

    def error_clear() -> None:
        pass

else:
    # Machine code kept on disk holds these names; the addresses differ from process to process.
    llvmlite.binding.add_symbol("udfkit_array_type", id(np.ndarray))
    llvmlite.binding.add_symbol("udfkit_descr_type", id(np.dtype))
    llvmlite.binding.add_symbol("udfkit_new_from_descr", _new_from_descr)
    llvmlite.binding.add_symbol("udfkit_set_base_object", _set_base_object)

    _WORD = ir.IntType(64)

    @intrinsic
    def reference(_, value):
        def codegen(context, builder, signature, values):
            return builder.ptrtoint(values[0], _WORD)

        return types.int64(object_type), codegen

    @intrinsic
    def as_object(_, address):
        def codegen(context, builder, signature, values):
            return builder.inttoptr(values[0], context.get_value_type(object_type))

        return object_type(types.int64), codegen

    @intrinsic
    def dimension_words(_):
        def codegen(context, builder, signature, values):
            words = cgutils.alloca_once(builder, _WORD, size=MAX_RANK + 1)
            return builder.ptrtoint(words, _WORD)

        return types.int64(), codegen

    def _symbol(name: str) -> Any:
        @intrinsic
        def address_of(_):
            def codegen(context, builder, signature, values):
                symbol = builder.module.globals.get(name)
                if symbol is None:
                    symbol = ir.GlobalVariable(builder.module, ir.IntType(8), name)
                    symbol.linkage = "external"
                return builder.ptrtoint(symbol, _WORD)

            return types.int64(), codegen

        return address_of

    def _function(name: str, result: Any, *arguments: Any) -> Any:
        return types.ExternalFunction(name, result(*arguments))

    _word = types.int64
    _int = types.int32
    array_type = _symbol("udfkit_array_type")
    descr_type = _symbol("udfkit_descr_type")
    none = _symbol("_Py_NoneStruct")
    keep = _function("Py_IncRef", types.void, _word)
    drop = _function("Py_DecRef", types.void, _word)
    is_subtype = _function("PyType_IsSubtype", _int, _word, _word)
    tuple_size = _function("PyTuple_Size", _word, _word)
    tuple_item = _function("PyTuple_GetItem", _word, _word, _word)
    as_size = _function("PyLong_AsSsize_t", _word, _word)
    error_occurred = _function("PyErr_Occurred", _word)
    error_clear = _function("PyErr_Clear", types.void)
    list_new = _function("PyList_New", _word, _word)
    list_set = _function("PyList_SetItem", _int, _word, _word, _word)
    set_base = _function("udfkit_set_base_object", _int, _word, _word)
    new_array = _function(
        "udfkit_new_from_descr", _word, _word, _word, _int, _word, _word, _word, _int, _word
    )
