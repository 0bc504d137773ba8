"""Runs the PTX of this library's kernels on the CPU: all threads of a launch at once, in NumPy.

What a device would do silently is an error here: a misaligned access, one outside a buffer, a
write to an input, two threads that touch the same byte without a barrier between them, a barrier
that not all threads of a block meet at the same place, a register read before it is written, and
any instruction that the interpreter does not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ptx_memory import NOBODY, SECTOR, Buffer, Fault, Memory, Shared, Statistics

WARP = 32
_MASKS = {bits: np.uint64(2**bits - 1) for bits in (8, 16, 32, 64)}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


@dataclass(frozen=True)
class Instruction:
    """One statement: ``@predicate op.parts operands``."""

    predicate: str | None
    negated: bool
    op: tuple[str, ...]
    operands: tuple[str, ...]
    text: str


@dataclass
class Program:
    """An entry function, ready to run."""

    parameters: list[str]
    code: list[Instruction]
    labels: dict[str, int]
    shared: dict[str, int]
    shared_bytes: int


def parse(ptx: str) -> Program:
    """Read the one entry function of a PTX text."""
    ptx = re.sub(r"//[^\n]*", "", ptx)
    shared: dict[str, int] = {}
    size = 0
    for align, unit, name, count in re.findall(
        r"\.shared\s+\.align\s+(\d+)\s+\.b(\d+)\s+([\w$]+)\[(\d+)\]", ptx
    ):
        size = -(-size // int(align)) * int(align)
        shared[name] = size
        size += int(count) * int(unit) // 8
    head, body = ptx[ptx.index(".entry") :].split("{", 1)
    parameters = re.findall(r"\.param\s+\.\w+\s+(\w+)", head)
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for statement in re.split(r";|(?<=:)\s", body[: body.rindex("}")]):
        text = " ".join(statement.split())
        while (label := re.match(r"(\$\w+):\s*(.*)", text)) is not None:
            labels[label[1]] = len(code)
            text = label[2]
        if not text or text.startswith("."):
            continue
        matched = re.match(r"(?:@(!?)(%p\d+) )?([\w.:]+)\s*(.*)", text)
        if matched is None:
            raise Fault(f"cannot read: {text}")
        negated, predicate, op, rest = matched.groups()
        operands = tuple(re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest))
        code.append(Instruction(predicate, negated == "!", tuple(op.split(".")), operands, text))
    return Program(parameters, code, labels, shared, size)


def run(
    ptx: str | Program,
    grid: tuple[int, int],
    block: tuple[int, int],
    arguments: list[int],
    memory: Memory,
    blocks: list[tuple[int, int]] | None = None,
) -> Statistics:
    """Run a launch, or only some of its blocks, and return what it did.

    Raises
    ------
    Fault
        For anything that the module text names.
    """
    program = parse(ptx) if isinstance(ptx, str) else ptx
    if len(program.parameters) != len(arguments):
        raise Fault(f"{len(arguments)} arguments for {len(program.parameters)} parameters")
    if blocks is None:
        blocks = [(x, y) for y in range(grid[1]) for x in range(grid[0])]
    return _Launch(program, grid, block, arguments, memory, blocks).run()


class _Launch:
    def __init__(
        self,
        program: Program,
        grid: tuple[int, int],
        block: tuple[int, int],
        arguments: list[int],
        memory: Memory,
        blocks: list[tuple[int, int]],
    ) -> None:
        self.program, self.memory, self.statistics = program, memory, Statistics()
        self.values = {
            name: np.uint64(value % 2**64)
            for name, value in zip(program.parameters, arguments, strict=True)
        }
        threads = block[0] * block[1]
        self.count = threads * len(blocks)
        everyone = np.arange(self.count)
        self.block_of = everyone // threads
        inside = everyone % threads
        self.warp_of = self.block_of * -(-threads // WARP) + inside // WARP
        at = np.array(blocks, np.int64).reshape(-1, 2)[self.block_of]
        constants = {"%ntid.x": block[0], "%ntid.y": block[1]}
        constants |= {"%nctaid.x": grid[0], "%nctaid.y": grid[1]}
        special = {name: np.full(self.count, value) for name, value in constants.items()}
        special |= {"%tid.x": inside % block[0], "%tid.y": inside // block[0]}
        special |= {"%ctaid.x": at[:, 0], "%ctaid.y": at[:, 1]}
        self.registers = {name: value.astype(np.uint64) for name, value in special.items()}
        self.known = {name: np.ones(self.count, bool) for name in special}
        self.pc = np.zeros(self.count, np.int64)
        self.waiting = np.zeros(self.count, bool)
        self.epoch = np.zeros(len(blocks), np.int64)
        self.end = len(program.code)
        self.shared = Shared(len(blocks), program.shared_bytes)

    def run(self) -> Statistics:
        with np.errstate(over="ignore"):
            while True:
                runnable = ~self.waiting & (self.pc < self.end)
                if not runnable.any():
                    if not self.waiting.any():
                        return self.statistics
                    self._open_barriers()
                    continue
                # The thread that is furthest behind goes first: threads that parted meet again.
                at = int(self.pc[runnable].min())
                self._step(self.program.code[at], np.flatnonzero(runnable & (self.pc == at)))

    def _open_barriers(self) -> None:
        for block in np.unique(self.block_of[self.waiting]):
            mine = (self.block_of == block) & (self.pc < self.end)
            if not self.waiting[mine].all() or np.unique(self.pc[mine]).size != 1:
                raise Fault(f"threads of block {block} wait at different barriers")
            if (self.block_of[self.pc >= self.end] == block).any():
                raise Fault(f"threads of block {block} ended before a barrier")
            self.waiting[mine] = False
            self.epoch[block] += 1

    def _step(self, instruction: Instruction, who: Any) -> None:
        self.statistics.steps += 1
        self.pc[who] += 1
        if instruction.predicate is not None:
            holds = self._predicate(instruction.predicate, who)
            who = who[~holds if instruction.negated else holds]
            if who.size == 0:
                return
        kind = instruction.op[0]
        handler = getattr(self, f"_{kind}", None)
        if handler is not None:
            handler(instruction, who)
        elif kind in _ARITHMETIC:
            self._arithmetic(instruction, who)
        else:
            raise Fault(f"unknown instruction: {instruction.text}")

    # Registers hold 64 bits; an instruction's type says how many of them it means.

    def _raw(self, name: str, who: Any) -> Any:
        if name.startswith("%"):
            if name not in self.known or not self.known[name][who].all():
                raise Fault(f"register {name} is read before it is written")
            return self.registers[name][who]
        if name in self.program.shared:
            return np.full(who.size, np.uint64(self.program.shared[name]))
        return np.full(who.size, np.uint64(int(name, 0) % 2**64))

    def _get(self, name: str, kind: str, who: Any) -> Any:
        bits = int(kind[1:])
        raw = self._raw(name, who) & _MASKS[bits]
        return raw.astype(f"{'i' if kind[0] == 's' else 'u'}{bits // 8}")

    def _put(self, name: str, value: Any, who: Any) -> None:
        if name not in self.registers:
            self.registers[name] = np.zeros(self.count, np.uint64)
            self.known[name] = np.zeros(self.count, bool)
        unsigned = value.astype(f"u{value.dtype.itemsize}") if value.dtype != bool else value
        self.registers[name][who] = unsigned.astype(np.uint64)
        self.known[name][who] = True

    def _predicate(self, name: str, who: Any) -> Any:
        return self._raw(name, who) != 0

    # Control

    def _bra(self, instruction: Instruction, who: Any) -> None:
        self.pc[who] = self.program.labels[instruction.operands[0]]

    def _ret(self, _: Instruction, who: Any) -> None:
        self.pc[who] = self.end

    _exit = _ret

    def _bar(self, _: Instruction, who: Any) -> None:
        self.waiting[who] = True

    # Moves, comparisons, conversions

    def _mov(self, instruction: Instruction, who: Any) -> None:
        target, source = instruction.operands
        if instruction.op[-1] == "pred":
            self._put(target, self._predicate(source, who), who)
        else:
            self._put(target, self._get(source, instruction.op[-1], who), who)

    def _cvt(self, instruction: Instruction, who: Any) -> None:
        to, of = instruction.op[-2:]
        value = self._get(instruction.operands[1], of, who)
        kind = f"{'i' if to[0] == 's' else 'u'}{int(to[1:]) // 8}"
        self._put(instruction.operands[0], value.astype(kind), who)

    def _setp(self, instruction: Instruction, who: Any) -> None:
        target, a, b = instruction.operands
        kind = instruction.op[2]
        if len(instruction.op) != 3:
            raise Fault(f"unknown instruction: {instruction.text}")
        answer = _COMPARE[instruction.op[1]](self._get(a, kind, who), self._get(b, kind, who))
        self._put(target, answer, who)

    def _selp(self, instruction: Instruction, who: Any) -> None:
        target, a, b, predicate = instruction.operands
        kind = instruction.op[-1]
        chosen = self._predicate(predicate, who)
        self._put(target, np.where(chosen, self._get(a, kind, who), self._get(b, kind, who)), who)

    def _bfi(self, instruction: Instruction, who: Any) -> None:
        target, a, b, first, count = instruction.operands
        kind = instruction.op[-1]
        field_mask = np.uint64(((1 << int(count)) - 1) << int(first))
        inserted = (self._raw(a, who) << np.uint64(int(first))) & field_mask
        value = (self._raw(b, who) & ~field_mask) | inserted
        self._put(target, (value & _MASKS[int(kind[1:])]), who)

    def _arithmetic(self, instruction: Instruction, who: Any) -> None:
        name, kind = instruction.op[0], instruction.op[-1]
        target, *sources = instruction.operands
        if kind == "pred":
            values = [self._predicate(source, who) for source in sources]
            self._put(target, _ARITHMETIC[name](*values), who)
            return
        if name in ("shl", "shr"):
            value = self._get(sources[0], kind, who)
            distance = self._get(sources[1], "u32", who)
            self._put(target, _shift(name, value, distance, kind), who)
            return
        values = [self._get(source, kind, who) for source in sources]
        if "wide" in instruction.op:
            double = f"{values[0].dtype.kind}{2 * values[0].dtype.itemsize}"
            values[:2] = [value.astype(double) for value in values[:2]]
            if len(sources) == 3:
                values[2] = self._get(sources[2], f"{kind[0]}{2 * int(kind[1:])}", who)
        elif name in ("mul", "mad") and "lo" not in instruction.op:
            raise Fault(f"unknown instruction: {instruction.text}")
        self._put(target, _ARITHMETIC[name](*values), who)

    # Memory

    def _ld(self, instruction: Instruction, who: Any) -> None:
        target, source = instruction.operands
        if instruction.op[1] == "param":
            self._put(target, np.full(who.size, self.values[source.strip("[]")]), who)
            return
        addresses, kind, count = self._access(instruction, source, who)
        width = int(kind[1:]) // 8 * count
        if instruction.op[1] == "shared":
            data = self.shared.read(addresses, width, who, self.block_of[who], self.epoch)
        else:
            data = self._read_global(addresses, width, who)
        parts = data.view(f"{'i' if kind[0] == 's' else 'u'}{width // count}")
        for part, name in zip(parts.T, re.findall(r"%\w+", target), strict=True):
            # A narrow load fills a wider register, with the sign where it has one.
            self._put(name, part.astype(np.int64 if kind[0] == "s" else np.uint64), who)

    def _st(self, instruction: Instruction, who: Any) -> None:
        target, source = instruction.operands
        addresses, kind, count = self._access(instruction, target, who)
        names = source.strip("{}").replace(" ", "").split(",")
        parts = [self._get(name, f"u{kind[1:]}", who) for name in names]
        data = np.stack(parts, 1).view(np.uint8)
        if len(names) != count:
            raise Fault(f"cannot read: {instruction.text}")
        if instruction.op[1] == "shared":
            self.shared.write(addresses, data, who, self.block_of[who], self.epoch)
        else:
            self._write_global(addresses, data, who)

    def _access(self, instruction: Instruction, operand: str, who: Any) -> tuple[Any, str, int]:
        if instruction.op[1] not in ("global", "shared"):
            raise Fault(f"unknown address space: {instruction.text}")
        matched = re.match(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]", operand)
        if matched is None:
            raise Fault(f"cannot read: {instruction.text}")
        addresses = self._raw(matched[1], who).astype(np.int64) + int(matched[2] or 0)
        vectors = [int(part[1:]) for part in instruction.op if part in ("v2", "v4")]
        return addresses, instruction.op[-1], vectors[0] if vectors else 1

    def _count_access(self, kind: str, addresses: Any, width: int, where: Any, who: Any) -> None:
        self.statistics.requests[kind, width] += int(np.unique(self.warp_of[who]).size)
        for buffer in np.unique(where):
            mine = where == buffer
            pairs = self.warp_of[who][mine] * 2**45 + addresses[mine] // SECTOR
            key = kind, int(buffer)
            self.statistics.sectors[key] += int(np.unique(pairs).size)
            self.statistics.moved[key] += width * int(mine.sum())

    def _check_order(self, buffer: Buffer, at: Any, who: Any, what: str) -> None:
        # A byte that another thread wrote may be touched only by its own block after a barrier.
        writer = buffer.writer[at]
        foreign = (writer != NOBODY) & (writer != who[:, None])
        blocks = self.block_of[who][:, None]
        ordered = (self.block_of[writer] == blocks) & (buffer.epoch[at] < self.epoch[blocks])
        if (foreign & ~ordered).any():
            raise Fault(f"{what} of a byte that another thread wrote, without a barrier between")

    def _read_global(self, addresses: Any, width: int, who: Any) -> Any:
        where = self.memory.find(addresses, width, "load")
        self._count_access("load", addresses, width, where, who)
        out = np.empty((who.size, width), np.uint8)
        for k in np.unique(where):
            buffer, mine = self.memory.buffers[k], where == k
            at = (addresses[mine] - buffer.base)[:, None] + np.arange(width)
            self._check_order(buffer, at, who[mine], "load")
            out[mine] = buffer.data[at]
        return out

    def _write_global(self, addresses: Any, data: Any, who: Any) -> None:
        width = data.shape[1]
        where = self.memory.find(addresses, width, "store")
        self._count_access("store", addresses, width, where, who)
        if np.unique(addresses).size != addresses.size:
            raise Fault("two threads store to the same address at once")
        for k in np.unique(where):
            buffer, mine = self.memory.buffers[k], where == k
            if not buffer.writable:
                raise Fault(f"store into an input at {hex(addresses[mine][0])}")
            at = (addresses[mine] - buffer.base)[:, None] + np.arange(width)
            self._check_order(buffer, at, who[mine], "store")
            buffer.data[at] = data[mine]
            buffer.writer[at] = who[mine][:, None]
            buffer.epoch[at] = self.epoch[self.block_of[who[mine]]][:, None]


def _shift(name: str, value: Any, distance: Any, kind: str) -> Any:
    bits = int(kind[1:])
    inside = np.minimum(distance, bits - 1).astype(value.dtype)
    if name == "shl":
        return np.where(distance < bits, value << inside, value.dtype.type(0))
    shifted = value >> inside
    return shifted if kind[0] == "s" else np.where(distance < bits, shifted, value.dtype.type(0))


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "min": np.minimum,
    "max": np.maximum,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "neg": lambda a: -a,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
}
