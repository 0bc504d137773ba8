"""Benchmarks of udfkit, run by asv (`make bench`, `make bench-full`)."""

import sys
from pathlib import Path

# asv forks each benchmark from a server that has read this module: the compiler is loaded once.
from udfkit.kernels import cpu  # noqa: F401

# Results are compared with the naive reference of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
