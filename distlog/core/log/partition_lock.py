"""A partition's lock (a `FileLock` of `storage/locks_and_pages.py`), and the page of state that it guards."""

from __future__ import annotations

import os
import struct
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial
from typing import NamedTuple, TypeVar

from distlog.core import paths
from distlog.core.commits.actions import Active
from distlog.core.errors import StorageError
from distlog.core.log.segment_files import DurableEnd
from distlog.core.segments.segment_state import STATE_BYTES, SegmentState, packed_flushed, packed_position
from distlog.core.storage.local_files import closed_after, failing_as
from distlog.core.storage.locks_and_pages import PAGE_BYTES, FileLock, boot_id, counters_of, open_page, read_newest


class PartitionLock(FileLock):
    """The lock of the partition in `folder`, and its page."""

    def __init__(self, folder: str, topic_id: str, timeout_s: float) -> None:
        super().__init__(os.path.join(folder, paths.LOCK_FILE), timeout_s)
        self._topic_id = topic_id
        # packed once, since every append writes one
        self._active_head = head(topic_id, PageStatus.ACTIVE)
        self.recovery_point = NO_POINT

    def is_durable(self, stem: str, end_offset: int) -> bool:
        """True if the page has the active segment `stem` durable up to this offset; needs no lock."""
        value, size = self.page.read(), len(self._active_head)
        if value is None or len(value) != RECORD_BYTES or not value.startswith(self._active_head):
            return False
        return packed_flushed(value[size:], stem) >= end_offset

    def stored_record(self) -> StateRecord | None:
        """The page's record; None without a file or a valid page."""
        return StateRecord.unpack(stored_value(self.path))

    @property
    def recovery_position(self) -> int:
        return packed_position(self.recovery_point)

    def publish(self, status: PageStatus, state: SegmentState | None) -> None:
        self.page.write(StateRecord(self._topic_id, status, state, self.recovery_point).pack())

    def publish_active(self, packed_state: bytes) -> bytes:
        """Write the page of a segment that takes appends; returns its value."""
        value = self._active_head + packed_state + self.recovery_point
        self.page.write(value)
        return value


T = TypeVar("T")

# A partition's lock page has the state of its active segment, and a recovery point. After a restart of the machine
# the page may be an older one, so its state is valid in the boot with its id only. The recovery point is valid in any
# boot: it is a state that was written after a sync of its log and indexes (Kafka's
# `recovery-point-offset-checkpoint`). Without a valid page, the state is rebuilt from the commit log and the log.
_VERSION = 3
_HEAD = struct.Struct("=BB16s16s")
_POINT_AT = _HEAD.size + STATE_BYTES
RECORD_BYTES = _HEAD.size + 2 * STATE_BYTES
#: The recovery point of a segment that was never synced.
NO_POINT = bytes(STATE_BYTES)


class PageStatus(IntEnum):
    """The state of a partition's active segment.

    CHANGING: it is being sealed, so only the commit log has its state. FAILED: a sync failed, so it must be cut to
    its flushed end, and sealed, first. TORN: a failed append could not be cut off, so the log must be cut first.
    """

    NONE = 0
    ACTIVE = 1
    CHANGING = 2
    FAILED = 3
    TORN = 4


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The state of a partition's active segment, if there is one, and its packed recovery point, or NO_POINT."""

    topic_id: str
    status: PageStatus
    state: SegmentState | None = None
    recovery_point: bytes = NO_POINT

    def pack(self) -> bytes:
        """The record as RECORD_BYTES bytes; `unpack` accepts them until the machine restarts."""
        state = bytes(STATE_BYTES) if self.state is None else self.state.pack()
        return head(self.topic_id, self.status) + state + self.recovery_point

    @classmethod
    def unpack(cls, data: bytes | None) -> StateRecord | None:
        """The record, if `pack` made it since the machine started."""
        if data is None or len(data) != RECORD_BYTES:
            return None
        version, status, boot, topic = _HEAD.unpack_from(data)
        if version != _VERSION or boot != boot_id() or status not in PageStatus.__members__.values():
            return None
        try:
            state = SegmentState.unpack(data[_HEAD.size : _POINT_AT]) if status != PageStatus.NONE else None
        except ValueError:
            return None
        return cls(str(uuid.UUID(bytes=topic)), PageStatus(status), state, data[_POINT_AT:])

    def state_of(self, topic_id: str, active: Active | None) -> SegmentState | None:
        """The state, if it is of this topic and this `active` segment."""
        return _of_segment(self.state, active) if topic_id == self.topic_id else None


