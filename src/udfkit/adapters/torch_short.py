"""The short way through `apply`: one input and one output of sequences, and a small batch.

Here the steps around user code are most of the cost of a call, so they are few and in one place. A
call that is not such a one goes the general way. Whatever user code returns that is not the usual
thing is judged as there.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from udfkit.adapters.arguments import check_function
from udfkit.adapters.bridge import (
    checked_gradient,
    checked_output,
    is_one_to_one,
    raise_for_returned,
)
from udfkit.adapters.bridge_batches import check_starts_fit, layout_at
from udfkit.adapters.torch_call import ASK_FOR_MASK, Differentiable
from udfkit.adapters.torch_forms import Form, make, torch_dtype
from udfkit.casting import is_bfloat16
from udfkit.device import cpu
from udfkit.function import UserFunction
from udfkit.kernels import lazy
from udfkit.layout import Layout
from udfkit.memory import SMALLEST_POOLED
from udfkit.ragged import Ragged
from udfkit.user_calls import call_user
from udfkit.variable import FreeDimension, Variable

__all__ = ["apply_short"]

borders = lazy("pyobjects_borders", globals())
pyobjects = lazy("pyobjects", globals())

_CPU = cpu()
_INT64 = np.dtype(np.int64)
_Tensor, _strided, _torch_int64 = torch.Tensor, torch.strided, torch.int64


class _Side:
    """What is asked of an input or output variable at each call, read once."""

    __slots__ = ("dtype", "sample_bytes", "shape", "torch_dtype", "variable")

    def __init__(self, variable: Variable):
        self.variable = variable
        self.shape = variable.shape
        self.dtype = variable.dtype
        self.torch_dtype = torch_dtype(variable.dtype)
        self.sample_bytes = variable.dtype.itemsize * prod(variable.shape)


class _Plan:
    __slots__ = ("is_ragged", "operand", "result")

    def __init__(self, fn: UserFunction):
        self.operand = _Side(fn.inputs[0])
        self.result = _Side(fn.outputs[0])
        self.is_ragged = fn.layout == "ragged"


_plans: dict[int, tuple[weakref.ref[UserFunction], _Plan | None]] = {}


def _plan_of(fn: UserFunction) -> _Plan | None:
    """Return the plan of a function that can go this way, else None; and remember it."""
    check_function(fn)
    variables = (*fn.inputs, *fn.outputs)
    plan = None
    if (
        fn.as_numpy
        and len(variables) == 2
        and is_one_to_one(fn)
        and all(v.kind == "sequence" and v.needs_gradient for v in variables)
        and not any(FreeDimension in v.shape or is_bfloat16(v.dtype) for v in variables)
        and pyobjects.why_plain is None
    ):
        plan = _Plan(fn)
    key = id(fn)
    _plans[key] = weakref.ref(fn, lambda _: _plans.pop(key, None)), plan
    return plan


class _ShortCall:
    __slots__ = ("extents", "fn", "layout", "made", "plan", "state", "steps", "total")

    is_short = True

    def __init__(
        self, fn: UserFunction, plan: _Plan, layout: Layout, steps: int, extents: torch.Tensor
    ):
        self.fn = fn
        self.plan = plan
        self.layout = layout
        self.steps = steps
        self.extents = extents
        self.total = layout.total

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        plan, layout = self.plan, self.layout
        given = self._given(tensor, plan.operand, layout, self.total)
        fn = self.fn
        returned = call_user(fn, "forward", fn.forward, given, _CPU, [])
        if type(returned) is not tuple or len(returned) != 2 or returned[1] is None:
            raise_for_returned(fn, returned)
        self.state, result = returned
        made = self._collected(result, plan.result, layout)
        if made is not None:
            self.made = layout
            return made
        operand = self._form(tensor, plan.operand, layout)
        batch = checked_output(
            self.fn, plan.result.variable, result, [operand], copy=True, pad=self.steps >= 0
        )
        self.made = batch.layout
        return torch.from_numpy(batch.array)

    def backward(
        self, state: Any, gradients: Sequence[Any], _: Sequence[bool]
    ) -> list[torch.Tensor]:
        tensor, fn, plan = gradients[0], self.fn, self.plan
        if not tensor.is_contiguous() or tensor.is_neg():
            tensor = tensor.resolve_neg().contiguous()
        total = self.total if self.made is self.layout else self.made.total
        root = self._given(tensor, plan.result, self.made, total)
        result = call_user(fn, "backward", fn.backward, state, root)
        made = self._collected(result, plan.operand, self.layout)
        if made is not None:
            return [made]
        inputs = [self._form(None, plan.operand, self.layout)]
        batch = checked_gradient(fn, 0, result, inputs, (), copy=True)
        return [torch.from_numpy(batch.array)]

    def _form(self, tensor: Any, side: _Side, layout: Layout) -> Form:
        kind = "offsets" if self.steps < 0 else "lengths"
        return Form(kind, tensor, layout, side.variable, side.shape, self.extents)

    def _given(self, tensor: torch.Tensor, side: _Side, layout: Layout, total: int) -> Any:
        """Return a copy of a contiguous tensor as user code gets it."""
        shape = side.shape
        block = np.empty((total, *shape), side.dtype)
        steps = self.steps if self.steps < 0 else layout.steps
        views = borders.copy_views(block, layout.lengths, shape, _INT64, tensor.data_ptr(), steps)
        return Ragged._trusted(block, layout.offsets, None) if self.plan.is_ragged else views

    def _collected(self, result: Any, side: _Side, layout: Layout) -> torch.Tensor | None:
        """Return a tensor of a list of arrays that are what they should be; None for others."""
        if type(result) is not list:
            if type(result) is not Ragged or result._offsets is not layout.offsets:
                return None
            if self.steps >= 0 or result._gpu is not None or result.dtype != side.dtype:
                return None
            values = result.values
            return torch.from_numpy(values.copy()) if values.shape[1:] == side.shape else None
        shape, steps = side.shape, self.steps
        size = (self.total, *shape) if steps < 0 else (layout.rows, steps, *shape)
        made = np.empty(size, side.dtype)
        if borders.gather(tuple(result), side.dtype, shape, layout._offsets, _INT64, made, steps):
            return None
        return torch.from_numpy(made)


def apply_short(fn: UserFunction, given: Any) -> Any:
    """Do what `udfkit.torch.apply` does with one input; None when it must go the general way."""
    found = _plans.get(id(fn))
    plan = found[1] if found is not None and found[0]() is fn else _plan_of(fn)
    if plan is None or type(given) is not tuple or len(given) != 2:
        return None
    tensor, extents = given
    if not (
        type(tensor) is _Tensor
        and type(extents) is _Tensor
        and tensor.dtype is plan.operand.torch_dtype
        and extents.dtype is _torch_int64
        and tensor.is_cpu
        and extents.is_cpu
        and tensor.layout is _strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and extents.is_contiguous()
        and extents.dim() == 1
    ):
        return None
    shape, count = tensor.shape, len(extents)
    sample_shape, sample_bytes = plan.operand.shape, plan.operand.sample_bytes
    if shape[1:] == sample_shape and count:
        steps, cells = -1, shape[0]
        layout = layout_at(extents.data_ptr(), count - 1, cells, offsets=True)
    elif shape[2:] == sample_shape and len(shape) > 1 and shape[0] == count:
        steps, cells = shape[1], count * shape[1]
        layout = layout_at(extents.data_ptr(), count, steps, offsets=False)
    else:
        return None
    if layout is None or cells * max(sample_bytes, plan.result.sample_bytes) >= SMALLEST_POOLED:
        return None
    call = _ShortCall(fn, plan, layout, steps, extents)
    if tensor.requires_grad and torch.is_grad_enabled():
        made = Differentiable.apply(call, tensor)
    else:
        made = call.forward(tensor)
    if call.made is layout:
        return made, extents
    operand = call._form(None, plan.operand, layout)
    origin = f"output {plan.result.variable.name!r} of {fn.name!r}"
    check_starts_fit(call.made, operand.kind, origin, ASK_FOR_MASK)
    return make(operand.kind, made, call.made, [operand])
