"""Ragged to nested jagged tensors and back: PyTorch's own parts are the oracle."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import udfkit
from interop_batches import (
    FLOATS,
    LENGTHS,
    SHAPES,
    batch,
    check_that_starts_are_not_lost,
    lists,
    shares,
)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [n for n in LENGTHS if n])
def test_round_trip_without_copies(lengths, shape):
    ragged = batch(lengths, shape)
    nested = ragged.to_torch()
    assert nested.layout is torch.jagged
    assert [part.tolist() for part in nested.unbind()] == lists(ragged)
    back = udfkit.Ragged.from_torch(nested)
    assert back.equals(ragged)
    if sum(lengths):
        assert shares(back.values, ragged.values)
        assert nested.values().data_ptr() == ragged.values.ctypes.data


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", *FLOATS])
def test_dtypes(dtype):
    ragged = batch([2, 0, 3], (2,), dtype)
    assert udfkit.Ragged.from_torch(ragged.to_torch()).equals(ragged)


def test_bfloat16():
    values = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16)
    ragged = udfkit.Ragged(values, [0, 2, 6])
    nested = ragged.to_torch()
    assert nested.dtype is torch.bfloat16
    assert nested.values().tolist() == [0, 1, 2, 3, 4, 5]
    assert udfkit.Ragged.from_torch(nested).equals(ragged)


def test_nested_tensors_with_gaps():
    padded = torch.arange(12.0).reshape(3, 4)
    nested = torch.nested.narrow(
        padded, 1, torch.tensor([0, 1, 0]), torch.tensor([2, 3, 0]), layout=torch.jagged
    )
    assert lists(udfkit.Ragged.from_torch(nested)) == [[0, 1], [5, 6, 7], []]


def test_values_that_cannot_be_written_are_copied():
    values = np.arange(3.0)
    values.flags.writeable = False
    nested = udfkit.Ragged(values, [0, 3]).to_torch()
    nested.values().zero_()
    assert values.tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_refused():
    with pytest.raises(TypeError, match="expected a nested tensor, not a Tensor"):
        udfkit.Ragged.from_torch(torch.zeros(3))
    nested = batch([2, 1]).to_torch()
    with pytest.raises(ValueError, match="requires a gradient, which is lost"):
        udfkit.Ragged.from_torch(nested.requires_grad_())
    with pytest.raises(TypeError, match=r"layout torch\.strided"):
        udfkit.Ragged.from_torch(torch.nested.as_nested_tensor([torch.zeros(2)]))
    with pytest.raises(ValueError, match="ragged in dimension 2"):
        udfkit.Ragged.from_torch(batch([2, 1], (2,)).to_torch().transpose(1, 2))
    with pytest.raises(udfkit.DeviceError, match="on meta"):
        udfkit.Ragged.from_torch(batch([2, 1]).to_torch().to("meta"))


def test_starts_are_not_lost():
    check_that_starts_are_not_lost("to_torch")
