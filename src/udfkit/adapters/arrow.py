"""Ragged batches and Arrow list arrays."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfkit.ragged import Ragged

__all__ = ["from_arrow", "to_arrow"]


def from_arrow(array: Any, nulls: Literal["error", "empty"] = "error") -> Ragged:
    """Return a Ragged of a ListArray, LargeListArray or FixedSizeListArray, chunked or not.

    Samples that are no scalars are fixed-size lists in the lists.

    Examples
    --------
    >>> import pyarrow as pa, udfkit
    >>> [x.tolist() for x in udfkit.Ragged.from_arrow(pa.array([[1, 2], [], [3]]))]
    [[1, 2], [], [3]]
    """
    if nulls not in ("error", "empty"):
        raise ValueError(f"nulls is {nulls!r}, expected 'error' or 'empty'")
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if not isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        if isinstance(array, pa.Array):
            what, cure = array.type, "cast it first"
        else:
            what = f"a {type(array).__name__}"
            cure = "make one with pyarrow.array(...), or pass one column of a table"
        raise TypeError(f"expected a list or large_list array of Arrow, not {what}: {cure}")
    if array.null_count:
        first = pc.index(array.is_null(), True).as_py()
        if nulls == "error":
            raise ValueError(
                f"sequence {first} is null: pass nulls='empty' to read it as a sequence of length 0"
            )
        return _with_empty_for_null(array)
    if isinstance(array, pa.FixedSizeListArray):
        offsets = np.arange(len(array) + 1) * array.type.list_size
        return Ragged(_samples(array.flatten()), offsets)
    offsets = array.offsets.to_numpy()
    if not len(offsets):
        return Ragged(_samples(array.values[:0]), [0])
    first, last = int(offsets[0]), int(offsets[-1])
    return Ragged(_samples(array.values[first:last]), offsets - first)


def _with_empty_for_null(array: Any) -> Ragged:
    # flatten drops what lies behind null lists, which may be anything.
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return Ragged(_samples(array.flatten()), offsets)


def _samples(values: Any) -> np.ndarray:
    """Return values, fixed-size lists of any depth included, as one array."""
    sizes = []
    count = len(values)
    while True:
        if values.null_count:
            raise ValueError(
                f"value {pc.index(values.is_null(), True).as_py()} inside the lists is null: "
                f"replace nulls first, for example with pyarrow.compute.fill_null"
            )
        if not isinstance(values, pa.FixedSizeListArray):
            break
        sizes.append(values.type.list_size)
        values = values.flatten()
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise TypeError(
            f"the lists hold {kind}, expected numbers or bool, or fixed-size lists of them: cast "
            f"them, for example to pyarrow.list_(pyarrow.float32())"
        )
    flat = values.to_numpy(zero_copy_only=not pa.types.is_boolean(kind))
    return flat.reshape(count, *sizes)


def to_arrow(ragged: Ragged, large: bool = True) -> Any:
    """Return a LargeListArray over the values of a Ragged; a ListArray when not ``large``."""
    if ragged.dtype.name == "bfloat16":
        raise TypeError("Arrow has no bfloat16: convert the values to float32 first")
    if 0 in ragged.sample_shape:
        raise ValueError(
            f"samples of shape {ragged.sample_shape} have no values: Arrow cannot tell how many "
            f"there are"
        )
    values = np.ascontiguousarray(ragged.values)
    made = pa.array(values.reshape(-1))
    for size in reversed(ragged.sample_shape):
        made = pa.FixedSizeListArray.from_arrays(made, size)
    offsets = np.array(ragged.offsets)
    if large:
        return pa.LargeListArray.from_arrays(pa.array(offsets), made)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"offset {offsets[-1]} does not fit the 32 bits of a ListArray: use large=True"
        )
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), made)
