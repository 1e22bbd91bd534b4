"""The batch source: the driver divides a topic into splits, and each task reads a split as Arrow batches."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import chain, pairwise
from math import ceil
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.datasource import DataSourceReader, InputPartition

from distlog.core.arrays import integers, new_array, numbers_of, texts
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidConfigError, InvalidRecordError, TopicNotFoundError
from distlog.core.format.indexes import IndexCache
from distlog.core.format.kernels.record_scan import to_microseconds
from distlog.core.log.live_snapshot import with_tails
from distlog.core.read.conditions import Conditions
from distlog.core.read.scan import plan_slices
from distlog.core.segments.chunks import Isolation, SegmentSlice, split_by_bytes
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle, read_slices, topic_log
from distlog.core.storage.calls import process_lock
from distlog.core.storage.storage import Storage
from distlog.core.tiered.tiered_storage import TieredStorage
from distlog.core.tiered.tiered_storage import load as load_tiered
from distlog.core.write.rows import IGNORED_COLUMNS, unknown_columns_text
from distlog.spark.options import ReadOptions, exclude_from_gc, read_bounds
from distlog.spark.versions import arrow_schema, map_in_arrow

HEADERS = types.ArrayType(
    types.StructType([types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())])
)
_HEADERS_TYPES = (HEADERS.simpleString(), HEADERS.simpleString().replace("binary", "string"))
TYPES: Mapping[str, types.DataType] = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestampType": types.IntegerType(),
    "headers": HEADERS,
}
#: The columns that can be appended, and their types. The other columns of a read are ignored.
_WRITABLE: Mapping[str, tuple[type[types.DataType], ...]] = {
    "key": (types.BinaryType, types.StringType),
    "value": (types.BinaryType, types.StringType),
    "timestamp": (types.TimestampType, types.LongType),
    "headers": (types.ArrayType,),
    "partition": (types.IntegerType, types.LongType, types.ShortType, types.ByteType),
}
#: The core's name of each column, by Spark's name. `topic` is missing, since no record holds the topic's name.
_CORE_NAMES = {name: "timestamp_type" if name == "timestampType" else name for name in TYPES if name != "topic"}
SPARK_NAMES = {core_name: name for name, core_name in _CORE_NAMES.items()}
#: The usual sizes of splits. To start a task takes 20 to 60 ms; large splits leave cores idle at the job's end.
MIN_BYTES = 64 << 20
MAX_BYTES = 128 << 20
SPLITS_PER_CORE = 4
#: The bytes of a row of one long in Spark's estimates.
_LONG_ROW_BYTES = 16
#: The types whose values vary in size; a column of another type has 8 bytes in a row of Spark.
_VARIABLE_SIZE_TYPES = (types.BinaryType, types.ArrayType)
#: The assumed ratio of a record's size to its compressed size. It is high: an estimate that is too large makes a join
#: slow, but one that is too small makes Spark broadcast too many rows, and fail.
_ASSUMED_COMPRESSION_RATIO = 4
#: The most rows that `DataFrame.limit` accepts. Spark estimates 34 GB for these; more would not change a plan.
_MAX_ROWS = 2**31 - 1
#: The topics that KnownTopics keeps: a snapshot of 100,000 segments takes about 30 MB.
MAX_TOPICS = 8
#: The sink may plan a micro-batch without the commits of the last RECENT_MS; the commit of the batch reads them.
RECENT_MS = 1000
T = TypeVar("T")


def schema_of(columns: Sequence[str] | None, include_headers: bool) -> types.StructType:
    """Return the schema of a read: `columns`, or all columns, without headers unless `include_headers`."""
    names = columns or [name for name in TYPES if include_headers or name != "headers"]
    for name in names:
        if name not in TYPES:
            raise InvalidConfigError(f"there is no column {name}: choose from {', '.join(TYPES)}")
    if len(set(names)) < len(names):
        raise InvalidConfigError("name each column once", columns=",".join(names))
    return types.StructType([types.StructField(name, TYPES[name]) for name in names])


def check_schema(schema: types.StructType) -> None:
    """Raise InvalidConfigError unless each field of a user's schema is a column of a read, by name and type."""
    schema_of(schema.names, include_headers=True)
    for field in schema:
        if field.dataType != TYPES[field.name]:
            expected, got = TYPES[field.name].simpleString(), field.dataType.simpleString()
            raise InvalidConfigError(f"column {field.name} must be {expected}, not {got}; cast it after the read")
        if field.name in ("key", "value") and not field.nullable:
            raise InvalidConfigError(f"column {field.name} can hold nulls: declare it nullable")


