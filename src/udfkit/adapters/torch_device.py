"""Calls on tensors of a CUDA device: Values over their memory, and tensors over what comes back.

All forms are made flat by torch, and flat results get their form by torch, with its gradients; so
the call itself sees samples one sequence behind the other. udfkit works on the default stream of a
device, torch on its current one: each waits for the other there, and the host waits for neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from udfkit.adapters.bridge_batches import check_starts_fit
from udfkit.adapters.torch_call import ASK_FOR_MASK, GeneralCall
from udfkit.adapters.torch_forms import PADDED, Form, make, torch_dtype
from udfkit.adapters.torch_packed import packing
from udfkit.casting import is_bfloat16
from udfkit.device import DeviceDescriptor, gpu
from udfkit.errors import DeviceError
from udfkit.function import UserFunction
from udfkit.kernels.cuda_arrays import DeviceView
from udfkit.layout import Layout
from udfkit.value import Value
from udfkit.variable import Variable

__all__ = ["DeviceCall", "Link", "flat_tensors", "link"]


class Link:
    """What torch and a device of udfkit have in common."""

    def device(self, device: torch.device) -> DeviceDescriptor:
        """Return udfkit's name of a device; DeviceError where Numba cannot use it."""
        return gpu(device.index or 0)

    @contextmanager
    def ordered(self, device: torch.device) -> Iterator[torch.cuda.Stream | None]:
        """Let the default stream be the current one; give the one that was, when it was another."""
        current = torch.cuda.current_stream(device)
        default = torch.cuda.default_stream(device)
        if current == default:
            yield None
            return
        default.wait_stream(current)
        try:
            with torch.cuda.stream(default):
                yield current
        finally:
            current.wait_stream(default)

    def tensor(self, array: Any, device: torch.device) -> torch.Tensor:
        """Return a tensor over the memory of an array that has the CUDA Array Interface."""
        return torch.as_tensor(array, device=device)


link = Link()


def flat_tensors(fn: UserFunction, forms: Sequence[Form]) -> tuple[torch.device, list[Any]]:
    """Return the device of all arguments, and their samples one sequence behind the other.

    Raises
    ------
    DeviceError
        When they are not all on one device.
    """
    device = forms[0].tensor.device
    for variable, form in zip(fn.inputs, forms, strict=True):
        if form.tensor.device != device:
            raise DeviceError(
                f"input {variable.name!r} of {fn.name!r} is on {form.tensor.device}, but input "
                f"{fn.inputs[0].name!r} is on {device}: put all on one device, with .to(...)"
            )
    return device, [_flat(form) for form in forms]


def _flat(form: Form) -> torch.Tensor:
    tensor, layout = form.tensor, form.layout
    if form.order is not None:
        return tensor.index_select(0, _index(form.order, tensor))
    if not form.padded:
        return tensor
    cells = tensor.flatten(0, 1)
    if layout.total == layout.rows * layout.steps:
        return cells
    return cells.index_select(0, _index(layout.positions, tensor))


def _index(positions: np.ndarray, tensor: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.array(positions, np.int64)).to(tensor.device)


