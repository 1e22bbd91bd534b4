"""OffsetFetch: how far groups have come."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import follow_groups_of, groups_of
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.groups.offsets.offsets_format import Position
from distlog.gateway.groups.offsets.positions import TopicPartition
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_log = logging.getLogger("distlog.gateway")

#: What a group is told that has no position: its client begins where `auto.offset.reset` says.
_NONE = Position(-1)


def handle(request: Request, broker: Broker) -> Fields | None:
    """The positions of one group, or of several from version 8 on; those of followers need a look at the storage."""
    groups, stable = request.get("groups"), request.get("require_stable", False)
    answers = [_Answer(broker, each, stable) for each in (groups if groups is not None else [request.body])]
    if any(answer.asks_followers for answer in answers):
        follow_groups_of(broker).later(lambda: request.respond(_fields(groups, answers)))
        return None
    return _fields(groups, answers)


def _fields(groups: Sequence[Any] | None, answers: Sequence[_Answer]) -> Fields:
    if groups is None:
        return {"throttle_time": 0, **answers[0].fields()}
    told = zip(groups, answers, strict=True)
    return {"throttle_time": 0, "groups": [{"group_id": each.group_id, **one.fields()} for each, one in told]}


class _Answer:
    """What is told of one group: its own positions, and those of followers where it has none."""

    def __init__(self, broker: Broker, asked: Any, stable: bool) -> None:
        self._broker, self._group, self._code = broker, asked.group_id, ErrorCode.none
        # no list of topics asks for all positions of the group
        self._wanted = None if asked.topics is None else _places(asked.topics)
        self._found: dict[TopicPartition, Position | ErrorCode | None] = {}
        try:
            self._found = groups_of(broker).offsets.fetch(self._group, self._wanted, stable=stable)
        except GroupRefusedError as refused:
            self._refuse(refused.code)

    @property
    def asks_followers(self) -> bool:
        """Whether it may have places without a position of its own."""
        has_all = self._wanted is not None and all(position is not None for position in self._found.values())
        return self._code is ErrorCode.none and not has_all

    def fields(self) -> Fields:
        """What is told."""
        if self.asks_followers:
            try:
                self._add_followers()
            except Exception as error:
                _log.error("the positions of followers are not known: %s", error)
                # without a position a client would begin anew: it shall ask again
                self._refuse(ErrorCode.coordinator_load_in_progress)
        return {"error_code": self._code, "topics": _topics(self._found)}

    def _add_followers(self) -> None:
        missing = [place for place, position in self._found.items() if position is None]
        topics = None if self._wanted is None else {topic for topic, _ in missing}
        for place, offset in follow_groups_of(self._broker).positions(self._group, topics).items():
            if self._found.get(place) is None and (self._wanted is None or place in self._found):
                self._found[place] = Position(offset)

    def _refuse(self, code: ErrorCode) -> None:
        # version 1 has a place for it at the partitions alone; without, a client would begin anew
        self._code, self._found = code, dict.fromkeys(self._wanted or (), code)


def _places(topics: Any) -> list[TopicPartition]:
    return [(topic.name, number) for topic in topics for number in topic.partition_indexes]


def _topics(found: Mapping[TopicPartition, Position | ErrorCode | None]) -> list[Fields]:
    topics: dict[str, list[Fields]] = {}
    for (topic, partition), each in found.items():
        told = each if isinstance(each, Position) else _NONE
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": told.offset,
                "committed_leader_epoch": told.leader_epoch,
                "metadata": told.metadata,
                "error_code": each if isinstance(each, ErrorCode) else ErrorCode.none,
            }
        )
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


API = Api(9, "OffsetFetch", 1, 9, handle)
