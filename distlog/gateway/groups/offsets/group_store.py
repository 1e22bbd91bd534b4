"""Where the coordinator keeps groups and positions: records that survive the gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kio.schema.errors import ErrorCode

from distlog.core.consumer_offsets.positions_format import OffsetKey, Position
from distlog.gateway.groups.members.group_record import GroupRecord
from distlog.gateway.groups.offsets.offsets_format import GroupKey

#: A key, and what it has now; None where it is deleted.
GroupChange = tuple[OffsetKey, Position | None] | tuple[GroupKey, GroupRecord | None]


@dataclass(frozen=True, slots=True)
class PendingPosition:
    """A position that counts when the transaction of its producer is committed."""

    producer_id: int
    key: OffsetKey
    position: Position


class GroupStore(Protocol):
    """Keeps changes in the order of a group's calls."""

    def store(self, group: str, changes: Sequence[GroupChange], done: Callable[[ErrorCode], None]) -> None:
        """Keep changes of one group; `done` is called when they are durable, or with what went wrong."""
