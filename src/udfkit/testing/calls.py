"""A function under test: called with plain parts, and watched while it works."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from udfkit.batching import make_value
from udfkit.function import UserFunction
from udfkit.plain import _arguments
from udfkit.ragged import Ragged
from udfkit.state import BackPropState
from udfkit.testing.cases import Case, batch_of
from udfkit.value import Value

__all__ = ["Result", "Snapshot", "Subject", "hooked"]

_DEEPEST = 6


@dataclass(frozen=True, slots=True)
class Result:
    """Plain outputs and gradients, by position; None for a gradient that was not asked for."""

    outputs: tuple[Any, ...]
    gradients: tuple[Any, ...]


class Subject:
    """A function under test.

    Attributes
    ----------
    wrt, rooted : tuple of int
        Positions of the inputs and outputs that need a gradient.
    """

    def __init__(self, function: UserFunction):
        self.function = function
        self.inputs = function.inputs
        self.outputs = function.outputs
        self.input_kinds = tuple(variable.kind for variable in self.inputs)
        self.output_kinds = tuple(variable.kind for variable in self.outputs)
        self.wrt = tuple(i for i, v in enumerate(self.inputs) if v.needs_gradient)
        self.rooted = tuple(j for j, v in enumerate(self.outputs) if v.needs_gradient)

    @property
    def differentiable(self) -> bool:
        """Whether there is any gradient to check."""
        return bool(self.wrt and self.rooted)

    def case(self, name: str, batch: Any) -> Case:
        """Make a case of a batch as `UserFunction.eval` takes it."""
        values = _arguments(self.function, batch, None, None)
        parts = [values[variable]._sequences(variable.kind) for variable in self.inputs]
        return batch_of(name, self.inputs, parts, given=True)

    def values(self, data: Sequence[Any]) -> list[Value]:
        """Make a Value of each input's part."""
        return [
            make_value(variable, part, None, None, copy=True, pad_now=False, warn=False)
            for variable, part in zip(self.inputs, data, strict=True)
        ]

    def forward(self, values: list[Value]) -> tuple[BackPropState, list[Value]]:
        """Run forward for all outputs."""
        made: dict[Any, Any] = dict.fromkeys(self.outputs)
        state, _ = self.function._forward(values, made, None, self.outputs)
        return state, [made[variable] for variable in self.outputs]

    def plain_outputs(self, values: Sequence[Value]) -> tuple[Any, ...]:
        """Read output Values out."""
        return tuple(v._sequences(k) for k, v in zip(self.output_kinds, values, strict=True))

    def backward_values(
        self, state: BackPropState, roots: Mapping[int, Value], wrt: Sequence[int]
    ) -> dict[int, Value]:
        """Run backward with Values by output position; gradients come by input position."""
        filled: dict[Any, Any] = {self.inputs[i]: None for i in wrt}
        self.function._backward(state, {self.outputs[j]: v for j, v in roots.items()}, filled)
        return {i: filled[self.inputs[i]] for i in wrt}

    def backward(
        self, state: BackPropState, roots: Sequence[Any], wrt: Sequence[int] | None = None
    ) -> tuple[Any, ...]:
        """Run backward with plain root gradients, None for those that do not arrive."""
        made = self.backward_values(
            state, self.root_values(roots), self.wrt if wrt is None else wrt
        )
        return tuple(
            made[i]._sequences(kind) if i in made else None
            for i, kind in enumerate(self.input_kinds)
        )

    def root_values(self, roots: Sequence[Any]) -> dict[int, Value]:
        """Make a Value of each root gradient that is not None."""
        return {
            j: make_value(self.outputs[j], root, None, None, copy=True, pad_now=False, warn=False)
            for j, root in enumerate(roots)
            if root is not None
        }

    def run(
        self, data: Sequence[Any], roots: Sequence[Any] | None, wrt: Sequence[int] | None = None
    ) -> Result:
        """Run forward, and backward unless there are no root gradients."""
        state, values = self.forward(self.values(data))
        outputs = self.plain_outputs(values)
        if roots is None or not self.differentiable:
            return Result(outputs, (None,) * len(self.inputs))
        return Result(outputs, self.backward(state, roots, wrt))

    def evaluate(self, data: Sequence[Any]) -> tuple[Any, ...]:
        """Run forward to plain outputs."""
        return self.plain_outputs(self.forward(self.values(data))[1])

    def roots(self, outputs: Sequence[Any], rng: np.random.Generator) -> tuple[Any, ...]:
        """Draw a root gradient for each output that needs one; 0 where the output is not finite."""

        def draw(output: np.ndarray) -> np.ndarray:
            drawn = rng.normal(size=output.shape)
            return np.where(np.isfinite(output.astype(np.float64)), drawn, 0).astype(output.dtype)

        return self.map_roots(outputs, draw)

    def map_roots(
        self, outputs: Sequence[Any], make: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[Any, ...]:
        """Make a root gradient of every array of every output that needs one."""
        return tuple(
            None
            if j not in self.rooted
            else ([make(part) for part in output] if isinstance(output, list) else make(output))
            for j, output in enumerate(outputs)
        )


@contextmanager
def hooked(function: UserFunction, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Call ``around(method, *args)`` wherever the method of this name would be called."""
    inner = getattr(function, name)

    @functools.wraps(inner)
    def outer(*args: Any) -> Any:
        return around(inner, *args)

    before = function.__dict__.get(name)
    function.__dict__[name] = outer
    try:
        yield
    finally:
        if before is None:
            del function.__dict__[name]
        else:
            function.__dict__[name] = before


class Snapshot:
    """Copies of all arrays in something, to see later which were written to."""

    def __init__(self, what: Any, label: str):
        self._kept: list[tuple[str, np.ndarray, np.ndarray]] = []
        self._seen: set[int] = set()
        self._walk(what, label, 0)

    def _walk(self, what: Any, label: str, depth: int) -> None:
        if depth > _DEEPEST or id(what) in self._seen:
            return
        self._seen.add(id(what))
        if isinstance(what, np.ndarray):
            if what.dtype.kind != "O":
                self._kept.append((label, what, what.copy()))
            return
        for name, part in _inside(what):
            self._walk(part, label + name, depth + 1)

    def written(self) -> str:
        """Name the first number that changed, or return ''."""
        for label, array, copy in self._kept:
            if array.tobytes() != copy.tobytes():
                now, then = array.reshape(-1), copy.reshape(-1)
                size = array.itemsize
                bytes_now = np.frombuffer(now.tobytes(), np.uint8).reshape(-1, size)
                bytes_then = np.frombuffer(then.tobytes(), np.uint8).reshape(-1, size)
                k = int(np.flatnonzero((bytes_now != bytes_then).any(axis=1))[0])
                at = tuple(int(n) for n in np.unravel_index(k, array.shape))
                return f"{label}, at {at}: it was {then[k]!s} and became {now[k]!s}"
        return ""


def _inside(what: Any) -> Iterator[tuple[str, Any]]:
    """Yield (how to write it, part) for the parts of what methods are handed."""
    if isinstance(what, Ragged):
        yield ".values", what.values
    elif isinstance(what, Value):
        yield ".data", what.data
    elif isinstance(what, (list, tuple)):
        yield from ((f"[{k}]", part) for k, part in enumerate(what))
    elif isinstance(what, Mapping):
        yield from ((f"[{getattr(key, 'name', key)!r}]", part) for key, part in what.items())
    elif dataclasses.is_dataclass(what):
        for entry in dataclasses.fields(what):
            yield f".{entry.name}", getattr(what, entry.name)
    elif isinstance(what, BackPropState):
        yield from ((f".{key}", part) for key, part in vars(what).items())
