"""Where the time goes: a clock that charges every moment to exactly one label."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CONVERSION", "REST", "USER_CODE", "Clock"]

CONVERSION = "conversion"
USER_CODE = "user code"
REST = "the rest"


class Clock:
    """Seconds by label; a label charged inside another one interrupts it.

    Examples
    --------
    >>> clock = Clock()
    >>> with clock.charge(CONVERSION):
    ...     with clock.charge(USER_CODE):
    ...         pass
    >>> sorted(clock.read())
    ['conversion', 'the rest', 'user code']
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._label = REST
        self._since = time.perf_counter()

    @contextmanager
    def charge(self, label: str) -> Iterator[None]:
        """Charge the time until the block ends to ``label``."""
        outer = self._switch(label)
        try:
            yield
        finally:
            self._switch(outer)

    def read(self) -> dict[str, float]:
        """Return the seconds of each label since the last reading, and begin anew."""
        self._switch(self._label)
        seconds = dict(self._seconds)
        self._seconds.clear()
        return {label: seconds.get(label, 0.0) for label in (CONVERSION, USER_CODE, REST)}

    def _switch(self, label: str) -> str:
        now = time.perf_counter()
        self._seconds[self._label] += now - self._since
        outer, self._label, self._since = self._label, label, now
        return outer
