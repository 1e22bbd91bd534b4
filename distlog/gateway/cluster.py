"""The gateways of a root (a folder of topics): their ids and leases, partition leaders, and maintenance tasks."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
import platform
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from distlog.core.commits.actions import LEADER_APP, SetTransaction
from distlog.core.commits.commit_log import CommitRace, CurrentSnapshot
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError, LeaderFencedError
from distlog.core.log.active_partition import wait_for_appends
from distlog.core.log_manager.log_manager import STOP_TIMEOUT_S, LogManager, Metric
from distlog.core.log_manager.log_tasks import Scheduler, TaskRun
from distlog.core.maintain.compaction import compact
from distlog.core.maintain.group_rewrite import first_dirty_offset
from distlog.core.read.consumer_group import FREQUENT, GroupLog, Member, Membership
from distlog.core.segments.segment_reader import TopicHandle, topic_log
from distlog.core.storage.storage import Storage
from distlog.core.times import elapsed_s
from distlog.core.topic import Topic
from distlog.gateway.security.tls import is_loopback

#: A gateway's name in the group of gateways: it has the fields of its Node.
_NAME = re.compile(
    r"gateway (?P<id>[0-9]{1,9}) at (?P<host>\S{1,255}):(?P<port>[0-9]{1,5}) on (?P<machine>\S{1,255})"
)


@dataclass(frozen=True, slots=True)
class Node:
    """A gateway, which clients regard as a broker. Only `machine` can reach a loopback `host`."""

    id: int
    host: str
    port: int
    machine: str

    def __str__(self) -> str:
        return f"gateway {self.id} at {self.host}:{self.port} on {self.machine}"

    @classmethod
    def parse(cls, name: str) -> Node | None:
        match = _NAME.fullmatch(name)
        if match is None or int(match["port"]) > 65535:
            return None
        return cls(int(match["id"]), match["host"], int(match["port"]), match["machine"])

    @property
    def address(self) -> tuple[str, int, str]:
        return self.host, self.port, self.machine

    def is_reached_from(self, machine: str) -> bool:
        return self.machine == machine or not is_loopback(self.host)


def this_machine() -> str:
    return re.sub(r"\s", "-", platform.node())[:255] or "localhost"


def advertised(host: str, port: int) -> tuple[str, int]:
    """Return a listener's address for other machines: this machine's name if it listens at all addresses."""
    return (this_machine() if host in {"0.0.0.0", "::", ""} else host), port


# The gateways of a root form a consumer group (distlog.core.read.consumer_group) to share the partitions of
# `__consumer_offsets` and `__transaction_state`. If a gateway sends no heartbeats, other gateways get its partitions.
# It may only have been paused, so a new holder commits the partition's next epoch, which fences it (Leadership).

ROOT_ID, GATEWAYS_GROUP = str(uuid.UUID(int=0)), "gateways"  # ROOT_ID stands for the id of a topic

_log = logging.getLogger("distlog.gateway")


@dataclass(frozen=True, slots=True)
class _View:
    """The state after the last sync. `joins` counts joins as a new member, `term` also leases after a lapse."""

    nodes: tuple[Node, ...] = ()
    holders: Mapping[int, Node] = field(default_factory=dict)
    held_partitions: frozenset[int] = frozenset()
    term: int = 0
    joins: int = 0


def _no_offsets(numbers: Collection[int], added: bool) -> Mapping[int, int]:
    """Return 0 as the first committed offset of each partition, since gateways commit no offsets."""
    return dict.fromkeys(numbers, 0)


class GatewayLease:
    """This gateway in the group. One thread calls `sync` and `leave`. A `node_id` of None is the lowest free id."""

    def __init__(
        self,
        root: Storage,
        node_id: int | None,
        lease_s: float,
        *,
        clock: Callable[[], float] = elapsed_s,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._log = GroupLog(root, ROOT_ID, GATEWAYS_GROUP, clock=clock)
        self._wanted_id = node_id
        self._view = _View()
        self.node = Node(node_id or 0, "", 0, "")
        self._member = Membership(  # None: it may own any partition; FREQUENT: its pace of heartbeats
            self._log, self._name, None, lease_s, FREQUENT, clock, new_id, replaces=self._is_predecessor
        )
        self._unreachable = set[Node]()  # the gateways that were logged as unreachable
        self._clock = clock
        self._known_s = -math.inf  # from this time on, all other gateways have this gateway in their views

    def set_address(self, host: str, port: int, machine: str) -> None:
        self.node = Node(self.node.id, host, port, machine)

    def sync(self, count: Callable[[], int], pending: Collection[int]) -> bool:
        """Send a heartbeat, and share `count()` partitions. Returns whether the held partitions or the term changed.

        `pending` are the partitions that this gateway has in memory. A partition moves to another gateway only when
        `pending` does not have it any more, or after the time of a lease. The first call replaces an earlier gateway
        with this address. Raises the errors of `count`, StorageError, CommitConflictError, CommitStateUnknownError.
        """
        previous, member = self._view, self._member
        was_lapsed, joins = member.is_lapsed, member.joins
        member.sync(count, _no_offsets, pending)
        has_new_lease = was_lapsed or member.joins != joins
        state = member.state
        assert state is not None
        nodes = {peer.id: node for peer in state.members if (node := Node.parse(peer.name)) is not None}
        self.node = nodes.get(member.id, self.node)
        if has_new_lease and len(nodes) > 1:
            # each gateway refreshes its view once in this fraction of a lease; the factor 2 is a margin
            lease_ms = max(peer.lease_ms for peer in state.members)
            self._known_s = self._clock() + 2 * FREQUENT.refresh * lease_ms / 1000
        for node in nodes.values():
            if node not in self._unreachable and not node.is_reached_from(self.node.machine):
                self._unreachable.add(node)
                _log.warning("clients cannot reach %s, which coordinates some groups: advertise its address", node)
        self._view = _View(
            tuple(sorted(nodes.values(), key=lambda node: node.id)),
            {number: nodes[owner] for number, owner in state.owners.items() if owner in nodes},
            frozenset(member.owned.keys() - set(member.leaving)),
            previous.term + has_new_lease,
            member.joins,
        )
        return (previous.held_partitions, previous.term) != (self._view.held_partitions, self._view.term)

    def due_s(self, pending: Collection[int]) -> float:
        return self._member.due_s(pending)

    def leave(self) -> None:
        self._view = dataclasses.replace(self._view, held_partitions=frozenset(), term=self._view.term + 1)
        self._member.leave()

    @property
    def unknown_s(self) -> float:
        """The seconds until all other gateways have this gateway in their views, or 0."""
        return max(0.0, self._known_s - self._clock())

    @property
    def is_lapsed(self) -> bool:
        return self._member.is_lapsed

    @property
    def held_partitions(self) -> frozenset[int]:
        view = self._view
        # if this gateway has joined as a new member since `view`, that has the former member's partitions
        is_current = not self.is_lapsed and self._member.joins == view.joins
        return view.held_partitions if is_current else frozenset()

    @property
    def term(self) -> int:
        """A number that changes with each new lease, after which all partitions must be loaded again."""
        return self._view.term

    @property
    def nodes(self) -> Sequence[Node]:
        # `self.node` replaces this gateway in the view, and any other gateway at its address
        peers = (node for node in self._view.nodes if node.address != self.node.address and node.id != self.node.id)
        reachable = [node for node in peers if node.is_reached_from(self.node.machine)]
        return sorted([*reachable, self.node], key=lambda node: node.id)

    @property
    def neighbours(self) -> int:
        """The number of gateways with this gateway's host and machine, including itself."""
        return sum((node.host, node.machine) == (self.node.host, self.node.machine) for node in self.nodes)

    def holder(self, partition: int) -> Node | None:
        """The gateway that coordinates a partition. None if no gateway does, or if clients cannot reach it."""
        holder = self._view.holders.get(partition)
        if holder is not None and holder.id == self.node.id:
            return self.node if partition in self.held_partitions else None
        return holder if holder is not None and holder.is_reached_from(self.node.machine) else None

    def leaders(self, topic_id: str, partitions: int) -> Sequence[int]:
        """Return each partition's leader: the id of the gateway to which clients send all its batches, in order."""
        return assign_leaders(topic_id, partitions, tuple(node.id for node in self.nodes))

    def _name(self, members: Sequence[Member]) -> str:
        """Return this gateway's name among `members`, with the lowest free id if `node_id` is None or used."""
        used_ids = {node.id for other in members if (node := Node.parse(other.name)) is not None}
        node_id = self.node.id if self._member.id else self._wanted_id  # a member keeps its id
        if node_id is None or node_id in used_ids:
            node_id = next(candidate for candidate in range(len(used_ids) + 1) if candidate not in used_ids)
        return str(dataclasses.replace(self.node, id=node_id))

    def _is_predecessor(self, member: Member) -> bool:
        node = Node.parse(member.name)
        return node is not None and node.address == self.node.address


