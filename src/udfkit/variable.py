"""Variables: what a batch is checked against."""

from __future__ import annotations

import itertools
import uuid
import weakref
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from udfkit.arguments import check_flag, check_name
from udfkit.casting import cast_exactly, check_dtype, exact_integers, is_bfloat16, is_floating
from udfkit.errors import shape_text

__all__ = [
    "Axis",
    "Constant",
    "FreeDimension",
    "Parameter",
    "Variable",
    "input_variable",
    "output_variable",
]

FreeDimension = -3
"""A size in a sample shape that is one value for a whole batch, known from the data."""

_BY_UID: weakref.WeakValueDictionary[str, Variable] = weakref.WeakValueDictionary()
_counter = itertools.count()


class Axis:
    """A dynamic axis: the batch axis, or a sequence axis with a name.

    Variables of one function that share a sequence axis with a name of its own must have sequences
    of equal lengths. The default sequence axis promises nothing.

    Examples
    --------
    >>> import udfkit
    >>> udfkit.Axis.default_batch_axis(), udfkit.Axis.default_dynamic_axis(), udfkit.Axis("words")
    (Axis('#'), Axis('*'), Axis('words'))
    """

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = check_name(name)

    @staticmethod
    def default_batch_axis() -> Axis:
        """Return the batch axis, written ``#``."""
        return _BATCH_AXIS

    @staticmethod
    def default_dynamic_axis() -> Axis:
        """Return the default sequence axis, written ``*``."""
        return _SEQUENCE_AXIS

    @staticmethod
    def new_unique_dynamic_axis(name: str) -> Axis:
        """Return a sequence axis that equals no other one."""
        return Axis(f"{check_name(name)}-{uuid.uuid4().hex[:8]}")

    @property
    def is_batch_axis(self) -> bool:
        """Whether this is the batch axis."""
        return self.name == "#"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axis) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Axis({self.name!r})"


_BATCH_AXIS = Axis("#")
_SEQUENCE_AXIS = Axis("*")


def _check_shape(shape: int | Iterable[int]) -> tuple[int, ...]:
    if not isinstance(shape, (int, np.integer)) and not isinstance(shape, Iterable):
        raise TypeError(f"shape is {shape!r}, expected an integer or a sequence of integers")
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    for axis, size in enumerate(sizes):
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
            raise TypeError(f"shape {sizes!r}: size {size!r} of axis {axis} is not an integer")
        if size < 0 and size != FreeDimension:
            raise ValueError(
                f"shape {sizes!r}: size {size} of axis {axis} is negative; use a size of 0 or "
                f"more, or udfkit.FreeDimension for one that is known from the data"
            )
    checked = tuple(int(n) for n in sizes)
    if prod(n for n in checked if n > 0) * 8 >= 2**63:
        raise ValueError(f"shape {checked!r} is too large: a sample must fit in memory")
    return checked


def _check_axes(axes: Axis | Sequence[Axis]) -> tuple[Axis, ...]:
    if not isinstance(axes, (Axis, Iterable)):
        raise TypeError(f"dynamic_axes are {axes!r}, expected a sequence of udfkit.Axis")
    given = (axes,) if isinstance(axes, Axis) else tuple(axes)
    for axis in given:
        if not isinstance(axis, Axis):
            raise TypeError(f"dynamic axis {axis!r} is a {type(axis).__name__}, expected an Axis")
    ordered = tuple(sorted(given, key=lambda axis: not axis.is_batch_axis))
    batch = sum(axis.is_batch_axis for axis in ordered)
    if len(ordered) > 2 or (ordered and batch != 1):
        raise ValueError(
            f"dynamic axes {list(given)!r}: expected none, the batch axis, or the batch axis and "
            f"one sequence axis"
        )
    return ordered


