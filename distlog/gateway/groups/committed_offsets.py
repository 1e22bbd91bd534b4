"""How far groups have come: Kafka's OffsetCommit, OffsetFetch and OffsetDelete, and the expiry of positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from kio.schema.errors import ErrorCode

from distlog.gateway.groups.classic_group import GroupPhase, Stored
from distlog.gateway.groups.exchanges import GroupRefusedError
from distlog.gateway.groups.membership import check_commit
from distlog.gateway.groups.offsets_format import Position
from distlog.gateway.groups.positions import TopicPartition, read_topics
from distlog.gateway.groups.registry import Group, GroupRegistry

#: Kafka's `offset.metadata.max.bytes`.
MAX_METADATA_BYTES = 4096


class CommittedOffsets:
    """The positions of the groups in a registry. A position is seen when it is durable, not before."""

    def __init__(self, groups: GroupRegistry, *, retention_ms: int) -> None:
        self._groups, self._retention_ms = groups, retention_ms

    def commit(
        self,
        group: str,
        positions: Mapping[TopicPartition, Position],
        done: Stored,
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
    ) -> None:
        """Keep positions, all or none; `done` learns when they are durable, or why not.

        While a group has no members anybody may commit, without a generation (-1); that makes a group, too.
        """
        try:
            if any(len(each.metadata.encode("utf-8", "replace")) > MAX_METADATA_BYTES for each in positions.values()):
                raise GroupRefusedError(ErrorCode.offset_metadata_too_large)
            missing = ErrorCode.illegal_generation
            with self._groups.opened(group, make=generation < 0, missing=missing) as opened:
                check_commit(opened.membership, member_id, instance_id, generation)
                self._store(opened, positions, done)
        except GroupRefusedError as refused:
            done(refused.code)

    def fetch(self, group: str, wanted: Iterable[TopicPartition] | None) -> dict[TopicPartition, Position | None]:
        """The positions in the partitions that are wanted, or all that there are; a group may be unknown."""
        try:
            with self._groups.opened(group) as opened:
                positions = opened.positions
                return {place: positions.get(*place) for place in (positions if wanted is None else wanted)}
        except GroupRefusedError as refused:
            if refused.code is not ErrorCode.unknown_member_id:
                raise
        return dict.fromkeys(wanted or ())

    def delete(
        self, group: str, places: Iterable[TopicPartition], told: dict[TopicPartition, ErrorCode], done: Stored
    ) -> None:
        """Forget positions in topics that no member reads; `told` gets what each partition is told, before `done`.

        Raises GroupRefusedError if there is no such group, or it has members whose topics are not known.
        """
        with self._groups.opened(group, missing=ErrorCode.group_id_not_found) as opened:
            topics = read_topics(opened.membership)
            if topics is None:
                raise GroupRefusedError(ErrorCode.non_empty_group)
            for place in places:
                told[place] = ErrorCode.group_subscribed_to_topic if place[0] in topics else ErrorCode.none
            self._store(opened, {place: None for place, code in told.items() if code is ErrorCode.none}, done)

    def topics(self) -> set[str]:
        """The topics that groups have positions in."""
        found = set[str]()
        for name in self._groups.names():
            with suppress(GroupRefusedError), self._groups.opened(name) as group:
                found |= {topic for topic, _ in group.positions}
        return found

    def forget_topic(self, topic: str) -> None:
        """Forget all positions in a topic that was dropped: in one of the same name they would skip records."""
        for name in self._groups.names():
            with suppress(GroupRefusedError), self._groups.opened(name) as group:
                places = [place for place in group.positions if place[0] == topic]
                self._store(group, dict.fromkeys(places), lambda code: None)

    def expire(self) -> None:
        """Forget the positions that nobody has needed for the retention time, and groups that have nothing left."""
        for name in self._groups.names():
            with suppress(GroupRefusedError), self._groups.opened(name) as group:
                self._expire(group)

    def _expire(self, group: Group) -> None:
        membership = group.membership
        expired = group.positions.expired(membership, self._groups.wall_clock(), self._retention_ms)
        if expired:
            self._store(group, dict.fromkeys(expired), lambda code: None)
        if membership.phase is GroupPhase.EMPTY and not group.positions and not membership.promised:
            self._groups.forget(group, lambda code: None)

    def _store(self, group: Group, changes: Mapping[TopicPartition, Position | None], done: Stored) -> None:
        def stored(code: ErrorCode) -> None:
            with group.lock:
                if code is ErrorCode.none:
                    group.positions.apply(changes)
            done(code)

        if changes:
            self._groups.store.store(group.membership.id, group.positions.keys(changes), stored)
        else:
            done(ErrorCode.none)
