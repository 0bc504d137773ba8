"""Ragged: a batch as flat values and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from udfkit import moves
from udfkit.arguments import check_flag, check_sample_shape
from udfkit.casting import check_dtype, check_real
from udfkit.device import DeviceDescriptor, cpu, resolve
from udfkit.errors import DeviceError, shape_text
from udfkit.items import host_array, may_be_on_gpu, refuse_non_batch
from udfkit.kernels import lazy
from udfkit.layout import all_new, check_offsets, check_starts
from udfkit.ragged_interop import Interop, same_device
from udfkit.rows import read_rows

__all__ = ["Ragged"]

cuda_sharing = lazy("cuda_sharing", globals())

_OPAQUE = np.dtype("V2")
"""What bfloat16 is in interfaces that have no name for it."""


class Ragged(Interop, Sequence[np.ndarray]):
    """A batch of sequences as flat values and offsets; a read-only Sequence of arrays.

    Parameters
    ----------
    values : array_like, shape (total, *s)
        All samples, one sequence after the other. Aliased, never written. An array on a GPU stays
        there, and so do the sequences.
    offsets : array_like of int, shape (B + 1,)
        Where each sequence begins; first 0, not decreasing, last equal to total. Any integer
        dtype whose values fit int64. Copied.
    starts : sequence of bool, shape (B,), optional
        False where a sequence continues the one in the same slot of the batch before.
    trim : bool, default False
        Allow unused values behind the last offset.

    Raises
    ------
    ValueError
        For offsets that decrease, overrun, do not start at 0 or are not integers, with the
        position; for starts of the wrong count.
    TypeError
        For values that are not numeric.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> r = udfkit.Ragged(np.arange(6.0).reshape(6, 1), [0, 4, 4, 6])
    >>> r.lengths.tolist(), len(r), r[2].ravel().tolist()
    ([4, 0, 2], 3, [4.0, 5.0])
    """

    __slots__ = ("__weakref__", "_gpu", "_lengths", "_offsets", "_starts", "_values")

    def __init__(
        self,
        values: Any,
        offsets: Any,
        starts: Sequence[bool] | np.ndarray | None = None,
        *,
        trim: bool = False,
    ):
        self._gpu: int | None = None
        if type(values) is not np.ndarray and may_be_on_gpu(values):
            array, self._gpu = cuda_sharing.adopt(values, "values of a Ragged")
        else:
            array = host_array(values, "values of a Ragged")
            array = np.asarray(values) if array is None else array
        if self._gpu is None or array.dtype != _OPAQUE:
            check_real(array.dtype, "values of a Ragged")
        if len(array.shape) == 0:
            raise ValueError("values of a Ragged have shape (): expected (total, *sample_shape)")
        self._offsets = check_offsets(offsets, array.shape[0], check_flag(trim, "trim"))
        self._starts = check_starts(starts, len(self), "starts")
        self._lengths: np.ndarray | None = None
        if self._gpu is not None:
            self._values = cuda_sharing.rows(array, 0, int(self._offsets[-1]), self._gpu)
            return
        used = array[: int(self._offsets[-1])]
        if not used.dtype.isnative:
            used = used.astype(used.dtype.newbyteorder("="))
        self._values = used.view()
        self._values.flags.writeable = False

    @classmethod
    def _trusted(cls, values: np.ndarray, offsets: np.ndarray, starts: np.ndarray | None) -> Ragged:
        """Make one of parts that were checked before."""
        made = cls.__new__(cls)
        made._values = values.view()
        made._values.flags.writeable = False
        made._offsets = offsets
        made._starts = starts
        made._lengths = None
        made._gpu = None
        return made

    @classmethod
    def _on_gpu(
        cls, values: Any, offsets: np.ndarray, starts: np.ndarray | None, index: int
    ) -> Ragged:
        """Make one of parts that were checked before, with its values on a GPU."""
        made = cls._trusted(np.empty(0), offsets, starts)
        made._values = values
        made._gpu = index
        return made

    def _needs_host(self, what: str) -> None:
        if self._gpu is not None:
            raise DeviceError(
                f"{what} reads samples on the host, and those of this Ragged are on "
                f"{self.device}: copy them with ragged.to(udfkit.cpu())"
            )

    @property
    def device(self) -> DeviceDescriptor:
        """Where the values are; lengths, offsets and starts are on the host."""
        return cpu() if self._gpu is None else DeviceDescriptor("gpu", self._gpu)

    def to(self, device: DeviceDescriptor) -> Ragged:
        """Return this batch with its values copied to ``device``; itself when they are there."""
        device = resolve(device)
        if device == self.device:
            return self
        host = self._values if self._gpu is None else cuda_sharing.fetch(self._values, self._gpu)
        if not device.is_gpu:
            return Ragged._trusted(host, self._offsets, self._starts)
        sent = cuda_sharing.send(host, device.index)
        return Ragged._on_gpu(sent, self._offsets, self._starts, device.index)

    @classmethod
    def from_list(
        cls, batch: Any, dtype: Any = None, sample_shape: int | Sequence[int] | None = None
    ) -> Ragged:
        """Copy a list with one array a sequence into a Ragged.

        Parameters
        ----------
        batch : list, tuple or other Sequence
            Items of shape ``(length, *s)``, or ``s`` for one step; nested lists of numbers.
        dtype : dtype, optional
            Items are cast to it exactly; without it all must have one dtype, which is kept.
        sample_shape : int or tuple of int, optional
            Needed when no item shows it; by default that of the first item.

        Raises
        ------
        TypeError, ValueError
            With the index of the first item that does not fit.

        Examples
        --------
        >>> import udfkit
        >>> udfkit.Ragged.from_list([[1, 2], [], [3]]).offsets.tolist()
        [0, 2, 2, 3]
        """
        refuse_non_batch(batch, "batch")
        if isinstance(batch, Ragged):
            batch = list(batch)
        if not isinstance(batch, (Sequence, np.ndarray)):
            raise TypeError(
                f"batch is a {type(batch).__name__}, expected a list or tuple with one array a "
                f"sequence"
            )
        rows = read_rows(
            batch,
            check_sample_shape(sample_shape),
            None if dtype is None else check_dtype(dtype),
        )
        offsets = moves.offsets_of(rows.lengths)
        return cls._trusted(moves.rows_to_ragged(rows, offsets), offsets, None)

    @staticmethod
    def concat(batches: Iterable[Ragged]) -> Ragged:
        """Put batches one behind the other; they must agree in sample shape and dtype.

        Examples
        --------
        >>> import udfkit
        >>> a, b = udfkit.Ragged([1, 2, 3], [0, 1, 3]), udfkit.Ragged([4], [0, 0, 1])
        >>> udfkit.Ragged.concat([a, b]).offsets.tolist()
        [0, 1, 3, 3, 4]
        """
        if isinstance(batches, Ragged) or not isinstance(batches, Iterable):
            raise TypeError(
                f"batches is a {type(batches).__name__}, expected a list of Ragged: pass [batch]"
            )
        parts = list(batches)
        for k, part in enumerate(parts):
            if not isinstance(part, Ragged):
                raise TypeError(
                    f"batch {k} is a {type(part).__name__}, expected a Ragged: make one with "
                    f"udfkit.Ragged.from_list"
                )
        if not parts:
            raise ValueError("concat of no batches: pass at least one Ragged")
        first = parts[0]
        for k, part in enumerate(parts):
            part._needs_host(f"concat of batch {k}")
            if part.sample_shape != first.sample_shape or part.dtype != first.dtype:
                raise ValueError(
                    f"batch {k} has samples of {part.dtype} {shape_text(part.sample_shape)}, batch "
                    f"0 of {first.dtype} {shape_text(first.sample_shape)}: they must agree"
                )
        lengths = np.concatenate([part.lengths for part in parts])
        starts = None
        if any(part.has_starts for part in parts):
            starts = np.concatenate([part.starts for part in parts])
        values = np.concatenate([part.values for part in parts])
        return Ragged._trusted(values, moves.offsets_of(lengths), starts)

    @property
    def values(self) -> np.ndarray:
        """All samples, (total, *s), one sequence after the other; read-only.

        A device array for a batch on a GPU.
        """
        return self._values

    @property
    def offsets(self) -> np.ndarray:
        """Where each sequence begins, int64 of shape (B + 1,); read-only."""
        self._offsets.setflags(write=False)
        return self._offsets

    @property
    def lengths(self) -> np.ndarray:
        """Number of samples a sequence, int64 of shape (B,); read-only."""
        if self._lengths is None:
            lengths = np.diff(self.offsets)
            lengths.flags.writeable = False
            self._lengths = lengths
        return self._lengths

    @property
    def starts(self) -> np.ndarray:
        """Whether each sequence is a new one, bool of shape (B,); all True unless given."""
        if self._starts is None:
            return all_new(len(self))
        self._starts.setflags(write=False)
        return self._starts

    @property
    def has_starts(self) -> bool:
        """Whether starts were given."""
        return self._starts is not None

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.values.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the samples."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> Ragged: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if step != 1:
                return self.take(np.arange(first, last, step))
            last = max(first, last)
            offsets = self.offsets[first : last + 1]
            starts = None if self._starts is None else self._starts[first:last]
            if self._gpu is not None:
                part = cuda_sharing.rows(self._values, int(offsets[0]), int(offsets[-1]), self._gpu)
                return Ragged._on_gpu(part, offsets - offsets[0], starts, self._gpu)
            values = self.values[offsets[0] : offsets[-1]]
            return Ragged._trusted(values, offsets - offsets[0], starts)
        try:
            k = range(len(self))[index]
        except IndexError:
            raise IndexError(
                f"sequence {index} is out of range: the batch has {len(self)} sequences"
            ) from None
        except TypeError:
            raise TypeError(
                f"index {index!r} is no integer or slice: use take for several sequences"
            ) from None
        if self._gpu is not None:
            first, last = self._offsets[k : k + 2].tolist()
            return cuda_sharing.rows(self._values, first, last, self._gpu)
        return self.values[self.offsets[k] : self.offsets[k + 1]]

    def take(self, indices: Sequence[int] | np.ndarray) -> Ragged:
        """Return a Ragged with copies of these sequences, in this order.

        Raises
        ------
        IndexError
            For an index out of range.

        Examples
        --------
        >>> import udfkit
        >>> [x.tolist() for x in udfkit.Ragged([1, 2, 3], [0, 1, 3]).take([1, 0, 1])]
        [[2, 3], [1], [2, 3]]
        """
        self._needs_host("take")
        chosen = np.asarray(indices)
        if chosen.shape == (0,):
            chosen = np.empty(0, np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise TypeError(
                f"indices are {chosen.dtype} of shape {shape_text(chosen.shape)}, expected a "
                f"vector of integers: pass a list such as [2, 0]"
            )
        lengths = self.lengths[chosen]
        offsets = moves.offsets_of(lengths)
        shift = np.repeat(self.offsets[:-1][chosen] - offsets[:-1], lengths)
        values = self.values[np.arange(int(offsets[-1])) + shift]
        starts = None if self._starts is None else self._starts[chosen]
        return Ragged._trusted(values, offsets, starts)

    def with_values(self, values: Any) -> Ragged:
        """Return a Ragged of the same lengths and starts with other values, (total, any shape).

        The values must be on the device of this batch: an array elsewhere is a DeviceError.

        Examples
        --------
        >>> import udfkit
        >>> r = udfkit.Ragged([1.0, 2.0], [0, 2])
        >>> r.with_values(r.values * 10)[0].tolist()
        [10.0, 20.0]
        """
        return same_device(Ragged(values, self.offsets, self._starts), self)

    def equals(self, other: Any) -> bool:
        """Whether lengths, starts, dtype, sample shape and the bytes of all samples are equal."""
        for batch in (self, other):
            if isinstance(batch, Ragged):
                batch._needs_host("equals")
        return (
            isinstance(other, Ragged)
            and self.dtype == other.dtype
            and self.sample_shape == other.sample_shape
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.starts, other.starts)
            and self.values.tobytes() == other.values.tobytes()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self._gpu is not None:
            raise TypeError(
                f"a Ragged on {self.device} cannot be pickled: use ragged.to(udfkit.cpu())"
            )
        return Ragged, (np.ascontiguousarray(self.values), self.offsets, self._starts)

    def __repr__(self) -> str:
        return (
            f"Ragged({len(self)} sequences, {self._offsets[-1]} samples of {self.dtype} "
            f"{shape_text(self.sample_shape)}{'' if self._gpu is None else f' on {self.device}'})"
        )

    def _repr_html_(self) -> str | None:
        if self._gpu is not None:
            return None  # the plain repr reads no samples
        from udfkit.html import ragged_html

        return ragged_html(self)
