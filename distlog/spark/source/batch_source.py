"""The batch source: the driver turns a snapshot and options into splits, tasks turn splits into Arrow batches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from distlog.core.indexes.index_cache import IndexCache
from distlog.core.reading import scan_plan
from distlog.core.reading.pipeline import read
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.time_lookup import EARLIEST, LATEST, offset_for_time
from distlog.core.reading.time_range import TimeRange
from distlog.core.storage.storage import Storage
from distlog.spark.source.kafka_rows import RowFormat
from distlog.spark.source.read_options import Bound, ReadOptions
from distlog.spark.source.splits import Split, SplitSize, split
from distlog.spark.tasks.worker import freeze_imports

#: The offsets (start, end), by partition.
Ranges = Mapping[int, tuple[int, int]]


class SplitReader:
    """Runs in a task: reads splits of one topic as rows of one schema. It is small to pickle, and reads no commit."""

    def __init__(self, storage: Storage, topic: str, schema: StructType) -> None:
        self._storage, self._topic = storage, topic
        self._format = RowFormat(topic, schema)

    def read(self, part: Split) -> Iterator[pa.RecordBatch]:
        """The records of a split in batches of some MB.

        Raises CorruptRecordError, and SnapshotTooOldError for a file that vacuum has deleted since the snapshot.
        """
        reader = SegmentReader(self._storage, self._topic, IndexCache())
        # one thread, since Spark runs a task for each core already
        batches = read(reader, part.slices, self._format.stored_columns, part.isolation, max_workers=1)
        for batch in self._format.format(batches):
            yield batch
            freeze_imports()


class DistlogReader(DataSourceReader):
    """One read, as Spark sees it. State that only the planner needs is not sent to the tasks."""

    def __init__(self, options: ReadOptions, snapshot: Snapshot, schema: StructType) -> None:
        self._options: ReadOptions | None = options
        self._snapshot: Snapshot | None = snapshot
        self._splits = SplitReader(options.storage, snapshot.name, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": None, "_snapshot": None}

    def partitions(self) -> list[InputPartition]:
        """The splits of the read, from metadata and indexes alone."""
        options, snapshot = self._options, self._snapshot
        if options is None or snapshot is None:
            raise RuntimeError("a reader plans in the driver only")
        reader = SegmentReader(options.storage, snapshot.name, IndexCache())
        bounds, times = self._narrow(read_bounds(reader, snapshot, options), options.times)
        slices, isolation = scan_plan.plan(reader, snapshot, bounds, options.isolation, times=times)
        size = SplitSize(os.cpu_count() or 1, options.min_partitions, options.max_records)
        return [Split(group, isolation) for group in split(slices, size)]

    def _narrow(self, bounds: Ranges, times: TimeRange) -> tuple[Ranges, TimeRange]:
        return bounds, times

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, or no rows if there was nothing to plan and so `partition` is no split."""
        return self._splits.read(partition) if isinstance(partition, Split) else iter(())


def read_bounds(reader: SegmentReader, snapshot: Snapshot, options: ReadOptions) -> dict[int, tuple[int, int]]:
    """The offsets (start, end), by partition, that the options mean at `snapshot`.

    Raises InvalidConfigError for options that do not fit the topic, and OffsetOutOfRangeError for offsets that the
    topic does not have. If `failOnDataLoss` is false, the offsets are cut to those that the topic has instead.
    """
    partitions = _partitions(snapshot, options)
    for bound in (options.start, options.end):
        if not isinstance(bound.value, int):
            bound.value.check(snapshot.name, partitions, bound.option)
    return {number: _range(reader, snapshot.partitions[number], number, options) for number in sorted(partitions)}


def _partitions(snapshot: Snapshot, options: ReadOptions) -> set[int]:
    if options.subscribed not in (None, snapshot.name):
        raise InvalidConfigError(
            "option subscribe must name the topic of the path", subscribe=options.subscribed, topic=snapshot.name
        )
    every = set(range(len(snapshot.partitions)))
    if options.assigned is None:
        return every
    assigned = set(options.assigned.numbers)
    if options.assigned.topic != snapshot.name or not assigned <= every:
        raise InvalidConfigError(
            "option assign must name this topic and partitions that it has",
            topic=snapshot.name,
            partitions=len(every),
        )
    return assigned


def _range(reader: SegmentReader, state: PartitionState, partition: int, options: ReadOptions) -> tuple[int, int]:
    start = _start(reader, state, partition, options)
    end = _end(reader, state, partition, options)
    low, high = state.log_start_offset, state.log_end_offset
    for offset in (start, end) if options.fail_on_data_loss else ():
        if not low <= offset <= high:
            raise OffsetOutOfRangeError(
                "the partition does not hold this offset: ask for one between its bounds, or set "
                "failOnDataLoss=false to read what is there",
                partition=partition,
                offset=offset,
                log_start_offset=low,
                log_end_offset=high,
            )
    return min(max(start, low), high), min(max(end, low), high)


def _start(reader: SegmentReader, state: PartitionState, partition: int, options: ReadOptions) -> int:
    bound = options.start
    value = _value(bound, partition)
    if bound.kind == "offset":
        if value == LATEST:
            raise InvalidConfigError(f"option {bound.option} cannot be latest in a batch read", partition=partition)
        return state.log_start_offset if value == EARLIEST else value
    if found := offset_for_time(reader, state, value):
        return found[0]
    if options.unmatched_start == "latest":
        return state.log_end_offset
    raise InvalidConfigError(
        f"no record is at or after {bound.option}; startingOffsetsByTimestampStrategy=latest reads such a partition "
        "from its end",
        partition=partition,
        timestamp=value,
    )


def _end(reader: SegmentReader, state: PartitionState, partition: int, options: ReadOptions) -> int:
    bound = options.end
    value = _value(bound, partition)
    if bound.kind == "offset":
        if value == EARLIEST:
            raise InvalidConfigError(f"option {bound.option} cannot be earliest in a batch read", partition=partition)
        return state.log_end_offset if value == LATEST else value
    found = offset_for_time(reader, state, value)
    return found[0] if found else state.log_end_offset


def _value(bound: Bound, partition: int) -> int:
    return bound.value if isinstance(bound.value, int) else bound.value.numbers[partition]
