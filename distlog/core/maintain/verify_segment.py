"""Checks one segment: each byte of its log, each entry of its indexes, and its metadata.

The offsets in a segment's files are stored offsets. Readers add the segment's `shift` to them.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import MAX_LONG, Flags, Longs, byte_array, numbers_of
from distlog.core.commits.segment_table import UNKNOWN, SegmentInfo
from distlog.core.errors import CorruptIndexError, CorruptRecordError, DistlogError
from distlog.core.format import indexes
from distlog.core.format.key_index import KeyIndexBuilder
from distlog.core.format.record_batch import CONTROL, BatchWalk, Source, check_crcs
from distlog.core.format.record_decoder import BatchSelection, OffsetsOutOfOrderError, decode_parts
from distlog.core.format.record_encoder import set_append_times
from distlog.core.segments.chunks import OUTPUT_BYTES
from distlog.core.segments.segment_parts import LogFile, checksum_error, index_size, remedy
from distlog.core.segments.segment_reader import CHUNK_BYTES, SegmentReader
from distlog.core.segments.segment_state import LogDescription, RecordStats, SegmentState, UnfitBatchError
from distlog.core.storage.backend import Part
from distlog.core.times import NO_TIMESTAMP


def verify_segment(reader: SegmentReader, segment: SegmentInfo) -> SegmentVerdict:
    """Check one segment. Memory is a few chunks of its log, and its indexes. Raises only StorageError."""
    return _Verifier(reader, segment).verdict()


AnomalyWord = Literal[
    # a file in the metadata does not exist
    "missing_segment",
    "missing_index",
    "missing_commit",
    # an active log lacks acknowledged records, or has a bad batch before sound ones: it refuses appends
    "lost_records",
    # a warning: a group has read past the log's end
    "end_below_group",
    # batches or segments lack offsets that they should have, or have some offsets twice
    "offset_gap",
    "offset_overlap",
    # the offset deltas of a batch's records do not increase, or exceed the batch's last one
    "non_monotonical_delta",
    # a batch has another largest timestamp in its header than in its records
    "timestamp_mismatch",
    # the bytes are not those that were written: a bad batch header, checksum or record, or impossible entries
    "corrupt_batch",
    "corrupt_record",
    "corrupt_index",
    "corrupt_commit",
    # contradictions: between an index and its log, metadata and files, a checkpoint and the commits
    "index_mismatch",
    "time_index_mismatch",
    "metadata_mismatch",
    "checkpoint_mismatch",
]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong, and its location. `position` is a byte of `file`; `offset` is as readers get it."""

    word: AnomalyWord
    message: str
    file: str | None = None
    partition: int | None = None
    position: int | None = None
    offset: int | None = None

    @classmethod
    def of(cls, word: AnomalyWord, error: DistlogError, shift: int = 0) -> Anomaly:
        """The anomaly that `error` describes; `shift` is added to its offset."""
        names = ("file", "partition", "position", "offset")
        file, partition, position, offset = (error.details.get(name) for name in names)
        return cls(word, error.message, file, partition, position, None if offset is None else offset + shift)

    def to_dict(self) -> dict[str, str | int | None]:
        """Every field by its name."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        fields = ((name, getattr(self, name)) for name in ("file", "partition", "position", "offset"))
        location = " ".join(f"{name}={value}" for name, value in fields if value is not None)
        return f"{self.word}: {self.message}" + (f" ({location})" if location else "")


class LogStats:
    """Statistics of a segment's batches and records. Offsets are as readers get them.

    Batches without records for readers are hidden: they have control records, or compaction emptied them. The
    statistics in the metadata may include or omit hidden batches.
    """

    def __init__(self, segment: SegmentInfo) -> None:
        self._segment = segment
        # statistics from the headers of all batches, and from the records that readers get
        self._by_headers, self.by_records = LogDescription(segment.stored_base_offset), RecordStats()
        self._unfit: UnfitBatchError | None = None
        self.batches = 0
        self._newest_hidden, self._offset_of_newest_hidden = NO_TIMESTAMP, -1

    @property
    def end_offset(self) -> int:
        return self._by_headers.next_offset + self._segment.shift

    @property
    def is_sparse(self) -> bool:
        """True if the batches leave out offsets before the last one."""
        return self._by_headers.state.record_count < self.end_offset - self._segment.base_offset

    def add_batches(self, data: memoryview, batches: npt.NDArray[Any]) -> None:
        """Count the next batches, at least one; `data` holds only these."""
        self.batches += len(batches)
        if self._unfit is None:
            try:
                self._by_headers.add(data, batches)
            except UnfitBatchError as error:
                self._unfit = error
        hidden = batches[(batches["attributes"] & CONTROL != 0) | (batches["record_count"] == 0)]
        row = int(hidden["max_timestamp"].argmax()) if len(hidden) else None
        if row is not None and hidden["max_timestamp"][row] > self._newest_hidden:
            self._newest_hidden = int(hidden["max_timestamp"][row])
            last_offset = int(hidden["base_offset"][row] + hidden["last_offset_delta"][row])
            self._offset_of_newest_hidden = last_offset + self._segment.shift

    def contradictions(self) -> Iterator[str]:
        """Messages about the fields of the metadata that contradict the log."""
        if self._unfit is not None:
            yield f"the batches do not fit in one segment: {self._unfit}"
            return
        state = self._by_headers.state
        for name, right_values in self._right_values(state):
            value = getattr(self._segment, name)
            if value not in right_values:
                yield f"{name} is {value} in the metadata, {' or '.join(map(str, sorted(right_values)))} in the log"
        other_codecs = sorted(state.codec_names - set(self._segment.compression.split(",")))
        if other_codecs:
            yield f"compression is {self._segment.compression} in the metadata, {', '.join(other_codecs)} in the log"
        if state.has_transactions and not self._segment.has_transactions:
            yield "has_transactions is false in the metadata, but the log holds transactions"

    def _right_values(self, state: SegmentState) -> Iterator[tuple[str, set[int]]]:
        """Yield fields of the metadata, each with the values that the log allows."""
        segment = self._segment
        yield "crc32c", {state.crc32c}
        if segment.first_batch_crc != UNKNOWN:
            yield "first_batch_crc", {state.first_batch_crc}
        if segment.last_batch_crc != UNKNOWN:
            yield "last_batch_crc", {state.last_batch_crc}
        if self.by_records.oldest < segment.min_timestamp:  # the metadata has a lower bound, or -1
            yield "min_timestamp", {self.by_records.oldest}
        yield "record_count", {self.by_records.count, state.record_count}
        next_offset = segment.shift + state.next_offset
        if is_contiguous(segment) or next_offset > segment.next_offset:
            yield "next_offset", {next_offset}
        yield "first_timestamp", {state.first_timestamp, self.by_records.first}
        yield "max_timestamp", {state.max_timestamp, self.by_records.newest}
        # the offset of the record, or the last offset of the hidden batch, that has the metadata's `max_timestamp`
        offsets = {self.by_records.offset_of_newest} if segment.max_timestamp == self.by_records.newest else set()
        if segment.max_timestamp == self._newest_hidden:
            offsets |= {self._offset_of_newest_hidden, -1}  # imports store -1 for a hidden batch
        if segment.is_active:
            offsets.add(-1)  # for headers that do not show the offset, the metadata has -1 until the seal
        if offsets:
            yield "offset_of_max_timestamp", offsets


def is_contiguous(segment: SegmentInfo) -> bool:
    """Whether every offset of the segment must be in a batch, since no compaction has left gaps in it."""
    return segment.dense or (paths.is_own_stem(segment.stem) and not segment.compacted)


# An entry is right if it leads a reader to the right batch. In distlog's own files, each entry has the last offset of
# its batch. A broker's offset entry has the last offset of batches that were appended together, and the position of
# any of the batches. A time entry of an old broker has the offset of a record, so any offset in the batch is right.


class IndexCheck(ABC):
    """The check of one index of `segment` with the content `data`; `part` is its location, for errors."""

    ENTRY: ClassVar[np.dtype[np.void]]

    def __init__(self, part: Part, segment: SegmentInfo, data: bytes) -> None:
        self._part, self._segment = part, segment
        self._base_offset = segment.stored_base_offset
        self._max_relative_offset = segment.next_offset - segment.base_offset - 1
        self._is_own = paths.is_own_stem(segment.stem)
        if len(data) % self.ENTRY.itemsize:
            message = f"the length of the file is not a multiple of {self.ENTRY.itemsize}"
            raise _error(message, part, segment, len(data))
        self._entries = np.frombuffer(data, self.ENTRY)
        self._next_entry = 0
        self._mismatch: CorruptIndexError | None = None
        self._keys = self._check_entries()

    @abstractmethod
    def _check_entries(self) -> Longs:
        """Return the ascending offsets or positions that locate entries. Raises CorruptIndexError for a bad entry."""

    @abstractmethod
    def _are_right(self, batches: npt.NDArray[Any], position: int, entries: slice) -> Flags:
        """Flag the `entries` that are right; all point into `batches`, which begin at `position` of the log."""

    def _end_key(self, batches: npt.NDArray[Any], position: int) -> int:
        """Return the first key after `batches`. The keys are relative offsets, unless a subclass overrides this."""
        return int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1 - self._base_offset

    def add(self, batches: npt.NDArray[Any], position: int) -> None:
        """Compare with the next batches of the log, at least one, from byte `position` of the log file on."""
        end = int(np.searchsorted(self._keys, self._end_key(batches, position)))
        entries = slice(self._next_entry, end)
        wrong = np.flatnonzero(~self._are_right(batches, position, entries))
        if len(wrong) and self._mismatch is None:
            self._mismatch = self._wrong_entry("does not fit its log", self._next_entry + int(wrong[0]))
        self._next_entry = end

    def mismatch(self) -> CorruptIndexError | None:
        """Return the first entry that does not fit, or None. Call this after the last batch."""
        if self._mismatch is None and self._next_entry < len(self._keys):
            return self._wrong_entry("is past the end of its log", self._next_entry)
        return self._mismatch

    def _field(self, name: str) -> Longs:
        return self._entries[name].astype(np.int64)

    def _check(self, values: Longs, step: int, largest: int) -> None:
        """Raise CorruptIndexError unless `values`, one per entry, are 0 to `largest`, ascending by `step` or more."""
        bad = (values < 0) | (values > largest)
        bad[1:] |= np.diff(values) < step
        if bad.any():
            raise self._wrong_entry("is out of order or range", int(bad.argmax()))

    def _wrong_entry(self, complaint: str, slot: int) -> CorruptIndexError:
        message = f"entry {slot} of the index {complaint}"
        return _error(message, self._part, self._segment, slot * self.ENTRY.itemsize)


class OffsetIndexCheck(IndexCheck):
    """Checks an offset index: each entry names the last offset of a batch and the position where the batch starts."""

    ENTRY = indexes.OFFSET_ENTRY

    def _check_entries(self) -> Longs:
        self._offsets = self._field("relative_offset")
        self._check(self._offsets, step=1, largest=self._max_relative_offset)
        self._check(self._field("position"), step=1, largest=self._segment.log_bytes - 1)
        return self._field("position")

    def _end_key(self, batches: npt.NDArray[Any], position: int) -> int:
        return position + int(batches["position"][-1] + batches["size"][-1] - batches["position"][0])

    def _are_right(self, batches: npt.NDArray[Any], position: int, entries: slice) -> Flags:
        starts = batches["position"] + (position - batches["position"][0])  # positions in the log
        rows = np.searchsorted(starts, self._keys[entries], side="right") - 1
        firsts = batches["base_offset"][rows] - self._base_offset
        lasts = firsts + batches["last_offset_delta"][rows]
        offsets = self._offsets[entries]
        if self._is_own:
            right = lasts == offsets
        else:
            previous_offsets = np.concatenate([[-1], self._offsets])[entries]  # of the entries before
            right = (firsts > previous_offsets) & (lasts <= offsets)  # the batch is between two entries
        return np.asarray(right & (starts[rows] == self._keys[entries]))


class TimeIndexCheck(IndexCheck):
    """Checks a time index: each entry names a batch with a larger timestamp than all before it."""

    ENTRY = indexes.TIME_ENTRY

    def _check_entries(self) -> Longs:
        self._newest = NO_TIMESTAMP
        self._timestamps = self._field("timestamp")
        self._check(self._timestamps, step=1, largest=MAX_LONG)
        self._check(self._field("relative_offset"), step=0, largest=self._max_relative_offset)
        return self._field("relative_offset")

    def _are_right(self, batches: npt.NDArray[Any], position: int, entries: slice) -> Flags:
        firsts = batches["base_offset"] - self._base_offset
        lasts = firsts + batches["last_offset_delta"]
        # row i has the largest timestamp before batch i
        newest_before = np.maximum.accumulate(np.concatenate([[self._newest], batches["max_timestamp"]]))
        rows = np.minimum(np.searchsorted(lasts, self._keys[entries]), len(batches) - 1)
        timestamps, offsets = self._timestamps[entries], self._keys[entries]
        self._newest = int(newest_before[-1])
        has_offset = lasts[rows] == offsets if self._is_own else firsts[rows] <= offsets
        is_newest = (batches["max_timestamp"][rows] == timestamps) & (newest_before[rows] < timestamps)
        return np.asarray(has_offset & is_newest)

    def mismatch(self) -> CorruptIndexError | None:
        last_timestamp = int(self._timestamps[-1]) if len(self._timestamps) else NO_TIMESTAMP
        mismatch = super().mismatch()
        if mismatch is None and self._is_own and last_timestamp != self._newest:
            message = "the index does not end with the largest timestamp"
            return _error(message, self._part, self._segment, self._entries.nbytes)
        return mismatch


class TransactionIndexCheck(IndexCheck):
    """Checks a transaction index: each entry names the control batch that ended its transaction."""

    ENTRY = indexes.TRANSACTION_ENTRY

    def _check_entries(self) -> Longs:
        bad = self._entries["version"] != indexes.TRANSACTION_VERSION
        # a transaction may begin before its segment, not before offset 0 of readers: -shift as stored, or 0 if lower
        bad |= self._entries["first_offset"] < -max(self._segment.shift, 0)
        bad |= self._entries["first_offset"] > self._entries["last_offset"]
        if bad.any():
            raise self._wrong_entry("has an unknown version, or ends before it begins", int(bad.argmax()))
        keys = self._field("last_offset") - self._base_offset
        self._check(keys, step=1, largest=self._max_relative_offset)
        return keys

    def _are_right(self, batches: npt.NDArray[Any], position: int, entries: slice) -> Flags:
        lasts = batches["base_offset"] + batches["last_offset_delta"] - self._base_offset
        rows = np.minimum(np.searchsorted(lasts, self._keys[entries]), len(batches) - 1)
        is_marker = (batches["attributes"][rows] & CONTROL != 0) & (lasts[rows] == self._keys[entries])
        producers = self._field("producer_id")[entries]
        return np.asarray(is_marker & (batches["producer_id"][rows] == producers))


#: The state of an index file. "truncated": shorter than in its segment's metadata. "corrupted": has entries that no
#: log can have, or more bytes or another checksum than in the metadata. "stale": does not fit its log.
State = Literal["fine", "missing", "truncated", "corrupted", "stale"]


class KeyIndexCheck:
    """Checks a key index: it must have the same bytes as one that is built from its log."""

    def __init__(self, part: Part, segment: SegmentInfo, data: bytes) -> None:
        self._part, self._segment, self._data = part, segment, data
        self._keys = KeyIndexBuilder() if data else None

    def add(self, data: memoryview, batches: npt.NDArray[Any], position: int) -> None:
        """Add the next batches of the log, which are all of `data`, from byte `position` of the log file on."""
        if self._keys is not None:
            try:
                self._keys.add(data, batches, position)
            except CorruptRecordError:
                self._keys = None  # the index is not compared, since the damaged record is an anomaly already

    def mismatch(self) -> CorruptIndexError | None:
        """The error if the index does not have the keys of its log; call it after the last batch."""
        if self._keys is None or self._keys.finish() == (self._data, self._segment.key_count):
            return None
        return _error("the key index does not fit its log", self._part, self._segment, 0)


#: The checks of Kafka's indexes, by suffix.
CHECKS: dict[str, type[IndexCheck]] = {
    ".index": OffsetIndexCheck,
    ".timeindex": TimeIndexCheck,
    ".txnindex": TransactionIndexCheck,
}


@dataclass(slots=True)
class IndexFile:
    """One index file, compared with its log batch by batch, and its error."""

    suffix: str
    data: bytes
    state: State
    error: CorruptIndexError | None
    check: IndexCheck | KeyIndexCheck | None

    def add(self, data: memoryview, batches: npt.NDArray[Any], position: int) -> None:
        if isinstance(self.check, KeyIndexCheck):
            self.check.add(data, batches, position)
        elif self.check is not None:
            self.check.add(batches, position)

    def finish(self) -> None:
        mismatch = self.check.mismatch() if self.check is not None else None
        if mismatch is not None:
            self.error, self.state = mismatch, "stale" if self.data else "missing"  # no data: none in the metadata


def find_indexes(reader: SegmentReader, segment: SegmentInfo) -> list[IndexFile]:
    """Read the segment's index files from the storage, not from a cache, and check them without the log."""
    checks: dict[str, type[IndexCheck | KeyIndexCheck]] = {**CHECKS, ".keyindex": KeyIndexCheck}
    return [_find(reader, segment, suffix, check) for suffix, check in checks.items()]


