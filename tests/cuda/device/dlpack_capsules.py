"""DLPack capsules made and read by hand: ``dlpack.h`` once more, apart from the library's."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from device_checks import Foreign

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
BFLOAT = 4


class TensorStruct(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class Unversioned(ctypes.Structure):
    _fields_ = (
        ("tensor", TensorStruct),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", TensorStruct),
    )


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NAMES = {False: b"dltensor", True: b"dltensor_versioned"}


def call(name: str, result: Any, *arguments: tuple[Any, Any]) -> Any:
    kinds, values = zip(*arguments, strict=True)
    return ctypes.PYFUNCTYPE(result, *kinds)((name, ctypes.pythonapi))(*values)


_ALIVE: list[Producer] = []
"""A device frees arrays later than a test may end, and the structures must be there until then."""


class Producer:
    """An array of a library that has nothing but DLPack.

    Its memory is on the device; ``changes`` go into the structure.
    """

    def __init__(
        self,
        array: np.ndarray,
        *,
        versioned: bool = True,
        version: tuple[int, int] = (1, 0),
        flags: int = 0,
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
        device: tuple[int, int] = (2, 0),
        knows_versions: bool = True,
        **changes: int,
    ) -> None:
        before = np.zeros(offset, np.uint8)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.memory = Foreign(np.concatenate([before, raw]))
        self.address = self.memory.address + offset if array.size else 0
        self.device, self.knows_versions = device, knows_versions
        self.asked: list[dict[str, Any]] = []
        self.freed = 0
        self.sizes = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        self.steps = (ctypes.c_int64 * max(array.ndim, 1))(*(strides or ()))
        self.deleter = Deleter(self._free)
        tensor = TensorStruct(
            self.memory.address if array.size else None,
            *device,
            array.ndim,
            CODES.get(array.dtype.kind, 0),
            8 * array.dtype.itemsize,
            1,
            ctypes.addressof(self.sizes),
            None if strides is None else ctypes.addressof(self.steps),
            offset,
        )
        for name, value in changes.items():
            setattr(tensor, name, value)
        deleter = ctypes.cast(self.deleter, ctypes.c_void_p)
        self.versioned = versioned
        _ALIVE.append(self)
        if versioned:
            self.struct: Any = Versioned(version, None, deleter, flags, tensor)
        else:
            self.struct = Unversioned(tensor, None, deleter)

    def _free(self, pointer: int) -> None:
        assert pointer == ctypes.addressof(self.struct)
        self.freed += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        if not self.knows_versions and "max_version" in options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.asked.append(options)
        return call(
            "PyCapsule_New",
            ctypes.py_object,
            (ctypes.c_void_p, ctypes.addressof(self.struct)),
            (ctypes.c_char_p, NAMES[self.versioned]),
            (ctypes.c_void_p, None),
        )


class Consumed:
    """What a consumer sees of a capsule, which it takes; `free` when it is done."""

    def __init__(self, capsule: Any) -> None:
        self.versioned = bool(
            call(
                "PyCapsule_IsValid",
                ctypes.c_int,
                (ctypes.py_object, capsule),
                (ctypes.c_char_p, NAMES[True]),
            )
        )
        name = NAMES[self.versioned]
        self.pointer = call(
            "PyCapsule_GetPointer",
            ctypes.c_void_p,
            (ctypes.py_object, capsule),
            (ctypes.c_char_p, name),
        )
        kind = Versioned if self.versioned else Unversioned
        self.struct = kind.from_address(self.pointer)
        self.used = b"used_" + name
        call(
            "PyCapsule_SetName",
            ctypes.c_int,
            (ctypes.py_object, capsule),
            (ctypes.c_char_p, self.used),
        )
        tensor = self.struct.tensor
        self.shape = self._numbers(tensor.shape, tensor.ndim)
        self.strides = self._numbers(tensor.strides, tensor.ndim)
        self.dtype = (tensor.code, tensor.bits, tensor.lanes)
        self.device = (tensor.device_type, tensor.device_id)
        self.address = (tensor.data or 0) + tensor.byte_offset

    @staticmethod
    def _numbers(address: int | None, count: int) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * count).from_address(address)) if count and address else ()

    def free(self) -> None:
        Deleter(self.struct.deleter)(self.pointer)
