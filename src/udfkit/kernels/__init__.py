"""The registry of kernels: names and where their twins are; nothing is imported here.

A kernel moves whole samples as bytes, so one compiled form serves every dtype and sample shape.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["KERNELS", "cpu_kernel", "lazy"]

KERNELS: dict[str, str] = {
    "rows_to_padded": "arrays at addresses -> padded data",
    "rows_to_ragged": "arrays at addresses -> flat values",
    "ragged_to_padded": "flat values -> padded data, one sequence a row",
    "padded_to_ragged": "padded data, one sequence a row -> flat values",
    "ragged_to_cells": "flat values -> the valid cells of a general mask",
    "cells_to_ragged": "the valid cells of a general mask -> flat values",
    "mask_from_lengths": "lengths and starts -> mask",
    "scan_mask": "mask of contiguous rows -> lengths and starts; says when it is none",
    "lengths_from_mask": "general mask -> lengths and starts",
    "offsets_from_lengths": "lengths -> offsets, first bad length",
    "one_hot_to_dense": "class indices -> dense samples",
    "csr_to_dense": "CSR rows -> dense samples",
}
"""Kernel name -> what it does. The CPU twin is ``udfkit.kernels.cpu.<name>``."""


def cpu_kernel(name: str) -> Any:
    """Return the CPU twin of a kernel; the first call imports Numba.

    Raises
    ------
    KeyError
        If the registry has no such kernel.
    """
    if name not in KERNELS:
        raise KeyError(f"no kernel is called {name!r}: the registry has {sorted(KERNELS)}")
    return getattr(import_module("udfkit.kernels.cpu"), name)


class _Lazy:
    def __init__(self, module: str, namespace: dict[str, Any], name: str):
        self._import = module, namespace, name

    def __getattr__(self, attribute: str) -> Any:
        module, namespace, name = self._import
        namespace[name] = import_module(module)
        return getattr(namespace[name], attribute)


def lazy(name: str, namespace: dict[str, Any]) -> Any:
    """Stand for the kernel module ``name`` until its first use, which imports it and Numba.

    Parameters
    ----------
    name : str
        Also the name in ``namespace`` that the module takes over at its first use.
    namespace : dict
        ``globals()`` of the module that binds the result.
    """
    return _Lazy(f"udfkit.kernels.{name}", namespace, name)