def _find(
    reader: SegmentReader, segment: SegmentInfo, suffix: str, check: type[IndexCheck | KeyIndexCheck]
) -> IndexFile:
    part, size = reader.part(segment, suffix), index_size(segment, suffix)
    # read one byte more to notice a file that is too long, but not of a bundle or an active segment, which grows
    end = size + 1 if part.is_file and not segment.is_active else size
    try:
        data = reader.storage.read(*part.range(0, end)) if size else b""
    except FileNotFoundError:
        return IndexFile(suffix, b"", "missing", _error("the index file is missing", part, segment, 0), None)
    if len(data) != size:
        message = "the size of the index file differs from its segment's metadata"
        error = _error(message, part, segment, min(len(data), size))
        return IndexFile(suffix, data, "truncated" if len(data) < size else "corrupted", error, None)
    wrong_checksum = checksum_error(segment, suffix, part, crc32c(data))
    state: State = "corrupted" if wrong_checksum else "fine"
    try:
        return IndexFile(suffix, data, state, wrong_checksum, check(part, segment, data))
    except CorruptIndexError as error:
        return IndexFile(suffix, data, "corrupted", error, None)


def _error(message: str, part: Part, segment: SegmentInfo, position: int) -> CorruptIndexError:
    message = f"{message}: {remedy(segment)}"
    return CorruptIndexError(message, file=part.name, position=part.begin + position, partition=segment.partition)


