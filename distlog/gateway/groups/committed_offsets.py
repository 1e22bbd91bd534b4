"""The committed offsets of groups: Kafka's OffsetCommit, OffsetFetch and OffsetDelete, and their expiry."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from distlog.core.errors import CommitConflictError, CommitStateUnknownError, DistlogError, InvalidConfigError
from distlog.core.kafka.transactions import TopicPartition
from distlog.core.read.consumer_group import GroupLog
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC, OffsetKey, Position
from distlog.core.storage.storage import Storage
from distlog.gateway.cluster import GATEWAYS_GROUP, ROOT_ID
from distlog.gateway.config import GroupSettings
from distlog.gateway.event_log import FAILURES
from distlog.gateway.groups.classic_group import ClassicGroup, GroupPhase, OnStored
from distlog.gateway.groups.consumer_group import ConsumerGroup
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.groups.registry import Group, GroupRegistry, subscribed_topics
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import ErrorCode


class CommittedOffsets:
    """The committed offsets of the groups in a registry. An offset is visible when it is durable."""

    def __init__(self, groups: GroupRegistry, ended: EndedTransactions, *, retention_ms: int) -> None:
        self._groups, self._ended_transactions, self._retention_ms = groups, ended, retention_ms

    def commit(
        self,
        group: str,
        positions: Mapping[TopicPartition, Position],
        on_stored: OnStored,
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
    ) -> None:
        """Store all offsets or none. With the generation -1, the group may be missing, but must have no members."""
        try:
            _check_metadata(positions)
            missing = ErrorCode.illegal_generation
            with self._groups.locked(group, create=generation < 0, missing_code=missing) as entry:
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
        """Store offsets that apply when the producer's transaction is committed. `append` appends their records."""
        _check_metadata(positions)
        # do this first, so that the end of the producer's earlier transaction does not end this one
        self._ended_transactions.apply(group)
        missing = ErrorCode.illegal_generation
        with self._groups.locked(group, create=generation < 0, missing_code=missing) as entry:
            if generation >= 0 or member_id or instance_id is not None:  # older clients name no member
                if isinstance(entry.membership, ConsumerGroup):
                    entry.membership.check(member_id, generation, ErrorCode.illegal_generation)
                else:
                    # checks the member as `check_commit` does, but does not refuse a commit during a rebalance
                    entry.membership.heartbeat(member_id, instance_id, generation)
            if not entry.offsets.in_flight.isdisjoint(positions):
                # both changes are in flight: which one applies depends on their order in the log
                raise CoordinatorError(ErrorCode.coordinator_load_in_progress)
            # the number of ended transactions: `add_transactional` must know whether this one ends during the append
            ended_count = entry.offsets.begin_transactional_commit(positions)
        # append without the lock: heartbeats need it, and an append may take long
        try:
            append(entry.offsets.with_keys(positions))
            with entry.lock:
                entry.offsets.add_transactional(producer_id, positions, ended_count)
        finally:
            with entry.lock:
                entry.offsets.end_transactional_commit(positions)

    def fetch(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        stable: bool = False,
        member_id: str | None = None,
        epoch: int = -1,
    ) -> dict[TopicPartition, Position | ErrorCode | None]:
        """Return offsets, or a code if `stable` and an open transaction may replace the offset (KIP-447)."""
        try:
            existing = self._groups.get(group)
            if existing is not None and existing.offsets.has_pending:
                self._ended_transactions.apply(group)
            with self._groups.locked(group, missing_code=ErrorCode.group_id_not_found) as entry:
                if isinstance(entry.membership, ConsumerGroup) and (member_id or epoch >= 0):
                    entry.membership.check(member_id or "", epoch)
                offsets = entry.offsets
                pending = offsets.pending if stable else frozenset()
                partitions = {*offsets, *pending} if partitions is None else partitions
                return {
                    partition: ErrorCode.unstable_offset_commit if partition in pending else offsets.get(*partition)
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
        on_stored: OnStored,
    ) -> None:
        """Delete offsets in topics without a subscribed member. Adds codes to `results`, then calls `on_stored`."""
        with self._groups.locked(group, missing_code=ErrorCode.group_id_not_found) as entry:
            topics = subscribed_topics(entry.membership)
            if topics is None:
                raise CoordinatorError(ErrorCode.non_empty_group)
            for partition in partitions:
                results[partition] = ErrorCode.group_subscribed_to_topic if partition[0] in topics else ErrorCode.none
            deleted = [partition for partition, code in results.items() if code is ErrorCode.none]
            self._store(entry, dict.fromkeys(deleted), on_stored)

    def topics(self) -> set[str]:
        topics = set[str]()
        for group in self._groups.all():
            with group.lock:
                topics |= group.offsets.topics
        return topics

    def delete_topic(self, topic: str, on_failure: Callable[[], object] = lambda: None) -> None:
        """Delete the offsets in a dropped topic, since they would skip records in a new topic of this name."""

        def on_stored(code: ErrorCode) -> None:
            if code is not ErrorCode.none:
                on_failure()

        for group in self._groups.each_locked():
            partitions = [partition for partition in group.offsets.partitions if partition[0] == topic]
            self._store(group, dict.fromkeys(partitions), on_stored)

    def delete_older(self, replaced_ms: Mapping[str, int]) -> None:
        """Delete offsets from before `replaced_ms`, when their topics replaced dropped ones; not those in flight."""
        for group in self._groups.each_locked():
            self._forget_old(group, group.offsets.older_than(replaced_ms))

    def expire(self) -> None:
        """Delete offsets that were unused for the retention time, and groups without members and offsets."""
        for group in self._groups.each_locked():
            membership, offsets = group.membership, group.offsets
            self._forget_old(group, offsets.expired(membership, self._groups.wall_clock(), self._retention_ms))
            has_reserved_ids = isinstance(membership, ClassicGroup) and membership.reserved_ids
            is_unused = not offsets.partitions and not offsets.has_pending and not has_reserved_ids
            if membership.phase is GroupPhase.EMPTY and is_unused:
                self._groups.delete(group, lambda code: None)

    def _forget_old(self, group: Group, partitions: Iterable[TopicPartition]) -> None:
        # skip partitions with a change in flight, since a deletion would also delete the newer offset
        changing = group.offsets.pending | group.offsets.in_flight
        deleted = [partition for partition in partitions if partition not in changing]
        self._store(group, dict.fromkeys(deleted), lambda code: None)

    def _store(self, group: Group, changes: Mapping[TopicPartition, Position | None], on_stored: OnStored) -> None:
        def apply_stored(code: ErrorCode) -> None:
            with group.lock:
                group.offsets.end_commit(changes)
                if code is ErrorCode.none:
                    group.offsets.apply(changes)
            on_stored(code)

        if group.offsets.has_transactional_commit(changes):
            on_stored(ErrorCode.coordinator_load_in_progress)
        elif changes:
            group.offsets.begin_commit(changes)
            self._groups.store.store(group.membership.id, group.offsets.with_keys(changes), apply_stored)
        else:
            on_stored(ErrorCode.none)


