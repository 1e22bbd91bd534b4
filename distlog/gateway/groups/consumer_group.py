"""One consumer group by Kafka's newer protocol (KIP-848): the coordinator assigns partitions to each member."""

from __future__ import annotations

import dataclasses
import heapq
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.errors import InvalidTopicError, TopicNotFoundError
from distlog.core.storage.calls import WorkerThreads, in_parallel
from distlog.gateway.config import GroupConfigs, GroupSettings
from distlog.gateway.groups.classic_group import GroupPhase, OnStored
from distlog.gateway.groups.offsets_format import (
    MEMBER_RECORD_KINDS,
    ConsumerGroupKey,
    ConsumerValue,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    RecordKind,
    TopicIdPartition,
)
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.topics.topic_index import TopicSummary

_log = logging.getLogger("distlog.gateway")

#: The epochs in heartbeats of members that join, of members that leave, and of static members that will come back.
JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2
_NO_ASSIGNMENT = CurrentAssignment(JOINS, JOINS, MemberState.STABLE, assigned=frozenset(), revoking=frozenset())

# This follows Kafka's GroupMetadataManager, ConsumerGroup and CurrentAssignmentBuilder. The group's epoch grows when
# members, subscriptions or subscribed topics change. Then an assignor chooses the target of each member, that is, the
# partitions that it shall have. A member first revokes partitions outside of its target. Then it gets the new epoch,
# and the partitions of its target that no other member has. No method waits or does I/O. The state changes at once; a
# response is sent when all earlier records are durable. Not thread-safe: the coordinator holds the group's lock.


