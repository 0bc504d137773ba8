"""Ragged batches and nested jagged tensors of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from udfkit.adapters.torch_forms import tensor_of
from udfkit.casting import check_dtype
from udfkit.errors import DeviceError
from udfkit.ragged import Ragged

__all__ = ["from_torch", "to_torch"]


def from_torch(nested: Any) -> Ragged:
    """Return a Ragged over the values of a nested jagged tensor.

    Examples
    --------
    >>> import torch, udfkit
    >>> nested = torch.nested.nested_tensor([[1.0, 2.0], [3.0]], layout=torch.jagged)
    >>> [x.tolist() for x in udfkit.Ragged.from_torch(nested)]
    [[1.0, 2.0], [3.0]]
    """
    if not isinstance(nested, torch.Tensor) or not nested.is_nested:
        raise TypeError(
            f"expected a nested tensor, not a {type(nested).__name__}: make it with "
            f"torch.nested.nested_tensor(..., layout=torch.jagged), or give values and offsets to "
            f"udfkit.Ragged"
        )
    if nested.layout is not torch.jagged:
        raise TypeError(
            f"the nested tensor has layout {nested.layout}: make it with layout=torch.jagged"
        )
    if nested.device.type != "cpu":
        raise DeviceError(f"the nested tensor is on {nested.device}: move it with .cpu()")
    if nested.requires_grad:
        raise ValueError(
            "the nested tensor requires a gradient, which is lost: pass nested.detach(), or use "
            "udfkit.torch.apply"
        )
    if nested._ragged_idx != 1:
        raise ValueError(
            f"the nested tensor is ragged in dimension {nested._ragged_idx}, expected 1, (B, T, "
            f"*sample): transpose it back"
        )
    if nested.lengths() is not None:
        nested = nested.contiguous()
    values, offsets = nested.values(), nested.offsets().numpy()
    if values.dtype is torch.bfloat16:
        return Ragged(values.view(torch.int16).numpy().view(_bfloat16()), offsets)
    return Ragged(values.numpy(), offsets)


def _bfloat16() -> np.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            "the nested tensor is bfloat16, which NumPy has only with the package ml_dtypes: "
            "install it, or convert with .float()"
        ) from None
    return check_dtype(ml_dtypes.bfloat16)


def to_torch(ragged: Ragged) -> Any:
    """Return a nested jagged tensor over the values of a Ragged."""
    values = ragged.values.view()
    try:
        values.flags.writeable = True
    except ValueError:
        # torch has no tensors that cannot be written.
        values = values.copy()
    offsets = torch.from_numpy(np.array(ragged.offsets))
    return torch.nested.nested_tensor_from_jagged(tensor_of(values), offsets)
