"""The CUDA target: whether it can be used, and what is missing.

With ``kernels/cuda.py`` the only module that imports ``numba.cuda``, and it does so inside
functions: a machine without CUDA never pays for the import.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import numpy as np

from udfkit.errors import DeviceError
from udfkit.kernels.cuda_launch import Shape

__all__ = [
    "CudaStatus",
    "current_device",
    "is_simulated",
    "kernel",
    "launch",
    "module",
    "multiprocessors",
    "needs_row_stack",
    "on_device",
    "status",
]

OLDEST_NUMBA_CUDA = (0, 30)

_INSTALL_13 = 'pip install "udfkit-kernels[cuda13]"'
_INSTALL_12 = 'pip install "udfkit-kernels[cuda12]"'
_EITHER = (
    f"run {_INSTALL_13} where nvidia-smi shows CUDA 13 or newer, and {_INSTALL_12} where it shows "
    f"CUDA 12"
)


@dataclass(frozen=True, slots=True)
class CudaStatus:
    """Whether CUDA kernels can run in this process.

    Attributes
    ----------
    available
        Whether `devices` can be used.
    devices
        One line a device that can be used, in the order of ``gpu(i)``.
    reason
        Why nothing can be used, as a clause without a full stop; empty when something can.
    advice
        What to do about it, as sentences; empty when nothing needs to be done.
    """

    available: bool
    devices: tuple[str, ...] = ()
    reason: str = ""
    advice: str = ""


@functools.cache
def status() -> CudaStatus:
    """Find the CUDA devices once for each process; never raises.

    The first call imports ``numba.cuda`` and initializes the CUDA driver if there is one; no
    context is made on a device.

    Examples
    --------
    >>> from udfkit.kernels.cuda_target import status
    >>> found = status()
    >>> found.available == bool(found.devices)
    True
    >>> found.available or bool(found.reason and found.advice)
    True
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from numba import cuda
        except Exception as error:  # noqa: BLE001 - a half-installed CUDA raises anything
            return CudaStatus(
                available=False,
                reason=f"numba.cuda cannot be imported ({_first_line(error)})",
                advice=f"To repair it, {_EITHER}.",
            )
        return _probe(cuda)


def _probe(cuda: Any) -> CudaStatus:
    """Ask an imported ``numba.cuda`` for its devices, its compiler and its version."""
    simulated = _simulated(cuda)
    try:
        found = list(cuda.gpus)
        devices = tuple(_describe(device, simulated=simulated) for device in found)
    except Exception as error:  # noqa: BLE001 - each release has exception classes of its own
        return _driver_problem(error)
    if simulated:
        return CudaStatus(available=True, devices=devices)
    if not devices:
        return _no_device()

    install = _install_for_driver(cuda)
    if not _has_numba_cuda():
        return CudaStatus(
            available=False,
            reason=f"{len(devices)} CUDA device(s) found ({'; '.join(devices)}), but numba-cuda is "
            f"not installed",
            advice=f"Run {install}.",
        )
    try:
        _compile_something(cuda, found[0].compute_capability)
    except Exception as error:  # noqa: BLE001 - each missing library has an exception of its own
        return CudaStatus(
            available=False,
            reason=f"{len(devices)} CUDA device(s) found ({'; '.join(devices)}), but no CUDA "
            f"toolkit that compiles for them ({_first_line(error)})",
            advice=f"Run {install}, which brings the toolkit's compiler with it, or set CUDA_HOME "
            f"to the folder of an installed CUDA toolkit.",
        )
    return CudaStatus(available=True, devices=devices)


def _driver_problem(error: Exception) -> CudaStatus:
    """Tell apart: no device for a driver, CUDA switched off, no driver, a driver that fails."""
    text = str(error)
    if "NO_DEVICE" in text or "(100)" in text:
        return _no_device()
    if "NUMBA_DISABLE_CUDA" in text:
        return CudaStatus(
            available=False,
            reason="CUDA is switched off by NUMBA_DISABLE_CUDA",
            advice="Unset NUMBA_DISABLE_CUDA to use a GPU.",
        )
    if "cannot be found" in text:
        return CudaStatus(
            available=False,
            reason="no NVIDIA driver was found on this machine"
            + ("" if _has_numba_cuda() else ", and numba-cuda is not installed"),
            advice="Without an NVIDIA GPU nothing is missing: everything works on the CPU. With "
            "one, install NVIDIA's driver until nvidia-smi lists the GPU"
            + ("." if _has_numba_cuda() else f"; then {_EITHER}."),
        )
    return CudaStatus(
        available=False,
        reason=f"the NVIDIA driver cannot be used ({_first_line(error)})",
        advice="Check that nvidia-smi works for this user; after an update of the driver, restart "
        "the machine.",
    )


def _no_device() -> CudaStatus:
    return CudaStatus(
        available=False,
        reason="an NVIDIA driver is installed, but shows this process no device",
        advice="Check CUDA_VISIBLE_DEVICES and what nvidia-smi lists; give a container access to "
        "the GPU.",
    )


def _describe(device: Any, *, simulated: bool) -> str:
    if simulated:
        return "CUDA simulator of numba (NUMBA_ENABLE_CUDASIM), no hardware"
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    return f"{name}, compute capability {'.'.join(map(str, device.compute_capability))}"


