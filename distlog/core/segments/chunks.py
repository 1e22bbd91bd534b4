"""The slices of segments that a read needs, and chunks, which check, filter and decode whole batches in a buffer."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import MAX_LONG, MIN_LONG, Flags, Longs, byte_array
from distlog.core.commits.segment_table import UNKNOWN, SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from distlog.core.format.indexes import AbortedTransaction, GrowingOffsetIndex, OffsetIndex
from distlog.core.format.kernels.batch_scan import RUN, first_misplaced
from distlog.core.format.record_batch import TRANSACTIONAL, Batches, Source, first_bad_crc, read_headers, wrong_crc
from distlog.core.format.record_decoder import BatchSelection, decode_parts
from distlog.core.format.record_encoder import set_append_times, write_append_times
from distlog.core.segments.segment_parts import another_log_error
from distlog.core.storage.backend import Part
from distlog.core.storage.storage import Storage
from distlog.core.times import Time, to_ms


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Selects records with oldest <= timestamp <= newest, in ms; a record without a timestamp has -1."""

    oldest: int = MIN_LONG
    newest: int = MAX_LONG

    @classmethod
    def between(cls, start: Time | None, end: Time | None) -> TimeRange:
        """Return the range [start, end); None means no bound. If there is a bound, records need a timestamp."""
        if start is None and end is None:
            return ALWAYS
        oldest = 0 if start is None else _ms(start)
        newest = MAX_LONG if end is None else min(_ms(end) - 1, MAX_LONG)
        return cls(oldest, newest) if oldest <= MAX_LONG else NEVER

    def within(self, other: TimeRange) -> TimeRange:
        return TimeRange(max(self.oldest, other.oldest), min(self.newest, other.newest))

    def overlapping(self, segments: SegmentTable) -> Flags:
        """Flag the segments that may have records in this range."""
        oldest = np.where(segments.min_timestamps < 0, MIN_LONG, segments.min_timestamps)  # below 0: unknown
        is_overlapping: Flags = (segments.max_timestamps >= self.oldest) & (oldest <= self.newest)
        return is_overlapping & (self.oldest <= self.newest)  # no segment is in an empty range

    def needed_for(self, segment: SegmentInfo) -> TimeRange:
        """Return this range without the bounds that hold for all records of an overlapping `segment`."""
        oldest = MIN_LONG if segment.min_timestamp >= max(self.oldest, 0) else self.oldest  # below 0: unknown
        newest = MAX_LONG if segment.max_timestamp <= self.newest else self.newest
        return ALWAYS if (oldest, newest) == (MIN_LONG, MAX_LONG) else TimeRange(oldest, newest)


#: Also includes the records without a timestamp.
ALWAYS = TimeRange()
NEVER = TimeRange(MAX_LONG, MIN_LONG)


def _ms(time: Time) -> int:
    value = to_ms(time, round_up=True)
    if value < 0:
        raise ValueError(f"a time to read from or to must not be before 1970: {time!r}")
    return value


OutOfRange = Literal["fail", "earliest", "latest"]
"""The action for a start outside of the log (Kafka's `auto.offset.reset`): raise, or use the log's start or end."""

#: The assumed size of a batch if only its position is known.
BATCH_BYTES = 128 << 10


class SegmentSlice(NamedTuple):
    """The records of one segment with start_offset <= offset < end_offset, in batches that begin in a byte range.

    A batch belongs to the slice that has its first byte. `times` and `keys`, a binary array, filter the records. If a
    slice `is_located`, a batch begins at `start_position`, and the range ends after the first byte of the last batch.
    """

    segment: SegmentInfo
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int
    times: TimeRange = ALWAYS
    keys: pa.Array | None = None
    is_located: bool = False

    @property
    def is_filtered(self) -> bool:
        return self.times != ALWAYS or self.keys is not None

    @property
    def covers_segment(self) -> bool:
        return (
            self.start_offset <= self.segment.base_offset
            and self.end_offset >= self.segment.next_offset
            and (self.start_position, self.end_position) == (0, self.segment.log_bytes)
        )

    @property
    def span(self) -> tuple[int, int]:
        """The offsets [first, end) of the segment to read; none if first >= end."""
        return max(self.start_offset, self.segment.base_offset), min(self.end_offset, self.segment.next_offset)

    def located(self, first: int, last: int) -> SegmentSlice:
        """The part from the batch at position `first` to the batch at `last`."""
        return self._replace(start_position=first, end_position=last + 1, is_located=True)

    @property
    def estimated_bytes(self) -> int:
        start, end = self.span
        offsets = self.segment.next_offset - self.segment.base_offset
        size = self.end_position - self.start_position
        return size + BATCH_BYTES if self.is_located else size * (end - start) // max(offsets, 1)

    @property
    def estimated_records(self) -> int:
        return self.segment.record_count * self.estimated_bytes // max(self.segment.log_bytes, 1)


