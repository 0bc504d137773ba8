"""Tests that need PyTorch: ``UDFKIT_TEST_TORCH=1 python -m pytest tests/with_torch``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# For the helper module of the folders below.
sys.path.insert(0, str(Path(__file__).parent))

# Without the variable nothing here is read; with it a missing library is an error. This file, whose
# name others have too, is never a module to search for examples.
collect_ignore_glob = ["conftest.py", "torch_batches.py"]
if os.environ.get("UDFKIT_TEST_TORCH") != "1":
    collect_ignore_glob += ["test_*.py"]
