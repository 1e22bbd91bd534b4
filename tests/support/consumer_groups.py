"""A coordinator with a store in memory and clocks that tests move; members that keep their answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from kio.schema.errors import ErrorCode

from distlog.gateway.config import GroupSettings
from distlog.gateway.groups.classic_group import Join, JoinReply, OnStored, SyncReply, SyncRequest
from distlog.gateway.groups.committed_offsets import CommittedOffsets, EndedTransactions
from distlog.gateway.groups.coordinator import GroupCoordinator
from distlog.gateway.groups.offsets_format import GroupChange
from distlog.gateway.groups.registry import GroupRegistry

GROUP = "billing"
RANGE = (("range", b"topics"),)
RETENTION_MS = 1000


class MemoryStore:
    """A store of groups in memory; while `held`, calls wait for `release`; `code` is their result."""

    def __init__(self) -> None:
        self.changes: list[GroupChange] = []
        self.code, self.held = ErrorCode.none, False
        self._waiting: list[tuple[Sequence[GroupChange], OnStored]] = []

    def load(self) -> Iterator[GroupChange]:
        yield from self.changes

    def store(self, group: str, changes: Sequence[GroupChange], stored: OnStored) -> None:
        self._waiting.append((changes, stored))
        if not self.held:
            self.release()

    def release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for changes, callback in waiting:
            if self.code is ErrorCode.none:
                self.changes += changes
            callback(self.code)


class NoMarkers:
    """A store without transactions."""

    def partition_of(self, group: str) -> int:
        return 0

    def ended(self, partition: int) -> tuple[()]:
        return ()


class Gateway:
    """The groups of a gateway over `store`; `restart` begins another one over what is stored."""

    def __init__(self, settings: GroupSettings | None = None, store: MemoryStore | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.store, self.now = store or MemoryStore(), 1_000_000
        ids = itertools.count()
        self.groups = GroupRegistry(
            self.store,
            self.settings,
            clock=lambda: self.now,
            wall_clock=lambda: self.now,
            new_id=lambda: str(next(ids)),
        )
        self.groups.load(self.store.load())
        self.coordinator = GroupCoordinator(self.groups)
        self.offsets = CommittedOffsets(
            self.groups, EndedTransactions(self.groups, NoMarkers()), retention_ms=RETENTION_MS
        )

    def restart(self) -> Gateway:
        return Gateway(self.settings, self.store)

    def at_time(self, ms: int) -> None:
        self.now += ms
        self.groups.expire()

    def member(self, name: str, **options: object) -> Client:
        return Client(self, name, **options)


class OneAnswer:
    """Fails when it is called a second time: each request has one answer."""

    def __init__(self) -> None:
        self.is_given = False

    def __call__(self) -> None:
        assert not self.is_given, "a request was answered twice"
        self.is_given = True


class Client:
    """A member of the group, as a client library plays it; `joined` and `synced` are the last answers."""

    def __init__(self, gateway: Gateway, name: str, **options: object) -> None:
        self.gateway, self.id, self.instance_id = gateway, "", options.pop("instance_id", None)
        self.joined: JoinReply | None = None
        self.synced: SyncReply | None = None
        self._request = {
            "client_id": name,
            "rebalance_timeout_ms": 60_000,
            "session_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": RANGE,
            **options,
        }

    def join(self, **options: object) -> Client:
        """Ask to join; the answer may come later."""
        self.joined = None
        request = Join(member_id=self.id, instance_id=self.instance_id, **{**self._request, **options})  # type: ignore[arg-type]
        self._newest = answered = OneAnswer()
        self.gateway.coordinator.join(GROUP, request, lambda reply: self._on_joined(reply, answered))
        return self

    def _on_joined(self, reply: JoinReply, answered: OneAnswer) -> None:
        answered()
        if answered is self._newest:
            self.joined, self.id = reply, reply.member_id

    @property
    def join_error(self) -> ErrorCode | None:
        """The error code of the last join, or None while it waits."""
        return self.joined.error if self.joined else None

    @property
    def generation(self) -> int:
        assert self.joined is not None
        return self.joined.generation

    @property
    def leads(self) -> bool:
        return self.joined is not None and self.joined.leader == self.id

    def sync(self, **assignments: bytes) -> Client:
        """Ask for the assignment; the leader sends the assignments of all members, by client id."""
        self.synced = None
        by_id = {id: part for name, part in assignments.items() for id in self._ids() if id.startswith(f"{name}-")}
        request = SyncRequest(
            member_id=self.id, instance_id=self.instance_id, generation=self.generation, assignments=by_id
        )
        answered = OneAnswer()
        self.gateway.coordinator.sync(GROUP, request, lambda reply: self._on_synced(reply, answered))
        return self

    def _ids(self) -> list[str]:
        return [member.id for member in self.joined.members] if self.joined else []

    def _on_synced(self, reply: SyncReply, answered: OneAnswer) -> None:
        answered()
        self.synced = reply

    def beat(self) -> ErrorCode:
        return self.gateway.coordinator.heartbeat(GROUP, self.id, self.instance_id, self.generation)

    def leave(self) -> ErrorCode:
        return self.gateway.coordinator.leave(GROUP, self.id, self.instance_id)


def stable(gateway: Gateway, *members: Client) -> None:
    """Have the members join and sync; each is assigned its client id."""
    for member in members:
        member.join()
    gateway.at_time(0)
    for member in members:
        if member.join_error is None:
            member.join()
    leader = next(member for member in members if member.leads)
    names = [id.rpartition("-")[0] for id in leader._ids()]
    for member in members:
        member.sync(**({name: name.encode() for name in names} if member is leader else {}))
