"""Saving functions as plain data, and loading them through a registry; nothing is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from udfkit.function import UserFunction
from udfkit.variable import Axis, Constant, Parameter, Variable

__all__ = ["load_function", "register_udf_deserialize_callback", "save_function"]

_VERSION = 1
_callbacks: dict[str, Callable[[list[Variable], str, dict[str, Any]], UserFunction]] = {}


def register_udf_deserialize_callback(
    op_name: str, callback: Callable[[list[Variable], str, dict[str, Any]], UserFunction]
) -> None:
    """Say how functions saved under ``op_name`` are made again, instead of by their class.

    Without it, the class of that ``op_name`` among those defined in this process is used.

    Parameters
    ----------
    op_name : str
    callback : callable
        Called as ``callback(inputs, name, state)``; returns a UserFunction.

    Raises
    ------
    ValueError
        When the name is taken by another callback.

    Examples
    --------
    >>> import udfkit
    >>> class Scale(udfkit.UserFunction):
    ...     op_name = "scale"
    ...     def __init__(self, x, factor, name=""):
    ...         super().__init__([x], name=name)
    ...         self.factor = factor
    ...     def serialize(self):
    ...         return {"factor": self.factor}
    >>> udfkit.register_udf_deserialize_callback(
    ...     "scale", lambda inputs, name, state: Scale(*inputs, state["factor"], name))
    >>> x = udfkit.sequence.input_variable(1, name="x")
    >>> saved = udfkit.save_function(Scale(x, 2.0, name="double"))
    >>> udfkit.load_function(saved, [x]).factor
    2.0
    """
    if not isinstance(op_name, str) or not callable(callback):
        raise TypeError(
            f"expected a name and a callable(inputs, name, state), got {op_name!r}, {callback!r}"
        )
    known = _callbacks.setdefault(op_name, callback)
    if known != callback:
        raise ValueError(f"op_name {op_name!r} is registered already: choose another name")


def save_function(function: UserFunction) -> dict[str, Any]:
    """Return a function as plain data: dicts, lists, strings, numbers, None and NumPy arrays.

    Raises
    ------
    TypeError
        When the function's ``serialize`` gives anything else, with the key.
    """
    if not isinstance(function, UserFunction):
        raise TypeError(f"expected a UserFunction, not a {type(function).__name__}")
    _check_attributes(function)
    state = function.serialize()
    if not isinstance(state, dict):
        raise TypeError(
            f"serialize of {function.name!r} returned a {type(state).__name__}, expected a dict"
        )
    return {
        "version": _VERSION,
        "op_name": function.op_name,
        "name": function.name,
        "inputs": [_save_variable(variable) for variable in function.inputs],
        "state": _plain(state, f"serialize of {function.name!r}"),
    }


def load_function(saved: dict[str, Any], inputs: Sequence[Variable] | None = None) -> UserFunction:
    """Make a function of what `save_function` returned.

    Parameters
    ----------
    saved : dict
    inputs : list of Variable, optional
        The inputs of the new function; made from the saved descriptions when not given.

    Raises
    ------
    KeyError
        When neither a callback nor a class is known under its ``op_name``.
    ValueError
        When ``saved`` is not what `save_function` returns.
    """
    if not isinstance(saved, dict) or saved.get("version") != _VERSION:
        raise ValueError(
            f"expected a dict from save_function with version {_VERSION}, got "
            f"{saved.get('version') if isinstance(saved, dict) else type(saved).__name__!r}"
        )
    absent = [key for key in ("op_name", "name", "inputs", "state") if key not in saved]
    if absent:
        raise ValueError(f"the saved function lacks {absent}: pass what save_function returned")
    op_name = saved["op_name"]
    make = _callbacks.get(op_name) or _classes().get(op_name)
    if make is None:
        raise KeyError(
            f"no function is known as {op_name!r}: import the module that defines its class, or "
            f"call udfkit.register_udf_deserialize_callback({op_name!r}, callback)"
        )
    given = [_load_variable(v) for v in saved["inputs"]] if inputs is None else list(inputs)
    if len(given) != len(saved["inputs"]):
        raise ValueError(
            f"the saved function {saved['name']!r} has {len(saved['inputs'])} inputs, but "
            f"{len(given)} were given: pass as many"
        )
    made = make(given, saved["name"], _plain(saved["state"], "the saved state"))
    if not isinstance(made, UserFunction):
        raise TypeError(
            f"deserialize of {op_name!r} returned a {type(made).__name__}, expected a UserFunction"
        )
    return made


def _classes() -> dict[str, Callable[..., UserFunction]]:
    """Return ``deserialize`` of every function class of this process by op_name."""
    found: dict[str, Callable[..., UserFunction]] = {}
    waiting = UserFunction.__subclasses__()
    while waiting:
        cls = waiting.pop(0)
        name = (
            cls.op_name if isinstance(cls.op_name, str) else f"{cls.__module__}.{cls.__qualname__}"
        )
        found[name] = cls.deserialize
        waiting.extend(cls.__subclasses__())
    return found


def _check_attributes(function: UserFunction) -> None:
    """Raise TypeError when a function has attributes of its own that nothing saves."""
    if type(function).serialize is not UserFunction.serialize:
        return
    inherited = {"_inputs", "_outputs", "as_numpy", "attributes", "name"}
    own = sorted(set(vars(function)) - inherited)
    if own:
        raise TypeError(
            f"{function.name!r} has the attributes {own}, and its class does not define serialize: "
            f"define it and return what deserialize needs, {{}} if that is nothing"
        )


def _plain(data: Any, where: str) -> Any:
    """Copy plain data, or raise TypeError with the place of what is not."""
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if isinstance(data, np.ndarray) and data.dtype.kind in "biuf":
        return data.copy()
    if isinstance(data, dict):
        for key in data:
            if not isinstance(key, str):
                raise TypeError(f"{where}: key {key!r} is not a string")
        return {key: _plain(part, f"{where}[{key!r}]") for key, part in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(part, f"{where}[{k}]") for k, part in enumerate(data)]
    raise TypeError(
        f"{where} holds a {type(data).__name__}, which cannot be saved: use dicts, lists, strings, "
        f"numbers, None and numeric NumPy arrays"
    )


def _save_variable(variable: Variable) -> dict[str, Any]:
    saved = {
        "class": type(variable).__name__,
        "shape": list(variable.shape),
        "dtype": str(variable.dtype),
        "dynamic_axes": [axis.name for axis in variable.dynamic_axes],
        "needs_gradient": variable.needs_gradient,
        "is_sparse": variable.is_sparse,
        "name": variable.name,
    }
    if isinstance(variable, (Parameter, Constant)):
        saved["value"] = np.array(variable.value)
    return saved


def _load_variable(saved: dict[str, Any]) -> Variable:
    if saved["class"] == "Parameter":
        return Parameter(init=saved["value"], dtype=saved["dtype"], name=saved["name"])
    if saved["class"] == "Constant":
        return Constant(saved["value"], dtype=saved["dtype"], name=saved["name"])
    return Variable(
        saved["shape"],
        saved["dtype"],
        [Axis(name) for name in saved["dynamic_axes"]],
        saved["needs_gradient"],
        saved["is_sparse"],
        saved["name"],
    )
