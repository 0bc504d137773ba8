"""How the author of a sequence function declares arrays: their kinds and their shapes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

__all__ = ["Declared", "Size", "per_sequence", "per_step", "scratch", "shared"]

_OPERATORS: dict[Any, tuple[str, Any]] = {
    ast.Add: ("+", lambda a, b: a + b),
    ast.Sub: ("-", lambda a, b: a - b),
    ast.Mult: ("*", lambda a, b: a * b),
    ast.FloorDiv: ("//", lambda a, b: a // b),
}
_CHOICES = {"min": ("<", np.minimum), "max": (">", np.maximum)}
_DTYPES = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float32",
        "float64",
    ]
)


class Size:
    """A size of an array: a number, a name, or an expression over names.

    Parameters
    ----------
    given : int or str
        Whole numbers, names, ``+ - * //``, ``min(a, b)`` and ``max(a, b)``.

    Examples
    --------
    >>> from udfkit.sequence_declarations import Size
    >>> size = Size("2*L + 1")
    >>> size.names, size.value({"L": 3})
    (('L',), 7)
    """

    __slots__ = ("_tree", "names", "text")

    def __init__(self, given: int | str):
        self.text = str(given)
        if isinstance(given, bool) or not isinstance(given, (int, str)):
            raise TypeError(f"size {given!r} is a {type(given).__name__}, expected an int or a str")
        try:
            self._tree = ast.parse(self.text.strip(), mode="eval").body
            names = _names(self._tree)
        except (SyntaxError, ValueError):
            raise ValueError(
                f"size {given!r} cannot be read: use numbers, names, + - * //, min and max, "
                f"such as '2*L + 1'"
            ) from None
        self.names = tuple(dict.fromkeys(names))

    @property
    def symbol(self) -> str | None:
        """The name, when the size is nothing else."""
        return self._tree.id if isinstance(self._tree, ast.Name) else None

    @property
    def number(self) -> int | None:
        """The number, when the size is nothing else."""
        return int(self._tree.value) if isinstance(self._tree, ast.Constant) else None  # type: ignore[arg-type]

    def value(self, sizes: Mapping[str, int]) -> int:
        """Compute the size from those that its names stand for."""
        return _value(self._tree, sizes)

    def source(self) -> str:
        """Write the size as an expression for compiled code, its names with ``n_`` before them."""
        return _source(self._tree)

    def __repr__(self) -> str:
        return f"Size({self.text!r})"


def _names(tree: ast.expr) -> list[str]:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return []
    if isinstance(tree, ast.Name):
        return [tree.id]
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return [*_names(tree.left), *_names(tree.right)]
    if _is_choice(tree):
        return [*_names(tree.args[0]), *_names(tree.args[1])]
    raise ValueError(ast.dump(tree))


def _is_choice(tree: ast.expr) -> TypeGuard[ast.Call]:
    return (
        isinstance(tree, ast.Call)
        and isinstance(tree.func, ast.Name)
        and tree.func.id in _CHOICES
        and len(tree.args) == 2
        and not tree.keywords
    )


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(tree, ast.Constant):
        return int(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.Name):
        return sizes[tree.id]
    if isinstance(tree, ast.BinOp):
        operate = _OPERATORS[type(tree.op)][1]
        return operate(_value(tree.left, sizes), _value(tree.right, sizes))
    if not _is_choice(tree):
        raise ValueError(ast.dump(tree))
    choose: Any = _CHOICES[tree.func.id][1]  # type: ignore[attr-defined]
    return choose(_value(tree.args[0], sizes), _value(tree.args[1], sizes))


def _source(tree: ast.expr) -> str:
    if isinstance(tree, ast.Constant):
        return str(tree.value)
    if isinstance(tree, ast.Name):
        return f"n_{tree.id}"
    if isinstance(tree, ast.BinOp):
        sign = _OPERATORS[type(tree.op)][0]
        return f"({_source(tree.left)} {sign} {_source(tree.right)})"
    if not _is_choice(tree):
        raise ValueError(ast.dump(tree))
    sign = _CHOICES[tree.func.id][0]  # type: ignore[attr-defined]
    a, b = (_source(part) for part in tree.args)
    return f"({a} if {a} {sign} {b} else {b})"


@dataclass(frozen=True, slots=True)
class Declared:
    """One array as a body sees it; made by `per_step`, `per_sequence`, `shared` and `scratch`.

    Attributes
    ----------
    kind : {'step', 'each', 'shared', 'scratch'}
    shape : tuple of Size
        All axes that the body sees; of a per-step array the first one is the length.
    dtype : dtype, optional
    index_of : Size, optional
        The whole numbers in it are at least 0 and below this.
    is_flat : bool
        Whether the only size of a sample stands for all axes that it has.
    default : number, optional
        What an input is filled with when no variable is given for it.
    dtype_of : str, optional
        Of scratch: the input or output whose dtype it has.
    """

    kind: str
    shape: tuple[Size, ...]
    dtype: np.dtype | None = None
    index_of: Size | None = None
    is_flat: bool = False
    default: float | None = None
    dtype_of: str | None = None

    @property
    def sample(self) -> tuple[Size, ...]:
        """Shape of one sample."""
        return self.shape[1:] if self.kind == "step" else self.shape


def _declare(
    kind: str,
    shape: tuple[Any, ...],
    dtype: Any,
    index_of: int | str | None = None,
    default: float | None = None,
) -> Declared:
    checked = None if dtype is None else np.dtype(dtype)
    if checked is not None and checked.name not in _DTYPES:
        raise TypeError(f"dtype {checked} cannot be compiled: use one of {sorted(_DTYPES)}")
    lead = 1 if kind == "step" else 0
    is_flat = any(isinstance(size, str) and size.startswith("*") for size in shape)
    if is_flat:
        if len(shape) != lead + 1 or not str(shape[-1])[1:].isidentifier():
            raise ValueError(
                f"shape {shape}: a name with * before it stands for all axes of a sample, so it is "
                f"the only one"
            )
        shape = (*shape[:lead], str(shape[-1])[1:])
    return Declared(
        kind,
        tuple(Size(size) for size in shape),
        checked,
        None if index_of is None else Size(index_of),
        is_flat,
        default,
    )


def per_step(
    length: int | str = "T",
    *shape: int | str,
    dtype: Any = None,
    index_of: int | str | None = None,
    default: float | None = None,
) -> Declared:
    """Declare an array with one sample a step: the body sees shape ``(length, *shape)``.

    Parameters
    ----------
    length : str
        A name for the length of a sequence. Arrays with the same name have equal lengths. For an
        output, an expression over known names, or a name that ``lengths`` computes.
    *shape : int or str
        Names, or numbers, for the axes of a sample; or one name with ``*`` before it, which stands
        for any number of axes: the body sees them as one.
    dtype : dtype, optional
        By default that of the variable; for an output that of the first floating input.
    index_of : int or str, optional
        For an input of whole numbers: each must be at least 0 and below this size. Checked before
        a body runs, which cannot check it.
    default : number, optional
        For one of the last inputs: it may be left out, and is then filled with this.

    Examples
    --------
    >>> import udfkit
    >>> udfkit.per_step("T", "K").kind
    'step'
    """
    if default is not None and (dtype is None or shape):
        raise ValueError("an input with a default needs a dtype, and samples that are one number")
    return _declare("step", (length, *shape), dtype, index_of, default)


def per_sequence(
    *shape: int | str, dtype: Any = None, index_of: int | str | None = None
) -> Declared:
    """Declare an array with one sample a sequence: the body sees its shape, ``(1,)`` for a number.

    Parameters as `per_step`.

    Examples
    --------
    >>> import udfkit
    >>> udfkit.per_sequence("K").kind
    'each'
    """
    return _declare("each", shape, dtype, index_of)


def shared(*shape: int | str, dtype: Any = None) -> Declared:
    """Declare an array that is the same for all sequences, such as a parameter.

    A body adds a sequence's share to its gradient, which is float64 there. Parameters as
    `per_step`.

    Examples
    --------
    >>> import udfkit
    >>> udfkit.shared("K", "K").kind
    'shared'
    """
    return _declare("shared", shape, dtype)


def scratch(*shape: int | str, dtype: Any = np.float64, dtype_of: str | None = None) -> Declared:
    """Declare room for intermediate results; a plain tuple of sizes means float64.

    Parameters as `per_step`; ``dtype_of`` names an input or output whose dtype is taken.

    Examples
    --------
    >>> import udfkit
    >>> udfkit.scratch("T", "2*L + 1").kind
    'scratch'
    """
    made = _declare("scratch", shape or (1,), dtype)
    return replace(made, dtype=None, dtype_of=dtype_of) if dtype_of is not None else made