def plan(
    snapshot: Snapshot,
    start: Mapping[int, int],
    end: Mapping[int, int],
    out_of_range: OutOfRange = "fail",
    times: TimeRange = ALWAYS,
) -> list[SegmentSlice]:
    """Return slices of offsets [start[p], end[p]) of each partition p, without segments that `times` excludes."""
    slices: list[SegmentSlice] = []
    for partition in sorted(start):
        state = snapshot.partitions[partition]
        first = bounded_start(partition, start[partition], state, out_of_range)
        slices.extend(_partition_slices(state, first, min(end[partition], state.log_end_offset), times))
    return slices


def bounded_start(partition: int, offset: int, state: PartitionState, out_of_range: OutOfRange) -> int:
    """Return `offset` if it is in the log or at its end, else the bound that `out_of_range` names, or raise."""
    if state.log_start_offset <= offset <= state.log_end_offset:
        return offset
    if out_of_range == "fail":
        raise OffsetOutOfRangeError(
            "the offset is not in the log; read from the log start, or ask for earliest or latest instead",
            partition=partition,
            offset=offset,
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
        )
    return state.log_start_offset if out_of_range == "earliest" else state.log_end_offset


def _partition_slices(state: PartitionState, start: int, end: int, times: TimeRange) -> Iterator[SegmentSlice]:
    if start >= end:
        return
    segments = state.segments
    first, last = segments.find(start), int(np.searchsorted(segments.base_offsets, end))
    if times == ALWAYS:
        yield from (SegmentSlice(segment, start, end, 0, segment.log_bytes) for segment in segments[first:last])
        return
    rows = np.flatnonzero(times.overlapping(segments)[first:last]) + first
    # all segments from the first row to the last, since a few unneeded ones cost less than picking each row
    run = segments[int(rows[0]) : int(rows[-1]) + 1] if len(rows) else []
    for segment in (run[row] for row in (rows - rows[:1]).tolist()):
        yield SegmentSlice(segment, start, end, 0, segment.log_bytes, times.needed_for(segment))


def windows(slices: Iterable[SegmentSlice], step: int, *, from_end: bool = False) -> Iterator[list[SegmentSlice]]:
    """Cut `slices` into ascending runs of `step`, 2 * `step`, ... offsets. With `from_end`, `slices` must descend."""
    run, room = list[SegmentSlice](), step
    for part in slices:
        start, end = part.span
        while start < end:
            if part.is_located:
                cut, size, start = part, 1, end  # from a key index: not cut, assumed to have one record
            else:
                size = min(room, end - start)
                first = end - size if from_end else start
                cut = part._replace(start_offset=first, end_offset=first + size)
                start, end = (start, first) if from_end else (first + size, end)
            run.append(cut)
            room -= size
            if room == 0:
                yield run[::-1] if from_end else run
                step, run = 2 * step, []
                room = step
    if run:
        yield run[::-1] if from_end else run


def first_offsets(slices: Iterable[SegmentSlice], limit: int) -> tuple[list[SegmentSlice], bool]:
    """Return slices with the first `limit` records, and whether they have no other records."""
    parts: list[SegmentSlice] = []
    is_exact = True
    for part in slices:
        if limit <= 0:
            break
        if not part.segment.dense or part.is_filtered:
            parts.append(part)
            is_exact = False
            continue
        start, end = part.span
        parts.append(part._replace(end_offset=min(end, start + limit)))
        limit -= end - start
    return parts, is_exact


