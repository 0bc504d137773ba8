"""`Collate`: what a data loader calls to make one padded batch of the samples of a dataset."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np

from udfkit.casting import cast_exactly, check_dtype, exact_integers
from udfkit.items import host_array, refuse_gpu
from udfkit.padding import check_options, pad

__all__ = ["Collate", "PaddedBatch"]

Arrays = Literal["auto", "numpy", "torch"]


class PaddedBatch(NamedTuple):
    """One field of a batch that is made of sequences; arrays, or torch tensors."""

    data: Any
    """Shape (B, T, *s)."""
    mask: Any
    """int8 (B, T): 0 padding, 1 valid, 2 valid and the beginning of a sequence."""
    lengths: Any
    """int64 (B,)."""


class Collate:
    """Make one padded batch of samples: the ``collate_fn`` of a PyTorch ``DataLoader``.

    Works in the main process and in forked and spawned workers; it pickles, and imports torch only
    where tensors come in or are asked for.

    Parameters
    ----------
    stack : sequence of str or int
        Fields (keys, or positions in a tuple) whose arrays all have one shape and are no sequences.
    arrays : {'auto', 'numpy', 'torch'}
        What comes out; 'auto' gives tensors for fields that hold tensors.
    padding_value : scalar, or dict from field to scalar
    dtype : dtype, or dict from field to dtype, optional
    **options
        side, steps, max_length, overflow, multiple_of and buckets of `udfkit.pad`, for all fields.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> collate = udfkit.Collate(multiple_of=4, padding_value={"labels": -100})
    >>> batch = collate([
    ...     {"ids": np.array([7, 8, 9]), "labels": np.array([1, 2, 3]), "weight": 0.5},
    ...     {"ids": np.array([5]), "labels": np.array([4]), "weight": 1.0},
    ... ])
    >>> batch["labels"].data.tolist(), batch["labels"].lengths.tolist(), batch["weight"].tolist()
    ([[1, 2, 3, -100], [4, -100, -100, -100]], [3, 1], [0.5, 1.0])
    """

    def __init__(
        self,
        *,
        stack: Sequence[str | int] = (),
        arrays: Arrays = "auto",
        padding_value: Any = 0,
        dtype: Any = None,
        **options: Any,
    ):
        if arrays not in ("auto", "numpy", "torch"):
            raise ValueError(f"arrays is {arrays!r}, expected 'auto', 'numpy' or 'torch'")
        unknown = set(options) - _OPTIONS
        if unknown:
            raise TypeError(
                f"Collate takes no option {sorted(unknown)}: choose from {sorted(_OPTIONS)}"
            )
        if isinstance(stack, str):
            raise TypeError(f"stack is the string {stack!r}: pass a list of fields")
        check_options(**options)
        self.stack = tuple(stack)
        self.arrays = arrays
        self.padding_value = padding_value
        self.dtype = dtype
        self.options = options

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Make a batch.

        Parameters
        ----------
        samples : sequence
            Each a sequence (array, tensor, or list of numbers), or a dict or tuple of fields.

        Returns
        -------
        PaddedBatch, or dict or tuple
            A field of sequences becomes a `PaddedBatch`, one of numbers a vector, one in ``stack``
            an array with a batch axis before its own; anything else a list.

        Raises
        ------
        ValueError, TypeError
            With the field, and the index of the sample, that does not fit.
        """
        if isinstance(samples, Mapping) or not isinstance(samples, Iterable):
            raise TypeError(
                f"samples is a {type(samples).__name__}, expected a list with one sample an item"
            )
        samples = list(samples)
        if not samples:
            raise ValueError("there are no samples: pass at least one")
        first = samples[0]
        if isinstance(first, Mapping):
            for k, sample in enumerate(samples):
                if not isinstance(sample, Mapping) or sample.keys() != first.keys():
                    raise ValueError(
                        f"sample {k} has fields {_fields(sample)}, sample 0 has {_fields(first)}: "
                        f"all need the same"
                    )
            self._check_names(first)
            return {name: self._field(name, [s[name] for s in samples]) for name in first}
        if isinstance(first, tuple):
            for k, sample in enumerate(samples):
                if not isinstance(sample, tuple) or len(sample) != len(first):
                    raise ValueError(
                        f"sample {k} has fields {_fields(sample)}, sample 0 has {_fields(first)}: "
                        f"all need the same"
                    )
            self._check_names(range(len(first)))
            fields = [
                self._field(k, list(column)) for k, column in enumerate(zip(*samples, strict=True))
            ]
            return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)
        self._check_names(())
        return self._field(None, samples)

    def _check_names(self, fields: Collection[Any]) -> None:
        """Raise ValueError for an option of a field that the samples do not have."""
        given = {"padding_value": self.padding_value, "dtype": self.dtype, "stack": self.stack}
        for option, names in given.items():
            if not isinstance(names, (Mapping, tuple)):
                continue
            unknown = [name for name in names if name not in fields]
            if unknown:
                have = f"the fields {list(fields)}" if fields else "no fields"
                raise ValueError(
                    f"{option} names the field {unknown[0]!r}, but the samples have {have}: "
                    f"correct it, or leave it out"
                )

    def _field(self, name: Any, items: list[Any]) -> Any:
        tensor = getattr(sys.modules.get("torch"), "Tensor", ())
        tensors = any(isinstance(item, tensor) for item in items)
        as_torch = self.arrays == "torch" or (self.arrays == "auto" and tensors)
        adapter: Any = None
        if as_torch or tensors:
            adapter = import_module("udfkit.adapters.torch_collate")
        try:
            form = None
            if tensors:
                items, form = adapter.to_arrays(items)
            if form is not None:
                self._check_form(form, name, as_torch)
            made = self._make(name, items, adapter, form)
        except (TypeError, ValueError) as error:
            if name is not None:
                error.add_note(f"in field {name!r}")
            raise
        if not as_torch or isinstance(made, list):
            return made
        if isinstance(made, PaddedBatch):
            return PaddedBatch(adapter.to_tensor(made[0], form), *map(adapter.to_tensor, made[1:]))
        return adapter.to_tensor(made, form)

    def _check_form(self, form: Any, name: Any, as_torch: bool) -> None:
        if not as_torch or _of_field(self.dtype, name, None) is not None:
            raise TypeError(
                f"samples of {form} come out as tensors of {form} only: leave out dtype and "
                f"arrays='numpy', or convert the tensors"
            )

    def _make(self, name: Any, items: list[Any], adapter: Any, form: Any) -> Any:
        dtype = _of_field(self.dtype, name, None)
        if name in self.stack or all(_is_number(item) for item in items):
            return _stack(items, dtype)
        if not all(isinstance(item, (np.ndarray, list)) for item in items):
            for k, item in enumerate(items):
                refuse_gpu(item, f"sample {k}")
            return items
        value = _of_field(self.padding_value, name, 0)
        if form is not None:
            value = adapter.bits_of(value, form)
        padded = pad(items, padding_value=value, dtype=dtype, **self.options)
        return PaddedBatch(padded.data, padded.mask, padded.lengths)


