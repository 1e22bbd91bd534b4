"""What an export wrote into a partition's folder, kept there so that the next export adds only what is new.

A broker ignores the file. Before files are changed it names all that will be there, and which of these are whole; so
an export that died is taken up by the next one. If a file has another size than it says, a broker has written there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from distlog.core.commits.format import fields
from distlog.core.commits.format.fields import LONG, TIMESTAMP, UUID, Integer, Text, optional, stored
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.config import MAX_INT
from distlog.core.errors import CorruptMetadataError
from distlog.core.storage.storage import Storage

EXPORT_FILE = ".distlog-export.json"
_VERSION = 1


def _epochs(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise ValueError("must be a list of [epoch, offset]")
    return tuple((Integer(0, MAX_INT)(epoch), LONG(start)) for epoch, start in value)


@dataclass(frozen=True, slots=True)
class ExportedSegment:
    """One segment in the folder: which one of the topic's it is (an empty stem: none), and how large its log is.

    `end_offset` is behind its last batch. `done` says that its files are whole.
    """

    base_offset: int = stored(LONG)
    stem: str = stored(Text("[a-z0-9-]{0,64}"))
    log_bytes: int = stored(LONG)
    crc32c: int = stored(Integer(0, 2**32 - 1))
    append_time_ms: int = stored(TIMESTAMP, default=-1)
    end_offset: int = stored(LONG, default=0)
    epochs: tuple[tuple[int, int], ...] = stored(_epochs, default=())
    done: bool = stored(fields.boolean, default=False)

    @classmethod
    def of(cls, segment: SegmentInfo) -> ExportedSegment:
        """A segment that is to be exported."""
        identity = segment.stem, segment.log_bytes, segment.crc32c, segment.append_time_ms
        return cls(segment.base_offset, *identity)

    def is_of(self, segment: SegmentInfo) -> bool:
        """Whether the folder has the segment already, whole."""
        names = ("base_offset", "stem", "log_bytes", "crc32c", "append_time_ms")
        return self.done and all(getattr(self, name) == getattr(segment, name) for name in names)


def empty_segment(base_offset: int, *, done: bool) -> ExportedSegment:
    """A segment without a batch, which only marks where the log begins or ends."""
    return ExportedSegment(base_offset, "", 0, 0, end_offset=base_offset, done=done)


@dataclass(frozen=True, slots=True)
class LastExport:
    """What the last export into a folder left there, and of which topic; an older library did not note that."""

    segments: list[ExportedSegment]
    topic_id: str | None = None


def read_export(folder: Storage) -> LastExport | None:
    """The last export into `folder`; None if there was none. Raises CorruptMetadataError."""
    try:
        data = folder.read(EXPORT_FILE)
    except FileNotFoundError:
        return None
    try:
        body = json.loads(data)
        segments = [fields.read(ExportedSegment, segment) for segment in body["segments"]]
        return LastExport(segments, optional(UUID)(body.get("topic_id")))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        text = f"not the record of an export: {error}; empty the partition's folder, and export again"
        raise CorruptMetadataError(text, file=folder.local_path(EXPORT_FILE)) from None


def write_export(folder: Storage, segments: list[ExportedSegment], topic_id: str) -> None:
    """Replace the record of the last export."""
    body = {"version": _VERSION, "topic_id": topic_id, "segments": [fields.write(segment) for segment in segments]}
    folder.put(EXPORT_FILE, json.dumps(body).encode())
