"""The coordinator of groups: it loads and unloads them as the gateway's lease, its share of partitions, changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError, LockHeldError, StorageRefusedError, TopicNotFoundError
from distlog.core.storage.calls import begin
from distlog.gateway.cluster import GatewayLease
from distlog.gateway.config import GroupSettings
from distlog.gateway.event_log import FAILURES
from distlog.gateway.groups import classic_group, consumer_group
from distlog.gateway.groups.committed_offsets import CommittedOffsets, EndedTransactions
from distlog.gateway.groups.offsets_format import CurrentAssignment, MemberMetadata, TopicIdPartition
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.groups.registry import MAX_TEXT_BYTES, CoordinatedEntries, Group, GroupRegistry
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import ErrorCode

#: The size of the suffix of a member's id: a hyphen and a UUID.
_ID_SUFFIX_BYTES = 37


class GroupCoordinator:
    """Answers requests of the classic protocol for the groups in a registry. No method waits or raises."""

    def __init__(self, groups: GroupRegistry) -> None:
        self._groups = groups

    def join(self, group: str, request: classic_group.Join, answer: classic_group.AnswerJoin) -> None:
        """Answer when the generation begins, or immediately with an error. A new member may create the group."""
        try:
            # a new member's id begins with the instance id or the client id
            id_parts = request.client_id, request.instance_id or ""
            texts = request.client_host, request.protocol_type, *(name for name, _ in request.protocols)
            if _longest(id_parts) > MAX_TEXT_BYTES - _ID_SUFFIX_BYTES or _longest(texts) > MAX_TEXT_BYTES:
                raise CoordinatorError(ErrorCode.invalid_request)
            # only a member of an existing group has an id
            with self._groups.locked(group, create=not request.member_id) as entry:
                self._groups.as_classic(entry, joins=True).join(request, answer)
        except CoordinatorError as refused:
            answer(classic_group.JoinReply(error=refused.code, member_id=refused.member_id or request.member_id))

    def sync(self, group: str, request: classic_group.SyncRequest, answer: classic_group.AnswerSync) -> None:
        try:
            with self._groups.locked(group) as entry:
                self._groups.as_classic(entry).sync(request, answer)
        except CoordinatorError as refused:
            answer(classic_group.SyncReply(error=refused.code))

    def heartbeat(self, group: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        try:
            with self._groups.locked(group) as entry:
                return self._groups.as_classic(entry).heartbeat(member_id, instance_id, generation)
        except CoordinatorError as refused:
            return refused.code

    def leave(self, group: str, member_id: str, instance_id: str | None = None) -> ErrorCode:
        try:
            with self._groups.locked(group) as entry:
                self._groups.as_classic(entry).leave(member_id, instance_id)
        except CoordinatorError as refused:
            return refused.code
        return ErrorCode.none

    def descriptions(self) -> Iterator[GroupDescription]:
        return map(_description, self._groups.each_locked())

    def describe(self, group: str) -> GroupDescription:
        """Describe a classic group. As in Kafka, a missing group, or a group of the newer protocol, is dead."""
        code = ErrorCode.none
        try:
            with self._groups.locked(group, missing_code=ErrorCode.group_id_not_found) as entry:
                if isinstance(entry.membership, classic_group.ClassicGroup):
                    return _description(entry)
        except CoordinatorError as refused:
            # a group with an invalid id cannot exist: describe it as a missing group
            if refused.code not in (ErrorCode.group_id_not_found, ErrorCode.invalid_group_id):
                code = refused.code
        return GroupDescription(group, classic_group.GroupPhase.DEAD, "", "", (), code)

    def delete(self, group: str, on_stored: classic_group.OnStored) -> None:
        """Delete a group without members, and its offsets. `on_stored` is called when this is durable or fails."""
        try:
            with self._groups.locked(group, missing_code=ErrorCode.group_id_not_found) as entry:
                if entry.membership.phase is not classic_group.GroupPhase.EMPTY:
                    raise CoordinatorError(ErrorCode.non_empty_group)
                if entry.offsets.has_transactional_commit():
                    # offsets in flight would be stored after their deletion: the client tries again
                    raise CoordinatorError(ErrorCode.coordinator_load_in_progress)
                self._groups.delete(entry, on_stored)
        except CoordinatorError as refused:
            on_stored(refused.code)


def _longest(texts: Iterable[str]) -> int:
    return max(len(text.encode("utf-8", "surrogatepass")) for text in texts)


class ConsumerCoordinator:
    """Answers requests of the newer protocol for the groups in a registry. `heartbeat` does not wait or raise."""

    def __init__(self, groups: GroupRegistry, topics: consumer_group.SubscribedTopics) -> None:
        self._groups, self._topics = groups, topics

    def heartbeat(
        self,
        group: str,
        request: consumer_group.ConsumerHeartbeat,
        version: int,
        answer: consumer_group.AnswerHeartbeat,
    ) -> None:
        """Answer when the changes are durable. The heartbeat of a joining member creates a missing group."""
        try:
            consumer_group.check_heartbeat(request, version)
            texts = request.member_id, request.instance_id, request.rack_id, request.client_id, request.client_host
            if _longest(text or "" for text in (*texts, request.pattern, *(request.topics or ()))) > MAX_TEXT_BYTES:
                raise CoordinatorError(ErrorCode.invalid_request)
            if request.pattern:
                # raises ValueError for an invalid pattern
                consumer_group.matches(request.pattern, ())
            subscriptions = self._subscriptions(group)
        except CoordinatorError as refused:
            answer(consumer_group.HeartbeatReply(error=refused.code))
            return
        except ValueError as error:
            answer(consumer_group.HeartbeatReply(error=ErrorCode.invalid_regular_expression, message=str(error)))
            return
        names = subscriptions.names.union(request.topics or ())
        patterns = subscriptions.patterns.union({request.pattern} if request.pattern else ())
        self._topics.when_known(names, patterns, lambda: self._heartbeat(group, request, answer))

    def _subscriptions(self, group: str) -> consumer_group.Subscriptions:
        with suppress(CoordinatorError), self._groups.locked(group) as entry:
            if isinstance(entry.membership, consumer_group.ConsumerGroup):
                return entry.membership.subscriptions
        return consumer_group.Subscriptions()

    def _heartbeat(
        self, group: str, request: consumer_group.ConsumerHeartbeat, answer: consumer_group.AnswerHeartbeat
    ) -> None:
        joins = request.epoch == consumer_group.JOINS
        try:
            with self._groups.locked(group, create=joins) as entry:
                self._groups.as_consumer_group(entry, joins=joins).heartbeat(request, self._topics, answer)
        except CoordinatorError as refused:
            answer(consumer_group.HeartbeatReply(error=refused.code))

    def describe(self, group: str) -> ConsumerDescription:
        with self._groups.locked(group, missing_code=ErrorCode.group_id_not_found) as entry:
            membership = entry.membership
            if not isinstance(membership, consumer_group.ConsumerGroup):
                raise CoordinatorError(ErrorCode.group_id_not_found)
            members = tuple(
                (member.id, member.metadata, member.current, membership.target.get(member.id, frozenset()))
                for member in membership.members.values()
            )
            return ConsumerDescription(
                membership.phase, membership.epoch, membership.target_epoch, membership.assignor, members
            )

    def refresh(self) -> None:
        """Refresh the topics of all groups; changes apply with the next heartbeats."""
        subscriptions = list[consumer_group.Subscriptions]()
        for group in self._groups.all():
            with group.lock:
                if isinstance(group.membership, consumer_group.ConsumerGroup):
                    subscriptions.append(group.membership.subscriptions)
        names = {name for subscription in subscriptions for name in subscription.names}
        patterns = {pattern for subscription in subscriptions for pattern in subscription.patterns}
        self._topics.refresh(names, patterns)


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A group of the newer protocol: each member's id, metadata, current assignment and target."""

    phase: classic_group.GroupPhase
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[tuple[str, MemberMetadata, CurrentAssignment, frozenset[TopicIdPartition]], ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group; subscriptions and assignments are shown only while it is stable, as in Kafka."""

    group: str
    phase: classic_group.GroupPhase
    protocol_type: str
    protocol: str
    members: tuple[classic_group.MemberRecord, ...]
    error: ErrorCode = ErrorCode.none
    type: str = "classic"


def _description(group: Group) -> GroupDescription:
    membership = group.membership
    if isinstance(membership, consumer_group.ConsumerGroup):
        return GroupDescription(membership.id, membership.phase, "consumer", "", (), type="consumer")
    protocol = membership.protocol if membership.phase is classic_group.GroupPhase.STABLE else None
    return GroupDescription(
        membership.id,
        membership.phase,
        membership.members.protocol_type or "",
        protocol or "",
        tuple(member.record(protocol) for member in membership.members),
    )


_log = logging.getLogger("distlog.gateway")


class DroppedTopics:
    """Deletes the committed offsets of dropped topics. `find` raises TopicNotFoundError for a missing topic."""

    def __init__(self, offsets: CommittedOffsets, find: Callable[[str], Snapshot]) -> None:
        self._offsets, self._find = offsets, find
        # the topic ids at the last check, by name
        self._topic_ids: dict[str, str] = {}
        # the names of dropped topics whose offsets could not be deleted yet
        self._unfinished = set[str]()

    def check(self) -> None:
        topics = self._offsets.topics()
        self._unfinished.intersection_update(topics)
        previous_ids = self._topic_ids
        self._topic_ids = {name: id for name, id in previous_ids.items() if name in topics}
        replaced_ms = dict[str, int]()
        for name in sorted(topics):
            snapshot: Snapshot | None = None
            try:
                snapshot = self._find(name)
                self._topic_ids[name] = snapshot.topic_id
            except TopicNotFoundError:
                self._topic_ids.pop(name, None)
            except Exception as error:
                # no error may end the checks
                _log.debug("cannot check whether %s was dropped: %s", name, error)
                continue
            ids = () if snapshot is None else (snapshot.topic_id, *snapshot.former_ids)
            # the topic of the last check was dropped, unless this topic has its id, or had it before
            is_dropped = name in self._unfinished or (name in previous_ids and previous_ids[name] not in ids)
            self._unfinished.discard(name)
            if snapshot is not None and snapshot.replaced_ms:
                # older offsets are of the dropped topic. Each check deletes them, since some may be in flight now
                replaced_ms[name] = snapshot.replaced_ms
            elif is_dropped:
                self._offsets.delete_topic(name, partial(self._unfinished.add, name))
        if replaced_ms:
            self._offsets.delete_older(replaced_ms)


#: The pause after an error, and between the loader's checks for partitions that other gateways lead now.
_PAUSE_S = 1.0
#: The longest wait of the timer, since the system call refuses very long waits.
_LONGEST_WAIT_S = 600.0


class GroupServices:
    """Coordinates the groups that the `lease` gives to this gateway. The groups are stored in `store`."""

    def __init__(
        self,
        store: OffsetsTopic,
        lease: GatewayLease,
        settings: GroupSettings,
        topics: consumer_group.SubscribedTopics,
        *,
        retention_ms: int,
    ) -> None:
        self._store, self._lease, self._is_stopping = store, lease, threading.Event()
        self._wake, self._unloaded = threading.Event(), threading.Event()
        # for each store that shares the lease: its Coordination, and a function that opens it and counts partitions
        self._coordinations, self._count_readers = list[Coordination](), list[Callable[[], int]]()
        self.coordination = self.share(store, store.open)
        self.partition_of, self.fence = store.partition_of, store.fence
        self._registry = GroupRegistry(
            store, settings, check=self.coordination.check, on_earlier_deadline=self._wake.set
        )
        #: Refuses all members, so that they look for another coordinator.
        self.release_members = self._registry.stop
        self.members, self._topics = GroupCoordinator(self._registry), topics
        self.configs = self._registry.configs
        self.consumers = ConsumerCoordinator(self._registry, topics)
        ended_transactions = EndedTransactions(self._registry, store)
        self.offsets = CommittedOffsets(self._registry, ended_transactions, retention_ms=retention_ms)
        self._threads = [
            threading.Thread(target=self._run_timers, name="group-timer", daemon=True),
            threading.Thread(target=self._keep_lease, name="gateway-lease", daemon=True),
        ]
        self._loader = threading.Thread(target=self._load, name="group-loader", daemon=True)

    def expire_offsets(self) -> None:
        _try_to("expiring committed offsets", self.offsets.expire)

    def share(self, store: LeaderStore, read_partition_count: Callable[[], int]) -> Coordination:
        """Let the lease cover the partitions of `store`. The caller must call `step` of the result."""
        self._coordinations.append(Coordination(self._lease, store, self._unloaded))
        self._count_readers.append(read_partition_count)
        return self._coordinations[-1]

    @property
    def partitions(self) -> int:
        return self._store.partitions

    def join(self) -> None:
        """Join the root's gateways and renew the lease; failures are logged and retried."""
        # the topics are opened while the lease is read
        tasks = [begin(read_count) for read_count in self._count_readers]
        sync = partial(self._sync, [task.wait for task in tasks])
        _try_to("joining the root's gateways", sync, fatal=StorageRefusedError)
        # a failed `sync` may not have waited for all tasks
        for task in tasks:
            with suppress(DistlogError):
                task.wait()
        for thread in self._threads:
            thread.start()

    def start(self) -> None:
        """Load stored groups after `join`; failures are logged and retried."""
        if self._lease.held_partitions:
            _try_to("loading groups", self._load_and_unload)
        self._loader.start()

    def stop(self) -> None:
        """Stop when all changes are durable; other gateways may coordinate the groups immediately."""
        self._is_stopping.set()
        for event in (self._wake, self.coordination.changed, self._unloaded):
            event.set()
        for thread in (*self._threads, self._loader):
            if thread.is_alive():
                thread.join()
        self._topics.stop()
        self._store.close()
        _try_to("releasing the lease (other gateways wait until it expires)", self._lease.leave)

    def _run_timers(self) -> None:
        while _clear_and_continue(self._wake, self._is_stopping):
            pause_s = 0.0
            try:
                self._registry.expire()
            except Exception:
                # a fault in one group must not stop the timers of all
                _log.exception("the timers of some groups failed")
                pause_s = _PAUSE_S
            self._wake.wait(min(max(pause_s, self._registry.due_s), _LONGEST_WAIT_S))

    def _keep_lease(self) -> None:
        while _clear_and_continue(self._unloaded, self._is_stopping):
            due_s = self._lease.due_s(self._loaded)
            if due_s > 0:
                self._unloaded.wait(due_s)
            elif not _try_to("renewing the lease", self._sync):
                self._is_stopping.wait(_PAUSE_S)

    def _sync(self, count_readers: Iterable[Callable[[], int]] = ()) -> None:
        readers = count_readers or self._count_readers
        # the lease covers the partition numbers of all stores, whose counts may differ in topics of a Kafka broker
        if self._lease.sync(lambda: max(read_count() for read_count in readers), self._loaded):
            for coordination in self._coordinations:
                coordination.changed.set()

    @property
    def _loaded(self) -> set[int]:
        return set[int]().union(*(coordination.loaded for coordination in self._coordinations))

    def _load(self) -> None:
        while not self._is_stopping.is_set():
            self.coordination.changed.wait(_PAUSE_S)
            self.coordination.changed.clear()
            _try_to("loading groups", self._load_and_unload)

    def _load_and_unload(self) -> None:
        self.coordination.step(self._registry)


def _try_to(task: str, work: Callable[[], None], fatal: type[Exception] | tuple[()] = ()) -> bool:
    """Do `work`, and log its error; returns False if it failed. Raises errors that are `fatal`."""
    try:
        work()
    except fatal:
        raise
    except CoordinatorError:
        # the lease was changed concurrently
        return False
    except Exception as error:
        FAILURES.note(task, error)
        return False
    return True


def _clear_and_continue(wake: threading.Event, is_stopping: threading.Event) -> bool:
    # clear `wake` before the check, since `stop` sets `is_stopping` before `wake`
    wake.clear()
    return not is_stopping.is_set()


#: Stands for the term (the number of the lease) of a partition that is being unloaded.
_UNLOADING = -1


class Coordination:
    """Loads the partitions of `store` that the `lease` holds, and unloads all others. An unload sets `unloaded`."""

    def __init__(self, lease: GatewayLease, store: LeaderStore, unloaded: threading.Event) -> None:
        self._lease, self._store, self._unloaded = lease, store, unloaded
        #: Set when the lease has changed.
        self.changed = threading.Event()
        # the term of the lease in which each partition was loaded
        self._loaded: dict[int, int] = {}

    @property
    def loaded(self) -> AbstractSet[int]:
        """The partitions that the lease must not give up yet."""
        return self._loaded.keys()

    @property
    def is_loading(self) -> bool:
        return bool(self._held - self._loaded.keys())

    @property
    def _held(self) -> frozenset[int]:
        return frozenset(number for number in self._lease.held_partitions if number < self._store.partitions)

    def check(self, key: str) -> None:
        """Raise CoordinatorError unless this gateway coordinates the group, or transactional id, now."""
        number, lease = self._store.partition_of(key), self._lease
        if number not in lease.held_partitions:
            raise CoordinatorError(ErrorCode.not_coordinator)
        if self._loaded.get(number) != lease.term:
            raise CoordinatorError(ErrorCode.coordinator_load_in_progress)

    def step(self, registry: CoordinatedEntries[Any]) -> None:
        """Unload lost partitions, and load new ones. After a DistlogError, step again later."""
        previous = set(self.loaded)
        try:
            self._load_and_unload(registry)
        finally:
            if previous - self.loaded:
                self._unloaded.set()

    def _load_and_unload(self, registry: CoordinatedEntries[Any]) -> None:
        held, term = self._held, self._lease.term
        lost_partitions = self._store.lost_partitions() if self._loaded else ()
        unloaded = {
            number
            for number, loaded_term in self._loaded.items()
            if number not in held or loaded_term != term or number in lost_partitions
        }
        if unloaded:
            self._unload(unloaded, registry)
        if missing := held - self._loaded.keys():
            self._load(missing, term, registry)

    def _unload(self, partitions: set[int], registry: CoordinatedEntries[Any]) -> None:
        remaining = {number: term for number, term in self._loaded.items() if number not in partitions}
        # the lease must not give up a partition while its changes are in flight
        self._loaded = {**remaining, **dict.fromkeys(partitions, _UNLOADING)}
        registry.unload(lambda key: self._store.partition_of(key) in partitions)
        self._store.drain()
        self._store.end(partitions)
        self._loaded = remaining

    def _load(self, partitions: frozenset[int], term: int, registry: CoordinatedEntries[Any]) -> None:
        try:
            self._load_together(partitions, term, registry)
        except LockHeldError:
            if len(partitions) == 1:
                raise
            # a stopped process may hold the lock of one partition: load the other partitions one by one
            errors = list[LockHeldError]()
            for number in sorted(partitions):
                try:
                    self._load_together(frozenset({number}), term, registry)
                except LockHeldError as error:  # noqa: PERF203 - load the other partitions
                    errors.append(error)
            if errors:
                raise errors[0] from None

    def _load_together(self, partitions: frozenset[int], term: int, registry: CoordinatedEntries[Any]) -> None:
        def check_lease() -> None:
            if self._lease.term != term or not partitions <= self._lease.held_partitions:
                raise CoordinatorError(ErrorCode.not_coordinator)

        self._store.begin(partitions, check_lease)
        registry.load(self._store.load(partitions))
        self._loaded = {**self._loaded, **dict.fromkeys(partitions, term)}


class LeaderStore(Protocol):
    """Partitions that one gateway at a time writes to; see OffsetsTopic and TransactionLog."""

    @property
    def partitions(self) -> int: ...

    def partition_of(self, key: str, /) -> int: ...

    def begin(self, partitions: Collection[int], check_lease: Callable[[], None]) -> None: ...

    def end(self, partitions: Collection[int]) -> None: ...

    def lost_partitions(self) -> Collection[int]: ...

    def drain(self) -> None: ...

    def load(self, partitions: Collection[int]) -> Iterable[Any]: ...