def split_by_bytes(slices: Iterable[SegmentSlice], target_bytes: int) -> list[list[SegmentSlice]]:
    """Split `slices` into groups of about `target_bytes` each, in order; a segment is cut when a group is full."""
    groups: list[list[SegmentSlice]] = [[]]
    # a group may be an eighth larger or smaller if this saves a cut
    room, tolerance = target_bytes, target_bytes // 8
    for part in slices:
        remainder = part
        while remainder.estimated_bytes > room + tolerance:
            if room > tolerance:
                # the group gets the first `room` of the estimated bytes; the remainder is not empty
                span = remainder.end_position - remainder.start_position
                position = remainder.start_position + span * room // remainder.estimated_bytes
                # a cut may be within a batch, which a located slice does not have at its ends
                groups[-1].append(remainder._replace(end_position=position, is_located=False))
                remainder = remainder._replace(start_position=position, is_located=False)
                room = 0
            groups.append([])
            # the next group may have the bytes that this one lacks, which saves a group at the end
            room += target_bytes
        groups[-1].append(remainder)
        room -= remainder.estimated_bytes
    return [group for group in groups if group]


def bounds_by(index: OffsetIndex | GrowingOffsetIndex, part: SegmentSlice) -> tuple[int, int]:
    """Return from the index the position of a batch at or before the slice's first, and a likely end of its last."""
    segment = part.segment
    start = index.lookup(part.start_offset - segment.shift).position
    if part.start_position > 0:
        start = max(start, index.position_floor(part.start_position).position)
    if start >= part.end_position:
        # by the index, the slice's offsets begin after its byte range; reading the end of the range confirms this
        start = index.position_floor(part.end_position - 1).position
    if part.end_offset >= segment.next_offset:
        return start, part.end_position
    # `entry` may be of the slice's last batch; that batch ends at the batch of the next entry, or before
    entry = index.ceiling(part.end_offset - 1 - segment.shift)
    next_entry = index.ceiling(entry.offset + 1) if entry else None
    return start, min(next_entry.position, part.end_position) if next_entry else part.end_position


class LogRange(NamedTuple):
    """Bytes [start, end) of a chunk: batches of `log` from `position` on, with their first offset, -1 if unknown."""

    slice: SegmentSlice
    log: Part
    position: int
    start: int
    end: int
    first_offset: int = -1

    @property
    def file(self) -> str:
        return self.log.name

    @property
    def file_position(self) -> int:
        return self.log.begin + self.position

    @property
    def origin(self) -> int:
        """The position that the chunk's first byte would have in `file`, from which errors count positions."""
        return self.file_position - self.start

    @property
    def ends_log(self) -> bool:
        return self.position + self.end - self.start == self.slice.segment.log_bytes

    def holds(self, file: str, position: int) -> bool:
        return file == self.file and self.start <= position - self.origin < self.end

    def check_row(self) -> tuple[int, int, int, int]:
        """Return the RUN row (first offset, end offset, dense, ends the file) that its batches must match."""
        segment = self.slice.segment
        return self.first_offset, segment.next_offset - segment.shift, segment.dense, self.ends_log

    def check_ends(self, first_crc: int, last_crc: int, last_position: int) -> None:
        """Raise CorruptRecordError if its first or last batch shows that the log is another segment's."""
        segment = self.slice.segment
        if self.position == 0 and segment.first_batch_crc not in (UNKNOWN, first_crc):
            raise another_log_error(segment, self.file, self.file_position)
        if self.ends_log and segment.last_batch_crc not in (UNKNOWN, last_crc):
            raise another_log_error(segment, self.file, self.origin + last_position)

    def located(self, error: CorruptRecordError) -> CorruptRecordError:
        """Return `error` with the partition, and with the offset for readers instead of the stored offset."""
        segment, details = self.slice.segment, dict(error.details)
        if "offset" in details:
            details["offset"] += segment.shift
        return CorruptRecordError(error.message, **details, partition=segment.partition)


class Files(Sequence[str]):
    """The file of each batch, by the number of its range."""

    def __init__(self, ranges: Sequence[LogRange], range_of_batch: Longs) -> None:
        self._ranges, self._range_of_batch = ranges, range_of_batch

    def __len__(self) -> int:
        return len(self._range_of_batch)

    def __getitem__(self, row: Any) -> Any:
        return self._ranges[self._range_of_batch[row]].file


