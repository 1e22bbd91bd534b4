"""The metadata of a segment, from which reads are planned, and tables of a partition's segments in columns."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from itertools import repeat
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import (
    MAX_INT,
    MAX_LONG,
    Flags,
    Longs,
    booleans,
    flags_of,
    integers,
    join,
    no_rows,
    numbers_of,
    texts,
)
from distlog.core.commits import fields
from distlog.core.commits.fields import LONG, PARTITION, STEM, TIMESTAMP, Integer, Text, boolean, checks, stored
from distlog.core.paths import is_own_stem

#: A value that the segment's writer did not store.
UNKNOWN = -1
#: A `first_unstable_offset` that was not determined; NO_OFFSET if no transaction is open.
UNDETERMINED_OFFSET, NO_OFFSET = -2, -1
#: The position of a file that is not part of a bundle.
OWN_FILE = -1
#: The `append_time_ms` of a segment until its commit sets it to the commit's time.
TIME_OF_COMMIT = -2
_CRC = Integer(0, 2**32 - 1)
_CRC_OR_UNKNOWN = Integer(UNKNOWN, 2**32 - 1)
_POSITION = Integer(OWN_FILE, MAX_LONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment, as commits describe it; immutable, like its files.

    The records have offsets from `base_offset` to `next_offset` - 1, with gaps where compaction dropped some. The
    offsets in the log file begin at `stored_base_offset`, 0 in files that distlog wrote: readers add `shift` to them.
    """

    partition: int = stored(PARTITION)
    # The name of the segment's files without the suffix.
    stem: str = stored(STEM)
    base_offset: int = stored(LONG)
    next_offset: int = stored(LONG)
    stored_base_offset: int = stored(LONG)
    record_count: int = stored(LONG)
    log_bytes: int = stored(LONG)
    # The size of each index file; 0 without one.
    offset_index_bytes: int = stored(LONG)
    time_index_bytes: int = stored(LONG)
    txn_index_bytes: int = stored(LONG)
    key_index_bytes: int = stored(LONG, default=0)
    # Milliseconds since 1970; -1 means that no record has a timestamp.
    first_timestamp: int = stored(TIMESTAMP)
    max_timestamp: int = stored(TIMESTAMP)
    # The first record that has max_timestamp, as an absolute offset; -1 means that no record has one.
    offset_of_max_timestamp: int = stored(Integer(NO_OFFSET, MAX_LONG))
    compression: str = stored(Text("[a-z0-9,]{1,64}"))
    leader_epoch: int = stored(Integer(-1, MAX_INT), default=-1)
    compacted: bool = stored(boolean, default=False)
    has_transactions: bool = stored(boolean, default=False)
    # When the last record was written, or later: the age of records without a timestamp counts from here.
    created_ms: int = stored(LONG)
    # CRC-32C of the whole log file.
    crc32c: int = stored(_CRC)
    # The smallest timestamp, or less; -1 if unknown, or if a record has no timestamp.
    min_timestamp: int = stored(TIMESTAMP, default=UNKNOWN)
    # With LogAppendTime, the time of all records, given by the commit; -1: each has its own.
    append_time_ms: int = stored(TIMESTAMP, default=-1)
    # CRC-32C of each index file.
    offset_index_crc32c: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    time_index_crc32c: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    txn_index_crc32c: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    key_index_crc32c: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    # The checksum fields of the log's first and last batch: they identify the log, without reading it.
    first_batch_crc: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    last_batch_crc: int = stored(_CRC_OR_UNKNOWN, default=UNKNOWN)
    # The first offset of the oldest transaction that is open at the segment's end, perhaps in an earlier segment.
    first_unstable_offset: int = stored(Integer(UNDETERMINED_OFFSET, MAX_LONG), default=UNDETERMINED_OFFSET)
    # The positions of the log and its indexes in the bundle of this stem; OWN_FILE: a file in the partition's folder.
    log_position: int = stored(_POSITION, default=OWN_FILE)
    offset_index_position: int = stored(_POSITION, default=OWN_FILE)
    time_index_position: int = stored(_POSITION, default=OWN_FILE)
    key_index_position: int = stored(_POSITION, default=OWN_FILE)
    # The number of distinct hashes of keys in the key index.
    key_count: int = stored(LONG, default=0)
    # Whether batches carry producer ids.
    has_producers: bool = stored(boolean, default=False)
    # Not stored: True only in a snapshot for readers. The file grows, and may be cut, so it is never mapped.
    is_active: bool = False

    @property
    def shift(self) -> int:
        return self.base_offset - self.stored_base_offset

    @property
    def dense(self) -> bool:
        """True if readers get a record for every offset of the segment."""
        return self.record_count == self.next_offset - self.base_offset and not self.has_transactions

    @property
    def is_bundled(self) -> bool:
        return self.log_position != OWN_FILE

    @property
    def may_have_producers(self) -> bool:
        """True if batches carry producer ids, or may do so, since the segment's writer did not store that."""
        return self.has_producers or self.has_transactions or not is_own_stem(self.stem)

    def moved_to(self, base_offset: int) -> SegmentInfo:
        """This segment with `base_offset` as its first offset: the same files, other offsets."""
        moved = base_offset - self.base_offset
        newest, unstable = self.offset_of_max_timestamp, self.first_unstable_offset
        return dataclasses.replace(
            self,
            base_offset=base_offset,
            next_offset=self.next_offset + moved,
            offset_of_max_timestamp=(newest + moved) if newest >= 0 else newest,
            first_unstable_offset=(unstable + moved) if unstable >= 0 else unstable,
        )

    def appended_at(self, time_ms: int) -> SegmentInfo:
        """Return this segment with `time_ms` as the time of all its records, instead of the batches' times."""
        return dataclasses.replace(
            self,
            append_time_ms=time_ms,
            first_timestamp=time_ms,
            min_timestamp=time_ms,
            max_timestamp=time_ms,
            offset_of_max_timestamp=self.base_offset,
        )

    def check(self) -> None:
        for contradiction, is_wrong in _contradictions(self).items():
            if is_wrong:
                raise ValueError(f"segment {self.stem} {contradiction}")
        if self.is_bundled:
            _check_bundled(self.stem)


