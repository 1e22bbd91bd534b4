"""The state of a segment after its batches so far, which its next append, its readers and its seal (its end) need.

`fold` adds batches to the state, and computes their index entries. Writers fold as they append, so a seal need not
read the log. A recovery, a rebuild and a check fold the log, and get the same state and indexes.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import MAX_INT, MAX_LONG, Longs, byte_array, integers, numbers_of, texts
from distlog.core.commits.segment_table import NO_OFFSET, UNDETERMINED_OFFSET, UNKNOWN, SegmentInfo
from distlog.core.errors import CorruptRecordError
from distlog.core.format.compression import CODEC_NAMES
from distlog.core.format.indexes import OFFSET_ENTRY, TIME_ENTRY, AbortedTransaction, IndexBytes, encode_transactions
from distlog.core.format.indexes import TRANSACTION_ENTRY as TXN_ENTRY
from distlog.core.format.kernels.batch_scan import crcs_of_slices
from distlog.core.format.kernels.segments import (
    BAD_OFFSET,
    BAD_POSITION,
    LAST_ENTRY_TIMESTAMP,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_DELTA,
    NEXT_OFFSET,
    NOT_NEXT,
    NOT_WHOLE,
    OFFSET_ENTRY_SIZE,
    OK,
    POSITION,
    PRODUCERS,
    STATE_SIZE,
    TIME_ENTRY_SIZE,
    TRANSACTIONS,
    count_until_full,
    fold_batches,
    fold_segments,
)
from distlog.core.format.key_index import LEAST_LOG_BYTES, KeyIndexBuilder
from distlog.core.segments.segment_parts import INDEX_FIELDS, index_fields_of
from distlog.core.times import NO_TIMESTAMP

_MAX_CRC = 2**32 - 1


def _between(low: int, high: int, default: int = 0) -> int:
    # a `Field`, but typed as int, since mypy accepts only an int as the default of an int field
    spec: int = dataclasses.field(default=default, metadata={"bounds": (low, high)})
    return spec


_size = partial(_between, 0, MAX_INT)
_long = partial(_between, 0, MAX_LONG)
_time = partial(_between, NO_TIMESTAMP, MAX_LONG, NO_TIMESTAMP)
_offset_or_none = partial(_between, NO_OFFSET, MAX_LONG, NO_OFFSET)
_crc = partial(_between, 0, _MAX_CRC)
_crc_or_unknown = partial(_between, UNKNOWN, _MAX_CRC, UNKNOWN)


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The state of a segment (times in ms; -1 for none).

    Kernels use the fields after `stem` as an array, so their order must match the positions in `kernels.segments`.
    """

    stem: str
    since_entry: int = _size()  # the log bytes since the last offset entry
    max_timestamp: int = _time()
    # An offset, not a time: the last offset of the batch with the largest timestamp, minus `base_offset`.
    max_timestamp_delta: int = _size()
    last_time_entry: int = _time()  # the largest timestamp in the time index
    batches: int = _size()  # their number
    base_offset: int = _long()
    next_offset: int = _long()
    position: int = _size()  # the size of the log, where the next batch begins
    record_count: int = _long()
    first_timestamp: int = _time()
    min_timestamp: int = _time()
    # The offset of the first record with the largest timestamp; -1 if there is none, or headers do not show it.
    offset_of_max_timestamp: int = _offset_or_none()
    roll_timestamp: int = _time()  # the start of the segment's time span (Kafka's rollingBasedTimestamp)
    first_batch_crc: int = _crc_or_unknown()
    last_batch_crc: int = _crc_or_unknown()
    codecs: int = _between(0, 255)  # a bit for each codec of the batches that have records
    leader_epoch: int = _between(-1, MAX_INT, -1)
    producer_bits: int = _between(0, 3)  # the flags TRANSACTIONS and PRODUCERS
    # The CRC-32C of the log, and of the entries of each index.
    crc32c: int = _crc()
    offset_index_bytes: int = _size()
    offset_index_crc32c: int = _crc()
    time_index_bytes: int = _size()
    time_index_crc32c: int = _crc()
    txn_index_bytes: int = _size()
    txn_index_crc32c: int = _crc()
    created_ms: int = _long()
    # The first offset of the earliest open transaction; NO_OFFSET if there is none, UNDETERMINED_OFFSET if unknown.
    first_unstable_offset: int = _between(UNDETERMINED_OFFSET, MAX_LONG, NO_OFFSET)
    # The end of the durable part of the log, and the time of the last sync.
    flushed_offset: int = _long()
    flushed_position: int = _size()
    flushed_ms: int = _long()

    @classmethod
    def new(
        cls, stem: str, base_offset: int, created_ms: int, first_unstable_offset: int = NO_OFFSET
    ) -> SegmentState:
        """Return the state of a new segment; `first_unstable_offset` is the partition's at the segment's start."""
        return cls(
            paths.check_stem(stem),
            base_offset=base_offset,
            next_offset=base_offset,
            created_ms=created_ms,
            first_unstable_offset=first_unstable_offset,
            flushed_offset=base_offset,
            flushed_ms=created_ms,
        )

    @classmethod
    def of_numbers(cls, stem: str, numbers: Numbers) -> SegmentState:
        return cls(stem, *numbers.tolist())

    def numbers(self) -> Numbers:
        return np.array([getattr(self, name) for name in NAMES], np.int64)

    def pack(self) -> bytes:
        """Return the state as STATE_BYTES bytes; `unpack` accepts them on a machine with the same byte order."""
        return pack_state(self.stem, self.numbers())

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> SegmentState:
        """Return the state that `pack` packed; ValueError for bytes that cannot be a state."""
        stem, *values = _PACKED.unpack(data)
        state = cls(paths.check_stem(stem.rstrip(b"\0").decode("ascii", "replace")), *values)
        state.check()
        return state

    def flushed(self, sync_started_ms: int) -> SegmentState:
        """Return the state after a sync of all files, which began at `sync_started_ms`."""
        return dataclasses.replace(
            self, flushed_offset=self.next_offset, flushed_position=self.position, flushed_ms=sync_started_ms
        )

    def check(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} of a segment's state must be between {low} and {high}")
        entries = {"offset_index_bytes": OFFSET_ENTRY, "time_index_bytes": TIME_ENTRY, "txn_index_bytes": TXN_ENTRY}
        if any(getattr(self, name) % entry.itemsize for name, entry in entries.items()):
            raise ValueError("an index in a segment's state ends inside an entry")
        if not self.base_offset <= self.flushed_offset <= self.next_offset <= self.base_offset + MAX_INT + 1:
            raise ValueError("the offsets of a segment's state are out of order")
        if self.flushed_position > self.position or (self.position == 0) != (self.batches == 0):
            raise ValueError("the positions of a segment's state contradict each other")
        if self.offset_of_max_timestamp >= self.next_offset or self.first_unstable_offset >= self.next_offset:
            raise ValueError("an offset in a segment's state lies after its end")

    @property
    def has_transactions(self) -> bool:
        return bool(self.producer_bits & TRANSACTIONS)

    @property
    def codec_names(self) -> set[str]:
        """The codecs of the batches that have records; UNKNOWN_CODEC for any codec that Kafka does not have."""
        names = {name for codec, name in enumerate(CODEC_NAMES) if (self.codecs >> codec) & 1}
        return (names | {UNKNOWN_CODEC}) if self.codecs >> len(CODEC_NAMES) else names

    def segment_info(self, partition: int) -> SegmentInfo:
        return SegmentInfo(
            partition=partition,
            stem=self.stem,
            stored_base_offset=self.base_offset,
            log_bytes=self.position,
            compression=",".join(sorted(self.codec_names - {UNKNOWN_CODEC})) or CODEC_NAMES[0],
            has_transactions=self.has_transactions,
            has_producers=bool(self.producer_bits & PRODUCERS),
            **{name: getattr(self, name) for name in _INFO_FIELDS},
        )

    def tail_info(self, partition: int, now_ms: int) -> SegmentInfo:
        """Return the active segment up to this state, with `created_ms` as if sealed now. Its files may be longer."""
        return dataclasses.replace(
            self.segment_info(partition), is_active=True, created_ms=self.latest_write_ms(now_ms)
        )

    def latest_write_ms(self, now_ms: int) -> int:
        """Return a time by which all batches were appended: the start of their sync, or `now_ms` without a sync."""
        return self.flushed_ms if self.flushed_offset == self.next_offset else now_ms


