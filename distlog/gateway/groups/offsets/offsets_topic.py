"""Groups and positions in the topic `__consumer_offsets` of a root, which compaction keeps small."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.consumer_offsets.offsets_records import offsets_records
from distlog.core.consumer_offsets.positions_format import (
    OFFSETS_TOPIC,
    OffsetKey,
    Position,
    decode_position,
    encode_position,
    offsets_partition,
)
from distlog.core.errors import CorruptRecordError, DistlogError, TopicExistsError, TopicNotFoundError
from distlog.core.reading.fetch import FetchedBatches
from distlog.core.topics.open_topic import create, open
from distlog.core.topics.topic import Topic
from distlog.core.topics.writing.leadership import Leadership, LedTopic
from distlog.gateway.groups.members.classic_group import Stored
from distlog.gateway.groups.members.group_record import GroupRecord
from distlog.gateway.groups.offsets.ended_transactions import EndedTransaction, ended_transactions
from distlog.gateway.groups.offsets.group_store import GroupChange, PendingPosition
from distlog.gateway.groups.offsets.offsets_batching import Call, OffsetsBatching
from distlog.gateway.groups.offsets.offsets_format import GroupKey, decode_group, decode_key, encode_group, encode_key
from distlog.gateway.topics.own_compaction import OwnCompaction
from distlog.gateway.topics.partition_tail import READ_BYTES, PartitionTail

_log = logging.getLogger(__name__)

#: Kafka's `offsets.topic.num.partitions`, so that a broker finds each group where it looks for it.
PARTITIONS = 50
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": 104_857_600, "max.message.bytes": 16 << 20}


class OffsetsTopic:
    """The GroupStore of a root. It stores the groups of the partitions that this gateway leads.

    `linger_ms`: how long changes are gathered. A change is durable when `done` is called with no error. Safe to share
    between threads, but for `begin`, `settle` and `end`, which one thread calls.
    """

    def __init__(
        self,
        root: str,
        *,
        linger_ms: int,
        storage_options: Mapping[str, Any] | None = None,
        partitions: int = PARTITIONS,
    ) -> None:
        self._url, self._options = f"{root.rstrip('/')}/{OFFSETS_TOPIC}", storage_options
        self._linger_ms, self._partitions = linger_ms, partitions
        self._lock = threading.Lock()
        self._led: tuple[Topic, Leadership] | None = None
        self._tails, self._compaction = dict[int, PartitionTail](), OwnCompaction()
        self._batching: OffsetsBatching | None = None
        self._over: queue.SimpleQueue[Sequence[Call] | None] = queue.SimpleQueue()
        self._teller: threading.Thread | None = None

    def open(self) -> int:
        """Open the topic, or make it; returns how many partitions it has. Raises DistlogError."""
        topic, _ = self._opened()
        return topic.partitions

    @property
    def partitions(self) -> int:
        """How many partitions it has, as far as that is known."""
        return self._partitions

    def partition_of(self, group: str) -> int:
        """The partition that has a group, as far as it is known how many there are."""
        return offsets_partition(group, self._partitions)

    def begin(self, partitions: Collection[int], may_lead: Callable[[], None] = lambda: None) -> None:
        """Lead partitions; who led them before stores nothing more. Raises what `Leadership.begin` raises."""
        self._opened()[1].begin(partitions, may_lead)

    def end(self, partitions: Collection[int]) -> None:
        """Store nothing more in these partitions."""
        self._opened()[1].end(partitions)

    def compact(self) -> None:
        """Compact what this gateway leads and has become many segments; one caller at a time. Raises nothing."""
        led = self._led
        if led is not None:
            self._compaction.step(led[0], led[1].partitions)

    def lost(self) -> Collection[int]:
        """After a failure, the partitions that must be begun anew: others lead them, or the topic was dropped.

        Raises DistlogError.
        """
        batching, led = self._batching, self._led
        if led is None or batching is None or not batching.has_failed:
            return ()
        try:
            return led[1].lost()
        except TopicNotFoundError:
            with self._lock:
                self._led = None
            return list(led[1].partitions)

    def fence(self, partition: int) -> Callable[[Snapshot], None]:
        """What refuses to append to a partition when this gateway does not lead it any more."""
        leadership = self._opened()[1]
        return lambda snapshot: leadership.check(snapshot, (partition,))

    def settle(self) -> None:
        """Return when nothing is on its way any more: it is stored, or was refused."""
        with self._lock:
            batching = self._batching
        if batching is not None:
            batching.settle()

    def load(self, partitions: Collection[int]) -> Iterator[GroupChange | PendingPosition]:
        """What these partitions hold, older changes first; raises DistlogError.

        A record that does not check is logged and left out: one must not hide all groups.
        """
        if not partitions:
            return
        topic = self._opened()[0].refresh()
        snapshot = topic.live_snapshot
        for number in partitions:
            # behind the load, the end markers of transactions are told by `ended`
            tail = PartitionTail(partial(_fetched, topic, number), snapshot.partitions[number].log_end_offset)
            self._tails[number] = tail
        for record in offsets_records(topic.reader, snapshot, sorted(partitions)):
            try:
                change = _decoded(record.key, record.value)
            except CorruptRecordError as error:
                _log.warning("%s (partition=%s offset=%s)", error, record.partition, record.offset)
                continue
            if change is not None and record.waits_for is None:
                yield change
            elif change is not None and isinstance(change[1], Position) and isinstance(change[0], OffsetKey):
                yield PendingPosition(record.waits_for or 0, change[0], change[1])

    def ended(self, partition: int) -> Iterator[EndedTransaction]:
        """The transactions that have ended in a partition since it was loaded, each told once; one caller at a time.

        Raises DistlogError.
        """
        tail = self._tails.get(partition)
        return iter(()) if tail is None else ended_transactions(tail)

    def store(self, group: str, changes: Sequence[GroupChange], done: Stored) -> None:
        """See GroupStore; when too much is on its way, the caller is told to try again later."""
        try:
            batching = self._writing()
        except DistlogError as error:
            _log.error("groups cannot be stored: %s", error)
            done(ErrorCode.coordinator_not_available)
            return
        records = [(encode_key(key), _encoded(value)) for key, value in changes]
        batching.append(self.partition_of(group), records, done, _code_of_too_large(changes))

    def _opened(self) -> tuple[Topic, Leadership]:
        with self._lock:
            if self._led is None:
                topic = _open_or_create(self._url, self._partitions, self._options)
                self._partitions = topic.partitions
                self._led = topic, Leadership(topic.handle, topic.current)
            return self._led

    def _writing(self) -> OffsetsBatching:
        topic, leadership = self._opened()
        with self._lock:
            if self._batching is not None and self._batching.has_failed:
                self._batching.close()
                self._batching = None
            if self._batching is None:
                led = LedTopic(topic.handle, topic.current, topic.live.look_again, leadership)
                self._batching = OffsetsBatching(led, self._linger_ms, self._over.put)
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


def _fetched(topic: Topic, number: int, offset: int) -> FetchedBatches:
    return topic.refresh().read(number, offset, READ_BYTES)


def _code_of_too_large(changes: Sequence[GroupChange]) -> ErrorCode:
    """What Kafka tells of changes that are larger than a batch may be: of positions, and of a group."""
    is_group = any(isinstance(key, GroupKey) for key, _ in changes)
    return ErrorCode.unknown_server_error if is_group else ErrorCode.invalid_commit_offset_size


def _open_or_create(url: str, partitions: int, options: Mapping[str, Any] | None) -> Topic:
    try:
        return open(url, storage_options=options)
    except TopicNotFoundError:
        with suppress(TopicExistsError):
            # another gateway may be faster
            create(url, partitions, _CONFIG, options)
    return open(url, storage_options=options)


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
