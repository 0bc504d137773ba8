"""The forms in which PyTorch keeps a batch of sequences: read to a layout, and made of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from udfkit.adapters.arguments import named
from udfkit.adapters.bridge_batches import ArrayBatch, Batch, layout_at, layout_of_offsets
from udfkit.adapters.torch_packed import packed_order
from udfkit.casting import cast_exactly, check_real, is_bfloat16, warn_cast
from udfkit.errors import DeviceError, shape_text
from udfkit.layout import Layout, read_layout
from udfkit.variable import Variable

__all__ = ["FORMS", "Form", "array_of", "make", "read", "tensor_of", "torch_dtype"]

FORMS = ("nested", "lengths", "mask", "offsets", "packed")
PADDED = ("lengths", "mask")
_INT64 = np.dtype(np.int64)
_DTYPES: dict[np.dtype, torch.dtype] = {}


class Form(Batch):
    """One batch as torch has it.

    Attributes
    ----------
    kind : str
        One of `FORMS`, or ``'plain'`` for a tensor without a sequence axis.
    tensor : Tensor
        What gradients go to: padded data, flat values, or the data of a PackedSequence.
    extents : object
        The lengths, mask or offsets, the PackedSequence or the nested tensor, as they were given.
    order : ndarray of int64, shape (total,), optional
        For a PackedSequence: where each sample is, sequence by sequence.
    """

    __slots__ = ("extents", "kind", "order", "tensor")

    tensor: Any

    def __init__(
        self,
        kind: str,
        tensor: torch.Tensor,
        layout: Layout,
        variable: Variable,
        sample_shape: tuple[int, ...],
        extents: Any = None,
        order: np.ndarray | None = None,
    ):
        self.kind = kind
        self.tensor = tensor
        self.layout = layout
        self.dtype = variable.dtype
        self.sample_shape = sample_shape
        self.extents = extents
        self.order = order
        self.padded = kind in PADDED

    @property
    def is_there(self) -> bool:
        """Whether there are samples."""
        return self.tensor is not None

    @property
    def array(self) -> np.ndarray:
        """The samples, over the tensor's memory."""
        return array_of(self.tensor.detach(), self.dtype)

    @property
    def address(self) -> int:
        """Where the tensor begins in memory."""
        return self.tensor.data_ptr()

    def samples(self) -> Batch:
        """Return the batch with its samples sequence by sequence, contiguous and detached."""
        tensor = self.tensor
        if not tensor.is_contiguous() or tensor.is_neg():
            self.tensor = tensor.detach().resolve_neg().contiguous()
        if self.order is None:
            return self
        return ArrayBatch(self.layout, False, self.array[self.order])


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Return torch's dtype for one that samples can have."""
    found = _DTYPES.get(dtype)
    if found is None:
        found = torch.bfloat16
        if not is_bfloat16(dtype):
            found = torch.from_numpy(np.empty(0, dtype)).dtype
        _DTYPES[dtype] = found
    return found


