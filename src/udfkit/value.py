"""Value: a batch as padded data and a mask on one device."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from udfkit import device as devices
from udfkit import moves
from udfkit.casting import check_dtype, check_real
from udfkit.device import DeviceDescriptor
from udfkit.errors import shape_text
from udfkit.items import host_array, plain_array
from udfkit.layout import Layout, read_layout
from udfkit.memory import check_size
from udfkit.places import HOST, device_index_of, on_host, place_of
from udfkit.ragged import Ragged
from udfkit.sparse import ONE_HOT_SKIP, read_one_hot
from udfkit.storage import StoredBatch
from udfkit.variable import Variable

__all__ = ["Value"]


class Value(StoredBatch):
    """A batch of sequences as padded data and a mask; its layout never changes.

    Parameters
    ----------
    data : array_like, shape (rows, T, *s), or (B, *s), or s
        Copied; cells that the mask calls invalid become 0.
    mask : array_like of int8, int or bool, optional
        Shape (rows, T): 0 invalid, 1 valid, 2 valid and the beginning of a sequence; of bools, the
        first valid cell of a row is a beginning. Shape (B,) of 2 for a batch without a sequence
        axis, () for one without axes. Without mask and lengths every cell is valid.
    lengths : sequence of int, shape (rows,), optional
        Instead of a mask: the first ``lengths[i]`` cells of row i are one sequence.
    starts : sequence of bool, shape (B,), optional
        False where a sequence continues the one in the same slot of the batch before.
    device : DeviceDescriptor, optional

    Raises
    ------
    ValueError
        When data, mask, lengths and starts do not agree, with the position.
    TypeError
        For data that is not numeric.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> v = udfkit.Value(np.ones((2, 3, 1), np.float32), lengths=[3, 1])
    >>> v.mask.tolist(), v.is_masked, v.data[1].ravel().tolist()
    ([[2, 1, 1], [2, 0, 0]], True, [1.0, 0.0, 0.0])
    """

    __slots__ = ()

    ONE_HOT_SKIP = ONE_HOT_SKIP

    def __init__(
        self,
        data: Any,
        mask: Any = None,
        *,
        lengths: Any = None,
        starts: Any = None,
        device: DeviceDescriptor | None = None,
    ):
        index = None if isinstance(data, np.ndarray) else device_index_of(data)
        if index is not None:
            here = devices.gpu(index)
            if devices.resolve(device) == here or device is None:
                self._read_device(data, mask, lengths, starts, here)
                return
            data = place_of(here).fetch(data)
        array = host_array(data, "data of a Value")
        array = plain_array(data, "data of a Value") if array is None else array
        check_real(array.dtype, "data of a Value")
        layout = read_layout(array, on_host(mask), on_host(lengths), starts)
        sample_bytes = array.itemsize * prod(array.shape[layout.axes :])
        check_size(layout.rows, layout.steps, sample_bytes, layout.lengths)
        padded = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", subok=False)
        if layout.total != layout.rows * layout.steps:
            padded[layout.mask == 0] = 0
        self._layout = layout
        self._device = devices.resolve(device)
        self._sample_shape = padded.shape[layout.axes :]
        self._dtype = padded.dtype
        self._padded = place_of(self._device).send(padded)
        self._flat = None
        self._sparse = None
        self._unbound = mask is None and lengths is None and starts is None

    def _read_device(
        self, data: Any, mask: Any, lengths: Any, starts: Any, device: DeviceDescriptor
    ) -> None:
        """Be a Value of padded data that is on a device, and stays there."""
        layout, padded, flat = place_of(device).read_padded(data, mask, lengths, starts)
        made = Value._make(layout, device, padded=padded, flat=flat)
        for name in StoredBatch.__slots__[1:]:
            setattr(self, name, getattr(made, name))
        self._unbound = mask is None and lengths is None and starts is None

    @staticmethod
    def create(
        var: Variable,
        batch: Any,
        seq_starts: Any = None,
        device: DeviceDescriptor | None = None,
    ) -> Value:
        """Make a Value of a batch for a variable; the same as `udfkit.sanitize_batch`."""
        from udfkit.batching import sanitize_batch  # batching builds on this module

        return sanitize_batch(var, batch, seq_starts, device)

    @staticmethod
    def one_hot(
        batch: Any,
        num_classes: int | Sequence[int],
        dtype: Any = None,
        device: DeviceDescriptor | None = None,
    ) -> Value:
        """Make a sparse Value of class indices.

        Parameters
        ----------
        batch : list of list of int, integer array of shape (B, T) or (B,), Ragged
            A flat list or vector is for a variable without a sequence axis. `ONE_HOT_SKIP` gives
            a zero sample.
        num_classes : int, or a sample shape whose last axis is the classes
            With a shape, each sample takes as many indices as its leading axes have cells.
        dtype : dtype, default float32

        Raises
        ------
        ValueError
            For an index that is out of range or not an integer, or a number of indices that does
            not divide into samples, with the position.

        Examples
        --------
        >>> import udfkit
        >>> v = udfkit.Value.one_hot([[1, 0], [2]], 3)
        >>> v.is_sparse, v.lengths.tolist(), v.data[1, 0].tolist()
        (True, [2, 1], [0.0, 0.0, 1.0])
        """
        samples, layout = read_one_hot(
            batch, num_classes, check_dtype(np.float32 if dtype is None else dtype)
        )
        return Value._make(layout, devices.resolve(device), sparse=samples)

    @property
    def data(self) -> Any:
        """Padded data of shape `shape`, computed at first use.

        On the CPU a read-only NumPy array; on a GPU a device array, which must not be written.
        """
        padded = self._padded
        if padded is None:
            padded = self._padded_data()
        if self._device.kind == "cpu":
            padded.setflags(write=False)
            return padded
        return self._place.protect(padded)

    @property
    def values(self) -> Any:
        """Valid samples (total, *s), one sequence behind the other; on the device of the Value."""
        return self._place.protect(self._flat_values())

    @property
    def mask(self) -> Any:
        """int8 mask: 0 invalid, 1 valid, 2 valid and a beginning; (rows, T), (B,) or ()."""
        return self._layout.mask if self._device.kind == "cpu" else self._place.mask(self._layout)

    @property
    def is_masked(self) -> bool:
        """Whether any cell is invalid or any sequence continued."""
        return self._layout.is_masked

    @property
    def is_sparse(self) -> bool:
        """Whether the samples are kept sparse."""
        return self._sparse is not None

    @property
    def rows(self) -> int:
        """Number of rows of the padded data."""
        return self._layout.rows

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the samples."""
        return self._dtype

    @property
    def device(self) -> DeviceDescriptor:
        """Where the batch lives."""
        return self._device

    def _needs_axes(self, what: str) -> None:
        if self._layout.kind == "none":
            raise TypeError(f"a Value without a batch axis has no {what}")

    def __len__(self) -> int:
        self._needs_axes("len()")
        return self._layout.count

    @property
    def lengths(self) -> np.ndarray:
        """Samples a sequence, int64 of shape (B,), in row-major order; read-only."""
        self._needs_axes("lengths")
        self._layout.lengths.setflags(write=False)
        return self._layout.lengths

    @property
    def starts(self) -> np.ndarray:
        """Whether each sequence is a new one, bool of shape (B,); read-only."""
        self._needs_axes("starts")
        return self._layout.starts

    def asarray(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return a writable copy of `data` on the host.

        Parameters
        ----------
        out : ndarray, optional
            Written and returned instead of a fresh array; of `shape` and `dtype`.

        Raises
        ------
        ValueError
            When ``out`` does not fit; nothing is written.
        """
        if out is None:
            return self._place.fetch(self._padded_data())
        if not isinstance(out, np.ndarray) or out.shape != self.shape or out.dtype != self.dtype:
            raise ValueError(
                f"out is {type(out).__name__} {getattr(out, 'dtype', '')} "
                f"{getattr(out, 'shape', '')}, expected an ndarray {self.dtype} {self.shape}"
            )
        if not out.flags.writeable:
            raise ValueError("out is read-only: pass an array that can be written")
        np.copyto(out, self.data if self._place is HOST else self.asarray())
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        data = self.asarray() if self._device.is_gpu else self.data
        return np.array(data, dtype=dtype, copy=copy)

    def ragged(self) -> Ragged:
        """Return the sequences as a read-only Ragged, with the starts when any is continued.

        It is on the host: the samples of a GPU Value are copied.
        """
        self._needs_axes("ragged form")
        starts = None if self._layout.all_new else self._layout.starts
        flat = self._host_flat() if self._device.is_gpu else self._flat_values()
        return Ragged._trusted(flat, self._layout.offsets, starts)

    def as_sequences(self, variable: Variable | None = None) -> Any:
        """Return a list with a fresh array ``(length, *s)`` for each sequence.

        A sparse Value of sample rank 1 gives SciPy CSR matrices instead. Without a sequence axis
        every sequence is one sample.
        """
        self._needs_axes("sequences")
        if variable is not None:
            self._check_fits(variable)
            if variable.kind == "batch" and self._sparse is None:
                return list(self.asarray()[:, np.newaxis])
        offsets = self._layout.offsets
        if self._sparse is None or len(self._sample_shape) != 1:
            return moves.split(self._host_flat(), self._layout.lengths)
        bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        return [self._sparse.rows(a, b) for a, b in bounds]

    def with_values(self, values: Any, *, copy: bool = True) -> Value:
        """Return a Value with the lengths, starts and device of this one, and other samples.

        Parameters
        ----------
        values : array_like, shape (total, any sample shape)
            One sequence behind the other, as in `values`, of any real dtype; on the device of this
            Value, where it stays.
        copy : bool, default True
            False may alias the array, which must not be written then.

        Raises
        ------
        ValueError
            When there are more samples, or fewer.
        DeviceError
            For an array on another device.

        Examples
        --------
        >>> import udfkit
        >>> v = udfkit.sanitize_batch(udfkit.sequence.input_variable(()), [[1.0, 2.0], [3.0]])
        >>> v.with_values(v.values * v.values).data.tolist()
        [[1.0, 4.0], [9.0, 0.0]]
        """
        flat = self._place.take(values, "values", self._dtype, copy)
        if len(flat.shape) == 0 or flat.shape[0] != self._layout.total:
            raise ValueError(
                f"values have shape {shape_text(flat.shape)}, expected "
                f"{shape_text((self._layout.total, '...'))}: one sample for each valid cell"
            )
        return Value._make(self._layout, self._device, flat=flat)

    def to(self, device: DeviceDescriptor) -> Value:
        """Return this batch on ``device``; itself when it is there already."""
        device = devices.resolve(device)
        if device == self._device:
            return self
        if self._sparse is not None:
            return Value._make(self._layout, device, sparse=self._sparse)
        flat = place_of(device).send(self._host_flat())
        made = Value._make(self._layout, device, flat=flat)
        made._unbound = self._unbound
        return made

    def equals(self, other: Any) -> bool:
        """Whether shape, dtype, lengths, starts and the bytes of all valid cells are equal."""
        if self is other:
            return True
        return (
            isinstance(other, Value)
            and self.shape == other.shape
            and self.dtype == other.dtype
            and self._layout.kind == other._layout.kind
            and np.array_equal(self._layout.lengths, other._layout.lengths)
            and np.array_equal(self._layout.starts, other._layout.starts)
            and self._same_samples(other)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self._device.is_gpu:
            raise TypeError(f"a Value on {self._device} cannot be pickled: use value.to(cpu())")
        layout = self._layout
        mask = None if layout.contiguous else layout.mask
        state = (
            layout.kind,
            layout.lengths,
            layout._starts,
            layout.rows,
            layout.steps,
            mask,
            layout.from_rectangle,
            layout.pieces,
        )
        if self._sparse is not None:
            storage: dict[str, Any] = {"sparse": self._sparse}
        elif self._padded is not None:
            storage = {"padded": self._padded}
        else:
            storage = {"flat": self._flat}
        return _unpickle, (state, storage, self._unbound)

    def __repr__(self) -> str:
        form = "sparse " if self.is_sparse else ""
        masked = ", masked" if self.is_masked else ""
        return f"Value({form}{self.dtype} {shape_text(self.shape)} on {self._device}{masked})"

    def _repr_html_(self) -> str:
        from udfkit.html import value_html

        return value_html(self)


def _unpickle(state: tuple[Any, ...], storage: dict[str, Any], unbound: bool) -> Value:
    made = Value._make(Layout(*state), devices.cpu(), **storage)
    made._unbound = unbound
    return made
