"""Checks on what user code returns, and its way into Values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from udfkit.batching import make_value
from udfkit.device import DeviceDescriptor
from udfkit.errors import shape_text
from udfkit.items import host_array
from udfkit.layout import Layout
from udfkit.value import Value
from udfkit.variable import Variable

__all__ = ["CallRecord", "Returned", "gradient_value", "output_value", "zeros_like"]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What a backward needs to know of its forward: the form of every input and output."""

    inputs: dict[Variable, tuple[Layout, tuple[int, ...]]]
    outputs: dict[Variable, tuple[Layout, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Returned:
    """Where a batch came from, for error texts, and the variable that it is for."""

    origin: str
    variable: Variable

    def __str__(self) -> str:
        return self.origin


def zeros_like(
    variable: Variable, layout: Layout, sample_shape: tuple[int, ...], device: DeviceDescriptor
) -> Value:
    """Return a Value of zeros."""
    flat = np.zeros((layout.total, *sample_shape), variable.dtype)
    if layout.kind == "sequence":
        return Value._make(layout, device, flat=flat)
    return Value._make(layout, device, padded=flat.reshape(layout.cell_shape + sample_shape))


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
    value = _convert(where, result, device)
    batch = next((v._layout.count for v in inputs if v._layout.kind != "none"), None)
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
            f"{shape_text(sample_shape or ())}, as the input has"
        )
    if value._layout.count != layout.count:
        raise ValueError(
            f"{where}: {value._layout.count} sequences came, expected {layout.count}, as many as "
            f"the input has"
        )
    if not value._layout.same_lengths(layout):
        k = int(np.flatnonzero(value._layout.lengths != layout.lengths)[0])
        raise ValueError(
            f"{where}: sequence {k} has length {value._layout.lengths[k]}, expected "
            f"{layout.lengths[k]}, the length of the input's sequence"
        )
    return _with_starts(value, [layout])


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
    array = host_array(result, str(where))
    return array.shape[1] if array is not None and array.ndim > 1 else None


def _padding_error(where: Returned, result: Any, lengths: np.ndarray) -> ValueError:
    shape = result.shape if isinstance(result, Value) else np.shape(result)
    form = "an unmasked Value" if isinstance(result, Value) else "a rectangle"
    shown = ", ".join(str(n) for n in lengths[:8]) + (", ..." if len(lengths) > 8 else "")
    return ValueError(
        f"{where}: {form} of shape {shape_text(shape)} came, but the sequences have lengths "
        f"[{shown}]: its padding would become data; return a list with one array a sequence, or a "
        f"Ragged"
    )


def _convert(where: Returned, result: Any, device: DeviceDescriptor) -> Value:
    try:
        made = make_value(
            where.variable, result, None, device, copy=True, pad_now=False, warn=False
        )
        return made._bound_to(where.variable)
    except (TypeError, ValueError) as error:
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
