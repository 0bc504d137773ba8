"""One forward or backward on Values: convert, call user code, check, convert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from udfkit.batching import make_value, sanitize_batch
from udfkit.contract import contract_of
from udfkit.device import DeviceDescriptor, resolve
from udfkit.layout import Layout
from udfkit.results import (
    CallRecord,
    Returned,
    check_same_lengths,
    gradient_value,
    output_value,
    zeros_like,
)
from udfkit.state import BackPropState, UserBackPropState
from udfkit.user_calls import (
    call_backward,
    call_forward,
    describe,
    for_user,
    missing_gradients,
    must_be_value,
    wrap_state,
)
from udfkit.value import Value
from udfkit.variable import Constant, Parameter, Variable

if TYPE_CHECKING:
    from udfkit.function import UserFunction

__all__ = ["check_batch_sizes", "run_backward", "run_forward"]


def run_forward(
    function: UserFunction,
    arguments: Sequence[Value] | Mapping[Variable, Value],
    outputs: Any,
    device: DeviceDescriptor | None,
    retain: list[Variable],
) -> tuple[BackPropState, dict[Variable, Value]]:
    """Do what `UserFunction._forward` says."""
    declared = function.outputs
    values = _argument_values(function, arguments, device)
    where = values[0].device
    asked = list(declared) if outputs is None else list(outputs)
    for variable in asked:
        _must_be_one_of(variable, declared, "output", function)
    wanted = list(declared) if contract_of(function.contract).all_outputs else asked
    given = [for_user(function, a, v) for a, v in zip(values, function.inputs, strict=True)]
    state, results = call_forward(function, given, wanted, where, retain)
    made = {}
    for variable in wanted:
        origin = f"forward of user function {function.name!r}, output {variable.name!r}"
        must_be_value(function, origin, results[variable])
        returned = Returned(origin, variable)
        made[variable] = output_value(returned, results[variable], values, where)
        for other, value in zip(function.inputs, values, strict=True):
            if variable.named_axis is not None and other.named_axis == variable.named_axis:
                check_same_lengths(origin, made[variable], f"input {other.name!r}", value)
    record = CallRecord(
        {v: (a._layout, a._sample_shape) for v, a in zip(function.inputs, values, strict=True)},
        {v: (a._layout, a._sample_shape) for v, a in made.items()},
    )
    kept = wrap_state(function, state, where, record)
    filled = outputs if isinstance(outputs, dict) else {}
    filled.update({variable: made[variable] for variable in asked})
    return kept, filled


def run_backward(
    function: UserFunction,
    state: BackPropState,
    root_gradients: Mapping[Variable, Value],
    variables: Any,
) -> dict[Variable, Value]:
    """Do what `UserFunction._backward` says."""
    if not isinstance(state, BackPropState):
        raise TypeError(
            f"state is a {type(state).__name__}, expected the BackPropState from _forward"
        )
    if isinstance(state, UserBackPropState) and state.function is not function:
        raise ValueError(f"the state comes from another function than {function.name!r}")
    if variables is None:
        variables = [v for v in function.inputs if v.needs_gradient]
    if not isinstance(root_gradients, Mapping):
        raise TypeError(
            f"root_gradients are {describe(root_gradients)}, expected a dict of Values by output"
        )
    requested = list(variables)
    for variable in requested:
        _must_be_one_of(variable, function.inputs, "input", function)
    if not requested or not root_gradients:
        lacking = "root gradients" if requested else "inputs to differentiate by"
        raise ValueError(
            f"backward of user function {function.name!r} got none of the {lacking}: give at least "
            f"one"
        )
    record: CallRecord | None = state._record
    roots = _root_values(function, root_gradients, record, state.device())
    results = call_backward(function, state, roots, len(root_gradients), requested)
    made = {}
    for variable in requested:
        layout, sample_shape = record.inputs[variable] if record else (None, None)
        if results[variable] is not None:
            origin = f"backward of user function {function.name!r}, gradient of {variable.name!r}"
            must_be_value(function, origin, results[variable])
            made[variable] = gradient_value(
                Returned(origin, variable),
                results[variable],
                layout,
                sample_shape,
                state.device(),
            )
        elif layout is None or sample_shape is None:
            raise missing_gradients(function, [variable])
        else:
            made[variable] = zeros_like(variable, layout, sample_shape, state.device())
    filled = variables if isinstance(variables, dict) else {}
    filled.update(made)
    return filled


def _must_be_one_of(
    variable: Any, known: Sequence[Variable], role: str, function: UserFunction
) -> None:
    if variable not in known:
        raise ValueError(
            f"{variable!r} is no {role} of {function.name!r}: use {role} Variables, which are "
            f"{list(known)}"
        )


def _argument_values(
    function: UserFunction, arguments: Any, device: DeviceDescriptor | None
) -> list[Value]:
    inputs = function.inputs
    if isinstance(arguments, Mapping):
        for key in arguments:
            _must_be_one_of(key, inputs, "input", function)
        given = [arguments.get(variable) for variable in inputs]
    elif isinstance(arguments, (list, tuple)):
        given = list(arguments)
    else:
        raise TypeError(
            f"arguments are {describe(arguments)}, expected a list of Values in input order, or a "
            f"dict by Variable"
        )
    if len(given) != len(inputs):
        raise ValueError(f"{function.name!r} has {len(inputs)} inputs, got {len(given)} arguments")
    fed = next((value for value in given if isinstance(value, Value)), None)
    where = fed.device if fed is not None and device is None else resolve(device)
    values = []
    for variable, value in zip(inputs, given, strict=True):
        if value is None and isinstance(variable, (Parameter, Constant)):
            value = make_value(
                variable, variable.value, None, where, copy=True, pad_now=True, warn=False
            )
        if not isinstance(value, Value):
            raise TypeError(
                f"the argument for input {variable.name!r} is {describe(value)}, expected a Value: "
                f"make one with sanitize_batch, or call eval"
            )
        values.append(sanitize_batch(variable, value, device=where))
    check_batch_sizes(inputs, values)
    return values


def check_batch_sizes(variables: Sequence[Variable], values: list[Value]) -> None:
    """Raise ValueError unless inputs agree on the batch size, and on lengths of a named axis."""
    sizes = [(v, len(a)) for v, a in zip(variables, values, strict=True) if v.kind != "none"]
    for variable, size in sizes[1:]:
        if size != sizes[0][1]:
            raise ValueError(
                f"inputs must agree on the batch size: {sizes[0][0].name!r} has {sizes[0][1]} "
                f"sequences, {variable.name!r} has {size}"
            )
    first: dict[str, tuple[Variable, Value]] = {}
    for variable, value in zip(variables, values, strict=True):
        if variable.named_axis is not None:
            other, known = first.setdefault(variable.named_axis, (variable, value))
            check_same_lengths(f"input {variable.name!r}", value, f"input {other.name!r}", known)


def _root_values(
    function: UserFunction,
    root_gradients: Mapping[Variable, Value],
    record: CallRecord | None,
    device: DeviceDescriptor,
) -> dict[Variable, Value]:
    given = {}
    for variable, value in root_gradients.items():
        _must_be_one_of(variable, function.outputs, "output", function)
        if not isinstance(value, Value):
            raise TypeError(
                f"the root gradient of {variable.name!r} is {describe(value)}, expected a Value: "
                f"make one with sanitize_batch, or call grad"
            )
        given[variable] = sanitize_batch(variable, value, device=device)
        if record and variable in record.outputs and variable.kind != "none":
            _check_root_lengths(variable, value, record.outputs[variable][0])
    if not contract_of(function.contract).all_outputs:
        return given
    roots = {}
    for variable in function.outputs:
        if variable in given:
            roots[variable] = given[variable]
        elif record is None:
            raise ValueError(
                f"no root gradient of {variable.name!r} was given, and the state was returned by "
                f"more than one forward: return a state of its own from each"
            )
        else:
            roots[variable] = zeros_like(variable, *record.outputs[variable], device)
    return roots


def _check_root_lengths(variable: Variable, value: Value, layout: Layout) -> None:
    if value._layout.same_lengths(layout):
        return
    expected = layout.lengths
    where = f"the root gradient of output {variable.name!r}"
    if len(value) != len(expected):
        raise ValueError(f"{where} has {len(value)} sequences, expected {len(expected)}")
    k = int(np.flatnonzero(value.lengths != expected)[0])
    raise ValueError(
        f"{where}: sequence {k} has length {value.lengths[k]}, expected {expected[k]}, the length "
        f"of the output's sequence"
    )
