"""DeleteGroups: delete groups that have no members, with their positions."""

from __future__ import annotations

import threading
from functools import partial

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> None:
    """Respond when all of them are gone for good, or were refused."""
    names = list(dict.fromkeys(request.body.groups_names))
    answer = _Answer(request, len(names))
    for name in names:
        groups_of(broker).admin.delete(name, partial(answer.tell, name))


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
