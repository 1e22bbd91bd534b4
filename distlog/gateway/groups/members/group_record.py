"""What is stored of a group: enough for its members to go on after the gateway was killed, without a rebalance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A member as it is stored: with its subscription under the chosen protocol alone. Times are in ms."""

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
    """A group at the start of a generation; `since_ms` (ms since 1970) is when it came into this state."""

    group: str
    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: str | None = None
    since_ms: int
    members: tuple[MemberRecord, ...] = ()
