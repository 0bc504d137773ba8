"""Code blocks of a page, and what it says that they print."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, heading: str) -> list[tuple[str, str]]:
    """Return (code, expected output) of the python blocks under a heading."""
    text = (DOCS / page).read_text("utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", section, re.DOTALL)


def run(code: str) -> str:
    """Run code on its own; return what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "a code block", "exec"), {"__name__": "__main__"})
    return out.getvalue()
