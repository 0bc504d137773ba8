"""Whole numbers that users set in the environment, read afresh at each use for 0.1 us."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["Setting"]

# The dictionary behind os.environ: looking there costs a seventh of os.environ.get.
_variables: dict[bytes | str, bytes | str] | None = getattr(os.environ, "_data", None)


class Setting:
    """One environment variable that holds a whole number.

    Parameters
    ----------
    name
        The variable.
    default
        What to use where the variable is not set or empty; called once.
    least
        The smallest value allowed.

    Examples
    --------
    >>> import os
    >>> from udfkit.settings import Setting
    >>> copies = Setting("UDFKIT_DOCUMENTED_COPIES", lambda: 3, least=1)
    >>> copies()
    3
    >>> os.environ["UDFKIT_DOCUMENTED_COPIES"] = "4"
    >>> copies()
    4
    """

    __slots__ = ("_default", "_default_value", "_key", "_least", "_read_from", "_value", "name")

    def __init__(self, name: str, default: Callable[[], int], *, least: int) -> None:
        self.name = name
        self._key = os.environ.encodekey(name) if _variables is not None else name
        self._default = default
        self._least = least
        self._default_value: int | None = None
        self._read_from: bytes | str | None = None
        self._value = 0

    def __call__(self) -> int:
        """Return the value.

        Raises
        ------
        ValueError
            The variable holds something else than a whole number that is large enough.
        """
        if _variables is None:
            text: bytes | str | None = os.environ.get(self.name)
        else:
            text = _variables.get(self._key)
        if not text:
            if self._default_value is None:
                self._default_value = self._default()
            return self._default_value
        if text != self._read_from:
            self._value = self._parse(os.fsdecode(text))
            self._read_from = text
        return self._value

    def _parse(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = self._least - 1
        if value < self._least:
            raise ValueError(
                f"the environment variable {self.name} is {text!r}, expected a whole number of at "
                f"least {self._least}; set it to one or unset it"
            )
        return value
