"""OffsetDelete: forget positions in topics that a group does not read any more, those of followers too."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping

from kio.schema.errors import ErrorCode

from distlog.core.groups.group_state import GroupState
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import follow_groups_of, groups_of
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.groups.offsets.positions import TopicPartition
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_log = logging.getLogger("distlog.gateway")


def handle(request: Request, broker: Broker) -> None:
    """Respond when the positions are gone for good."""
    deletion = _Deletion(request, broker)
    deletion.later(deletion.begin)


class _Deletion:
    """Forgets our own positions, and then those of followers, which would count again."""

    def __init__(self, request: Request, broker: Broker) -> None:
        self._request, self._group = request, request.body.group_id
        self._own, self._followers = groups_of(broker).offsets, follow_groups_of(broker)
        self._places = [
            (topic.name, each.partition_index) for topic in request.body.topics for each in topic.partitions
        ]
        self._told: dict[TopicPartition, ErrorCode] = {}

    def later(self, work: Callable[[], None]) -> None:
        """Do `work`, which asks the storage, in another thread; it responds also if it fails."""

        def done() -> None:
            try:
                work()
            except GroupRefusedError as refused:
                self._respond(refused.code)
            except Exception as error:
                _log.error("positions of followers cannot be deleted: %s", error)
                self._respond(ErrorCode.coordinator_not_available)

        self._followers.later(self._request, done)

    def begin(self) -> None:
        """Forget our own, where nobody reads the topic."""
        states = self._followers.states(self._group, {topic for topic, _ in self._places})
        left = [place for place in self._places if not _is_read(states, place)]
        read = ErrorCode.group_subscribed_to_topic
        self._told = {place: read for place in self._places if _is_read(states, place)}
        try:
            self._own.delete(self._group, left, self._told, self._deleted)
        except GroupRefusedError as refused:
            is_known = any(state.exists for state in states.values())
            if refused.code is not ErrorCode.group_id_not_found or not is_known:
                raise
            # only followers know the group
            self._told |= dict.fromkeys(left, ErrorCode.none)
            self._forget()

    def _deleted(self, code: ErrorCode) -> None:
        if code is ErrorCode.none:
            self.later(self._forget)
        else:
            self._respond(code)

    def _forget(self) -> None:
        places = defaultdict[str, list[int]](list)
        for (topic, partition), code in self._told.items():
            if code is ErrorCode.none:
                places[topic].append(partition)
        self._followers.forget(self._group, places)
        self._respond(ErrorCode.none)

    def _respond(self, code: ErrorCode) -> None:
        topics: dict[str, list[Fields]] = {}
        for (topic, partition), refused in self._told.items():
            topics.setdefault(topic, []).append({"partition_index": partition, "error_code": refused})
        told = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
        self._request.respond({"throttle_time": 0, "error_code": code, "topics": told})


def _is_read(states: Mapping[str, GroupState], place: TopicPartition) -> bool:
    return place[0] in states and bool(states[place[0]].members)


API = Api(47, "OffsetDelete", 0, 0, handle)