def check_writable(schema: types.StructType, config: TopicConfig) -> None:
    if unknown := set(schema.names).difference(_WRITABLE, IGNORED_COLUMNS):
        raise InvalidRecordError(unknown_columns_text(unknown, _WRITABLE))
    if len(set(schema.names)) < len(schema.names):
        raise InvalidRecordError("name each column once", columns=",".join(schema.names))
    for field in schema:
        if field.name in IGNORED_COLUMNS:
            continue
        accepted, type_text = _WRITABLE[field.name], field.dataType.simpleString()
        if not isinstance(field.dataType, accepted) or (field.name == "headers" and type_text not in _HEADERS_TYPES):
            expected = " or ".join(kind.typeName() for kind in accepted)
            raise InvalidRecordError(f"column {field.name} must be {expected}", type=type_text)
    required = ["value", "key"] if "compact" in config.cleanup_policy else ["value"]
    for name in required:
        if name not in schema.names:
            raise InvalidRecordError(f"the data has no column {name}: add it", columns=",".join(schema.names))


def spark_batches(
    batches: Iterable[pa.RecordBatch], topic: str, columns: types.StructType
) -> Iterator[pa.RecordBatch]:
    """Yield records with Spark's columns. Raises InvalidRecordError for a time that Spark cannot hold."""
    schema, topics = arrow_schema(columns), pa.nulls(0, pa.string())
    for batch in batches:
        if len(topics) < batch.num_rows and "topic" in schema.names:
            topics = texts([topic]).take(integers(np.zeros(batch.num_rows, np.int64)))  # the name for each row
        arrays = [
            topics.slice(0, batch.num_rows)
            if field.name == "topic"
            else _spark_column(field.name, batch.column(_CORE_NAMES[field.name]), field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _spark_column(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    if name == "timestamp":
        return _to_microseconds(column, kind)
    return _headers_without_nulls(column, kind) if name == "headers" else column


def _to_microseconds(column: pa.Array, kind: pa.DataType) -> pa.Array:
    times = numbers_of(column.view(pa.int64()))
    converted = new_array(times.size, np.int64)
    if not to_microseconds(times, converted):
        text = "a timestamp is beyond what Spark can hold; read without it, as in option('columns', 'offset,value')"
        raise InvalidRecordError(text, timestamp_ms=max(times.tolist(), key=abs))
    return pa.Array.from_buffers(kind, times.size, [None, pa.py_buffer(converted)], 0)


def _headers_without_nulls(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Replace nulls by empty lists, since Spark takes quadratic time for runs of null arrays."""
    names, values = column.values.flatten()
    entries = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(column.offsets, entries, type=kind)


class Split(InputPartition):
    """The slices (parts of segments) that a task reads in order, and the isolation, which filters their batches."""

    def __init__(self, slices: Sequence[SegmentSlice], isolation: Isolation) -> None:
        super().__init__(None)
        self.slices, self.isolation = list(slices), isolation

    def __repr__(self) -> str:
        return f"Split(segments={len(self.slices)}, bytes={_total_bytes(self.slices)})"


@dataclass(frozen=True, slots=True)
class SplitSize:
    """The size of splits: for `cores` cores, at least `min_splits` splits, at most `max_records` records each."""

    cores: int
    min_splits: int | None = None
    max_records: int | None = None

    def target_bytes(self, total_bytes: int) -> int:
        """Return the log bytes of one split, for equal work on all cores, also in the last round of tasks."""
        split_bytes = min(max(ceil(total_bytes / (SPLITS_PER_CORE * self.cores)), MIN_BYTES), MAX_BYTES)
        count = ceil(total_bytes / split_bytes)
        if count > self.cores:
            # a multiple of the cores; rounded down if rounding up makes splits smaller than MIN_BYTES
            count = ceil(count / self.cores) * self.cores
            if total_bytes < count * MIN_BYTES:
                count -= self.cores
        return max(ceil(total_bytes / max(count, self.min_splits or 1)), 1)


def _total_bytes(slices: Iterable[SegmentSlice]) -> int:
    return sum(segment_slice.estimated_bytes for segment_slice in slices)


def divide(slices: Sequence[SegmentSlice], size: SplitSize) -> list[list[SegmentSlice]]:
    """Return the slices of each split, in order, cut where needed. No split is empty."""
    split_bytes = size.target_bytes(_total_bytes(slices))
    cuts = [cut for segment_slice in slices for cut in _cut_by_offsets(segment_slice, split_bytes, size.max_records)]
    groups = split_by_bytes(cuts, split_bytes)
    if size.max_records is None:
        return groups
    smaller = (grouped(group, lambda cut: cut.end_offset - cut.start_offset, size.max_records) for group in groups)
    return list(chain.from_iterable(smaller))


def grouped(items: Iterable[T], size_of: Callable[[T], int], max_size: int) -> Iterator[list[T]]:
    """Yield adjacent items in groups of a total size up to `max_size`; a larger item is a group by itself."""
    group, total = list[T](), 0
    for item in items:
        if group and total + size_of(item) > max_size:
            yield group
            group, total = [], 0
        group.append(item)
        total += size_of(item)
    if group:
        yield group


def _cut_by_offsets(segment_slice: SegmentSlice, split_bytes: int, max_records: int | None) -> Iterator[SegmentSlice]:
    """Cut a part of a segment, or any slice if the records are limited, into equal ranges of offsets."""
    # `split_by_bytes` cuts whole segments
    start = max(segment_slice.start_offset, segment_slice.segment.base_offset)
    end = min(segment_slice.end_offset, segment_slice.segment.next_offset)
    count = 1 if segment_slice.covers_segment else max(1, round(segment_slice.estimated_bytes / split_bytes))
    if max_records is not None:
        count = max(count, ceil((end - start) / max_records))
    edges = [start + (end - start) * index // count for index in range(count + 1)]
    return (segment_slice._replace(start_offset=low, end_offset=high) for low, high in pairwise(edges))


def load_snapshot(options: ReadOptions) -> Snapshot:
    """Load the topic at its newest version, with the active segments' records, or at the options' version or time."""
    if isinstance(options.storage, TieredStorage):
        return load_tiered(options.storage)
    if options.version is None and options.timestamp_ms is None:
        return with_tails(*KNOWN_TOPICS.load(options.storage))
    log = topic_log(options.storage)
    return load_version(log, options.storage, version=options.version, timestamp_ms=options.timestamp_ms)


class SplitReader:
    """Reads splits in a task, as rows of a schema; `prefix` begins the partitions' folder names. Reads no commit."""

    def __init__(self, storage: Storage, prefix: str, schema: types.StructType) -> None:
        self._storage, self._prefix, self._schema = storage, prefix, schema

    def read(self, task: Split) -> Iterator[pa.RecordBatch]:
        reader = SegmentReader(self._storage, self._prefix, IndexCache())
        columns = [_CORE_NAMES[name] for name in self._schema.names if name in _CORE_NAMES]
        # one thread, since Spark runs a task for each core already
        batches = read_slices(reader, task.slices, columns, task.isolation, max_workers=1)
        for batch in spark_batches(batches, self._storage.name, self._schema):
            yield batch
            exclude_from_gc()


class DistlogReader(DataSourceReader):
    """Plans one batch read in the driver, and reads its splits in tasks, which get no options and no snapshot."""

    def __init__(self, options: ReadOptions, snapshot: Snapshot, schema: types.StructType) -> None:
        self._options: ReadOptions | None = options
        self._snapshot: Snapshot | None = snapshot
        self._splits = SplitReader(options.storage, snapshot.name, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": None, "_snapshot": None}

    def partitions(self) -> list[InputPartition]:
        options, snapshot = self._options, self._snapshot
        if options is None or snapshot is None:
            raise RuntimeError("this copy of the reader was sent to a task: only the driver's object plans reads")
        reader = SegmentReader(options.storage, snapshot.name, IndexCache())
        bounds = read_bounds(reader, snapshot, options)
        conditions = self._conditions(frozenset(bounds))
        slices, isolation = plan_slices(
            reader,
            snapshot,
            conditions.narrow(bounds),
            options.isolation,
            times=options.times.within(conditions.times),
            keys=conditions.key_array(),
        )
        size = SplitSize(os.cpu_count() or 1, options.min_partitions, options.max_records)
        return [Split(group, isolation) for group in divide(slices, size)]

    def _conditions(self, partitions: frozenset[int]) -> Conditions:
        keys = None if self._options is None else self._options.keys
        return Conditions(partitions, keys=keys)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # without splits, Spark makes a partition itself
        return self._splits.read(partition) if isinstance(partition, Split) else iter(())


def read_splits(
    spark: SparkSession, storage: Storage, prefix: str, schema: types.StructType, splits: Sequence[Split]
) -> DataFrame:
    """Return the records of `splits` as a DataFrame, a third faster than the data source. A task reads one split."""
    reader = SplitReader(storage, prefix, schema)
    # each task gets all splits as bytes, and unpickles only the split that it reads
    pickled = list(map(pickle.dumps, splits))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from reader.read(pickle.loads(pickled[number]))

    return map_in_arrow(_numbers(spark, len(splits), row_bytes(schema, splits)), read, schema)


def row_bytes(schema: types.StructType, splits: Iterable[Split]) -> int:
    """Estimate the size of the rows of `splits` in Spark's memory from metadata."""
    slices = [segment_slice for task in splits for segment_slice in task.slices]
    # 8 bytes for a row, as in Spark's estimates, and 8 for each of its columns
    size = sum(segment_slice.estimated_records for segment_slice in slices) * 8 * (1 + len(schema))
    if any(isinstance(field.dataType, _VARIABLE_SIZE_TYPES) for field in schema):
        for segment_slice in slices:
            is_compressed = segment_slice.segment.compression != "none"
            size += segment_slice.estimated_bytes * (_ASSUMED_COMPRESSION_RATIO if is_compressed else 1)
    return size


def _numbers(spark: SparkSession, count: int, size: int) -> DataFrame:
    """Return a frame of the numbers 0 to `count` - 1, each in a task, that Spark estimates at `size` bytes."""
    rows = max(size // _LONG_ROW_BYTES, 1)
    if spark.conf.get("spark.sql.cbo.enabled") == "true":
        # Filter the first row of each task from a large range: the cost-based planner does not know how few rows pass
        # the filter, and so counts all. The lower 33 bits of this id number the rows of a task.
        is_first_row = F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1) == 0
        all_rows = spark.range(0, max(rows, count) if count else 0, numPartitions=max(count, 1))
        return all_rows.where(is_first_row).select(F.spark_partition_id().cast(types.LongType()).alias("id"))
    if count == 0:
        return spark.range(0, 0, numPartitions=1)
    # explode the last number to one row, and limit it to `rows`: Spark cannot estimate an explode, so it expects all
    last = spark.range(count - 1, count, numPartitions=1).select(F.explode(F.array("id")).alias("id"))
    last = last.limit(min(rows, _MAX_ROWS))
    return last if count == 1 else spark.range(0, count - 1, numPartitions=count - 1).union(last)


class FilteringReader(DistlogReader):
    """Bounds a read by filters. Not the default, since Spark 4.3.0 applies a frame's first filters to later uses."""

    _filters: tuple[Any, ...] = ()

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        self._filters = tuple(filters)
        # Spark applies all filters to each row again, so `_conditions` may leave out filters
        return filters

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_filters": ()}

    def _conditions(self, partitions: frozenset[int]) -> Conditions:
        conditions = super()._conditions(partitions)
        for pushed in self._filters:
            operator = _OPERATORS.get(type(pushed).__name__)
            if operator is None:
                continue
            values = pushed.value if operator == "in" else (pushed.value,)
            limits = [limit for value in values if (limit := _compared_value(pushed.attribute, value)) is not None]
            if limits and len(limits) == len(values):
                conditions = conditions.compared(pushed.attribute[0], operator, limits)
        return conditions


#: The operators of conditions by the names of Spark's filters.
_FILTERS = ("EqualTo", "In", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual")
_OPERATORS = dict(zip(_FILTERS, ("=", "in", "<", "<=", ">", ">="), strict=True))
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _compared_value(attribute: tuple[str, ...], value: object) -> int | bytes | None:
    """Return the value of a filter in the form of `Conditions`; None for a column or type that they lack."""
    if attribute == ("key",):
        return bytes(value) if isinstance(value, bytes | bytearray) else None
    if attribute == ("partition",) or attribute == ("offset",):
        return value if type(value) is int else None
    # a time without a zone would be in the session's zone
    if attribute == ("timestamp",) and isinstance(value, datetime) and value.tzinfo:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return None


class KnownTopics:
    """The topics that this Python process used last, so that it need not load them again; safe between threads."""

    def __init__(self) -> None:
        self._lock = process_lock()
        self._loaded: dict[bytes, tuple[CommitLog, Snapshot]] = {}

    def load(self, storage: Storage, *, recent_ms: int = 0) -> tuple[TopicHandle, Snapshot]:
        """Load the newest snapshot, or an earlier one whose last commit is at most `recent_ms` old."""
        log, newest = self._loaded.get(_key(storage), (None, None))
        log = log or topic_log(storage, engine="spark")
        try:
            snapshot = load_version(log, storage, cached=newest, recent_ms=recent_ms)
        except TopicNotFoundError:
            with self._lock:  # a later topic at this address is another topic
                self._loaded.pop(_key(storage), None)
            raise
        handle = TopicHandle.of(storage, snapshot.name, log)
        self.keep(handle, snapshot)
        return handle, snapshot

    def load_planned(self, storage: Storage, topic_id: str, version: int) -> tuple[TopicHandle, Snapshot]:
        """Load a snapshot of `version` or later; no request if this process has one."""
        log, newest = self._loaded.get(_key(storage), (None, None))
        if log is None or newest is None or newest.topic_id != topic_id or newest.version < version:
            return self.load(storage)
        return TopicHandle.of(storage, newest.name, log), newest

    def keep(self, handle: TopicHandle, snapshot: Snapshot) -> None:
        key = _key(handle.storage)
        with self._lock:
            self._loaded.pop(key, None)
            self._loaded[key] = handle.log, snapshot
            while len(self._loaded) > MAX_TOPICS:
                del self._loaded[next(iter(self._loaded))]


def load_version(log: CommitLog, storage: Storage, **version_options: Any) -> Snapshot:
    """Load a snapshot; a TopicNotFoundError names the topics under the address."""
    try:
        return log.load(**version_options)
    except TopicNotFoundError:
        # imported here, since each stream would wait for the import
        from distlog.core.opening import naming_topics

        with naming_topics(storage):
            raise


def _key(storage: Storage) -> bytes:
    # not `pickle`: options may have functions of a notebook
    key: bytes = cloudpickle.dumps(storage)  # type: ignore[no-untyped-call]
    return key


KNOWN_TOPICS = KnownTopics()
