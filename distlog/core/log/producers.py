"""Checks the batches of producers, and keeps the states of a partition's producers, from its log and stored files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import MAX_LONG, MIN_LONG, Bytes, byte_array, new_array
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.deduplication import KnownBatch
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CorruptIndexError,
    CorruptRecordError,
    DistlogError,
    InvalidRecordError,
    InvalidTimestampError,
    OutOfOrderSequenceError,
    RecordErrors,
    RecordTooLargeError,
    RecordValidationError,
    StorageError,
)
from distlog.core.format.compression import CODEC_NAMES, MAX_RECORDS_BYTES, NONE, Expander, compress
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.kernels.record_scan import (
    BAD_TIME,
    FINE,
    NO_KEY,
    OK,
    SMALLEST_RECORD,
    CheckedRecords,
    TimeBounds,
    check_records,
)
from distlog.core.format.record_batch import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER_SIZE,
    TRANSACTIONAL,
    BatchFields,
    batch_fields,
    increment_sequence,
    read_headers,
)
from distlog.core.format.record_encoder import ValidBatch, codec_of, compression_level, write_headers
from distlog.core.log.log_segment import LogSegment, check_batch_size
from distlog.core.log.partition_files import WALK_BYTES, ActiveFile, batches_from
from distlog.core.segments.producer_states import (
    EXPIRATION_CHECK_MS,
    FirstBatch,
    OpenTransactions,
    ProducerStates,
    any_first,
    read_producer_snapshot,
)
from distlog.core.segments.segment_parts import part_of
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.storage import Storage

if TYPE_CHECKING:
    from typing_extensions import Buffer

# <stem>.snapshot          the states at the start of this segment
# <offset:020d>.snapshot   the states at this offset: at the log's start, or at the end of a broker's log

#: The bytes of sealed segments that are read for producers' last batches. Five batches of 1 MiB for 12 producers fit.
RECALLED_BYTES = 64 << 20


class StoredProducers:
    """Reads and stores the states of a partition's producers."""

    def __init__(self, storage: Storage, topic: str, partition: int) -> None:
        self._storage, self._topic = storage, topic
        self._folder = storage.child(paths.partition_dir(topic, partition))

    def read_snapshot(self, name: str, offset: int = 0) -> ProducerStates | None:
        """Return the states in a snapshot, named without the suffix; None if it is missing or damaged."""
        # `observe` of the states skips batches below `offset`; 0 if it only gets later batches
        file = name + paths.SNAPSHOT_SUFFIX
        with suppress(FileNotFoundError, CorruptIndexError):
            return ProducerStates.of_snapshot(read_producer_snapshot(self._folder.read(file), file=file), offset)
        return None

    def newest(self, segments: Sequence[SegmentInfo], log_end_offset: int) -> ProducerStates:
        """Return the states in the newest snapshot of a partition's `segments`, which end at `log_end_offset`."""
        names = {file.name for file in self._folder.list()}
        for stem, offset in _snapshots(segments, log_end_offset):
            if stem + paths.SNAPSHOT_SUFFIX in names and (states := self.read_snapshot(stem, offset)) is not None:
                return states
        return ProducerStates()

    def after_segments(self, segments: Sequence[SegmentInfo], log_end_offset: int) -> ProducerStates:
        """Return the states after all sealed `segments` of a partition, which end at `log_end_offset`."""
        states = self.newest(segments, log_end_offset)
        for sealed in segments:
            if sealed.next_offset > states.offset and sealed.may_have_producers:
                self._update(states, sealed)
        return states

    def of_last_segments(self, segments: Sequence[SegmentInfo]) -> ProducerStates:
        """Return the states from the batches in the last sealed `segments`, about RECALLED_BYTES."""
        states, first, size = ProducerStates(), len(segments), 0
        while first and size < RECALLED_BYTES:
            first -= 1
            size += segments[first].log_bytes
        for sealed in segments[first:]:
            if sealed.may_have_producers:
                with suppress(CorruptRecordError):
                    self._update(states, sealed)
        return states

    def store(self, stem: str, states: ProducerStates) -> None:
        """Store the states at the start of the segment `stem`; ignores disk errors, since the log has them."""
        data, path = states.snapshot(), self._folder.local_path(stem + paths.SNAPSHOT_SUFFIX)
        # a torn file is like a missing one
        with suppress(StorageError), closing(ActiveFile(path)) as file:
            file.write(data, 0)
            file.cut(len(data))

    def _update(self, states: ProducerStates, sealed: SegmentInfo) -> None:
        log = part_of(self._topic, sealed)
        with closing(ActiveFile(self._storage.local_path(log.name), writable=False)) as file:
            for batches in batches_from(file, log.begin, log.begin + log.size, WALK_BYTES):
                states.observe(batches.data, batches.rows, sealed.shift)