def _simulated(cuda: Any) -> bool:
    return ".simulator." in type(cuda.gpus).__module__


def _install_for_driver(cuda: Any) -> str:
    """Return the command for the newest CUDA that the driver can run."""
    try:
        major = cuda.cudadrv.driver.driver.get_version()[0]
    except Exception:  # noqa: BLE001 - only a better advice depends on it
        return f"{_INSTALL_13} or, where nvidia-smi shows CUDA 12, {_INSTALL_12}"
    return _INSTALL_13 if major >= 13 else _INSTALL_12


def _has_numba_cuda() -> bool:
    try:
        metadata.version("numba-cuda")
    except metadata.PackageNotFoundError:
        return False
    return True


def _compile_something(cuda: Any, compute_capability: tuple[int, int]) -> None:
    """Compile an empty kernel to PTX: the one test that every part of a toolkit must pass."""

    def empty() -> None:
        return None

    compile_function: Callable[..., Any] = cuda.compile
    compile_function(empty, (), cc=compute_capability, output="ptx", device=False, abi="numba")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join([type(error).__name__ + ":", *lines[:2]])


@functools.cache
def module() -> Any:
    """Import and return ``numba.cuda``, fit for use.

    Raises
    ------
    DeviceError
        If it cannot be imported, or numba-cuda is older than what this library was tried with.
    """
    try:
        found = metadata.version("numba-cuda")
    except metadata.PackageNotFoundError:
        found = ""
    if found and _numbers(found) < OLDEST_NUMBA_CUDA:
        raise DeviceError(
            f"numba-cuda {found} is installed, but kernels need "
            f"{'.'.join(map(str, OLDEST_NUMBA_CUDA))} or newer: {_EITHER}"
        )
    try:
        cuda = import_module("numba.cuda")
        if found and not _simulated(cuda):
            _import_with_row_stack("numba.cuda.np.arrayobj")
    except Exception as error:
        raise DeviceError(
            f"numba.cuda cannot be imported ({_first_line(error)}): {_EITHER}"
        ) from error
    return cuda


def needs_row_stack() -> bool:
    """Whether this NumPy lacks ``row_stack``, for which numba-cuda 0.30 asks when it compiles."""
    return "row_stack" not in vars(np)


def _import_with_row_stack(name: str) -> None:
    if not needs_row_stack():
        import_module(name)
        return
    np.row_stack = np.vstack
    try:
        import_module(name)
    finally:
        del np.row_stack


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


@functools.cache
def multiprocessors(device: int) -> int:
    """Return the number of multiprocessors of a device; that of a large one in the simulator."""
    return int(getattr(module().gpus[device], "MULTIPROCESSOR_COUNT", 132))


def current_device() -> int:
    """Return the index of the device that allocations and launches of this thread go to."""
    return 0 if is_simulated() else int(module().get_current_device().id)


def check_index(device: int, where: str) -> None:
    """Raise DeviceError for an array that says it is on a device that this process has not."""
    count = len(status().devices)
    if not 0 <= device < count:
        raise DeviceError(
            f"{where}: the array says that it is on GPU[{device}], but this process sees {count} "
            f"CUDA device(s): pass an array on one of those, or copy it to the host first"
        )


def on_device(device: int) -> Any:
    """Return the context manager inside which ``device`` is the current one."""
    return module().gpus[device]


@functools.cache
def kernel(name: str, width: int, is_wide: bool, device: int) -> Any:
    """Return a kernel of the registry, compiled at its first launch on ``device``.

    Raises
    ------
    KeyError
        If neither the registry nor its helpers have such a kernel.
    """
    cuda = module()
    twins = import_module("udfkit.kernels.cuda")
    twin = twins.TWINS.get(name) or twins.HELPERS[name]
    most = twin.most_registers(is_wide=is_wide)
    options = {} if most is None or is_simulated() else {"max_registers": most}
    return cuda.jit(twin.function(width, is_wide=is_wide), **options)


@functools.lru_cache(maxsize=512)
def _configured(compiled: Any, shape: Shape, stream: Any) -> Any:
    """Keep what numba makes of grid, block and stream: making it costs more than a launch."""
    launcher = compiled[(128, 1, 1), (*shape.block, 1), stream]
    if "griddim" not in getattr(launcher, "__dict__", {}):
        return compiled[(*shape.grid, 1), (*shape.block, 1), stream]
    # numba warns of grids under 128 blocks when it makes a launcher, and small batches are normal.
    own = object.__new__(type(launcher))
    own.__dict__.update(launcher.__dict__)
    own.griddim = (*shape.grid, 1)
    return own


def launch(compiled: Any, shape: Shape, stream: Any, arguments: tuple[int, ...]) -> None:
    """Launch a kernel on the current device, or do nothing where there is nothing to do."""
    if shape.is_empty:
        return
    if is_simulated():
        # The simulator's kernels keep their launch shape in themselves, so none can be kept here.
        compiled[(*shape.grid, 1), (*shape.block, 1)](*arguments)
    else:
        _configured(compiled, shape, stream)(*arguments)


@functools.cache
def is_simulated() -> bool:
    """Whether ``numba.cuda`` is the simulator."""
    return _simulated(module())
