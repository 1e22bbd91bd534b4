"""A partition's lock, and the page of state that the processes share by it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from distlog.core import paths
from distlog.core.log.partition.state_record import NO_POINT, StateRecord, Status, head, stored_value
from distlog.core.segments.segment_state import SegmentState, packed_position
from distlog.core.storage.local.file_lock import FileLock, Held


class PartitionLock:
    """The lock of the partition in `folder`, of the topic with this id; to read its page, nobody needs the lock.

    `recovery_point` is the packed one of the active segment, which every page has.
    """

    def __init__(self, folder: str, topic_id: str, timeout_s: float) -> None:
        self.folder = folder
        self._topic_id, self._timeout_s = topic_id, timeout_s
        self._file = FileLock(os.path.join(folder, paths.LOCK_FILE), makes_folder=True)
        # packed once, since every append writes one
        self._active_head = head(topic_id, Status.ACTIVE)
        self.recovery_point = NO_POINT

    def held(self) -> Held:
        """Hold the lock. Raises StorageError, which names the process that has it, if it is not free in time."""
        return self._file.held(self._timeout_s)

    def value(self) -> bytes | None:
        """What the page holds now, for `StateRecord.unpack`; None if it does not check."""
        return self._file.page.read()

    def stored_record(self) -> StateRecord | None:
        """The page's record; None if it does not check, or there is no file, which is not created then."""
        return StateRecord.unpack(stored_value(self._file.path))

    @property
    def recovery_position(self) -> int:
        """The position in the log from which it would be walked after a power loss."""
        return packed_position(self.recovery_point)

    def publish(self, status: Status, state: SegmentState | None) -> None:
        """Write the page."""
        self._file.page.write(StateRecord(self._topic_id, status, state, self.recovery_point).pack())

    def publish_active(self, packed_state: bytes) -> bytes:
        """Write the page of a segment that takes appends; returns the page's new value."""
        value = self._active_head + packed_state + self.recovery_point
        self._file.page.write(value)
        return value

    def count(self, *done: int) -> None:
        """Count what was done: the first of the PartitionCounters, or all. Needs the lock."""
        self._file.page.add(*done)

    def alone(self) -> AbstractContextManager[object]:
        """No thread of this process holds the lock in the block; other processes may."""
        return self._file.alone()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
