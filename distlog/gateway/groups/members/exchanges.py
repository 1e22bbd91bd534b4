"""What members of a group ask of its coordinator, and what they are told, in no version of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

#: Names that a member can speak, the one it likes best first, with its subscription under each.
Protocols = tuple[tuple[str, bytes], ...]


class GroupRefusedError(Exception):
    """The coordinator refuses what a member asked for, with this code of Kafka's."""

    def __init__(self, code: ErrorCode, member_id: str = "") -> None:
        super().__init__(code.name)
        self.code, self.member_id = code, member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Somebody wants to be a member, or to stay one; times are in ms. Without a `member_id` it is a new one.

    `instance_id` makes it static (KIP-345). `must_know_id`: it is told its id first, and joins with that (KIP-394).
    """

    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    must_know_id: bool = False
    may_skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """What the leader learns of a member: its subscription under the protocol that was chosen."""

    id: str
    instance_id: str | None
    subscription: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """A member of `generation`, or an error. Only the leader learns of the `members`: it assigns."""

    error: ErrorCode = ErrorCode.none
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A member of `generation` asks for its assignment; the leader brings the `assignments` of all."""

    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """A member's assignment, or an error."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


AnswerJoin = Callable[[JoinReply], None]
AnswerSync = Callable[[SyncReply], None]