def array_of(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    """Return an array over the memory of a tensor that requires no gradient."""
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(dtype)
    return tensor.numpy()


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over the memory of a writable array."""
    if is_bfloat16(array.dtype):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def read(variable: Variable, given: Any) -> Form:
    """Read one argument for a variable.

    Raises
    ------
    TypeError, ValueError
        When it has no form that fits the variable, or its parts do not fit each other.
    DeviceError
        When it is neither on the CPU nor on a CUDA device.
    """
    if type(given) is tuple and len(given) == 2:
        form = _read_plain_pair(variable, given[0], given[1])
        if form is not None:
            return form
    if variable.kind == "sequence":
        form = _read_sequences(variable, given)
    else:
        form = _read_plain(variable, given)
    tensor = form.tensor
    if tensor.dtype is not torch_dtype(variable.dtype):
        form.tensor = _cast(variable, tensor, form.layout if form.padded else None)
    return form


def _read_plain_pair(variable: Variable, tensor: Any, extents: Any) -> Form | None:
    """Read tensors that need no conversion, at the lowest cost; None for any others."""
    if (
        not isinstance(tensor, torch.Tensor)
        or type(extents) is not torch.Tensor
        or variable.kind != "sequence"
        or tensor.dtype is not torch_dtype(variable.dtype)
        or extents.dtype is not torch.int64
        or not (tensor.is_cpu and extents.is_cpu)
        or extents.dim() != 1
        or not extents.is_contiguous()
        or tensor.layout is not torch.strided
    ):
        return None
    shape, count = tensor.shape, len(extents)
    if shape[1:] == variable.shape and count:
        layout = layout_at(extents.data_ptr(), count - 1, shape[0], offsets=True)
        if layout is not None:
            return Form("offsets", tensor, layout, variable, variable.shape, extents)
    if shape[2:] == variable.shape and len(shape) > 1 and shape[0] == count:
        layout = layout_at(extents.data_ptr(), count, shape[1], offsets=False)
        if layout is not None:
            return Form("lengths", tensor, layout, variable, variable.shape, extents)
    return None


def _read_plain(variable: Variable, given: Any) -> Form:
    if not isinstance(given, torch.Tensor) or given.layout is not torch.strided:
        raise TypeError(
            f"input {variable.name!r} has no sequence axis and is {_describe(given)}: pass one "
            f"dense tensor of shape {_expected(variable)}"
        )
    _check_tensor(variable, given)
    _check_shape(variable, given, len(variable.dynamic_axes))
    if variable.kind == "batch":
        return Form("plain", given, Layout.of_batch(len(given)), variable, tuple(given.shape[1:]))
    return Form("plain", given, Layout.without_axes(), variable, tuple(given.shape))


def _read_sequences(variable: Variable, given: Any) -> Form:
    if type(given) is tuple and len(given) == 2 and isinstance(given[0], torch.Tensor):
        return _read_pair(variable, given[0], given[1])
    if isinstance(given, torch.Tensor) and given.is_nested:
        return _read_nested(variable, given)
    if isinstance(given, PackedSequence):
        return _read_packed(variable, given)
    raise TypeError(
        f"input {variable.name!r} is {_describe(given)}: pass a nested jagged tensor, (padded, "
        f"lengths), (padded, mask), (values, offsets) or a PackedSequence; of tensors, and a pair "
        f"as a tuple"
    )


def _read_pair(variable: Variable, tensor: torch.Tensor, extents: Any) -> Form:
    _check_tensor(variable, tensor)
    rank = len(variable.shape)
    numbers = _numbers(variable, extents)
    if numbers.ndim == 2 and tensor.ndim == rank + 2:
        _check_shape(variable, tensor, 2)
        layout = named(variable, read_layout, _shape_only(tensor), numbers, None, None)
        return Form("mask", tensor, layout, variable, tuple(tensor.shape[2:]), extents)
    if numbers.ndim == 1 and tensor.ndim == rank + 2:
        _check_shape(variable, tensor, 2)
        layout = named(variable, _layout_of_lengths, tensor, numbers)
        return Form("lengths", tensor, layout, variable, tuple(tensor.shape[2:]), extents)
    if numbers.ndim == 1 and tensor.ndim == rank + 1:
        _check_shape(variable, tensor, 1)
        layout = named(variable, layout_of_offsets, numbers, tensor.shape[0])
        return Form("offsets", tensor, layout, variable, tuple(tensor.shape[1:]), extents)
    raise ValueError(
        f"input {variable.name!r} is a pair of shapes {shape_text(tuple(tensor.shape))} and "
        f"{shape_text(numbers.shape)}: expected (padded {_expected(variable)}, lengths (B,) or "
        f"mask (B, T)), or (values {shape_text(('total', *variable.shape))}, offsets (B + 1,))"
    )


def _numbers(variable: Variable, extents: Any) -> np.ndarray:
    if isinstance(extents, torch.Tensor):
        _check_device(f"the lengths, offsets or mask of input {variable.name!r} are", extents)
        return extents.detach().cpu().numpy()
    if isinstance(extents, (list, tuple)) and not extents:
        return np.empty(0, np.int64)
    return np.asarray(extents)


def _layout_of_lengths(tensor: torch.Tensor, numbers: np.ndarray) -> Layout:
    rows, steps = tensor.shape[:2]
    layout = None
    if numbers.shape == (rows,) and numbers.dtype.kind in "iu":
        numbers = np.ascontiguousarray(numbers, _INT64)
        layout = layout_at(numbers.ctypes.data, rows, steps, offsets=False)
    return layout or read_layout(_shape_only(tensor), None, numbers, None)


def _shape_only(tensor: torch.Tensor) -> np.ndarray:
    """Return an array of a tensor's shape that costs no memory."""
    return np.broadcast_to(np.int8(0), tuple(tensor.shape))


def _read_nested(variable: Variable, given: torch.Tensor) -> Form:
    if given.layout is not torch.jagged:
        raise TypeError(
            f"input {variable.name!r} is a nested tensor of layout {given.layout}: make it with "
            f"torch.nested.nested_tensor(..., layout=torch.jagged)"
        )
    _check_device(f"input {variable.name!r} is", given)
    if given._ragged_idx != 1:
        raise ValueError(
            f"input {variable.name!r} is ragged in dimension {given._ragged_idx}, expected 1, "
            f"(B, T, *sample): transpose it back"
        )
    if given.lengths() is not None:
        given = given.contiguous()
    values, offsets = given.values(), given.offsets()
    _check_shape(variable, values, 1)
    layout = layout_of_offsets(offsets.cpu().numpy(), values.shape[0])
    return Form("nested", values, layout, variable, tuple(values.shape[1:]), given)


def _read_packed(variable: Variable, given: PackedSequence) -> Form:
    _check_tensor(variable, given.data)
    _check_shape(variable, given.data, 1)
    sizes = given.batch_sizes.numpy()
    count = int(sizes[0]) if len(sizes) else 0
    sorted_lengths = (sizes[:, np.newaxis] > np.arange(count)).sum(axis=0, dtype=np.int64)
    place = np.arange(count)
    if given.unsorted_indices is not None:
        place = given.unsorted_indices.cpu().numpy()
    layout = Layout.of_lengths(sorted_lengths[place], None, len(sizes))
    order = packed_order(layout, sizes, place)
    return Form("packed", given.data, layout, variable, tuple(given.data.shape[1:]), given, order)


def _check_tensor(variable: Variable, tensor: torch.Tensor) -> None:
    _check_device(f"input {variable.name!r} is", tensor)
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"input {variable.name!r} is a tensor of layout {tensor.layout}: pass a dense one"
        )