class Variable:
    """What a batch is checked against: sample shape, dtype and dynamic axes.

    Parameters
    ----------
    shape : int or sequence of int
        Sample shape, the shape of one time step; sizes of 0 or more, or `FreeDimension`.
    dtype : dtype, default float32
        bool, int8 to int64, uint8 to uint64, float16, float32, float64, or bfloat16.
    dynamic_axes : sequence of Axis, default the batch axis
        ``()`` for no axes, the batch axis, or the batch axis and a sequence axis.
    needs_gradient : bool, default False
        Whether gradients are computed with respect to it; floating dtypes only.
    is_sparse : bool, default False
        Whether batches may stay in the sparse CSR form.
    name : str, default ''

    Attributes
    ----------
    kind : {'sequence', 'batch', 'none'}
    uid : str
        Unique in all processes. Pickling within a process gives the same object back.

    Raises
    ------
    TypeError
        For a dtype that samples cannot have, or a shape or axes of the wrong type.
    ValueError
        For negative sizes, impossible axes, or a gradient of a dtype that is not floating.

    Examples
    --------
    >>> import udfkit
    >>> udfkit.sequence.input_variable(2, name="x")
    Input('x', [#, *], [2])
    """

    _label = "Input"

    def __init__(
        self,
        shape: int | Iterable[int],
        dtype: Any = np.float32,
        dynamic_axes: Axis | Sequence[Axis] = (_BATCH_AXIS,),
        needs_gradient: bool = False,
        is_sparse: bool = False,
        name: str = "",
        *,
        _uid: str | None = None,
    ):
        self.shape = _check_shape(shape)
        self.dtype = check_dtype(dtype)
        self.dynamic_axes = _check_axes(dynamic_axes)
        self.kind = ("none", "batch", "sequence")[len(self.dynamic_axes)]
        self.needs_gradient = check_flag(needs_gradient, "needs_gradient")
        self.is_sparse = check_flag(is_sparse, "is_sparse")
        if self.needs_gradient and not self.is_floating:
            raise ValueError(
                f"variable {name!r} of dtype {self.dtype} cannot need a gradient: only floating "
                f"variables can; use a floating dtype or needs_gradient=False"
            )
        self._unnamed = not check_name(name)
        self.name = name or f"{self._label}{next(_counter)}"
        self.uid = _uid or uuid.uuid4().hex
        _BY_UID[self.uid] = self

    def _name_if_unnamed(self, name: str) -> None:
        if self._unnamed:
            self.name, self._unnamed = name, False

    @property
    def named_axis(self) -> str | None:
        """Name of the sequence axis when it is another than the default one, else None."""
        name = self.dynamic_axes[1].name if self.kind == "sequence" else "*"
        return None if name == "*" else name

    @property
    def is_floating(self) -> bool:
        """Whether values of this variable can need a gradient."""
        return is_floating(self.dtype)

    def accepts_sample(self, shape: Sequence[int]) -> bool:
        """Whether a sample of this shape fits (a FreeDimension fits every size)."""
        return shape == self.shape or (
            len(shape) == len(self.shape)
            and all(want in (FreeDimension, n) for want, n in zip(self.shape, shape, strict=True))
        )

    def _state(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "dtype": self.dtype,
            "dynamic_axes": tuple(axis.name for axis in self.dynamic_axes),
            "needs_gradient": self.needs_gradient,
            "is_sparse": self.is_sparse,
            "name": self.name,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.uid, self._state())

    def __repr__(self) -> str:
        axes = ", ".join(axis.name for axis in self.dynamic_axes)
        sizes = ", ".join("?" if n < 0 else str(n) for n in self.shape)
        return f"{self._label}({self.name!r}, [{axes}], [{sizes}])"


def _restore(cls: type[Variable], uid: str, state: dict[str, Any]) -> Variable:
    known = _BY_UID.get(uid)
    if known is not None:
        return known
    if issubclass(cls, _Valued):
        return cls._from_state(uid, state)
    axes = tuple(Axis(name) for name in state.pop("dynamic_axes"))
    return cls(dynamic_axes=axes, _uid=uid, **state)


class OutputVariable(Variable):
    """A variable that a function fills; made by `output_variable`."""

    _label = "Output"


