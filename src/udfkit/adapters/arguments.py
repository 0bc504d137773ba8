"""The arguments of a call from another library: which there are, and what to say of wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from udfkit.function import UserFunction
from udfkit.variable import Constant, Parameter, Variable

__all__ = ["all_inputs", "check_function", "named", "wrong_count"]


def check_function(fn: Any) -> None:
    """Raise TypeError for something else than a user function."""
    if isinstance(fn, UserFunction):
        return
    if isinstance(fn, type) and issubclass(fn, UserFunction):
        raise TypeError(
            f"fn is the class {fn.__name__}, expected a function made of it: pass "
            f"{fn.__name__}([input variables])"
        )
    raise TypeError(f"fn is a {type(fn).__name__}, expected a udfkit.UserFunction")


def wrong_count(fn: UserFunction, given: int) -> TypeError:
    """Return the error for another number of arguments than there are inputs."""
    fed = [v.name for v in fn.inputs if not isinstance(v, (Parameter, Constant))]
    return TypeError(
        f"{fn.name!r} takes {len(fed)} input(s), {fed}, got {given}: pass one argument an input, "
        f"with (padded, lengths) and the like as one tuple"
    )


def all_inputs(
    fn: UserFunction, inputs: Sequence[Any], of_value: Callable[[Any], Any]
) -> list[Any]:
    """Return one argument an input; left out Parameters and Constants have their own values.

    Raises
    ------
    TypeError
        For another number of arguments.
    """
    check_function(fn)
    if len(inputs) == len(fn.inputs):
        return list(inputs)
    fixed = sum(isinstance(v, (Parameter, Constant)) for v in fn.inputs)
    if len(inputs) != len(fn.inputs) - fixed:
        raise wrong_count(fn, len(inputs))
    given = iter(inputs)
    return [
        of_value(v.value) if isinstance(v, (Parameter, Constant)) else next(given)
        for v in fn.inputs
    ]


def named(variable: Variable, read: Callable[..., Any], *args: Any) -> Any:
    """Read lengths, a mask or offsets; their errors name the input."""
    try:
        return read(*args)
    except (TypeError, ValueError) as error:
        raise type(error)(f"input {variable.name!r}: {error}") from None
