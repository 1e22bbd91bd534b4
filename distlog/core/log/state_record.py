"""What the page of a partition's lock holds: which segment is active, and how far it has come.

The page outlives processes, not the machine: after a power loss it may hold anything, so it bears the boot's id. What
is here is believed only if everything of it checks; else the commit log and the segment's own log are asked.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from enum import IntEnum

from distlog.core.commits.actions import Active
from distlog.core.log.segment_state import STATE_BYTES, SegmentState
from distlog.core.storage.local.shared_page import boot_id

_VERSION = 1
_HEAD = struct.Struct("=BB16s16s")
RECORD_BYTES = _HEAD.size + STATE_BYTES


class Status(IntEnum):
    """No segment is active; one is; or one is being sealed, so that only the commit log knows."""

    NONE = 0
    ACTIVE = 1
    CHANGING = 2


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The state of the active segment of a partition of a topic (its id); None where no segment is active."""

    topic_id: str
    status: Status
    state: SegmentState | None = None

    def pack(self) -> bytes:
        """RECORD_BYTES that `unpack` takes until the machine is started again."""
        state = bytes(STATE_BYTES) if self.state is None else self.state.pack()
        return head(self.topic_id, self.status) + state

    @classmethod
    def unpack(cls, data: bytes | None) -> StateRecord | None:
        """The record that `pack` made `data` of since the machine was started; None for anything else."""
        if data is None or len(data) != RECORD_BYTES:
            return None
        version, status, boot, topic = _HEAD.unpack_from(data)
        if version != _VERSION or boot != boot_id() or status not in Status.__members__.values():
            return None
        try:
            state = SegmentState.unpack(data[_HEAD.size :]) if status != Status.NONE else None
        except ValueError:
            return None
        return cls(str(uuid.UUID(bytes=topic)), Status(status), state)

    def state_of(self, topic_id: str, active: Active | None) -> SegmentState | None:
        """The state, if it is that of the segment that is `active` in the topic of that id; else None."""
        state = self.state
        if state is None or active is None or topic_id != self.topic_id:
            return None
        return state if (state.stem, state.base_offset) == (active.stem, active.base_offset) else None


def head(topic_id: str, status: Status) -> bytes:
    """What stands before the packed state."""
    return _HEAD.pack(_VERSION, status, boot_id(), uuid.UUID(topic_id).bytes)