MAX_ANOMALIES = 100

Batches = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SegmentVerdict:
    """The numbers of batches and records that were read of one segment, and its anomalies."""

    segment: SegmentInfo
    batches: int
    records: int
    anomalies: tuple[Anomaly, ...]
    end_offset: int = -1  # the offset after the last batch; -1 if the log is not sound
    is_sparse: bool = False  # whether the batches lack offsets before `end_offset`

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.anomalies


class _TooManyAnomaliesError(Exception):
    """Ends the check of a segment at MAX_ANOMALIES."""


class _Verifier:
    """Checks a segment. After damage, it continues at the next batch, and does not report what the damage causes."""

    def __init__(self, reader: SegmentReader, segment: SegmentInfo) -> None:
        self._reader, self._segment, self._log = reader, segment, reader.part(segment)
        self._indexes = find_indexes(reader, segment)
        self._stats = LogStats(segment)
        self._anomalies: list[Anomaly] = []
        # the stored offset of the next batch, or its lower bound if gaps are allowed; -1 if unknown
        self._expected_offset = segment.stored_base_offset
        self._end_offset = -1
        self._is_sparse = False

    def verdict(self) -> SegmentVerdict:
        with suppress(_TooManyAnomaliesError):
            self._check_all()
        return SegmentVerdict(
            self._segment,
            batches=self._stats.batches,
            records=self._stats.by_records.count,
            anomalies=tuple(self._anomalies),
            end_offset=self._end_offset,
            is_sparse=self._is_sparse,
        )

    def _check_all(self) -> None:
        end = self._end_of_log()
        count_before = len(self._anomalies)
        if end is not None:
            self._walk(end)
        is_sound = end == self._segment.log_bytes and len(self._anomalies) == count_before
        for index in self._indexes:
            # the offset and time index of an active segment lack their last entries: `finish` would report this
            is_full = index.suffix == ".txnindex" or not self._segment.is_active
            if is_sound and is_full:
                index.finish()
            if index.error is not None:
                word: AnomalyWord = "missing_index" if index.state == "missing" else "corrupt_index"
                if index.state == "stale":
                    word = "time_index_mismatch" if index.suffix == ".timeindex" else "index_mismatch"
                self._report_error(word, index.error)
        if is_sound:
            self._end_offset = self._stats.end_offset
            self._is_sparse = self._stats.is_sparse
            for message in self._stats.contradictions():
                self._report("metadata_mismatch", message)

    def _report(self, word: AnomalyWord, message: str, position: int | None = None, **location: int) -> None:
        # a bundle has several segments, so the position identifies the segment
        if position is not None or not self._log.is_file:
            location["position"] = self._log.begin + (position or 0)
        self._report_error(word, DistlogError(message, file=self._log.name, **location))

    def _report_error(self, word: AnomalyWord, error: DistlogError) -> None:
        located = DistlogError(error.message, **{**error.details, "partition": self._segment.partition})
        self._anomalies.append(Anomaly.of(word, located, self._segment.shift))
        if len(self._anomalies) == MAX_ANOMALIES:
            raise _TooManyAnomaliesError

    def _end_of_log(self) -> int | None:
        """The number of bytes of the log file to read, or None without a file."""
        try:
            size = self._reader.storage.size(self._log.name) - self._log.begin
        except FileNotFoundError:
            self._report("missing_segment", "the log file is missing: restore it from a copy")
            return None
        expected = self._segment.log_bytes
        # an active log grows, and may have preallocated space after its end
        if size < expected or (size > expected and self._log.is_file and not self._segment.is_active):
            size = max(size, 0)
            message = f"log_bytes is {expected} in the metadata, {size} in the log"
            self._report("metadata_mismatch", message, position=min(size, expected))
        return min(size, expected)

    def _walk(self, end: int) -> None:
        file = LogFile(self._reader.storage, self._log, end, mapped=False)
        walk = BatchWalk(file.read, 0, end, CHUNK_BYTES, self._damaged, self._log.name, self._log.begin)
        try:
            for batches in walk:
                self._check_batches(batches.data, batches.rows, batches.position)
        finally:
            file.close()

    def _damaged(self, error: CorruptRecordError) -> None:
        self._report_error("corrupt_batch", error)
        self._expected_offset = -1

    def _check_batches(self, data: memoryview, batches: Batches, position: int) -> None:
        for index in self._indexes:
            index.add(data, batches, position)
        # indexes have the times in the log, so set the commit's append time, which readers get, after their check
        set_append_times(batches, np.full(len(batches), self._segment.append_time_ms))
        self._stats.add_batches(data, batches)
        is_intact = self._check_crcs(data, batches, position)
        base = batches["base_offset"]
        next_offsets = np.where(is_intact, base + batches["last_offset_delta"] + 1, -1)  # -1: unknown
        expected = np.concatenate([[self._expected_offset], next_offsets[:-1]])
        wrong = base != expected if is_contiguous(self._segment) else base < expected
        for row in np.flatnonzero(wrong & (expected >= 0)).tolist():
            word: AnomalyWord = "offset_gap" if base[row] > expected[row] else "offset_overlap"
            message = f"a batch does not begin at the next offset, {expected[row] + self._segment.shift}"
            location = {"position": position + int(batches["position"][row]), "offset": int(base[row])}
            self._report(word, message, **location)
        self._expected_offset = int(next_offsets[-1])
        is_control = batches["attributes"] & CONTROL != 0
        for records in self._decode(data, batches[is_intact & ~is_control], position):
            self._stats.by_records.add(records)
        # decode control batches, too, to find anomalies: without the flag, the decoder does not skip them
        control = batches[is_intact & is_control]
        control["attributes"] &= ~CONTROL
        for _ in self._decode(data, control, position):
            pass

    def _check_crcs(self, data: memoryview, batches: Batches, position: int) -> Flags:
        """Report batches with wrong checksums. Returns whether each batch is intact."""
        is_intact = np.ones(len(batches), bool)
        start = 0
        while start < len(batches):
            try:
                check_crcs(data, batches[start:], file=self._log.name, file_position=self._log.begin + position)
                break
            except CorruptRecordError as error:
                self._report_error("corrupt_batch", error)
                start = self._row_of(error, batches, position) + 1
                is_intact[start - 1] = False
        return is_intact

    def _decode(self, data: memoryview, batches: Batches, position: int) -> Iterator[pa.RecordBatch]:
        shift, partition = self._segment.shift, self._segment.partition
        source, start = Source(self._log.name, self._log.begin + position), 0
        batches = batches[batches["record_count"] > 0]
        while start < len(batches):
            to_decode = BatchSelection(byte_array(data), batches[start:], shift, partition, 0, MAX_LONG, source)
            try:
                for records in decode_parts(to_decode, ("offset", "timestamp"), OUTPUT_BYTES):
                    start += self._check_times(records, batches[start:], position)
                    yield records
                return
            except CorruptRecordError as error:
                is_out_of_order = isinstance(error, OffsetsOutOfOrderError)
                self._report_error("non_monotonical_delta" if is_out_of_order else "corrupt_record", error)
                bad_row = self._row_of(error, batches, position)
                # decode the batches before the bad one that were not yielded yet
                yield from self._decode(data, batches[start:bad_row], position)
                start = bad_row + 1

    def _check_times(self, records: pa.RecordBatch, batches: Batches, position: int) -> int:
        """Compare `records`, which fill the first few `batches`, with the headers. Returns the number of batches."""
        ends = np.cumsum(batches["record_count"])
        count = int(np.searchsorted(ends, records.num_rows, side="right"))
        timestamps = numbers_of(records.column("timestamp").cast(pa.int64()))
        newest = np.maximum.reduceat(timestamps, np.append(0, ends[: count - 1]))
        header_newest = batches["max_timestamp"][:count]
        # format 1 is not compared, since old brokers and clients wrote other timestamps around its messages
        for row in np.flatnonzero((newest != header_newest) & (batches["magic"][:count] == 2)).tolist():
            in_header, in_records = header_newest[row], newest[row]
            message = f"the largest timestamp is {in_header} in the header of a batch, {in_records} in its records"
            message = f"{message}: compact the topic, which fixes it"
            offset = int(batches["base_offset"][row])
            self._report("timestamp_mismatch", message, position + int(batches["position"][row]), offset=offset)
        return count

    def _row_of(self, error: CorruptRecordError, batches: Batches, position: int) -> int:
        return int(np.searchsorted(batches["position"], error.details["position"] - self._log.begin - position))
