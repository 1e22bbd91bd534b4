"""A partition's lock, and the page in the lock's file, which has the state of the active segment."""

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
from distlog.core.storage.local_files import OpenedFile, failing_as
from distlog.core.storage.locks_and_pages import PAGE_BYTES, FileLock, boot_id, counters_of, open_page, read_newest

T = TypeVar("T")

# The page has the state of the active segment, and a recovery point. The page is not synced: after a restart of the
# machine it may be an older one. So its state is valid only in the boot whose id it has. The recovery point is valid
# in any boot: it is a state that was written after a sync of the log and the indexes (Kafka's
# `recovery-point-offset-checkpoint`). Without a valid page, the state is rebuilt from the commit log and the segment.
_VERSION = 3
_HEADER = struct.Struct("=BB16s16s")
_POINT_START = _HEADER.size + STATE_BYTES
RECORD_BYTES = _HEADER.size + 2 * STATE_BYTES
#: The recovery point of a segment that was never synced.
NO_POINT = bytes(STATE_BYTES)


class PageStatus(IntEnum):
    """The status of a partition's active segment.

    NONE: the partition has none. ACTIVE: it can be appended to. CHANGING: it is being sealed, and only the commit log
    shows whether the seal happened. FAILED: a sync failed, so it must be cut to its flushed end, and sealed. TORN: a
    failed append could not be cut off, so the log must be cut to the state's end.
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
        """Return RECORD_BYTES bytes, which `unpack` accepts until the machine restarts."""
        state = bytes(STATE_BYTES) if self.state is None else self.state.pack()
        return packed_header(self.topic_id, self.status) + state + self.recovery_point

    @classmethod
    def unpack(cls, data: bytes | None) -> StateRecord | None:
        """Return the record in `data`; None unless `pack` wrote it since the machine started."""
        if data is None or len(data) != RECORD_BYTES:
            return None
        version, status, boot, topic = _HEADER.unpack_from(data)
        if version != _VERSION or boot != boot_id() or status not in PageStatus.__members__.values():
            return None
        try:
            state = SegmentState.unpack(data[_HEADER.size : _POINT_START]) if status != PageStatus.NONE else None
        except ValueError:
            return None
        return cls(str(uuid.UUID(bytes=topic)), PageStatus(status), state, data[_POINT_START:])

    def state_of(self, topic_id: str, active: Active | None) -> SegmentState | None:
        """Return the state; None unless it belongs to this topic and this `active` segment."""
        return _if_of_segment(self.state, active) if topic_id == self.topic_id else None


def recovery_point(page_value: bytes | None, topic_id: str, active: Active) -> tuple[SegmentState | None, DurableEnd]:
    """Return the `active` segment's recovery point or None, and the segment's durable end, by a page of any boot."""
    states: list[SegmentState | None] = [None, None]
    if page_value is not None and len(page_value) == RECORD_BYTES:
        version, _, _, topic = _HEADER.unpack_from(page_value)
        if version == _VERSION and topic == uuid.UUID(topic_id).bytes:
            packed_states = page_value[_HEADER.size : _POINT_START], page_value[_POINT_START:]
            states = [_unpacked_state(packed, active) for packed in packed_states]
    ends = ((state.flushed_offset, state.flushed_position) for state in states if state is not None)
    return states[1], DurableEnd(*max(ends, default=(0, 0)))


def _unpacked_state(packed: bytes, active: Active) -> SegmentState | None:
    with suppress(ValueError):
        return _if_of_segment(SegmentState.unpack(packed), active)
    return None


def _if_of_segment(state: SegmentState | None, active: Active | None) -> SegmentState | None:
    if state is None or active is None:
        return None
    return state if (state.stem, state.base_offset) == (active.stem, active.base_offset) else None


def stored_page_value(path: str) -> bytes | None:
    """Return the value of the page in a lock's file, read without the lock; None without a file or a whole value."""
    return _parsed_page(path, read_newest)


def _parsed_page(path: str, parse: Callable[[Callable[[], bytes]], T]) -> T | None:
    with failing_as("read", path):
        try:
            file = open_page(path)
        except FileNotFoundError:
            return None
        with OpenedFile(file):
            return parse(partial(os.pread, file, PAGE_BYTES, 0))


def packed_header(topic_id: str, status: PageStatus) -> bytes:
    return _HEADER.pack(_VERSION, status, boot_id(), uuid.UUID(topic_id).bytes)


