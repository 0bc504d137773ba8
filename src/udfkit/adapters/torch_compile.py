"""User functions under `torch.compile`: one opaque operator forward, and one backward.

A graph needs to know shapes before user code runs. So an output on the sequence axis of an input is
taken to have the lengths of that input, which is checked when it ran. What cannot be told like that
breaks the graph and goes the eager way.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from udfkit.adapters.bridge_batches import Batch, in_cells
from udfkit.adapters.torch_call import GeneralCall
from udfkit.adapters.torch_forms import PADDED, Form, read, torch_dtype
from udfkit.function import UserFunction
from udfkit.variable import FreeDimension

__all__ = ["Traced", "outputs_of", "plan_of"]

_numbers = itertools.count()
_functions: weakref.WeakValueDictionary[int, UserFunction] = weakref.WeakValueDictionary()
_plans: weakref.WeakKeyDictionary[UserFunction, Traced | None] = weakref.WeakKeyDictionary()


class Traced:
    """What a graph needs to know of a function; every attribute is a constant of the graph.

    Attributes
    ----------
    handle : int
        Finds the function when the graph runs.
    kinds : list of str
        Of the inputs: 'sequence', 'batch' or 'none'.
    ranks : list of int
        How many axes a sample of each input has.
    dtypes : list of torch.dtype
        Of the inputs.
    differentiable : list of bool
        Which inputs may need a gradient.
    sources : list of int
        For each output the input whose lengths it has; -1 without a sequence axis.
    """

    def __init__(self, fn: UserFunction, sources: list[int]):
        self.handle = next(_numbers)
        _functions[self.handle] = fn
        self.kinds = [v.kind for v in fn.inputs]
        self.ranks = [len(v.shape) for v in fn.inputs]
        self.dtypes = [torch_dtype(v.dtype) for v in fn.inputs]
        self.differentiable = [v.needs_gradient for v in fn.inputs]
        self.names = [v.name for v in fn.inputs]
        self.sources = sources


def plan_of(fn: UserFunction) -> Traced | None:
    """Return what a graph needs to know of a function, or None when that is not enough."""
    if fn not in _plans:
        _plans[fn] = _make_plan(fn)
    return _plans[fn]


def _make_plan(fn: UserFunction) -> Traced | None:
    sources = []
    for output in fn.outputs:
        source = -1
        if FreeDimension in output.shape:
            return None
        if output.kind == "sequence":
            axis = output.dynamic_axes[1]
            same = [k for k, v in enumerate(fn.inputs) if axis in v.dynamic_axes]
            if not same:
                return None
            source = same[0]
        elif output.kind == "batch" and all(v.kind == "none" for v in fn.inputs):
            return None
        sources.append(source)
    return Traced(fn, sources)


def _function(handle: int) -> UserFunction:
    fn = _functions.get(handle)
    if fn is None:
        raise RuntimeError("a compiled graph calls a user function that is gone: keep it alive")
    return fn


def _forms(
    fn: UserFunction, tensors: Sequence[torch.Tensor], extents: Sequence[torch.Tensor]
) -> list[Form]:
    return [
        read(variable, (tensor, extent) if variable.kind == "sequence" else tensor)
        for variable, tensor, extent in zip(fn.inputs, tensors, extents, strict=True)
    ]


class _GraphCall(GeneralCall):
    """A call whose outputs are in the cells of the inputs that are their sources in the graph."""

    __slots__ = ("sources",)

    def __init__(self, fn: UserFunction, inputs: list[Form], sources: Sequence[int], padded: bool):
        super().__init__(fn, inputs, "mask" if padded else "offsets", copy=True)
        self.sources = sources

    def _in_form(self, k: int, batch: Batch) -> Batch:
        if self.sources[k] < 0:
            return batch
        source = self.inputs[self.sources[k]].layout
        if not batch.layout.same_lengths(source):
            raise RuntimeError(
                f"output {self.fn.outputs[k].name!r} of {self.fn.name!r} is declared on the "
                f"sequence axis of input {self.fn.inputs[self.sources[k]].name!r}, but has other "
                f"lengths, which a compiled graph cannot have: declare it on "
                f"udfkit.Axis.new_unique_dynamic_axis(...)"
            )
        return in_cells(batch, source)


@torch.library.custom_op("udfkit::forward", mutates_args=())
def _forward(
    tensors: Sequence[torch.Tensor],
    extents: Sequence[torch.Tensor],
    handle: int,
    sources: Sequence[int],
    padded: bool,
) -> list[torch.Tensor]:
    fn = _function(handle)
    call = _GraphCall(fn, _forms(fn, tensors, extents), sources, padded)
    made = call.forward()
    key = torch.empty(0)
    key.untyped_storage()._udfkit_call = call
    return [*(made if type(made) is tuple else (made,)), key]


@_forward.register_fake
def _(tensors: Any, extents: Any, handle: int, sources: Sequence[int], padded: bool) -> Any:
    fn = _function(handle)
    made = []
    for variable, source in zip(fn.outputs, sources, strict=True):
        leading: tuple[Any, ...] = ()
        if source >= 0:
            leading = tuple(tensors[source].shape[: 1 + padded])
        elif variable.kind == "batch":
            leading = (_batch_size(fn, tensors, extents),)
        size = (*leading, *variable.shape)
        made.append(tensors[0].new_empty(size, dtype=torch_dtype(variable.dtype)))
    return [*made, tensors[0].new_empty(0, dtype=torch.float32)]


def _batch_size(fn: UserFunction, tensors: Any, extents: Any) -> Any:
    for variable, tensor, extent in zip(fn.inputs, tensors, extents, strict=True):
        if variable.kind == "sequence" and tensor.dim() == len(variable.shape) + 1:
            return extent.shape[0] - 1
        if variable.kind != "none":
            return tensor.shape[0]
    raise AssertionError(fn)


@torch.library.custom_op("udfkit::backward", mutates_args=())
def _backward(
    key: torch.Tensor,
    gradients: Sequence[torch.Tensor | None],
    needed: Sequence[bool],
    sizes: Sequence[int],  # noqa: ARG001  # for the fake
    ranks: Sequence[int],  # noqa: ARG001  # for the fake
    handle: int,
) -> list[torch.Tensor]:
    call = getattr(key.untyped_storage(), "_udfkit_call", None)
    if call is None:
        raise RuntimeError(
            f"the state of {_function(handle).name!r} is lost: the compiled graph copied the "
            f"tensor that holds it; call the function outside of torch.compile"
        )
    found = call.backward(call.state, gradients, needed)
    return [gradient for gradient in found if gradient is not None]


@_backward.register_fake
def _(
    key: torch.Tensor,
    gradients: Any,  # noqa: ARG001  # the signature is that of the operator
    needed: Sequence[bool],
    sizes: Sequence[int],
    ranks: Sequence[int],
    handle: int,
) -> Any:
    fn = _function(handle)
    made, at = [], 0
    for variable, rank, wanted in zip(fn.inputs, ranks, needed, strict=True):
        if wanted:
            made.append(key.new_empty(sizes[at : at + rank], dtype=torch_dtype(variable.dtype)))
        at += rank
    return made


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, _, handle, _, _ = inputs
    fn = _function(handle)
    ctx.handle = handle
    ctx.sizes = [size for tensor in tensors for size in tensor.shape]
    ctx.ranks = [tensor.dim() for tensor in tensors]
    ctx.needed = [
        tensor.requires_grad and v.needs_gradient
        for v, tensor in zip(fn.inputs, tensors, strict=True)
    ]
    ctx.save_for_backward(output[-1])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grads: Any) -> Any:
    (key,) = ctx.saved_tensors
    given = list(grads[:-1])
    nothing = [None] * len(ctx.needed)
    if not any(ctx.needed) or all(g is None for g in given):
        return nothing, nothing, None, None, None
    found = iter(_backward(key, given, ctx.needed, ctx.sizes, ctx.ranks, ctx.handle))
    return [next(found) if flag else None for flag in ctx.needed], nothing, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def outputs_of(plan: Traced, inputs: Sequence[Any], out_form: str | None) -> list[Any] | None:
    """Trace a call; return its outputs, or None where the graph must break."""
    tensors, extents, forms = [], [], []
    for k, given in enumerate(inputs):
        parts = _parts(plan, k, given)
        if parts is None:
            return None
        tensor, extent, form = parts
        if tensor.device.type != "cpu":
            return None
        if tensor.dtype is not plan.dtypes[k]:
            tensor = tensor.to(plan.dtypes[k])
        tensors.append(tensor)
        extents.append(extent)
        forms.append(form)
    if out_form is None:
        sequences = [form for form in forms if form != "plain"]
        out_form = sequences[0] if sequences else "offsets"
    for source in plan.sources:
        if source >= 0 and forms[source] != out_form:
            return None
    made = torch.ops.udfkit.forward(tensors, extents, plan.handle, plan.sources, out_form in PADDED)
    finished: list[Any] = []
    for k, source in enumerate(plan.sources):
        if source < 0:
            finished.append(made[k])
        elif out_form == "nested":
            finished.append(torch.nested.nested_tensor_from_jagged(made[k], extents[source]))
        else:
            finished.append((made[k], extents[source]))
    return finished


def _parts(plan: Traced, k: int, given: Any) -> tuple[Any, Any, str] | None:
    """Return the tensor, the extents and the form of one argument; None for other forms."""
    if plan.kinds[k] != "sequence":
        return given, given.new_empty(0, dtype=torch.int64), "plain"
    if isinstance(given, torch.Tensor):
        return (given.values(), given.offsets(), "nested") if given.is_nested else None
    if type(given) is not tuple or len(given) != 2:
        return None
    tensor, extent = given
    if not isinstance(extent, torch.Tensor):
        extent = torch.as_tensor(extent)
    if extent.dim() == 2:
        return tensor, extent, "mask"
    return tensor, extent, "offsets" if tensor.dim() == plan.ranks[k] + 1 else "lengths"