@lru_cache(maxsize=256)
def assign_leaders(topic_id: str, partitions: int, ids: tuple[int, ...]) -> Sequence[int]:
    """Give gateways equal numbers of partitions. Few partitions move when a gateway joins (rendezvous hashing)."""
    equal_share, larger_shares_left = divmod(partitions, len(ids))  # a larger share has one partition more
    leaders, counts = list[int](), dict.fromkeys(ids, 0)
    for number in range(partitions):
        most = equal_share + (1 if larger_shares_left else 0)
        free = [id_ for id_ in ids if counts[id_] < most]
        best = max(free, key=partial(_weight, topic_id, number)) if len(free) > 1 else free[0]
        if counts[best] == equal_share:
            larger_shares_left -= 1  # `best` gets a larger share
        counts[best] += 1
        leaders.append(best)
    return leaders


def _weight(topic_id: str, partition: int, node_id: int) -> bytes:
    return hashlib.blake2b(f"{topic_id}/{partition}/{node_id}".encode(), digest_size=8).digest()


# If a process was paused, two processes may run a task at once in spite of the lease. All tasks allow this.

MAINTENANCE_GROUP = "maintenance"
LEASE_S = 60.0


class TaskLease:
    """The maintenance tasks' lease: its holder owns a group's only partition. One thread calls `keep` and `leave`."""

    def __init__(
        self,
        root: Storage,
        *,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = elapsed_s,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        name = f"{os.getpid()} on {this_machine()}"
        log = GroupLog(root, ROOT_ID, MAINTENANCE_GROUP, clock=clock)
        self._member = Membership(log, lambda members: name, None, lease_s, FREQUENT, clock, new_id)

    @property
    def is_held(self) -> bool:
        return bool(self._member.owned) and not self._member.is_lapsed

    def keep(self) -> None:
        """Acquire or renew the lease if this is due. Errors are logged."""
        try:
            if self._member.due_s(()) <= 0:
                self._member.sync(lambda: 1, _no_offsets, ())
        except DistlogError as error:
            _log.warning("the lease of the tasks could not be renewed: %s", error)

    def leave(self) -> None:
        try:
            self._member.leave()
        except DistlogError as error:
            _log.warning("the lease of the tasks was not released: other processes wait until it expires: %s", error)


class Maintenance:
    """Runs the tasks of `root` while this process has their lease. `settings` are broker settings of Kafka."""

    def __init__(
        self,
        root: str,
        settings: Mapping[str, object],
        storage_options: Mapping[str, Any],
        on_run: Callable[[TaskRun], None],
        lease_s: float = LEASE_S,
    ) -> None:
        self.lease = TaskLease(Storage(root, storage_options), lease_s=lease_s)
        self._manager = LogManager(
            root, config=settings, storage_options=storage_options, on_run=on_run, may_run=lambda: self.lease.is_held
        )
        self._scheduler = Scheduler()
        # more often than the lease is renewed: `keep` returns at once if no renewal is due
        self._scheduler.schedule("maintenance-lease", self.lease.keep, delay_ms=0, period_ms=int(lease_s * 1000 / 20))

    def start(self) -> None:
        self._scheduler.start()
        self._manager.start()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        has_stopped = self._manager.stop(timeout_s)
        self._scheduler.stop(timeout_s)
        self.lease.leave()
        return has_stopped

    def metrics(self) -> list[Metric]:
        about, is_held = "1 if this gateway runs the tasks of the root", float(self.lease.is_held)
        return [Metric("distlog_gateway_maintains", "gauge", about, [({}, is_held)]), *self._manager.metrics()]


#: How long `begin` waits for appends of the former leader, which take milliseconds.
_LOCK_WAIT_S = 5.0


class Leadership:
    """The partitions of a topic that this process leads. Thread-safe except for `begin` and `end`."""

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot) -> None:
        self._handle, self._current = handle, current
        # by led partition: its epoch. A new leader commits the next epoch, which fences the former leader.
        self._epochs: Mapping[int, int] = {}

    @property
    def partitions(self) -> Collection[int]:
        return self._epochs.keys()

    def begin(self, partitions: Collection[int], check_may_lead: Callable[[], None] = lambda: None) -> None:
        """Commit that this process leads `partitions`. `check_may_lead` is called before each try, and may raise."""
        if not partitions:
            return
        with CommitRace(self._handle.log, self._current.refresh(), "lead") as race:
            for head in race:
                check_may_lead()
                epochs = {number: _epoch(head, number) + 1 for number in partitions}
                # epochs are stored as batch ids of application `leader:<partition>`; `in_order` keeps only the newest
                race.put([SetTransaction(_app_id(n), new, offsets={}, in_order=True) for n, new in epochs.items()])
        self._current.advance(race.snapshot)
        # on a local disk, the former leader may still be in a direct append, which makes no commit
        if self._handle.storage.is_local_disk:
            wait_for_appends(self._handle, race.snapshot, partitions, _LOCK_WAIT_S)
        self._epochs = {**self._epochs, **epochs}

    def end(self, partitions: Collection[int]) -> None:
        self._epochs = {number: epoch for number, epoch in self._epochs.items() if number not in partitions}

    def lost_partitions(self) -> set[int]:
        snapshot = self._current.refresh()
        return {number for number, epoch in self._epochs.items() if _epoch(snapshot, number) != epoch}

    def check(self, head: Snapshot, partitions: Collection[int]) -> None:
        epochs = self._epochs
        for number in partitions:
            if epochs.get(number) != _epoch(head, number):
                text = "nothing was appended: another gateway leads the partition now"
                raise LeaderFencedError(text, partition=number, epoch=epochs.get(number), newest=_epoch(head, number))


