"""Torch tensors in and out of `udfkit.Collate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from udfkit.errors import DeviceError

if TYPE_CHECKING:
    import torch

__all__ = ["bits_of", "to_arrays", "to_tensor"]


def to_arrays(items: list[Any]) -> tuple[list[Any], torch.dtype | None]:
    """Return arrays over the memory of tensors, and the dtype that NumPy does not have, or None.

    bfloat16 is moved as the integers of its bits.

    Raises
    ------
    DeviceError
        For a tensor that is not on the CPU.
    TypeError, ValueError
        For one that no array can show, or whose gradient would be lost.
    """
    import torch

    arrays: list[Any] = []
    halves = 0
    for k, item in enumerate(items):
        if not isinstance(item, torch.Tensor):
            arrays.append(item)
            continue
        if item.device.type != "cpu":
            raise DeviceError(
                f"sample {k} is on {item.device}, but a data loader pads on the CPU: pass CPU "
                f"tensors, and move the batch afterwards"
            )
        if item.requires_grad:
            raise ValueError(f"sample {k} requires a gradient, which is lost: pass x.detach()")
        if item.layout != torch.strided:
            raise TypeError(f"sample {k} has layout {item.layout}: pass a dense tensor")
        if item.dtype == torch.bfloat16:
            halves += 1
            item = item.view(torch.int16)
        arrays.append(item.numpy())
    if halves and halves != len(items):
        raise ValueError("some samples are bfloat16 and others are not: pass tensors of one dtype")
    return arrays, torch.bfloat16 if halves else None


def bits_of(value: Any, dtype: torch.dtype) -> int:
    """Return a padding value as the integer of its bits in a 2-byte dtype.

    Raises
    ------
    ValueError
        When the dtype cannot hold it.
    """
    import torch

    held = torch.tensor(value, dtype=dtype)
    number = float(value)
    exact = isinstance(value, int) and held.item() != value
    if exact or (np.isfinite(number) and not torch.isfinite(held)):
        raise ValueError(f"padding_value {value!r} cannot be held by {dtype}: choose one that can")
    return int(held.view(torch.int16).item())


def to_tensor(array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor over the memory of an array; its bits as ``dtype`` where that is given."""
    import torch

    if not array.flags.writeable:
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.view(dtype)
