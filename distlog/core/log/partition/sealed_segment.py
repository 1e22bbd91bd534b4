"""A segment between the sealing of its files and the commit of its seal."""

from __future__ import annotations

from typing import NamedTuple

from distlog.core.commits.format.actions import Action, Add, Seal
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.segments.segment_state import SegmentState


class SealedSegment(NamedTuple):
    """A segment whose seal lacks only its commit: the state before, and the segment to add, None if it is empty."""

    partition: int
    before: SegmentState
    info: SegmentInfo | None

    def actions(self) -> list[Action]:
        """The actions of the commit that seals it."""
        seal = Seal(self.partition, self.before.stem)
        return [seal] if self.info is None else [seal, Add(self.info)]