def transactions_at_start(handle: TopicHandle, state: PartitionState) -> OpenTransactions:
    """Return the transactions that are open at the start of the partition's active segment."""
    active = state.active
    assert active is not None
    stored = StoredProducers(handle.storage, handle.name, active.partition)
    states = stored.read_snapshot(active.stem)
    if states is None:
        states = stored.after_segments(state.segments.without_active(), active.base_offset)
    return OpenTransactions(states.open_transactions)


def _snapshots(segments: Sequence[SegmentInfo], log_end_offset: int) -> Iterator[tuple[str, int]]:
    """Yield the names, without the suffix, and the offsets of the snapshots that may exist, the newest first."""
    for segment in reversed(segments):
        if not paths.is_own_stem(segment.stem):
            # the broker or the import stored a snapshot at the segment's end
            yield f"{segment.next_offset:020d}", segment.next_offset
        yield segment.stem, segment.base_offset
    first = segments[0].base_offset if len(segments) else log_end_offset
    if first:
        yield f"{first:020d}", first


class ProducerSnapshots:
    """Stores the states of producers before segments are deleted, so that retries are still detected, as in Kafka."""

    def __init__(self, handle: TopicHandle) -> None:
        # only topics on a disk of this machine have idempotent producers
        self._handle, self._is_needed = handle, handle.storage.is_local_disk
        # the (partition, offset) of each stored snapshot
        self._stored_snapshots: set[tuple[int, int]] = set()

    def store(self, snapshot: Snapshot, counts: Mapping[int, int]) -> None:
        """Store the states after the first `counts[partition]` segments; stores none if a segment is damaged."""
        needed_snapshots = {
            (number, _log_start_after(snapshot.partitions[number], count)) for number, count in counts.items()
        }
        missing = needed_snapshots - self._stored_snapshots if self._is_needed else set()
        unneeded_files = []
        for partition, offset in sorted(missing):
            states = self._states(snapshot, partition, counts[partition])
            name = f"{paths.partition_dir(snapshot.name, partition)}/{offset:020d}{paths.SNAPSHOT_SUFFIX}"
            if len(states):
                self._handle.storage.put(name, states.snapshot())
            else:
                unneeded_files.append(name)
        # an earlier topic at this address may have left a file, which would be read as these states
        self._handle.storage.delete(unneeded_files)
        self._stored_snapshots |= missing

    def _states(self, snapshot: Snapshot, partition: int, count: int) -> ProducerStates:
        stored = StoredProducers(self._handle.storage, snapshot.name, partition)
        with suppress(DistlogError):
            state = snapshot.partitions[partition]
            deleted = state.segments[:count]
            if not any(segment.may_have_producers for segment in deleted):
                # these segments have no producers, so the states are those at their start
                first = deleted[0].base_offset
                states = stored.read_snapshot(f"{first:020d}", first) if first else None
                return states or ProducerStates()
            next_start = stored.read_snapshot(state.segments[count].stem) if count < len(state.segments) else None
            return next_start or stored.after_segments(deleted, _log_start_after(state, count))
        return ProducerStates()


def _log_start_after(state: PartitionState, count: int) -> int:
    return int(state.segments.base_offsets[count]) if count < len(state.segments) else state.log_end_offset


class TransactionEffect(NamedTuple):
    """The transactions that batches abort, and the first unstable offset after the batches, or None if unchanged."""

    aborted: Sequence[AbortedTransaction]
    first_unstable_offset: int | None


NO_EFFECT = TransactionEffect((), None)


class _ReadEnd(NamedTuple):
    """The end of the batches that the states include: a position in the segment `stem`, and an offset."""

    stem: str
    position: int
    offset: int


_NOTHING_READ = _ReadEnd("", 0, 0)
_QUICK_READ_BYTES = 256 << 10  # the bytes of a log that can be read within milliseconds


