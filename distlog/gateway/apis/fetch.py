"""Fetch: record batches from an offset on, as they are stored. Fetch sessions are refused, as KIP-227 allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from distlog.core.errors import OffsetOutOfRangeError, TopicNotFoundError
from distlog.gateway.broker import Api, Broker
from distlog.gateway.fetches.delayed_fetches import DelayedFetch
from distlog.gateway.protocol.error_codes import error_code
from distlog.gateway.protocol.response_frame import Fields, Piece
from distlog.gateway.server.request import Request
from distlog.gateway.topics.partition import FetchedData, LogOffsets, Partition

_NO_SESSION = 0
_NEW_SESSION_EPOCHS = (-1, 0)
_READ_COMMITTED = 1
_LONGEST_WAIT_S = 60.0
_NO_OFFSETS = LogOffsets(-1, -1, -1)


class _Read(NamedTuple):
    """What was read of one partition."""

    topic: str
    number: int
    partition: Partition | None
    data: FetchedData | None
    code: ErrorCode

    @property
    def size(self) -> int:
        """How many bytes of records."""
        return len(self.data.batches) if self.data is not None and self.data.batches is not None else 0


def handle(request: Request, broker: Broker) -> Fields | None:
    """Respond when there are `min_bytes`, or after `max_wait`; at once if a partition has an error."""
    body = request.body
    if request.get("session_id", 0) != _NO_SESSION or request.get("session_epoch", -1) not in _NEW_SESSION_EPOCHS:
        return {"error_code": ErrorCode.fetch_session_id_not_found, "session_id": _NO_SESSION, "responses": []}
    delayed = request.delayed
    if delayed is None:
        wait_s = min(max(body.max_wait.total_seconds(), 0), _LONGEST_WAIT_S)
        committed = body.isolation_level == _READ_COMMITTED
        delayed = request.delayed = DelayedFetch(request, time.monotonic() + wait_s, committed)
    while True:
        reads = _read_all(request, broker, delayed.committed)
        missing = body.min_bytes - sum(each.size for each in reads)
        if missing <= 0 or request.is_gone or any(each.code is not ErrorCode.none for each in reads):
            break
        if delayed.is_over or broker.fetches.is_stopped:
            break
        delayed.missing = missing
        delayed.seen = {each.partition: each.data.visible_end for each in reads if each.partition and each.data}
        broker.fetch_memory.give_back(sum(each.size for each in reads))
        if broker.fetches.wait(delayed):
            return None
    return _answer(request, broker, reads)


def _read_all(request: Request, broker: Broker, committed: bool) -> list[_Read]:
    """Read each partition in its turn; the memory of what was read is taken."""
    asked = [(topic.topic, one) for topic in request.body.topics for one in topic.partitions]
    wanted = sum(max(one.partition_max_bytes, 0) for _, one in asked)
    taken = broker.fetch_memory.take(min(wanted, max(request.body.max_bytes, 0), broker.config.fetch_max_bytes))
    room, reads = taken, list[_Read]()
    for topic, one in asked:
        reads.append(_read(broker, topic, one, room, committed, is_first=room == taken))
        room -= reads[-1].size
    broker.fetch_memory.give_back(room)
    return reads


def _read(broker: Broker, topic: str, asked: Any, room: int, committed: bool, *, is_first: bool) -> _Read:
    partition = None
    try:
        partition = broker.metadata.fresh_topic(topic).partition(asked.partition)
        max_bytes = max(min(asked.partition_max_bytes, room), 0)
        data = partition.fetch(asked.fetch_offset, max_bytes, committed=committed)
        if data.batches is not None and len(data.batches) > max_bytes and not is_first:
            # only the first batch of a response may be larger than the client asked for
            data = data._replace(batches=None, aborted=())
        return _Read(topic, asked.partition, partition, data, ErrorCode.none)
    except OffsetOutOfRangeError:
        return _Read(topic, asked.partition, partition, None, ErrorCode.offset_out_of_range)
    except TopicNotFoundError:
        return _Read(topic, asked.partition, None, None, ErrorCode.unknown_topic_or_partition)
    except Exception as error:
        return _Read(topic, asked.partition, partition, None, error_code(error))


def _answer(request: Request, broker: Broker, reads: Sequence[_Read]) -> Fields:
    size = sum(each.size for each in reads)
    if size:
        request.on_sent.append(partial(broker.fetch_memory.give_back, size))
    topics: dict[str, list[Fields]] = {}
    for each in reads:
        topics.setdefault(each.topic, []).append(_told(each, request.body.isolation_level == _READ_COMMITTED))
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "session_id": _NO_SESSION,
        "responses": [{"topic": name, "partitions": partitions} for name, partitions in topics.items()],
    }


def _told(each: _Read, committed: bool) -> Fields:
    offsets = each.data.offsets if each.data else _NO_OFFSETS
    aborted = each.data.aborted if each.data else ()
    return {
        "partition_index": each.number,
        "error_code": each.code,
        "high_watermark": offsets.high_watermark,
        "last_stable_offset": offsets.last_stable_offset,
        "log_start_offset": offsets.log_start_offset,
        "aborted_transactions": [
            {"producer_id": one.producer_id, "first_offset": one.first_offset} for one in aborted
        ]
        if committed
        else None,
        "records": _records(each),
    }


def _records(each: _Read) -> Piece:
    batches = each.data.batches if each.data else None
    if batches is None:
        return b""
    # offsets that are given by a commit are written into a copy; the rest goes out as it lies in the file
    return bytes(batches) if batches.moved else batches.data


API = Api(1, "Fetch", 4, 12, handle)
