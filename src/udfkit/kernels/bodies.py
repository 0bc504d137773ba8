"""What an author's function refers to: a key, whether it still holds, a frozen copy to compile.

A compiled function keeps the globals, closure variables and helpers that it saw. ``Body`` finds all
of them, in the function and in every helper that it calls, so that code compiled for one key is
used only while each of them is the same. What cannot be followed is refused.
"""

from __future__ import annotations

import builtins
import dis
import functools
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["Body", "short_error"]

_PLAIN = (int, float, complex, str, bytes, type(None), np.generic)
_KNOWN_MODULES = ("builtins", "cmath", "math", "numba", "numpy", "operator")
_PORTABLE = ("udfkit.kernels.portable", "udfkit.portable")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_MISSING = object()
_numbers: dict[Any, int] = {}


class Body:
    """One version of a function, with all that it refers to.

    Parameters
    ----------
    function : function, or numba dispatcher
        Written by the author.

    Attributes
    ----------
    key : int
        Equal for two functions exactly when they compile to the same code.
    function : function
        The author's own.

    Raises
    ------
    TypeError
        With file and line, when it refers to something that could change unseen.
    """

    def __init__(self, function: Any):
        self.function = _plain_function(function)
        self._watched: list[tuple[dict[str, Any], str, Any]] = []
        self._cells: list[tuple[Any, Any]] = []
        self._codes: list[tuple[Any, Any]] = []
        self._frozen: dict[int, dict[str, Any]] = {}
        self._active: list[Any] = []
        self._order: list[Any] = []
        self._keys: dict[int, int] = {}
        self.key = self._follow(self.function)

    def is_current(self) -> bool:
        """Whether all that was found is still what the function refers to."""
        for names, name, value in self._watched:
            if names.get(name, _MISSING) is not value:
                return False
        for function, code in self._codes:
            if function.__code__ is not code:
                return False
        return all(cell.cell_contents is value for cell, value in self._cells)

    def calls(self, wanted: Callable[..., Any]) -> bool:
        """Whether the function, or a helper, refers to a function of this library."""
        if any(value is wanted for _, value in self._cells):
            return True
        return any(
            functools.reduce(
                lambda value, name: getattr(value, name, None),
                path[1:],
                function.__globals__.get(path[0]),
            )
            is wanted
            for function, code in self._codes
            for path in _paths(code)
        )

    def files(self) -> list[str]:
        """Return the files of the function and its helpers."""
        return list(dict.fromkeys(code.co_filename for _, code in self._codes))

    @property
    def size(self) -> int:
        """Bytes of bytecode of the function and its helpers."""
        return sum(len(code.co_code) for _, code in self._codes)

    def frozen(self, compile_helper: Callable[[Any, Any], Any]) -> Any:
        """Return a copy that refers to what was found, its helpers compiled.

        Parameters
        ----------
        compile_helper
            Gets a copy of each helper, innermost first, and a key that is equal for two helpers
            exactly when they compile to the same code and stand at the same place of a file; its
            result takes the helper's place.
        """
        made: dict[int, Any] = {}
        copy = self.function
        for function in self._order:
            copy = _copy(function)
            for name, value in self._frozen[id(function)].items():
                copy.__globals__[name] = _replace(value, made)
            for cell in copy.__closure__ or ():
                cell.cell_contents = _replace(cell.cell_contents, made)
            if function is not self.function:
                code = function.__code__
                key = (self._keys[id(function)], code.co_filename, code.co_firstlineno)
                made[id(function)] = compile_helper(copy, key)
        return copy

    def _follow(self, function: Any) -> int:
        """Return a number that stands for a function and all that it refers to."""
        code = function.__code__
        if any(function is active for active in self._active):
            raise TypeError(f"{_at(code)} calls itself, which cannot be compiled: write a loop")
        if any(function is known for known in self._order):
            return self._keys[id(function)]
        self._codes.append((function, code))
        self._active.append(function)
        found: dict[str, Any] = {}
        self._frozen[id(function)] = found
        keys: list[Any] = [_code_key(code), _value_key(function.__defaults__)]
        paths = sorted(set(_paths(code)))
        keys += [(path, self._global(function, path, found)) for path in paths]
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                raise TypeError(
                    f"{_at(code)}: {name!r} has no value yet; define it before the function"
                ) from None
            self._cells.append((cell, value))
            keys.append((name, self._value(code, name, value)))
        self._active.pop()
        self._order.append(function)
        # A key with those of helpers in it would grow without bound where helpers share helpers.
        self._keys[id(function)] = _numbers.setdefault(tuple(keys), len(_numbers))
        return self._keys[id(function)]

    def _global(self, function: Any, path: tuple[str, ...], found: dict[str, Any]) -> Any:
        """Follow ``a.b.c``: the global a, and attributes as long as they are those of modules."""
        names: dict[str, Any] = function.__globals__
        name = path[0]
        if name not in names:
            if not hasattr(builtins, name):
                raise TypeError(
                    f"{_at(function.__code__)}: {name!r} is not defined; define it before the "
                    f"sequence function"
                )
            self._watched.append((names, name, _MISSING))
            return ("builtin", name)
        value = names[name]
        self._watched.append((names, name, value))
        inside = found
        for attribute in path[1:]:
            if not isinstance(value, types.ModuleType) or _is_known(value.__name__):
                break
            module = inside.setdefault(name, types.ModuleType(value.__name__))
            inside = module.__dict__
            names, name = value.__dict__, attribute
            value = getattr(value, attribute, _MISSING)
            if value is _MISSING:
                raise TypeError(
                    f"{_at(function.__code__)}: module {names['__name__']!r} has no {attribute!r}"
                )
            self._watched.append((names, name, value))
        inside[name] = value
        return self._value(function.__code__, ".".join(path), value)

    def _value(self, code: Any, name: str, value: Any) -> Any:
        """Return the key of a value that a function refers to; follow it if it is a helper."""
        if isinstance(value, (types.FunctionType, _Dispatched)) and not _is_library(value):
            return ("helper", self._follow(_plain_function(value)))
        if isinstance(value, _PLAIN):
            return _value_key(value)
        if isinstance(value, tuple) and all(_is_plain(part) for part in value):
            return _value_key(value)
        if isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType, np.dtype)):
            return ("known", getattr(value, "__module__", ""), repr(value))
        if callable(value) and _is_library(value):
            return ("known", getattr(value, "__module__", ""), getattr(value, "__name__", ""))
        raise TypeError(
            f"{_at(code)}: {name!r} is a {type(value).__name__}, which can change without notice; "
            f"a sequence function may refer to numbers, strings, tuples of these, and functions. "
            f"Make it an input, shared by all sequences, or an option"
        )


