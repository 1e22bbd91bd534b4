"""The leader assigns, and each member learns its part: Kafka's SyncGroup."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.groups.members.classic_group import ClassicGroup, GroupPhase
from distlog.gateway.groups.members.exchanges import AnswerSync, GroupRefusedError, Sync, SyncReply
from distlog.gateway.groups.members.members import Member


def sync(group: ClassicGroup, request: Sync, answer: AnswerSync) -> None:
    """Answer with the member's assignment, when the leader has brought it and it is stored."""
    try:
        member = _checked(group, request)
    except GroupRefusedError as refused:
        answer(SyncReply(error=refused.code))
        return
    group.note_synced(member)
    if group.phase is GroupPhase.STABLE:
        group.renew(member)
        answer(group.assigned(member))
        return
    member.wait_for_sync(answer)
    if member.id == group.members.leader:
        _assign(group, request)


def _checked(group: ClassicGroup, request: Sync) -> Member:
    member = group.checked(request.member_id, request.instance_id, request.generation)
    given = (request.protocol_type, group.members.protocol_type), (request.protocol, group.protocol)
    if any(name is not None and name != expected for name, expected in given):
        raise GroupRefusedError(ErrorCode.inconsistent_group_protocol)
    if group.phase is GroupPhase.PREPARING:
        raise GroupRefusedError(ErrorCode.rebalance_in_progress)
    return member


def _assign(group: ClassicGroup, request: Sync) -> None:
    """Store what the leader assigned, then tell the members. A rebalance that begins meanwhile makes it void."""
    generation = group.generation
    assignments = {member.id: request.assignments.get(member.id, b"") for member in group.members}

    def stored(code: ErrorCode) -> None:
        if group.phase is not GroupPhase.COMPLETING or group.generation != generation:
            return
        if code is ErrorCode.none:
            group.be_stable(assignments)
        else:
            group.refuse_syncs(code)
            group.prepare()

    group.save(stored, assignments)
