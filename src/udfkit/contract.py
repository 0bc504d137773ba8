"""When ``backward`` gets its dict, and when a root gradient comes bare: the one place that knows.

The published versions of CNTK's bridge differ in this; a function chooses with its class attribute
``contract``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["CONTRACTS", "Call", "Contract", "check_layout", "contract_of"]


@dataclass(frozen=True, slots=True)
class Call:
    """What the choice depends on: counts of one backward call, and the user's method."""

    inputs: int
    inputs_needing_gradient: int
    gradients_requested: int
    outputs: int
    roots_given: int
    backward: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Contract:
    """The rules of one version.

    Attributes
    ----------
    gives_variables : callable
        Whether ``backward`` gets a third argument, the dict to fill.
    bare_root : callable
        Whether the root gradient comes bare; given the call and whether a dict is passed.
    all_outputs : bool
        Whether forward is asked for all declared outputs and backward gets a root gradient for
        each, zeros where none arrived.
    missing_is_zero : bool
        Whether a gradient that stays None counts as zeros.
    values_allowed : bool
        Whether functions with ``as_numpy=False`` are allowed.
    any_state : bool
        Whether such functions may return any state, or only a BackPropState or None.
    """

    gives_variables: Callable[[Call], bool]
    bare_root: Callable[[Call, bool], bool]
    all_outputs: bool = False
    missing_is_zero: bool = False
    values_allowed: bool = True
    any_state: bool = True


def _by_signature(call: Call) -> bool:
    """Whether the user's bound ``backward`` takes a third positional argument."""
    code = getattr(getattr(call.backward, "__func__", None), "__code__", None)
    if code is not None and not hasattr(call.backward, "__wrapped__"):
        # What inspect.signature says of a plain method, at a fiftieth of its cost.
        takes_any = bool(code.co_flags & inspect.CO_VARARGS)
        return code.co_argcount > 3 or (takes_any and call.inputs_needing_gradient > 1)
    try:
        parameters = inspect.signature(call.backward).parameters.values()
    except (TypeError, ValueError):
        return call.inputs_needing_gradient > 1
    if sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) >= 3:
        return True
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return takes_any and call.inputs_needing_gradient > 1


CONTRACTS: dict[str, Contract] = {
    "auto": Contract(
        gives_variables=_by_signature,
        bare_root=lambda call, _: call.outputs == 1,
        all_outputs=True,
    ),
    "cntk-beta": Contract(
        gives_variables=lambda call: call.gradients_requested > 1,
        bare_root=lambda call, gives_variables: not gives_variables and call.roots_given == 1,
        values_allowed=False,
    ),
    "cntk-2.0": Contract(
        gives_variables=lambda call: call.inputs_needing_gradient > 1,
        bare_root=lambda call, _: call.roots_given == 1,
        any_state=False,
    ),
    "cntk-2.7": Contract(
        gives_variables=lambda call: call.inputs > 1,
        bare_root=lambda call, _: call.roots_given == 1,
        missing_is_zero=True,
    ),
}


def check_layout(layout: Any) -> None:
    """Raise ValueError for a layout that user code cannot be given."""
    if layout not in ("list", "ragged"):
        raise ValueError(f"layout {layout!r} is not known: use 'list' or 'ragged'")


def contract_of(name: Any) -> Contract:
    """Return the contract of this name, or raise ValueError with the names there are."""
    if not isinstance(name, str) or name not in CONTRACTS:
        raise ValueError(f"contract {name!r} is not known: use one of {sorted(CONTRACTS)}")
    return CONTRACTS[name]
