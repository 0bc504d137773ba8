"""Batches that are on a CUDA device already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from udfkit import device as devices
from udfkit.casting import is_bfloat16
from udfkit.device import DeviceDescriptor
from udfkit.errors import DeviceError, shape_text
from udfkit.forms import check_rectangle, rectangle_layout
from udfkit.layout import Layout, check_starts
from udfkit.places import device_index_of, place_of
from udfkit.value import Value
from udfkit.variable import Variable

__all__ = ["from_device_array", "from_device_list"]


def _device_of_array(index: int, asked: DeviceDescriptor | None, where: str) -> DeviceDescriptor:
    """Return the device that a device array is on, which must be the one asked for."""
    device = devices.gpu(index)
    if asked is not None and asked != device:
        raise DeviceError(
            f"{where} is on {device}, and {asked} was asked for: copy it there first, or pass "
            f"device=udfkit.gpu({index})"
        )
    return device


def _check_device_dtype(var: Variable, dtype: np.dtype, where: str) -> None:
    opaque = is_bfloat16(var.dtype) and dtype == np.dtype("V2")
    if dtype != var.dtype and not opaque:
        raise ValueError(
            f"{where} has dtype {dtype}, but variable {var.name!r} has {var.dtype}: cast it on its "
            f"device first"
        )


def from_device_array(
    var: Variable, array: Any, seq_starts: Any, asked: DeviceDescriptor | None, copy: bool
) -> Value:
    """Make a Value of a whole array that is on a device; it stays there.

    Raises
    ------
    DeviceError
        When another device was asked for.
    ValueError
        When its shape or dtype does not fit.
    """
    where = f"the batch for variable {var.name!r}"
    device = _device_of_array(device_index_of(array) or 0, asked, where)
    place = place_of(device)
    view = place.read(array, where)
    check_rectangle(var, view.shape, where)
    _check_device_dtype(var, view.dtype, where)
    data = place.copy(view) if copy else view
    return Value._make(rectangle_layout(var, view.shape, seq_starts), device, padded=data)


def from_device_list(
    var: Variable, batch: Sequence[Any], seq_starts: Any, asked: DeviceDescriptor | None
) -> Value:
    """Make a Value of a list with one device array a sequence.

    Raises
    ------
    DeviceError
        When they are not all on one device, or another one was asked for.
    ValueError
        When a shape or dtype does not fit, with the index.
    """
    index = device_index_of(batch[0]) or 0
    device = _device_of_array(index, asked, f"sequence 0 for variable {var.name!r}")
    place = place_of(device)
    views = []
    for k, item in enumerate(batch):
        where = f"sequence {k} for variable {var.name!r}"
        if device_index_of(item) is None:
            raise DeviceError(
                f"{where} is a {type(item).__name__} on the host, but sequence 0 is on {device}: "
                f"put all on one device"
            )
        view = place.read(item, where)
        if len(view.shape) != len(var.shape) + 1 or not var.accepts_sample(view.shape[1:]):
            raise ValueError(
                f"{where} has shape {shape_text(view.shape)}, expected "
                f"{shape_text(('length', *var.shape))}"
            )
        _check_device_dtype(var, view.dtype, where)
        views.append(view)
    if var.kind != "sequence":
        raise ValueError(
            f"variable {var.name!r} has no sequence axis: pass one device array of shape "
            f"{shape_text(('B', *var.shape))}"
        )
    starts = check_starts(seq_starts, len(views))
    flat, lengths = place.gather_device(views)
    return Value._make(Layout.of_lengths(lengths, starts), device, flat=flat)
