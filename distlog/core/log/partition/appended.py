"""What an append tells its caller, who may wait until it is on the device, or learn that it is lost."""

from __future__ import annotations

from typing import NamedTuple

from distlog.core.errors import StorageError
from distlog.core.times import NO_TIMESTAMP

#: The stem in an Appended whose records are in a sealed segment, so that they are on the device.
SEALED = ""


class Appended(NamedTuple):
    """Where records were appended: their (first, end) offsets, their segment, or SEALED, and a version that has it.

    `flush_due` says that the topic's flush policy wants them on the device before they are acknowledged.
    `append_time_ms` is their LogAppendTime, -1 if they keep their own times.
    """

    first_offset: int
    end_offset: int
    stem: str
    version: int
    flush_due: bool = False
    append_time_ms: int = NO_TIMESTAMP


class LogEnd(NamedTuple):
    """Where the log ends: the offset behind the last record, and the offset behind the last one on the device.

    The second is Kafka's recovery point.
    """

    end_offset: int
    flushed_offset: int


class AppendInfo(NamedTuple):
    """What a producer is told of its batch (Kafka's LogAppendInfo): where it is, its append time, the log's start.

    The log start offset is the newest that the process knows.
    """

    appended: Appended
    log_start_offset: int


class LostRecordsError(StorageError):
    """A sync failed, so that records that were appended are lost: no later sync can save them."""


def lost_records(wanted: Appended) -> LostRecordsError:
    """The error of who waits for records that a failed sync cut off."""
    return LostRecordsError(
        "what was appended is lost, since a sync of the disk failed: append it again",
        stem=wanted.stem,
        first_offset=wanted.first_offset,
        end_offset=wanted.end_offset,
    )
