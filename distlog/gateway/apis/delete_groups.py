"""DeleteGroups: delete groups that have no members, with their positions, those of followers too."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import follow_groups_of, groups_of
from distlog.gateway.groups.members.classic_group import GroupPhase
from distlog.gateway.server.request import Request

_log = logging.getLogger("distlog.gateway")


def handle(request: Request, broker: Broker) -> None:
    """Respond when all of them are gone for good, or were refused."""
    names = list(dict.fromkeys(request.body.groups_names))
    answer = _Answer(request, len(names))
    for name in names:
        follow_groups_of(broker).later(request, partial(_delete, broker, name, partial(answer.tell, name)))


def _delete(broker: Broker, group: str, tell: Callable[[ErrorCode], None]) -> None:
    try:
        refused, had_followers = _delete_followers(broker, group)
    except Exception as error:
        _log.error("the followers of a group cannot be deleted: %s", error)
        refused, had_followers = ErrorCode.coordinator_not_available, False
    if refused is not ErrorCode.none:
        tell(refused)
        return
    unknown = ErrorCode.none if had_followers else ErrorCode.group_id_not_found
    own = groups_of(broker).admin
    own.delete(group, lambda code: tell(unknown if code is ErrorCode.group_id_not_found else code))


def _delete_followers(broker: Broker, group: str) -> tuple[ErrorCode, bool]:
    """Why the group cannot be deleted, if so; and whether there were followers of it. Raises DistlogError."""
    own, followers = groups_of(broker).admin.describe(group), follow_groups_of(broker)
    if own.error is not ErrorCode.none:
        return own.error, False
    states = followers.states(group, None).values()
    if own.phase not in (GroupPhase.EMPTY, GroupPhase.DEAD) or any(state.members for state in states):
        return ErrorCode.non_empty_group, False
    return ErrorCode.none, followers.delete(group)


class _Answer:
    """Collects what became of each group, from any thread."""

    def __init__(self, request: Request, count: int) -> None:
        self._request, self._left, self._lock = request, count, threading.Lock()
        self._told: dict[str, ErrorCode] = {}
        if not count:
            self._respond()

    def tell(self, group: str, code: ErrorCode) -> None:
        with self._lock:
            self._told[group] = code
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._respond()

    def _respond(self) -> None:
        results = [{"group_id": group, "error_code": code} for group, code in self._told.items()]
        self._request.respond({"throttle_time": 0, "results": results})


API = Api(42, "DeleteGroups", 0, 2, handle)
