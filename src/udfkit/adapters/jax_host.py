"""User functions behind JAX's callbacks: NumPy arrays in, NumPy arrays of known shapes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from udfkit.adapters.arguments import named
from udfkit.adapters.bridge import run_backward, run_forward
from udfkit.adapters.bridge_batches import (
    ArrayBatch,
    check_starts_fit,
    in_cells,
    layout_at,
    layout_of_offsets,
)
from udfkit.function import UserFunction
from udfkit.kernels import lazy
from udfkit.layout import Layout, read_layout
from udfkit.variable import Variable

__all__ = ["PADDED", "Borders", "Host", "Output"]

pyobjects = lazy("pyobjects", globals())

PADDED = ("lengths", "mask")


class Output(NamedTuple):
    """What is known of an output before it is computed."""

    source: int
    """The input whose lengths it has, or whose T it must fit; -1 without a sequence axis."""
    is_new: bool
    """Whether it has lengths of its own."""


class Borders(NamedTuple):
    """The forms of the inputs, what is known of the outputs, and whether user code gets copies."""

    forms: tuple[str, ...]
    outputs: tuple[Output, ...]
    copy: bool


class Host:
    """What runs on the host for one function, and what that gives, as far as it is known before."""

    def __init__(self, find: Callable[[], UserFunction | None], borders: Borders):
        self._find = find
        self.forms, self.outputs, self.copy = borders
        first = next((form for form in self.forms if form != "plain"), "offsets")
        self.form = first
        self.pad = first in PADDED

    @property
    def fn(self) -> UserFunction:
        """The user function; whoever calls keeps it alive."""
        fn = self._find()
        assert fn is not None  # noqa: S101
        return fn

    def check_gradients(self, perturbed: Sequence[bool]) -> tuple[bool, ...]:
        """Return which inputs need a gradient; ValueError when a variable has none to give."""
        for variable, flag in zip(self.fn.inputs, perturbed, strict=True):
            if flag and not variable.needs_gradient and variable.is_floating:
                raise ValueError(
                    f"a gradient by input {variable.name!r} of {self.fn.name!r} is asked for, but "
                    f"the variable needs none: declare it with needs_gradient=True, or pass "
                    f"jax.lax.stop_gradient(x)"
                )
        return tuple(
            [f and v.needs_gradient for f, v in zip(perturbed, self.fn.inputs, strict=True)]
        )

    def result_shapes(self, arrays: Sequence[Any], extents: Sequence[Any]) -> Any:
        """Return the shapes and dtypes of what `forward` returns."""
        made, new = [], []
        for variable, output in zip(self.fn.outputs, self.outputs, strict=True):
            leading: tuple[int, ...] = ()
            if output.source >= 0:
                leading = arrays[output.source].shape[: 1 + self.pad]
            elif variable.kind == "batch":
                leading = (self._batch_size(arrays, extents),)
            made.append(jax.ShapeDtypeStruct((*leading, *variable.shape), variable.dtype))
            shape = () if not output.is_new else leading[: 1 + (self.form == "mask")]
            kind = np.bool_ if self.form == "mask" else np.int32
            new.append(jax.ShapeDtypeStruct(shape, kind))
        return made, new

    def _batch_size(self, arrays: Sequence[Any], extents: Sequence[Any]) -> int:
        for variable, form, array, extent in zip(
            self.fn.inputs, self.forms, arrays, extents, strict=True
        ):
            if variable.kind != "none":
                return int(extent.shape[0] - 1 if form == "offsets" else array.shape[0])
        raise TypeError(f"the batch size of {self.fn.name!r} is not known: no input has one")

    def _run(self, arrays: Sequence[Any], extents: Sequence[Any]) -> Any:
        batches = [
            _batch(variable, form, np.asarray(array), np.asarray(extent))
            for variable, form, array, extent in zip(
                self.fn.inputs, self.forms, arrays, extents, strict=True
            )
        ]
        state, made = run_forward(self.fn, batches, self.copy, self.pad)
        return state, batches, made

    def forward(self, arrays: Sequence[Any], extents: Sequence[Any]) -> Any:
        """Run forward; return the outputs, and the lengths or masks of those that have new ones."""
        _, batches, outputs = self._run(arrays, extents)
        made, new = [], []
        for k, (batch, output) in enumerate(zip(outputs, self.outputs, strict=True)):
            extent = np.zeros((), bool if self.form == "mask" else np.int32)
            if output.source >= 0:
                form = "mask of bool" if output.is_new and self.form == "mask" else self.form
                cure = "pass the first sequence input with a mask"
                check_starts_fit(batch.layout, form, self._origin(k), cure)
                layout = self._layout_of(k, batch.layout, batches[output.source].layout)
                batch = in_cells(batch, layout)
                if output.is_new:
                    mask = self.form == "mask"
                    extent = layout.mask != 0 if mask else layout.lengths.astype(np.int32)
            elif batch.layout.kind == "batch":
                self._check_rows(k, batch.layout.count, self._batch_size(arrays, extents))
            made.append(batch.array)
            new.append(extent)
        return made, new

    def _origin(self, k: int) -> str:
        return f"output {self.fn.outputs[k].name!r} of {self.fn.name!r}"

    def _layout_of(self, k: int, made: Layout, source: Layout) -> Layout:
        """Return where the samples of an output go, by what JAX was told of it.

        Raises
        ------
        ValueError
            When they do not fit there.
        """
        lengths, layout = made.lengths, source
        if self.outputs[k].is_new:
            if len(lengths) and lengths.max() > source.steps:
                j = int(np.argmax(lengths > source.steps))
                raise ValueError(
                    f"{self._origin(k)}: sequence {j} has length {lengths[j]}, but the padded data "
                    f"of the first sequence input has T={source.steps}: pad the input further"
                )
            layout = Layout.of_lengths(lengths, None, source.steps)
        elif not made.same_lengths(source):
            raise ValueError(
                f"{self._origin(k)} is declared on the sequence axis of an input, but has other "
                f"lengths, which JAX cannot know beforehand: declare it on "
                f"udfkit.Axis.new_unique_dynamic_axis(...), and pass padded data"
            )
        elif self.form == "lengths" and not source.contiguous:
            layout = Layout.of_lengths(lengths, None, source.steps)
        self._check_rows(k, layout.rows, source.rows)
        return layout

    def _check_rows(self, k: int, count: int, rows: int) -> None:
        if count != rows:
            raise ValueError(
                f"{self._origin(k)} has {count} sequences, but JAX expects one for each of the "
                f"{rows} rows: a mask with several sequences in a row goes in and out as a mask "
                f"only, for outputs on the sequence axis of its input"
            )

    def backward(
        self,
        wanted: tuple[int, ...],
        arrays: Sequence[Any],
        extents: Sequence[Any],
        cotangents: Sequence[Any],
    ) -> Any:
        """Run forward again, then backward; return the gradients of the inputs in ``wanted``."""
        state, batches, outputs = self._run(arrays, extents)
        for k, (batch, cotangent) in enumerate(zip(outputs, cotangents, strict=True)):
            output = self.outputs[k]
            if cotangent is None:
                batch.array = None
                continue
            cells = batch.layout
            if output.source >= 0:
                cells = self._layout_of(k, cells, batches[output.source].layout)
            given = ArrayBatch(cells, batch.padded, np.asarray(cotangent, order="C"))
            outputs[k] = in_cells(given, batch.layout)
        made = run_backward(self.fn, state, batches, outputs, wanted, self.copy)
        return [batch.array for batch in made]


def _batch(variable: Variable, form: str, array: Any, extent: Any) -> ArrayBatch:
    array = np.ascontiguousarray(array).reshape(array.shape)
    if variable.kind != "sequence":
        batch_only = variable.kind == "batch"
        layout = Layout.of_batch(len(array)) if batch_only else Layout.without_axes()
        return ArrayBatch(layout, False, array)
    if form == "mask":
        layout = named(variable, read_layout, array, extent, None, None)
        return ArrayBatch(layout, True, array)
    numbers = np.ascontiguousarray(extent, np.int64)
    if form == "offsets":
        return ArrayBatch(named(variable, layout_of_offsets, numbers, len(array)), False, array)
    found = layout_at(pyobjects.address(numbers), len(numbers), array.shape[1], offsets=False)
    layout = found or named(variable, read_layout, array, None, numbers, None)
    return ArrayBatch(layout, True, array)
