"""A device made of the PTX interpreter: host memory as device memory, real code, real launches."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from ptx_interpreter import Program, parse, run
from ptx_memory import Memory, Statistics
from toolchain import Case, ptx

GARBAGE = 0xA5


class Array:
    """A device array; `_ary` is where this library looks for the memory of a simulated one."""

    def __init__(self, array: Any, owner: Any = None) -> None:
        self._ary = array
        self._owner = owner
        self.shape, self.dtype, self.size = array.shape, array.dtype, array.size

    def reshape(self, *shape: int) -> Array:
        return Array(self._ary.reshape(*shape), self)

    def copy_to_host(self, stream: Any = 0) -> Any:
        return self._ary.copy()

    def copy_to_device(self, array: Any, stream: Any = 0) -> None:
        self._ary[...] = array


def install(monkeypatch: Any, device: Device) -> None:
    """Make the library launch and allocate on an interpreted device."""
    from udfkit.kernels import cuda_target

    monkeypatch.setattr(cuda_target, "module", lambda: device)
    monkeypatch.setattr(cuda_target, "is_simulated", lambda: True)
    monkeypatch.setattr(cuda_target, "kernel", device.program)
    monkeypatch.setattr(cuda_target, "launch", device.launch)
    monkeypatch.setattr(cuda_target, "multiprocessors", lambda number: 132)


class Device:
    """Stands for ``numba.cuda``; remembers arrays, programs and what every launch did."""

    def __init__(self) -> None:
        self._blocks: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._writable: dict[int, bool] = {}
        self._programs: dict[Any, Program] = {}
        self.launches: list[tuple[Statistics, dict[int, int]]] = []

    def _allocate(self, shape: Any, dtype: Any, writable: bool) -> Array:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block = np.full(size + 256, GARBAGE, np.uint8)
        skip = -block.ctypes.data % 256
        part = block[skip : skip + size]
        if size:
            self._blocks[part.ctypes.data] = part
            self._writable[part.ctypes.data] = writable
        return Array(part.view(dtype).reshape(shape), part)

    def device_array(self, shape: Any, dtype: Any, stream: Any = 0) -> Array:
        return self._allocate(shape, dtype, True)

    def to_device(self, array: Any, stream: Any = 0) -> Array:
        made = self._allocate(array.shape, array.dtype, False)
        made._ary[...] = array
        return made

    def pinned_array(self, shape: Any, dtype: Any) -> Any:
        return np.empty(shape, dtype)

    def synchronize(self) -> None:
        """Everything is over when a call returns."""

    def program(self, name: str, width: int, is_wide: bool, device: int = 0) -> Program:
        key = (name, width, is_wide)
        if key not in self._programs:
            self._programs[key] = parse(ptx(Case(*key)))
        return self._programs[key]

    def launch(self, program: Any, shape: Any, stream: Any, arguments: tuple[int, ...]) -> None:
        if shape.is_empty:
            return
        memory = Memory()
        places = {}
        for k, (address, part) in enumerate(list(self._blocks.items())):
            memory.place(part, at=address, writable=self._writable[address])
            places[address] = k
        statistics = run(program, shape.grid, shape.block, list(arguments), memory)
        self.launches.append((statistics, places))

    def sectors(self, kind: str, array: Array) -> int:
        """Sectors of an array that the last launch loaded or stored, over all warps."""
        statistics, places = self.launches[-1]
        return statistics.sectors[kind, places[array._ary.ctypes.data]]