#: A SegmentState as an array: its fields after `stem`, in their order.
Numbers = Longs

_STEM_BYTES = 56  # the longest stem; zero bytes follow a shorter stem

UNKNOWN_CODEC = "?"  # any codec that Kafka does not have

NAMES = tuple(spec.name for spec in dataclasses.fields(SegmentState))[1:]
_INFO_FIELDS = tuple(spec.name for spec in dataclasses.fields(SegmentInfo) if spec.name in NAMES)
_BOUNDS = {spec.name: spec.metadata["bounds"] for spec in dataclasses.fields(SegmentState)[1:]}
_PACKED = struct.Struct(f"={_STEM_BYTES}s{len(NAMES)}q")

STATE_BYTES = _PACKED.size
_FIELD = struct.Struct("=q")  # a number of a packed state
_POSITION_AT, _FLUSHED_AT = (_STEM_BYTES + _FIELD.size * NAMES.index(name) for name in ("position", "flushed_offset"))


def pack_state(stem: str, numbers: Numbers) -> bytes:
    return _packed_stem(stem) + numbers.tobytes()


def packed_position(packed: bytes) -> int:
    """Return the size of the log in a packed state; 0 for zero bytes, which stand for no state."""
    return int(_FIELD.unpack_from(packed, _POSITION_AT)[0])