def _app_id(partition: int) -> str:
    return f"{LEADER_APP}{partition}"


def _epoch(snapshot: Snapshot, partition: int) -> int:
    newest = snapshot.transactions.newest(_app_id(partition))
    return -1 if newest is None else newest


# A gateway that takes over a partition reads all its segments, so the leader compacts them often.

#: A small partition is compacted when it has this many new segments.
LEAST_SEGMENTS = 64
#: A large partition needs a new segment for each 64 KiB of its compacted (clean) part, since that is rewritten, too.
CLEAN_BYTES_PER_SEGMENT = 64 << 10
COMPACTION_PERIOD_MS = 5000
#: The defaults of the commit log that `step` opens: any dirty ratio is enough, since `_due` counts segments instead.
_COMPACTION_DEFAULTS = {"min.cleanable.dirty.ratio": 0.0}


class InternalTopicCompaction:
    """Compacts partitions of an internal topic when they have many new segments; for one thread."""

    def __init__(self) -> None:
        self._topic_id = ""
        self._tried_ends = dict[int, int]()  # by partition: the log end offset when its compaction was last tried

    def step(self, topic: Topic, partitions: Collection[int]) -> None:
        """Compact those `partitions` that need it. Errors are logged."""
        snapshot = topic.snapshot
        if snapshot.topic_id != self._topic_id:  # a new topic of the same name has other offsets
            self._topic_id, self._tried_ends = snapshot.topic_id, {}
        numbers = list(self._due(snapshot, partitions))
        # note this even if the compaction fails, so that it is tried again only after enough new segments
        self._tried_ends.update({number: snapshot.partitions[number].log_end_offset for number in numbers})
        if numbers:
            try:
                clock, expiration_ms = topic.handle.clock, topic.handle.producer_expiration_ms
                log = topic_log(topic.storage, clock, engine="gateway", defaults=_COMPACTION_DEFAULTS)
                name = topic.handle.name
                handle = TopicHandle.of(topic.storage, name, log, clock, producer_expiration_ms=expiration_ms)
                report, _ = compact(handle, log.load(cached=snapshot), partitions=numbers)
                for result in report.partitions:
                    if result.error is not None:
                        text = "cannot compact partition %d of %s: %s"
                        _log.warning(text, result.partition, topic.name, result.error)
            except Exception as error:  # do not raise: the thread must try again later
                is_unexpected = not isinstance(error, DistlogError)
                _log.warning("%s was not compacted: %s", topic.name, error, exc_info=is_unexpected)

    def _due(self, snapshot: Snapshot, partitions: Collection[int]) -> Iterator[int]:
        for number in sorted(partitions):
            state = snapshot.partitions[number]
            table, dirty_offset = state.segments, first_dirty_offset(state)
            # the segments past the compacted part, and past the log end at the last try
            new_segments = len(table) - table.find(max(dirty_offset, self._tried_ends.get(number, 0)))
            clean_bytes = int(table.log_bytes[: table.find(dirty_offset)].sum())
            if new_segments >= max(LEAST_SEGMENTS, clean_bytes // CLEAN_BYTES_PER_SEGMENT):
                yield number
