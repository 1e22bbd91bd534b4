"""ListOffsets: the offset at a time, or at one of the special times."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from distlog.core.reading.time_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, offset_for_time
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.error_codes import error_code
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

#: KIP-405: what is on the broker's own disk, and in tiered storage. A gateway has no tiers.
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_READ_COMMITTED = 1
_NONE = -1


def handle(request: Request, broker: Broker) -> Fields:
    """The offset for each partition's time."""
    committed = request.get("isolation_level", 0) == _READ_COMMITTED
    topics = [
        {
            "name": topic.name,
            "partitions": [_partition(broker, topic.name, one, committed) for one in topic.partitions],
        }
        for topic in request.body.topics
    ]
    return {"throttle_time": 0, "topics": topics}


def _partition(broker: Broker, topic: str, asked: Any, committed: bool) -> Fields:
    told = {"partition_index": asked.partition_index, "leader_epoch": _NONE}
    try:
        offset, timestamp = _offset(broker, topic, asked, committed)
    except Exception as error:
        return {**told, "error_code": error_code(error), "offset": _NONE, "timestamp": _NONE}
    return {**told, "error_code": ErrorCode.none, "offset": offset, "timestamp": timestamp}


def _offset(broker: Broker, topic: str, asked: Any, committed: bool) -> tuple[int, int]:
    hosted = broker.metadata.fresh_topic(topic)
    if not hosted.is_local:
        hosted.refresh()
    partition = hosted.partition(asked.partition_index)
    state, time = partition.state(), asked.timestamp
    end = partition.offsets(state).last_stable_offset if committed else state.log_end_offset
    if time == LATEST:
        return end, _NONE
    if time in (EARLIEST, _EARLIEST_LOCAL):
        return state.log_start_offset, _NONE
    if time == _LATEST_TIERED or (time < 0 and time != MAX_TIMESTAMP):
        return _NONE, _NONE
    found = offset_for_time(hosted.topic.reader, state, time)
    # what is not stable yet has no offset for who may not see it
    return (_NONE, _NONE) if found is None or found[0] >= end else found


API = Api(2, "ListOffsets", 1, 9, handle)
