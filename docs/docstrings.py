"""What the site builder does to docstrings whose formulas and tables Sphinx would read."""  # noqa: INP001

import re
import textwrap
from typing import Any

import griffe

FORMULA = re.compile(r"^\.\. math::(.*(?:\n(?:[ ]+.*)?)*)", re.MULTILINE)
TABLE = re.compile(r"^([ ]*)=+ +=+\n(?:.*\n)+?\1=+ +=+$", re.MULTILINE)


def as_markdown(text: str) -> str:
    """Write formulas between dollars, and tables as blocks of code."""
    text = FORMULA.sub(lambda found: f"$${' '.join(found[1].split())}$$\n\n", text)
    text = re.sub(r"\$\$\n{2,}", "$$\n\n", text)
    return TABLE.sub(
        lambda found: textwrap.indent(f"```text\n{textwrap.dedent(found[0])}\n```", found[1]), text
    )


class Sphinx(griffe.Extension):
    """Change each docstring when it is found."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
