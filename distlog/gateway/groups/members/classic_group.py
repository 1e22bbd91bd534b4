"""One consumer group by Kafka's classic protocol: its members agree on a generation, and the leader assigns.

After Kafka's GroupCoordinator (KIP-62, 134, 345, 394, 814). A group is Empty; PreparingRebalance while its members
join (join.py); CompletingRebalance until the leader has assigned (sync.py); Stable until somebody comes, goes, or
changes its mind. Nothing here waits, reads a clock or does I/O: calls are answered by callbacks, at once or when the
others have come. Not for several threads: the coordinator holds the group's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from math import inf
from typing import Any

from kio.schema.errors import ErrorCode

from distlog.gateway.group_settings import GroupSettings
from distlog.gateway.groups.members.exchanges import GroupRefusedError, JoinReply, SyncReply
from distlog.gateway.groups.members.group_record import GroupRecord
from distlog.gateway.groups.members.members import Member, Members
from distlog.gateway.groups.members.rebalance import Rebalance


class GroupPhase(Enum):
    """Kafka's names for what a group is doing."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


#: How long a new member may wait for its first generation, in ms; Kafka's NewMemberJoinTimeoutMs.
NEW_MEMBER_TIMEOUT_MS = 300_000

#: Learns whether a group was stored.
Stored = Callable[[ErrorCode], None]
#: Stores a group, and calls back, at once or later; raises nothing.
SaveGroup = Callable[[GroupRecord, Stored], None]


