"""The two hot paths: any batch to a Value, and a Value to plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from udfkit import device as devices
from udfkit import moves
from udfkit.arguments import check_flag
from udfkit.casting import cast_exactly, check_real, warn_cast
from udfkit.device import DeviceDescriptor
from udfkit.device_batches import from_device_array, from_device_list, from_device_ragged
from udfkit.errors import WHAT_A_BATCH_CAN_BE, shape_text
from udfkit.forms import check_rectangle, rectangle_layout
from udfkit.items import host_array, is_scipy_sparse, plain_array, refuse_non_batch
from udfkit.layout import Layout, check_starts, no_starts
from udfkit.memory import check_size
from udfkit.places import device_index_of, place_of
from udfkit.ragged import Ragged
from udfkit.rows import read_rows
from udfkit.sparse import read_csr
from udfkit.value import Value
from udfkit.variable import Variable

__all__ = ["map_if_possible", "sanitize_batch", "variable_value_to_seq"]


def sanitize_batch(
    var: Variable,
    batch: Any,
    seq_starts: Any = None,
    device: DeviceDescriptor | None = None,
    *,
    copy: bool = True,
) -> Value:
    """Make a Value of a batch, checked against a variable.

    Parameters
    ----------
    var : Variable
        With sample shape ``s`` and one of three kinds of axes.
    batch : Value, Ragged, SciPy CSR, array, or list, tuple or Sequence
        One item a sequence: ``(length, *s)``, or ``s`` for one step. A rectangular array is
        ``(B, T, *s)`` for a sequence variable, ``(B, *s)`` for a batch-only one, ``s`` without
        axes. A Value is returned as it is.
    seq_starts : sequence of bool, shape (B,), optional
        False where a sequence continues the one in the same slot of the batch before.
    device : DeviceDescriptor, optional
        The default device unless given.
    copy : bool, default True
        False may alias a Ragged or a contiguous rectangle instead of copying it.

    Returns
    -------
    Value
        Of the variable's dtype. Values of another dtype are cast with one `CastWarning`.

    Raises
    ------
    TypeError
        When ``var`` is not a Variable, or ``batch`` or an item is nothing that can be a batch.
    ValueError
        When shapes, values or starts do not fit, with the index, the value and the fix.
    PaddedSizeError
        When the padded batch would not fit in memory; nothing is allocated.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> x = udfkit.sequence.input_variable(2)
    >>> value = udfkit.sanitize_batch(x, [np.ones((3, 2), np.float32), np.ones((1, 2), np.float32)])
    >>> value.mask.tolist()
    [[2, 1, 1], [2, 0, 0]]
    """
    if copy is not True:
        copy = check_flag(copy, "copy")
    return make_value(var, batch, seq_starts, device, copy=copy, pad_now=True, warn=True)


def make_value(
    var: Variable,
    batch: Any,
    seq_starts: Any,
    device: DeviceDescriptor | None,
    *,
    copy: bool,
    pad_now: bool,
    warn: bool,
) -> Value:
    """Do what `sanitize_batch` does; ``pad_now=False`` keeps lists flat until data is read."""
    if not isinstance(var, Variable):
        raise TypeError(
            f"var is a {type(var).__name__}, expected a udfkit Variable: make one with "
            f"udfkit.sequence.input_variable or udfkit.input_variable"
        )
    if isinstance(batch, Value):
        return _check_value(var, batch, seq_starts, device)
    asked, device = device, devices.resolve(device)
    if var.kind != "sequence" and not no_starts(seq_starts):
        raise ValueError(
            f"seq_starts were given, but variable {var.name!r} has no sequence axis: leave them "
            f"out, or declare it with udfkit.sequence.input_variable"
        )
    warn_for = var if warn else None
    if type(batch) is list or type(batch) is tuple:
        if batch and type(batch[0]) is not np.ndarray and device_index_of(batch[0]) is not None:
            return from_device_list(var, batch, seq_starts, asked, warn_for)
        return _from_list(var, batch, seq_starts, device, pad_now, warn_for)
    if isinstance(batch, Ragged):
        return _from_ragged(var, batch, seq_starts, asked, device, copy, warn_for)
    if is_scipy_sparse(batch):
        return _from_one_csr(var, batch, seq_starts, device, warn_for)
    if not isinstance(batch, np.ndarray) and device_index_of(batch) is not None:
        return from_device_array(var, batch, seq_starts, asked, copy, warn_for)
    if var.kind == "none" and var.shape == () and isinstance(batch, (bool, int, float)):
        batch = plain_array(batch, f"the batch for variable {var.name!r}")
    refuse_non_batch(batch, f"the batch for variable {var.name!r}")
    array = host_array(batch, f"the batch for variable {var.name!r}")
    if array is not None:
        return _from_array(var, array, seq_starts, device, copy, warn_for)
    if not isinstance(batch, Sequence):
        raise TypeError(
            f"the batch for variable {var.name!r} is a {type(batch).__name__}: "
            f"{WHAT_A_BATCH_CAN_BE}"
        )
    return _from_list(var, batch, seq_starts, device, pad_now, warn_for)


def _check_value(
    var: Variable, value: Value, seq_starts: Any, device: DeviceDescriptor | None
) -> Value:
    if seq_starts is not None:
        raise ValueError(
            "seq_starts were given beside a Value, which holds its own: give them where the Value "
            "is made"
        )
    value._check_fits(var)
    if device is not None and device != value.device:
        raise ValueError(
            f"the Value for variable {var.name!r} is on {value.device}, but {device} was asked "
            f"for: move it with value.to(device)"
        )
    return value


def _from_ragged(
    var: Variable,
    batch: Ragged,
    seq_starts: Any,
    asked: DeviceDescriptor | None,
    device: DeviceDescriptor,
    copy: bool,
    warn_for: Variable | None,
) -> Value:
    starts = _ragged_starts(var, batch, seq_starts)
    if batch._gpu is not None:
        if var.kind != "sequence":
            _check_single_samples(var, batch)
        return from_device_ragged(var, batch, starts, asked, copy, warn_for)
    values = batch.values
    if values.dtype != var.dtype:
        warn_cast(warn_for, values.dtype)
        flat = _cast_ragged(batch, var)
    elif copy or not values.flags.c_contiguous:
        flat = moves.copy_samples(values)
    else:
        flat = values
    flat = place_of(device).send(flat)
    if var.kind == "sequence":
        layout = Layout.of_lengths(batch.lengths, starts)
        return Value._make(layout, device, flat=flat)
    _check_single_samples(var, batch)
    return Value._make(Layout.of_batch(len(batch)), device, padded=flat)


def _ragged_starts(var: Variable, batch: Ragged, seq_starts: Any) -> np.ndarray | None:
    """Return the starts of a Ragged whose samples fit the variable."""
    if batch.has_starts and not no_starts(seq_starts):
        raise ValueError("seq_starts were given beside a Ragged that has starts: give one of them")
    if not var.accepts_sample(batch.sample_shape):
        raise ValueError(
            f"the Ragged for variable {var.name!r} has samples of shape "
            f"{shape_text(batch.sample_shape)}, expected {shape_text(var.shape)}"
        )
    return batch._starts if batch.has_starts else check_starts(seq_starts, len(batch))


def _check_single_samples(var: Variable, batch: Ragged) -> None:
    if var.kind == "none" or (batch.lengths != 1).any():
        long = np.flatnonzero(batch.lengths != 1)
        raise ValueError(
            f"variable {var.name!r} has no sequence axis, but "
            + (
                f"sequence {long[0]} of the Ragged has length {batch.lengths[long[0]]}"
                if len(long)
                else "the batch is a Ragged"
            )
            + ": pass an array, or declare it with udfkit.sequence.input_variable"
        )


def _cast_ragged(batch: Ragged, var: Variable) -> np.ndarray:
    try:
        return cast_exactly(batch.values, var.dtype, f"the Ragged for variable {var.name!r}")
    except ValueError:
        for k, sequence in enumerate(batch):
            cast_exactly(sequence, var.dtype, f"sequence {k}")
        raise


def _from_one_csr(
    var: Variable, matrix: Any, seq_starts: Any, device: DeviceDescriptor, warn_for: Variable | None
) -> Value:
    if not no_starts(seq_starts):
        raise ValueError(
            "seq_starts were given with one whole CSR matrix: pass a list of CSR matrices, one a "
            "sequence"
        )
    if var.kind == "none":
        raise ValueError(
            f"variable {var.name!r} has no axes and takes no CSR batch: pass an array of shape "
            f"{shape_text(var.shape)}"
        )
    samples, lengths = read_csr([matrix], var.shape, var.dtype, warn_for)
    rows = int(lengths[0])
    layout = Layout.of_batch(rows) if var.kind == "batch" else Layout.of_lengths(lengths)
    return Value._make(layout, device, sparse=samples)


def _from_array(
    var: Variable,
    array: np.ndarray,
    seq_starts: Any,
    device: DeviceDescriptor,
    copy: bool,
    warn_for: Variable | None,
) -> Value:
    where = f"the batch for variable {var.name!r}"
    if array.dtype.kind == "O":
        raise ValueError(
            f"{where} is an object array of shape {shape_text(array.shape)}: pass a list with one "
            f"array a sequence, for example list(batch)"
        )
    check_real(array.dtype, where)
    axes = len(var.dynamic_axes)
    check_rectangle(var, array.shape, where)
    rows, steps = (*array.shape[:axes], 1, 1)[:2]
    check_size(rows, steps, var.dtype.itemsize * prod(array.shape[axes:]), None)
    native = array.dtype.newbyteorder("=")
    if native != var.dtype:
        warn_cast(warn_for, native)
    data = cast_exactly(array, var.dtype, where)
    if data is array and (copy or not array.flags.c_contiguous):
        data = moves.copy_samples(array)
    data = np.ascontiguousarray(data).reshape(array.shape).view()
    data = place_of(device).send(data)
    return Value._make(rectangle_layout(var, array.shape, seq_starts), device, padded=data)


def _from_list(
    var: Variable,
    batch: Sequence[Any],
    seq_starts: Any,
    device: DeviceDescriptor,
    pad_now: bool,
    warn_for: Variable | None,
) -> Value:
    if var.kind == "none":
        raise ValueError(
            f"variable {var.name!r} has no batch axis, but the batch is a {type(batch).__name__}: "
            f"pass one array of shape {shape_text(var.shape)}, such as np.asarray(batch)"
        )
    items = tuple(batch)
    starts = None
    if var.kind == "sequence":
        starts = check_starts(seq_starts, len(items))
        if pad_now and starts is None and device.kind == "cpu":
            short = moves.pad_short(items, var.dtype, var.shape)
            if short is not None:
                lengths, data, mask = short
                return Value._make(Layout.of_new_rows(lengths, mask), device, data)
    if items and type(items[0]) is not np.ndarray and is_scipy_sparse(items[0]):
        samples, lengths = read_csr(items, var.shape, var.dtype, warn_for)
        if var.kind == "sequence":
            return Value._make(Layout.of_lengths(lengths, starts), device, sparse=samples)
        if (lengths != 1).any():
            k = int(np.flatnonzero(lengths != 1)[0])
            raise ValueError(
                f"item {k} is a CSR matrix of {lengths[k]} rows, expected one row: variable "
                f"{var.name!r} has no sequence axis"
            )
        return Value._make(Layout.of_batch(len(items)), device, sparse=samples)
    rows = read_rows(
        items,
        var.shape,
        var.dtype,
        var=warn_for,
        what="sequence" if var.kind == "sequence" else "item",
        one_sample=var.kind == "batch",
        will_pad=pad_now or var.kind == "batch",
    )
    if var.kind == "batch":
        flat = place_of(device).gather(rows, moves.offsets_of(rows.lengths))
        return Value._make(Layout.of_batch(len(items)), device, padded=flat)
    layout = Layout.of_lengths(rows.lengths, starts, rows.longest)
    if pad_now and not device.is_gpu:
        return Value._make(layout, device, moves.rows_to_padded(rows, layout.steps))
    if pad_now:
        size = rows.dtype.itemsize * prod(rows.sample_shape)
        check_size(layout.rows, layout.steps, size, rows.lengths)
    return Value._make(layout, device, flat=place_of(device).gather(rows, layout.offsets))


def variable_value_to_seq(value: Value, variable: Variable) -> Any:
    """Read a Value out to plain arrays.

    Parameters
    ----------
    value : Value
    variable : Variable
        The value is checked against it.

    Returns
    -------
    list of ndarray, or ndarray
        For a sequence variable always a list of arrays ``(length, *s)``; otherwise one array
        ``(B, *s)`` or ``s``. Writable, C-contiguous, in memory of their own.

    Raises
    ------
    TypeError
        When the arguments are not a Value and a Variable.
    ValueError
        When the value does not fit the variable.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> x = udfkit.sequence.input_variable(())
    >>> value = udfkit.sanitize_batch(x, [[1.0, 2.0], [3.0]])
    >>> [a.tolist() for a in udfkit.variable_value_to_seq(value, x)]
    [[1.0, 2.0], [3.0]]
    """
    if not isinstance(value, Value):
        raise TypeError(
            f"value is a {type(value).__name__}, expected a Value: make one with sanitize_batch"
        )
    if not isinstance(variable, Variable):
        raise TypeError(f"variable is a {type(variable).__name__}, expected a udfkit Variable")
    value._check_fits(variable)
    return value._sequences(variable.kind)


def map_if_possible(x: Any) -> None:
    """Do nothing; kept so that functions written for CNTK's bridge run unchanged."""
