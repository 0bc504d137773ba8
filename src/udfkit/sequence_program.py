"""What a class of sequence functions is made of: declarations, bodies, and their compiled forms."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from udfkit.kernels import lazy, sequences
from udfkit.kernels.bodies import Body
from udfkit.kernels.jit import JIT_DISABLED
from udfkit.kernels.portable import barrier
from udfkit.kernels.sequences import Slot
from udfkit.sequence_declarations import Declared, scratch
from udfkit.threads import run_ranges, thread_count

__all__ = ["Definition", "Program"]

cuda_sequences = lazy("cuda_sequences", globals())

THREAD_NANOSECONDS = 500_000
"""Work that takes less is done by one thread: handing it over would cost what it saves."""

_LANES = ("lane", "lanes")
_OPTION_DTYPES = {bool: "bool", int: "int64", float: "float64"}
_lock = threading.RLock()


@dataclass(frozen=True)
class Definition:
    """The declarations of one class, checked, and its bodies."""

    name: str
    takes: dict[str, Declared]
    gives: dict[str, Declared]
    saved: dict[str, Declared]
    work: dict[str, Declared]
    options: dict[str, Any]
    counts: dict[str, Any]
    cooperative: bool
    forward: Any
    backward: Any = None

    @classmethod
    def read(
        cls,
        name: str,
        forward: Any,
        backward: Any,
        parts: Mapping[str, Any],
    ) -> Definition:
        """Check what an author declared.

        Raises
        ------
        TypeError, ValueError
            With the name of the array and what is expected.
        """
        takes = _checked(name, "takes", parts["takes"], ("step", "each", "shared"))
        gives = _checked(name, "gives", parts["gives"], ("step", "each"))
        saved = _checked(name, "saved", parts["saved"], ("scratch",))
        work = _checked(name, "work", parts["work"], ("scratch",))
        options = dict(parts["options"])
        for key, default in options.items():
            if type(default) not in _OPTION_DTYPES:
                raise TypeError(
                    f"{name}: option {key!r} has the default {default!r}, expected an int, a float "
                    f"or a bool"
                )
        cooperative, counts = bool(parts["cooperative"]), dict(parts["lengths"])
        made = cls(name, takes, gives, saved, work, options, counts, cooperative, forward)
        names = made._names("forward")
        twice = [key for key in names if names.count(key) > 1]
        if twice:
            raise ValueError(f"{name}: the name {twice[0]!r} is declared twice; choose another one")
        if not any(declared.kind != "shared" for declared in takes.values()):
            raise ValueError(f"{name} takes no sequences: declare a per_step or per_sequence input")
        if not gives:
            raise ValueError(f"{name} gives nothing: declare an output")
        made._check_sizes()
        made._check_parameters("forward", forward)
        return made if backward is None else made.with_backward(backward)

    def with_backward(self, backward: Any) -> Definition:
        """Return the same definition with a body for the gradient."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        made = Definition(**{**kept, "backward": backward})
        made._check_parameters("backward", backward)
        return made

    @cached_property
    def has_indices(self) -> bool:
        """Whether any input holds indices, to be checked."""
        return any(declared.index_of is not None for declared in self.takes.values())

    @cached_property
    def has_shared(self) -> bool:
        """Whether any input is shared by all sequences."""
        return any(declared.kind == "shared" for declared in self.takes.values())

    @cached_property
    def names(self) -> list[str]:
        """Names of the inputs, in order."""
        return list(self.takes)

    @cached_property
    def batch_input(self) -> int:
        """Which input says how many sequences there are."""
        return [declared.kind != "shared" for declared in self.takes.values()].index(True)

    @cached_property
    def length_names(self) -> list[str]:
        """Names of the lengths of inputs, in order."""
        steps = [d.shape[0].symbol or "" for d in self.takes.values() if d.kind == "step"]
        return list(dict.fromkeys(steps))

    @cached_property
    def output_lengths(self) -> dict[str, str]:
        """The name of the length of each per-step output; its own name where it is computed."""
        known = self.length_names
        found = {}
        for name, declared in self.gives.items():
            if declared.kind == "step":
                symbol = declared.shape[0].symbol
                own = symbol is None or (symbol not in known and symbol not in self.counts)
                found[name] = f"of_{name}" if own else str(symbol)
        return found

    @property
    def size_names(self) -> list[str]:
        """Names of the sizes of samples, in order."""
        named = [s.symbol for d in self.takes.values() for s in d.sample if s.symbol is not None]
        return list(dict.fromkeys(named))

    def all_lengths(self) -> list[str]:
        """Names of all lengths: those of inputs, then those that are computed."""
        return list(dict.fromkeys([*self.length_names, *self.output_lengths.values()]))

    def _check_sizes(self) -> None:
        arrays = {**self.takes, **self.gives}
        for name, declared in self.takes.items():
            for axis, size in enumerate(declared.shape):
                named = size.symbol is not None
                if not named and (size.number is None or (axis == 0 and declared.kind == "step")):
                    raise ValueError(
                        f"{self.name}: size {size.text!r} of input {name!r} is no name: sizes of "
                        f"inputs are names or numbers, and lengths are names"
                    )
        both = set(self.length_names) & set(self.size_names)
        if both:
            raise ValueError(
                f"{self.name}: {min(both)!r} is both a length and a size of samples; use two names"
            )
        known = {*self.length_names, *self.size_names, *self.options}
        for name, declared in {**self.saved, **self.work}.items():
            if declared.dtype_of is not None and declared.dtype_of not in arrays:
                raise ValueError(
                    f"{self.name}: {name!r} has the dtype of {declared.dtype_of!r}, which is no "
                    f"input or output: use one of {sorted(arrays)}"
                )
        for group in (self.gives, self.saved, self.work):
            for name, declared in group.items():
                allowed = known | (set() if declared.kind == "step" else set(self.counts))
                for axis, size in enumerate(declared.shape):
                    first = axis == 0 and declared.kind == "step"
                    more = allowed | (set(self.counts) if first else set())
                    unknown = [n for n in size.names if n not in more]
                    if unknown:
                        raise ValueError(
                            f"{self.name}: size {size.text!r} of {name!r} uses {unknown[0]!r}, "
                            f"which is no size or length of an input: use {sorted(more)}"
                        )

    def _check_parameters(self, phase: str, body: Any) -> None:
        known, asked = self._names(phase), _parameters(body)
        missing = [name for name in _LANES if self.cooperative and name not in asked]
        if missing:
            raise TypeError(
                f"{phase} of {self.name} is cooperative and does not take {missing[0]!r}: without "
                f"'lane' and 'lanes' among its arguments it cannot share its work out"
            )
        for name in asked:
            if name not in known:
                raise TypeError(
                    f"{phase} of {self.name} takes {name!r}, which is not declared: its arguments "
                    f"are found by their names, {known}"
                )

    def _names(self, phase: str) -> list[str]:
        names = [*self.takes, *self.gives, *self.saved, *self.work, *self.options]
        names += _LANES if self.cooperative else ()
        if phase == "backward":
            names += [f"grad_{name}" for name in [*self.gives, *self.takes]]
        return names

    def has_gradient(self, name: str) -> bool:
        """Whether backward computes the gradient of this input."""
        return name in self._with_gradient

    @cached_property
    def _with_gradient(self) -> frozenset[str]:
        asked = () if self.backward is None else _parameters(self.backward)
        return frozenset(name for name in self.takes if f"grad_{name}" in asked)


