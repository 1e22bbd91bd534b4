"""The committed offsets of Kafka clients, read from `__consumer_offsets` without a gateway."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core import paths
from distlog.core.arrays import numbers_of, scalar_of
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import CorruptRecordError, DistlogError, TopicNotFoundError
from distlog.core.format.record_batch import COMMIT, CONTROL, TRANSACTIONAL
from distlog.core.log.live_snapshot import LiveSnapshot
from distlog.core.read.scan import plan_slices
from distlog.core.segments import segment_reader
from distlog.core.segments.chunks import READ_UNCOMMITTED, Chunk
from distlog.core.segments.producer_states import control_type
from distlog.core.segments.segment_reader import (
    GROUP_BYTES,
    SegmentReader,
    TopicHandle,
    topic_log,
    whole_groups,
    whole_logs,
)
from distlog.core.storage.calls import cores
from distlog.core.storage.storage import Storage


class FieldReader:
    """Reads fields of Kafka's own records. `noun` and `topic` name the record in a CorruptRecordError."""

    def __init__(self, data: bytes, noun: str, topic: str) -> None:
        self._data, self._position, self._noun, self._topic = data, 0, noun, topic
        #: Whether the record has a flexible version of its message: lengths are varints, and tags may follow fields.
        self.is_flexible = False

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        return int(struct.unpack(form, self.read(size))[0])

    def text(self) -> str:
        text = self.nullable_text()
        if text is None:
            raise self._corrupt("a text is null, which the format does not allow")
        return text

    def nullable_text(self) -> str | None:
        size = (self.varint() - 1) if self.is_flexible else self.number(">h")
        if size < 0:
            return None
        try:
            return self.read(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._corrupt("a text is not UTF-8") from error

    def count(self) -> int:
        """Read the number of elements of an array; -1 for None."""
        return (self.varint() - 1) if self.is_flexible else self.number(">i")

    def skip_tags(self) -> None:
        for _ in range(self.varint() if self.is_flexible else 0):
            self.varint()
            self.read(self.varint())

    def varint(self) -> int:
        """Read an unsigned number of at most five bytes, the lowest seven bits first."""
        number = 0
        for shift in range(0, 35, 7):
            byte = self.read(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise self._corrupt("a varint does not end")

    def blob(self) -> bytes:
        return self.read(self.number(">i"))

    def read(self, size: int) -> bytes:
        remaining_bytes = len(self._data) - self._position
        if not 0 <= size <= remaining_bytes:
            text = f"a field at position {self._position} needs {size} bytes, and {remaining_bytes} are left"
            raise self._corrupt(text)
        self._position += size
        return self._data[self._position - size : self._position]

    def finish(self) -> None:
        if self._position < len(self._data):
            raise self._corrupt(f"{len(self._data) - self._position} bytes follow its fields")

    def _corrupt(self, reason: str) -> CorruptRecordError:
        text = f"cannot read {self._noun} of {self._topic}: {reason}; restore the topic from a copy"
        return CorruptRecordError(text)


def text_field(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode("utf-8")
    return struct.pack(">h", len(data)) + data


# Source: Kafka's OffsetCommitKey and OffsetCommitValue messages. Values are written in version 3, the first with an
# epoch, which brokers since 2.3 can read. The versions 0 to 4 can be read here; brokers of 4.1 write version 4.

OFFSETS_TOPIC = "__consumer_offsets"
_OFFSET_KEYS = (0, 1)  # the versions of the keys of records with committed offsets
_VALUE_VERSION, _FLEXIBLE_VERSION = 3, 4


@dataclass(frozen=True, slots=True, order=True)
class OffsetKey:
    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Position:
    """A committed offset: the next offset to read. `commit_ms` is since 1970; `metadata` is a text of the client."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0


def encode_offset_key(key: OffsetKey) -> bytes:
    return struct.pack(">h", 1) + text_field(key.group) + text_field(key.topic) + struct.pack(">i", key.partition)


def decode_offset_key(data: bytes) -> OffsetKey | None:
    """Decode the key of a record with a committed offset; None for other records."""
    reader = FieldReader(data, "a key", OFFSETS_TOPIC)
    if reader.number(">h") not in _OFFSET_KEYS:
        return None
    return OffsetKey(reader.text(), reader.text(), reader.number(">i"))


def encode_position(position: Position) -> bytes:
    head = struct.pack(">hqi", _VALUE_VERSION, position.offset, position.leader_epoch)
    return head + text_field(position.metadata) + struct.pack(">q", position.commit_ms)


def decode_position(data: bytes) -> Position | None:
    """Decode a committed offset; None if its version is unknown."""
    reader = FieldReader(data, "a position", OFFSETS_TOPIC)
    version = reader.number(">h")
    if not 0 <= version <= _FLEXIBLE_VERSION:
        return None
    reader.is_flexible = version == _FLEXIBLE_VERSION
    offset = reader.number(">q")
    epoch = reader.number(">i") if version >= _VALUE_VERSION else -1
    return Position(offset, epoch, reader.text(), reader.number(">q"))


def offsets_partition(group: str, partitions: int) -> int:
    """Return the partition of `__consumer_offsets` that has a group's offsets, by Java's hash of the group's name."""
    hashed = 0
    units = group.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    # the smallest int has no absolute value, so Kafka uses 0
    signed = (hashed - (1 << 32)) if hashed >> 31 else hashed
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class WaitingChanges(Generic[Key, Value]):
    """Changes by key, then by producer id, in log order; a change applies when its transaction is committed."""

    def __init__(self) -> None:
        self._by_key = dict[Key, dict[int, Value]]()

    def __bool__(self) -> bool:
        return bool(self._by_key)

    @property
    def keys(self) -> frozenset[Key]:
        """The keys whose values depend on open transactions."""
        return frozenset(self._by_key)

    def __iter__(self) -> Iterator[tuple[int, Key, Value]]:
        for key, waiting in self._by_key.items():
            for producer_id, value in waiting.items():
                yield producer_id, key, value

    def add(self, producer_id: int, key: Key, value: Value) -> None:
        """Add a change after all other changes."""
        waiting = self._by_key.setdefault(key, {})
        waiting.pop(producer_id, None)
        waiting[producer_id] = value

    def supersede(self, key: Key) -> None:
        """Drop the changes of a key, which a later change without a transaction replaces."""
        self._by_key.pop(key, None)

    def end(self, producer_id: int, *, is_committed: bool) -> dict[Key, Value]:
        """End the transaction of a producer. Returns the changes that apply from then on."""
        changes = dict[Key, Value]()
        for key, waiting in list(self._by_key.items()):
            if producer_id not in waiting:
                continue
            if not is_committed:
                del waiting[producer_id]
            else:
                # drop all earlier changes of the key, even in open transactions: the last one here is the producer's
                while producer_id in waiting:
                    changes[key] = waiting.pop(next(iter(waiting)))
            if not waiting:
                del self._by_key[key]
        return changes


_COLUMNS = ("partition", "offset", "key", "value")


class OffsetsRecord(NamedTuple):
    """A record of `__consumer_offsets`. `waits_for` is the producer's id if the record's transaction is open."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    waits_for: int | None = None


def offsets_records(
    reader: SegmentReader, snapshot: Snapshot, partitions: Iterable[int], prefixes: Sequence[bytes] = (b"",)
) -> Iterator[OffsetsRecord]:
    """Yield the records in `snapshot`, by partition, except aborted ones. The last record of a key applies."""
    # Only keys that begin with one of `prefixes`; some replaced records are left out. Records of a transaction are
    # yielded at its end marker, and records of open transactions last in a partition.
    states = {number: snapshot.partitions[number] for number in partitions}
    transactional = {n: state for n, state in states.items() if state.segments.array("has_transactions").any()}
    bounds = {n: (None, state.log_end_offset) for n, state in states.items() if n not in transactional}
    slices, isolation = plan_slices(reader, snapshot, bounds, "read_uncommitted")
    for batch in segment_reader.read_slices(reader, slices, _COLUMNS, isolation, cores()):
        yield from _records(batch, prefixes)
    for read_together in _states_read_together(transactional):
        yield from _with_transactions(reader, read_together, prefixes)


def _records(batch: pa.RecordBatch, prefixes: Sequence[bytes]) -> Iterator[OffsetsRecord]:
    keys = pc.fill_null(batch.column("key"), scalar_of(b"", batch.column("key").type))
    has_prefix = reduce(pc.or_, (pc.starts_with(keys, pattern=prefix) for prefix in prefixes))
    matching = batch.filter(has_prefix)
    # only the last record of each key becomes a Python object, since a group commits the same few keys all the time
    codes = numbers_of(matching.column("key").dictionary_encode(null_encoding="encode").indices)
    _, from_end = np.unique(codes[::-1], return_index=True)  # the last row of each key, counted from the end
    for row in matching.take(np.sort(len(codes) - 1 - from_end)).to_pylist():
        yield OffsetsRecord(row["partition"], row["offset"], row["key"] or b"", row["value"])


def _states_read_together(states: Mapping[int, PartitionState]) -> Iterator[dict[int, PartitionState]]:
    """Yield sets of states whose logs have at most GROUP_BYTES together. A state with a larger log is alone."""
    together, size = dict[int, PartitionState](), 0
    for number, state in states.items():
        log_bytes = int(state.segments.log_bytes.sum())
        if together and size + log_bytes > GROUP_BYTES:
            yield together
            together, size = {}, 0
        together[number], size = state, size + log_bytes
    if together:
        yield together


def _with_transactions(
    reader: SegmentReader, states: Mapping[int, PartitionState], prefixes: Sequence[bytes]
) -> Iterator[OffsetsRecord]:
    logs = [list(state.segments) for state in states.values()]
    # one log, which may be large, is read in many chunks; several small logs are read at once, as one chunk each
    chunks_by_partition: Iterable[Iterable[Chunk]] = [whole_logs(reader, logs[0])]
    if len(logs) > 1:
        chunks_by_partition = ([chunk] for chunk in whole_groups(reader, logs))
    for chunks in chunks_by_partition:
        waiting = WaitingChanges[bytes, OffsetsRecord]()
        for chunk in chunks:
            for run in _runs(chunk):
                yield from _valid_records(run, waiting, prefixes)
        for producer_id, _, record in waiting:
            yield record._replace(waits_for=producer_id)


def _runs(chunk: Chunk) -> Iterator[Chunk]:
    """Yield the chunk in parts, each of one segment, one producer, and one kind by TRANSACTIONAL and CONTROL."""
    for index in range(len(chunk.ranges)):
        part = chunk.part(index, index + 1)
        rows = part.batches
        kinds = rows["attributes"] & (TRANSACTIONAL | CONTROL)
        changes = (np.diff(rows["producer_id"]) != 0) | (np.diff(kinds) != 0)
        ends = [*(np.flatnonzero(changes) + 1).tolist(), len(rows)]
        for start, end in pairwise([0, *ends]):
            if end > start:
                yield part.rows(start, end)


def _valid_records(
    run: Chunk, waiting: WaitingChanges[bytes, OffsetsRecord], prefixes: Sequence[bytes]
) -> Iterator[OffsetsRecord]:
    first = run.batches[0]
    producer_id, attributes = int(first["producer_id"]), int(first["attributes"])
    if attributes & CONTROL:  # if several end markers are adjacent, only the first can end changes
        is_committed = control_type(run.data, first) == COMMIT
        yield from waiting.end(producer_id, is_committed=is_committed).values()
        return
    for batch in run.records(_COLUMNS, READ_UNCOMMITTED):
        for record in _records(batch, prefixes):
            if attributes & TRANSACTIONAL:
                waiting.add(producer_id, record.key, record)
            else:
                waiting.supersede(record.key)
                yield record


def kafka_positions(handle: TopicHandle, group: str, *, since_ms: int = 0) -> dict[int, int]:
    return all_kafka_positions(handle, group, since_ms=since_ms).get(group, {})


def all_kafka_positions(
    handle: TopicHandle, group: str | None = None, *, since_ms: int = 0
) -> dict[str, dict[int, int]]:
    """Return offsets that clients of all groups, or `group`, committed since `since_ms`, by group and partition."""
    storage, topic = handle.storage.sibling(OFFSETS_TOPIC), paths.last_part(handle.storage.url)
    if storage is None:
        return {}
    try:
        offsets, snapshot = newest_topic(storage, handle.clock)
        numbers = range(len(snapshot.partitions))
        prefixes: tuple[bytes, ...] = (b"",)
        if group is not None:
            number = offsets_partition(group, len(numbers))
            numbers = range(number, number + 1)
            names = text_field(group) + text_field(topic)
            prefixes = tuple(struct.pack(">h", version) + names for version in _OFFSET_KEYS)
        records = offsets_records(offsets.reader, snapshot, numbers, prefixes)
        newest = {record.key: record for record in records if record.waits_for is None}
        return _positions(newest.values(), topic, since_ms)
    except TopicNotFoundError:
        return {}  # no Kafka client has committed an offset in this root
    except DistlogError as error:
        # without this address, the error would seem to be about the topic itself
        error.details.setdefault("url", storage.url)
        raise


def newest_topic(storage: Storage, clock: Callable[[], int]) -> tuple[TopicHandle, Snapshot]:
    """Open the topic in `storage` at its newest version, with its active segments. Raises TopicNotFoundError."""
    log = topic_log(storage, clock)
    loaded = log.load()
    handle = TopicHandle.of(storage, loaded.name, log, clock)
    return handle, LiveSnapshot(handle, CurrentSnapshot(log, loaded)).refresh()


def _positions(newest: Iterable[OffsetsRecord], topic: str, since_ms: int) -> dict[str, dict[int, int]]:
    by_group = dict[str, dict[int, int]]()
    for record in newest:
        if record.value is None:
            continue
        try:
            key = decode_offset_key(record.key)
            position = decode_position(record.value) if key is not None and key.topic == topic else None
        except CorruptRecordError as error:
            error.details |= {"partition": record.partition, "offset": record.offset}
            raise
        # clients may commit a negative number
        if key is not None and position is not None and position.offset >= 0 and position.commit_ms >= since_ms:
            by_group.setdefault(key.group, {})[key.partition] = position.offset
    return {group: dict(sorted(positions.items())) for group, positions in sorted(by_group.items())}
