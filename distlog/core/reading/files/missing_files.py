"""The errors for a segment's file that is missing, or shorter than its segment says."""

from __future__ import annotations

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import CorruptRecordError, SnapshotTooOldError
from distlog.core.storage.part import Part
from distlog.core.storage.storage import Storage


def check_log(storage: Storage, segment: SegmentInfo, log: Part) -> None:
    """Raise an error if the segment's `log` is gone or cut short.

    It is SnapshotTooOldError, or CorruptRecordError for a sealed segment, which nobody cuts.
    """
    try:
        size = storage.size(log.name)
    except FileNotFoundError:
        raise gone(segment, log) from None
    is_short = size < log.begin + log.size
    if is_short and segment.is_active:
        raise SnapshotTooOldError(
            "the end of an active segment was cut off, since it was never on the device: refresh the topic",
            file=log.name,
            partition=segment.partition,
        )
    if is_short:
        raise CorruptRecordError(
            "the file is shorter than its segment: verify, then restore it from a copy",
            file=log.name,
            position=size,
            partition=segment.partition,
        )


def gone(segment: SegmentInfo, part: Part) -> SnapshotTooOldError:
    """The error for a part of the segment whose object is missing."""
    return missing_file(part.name, segment.partition)


def missing_file(name: str, partition: int) -> SnapshotTooOldError:
    """The error for a file that a version names, and that is missing."""
    return SnapshotTooOldError(
        "vacuum deleted a file of this version: refresh the topic and read again",
        file=name,
        partition=partition,
    )