class ClassicGroup:
    """The group `id`. `clock` gives ms that never go back, `wall_clock` ms since 1970 (for what is stored)."""

    def __init__(
        self,
        id: str,
        settings: GroupSettings,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], int],
        new_id: Callable[[], str],
        save: SaveGroup,
    ) -> None:
        self.id, self.settings, self.clock, self.new_id = id, settings, clock, new_id
        self._wall_clock, self._save = wall_clock, save
        self.members, self.phase, self.generation = Members(), GroupPhase.EMPTY, 0
        self.protocol: str | None = None
        self.since_ms = wall_clock()
        #: Ids that were given to members that did not join with them yet, and until when they may.
        self.promised: dict[str, float] = {}
        self.rebalance: Rebalance | None = None
        self._late_syncs, self._sync_deadline = set[str](), inf

    def prepare(self) -> None:
        """Have all members join again, unless that is under way."""
        if self.phase in {GroupPhase.PREPARING, GroupPhase.DEAD}:
            return
        if self.phase is GroupPhase.COMPLETING:
            self.refuse_syncs(ErrorCode.rebalance_in_progress)
        self._late_syncs, self._sync_deadline = set(), inf
        now, timeout_ms = self.clock(), self.members.rebalance_timeout_ms
        if self.phase is GroupPhase.EMPTY:
            self.rebalance = Rebalance.first(now, self.settings.initial_rebalance_delay_ms, timeout_ms)
        else:
            self.rebalance = Rebalance.again(now, timeout_ms)
        self._enter(GroupPhase.PREPARING)

    def complete_if_all_joined(self) -> None:
        """Begin the next generation when nobody is missing."""
        if self.rebalance is None or self.rebalance.is_first or self.promised:
            return
        if all(member.join is not None for member in self.members):
            self._complete()

    def _complete(self) -> None:
        """Begin a generation of those that joined. Static members may be away; others are members no more."""
        for member in self.members:
            if member.join is None and member.instance_id is None:
                self.members.remove(member)
        if self.members and not self.members.elect_joined_leader():
            self.rebalance = Rebalance.again(self.clock(), self.members.rebalance_timeout_ms)
            return
        self.rebalance = None
        self.generation += 1
        if self.members:
            self._be_completing()
        else:
            self.protocol = None
            self._enter(GroupPhase.EMPTY)
            self.save(lambda code: None)

    def _be_completing(self) -> None:
        self.protocol = self.members.chosen_protocol()
        self._enter(GroupPhase.COMPLETING)
        self._late_syncs = {member.id for member in self.members}
        self._sync_deadline = self.clock() + self.members.rebalance_timeout_ms
        for member in self.members:
            member.is_new = False
            self.renew(member)
            member.answer_join(self.joined(member))

    def be_stable(self, assignments: Mapping[str, bytes]) -> None:
        """Tell the members what they were assigned."""
        self._enter(GroupPhase.STABLE)
        for member in self.members:
            member.assignment = assignments.get(member.id, b"")
            if member.sync is not None:
                self.renew(member)
                member.answer_sync(self.assigned(member))

    def refuse_syncs(self, code: ErrorCode) -> None:
        """Nothing was assigned: whoever waits for it learns why."""
        for member in self.members:
            member.assignment = b""
            member.answer_sync(SyncReply(error=code))

    def remove(self, member: Member) -> None:
        """Let a member go, and have the others share what it had."""
        self.members.remove(member)
        self.note_synced(member)
        self.prepare()
        self.complete_if_all_joined()

    def _enter(self, phase: GroupPhase) -> None:
        self.phase, self.since_ms = phase, self._wall_clock()

    def joined(self, member: Member, **told: Any) -> JoinReply:
        """What a member of this generation is told; the leader learns of all members. `told` says otherwise."""
        is_leader = member.id == self.members.leader
        reply = JoinReply(
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.members.protocol_type,
            protocol=self.protocol,
            leader=self.members.leader or "",
            members=self.members.joined(self.protocol) if is_leader else (),
        )
        return replace(reply, **told)

    def assigned(self, member: Member) -> SyncReply:
        """What a member was assigned."""
        kind = self.members.protocol_type
        return SyncReply(protocol_type=kind, protocol=self.protocol, assignment=member.assignment)

    def save(self, done: Stored, assignments: Mapping[str, bytes] | None = None) -> None:
        """Store the group as it is, or with these assignments; `done` learns whether that is durable."""
        members = (member.record(self.protocol) for member in self.members)
        if assignments is not None:
            members = (replace(member, assignment=assignments.get(member.id, b"")) for member in members)
        record = GroupRecord(
            group=self.id,
            protocol_type=self.members.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.members.leader,
            since_ms=self.since_ms,
            members=tuple(members),
        )
        self._save(record, done)

    def checked(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        """The member of this generation that says it is this; raises GroupRefusedError if it is not."""
        member = self.members.check(member_id, instance_id)
        if generation != self.generation:
            raise GroupRefusedError(ErrorCode.illegal_generation)
        return member

    def renew(self, member: Member) -> None:
        """A member showed that it lives: its session begins anew."""
        if not member.is_new:
            member.expires_at = self.clock() + member.session_timeout_ms

    def replace(self, member: Member, new_id: str) -> None:
        """The instance of a static member began anew, under another id; its part is waited for as before."""
        if member.id in self._late_syncs:
            self._late_syncs.remove(member.id)
            self._late_syncs.add(new_id)
        self.members.replace(member, new_id)

    def note_synced(self, member: Member) -> None:
        """A member asked for its part, or left: nobody waits for it any more."""
        self._late_syncs.discard(member.id)
        if not self._late_syncs:
            self._sync_deadline = inf

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do, by the clock; `inf` if never."""
        return min(self._deadlines())

    def _deadlines(self) -> Iterator[float]:
        yield self._sync_deadline
        yield from self.promised.values()
        yield from (member.expires_at for member in self.members if not member.is_waiting)
        if self.rebalance is not None:
            yield self.rebalance.deadline

    def expire(self) -> None:
        """Do what is due: end sessions, forget promised ids, and go on without those that are late."""
        now = self.clock()
        self.promised = {id: until for id, until in self.promised.items() if until > now}
        is_late = set(self._late_syncs) if self._sync_deadline <= now else set()
        for member in self.members:
            if member.id in is_late or (member.expires_at <= now and not member.is_waiting):
                self.remove(member)
        self.complete_if_all_joined()
        if self.rebalance is not None and self.rebalance.is_due(now):
            self._complete()
