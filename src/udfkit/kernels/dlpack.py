"""DLPack capsules of arrays on a GPU, read and made without the library behind them.

The structures are those of ``dlpack.h``, version 1.1; a capsule of version 0 has no flags.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir

__all__ = ["CUDA", "Lease", "Tensor", "device_of", "make_capsule", "take"]

CUDA = 2
CUDA_MANAGED = 13

_VERSION = (1, 1)
_READ_ONLY = 1
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c"}
_BFLOAT, _BOOL = 4, 6
# A capsule keeps the address of its name: these must not go away.
_NAME, _USED = b"dltensor", b"used_dltensor"
_NAME_1, _USED_1 = b"dltensor_versioned", b"used_dltensor_versioned"


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _python(name: str, result: Any, *arguments: Any) -> Any:
    # Not ctypes.pythonapi.<name>, whose argument types any other library may set.
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer_of = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_set_name = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# The same two for a capsule that is being destroyed, of which no reference may be made.
_is_valid_at = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_at = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


class Lease:
    """What keeps the memory of a consumed capsule: it is given back when this is gone."""

    __slots__ = ("__weakref__", "source")

    def __init__(self, source: Any):
        self.source = source


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a consumed capsule says; strides in bytes, None for a C-contiguous array."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    device: int
    is_read_only: bool
    lease: Lease


def device_of(obj: Any) -> int | None:
    """Return the index of the CUDA device that an object says it is on; None for all others."""
    ask = getattr(obj, "__dlpack_device__", None)
    if ask is None:
        return None
    try:
        kind, index = ask()
    except Exception:  # noqa: BLE001 - an array that cannot say so is no array on a device
        return None
    return int(index) if int(kind) in (CUDA, CUDA_MANAGED) else None


def take(obj: Any, stream: int, where: str, give_back: Callable[[Callable[[], None]], None]) -> Any:
    """Consume an array that speaks DLPack; nothing is copied.

    Parameters
    ----------
    obj
        Has ``__dlpack__``, and is on a CUDA device.
    stream
        Where the array will be used, as DLPack numbers streams: its producer makes it ready there.
    where
        What to call it in an error.
    give_back
        Gets the call that frees the array, once nobody uses it here any more.

    Returns
    -------
    Tensor

    Raises
    ------
    TypeError
        For an array that its library does not export, or of a dtype that NumPy has not.
    """
    try:
        capsule = _ask(obj, stream)
    except Exception as error:
        raise TypeError(
            f"{where}, a {type(obj).__module__}.{type(obj).__name__}, cannot be read by DLPack "
            f"({type(error).__name__}: {error}): convert it with its own library first"
        ) from error
    versioned = bool(_is_valid(capsule, _NAME_1))
    if not versioned and not _is_valid(capsule, _NAME):
        raise TypeError(f"{where} gave no DLPack capsule that is unused: __dlpack__ must make one")
    pointer = _pointer_of(capsule, _NAME_1 if versioned else _NAME)
    kind: Any = _ManagedVersioned if versioned else _Managed
    managed = ctypes.cast(pointer, ctypes.POINTER(kind)).contents
    if versioned and managed.major > _VERSION[0]:
        # A capsule that is not consumed frees the array itself.
        raise TypeError(
            f"{where} speaks DLPack {managed.major}.{managed.minor}, newer than "
            f"{_VERSION[0]}.{_VERSION[1]}: pass an array that has __cuda_array_interface__"
        )
    tensor = managed.tensor
    dtype = _dtype(tensor.dtype, where)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = None
    if tensor.strides:
        strides = tuple(tensor.strides[axis] * dtype.itemsize for axis in range(tensor.ndim))
    flags = managed.flags if versioned else 0
    address, device = (tensor.data or 0) + tensor.byte_offset, tensor.device.index
    _set_name(capsule, _USED_1 if versioned else _USED)
    lease = Lease(obj)
    deleter = managed.deleter

    def free() -> None:
        if deleter:
            _Deleter(deleter)(pointer)

    # At the end of the process the producer may be gone before its array is.
    weakref.finalize(lease, give_back, free).atexit = False
    return Tensor(address, shape, strides, dtype, device, bool(flags & _READ_ONLY), lease)


def _ask(obj: Any, stream: int) -> Any:
    try:
        return obj.__dlpack__(stream=stream, max_version=_VERSION)
    except TypeError:
        return obj.__dlpack__(stream=stream)  # from before version 1


def _dtype(kind: _Type, where: str) -> np.dtype[Any]:
    code, bits = kind.code, kind.bits
    if kind.lanes == 1:
        if (code, bits) == (_BOOL, 8):
            return np.dtype(np.bool_)
        if (code, bits) == (_BFLOAT, 16):
            return _bfloat16()
        try:
            return np.dtype(f"{_KINDS[code]}{bits // 8}")
        except (KeyError, TypeError):
            pass
    raise TypeError(
        f"{where} has samples of {bits} bits of DLPack's type {code} with {kind.lanes} lanes, "
        f"which NumPy has not: convert it to a dtype that NumPy has"
    )


def _bfloat16() -> np.dtype[Any]:
    try:
        return np.dtype("bfloat16")  # there when a library has registered it
    except TypeError:
        return np.dtype("V2")


_made: dict[int, tuple[Any, ...]] = {}
"""What a capsule made here points to, by address, until its consumer frees it."""


@_Deleter
def _delete(pointer: int) -> None:
    _, _, _, on_free = _made.pop(pointer)
    on_free()


@_Deleter
def _destroy(capsule: int) -> None:
    # Whoever consumes a capsule renames it, and frees the array when it is done with it.
    for name in (_NAME, _NAME_1):
        if _is_valid_at(capsule, name):
            _delete(_pointer_at(capsule, name))


@lru_cache
def _callbacks() -> tuple[int, int]:
    """Return the addresses of `_delete` and `_destroy` for C.

    Arrays are freed while an exception is on its way, which a callback written in Python can
    neither run beside nor leave as it was: these set it aside, and bring it back.
    """
    word = ir.IntType(64)
    module = ir.Module("udfkit_dlpack")
    names = "delete", "destroy"
    for name, callback in zip(names, (_delete, _destroy), strict=True):
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [word]), name)
        builder = ir.IRBuilder(function.append_basic_block())
        slots = [builder.alloca(word) for _ in range(3)]
        lock = _call(builder, ctypes.pythonapi.PyGILState_Ensure, ir.IntType(32))
        addresses = [builder.ptrtoint(slot, word) for slot in slots]
        _call(builder, ctypes.pythonapi.PyErr_Fetch, ir.VoidType(), *addresses)
        _call(builder, callback, ir.VoidType(), function.args[0])
        error = [builder.load(slot) for slot in slots]
        _call(builder, ctypes.pythonapi.PyErr_Restore, ir.VoidType(), *error)
        _call(builder, ctypes.pythonapi.PyGILState_Release, ir.VoidType(), lock)
        builder.ret_void()
    llvmlite.binding.initialize_native_target()
    llvmlite.binding.initialize_native_asmprinter()
    machine = llvmlite.binding.Target.from_default_triple().create_target_machine()
    parsed = llvmlite.binding.parse_assembly(str(module))
    engine = llvmlite.binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    delete, destroy = map(engine.get_function_address, names)
    engine.detach()  # the code stays until the process ends, as other libraries call it
    return delete, destroy


def _call(builder: Any, function: Any, result: Any, *values: Any) -> Any:
    kind = ir.FunctionType(result, [value.type for value in values])
    address = ir.Constant(ir.IntType(64), ctypes.cast(function, ctypes.c_void_p).value)
    return builder.call(builder.inttoptr(address, kind.as_pointer()), values)


def make_capsule(
    address: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: tuple[int, int],
    owner: Any,
    on_free: Callable[[], None],
    *,
    versioned: bool,
) -> Any:
    """Return a DLPack capsule of a C-contiguous array; ``owner`` is kept until it is freed.

    A versioned capsule says that the array must not be written.

    Raises
    ------
    BufferError
        For a dtype that DLPack has not.
    """
    codes = {"i": 0, "u": 1, "f": 2, "b": _BOOL}
    is_bfloat = dtype.itemsize == 2 and (dtype.name == "bfloat16" or dtype == np.dtype("V2"))
    code = _BFLOAT if is_bfloat else codes.get(dtype.kind)
    if code is None or not dtype.isnative:
        raise BufferError(f"DLPack has no type for dtype {dtype}")
    sizes = (ctypes.c_int64 * (2 * len(shape)))(*shape, *_strides(shape))
    first = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    second = ctypes.cast(ctypes.addressof(sizes) + 8 * len(shape), ctypes.POINTER(ctypes.c_int64))
    tensor = _Tensor(
        address or None,
        _Device(*device),
        len(shape),
        _Type(code, 8 * dtype.itemsize, 1),
        first,
        second,
        0,
    )
    deleter, destructor = _callbacks()
    managed: Any
    if versioned:
        managed = _ManagedVersioned(*_VERSION, None, deleter, _READ_ONLY, tensor)
    else:
        managed = _Managed(tensor, None, deleter)
    pointer = ctypes.addressof(managed)
    _made[pointer] = (managed, sizes, owner, on_free)
    name = _NAME_1 if versioned else _NAME
    return _new(pointer, name, destructor)


def _strides(shape: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
