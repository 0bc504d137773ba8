"""One call of a user function in PyTorch's graph: forward, backward, and the state in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from udfkit.adapters.bridge import run_backward, run_forward
from udfkit.adapters.bridge_batches import Batch, check_starts_fit, in_cells
from udfkit.adapters.torch_forms import PADDED, Form, make, tensor_of
from udfkit.adapters.torch_packed import packing
from udfkit.function import UserFunction
from udfkit.layout import Layout

__all__ = ["ASK_FOR_MASK", "Differentiable", "GeneralCall"]

ASK_FOR_MASK = "ask for out_form='mask'"


class GeneralCall:
    """A call of any function, over any forms.

    Attributes
    ----------
    state : object
        What user code's forward returned for its backward.
    outputs : list of ArrayBatch
        Without their arrays, in the cells of their forms.
    layouts : list of Layout
        The cells in which user code gets the gradients of the outputs.
    """

    __slots__ = ("copy", "fn", "inputs", "layouts", "out_form", "outputs", "packings", "state")

    is_short = False

    def __init__(self, fn: UserFunction, inputs: list[Form], out_form: str, copy: bool):
        self.fn = fn
        self.inputs = inputs
        self.out_form = out_form
        self.copy = copy
        self.state: Any = None
        self.packings: dict[int, tuple[np.ndarray, Any]] = {}

    def forward(self, *_: torch.Tensor) -> Any:
        """Run user code; return a tensor, or a tuple of them."""
        pad = self.out_form in PADDED
        batches = [form.samples() for form in self.inputs]
        self.state, results = run_forward(self.fn, batches, self.copy, pad)
        for form in self.inputs:
            form.tensor = None
        made = []
        self.layouts = [batch.layout for batch in results]
        self.outputs = [self._in_form(k, batch) for k, batch in enumerate(results)]
        for k, batch in enumerate(self.outputs):
            array, batch.array = batch.array, None
            if self.out_form == "packed" and batch.layout.kind == "sequence":
                array = self._packed(k, batch.layout, array)
            made.append(tensor_of(array))
        return made[0] if len(made) == 1 else tuple(made)

    def _in_form(self, k: int, batch: Batch) -> Batch:
        """Return output ``k`` in cells that the form it comes out in can tell of."""
        origin = f"output {self.fn.outputs[k].name!r} of {self.fn.name!r}"
        layout = batch.layout
        check_starts_fit(layout, self.out_form, origin, ASK_FOR_MASK)
        if self.out_form == "lengths" and not layout.contiguous:
            return in_cells(batch, Layout.of_lengths(layout.lengths))
        return batch

    def _packed(self, k: int, layout: Layout, flat: np.ndarray) -> np.ndarray:
        for form in self.inputs:
            if form.order is not None and form.layout is layout:
                self.packings[k] = form.order, form.extents
                break
        else:
            self.packings[k] = packing(layout)
        return _scattered(flat, self.packings[k][0])

    def prepare(self, ctx: Any, made: Any, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Tell autograd about outputs without gradient; return the outputs and what to save.

        What is saved is connected with the inputs: the inputs themselves where they must not be
        changed, else a further output without memory.
        """
        ctx.set_materialize_grads(False)
        outputs = made if type(made) is tuple else (made,)
        fixed = [
            tensor
            for variable, tensor in zip(self.fn.outputs, outputs, strict=True)
            if not variable.needs_gradient
        ]
        ctx.mark_non_differentiable(*fixed)
        anchor = torch.empty(0)
        return (*outputs, anchor), (anchor,) if self.copy else tuple(tensors)

    def backward(
        self, state: Any, gradients: Sequence[torch.Tensor | None], needed: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """Run the user's backward; return one gradient an input, None where none is needed."""
        roots = [
            Form(
                "lengths" if made.padded else "offsets",
                gradient,
                made.layout,
                variable,
                made.sample_shape,
                order=self.packings[k][0] if k in self.packings else None,
            )
            for k, (gradient, made, variable) in enumerate(
                zip(gradients, self.outputs, self.fn.outputs, strict=True)
            )
        ]
        batches = [
            in_cells(root.samples(), layout) if root.is_there else root
            for root, layout in zip(roots, self.layouts, strict=True)
        ]
        wanted = [k for k, flag in enumerate(needed) if flag]
        found: list[torch.Tensor | None] = [None] * len(needed)
        made = run_backward(self.fn, state, self.inputs, batches, wanted, self.copy)
        for k, batch in zip(wanted, made, strict=True):
            order = self.inputs[k].order
            found[k] = tensor_of(batch.array if order is None else _scattered(batch.array, order))
        return found

    def finish(self, k: int, tensor: torch.Tensor) -> Any:
        """Return output ``k`` in the form that was asked for."""
        layout = self.outputs[k].layout
        if layout.kind != "sequence":
            return tensor
        if k in self.packings:
            packed = self.packings[k][1]
            return PackedSequence(
                tensor, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
            )
        return make(self.out_form, tensor, layout, self.inputs)


def _scattered(flat: np.ndarray, order: np.ndarray) -> np.ndarray:
    made = np.empty_like(flat)
    made[order] = flat
    return made


class Differentiable(torch.autograd.Function):
    """A call as a node of the graph: ``Differentiable.apply(call, *tensors)``."""

    @staticmethod
    def forward(ctx: Any, call: Any, *tensors: torch.Tensor) -> Any:
        """Run the call's forward."""
        ctx.call = call
        made = call.forward(*tensors)
        saved = tensors
        if not call.is_short:
            made, saved = call.prepare(ctx, made, tensors)
        if _release_is_unknown():
            # What hangs on a saved tensor is freed when autograd frees it, or computes it again.
            holder = torch.empty(0)
            holder.untyped_storage()._udfkit_state = (call.state,)
            call.state = _HELD
            saved = (*saved, holder)
        ctx.save_for_backward(*saved)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Run the call's backward; a derivative of its result is an error."""
        if not torch.is_grad_enabled():
            return None, *_backward(ctx, gradients)
        with torch.no_grad():
            found = _backward(ctx, gradients)
        links = [tensor for tensor in ctx.saved_tensors if tensor.requires_grad]
        made = iter(
            _FirstDerivative.apply(
                ctx.call.fn.name,
                sum(g is not None for g in found),
                *[g for g in found if g is not None],
                *links,
            )
        )
        return None, *[None if g is None else next(made) for g in found]


class _FirstDerivative(torch.autograd.Function):
    """Gradients that have no derivative, although they depend on the tensors behind them."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: torch.Tensor) -> Any:
        ctx.name = name
        return tuple([tensor.view_as(tensor) for tensor in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            f"second derivative of {ctx.name!r}: a user function has a first one only; compute "
            f"gradients that go through it without create_graph=True, or detach them"
        )


_HELD, _FREED = object(), object()
_keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def _release_is_unknown() -> bool:
    """Whether backward cannot tell if it may free the state, or someone else manages saved memory.

    That is so in releases of torch without these two functions, and under hooks such as those of
    activation checkpointing.
    """
    return _keeps_graph is None or _saving_hooks is None or _saving_hooks(True) is not None


def _backward(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    call, needed = ctx.call, ctx.needs_input_grad[1:]
    state = call.state
    if state is _HELD:
        state = _held_state(ctx)
    elif state is _FREED:
        raise RuntimeError(
            f"backward through {call.fn.name!r} a second time, after its state was freed: pass "
            f"retain_graph=True to the first backward"
        )
    if not call.is_short:
        gradients = gradients[:-1]
        if not call.copy:
            ctx.saved_tensors  # noqa: B018  # torch raises here when an input was changed
        if all(gradient is None for gradient in gradients):
            return [None] * len(needed)
    found: list[torch.Tensor | None] = call.backward(state, gradients, needed)
    if _keeps_graph is not None and not _keeps_graph() and call.state is not _HELD:
        call.state = _FREED
    return found


def _held_state(ctx: Any) -> Any:
    held = getattr(ctx.saved_tensors[-1].untyped_storage(), "_udfkit_state", None)
    if held is None:
        raise RuntimeError(
            f"the state of {ctx.call.fn.name!r} is lost: saved-tensor hooks replaced the tensor "
            f"that holds it; call the function outside of such hooks"
        )
    return held[0]
