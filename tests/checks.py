"""What the tests of this folder share: variables to feed, and assertions on error texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import udfkit

# An error ends with what to do, or with what would have been taken: one of these must be in it.
_FIX = re.compile(
    r"\b(add|call|cast|change|check|choose|clip|convert|create|cut|declare|divide|drop|expected|expects|feed|give"
    r"|install|join|keep|leave|make|merge|must|need|pad|pass|pick|put|raise|remove"
    r"|reshape|return|round|scale|set|slice|sort|split|stack|store|switch|take|turn|unset"
    r"|use|wrap|write)\b",
    re.IGNORECASE,
)


def sequence_variable(shape: tuple[int, ...] = (), dtype: Any = np.float32, **kwargs: Any) -> Any:
    """A fresh variable with batch and sequence axis."""
    return udfkit.sequence.input_variable(shape, dtype=dtype, **kwargs)


def batch_variable(shape: tuple[int, ...] = (), dtype: Any = np.float32, **kwargs: Any) -> Any:
    """A fresh variable with a batch axis only."""
    return udfkit.input_variable(shape, dtype=dtype, **kwargs)


def plain_variable(shape: tuple[int, ...] = (), dtype: Any = np.float32, **kwargs: Any) -> Any:
    """A fresh variable without dynamic axes."""
    return udfkit.input_variable(shape, dtype=dtype, dynamic_axes=[], **kwargs)


@contextmanager
def raises(kind: type | tuple[type, ...], *parts: object, fix: bool = True) -> Iterator[Any]:
    """Assert the class and that the text holds every part (whole words) and says what to do."""
    with pytest.raises(kind) as caught:
        yield caught
    text = str(caught.value)
    for part in parts:
        # Digits and words must stand alone, so that index 1 is not found in "float16".
        found = re.search(rf"(?<![\w.-]){re.escape(str(part))}(?!\w)", text)
        assert found, f"{part!r} is missing in: {text}"
    assert not fix or _FIX.search(text), f"no word on what to do in: {text}"


@contextmanager
def no_warning() -> Iterator[None]:
    """Turn every warning into an error."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
