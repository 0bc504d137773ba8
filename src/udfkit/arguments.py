"""Checks of arguments that are the same everywhere: names, flags, whole numbers."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

__all__ = ["check_flag", "check_name", "check_sample_shape", "whole_number"]


def check_name(name: Any) -> str:
    """Return a name; TypeError for anything but a str."""
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r} of type {type(name).__name__}, expected a str")
    return name


def check_flag(flag: Any, what: str) -> bool:
    """Return a flag; TypeError for anything but True and False."""
    if not isinstance(flag, (bool, np.bool_)):
        raise TypeError(f"{what} is {flag!r}, expected a bool: pass True or False")
    return bool(flag)


def check_sample_shape(shape: Any) -> tuple[int, ...] | None:
    """Return a sample shape as a tuple of int; None for None, and TypeError for none."""
    if shape is None:
        return None
    try:
        if isinstance(shape, (int, np.integer)):
            return (operator.index(shape),)
        return tuple(operator.index(size) for size in shape)
    except TypeError:
        raise TypeError(
            f"sample_shape is {shape!r}, expected an int or a tuple of int: pass (3,), for example"
        ) from None


def whole_number(number: Any, name: str, least: int = 0) -> int:
    """Return an integer option.

    Raises
    ------
    ValueError
        For something else, or a number below ``least``.
    """
    try:
        found = operator.index(number)
    except TypeError:
        found = least - 1
    if found < least or isinstance(number, (bool, np.bool_)):
        raise ValueError(f"{name} is {number!r}, expected an integer of at least {least}")
    return found
