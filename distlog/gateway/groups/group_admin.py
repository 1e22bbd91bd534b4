"""What people ask about groups: Kafka's ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from distlog.gateway.groups.group import Group
from distlog.gateway.groups.members.classic_group import GroupPhase, Stored
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.groups.members.group_record import MemberRecord
from distlog.gateway.groups.registry import GroupRegistry


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as it is now; subscriptions and assignments are shown while it is stable alone, as in Kafka."""

    group: str
    phase: GroupPhase
    protocol_type: str
    protocol: str
    members: tuple[MemberRecord, ...]
    error: ErrorCode = ErrorCode.none


class GroupAdmin:
    """The groups in a registry, for people."""

    def __init__(self, groups: GroupRegistry) -> None:
        self._groups = groups

    def list(self) -> Iterator[GroupDescription]:
        """All groups, by name."""
        for name in self._groups.names():
            described = self.describe(name)
            if described.phase is not GroupPhase.DEAD:
                yield described

    def describe(self, group: str) -> GroupDescription:
        """A group; one that is not there is dead. It has an `error` if another gateway coordinates it, or will."""
        try:
            with self._groups.opened(group, missing=ErrorCode.none) as opened:
                return _described(opened)
        except GroupRefusedError as refused:
            code = ErrorCode.none if refused.code is ErrorCode.invalid_group_id else refused.code
            return GroupDescription(group, GroupPhase.DEAD, "", "", (), code)

    def delete(self, group: str, done: Stored) -> None:
        """Delete a group that has no members, with its positions; `done` learns when that is durable, or why not."""
        try:
            with self._groups.opened(group, missing=ErrorCode.group_id_not_found) as opened:
                if opened.membership.phase is not GroupPhase.EMPTY:
                    raise GroupRefusedError(ErrorCode.non_empty_group)
                if opened.positions.is_joining():
                    # they would come behind what deletes them
                    raise GroupRefusedError(ErrorCode.coordinator_load_in_progress)
                self._groups.forget(opened, done)
        except GroupRefusedError as refused:
            done(refused.code)


def _described(group: Group) -> GroupDescription:
    membership = group.membership
    protocol = membership.protocol if membership.phase is GroupPhase.STABLE else None
    return GroupDescription(
        membership.id,
        membership.phase,
        membership.members.protocol_type or "",
        protocol or "",
        tuple(member.record(protocol) for member in membership.members),
    )
