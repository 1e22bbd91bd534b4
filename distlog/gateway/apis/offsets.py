"""The APIs of offsets in logs: ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from distlog.core.read.time_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, offset_for_time
from distlog.core.storage.parallel import in_parallel
from distlog.gateway.apis.cluster import attempted, by_topic, grouped
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.frames import Fields, error_code
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import Operation, ResourceType
from distlog.gateway.server.request import Request
from distlog.gateway.topics.metadata_cache import HostedTopic

_READ_COMMITTED = 1
#: KIP-405: the earliest offset on the broker's own disk, and the latest in tiered storage. A gateway has no tiers.
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_NONE = -1


def list_offsets(request: Request, broker: Broker) -> Fields:
    """The offset for each partition's time."""
    committed = request.get("isolation_level", 0) == _READ_COMMITTED
    topics = [
        {"name": name, "partitions": _list_topic(request, broker, name, [part for _, part in items], committed)}
        for name, items in grouped(_by_partition(request).items(), lambda item: item[0][0]).items()
    ]
    return {"throttle_time": 0, "topics": topics}


def _by_partition(request: Request) -> dict[tuple[str, int], Any]:
    """The partitions of a request by topic and number; as in Kafka, the last if one is named twice."""
    return {
        (topic.name, requested.partition_index): requested
        for topic in request.body.topics
        for requested in topic.partitions
    }


class _ListedOffset(NamedTuple):
    """The answer for a partition, with the epoch of the batch at the offset."""

    offset: int
    timestamp: int
    leader_epoch: int


_NO_LISTED_OFFSET = _ListedOffset(_NONE, _NONE, _NONE)


def _list_topic(
    request: Request, broker: Broker, topic: str, requested: Sequence[Any], committed: bool
) -> list[Fields]:
    """The answers for partitions; on an object store after one refresh of the topic, in parallel."""
    try:
        request.rights.check(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        hosted = broker.metadata.fresh_topic(topic)
        if not hosted.is_local:
            hosted.refresh()
    except Exception as error:
        code = error_code(error)
        return [_answer(part, code, _NO_LISTED_OFFSET) for part in requested]

    def answer(part: Any) -> Fields:
        try:
            return _answer(part, ErrorCode.none, _listed_offset(hosted, part, committed))
        except Exception as error:
            return _answer(part, error_code(error), _NO_LISTED_OFFSET)

    return [answer(part) for part in requested] if hosted.is_local else in_parallel(answer, requested)


def _answer(requested: Any, code: ErrorCode, listed: _ListedOffset) -> Fields:
    return {"partition_index": requested.partition_index, "error_code": code, **listed._asdict()}


def _listed_offset(hosted: HostedTopic, requested: Any, committed: bool) -> _ListedOffset:
    partition = hosted.partition(requested.partition_index)
    state, time = partition.state(), requested.timestamp
    end = partition.offsets(state).last_stable_offset if committed else state.log_end_offset
    if time == LATEST:
        return _ListedOffset(end, _NONE, partition.leader_epochs(state).latest)
    if time in (EARLIEST, _EARLIEST_LOCAL):
        start = state.log_start_offset
        return _ListedOffset(start, _NONE, partition.leader_epochs(state).epoch_of(state, start))
    if time == _LATEST_TIERED or (time < 0 and time != MAX_TIMESTAMP):
        return _NO_LISTED_OFFSET
    offset_and_time = offset_for_time(hosted.topic.reader, state, time)
    # a reader of committed records gets no offset that is not stable yet
    if offset_and_time is None or offset_and_time[0] >= end:
        return _NO_LISTED_OFFSET
    return _ListedOffset(*offset_and_time, partition.leader_epochs(state).epoch_of(state, offset_and_time[0]))


# There is one leader forever, and acknowledged records are never cut. An imported log has its broker's epochs: one
# ends where the next one begins, and the latest one where the log ends.


def offset_for_leader_epoch(request: Request, broker: Broker) -> Fields:
    """The end of the epoch of each partition."""
    requested = {(topic.topic, part.partition): part for topic in request.body.topics for part in topic.partitions}
    ends = (
        (name, attempted(partial(_epoch_end, request, broker, name, part), partition=number))
        for (name, number), part in requested.items()
    )
    return {"throttle_time": 0, "topics": by_topic(ends, name="topic")}


def _epoch_end(request: Request, broker: Broker, topic: str, requested: Any) -> Fields:
    request.rights.check(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    partition = broker.metadata.fresh_topic(topic).partition(requested.partition)
    state = partition.state()
    end = partition.leader_epochs(state).end_of(requested.leader_epoch, state.log_end_offset)
    return {"leader_epoch": end.epoch, "end_offset": end.end_offset}


def delete_records(request: Request, broker: Broker) -> Fields:
    """Delete the records below an offset, -1 for all; each partition in a commit of its own."""

    def delete(name: str, number: int, offset: int) -> Fields:
        request.rights.check(Operation.DELETE, ResourceType.TOPIC, name)
        report = broker.metadata.clients_topic(name).topic.delete_records({number: offset})
        return {"low_watermark": report.log_start_offsets[number]}

    topics = by_topic(
        (name, attempted(partial(delete, name, number, part.offset), partition_index=number, low_watermark=_NONE))
        for (name, number), part in _by_partition(request).items()
    )
    return {"throttle_time": 0, "topics": topics}


DELETE_RECORDS = Api(21, "DeleteRecords", 0, 2, delete_records, "DELETE of the topic")
APIS = (
    Api(2, "ListOffsets", 1, 9, list_offsets, "DESCRIBE of the topic"),
    Api(23, "OffsetForLeaderEpoch", 2, 4, offset_for_leader_epoch, "DESCRIBE of the topic"),
    DELETE_RECORDS,
)
