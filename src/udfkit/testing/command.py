"""``python -m udfkit check``: find a function by its name, make it, and check it."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from udfkit.function import UserFunction
from udfkit.testing.calls import Subject
from udfkit.testing.cases import draw_parts
from udfkit.testing.check import CHECKS, check_function
from udfkit.testing.report import Report
from udfkit.variable import Axis, Parameter, Variable

__all__ = ["check_named", "load_target", "main"]

_SHAPES: tuple[tuple[int, ...], ...] = ((2,), ())
_KINDS = ("s", "b", "ss", "sb", "bs", "sp", "ps", "bb", "sss")


def main(arguments: Sequence[str]) -> tuple[int, str]:
    """Run the command; return its exit status and what to print.

    Parameters
    ----------
    arguments : sequence of str
        Those behind ``check``.

    Returns
    -------
    status : int
        0 when no check failed, 1 when one did, 2 when there is no function to check.
    text : str
    """
    parser = argparse.ArgumentParser(
        prog="python -m udfkit check",
        description="Check a user function: gradients, neighbours, padding, states.",
        epilog="Exit status: 0 when no check failed, 1 when one did, 2 when nothing was checked.",
    )
    parser.add_argument(
        "target",
        help="module:name or path/to/file.py:name of a user function, of a function without "
        "arguments that returns one, or of a class that needs nothing but inputs",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the batches (default 0)")
    parser.add_argument("--rounds", type=int, default=2, help="batches of random lengths")
    parser.add_argument(
        "--make-batch",
        metavar="NAME",
        help="module:name or path:name of make_batch(rng), for functions with a rule for batches",
    )
    parser.add_argument(
        "--skip", action="append", default=[], choices=CHECKS, help="a check to leave out"
    )
    options = parser.parse_args(list(arguments))
    try:
        make_batch = load_target(options.make_batch) if options.make_batch else None
        report = check_named(
            options.target,
            seed=options.seed,
            rounds=options.rounds,
            make_batch=make_batch,
            skip=options.skip,
        )
    except _NothingToCheck as error:
        return 2, f"nothing was checked: {error}"
    return (0 if report else 1), str(report)


class _NothingToCheck(Exception):
    """The name does not lead to a user function."""


def load_target(target: str) -> Any:
    """Import what ``module:name`` or ``path/to/file.py:name`` stands for.

    Raises
    ------
    Exception
        That says which part of the name leads nowhere.
    """
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise _NothingToCheck(
            f"{target!r} has no name in it: say module:name, or path/to/file.py:name"
        )
    try:
        found = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    except Exception as error:
        raise _NothingToCheck(
            f"{where!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            functions = [n for n, value in vars(found).items() if _is_function(value)]
            there = f"its user functions are {functions}" if functions else "nor any user function"
            raise _NothingToCheck(f"{where!r} has no {name!r}; {there}")
        found = getattr(found, part)
    return found


def _is_function(value: Any) -> bool:
    if inspect.isclass(value):
        return issubclass(value, UserFunction) and value.__module__.partition(".")[0] != "udfkit"
    return isinstance(value, UserFunction)


def _import_module(name: str) -> Any:
    # Run by its script, the command has another folder than this one in front.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def _import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def check_named(target: str, **options: Any) -> Report:
    """Check what a name stands for; options are those of `check_function`."""
    found = load_target(target)
    if isinstance(found, UserFunction):
        return check_function(found, **options)
    if inspect.isclass(found) and issubclass(found, UserFunction):
        function, guess = _instance(found, target)
        report = check_function(function, **options)
        return dataclasses.replace(report, notes=(guess, *report.notes))
    if not callable(found):
        raise _NothingToCheck(
            f"{target!r} is a {type(found).__name__}, expected a user function, its class, or a "
            f"function that makes one"
        )
    return check_function(_made(found, target), make=_maker(found), **options)


def _made(factory: Callable[..., Any], target: str) -> UserFunction:
    try:
        function = factory()
    except Exception as error:
        raise _NothingToCheck(
            f"{target}() raised {type(error).__name__}: {error}; it must work without arguments"
        ) from error
    if not isinstance(function, UserFunction):
        raise _NothingToCheck(
            f"{target}() returned a {type(function).__name__}, expected a user function"
        )
    return function


def _maker(factory: Callable[..., Any]) -> Callable[[Any], UserFunction] | None:
    """Return the factory itself when it can make the function for another dtype."""
    try:
        takes_dtype = "dtype" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None
    return (lambda dtype: factory(dtype=dtype)) if takes_dtype else None


def _instance(kind: type[UserFunction], target: str) -> tuple[UserFunction, str]:
    """Make a function of the first inputs that it works with."""
    tried: list[str] = []
    found: list[UserFunction] = []
    for inputs in _inputs_for(kind):
        if found and len(found[0].inputs) != len(inputs):
            break
        try:
            function = kind(inputs)
            parts = draw_parts(inputs, np.random.default_rng(0), (3, 1, 4, 2, 5), 3)
            Subject(function).evaluate(parts)
        except Exception as error:  # noqa: BLE001 - that it does not work is what is asked
            tried.append(f"{type(error).__name__}: {error}")
        else:
            found.append(function)
    mixes = list(dict.fromkeys(", ".join(v.kind for v in function.inputs) for function in found))
    mixes = [mix for mix in mixes if len(set(mix.split(", "))) > 1 or mix == mixes[0]]
    if len(mixes) == 1:
        shown = ", ".join(f"{variable!r} of {variable.dtype}" for variable in found[0].inputs)
        return found[0], f"inputs guessed: {shown}"
    where, _, name = target.rpartition(":")
    reason = (
        f"the first try: {tried[0]}" if not found else f"it runs with {' and with '.join(mixes)}"
    )
    raise _NothingToCheck(
        f"inputs for {name} cannot be guessed ({reason}). Write a function that makes one, and "
        f"check that:\n\n"
        f"    def example(dtype=np.float32):\n"
        f"        x = udfkit.sequence.input_variable(3, dtype, needs_gradient=True)\n"
        f"        return {name}([x, ...])\n\n"
        f"    python -m udfkit check {where}:example"
    )


def _inputs_for(kind: type[UserFunction]) -> Iterator[list[Variable]]:
    takes = getattr(kind, "takes", None)
    if isinstance(takes, Mapping) and takes:
        yield [_declared_input(name, declared) for name, declared in takes.items()]
        return
    for kinds in _KINDS:
        for shape in _SHAPES:
            yield [_input(letter, f"x{k}", shape) for k, letter in enumerate(kinds)]


def _input(letter: str, name: str, shape: tuple[int, ...]) -> Variable:
    if letter == "p":
        start = np.random.default_rng(1).normal(size=shape)
        return Parameter(shape, start, np.float64, name)
    axes = [Axis.default_batch_axis(), Axis.default_dynamic_axis()]
    return Variable(shape, np.float64, axes[: 2 if letter == "s" else 1], True, name=name)


def _declared_input(name: str, declared: Any) -> Variable:
    """Make an input of what a sequence function declares, each size that has a name 3."""
    sizes = [size.value(dict.fromkeys(size.names, 3)) for size in declared.sample]
    dtype = np.dtype(declared.dtype or (np.int64 if declared.index_of else np.float64))
    if declared.kind == "shared":
        start = np.random.default_rng(1).normal(size=sizes)
        return Parameter(sizes, start, dtype, name)
    axes = [Axis.default_batch_axis()]
    if declared.kind == "step":
        axes.append(Axis(declared.shape[0].text))
    return Variable(sizes, dtype, axes, dtype.kind == "f", name=name)