def _contradictions(numbers: Any) -> dict[str, Any]:
    """Return for each contradiction whether a segment's numbers have it: a bool, or flags for arrays of numbers."""
    base, end, newest = numbers.base_offset, numbers.next_offset, numbers.offset_of_max_timestamp
    times = numbers.append_time_ms
    has_bundled_index = (
        (numbers.offset_index_position >= 0) | (numbers.time_index_position >= 0) | (numbers.key_index_position >= 0)
    )
    has_other_time = (
        (numbers.first_timestamp != times) | (numbers.min_timestamp != times) | (numbers.max_timestamp != times)
    )
    return {
        "ends at or below its base offset": base >= end,
        "has more records than offsets": numbers.record_count > end - base,
        "stores offsets past the largest one": numbers.stored_base_offset > MAX_LONG - (end - base),
        "has its largest timestamp outside its offsets": (newest != -1) & ((newest < base) | (newest >= end)),
        "ends before its first unstable offset": numbers.first_unstable_offset >= end,
        "has an index in a bundle, but a log of its own": (numbers.log_position < 0) & has_bundled_index,
        "has other times than its append time": (times >= 0) & has_other_time,
    }


def _check_bundled(stem: str) -> None:
    if not is_own_stem(stem):
        raise ValueError(f"segment {stem} has a stem of Kafka's form, so it cannot be part of a bundle")


# A partition may have a hundred thousand segments, so a SegmentInfo is made on access. The rows are in a checkpoint's
# columns, sliced on access, since an Arrow slice takes 5 kB. Segments that were added later are in a `tail` of
# SegmentInfo. A tail of more than TAIL_LIMIT segments is merged into the columns.
TAIL_LIMIT = 256
#: How many segments are cached after single lookups, since making a SegmentInfo takes as long as reading a record.
CACHED_SEGMENTS = 64
_ROWS_AT_ONCE = 1024
#: Up to this many texts are compared one by one, in less time than an Arrow kernel takes to start.
_FEW_VALUES = 64
_STEM = attrgetter("stem")


def _column(name: str) -> property:
    return property(lambda table: table.array(name))