def headers_of_all(ranges: Sequence[LogRange], data: memoryview) -> npt.NDArray[Any]:
    # reads all ranges at once, which is faster; if that fails, range by range to find the damaged file
    try:
        batches: npt.NDArray[Any] = read_headers(data)
        batch_ends = np.append(0, batches["position"] + batches["size"])
        ends = [log_range.end for log_range in ranges]
        # each range must end where a batch ends, or at 0; an end past all batches is compared with the last one
        if (batch_ends[np.searchsorted(batch_ends[:-1], ends)] == ends).all():
            return batches
    except CorruptRecordError:
        pass
    return np.concatenate([_headers_of_file(log_range, data) for log_range in ranges])


def _headers_of_file(log_range: LogRange, data: memoryview) -> npt.NDArray[Any]:
    try:
        batches: npt.NDArray[Any] = read_headers(
            data, start=log_range.start, end=log_range.end, file=log_range.file, file_position=log_range.origin
        )
    except CorruptRecordError as error:
        raise log_range.located(error) from None
    end = int(batches["position"][-1] + batches["size"][-1]) if len(batches) else log_range.start
    if end != log_range.end:
        raise cut_short(log_range, end)
    return batches


def cut_short(log_range: LogRange, position: int) -> CorruptRecordError:
    return CorruptRecordError(
        "the file ends within a batch: verify, then restore it from a copy",
        file=log_range.file,
        position=log_range.origin + position,
        partition=log_range.slice.segment.partition,
    )


