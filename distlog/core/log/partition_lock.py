"""The lock of a partition, and the page in the lock's file, which has the state of the active segment."""

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

# The page has the state of the active segment, and a recovery point. Since the page is not synced, it may be older
# after a restart of the machine. So its state is valid only in the boot whose id it has. A flushed end and the
# recovery point (Kafka's `recovery-point-offset-checkpoint`) are valid in any boot, since they are written after a
# sync. Without a valid page, the state is rebuilt from the commit log and the segment.
_VERSION = 3
_HEADER = struct.Struct("=BB16s16s")
_POINT_START = _HEADER.size + STATE_BYTES
RECORD_BYTES = _HEADER.size + 2 * STATE_BYTES
#: The recovery point of a segment that was never synced.
NO_POINT = bytes(STATE_BYTES)


class PageStatus(IntEnum):
    """The status of a partition's active segment.

    NONE: there is no active segment. ACTIVE: it takes appends. CHANGING: it is being sealed, and only the commit log
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
    """The state of a partition's active segment or None, and its packed recovery point or NO_POINT."""

    topic_id: str
    status: PageStatus
    state: SegmentState | None = None
    recovery_point: bytes = NO_POINT

    def pack(self) -> bytes:
        """Pack the record into RECORD_BYTES bytes, which `unpack` accepts until the machine restarts."""
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
    """Return the `active` segment's recovery point or None, and its durable end, from a page of any boot."""
    state = point = None
    if page_value is not None and len(page_value) == RECORD_BYTES:
        version, _, _, topic = _HEADER.unpack_from(page_value)
        if version == _VERSION and topic == uuid.UUID(topic_id).bytes:
            state = _unpacked_state(page_value[_HEADER.size : _POINT_START], active)
            point = _unpacked_state(page_value[_POINT_START:], active)
    ends = [(stored.flushed_offset, stored.flushed_position) for stored in (state, point) if stored is not None]
    return point, DurableEnd(*max(ends, default=(0, 0)))


def _unpacked_state(packed: bytes, active: Active) -> SegmentState | None:
    with suppress(ValueError):
        return _if_of_segment(SegmentState.unpack(packed), active)
    return None


def _if_of_segment(state: SegmentState | None, active: Active | None) -> SegmentState | None:
    if state is None or active is None:
        return None
    return state if (state.stem, state.base_offset) == (active.stem, active.base_offset) else None


def stored_page_value(path: str) -> bytes | None:
    """Read the value of the page in a lock's file without the lock; None without a file or a whole value."""
    return _parsed_page(path, read_newest)


def _parsed_page(path: str, parse: Callable[[Callable[[], bytes]], T]) -> T | None:
    """Return the result of `parse`, which gets a function that reads the page; None without a file."""
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
        """Whether the page says that the active segment `stem` is on disk up to `end_offset`; needs no lock."""
        page_value, size = self.page.read(), len(self._active_header)
        if page_value is None or len(page_value) != RECORD_BYTES or not page_value.startswith(self._active_header):
            return False
        return packed_flushed(page_value[size:], stem) >= end_offset

    def stored_record(self) -> StateRecord | None:
        """Return the page's record; None without a file, or if the page is not valid in this boot."""
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


# The kernel reports a disk error only once, to the processes that have the file open. It then treats the bytes as
# written, so the next sync may succeed without them. So before a sync starts, the flush lock's page gets a mark that
# its outcome is unknown. A mark is valid for one segment, until the machine restarts.
class FlushOutcome(Enum):
    """The outcome of a segment's last sync.

    STARTED: unknown, since the sync is running, or its process died. ENDED: the sync succeeded. DOUBTED: the sync
    succeeded, but the kernel may have lost later records of a killed writer, so the next sync must read them.
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
    # a mark of another boot or segment does not apply
    outcomes = (outcome for outcome in FlushOutcome if page_value == packed_outcome(outcome, stem))
    return next(outcomes, FlushOutcome.ENDED)


def stored_outcome(folder: str, stem: str) -> FlushOutcome:
    return outcome_in(stored_page_value(os.path.join(folder, paths.FLUSH_FILE)), stem)


def mark_doubted(folder: str, stem: str) -> bool:
    """Mark that the next sync of the segment must read its unflushed records; False while a sync is running."""
    with closing(FileLock(os.path.join(folder, paths.FLUSH_FILE))) as lock:
        try:
            with lock.held(0) as page:
                if outcome_in(page.read(), stem) == FlushOutcome.ENDED:
                    page.write(packed_outcome(FlushOutcome.DOUBTED, stem))
        except StorageError:
            return False
    return True


def may_have_failed_sync(folder: str, stem: str) -> bool:
    """True if the segment's last sync failed, or its process died before it published the outcome."""
    with closing(FileLock(os.path.join(folder, paths.FLUSH_FILE))) as lock:
        with suppress(StorageError), lock.held(0) as page:
            return outcome_in(page.read(), stem) in (FlushOutcome.STARTED, FlushOutcome.FAILED)
        # the flush lock is held, by a sync or by a process that cuts and seals the segment after a failed sync
        return stored_outcome(folder, stem) == FlushOutcome.FAILED


class PartitionCounters(NamedTuple):
    """Counts the direct appends and syncs of all processes since the machine started; the first counters of a page.

    An append is timed from the request for the lock until readers can read the records. A flush is a sync of the log,
    also by a seal. The page of the partition's lock counts appends and seals, the flush lock's page other flushes.
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
