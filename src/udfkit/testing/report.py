"""What a check of a function found: one line a check, readable and countable."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

__all__ = ["Check", "Finding", "Report"]

_WIDTH = 100
_INDENT = 22


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault, or why there is nothing to say.

    Attributes
    ----------
    text : str
        Which array of which batch, the first sequence and step, and both values.
    likely : str
        What kind of fault would look like this.
    """

    text: str
    likely: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a report.

    Attributes
    ----------
    name : str
    status : {'passed', 'FAILED', 'skipped'}
    text : str
        What was compared; for a failure the first fault, for a skipped check the reason.
    likely : str
        For a failure, what kind of fault it probably is.
    """

    name: str
    status: str
    text: str
    likely: str = ""

    def __str__(self) -> str:
        lines = textwrap.wrap(
            self.text,
            _WIDTH,
            initial_indent=f"  {self.status:<8} {self.name:<{_INDENT - 11}}",
            subsequent_indent=" " * _INDENT,
            break_on_hyphens=False,
            break_long_words=False,
        )
        if self.likely:
            lines += textwrap.wrap(
                f"likely: {self.likely}",
                _WIDTH,
                initial_indent=" " * _INDENT,
                subsequent_indent=" " * _INDENT,
                break_on_hyphens=False,
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """All checks of one function; true when none failed.

    Attributes
    ----------
    title : str
    notes : tuple of str
        The batches, and the steps and tolerances of the finite differences.
    checks : tuple of Check

    Examples
    --------
    >>> from udfkit.testing import Check, Report
    >>> report = Report("of f", checks=(Check("repeats", "FAILED", "output 'y' differs"),))
    >>> bool(report), [check.name for check in report.failures]
    (False, ['repeats'])
    >>> print(report)
    check of f
      FAILED   repeats    output 'y' differs
    1 of 1 checks failed
    """

    title: str
    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = field(default=())

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "FAILED")

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.passed

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check {name!r}: there are {[check.name for check in self.checks]}")

    def __str__(self) -> str:
        ran = [check for check in self.checks if check.status != "skipped"]
        total = (
            f"{len(self.failures)} of {len(ran)} checks failed"
            if self.failures
            else f"all {len(ran)} checks passed"
        )
        notes = [
            textwrap.fill(note, _WIDTH, initial_indent="  ", subsequent_indent="    ")
            for note in self.notes
        ]
        return "\n".join([f"check {self.title}", *notes, *map(str, self.checks), total])

    def __repr__(self) -> str:
        failed = ", ".join(check.name for check in self.failures)
        return f"<Report {self.title}: {f'FAILED {failed}' if failed else 'passed'}>"

    def raise_if_failed(self) -> Report:
        """Return the report itself.

        Raises
        ------
        AssertionError
            With the text of the report, when a check failed.
        """
        if self.failures:
            raise AssertionError(str(self))
        return self