class ConsumerGroup:
    """The group `id`. `clock` returns monotonic ms, and `wall_clock` ms since 1970."""

    def __init__(
        self,
        id: str,
        configs: GroupConfigs,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], int],
        new_id: Callable[[], str],
        save: SaveConsumers,
    ) -> None:
        self.id, self._configs, self.clock, self._new_id = id, configs, clock, new_id
        self._wall_clock, self._save = wall_clock, save
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, frozenset[TopicIdPartition]] = {}
        self.epoch = self.target_epoch = 0
        #: When the group became empty, in ms since 1970; -1 if unknown. It is used only while the group is empty.
        self.phase_since_ms = wall_clock()
        #: The topics of the last assignment; None if another gateway made the assignment.
        self._topics: dict[str, TopicSummary] | None = {}
        self._subscriptions: Subscriptions | None = None
        self._changes: dict[ConsumerGroupKey, ConsumerValue | None] = {}
        #: Whether the next store writes all records again, since a failed store may have left some out of the log.
        self._rewrites_all = False
        #: The callbacks of the last store in flight; None if there is none.
        self._in_flight: list[OnStored] | None = None

    @property
    def settings(self) -> GroupSettings:
        return self._configs.of(self.id)

    @property
    def phase(self) -> GroupPhase:
        if not self.members:
            return GroupPhase.EMPTY
        if self.epoch > self.target_epoch:
            return GroupPhase.ASSIGNING
        stable = (MemberState.STABLE, self.target_epoch)
        all_stable = all((member.current.state, member.current.epoch) == stable for member in self.members.values())
        return GroupPhase.STABLE if all_stable else GroupPhase.RECONCILING

    @property
    def assignor(self) -> str:
        votes = Counter(member.metadata.assignor for member in self.members.values() if member.metadata.assignor)
        return votes.most_common(1)[0][0] if votes else next(iter(ASSIGNORS))

    @property
    def subscriptions(self) -> Subscriptions:
        if self._subscriptions is None:
            self._subscriptions = Subscriptions.of(self.members.values())
        return self._subscriptions

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The subscribed topics that existed at the last assignment; if there were none, all subscribed names.

        If another gateway made the assignment: all subscribed names, or None if members subscribe to patterns.
        """
        if self._topics is None and self.subscriptions.patterns:
            return None
        return frozenset(self._topics or self.subscriptions.names)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.metadata.instance_id == instance_id), None)

    def check(self, member_id: str, epoch: int, stale_code: ErrorCode = ErrorCode.stale_member_epoch) -> None:
        """Raise CoordinatorError unless a request for the group's offsets has the current epoch of its member."""
        # clients without a membership (epoch -1) may commit offsets while the group has no members
        if not self.members and epoch < 0:
            return
        member = self.members.get(member_id)
        if member is None:
            raise CoordinatorError(ErrorCode.unknown_member_id)
        if member.current.epoch != epoch:
            raise CoordinatorError(stale_code)

    def heartbeat(self, request: ConsumerHeartbeat, topics: SubscribedTopics, answer: AnswerHeartbeat) -> None:
        try:
            if request.epoch < JOINS:
                self._leave(request)
                reply = HeartbeatReply(member_id=request.member_id, epoch=request.epoch)
            else:
                reply = self._join_or_continue(request, topics)
        except CoordinatorError as refused:
            reply = HeartbeatReply(error=refused.code)
        self._store(lambda code: answer(reply if code is ErrorCode.none else HeartbeatReply(error=code)))

    def _join_or_continue(self, request: ConsumerHeartbeat, topics: SubscribedTopics) -> HeartbeatReply:
        subscribes = request.epoch == JOINS or (request.topics, request.pattern) != (None, None)
        patterns = (request.pattern,) if request.pattern else ()
        if subscribes and not topics.has_read(request.topics or (), patterns):
            # the topics could not be read: the client tries again
            raise CoordinatorError(ErrorCode.coordinator_load_in_progress)
        member, is_new = self._find_or_create_member(request)
        previous_assigned, previous = member.current.assigned, member.metadata
        metadata = _updated(previous, request)
        subscription_changed = is_new or (metadata.topics, metadata.pattern) != (previous.topics, previous.pattern)
        if is_new or metadata != previous:
            member.metadata, self._subscriptions = metadata, None
            self._change(RecordKind.MEMBER, metadata, member.id)
        if subscription_changed:
            self._begin_epoch()
        # until all subscribed topics were read, the assignment waits for a later heartbeat
        if topics.has_read(self.subscriptions.names, self.subscriptions.patterns):
            names = self.subscriptions.topic_names(topics)
            subscribed = {name: summary for name in names if (summary := topics.summary(name)) is not None}
            # a topic was created or dropped, or has more partitions
            if self.epoch == self.target_epoch and not self._is_assigned(subscribed):
                self._begin_epoch()
            self._topics = subscribed
            if self.epoch > self.target_epoch:
                self._assign(topics)
        self._reconcile(member, request.owned)
        member.expires_at = self.clock() + self.settings.consumer_session_timeout_ms
        has_assignment = request.is_full or member.current.assigned != previous_assigned
        assigned = member.current.assigned if has_assignment else None
        return HeartbeatReply(member_id=member.id, epoch=member.current.epoch, assigned=assigned)

    def _find_or_create_member(self, request: ConsumerHeartbeat) -> tuple[ConsumerMember, bool]:
        """Return the member of a heartbeat, and whether it is new. Raises CoordinatorError."""
        joins = request.epoch == JOINS
        member = self.members.get(request.member_id)
        static_member = self.static_member(request.instance_id)
        if joins and static_member is not None and static_member.id != request.member_id:
            if static_member.current.epoch != LEAVES_FOR_A_WHILE:
                raise CoordinatorError(ErrorCode.unreleased_instance_id)
            return self._replace_static_member(static_member, request.member_id or self._new_id()), False
        if joins and member is not None:
            return member, False
        if joins:
            if len(self.members) >= self.settings.max_size:
                raise CoordinatorError(ErrorCode.group_max_size_reached)
            member = ConsumerMember(request.member_id or self._new_id(), MemberMetadata(), _NO_ASSIGNMENT)
            self.members[member.id] = member
            return member, True
        member = self._existing_member(request)
        current, owned = member.current, request.owned
        if request.epoch != current.epoch:
            # if the response with its new epoch was lost, a member repeats its heartbeat with the previous epoch
            is_repeated = request.epoch == current.previous_epoch and owned is not None and owned <= current.assigned
            # a static member that left for a while must join again: its previous epoch is larger than its epoch, -2
            if not is_repeated or request.epoch > current.epoch:
                raise CoordinatorError(ErrorCode.fenced_member_epoch)
        return member, False

    def _existing_member(self, request: ConsumerHeartbeat) -> ConsumerMember:
        member = self.members.get(request.member_id)
        if request.instance_id is not None:
            member = self.static_member(request.instance_id)
            if member is not None and member.id != request.member_id:
                raise CoordinatorError(ErrorCode.fenced_instance_id)
        if member is None:
            raise CoordinatorError(ErrorCode.unknown_member_id)
        return member

    def _replace_static_member(self, former: ConsumerMember, member_id: str) -> ConsumerMember:
        """Replace a static member that has restarted: the new id gets the metadata and partitions of the former."""
        target = self.target.pop(former.id, frozenset())
        self._drop_member(former)
        member = dataclasses.replace(former, id=member_id)
        self.members[member_id], self.target[member_id] = member, target
        self._change(RecordKind.MEMBER, member.metadata, member_id)
        self._change(RecordKind.TARGET, target, member_id)
        self._change(RecordKind.CURRENT, member.current, member_id)
        return member

    def _leave(self, request: ConsumerHeartbeat) -> None:
        member = self._existing_member(request)
        if request.epoch == LEAVES_FOR_A_WHILE:
            # a static member keeps its partitions until it comes back, or its session ends
            epoch, previous_epoch, assigned = LEAVES_FOR_A_WHILE, member.current.epoch, member.current.assigned
            current = CurrentAssignment(epoch, previous_epoch, MemberState.STABLE, assigned, revoking=frozenset())
            self._set_assignment(member, current)
        else:
            self._remove(member)

    def _remove(self, member: ConsumerMember) -> None:
        self.target.pop(member.id, None)
        self._drop_member(member)
        self._begin_epoch()
        if not self.members:
            self.phase_since_ms = self._wall_clock()

    def _drop_member(self, member: ConsumerMember) -> None:
        del self.members[member.id]
        self._subscriptions = None
        for kind in MEMBER_RECORD_KINDS:
            self._change(kind, None, member.id)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._change(RecordKind.EPOCH, self.epoch)

    def _is_assigned(self, topics: Mapping[str, TopicSummary]) -> bool:
        """Whether the target has all partitions of `topics`, and no others."""
        if self._topics is not None:
            return topics == self._topics
        # another gateway made the assignment: compare the partitions
        assigned = set[TopicIdPartition]().union(*self.target.values())
        existing = {(topic_uuid(summary), n) for summary in topics.values() for n in range(summary.partitions)}
        return assigned == existing

    def _assign(self, topics: SubscribedTopics) -> None:
        summaries = self._topics or {}
        members = {
            member.id: Subscriber(
                member.sort_name,
                frozenset(topic_uuid(summaries[name]) for name in member.topic_names(topics) if name in summaries),
                self.target.get(member.id, frozenset()),
            )
            for member in self.members.values()
        }
        partition_counts = {topic_uuid(summary): summary.partitions for summary in summaries.values()}
        target = ASSIGNORS[self.assignor](members, partition_counts)
        for id, partitions in target.items():
            if partitions != self.target.get(id):
                self._change(RecordKind.TARGET, partitions, id)
        self.target, self.target_epoch = target, self.epoch
        self._change(RecordKind.TARGET_EPOCH, self.epoch)

    def _reconcile(self, member: ConsumerMember, owned: frozenset[TopicIdPartition] | None) -> None:
        """Take a member's next step to its target; `owned` are the partitions that the member reports."""
        current = member.current
        if current.state is MemberState.STABLE and current.epoch == self.target_epoch:
            return
        # the member has not reported yet that it gave back all revoked partitions
        if current.state is MemberState.UNREVOKED_PARTITIONS and (owned is None or owned & current.revoking):
            return
        target = self.target.get(member.id, frozenset())
        retained, to_revoke = current.assigned & target, current.assigned - target
        if to_revoke and (owned is None or owned & to_revoke):  # unless the member has already given them back
            unrevoked = MemberState.UNREVOKED_PARTITIONS
            assignment = CurrentAssignment(current.epoch, current.previous_epoch, unrevoked, retained, to_revoke)
        else:
            free = self._free(target - retained, member)
            state = MemberState.STABLE if free == target - retained else MemberState.UNRELEASED_PARTITIONS
            # if the epoch does not change, keep the previous one, which a repeated heartbeat may still have
            previous_epoch = current.previous_epoch if current.epoch == self.target_epoch else current.epoch
            assignment = CurrentAssignment(self.target_epoch, previous_epoch, state, retained | free, frozenset())
        self._set_assignment(member, assignment)

    def _free(self, partitions: frozenset[TopicIdPartition], member: ConsumerMember) -> frozenset[TopicIdPartition]:
        """The part of `partitions` that no other member has or must still revoke."""
        assignments = [other.current for other in self.members.values() if other is not member]
        return partitions.difference(*(assignment.assigned | assignment.revoking for assignment in assignments))

    def _set_assignment(self, member: ConsumerMember, assignment: CurrentAssignment) -> None:
        if assignment == member.current:
            return
        must_revoke = assignment.state is MemberState.UNREVOKED_PARTITIONS
        member.revoke_by = (self.clock() + member.metadata.rebalance_timeout_ms) if must_revoke else inf
        member.current = assignment
        self._change(RecordKind.CURRENT, assignment, member.id)

    def _change(self, kind: RecordKind, value: ConsumerValue | None, member: str = "") -> None:
        self._changes[ConsumerGroupKey(self.id, kind, member)] = value

    def _store(self, on_stored: OnStored = lambda code: None) -> None:
        """Store the changes since the last call; or everything, if an earlier store has failed."""
        changes, self._changes = self._changes, {}
        if self._rewrites_all:
            changes.update(self._all_records())
        if not changes:
            if self._in_flight is None:
                on_stored(ErrorCode.none)
            else:
                # the response would report a state that is not durable yet
                self._in_flight.append(on_stored)
            return
        self._rewrites_all = False
        callbacks = self._in_flight = [on_stored]  # later calls without changes add theirs

        def on_saved(code: ErrorCode) -> None:
            if code is not ErrorCode.none:
                self._rewrites_all = True
                # `_all_records` yields no deletions; without them, a load would restore deleted records
                tombstones = {key: value for key, value in changes.items() if value is None}
                self._changes = {**tombstones, **self._changes}
            if self._in_flight is callbacks:  # no later store is in flight
                self._in_flight = None
            for callback in callbacks:
                callback(code)

        self._save(self.id, list(changes.items()), on_saved)

    def _all_records(self) -> Iterator[tuple[ConsumerGroupKey, ConsumerValue]]:
        yield ConsumerGroupKey(self.id, RecordKind.EPOCH), self.epoch
        yield ConsumerGroupKey(self.id, RecordKind.TARGET_EPOCH), self.target_epoch
        for member in self.members.values():
            yield ConsumerGroupKey(self.id, RecordKind.MEMBER, member.id), member.metadata
            yield ConsumerGroupKey(self.id, RecordKind.TARGET, member.id), self.target.get(member.id, frozenset())
            yield ConsumerGroupKey(self.id, RecordKind.CURRENT, member.id), member.current

    def restore(self, records: Mapping[ConsumerGroupKey, ConsumerValue]) -> None:
        """Restore stored records; sessions begin now. A member without a stored assignment gets an empty one."""
        self.phase_since_ms, self._topics = -1, None
        for key, value in records.items():
            if key.kind is RecordKind.EPOCH and isinstance(value, int):
                self.epoch = value
            elif key.kind is RecordKind.TARGET_EPOCH and isinstance(value, int):
                self.target_epoch = value
            elif key.kind is RecordKind.TARGET and isinstance(value, frozenset):
                self.target[key.member_id] = value
            elif isinstance(value, MemberMetadata):
                current = records.get(ConsumerGroupKey(self.id, RecordKind.CURRENT, key.member_id))
                assignment = current if isinstance(current, CurrentAssignment) else _NO_ASSIGNMENT
                member = self.members[key.member_id] = ConsumerMember(key.member_id, value, assignment)
                member.expires_at = self.clock() + self.settings.consumer_session_timeout_ms
                if assignment.state is MemberState.UNREVOKED_PARTITIONS:
                    member.revoke_by = self.clock() + value.rebalance_timeout_ms

    def deletions(self) -> ConsumerChanges:
        """Tombstones for all records of a group without members."""
        # `_drop_member` has noted tombstones of former members, which may not be stored yet
        tombstones = (key for key, value in self._changes.items() if value is None)
        epochs = (ConsumerGroupKey(self.id, kind) for kind in (RecordKind.EPOCH, RecordKind.TARGET_EPOCH))
        return [(key, None) for key in (*tombstones, *epochs)]

    @property
    def next_deadline(self) -> float:
        return min((min(member.expires_at, member.revoke_by) for member in self.members.values()), default=inf)

    def expire(self) -> None:
        """Remove members that sent no heartbeat, or did not revoke partitions, in time."""
        now = self.clock()
        for member in list(self.members.values()):
            if min(member.expires_at, member.revoke_by) <= now:
                self._remove(member)
        self._store()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A heartbeat. None, or -1 for a time, means unchanged. An empty `pattern` removes the member's pattern."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: frozenset[TopicIdPartition] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the heartbeat has all fields, so that its response must have the assignment."""
        return self.epoch == JOINS or (None not in (self.topics, self.owned) and self.rebalance_timeout_ms != -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """A member's epoch, and its partitions if they have changed; or an error."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assigned: frozenset[TopicIdPartition] | None = None


AnswerHeartbeat = Callable[[HeartbeatReply], None]


@dataclass(slots=True)
class ConsumerMember:
    """A member; deadlines are by the coordinator's clock, in ms."""

    id: str
    metadata: MemberMetadata
    current: CurrentAssignment
    expires_at: float = inf
    revoke_by: float = inf

    @property
    def sort_name(self) -> str:
        """The text by which assignors sort members; a static member keeps it after a restart."""
        return self.metadata.instance_id or self.id

    def topic_names(self, known_topics: SubscribedTopics) -> set[str]:
        pattern = self.metadata.pattern
        return {*self.metadata.topics, *(known_topics.matching(pattern) if pattern else ())}


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The names of topics, and the patterns of names, to which the members of a group subscribe."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()

    @classmethod
    def of(cls, members: Iterable[ConsumerMember]) -> Subscriptions:
        metadata = [member.metadata for member in members]
        names = frozenset(name for subscribed in metadata for name in subscribed.topics)
        return cls(names, frozenset(subscribed.pattern for subscribed in metadata if subscribed.pattern))

    def topic_names(self, known_topics: SubscribedTopics) -> set[str]:
        return {*self.names, *(name for pattern in self.patterns for name in known_topics.matching(pattern))}


ConsumerChanges = Sequence[tuple[ConsumerGroupKey, ConsumerValue | None]]
#: Stores records of a group and calls back, at once or later; raises nothing.
SaveConsumers = Callable[[str, ConsumerChanges, OnStored], None]


def topic_uuid(summary: TopicSummary) -> uuid.UUID:
    return uuid.UUID(summary.topic_id)


def _updated(previous: MemberMetadata, request: ConsumerHeartbeat) -> MemberMetadata:
    timeout_ms = request.rebalance_timeout_ms
    return MemberMetadata(
        instance_id=previous.instance_id if request.instance_id is None else request.instance_id,
        rack_id=previous.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=previous.topics if request.topics is None else tuple(sorted(set(request.topics))),
        pattern=previous.pattern if request.pattern is None else request.pattern or None,
        rebalance_timeout_ms=previous.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=previous.assignor if request.assignor is None else request.assignor,
    )


def check_heartbeat(request: ConsumerHeartbeat, version: int) -> None:
    """Raise CoordinatorError for an invalid request. Only in `version` 0 may a new member have no id."""
    names_no_topics = request.topics is None and not request.pattern
    is_wrong = (
        request.epoch < LEAVES_FOR_A_WHILE
        or (not request.member_id and (version > 0 or request.epoch != JOINS))
        or request.instance_id == ""
        or request.rack_id == ""
        or (request.epoch == LEAVES_FOR_A_WHILE and request.instance_id is None)
        or (request.epoch == JOINS and (request.rebalance_timeout_ms < 0 or request.owned != frozenset()))
        or (request.epoch == JOINS and names_no_topics)
    )
    if is_wrong:
        raise CoordinatorError(ErrorCode.invalid_request)
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise CoordinatorError(ErrorCode.unsupported_assignor)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member for an assignor, which sorts members by `name`. `previous` is the member's last target."""

    name: str
    topics: frozenset[uuid.UUID]
    previous: frozenset[TopicIdPartition] = frozenset()


#: The partitions of each member, by member id.
Assignment = dict[str, frozenset[TopicIdPartition]]
#: Assigns partitions to members by id, given the number of partitions of each topic.
Assignor = Callable[[Mapping[str, Subscriber], Mapping[uuid.UUID, int]], Assignment]


def assign_ranges(members: Mapping[str, Subscriber], topics: Mapping[uuid.UUID, int]) -> Assignment:
    """Give each subscriber a range of each topic; topics with equal partition counts are divided in the same way."""
    partitions_of: dict[str, set[TopicIdPartition]] = {member: set() for member in members}
    ordered = sorted(members, key=lambda member: (members[member].name, member))
    for topic, count in topics.items():
        readers = [member for member in ordered if topic in members[member].topics]
        for index, reader in enumerate(readers):
            numbers = range(count * index // len(readers), count * (index + 1) // len(readers))
            partitions_of[reader].update((topic, number) for number in numbers)
    return {member: frozenset(partitions) for member, partitions in partitions_of.items()}


def assign_uniformly(members: Mapping[str, Subscriber], topics: Mapping[uuid.UUID, int]) -> Assignment:
    """Give members equal numbers of partitions, if their topics allow it. Members keep most of their partitions."""
    sharing = _Sharing(members, topics)
    sharing.keep_former()
    sharing.assign_rest()
    sharing.balance()
    return {member: frozenset(partitions) for member, partitions in sharing.partitions.items()}


class _Sharing:
    """The partitions of each member while `assign_uniformly` shares them out."""

    def __init__(self, members: Mapping[str, Subscriber], topics: Mapping[uuid.UUID, int]) -> None:
        self._members, self._topics = members, topics
        self.partitions: dict[str, set[TopicIdPartition]] = {member: set() for member in sorted(members)}
        self._readers = {
            topic: [member for member in self.partitions if topic in members[member].topics] for topic in topics
        }
        # partitions of topics to which no member subscribes are left out
        self._unassigned = {
            (topic, number) for topic, readers in self._readers.items() if readers for number in range(topics[topic])
        }

    def keep_former(self) -> None:
        """Let each member keep its former partitions, up to an equal share."""
        # `larger_shares` members get one partition more, first those with the most former partitions
        equal_share, larger_shares = divmod(len(self._unassigned), len(self.partitions) or 1)
        former_partitions = {
            id: {(topic, number) for topic, number in member.previous & self._unassigned if topic in member.topics}
            for id, member in self._members.items()
        }
        for id in sorted(self.partitions, key=lambda id: -len(former_partitions[id])):
            size = equal_share + (larger_shares > 0)
            retained = sorted(former_partitions[id] & self._unassigned)[:size]
            if len(retained) > equal_share:
                larger_shares -= 1
            self.partitions[id].update(retained)
            self._unassigned.difference_update(retained)

    def assign_rest(self) -> None:
        """Give each remaining partition to the reader of its topic with the fewest partitions."""
        for topic, partitions in groupby(sorted(self._unassigned), itemgetter(0)):
            heap = [(len(self.partitions[member]), member) for member in self._readers[topic]]
            heapq.heapify(heap)
            for partition in partitions:
                count, member = heap[0]
                self.partitions[member].add(partition)
                heapq.heapreplace(heap, (count + 1, member))

    def balance(self) -> None:
        """Move partitions until no member has two more than another reader of the same topic."""
        # even without this limit the moves would end, but in a large group they could take long
        remaining_moves = sum(self._topics.values())
        while remaining_moves and self._move_one():
            remaining_moves -= 1

    def _move_one(self) -> bool:
        """Move a partition to another reader of its topic that has at least two fewer. Returns False if none has."""
        order = sorted(self.partitions, key=lambda member: -len(self.partitions[member]))
        for giver in order:
            for topic in {topic for topic, _ in self.partitions[giver]}:
                taker = min(self._readers[topic], key=lambda member: len(self.partitions[member]))
                # if the giver has only one more, a move would only swap their numbers of partitions
                if len(self.partitions[giver]) >= len(self.partitions[taker]) + 2:
                    partition = max(partition for partition in self.partitions[giver] if partition[0] == topic)
                    self.partitions[giver].remove(partition)
                    self.partitions[taker].add(partition)
                    return True
        return False


#: The assignors by name; the first is the default.
ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}


class SubscribedTopics:
    """The topics of all groups, as they were read last. `find` returns a topic or raises TopicNotFoundError."""

    def __init__(self, find: Callable[[str], TopicSummary], names: Callable[[], Iterable[str]]) -> None:
        self._find, self._names = find, names
        self._summaries: dict[str, TopicSummary | None] = {}
        self._matching: dict[str, frozenset[str]] = {}
        self._thread = WorkerThreads(1, "group-topics")
        self._is_refresh_queued = False

    def summary(self, name: str) -> TopicSummary | None:
        return self._summaries.get(name)

    def matching(self, pattern: str) -> Iterable[str]:
        return self._matching.get(pattern, ())

    def has_read(self, names: Collection[str], patterns: Collection[str]) -> bool:
        """Whether all these topics were read. A missing topic counts as read after a lookup."""
        summaries, matching = self._summaries, self._matching
        if not all(pattern in matching for pattern in patterns):
            return False
        matched = (name for pattern in patterns for name in matching[pattern])
        return all(name in summaries for name in (*names, *matched))

    def when_known(self, names: Collection[str], patterns: Collection[str], work: Callable[[], None]) -> None:
        """Do `work` at once if these topics were read, else in another thread after reading them."""
        if self.has_read(names, patterns):
            work()
            return

        def read_and_work() -> None:
            self._read([*names], [*patterns], only_missing=True)
            try:
                work()
            except Exception:
                _log.exception("a heartbeat failed after its topics were read")

        self._thread.put(read_and_work)

    def refresh(self, names: Collection[str], patterns: Collection[str]) -> None:
        """Read these topics again in a thread, and forget all others; at most one refresh is queued."""

        def read_again() -> None:
            self._is_refresh_queued = False
            self._read([*names], [*patterns], only_missing=False)
            used = {*names, *(name for pattern in patterns for name in self.matching(pattern))}
            self._summaries = {name: summary for name, summary in self._summaries.items() if name in used}
            self._matching = {pattern: self._matching[pattern] for pattern in patterns if pattern in self._matching}

        if (names or patterns or self._summaries or self._matching) and not self._is_refresh_queued:
            self._is_refresh_queued = True
            self._thread.put(read_again)

    def _read(self, names: Collection[str], patterns: Collection[str], *, only_missing: bool) -> None:
        """Read topics, or only those that were never read; an unreadable topic keeps its former summary."""
        try:
            all_known = all(pattern in self._matching for pattern in patterns)
            if patterns and not (only_missing and all_known):
                listed = sorted(self._names())
                self._matching.update({pattern: matches(pattern, listed) for pattern in patterns})
        except Exception as error:
            # no error may end the refreshes
            _log.warning("the topics of groups cannot be listed: %s", error)
        topics = {*names, *(name for pattern in patterns for name in self.matching(pattern))}
        in_parallel(self._read_topic, sorted(topics - self._summaries.keys() if only_missing else topics))

    def _read_topic(self, name: str) -> None:
        try:
            self._summaries[name] = self._find(name)
        except (InvalidTopicError, TopicNotFoundError):
            self._summaries[name] = None
        except Exception as error:
            _log.debug("cannot read topic %s of a group: %s", name, error)

    def stop(self) -> None:
        self._thread.end(joined=True)


def matches(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that a regular expression (RE2, as in Kafka) matches completely. Raises ValueError."""
    # Arrow checks the expression only if there is a value
    listed = pa.array(["", *names], pa.string())
    matching = listed.filter(pc.match_substring_regex(listed, pattern=f"^(?:{pattern})$"))
    return frozenset(matching.to_pylist()) - {""}
