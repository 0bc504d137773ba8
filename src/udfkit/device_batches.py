"""Batches that are on a CUDA device already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from udfkit import device as devices
from udfkit.casting import cast_exactly, check_real, is_bfloat16, warn_cast
from udfkit.device import DeviceDescriptor
from udfkit.errors import DeviceError, shape_text
from udfkit.forms import check_rectangle, rectangle_layout
from udfkit.items import as_sequence
from udfkit.layout import Layout, check_starts
from udfkit.places import device_index_of, place_of
from udfkit.ragged import Ragged
from udfkit.value import Value
from udfkit.variable import Variable

__all__ = ["from_device_array", "from_device_list", "from_device_ragged"]


def _fits_as_it_is(var: Variable, dtype: np.dtype) -> bool:
    # The CUDA Array Interface has no name for bfloat16: those arrays come as opaque bytes.
    return dtype == var.dtype or (is_bfloat16(var.dtype) and dtype == np.dtype("V2"))


def _check_castable(var: Variable, dtype: np.dtype, where: str) -> None:
    """Raise unless samples of ``dtype`` are cast to the variable's, by the rules of the host."""
    if _fits_as_it_is(var, dtype):
        return
    check_real(dtype, where)
    if not dtype.isnative:
        raise ValueError(
            f"{where} has dtype {dtype} of the other byte order: convert it on the host first"
        )
    cast_exactly(np.empty(0, dtype), var.dtype, where)


def _cast(
    var: Variable, view: Any, place: Any, warn_for: Variable | None, names: Sequence[str], ends: Any
) -> Any:
    """Return samples in the variable's dtype; ``ends`` says where each of ``names`` ends."""
    if _fits_as_it_is(var, view.dtype):
        return view.part(0, view.shape, var.dtype)
    warn_cast(warn_for, view.dtype)

    def on_host(array: np.ndarray) -> np.ndarray:
        parts = np.split(array, ends) if len(names) > 1 else [array]
        for part, where in zip(parts, names, strict=True):
            cast_exactly(part, var.dtype, where)
        return cast_exactly(array, var.dtype, "the batch")

    return place.cast(view, var.dtype, on_host)


def from_device_array(
    var: Variable,
    array: Any,
    seq_starts: Any,
    asked: DeviceDescriptor | None,
    copy: bool,
    warn_for: Variable | None,
) -> Value:
    """Make a Value of a whole array that is on a device; it stays there.

    Raises
    ------
    DeviceError
        When another device was asked for.
    ValueError
        When its shape does not fit, or a value that has to be cast.
    """
    where = f"the batch for variable {var.name!r}"
    device, (view,) = _read_all([array], [where], asked)
    check_rectangle(var, view.shape, where)
    _check_castable(var, view.dtype, where)
    layout = rectangle_layout(var, view.shape, seq_starts)
    data = _own(var, view, place_of(device), copy, warn_for, where)
    return Value._make(layout, device, padded=data)


def _own(
    var: Variable, view: Any, place: Any, copy: bool, warn_for: Variable | None, where: str
) -> Any:
    """Return samples in the variable's dtype; in memory of their own where ``copy`` says so."""
    made = _cast(var, view, place, warn_for, [where], None)
    return place.copy(made) if copy and _fits_as_it_is(var, view.dtype) else made


def from_device_ragged(
    var: Variable,
    batch: Ragged,
    starts: np.ndarray | None,
    asked: DeviceDescriptor | None,
    copy: bool,
    warn_for: Variable | None,
) -> Value:
    """Make a Value of a Ragged whose values are on a device, where they stay.

    Its sample shape and starts have been checked, and that it is one for this kind of variable.

    Raises
    ------
    DeviceError
        When another device was asked for.
    ValueError
        When a value does not fit the variable's dtype, with the sequence and the index.
    """
    where = f"the Ragged for variable {var.name!r}"
    device, (view,) = _read_all([batch.values], [where], asked)
    place = place_of(device)
    _check_castable(var, view.dtype, where)
    if _fits_as_it_is(var, view.dtype):
        flat = _own(var, view, place, copy, warn_for, where)
    else:
        names = [f"sequence {k}" for k in range(len(batch))] or [where]
        flat = _cast(var, view, place, warn_for, names, batch.offsets[1:-1])
    if var.kind == "batch":
        return Value._make(Layout.of_batch(len(batch)), device, padded=flat)
    return Value._make(Layout.of_lengths(batch.lengths, starts), device, flat=flat)


def from_device_list(
    var: Variable,
    batch: Sequence[Any],
    seq_starts: Any,
    asked: DeviceDescriptor | None,
    warn_for: Variable | None,
) -> Value:
    """Make a Value of a list with one device array a sequence.

    Items have the shapes that items on the host may have. For a batch-only variable each is one
    sample.

    Raises
    ------
    DeviceError
        When they are not all on one device, or another one was asked for.
    ValueError
        When a shape does not fit, or a value that has to be cast, with the index.
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
        _check_castable(var, views[k].dtype, where)
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
        views[k] = views[k].part(0, shape, views[k].dtype)
    flat, lengths = _gather(var, views, place_of(device), warn_for, names)
    if var.kind == "batch":
        return Value._make(Layout.of_batch(len(views)), device, padded=flat)
    return Value._make(Layout.of_lengths(lengths, starts), device, flat=flat)


def _gather(
    var: Variable, views: list[Any], place: Any, warn_for: Variable | None, names: Sequence[str]
) -> tuple[Any, np.ndarray]:
    """Return flat samples in the variable's dtype, and the lengths."""
    if len({view.dtype for view in views}) == 1 and not _fits_as_it_is(var, views[0].dtype):
        flat, lengths = place.gather_device(views)
        return _cast(var, flat, place, warn_for, names, np.cumsum(lengths)[:-1]), lengths
    cast = [
        _cast(var, view, place, warn_for, [name], None)
        for view, name in zip(views, names, strict=True)
    ]
    gathered: tuple[Any, np.ndarray] = place.gather_device(cast)
    return gathered


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
