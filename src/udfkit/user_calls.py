"""Calls of user code by its contract: what it is given, and the form of what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from udfkit.contract import Call, check_layout, contract_of
from udfkit.device import DeviceDescriptor
from udfkit.results import CallRecord
from udfkit.state import BackPropState, UserBackPropState
from udfkit.value import Value
from udfkit.variable import Variable

if TYPE_CHECKING:
    from udfkit.function import UserFunction

__all__ = [
    "call_backward",
    "call_forward",
    "call_user",
    "describe",
    "for_user",
    "missing_gradients",
    "must_be_value",
    "wrap_state",
]


def call_user(function: UserFunction, phase: str, method: Callable[..., Any], *args: Any) -> Any:
    """Call user code; its exceptions get a note and pass unchanged."""
    try:
        return method(*args)
    except BaseException as error:
        kind = type(function).__qualname__
        called = f"{len(args)} arguments, contract {function.contract!r}"
        error.add_note(f"in {phase} of user function {function.name!r} ({kind}; {called})")
        raise


def describe(returned: Any) -> str:
    """Name what user code returned, for error texts."""
    if isinstance(returned, (list, tuple)):
        return f"a {type(returned).__name__} of {len(returned)}"
    return "None" if returned is None else f"a {type(returned).__name__}"


def for_user(function: UserFunction, value: Value, variable: Variable) -> Any:
    """Return a Value as user code gets it."""
    if not function.as_numpy:
        return value
    if function.layout != "list":
        check_layout(function.layout)
        if variable.kind == "sequence":
            return value.ragged()
    return value._sequences(variable.kind)


def must_be_value(function: UserFunction, origin: str, result: Any) -> None:
    """Raise TypeError for an array where ``as_numpy`` is False."""
    if not function.as_numpy and not isinstance(result, Value):
        raise TypeError(
            f"{origin}: {describe(result)} came, expected a Value, since as_numpy is False: make "
            f"one with sanitize_batch"
        )


def call_forward(
    function: UserFunction,
    given: list[Any],
    wanted: list[Variable],
    device: DeviceDescriptor,
    retain: list[Variable],
) -> tuple[Any, dict[Variable, Any]]:
    """Call the user's forward; return its state, and a result for each wanted output.

    ``given`` has one argument an input, as user code gets it.

    Raises
    ------
    TypeError, ValueError
        When it returned something else.
    """
    argument = given[0] if len(given) == 1 else tuple(given)
    where = f"forward of user function {function.name!r}"
    if len(function.outputs) == 1:
        returned = call_user(function, "forward", function.forward, argument, device, retain)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise (ValueError if isinstance(returned, tuple) else TypeError)(
                f"{where} returned {describe(returned)}, expected a tuple of exactly two: "
                f"return state, result"
            )
        state, results = returned[0], {function.outputs[0]: returned[1]}
        fix = "return state, result"
    else:
        results = dict.fromkeys(wanted)
        state = call_user(function, "forward", function.forward, argument, results, device, retain)
        _check_keys(results, wanted, function.outputs, where, "output")
        fix = "set outputs[variable] for each"
    missing = [variable.name for variable in wanted if results.get(variable) is None]
    if missing:
        raise ValueError(f"not all outputs have been provided: {where} left {missing} None; {fix}")
    return state, results


def wrap_state(
    function: UserFunction, state: Any, device: DeviceDescriptor, record: CallRecord
) -> BackPropState:
    """Return the state of a forward with its device and record.

    Raises
    ------
    ValueError
        When the contract does not take such a state.
    """
    if not isinstance(state, BackPropState):
        rules = contract_of(function.contract)
        if not function.as_numpy and not rules.any_state and state is not None:
            raise ValueError(
                f"forward of user function {function.name!r} returned the state "
                f"{describe(state)}; contract {function.contract!r} with as_numpy=False takes a "
                f"BackPropState or None"
            )
        state = UserBackPropState(function, device, state)
        state._wraps = True
    state._attach(device, record)
    return state


def call_backward(
    function: UserFunction,
    state: BackPropState,
    roots: dict[Variable, Value],
    roots_given: int,
    requested: list[Variable],
) -> dict[Variable, Any]:
    """Call the user's backward; return a gradient, or None for zeros, for each requested input.

    Raises
    ------
    TypeError, ValueError
        When a gradient is missing, or something else was returned.
    """
    call = Call(
        inputs=len(function.inputs),
        inputs_needing_gradient=sum(v.needs_gradient for v in function.inputs),
        gradients_requested=len(requested),
        outputs=len(function.outputs),
        roots_given=roots_given,
        backward=function.backward,
    )
    rules = contract_of(function.contract)
    gives_variables = rules.gives_variables(call)
    where = f"backward of user function {function.name!r}"
    if not gives_variables and len(requested) > 1:
        raise ValueError(
            f"{where} was asked for {len(requested)} gradients, "
            f"{[v.name for v in requested]}, but under contract {function.contract!r} it gets no "
            f"dict to fill: give it a third argument, backward(state, grad, variables)"
        )
    given = {variable: for_user(function, value, variable) for variable, value in roots.items()}
    root = next(iter(given.values())) if rules.bare_root(call, gives_variables) else given
    data = UserBackPropState.data(state) if state._wraps else state
    if gives_variables:
        results: dict[Variable, Any] = dict.fromkeys(requested)
        returned = call_user(function, "backward", function.backward, data, root, results)
        if returned is not None:
            raise TypeError(
                f"{where} returned {describe(returned)}, but it gets a dict to fill: set "
                f"variables[input] = gradient and return nothing"
            )
        _check_keys(results, requested, function.inputs, where, "input")
    else:
        results = {requested[0]: call_user(function, "backward", function.backward, data, root)}
    missing = [variable for variable in requested if results.get(variable) is None]
    if missing and not rules.missing_is_zero:
        raise missing_gradients(function, missing)
    return {variable: results.get(variable) for variable in requested}


def missing_gradients(function: UserFunction, missing: list[Variable]) -> ValueError:
    """Return the error for gradients that user code left None."""
    return ValueError(
        f"gradients were not provided for {[v.name for v in missing]} by backward of user function "
        f"{function.name!r}: set each to a gradient, zeros where there is none"
    )


def _check_keys(
    results: dict[Variable, Any],
    wanted: Sequence[Variable],
    known: Sequence[Variable],
    where: str,
    role: str,
) -> None:
    for key in results:
        if key not in known:
            raise TypeError(
                f"{where} set the key {key!r} of type {type(key).__name__}, which is no {role} "
                f"Variable of it: set self.{role}s[i], here {list(wanted)}"
            )
