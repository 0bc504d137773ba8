"""Tests in this folder run on a device, on numba's simulator, or on real code in an interpreter.

``NUMBA_ENABLE_CUDASIM=1`` chooses the simulator; it has to be set before numba is imported, so
``tests/cuda/test_cuda_simulator.py`` runs this folder in a process of its own.
``UDFKIT_TEST_CUDA=toolkit`` chooses the PTX interpreter, ``UDFKIT_TEST_CUDA=device`` a device, and
makes it a failure that there is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
DEMANDED = os.environ.get("UDFKIT_TEST_CUDA") == "device"
INTERPRETED = os.environ.get("UDFKIT_TEST_CUDA") == "toolkit" and not SIMULATED
MOST_THREADS = 2_000


@pytest.fixture(scope="session")
def interpreted_device() -> Any:
    """The device that the interpreter stands for; keeps what was compiled."""
    from ptx_target import Device

    return Device()


@pytest.fixture(autouse=True)
def needs_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose what to run on; skip, or fail where a device was demanded, when there is nothing."""
    from udfkit.kernels import cuda_target

    if INTERPRETED:
        if not getattr(request.module, "RUNS_INTERPRETED", False):
            pytest.skip("compiles kernels of its own, which needs a device or the simulator")
        from ptx_target import install

        install(monkeypatch, request.getfixturevalue("interpreted_device"))
        return
    if DEMANDED and SIMULATED:
        pytest.fail("UDFKIT_TEST_CUDA=device, but NUMBA_ENABLE_CUDASIM=1 chose the simulator")
    found = cuda_target.status()
    if not found.available:
        reason = f"no CUDA device: {found.reason} (NUMBA_ENABLE_CUDASIM=1 runs the simulator)"
        if DEMANDED:
            pytest.fail(f"UDFKIT_TEST_CUDA=device, but {reason}")
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def tiny(needs_device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that a small batch has several, loops over rows and segments."""
    from udfkit.kernels import cuda_launch, cuda_target

    monkeypatch.setattr(cuda_launch, "BLOCK", 8)
    monkeypatch.setattr(cuda_launch, "FEWEST_LANES", 4)
    monkeypatch.setattr(cuda_launch, "SEGMENT", 16)
    monkeypatch.setattr(cuda_launch, "WAVES", 1)
    monkeypatch.setattr(cuda_target, "multiprocessors", lambda device: 1)


class Recorder:
    """What was launched: (kernel, width, wide, shape), in order."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, int, bool, Any]] = []

    @property
    def names(self) -> list[str]:
        return [launch[0] for launch in self.launches]

    @property
    def threads(self) -> int:
        shapes = [launch[3] for launch in self.launches]
        return sum(int(np.prod(shape.grid) * np.prod(shape.block)) for shape in shapes)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Record launches; in the simulator a thread costs 85 us, so a test may not start many."""
    from udfkit.kernels import cuda_target

    recorder = Recorder()
    kernel, launch = cuda_target.kernel, cuda_target.launch

    def named(name: str, width: int, is_wide: bool, device: int) -> Any:
        return (name, width, is_wide, kernel(name, width, is_wide, device))

    def recorded(compiled: Any, shape: Any, stream: Any, arguments: tuple[int, ...]) -> None:
        if not isinstance(compiled, tuple):
            function = getattr(compiled, "py_func", None) or compiled.fn
            compiled = (function.__name__, 0, False, compiled)
        name, width, is_wide, made = compiled
        recorder.launches.append((name, width, is_wide, shape))
        launch(made, shape, stream, arguments)

    monkeypatch.setattr(cuda_target, "kernel", named)
    monkeypatch.setattr(cuda_target, "launch", recorded)
    yield recorder
    assert not SIMULATED or recorder.threads <= MOST_THREADS