def _check_device(what: str, tensor: torch.Tensor) -> None:
    kind = tensor.device.type
    if kind == "meta":
        raise DeviceError(f"{what} on meta, where tensors have no data: pass a tensor that has")
    if kind not in ("cpu", "cuda"):
        raise DeviceError(
            f"{what} on {tensor.device}, and user functions run on the CPU and on CUDA devices: "
            f"move it with .cpu(), and the result back with .to({str(tensor.device)!r})"
        )


def _check_shape(variable: Variable, tensor: torch.Tensor, axes: int) -> None:
    shape = tuple(tensor.shape)
    if len(shape) < axes or not variable.accepts_sample(shape[axes:]):
        raise ValueError(
            f"input {variable.name!r} is a tensor of shape {shape_text(shape)}, expected "
            f"{_expected(variable, axes)}"
        )


def _expected(variable: Variable, axes: int | None = None) -> str:
    leading = {None: ("B", "T")[: len(variable.dynamic_axes)], 0: (), 2: ("B", "T")}.get(
        axes, ("B",) if variable.kind == "batch" else ("total",)
    )
    return shape_text((*leading, *variable.shape))


def _cast(variable: Variable, tensor: torch.Tensor, cells: Layout | None) -> torch.Tensor:
    """Cast samples to the variable's dtype; ``cells`` tells those of padded data from padding."""
    wanted = torch_dtype(variable.dtype)
    floating = tensor.dtype.is_floating_point and wanted.is_floating_point
    if not floating or not torch.is_autocast_enabled(tensor.device.type):
        if not tensor.is_cpu:
            raise TypeError(
                f"input {variable.name!r} is {tensor.dtype} on {tensor.device}, its variable "
                f"{variable.dtype}, and values are checked and cast on the CPU only: convert it "
                f"with .to({wanted})"
            )
        if tensor.dtype is torch.bfloat16:
            if not floating:
                raise TypeError(
                    f"input {variable.name!r} is bfloat16, its variable {variable.dtype}: convert "
                    f"it with .to({wanted})"
                )
        elif not is_bfloat16(variable.dtype):
            source = tensor.detach().numpy()
            check_real(source.dtype, f"input {variable.name!r}")
            warn_cast(variable, source.dtype)
            _check_cast(variable, source, cells)
    return tensor.to(wanted)


def _check_cast(variable: Variable, source: np.ndarray, cells: Layout | None) -> None:
    """Raise ValueError for a sample that the variable's dtype cannot hold."""
    where = f"input {variable.name!r}"
    if cells is not None:
        try:
            cast_exactly(source, variable.dtype, where)
        except ValueError:
            source = source.copy()
            source[cells.mask == 0] = 0
        else:
            return
    cast_exactly(source, variable.dtype, where)


def _describe(given: Any) -> str:
    if isinstance(given, torch.Tensor):
        return f"a tensor of shape {shape_text(tuple(given.shape))} and layout {given.layout}"
    if isinstance(given, (list, tuple)):
        inner = ", ".join(type(part).__name__ for part in given[:3])
        return f"a {type(given).__name__} of {len(given)} ({inner}{', ...' * (len(given) > 3)})"
    return f"a {type(given).__name__}"


def make(kind: str, tensor: torch.Tensor, layout: Layout, sources: Sequence[Form]) -> Any:
    """Return a batch in a form; parts that an input of the same layout and form has are shared."""
    for source in sources:
        if source.layout is layout and source.kind == kind:
            if kind == "nested":
                return torch.nested.nested_tensor_from_jagged(tensor, source.extents.offsets())
            if kind == "packed":
                return source.extents._replace(data=tensor)
            return tensor, source.extents
    if kind == "lengths":
        return tensor, torch.from_numpy(np.array(layout.lengths)).to(tensor.device)
    if kind == "mask":
        mask = layout.mask != 0 if layout.all_new else np.array(layout.mask)
        return tensor, torch.from_numpy(mask).to(tensor.device)
    offsets = torch.from_numpy(np.array(layout.offsets)).to(tensor.device)
    if kind == "nested":
        return torch.nested.nested_tensor_from_jagged(tensor, offsets)
    return tensor, offsets