def recovery_point(value: bytes | None, topic_id: str, active: Active) -> tuple[SegmentState | None, DurableEnd]:
    """The recovery point of the `active` segment, and the durable end of its log, in a page's value of any boot."""
    states: list[SegmentState | None] = [None, None]
    if value is not None and len(value) == RECORD_BYTES:
        version, _, _, topic = _HEAD.unpack_from(value)
        if version == _VERSION and topic == uuid.UUID(topic_id).bytes:
            states = [_state_in(packed, active) for packed in (value[_HEAD.size : _POINT_AT], value[_POINT_AT:])]
    ends = ((state.flushed_offset, state.flushed_position) for state in states if state is not None)
    return states[1], DurableEnd(*max(ends, default=(0, 0)))


def _state_in(packed: bytes, active: Active) -> SegmentState | None:
    with suppress(ValueError):
        return _of_segment(SegmentState.unpack(packed), active)
    return None


def _of_segment(state: SegmentState | None, active: Active | None) -> SegmentState | None:
    if state is None or active is None:
        return None
    return state if (state.stem, state.base_offset) == (active.stem, active.base_offset) else None


def stored_value(path: str) -> bytes | None:
    """The page's value in the lock's file, read without the lock; None without a file or a whole value."""
    return _of_page(path, read_newest)


def _of_page(path: str, parse: Callable[[Callable[[], bytes]], T]) -> T | None:
    with failing_as("read", path):
        try:
            file = open_page(path)
        except FileNotFoundError:
            return None
        with closed_after(file):
            return parse(partial(os.pread, file, PAGE_BYTES, 0))


def head(topic_id: str, status: PageStatus) -> bytes:
    return _HEAD.pack(_VERSION, status, boot_id(), uuid.UUID(topic_id).bytes)


# The kernel reports a disk error once, to the processes that have the file open, and then marks the pages clean. A
# later sync may succeed without having saved anything. So the flush lock's page marks a sync before it starts; the
# mark is valid until the machine restarts.
class FlushOutcome(Enum):
    """The outcome of the last sync: unknown (STARTED), FAILED, ENDED, or DOUBTED.

    DOUBTED: it succeeded, but a process that wrote later records may have been killed, so the kernel may have lost
    them. The next sync can be trusted if they can be read.
    """

    STARTED = b"B"
    FAILED = b"F"
    DOUBTED = b"D"
    ENDED = b""


def mark(sync: FlushOutcome, stem: str) -> bytes:
    return boot_id() + sync.value + stem.encode("ascii") if sync != FlushOutcome.ENDED else b""


def marked(value: bytes | None, stem: str) -> FlushOutcome:
    if not value:
        return FlushOutcome.ENDED
    return next((sync for sync in FlushOutcome if value == mark(sync, stem)), FlushOutcome.ENDED)


def stored_mark(folder: str, stem: str) -> FlushOutcome:
    return marked(stored_value(os.path.join(folder, paths.FLUSH_FILE)), stem)


def mark_doubted(folder: str, stem: str) -> bool:
    """Make the next sync of the segment read its records first; False while another one is running."""
    with closing(FileLock(os.path.join(folder, paths.FLUSH_FILE))) as lock, suppress(StorageError):
        with lock.held(0) as page:
            if marked(page.read(), stem) == FlushOutcome.ENDED:
                page.write(mark(FlushOutcome.DOUBTED, stem))
        return True
    return False


def was_not_synced(folder: str, stem: str) -> bool:
    """True if the last sync of the segment failed, or its process died before it published the outcome."""
    with closing(FileLock(os.path.join(folder, paths.FLUSH_FILE))) as lock:
        with suppress(StorageError), lock.held(0) as page:
            return marked(page.read(), stem) in (FlushOutcome.STARTED, FlushOutcome.FAILED)
        # another sync is running, or the segment is given up
        return stored_mark(folder, stem) == FlushOutcome.FAILED


class PartitionCounters(NamedTuple):
    """All processes' direct appends to a partition since the machine started; the first counters of a page.

    An append is timed from the request for the lock until readers see the records. A flush is a sync of the log, also
    by a seal. Appends and seals count in the page of the partition's lock, flushes in the flush lock's page.
    """

    appends: int = 0
    append_bytes: int = 0
    append_ns: int = 0
    flushes: int = 0
    flush_ns: int = 0


def counters_in(folder: str) -> PartitionCounters | None:
    """The counters of this folder's partition, or None without direct appends; needs no lock."""
    files = (os.path.join(folder, name) for name in (paths.LOCK_FILE, paths.FLUSH_FILE))
    pages = [page for path in files if (page := _of_page(path, lambda read: read()))]
    if not pages:
        return None
    sums = [sum(values) for values in zip(*map(counters_of, pages), strict=True)]
    return PartitionCounters(*sums[: len(PartitionCounters._fields)])
