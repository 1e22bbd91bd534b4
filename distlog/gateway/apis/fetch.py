"""The APIs of records in logs: Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from distlog.core.read.fetch import FetchedBatches
from distlog.core.read.lookup import EARLIEST, LATEST, MAX_TIMESTAMP, offset_for_time
from distlog.core.segments.chunks import StoredBatches
from distlog.core.storage.calls import in_parallel
from distlog.gateway.kafka_apis import Api, Broker, Handlers
from distlog.gateway.protocol.error_codes import error_code, fields_or_error, topic_error_code
from distlog.gateway.protocol.messages import ErrorCode, Fields, ResponseChunk
from distlog.gateway.security.acls import Operation, ResourceType
from distlog.gateway.server.delayed_operations import DelayedFetch
from distlog.gateway.server.fairness import CONSUMER_BYTE_RATE
from distlog.gateway.server.request import Request, by_topic, topic_key
from distlog.gateway.topics.metadata_cache import HostedTopic
from distlog.gateway.topics.partition import FetchedData, LogOffsets, Partition

#: A fetch with a greater epoch is in a session (KIP-227). Gateways have no sessions, which are optional.
_NEW_SESSION_EPOCH = 0
#: The isolation level of clients that read committed records only.
_READ_COMMITTED = 1
#: The longest wait of a fetch, even if its `fetch.max.wait.ms` is longer.
_MAX_WAIT_S = 60.0
#: The offsets in a response for a partition that cannot be read.
_NO_OFFSETS = LogOffsets(-1, -1, -1)
#: In ListOffsets, the times that mean the earliest offset on the broker's disk, and the latest in tiered storage.
_EARLIEST_LOCAL, _LATEST_TIERED = -4, -5


def fetch(request: Request, broker: Broker) -> Fields | None:
    """Return the records, or None if the request waits for `min_bytes`. After the wait, this is called again."""
    body, operation = request.body, request.handler_state
    if operation is None:
        wait_s = min(max(body.max_wait / 1000, 0), _MAX_WAIT_S)
        committed = body.isolation_level == _READ_COMMITTED
        if request.get("session_epoch", _NEW_SESSION_EPOCH) > _NEW_SESSION_EPOCH:
            return {"error_code": ErrorCode.fetch_session_id_not_found}
        partitions = {
            (topic_key(topic, "topic"), partition.partition): partition
            for topic in body.topics
            for partition in topic.partitions
        }
        operation = request.handler_state = DelayedFetch(request, time.monotonic() + wait_s, committed, partitions)
    while True:
        # end the watch of an earlier wait: `wait` below begins a new one
        broker.fetches.forget(operation)
        reads = _read_all(request, broker, operation)
        missing = body.min_bytes - sum(read.size for read in reads)
        if missing <= 0 or request.is_gone or any(read.code is not ErrorCode.none for read in reads):
            break
        if operation.is_over or broker.fetches.is_stopped:
            break
        operation.missing = missing
        operation.visible_ends = {
            read.partition: read.data.visible_end for read in reads if read.partition and read.data
        }
        broker.fetch_memory.release(sum(read.size for read in reads))  # these records are dropped
        # if `wait` returns False, records came after the read, or the time is over: read again
        if broker.fetches.wait(operation):
            return None
    return _response(request, broker, reads)


class _FetchedPartition(NamedTuple):
    """The fetched records of one partition, or its error. `topic` is a name or an id."""

    topic: str | uuid.UUID
    number: int
    partition: Partition | None
    data: FetchedData | None
    code: ErrorCode

    @property
    def size(self) -> int:
        return len(self.data.batches) if self.data is not None and self.data.batches is not None else 0


def _read_all(request: Request, broker: Broker, operation: DelayedFetch) -> list[_FetchedPartition]:
    partitions, committed = operation.partitions, operation.committed
    requested_bytes = sum(max(partition.partition_max_bytes, 0) for partition in partitions.values())
    max_bytes = min(requested_bytes, max(request.body.max_bytes, 0), broker.config.fetch_max_bytes)
    reserved_bytes = broker.fetch_memory.reserve(max_bytes)
    remaining_bytes, reads = reserved_bytes, list[_FetchedPartition]()
    for (topic, _), partition in partitions.items():
        is_first = remaining_bytes == reserved_bytes  # no records were read yet
        read = _read(request, broker, topic, partition, remaining_bytes, committed, is_first=is_first)
        reads.append(read)
        remaining_bytes -= read.size
    # the bytes that were read stay reserved; `remaining_bytes` is negative if the first batch exceeds the limit
    broker.fetch_memory.release(remaining_bytes)
    return reads


def _read(
    request: Request,
    broker: Broker,
    topic: str | uuid.UUID,
    requested: Any,
    remaining_bytes: int,
    committed: bool,
    *,
    is_first: bool,
) -> _FetchedPartition:
    try:
        request.rights.check_topic(Operation.READ, topic, broker.metadata)
        partition = broker.metadata.readable_topic(topic).partition(requested.partition)
        max_bytes = max(min(requested.partition_max_bytes, remaining_bytes), 0)
        data = partition.fetch(requested.fetch_offset, max_bytes, committed=committed)
        if data.batches is not None and len(data.batches) > max_bytes and not is_first:
            data = data._replace(batches=None, aborted=())  # only the first batch may exceed the client's limit
        return _FetchedPartition(topic, requested.partition, partition, data, ErrorCode.none)
    except Exception as error:
        return _FetchedPartition(topic, requested.partition, None, None, topic_error_code(error, topic))


def _response(request: Request, broker: Broker, reads: Sequence[_FetchedPartition]) -> Fields:
    size = sum(read.size for read in reads)
    request.note_use(CONSUMER_BYTE_RATE, size)
    if size:
        request.on_sent.append(partial(broker.fetch_memory.release, size))
    committed = request.body.isolation_level == _READ_COMMITTED
    return {"responses": by_topic(((read.topic, _fetched_fields(read, committed)) for read in reads), name="topic")}


def _fetched_fields(read: _FetchedPartition, committed: bool) -> Fields:
    offsets = read.data.offsets if read.data else _NO_OFFSETS
    aborted = [
        {"producer_id": transaction.producer_id, "first_offset": transaction.first_offset}
        for transaction in (read.data.aborted if read.data else ())
    ]
    return {
        "partition_index": read.number,
        "error_code": read.code,
        "high_watermark": offsets.high_watermark,
        "last_stable_offset": offsets.last_stable_offset,
        "log_start_offset": offsets.log_start_offset,
        "aborted_transactions": aborted if committed else None,
        "records": _record_bytes(read.data.batches) if read.data and read.data.batches is not None else b"",
    }


def _record_bytes(batches: FetchedBatches | StoredBatches) -> ResponseChunk:
    if isinstance(batches, StoredBatches):
        return batches
    # the stored bytes of moved batches have other offsets: `bytes` writes the right ones into a copy
    return bytes(batches) if batches.moved else batches.data


def list_offsets(request: Request, broker: Broker) -> Fields:
    committed = request.get("isolation_level", 0) == _READ_COMMITTED
    by_name: dict[str, list[Any]] = {}
    for (name, _), requested in _by_partition(request).items():
        by_name.setdefault(name, []).append(requested)
    topics = [
        {"name": name, "partitions": _topic_offsets(request, broker, name, partitions, committed)}
        for name, partitions in by_name.items()
    ]
    return {"topics": topics}


def _by_partition(request: Request) -> dict[tuple[str, int], Any]:
    """Return the requested partitions by topic and number. As in Kafka, the last of equal partitions applies."""
    return {(topic.name, item.partition_index): item for topic in request.body.topics for item in topic.partitions}


def _topic_offsets(
    request: Request, broker: Broker, topic: str, requested: Sequence[Any], committed: bool
) -> list[Fields]:
    """Look up the offsets of partitions. On an object store, this is parallel, after one refresh."""
    try:
        request.rights.check(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        hosted = broker.metadata.fresh_topic(topic)
        if not hosted.is_local:
            hosted.refresh()
    except Exception as error:
        code = error_code(error)
        return [{"partition_index": partition.partition_index, "error_code": code} for partition in requested]

    def offset_fields(partition: Any) -> Fields:
        return fields_or_error(_list_offset, hosted, partition, committed, partition_index=partition.partition_index)

    return [*map(offset_fields, requested)] if hosted.is_local else in_parallel(offset_fields, requested)


def _list_offset(hosted: HostedTopic, requested: Any, committed: bool) -> Fields:
    """Return the offset for a time in ms or one of Kafka's special times, with its timestamp and epoch."""
    partition = hosted.partition(requested.partition_index)
    state, time_ms = partition.state(), requested.timestamp
    epochs = partition.leader_epochs(state)
    end = partition.offsets(state).last_stable_offset if committed else state.log_end_offset
    if time_ms == LATEST:
        return {"offset": end, "leader_epoch": epochs.latest}
    if time_ms in (EARLIEST, _EARLIEST_LOCAL):
        start = state.log_start_offset
        return {"offset": start, "leader_epoch": epochs.epoch_of(state, start)}
    # as in Kafka, all fields have their default -1 if the offset does not exist
    if time_ms == _LATEST_TIERED or (time_ms < 0 and time_ms != MAX_TIMESTAMP):
        return {}
    offset_and_time = offset_for_time(hosted.topic.reader, state, time_ms)
    # `end` is the last stable offset for a reader of committed records
    if offset_and_time is None or offset_and_time[0] >= end:
        return {}
    offset, timestamp = offset_and_time
    return {"offset": offset, "timestamp": timestamp, "leader_epoch": epochs.epoch_of(state, offset)}


