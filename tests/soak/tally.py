"""What a campaign counted, and what it found wrong."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path


class Violation(AssertionError):  # noqa: N818
    """Something that was promised does not hold."""


#: The ends of names that count no events: of several runs the largest is told.
_LARGEST = ("at most", "at the end")


class Tally(Counter[str]):
    """How often each thing happened, by its name."""

    def add(self, other: Tally) -> None:
        """Add what another run counted; of what has no sum the larger one is kept."""
        for name, count in other.items():
            self[name] = max(self[name], count) if name.endswith(_LARGEST) else self[name] + count

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in self.items() if count)


def demand(holds: bool, subject: str) -> None:
    """Raise Violation, which says `what`, unless it holds."""
    if not holds:
        raise Violation(subject)


def skipped(campaign: str, reason: str) -> Tally:
    """The tally of a campaign that cannot run here."""
    print(f"{campaign}: skipped, {reason}", file=sys.stderr)
    return Tally()


def emptied(folder: Path) -> Path:
    """The new folder `folder`."""
    folder.mkdir(parents=True)
    return folder
