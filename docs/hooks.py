"""What the site builder does to a page before it reads it."""  # noqa: INP001

import re
from typing import Any

NEEDS = re.compile(r"^```python( needs-\w+)+$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Drop from fences the words that only the tests read."""
    return NEEDS.sub("```python", markdown)
