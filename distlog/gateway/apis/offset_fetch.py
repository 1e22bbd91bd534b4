"""OffsetFetch: how far groups have come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.groups.exchanges import GroupRefusedError
from distlog.gateway.groups.of_broker import groups_of
from distlog.gateway.groups.offsets_format import Position
from distlog.gateway.groups.positions import TopicPartition
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

#: What a group is told that has no position: its client begins where `auto.offset.reset` says.
_NONE = Position(-1)


def handle(request: Request, broker: Broker) -> Fields:
    """The positions of one group, or of several from version 8 on."""
    groups, stable = request.get("groups"), request.get("require_stable", False)
    if groups is None:
        return {"throttle_time": 0, **_told(broker, request.body, stable)}
    told = [{"group_id": each.group_id, **_told(broker, each, stable)} for each in groups]
    return {"throttle_time": 0, "groups": told}


def _told(broker: Broker, asked: Any, stable: bool) -> Fields:
    # no list of topics asks for all positions of the group
    wanted = None if asked.topics is None else [(t.name, n) for t in asked.topics for n in t.partition_indexes]
    try:
        found = groups_of(broker).offsets.fetch(asked.group_id, wanted, stable=stable)
    except GroupRefusedError as refused:
        # version 1 has a place for it at the partitions alone; without, a client would begin anew
        return {"error_code": refused.code, "topics": _topics(dict.fromkeys(wanted or (), refused.code))}
    return {"error_code": ErrorCode.none, "topics": _topics(found)}


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
