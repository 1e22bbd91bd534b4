"""Who may join a group, and whether that begins a new generation: the cases of Kafka's JoinGroup."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.groups.members.classic_group import NEW_MEMBER_TIMEOUT_MS, ClassicGroup, GroupPhase
from distlog.gateway.groups.members.exchanges import AnswerJoin, GroupRefusedError, Join, JoinReply
from distlog.gateway.groups.members.members import Member


def join(group: ClassicGroup, request: Join, answer: AnswerJoin) -> None:
    """Answer a join: when the generation begins, or at once if it changes nothing or is refused."""
    try:
        _check(group, request)
        if request.member_id:
            _join_known(group, request, answer)
        else:
            _join_new(group, request, answer)
    except GroupRefusedError as refused:
        answer(JoinReply(error=refused.code, member_id=refused.member_id or request.member_id))
        return
    group.complete_if_all_joined()


def _check(group: ClassicGroup, request: Join) -> None:
    settings = group.settings
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        raise GroupRefusedError(ErrorCode.invalid_session_timeout)
    if group.phase is GroupPhase.DEAD:
        raise GroupRefusedError(ErrorCode.coordinator_not_available)
    if not group.members.can_speak(request.protocol_type, request.protocols):
        raise GroupRefusedError(ErrorCode.inconsistent_group_protocol)
    is_member = request.member_id in group.members or group.members.static(request.instance_id) is not None
    if not is_member and len(group.members) >= settings.max_size:
        raise GroupRefusedError(ErrorCode.group_max_size_reached)


def _join_new(group: ClassicGroup, request: Join, answer: AnswerJoin) -> None:
    new_id = f"{request.instance_id or request.client_id}-{group.new_id()}"
    static = group.members.static(request.instance_id)
    if static is not None:
        _replace(group, static, new_id, request, answer)
    elif request.must_know_id and request.instance_id is None:
        group.promised[new_id] = group.clock() + request.session_timeout_ms
        raise GroupRefusedError(ErrorCode.member_id_required, new_id)
    else:
        _add(group, new_id, request, answer)


def _join_known(group: ClassicGroup, request: Join, answer: AnswerJoin) -> None:
    if request.instance_id is None and group.promised.pop(request.member_id, None) is not None:
        _add(group, request.member_id, request, answer)
        return
    member = group.members.check(request.member_id, request.instance_id)
    has_changed = member.protocols != request.protocols
    is_leader = member.id == group.members.leader
    if group.phase is GroupPhase.COMPLETING and not has_changed:
        # the answer was lost: it is given again
        answer(group.joined(member))
    elif group.phase is GroupPhase.STABLE and not has_changed and not is_leader:
        answer(group.joined(member))
    else:
        # a leader that joins again wants to assign anew
        _wait(group, member, request, answer)


def _add(group: ClassicGroup, member_id: str, request: Join, answer: AnswerJoin) -> None:
    member = Member(
        id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        expires_at=group.clock() + NEW_MEMBER_TIMEOUT_MS,
    )
    if group.rebalance is not None:
        group.rebalance.has_newcomers = True
    group.members.add(member, request.protocol_type)
    _wait(group, member, request, answer)


def _replace(group: ClassicGroup, member: Member, new_id: str, request: Join, answer: AnswerJoin) -> None:
    """An instance of a static member began anew: the others go on as they are, if its subscription is the same."""
    old_id, was_leader = member.id, group.members.leader == member.id
    group.replace(member, new_id)
    is_same = group.phase is GroupPhase.STABLE and _speaks_as_before(group, member, request)
    if not is_same:
        _wait(group, member, request, answer)
        return
    group.renew(member)
    if was_leader and not request.may_skip_assignment:
        # an old client would assign anew if it knew that it leads (KIP-814)
        reply = group.joined(member, leader=old_id, members=())
    else:
        reply = group.joined(member, skip_assignment=was_leader)

    def stored(code: ErrorCode) -> None:
        answer(reply if code is ErrorCode.none else JoinReply(error=code, member_id=request.member_id))

    group.save(stored, {each.id: each.assignment for each in group.members})


def _speaks_as_before(group: ClassicGroup, member: Member, request: Join) -> bool:
    """Whether the group's protocol stays, and the member's subscription too; it keeps what the request says."""
    before = member.subscription(group.protocol)
    member.learn(request)
    return group.members.chosen_protocol() == group.protocol and member.subscription(group.protocol) == before


def _wait(group: ClassicGroup, member: Member, request: Join, answer: AnswerJoin) -> None:
    member.learn(request)
    member.wait_for_join(answer)
    group.prepare()