class SegmentTable(Sequence[SegmentInfo]):
    """A partition's segments, as a sequence and as arrays: a `span` (start, count) of `rows`, then the `tail`."""

    __slots__ = ("_arrays", "_cached", "_count", "_first", "_rows", "_tail")

    def __init__(
        self, rows: pa.RecordBatch, tail: tuple[SegmentInfo, ...] = (), span: tuple[int, int] | None = None
    ) -> None:
        self._rows, self._tail = rows, tail
        self._first, self._count = span or (0, len(rows))
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._cached: dict[int, SegmentInfo] = {}

    @classmethod
    def of(cls, segments: Sequence[SegmentInfo]) -> SegmentTable:
        """The table of `segments`, which must be in the order of their offsets."""
        return cls(to_rows(segments))

    @classmethod
    def joined(cls, tables: Sequence[SegmentTable]) -> SegmentTable:
        """The segments of at least one table, in their order; not copied if they are adjacent in the same rows."""
        rows = tables[0]._rows
        if any(table._rows is not rows or table._tail for table in tables):
            return cls(join([table.columns() for table in tables]))
        firsts, counts = np.array([(table._first, table._count) for table in tables]).T
        if (firsts[1:] == (firsts + counts)[:-1]).all():
            return cls(rows, span=(int(firsts[0]), int(counts.sum())))
        row_numbers = np.concatenate([np.arange(table._first, table._first + table._count) for table in tables])
        return cls(rows.take(integers(row_numbers)))

    @staticmethod
    def batches(tables: Sequence[SegmentTable]) -> list[pa.RecordBatch]:
        """The segments of all tables as few batches of SCHEMA, in any order, since each batch is slow to begin."""
        tails = [segment for table in tables for segment in table._tail]
        return [*(table._columns for table in tables if table._count), *([to_rows(tails)] if tails else [])]

    def columns(self) -> pa.RecordBatch:
        columns = self._columns
        return join([columns, to_rows(self._tail)]) if self._tail else columns

    @property
    def _columns(self) -> pa.RecordBatch:
        return self._rows if self._count == len(self._rows) else self._rows.slice(self._first, self._count)

    base_offsets = _column("base_offset")
    # ascending, never past the next base offset
    next_offsets = _column("next_offset")
    log_bytes = _column("log_bytes")
    record_counts = _column("record_count")
    # in ms; -1 if unknown, or where no record has a time
    min_timestamps = _column("min_timestamp")
    max_timestamps = _column("max_timestamp")

    def array(self, name: str) -> npt.NDArray[Any]:
        """The column `name` of SCHEMA, of numbers or flags; faster than `columns` if the tail is long."""
        if name not in self._arrays:
            column = self._rows[name]
            if column.type == pa.bool_():
                array = flags_of(column.slice(self._first, self._count))
            else:
                array = numbers_of(column)[self._first : self._first + self._count]
            if self._tail:
                values = [getattr(segment, name) for segment in self._tail]
                array = np.concatenate([array, np.array(values, array.dtype)])
            array.flags.writeable = False
            self._arrays[name] = array
        return self._arrays[name]

    def find(self, offset: int) -> int:
        """The index of the first segment that ends past `offset`; `len(self)` if none does."""
        return int(self.next_offsets.searchsorted(offset, side="right"))

    def part(self, start: int, end: int) -> SegmentTable:
        """The segments `start` to `end - 1` of this table, as a table; makes no SegmentInfo."""
        split = self._count
        first = min(start, split)
        tail = self._tail[max(0, start - split) : max(0, end - split)]
        return self._with(tail, first, min(end, split) - first)

    def _with(self, tail: tuple[SegmentInfo, ...], first: int = 0, count: int | None = None) -> SegmentTable:
        new_count = (self._count - first) if count is None else count
        return SegmentTable(self._rows, tail, (self._first + first, new_count))

    def appended(self, segments: Sequence[SegmentInfo]) -> SegmentTable:
        """Return this table with `segments` after it; raises ValueError for a segment that it has already."""
        if not segments:
            return self
        stems = {segment.stem for segment in segments}
        if len(stems) < len(segments) or self.common_stems(stems):
            raise ValueError("a segment is added twice")
        grown = self._with((*self._tail, *segments))
        return grown if len(grown._tail) <= TAIL_LIMIT else SegmentTable(grown.columns())

    def with_active(self, segment: SegmentInfo) -> SegmentTable:
        return self._with((*self._tail, segment))

    def without_active(self) -> SegmentTable:
        return self._with(self._tail[:-1]) if self._has_active else self

    @property
    def _has_active(self) -> bool:
        return bool(self._tail) and self._tail[-1].is_active

    def replaced(
        self, stems: Collection[str], segments: Sequence[SegmentInfo], front: tuple[int, int] | None = None
    ) -> SegmentTable:
        """This table without `stems`, and with `segments` in their holes or in `front`, a range before the table."""
        count = len(stems)
        oldest = self._rows["stem"].slice(self._first, min(count, self._count))
        if not segments and set(oldest.to_pylist()) == set(stems):
            return self._with(self._tail, count)  # retention removes the oldest segments: no row is copied
        columns = self.columns()
        is_removed = flags_of(pc.is_in(columns["stem"], value_set=texts([*stems])))
        if np.count_nonzero(is_removed) != count:
            raise ValueError("a removed segment is not live")
        added = sorted(segments, key=lambda segment: segment.base_offset)
        # `check_fit` gets the segments as ranges of offsets, of which the removed ones are free
        starts, ends, is_free = self.base_offsets, self.next_offsets, is_removed
        if front is not None:  # a free range up to the first segment
            ends = np.append(min([front[1], *starts[:1].tolist()]), ends)
            starts, is_free = np.append(front[0], starts), np.append(True, is_free)
        partitions = np.full(len(starts), added[0].partition if added else 0)
        check_fit(to_rows(added), partitions, starts, ends, is_free)
        remaining = SegmentTable(columns.filter(booleans(~is_removed))).appended(added).columns()
        return SegmentTable(remaining.take(pc.sort_indices(remaining["base_offset"])))

    def common_stems(self, stems: Collection[str]) -> set[str]:
        """Return the stems, among `stems`, that name a segment of this table."""
        # without a Python function for each segment of the tail: each append does this for each partition
        common = set(stems).intersection(map(_STEM, self._tail))
        if self._count:
            column = self._rows["stem"].slice(self._first, self._count)
            if self._count > _FEW_VALUES:
                column = column.filter(pc.is_in(column, value_set=texts([*stems])))
            common.update({*stems}.intersection(column.to_pylist()))
        return common

    def __len__(self) -> int:
        return self._count + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> SegmentInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[SegmentInfo]: ...

    def __getitem__(self, index: int | slice) -> SegmentInfo | list[SegmentInfo]:
        if isinstance(index, slice):
            return self._segments_at(range(*index.indices(len(self))))
        number = index if index >= 0 else index + len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"segment {index} of {len(self)}")
        segment = self._cached.get(number)
        if segment is None:
            segment = self._segments_at(range(number, number + 1))[0]
            if len(self._cached) >= CACHED_SEGMENTS:
                self._cached = {}
            self._cached[number] = segment
        return segment

    def _segments_at(self, numbers: range) -> list[SegmentInfo]:
        if not numbers:
            return []
        low, high, split = min(numbers), max(numbers) + 1, self._count
        segments = to_segments(self._rows.slice(self._first + low, min(high, split) - low)) if low < split else []
        segments += self._tail[max(0, low - split) : max(0, high - split)]
        return [segments[number - low] for number in numbers]

    def __iter__(self) -> Iterator[SegmentInfo]:
        for start in range(0, self._count, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, self._count - start)
            yield from to_segments(self._rows.slice(self._first + start, count))
        yield from self._tail

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SegmentTable) or len(self) != len(other):
            return False
        if (self._tail or other._tail) and len(self) <= _FEW_VALUES:
            # columns of a tail take several times as long
            return [*self] == [*other]
        return self._has_active == other._has_active and bool(self.columns().equals(other.columns()))

    def __hash__(self) -> int:
        return hash(len(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrow pickles the whole buffers that a slice points into; its own messages hold the slice.
        return _restore, (self._columns.serialize().to_pybytes(), self._tail)


def check_append_times(partitions: Longs, times: npt.NDArray[Any]) -> None:
    """Raise ValueError if the append `times` of a partition's segments decrease; `partitions` has each segment's."""
    partitions, times = partitions[times >= 0], times[times >= 0]
    if ((partitions[1:] == partitions[:-1]) & (times[1:] < times[:-1])).any():
        raise ValueError("a segment was appended before the previous segment")


def check_fit(
    added: pa.RecordBatch, partitions: Longs, starts: npt.NDArray[Any], ends: npt.NDArray[Any], is_free: Flags
) -> None:
    """Raise ValueError unless each `added` segment fits into a hole: adjacent free ranges of its partition.

    `starts`, `ends`, `is_free` and `partitions` describe the ranges; all rows are sorted by partition and offset.
    """
    if not len(added):
        return
    names = ("partition", "base_offset", "next_offset")
    added_partitions, bases, next_offsets = (numbers_of(added[name]) for name in names)
    # join adjacent free ranges to holes: `firsts` come after a used range or another partition, `lasts` before one
    is_first = np.append(True, partitions[1:] != partitions[:-1])
    firsts = np.flatnonzero(is_free & (is_first | np.append(True, ~is_free[:-1])))
    lasts = np.flatnonzero(is_free & (np.append(is_first[1:], True) | np.append(~is_free[1:], True)))
    hole_partitions, hole_starts, hole_ends = partitions[firsts], starts[firsts], ends[lasts]
    # For each added segment, the last hole that begins at or before it, or -1: sort holes and segments together by
    # partition and start, a hole before a segment with the same start, and count the holes up to each segment
    is_added = np.append(np.zeros(len(firsts), bool), np.ones(len(bases), bool))
    order = np.lexsort((is_added, np.append(hole_starts, bases), np.append(hole_partitions, added_partitions)))
    holes = (np.cumsum(~is_added[order]) - 1)[is_added[order]]
    # the segment must end in this hole, and begin after the previous added segment
    fits = holes >= 0
    fits[fits] = (hole_partitions[holes[fits]] == added_partitions[fits]) & (
        next_offsets[fits] <= hole_ends[holes[fits]]
    )
    fits[1:] &= (added_partitions[1:] != added_partitions[:-1]) | (bases[1:] >= next_offsets[:-1])
    if not fits.all():
        raise ValueError(f"segment {added['stem'][int(fits.argmin())]} does not fit into a hole of this commit")


def _arrow_type(check: object) -> pa.DataType:
    if isinstance(check, Integer):
        return pa.int64()
    return pa.bool_() if check is boolean else pa.string()


SCHEMA = pa.schema([(name, _arrow_type(check)) for name, check in checks(SegmentInfo).items()])
_NUMBERS = [spec.name for spec in SCHEMA if spec.type == pa.int64()]
_DEFAULTS = {spec.name: spec.default for spec in dataclasses.fields(SegmentInfo) if spec.default is not MISSING}
REMOVED_SCHEMA = pa.schema([("partition", pa.int64()), ("stem", pa.string())])
NO_SEGMENTS = SegmentTable(no_rows(SCHEMA))


def _restore(columns: bytes, tail: tuple[SegmentInfo, ...]) -> SegmentTable:
    return SegmentTable(pa.ipc.read_record_batch(pa.py_buffer(columns), SCHEMA), tail)


#: The getter and the constructor of each column that has no numbers, kept here: SCHEMA's fields are slow to read.
_MAKERS = {
    spec.name: (attrgetter(spec.name), booleans if spec.type == pa.bool_() else texts)
    for spec in SCHEMA
    if spec.name not in _NUMBERS
}


def to_rows(segments: Sequence[SegmentInfo], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """The segments as one batch of SCHEMA, or of a `schema` with some of its columns."""
    if isinstance(segments, SegmentTable):
        return segments.columns().select(schema.names)
    numbers = _columns_of_numbers(segments, [name for name in schema.names if name not in _MAKERS])
    columns = []
    for name in schema.names:
        if name in _MAKERS:
            get, make = _MAKERS[name]
            columns.append(make(list(map(get, segments))))
        else:
            columns.append(next(numbers))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _columns_of_numbers(segments: Sequence[SegmentInfo], names: Sequence[str]) -> Iterator[pa.Array]:
    """Yield these columns, from one block of memory: for few segments, this takes a third of the time."""
    count = len(segments)
    rows = np.array(list(map(attrgetter(*names), segments))).reshape(count, len(names))
    memory = integers(rows.T.ravel()).buffers()[1]
    for number in range(len(names)):
        yield pa.Array.from_buffers(pa.int64(), count, [None, memory.slice(8 * count * number, 8 * count)])


# The constructor of a frozen dataclass takes three times as long, and a scan may make a hundred thousand segments.
_SET_FIELDS = [getattr(SegmentInfo, name).__set__ for name in SCHEMA.names]
_SET_ACTIVE = vars(SegmentInfo)["is_active"].__set__


def to_segments(columns: pa.RecordBatch) -> list[SegmentInfo]:
    segments = [object.__new__(SegmentInfo) for _ in range(len(columns))]
    for set_field, column in zip(_SET_FIELDS, columns.columns, strict=True):
        deque(map(set_field, segments, column.to_pylist()), maxlen=0)  # `map` and `deque` call no Python function
    deque(map(_SET_ACTIVE, segments, repeat(False)), maxlen=0)
    return segments


def of_numbers(
    columns: Mapping[str, npt.ArrayLike], stem: str | pa.Array, compression: str | pa.Array
) -> pa.RecordBatch:
    """Segments as a batch of SCHEMA. A single stem or compression applies to all; other columns are defaults or 0."""
    count = len(np.asarray(columns["partition"]))
    arrays = []
    for spec in SCHEMA:
        if spec.type == pa.string():
            value = stem if spec.name == "stem" else compression
            every_row = integers(np.zeros(count, np.int64))
            arrays.append(value if isinstance(value, pa.Array) else texts([value]).take(every_row))
        else:
            make = booleans if spec.type == pa.bool_() else integers
            arrays.append(make(np.broadcast_to(columns.get(spec.name, _DEFAULTS.get(spec.name, 0)), count)))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def with_numbers(rows: pa.RecordBatch, columns: Mapping[str, npt.ArrayLike]) -> pa.RecordBatch:
    """The `rows` (of SCHEMA) with the numbers of `columns`."""
    arrays = [
        integers(columns[name]) if name in columns else column
        for name, column in zip(SCHEMA.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def moved(rows: pa.RecordBatch, base_offsets: Longs) -> pa.RecordBatch:
    """The rows with other base offsets, as `SegmentInfo.moved_to` returns one segment."""
    shifts = base_offsets - numbers_of(rows["base_offset"])
    numbers = {name: numbers_of(rows[name]) for name in ("offset_of_max_timestamp", "first_unstable_offset")}
    moved_offsets = {name: np.where(column >= 0, column + shifts, column) for name, column in numbers.items()}
    next_offsets = numbers_of(rows["next_offset"]) + shifts
    return with_numbers(rows, {"base_offset": base_offsets, "next_offset": next_offsets, **moved_offsets})


def appended_at(rows: pa.RecordBatch, is_appended: Flags, time_ms: int) -> pa.RecordBatch:
    """The rows; those with `is_appended` get `time_ms` as the time of all their records."""
    names = ("append_time_ms", "first_timestamp", "min_timestamp", "max_timestamp")
    timed = {name: np.where(is_appended, time_ms, numbers_of(rows[name])) for name in names}
    newest = np.where(is_appended, numbers_of(rows["base_offset"]), numbers_of(rows["offset_of_max_timestamp"]))
    return with_numbers(rows, {**timed, "offset_of_max_timestamp": newest})


def check_rows(rows: pa.RecordBatch) -> None:
    """Raise ValueError unless each row of a batch of SCHEMA is a segment."""
    for name, check in checks(SegmentInfo).items():
        fields.check_column(name, rows[name], check)
    numbers = SimpleNamespace(**{name: numbers_of(rows[name]) for name in _NUMBERS})
    for contradiction, is_wrong in _contradictions(numbers).items():
        if is_wrong.any():
            raise ValueError(f"segment {rows['stem'][int(is_wrong.argmax())]} {contradiction}")
    for stem in pc.unique(rows["stem"].filter(booleans(numbers.log_position >= 0))).to_pylist():
        _check_bundled(stem)