def packed_flushed(packed: bytes, stem: str) -> int:
    """Return the offset up to which a packed state is durable, or -1 if the state is not of the segment `stem`."""
    if not packed.startswith(_packed_stem(stem)):
        return -1
    return int(_FIELD.unpack_from(packed, _FLUSHED_AT)[0])


def _packed_stem(stem: str) -> bytes:
    return stem.encode("ascii").ljust(_STEM_BYTES, b"\0")


def field_numbers(names: Iterable[str]) -> tuple[int, ...]:
    return tuple(NAMES.index(name) for name in names)


def emptied(stem: str, numbers: Numbers) -> Numbers:
    """Return the numbers that the segment `stem` had before its first batch."""
    return SegmentState.new(stem, *numbers[list(_INITIAL_FIELDS)].tolist()).numbers()


_INITIAL_FIELDS = field_numbers(("base_offset", "created_ms", "first_unstable_offset"))

Batches = npt.NDArray[Any]

#: Stands for values that the caller does not have. A fold takes the values from headers, or -1 if headers lack them.
FROM_HEADERS: Longs = np.empty(0, np.int64)

OFFSET_INDEX, TIME_INDEX, TXN_INDEX = field_numbers(("offset_index_bytes", "time_index_bytes", "txn_index_bytes"))

#: The bytes that batches add to the offset, time and transaction index.
IndexEntries = tuple[bytes, bytes, bytes]


class Folded(NamedTuple):
    """The numbers after some batches, and their index entries."""

    numbers: Numbers
    entries: IndexEntries


_NO_ENTRIES = (b"", b"", b"")
_NOT_WHOLE = "the batches do not fill their bytes without gaps"
_FAULTS = {  # the texts after "offsets a to b"
    NOT_NEXT: "are not above the last offset in the segment",
    BAD_OFFSET: f"are more than {MAX_INT} above the segment's base offset: roll the segment",
    BAD_POSITION: f"would make a log file of more than {MAX_INT} bytes: roll the segment",
}


