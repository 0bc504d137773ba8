"""The kernels of casts and of strides become PTX, without a device."""

from __future__ import annotations

import itertools
import re
from unittest import mock

import numpy as np
import pytest
import toolchain

pytestmark = pytest.mark.skipif(not toolchain.DEMANDED, reason=toolchain.WHY_NOT)

CODES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


def ptx(source: str, target: str, capability: tuple[int, int]) -> str:
    from numba import types
    from numba.np.numpy_support import from_dtype

    from udfkit.kernels import cuda_casts

    dtypes = np.dtype(source), np.dtype(target)
    arrays = [types.Array(from_dtype(dtype), 1, "C") for dtype in dtypes]
    if not cuda_casts.holds_every_value(*dtypes):
        arrays.append(types.Array(types.int32, 1, "C"))
    device = mock.MagicMock(compute_capability=capability)
    with mock.patch("numba.cuda.dispatcher.get_current_device", return_value=device):
        text, _ = toolchain.numba_cuda().compile(
            cuda_casts.make_kernel(*dtypes),
            types.void(*arrays),
            cc=capability,
            output="ptx",
            device=False,
            abi="numba",
        )
    return str(text)


@pytest.mark.parametrize(("source", "target"), [*itertools.permutations(CODES, 2)])
def test_a_cast_compiles_without_a_call_or_memory_of_a_thread(source: str, target: str) -> None:
    text = ptx(source, target, (9, 0))
    assert not re.search(r"\b(call|atom|red)\b", text)
    assert ".local" not in text


@pytest.mark.parametrize("capability", toolchain.CAPABILITIES, ids=lambda c: f"{c[0]}.{c[1]}")
def test_halves_compile_for_every_device(capability: tuple[int, int]) -> None:
    for source, target in (("f2", "f4"), ("f8", "f2"), ("i8", "f2"), ("f2", "i4")):
        assert "cvt" in ptx(source, target, capability)


@pytest.mark.parametrize("width", [16, 8, 4, 2, 1])
def test_copies_of_strided_arrays_compile(width: int) -> None:
    from numba import types

    from udfkit.kernels import cuda_strides

    device = mock.MagicMock(compute_capability=(9, 0))
    with mock.patch("numba.cuda.dispatcher.get_current_device", return_value=device):
        text, _ = toolchain.numba_cuda().compile(
            cuda_strides.make_kernel(width),
            types.void(*[types.int64] * 14),
            cc=(9, 0),
            output="ptx",
            device=False,
            abi="numba",
        )
    assert ("ld.global.v4" in text) == (width == 16)
    assert ".local" not in text
