"""Groups and positions in the topic `__consumer_offsets` of a root, which compaction keeps small."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from distlog.core.errors import CorruptRecordError, DistlogError, TopicNotFoundError
from distlog.core.topics.open_topic import open, open_or_create
from distlog.core.topics.topic import Topic
from distlog.gateway.groups.classic_group import Stored
from distlog.gateway.groups.group_record import GroupRecord
from distlog.gateway.groups.group_store import GroupChange, PendingPosition
from distlog.gateway.groups.offsets_batching import Call, OffsetsBatching
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
from distlog.gateway.groups.offsets_log import offsets_records

_log = logging.getLogger(__name__)

NAME = "__consumer_offsets"
#: Kafka's `offsets.topic.num.partitions`, so that a broker finds each group where it looks for it.
PARTITIONS = 50
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": 104_857_600, "max.message.bytes": 16 << 20}


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
        self._batching: OffsetsBatching | None = None
        self._over: queue.SimpleQueue[Sequence[Call] | None] = queue.SimpleQueue()
        self._teller: threading.Thread | None = None

    def load(self) -> Iterator[GroupChange | PendingPosition]:
        """See GroupStore. A record that does not check is logged and left out: one must not hide all groups."""
        try:
            topic = open(self._url, storage_options=self._options)
        except TopicNotFoundError:
            return
        self._partitions = len(topic.start_offsets())
        for record in offsets_records(topic):
            try:
                change = _decoded(record.key, record.value)
            except CorruptRecordError as error:
                _log.warning("%s (partition=%s offset=%s)", error, record.partition, record.offset)
                continue
            if change is not None and record.waits_for is None:
                yield change
            elif change is not None and isinstance(change[1], Position) and isinstance(change[0], OffsetKey):
                yield PendingPosition(record.waits_for or 0, change[0], change[1])

    def partition_of(self, group: str) -> int:
        """The partition of the topic that has this group; makes a topic that is not there. Raises DistlogError."""
        with self._lock:
            if self._batching is None:
                self._partitions = self._topic().partitions
            return offsets_partition(group, self._partitions)

    def _topic(self) -> Topic:
        return open_or_create(self._url, self._partitions, _CONFIG, self._options)

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

    def _opened(self) -> OffsetsBatching:
        with self._lock:
            if self._batching is not None and self._batching.has_failed:
                self._batching.close()
                self._batching = None
            if self._batching is None:
                self._batching = OffsetsBatching(self._topic(), self._linger_ms, self._over.put)
            if self._teller is None:
                self._teller = threading.Thread(target=self._tell, name="groups-stored", daemon=True)
                self._teller.start()
            return self._batching

    def _tell(self) -> None:
        """Answer the calls that are over: in a thread of its own, since they wait for the locks of their groups."""
        while (calls := self._over.get()) is not None:
            for call in calls:
                try:
                    call.done(call.code)
                except Exception:  # noqa: PERF203 - none must keep the next from its answer
                    _log.exception("a group was stored, and who asked for it was not told")

    def close(self) -> None:
        """Have everything stored that is on its way."""
        with self._lock:
            batching, self._batching = self._batching, None
            teller, self._teller = self._teller, None
        if batching is not None:
            batching.close()
        if teller is not None:
            self._over.put(None)
            teller.join()


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
