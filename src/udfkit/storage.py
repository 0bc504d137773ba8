"""What a Value holds: one batch in padded, flat or sparse form, each made of another when asked."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from udfkit import moves
from udfkit.device import DeviceDescriptor
from udfkit.forms import check_form
from udfkit.layout import Layout
from udfkit.places import Place, place_of
from udfkit.sparse import CsrSamples, OneHotSamples
from udfkit.variable import Variable

__all__ = ["StoredBatch"]


class StoredBatch:
    """Samples on one device, in at least one of three forms, and where the sequences are.

    Attributes
    ----------
    _layout : Layout
    _padded : array, shape `shape`, or None
    _flat : array, shape (total, *s), or None
        Valid samples in order.
    _sparse : CsrSamples, OneHotSamples, or None
    _unbound : bool
        Whether it may stand for a variable of another kind, since nothing said which cells are
        valid.
    """

    __slots__ = (
        "__weakref__",
        "_device",
        "_dtype",
        "_flat",
        "_layout",
        "_padded",
        "_sample_shape",
        "_sparse",
        "_unbound",
    )

    _layout: Layout
    _device: DeviceDescriptor
    _dtype: np.dtype
    _sample_shape: tuple[int, ...]
    _padded: Any
    _flat: Any
    _sparse: CsrSamples | OneHotSamples | None
    _unbound: bool

    @classmethod
    def _make(
        cls,
        layout: Layout,
        device: DeviceDescriptor,
        padded: Any = None,
        flat: Any = None,
        sparse: CsrSamples | OneHotSamples | None = None,
    ) -> Self:
        """Make a Value of parts that were checked before; one form of its samples is enough."""
        made = cls.__new__(cls)
        made._layout = layout
        made._device = device
        made._padded = padded
        made._flat = flat
        made._sparse = sparse
        made._unbound = False
        if padded is not None:
            made._sample_shape = padded.shape[layout.axes :]
            made._dtype = padded.dtype
        elif flat is not None:
            made._sample_shape = flat.shape[1:]
            made._dtype = flat.dtype
        elif sparse is not None:
            made._sample_shape = sparse.sample_shape
            made._dtype = sparse.dtype
        return made

    def _bound_to(self, variable: Variable) -> Self:
        """Return this batch, which fits ``variable``, with the axes of ``variable``."""
        if self._layout.kind == variable.kind:
            return self
        rows = self.shape[0] if variable.kind == "batch" else 1
        layout = Layout.of_batch(rows) if variable.kind == "batch" else Layout.without_axes()
        return self._make(layout, self._device, padded=self._padded_data())

    @classmethod
    def _filled(
        cls,
        number: float,
        layout: Layout,
        sample_shape: tuple[int, ...],
        dtype: np.dtype,
        device: DeviceDescriptor,
    ) -> Self:
        """Make a Value whose valid samples all hold one number."""
        shape = (layout.total, *sample_shape)
        if device.kind == "gpu" and not number:
            return cls._make(layout, device, flat=place_of(device).zeros(shape, dtype))
        flat = np.full(shape, number, dtype) if number else np.zeros(shape, dtype)
        return cls._make(layout, device, flat=place_of(device).send(flat))

    def _with_layout(self, layout: Layout) -> Self:
        """Return a Value of the same samples in the same cells with other starts."""
        return self._make(
            layout, self._device, padded=self._padded, flat=self._flat, sparse=self._sparse
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `data`."""
        return self._layout.cell_shape + self._sample_shape

    @property
    def _place(self) -> Place:
        return place_of(self._device)

    def _padded_data(self) -> Any:
        if self._padded is None:
            layout = self._layout
            if self._sparse is not None:
                padded = self._place.densify(self._sparse, layout)
            elif layout.kind != "sequence":
                padded = self._flat
            else:
                padded = self._place.pad(self._flat, layout)
            self._padded = self._place.reshape(padded, self.shape)
        return self._padded

    def _flat_values(self) -> Any:
        """Valid samples (total, *s) in order, computed at first use; never written."""
        if self._flat is None:
            self._flat = self._fresh_flat()
        return self._flat

    def _fresh_flat(self) -> Any:
        """Valid samples (total, *s) in order, in memory of their own."""
        if self._flat is not None:
            return self._place.copy(self._flat)
        if self._sparse is not None:
            return self._place.densify_flat(self._sparse, self._layout)
        if self._layout.kind != "sequence":
            shape = (self._layout.total, *self._sample_shape)
            return self._place.reshape(self._place.copy(self._padded), shape)
        return self._place.unpad(self._padded, self._layout)

    def _host_flat(self) -> np.ndarray:
        """Valid samples (total, *s) in order, on the host, in memory of their own."""
        if self._device.is_gpu:
            return self._place.fetch(self._flat_values())
        return self._fresh_flat()

    def _sequences(self, kind: str) -> Any:
        if kind != "sequence":
            return self._place.fetch(self._padded_data())
        layout = self._layout
        if self._padded is not None and layout.contiguous and self._device.kind == "cpu":
            short = moves.padded_to_rows(self._padded, layout.lengths)
            if short is not None:
                return short
        return moves.split(self._host_flat(), layout.lengths)

    def _same_samples(self, other: StoredBatch) -> bool:
        if self._sparse is not None and other._sparse is not None:
            pairs = zip(self._sparse.nonzeros(), other._sparse.nonzeros(), strict=True)
            return all(a.tobytes() == b.tobytes() for a, b in pairs)
        mine, theirs = (
            value._host_flat() if value._device.is_gpu else value._flat_values()
            for value in (self, other)
        )
        return bool(mine.tobytes() == theirs.tobytes())

    def _check_fits(self, variable: Variable) -> None:
        """Raise ValueError unless this batch is one for ``variable``."""
        kind, sample = self._layout.kind, self._sample_shape
        if self._unbound and variable.kind != kind:
            axes = len(variable.dynamic_axes)
            kind, sample = (variable.kind if len(self.shape) >= axes else kind), self.shape[axes:]
        check_form(variable, kind, self.shape, sample, self._dtype)
