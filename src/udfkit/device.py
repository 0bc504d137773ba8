"""Where a batch lives: the CPU, or one CUDA GPU."""

from __future__ import annotations

from dataclasses import dataclass

from udfkit.errors import DeviceError

__all__ = ["DeviceDescriptor", "cpu", "gpu", "set_default_device", "use_default_device"]


@dataclass(frozen=True, slots=True)
class DeviceDescriptor:
    """A device by kind and index. Make one with `cpu` or `gpu`.

    Examples
    --------
    >>> import udfkit
    >>> udfkit.cpu()
    DeviceDescriptor.cpu()
    >>> str(udfkit.cpu())
    'CPU'
    """

    kind: str
    index: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "gpu"):
            raise ValueError(f"device kind {self.kind!r} is not known: use udfkit.cpu() or gpu(i)")

    @staticmethod
    def cpu() -> DeviceDescriptor:
        """Return the CPU device; the same as `udfkit.cpu`."""
        return cpu()

    @staticmethod
    def gpu(index: int = 0) -> DeviceDescriptor:
        """Return a CUDA device; the same as `udfkit.gpu`."""
        return gpu(index)

    @property
    def is_gpu(self) -> bool:
        """Whether this is a CUDA device."""
        return self.kind == "gpu"

    def __repr__(self) -> str:
        return f"DeviceDescriptor.{self.kind}({self.index if self.is_gpu else ''})"

    def __str__(self) -> str:
        return f"GPU[{self.index}]" if self.is_gpu else "CPU"


_CPU = DeviceDescriptor("cpu")
_default = _CPU


def cpu() -> DeviceDescriptor:
    """Return the CPU device."""
    return _CPU


def gpu(index: int = 0) -> DeviceDescriptor:
    """Return the CUDA device with this index.

    Raises
    ------
    ValueError
        If the index is not an integer from 0 on.
    DeviceError
        If the machine has no such device, or cannot use it; the text says what is missing.
    """
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(f"gpu({index!r}): expected the index of a device, 0 or more")
    from udfkit.kernels import cuda_target

    status = cuda_target.status()
    if not status.available:
        raise DeviceError(f"gpu({index}) was asked for, but {status.reason}. {status.advice}")
    if not 0 <= index < len(status.devices):
        raise DeviceError(
            f"gpu({index}) was asked for, but this machine has {len(status.devices)} CUDA "
            f"device(s): use an index from 0 to {len(status.devices) - 1}"
        )
    return DeviceDescriptor("gpu", int(index))


def set_default_device(device: DeviceDescriptor) -> None:
    """Make ``device`` the one that ``device=None`` means from now on, in this process."""
    global _default
    if not isinstance(device, DeviceDescriptor):
        raise TypeError(
            f"the default device must be a DeviceDescriptor, not {type(device).__name__}: "
            f"pass udfkit.cpu() or udfkit.gpu(i)"
        )
    _default = device


def use_default_device() -> DeviceDescriptor:
    """Return the device that ``device=None`` means now (the CPU unless it was set)."""
    return _default


def resolve(device: DeviceDescriptor | None) -> DeviceDescriptor:
    """Return ``device``, or the default one for None."""
    if device is None:
        return _default
    if not isinstance(device, DeviceDescriptor):
        raise TypeError(
            f"device must be a DeviceDescriptor or None, not {type(device).__name__} "
            f"({device!r}): pass udfkit.cpu() or udfkit.gpu(i)"
        )
    return device
