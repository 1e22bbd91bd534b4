"""The batch source: the driver turns a snapshot and options into splits, tasks turn splits into Arrow batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.indexes.index_cache import IndexCache
from distlog.core.reading import scan_plan
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.pipeline import read
from distlog.core.reading.slices.time_range import TimeRange
from distlog.core.storage.storage import Storage
from distlog.spark.source.bounds import Ranges, read_bounds
from distlog.spark.source.kafka_rows import RowFormat
from distlog.spark.source.read_options import ReadOptions
from distlog.spark.source.splits import Split, SplitSize, split
from distlog.spark.worker import settle


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
            settle()


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
