"""The API that reads records: Fetch."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from distlog.core.errors import OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.segments.chunks import StoredBatches
from distlog.gateway.apis.cluster import by_topic, check_topic, topic_error_code, topic_key
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.frames import Fields, ResponseChunk, error_code
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import Operation
from distlog.gateway.server.delayed_operations import DelayedFetch
from distlog.gateway.server.quotas import CONSUMER_BYTE_RATE
from distlog.gateway.server.request import Request
from distlog.gateway.topics.partition import FetchedData, LogOffsets, Partition

#: A fetch of a session (KIP-227) has a greater epoch. Sessions are optional, and no gateway offers one.
_OPENING_EPOCH = 0
_READ_COMMITTED = 1
_LONGEST_WAIT_S = 60.0
_NO_OFFSETS = LogOffsets(-1, -1, -1)


def fetch(request: Request, broker: Broker) -> Fields | None:
    """Respond when `min_bytes` are there, or after `max_wait`; at once if a partition has an error."""
    body, delayed = request.body, request.delayed
    if delayed is None:
        wait_s = min(max(body.max_wait / 1000, 0), _LONGEST_WAIT_S)
        committed = body.isolation_level == _READ_COMMITTED
        if request.get("session_epoch", _OPENING_EPOCH) > _OPENING_EPOCH:
            return {"error_code": ErrorCode.fetch_session_id_not_found, "session_id": 0, "responses": []}
        # a partition that is named twice is read once
        partitions = {
            (topic_key(topic, "topic"), partition.partition): partition
            for topic in body.topics
            for partition in topic.partitions
        }
        delayed = request.delayed = DelayedFetch(request, time.monotonic() + wait_s, committed, partitions)
    while True:
        broker.fetches.forget(delayed)
        reads = _read_all(request, broker, delayed)
        missing = body.min_bytes - sum(read.size for read in reads)
        if missing <= 0 or request.is_gone or any(read.code is not ErrorCode.none for read in reads):
            break
        if delayed.is_over or broker.fetches.is_stopped:
            break
        delayed.missing = missing
        delayed.visible_ends = {
            read.partition: read.data.visible_end for read in reads if read.partition and read.data
        }
        broker.fetch_memory.give_back(sum(read.size for read in reads))
        if broker.fetches.wait(delayed):
            return None
    return _response(request, broker, reads)


class _FetchedPartition(NamedTuple):
    """The fetched records of one partition, or its error; its `topic` is a name or an id."""

    topic: str | uuid.UUID
    number: int
    partition: Partition | None
    data: FetchedData | None
    code: ErrorCode

    @property
    def size(self) -> int:
        """The bytes of its records."""
        return len(self.data.batches) if self.data is not None and self.data.batches is not None else 0


def _read_all(request: Request, broker: Broker, delayed: DelayedFetch) -> list[_FetchedPartition]:
    """Read the partitions in order; the memory of their records is taken."""
    partitions, committed = delayed.partitions, delayed.committed
    requested = sum(max(partition.partition_max_bytes, 0) for partition in partitions.values())
    memory = broker.fetch_memory.reserve(
        min(requested, max(request.body.max_bytes, 0), broker.config.fetch_max_bytes)
    )
    room, reads = memory, list[_FetchedPartition]()
    for (topic, _), partition in partitions.items():
        reads.append(_read(request, broker, topic, partition, room, committed, is_first=room == memory))
        room -= reads[-1].size
    broker.fetch_memory.give_back(room)
    return reads


def _read(
    request: Request,
    broker: Broker,
    topic: str | uuid.UUID,
    requested: Any,
    room: int,
    committed: bool,
    *,
    is_first: bool,
) -> _FetchedPartition:
    partition = None
    try:
        check_topic(request, broker, Operation.READ, topic)
        partition = broker.metadata.readable_topic(topic).partition(requested.partition)
        max_bytes = max(min(requested.partition_max_bytes, room), 0)
        data = partition.fetch(requested.fetch_offset, max_bytes, committed=committed)
        if data.batches is not None and len(data.batches) > max_bytes and not is_first:
            # only the first batch of a response may be larger than the client asked for
            data = data._replace(batches=None, aborted=())
        return _FetchedPartition(topic, requested.partition, partition, data, ErrorCode.none)
    except OffsetOutOfRangeError:
        return _FetchedPartition(topic, requested.partition, partition, None, ErrorCode.offset_out_of_range)
    except TopicNotFoundError as error:
        return _FetchedPartition(topic, requested.partition, None, None, topic_error_code(error, topic))
    except Exception as error:
        return _FetchedPartition(topic, requested.partition, partition, None, error_code(error))


def _response(request: Request, broker: Broker, reads: Sequence[_FetchedPartition]) -> Fields:
    size = sum(read.size for read in reads)
    request.counts(CONSUMER_BYTE_RATE, size)
    if size:
        request.on_sent.append(partial(broker.fetch_memory.give_back, size))
    committed = request.body.isolation_level == _READ_COMMITTED
    topics = by_topic(((read.topic, _fetched_fields(read, committed)) for read in reads), name="topic")
    return {"throttle_time": 0, "error_code": ErrorCode.none, "session_id": 0, "responses": topics}


def _fetched_fields(read: _FetchedPartition, committed: bool) -> Fields:
    offsets = read.data.offsets if read.data else _NO_OFFSETS
    aborted = read.data.aborted if read.data else ()
    return {
        "partition_index": read.number,
        "error_code": read.code,
        "high_watermark": offsets.high_watermark,
        "last_stable_offset": offsets.last_stable_offset,
        "log_start_offset": offsets.log_start_offset,
        "aborted_transactions": [
            {"producer_id": transaction.producer_id, "first_offset": transaction.first_offset}
            for transaction in aborted
        ]
        if committed
        else None,
        "records": _records(read),
    }


def _records(read: _FetchedPartition) -> ResponseChunk:
    batches = read.data.batches if read.data else None
    if batches is None or isinstance(batches, StoredBatches):
        return batches or b""
    # offsets that a commit gives are written into a copy
    return bytes(batches) if batches.moved else batches.data


APIS = (Api(1, "Fetch", 4, 17, fetch, "READ of the topic"),)
