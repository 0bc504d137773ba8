"""Tests that stand numba's simulator in for a GPU, and tensors on the CPU for those on a device.

The simulator must be chosen before numba is imported, so ``tests/with_torch/test_torch_device.py``
runs this folder in a process of its own.
"""

from __future__ import annotations

import os

collect_ignore_glob = ["conftest.py"]
if (os.environ.get("NUMBA_ENABLE_CUDASIM"), os.environ.get("UDFKIT_TEST_TORCH")) != ("1", "1"):
    collect_ignore_glob += ["test_*.py"]