def offset_for_leader_epoch(request: Request, broker: Broker) -> Fields:
    # an epoch ends where the next one begins, the latest at the log end. An imported log has the epochs of its broker
    requested = {(topic.topic, item.partition): item for topic in request.body.topics for item in topic.partitions}
    ends = (
        (name, fields_or_error(_epoch_end, request, broker, name, item, partition=number))
        for (name, number), item in requested.items()
    )
    return {"topics": by_topic(ends, name="topic")}


def _epoch_end(request: Request, broker: Broker, topic: str, requested: Any) -> Fields:
    request.rights.check(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    partition = broker.metadata.fresh_topic(topic).partition(requested.partition)
    state = partition.state()
    end = partition.leader_epochs(state).end_of(requested.leader_epoch, state.log_end_offset)
    return {"leader_epoch": end.epoch, "end_offset": end.end_offset}


def delete_records(request: Request, broker: Broker) -> Fields:
    def delete(name: str, number: int, offset: int) -> Fields:
        request.rights.check(Operation.DELETE, ResourceType.TOPIC, name)
        report = broker.metadata.client_topic(name).topic.delete_records({number: offset})
        return {"low_watermark": report.log_start_offsets[number]}

    topics = by_topic(
        (name, fields_or_error(delete, name, number, item.offset, partition_index=number, low_watermark=-1))
        for (name, number), item in _by_partition(request).items()
    )
    return {"topics": topics}


APIS = (
    Api(1, "Fetch", 4, 17, fetch, "READ of the topic"),
    Api(2, "ListOffsets", 1, 9, list_offsets, "DESCRIBE of the topic"),
    Api(23, "OffsetForLeaderEpoch", 2, 4, offset_for_leader_epoch, "DESCRIBE of the topic"),
    Api(21, "DeleteRecords", 0, 2, delete_records, "DELETE of the topic", Handlers.TOPICS),
)
