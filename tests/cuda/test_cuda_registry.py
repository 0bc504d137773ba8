"""One walk over the registry: each kernel has its twins, a reference and a test."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import reference
from udfkit.kernels import KERNELS, cpu_kernel

FOLDER = Path(__file__).parent

REFERENCES = {
    "rows_to_padded": "pad",
    "rows_to_ragged": "flat",
    "ragged_to_padded": "pad",
    "padded_to_ragged": "flat",
    "ragged_to_cells": "unpad",
    "cells_to_ragged": "unpad",
    "mask_from_lengths": "mask",
    "scan_mask": "lengths_from_mask",
    "lengths_from_mask": "lengths_from_mask",
    "offsets_from_lengths": "offsets",
    "one_hot_to_dense": "one_hot",
    "csr_to_dense": "csr_to_dense",
}

# Kernel -> the function of the host side that launches it, where it has another name.
HOST_SIDE = {
    "mask_from_lengths": "mask_of",
    "scan_mask": "read_mask",
    "lengths_from_mask": "read_mask",
    "offsets_from_lengths": "offsets_of",
}


def twins() -> dict[str, object]:
    return dict(importlib.import_module("udfkit.kernels.cuda").TWINS)


def test_registry_and_twins_have_the_same_names() -> None:
    assert sorted(twins()) == sorted(KERNELS)
    assert sorted(REFERENCES) == sorted(KERNELS)


def cpu_arguments(name: str) -> list[str]:
    """The arguments in the source: a kernel that has been called is no Python function any more."""
    tree = ast.parse(Path(importlib.import_module("udfkit.kernels.cpu").__file__).read_text())
    found = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    assert cpu_kernel(name) is not None
    return [argument.arg for argument in found.args.args]


@pytest.mark.parametrize("name", KERNELS)
def test_twins_take_the_same_arguments_in_the_same_order(name: str) -> None:
    cuda = importlib.import_module("udfkit.kernels.cuda")
    shared = [a for a in cpu_arguments(name) if a not in cuda.HOST_ONLY]
    for is_wide in (False, True):
        function = cuda.TWINS[name].function(4, is_wide=is_wide)
        assert function.__name__ == name
        own = cuda.parameters(function)
        assert [a for a in own if a in shared] == shared
        # What a device kernel takes beyond: sizes that arrays carry on a host, and outputs that
        # the same launch makes. They come last, unless a host kernel has them too.
        assert own[: len(shared)] == tuple(shared)


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_has_reference_host_side_and_test(name: str) -> None:
    assert callable(getattr(reference, REFERENCES[name]))
    moves = importlib.import_module("udfkit.kernels.cuda_moves")
    masks = importlib.import_module("udfkit.kernels.cuda_mask_moves")
    host = HOST_SIDE.get(name, name)
    assert host in moves.__all__ or host in masks.__all__
    tests = "".join(path.read_text() for path in sorted((FOLDER / "device").glob("test_*.py")))
    assert f"moves.{host}(" in tests
    assert f"reference.{REFERENCES[name]}(" in tests


def test_a_missing_argument_would_be_noticed() -> None:
    cuda = importlib.import_module("udfkit.kernels.cuda")
    own = cuda.parameters(cuda.TWINS["padded_to_ragged"].function(4))
    assert list(own[:5]) != ["offsets", "data", "sample_bytes", "steps", "out"]
