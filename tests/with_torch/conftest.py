"""Tests that need PyTorch: ``UDFKIT_TEST_TORCH=1 python -m pytest tests/with_torch``."""

from __future__ import annotations

import os

# Without the variable nothing here is read; with it a missing PyTorch is an error.
collect_ignore_glob = [] if os.environ.get("UDFKIT_TEST_TORCH") == "1" else ["test_*.py"]
