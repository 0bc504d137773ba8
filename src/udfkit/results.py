"""Checks on what user code returns, and its way into Values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from udfkit.batching import make_value
from udfkit.device import DeviceDescriptor
from udfkit.errors import DeviceError, shape_text
from udfkit.items import host_array
from udfkit.layout import Layout
from udfkit.places import device_index_of
from udfkit.value import Value
from udfkit.variable import Variable

__all__ = [
    "CallRecord",
    "Returned",
    "check_same_lengths",
    "gradient_value",
    "output_value",
    "zeros_like",
]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What a backward needs to know of its forward: the form of every input and output."""

    inputs: dict[Variable, tuple[Layout, tuple[int, ...]]]
    outputs: dict[Variable, tuple[Layout, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Returned:
    """Where a batch came from, for error texts; its variable, and what it mirrors."""

    origin: str
    variable: Variable
    mirrors: str = "input"

    def __str__(self) -> str:
        return self.origin


def zeros_like(
    variable: Variable, layout: Layout, sample_shape: tuple[int, ...], device: DeviceDescriptor
) -> Value:
    """Return a Value of zeros."""
    return Value._filled(0, layout, sample_shape, variable.dtype, device)


def output_value(
    where: Returned, result: Any, inputs: list[Value], device: DeviceDescriptor
) -> Value:
    """Turn one result of ``forward`` into a Value with the starts of the inputs.

    Raises
    ------
    TypeError, ValueError
        When the result is no batch for the variable, with function, phase, variable and index.
    """
    sequences = [value._layout for value in inputs if value._layout.kind == "sequence"]
    steps = _rectangle_steps(where, result)
    if (
        steps is not None
        and any(_ragged(layout) for layout in sequences)
        and not any((layout.lengths == steps).all() for layout in sequences)
    ):
        raise _padding_error(where, result, sequences[0].lengths)
    batch = next((v._layout.count for v in inputs if v._layout.kind != "none"), None)
    if batch == 0 and isinstance(result, np.ndarray) and result.shape == (0,):
        result = []  # what np.array makes of the results of no sequences, whatever their shape
    value = _convert(where, result, device)
    if where.variable.kind != "none" and batch is not None and value._layout.count != batch:
        raise ValueError(
            f"{where}: {value._layout.count} sequences came, expected {batch}, as many as the "
            f"inputs have"
        )
    return _with_starts(value, sequences)


def gradient_value(
    where: Returned,
    result: Any,
    layout: Layout | None,
    sample_shape: tuple[int, ...] | None,
    device: DeviceDescriptor,
) -> Value:
    """Turn one gradient of ``backward`` into a Value with the layout of its input.

    ``layout`` and ``sample_shape`` are those of the input; None where they are not known.
    """
    if layout is not None and _rectangle_steps(where, result) is not None and _ragged(layout):
        raise _padding_error(where, result, layout.lengths)
    value = _convert(where, result, device)
    if layout is None:
        return value
    if value._sample_shape != sample_shape:
        raise ValueError(
            f"{where}: samples of shape {shape_text(value._sample_shape)} came, expected "
            f"{shape_text(sample_shape or ())}, as the {where.mirrors} has"
        )
    _check_lengths(str(where), value._layout, layout, f"the {where.mirrors}")
    return _with_starts(value, [layout])


def check_same_lengths(name: str, value: Value, other_name: str, other: Value) -> None:
    """Raise ValueError, with the first sequence that differs, unless all lengths are equal."""
    _check_lengths(name, value._layout, other._layout, other_name)


def _check_lengths(name: str, layout: Layout, expected: Layout, other_name: str) -> None:
    if layout.same_lengths(expected):
        return
    if layout.count != expected.count:
        raise ValueError(
            f"{name}: {layout.count} sequences came, expected {expected.count}, as many as "
            f"{other_name} has"
        )
    k = int(np.flatnonzero(layout.lengths != expected.lengths)[0])
    raise ValueError(
        f"{name}: sequence {k} has length {layout.lengths[k]}, expected {expected.lengths[k]}, the "
        f"length of the sequence of {other_name}"
    )


def _ragged(layout: Layout) -> bool:
    return layout.count > 0 and bool((layout.lengths != layout.lengths[0]).any())


def _rectangle_steps(where: Returned, result: Any) -> int | None:
    """Return T of a result in which every cell is said to be valid, else None."""
    if where.variable.kind != "sequence":
        return None
    if isinstance(result, Value):
        return result._layout.steps if result._layout.from_rectangle else None
    if isinstance(result, (list, tuple)) or result is None:
        return None
    if not isinstance(result, np.ndarray) and device_index_of(result) is not None:
        return result.shape[1] if len(result.shape) > 1 else None
    array = host_array(result, str(where))
    return array.shape[1] if array is not None and array.ndim > 1 else None


def _padding_error(where: Returned, result: Any, lengths: np.ndarray) -> ValueError:
    shape = result.shape if isinstance(result, Value) else np.shape(result)
    form = "an unmasked Value" if isinstance(result, Value) else "a rectangle"
    shown = ", ".join(str(n) for n in lengths[:8]) + (", ..." if len(lengths) > 8 else "")
    return ValueError(
        f"{where}: {form} of shape {shape_text(shape)} came, but the sequences have lengths "
        f"[{shown}]: its padding would become data; return a list with one array a sequence, or a "
        f"Ragged (argument.with_values(flat) where the argument is one)"
    )


def _convert(where: Returned, result: Any, device: DeviceDescriptor) -> Value:
    try:
        made = make_value(
            where.variable, result, None, device, copy=True, pad_now=False, warn=False
        )
        return made._bound_to(where.variable)
    except (TypeError, ValueError, DeviceError) as error:
        raise type(error)(f"{where}: {error}") from error


def _with_starts(value: Value, candidates: list[Layout]) -> Value:
    """Carry the starts of the first layout of equal lengths."""
    layout = value._layout
    if layout.kind != "sequence":
        return value
    if layout._starts is None and all(other._starts is None for other in candidates):
        return value
    for other in candidates:
        if other.same_lengths(layout):
            if np.array_equal(other.starts, layout.starts):
                return value
            return value._with_layout(layout.with_starts(other.starts))
    return value