class PartitionLock(FileLock):
    """The lock of the partition in `folder`, and its page."""

    def __init__(self, folder: str, topic_id: str, timeout_s: float) -> None:
        super().__init__(os.path.join(folder, paths.LOCK_FILE), timeout_s)
        self._topic_id = topic_id
        # packed once, since every append writes it
        self._active_header = packed_header(topic_id, PageStatus.ACTIVE)
        self.recovery_point = NO_POINT

    def is_durable(self, stem: str, end_offset: int) -> bool:
        """True if by the page the active segment `stem` is durable up to this offset; needs no lock."""
        page_value, size = self.page.read(), len(self._active_header)
        if page_value is None or len(page_value) != RECORD_BYTES or not page_value.startswith(self._active_header):
            return False
        return packed_flushed(page_value[size:], stem) >= end_offset

    def stored_record(self) -> StateRecord | None:
        """The page's record; None without a file, or if the page is not valid in this boot."""
        return StateRecord.unpack(stored_page_value(self.path))

    @property
    def recovery_position(self) -> int:
        return packed_position(self.recovery_point)

    def publish(self, status: PageStatus, state: SegmentState | None) -> None:
        self.page.write(StateRecord(self._topic_id, status, state, self.recovery_point).pack())

    def publish_active(self, packed_state: bytes) -> bytes:
        """Write the page of an active segment; returns the page's value."""
        page_value = self._active_header + packed_state + self.recovery_point
        self.page.write(page_value)
        return page_value


# The kernel reports a disk error once, to the processes that have the file open, and then counts the bytes as
# written: the next sync may succeed without them. So before a sync starts, its outcome is marked as unknown in the
# flush lock's page. The mark is valid until the machine restarts.
class FlushOutcome(Enum):
    """The outcome of a segment's last sync.

    STARTED: unknown, as the sync is running, or its process died. ENDED: it succeeded. DOUBTED: it succeeded, but the
    writer of later records may have been killed, and the kernel may have lost them: the next sync must read them.
    """

    STARTED = b"B"
    FAILED = b"F"
    DOUBTED = b"D"
    ENDED = b""


def packed_outcome(outcome: FlushOutcome, stem: str) -> bytes:
    return b"" if outcome == FlushOutcome.ENDED else b"".join((boot_id(), outcome.value, stem.encode("ascii")))


def outcome_in(page_value: bytes | None, stem: str) -> FlushOutcome:
    if not page_value:
        return FlushOutcome.ENDED
    outcomes = (outcome for outcome in FlushOutcome if page_value == packed_outcome(outcome, stem))
    return next(outcomes, FlushOutcome.ENDED)


def stored_outcome(folder: str, stem: str) -> FlushOutcome:
    return outcome_in(stored_page_value(os.path.join(folder, paths.FLUSH_FILE)), stem)


def mark_doubted(folder: str, stem: str) -> bool:
    """Mark that the next sync of the segment must read its unflushed records; False while a sync is running."""
    with closing(FileLock(os.path.join(folder, paths.FLUSH_FILE))) as lock, suppress(StorageError):
        with lock.held(0) as page:
            if outcome_in(page.read(), stem) == FlushOutcome.ENDED:
                page.write(packed_outcome(FlushOutcome.DOUBTED, stem))
        return True
    return False


def may_have_failed_sync(folder: str, stem: str) -> bool:
    """True if the segment's last sync failed, or its process died before the outcome was published."""
    with closing(FileLock(os.path.join(folder, paths.FLUSH_FILE))) as lock:
        with suppress(StorageError), lock.held(0) as page:
            return outcome_in(page.read(), stem) in (FlushOutcome.STARTED, FlushOutcome.FAILED)
        # the flush lock is held: a sync is running, or a process cuts and seals the segment after a failed one
        return stored_outcome(folder, stem) == FlushOutcome.FAILED


class PartitionCounters(NamedTuple):
    """Counts of all processes' direct appends and syncs since the machine started; the first counters of a page.

    An append is timed from the request for the lock until readers can read the records. A flush is a sync of the log,
    also by a seal. Appends and seals are counted in the page of the partition's lock, flushes in the flush lock's.
    """

    appends: int = 0
    append_bytes: int = 0
    append_ns: int = 0
    flushes: int = 0
    flush_ns: int = 0


def counters_in(folder: str) -> PartitionCounters | None:
    """Return the counters of the partition in `folder`, or None without direct appends; needs no lock."""
    files = (os.path.join(folder, name) for name in (paths.LOCK_FILE, paths.FLUSH_FILE))
    pages = [page for path in files if (page := _parsed_page(path, lambda read: read()))]
    if not pages:
        return None
    sums = [sum(values) for values in zip(*map(counters_of, pages), strict=True)]
    return PartitionCounters(*sums[: len(PartitionCounters._fields)])
