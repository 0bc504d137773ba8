"""Whether the shape and dtype of a batch are those of a variable."""

from __future__ import annotations

from typing import Any

import numpy as np

from udfkit.errors import shape_text
from udfkit.layout import Layout, check_starts
from udfkit.variable import Variable

__all__ = ["check_form", "check_rectangle", "rectangle_layout"]

_AXES = {
    "sequence": "a batch axis and a sequence axis",
    "batch": "a batch axis only",
    "none": "no axes",
}


def check_form(
    variable: Variable,
    kind: str,
    shape: tuple[int, ...],
    sample_shape: tuple[int, ...],
    dtype: np.dtype,
) -> None:
    """Raise ValueError unless a Value of this kind, shape and dtype is one for ``variable``."""
    if kind != variable.kind:
        raise ValueError(
            f"the Value has {_AXES[kind]}, but variable {variable.name!r} has "
            f"{_AXES[variable.kind]}: make it with sanitize_batch for this variable"
        )
    if not variable.accepts_sample(sample_shape):
        raise ValueError(
            f"the Value has shape {shape_text(shape)}, with samples of shape "
            f"{shape_text(sample_shape)}; variable {variable.name!r} expects samples of shape "
            f"{shape_text(variable.shape)}"
        )
    if dtype != variable.dtype:
        raise ValueError(
            f"the Value has dtype {dtype}, but variable {variable.name!r} has {variable.dtype}: "
            f"cast the arrays before making it"
        )


def check_rectangle(var: Variable, shape: tuple[int, ...], where: str) -> None:
    """Raise ValueError unless a whole array of this shape is a batch for ``var``."""
    axes = len(var.dynamic_axes)
    if len(shape) != axes + len(var.shape) or not var.accepts_sample(shape[axes:]):
        leading: tuple[str, ...] = ("B", "T")[:axes]
        one = var.kind == "sequence" and var.accepts_sample(shape[1:])
        raise ValueError(
            f"{where} has shape {shape_text(shape)}, which does not fit its sample shape "
            f"{shape_text(var.shape)}: expected {shape_text((*leading, *var.shape))}"
            + ("; for one sequence pass a list with this array" if one else "")
        )


def rectangle_layout(var: Variable, shape: tuple[int, ...], seq_starts: Any) -> Layout:
    """Return the layout of a whole array that `check_rectangle` accepted."""
    if var.kind == "sequence":
        return Layout.of_rectangle(shape[0], shape[1], check_starts(seq_starts, shape[0]))
    return Layout.of_batch(shape[0]) if var.kind == "batch" else Layout.without_axes()
