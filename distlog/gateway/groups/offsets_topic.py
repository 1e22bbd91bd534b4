"""Groups and positions in the topic `__consumer_offsets` of a root, which compaction keeps small."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from distlog.core.errors import CorruptRecordError, DistlogError, TopicNotFoundError
from distlog.core.topics.delivery import Delivery
from distlog.core.topics.open_topic import open, open_or_create
from distlog.core.topics.topic import Topic
from distlog.gateway.groups.classic_group import Stored
from distlog.gateway.groups.group_record import GroupRecord
from distlog.gateway.groups.group_store import GroupChange
from distlog.gateway.groups.offsets_format import (
    GroupKey,
    OffsetKey,
    Position,
    decode_group,
    decode_key,
    decode_position,
    encode_group,
    encode_key,
    encode_position,
    offsets_partition,
)

_log = logging.getLogger(__name__)

NAME = "__consumer_offsets"
#: Kafka's `offsets.topic.num.partitions`, so that a broker finds each group where it looks for it.
PARTITIONS = 50
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": 104_857_600, "max.message.bytes": 16 << 20}
_RECORD_OVERHEAD = 100
#: Bytes that may be on their way: so few that a writer has room for them, and `append` never waits.
_MAX_WAITING_BYTES = 8 << 20


@dataclass(slots=True)
class _Call:
    """A call of `store`, some of whose records are still on their way."""

    done: Stored
    left: int
    size: int
    code: ErrorCode = ErrorCode.none


class _Batching:
    """A writer, and the calls whose records it has, by partition, in order."""

    def __init__(self, topic: Topic, linger_ms: int) -> None:
        self._lock, self._calls = threading.RLock(), dict[int, deque[_Call]]()
        self._waiting_bytes = 0
        self.has_failed = False
        self._writer = topic.writer(linger_ms=linger_ms, on_delivery=self._delivered)

    def append(self, partition: int, records: Sequence[tuple[bytes, bytes | None]], done: Stored) -> None:
        """Put records on their way; never waits, since so few may be on their way that the writer has room."""
        size = sum(_RECORD_OVERHEAD + len(key) + len(value or b"") for key, value in records)
        call, over = _Call(done, len(records), size), list[_Call]()
        with self._lock:
            if self.has_failed or self._waiting_bytes + size > _MAX_WAITING_BYTES:
                call.code, over = ErrorCode.coordinator_load_in_progress, [call]
            else:
                # it stands in the queue first: where no thread can be started, `append` delivers
                self._calls.setdefault(partition, deque()).append(call)
                self._waiting_bytes += size
                try:
                    self._put(partition, records)
                except DistlogError as error:
                    over = self._fail(error)
        _tell(over)

    def _put(self, partition: int, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        for key, value in records:
            self._writer.append(value, key=key, partition=partition)

    def _delivered(self, delivery: Delivery) -> None:
        with self._lock:
            if delivery.error is None:
                over = self._counted(self._calls.get(delivery.partition or 0, deque()), delivery.record_count)
            else:
                over = self._fail(delivery.error)
        _tell(over)

    def _counted(self, calls: deque[_Call], left: int) -> list[_Call]:
        over = []
        while left and calls:
            taken = min(left, calls[0].left)
            calls[0].left -= taken
            left -= taken
            if calls[0].left == 0:
                self._waiting_bytes -= calls[0].size
                over.append(calls.popleft())
        return over

    def _fail(self, error: BaseException) -> list[_Call]:
        """All calls fail, since a writer that failed keeps nothing more; some may be durable all the same."""
        if not self.has_failed:
            _log.error("groups were not stored: %s", error)
        self.has_failed = True
        over = [call for calls in self._calls.values() for call in calls]
        self._calls.clear()
        for call in over:
            call.code = ErrorCode.coordinator_not_available
        return over

    def close(self) -> None:
        """Have everything delivered; a writer that failed has told all its calls already."""
        with suppress(DistlogError):
            self._writer.close()


def _tell(calls: Sequence[_Call]) -> None:
    """Answer calls that are over; without the lock, since they take those of their groups."""
    for call in calls:
        call.done(call.code)


class OffsetsTopic:
    """The GroupStore of a root; its topic is made with the first change. `linger_ms`: how long changes are gathered.

    A change is durable when `done` is called with no error. Safe to share between threads.
    """

    def __init__(
        self,
        root: str,
        *,
        linger_ms: int,
        storage_options: Mapping[str, Any] | None = None,
        partitions: int = PARTITIONS,
    ) -> None:
        self._url, self._options = f"{root.rstrip('/')}/{NAME}", storage_options
        self._linger_ms, self._partitions = linger_ms, partitions
        self._lock = threading.Lock()
        self._batching: _Batching | None = None

    def load(self) -> Iterator[GroupChange]:
        """See GroupStore. A record that does not check is logged and left out: one must not hide all groups."""
        try:
            topic = open(self._url, storage_options=self._options)
        except TopicNotFoundError:
            return
        self._partitions = len(topic.start_offsets())
        for batch in topic.scan(columns=["partition", "offset", "key", "value"]):
            for row in batch.to_pylist():
                try:
                    change = _decoded(row["key"], row["value"])
                except CorruptRecordError as error:
                    _log.warning("%s (partition=%s offset=%s)", error, row["partition"], row["offset"])
                    continue
                if change is not None:
                    yield change

    def store(self, group: str, changes: Sequence[GroupChange], done: Stored) -> None:
        """See GroupStore; when too much is on its way, the caller is told to try again later."""
        try:
            batching = self._opened()
        except DistlogError as error:
            _log.error("groups cannot be stored: %s", error)
            done(ErrorCode.coordinator_not_available)
            return
        records = [(encode_key(key), _encoded(value)) for key, value in changes]
        batching.append(offsets_partition(group, self._partitions), records, done)

    def _opened(self) -> _Batching:
        with self._lock:
            if self._batching is not None and self._batching.has_failed:
                self._batching.close()
                self._batching = None
            if self._batching is None:
                topic = open_or_create(self._url, self._partitions, _CONFIG, self._options)
                self._batching = _Batching(topic, self._linger_ms)
            return self._batching

    def close(self) -> None:
        """Have everything stored that is on its way."""
        with self._lock:
            batching, self._batching = self._batching, None
        if batching is not None:
            batching.close()


def _encoded(value: Position | GroupRecord | None) -> bytes | None:
    if isinstance(value, GroupRecord):
        return encode_group(value)
    return None if value is None else encode_position(value)


def _decoded(key: bytes | None, value: bytes | None) -> GroupChange | None:
    """What a record changes; None if it is of a kind that is not known. Raises CorruptRecordError."""
    about = decode_key(key or b"")
    if isinstance(about, OffsetKey):
        position = None if value is None else decode_position(value)
        return None if position is None and value is not None else (about, position)
    if isinstance(about, GroupKey):
        group = None if value is None else decode_group(about.group, value)
        return None if group is None and value is not None else (about, group)
    return None