class _DispatchedMeta(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(getattr(value, "py_func", None), types.FunctionType)


class _Dispatched(metaclass=_DispatchedMeta):
    """What numba makes of a function, on any target."""


def _plain_function(function: Any) -> Any:
    inner = getattr(function, "py_func", function)
    if not isinstance(inner, types.FunctionType):
        raise TypeError(
            f"{inner!r} is a {type(inner).__name__}, expected a function written with def"
        )
    return inner


def _copy(function: Any) -> Any:
    cells = tuple(types.CellType(cell.cell_contents) for cell in function.__closure__ or ())
    names = {"__builtins__": builtins, "__name__": function.__module__}
    made = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, cells
    )
    made.__module__ = function.__module__
    return made


def _replace(value: Any, made: dict[int, Any]) -> Any:
    """Put compiled helpers in the place of plain ones, in the copies of modules too."""
    if isinstance(value, types.ModuleType) and not _is_known(value.__name__):
        for name, inner in vars(value).items():
            if not name.startswith("__"):
                setattr(value, name, _replace(inner, made))
        return value
    if isinstance(value, _Dispatched):
        return made.get(id(value.py_func), value)  # type: ignore[attr-defined]
    return made.get(id(value), value)


def _is_known(module: str) -> bool:
    return module.split(".", 1)[0] in _KNOWN_MODULES or module in _PORTABLE


def _is_library(value: Any) -> bool:
    return _is_known(str(getattr(value, "__module__", "")))


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (
        isinstance(value, tuple) and all(_is_plain(part) for part in value)
    )


def _value_key(value: Any) -> Any:
    # The type tells 1 from 1.0 and True, the text 0.0 from -0.0.
    if isinstance(value, tuple):
        return ("tuple", *(_value_key(part) for part in value))
    return (type(value).__qualname__, repr(value))


def _code_key(code: Any) -> Any:
    constants = tuple(
        _code_key(constant) if isinstance(constant, types.CodeType) else _value_key(constant)
        for constant in code.co_consts
    )
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_code, constants, names, code.co_argcount, code.co_flags)


def _paths(code: Any) -> Iterator[tuple[str, ...]]:
    """Yield each global that the code loads, with the attributes that are taken of it at once."""
    path: list[str] = []
    for instruction in dis.get_instructions(code):
        if path and instruction.opname in _ATTRIBUTE:
            path.append(instruction.argval)
            continue
        if path:
            yield tuple(path)
            path = []
        if instruction.opname in _GLOBAL:
            path = [instruction.argval]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _paths(constant)


def _at(code: Any) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}: {code.co_name}"


def short_error(error: Exception, body: Body, where: str) -> TypeError:
    """Say in a few lines what numba says in a page, with the author's file and line."""
    code = body.function.__code__
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    places = [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', text)]
    files = {name.split("/")[-1]: name for name in body.files()}
    places = [(files[f.split("/")[-1]], n) for f, n in places if f.split("/")[-1] in files]
    file, line = places[0] if places else (code.co_filename, code.co_firstlineno)
    skipped = ("Failed in", "During", "File", "There are", "- Of", "Overload", "With arg", "raised")
    said = [part.strip() for part in text.splitlines() if part.strip()]
    plain = [part for part in said if not part.startswith(skipped)]
    first = " ".join(plain[:3]) if plain else said[0]
    return TypeError(
        f"{file}:{line}: {where} cannot be compiled: {first[:400]}. A body may use numbers, "
        f"indexing and slices of its arrays, loops, the math module, udfkit.portable and functions "
        f"of these"
    )
