"""The code of the page on other libraries runs and prints what it says."""

from __future__ import annotations

from doc_blocks import blocks, run


def test_the_page():
    found = blocks("interop.md", "JAX")
    assert found
    for code, expected in found:
        assert run(code) == expected
