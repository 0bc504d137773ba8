"""Functions called with plain arrays: what `UserFunction.eval` and `UserFunction.grad` do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from udfkit.batching import make_value
from udfkit.device import DeviceDescriptor
from udfkit.results import Returned, gradient_value, zeros_like
from udfkit.value import Value
from udfkit.variable import Constant, Parameter, Variable

if TYPE_CHECKING:
    from udfkit.function import UserFunction

__all__ = ["evaluate", "gradients"]


def evaluate(
    function: UserFunction, batch: Any, seq_starts: Any, device: DeviceDescriptor | None
) -> Any:
    """Do what `UserFunction.eval` says."""
    _, outputs = function._forward(_arguments(function, batch, seq_starts, device), None, device)
    return _plain(outputs)


def gradients(
    function: UserFunction,
    batch: Any,
    wrt: Any,
    root_gradients: Any,
    outputs: Any,
    seq_starts: Any,
    device: DeviceDescriptor | None,
) -> Any:
    """Do what `UserFunction.grad` says."""
    inputs = _inputs_to_differentiate(function, wrt)
    values = _arguments(function, batch, seq_starts, device)
    shown = [] if outputs is None else _find_all(function.outputs, outputs, "output", function)
    state, made = function._forward(values, None, device, function.outputs)
    if any(variable.needs_gradient for variable in function.outputs):
        roots = _roots(function, made, root_gradients)
        found = function._backward(state, roots, dict.fromkeys(inputs))
    else:
        found = {v: _zeros(v, values[v]) for v in inputs}
    result = _plain({variable: found[variable] for variable in inputs})
    return result if outputs is None else (result, _plain({v: made[v] for v in shown}))


def _zeros(variable: Variable, value: Value) -> Value:
    return zeros_like(variable, value._layout, value._sample_shape, value.device)


def _plain(values: Mapping[Variable, Value]) -> Any:
    arrays = {variable: value._sequences(variable.kind) for variable, value in values.items()}
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def _find_all(
    variables: Sequence[Variable], keys: Any, role: str, function: UserFunction
) -> list[Variable]:
    named = list(keys) if isinstance(keys, (list, tuple, set, frozenset, dict)) else [keys]
    if not named:
        raise ValueError(f"no {role} was named: name at least one, or leave the argument out")
    return [_find(variables, key, role, function) for key in named]


def _find(variables: Sequence[Variable], key: Any, role: str, function: UserFunction) -> Variable:
    found = [v for v in variables if v is key or (isinstance(key, str) and v.name == key)]
    if len(found) != 1:
        raise ValueError(
            f"{key!r} names {'more than one' if found else 'no'} {role} of {function.name!r}: use "
            f"a Variable or a name among {[v.name for v in variables]}"
        )
    return found[0]


def _by_variable(
    variables: Sequence[Variable], given: Any, role: str, function: UserFunction, what: str
) -> dict[Variable, Any]:
    """Read a dict by Variable or name, or one bare thing for the only variable."""
    if isinstance(given, Mapping):
        parts = {_find(variables, key, role, function): part for key, part in given.items()}
        if len(parts) != len(given):
            raise ValueError(
                f"{what} of {function.name!r} names one {role} twice, by Variable and by name: "
                f"keep one of {list(given)}"
            )
        return parts
    if len(variables) != 1:
        raise ValueError(
            f"{function.name!r} has {len(variables)} {role}s: give {what} as a dict by Variable or "
            f"name, {{{', '.join(f'{v.name!r}: ...' for v in variables)}}}"
        )
    return {variables[0]: given}


def _arguments(
    function: UserFunction, batch: Any, seq_starts: Any, device: DeviceDescriptor | None
) -> dict[Variable, Value]:
    """Make a Value of every input; Parameters and Constants have their own unless given."""
    fed = [v for v in function.inputs if not isinstance(v, (Parameter, Constant))]
    known = function.inputs if isinstance(batch, Mapping) or not fed else fed
    batches = _by_variable(known, batch, "input", function, "the batch")
    starts: dict[Variable, Any] = {}
    if seq_starts is not None:
        starts = _by_variable(fed, seq_starts, "input", function, "seq_starts")
    values = {}
    for variable in function.inputs:
        if variable in batches:
            part = batches[variable]
        elif isinstance(variable, (Parameter, Constant)):
            part = variable.value
        else:
            raise ValueError(
                f"no batch was given for input {variable.name!r} of {function.name!r}: expected "
                f"{[v.name for v in fed]}"
            )
        values[variable] = make_value(
            variable, part, starts.get(variable), device, copy=True, pad_now=False, warn=True
        )
    return values


def _inputs_to_differentiate(function: UserFunction, wrt: Any) -> list[Variable]:
    if wrt is None:
        inputs = [variable for variable in function.inputs if variable.needs_gradient]
        if not inputs:
            raise ValueError(
                f"no input of {function.name!r} needs a gradient: make one with needs_gradient=True"
            )
        return inputs
    inputs = _find_all(function.inputs, wrt, "input", function)
    for variable in inputs:
        if not variable.needs_gradient:
            raise ValueError(
                f"wrt {variable.name!r} needs no gradient: make it with needs_gradient=True"
            )
    return inputs


def _roots(
    function: UserFunction, outputs: Mapping[Variable, Value], given: Any
) -> dict[Variable, Value]:
    if given is None:
        return {v: _ones(v, value) for v, value in outputs.items() if v.needs_gradient}
    parts = _by_variable(function.outputs, given, "output", function, "root_gradients")
    roots = {}
    for variable, part in parts.items():
        value = outputs[variable]
        where = Returned(f"the root gradient of output {variable.name!r}", variable, "output")
        roots[variable] = gradient_value(
            where, part, value._layout, value._sample_shape, value.device
        )
    return roots


def _ones(variable: Variable, value: Value) -> Value:
    return Value._filled(1, value._layout, value._sample_shape, variable.dtype, value.device)
