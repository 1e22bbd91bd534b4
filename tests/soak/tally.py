"""The counts and the findings of a campaign."""

from __future__ import annotations

import sys
from collections import Counter


class Violation(AssertionError):  # noqa: N818
    """A promise does not hold."""


#: The ends of names whose counts are maxima.
_LARGEST = ("at most", "at the end")


class Tally(Counter[str]):
    def add(self, other: Tally) -> None:
        """Add the counts of another run; maxima stay maxima."""
        for name, count in other.items():
            self[name] = max(self[name], count) if name.endswith(_LARGEST) else self[name] + count

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in self.items() if count)


def demand(holds: bool, subject: str) -> None:
    """Raise Violation with `subject` unless it holds."""
    if not holds:
        raise Violation(subject)


def skipped(campaign: str, reason: str) -> Tally:
    """Return an empty tally for a campaign that cannot run here."""
    print(f"{campaign}: skipped, {reason}", file=sys.stderr)
    return Tally()
