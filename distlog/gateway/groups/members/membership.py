"""How members show that they live, leave, and may commit: Kafka's Heartbeat, LeaveGroup and OffsetCommit."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.groups.members.classic_group import ClassicGroup, GroupPhase
from distlog.gateway.groups.members.exchanges import GroupRefusedError


def heartbeat(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    """A member lives; the answer tells whether it should join again."""
    try:
        member = group.checked(member_id, instance_id, generation)
    except GroupRefusedError as refused:
        return refused.code
    group.renew(member)
    return ErrorCode.rebalance_in_progress if group.phase is GroupPhase.PREPARING else ErrorCode.none


def leave(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """A member goes. Whoever runs the group lets a static one go by its instance alone."""
    if group.promised.pop(member_id, None) is not None:
        group.complete_if_all_joined()
        return ErrorCode.none
    static = group.members.static(instance_id)
    try:
        member = group.members.check(static.id if static and not member_id else member_id, instance_id)
    except GroupRefusedError as refused:
        return refused.code
    group.remove(member)
    return ErrorCode.none


def check_commit(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> None:
    """Raise GroupRefusedError unless offsets may be committed: by a member, or by anybody while there is none."""
    if group.phase is GroupPhase.EMPTY and generation < 0:
        return
    group.renew(group.checked(member_id, instance_id, generation))
    if group.phase is GroupPhase.COMPLETING:
        raise GroupRefusedError(ErrorCode.rebalance_in_progress)
