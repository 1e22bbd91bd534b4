"""What a gateway does for the members of groups, in Kafka's words; answers may come later, from any thread."""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from distlog.gateway.groups.members.exchanges import (
    AnswerJoin,
    AnswerSync,
    GroupRefusedError,
    Join,
    JoinReply,
    Sync,
    SyncReply,
)
from distlog.gateway.groups.members.join import join
from distlog.gateway.groups.members.membership import heartbeat, leave
from distlog.gateway.groups.members.sync import sync
from distlog.gateway.groups.registry import MAX_TEXT_BYTES, GroupRegistry

#: What the gateway adds to a name, so that it is an id: a hyphen and a UUID.
_OWN_ID_BYTES = 37


class GroupCoordinator:
    """Members of the groups in a registry. Each call returns at once, and raises nothing."""

    def __init__(self, groups: GroupRegistry) -> None:
        self._groups = groups

    def join(self, group: str, request: Join, answer: AnswerJoin) -> None:
        """Answer when the generation begins, or at once with an error; a group that is not there is made."""
        try:
            _check_texts(request)
            # whoever has an id has it from a group that is there
            with self._groups.opened(group, make=not request.member_id) as opened:
                join(opened.membership, request, answer)
        except GroupRefusedError as refused:
            answer(JoinReply(error=refused.code, member_id=request.member_id))

    def sync(self, group: str, request: Sync, answer: AnswerSync) -> None:
        """Answer with the member's assignment when there is one, or at once with an error."""
        try:
            with self._groups.opened(group) as opened:
                sync(opened.membership, request, answer)
        except GroupRefusedError as refused:
            answer(SyncReply(error=refused.code))

    def heartbeat(self, group: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A member lives; the answer tells whether it should join again."""
        try:
            with self._groups.opened(group) as opened:
                return heartbeat(opened.membership, member_id, instance_id, generation)
        except GroupRefusedError as refused:
            return refused.code

    def leave(self, group: str, member_id: str, instance_id: str | None = None) -> ErrorCode:
        """A member goes."""
        try:
            with self._groups.opened(group) as opened:
                return leave(opened.membership, member_id, instance_id)
        except GroupRefusedError as refused:
            return refused.code


def _check_texts(request: Join) -> None:
    # the name of a client, or of an instance, becomes a part of its member's id
    parts = request.client_id, request.instance_id or ""
    texts = request.client_host, request.protocol_type, *(name for name, _ in request.protocols)
    if _longest(parts) > MAX_TEXT_BYTES - _OWN_ID_BYTES or _longest(texts) > MAX_TEXT_BYTES:
        raise GroupRefusedError(ErrorCode.invalid_request)


def _longest(texts: Iterable[str]) -> int:
    return max(len(text.encode("utf-8", "surrogatepass")) for text in texts)
