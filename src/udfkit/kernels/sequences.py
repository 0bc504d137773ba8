"""Drivers: an author's body for one sequence, compiled into a loop over ranges of sequences.

The text of a driver is generated for the arrays that a body takes, so that it slices its views out
of flat values without any Python in between. Bodies allocate nothing and raise nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba.core import types

from udfkit.kernels.bodies import Body
from udfkit.kernels.jit import driver, kernel
from udfkit.kernels.sequence_compiling import build, compile_text, remember

__all__ = [
    "Slot",
    "compile_body",
    "compile_count",
    "compile_plan",
    "driver_source",
    "first_outside",
    "is_cooperative",
    "poisoned",
    "sum_chunks",
]

MOST_CHUNKS = 32
LEAST_CHUNK_WEIGHT = 2048
_LINE_ELEMENTS = 8

poisoned = False
"""Whether scratch is filled with NaN before each sequence, so that a test sees who reads it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One argument of a body.

    Attributes
    ----------
    name : str
        As in the body's signature.
    role : str
        ``in`` or ``out`` with the kind, such as ``step in``; ``shared sum`` for the gradient of a
        shared input; ``saved``, ``work``, ``option``, ``lane``.
    dtype : str
    rank : int
        Of the view that the body gets; 0 for a number.
    length : str
        Of a per-step array, the name of its length.
    shape : tuple of str
        Of scratch, its sizes as source text.
    """

    name: str
    role: str
    dtype: str
    rank: int
    length: str = ""
    shape: tuple[str, ...] = ()

    @property
    def is_passed(self) -> bool:
        """Whether a driver gets it from its caller."""
        return self.role not in ("saved", "work", "lane")


def _scratch_groups(slots: Sequence[Slot], role: str) -> list[str]:
    return sorted({slot.dtype for slot in slots if slot.role == role})


def compile_body(
    body: Body,
    where: str,
    slots: Sequence[Slot],
    scratch: Sequence[Slot],
    lengths: Sequence[str],
    sizes: Sequence[str],
) -> Callable[..., None]:
    """Return ``drive(first, last, chunks, *offsets, sizes, *scratch, *arrays)`` for a body.

    It runs the body for every sequence of the chunks from first to last. ``scratch`` are all
    scratch arrays of the function, forward and backward, since saved ones lie side by side. Each
    group of saved scratch takes two arguments, room and positions; one of work scratch its size.

    Raises
    ------
    TypeError
        When the body cannot be compiled, with the author's file and line.
    """
    key = ("drive", poisoned, body.key, tuple(slots), tuple(scratch), tuple(lengths), tuple(sizes))
    return remember(key, lambda: _compile_driver(body, where, slots, scratch, lengths, sizes))


def compile_count(
    body: Body, where: str, slots: Sequence[Slot], lengths: Sequence[str]
) -> Callable[..., None]:
    """Return ``count(first, last, *offsets, *arrays, out)``: a number for each sequence."""
    key = ("count", body.key, tuple(slots), tuple(lengths))

    def make() -> Any:
        names = [f"a{k}" for k in range(len(slots))]
        head = ["first", "last", *(f"o_{n}" for n in lengths), *names, "out"]
        lines = [f"def drive({', '.join(head)}):", "    for i in range(first, last):"]
        for name, slot in zip(names, slots, strict=True):
            lines.append(f"        v_{slot.name} = {_view(slot, name)}")
        lines.append(f"        out[i] = body({', '.join(f'v_{s.name}' for s in slots)})")
        arrays = [_argument(slot) for slot in slots]
        args = [types.int64, types.int64, *[_OFFSETS] * len(lengths), *arrays, _array("int64", 1)]
        return build(lines, body, where, [_seen(slot) for slot in slots], args)

    return remember(key, make)


def compile_plan(
    scratch: Sequence[Slot], weights: Sequence[str], lengths: Sequence[str], sizes: Sequence[str]
) -> Callable[..., int]:
    """Return ``plan(count, *offsets, sizes, positions, needs, chunks)``.

    It fills the positions of each sequence's saved scratch ``(groups + 1, B + 1)``, whose last row
    is the running weight, the size of the work scratch, and the boundaries of the chunks, and
    returns the number of chunks. Chunks depend on nothing but lengths and sizes.
    """
    key = ("plan", tuple(scratch), tuple(weights), tuple(lengths), tuple(sizes))
    return remember(key, lambda: _compile_plan(scratch, weights, lengths, sizes))


def _array(dtype: str, rank: int, *, writable: bool = True) -> Any:
    return types.Array(
        numba.from_dtype(np.dtype(dtype)), max(rank, 1), "C", readonly=not writable, aligned=True
    )


_OFFSETS = _array("int64", 1, writable=False)


def _argument(slot: Slot) -> Any:
    """Return the numba type of the array that holds all views of a slot."""
    if slot.role == "option":
        return numba.from_dtype(np.dtype(slot.dtype))
    extra = 1 if slot.role in ("each in", "each out") and slot.shape != ("scalar",) else 0
    extra += slot.role == "shared sum"
    return _array(slot.dtype, slot.rank + extra, writable=not slot.role.endswith(" in"))


def _seen(slot: Slot) -> Any:
    """Return the numba type of the view that a body gets."""
    if slot.rank == 0:
        return numba.from_dtype(np.dtype(slot.dtype))
    return _array(slot.dtype, slot.rank, writable=not slot.role.endswith(" in"))


def _view(slot: Slot, array: str) -> str:
    """Write how the view of sequence i is taken of the array that holds all."""
    if slot.role.startswith("step"):
        return f"{array}[o_{slot.length}[i]:o_{slot.length}[i + 1]]"
    if slot.role.startswith("each"):
        return f"{array}[i:i + 1]" if slot.shape == ("scalar",) else f"{array}[i]"
    return f"{array}[chunk]" if slot.role == "shared sum" else array


def _take(slot: Slot, at: str, room: str, *, poison: bool) -> list[str]:
    """Write how a scratch array is taken of a room from position ``at`` on."""
    size = " * ".join(f"({part})" for part in slot.shape)
    shape = ", ".join(slot.shape)
    view = f"{room}[{at}:{at} + size]"
    shaped = view if slot.rank == 1 else f"{view}.reshape(({shape}))"
    fill = [f"v_{slot.name}[...] = {_poison(slot.dtype)}"] if poison and poisoned else []
    return [
        f"size = {size}",
        f"v_{slot.name} = {shaped}",
        *fill,
        f"{at} += (size + {_LINE_ELEMENTS - 1}) // {_LINE_ELEMENTS} * {_LINE_ELEMENTS}",
    ]


def _poison(dtype: str) -> str:
    return "np.nan" if np.dtype(dtype).kind == "f" else "1"


def _lengths_source(lengths: Sequence[str]) -> list[str]:
    return [f"n_{n} = o_{n}[i + 1] - o_{n}[i]" for n in lengths]


def _compile_driver(
    body: Body,
    where: str,
    slots: Sequence[Slot],
    scratch: Sequence[Slot],
    lengths: Sequence[str],
    sizes: Sequence[str],
) -> Any:
    lines, args = driver_source(where, slots, scratch, lengths, sizes)
    seen = [_seen(slot) for slot in slots]
    return build(lines, body, where, seen, args, inlined=is_cooperative(slots))


def driver_source(
    where: str,
    slots: Sequence[Slot],
    scratch: Sequence[Slot],
    lengths: Sequence[str],
    sizes: Sequence[str],
    *,
    on_cuda: bool = False,
) -> tuple[list[str], list[Any]]:
    """Write a driver and the types of its arguments.

    On CUDA each thread has one chunk, or each block where the body is cooperative, and a room of
    its own in an array for work scratch, which comes before the size of the room.
    """
    saved, work = _scratch_groups(scratch, "saved"), _scratch_groups(scratch, "work")
    held = [slot for slot in slots if slot.is_passed]
    head = ["first", "last", "chunks", *(f"o_{n}" for n in lengths), "sizes"]
    args = [types.int64, types.int64, _array("int64", 1), *[_OFFSETS] * len(lengths)]
    args.append(_array("int64", 1))
    for group in saved:
        head += [f"saved_{group}", f"at_{group}"]
        args += [_array(group, 1), _array("int64", 1)]
    for group in work:
        head += [f"room_{group}"] if on_cuda else []
        args += [_array(group, 1)] if on_cuda else []
        head.append(f"need_{group}")
        args.append(types.int64)
    head += [f"a_{slot.name}" for slot in held]
    args += [_argument(slot) for slot in held]

    lines = [f"def drive({', '.join(head)}):"]
    lines += [f"    n_{name} = sizes[{k}]" for k, name in enumerate(sizes)]
    if on_cuda:
        lines += _cuda_places(cooperative=is_cooperative(slots))
        for group in work:
            room = f"room_{group}[place * need_{group}:(place + 1) * need_{group}]"
            lines.append(f"    work_{group} = {room}")
        lines += ["    if chunk < last:"]
        for slot in held:
            if slot.role == "shared sum":
                lines += [f"        {line}" for line in _empty(f"a_{slot.name}[chunk]")]
    else:
        lines += ["    v_lane, v_lanes = 0, 1"]
        lines += [f"    work_{group} = np.empty(need_{group}, np.{group})" for group in work]
        lines += ["    for chunk in range(first, last):"]
    lines += ["        for i in range(chunks[chunk], chunks[chunk + 1]):"]
    inner = _sequence_source(where, slots, scratch, lengths, on_cuda=on_cuda)
    lines += [f"            {line}" for line in inner]
    return lines, args


def _sequence_source(
    where: str,
    slots: Sequence[Slot],
    scratch: Sequence[Slot],
    lengths: Sequence[str],
    *,
    on_cuda: bool,
) -> list[str]:
    """Write what a driver does for sequence i: take its views, empty what is written, call."""
    saved, work = _scratch_groups(scratch, "saved"), _scratch_groups(scratch, "work")
    held = [slot for slot in slots if slot.is_passed]
    inner = _lengths_source(lengths)
    for slot in held:
        inner.append(f"v_{slot.name} = {_view(slot, f'a_{slot.name}')}")
        if slot.role.endswith("out") and on_cuda:
            inner += _empty(f"v_{slot.name}")
        elif slot.role.endswith("out"):
            inner.append(f"v_{slot.name}[...] = 0")
    used = {slot.name for slot in slots}
    for group in saved:
        inner.append(f"p = at_{group}[i]")
        for slot in scratch:
            if slot.role == "saved" and slot.dtype == group:
                fills = where.startswith("forward") and slot.name in used
                inner += _take(slot, "p", f"saved_{group}", poison=fills and not on_cuda)
    for group in work:
        inner.append("p = 0")
        for slot in scratch:
            if slot.role == "work" and slot.dtype == group and slot.name in used:
                inner += _take(slot, "p", f"work_{group}", poison=not on_cuda)
    if on_cuda and is_cooperative(slots):
        # All is 0, and nobody is at work on the sequence before, whose scratch this one takes.
        inner.append("cuda.syncthreads()")
    inner.append(f"body({', '.join(f'v_{slot.name}' for slot in slots)})")
    return inner


def is_cooperative(slots: Sequence[Slot]) -> bool:
    """Whether several lanes work on one sequence."""
    return any(slot.role == "lane" for slot in slots)


def _cuda_places(*, cooperative: bool) -> list[str]:
    """Write who works on which chunk, and as which lane."""
    if cooperative:
        where = ["place = cuda.blockIdx.x"]
        where += ["v_lane, v_lanes = np.int64(cuda.threadIdx.x), np.int64(cuda.blockDim.x)"]
    else:
        where = ["place = cuda.grid(1)", "v_lane, v_lanes = 0, 1"]
    return [f"    {line}" for line in (*where, "chunk = first + place")]


def _empty(view: str) -> list[str]:
    """Write how an array is filled with 0 on CUDA, which assigns only numbers."""
    return [
        f"flat = {view}.reshape({view}.size)",
        "for k in range(v_lane, flat.shape[0], v_lanes):",
        "    flat[k] = 0",
    ]


def _compile_plan(
    scratch: Sequence[Slot], weights: Sequence[str], lengths: Sequence[str], sizes: Sequence[str]
) -> Any:
    saved, work = _scratch_groups(scratch, "saved"), _scratch_groups(scratch, "work")
    head = ["count", *(f"o_{n}" for n in lengths), "sizes", "positions", "needs", "chunks"]
    lines = [f"def plan({', '.join(head)}):"]
    lines += [f"    n_{name} = sizes[{k}]" for k, name in enumerate(sizes)]
    lines += ["    total = 0", f"    positions[{len(saved)}, 0] = 0"]
    lines += [f"    saved_{g} = 0" for g in range(len(saved))]
    lines += [f"    needs[{g}] = 0" for g in range(len(work))]
    lines += ["    for i in range(count):"]
    inner = _lengths_source(lengths)
    inner.append(f"total += 64 + {' + '.join(weights) or '0'}")
    for g, group in enumerate(saved):
        inner.append(f"positions[{g}, i] = saved_{g}")
        for slot in scratch:
            if slot.role == "saved" and slot.dtype == group:
                inner += [_rounded(slot), f"saved_{g} += size", "total += size"]
    for g, group in enumerate(work):
        inner.append("need = 0")
        for slot in scratch:
            if slot.role == "work" and slot.dtype == group:
                inner += [_rounded(slot), "need += size", "total += size"]
        inner.append(f"needs[{g}] = needs[{g}] if needs[{g}] > need else need")
    inner.append(f"positions[{len(saved)}, i + 1] = total")
    lines += [f"        {line}" for line in inner]
    lines += [f"    positions[{g}, count] = saved_{g}" for g in range(len(saved))]
    lines += [
        f"    parts = total // {LEAST_CHUNK_WEIGHT}",
        "    most = chunks.shape[0] - 1",
        "    parts = 1 if parts < 1 else (most if parts > most else parts)",
        "    done = 0",
        "    chunks[0] = 0",
        "    for i in range(count):",
        f"        share = positions[{len(saved)}, i + 1] * parts",
        "        if share >= total * (done + 1) or i == count - 1:",
        "            done += 1",
        "            chunks[done] = i + 1",
        "    return done",
    ]
    vector, table = _array("int64", 1), _array("int64", 2)
    args = [types.int64, *[_OFFSETS] * len(lengths), vector, table, vector, vector]
    return compile_text(lines, "plan", {}, types.int64, args)


def _rounded(slot: Slot) -> str:
    size = " * ".join(f"({part})" for part in slot.shape)
    return f"size = ({size} + {_LINE_ELEMENTS - 1}) // {_LINE_ELEMENTS} * {_LINE_ELEMENTS}"


@kernel(nogil=True)
def first_outside(indices, below):  # type: ignore[no-untyped-def]
    """Return the first position of a number that is not in [0, below), or -1."""
    for k in range(indices.shape[0]):
        if indices[k] < 0 or indices[k] >= below:
            return k
    return -1


@driver("void(float64[:, ::1], int64)", nogil=True)
def sum_chunks(parts, count):  # type: ignore[no-untyped-def]
    """Add rows up in pairs, pairs of pairs and so on; the sum is left in row 0."""
    step = 1
    while step < count:
        for k in range(0, count - step, 2 * step):
            for j in range(parts.shape[1]):
                parts[k, j] += parts[k + step, j]
        step *= 2
