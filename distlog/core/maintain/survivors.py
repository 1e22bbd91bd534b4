"""Decides which records survive a compaction (the last one of each key), and which batches must go or stay."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, sqrt
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import MAX_INT, MAX_LONG, Bytes, Flags, Longs, byte_array, new_array, numbers_of
from distlog.core.commits.deduplication import EXPIRATION_MS
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.errors import InvalidConfigError
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.kernels import compaction as kernels
from distlog.core.format.kernels.batch_scan import CODEC_MASK
from distlog.core.format.record_batch import ABORT, APPEND_TIME, COMMIT, CONTROL, DELETE_HORIZON, TRANSACTIONAL
from distlog.core.format.record_decoder import (
    OPENED_BYTES,
    BatchSelection,
    RecordFields,
    decode,
    open_sections,
    scan_sections,
)
from distlog.core.format.record_encoder import encode
from distlog.core.segments.chunks import Chunk, SegmentSlice
from distlog.core.segments.segment_reader import SegmentReader, whole_log

# Keys are compared by their hashes, as Kafka compares their MD5. If two keys had the same hash, compaction would
# delete a record that must stay. A writer cannot search for two keys with the same hash without the secret. Among
# 10^9 keys, the probability that any two have the same hash is 10^-21.

#: The size of a secret, which is drawn at random for each run and written nowhere.
SECRET_BYTES = 16


def hash_keys(data: Bytes, positions: Longs, offsets: npt.NDArray[np.int32], secret: bytes) -> Longs:
    """Return two int64 of hash for each key. Key i is offsets[i + 1] - offsets[i] bytes of `data` at positions[i]."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    first, second = np.frombuffer(secret, "<i8").tolist()
    hashes = np.empty((len(positions), kernels.HASH_WORDS), np.int64)
    kernels.hash_all(data, positions, offsets, first, second, hashes)
    return hashes


SLOT_BYTES = 8 * kernels.SLOT_WORDS

LOAD_FACTOR = 0.9  # Kafka's log.cleaner.io.buffer.load.factor
_MAX_SLOTS = 2**31 - 1