class UnfitBatchError(ValueError):
    """A batch cannot come next in its segment; `row` is its number among the batches to fold."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


def fold(
    numbers: Numbers,
    data: Any,
    batches: Batches,
    interval_bytes: int,  # the setting index.interval.bytes
    offsets_of_max_timestamp: Longs = FROM_HEADERS,
    min_timestamps: Longs = FROM_HEADERS,
    aborted: Sequence[AbortedTransaction] = (),
) -> Folded:
    """Fold `batches` (BATCH rows with right checksums), which fill `data`, into a copy of `numbers`."""
    count = len(batches)
    if len(offsets_of_max_timestamp) not in (0, count) or len(min_timestamps) not in (0, count):
        raise ValueError("`offsets_of_max_timestamp` and `min_timestamps` need a value for each batch")
    after = numbers.copy()
    offset_entries = np.empty(OFFSET_ENTRY_SIZE * count, np.uint8)
    time_entries = np.empty(TIME_ENTRY_SIZE * count, np.uint8)
    per_batch = (batches, offsets_of_max_timestamp, min_timestamps)
    status, offset_count, time_count = fold_batches(
        after, byte_array(data), *per_batch, interval_bytes, offset_entries, time_entries
    )
    if status != OK:
        raise _unfit_error(status, batches, row=offset_count)  # a bad row takes the place of the count
    if not (offset_count or time_count or aborted):
        return Folded(after, _NO_ENTRIES)
    entries = (
        offset_entries[: OFFSET_ENTRY_SIZE * offset_count].tobytes(),
        time_entries[: TIME_ENTRY_SIZE * time_count].tobytes(),
        encode_transactions(aborted) if aborted else b"",
    )
    return _with_entries(after, entries)


@dataclass(frozen=True, slots=True)
class FoldedSegments:
    """Many sealed segments: the fields of SegmentInfo by name, and the index files of each suffix back to back."""

    fields: Mapping[str, Longs]
    compression: pa.Array
    indexes: Mapping[str, bytes]


def fold_all(
    data: Any, batches: Batches, counts: Longs, min_timestamps: Longs, interval_bytes: int, *, key_index: bool = False
) -> FoldedSegments:
    """Fold the batches of many segments with offsets from 0 on; segment i has the next counts[i] batches."""
    segment_count, empty, scratch = len(counts), _EMPTY.copy(), _EMPTY.copy()
    numbers = np.empty((segment_count, len(empty)), np.int64)
    offset_entries = np.empty(OFFSET_ENTRY_SIZE * len(batches), np.uint8)
    time_entries = np.empty(TIME_ENTRY_SIZE * (len(batches) + segment_count), np.uint8)  # a seal may add an entry
    entry_counts = np.empty((segment_count, 2), np.int64)
    outputs = (numbers, offset_entries, time_entries, entry_counts)  # the kernel fills them
    # -1, or the first row that cannot be folded
    row = fold_segments(empty, scratch, byte_array(data), batches, counts, min_timestamps, interval_bytes, *outputs)
    fields = dict(zip(NAMES, numbers.T.copy(), strict=True))
    has_unknown_codec = bool((fields["codecs"] >> len(CODEC_NAMES)).any())
    if row < 0 and has_unknown_codec:
        row = 0  # stands for an unknown row, since the only caller (`merge_job`) ignores the row
    if row >= 0:
        raise UnfitBatchError("the batches of a segment do not follow each other, or have an unknown codec", row)
    offset_sizes, time_sizes = (entry_counts * (OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE)).T.copy()
    key_files: list[IndexBytes] = [b""] * segment_count
    key_counts = [0] * segment_count
    if key_index:
        key_files, key_counts = _key_indexes(data, batches, counts)
    fields["key_count"] = np.array(key_counts)
    key_sizes = np.array([len(file) for file in key_files])
    indexes = {
        ".index": offset_entries[: offset_sizes.sum()].tobytes(),
        ".timeindex": time_entries[: time_sizes.sum()].tobytes(),
        ".keyindex": b"".join(key_files),
    }
    # the size and the checksum of each segment's index files
    for (suffix, files), file_sizes in zip(indexes.items(), (offset_sizes, time_sizes, key_sizes), strict=True):
        ends, crcs = np.cumsum(file_sizes), np.empty(segment_count, np.int64)
        crcs_of_slices(byte_array(files), ends - file_sizes, ends, crcs)
        fields |= {INDEX_FIELDS[suffix].size: file_sizes, INDEX_FIELDS[suffix].checksum: crcs}
    fields["key_index_crc32c"][key_sizes == 0] = UNKNOWN
    bits = fields["producer_bits"]  # for the flags, 0 is false and any other number is true
    fields |= {"has_transactions": bits & TRANSACTIONS, "has_producers": bits & PRODUCERS}
    fields |= {"log_bytes": fields["position"], "txn_index_crc32c": np.zeros(segment_count, np.int64)}
    # the codecs of each segment as text; each set of codecs is written once
    codec_sets, set_of_segment = np.unique(fields["codecs"], return_inverse=True)
    names = [
        ",".join(sorted(name for bit, name in enumerate(CODEC_NAMES) if (codecs >> bit) & 1))
        for codecs in codec_sets.tolist()
    ]
    compression = texts([name or CODEC_NAMES[0] for name in names]).take(integers(set_of_segment))
    return FoldedSegments(fields, compression, indexes)


def _key_indexes(data: Any, batches: Batches, counts: Longs) -> tuple[list[IndexBytes], list[int]]:
    """Return the key index of each segment, or no bytes for a short log, and its number of entries."""
    files, entry_counts, end = list[IndexBytes](), list[int](), 0
    for count in counts.tolist():
        start, end = end, end + count
        rows, keys = batches[start:end], KeyIndexBuilder()
        result: tuple[IndexBytes, int] = b"", 0
        if rows["size"].sum() > LEAST_LOG_BYTES:
            keys.add(data, rows, -int(rows["position"][0]))  # positions count from the start of the segment's log
            result = keys.finish()
        files.append(result[0])
        entry_counts.append(result[1])
    return files, entry_counts


def fold_seal(numbers: Numbers) -> Folded:
    """Add a time entry with the largest timestamp, as a seal does, unless the last time entry has it already."""
    if numbers[MAX_TIMESTAMP] <= numbers[LAST_ENTRY_TIMESTAMP]:
        return Folded(numbers, _NO_ENTRIES)
    after = numbers.copy()
    after[LAST_ENTRY_TIMESTAMP] = after[MAX_TIMESTAMP]
    entry = np.array([(after[MAX_TIMESTAMP], after[MAX_TIMESTAMP_DELTA])], TIME_ENTRY).tobytes()
    return _with_entries(after, (b"", entry, b""))


def room(numbers: Numbers, batches: Batches, interval_bytes: int, index_bytes: int) -> int:
    """Return how many of the next `batches` fit in indexes of `index_bytes`; a segment's first batch always fits."""
    # one slot of the time index is reserved for the entry of the seal
    max_entries = np.array([index_bytes // OFFSET_ENTRY_SIZE, index_bytes // TIME_ENTRY_SIZE - 1])
    free_slots = max_entries - numbers[[OFFSET_INDEX, TIME_INDEX]] // (OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE)
    if free_slots.min() >= len(batches):
        return len(batches)
    return count_until_full(
        np.ascontiguousarray(batches["size"], np.int64),
        np.ascontiguousarray(batches["max_timestamp"], np.int64),
        interval_bytes,
        numbers[:STATE_SIZE].copy(),
        free_slots,
    )


def _with_entries(numbers: Numbers, entries: IndexEntries) -> Folded:
    for field, data in zip((OFFSET_INDEX, TIME_INDEX, TXN_INDEX), entries, strict=True):
        if data:
            numbers[field + 1] = crc32c(data, int(numbers[field + 1]))  # the checksum is the field after the size
            numbers[field] += len(data)
    return Folded(numbers, entries)


def _unfit_error(status: int, batches: Batches, row: int) -> UnfitBatchError:
    if status == NOT_WHOLE:
        return UnfitBatchError(_NOT_WHOLE, row)
    first = int(batches["base_offset"][row])
    last = first + int(batches["last_offset_delta"][row])
    return UnfitBatchError(f"offsets {first} to {last} {_FAULTS[status]}", row)


# As in Kafka's `LogSegment.shouldRoll`, a segment ends before a batch whose largest timestamp is more than
# `segment.ms` after the start of the segment's time span. The start is the base timestamp of the first batch, if no
# record is older and the batch fits in the span. Otherwise, the start is the largest timestamp of the first batch.
class RollTime:
    """Counts the batches whose records are in the time span of the open segment, which lasts `span_ms`."""

    def __init__(self, span_ms: int) -> None:
        self.span_ms = span_ms
        self._span_start_ms = NO_TIMESTAMP
        self._opened_ms = 0

    def open(self, batch: npt.NDArray[Any], min_timestamp: int, now_ms: int) -> None:
        first, largest = int(batch["base_timestamp"]), int(batch["max_timestamp"])
        begins_at_base = first >= 0 and first == min_timestamp and largest - first <= self.span_ms
        self._span_start_ms = first if begins_at_base else largest
        self._opened_ms = now_ms

    def room(self, batches: npt.NDArray[Any], now_ms: int) -> int:
        """Return how many of the next `batches` are in the span. It starts at `open` if that had no timestamp."""
        if self._span_start_ms < 0:
            return 0 if now_ms - self._opened_ms > self.span_ms else len(batches)
        is_late = batches["max_timestamp"] - self._span_start_ms > self.span_ms
        return int(np.argmax(is_late)) if is_late.any() else len(batches)


@dataclass(slots=True)
class RecordStats:
    """The number of decoded records, their timestamps, and the offset of the first newest record."""

    count: int = 0
    first: int = NO_TIMESTAMP
    oldest: int = MAX_LONG
    newest: int = NO_TIMESTAMP
    offset_of_newest: int = -1

    def add(self, records: pa.RecordBatch) -> None:
        """Count the next records; their first columns are offset and timestamp."""
        if not records.num_rows:
            return
        timestamps = numbers_of(records.column(1).cast(pa.int64()))
        if self.count == 0:
            self.first = int(timestamps[0])
        self.count += records.num_rows
        self.oldest = min(self.oldest, int(timestamps.min()))
        row = int(timestamps.argmax())
        if timestamps[row] > self.newest:
            self.newest = int(timestamps[row])
            self.offset_of_newest = records.column(0)[row].as_py()

    def fields(self) -> dict[str, Any]:
        return {
            "record_count": self.count,
            "first_timestamp": self.first,
            "min_timestamp": self.oldest if self.count else UNKNOWN,  # the default in a SegmentInfo
            "max_timestamp": self.newest,
            "offset_of_max_timestamp": self.offset_of_newest,
        }


class LogDescription:
    """Builds the state and the index files of a log: `add` folds its batches, from `base_offset` on."""

    def __init__(
        self,
        base_offset: int = 0,
        *,
        interval_bytes: int = MAX_INT,
        index_bytes: int = MAX_INT,
        key_index: bool = False,
    ) -> None:
        self._interval_bytes, self._index_bytes = interval_bytes, index_bytes
        self._keys = KeyIndexBuilder() if key_index else None
        self.key_count = 0
        self._numbers = _EMPTY.copy()
        self._numbers[list(_BASE_AND_NEXT_OFFSET)] = base_offset
        self._offset_index, self._time_index = bytearray(), bytearray()

    @property
    def state(self) -> SegmentState:
        return SegmentState.of_numbers("", self._numbers)

    @property
    def size(self) -> int:
        return int(self._numbers[POSITION])

    @property
    def next_offset(self) -> int:
        return int(self._numbers[NEXT_OFFSET])

    def room(self, batches: Batches) -> int:
        return room(self._numbers, batches, self._interval_bytes, self._index_bytes)

    def add(
        self,
        data: Any,
        batches: Batches,
        offsets_of_max_timestamp: Longs = FROM_HEADERS,
        min_timestamps: Longs = FROM_HEADERS,
    ) -> None:
        """Add the next batches (BATCH rows), which fill `data`; raises the errors of `fold`."""
        position = self.size
        folded = fold(self._numbers, data, batches, self._interval_bytes, offsets_of_max_timestamp, min_timestamps)
        self._add_folded(folded)
        if self._keys is not None:
            self._keys.add(data, batches, position)

    def finish(self) -> dict[str, IndexBytes]:
        """End the log; returns its index files by suffix. An index without entries has no bytes."""
        self._add_folded(fold_seal(self._numbers))
        files: dict[str, IndexBytes] = {".index": bytes(self._offset_index), ".timeindex": bytes(self._time_index)}
        if self._keys is not None and self.size > LEAST_LOG_BYTES:
            files[".keyindex"], self.key_count = self._keys.finish()
        return files

    def describe(self, partition: int, stem: str, created_ms: int) -> tuple[SegmentInfo, dict[str, IndexBytes]]:
        """End the log; returns the segment and its index files. Raises CorruptRecordError for an unknown codec."""
        files, numbers = self.finish(), self._numbers.copy()
        numbers[_CREATED_MS] = created_ms
        state = SegmentState.of_numbers(stem, numbers)
        if UNKNOWN_CODEC in state.codec_names:
            text = "a record batch has an unknown codec: verify, then restore it from a copy"
            raise CorruptRecordError(text, partition=partition, stem=stem)
        info = state.segment_info(partition)
        if ".keyindex" in files:
            fields = index_fields_of({".keyindex": files[".keyindex"]})
            info = dataclasses.replace(info, key_count=self.key_count, **fields)
        return info, files

    def _add_folded(self, folded: Folded) -> None:
        # no transaction entries, since `add` and `fold_seal` pass no aborted transactions
        self._numbers = folded.numbers
        self._offset_index += folded.entries[0]
        self._time_index += folded.entries[1]


_EMPTY = SegmentState("", first_unstable_offset=UNDETERMINED_OFFSET).numbers()
_BASE_AND_NEXT_OFFSET = field_numbers(("base_offset", "next_offset"))
(_CREATED_MS,) = field_numbers(("created_ms",))
