"""Keeps the last few log files of sealed segments mapped, for many small reads of the same files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distlog.core.buffers import byte_array
from distlog.core.commits.format.segment_info import UNKNOWN, SegmentInfo
from distlog.core.errors import StorageError
from distlog.core.reading.files.open_files import OpenFiles
from distlog.core.segments.log_identity import HEAD_BYTES, IdentifiedLogs
from distlog.core.segments.segment_parts import part_of
from distlog.core.storage.part import Part
from distlog.core.storage.storage import Storage

#: How many logs stay mapped. The disk space of a deleted one is free only when it is unmapped.
OPEN_LOGS = 16
#: How much of an active log is read around a position: enough for small batches, then for the largest usual ones.
_PARTS_BYTES = (32 << 10, 2 << 20)


@dataclass(frozen=True, slots=True)
class OpenLog:
    """A mapped log file, or the bytes of one from the position `start` on."""

    view: memoryview
    data: npt.NDArray[np.uint8]
    start: int = 0


class OpenLogs:
    """The mapped logs of one topic's segments on a local disk; for many threads, and picklable."""

    def __init__(self, storage: Storage, topic: str, identified: IdentifiedLogs) -> None:
        self._storage, self._topic, self._identified = storage, topic, identified
        self._open: OpenFiles[OpenLog] = OpenFiles(OPEN_LOGS, timed=True)

    def get(self, segment: SegmentInfo) -> OpenLog:
        """The segment's log as it is now, checked to be the segment's and to have the length in its metadata.

        Raises FileNotFoundError, StorageError if it cannot be mapped, since it is active or too short, and
        CorruptRecordError if it is another log.
        """
        if segment.is_active:
            raise StorageError("an active segment is not mapped", partition=segment.partition, stem=segment.stem)
        key = segment.partition, segment.stem, segment.first_batch_crc
        log = self._open.known(key)
        if log is None:
            part = part_of(self._topic, segment)
            log = self._open.get(key, self._storage.local_path(part.name), lambda: self._mapped(segment, part))
        if len(log.view) < segment.log_bytes:
            raise StorageError("a file is shorter than its segment", partition=segment.partition, stem=segment.stem)
        return log

    def around(self, segment: SegmentInfo, position: int) -> Iterator[OpenLog]:
        """The log, as `get` gives it. Of an active one, which is not mapped: a part from `position` on, then more.

        Raises as `get` does.
        """
        if not segment.is_active:
            yield self.get(segment)
            return
        log = part_of(self._topic, segment)
        for size in _PARTS_BYTES:
            end = min(position + size, segment.log_bytes)
            read = self._storage.read_joined([log.range(0, HEAD_BYTES), log.range(position, end)])
            self._identified.check_head(segment, log, read[:HEAD_BYTES])
            yield OpenLog(read[HEAD_BYTES:], byte_array(read[HEAD_BYTES:]), position)
            if end == segment.log_bytes:
                return

    def _mapped(self, segment: SegmentInfo, log: Part) -> OpenLog:
        view = self._storage.map(*log.whole)
        if segment.first_batch_crc != UNKNOWN and len(view) >= HEAD_BYTES:
            self._identified.check_head(segment, log, view[:HEAD_BYTES])
        return OpenLog(view, byte_array(view))
