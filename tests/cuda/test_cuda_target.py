"""Kernels as numba takes them: options, launchers, what is kept between launches."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest

from udfkit.kernels import cuda_target
from udfkit.kernels.cuda_launch import Shape

pytestmark = pytest.mark.skipif(
    os.environ.get("NUMBA_ENABLE_CUDASIM") == "1",
    reason="the simulator's kernels keep their launch shape in themselves",
)


def test_a_small_grid_makes_no_warning_and_no_new_launcher() -> None:
    kernel = cuda_target.kernel("ragged_to_padded", 16, False, 0)
    shape = Shape((3, 2), (64, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launcher = cuda_target._configured(kernel, shape, 0)
    assert tuple(launcher.griddim) == (3, 2, 1)
    assert tuple(launcher.blockdim) == (64, 4, 1)
    assert cuda_target._configured(kernel, shape, 0) is launcher
    # numba keeps launchers too: the one that ours was made from still has its own grid.
    assert tuple(kernel[(128, 1, 1), (64, 4, 1), 0].griddim) == (128, 1, 1)


@pytest.mark.parametrize(
    ("name", "is_wide", "most"),
    [
        ("ragged_to_padded", False, 32),
        ("ragged_to_padded", True, None),
        ("cells_to_ragged", False, None),
    ],
)
def test_only_lean_kernels_are_held_to_32_registers(
    name: str, is_wide: bool, most: int | None
) -> None:
    kernel = cuda_target.kernel(name, 16, is_wide, 0)
    assert kernel.targetoptions.get("max_registers") == most
    assert cuda_target.kernel(name, 16, is_wide, 0) is kernel


def test_unknown_kernel() -> None:
    with pytest.raises(KeyError, match="padded_to_moon"):
        cuda_target.kernel("padded_to_moon", 16, False, 0)


def test_an_empty_launch_is_skipped() -> None:
    def never(*_: Any) -> None:
        raise AssertionError("launched")

    cuda_target.launch(never, Shape((0, 0), (32, 1)), 0, ())
    cuda_target.launch(never, Shape((5, 0), (32, 1)), 0, ())
