"""CUDA's compiler without a device: PTX by numba and NVVM, machine code by ptxas and nvdisasm."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from udfkit.kernels.cuda_target import module as numba_cuda

DEMANDED = os.environ.get("UDFKIT_TEST_CUDA") == "toolkit"
WHY_NOT = "needs CUDA's compiler: run `make test-cuda-toolkit`, which sets UDFKIT_TEST_CUDA=toolkit"
CAPABILITIES = [(7, 5), (8, 0), (9, 0), (10, 0)]


@dataclass(frozen=True)
class Case:
    """One form of one kernel."""

    name: str
    width: int
    is_wide: bool

    def __str__(self) -> str:
        return f"{self.name}-{self.width}{'-wide' if self.is_wide else ''}"


def cases() -> list[Case]:
    """Every form of every kernel."""
    from udfkit.kernels import cuda as kernels
    from udfkit.kernels.cuda_access import WIDTHS

    return [
        Case(name, width, is_wide)
        for name, twin in {**kernels.TWINS, **kernels.HELPERS}.items()
        for width in (WIDTHS if twin.has_widths else (1,))
        for is_wide in ((False, True) if twin.has_variants else (False,))
    ]


def twin(case: Case) -> Any:
    """What makes the kernel of a case."""
    from udfkit.kernels import cuda as kernels

    return kernels.TWINS.get(case.name) or kernels.HELPERS[case.name]


@functools.cache
def ptx(case: Case, capability: tuple[int, int] = (9, 0)) -> str:
    """Compile to PTX, as a launch on such a device would."""
    from numba.core import types

    from udfkit.kernels import cuda as kernels

    cuda = numba_cuda()

    class Device:
        compute_capability = capability

    dispatcher = importlib.import_module("numba.cuda.dispatcher")
    made = twin(case).function(case.width, is_wide=case.is_wide)
    signature = types.void(*[types.int64] * len(kernels.parameters(made)))
    # Helper functions are compiled for the current device, and there is none.
    current = dispatcher.get_current_device
    dispatcher.get_current_device = Device
    try:
        text, _ = cuda.compile(
            made, signature, cc=capability, output="ptx", device=False, abi="numba"
        )
    finally:
        dispatcher.get_current_device = current
    return str(text)


@functools.cache
def tool(name: str) -> str | None:
    """Path of a tool, of the same release as NVVM where wheels brought it; None without it."""
    found = importlib.util.find_spec("nvidia")
    for place in (found.submodule_search_locations or []) if found else []:
        for path in sorted(Path(place).glob(f"*/bin/{name}")):
            return str(path)
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


@dataclass(frozen=True)
class Machine:
    """What ptxas says of a kernel, and its instructions where nvdisasm is there."""

    registers: int
    stack: int
    spills: int
    shared: int
    opcodes: tuple[str, ...] | None


@functools.cache
def machine(case: Case, capability: tuple[int, int] = (9, 0)) -> Machine:
    """Compile to machine code and read it back."""
    assembler, disassembler = tool("ptxas"), tool("nvdisasm")
    assert assembler is not None, "ptxas was not found: install nvidia-cuda-nvcc, or a CUDA toolkit"
    most = twin(case).most_registers(is_wide=case.is_wide)
    limit = [] if most is None else [f"-maxrregcount={most}"]
    architecture = f"sm_{capability[0]}{capability[1]}"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx(case, capability))
        done = subprocess.run(
            [assembler, "-v", f"-arch={architecture}", *limit, "-o", str(binary), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        listing = None
        if disassembler is not None:
            listing = subprocess.run(
                [disassembler, "-c", str(binary)], capture_output=True, text=True, check=True
            ).stdout
    numbers = re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr
    )
    registers = re.search(r"Used (\d+) registers", done.stderr)
    shared = re.search(r"(\d+) bytes smem", done.stderr)
    assert numbers is not None, done.stderr
    assert registers is not None, done.stderr
    return Machine(
        int(registers[1]),
        int(numbers[1]),
        int(numbers[2]) + int(numbers[3]),
        int(shared[1]) if shared else 0,
        None if listing is None else _opcodes(listing),
    )


def _opcodes(listing: str) -> tuple[str, ...]:
    found = re.findall(
        r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", listing, re.MULTILINE
    )
    assert found, "the listing of nvdisasm cannot be read"
    return tuple(found)
