"""The committed offsets of groups: Kafka's OffsetCommit, OffsetFetch and OffsetDelete, and their expiry."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from distlog.core.errors import CommitConflictError, CommitStateUnknownError, DistlogError, InvalidConfigError
from distlog.core.kafka.transactions import TopicPartition
from distlog.core.read.consumer_offsets import OFFSETS_TOPIC, OffsetKey, Position
from distlog.core.read.group_log import GroupLog
from distlog.core.storage.storage import Storage
from distlog.gateway.cluster import GATEWAYS_GROUP, ROOT_ID
from distlog.gateway.config import GroupSettings
from distlog.gateway.event_log import FAILURES
from distlog.gateway.groups.classic_group import ClassicGroup, GroupPhase, Stored
from distlog.gateway.groups.consumer_group import ConsumerGroup
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.groups.registry import Group, GroupRegistry, read_topics
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import ErrorCode


class CommittedOffsets:
    """The committed offsets of the groups in a registry. An offset is visible when it is durable."""

    def __init__(self, groups: GroupRegistry, ended: EndedOffsets, *, retention_ms: int) -> None:
        self._groups, self._ended, self._retention_ms = groups, ended, retention_ms

    def commit(
        self,
        group: str,
        positions: Mapping[TopicPartition, Position],
        on_stored: Stored,
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
    ) -> None:
        """Store offsets, all or none; `on_stored` gets the code when they are durable, or refused.

        While a group has no members any client may commit, without a generation (-1); that creates a group, too.
        """
        try:
            _check_metadata(positions)
            missing = ErrorCode.illegal_generation
            with self._groups.locked(group, make=generation < 0, missing=missing) as entry:
                if isinstance(entry.membership, ConsumerGroup):
                    entry.membership.check(member_id, generation)
                else:
                    entry.membership.check_commit(member_id, instance_id, generation)
                self._store(entry, positions, on_stored)
        except CoordinatorError as refused:
            on_stored(refused.code)

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
        """Store offsets that apply when the producer's transaction commits; `append` appends them."""
        _check_metadata(positions)
        # applied before: the end of an earlier transaction of the producer must not end this one
        self._ended.learn(group)
        missing = ErrorCode.illegal_generation
        with self._groups.locked(group, make=generation < 0, missing=missing) as entry:
            if generation >= 0 or member_id or instance_id is not None:
                if isinstance(entry.membership, ConsumerGroup):
                    entry.membership.check(member_id, generation, ErrorCode.illegal_generation)
                else:
                    entry.membership.renew(entry.membership.member_of(member_id, instance_id, generation))
            if not entry.offsets.storing.isdisjoint(positions):
                # the order of both in the log decides, and is not known yet
                raise CoordinatorError(ErrorCode.coordinator_load_in_progress)
            first_end = entry.offsets.begin_joining(positions)
        # heartbeats need the group's lock, and an append may take long
        try:
            append(entry.offsets.keys(positions))
            with entry.lock:
                entry.offsets.joined(producer_id, positions, first_end)
        finally:
            with entry.lock:
                entry.offsets.end_joining(positions)

    def fetch(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        stable: bool = False,
        member_id: str | None = None,
        epoch: int = -1,
    ) -> dict[TopicPartition, Position | ErrorCode | None]:
        """Return the offsets in `partitions`, or all; the group may be unknown. Raises CoordinatorError.

        With `stable`, an offset that an open transaction may replace is a code: the client retries (KIP-447). A
        member of the newer protocol sends its epoch.
        """
        try:
            former = self._groups.get(group)
            if former is not None and former.offsets.has_pending:
                self._ended.learn(group)
            with self._groups.locked(group, missing=ErrorCode.group_id_not_found) as entry:
                if isinstance(entry.membership, ConsumerGroup) and (member_id or epoch >= 0):
                    entry.membership.check(member_id or "", epoch)
                positions = entry.offsets
                pending = positions.pending if stable else frozenset()
                partitions = {*positions, *pending} if partitions is None else partitions
                return {
                    partition: ErrorCode.unstable_offset_commit if partition in pending else positions.get(*partition)
                    for partition in partitions
                }
        except CoordinatorError as refused:
            if refused.code is not ErrorCode.group_id_not_found:
                raise
        return dict.fromkeys(partitions or ())

    def delete(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        results: dict[TopicPartition, ErrorCode],
        on_stored: Stored,
    ) -> None:
        """Delete offsets in topics that no member reads; `results` gets the codes before `on_stored`."""
        with self._groups.locked(group, missing=ErrorCode.group_id_not_found) as entry:
            topics = read_topics(entry.membership)
            if topics is None:
                raise CoordinatorError(ErrorCode.non_empty_group)
            for partition in partitions:
                results[partition] = ErrorCode.group_subscribed_to_topic if partition[0] in topics else ErrorCode.none
            self._store(
                entry, {partition: None for partition, code in results.items() if code is ErrorCode.none}, on_stored
            )

    def topics(self) -> set[str]:
        topics = set[str]()
        for group in self._groups.all():
            with group.lock:
                topics |= group.offsets.topics
        return topics

    def forget_topic(self, topic: str, failed: Callable[[], object] = lambda: None) -> None:
        """Delete the offsets in a dropped topic, where a new one would skip records; calls `failed` if some stay."""

        def stored(code: ErrorCode) -> None:
            if code is not ErrorCode.none:
                failed()

        for group in self._groups.each_locked():
            partitions = [partition for partition in group.offsets.partitions if partition[0] == topic]
            self._store(group, dict.fromkeys(partitions), stored)

    def forget_older(self, times_ms: Mapping[str, int]) -> None:
        """Delete offsets in these topics that are older than the topics. Call again, since some may stay."""
        for group in self._groups.each_locked():
            self._forget_old(group, group.offsets.older(times_ms))

    def expire(self) -> None:
        """Delete offsets that were unused for the retention time, and groups that have nothing left."""
        for group in self._groups.each_locked():
            membership, offsets = group.membership, group.offsets
            expired = offsets.expired(membership, self._groups.wall_clock(), self._retention_ms)
            self._forget_old(group, expired)
            is_promised = isinstance(membership, ClassicGroup) and membership.promised
            is_unused = not offsets.partitions and not offsets.has_pending and not is_promised
            if membership.phase is GroupPhase.EMPTY and is_unused:
                self._groups.forget(group, lambda code: None)

    def _forget_old(self, group: Group, partitions: Iterable[TopicPartition]) -> None:
        # a deletion would also delete a newer offset that is in flight
        newer = group.offsets.pending | group.offsets.storing
        self._store(
            group, dict.fromkeys(partition for partition in partitions if partition not in newer), lambda code: None
        )

    def _store(self, group: Group, changes: Mapping[TopicPartition, Position | None], on_stored: Stored) -> None:
        def stored(code: ErrorCode) -> None:
            with group.lock:
                group.offsets.end_storing(changes)
                if code is ErrorCode.none:
                    group.offsets.apply(changes)
            on_stored(code)

        if group.offsets.is_joining(changes):
            # the order of both in the log decides, and is not known yet
            on_stored(ErrorCode.coordinator_load_in_progress)
        elif changes:
            group.offsets.begin_storing(changes)
            self._groups.store.store(group.membership.id, group.offsets.keys(changes), stored)
        else:
            on_stored(ErrorCode.none)


