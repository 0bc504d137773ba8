"""What the tests of Values on a device share: reading back, counting copies, foreign arrays."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

import reference
import udfkit
from udfkit import DeviceDescriptor, Value
from udfkit.kernels import cuda_arrays, cuda_mask_moves, cuda_target


def on_gpu() -> Any:
    """The device that the tests use."""
    return udfkit.gpu(0)


def read(array: Any) -> np.ndarray:
    """A device array on the host."""
    return cuda_arrays.download(array)


def to_device(array: np.ndarray) -> Any:
    """An array of numba's on the device."""
    return cuda_target.module().to_device(array)


class Foreign:
    """An array of another library: nothing but the CUDA Array Interface."""

    def __init__(self, array: np.ndarray, **changes: Any) -> None:
        self.memory = to_device(np.ascontiguousarray(array).reshape(array.shape))
        host = getattr(self.memory, "_ary", None)
        if cuda_target.is_simulated():
            interface = host.__array_interface__
        else:
            interface = self.memory.__cuda_array_interface__
        address = 0 if array.size == 0 else int(interface["data"][0])
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (address, False),
            "version": 3,
            **changes,
        }

    @property
    def address(self) -> int:
        return int(self.__cuda_array_interface__["data"][0])


class Copies:
    """Counts the copies of arrays to the host."""

    def __init__(self, monkeypatch: Any) -> None:
        self.count = 0
        download = cuda_arrays.download

        def counted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return download(*arguments, **options)

        for module in (cuda_arrays, cuda_mask_moves):
            monkeypatch.setattr(module, "download", counted)
        kind = type(to_device(np.zeros(1, np.float32)))
        copy_to_host = kind.copy_to_host

        def copied(array: Any, *arguments: Any, **options: Any) -> Any:
            self.count += 1
            return copy_to_host(array, *arguments, **options)

        monkeypatch.setattr(kind, "copy_to_host", copied)


def check_device_value(
    value: Value,
    variable: Any,
    sequences: Sequence[np.ndarray],
    starts: Sequence[bool] | None = None,
) -> None:
    """Everything that a Value of one sequence a row says, against the naive reference."""
    shape, dtype = value.shape[2:], variable.dtype
    starts = [True] * len(sequences) if starts is None else list(starts)
    data, mask = reference.pad(sequences, shape, dtype, starts)
    assert value.device == on_gpu()
    assert value.dtype == dtype
    reference.assert_same(value.asarray(), data)
    reference.assert_same(read(value.data), data)
    reference.assert_same(read(value.mask), mask)
    reference.assert_same(read(value.values), reference.flat(sequences, shape, dtype))
    assert value.lengths.tolist() == [len(sequence) for sequence in sequences]
    assert value.starts.tolist() == starts
    assert value.is_masked == (bool((mask == 0).any()) or not all(starts))
    reference.assert_same_list(udfkit.variable_value_to_seq(value, variable), sequences)
    reference.assert_same_list(list(value.ragged()), sequences)
    assert udfkit.sanitize_batch(variable, value) is value


def check_same(value: Value, expected: Value, variable: Any = None) -> None:
    """A Value on the device and one on the host that must say the same, bit for bit."""
    assert value.device == on_gpu()
    reference.assert_same(value.asarray(), expected.asarray())
    reference.assert_same(read(value.mask), np.asarray(expected.mask))
    assert value.shape == expected.shape
    assert value.is_masked == expected.is_masked
    assert value.is_sparse == expected.is_sparse
    assert value.equals(expected)
    assert expected.equals(value)
    if expected.mask.ndim:
        assert value.lengths.tolist() == expected.lengths.tolist()
        assert value.starts.tolist() == expected.starts.tolist()
    if variable is not None:
        got, wanted = (udfkit.variable_value_to_seq(v, variable) for v in (value, expected))
        if isinstance(wanted, list):
            reference.assert_same_list(got, wanted)
        else:
            reference.assert_same(got, wanted)


@contextmanager
def read_where_needed(monkeypatch: Any, pickling: Any) -> Iterator[None]:
    """Make the GPU the default device, and let comparisons read what is on it.

    A Value is pickled from the host: on a device that is refused.
    """
    compare = reference.assert_same

    def assert_same(got: Any, expected: np.ndarray) -> None:
        compare(read(got) if hasattr(got, "copy_to_host") else got, expected)

    def dumps(obj: Any, *arguments: Any) -> bytes:
        moved = obj.to(udfkit.cpu()) if isinstance(obj, Value) else obj
        return pickle.dumps(moved, *arguments)

    monkeypatch.setattr(reference, "assert_same", assert_same)
    monkeypatch.setattr(pickling, "pickle", SimpleNamespace(dumps=dumps, loads=pickle.loads))
    udfkit.set_default_device(on_gpu())
    try:
        yield
    finally:
        udfkit.set_default_device(DeviceDescriptor.cpu())