# Any process may append, so a process reads the batches of other processes before it checks its own. The states at
# the start of the active segment are in its `.snapshot`, in Kafka's format, or are read from earlier segments.
#
# A snapshot has only the last batch of each producer, but five may be in flight. So a process that started with a
# snapshot reads the last batches from earlier segments before it refuses a batch.
class PartitionProducers:
    """The producers of a partition. All methods need its lock, and the active `segment` up to its current end."""

    def __init__(
        self, handle: TopicHandle, partition: int, snapshots: CurrentSnapshot, check_first: FirstBatch = any_first
    ) -> None:
        self._partition, self._snapshots, self._clock = partition, snapshots, handle.clock
        self._check_first = check_first
        self._expiration_ms = handle.producer_expiration_ms
        self._stored = StoredProducers(handle.storage, handle.name, partition)
        # `_expired_ms` is the time when all producers were last checked for expiration
        self._states, self._read_end, self._expired_ms = ProducerStates(), _NOTHING_READ, 0
        # whether batches of earlier segments were read; not repeated for each refused batch, since it takes long
        self._has_recalled = False

    def find_duplicate(self, batches: Sequence[BatchFields], segment: LogSegment) -> KnownBatch | None:
        """Check the next batches; if the log already has them, returns the last one, else None."""
        self.catch_up(segment)
        now_ms = self._clock()
        is_check_due = now_ms - self._expired_ms >= EXPIRATION_CHECK_MS
        producer_ids = None if is_check_due else {batch.producer_id for batch in batches}
        self._states.expire(now_ms, producer_ids, after_ms=self._expiration_ms)
        self._expired_ms = now_ms if is_check_due else self._expired_ms
        try:
            return self._states.check(batches, self._check_first)
        except OutOfOrderSequenceError:
            if self._has_recalled:
                raise
        # the batch may be a retry of a batch before the active segment, which the snapshot lacks
        segments = self._snapshots.refresh().partitions[self._partition].segments
        self._states.add_earlier_batches(self._stored.of_last_segments(segments))
        self._has_recalled = True
        return self._states.check(batches, self._check_first)

    def is_next(self, batch: BatchFields, segment: LogSegment) -> bool:
        """True if this is the next batch of its producer, and little of the log must be read to check it."""
        state, (stem, position, _) = self._states.get(batch.producer_id), self._read_end
        return (
            stem == segment.stem
            and 0 <= segment.size - position <= _QUICK_READ_BYTES
            and state is not None
            and batch.producer_epoch == state.epoch
            and batch.base_sequence == increment_sequence(state.last_sequence, 1)
        )

    def entries(self, segment: LogSegment | None) -> npt.NDArray[np.void]:
        """Return the state of each producer (ENTRY rows), after the sealed segments if there is no active one."""
        if segment is None:
            state = self._snapshots.refresh().partitions[self._partition]
            states = self._stored.after_segments(state.segments, state.log_end_offset)
        else:
            self.catch_up(segment)
            states = self._states
        states.expire(self._clock(), after_ms=self._expiration_ms)
        return states.entries()

    def has_open(self, producer_id: int, epoch: int, segment: LogSegment, start_offset: int | None = None) -> bool:
        """True if the producer has an open transaction in this epoch, which starts at `start_offset` if it is set."""
        self.catch_up(segment)
        starts_there = start_offset is None or self._states.open_transactions.get(producer_id) == start_offset
        return starts_there and self._states.has_open(producer_id, epoch)

    def effect_of(self, data: npt.NDArray[Any], rows: npt.NDArray[Any]) -> TransactionEffect:
        """Return the effect of the next batches on the transactions that are open at the log's end."""
        if not (rows["attributes"] & TRANSACTIONAL).any():
            return NO_EFFECT
        transactions = OpenTransactions(self._states.open_transactions)
        return TransactionEffect(transactions.observe(data, rows), transactions.first_offset)

    def note_appended(self, data: npt.NDArray[Any], rows: npt.NDArray[Any], segment: LogSegment) -> None:
        self._states.observe(data, rows, heard_ms=self._clock())
        self._read_end = _ReadEnd(segment.stem, segment.size, segment.next_offset)

    def catch_up(self, segment: LogSegment) -> None:
        """Read the batches that the states lack; for a new segment, load and store the states at its start."""
        stem, position, _ = self._read_end
        if segment.stem != stem or segment.size < position:
            self._load_states(segment)
            position = 0
        if segment.has_producers and segment.size > position:
            for batches in segment.batches(position):
                self._states.observe(batches.data, batches.rows, heard_ms=self._clock())
        self._read_end = _ReadEnd(segment.stem, segment.size, segment.next_offset)

    def _load_states(self, segment: LogSegment) -> None:
        """Make `_states` those at the segment's start; unless its snapshot had them, store the snapshot."""
        segments = self._snapshots.refresh().partitions[self._partition].segments
        if not self._ends_at(segments, segment):
            stored = self._stored.read_snapshot(segment.stem)
            earlier, self._states = self._states, stored or self._stored.after_segments(segments, segment.base_offset)
            self._states.update_heard_times(earlier)
            self._states.expire(self._clock(), after_ms=self._expiration_ms)
            self._has_recalled = False
            if stored is not None:
                return
        if segment.base_offset:
            self._stored.store(segment.stem, self._states)

    def _ends_at(self, segments: Sequence[SegmentInfo], segment: LogSegment) -> bool:
        """True if the states are at the start of `segment`, since all of the last sealed segment was read."""
        last_end = (segments[-1].stem, segments[-1].next_offset) if len(segments) else None
        read_end = self._read_end
        return last_end == (read_end.stem, read_end.offset) and segment.base_offset == read_end.offset


