"""Running a piece of Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent


def run_python(code: str, timeout: float = 120, **environment: str | None) -> str:
    """Run code, assert that it ended well, and return what it wrote.

    Keyword arguments set environment variables; None takes one away. Kernels are compiled in the
    new process unless they say otherwise. Whoever hangs or dies from a signal fails here.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONFAULTHANDLER": "1"}
    for name, value in {"NUMBA_DISABLE_JIT": None, **environment}.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(code)],
        check=False,
        capture_output=True,
        text=True,
        env=variables,
        timeout=timeout,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
