"""The content of a partition's lock page: which segment is active, its state, and its recovery point.

The page outlives processes. After a restart of the machine it may be an older one, so it holds the boot id: the state
is believed in the same boot only. The recovery point is believed in any boot. It is a state that the segment had when
its log and its indexes were synced, and it was written after that sync: so whichever page the device kept, what its
recovery point counts is on the device too. Kafka keeps the same in `recovery-point-offset-checkpoint`. Of a page that
does not check, nothing is believed: then the commit log and the segment's own log are asked.
"""

from __future__ import annotations

import os
import struct
import uuid
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from distlog.core.commits.format.actions import Active
from distlog.core.segments.segment_state import STATE_BYTES, SegmentState
from distlog.core.storage.local.durable_files import failing_as
from distlog.core.storage.local.shared_page import PAGE_BYTES, boot_id, read_newest

_VERSION = 3
_HEAD = struct.Struct("=BB16s16s")
_POINT_AT = _HEAD.size + STATE_BYTES
RECORD_BYTES = _HEAD.size + 2 * STATE_BYTES
#: Stands for the recovery point of a segment that was never synced.
NO_POINT = bytes(STATE_BYTES)


class Status(IntEnum):
    """What a partition's active segment is doing.

    There is none; it takes appends; it is being sealed, so that only the commit log knows; a sync of it failed, so
    that it must be cut to what was flushed before, and be sealed, before anything else; or an append failed and could
    not be taken back, so that the log must be cut to the state's end first: it may have batches that nobody counts.
    """

    NONE = 0
    ACTIVE = 1
    CHANGING = 2
    FAILED = 3
    TORN = 4


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The state of a partition's active segment, with the topic's id; `state` is None if no segment is active.

    `recovery_point` is a packed state of the same segment, or NO_POINT.
    """

    topic_id: str
    status: Status
    state: SegmentState | None = None
    recovery_point: bytes = NO_POINT

    def pack(self) -> bytes:
        """The record as RECORD_BYTES bytes; `unpack` accepts them until the machine is started again."""
        state = bytes(STATE_BYTES) if self.state is None else self.state.pack()
        return head(self.topic_id, self.status) + state + self.recovery_point

    @classmethod
    def unpack(cls, data: bytes | None) -> StateRecord | None:
        """The record of `data`, if `pack` made it since the machine was started; None for anything else."""
        if data is None or len(data) != RECORD_BYTES:
            return None
        version, status, boot, topic = _HEAD.unpack_from(data)
        if version != _VERSION or boot != boot_id() or status not in Status.__members__.values():
            return None
        try:
            state = SegmentState.unpack(data[_HEAD.size : _POINT_AT]) if status != Status.NONE else None
        except ValueError:
            return None
        return cls(str(uuid.UUID(bytes=topic)), Status(status), state, data[_POINT_AT:])

    def state_of(self, topic_id: str, active: Active | None) -> SegmentState | None:
        """The state, if it belongs to this topic and to this `active` segment; else None."""
        return _of_segment(self.state, active) if topic_id == self.topic_id else None


def recovery_point(data: bytes | None, topic_id: str, active: Active) -> SegmentState | None:
    """The recovery point of the `active` segment in a page's value, which may be of another boot; else None."""
    if data is None or len(data) != RECORD_BYTES:
        return None
    version, _, _, topic = _HEAD.unpack_from(data)
    if version != _VERSION or topic != uuid.UUID(topic_id).bytes:
        return None
    try:
        return _of_segment(SegmentState.unpack(data[_POINT_AT:]), active)
    except ValueError:
        return None


def _of_segment(state: SegmentState | None, active: Active | None) -> SegmentState | None:
    if state is None or active is None:
        return None
    return state if (state.stem, state.base_offset) == (active.stem, active.base_offset) else None


def stored_value(path: str) -> bytes | None:
    """What the page in the lock's file holds, read without the lock; None if there is no file, or no whole value."""
    with failing_as("read", path):
        try:
            with open(path, "rb", buffering=0) as file:
                return read_newest(partial(os.pread, file.fileno(), PAGE_BYTES, 0))
        except FileNotFoundError:
            return None


def head(topic_id: str, status: Status) -> bytes:
    """The bytes before the packed state."""
    return _HEAD.pack(_VERSION, status, boot_id(), uuid.UUID(topic_id).bytes)
