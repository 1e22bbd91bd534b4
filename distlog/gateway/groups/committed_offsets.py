"""How far groups have come: Kafka's OffsetCommit, OffsetFetch and OffsetDelete, and the expiry of positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from kio.schema.errors import ErrorCode

from distlog.core.consumer_offsets.positions_format import OffsetKey, Position
from distlog.gateway.groups.ended_positions import EndedPositions
from distlog.gateway.groups.group import Group
from distlog.gateway.groups.members.classic_group import GroupPhase, Stored
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.groups.members.membership import check_commit
from distlog.gateway.groups.offsets.positions import TopicPartition, read_topics
from distlog.gateway.groups.registry import GroupRegistry

#: Kafka's `offset.metadata.max.bytes`.
MAX_METADATA_BYTES = 4096

#: Positions by their keys, as they are stored.
GroupChanges = Sequence[tuple[OffsetKey, Position | None]]


class CommittedOffsets:
    """The positions of the groups in a registry. A position is seen when it is durable, not before."""

    def __init__(self, groups: GroupRegistry, ended: EndedPositions, *, retention_ms: int) -> None:
        self._groups, self._ended, self._retention_ms = groups, ended, retention_ms

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
            _check_metadata(positions)
            missing = ErrorCode.illegal_generation
            with self._groups.opened(group, make=generation < 0, missing=missing) as opened:
                check_commit(opened.membership, member_id, instance_id, generation)
                self._store(opened, positions, done)
        except GroupRefusedError as refused:
            done(refused.code)

    def commit_in_transaction(
        self,
        group: str,
        positions: Mapping[TopicPartition, Position],
        producer_id: int,
        append: Callable[[GroupChanges], None],
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
    ) -> None:
        """Keep positions that count when the producer's transaction is committed; `append` puts them into the log.

        Raises GroupRefusedError, and what `append` raises.
        """
        _check_metadata(positions)
        # of one producer, a transaction that ended before must not be taken for this one
        self._ended.learn(group)
        missing = ErrorCode.illegal_generation
        with self._groups.opened(group, make=generation < 0, missing=missing) as opened:
            if generation >= 0 or member_id or instance_id is not None:
                opened.membership.renew(opened.membership.checked(member_id, instance_id, generation))
            if opened.positions.is_storing(positions):
                # which of both comes first in the log decides, and nobody knows that yet
                raise GroupRefusedError(ErrorCode.coordinator_load_in_progress)
            begun = opened.positions.begin_joining(positions)
        # members live by the group's lock, and an append may take long
        try:
            append(opened.positions.keys(positions))
            with opened.lock:
                opened.positions.joined(producer_id, positions, begun)
        finally:
            with opened.lock:
                opened.positions.end_joining(positions)

    def fetch(
        self, group: str, wanted: Iterable[TopicPartition] | None, *, stable: bool = False
    ) -> dict[TopicPartition, Position | ErrorCode | None]:
        """The positions in the partitions that are wanted, or all that there are; a group may be unknown.

        Only `stable` ones: where a transaction decides, the code that tells the client to ask again (KIP-447).
        """
        try:
            if self._groups.has_pending(group):
                self._ended.learn(group)
            with self._groups.opened(group) as opened:
                positions = opened.positions
                pending = positions.pending if stable else frozenset()
                places = {*positions, *pending} if wanted is None else wanted
                return {
                    place: ErrorCode.unstable_offset_commit if place in pending else positions.get(*place)
                    for place in places
                }
        except GroupRefusedError as refused:
            if refused.code is not ErrorCode.unknown_member_id:
                raise
        return dict.fromkeys(wanted or ())

    def storing(self, group: str, places: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """The places whose positions are on their way: they may be durable already, and `fetch` has the old ones."""
        with suppress(GroupRefusedError), self._groups.opened(group) as opened:
            return frozenset(place for place in places if opened.positions.is_storing([place]))
        return frozenset()

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

    def forget_topic(self, topic: str, failed: Callable[[], object] = lambda: None) -> None:
        """Forget all positions in a topic that was dropped: in one of the same name they would skip records.

        `failed` is called, now or later, for positions that stay: then ask again, as `DroppedTopics` does.
        """

        def stored(code: ErrorCode) -> None:
            if code is not ErrorCode.none:
                failed()

        for name in self._groups.names():
            # others answer for a group that this gateway refuses
            with suppress(GroupRefusedError), self._groups.opened(name) as group:
                places = [place for place in {*group.positions, *group.positions.pending} if place[0] == topic]
                self._store(group, dict.fromkeys(places), stored)

    def expire(self) -> None:
        """Forget the positions that nobody has needed for the retention time, and groups that have nothing left."""
        for name in self._groups.names():
            with suppress(GroupRefusedError), self._groups.opened(name) as group:
                self._expire(group)

    def _expire(self, group: Group) -> None:
        membership = group.membership
        found = group.positions.expired(membership, self._groups.wall_clock(), self._retention_ms)
        expired = [place for place in found if place not in group.positions.pending]
        if expired:
            self._store(group, dict.fromkeys(expired), lambda code: None)
        is_unused = not group.positions and not membership.promised
        if membership.phase is GroupPhase.EMPTY and is_unused and not group.positions.has_pending:
            self._groups.forget(group, lambda code: None)

    def _store(self, group: Group, changes: Mapping[TopicPartition, Position | None], done: Stored) -> None:
        def stored(code: ErrorCode) -> None:
            with group.lock:
                group.positions.end_storing(changes)
                if code is ErrorCode.none:
                    group.positions.apply(changes)
            done(code)

        if group.positions.is_joining(changes):
            # which of both comes first in the log decides, and nobody knows that yet
            done(ErrorCode.coordinator_load_in_progress)
        elif changes:
            group.positions.begin_storing(changes)
            self._groups.store.store(group.membership.id, group.positions.keys(changes), stored)
        else:
            done(ErrorCode.none)


def _check_metadata(positions: Mapping[TopicPartition, Position]) -> None:
    if any(len(each.metadata.encode("utf-8", "replace")) > MAX_METADATA_BYTES for each in positions.values()):
        raise GroupRefusedError(ErrorCode.offset_metadata_too_large)
