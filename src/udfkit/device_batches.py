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
from udfkit.items import as_sequence
from udfkit.layout import Layout, check_starts
from udfkit.places import device_index_of, place_of
from udfkit.value import Value
from udfkit.variable import Variable

__all__ = ["from_device_array", "from_device_list"]


def _check_device_dtype(var: Variable, dtype: np.dtype, where: str) -> None:
    # The CUDA Array Interface has no name for bfloat16: those arrays come as opaque bytes.
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
    device, (view,) = _read_all([array], [where], asked)
    check_rectangle(var, view.shape, where)
    _check_device_dtype(var, view.dtype, where)
    layout = rectangle_layout(var, view.shape, seq_starts)
    view = view.part(0, view.shape, var.dtype)
    data = place_of(device).copy(view) if copy else view
    return Value._make(layout, device, padded=data)


def from_device_list(
    var: Variable, batch: Sequence[Any], seq_starts: Any, asked: DeviceDescriptor | None
) -> Value:
    """Make a Value of a list with one device array a sequence.

    Items have the shapes that items on the host may have. For a batch-only variable each is one
    sample.

    Raises
    ------
    DeviceError
        When they are not all on one device, or another one was asked for.
    ValueError
        When a shape or dtype does not fit, with the index.
    """
    if var.kind == "none":
        raise ValueError(
            f"variable {var.name!r} has no batch axis, but the batch is a list of device arrays: "
            f"pass one device array of shape {shape_text(var.shape)}"
        )
    starts = check_starts(seq_starts, len(batch)) if var.kind == "sequence" else None
    what = "sequence" if var.kind == "sequence" else "item"
    names = [f"{what} {k} for variable {var.name!r}" for k in range(len(batch))]
    device, views = _read_all(batch, names, asked)
    for k, where in enumerate(names):
        _check_device_dtype(var, views[k].dtype, where)
        shape = as_sequence(_of_shape(views[k]), var.shape, where).shape
        if var.kind == "batch" and shape[0] != 1:
            raise ValueError(
                f"{where} has shape {shape_text(views[k].shape)}, expected one sample of shape "
                f"{shape_text(var.shape)}"
            )
        if k and shape[1:] != views[0].shape[1:]:
            raise ValueError(
                f"{where} has samples of shape {shape_text(shape[1:])}, {what} 0 has "
                f"{shape_text(views[0].shape[1:])}: make them equal"
            )
        views[k] = views[k].part(0, shape, var.dtype)
    flat, lengths = place_of(device).gather_device(views)
    if var.kind == "batch":
        return Value._make(Layout.of_batch(len(views)), device, padded=flat)
    return Value._make(Layout.of_lengths(lengths, starts), device, flat=flat)


def _read_all(
    arrays: Sequence[Any], names: Sequence[str], asked: DeviceDescriptor | None
) -> tuple[DeviceDescriptor, list[Any]]:
    """Return the one device that all these arrays are on, and their views."""
    from udfkit.device_places import read_foreign

    found: DeviceDescriptor | None = None
    first, views = "", []
    for array, where in zip(arrays, names, strict=True):
        read = read_foreign(array, where)
        if read is None:
            raise DeviceError(
                f"{where} is a {type(array).__name__} on the host, but {names[0]} is on a GPU: put "
                f"all on one device"
            )
        view, index = read
        views.append(view)
        if index is None:
            continue
        device = devices.gpu(index)
        if asked is not None and asked != device:
            raise DeviceError(
                f"{where} is on {device}, and {asked} was asked for: copy it there first, or pass "
                f"device=udfkit.gpu({index})"
            )
        if found is not None and found != device:
            raise DeviceError(
                f"{where} is on {device}, but {first} is on {found}: put all on one device"
            )
        if found is None:
            found, first = device, where
    if found is None:
        found = devices.gpu(device_index_of(arrays[0]) or 0) if asked is None else asked
        if not found.is_gpu:
            raise DeviceError(
                f"{names[0]} is on a GPU, and {asked} was asked for: copy it there first, or pass "
                f"device=udfkit.gpu(i)"
            )
    return found, views


def _of_shape(view: Any) -> np.ndarray:
    """Return an array on the host with the shape of one on a device, and next to no memory."""
    return np.broadcast_to(np.zeros((), np.uint8), view.shape)
