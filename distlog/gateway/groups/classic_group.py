"""One consumer group by Kafka's classic protocol: members join a generation, and the leader assigns partitions.

It follows Kafka's GroupCoordinator (KIP-62, 134, 345, 394, 814). A group is Empty; PreparingRebalance while members
join; CompletingRebalance until the leader has assigned; Stable until a member joins, leaves or changes its topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import Any

from distlog.gateway.config import GroupSettings
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import ErrorCode

#: How long a new member may wait for its first generation, in ms; Kafka's NewMemberJoinTimeoutMs.
NEW_MEMBER_TIMEOUT_MS = 300_000


class ClassicGroup:
    """The group `id`, not thread-safe. No method waits or does I/O: callbacks answer the calls. Clocks return ms."""

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
        self.id, self._settings, self._clock, self._new_id = id, settings, clock, new_id
        self._wall_clock, self._save = wall_clock, save
        self.members, self.phase, self.generation = Members(), GroupPhase.EMPTY, 0
        self.protocol: str | None = None
        self.phase_since_ms = wall_clock()
        #: The ids that joining clients must send again, with the times at which the ids expire (KIP-394).
        self.reserved_ids: dict[str, float] = {}
        self._rebalance: Rebalance | None = None
        # the ids of members that have not synced in this generation; they are removed at the deadline
        self._unsynced_ids, self._sync_deadline = set[str](), inf

    def join(self, request: Join, answer: AnswerJoin) -> None:
        """Answer a join when the generation begins, or immediately if the join changes nothing."""
        settings, static_member = self._settings, self.members.static_member(request.instance_id)
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            raise CoordinatorError(ErrorCode.invalid_session_timeout)
        if not self.members.supports(request.protocol_type, request.protocols):
            raise CoordinatorError(ErrorCode.inconsistent_group_protocol)
        is_member = request.member_id in self.members or static_member is not None
        if not is_member and len(self.members) >= settings.max_size:
            raise CoordinatorError(ErrorCode.group_max_size_reached)
        if request.member_id:
            self._join_again(request, answer)
        else:
            self._join_new(request, static_member, answer)
        self._complete_if_all_joined()

    def _join_new(self, request: Join, static_member: ClassicMember | None, answer: AnswerJoin) -> None:
        new_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        if static_member is not None:
            self._replace(static_member, new_id, request, answer)
        elif request.must_know_id and request.instance_id is None:
            self.reserved_ids[new_id] = self._clock() + request.session_timeout_ms
            raise CoordinatorError(ErrorCode.member_id_required, new_id)
        else:
            self._add(new_id, request, answer)

    def _join_again(self, request: Join, answer: AnswerJoin) -> None:
        if request.instance_id is None and self.reserved_ids.pop(request.member_id, None) is not None:
            self._add(request.member_id, request, answer)
            return
        member = self.members.checked_member(request.member_id, request.instance_id)
        # a member repeats its join if the response was lost; the leader of a stable group joins to assign again
        is_leader = member.id == self.members.leader
        is_repeated = self.phase is GroupPhase.COMPLETING or (self.phase is GroupPhase.STABLE and not is_leader)
        if is_repeated and member.request.protocols == request.protocols:
            answer(self._join_reply(member))
        else:
            self._await_generation(member, request, answer)

    def _add(self, member_id: str, request: Join, answer: AnswerJoin) -> None:
        expires_at = self._clock() + NEW_MEMBER_TIMEOUT_MS
        member = ClassicMember(member_id, request.instance_id, request, is_new=True, expires_at=expires_at)
        if self._rebalance is not None:
            self._rebalance.has_new_members = True
        self.members.add(member, request.protocol_type)
        self._await_generation(member, request, answer)

    def _replace(self, member: ClassicMember, new_id: str, request: Join, answer: AnswerJoin) -> None:
        """Replace a restarted static member, without a rebalance if it has the same subscription."""
        old_id, was_leader = member.id, self.members.leader == member.id
        if old_id in self._unsynced_ids:
            self._unsynced_ids.remove(old_id)
            self._unsynced_ids.add(new_id)
        self.members.replace(member, new_id)  # from here on, `member` has the new id
        former_subscription = member.subscription(self.protocol)
        member.request = request
        has_same_protocol = self.phase is GroupPhase.STABLE and self.members.chosen_protocol() == self.protocol
        if not has_same_protocol or member.subscription(self.protocol) != former_subscription:
            self._await_generation(member, request, answer)
            return
        self.renew_session(member)
        if was_leader and not request.may_skip_assignment:
            # an old client would assign again if the reply named it as the leader (KIP-814)
            reply = self._join_reply(member, leader=old_id, members=())
        else:
            reply = self._join_reply(member, skip_assignment=was_leader)

        def on_stored(code: ErrorCode) -> None:
            answer(reply if code is ErrorCode.none else JoinReply(error=code, member_id=request.member_id))

        self._store(on_stored, {other.id: other.assignment for other in self.members})

    def _await_generation(self, member: ClassicMember, request: Join, answer: AnswerJoin) -> None:
        member.request = request
        # a member that joins again no longer waits for the reply to its earlier join
        member.answer_join(JoinReply(error=ErrorCode.rebalance_in_progress, member_id=member.id))
        member.join = answer
        self.prepare_rebalance()

    def prepare_rebalance(self) -> None:
        """Start a rebalance, in which all members join again, unless one has started."""
        if self.phase is GroupPhase.PREPARING:
            return
        if self.phase is GroupPhase.COMPLETING:
            self._clear_assignments(ErrorCode.rebalance_in_progress)
        self._unsynced_ids, self._sync_deadline = set(), inf
        now, timeout_ms = self._clock(), self.members.rebalance_timeout_ms
        if self.phase is GroupPhase.EMPTY:
            self._rebalance = Rebalance.first(now, self._settings.initial_rebalance_delay_ms, timeout_ms)
        else:
            self._rebalance = Rebalance.later(now, timeout_ms)
        self._enter_phase(GroupPhase.PREPARING)

    def _complete_if_all_joined(self) -> None:
        # a first rebalance lasts until its deadline, and clients with reserved ids will join soon: wait for more
        if self._rebalance is None or self._rebalance.is_first or self.reserved_ids:
            return
        if all(member.join is not None for member in self.members):
            self._complete()

    def _complete(self) -> None:
        """Begin a generation of the members that joined. Absent members are removed, except static members."""
        for member in self.members:
            if member.join is None and member.instance_id is None:
                self.members.remove(member)
        if self.members and not self.members.elect_joined_leader():
            # only static members are left, and none has joined: wait for them again
            self._rebalance = Rebalance.later(self._clock(), self.members.rebalance_timeout_ms)
            return
        self._rebalance = None
        self.generation += 1
        if not self.members:
            self.protocol = None
            self._enter_phase(GroupPhase.EMPTY)
            self._store(lambda code: None)
            return
        self.protocol = self.members.chosen_protocol()
        self._enter_phase(GroupPhase.COMPLETING)
        self._unsynced_ids = {member.id for member in self.members}
        self._sync_deadline = self._clock() + self.members.rebalance_timeout_ms
        for member in self.members:
            member.is_new = False
            self.renew_session(member)
            member.answer_join(self._join_reply(member))

    def sync(self, request: SyncRequest, answer: AnswerSync) -> None:
        """Answer with the member's assignment when the leader has assigned and the group is stored."""
        member = self.current_member(request.member_id, request.instance_id, request.generation)
        has_type = request.protocol_type in (None, self.members.protocol_type)
        if not has_type or request.protocol not in (None, self.protocol):
            raise CoordinatorError(ErrorCode.inconsistent_group_protocol)
        if self.phase is GroupPhase.PREPARING:
            raise CoordinatorError(ErrorCode.rebalance_in_progress)
        self._note_synced(member)
        if self.phase is GroupPhase.STABLE:
            self.renew_session(member)
            answer(self._sync_reply(member))
            return
        # a member that syncs again no longer waits for the reply to its earlier sync
        member.answer_sync(SyncReply(error=ErrorCode.rebalance_in_progress))
        member.sync = answer
        if member.id == self.members.leader:
            self._assign(request)

    def _assign(self, request: SyncRequest) -> None:
        generation = self.generation
        assignments = {member.id: request.assignments.get(member.id, b"") for member in self.members}

        def on_stored(code: ErrorCode) -> None:
            if self.phase is not GroupPhase.COMPLETING or self.generation != generation:
                return
            if code is not ErrorCode.none:
                self._clear_assignments(code)
                self.prepare_rebalance()
                return
            self._enter_phase(GroupPhase.STABLE)
            for member in self.members:
                member.assignment = assignments.get(member.id, b"")
                if member.sync is not None:
                    self.renew_session(member)
                    member.answer_sync(self._sync_reply(member))

        self._store(on_stored, assignments)

    def _clear_assignments(self, code: ErrorCode) -> None:
        """Clear the assignments of all members, and refuse their waiting syncs with `code`."""
        for member in self.members:
            member.assignment = b""
            member.answer_sync(SyncReply(error=code))

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Renew a member's session; returns REBALANCE_IN_PROGRESS if the member must join again."""
        self.renew_session(self.current_member(member_id, instance_id, generation))
        return ErrorCode.rebalance_in_progress if self.phase is GroupPhase.PREPARING else ErrorCode.none

    def leave(self, member_id: str, instance_id: str | None) -> None:
        """Remove a member; a static member may be named by its instance only."""
        if self.reserved_ids.pop(member_id, None) is not None:  # the client has an id, but has not joined with it
            self._complete_if_all_joined()
            return
        static_member = self.members.static_member(instance_id)
        if static_member is not None and not member_id:
            member_id = static_member.id
        self._remove(self.members.checked_member(member_id, instance_id))

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """Raise CoordinatorError unless a member commits, or the group is empty and the generation is -1 (none)."""
        if self.phase is GroupPhase.EMPTY and generation < 0:
            return
        self.renew_session(self.current_member(member_id, instance_id, generation))
        if self.phase is GroupPhase.COMPLETING:
            raise CoordinatorError(ErrorCode.rebalance_in_progress)

    def current_member(self, member_id: str, instance_id: str | None, generation: int) -> ClassicMember:
        member = self.members.checked_member(member_id, instance_id)
        if generation != self.generation:
            raise CoordinatorError(ErrorCode.illegal_generation)
        return member

    def renew_session(self, member: ClassicMember) -> None:
        if not member.is_new:
            member.expires_at = self._clock() + member.request.session_timeout_ms

    def _remove(self, member: ClassicMember) -> None:
        self.members.remove(member)
        self._note_synced(member)
        self.prepare_rebalance()
        self._complete_if_all_joined()

    def _note_synced(self, member: ClassicMember) -> None:
        self._unsynced_ids.discard(member.id)
        if not self._unsynced_ids:
            self._sync_deadline = inf

    def _enter_phase(self, phase: GroupPhase) -> None:
        self.phase, self.phase_since_ms = phase, self._wall_clock()

    def _join_reply(self, member: ClassicMember, **changes: Any) -> JoinReply:
        """The reply to a member of this generation, with `changes`; the leader's reply has all members."""
        is_leader = member.id == self.members.leader
        reply = JoinReply(
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.members.protocol_type,
            protocol=self.protocol,
            leader=self.members.leader or "",
            members=tuple(other.record(self.protocol) for other in self.members) if is_leader else (),
        )
        return replace(reply, **changes)

    def _sync_reply(self, member: ClassicMember) -> SyncReply:
        kind = self.members.protocol_type
        return SyncReply(protocol_type=kind, protocol=self.protocol, assignment=member.assignment)

    def _store(self, on_stored: OnStored, assignments: Mapping[str, bytes] | None = None) -> None:
        """Store the group, with new `assignments` if given; call `on_stored` when it is durable, or on failure."""
        members = (member.record(self.protocol) for member in self.members)
        if assignments is not None:
            members = (replace(member, assignment=assignments.get(member.id, b"")) for member in members)
        record = GroupRecord(
            group=self.id,
            protocol_type=self.members.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.members.leader,
            phase_since_ms=self.phase_since_ms,
            members=tuple(members),
        )
        self._save(record, on_stored)

    def restore(self, record: GroupRecord) -> None:
        """Restore a stored group; the sessions of its members begin now."""
        self.generation, self.protocol = record.generation, record.protocol
        self.phase_since_ms = record.phase_since_ms
        for stored in record.members:
            request = Join(
                client_id=stored.client_id,
                client_host=stored.client_host,
                rebalance_timeout_ms=stored.rebalance_timeout_ms,
                session_timeout_ms=stored.session_timeout_ms,
                protocol_type=record.protocol_type,
                protocols=((record.protocol or "", stored.subscription),),
            )
            member = ClassicMember(stored.id, stored.instance_id, request, stored.assignment)
            self.members.add(member, record.protocol_type)
            self.renew_session(member)
        self.members.protocol_type = record.protocol_type or None
        if record.members:
            self.members.leader, self.phase = record.leader, GroupPhase.STABLE

    @property
    def next_deadline(self) -> float:
        return min(self._deadlines())

    def _deadlines(self) -> Iterator[float]:
        yield self._sync_deadline
        yield from self.reserved_ids.values()
        yield from (member.expires_at for member in self.members if not member.is_waiting)
        if self._rebalance is not None:
            yield self._rebalance.deadline

    def expire(self) -> None:
        """Apply the deadlines that are over: of sessions, reserved ids, joins and syncs."""
        now = self._clock()
        self.reserved_ids = {id: expires_at for id, expires_at in self.reserved_ids.items() if expires_at > now}
        late_ids = set(self._unsynced_ids) if self._sync_deadline <= now else set()
        for member in self.members:
            if member.id in late_ids or (member.expires_at <= now and not member.is_waiting):
                self._remove(member)
        self._complete_if_all_joined()
        if self._rebalance is not None and self._rebalance.end_or_extend(now):
            self._complete()


class GroupPhase(Enum):
    """Kafka's names for the states of a group."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    #: The state of a missing group.
    DEAD = "Dead"
    #: Only groups of the newer protocol have these phases.
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"


#: Called with the code when a change is durable, or could not be stored.
OnStored = Callable[[ErrorCode], None]
#: Stores a group and calls back, at once or later; raises nothing.
SaveGroup = Callable[["GroupRecord", OnStored], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A request to join. `protocols` are names with subscriptions, the preferred one first. Times are in ms."""

    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    #: Whether a new member is refused with an id, and must join again with this id (KIP-394).
    must_know_id: bool = False
    may_skip_assignment: bool = False  # whether the client understands `JoinReply.skip_assignment` (KIP-814)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """The result of a join. Only the leader gets `members`, since it assigns their partitions."""

    error: ErrorCode = ErrorCode.none
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[MemberRecord, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member of `generation` asks for its assignment; the leader sends the `assignments` of all members."""

    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


AnswerJoin = Callable[[JoinReply], None]
AnswerSync = Callable[[SyncReply], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """The stored form of a member, with its subscription for the group's protocol only. Times are in ms."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group at the start of a generation; its phase changed at `phase_since_ms` (ms since 1970)."""

    group: str
    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: str | None = None
    phase_since_ms: int
    members: tuple[MemberRecord, ...] = ()


@dataclass(slots=True)
class ClassicMember:
    """A member, its last join `request`, and the callbacks of a waiting `join` and `sync`."""

    id: str
    instance_id: str | None
    request: Join
    assignment: bytes = b""
    is_new: bool = False
    expires_at: float = inf
    join: AnswerJoin | None = None
    sync: AnswerSync | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the member waits for others, which pauses its session. But a new member has a timeout."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def subscription(self, protocol: str | None) -> bytes:
        return dict(self.request.protocols).get(protocol or "", b"")

    def answer_join(self, reply: JoinReply) -> None:
        answer, self.join = self.join, None
        if answer is not None:
            answer(reply)

    def answer_sync(self, reply: SyncReply) -> None:
        answer, self.sync = self.sync, None
        if answer is not None:
            answer(reply)

    def refuse(self, code: ErrorCode) -> None:
        self.answer_join(JoinReply(error=code, member_id=self.id))
        self.answer_sync(SyncReply(error=code))

    def record(self, protocol: str | None) -> MemberRecord:
        return MemberRecord(
            id=self.id,
            instance_id=self.instance_id,
            client_id=self.request.client_id,
            client_host=self.request.client_host,
            rebalance_timeout_ms=self.request.rebalance_timeout_ms,
            session_timeout_ms=self.request.session_timeout_ms,
            subscription=self.subscription(protocol),
            assignment=self.assignment,
        )


class Members:
    """The members by id, in the order of their joins; static members also by the ids of their instances."""

    def __init__(self) -> None:
        self._by_id: dict[str, ClassicMember] = {}
        self._instances: dict[str, str] = {}
        self.protocol_type: str | None = None
        self.leader: str | None = None

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._by_id

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        self.protocol_type = self.protocol_type if self._by_id else protocol_type
        self._by_id[member.id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.id
        self.leader = self.leader or member.id

    def remove(self, member: ClassicMember) -> None:
        del self._by_id[member.id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self._by_id), None)
        member.refuse(ErrorCode.unknown_member_id)

    def static_member(self, instance_id: str | None) -> ClassicMember | None:
        return self._by_id.get(self._instances.get(instance_id or "", ""))

    def replace(self, old: ClassicMember, new_id: str) -> None:
        old.refuse(ErrorCode.fenced_instance_id)
        leader = new_id if self.leader == old.id else self.leader
        self._by_id = {new_id if id == old.id else id: member for id, member in self._by_id.items()}
        old.id, self.leader = new_id, leader
        self._instances[str(old.instance_id)] = new_id

    def checked_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        if instance_id is not None:
            current = self._instances.get(instance_id)
            if current is None:
                raise CoordinatorError(ErrorCode.unknown_member_id)
            if current != member_id:
                raise CoordinatorError(ErrorCode.fenced_instance_id)
        if member_id not in self._by_id:
            raise CoordinatorError(ErrorCode.unknown_member_id)
        return self._by_id[member_id]

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        if not self._by_id:
            return bool(protocol_type) and bool(protocols)
        common = self._common_protocols()
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def chosen_protocol(self) -> str:
        """The protocol that most members prefer, among the protocols that every member has."""
        common = self._common_protocols()
        votes = Counter(next(name for name, _ in member.request.protocols if name in common) for member in self)
        return votes.most_common(1)[0][0]

    def _common_protocols(self) -> Collection[str]:
        return set.intersection(*({name for name, _ in member.request.protocols} for member in self))

    def elect_joined_leader(self) -> bool:
        """Elect another leader if the leader has not joined; returns False if no member has joined."""
        leader = self._by_id.get(self.leader or "")
        if leader is None or leader.join is None:
            joined_id = next((member.id for member in self if member.join is not None), None)
            self.leader = joined_id or self.leader
            return joined_id is not None
        return True

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.request.rebalance_timeout_ms for member in self), default=0)


#: The shortest time for members to join: with 0, a missing member would keep the timer busy forever.
MIN_REBALANCE_MS = 100


@dataclass(slots=True)
class Rebalance:
    """Members join until `deadline`, in ms. Only a group's first rebalance has the other fields (KIP-134)."""

    deadline: float
    is_first: bool = False
    #: At the deadline, the rebalance is extended by `delay_ms` if there are new members.
    delay_ms: int = 0
    #: The most time by which the rebalance may still be extended.
    extension_ms: int = 0
    has_new_members: bool = False

    @classmethod
    def first(cls, now: float, delay_ms: int, timeout_ms: int) -> Rebalance:
        extension_ms = max(0, timeout_ms - delay_ms)
        return cls(now + delay_ms, is_first=True, delay_ms=delay_ms, extension_ms=extension_ms)

    @classmethod
    def later(cls, now: float, timeout_ms: int) -> Rebalance:
        """The rebalance of a group with members, which ends when all members have joined."""
        return cls(now + max(timeout_ms, MIN_REBALANCE_MS))

    def end_or_extend(self, now: float) -> bool:
        """Return whether the rebalance ends. A first rebalance with new members is extended instead."""
        if now < self.deadline:
            return False
        if self.has_new_members and self.extension_ms > 0:
            delay_ms = min(self.delay_ms, self.extension_ms)
            self.deadline, self.has_new_members = now + delay_ms, False
            self.extension_ms -= delay_ms
            # with group.initial.rebalance.delay.ms=0, nothing is extended
            return delay_ms == 0
        return True