class EndedTransactions:
    """Applies end markers of transactions to groups, since another gateway may coordinate the transactions."""

    def __init__(self, groups: GroupRegistry, markers: OffsetsTopic) -> None:
        self._groups, self._markers = groups, markers
        self._locks = defaultdict[int, threading.Lock](threading.Lock)

    def apply(self, group: str) -> None:
        """Apply the transactions that ended before this call, for all groups in the partition of this group."""
        number = self._markers.partition_of(group)
        with self._locks[number]:
            try:
                for ended in self._markers.ended(number):
                    # raises while the groups are being loaded: they would miss this end marker
                    self._groups.check(group)
                    for group_with_offsets in self._groups.all():
                        name = group_with_offsets.membership.id
                        if group_with_offsets.offsets.has_pending and self._markers.partition_of(name) == number:
                            with suppress(CoordinatorError), self._groups.locked(name) as entry:
                                entry.offsets.end_transaction(ended.producer_id, is_committed=ended.is_committed)
            except DistlogError as error:
                FAILURES.note("reading ends of transactions", error)
                # with any other code, librdkafka would stop reading the partitions
                raise CoordinatorError(ErrorCode.coordinator_load_in_progress) from error


MAX_METADATA_BYTES = 4096  # Kafka's `offset.metadata.max.bytes`

GroupChanges = Sequence[tuple[OffsetKey, Position | None]]


def _check_metadata(positions: Mapping[TopicPartition, Position]) -> None:
    if any(len(position.metadata.encode("utf-8", "replace")) > MAX_METADATA_BYTES for position in positions.values()):
        raise CoordinatorError(ErrorCode.offset_metadata_too_large)


def commit_positions(topic: Storage, group: str, positions: Mapping[int, int], *, since_ms: int = 0) -> None:
    """Commit a group's offsets by partition, without a gateway: durably, all or none. Raises DistlogError."""
    if topic.sibling(OFFSETS_TOPIC) is None:
        text = "no gateway can serve this topic: its address needs a folder above it"
        raise InvalidConfigError(text, url=topic.url)
    root, _, name = topic.url.rpartition("/")
    gateways = GroupLog(Storage(root, topic.options), ROOT_ID, GATEWAYS_GROUP)

    def check_no_gateway() -> None:
        if gateways.load().members:
            text = (
                "a gateway is running, or was killed: commit the offsets with kafka-consumer-groups --reset-offsets "
                "--from-file (start a gateway if none is running)"
            )
            raise CommitConflictError(text, group=group, root=root)

    check_no_gateway()
    store = OffsetsTopic(root, linger_ms=0, storage_options=topic.options)
    try:
        store.open()
        number = store.partition_of(group)
        # lead the partition: a gateway that starts now fences this store, or loads all these offsets
        store.begin([number], check_no_gateway)
        groups = GroupRegistry(store, GroupSettings())
        groups.load(store.load([number]))
        codes = queue.SimpleQueue[ErrorCode]()
        # offsets before `since_ms` would belong to a dropped topic of this name
        now_ms = max(groups.wall_clock(), since_ms)
        changes = {(name, partition): Position(offset, commit_ms=now_ms) for partition, offset in positions.items()}
        CommittedOffsets(groups, EndedTransactions(groups, store), retention_ms=0).commit(group, changes, codes.put)
        store.drain()
        _raise_for(codes.get(), group)
    finally:
        store.close()


def _raise_for(code: ErrorCode, group: str) -> None:
    if code is ErrorCode.unknown_member_id:
        raise CommitConflictError(
            "the group has members: stop them first; if they were killed, start a gateway and wait until their "
            "sessions have expired",
            group=group,
        )
    if code is ErrorCode.invalid_group_id:
        raise InvalidConfigError("Kafka clients cannot use this group name", group=group)
    if code is not ErrorCode.none:
        raise CommitStateUnknownError("the offsets may not be committed: retry", group=group, code=code.name)
