"""Tests that need JAX: ``UDFKIT_TEST_JAX=1 python -m pytest tests/with_jax``."""

from __future__ import annotations

import os

# Without the variable nothing here is read; with it a missing library is an error. This file, whose
# name others have too, is never a module to search for examples.
collect_ignore_glob = ["conftest.py"]
if os.environ.get("UDFKIT_TEST_JAX") != "1":
    collect_ignore_glob += ["test_*.py"]