def _checked(
    owner: str, role: str, declared: Mapping[str, Any], kinds: tuple[str, ...]
) -> dict[str, Declared]:
    if not isinstance(declared, Mapping):
        raise TypeError(f"{owner}.{role} is a {type(declared).__name__}, expected a dict by name")
    made = {}
    for name, given in declared.items():
        array = scratch(*given) if isinstance(given, tuple) and kinds == ("scratch",) else given
        if not isinstance(array, Declared) or array.kind not in kinds:
            hint = "per_step(...) or per_sequence(...)"
            hint = "a tuple of sizes or scratch(...)" if kinds == ("scratch",) else hint
            raise TypeError(
                f"{owner}.{role}[{name!r}] is {given!r}, expected "
                f"{hint + ', or shared(...)' if 'shared' in kinds else hint}"
            )
        made[name] = array
    return made


def _parameters(body: Any) -> list[str]:
    return list(inspect.signature(getattr(body, "py_func", body)).parameters)


class Program:
    """The compiled forms of a definition for one choice of dtypes."""

    def __init__(self, definition: Definition, dtypes: dict[str, str], poisoned: bool):
        self.definition = definition
        self.dtypes = dtypes
        self.poisoned = poisoned
        self.rates: dict[str, float] = {}
        self._held: dict[str, list[Slot]] = {}
        self._bodies = {"forward": Body(definition.forward)}
        self._compiled: dict[str, Callable[..., None]] = {}
        self._kernels: dict[str, Any] = {}
        lengths, sizes = definition.all_lengths(), definition.size_names
        self._scratch = [
            Slot(
                n,
                role,
                dtypes[d.dtype_of] if d.dtype_of else str(d.dtype),
                len(d.shape),
                "",
                tuple(s.source() for s in d.shape),
            )
            for role, group in (("saved", definition.saved), ("work", definition.work))
            for n, d in group.items()
        ]
        self.saved_dtypes = sorted({s.dtype for s in self._scratch if s.role == "saved"})
        self.work_count = len({s.dtype for s in self._scratch if s.role == "work"})
        self._names = (lengths, [*sizes, *(k for k in definition.options if self._sized(k))])
        weights = [f"n_{name}" for name in lengths]
        self.plan = sequences.compile_plan(
            self._scratch, [*weights, *self._weights()], *self._names
        )
        self.counts = {
            name: self._compile_count(name, body) for name, body in definition.counts.items()
        }

    def _sized(self, option: str) -> bool:
        declared = [*self.definition.saved.values(), *self.definition.work.values()]
        return any(option in size.names for d in declared for size in d.shape)

    @property
    def lengths(self) -> list[str]:
        """Names of the lengths whose offsets compiled code gets, in order."""
        return self._names[0]

    @property
    def sizes(self) -> list[str]:
        """Names of the sizes that compiled code gets, in order."""
        return self._names[1]

    def _weights(self) -> list[str]:
        """Write the number of elements of each per-step array, which is work too."""
        found = []
        for name, declared in {**self.definition.takes, **self.definition.gives}.items():
            if declared.kind == "step" and declared.sample:
                length = self.definition.output_lengths.get(name, declared.shape[0].symbol)
                found.append("*".join([f"n_{length}", *(s.source() for s in declared.sample)]))
        return found

    def compiled(self, phase: str) -> Callable[..., None]:
        """Return the driver of a body for the CPU, made at its first use."""
        with _lock:
            if phase not in self._compiled:
                self._compiled[phase] = sequences.compile_body(*self._parts(phase))
            return self._compiled[phase]

    def kernel(self, phase: str) -> Any:
        """Return the kernel of a body for CUDA, made at its first use."""
        with _lock:
            if phase not in self._kernels:
                self._kernels[phase] = cuda_sequences.Kernel(*self._parts(phase))
            return self._kernels[phase]

    def is_current(self) -> bool:
        """Whether the bodies still refer to what was compiled."""
        return self.poisoned == sequences.poisoned and all(
            body.is_current() for body in self._bodies.values()
        )

    def arguments(self, phase: str) -> list[Slot]:
        """Return the slots of a body's arguments, those that a driver finds itself left out."""
        if phase not in self._held:
            slots = self._slots(phase, getattr(self.definition, phase))
            self._held[phase] = [slot for slot in slots if slot.is_passed]
        return self._held[phase]

    def run(self, phase: str, chunks: int, weight: int, args: tuple[Any, ...]) -> None:
        """Run a compiled body over all chunks, in several threads where that pays."""
        drive = self._compiled.get(phase) or self.compiled(phase)
        if JIT_DISABLED:
            # Compiled code has no warnings for infinities and NaN either.
            with np.errstate(all="ignore"):
                drive(0, chunks, *args)
            return
        if chunks == 1:
            drive(0, 1, *args)
            return
        rate = self.rates.get(phase, 0.0)
        threads = 1
        if rate * weight > THREAD_NANOSECONDS:
            threads = min(thread_count(), chunks)
        began = time.perf_counter_ns()
        if threads > 1:
            run_ranges(drive, range(chunks + 1), args)
        else:
            drive(0, chunks, *args)
        # An interruption makes a measurement too large, never too small.
        spent = threads * (time.perf_counter_ns() - began) / max(weight, 1)
        self.rates[phase] = min(spent, 1.05 * rate) if rate else spent

    def _slots(self, phase: str, body: Any) -> list[Slot]:
        return [self._slot(phase, name) for name in _parameters(body)]

    def _slot(self, phase: str, name: str) -> Slot:
        definition = self.definition
        for slot in self._scratch:
            if slot.name == name:
                return slot
        if name in definition.options:
            return Slot(name, "option", _OPTION_DTYPES[type(definition.options[name])], 0)
        if name in _LANES:
            return Slot(name, "lane", "int64", 0)
        plain = name
        if name not in definition.takes and name not in definition.gives:
            plain = name.removeprefix("grad_")
        is_input = plain in definition.takes
        declared = definition.takes[plain] if is_input else definition.gives[plain]
        writes = (is_input and plain != name) or (not is_input and phase == "forward")
        role = f"{declared.kind} {'out' if writes else 'in'}"
        dtype = self.dtypes[plain]
        rank = max(len(declared.shape), 1)
        if role == "shared out":
            return Slot(name, "shared sum", "float64", rank)
        length = ""
        if declared.kind == "step":
            length = definition.output_lengths.get(plain) or str(declared.shape[0].symbol)
        shape = ("scalar",) if declared.kind == "each" and not declared.shape else ()
        return Slot(name, role, dtype, rank, length, shape)

    def _parts(self, phase: str) -> tuple[Any, ...]:
        """Return what a body is compiled of."""
        if phase not in self._bodies:
            self._bodies[phase] = Body(getattr(self.definition, phase))
        where = f"{phase} of {self.definition.name}"
        if not self.definition.cooperative and self._bodies[phase].calls(barrier):
            raise TypeError(
                f"{where} waits at a barrier, where other threads work on other sequences: declare "
                f"cooperative=True, and take 'lane' and 'lanes'"
            )
        slots = self._slots(phase, getattr(self.definition, phase))
        return self._bodies[phase], where, slots, self._scratch, *self._names

    def _compile_count(self, name: str, function: Any) -> Any:
        body = Body(function)
        self._bodies[f"lengths of {name}"] = body
        slots = self._slots("forward", function)
        where = f"lengths of {self.definition.name}"
        lengths = self.definition.length_names
        return sequences.compile_count(body, where, slots, lengths), slots
