"""Whether a log file is that of its segment, told by its first batch where a read begins behind that.

Segments of one shape have their batches at the same places and offsets, so nothing else tells their logs apart. The
checksum fields of the first and the last batch do, and are in the metadata.
"""

from __future__ import annotations

from typing import Any

from distlog.core.batches.record_batch import CRC_AT, CRC_START
from distlog.core.commits.segment_info import UNKNOWN, SegmentInfo
from distlog.core.errors import CorruptRecordError

#: The beginning of a log, up to where the checksum of its first batch ends.
HEAD_BYTES = CRC_START
#: Logs that are remembered to be their segments'.
REMEMBERED = 4096

_MAGIC_AT, _LEGACY_CRC_AT = 16, 12


class IdentifiedLogs:
    """The logs of a topic that this process has seen to be their segments'; for many threads, and picklable."""

    def __init__(self) -> None:
        self._known: set[tuple[int, str, int]] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return IdentifiedLogs, ()

    def knows(self, segment: SegmentInfo) -> bool:
        """Whether the log's beginning need not be read: it was already, or the metadata has no checksum of it."""
        return segment.first_batch_crc == UNKNOWN or _key(segment) in self._known

    def add(self, segment: SegmentInfo) -> None:
        """Remember that the log is its segment's."""
        if len(self._known) >= REMEMBERED:
            self._known = set()
        self._known.add(_key(segment))

    def forget(self, segment: SegmentInfo) -> None:
        """Look at the log's beginning again."""
        self._known.discard(_key(segment))

    def check_head(self, segment: SegmentInfo, file: str, head: memoryview) -> None:
        """Look at the first HEAD_BYTES of the log: CorruptRecordError if they are another log's."""
        at = CRC_AT if head[_MAGIC_AT] >= 2 else _LEGACY_CRC_AT
        if int.from_bytes(head[at : at + 4], "big") != segment.first_batch_crc:
            self._known.discard(_key(segment))
            raise another_log(segment, file, 0)
        self.add(segment)


def _key(segment: SegmentInfo) -> tuple[int, str, int]:
    return segment.partition, segment.stem, segment.first_batch_crc


def another_log(segment: SegmentInfo, file: str, position: int) -> CorruptRecordError:
    """The error for a log that is not its segment's, as the batch at `position` shows."""
    return CorruptRecordError(
        "this is the log of another segment, or it is damaged: verify, then restore it from a copy",
        file=file,
        position=position,
        partition=segment.partition,
    )