def _real_array(value: Any, where: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{where} is a nested list whose parts differ in shape") from None
    if array.dtype.kind not in "biuf" and not is_bfloat16(array.dtype):
        raise TypeError(f"{where} is {value!r}, expected real numbers")
    return exact_integers(value, array, where)


class _Valued(Variable):
    """A variable without axes that carries its value."""

    def __init__(
        self, value: Any, shape: Any, dtype: Any, needs_gradient: bool, name: str, uid: str | None
    ):
        where = f"the value of {self._label} {name!r}"
        given = _real_array(value, where)
        if dtype is None:
            dtype = given.dtype if isinstance(value, (np.ndarray, np.generic)) else np.float32
        dtype = check_dtype(dtype)
        if needs_gradient and not is_floating(dtype):
            raise ValueError(
                f"{self._label} {name!r} of dtype {dtype} cannot be trained: use a floating dtype, "
                f"or a Constant"
            )
        sizes = given.shape if shape is None else _check_shape(shape)
        if given.ndim and given.shape != sizes:
            raise ValueError(
                f"{where} has shape {shape_text(given.shape)}, expected {shape_text(sizes)}, or a "
                f"scalar that fills it"
            )
        self._value = np.array(np.broadcast_to(cast_exactly(given, dtype, where), sizes), order="C")
        super().__init__(sizes, dtype, (), needs_gradient, False, name, _uid=uid)

    @classmethod
    def _from_state(cls, uid: str, state: dict[str, Any]) -> Variable:
        made = cls.__new__(cls)
        _Valued.__init__(
            made, state["value"], None, state["dtype"], state["needs_gradient"], state["name"], uid
        )
        return made

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "value": self._value}


class Parameter(_Valued):
    """A variable without axes that carries a trainable value.

    Parameters
    ----------
    shape : int or sequence of int, optional
        Taken from ``init`` when not given.
    init : array_like, default 0
        The value, or a scalar that fills the shape.
    dtype : dtype, optional
        Of ``init`` when that is an array, else float32.
    name : str, default ''

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> w = udfkit.Parameter(init=np.zeros((3, 2), np.float32), name="w")
    >>> w.value = np.ones((3, 2), np.float32)
    >>> w, float(w.value.sum())
    (Parameter('w', [], [3, 2]), 6.0)
    """

    _label = "Parameter"

    def __init__(self, shape: Any = None, init: Any = 0, dtype: Any = None, name: str = ""):
        if dtype is None and isinstance(init, np.ndarray) and init.dtype.kind in "biu":
            dtype = np.float32
        super().__init__(init, shape, dtype, True, name, None)

    @property
    def value(self) -> np.ndarray:
        """The value, a read-only view of shape ``shape``; assign to replace its contents."""
        view = self._value.view()
        view.flags.writeable = False
        return view

    @value.setter
    def value(self, new: Any) -> None:
        where = f"the value of Parameter {self.name!r}"
        given = _real_array(new, where)
        if given.shape != self._value.shape:
            raise ValueError(
                f"{where} has shape {shape_text(given.shape)}, expected "
                f"{shape_text(self._value.shape)}"
            )
        self._value = np.array(cast_exactly(given, self.dtype, where), order="C")


class Constant(_Valued):
    """A variable without axes that carries a fixed value; the arguments are those of `Parameter`.

    Examples
    --------
    >>> import udfkit
    >>> udfkit.Constant(2.0, name="two").value
    array(2., dtype=float32)
    """

    _label = "Constant"

    def __init__(self, value: Any, shape: Any = None, dtype: Any = None, name: str = ""):
        super().__init__(value, shape, dtype, False, name, None)
        self._value.flags.writeable = False

    @property
    def value(self) -> np.ndarray:
        """The value, a read-only array of shape ``shape``."""
        return self._value


def input_variable(
    shape: int | Iterable[int],
    dtype: Any = np.float32,
    needs_gradient: bool = False,
    is_sparse: bool = False,
    dynamic_axes: Axis | Sequence[Axis] = (_BATCH_AXIS,),
    name: str = "",
) -> Variable:
    """Make an input variable; by default one with a batch axis and no sequence axis.

    For sequences use `udfkit.sequence.input_variable`. Parameters and errors as `Variable`.

    Examples
    --------
    >>> import udfkit
    >>> udfkit.input_variable((2, 3), name="image")
    Input('image', [#], [2, 3])
    """
    return Variable(shape, dtype, dynamic_axes, needs_gradient, is_sparse, name)


def output_variable(
    shape: int | Iterable[int],
    dtype: Any,
    dynamic_axes: Axis | Sequence[Axis],
    needs_gradient: bool = True,
    name: str = "",
) -> Variable:
    """Make an output variable, to be returned by ``infer_outputs``.

    An output whose dtype is not floating never needs a gradient. Parameters as `Variable`.

    Examples
    --------
    >>> import udfkit
    >>> x = udfkit.sequence.input_variable(4)
    >>> udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes, name="y")
    Output('y', [#, *], [4])
    """
    can = check_flag(needs_gradient, "needs_gradient") and is_floating(check_dtype(dtype))
    return OutputVariable(shape, dtype, dynamic_axes, can, False, name)