#: Larger record batches are cut into equal parts.
OUTPUT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """The batches of `ranges` in one buffer: header fields (BATCH rows), and for each the number of its range."""

    ranges: Sequence[LogRange]
    data: memoryview
    batches: npt.NDArray[Any]
    range_of_batch: Longs

    def records(self, columns: Sequence[str], isolation: Isolation) -> Iterator[pa.RecordBatch]:
        """Yield the records in the slices of the ranges, after their checks, in batches of about OUTPUT_BYTES."""
        # `unchecked` has the decoder compare the checksums of its batches; if some are hidden, all are compared here
        to_decode = replace(self.selection(), unchecked=True)
        is_visible = isolation.visible(self.batches, to_decode.shift, to_decode.partition)
        if not is_visible.all():
            self.check()
            to_decode = replace(to_decode.of_rows(np.flatnonzero(is_visible)), unchecked=False)
        try:
            keys = self.ranges[0].slice.keys  # the same in all ranges
            names = columns if keys is None or "key" in columns else (*columns, "key")
            for part in decode_parts(to_decode, names, OUTPUT_BYTES):
                yield from _cut(part if keys is None else _with_keys(part, keys, columns))
        except CorruptRecordError as error:
            # if a checksum is wrong, its error is clearer than the error of the decoder
            raise (self._wrong_crc() or self._located(error)) from None

    def check(self) -> None:
        """Raise CorruptRecordError for a wrong checksum; checksums do not cover offsets."""
        if error := self._wrong_crc():
            raise error

    def checked(self) -> Chunk:
        """Return the batches before the first with a wrong checksum; CorruptRecordError if there are none."""
        bad = first_bad_crc(self.data, self.batches)
        if bad == 0:
            self.check()
        return self if bad < 0 else self.rows(0, bad)

    def _wrong_crc(self) -> CorruptRecordError | None:
        bad = first_bad_crc(self.data, self.batches)
        return self._located(wrong_crc(self._source(), bad, self.batches[bad])) if bad >= 0 else None

    def rows(self, start: int, end: int) -> Chunk:
        """Return the chunk of batches [start, end), at least one; this chunk must have only one range."""
        (log_range,) = self.ranges
        batches = self.batches[start:end].copy()
        low, high = int(batches["position"][0]), int(batches["position"][-1] + batches["size"][-1])
        batches["position"] -= low
        part = log_range._replace(position=log_range.position + low, start=0, end=high - low)
        return Chunk([part], self.data[low:high], batches, self.range_of_batch[start:end])

    def part(self, first: int, end: int) -> Chunk:
        """Return the chunk of the ranges [first, end)."""
        start_position, end_position = self.ranges[first].start, self.ranges[end - 1].end
        rows = slice(*np.searchsorted(self.range_of_batch, (first, end)))
        batches = self.batches[rows].copy()
        batches["position"] -= start_position
        ranges = [
            log_range._replace(start=log_range.start - start_position, end=log_range.end - start_position)
            for log_range in self.ranges[first:end]
        ]
        return Chunk(ranges, self.data[start_position:end_position], batches, self.range_of_batch[rows] - first)

    def timed(self) -> Chunk:
        """Return the chunk with LogAppendTime also in its bytes, with new checksums. Call `check` before this."""
        ranges_with_time = np.array([log_range.slice.segment.append_time_ms >= 0 for log_range in self.ranges])
        has_append_time = ranges_with_time[self.range_of_batch]
        if not has_append_time.any():
            return self
        data, batches = np.array(self.data, np.uint8), self.batches.copy()
        timed = batches[has_append_time]
        write_append_times(data, timed)
        batches[has_append_time] = timed
        return replace(self, data=data.data, batches=batches)

    def check_offsets(self) -> None:
        """Raise CorruptRecordError for a batch at wrong offsets for its segment; checksums do not cover offsets."""
        runs = np.array([log_range.check_row() for log_range in self.ranges], RUN)
        wrong = first_misplaced(self.batches, self.range_of_batch, runs)
        if wrong >= 0:
            message = "a batch is not at the offsets that its segment has there"
            raise self._located(self._source().corrupt(message, wrong, self.batches[wrong]))

    def check_identity(self) -> None:
        """Raise CorruptRecordError if the first or last batch of a file is in the chunk and is another log's."""
        if len(self.batches) == 0:
            return
        crcs, positions = self.batches["crc"], self.batches["position"]
        if len(self.ranges) == 1:
            # the same, but faster, since a read of one record does little else
            self.ranges[0].check_ends(int(crcs[0]), int(crcs[-1]), int(positions[-1]))
            return
        changes = np.flatnonzero(np.diff(self.range_of_batch)) + 1
        first_rows, last_rows = np.append(0, changes), np.append(changes, len(self.range_of_batch)) - 1
        values = (self.range_of_batch[first_rows], crcs[first_rows], crcs[last_rows], positions[last_rows])
        for number, first_crc, last_crc, last_position in zip(*(array.tolist() for array in values), strict=True):
            self.ranges[number].check_ends(first_crc, last_crc, last_position)

    def selection(self) -> BatchSelection:
        # each field of the slices, with a value per range
        segments, starts, ends, _, _, times, *_ = zip(*[log_range.slice for log_range in self.ranges], strict=True)
        return BatchSelection(
            byte_array(self.data),
            self.batches,
            self.per_batch([segment.shift for segment in segments]),
            self.per_batch([segment.partition for segment in segments]),
            self.per_batch(starts),
            self.per_batch(ends),
            self._source(),
            self.per_batch([time_range.oldest for time_range in times]),
            self.per_batch([time_range.newest for time_range in times]),
        )

    def _source(self) -> Source:
        file = self.ranges[0].file if len(self.ranges) == 1 else Files(self.ranges, self.range_of_batch)
        return Source(file, self.per_batch([log_range.origin for log_range in self.ranges]))

    def per_batch(self, values: Iterable[int]) -> PerBatch:
        """Return a value per batch from `values`, which has one per range; one number if all are equal."""
        range_values = list(values)
        if range_values.count(range_values[0]) == len(range_values):
            return range_values[0]
        return np.array(range_values, np.int64)[self.range_of_batch]

    def _located(self, error: CorruptRecordError) -> CorruptRecordError:
        file, position = error.details["file"], error.details["position"]
        return next(log_range for log_range in self.ranges if log_range.holds(file, position)).located(error)


def _with_keys(records: pa.RecordBatch, keys: pa.Array, columns: Sequence[str]) -> pa.RecordBatch:
    if len(keys) > records.num_rows:
        # `is_in` makes a hash table of its value set, so make one of the records' fewer keys
        keys = keys.filter(pc.is_in(keys, value_set=records["key"]))
    return records.filter(pc.is_in(records["key"], value_set=keys)).select(list(columns))


