"""Every Python block of the README runs, and prints what the text block behind it shows."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(README.read_text(encoding="utf-8"))


def test_readme_code_prints_what_the_readme_shows():
    namespace: dict[str, object] = {}
    printed, compared = "", 0
    for language, text in blocks():
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out), warnings.catch_warnings():
                warnings.simplefilter("ignore", category=UserWarning)
                exec(compile(text, str(README), "exec"), namespace)
            printed = out.getvalue()
        elif language == "text":
            assert printed == text
            compared += 1
    assert compared == sum(language == "python" for language, _ in blocks()) >= 4


def test_the_first_example_is_short_and_the_two_commands_are_in_the_first_screen():
    first = next(text for language, text in blocks() if language == "python")
    code = [line for line in first.splitlines() if line.strip()]
    assert len(code) <= 15
    top = README.read_text(encoding="utf-8").splitlines()[:20]
    assert any(line.startswith("make demo") for line in top)
    assert any(line.startswith("make test") for line in top)


@pytest.mark.parametrize("target", re.findall(r"\]\((\w[\w./-]+)\)", README.read_text()))
def test_links_to_files_hold(target):
    assert (README.parent / target).exists()