# A kernel checks the records in the request's buffer, or in the decompressed copy. The records are not changed,
# unless the topic has another codec. The log sets the base offset and the leader epoch, which the checksum does not
# cover. If it sets the timestamp type or the largest timestamp, the checksum is computed again.
#
# Unlike Kafka, this refuses batches with append times for all timestamp types of the topic, and bytes after the
# batch, which Kafka drops silently. It refuses formats 0 and 1, as Kafka's produce requests do since 4.0.

_USUAL_EXPANSION = 4  # decompression is first tried with room for this multiple of the compressed size
#: A decompressed batch may have this multiple of `max.message.bytes`, but at least this number of bytes.
_MAX_EXPANSION, _MIN_EXPANSION_LIMIT = 32, 32 << 20
#: The most records that an error lists, since a batch may have millions.
_MAX_ERRORS = 100
_LEADER_EPOCH = slice(12, 16)  # its bytes in a header
_UNBOUNDED = TimeBounds(MIN_LONG, MAX_LONG)
_FAULTS = {
    NO_KEY: "a record of a compacted topic needs a key",
    BAD_TIME: "the timestamp is not within message.timestamp.before.max.ms and .after.max.ms of the current time",
}


def validate(data: Buffer, config: TopicConfig, now_ms: int) -> ValidBatch:
    """Check `data`, which must be one batch, and is not changed; raises an error if the log refuses records."""
    rows = _one_batch(data)
    (batch,) = batch_fields(rows)
    _check_batch(data, batch, config)
    records = _records(data, batch, config)
    if batch.attributes & APPEND_TIME:
        refused = range(min(batch.record_count, _MAX_ERRORS))
        text = "the batch has append times, which only the log may set: send it with CreateTime"
        errors = RecordErrors((number, "a producer set the append time") for number in refused)
        raise InvalidTimestampError(text, record_errors=errors)
    oldest_ms = max(now_ms - config.message_timestamp_before_max_ms, 0)
    bounds = TimeBounds(oldest_ms, min(now_ms + config.message_timestamp_after_max_ms, MAX_LONG))
    verdicts = np.zeros(batch.record_count, np.uint8)
    checked = check_records(
        records.data,
        records.start,
        records.end,
        batch.base_timestamp,
        _UNBOUNDED if config.message_timestamp_type == "LogAppendTime" else bounds,
        "compact" in config.cleanup_policy,
        verdicts,
    )
    _raise_refusals(checked, verdicts)
    keeps_codec = config.compression_type == "producer"
    codec = records.codec if keeps_codec else CODEC_NAMES.index(codec_of(config, None))
    rows["leader_epoch"] = -1
    if batch.max_timestamp == checked.max_timestamp and codec == records.codec:
        # the checksum stays, since it does not cover the leader epoch, which becomes -1
        encoded = new_array(batch.size, np.uint8)
        encoded[:] = byte_array(data)
        encoded[_LEADER_EPOCH] = 0xFF
    else:
        rows["max_timestamp"] = checked.max_timestamp
        encoded = _encoded(records, rows, codec, config)
    newest_offset = checked.newest_record if checked.max_timestamp >= 0 else -1
    return ValidBatch(encoded, rows, newest_offset, checked.min_timestamp)


