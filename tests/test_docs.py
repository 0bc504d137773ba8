"""Every Python block of every page runs, and prints what the text block behind it shows.

A block that needs a library says so, ```python needs-torch, or imports it; it runs where the
library is, and is missed as an error where UDFKIT_TEST_TORCH and the like say that it must be
there. Those that need a GPU, ```python needs-gpu, run with UDFKIT_TEST_CUDA=device.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

import udfkit

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
# The page on GPUs is run by the tests of the kernels, which know where there is one.
WITHOUT_A_GPU = [page for page in PAGES if page.stem != "gpu"]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIBRARIES = {
    "torch": "TORCH",
    "jax": "JAX",
    "awkward": "INTEROP",
    "pyarrow": "INTEROP",
    "pandas": "INTEROP",
    "tensorflow": "TENSORFLOW",
    "hypothesis": "",
    "scipy": "",
    "matplotlib": "",
}
IMPORT = re.compile(rf"^(?:import|from) ({'|'.join(LIBRARIES)})\b", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block of code, and what it must print."""

    code: str
    needs: frozenset[str]
    expected: str | None
    line: int


def blocks_of(text: str) -> list[Block]:
    found = []
    fences = list(FENCE.finditer(text))
    for fence, after in zip(fences, [*fences[1:], None], strict=False):
        words = fence[1].split()
        if not words or words[0] != "python":
            continue
        needs = {word.removeprefix("needs-") for word in words[1:]} | set(IMPORT.findall(fence[2]))
        expected = after[2] if after is not None and after[1].split() == ["text"] else None
        line = text.count("\n", 0, fence.start(2))
        found.append(Block(fence[2], frozenset(needs), expected, line))
    return found


def run_blocks(blocks: list[Block], name: str) -> int:
    """Run blocks one after the other in one namespace; return how many printed what they must."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    compared = 0
    for block in blocks:
        out = io.StringIO()
        code = compile("\n" * block.line + block.code, name, "exec")
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore", category=udfkit.CastWarning)
            exec(code, namespace)
        if block.expected is not None:
            assert out.getvalue() == block.expected, f"{name}, line {block.line}"
            compared += 1
    return compared


def blocks_of_page(page: Path) -> list[Block]:
    return blocks_of(page.read_text(encoding="utf-8"))


def is_missing(need: str) -> bool:
    if need == "gpu":
        return os.environ.get("UDFKIT_TEST_CUDA") != "device"
    variable = LIBRARIES[need]
    must = variable and os.environ.get(f"UDFKIT_TEST_{variable}") == "1"
    return not must and importlib.util.find_spec(need) is None


CASES = [
    pytest.param(page, needs, id=f"{page.stem}-{'-'.join(sorted(needs)) or 'base'}")
    for page in WITHOUT_A_GPU
    for needs in sorted({frozenset(), *(b.needs for b in blocks_of_page(page))}, key=sorted)
]


@pytest.mark.parametrize(("page", "needs"), CASES)
def test_the_code_of_a_page_prints_what_the_page_shows(page, needs):
    missing = sorted(need for need in needs if is_missing(need))
    if missing:
        pytest.skip(f"{', '.join(missing)}: not here")
    blocks = [block for block in blocks_of_page(page) if block.needs <= needs]
    assert run_blocks(blocks, str(page)) == sum(block.expected is not None for block in blocks)


def test_wrong_output_and_failing_code_are_seen():
    page = "```python\nprint(1)\n```\n\n```text\n2\n```\n"
    with pytest.raises(AssertionError, match=r"line 1"):
        run_blocks(blocks_of(page), "page")
    with pytest.raises(ZeroDivisionError):
        run_blocks(blocks_of("```python needs-torch\n1 / 0\n```\n"), "page")


def test_needs_are_read_from_the_fence_and_from_imports():
    page = "```python needs-gpu\nx\n```\n\n```sh\nls\n```\n\n```python\nimport torch\n```\n"
    assert [block.needs for block in blocks_of(page)] == [{"gpu"}, {"torch"}]


def test_the_pages_that_readers_need_are_there():
    names = {page.stem for page in PAGES}
    assert names >= {
        "index",
        "tour",
        "user-functions",
        "coming-from-cntk",
        "coming-from-padding",
        "layouts",
        "sequence-functions",
        "testing",
        "errors",
        "performance",
        "design",
        "api",
    }
    shown = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(name for name in names if f" {name}.md" not in shown) == []


def test_every_public_name_is_in_the_reference():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^::: udfkit\.(\w+)", text, re.MULTILINE))
    mentioned = set(re.findall(r"`udfkit\.(\w+)`", text))
    assert sorted(set(udfkit.__all__) - documented - mentioned) == []
    for path in re.findall(r"^::: udfkit\.([\w.]+)$", text, re.MULTILINE):
        found = udfkit
        for name in path.split("."):
            if name in {"torch", "jax"}:
                break
            found = getattr(found, name)


def test_soft_dtw_is_written_in_about_40_lines():
    text = (DOCS / "sequence-functions.md").read_text(encoding="utf-8")
    (block,) = [b for b in blocks_of(text) if "class SoftDtw" in b.code]
    assert len([line for line in block.code.splitlines() if line.strip()]) <= 45


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_to_pages_hold(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([\w./-]+\.md)", text):
        assert (DOCS / target).exists(), target