class DeviceCall(GeneralCall):
    """A call of any function over flat tensors on one device."""

    __slots__ = ("cells", "device", "where")

    def __init__(
        self,
        fn: UserFunction,
        inputs: list[Form],
        out_form: str,
        copy: bool,
        device: torch.device,
    ):
        super().__init__(fn, inputs, out_form, copy)
        self.device = device
        self.where = link.device(device)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Run user code on Values; return a flat tensor, or a tuple of them."""
        variables = self.fn.outputs
        for form in self.inputs:
            form.tensor = None
        with link.ordered(self.device) as current:
            kept = [self._kept(tensor) for tensor in tensors]
            values = [
                self._value(tensor, form.layout, variable)
                for tensor, form, variable in zip(kept, self.inputs, self.fn.inputs, strict=True)
            ]
            self.state, found = self.fn._forward(values)
            made = [
                self._tensor(found[variable], variable, kept, current) for variable in variables
            ]
        self.layouts = [found[variable]._layout for variable in variables]
        self.cells = [self._cells_of(k, layout) for k, layout in enumerate(self.layouts)]
        return made[0] if len(made) == 1 else tuple(made)

    def backward(
        self, state: Any, gradients: Sequence[torch.Tensor | None], needed: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """Run the user's backward; return one flat gradient an input, None where none is needed."""
        with link.ordered(self.device) as current:
            roots, kept = {}, []
            for variable, layout, gradient in zip(
                self.fn.outputs, self.layouts, gradients, strict=True
            ):
                if gradient is not None:
                    kept.append(self._kept(gradient))
                    roots[variable] = self._value(kept[-1], layout, variable)
            wanted = [v for v, flag in zip(self.fn.inputs, needed, strict=True) if flag]
            found = self.fn._backward(state, roots, wanted)
            return [
                self._tensor(found[v], v, kept, current) if flag else None
                for v, flag in zip(self.fn.inputs, needed, strict=True)
            ]

    def finish(self, k: int, tensor: torch.Tensor) -> Any:
        """Return output ``k`` in the form that was asked for."""
        layout, form = self.cells[k], self.out_form
        if layout.kind != "sequence":
            return tensor
        if form == "packed":
            return self._packed_sequence(layout, tensor)
        if form in PADDED:
            shape = (layout.rows, layout.steps, *tensor.shape[1:])
            if layout.total != layout.rows * layout.steps:
                cells = tensor.new_zeros((layout.rows * layout.steps, *tensor.shape[1:]))
                tensor = cells.index_copy(0, _index(layout.positions, tensor), tensor)
            tensor = tensor.reshape(shape)
        return make(form, tensor, layout, self.inputs)

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor that user code may see and keep."""
        tensor = tensor.detach().resolve_neg()
        if self.copy:
            return tensor.clone(memory_format=torch.contiguous_format)
        return tensor.contiguous()

    def _value(self, tensor: torch.Tensor, layout: Layout, variable: Variable) -> Value:
        address = tensor.data_ptr() if tensor.numel() else 0
        view = DeviceView(address, tuple(tensor.shape), variable.dtype, tensor)
        if layout.kind == "sequence":
            return Value._make(layout, self.where, flat=view)
        return Value._make(layout, self.where, padded=view)

    def _tensor(
        self,
        value: Value,
        variable: Variable,
        given: Sequence[torch.Tensor],
        current: torch.cuda.Stream | None,
    ) -> torch.Tensor:
        """Return the samples of a Value as a tensor that shares no memory with those given."""
        is_sequence = value._layout.kind == "sequence"
        place: Any = value._place
        view = place.read(value._flat_values() if is_sequence else value._padded_data(), "a result")
        if 0 in view.shape:
            return torch.empty(view.shape, dtype=torch_dtype(variable.dtype), device=self.device)
        # The CUDA Array Interface has no bfloat16.
        dtype = np.dtype(np.int16) if is_bfloat16(variable.dtype) else variable.dtype
        made = link.tensor(place.protect(view.part(0, view.shape, dtype)), self.device)
        made = made.view(torch_dtype(variable.dtype))
        if self.copy or current is not None or any(_overlap(made, other) for other in given):
            made = made.clone()
        if current is not None:
            made.record_stream(current)
        return made

    def _cells_of(self, k: int, layout: Layout) -> Layout:
        """Return where output ``k`` goes: as the input whose lengths it has, or on its own."""
        if layout.kind != "sequence":
            return layout
        name = f"output {self.fn.outputs[k].name!r} of {self.fn.name!r}"
        check_starts_fit(layout, self.out_form, name, ASK_FOR_MASK)
        for form in self.inputs:
            like = form.layout
            if like.kind == "sequence" and like.same_lengths(layout):
                if like.contiguous or self.out_form == "mask":
                    return like
                break
        return Layout.of_lengths(layout.lengths, layout._starts)

    def _packed_sequence(self, layout: Layout, flat: torch.Tensor) -> PackedSequence:
        for form in self.inputs:
            if form.order is not None and form.layout is layout:
                order, rest = form.order, form.extents
                break
        else:
            order, rest = packing(layout)
        data = torch.empty_like(flat).index_copy(0, _index(order, flat), flat)
        places = [
            None if part is None else part.to(flat.device)
            for part in (rest.sorted_indices, rest.unsorted_indices)
        ]
        return PackedSequence(data, rest.batch_sizes, *places)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes
