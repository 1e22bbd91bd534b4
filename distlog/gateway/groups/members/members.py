"""The members of one group: who they are, what they can speak, who leads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import inf

from kio.schema.errors import ErrorCode

from distlog.gateway.groups.members.exchanges import (
    AnswerJoin,
    AnswerSync,
    GroupRefusedError,
    Join,
    JoinedMember,
    JoinReply,
    Protocols,
    SyncReply,
)
from distlog.gateway.groups.members.group_record import MemberRecord


@dataclass(slots=True, kw_only=True)
class Member:
    """A member of a group. While a join or a sync of it waits for the others, its session does not expire.

    `expires_at` is by the coordinator's clock, in ms. A new member may wait for its first generation until then.
    """

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    expires_at: float = inf
    join: AnswerJoin | None = None
    sync: AnswerSync | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the others, after its first generation."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def subscription(self, protocol: str | None) -> bytes:
        """What it brought under this name of a protocol."""
        return dict(self.protocols).get(protocol or "", b"")

    def learn(self, join: Join) -> None:
        """Take what a newer join of the member says."""
        self.protocols, self.client_id, self.client_host = join.protocols, join.client_id, join.client_host
        self.rebalance_timeout_ms, self.session_timeout_ms = join.rebalance_timeout_ms, join.session_timeout_ms

    def wait_for_join(self, answer: AnswerJoin) -> None:
        """Be answered when all have joined; an older join that still waits is answered now: each gets one answer."""
        self.answer_join(JoinReply(error=ErrorCode.rebalance_in_progress, member_id=self.id))
        self.join = answer

    def answer_join(self, reply: JoinReply) -> None:
        """Answer the join that waits, if one does."""
        answer, self.join = self.join, None
        if answer is not None:
            answer(reply)

    def wait_for_sync(self, answer: AnswerSync) -> None:
        """Be answered when the leader has assigned; an older sync that still waits is answered now."""
        self.answer_sync(SyncReply(error=ErrorCode.rebalance_in_progress))
        self.sync = answer

    def answer_sync(self, reply: SyncReply) -> None:
        """Answer the sync that waits, if one does."""
        answer, self.sync = self.sync, None
        if answer is not None:
            answer(reply)

    def refuse(self, code: ErrorCode) -> None:
        """Answer whatever waits with an error."""
        self.answer_join(JoinReply(error=code, member_id=self.id))
        self.answer_sync(SyncReply(error=code))

    def record(self, protocol: str | None) -> MemberRecord:
        """It, as it is stored."""
        return MemberRecord(
            id=self.id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.subscription(protocol),
            assignment=self.assignment,
        )


class Members:
    """The members by id, in the order in which they came; static ones by their instance's id too."""

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._instances: dict[str, str] = {}
        self.protocol_type: str | None = None
        self.leader: str | None = None

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._by_id

    def add(self, member: Member, protocol_type: str) -> None:
        """Take a member in; the first one leads."""
        self.protocol_type = self.protocol_type if self._by_id else protocol_type
        self._by_id[member.id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.id
        self.leader = self.leader or member.id

    def remove(self, member: Member) -> None:
        """Let a member go; whatever of it waits is answered. Another one leads, if it did."""
        del self._by_id[member.id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self._by_id), None)
        member.refuse(ErrorCode.unknown_member_id)

    def static(self, instance_id: str | None) -> Member | None:
        """The static member of this instance."""
        return self._by_id.get(self._instances.get(instance_id or "", ""))

    def replace(self, old: Member, new_id: str) -> None:
        """The instance of a static member began anew: it gets another id, and its old one is fenced."""
        old.refuse(ErrorCode.fenced_instance_id)
        leader = new_id if self.leader == old.id else self.leader
        self._by_id = {new_id if id == old.id else id: member for id, member in self._by_id.items()}
        old.id, self.leader = new_id, leader
        self._instances[str(old.instance_id)] = new_id

    def check(self, member_id: str, instance_id: str | None) -> Member:
        """The member that says it is this; raises GroupRefusedError if it is not, or was fenced."""
        if instance_id is not None:
            current = self._instances.get(instance_id)
            if current is None:
                raise GroupRefusedError(ErrorCode.unknown_member_id)
            if current != member_id:
                raise GroupRefusedError(ErrorCode.fenced_instance_id)
        if member_id not in self._by_id:
            raise GroupRefusedError(ErrorCode.unknown_member_id)
        return self._by_id[member_id]

    def can_speak(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether whoever speaks these could understand all members."""
        if not self._by_id:
            return bool(protocol_type) and bool(protocols)
        common = self._common()
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def chosen_protocol(self) -> str:
        """The protocol that most members like best, of those that all of them speak."""
        common = self._common()
        votes = Counter(next(name for name, _ in member.protocols if name in common) for member in self)
        return votes.most_common(1)[0][0]

    def _common(self) -> Collection[str]:
        return set.intersection(*({name for name, _ in member.protocols} for member in self))

    def elect_joined_leader(self) -> bool:
        """Have a leader that waits for the generation; returns False if nobody does."""
        leader = self._by_id.get(self.leader or "")
        if leader is None or leader.join is None:
            joined = next((member.id for member in self if member.join is not None), None)
            self.leader = joined or self.leader
            return joined is not None
        return True

    def joined(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """All of them, as the leader sees them."""
        return tuple(
            JoinedMember(id=member.id, instance_id=member.instance_id, subscription=member.subscription(protocol))
            for member in self
        )

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest of them may take to join again."""
        return max((member.rebalance_timeout_ms for member in self), default=0)
