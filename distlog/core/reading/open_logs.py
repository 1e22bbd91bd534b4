"""Log files of sealed segments that stay mapped, the last few, for who reads a little of them again and again.

To open and map a file costs more than to find a record in it. A map is used as long as its file is the one that was
mapped: who finds that gone, cut or replaced reads it in the usual way, which says so.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.buffers import byte_array
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.errors import StorageError
from distlog.core.locks import ProcessLock
from distlog.core.segments.log_identity import HEAD_BYTES, IdentifiedLogs
from distlog.core.storage.storage import Storage

#: Logs that stay mapped; the disk gives the room of a deleted one back when its map goes.
OPEN_LOGS = 16


@dataclass(frozen=True, slots=True)
class OpenLog:
    """A mapped log file, and by what it is known again: inode, size and time."""

    path: str
    identity: tuple[int, int, int]
    view: memoryview
    data: npt.NDArray[np.uint8]


class OpenLogs:
    """The mapped logs of one topic's segments on a local disk; for many threads, and picklable."""

    def __init__(self, storage: Storage, topic: str, identified: IdentifiedLogs) -> None:
        self._storage, self._topic, self._identified = storage, topic, identified
        self._open: OrderedDict[tuple[int, str], OpenLog] = OrderedDict()
        self._lock = ProcessLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenLogs, (self._storage, self._topic, self._identified)

    def get(self, segment: SegmentInfo) -> OpenLog:
        """The segment's log as it is now, known to be the segment's and as long as it says.

        Raises FileNotFoundError, OSError where it cannot be mapped or is shorter, CorruptRecordError for another log.
        """
        key = segment.partition, segment.stem
        known = self._open.get(key)
        if known is None or _identity(known.path) != known.identity:
            known = self._opened(segment)
            with self._lock:
                self._open[key] = known
                # not closed: another thread may be reading it; its memory goes with the last reference
                while len(self._open) > OPEN_LOGS:
                    self._open.popitem(last=False)
        else:
            with self._lock:
                if key in self._open:
                    self._open.move_to_end(key)
        self._check(segment, known)
        return known

    def _opened(self, segment: SegmentInfo) -> OpenLog:
        name = paths.segment_file(self._topic, segment.partition, segment.stem, ".log")
        path = self._storage.local_path(name)
        # looked at before it is mapped: of a file that is replaced in between the next look tells
        identity, view = _identity(path), self._storage.map(name)
        return OpenLog(path, identity, view, byte_array(view))

    def _check(self, segment: SegmentInfo, log: OpenLog) -> None:
        if len(log.view) < segment.log_bytes:
            raise StorageError("a file is shorter than it should be", file=log.path, end=segment.log_bytes)
        if not self._identified.knows(segment):
            self._identified.check_head(segment, log.path, log.view[:HEAD_BYTES])


def _identity(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns
