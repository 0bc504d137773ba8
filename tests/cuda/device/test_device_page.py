"""Every Python block of the page on GPUs runs, and prints what the text block behind it shows."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import warnings
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```python\n(.*?)^```$\n*(?:^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"


def test_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    found = BLOCK.findall(PAGE.read_text("utf-8"))
    assert len(found) >= 4
    namespace: dict[str, object] = {"__name__": "page"}
    for k, (code, expected) in enumerate(found):
        assert expected, code
        name = f"<block {k} of {PAGE.name}>"
        # Numba looks the source of a kernel up.
        lines = code.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, name, (len(code), None, lines, name))
        out = io.StringIO()
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of launches as small as these a device would warn
            exec(compile(code, name, "exec"), namespace)
            if "THREADS" in namespace:
                namespace["THREADS"] = 4
        assert out.getvalue() == expected
