"""Every kernel and width becomes machine code of the intended kind, without a device.

Nothing here is a measurement: what is asserted is what a compiler's output shows.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import toolchain
from toolchain import CAPABILITIES, Case

pytestmark = pytest.mark.skipif(not toolchain.DEMANDED, reason=toolchain.WHY_NOT)

SUFFIX = {16: ".128", 8: ".64", 4: "", 2: ".U16", 1: ".U8"}

# Accesses besides the payload: offsets, lengths and pointers are 64-bit, starts and masks bytes.
# rows_to_ragged compares 32 bits of two offsets, so that the compiler reads half of one.
META_LOADS = {
    "rows_to_padded": {".64", ".U8"},
    "rows_to_ragged": {".64", ""},
    "ragged_to_padded": {".64", ".U8"},
    "padded_to_ragged": {".64", ""},
    "ragged_to_cells": {".64", ".U8"},
    "cells_to_ragged": {".64", ".U8"},
    "mask_from_lengths": {".64", ".U8"},
    "one_hot_to_dense": {".64"},
}
META_STORES = {"rows_to_padded": {".U8"}, "ragged_to_padded": {".U8"}}
READS_NO_PAYLOAD = {"mask_from_lengths", "one_hot_to_dense"}

# (kernel, is_wide) -> registers, where they are more than 32, and why.
REASONS = {
    ("rows_to_padded", True): (48, "64-bit positions: rows over 4 GB"),
    ("ragged_to_padded", True): (48, "64-bit positions: rows over 4 GB"),
    ("rows_to_ragged", True): (40, "64-bit positions: rows over 4 GB"),
    ("padded_to_ragged", True): (40, "64-bit positions: rows over 4 GB"),
    ("ragged_to_cells", False): (56, "a running sum beside two moving addresses; gaps in a mask"),
    ("cells_to_ragged", False): (56, "a running sum beside two moving addresses; gaps in a mask"),
    ("lengths_from_mask", False): (40, "two running sums; one byte a cell is read, nothing moved"),
    ("offsets_from_lengths", False): (40, "four lengths a thread in flight; a few blocks at most"),
}

CASES = toolchain.cases() if toolchain.DEMANDED else []


def accesses(machine: toolchain.Machine, kind: str) -> set[str]:
    """Width suffixes of the accesses to global memory, such as ``.128``."""
    if machine.opcodes is None:
        pytest.skip("nvdisasm was not found: install nvidia-cuda-nvdisasm")
    found = set()
    for opcode in machine.opcodes:
        if opcode.split(".")[0] == kind:
            parts = [part for part in opcode.split(".")[1:] if re.fullmatch(r"\d+|[US]\d+", part)]
            found.add(f".{parts[0]}" if parts else "")
    return found


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda c: f"{c[0]}.{c[1]}")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_machine_code(case: Case, capability: tuple[int, int]) -> None:
    # All that is asked of one kernel in one test: workers that run tests share no compiled code.
    machine = toolchain.machine(case, capability)
    assert machine.stack == 0, "a stack frame"
    assert machine.spills == 0, "spilled registers"
    most, _ = REASONS.get((case.name, case.is_wide), (32, ""))
    assert machine.registers <= most
    assert machine.shared <= 4096
    text = toolchain.ptx(case, capability)
    assert not re.search(r"\b(call|div|rem|atom|red)\b", text), "a call, a division or an atomic"
    assert ".local" not in text
    if machine.opcodes is not None:
        kinds = {opcode.split(".")[0] for opcode in machine.opcodes}
        assert not kinds & {"CALL", "LDL", "STL", "LD", "ST", "ATOM", "ATOMG", "RED"}
    if case.name in META_LOADS:
        check_that_payload_moves_at_full_width(case, machine)


def check_that_payload_moves_at_full_width(case: Case, machine: toolchain.Machine) -> None:
    payload = SUFFIX[case.width]
    loads, stores = accesses(machine, "LDG"), accesses(machine, "STG")
    assert payload in stores
    assert stores - {payload} <= META_STORES.get(case.name, set())
    if case.name not in READS_NO_PAYLOAD:
        assert payload in loads
    assert loads - {payload} <= META_LOADS[case.name]


def test_a_narrow_kernel_would_be_noticed() -> None:
    # The twin of the check above: the same question about a kernel of another width says no.
    machine = toolchain.machine(Case("padded_to_ragged", 4, False))
    assert SUFFIX[16] not in accesses(machine, "STG")
    assert toolchain.ptx(Case("padded_to_ragged", 16, False)).count("ld.global.v4.u32") == 3


@pytest.mark.parametrize("name", ["rows_to_padded", "ragged_to_padded", "rows_to_ragged"])
@pytest.mark.parametrize("width", [16, 8, 4])
def test_loads_are_issued_before_the_first_store(name: str, width: int) -> None:
    from udfkit.kernels.cuda_launch import loads_in_flight

    machine = toolchain.machine(Case(name, width, False))
    if machine.opcodes is None:
        pytest.skip("nvdisasm was not found: install nvidia-cuda-nvdisasm")
    suffix = SUFFIX[width]
    order = "".join(
        opcode[0] for opcode in machine.opcodes if opcode in (f"LDG.E{suffix}", f"STG.E{suffix}")
    )
    count = loads_in_flight(width)
    assert "L" * count + "S" * count in order


def test_row_stack_is_no_longer_needed() -> None:
    # When this fails, numba-cuda compiles on NumPy 2.5 by itself: drop _import_with_row_stack.
    import numba

    module: Any = pytest.importorskip("numba_cuda")
    from pathlib import Path

    folder = Path(module.__file__).parent / "numba" / "cuda" / "np"
    assert "overload(np.row_stack)" in (folder / "arrayobj.py").read_text(), numba.__version__


def test_kernels_compile_where_numpy_lacks_row_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import numpy as np

    from udfkit.kernels import cuda_target

    monkeypatch.delattr(np, "row_stack", raising=False)
    for name in [name for name in sys.modules if name.endswith("cuda.np.arrayobj")]:
        monkeypatch.delitem(sys.modules, name)
    assert cuda_target.needs_row_stack()
    cuda_target.module.cache_clear()
    cuda_target.module()
    assert cuda_target.needs_row_stack()
    assert toolchain.ptx(Case("mask_from_lengths", 2, False), (8, 6))
