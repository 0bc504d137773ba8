"""User functions inside PyTorch: `apply`, and `Module` for those that have parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from udfkit.adapters.arguments import all_inputs, check_function, wrong_count
from udfkit.adapters.torch_call import Differentiable, GeneralCall
from udfkit.adapters.torch_compile import outputs_of, plan_of
from udfkit.adapters.torch_forms import FORMS, Form, array_of, read, tensor_of
from udfkit.adapters.torch_short import apply_short
from udfkit.function import UserFunction
from udfkit.variable import Constant, Parameter

__all__ = ["Module", "apply"]

_transform = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)


def apply(fn: UserFunction, *inputs: Any, out_form: str | None = None, copy: bool = True) -> Any:
    """Call a user function on tensors, with gradients.

    Parameters
    ----------
    fn : UserFunction
    *inputs : one for each input variable, in order
        A sequence variable takes a nested jagged tensor, ``(padded (B, T, *s), lengths (B,))``,
        ``(padded, mask (B, T))``, ``(values (total, *s), offsets (B + 1,))`` or a PackedSequence; a
        batch-only variable a tensor ``(B, *s)``; one without axes a tensor ``s``. Parameters and
        Constants of the function may be left out, all together; they have their own values then,
        without gradient.
    out_form : {'nested', 'lengths', 'mask', 'offsets', 'packed'}, optional
        The form in which sequences come out; by default that of the first sequence input, or
        ``'offsets'`` when there is none. Only ``'mask'`` can say that a sequence continues one of
        the batch before (a mask of integers whose first valid cell is 1); another form is an error
        then.
    copy : bool, default True
        False lets user code see the memory of the tensors (read-only), and hands out what it
        returns without copying where that is one block of its own: the ``values`` of a Ragged, or
        an array without a sequence axis. Inputs must not be changed in place until backward is
        done; torch raises an error if they are.

    Returns
    -------
    Tensor, PackedSequence, tuple of Tensor
        The output; a tuple of outputs when the function declares several. An output that keeps the
        lengths of an input in the same form shares its lengths, mask or offsets.

    Raises
    ------
    TypeError, ValueError
        When an input does not fit its variable; when a tensor requires a gradient and its variable
        needs none; and what user code raises, unchanged.
    RuntimeError
        Inside of `torch.vmap` and the transforms of `torch.func`.
    DeviceError
        For tensors that are neither on the CPU nor on a CUDA device, or not all on one.

    Examples
    --------
    >>> import torch, udfkit
    >>> class Double(udfkit.UserFunction):
    ...     def infer_outputs(self):
    ...         x = self.inputs[0]
    ...         return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]
    ...     def forward(self, arg, device, outputs_to_retain):
    ...         return None, [2 * sequence for sequence in arg]
    ...     def backward(self, state, grad):
    ...         return [2 * sequence for sequence in grad]
    >>> double = Double([udfkit.sequence.input_variable((), needs_gradient=True)])
    >>> values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> doubled, offsets = udfkit.torch.apply(double, (values, torch.tensor([0, 2, 3])))
    >>> doubled.sum().backward()
    >>> doubled.tolist(), values.grad.tolist()
    ([2.0, 4.0, 6.0], [2.0, 2.0, 2.0])
    """
    if torch.compiler.is_compiling():
        return _traced(fn, inputs, out_form, copy)
    if _transform() is not None:
        raise RuntimeError(
            f"{fn.name!r} was called inside of torch.vmap or a transform of torch.func, which give "
            f"tensors without memory: call it outside of them, on the whole batch at once"
        )
    if copy and out_form is None and len(inputs) == 1:
        short = apply_short(fn, inputs[0])
        if short is not None:
            return short
    arguments = all_inputs(fn, inputs, lambda value: _tensor_like(value, inputs))
    forms = [read(v, x) for v, x in zip(fn._inputs, arguments, strict=True)]
    form = out_form
    if form is None:
        form = next((form.kind for form in forms if form.kind != "plain"), "offsets")
    elif form not in FORMS:
        raise ValueError(f"out_form is {out_form!r}, expected one of {list(FORMS)}")
    call = GeneralCall(fn, forms, form, copy)
    tensors = [form.tensor for form in forms]
    if not all(tensor.is_cpu for tensor in tensors):
        call, tensors = _on_device(fn, forms, form, copy)
    if torch.is_grad_enabled() and _any_gradient(fn, forms):
        made = Differentiable.apply(call, *tensors)[:-1]
    else:
        made = call.forward(*tensors)
        made = made if type(made) is tuple else (made,)
    outputs = tuple([call.finish(k, tensor) for k, tensor in enumerate(made)])
    return outputs[0] if len(outputs) == 1 else outputs


def _on_device(
    fn: UserFunction, forms: list[Form], out_form: str, copy: bool
) -> tuple[GeneralCall, list[torch.Tensor]]:
    from udfkit.adapters.torch_device import DeviceCall, flat_tensors  # for machines with a GPU

    device, tensors = flat_tensors(fn, forms)
    return DeviceCall(fn, forms, out_form, copy, device), tensors


def _traced(fn: UserFunction, inputs: Sequence[Any], out_form: str | None, copy: bool) -> Any:
    """Do what `apply` does while `torch.compile` traces."""
    id(fn)  # makes the graph hold for this function only
    plan = _plan_for_graph(fn)
    if plan is not None and len(inputs) == len(plan.kinds):
        made = outputs_of(plan, inputs, out_form)
        if made is not None:
            return made[0] if len(made) == 1 else tuple(made)
    return _eager(fn, *inputs, out_form=out_form, copy=copy)


@torch.compiler.assume_constant_result
def _plan_for_graph(fn: UserFunction) -> Any:
    # One that is made while the graph is traced has no outputs yet: it breaks the graph.
    return plan_of(fn) if "_outputs" in vars(fn) else None


@torch.compiler.disable
def _eager(fn: UserFunction, *inputs: Any, out_form: str | None, copy: bool) -> Any:
    return apply(fn, *inputs, out_form=out_form, copy=copy)


def _tensor_like(value: Any, inputs: Sequence[Any]) -> torch.Tensor:
    """Return a value as a tensor on the device of the first of the inputs."""
    made = tensor_of(np.array(value))
    for given in inputs:
        tensor = given[0] if isinstance(given, tuple) and given else given
        if isinstance(tensor, torch.Tensor):
            return made.to(tensor.device)
    return made


def _any_gradient(fn: UserFunction, forms: Sequence[Form]) -> bool:
    """Whether any tensor requires a gradient; ValueError when its variable needs none."""
    found = False
    for variable, form in zip(fn._inputs, forms, strict=True):
        if form.tensor.requires_grad:
            found = True
            if not variable.needs_gradient:
                raise ValueError(
                    f"the tensor for input {variable.name!r} of {fn.name!r} requires a gradient, "
                    f"but the variable needs none: declare it with needs_gradient=True, or pass "
                    f"the tensor detached"
                )
    return found


class Module(torch.nn.Module):
    """A user function as a module: its Parameters are the module's, and in its ``state_dict``.

    Parameters
    ----------
    fn : UserFunction
    out_form, copy
        As `apply`.

    Raises
    ------
    ValueError
        When two Parameters have one name, or a name that a module cannot use.

    Examples
    --------
    >>> import numpy as np, torch, udfkit
    >>> class Scale(udfkit.UserFunction):
    ...     def infer_outputs(self):
    ...         x = self.inputs[0]
    ...         return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]
    ...     def forward(self, args, device, outputs_to_retain):
    ...         sequences, weight = args
    ...         return args, [weight * sequence for sequence in sequences]
    ...     def backward(self, state, grad, variables):
    ...         sequences, weight = state
    ...         x, w = self.inputs
    ...         if x in variables:
    ...             variables[x] = [weight * g for g in grad]
    ...         if w in variables:
    ...             variables[w] = sum(np.sum(g * s) for g, s in zip(grad, sequences))
    >>> x = udfkit.sequence.input_variable((), needs_gradient=True)
    >>> w = udfkit.Parameter(init=np.float32(3.0), name="weight")
    >>> scale = udfkit.torch.Module(Scale([x, w]))
    >>> y, lengths = scale((torch.tensor([[1.0, 2.0], [5.0, 0.0]]), torch.tensor([2, 1])))
    >>> y.sum().backward()
    >>> y.tolist(), list(scale.state_dict()), scale.weight.grad.item()
    ([[3.0, 6.0], [15.0, 0.0]], ['weight'], 8.0)
    """

    def __init__(self, fn: UserFunction, *, out_form: str | None = None, copy: bool = True):
        super().__init__()
        check_function(fn)
        self.fn = fn
        self.out_form = out_form
        self.copy = copy
        self._names: list[str | None] = []
        for k, variable in enumerate(fn.inputs):
            name = None
            if isinstance(variable, (Parameter, Constant)):
                name = f"value{k}" if variable._unnamed else variable.name.replace(".", "_")
                if hasattr(self, name):
                    raise ValueError(
                        f"{variable!r} of {fn.name!r} cannot be {name!r} in a module, which has an "
                        f"attribute of that name: give it another name"
                    )
                tensor = tensor_of(np.array(variable.value))
                if isinstance(variable, Parameter):
                    self.register_parameter(name, torch.nn.Parameter(tensor))
                else:
                    self.register_buffer(name, tensor, persistent=False)
            self._names.append(name)

    def forward(self, *inputs: Any) -> Any:
        """Call the function; one argument an input that is no Parameter or Constant, in order."""
        if len(self._names) != len(inputs):
            if self._names.count(None) != len(inputs):
                raise wrong_count(self.fn, len(inputs))
            given = iter(inputs)
            inputs = tuple(
                [next(given) if name is None else getattr(self, name) for name in self._names]
            )
        return apply(self.fn, *inputs, out_form=self.out_form, copy=self.copy)

    def update_function(self) -> None:
        """Write the module's parameters back to the Parameters of the function."""
        for variable, name in zip(self.fn.inputs, self._names, strict=True):
            if isinstance(variable, Parameter):
                assert name is not None  # noqa: S101
                variable.value = array_of(getattr(self, name).detach().cpu(), variable.dtype)

    def extra_repr(self) -> str:
        """Name the function and its inputs."""
        return repr(self.fn)
