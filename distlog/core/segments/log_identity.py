"""Checks that a log file belongs to its segment, by its first batch, if a read begins behind that.

Segments of one shape have their batches at the same places and offsets. Only the checksum fields of the first and the
last batch tell their logs apart; they are in the metadata.
"""

from __future__ import annotations

from typing import Any

from distlog.core.batches.record_batch import CRC_AT, CRC_START
from distlog.core.commits.format.segment_info import UNKNOWN, SegmentInfo
from distlog.core.errors import CorruptRecordError
from distlog.core.storage.part import Part

#: The beginning of a log, up to where the checksum of its first batch ends.
HEAD_BYTES = CRC_START
#: How many checked logs are remembered.
REMEMBERED = 4096

_MAGIC_AT, _LEGACY_CRC_AT = 16, 12


class IdentifiedLogs:
    """The logs that this process knows to belong to their segments, of one topic; for many threads, and picklable."""

    def __init__(self) -> None:
        self._known: set[tuple[int, str, int]] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return IdentifiedLogs, ()

    def knows(self, segment: SegmentInfo) -> bool:
        """Whether the log's beginning need not be read: it was checked, or the metadata has no checksum of it."""
        return segment.first_batch_crc == UNKNOWN or _key(segment) in self._known

    def add(self, segment: SegmentInfo) -> None:
        """Remember that the log belongs to its segment."""
        if len(self._known) >= REMEMBERED:
            self._known = set()
        self._known.add(_key(segment))

    def forget(self, segment: SegmentInfo) -> None:
        """Forget the log, so that its beginning is checked again."""
        self._known.discard(_key(segment))

    def check_head(self, segment: SegmentInfo, log: Part, head: memoryview) -> None:
        """Check the first HEAD_BYTES of the segment's `log`. Raises CorruptRecordError if they are another log's."""
        at = CRC_AT if head[_MAGIC_AT] >= 2 else _LEGACY_CRC_AT
        if int.from_bytes(head[at : at + 4], "big") != segment.first_batch_crc:
            self._known.discard(_key(segment))
            raise another_log(segment, log.name, log.begin)
        self.add(segment)


def _key(segment: SegmentInfo) -> tuple[int, str, int]:
    return segment.partition, segment.stem, segment.first_batch_crc


def another_log(segment: SegmentInfo, file: str, position: int) -> CorruptRecordError:
    """The error for a log that does not belong to its segment, as the batch at `position` shows."""
    return CorruptRecordError(
        "this is the log of another segment, or it is damaged: verify, then restore it from a copy",
        file=file,
        position=position,
        partition=segment.partition,
    )
