"""The library's DLPack capsules and PyTorch's, on the CPU: the structures are the same there."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from udfkit.items import may_be_on_gpu
from udfkit.kernels import dlpack

DTYPES = ["bool", "int8", "uint8", "int64", "float16", "float32", "float64"]


class Ours:
    """An array of ours, by DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.freed = array, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, max_version: Any = None, **options: Any) -> Any:
        def freed() -> None:
            self.freed += 1

        array = self.array
        address = array.ctypes.data if array.size else 0
        return dlpack.make_capsule(
            address,
            array.shape,
            array.dtype,
            (1, 0),
            array,
            freed,
            versioned=max_version is not None and max_version[0] >= 1,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)], ids=str)
def test_torch_takes_what_is_made_here(dtype: str, shape: tuple[int, ...]) -> None:
    made = Ours(np.arange(np.prod(shape)).reshape(shape).astype(dtype))
    taken = torch.from_dlpack(made)
    assert (taken.dtype, tuple(taken.shape)) == (getattr(torch, dtype), shape)
    assert (taken.numpy() == made.array).all()
    assert made.array.size == 0 or taken.data_ptr() == made.array.ctypes.data
    assert made.freed == 0
    del taken
    assert made.freed == 1


@pytest.mark.parametrize("dtype", [np.dtype("V2"), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_bfloat16_goes(dtype: np.dtype) -> None:
    bits = np.arange(0x3F80, 0x3F86, dtype=np.uint16).reshape(2, 3)
    taken = torch.from_dlpack(Ours(bits.view(dtype)))
    assert taken.dtype == torch.bfloat16
    assert (taken.view(torch.uint16).numpy() == bits).all()


class Theirs:
    """A tensor, asked as a consumer on a stream asks; the CPU has none."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, stream: Any, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_what_torch_makes_is_taken_here(dtype: str) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    freed: list[Any] = []
    for part in (tensor, tensor[1:], tensor[:, ::2], tensor.T, tensor[:0]):
        taken = dlpack.take(Theirs(part), 1, "x", freed.append)
        assert taken.shape == tuple(part.shape)
        assert taken.dtype == (ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype))
        assert part.numel() == 0 or taken.address == part.data_ptr()
        size = part.element_size()
        assert taken.strides in (None, tuple(size * step for step in part.stride()))
        del taken
    assert len(freed) == 5
    for free in freed:
        free()


def test_a_tensor_with_a_gradient_says_how() -> None:
    tensor = torch.ones(3, requires_grad=True)
    with pytest.raises(TypeError, match=r"x, a .*cannot be read by DLPack.*detach"):
        dlpack.take(Theirs(tensor), 1, "x", lambda free: free())


def test_tensors_of_the_cpu_are_told_apart() -> None:
    assert not may_be_on_gpu(torch.ones(3))
    assert not may_be_on_gpu(torch.ones(3, requires_grad=True))
    assert not may_be_on_gpu(torch.ones(3, device="meta"))