class OffsetMap:
    """A map of keys to their last offsets, full when LOAD_FACTOR of its slots are used.

    After `put`, it has all keys of records up to `latest_offset`. Raises InvalidConfigError without room for a key.
    """

    def __init__(self, slots: int) -> None:
        self.slots = min(slots, _MAX_SLOTS)
        self._max_keys = int(self.slots * LOAD_FACTOR)
        if self._max_keys < 1:
            text = "compaction has no memory for even one key: raise dedupe_buffer_bytes (--dedupe-buffer-size)"
            raise InvalidConfigError(text, bytes=slots * SLOT_BYTES)
        self._table = np.zeros(self.slots * kernels.SLOT_WORDS, np.int64)
        self.size = 0
        self.latest_offset = -1

    @classmethod
    def within(cls, memory_bytes: int, records: int) -> OffsetMap:
        """A map for up to `records` records, in at most `memory_bytes` of memory."""
        return cls(min(memory_bytes // SLOT_BYTES, map_slots(records)))

    def put(self, hashes: Longs, has_key: Flags, offsets: Longs) -> int:
        """Put the offsets of records with a key, in order. Returns the number of records until the map is full."""
        count, self.size, latest = kernels.put_all(
            self._table, self.slots, self._max_keys, self.size, hashes, has_key, offsets
        )
        if latest >= 0:
            self.latest_offset = int(latest)
        return count

    def get(self, hashes: Longs) -> Longs:
        """The last offset of each key, or -1."""
        offsets = np.empty(len(hashes), np.int64)
        kernels.get_all(self._table, self.slots, hashes, offsets)
        return offsets

    def put_rows(self, rows: Longs) -> Longs:
        """Put records in any order, as rows of the key's hash and the offset. Returns the superseded offsets."""
        superseded = np.empty(len(rows), np.int64)
        count, self.size = kernels.put_rows(self._table, self.slots, self._max_keys, self.size, rows, superseded)
        if count < 0:
            text = "compaction has no memory for all keys: raise dedupe_buffer_bytes (--dedupe-buffer-size)"
            raise InvalidConfigError(text, bytes=self.slots * SLOT_BYTES)
        return superseded[:count]

    def superseded_offsets(self, rows: Longs) -> Longs:
        """The offsets of the records in `rows`, as for `put_rows`, whose key has a later record in the map."""
        superseded = np.empty(len(rows), np.int64)
        return superseded[: kernels.find_superseded(self._table, self.slots, rows, superseded)]


@dataclass(frozen=True, slots=True)
class ScannedRecords:
    """Scanned records, at absolute offsets. The row `sections[i]` locates the records of the i-th batch in `data`."""

    data: np.ndarray
    sections: np.ndarray
    fields: RecordFields
    count: int

    @property
    def offsets(self) -> Longs:
        return self.fields.offsets[: self.count]

    @property
    def timestamps(self) -> Longs:
        return self.fields.timestamps[: self.count]

    @property
    def has_key(self) -> Flags:
        return self.fields.key.valid[: self.count]

    def hashes(self, secret: bytes) -> Longs:
        key = self.fields.key
        return hash_keys(self.data, key.positions[: self.count], key.offsets[: self.count + 1], secret)

    def rewrite(
        self, sections: np.ndarray, first_records: Longs, base_offsets: Longs, base_timestamps: Longs, is_kept: Flags
    ) -> tuple[Bytes, Longs]:
        """Copy the kept records. Section i begins with record `first_records[i]`. Returns bytes and section ends."""
        growth = kernels.RECORD_GROWTH * sections["record_count"].sum()
        max_bytes = int((sections["end"] - sections["start"]).sum() + growth)
        target, ends = new_array(max_bytes, np.uint8), np.empty(len(sections), np.int64)
        bases = np.ascontiguousarray(base_offsets), np.ascontiguousarray(base_timestamps)
        kernels.rewrite_records(self.data, sections, first_records, *bases, is_kept, self.timestamps, target, ends)
        return target, ends


def scan_records(
    source: BatchSelection, rows: npt.NDArray[np.intp], columns: Collection[str], start_offset: int = 0
) -> ScannedRecords:
    """Scan the batches `rows`, at most about OPENED_BYTES if compressed, without records before `start_offset`."""
    to_scan = replace(source.of_rows(rows), start_offset=start_offset, end_offset=MAX_LONG)
    data, sections = open_sections(to_scan, OPENED_BYTES)
    fields = RecordFields.allocate(int(sections["record_count"].sum()), columns)
    return ScannedRecords(data, sections, fields, scan_sections(to_scan, data, sections, fields))


def checked_chunks(reader: SegmentReader, segment: SegmentInfo, start_offset: int = 0) -> Iterator[Chunk]:
    """Yield checked chunks from `start_offset` on, in format 2. Commit nothing before the end, which may raise."""
    if start_offset <= segment.base_offset:
        yield from map(_upgraded, whole_log(reader, segment))  # compares the checksum of the file, too
        return
    for chunk in reader.chunks(SegmentSlice(segment, start_offset, segment.next_offset, 0, segment.log_bytes)):
        chunk.check()
        yield _upgraded(chunk)


def _upgraded(chunk: Chunk) -> Chunk:
    """Convert all batches of a chunk of one segment to format 2, as Kafka's cleaner does."""
    if (chunk.batches["magic"] == 2).all():
        return chunk
    (source,) = chunk.ranges
    data, batches = in_format_2(chunk.data, chunk.batches, file=source.file, file_position=source.origin)
    converted = source._replace(start=0, end=len(data))
    return Chunk([converted], data, batches, range_of_batch=np.zeros(len(batches), np.int64))


# Whether a batch of a transaction or a producer stays depends on other batches of the partition, as in Kafka's
# `CleanedTransactionMetadata`. With these verdicts from a first pass, each group of segments can be rewritten alone.

_NO_OFFSETS: Longs = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The batches with special rules, by their absolute base offsets in ascending order.

    A batch is discardable if it has data of an aborted transaction, or a marker of a transaction without data. The
    last batch of a producer stays even if empty, for its sequence number. `aborted` are the transactions whose
    abort marker stays, in the order of their markers.
    """

    discardable_batches: Longs = field(default_factory=lambda: _NO_OFFSETS)
    last_batches: Longs = field(default_factory=lambda: _NO_OFFSETS)
    aborted: tuple[AbortedTransaction, ...] = ()

    def is_discardable(self, base_offsets: Longs) -> Flags:
        return _contains(self.discardable_batches, base_offsets)

    def is_last(self, base_offsets: Longs) -> Flags:
        return _contains(self.last_batches, base_offsets)

    def within(self, start_offset: int, end_offset: int) -> Verdicts:
        """The verdicts on the batches in [start_offset, end_offset), and on the transactions that end there."""
        return Verdicts(
            _within(self.discardable_batches, start_offset, end_offset),
            _within(self.last_batches, start_offset, end_offset),
            tuple(entry for entry in self.aborted if start_offset <= entry.last_offset < end_offset),
        )


def _contains(sorted_offsets: Longs, offsets: Longs) -> Flags:
    if len(sorted_offsets) == 0:
        return np.zeros(len(offsets), bool)
    rows = np.searchsorted(sorted_offsets, offsets).clip(max=len(sorted_offsets) - 1)
    is_contained: Flags = sorted_offsets[rows] == offsets
    return is_contained


def _within(offsets: Longs, start_offset: int, end_offset: int) -> Longs:
    start, end = np.searchsorted(offsets, [start_offset, end_offset])
    return offsets[start:end]


def judge(
    reader: SegmentReader, segments: Sequence[SegmentInfo], now_ms: int, producer_expiration_ms: int = EXPIRATION_MS
) -> Verdicts:
    """Return the verdicts on all `segments` of a partition. Reads only segments that may have producers."""
    segments = [segment for segment in segments if segment.may_have_producers]
    if not segments:
        return Verdicts()
    aborted = sorted(
        (transaction for segment in segments for transaction in reader.aborted_transactions(segment)),
        key=lambda transaction: transaction.first_offset,
    )
    transactions, producers = _Transactions(aborted), dict[int, _ProducerBatches]()
    for batch in _batches(reader, segments, now_ms):
        transactions.observe(batch)
        producers.setdefault(batch.producer_id, _ProducerBatches()).observe(batch)
    active = [producer for producer in producers.values() if producer.is_active(now_ms, producer_expiration_ms)]
    last_batches = sorted(offset for producer in active for offset in producer.last_batches)
    discardable_batches = np.array(transactions.discardable_batches, np.int64)
    return Verdicts(discardable_batches, np.array(last_batches, np.int64), tuple(transactions.marked))


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch of a producer; its `kind` is the type of its control record, or one of the constants below."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    #: Whether its delete horizon, the time from which a marker may be dropped, has passed.
    is_past_horizon: bool
    kind: int


#: A batch of data, a control batch without a record, and a control record without a type.
_DATA, _EMPTY_CONTROL, _UNKNOWN = -1, -2, -3


class _Transactions:
    """Observes batches in order. Finds discardable ones, and `marked`: aborted transactions whose marker stays."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._later_aborted = deque(aborted)
        self._open_aborted: dict[int, AbortedTransaction] = {}  # by producer: its open transaction, to be aborted
        self._producers_with_aborted_data: set[int] = set()
        self._producers_with_committed_data: set[int] = set()
        self.discardable_batches: list[int] = []
        self.marked: list[AbortedTransaction] = []

    def observe(self, batch: _Batch) -> None:
        while self._later_aborted and self._later_aborted[0].first_offset <= batch.last_offset:
            transaction = self._later_aborted.popleft()
            self._open_aborted.setdefault(transaction.producer_id, transaction)
        is_discardable = self._observe_data(batch) if batch.kind == _DATA else self._observe_marker(batch)
        if is_discardable:
            self.discardable_batches.append(batch.base_offset)

    def _observe_data(self, batch: _Batch) -> bool:
        """Observe a batch of data. Returns whether its transaction was aborted."""
        producer = batch.producer_id
        if batch.is_transactional and producer in self._open_aborted:
            self._producers_with_aborted_data.add(producer)
            return True
        if batch.is_transactional:
            self._producers_with_committed_data.add(producer)
        return False

    def _observe_marker(self, batch: _Batch) -> bool:
        """Observe a marker. Returns whether it may go after its delete horizon: its transaction has no data left."""
        producer = batch.producer_id
        if batch.kind == ABORT:
            transaction = self._open_aborted.pop(producer, None)
            has_data = producer in self._producers_with_aborted_data
            self._producers_with_aborted_data.discard(producer)
            # a marker without data stays until its horizon, and its transaction is listed as long as it stays, since
            # `Topic.restore` may bring the data back
            if transaction and (has_data or not batch.is_past_horizon):
                self.marked.append(transaction)
            return not (transaction and has_data)
        if batch.kind == COMMIT:
            has_data = producer in self._producers_with_committed_data
            self._producers_with_committed_data.discard(producer)
            return not has_data
        return batch.kind == _EMPTY_CONTROL


class _ProducerBatches:
    """The batches to retain of a producer's newest epoch: the last one with data, or all its markers without data."""

    def __init__(self) -> None:
        self._epoch, self._last_timestamp = -1, -1
        self._has_data = False
        self.last_batches: list[int] = []

    def observe(self, batch: _Batch) -> None:
        if batch.producer_epoch != self._epoch:
            self._epoch, self._has_data, self.last_batches = batch.producer_epoch, False, []
        if batch.kind == _DATA:
            self._has_data, self.last_batches = True, [batch.base_offset]
        elif not self._has_data:
            self.last_batches.append(batch.base_offset)
        self._last_timestamp = batch.max_timestamp

    def is_active(self, now_ms: int, expiration_ms: int) -> bool:
        # a producer with an open transaction is active, too, but compaction stops before the transaction
        return now_ms - self._last_timestamp < expiration_ms


def _batches(reader: SegmentReader, segments: Sequence[SegmentInfo], now_ms: int) -> Iterator[_Batch]:
    for segment in segments:
        for chunk in checked_chunks(reader, segment):
            batches = chunk.batches
            is_control = batches["attributes"] & CONTROL != 0
            kinds = np.where(is_control, _EMPTY_CONTROL, _DATA)
            marker_rows = np.flatnonzero(is_control & (batches["record_count"] > 0))
            if len(marker_rows):
                # one scan reads all markers, since they have one record each and are never compressed
                records = scan_records(chunk.selection(), marker_rows, ("key",))
                key = records.fields.key
                is_complete = np.diff(key.offsets[: records.count + 1]) >= 4  # a version and the type, int16 each
                key_positions = np.where(is_complete, key.positions[: records.count] + 2, 0)
                types = (records.data[key_positions].astype(np.int64) << 8) | records.data[key_positions + 1]
                kinds[marker_rows] = np.where(is_complete, types, _UNKNOWN)
            is_past_horizon = (batches["attributes"] & DELETE_HORIZON != 0) & (batches["base_timestamp"] <= now_ms)
            for row in np.flatnonzero(is_control | (batches["producer_id"] >= 0)).tolist():
                batch = batches[row]
                base_offset = int(batch["base_offset"]) + segment.shift
                yield _Batch(
                    base_offset,
                    base_offset + int(batch["last_offset_delta"]),
                    int(batch["max_timestamp"]),
                    int(batch["producer_id"]),
                    int(batch["producer_epoch"]),
                    bool(batch["attributes"] & TRANSACTIONAL),
                    bool(is_past_horizon[row]),
                    int(kinds[row]),
                )


class Survivors(Protocol):
    """Decides which records a rewrite keeps. All records above `latest_offset` stay."""

    @property
    def latest_offset(self) -> int:
        """The last offset up to which keys are known."""

    def is_current(self, records: ScannedRecords) -> Flags:
        """Return whether no later record has the record's key; the value for a record without a key is arbitrary."""


@dataclass(frozen=True, slots=True)
class MapSurvivors:
    """Survivors by an offset map of keys hashed under `secret`. A record whose key is not in the map stays."""

    offset_map: OffsetMap
    secret: bytes = field(repr=False)

    @property
    def latest_offset(self) -> int:
        return self.offset_map.latest_offset

    def is_current(self, records: ScannedRecords) -> Flags:
        is_current: Flags = records.offsets >= self.offset_map.get(records.hashes(self.secret))
        return is_current


class OffsetSurvivors:
    """Survivors of a group of segments by the offsets of superseded records, one bit per offset."""

    def __init__(self, base_offset: int, next_offset: int, latest_offset: int) -> None:
        self.latest_offset = latest_offset
        self._base_offset = base_offset
        self._bits = np.zeros((next_offset - base_offset + 7) // 8, np.uint8)

    def supersede(self, offsets: Longs) -> None:
        """Note that later records have the keys of the records at `offsets`."""
        kernels.set_bits(self._bits, self._base_offset, offsets)

    def is_current(self, records: ScannedRecords) -> Flags:
        is_current = np.empty(records.count, bool)
        kernels.unset_bits(self._bits, self._base_offset, records.offsets, is_current)
        return is_current


@dataclass(frozen=True, slots=True)
class KeyedRecords:
    """Consecutive records: the hashes of their keys, whether each has a key, and their offsets.

    `record_ends[i]` is the number of records in batches 0 to i. `complete_offsets[i]` is the last offset before batch
    i: a map that gets full in batch i has all keys up to it. One more item is for a map that has all batches.
    """

    hashes: Longs
    has_key: Flags
    offsets: Longs
    record_ends: Longs
    complete_offsets: Longs


def keyed_records(
    reader: SegmentReader, segment: SegmentInfo, start_offset: int, verdicts: Verdicts, secret: bytes
) -> Iterator[KeyedRecords]:
    """Yield the records without control records and aborted transactions, and hash their keys under `secret`."""
    for chunk in checked_chunks(reader, segment, start_offset):
        batches = chunk.batches
        base_offsets = batches["base_offset"] + segment.shift
        last_offsets = base_offsets + batches["last_offset_delta"]
        has_data = (batches["attributes"] & CONTROL == 0) & (batches["record_count"] > 0)
        rows = np.flatnonzero(has_data & ~verdicts.is_discardable(base_offsets))
        while len(rows):
            scanned = scan_records(chunk.selection(), rows, ("key",), start_offset)
            scanned_rows, rows = rows[: len(scanned.sections)], rows[len(scanned.sections) :]
            # the last offset before each scanned batch and before the next scan, or -1 at the start of the chunk
            batch_rows = np.append(scanned_rows, rows[0] if len(rows) else len(batches))
            complete_offsets = np.where(batch_rows > 0, last_offsets[batch_rows - 1], -1)
            record_ends = np.cumsum(scanned.sections["emitted"])
            yield KeyedRecords(
                scanned.hashes(secret), scanned.has_key, scanned.offsets, record_ends, complete_offsets
            )


def build_map(
    reader: SegmentReader,
    segments: Iterable[SegmentInfo],
    start_offset: int,
    end_offset: int,
    verdicts: Verdicts,
    offset_map: OffsetMap,
    secret: bytes,
) -> None:
    """Put the keys of the dirty range [start_offset, end_offset) into `offset_map` until it is full."""
    for segment in segments:
        for records in keyed_records(reader, segment, start_offset, verdicts, secret):
            count = offset_map.put(records.hashes, records.has_key, records.offsets)
            # the batch of the first record that the map has no room for, or the number of batches if it has all
            batch = int(np.searchsorted(records.record_ends, count, side="right"))
            offset_map.latest_offset = max(offset_map.latest_offset, int(records.complete_offsets[batch]))
            if count < len(records.offsets):
                return
        offset_map.latest_offset = segment.next_offset - 1
    offset_map.latest_offset = end_offset - 1


# Spark tasks exchange blobs of many records, since a Spark row per record would cost too much. The hash and the
# offset of a record, 24 bytes, go to the task of its bucket (a range of hashes), which finds the last record of each
# key. That task returns the offsets of superseded records, 8 bytes each.

#: A task sends its data when it has this many bytes, which bounds its memory.
BLOBS_BYTES = 8 << 20
#: Hashes do not fill buckets evenly. A bucket has room for the mean number of keys, plus this many standard
#: deviations, plus this many keys.
_DEVIATIONS, _SPARE_KEYS = 8, 8


@dataclass(frozen=True, slots=True)
class Blobs:
    """Parts of `words`, none empty. Part i is for the bucket or group `targets[i]`, and ends before `ends[i]`."""

    targets: npt.NDArray[np.intp]
    ends: Longs
    words: Longs


def map_slots(records: int) -> int:
    """The number of slots of an offset map with room for `records` keys."""
    return int(records / LOAD_FACTOR) + 2  # one for this rounding, and one for the rounding in OffsetMap


def plan_buckets(records: int, memory_bytes: int, min_buckets: int) -> tuple[int, int]:
    """The number of buckets for `records` keys, and the slots of each bucket's offset map."""
    buckets = max(min_buckets, ceil(records * SLOT_BYTES / LOAD_FACTOR / max(memory_bytes, 1)))
    # a bucket with its spare room may exceed the memory: try one sixteenth more buckets
    while buckets < records and _bucket_slots(records, buckets) * SLOT_BYTES > memory_bytes:
        buckets += buckets // 16 + 1
    buckets = max(min(buckets, records), 1)
    return buckets, _bucket_slots(records, buckets)


def _bucket_slots(records: int, buckets: int) -> int:
    mean = records / buckets
    max_records = mean if buckets == 1 else mean + _DEVIATIONS * sqrt(mean) + _SPARE_KEYS
    return map_slots(ceil(max_records))


def keys_by_bucket(parts: Sequence[KeyedRecords], start_offset: int, buckets: int) -> Blobs:
    """Return rows of keys by bucket, for `OffsetMap.put_rows`.

    Rows below `start_offset`, only for `OffsetMap.superseded_offsets`, are apart, with the target bucket + `buckets`.
    """
    counts = np.zeros(2 * buckets, np.int64)
    for part in parts:
        kernels.count_keys(part.hashes, part.has_key, part.offsets, start_offset, counts)
    ends = np.cumsum(counts)
    positions, rows = ends - counts, np.empty((int(ends[-1]), kernels.ROW_WORDS), np.int64)
    for part in parts:
        kernels.scatter_keys(part.hashes, part.has_key, part.offsets, start_offset, positions, rows)
    targets = np.flatnonzero(counts)
    return Blobs(targets, ends[targets] * kernels.ROW_WORDS, rows.ravel())


def key_rows(blob: bytes | memoryview) -> Longs:
    return np.frombuffer(blob, np.int64).reshape(-1, kernels.ROW_WORDS)


def offsets_by_group(offsets: Longs, base_offsets: Longs) -> Blobs:
    """The offsets, one part per group. Groups begin at `base_offsets`; no offset is below the first one."""
    offsets = np.sort(offsets)
    ends = np.append(np.searchsorted(offsets, base_offsets[1:]), len(offsets))
    targets = np.flatnonzero(np.diff(ends, prepend=0))
    return Blobs(targets, ends[targets], offsets)


def blob_offsets(blob: bytes | memoryview) -> Longs:
    return np.frombuffer(blob, np.int64)


def exchanged_bytes(part: KeyedRecords) -> int:
    return len(part.offsets) * kernels.ROW_BYTES


_COLUMNS = ("offset", "timestamp", "key", "value")

_BATCH_BYTES = 1 << 17  # of records of formats 0 and 1 that are joined to one batch

Rows = npt.NDArray[Any]


def in_format_2(data: Any, batches: Rows, *, file: str = "", file_position: int = 0) -> tuple[memoryview, Rows]:
    """Convert `batches`, which fill `data`, to format 2, at the same offsets. Returns the bytes and BATCH rows."""
    view, parts = byte_array(data).data, list[tuple[memoryview, Rows]]()
    is_old = batches["magic"] < 2
    # a run begins where `is_old` changes, and in the first row, since the inverse of its value is put before it
    starts = np.flatnonzero(np.diff(is_old, prepend=~is_old[:1]))
    for start, end in pairwise([*starts.tolist(), len(batches)]):
        run = batches[start:end]
        if is_old[start]:
            parts += _upgrade(data, run, file, file_position)
        else:
            low, high = int(run["position"][0]), int(run["position"][-1] + run["size"][-1])
            parts.append((view[low:high], run))
    rows = np.concatenate([batches for _, batches in parts])
    rows["position"] = np.cumsum(rows["size"]) - rows["size"]
    return memoryview(b"".join(data for data, _ in parts)), rows


def _upgrade(data: Any, batches: Rows, file: str, file_position: int) -> list[tuple[memoryview, Rows]]:
    records = decode(data, batches, columns=_COLUMNS, file=file, file_position=file_position)
    offsets = numbers_of(records.column(0))
    message_rows = np.repeat(np.arange(len(batches)), batches["record_count"])  # by record, the row in `batches`
    # records with adjacent offsets are joined to one batch, unless their message has a codec or an append time
    is_alone = (batches["attributes"] & (CODEC_MASK | APPEND_TIME) != 0)[message_rows]
    has_gap, begins_message = np.diff(offsets, prepend=-1) != 1, np.diff(message_rows, prepend=-1) != 0
    begins_run = np.diff(is_alone, prepend=~is_alone[:1])
    begins_batch = has_gap | begins_run | (is_alone & begins_message)
    edges = [*np.flatnonzero(begins_batch).tolist(), len(offsets)]
    return [
        _encode_like(batches[message_rows[first]], records.slice(first, end - first), int(offsets[first]))
        for first, end in pairwise(edges)
    ]


def _encode_like(message: Any, records: pa.RecordBatch, base_offset: int) -> tuple[memoryview, Rows]:
    codec, has_append_time = int(message["attributes"]) & CODEC_MASK, bool(message["attributes"] & APPEND_TIME)
    append_ms = int(message["max_timestamp"])
    encoded = encode(
        records,
        base_offset,
        codec=codec,
        batch_bytes=MAX_INT if codec else _BATCH_BYTES,  # a compressed message stays one batch of any size
        max_batch_bytes=MAX_INT,
        append_time=(lambda: append_ms) if has_append_time else None,
    )
    return encoded.data, encoded.batches