# The coordinator of a transaction may be another gateway, so the coordinator of its groups reads the end markers.


class EndedOffsets:
    def __init__(self, groups: GroupRegistry, markers: OffsetsTopic) -> None:
        self._groups, self._markers = groups, markers
        self._locks = defaultdict[int, threading.Lock](threading.Lock)

    def learn(self, group: str) -> None:
        """Apply the transactions that ended before this call, for all groups of the partition."""
        number = self._markers.partition_of(group)
        with self._locks[number]:
            try:
                for ended in self._markers.ended(number):
                    # groups that are not loaded yet would miss the end marker
                    self._groups.check(group)
                    for group_with_offsets in self._groups.all():
                        name = group_with_offsets.membership.id
                        if group_with_offsets.offsets.has_pending and self._markers.partition_of(name) == number:
                            with suppress(CoordinatorError), self._groups.locked(name) as entry:
                                entry.offsets.end_transaction(ended.producer_id, is_committed=ended.is_committed)
            except DistlogError as error:
                FAILURES.note("reading ends of transactions", error)
                # at other codes librdkafka reads the partitions no more
                raise CoordinatorError(ErrorCode.coordinator_load_in_progress) from error


#: Kafka's `offset.metadata.max.bytes`.
MAX_METADATA_BYTES = 4096

GroupChanges = Sequence[tuple[OffsetKey, Position | None]]


def _check_metadata(positions: Mapping[TopicPartition, Position]) -> None:
    if any(len(position.metadata.encode("utf-8", "replace")) > MAX_METADATA_BYTES for position in positions.values()):
        raise CoordinatorError(ErrorCode.offset_metadata_too_large)


def commit_positions(topic: Storage, group: str, positions: Mapping[int, int], *, since_ms: int = 0) -> None:
    """Commit a group's offsets in `topic`, by partition, all or none; they are durable when this returns.

    Their time is at least `since_ms`: earlier offsets would belong to a dropped topic. This process leads the group's
    partition during the commit, so a gateway that starts now loads these offsets, or nothing was committed. Raises
    CommitConflictError if a gateway runs or the group has members; DistlogError.
    """
    if topic.sibling(OFFSETS_TOPIC) is None:
        raise InvalidConfigError("the topic is in no folder that a gateway could serve", url=topic.url)
    root, _, name = topic.url.rpartition("/")
    lease = GroupLog(Storage(root, topic.options), ROOT_ID, GATEWAYS_GROUP)

    def may_lead() -> None:
        if lease.load().members:
            raise CommitConflictError(
                "a gateway runs, or was killed: commit the offsets through it (start one if none runs), by "
                "kafka-consumer-groups --reset-offsets --from-file",
                group=group,
                root=root,
            )

    may_lead()
    store = OffsetsTopic(root, linger_ms=0, storage_options=topic.options)
    try:
        store.open()
        number = store.partition_of(group)
        store.begin([number], may_lead)
        groups = GroupRegistry(store, GroupSettings())
        groups.load(store.load([number]))
        codes = queue.SimpleQueue[ErrorCode]()
        now_ms = max(groups.wall_clock(), since_ms)
        changes = {(name, partition): Position(offset, commit_ms=now_ms) for partition, offset in positions.items()}
        CommittedOffsets(groups, EndedOffsets(groups, store), retention_ms=0).commit(group, changes, codes.put)
        store.drain()
        _check(codes.get(), group)
    finally:
        store.close()


def _check(code: ErrorCode, group: str) -> None:
    if code is ErrorCode.unknown_member_id:
        raise CommitConflictError(
            "the group has members: stop them first; members from before the gateway stopped count until a gateway "
            "has run again without them",
            group=group,
        )
    if code is ErrorCode.invalid_group_id:
        raise InvalidConfigError("Kafka clients cannot use this group name", group=group)
    if code is not ErrorCode.none:
        raise CommitStateUnknownError(f"the offsets may not be committed ({code.name}): retry", group=group)