_OPTIONS = {"side", "steps", "max_length", "overflow", "multiple_of", "buckets"}


def _fields(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return str(list(sample))
    return f"{len(sample)} in a tuple" if isinstance(sample, tuple) else type(sample).__name__


def _of_field(option: Any, name: Any, default: Any) -> Any:
    return option.get(name, default) if isinstance(option, Mapping) else option


def _is_number(item: Any) -> bool:
    if isinstance(item, (bool, int, float, np.generic)):
        return not isinstance(item, (np.str_, np.bytes_))
    return isinstance(item, np.ndarray) and item.ndim == 0


def _stack(items: list[Any], dtype: Any) -> np.ndarray:
    found = [host_array(item, f"sample {k}") for k, item in enumerate(items)]
    arrays = [np.asarray(x) if a is None else a for a, x in zip(found, items, strict=True)]
    for k, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise ValueError(
                f"sample {k} has shape {array.shape}, sample 0 has {arrays[0].shape}: arrays that "
                f"are stacked need one shape; leave the field out of stack to pad it"
            )
    if dtype is not None:
        wanted = check_dtype(dtype)
        return np.stack([cast_exactly(a, wanted, f"sample {k}") for k, a in enumerate(arrays)])
    return exact_integers(arrays, np.stack(arrays), "the batch")
