"""User functions behind JAX's callbacks: NumPy arrays in, NumPy arrays of known shapes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from udfkit.adapters.bridge import run_backward, run_forward
from udfkit.adapters.bridge_batches import ArrayBatch, layout_at, padded
from udfkit.function import UserFunction
from udfkit.kernels import lazy
from udfkit.layout import Layout, read_layout
from udfkit.ragged import _check_offsets
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
        for batch, output, variable in zip(outputs, self.outputs, self.fn.outputs, strict=True):
            array, extent = batch.array, np.zeros((), bool if self.form == "mask" else np.int32)
            if output.is_new:
                steps = arrays[output.source].shape[1]
                array, extent = self._fitted(variable, batch, steps)
            elif output.source >= 0 and batch.layout is not batches[output.source].layout:
                array = self._moved(variable, batch, batches[output.source].layout)
            made.append(array)
            new.append(extent)
        return made, new

    def _moved(self, variable: Variable, batch: ArrayBatch, layout: Layout) -> np.ndarray:
        """Return an output in the cells of its source, whose lengths it must have."""
        if not batch.layout.same_lengths(layout):
            raise ValueError(
                f"output {variable.name!r} of {self.fn.name!r} is declared on the sequence axis of "
                f"an input, but has other lengths, which JAX cannot know beforehand: declare it on "
                f"udfkit.Axis.new_unique_dynamic_axis(...), and pass padded data"
            )
        flat = batch.flat(copy=False)
        return padded(flat, layout) if self.pad else flat

    def _fitted(self, variable: Variable, batch: ArrayBatch, steps: int) -> Any:
        lengths = batch.layout.lengths
        if len(lengths) and lengths.max() > steps:
            k = int(np.argmax(lengths > steps))
            raise ValueError(
                f"output {variable.name!r} of {self.fn.name!r}: sequence {k} has length "
                f"{lengths[k]}, but the padded data of the first sequence input has T={steps}: pad "
                f"the input further"
            )
        layout = Layout.of_lengths(lengths, None, steps)
        array = padded(batch.flat(copy=False), layout)
        return array, layout.mask != 0 if self.form == "mask" else lengths.astype(np.int32)

    def backward(
        self,
        wanted: tuple[int, ...],
        arrays: Sequence[Any],
        extents: Sequence[Any],
        cotangents: Sequence[Any],
    ) -> Any:
        """Run forward again, then backward; return the gradients of the inputs in ``wanted``."""
        state, batches, outputs = self._run(arrays, extents)
        for batch, output, cotangent in zip(outputs, self.outputs, cotangents, strict=True):
            if cotangent is None:
                batch.array = None
                continue
            if self.pad and output.source >= 0:
                source = batches[output.source].layout
                layout = (
                    source
                    if not output.is_new
                    else Layout.of_lengths(
                        batch.layout.lengths, None, arrays[output.source].shape[1]
                    )
                )
                batch.layout = layout
            batch.array = np.ascontiguousarray(cotangent)
        made = run_backward(self.fn, state, batches, outputs, wanted, self.copy)
        return [batch.array for batch in made]


def _batch(variable: Variable, form: str, array: Any, extent: Any) -> ArrayBatch:
    array = np.ascontiguousarray(array).reshape(array.shape)
    if variable.kind != "sequence":
        batch_only = variable.kind == "batch"
        layout = Layout.of_batch(len(array)) if batch_only else Layout.without_axes()
        return ArrayBatch(layout, False, array)
    if form == "mask":
        return ArrayBatch(read_layout(array, extent, None, None), True, array)
    numbers = np.ascontiguousarray(extent, np.int64)
    address = pyobjects.address(numbers)
    if form == "lengths":
        found = layout_at(address, len(numbers), array.shape[1], offsets=False)
        return ArrayBatch(found or read_layout(array, None, extent, None), True, array)
    found = layout_at(address, len(numbers) - 1, len(array), offsets=True)
    if found is None:
        _check_offsets(extent, len(array), trim=False)
    return ArrayBatch(found or Layout.of_lengths(np.diff(numbers)), False, array)
