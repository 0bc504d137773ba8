"""Tests of calls on a CUDA device, for a machine that has one.

``UDFKIT_TEST_CUDA=device UDFKIT_TEST_TORCH=1 python -m pytest tests/with_torch/on_device``, with a
PyTorch that has CUDA; a missing one is an error then.
"""

from __future__ import annotations

import os

collect_ignore_glob = ["conftest.py"]
if (os.environ.get("UDFKIT_TEST_CUDA"), os.environ.get("UDFKIT_TEST_TORCH")) != ("device", "1"):
    collect_ignore_glob += ["test_*.py"]
