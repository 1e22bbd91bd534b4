"""The errors for a segment's file that is missing, or shorter than its segment says."""

from __future__ import annotations

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.errors import CorruptRecordError, SnapshotTooOldError
from distlog.core.storage.storage import Storage


def check_log(storage: Storage, segment: SegmentInfo, name: str) -> None:
    """Raise SnapshotTooOldError if the log file `name` is gone, CorruptRecordError if it is too short."""
    try:
        size = storage.size(name)
    except FileNotFoundError:
        raise gone(segment, name) from None
    if size < segment.log_bytes:
        raise CorruptRecordError(
            "the file is shorter than its segment is: verify, then restore it from a copy",
            file=name,
            position=size,
            partition=segment.partition,
        )


def gone(segment: SegmentInfo, name: str) -> SnapshotTooOldError:
    """The error for a file of the segment that is missing."""
    return missing_file(name, segment.partition)


def missing_file(name: str, partition: int) -> SnapshotTooOldError:
    """The error for a file that a version names, and that is missing."""
    return SnapshotTooOldError(
        "a file of this version is gone, vacuumed since its segment was removed: refresh the topic and read again",
        file=name,
        partition=partition,
    )
