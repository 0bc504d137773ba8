"""Ragged batches and Awkward Arrays."""

from __future__ import annotations

from typing import Any, Literal

import awkward as ak
import numpy as np

from udfkit.ragged import Ragged

__all__ = ["from_awkward", "to_awkward"]


def from_awkward(array: Any, nulls: Literal["error", "empty"] = "error") -> Ragged:
    """Return a Ragged of an array of type ``B * var * regular dimensions * number``.

    Examples
    --------
    >>> import awkward as ak, udfkit
    >>> [x.tolist() for x in udfkit.Ragged.from_awkward(ak.Array([[1, 2], [], [3]]))]
    [[1, 2], [], [3]]
    """
    if nulls not in ("error", "empty"):
        raise ValueError(f"nulls is {nulls!r}, expected 'error' or 'empty'")
    if not isinstance(array, (ak.Array, ak.contents.Content)):
        raise TypeError(
            f"expected an awkward Array, not a {type(array).__name__}: make one with ak.Array(...)"
        )
    layout = ak.to_layout(array)
    if layout.backend.name != "cpu":
        raise TypeError(
            f"the array is on backend {layout.backend.name!r}: pass ak.to_backend(array, 'cpu')"
        )
    if layout.is_option or layout.is_indexed:
        layout = _without_nulls(layout, nulls)
    if layout.is_numpy and layout.purelist_depth > 1:
        layout = layout.to_RegularArray()
    if not layout.is_list or layout.parameter("__array__") is not None:
        raise TypeError(
            f"the array has type {ak.type(array)}, expected lists of numbers, B * var * number"
        )
    lists = layout.to_ListOffsetArray64(False)
    offsets = np.asarray(lists.offsets.data)
    content = lists.content[offsets[0] : offsets[-1]]
    return Ragged(_samples(content, array), offsets - offsets[0])


def _without_nulls(layout: Any, nulls: str) -> Any:
    if layout.is_option:
        missing = np.flatnonzero(np.asarray(layout.mask_as_bool(valid_when=False)))
        if len(missing) and nulls == "error":
            raise ValueError(
                f"sequence {missing[0]} is None: pass nulls='empty' to read it as a sequence of "
                f"length 0"
            )
        if len(missing):
            return ak.to_layout(ak.fill_none(ak.Array(layout), [], axis=0))
    return layout.project()


def _samples(content: Any, array: Any) -> np.ndarray:
    try:
        samples = ak.to_numpy(content, allow_missing=False)
    except ValueError as error:
        raise TypeError(
            f"the array has type {ak.type(array)}, expected every sample of one shape and without "
            f"None, B * var * fixed sizes * number: use ak.to_regular or ak.fill_none ({error})"
        ) from error
    return np.asarray(samples)


def to_awkward(ragged: Ragged) -> Any:
    """Return an awkward Array over the values of a Ragged."""
    if ragged.dtype.name == "bfloat16":
        raise TypeError("awkward has no bfloat16: convert the values to float32 first")
    content = ak.from_numpy(ragged.values, regulararray=True, highlevel=False)
    offsets = ak.index.Index64(np.array(ragged.offsets))
    return ak.Array(ak.contents.ListOffsetArray(offsets, content))