class _Records(NamedTuple):
    """A batch's records: uncompressed in bytes [start, end) of `data`, and as received in `section`."""

    data: Bytes
    start: int
    end: int
    section: Bytes
    codec: int


def _one_batch(data: Buffer) -> npt.NDArray[Any]:
    view = memoryview(data).cast("B")
    if view.nbytes > 16 and view[16] in (0, 1):
        raise InvalidRecordError("batches of format 0 and 1 cannot be appended: use a newer client", magic=view[16])
    rows = read_headers(view)
    if len(rows) != 1 or int(rows[0]["size"]) != view.nbytes:
        raise InvalidRecordError("the data must be exactly one whole batch", batches=len(rows))
    return rows


def _check_batch(data: Buffer, batch: BatchFields, config: TopicConfig) -> None:
    if batch.base_offset != 0:
        raise InvalidRecordError("a producer's batch must begin at offset 0", base_offset=batch.base_offset)
    check_batch_size(batch.size, config)
    if crc32c(memoryview(data).cast("B")[CRC_START:]) != batch.crc:
        raise CorruptRecordError("a batch fails its checksum: it was changed in transit, so send it again")
    count, offsets = batch.record_count, batch.last_offset_delta + 1
    if count != offsets:
        raise InvalidRecordError("a batch must have one offset per record", records=count, offsets=offsets)
    if batch.attributes & CONTROL:
        raise InvalidRecordError("a client cannot append control batches")
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise InvalidRecordError("a producer id needs a sequence number", producer_id=batch.producer_id)


def _records(data: Buffer, batch: BatchFields, config: TopicConfig) -> _Records:
    array, codec, count = byte_array(data), batch.attributes & CODEC_MASK, batch.record_count
    section = array[HEADER_SIZE:]
    records = _Records(array, HEADER_SIZE, array.size, section, codec)
    if codec != NONE:
        limit = min(MAX_RECORDS_BYTES, max(_MAX_EXPANSION * config.max_message_bytes, _MIN_EXPANSION_LIMIT))
        expander = Expander(min(_USUAL_EXPANSION * section.size, limit))
        try:
            expander.expand(codec, section, limit=limit)
        except CorruptRecordError as error:
            if "limit" not in error.details:
                raise
            text = f"a batch expands to more than {_MAX_EXPANSION} times max.message.bytes: make smaller batches"
            raise RecordTooLargeError(text, limit=limit) from None
        records = _Records(byte_array(expander.array), 0, expander.size, section, codec)
    # checked before arrays with an item per record are allocated
    if count * SMALLEST_RECORD > records.end - records.start:
        text = "a batch is damaged, since it is too short for its number of records: send it again"
        raise InvalidRecordError(text, records=count)
    return records


def _raise_refusals(checked: CheckedRecords, verdicts: Bytes) -> None:
    if checked.status != OK:
        text = "a record of the batch does not decode, or has a wrong offset: the client made a malformed batch"
        raise InvalidRecordError(f"{text}, so check or update the client", record=int(checked.number))
    if not checked.refused:
        return
    errors = RecordErrors(
        (number, _FAULTS[int(verdicts[number])]) for number in np.flatnonzero(verdicts != FINE)[:_MAX_ERRORS].tolist()
    )
    kind = InvalidTimestampError if (verdicts == BAD_TIME).any() else RecordValidationError
    raise kind("the topic refuses some records of the batch", record_errors=errors)


def _encoded(records: _Records, rows: npt.NDArray[Any], codec: int, config: TopicConfig) -> Bytes:
    """Return the batch in `codec`; sets the size, codec and checksum of the header in `rows`."""
    section: Any = records.section
    if codec != records.codec:
        level = compression_level(config, CODEC_NAMES[codec])
        section = compress(codec, records.data[records.start : records.end], level)
    size = HEADER_SIZE + len(section)
    rows["size"] = size
    rows["attributes"] = (rows["attributes"] & ~CODEC_MASK) | codec
    check_batch_size(size, config)
    data = new_array(size, np.uint8)
    data[HEADER_SIZE:] = np.frombuffer(section, np.uint8)
    write_headers(data.data, rows)
    return data