def _cut(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # this size is at least `nbytes`, the exact size, and costs less to compute
    if records.get_total_buffer_size() <= OUTPUT_BYTES:
        return iter([records] if records.num_rows else [])
    part_count = ceil(records.nbytes / OUTPUT_BYTES)
    rows = ceil(records.num_rows / part_count) or 1
    return (records.slice(start, rows) for start in range(0, records.num_rows, rows))


def chunk_of_files(ranges: Sequence[LogRange], data: memoryview) -> Chunk:
    batches = headers_of_all(ranges, data)
    ends = np.array([log_range.end for log_range in ranges])
    return _checked(Chunk(ranges, data, batches, np.searchsorted(ends, batches["position"], side="right")))


def chunk_of_batches(log_range: LogRange, batches: Batches) -> Chunk:
    return _checked(Chunk([log_range], batches.data, batches.rows, np.zeros(len(batches.rows), np.int64)))


def _checked(chunk: Chunk) -> Chunk:
    chunk.check_offsets()
    chunk.check_identity()
    times = [log_range.slice.segment.append_time_ms for log_range in chunk.ranges]
    if max(times, default=-1) >= 0:
        set_append_times(chunk.batches, np.array(times, np.int64)[chunk.range_of_batch])
    return chunk


@dataclass(frozen=True, slots=True)
class StoredBatches:
    """Batches in bytes [begin, end) of a local file, opened for each use, since many may wait for slow receivers."""

    storage: Storage
    name: str
    begin: int
    end: int
    next_offset: int

    def __len__(self) -> int:
        return self.end - self.begin

    def __bytes__(self) -> bytes:
        data = self.storage.read(self.name, self.begin, self.end)
        if len(data) < len(self):
            raise self._shorter(self.begin + len(data))
        return data

    def __getitem__(self, part: slice, /) -> StoredBatches:
        start, end, _ = part.indices(len(self))
        return replace(self, begin=self.begin + start, end=self.begin + end)

    def send(self, receiver: int) -> int:
        """Send bytes to a socket's descriptor until it would block; returns the number of bytes."""
        position = self.begin
        try:
            with self.storage.opened_file(self.name) as file, suppress(BlockingIOError):
                while position < self.end:
                    count = os.sendfile(receiver, file, position, self.end - position)
                    if not count:
                        raise self._shorter(position)
                    position += count
        except OSError as error:
            # only the file can give EIO; the caller handles the socket's errors
            if error.errno != errno.EIO:
                raise
            raise StorageError(f"cannot read: {error.strerror}", file=self.name, position=position) from error
        return position - self.begin

    def _shorter(self, end: int) -> StorageError:
        return StorageError("the log was cut during the fetch: fetch again", file=self.name, position=end)


IsolationLevel = Literal["read_uncommitted", "read_committed"]
"""Whether a read hides records of open and aborted transactions (Kafka's `isolation.level`, KIP-98)."""

#: One value for all batches, or one per batch.
PerBatch = int | Longs


@dataclass(frozen=True, slots=True)
class Isolation:
    """Hides transactions that are `aborted`: by partition, rows of (producer id, first offset, last offset)."""

    aborted: Mapping[int, Longs] = field(default_factory=dict)

    @classmethod
    def of(cls, aborted: Mapping[int, Iterable[AbortedTransaction]]) -> Isolation:
        return cls({partition: _rows(transactions) for partition, transactions in aborted.items()})

    def visible(self, batches: npt.NDArray[Any], shift: PerBatch, partition: PerBatch) -> Flags:
        """Flag the `batches` that are not hidden; `shift` is added to the stored offsets."""
        visible = np.ones(len(batches), bool)
        for number, transactions in self.aborted.items():
            rows = np.flatnonzero((partition == number) & ((batches["attributes"] & TRANSACTIONAL) != 0))
            offsets = (batches["base_offset"] + shift)[rows]
            if len(rows):
                overlaps = (transactions[:, 1] <= int(offsets.max())) & (transactions[:, 2] >= int(offsets.min()))
                for producer, first, last in transactions[overlaps].tolist():
                    hidden = (batches["producer_id"][rows] == producer) & (offsets >= first) & (offsets <= last)
                    visible[rows[hidden]] = False
        return visible


READ_UNCOMMITTED = Isolation()


def _rows(transactions: Iterable[AbortedTransaction]) -> Longs:
    rows = [(aborted.producer_id, aborted.first_offset, aborted.last_offset) for aborted in transactions]
    return np.array(rows, np.int64).reshape(-1, 3)
