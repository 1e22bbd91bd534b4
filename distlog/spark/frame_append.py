"""Appends a DataFrame: tasks write its rows, or the driver if they are few, and the driver commits them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from distlog.core import paths
from distlog.core.arrays import column_of, integers, numbers_of
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import InvalidRecordError, StorageFullError
from distlog.core.segments.segment_writer import codec_of
from distlog.core.topic import Topic
from distlog.core.write.append import AppendResult, check_room, replayed
from distlog.spark.batch_source import check_writable
from distlog.spark.row_limit import RowLimit, has_large_row
from distlog.spark.sink import (
    MicroBatch,
    PlannedTopic,
    TaskWriter,
    WriteOptions,
    WrittenSegments,
    check_named,
    commit_written,
    micro_batch,
    partition_column,
    write_rows,
)
from distlog.spark.versions import by_id, map_in_arrow

OrderBy = str | Column | Iterable[str | Column]

#: The driver writes a DataFrame that has no more rows and, by Spark's estimate, no more bytes: to start a worker of
#: Python for it would take longer.
FEW_ROWS, FEW_BYTES = 10_000, 1 << 20
#: The column by which rows with equal keys stay in their order.
_POSITION = "distlog position"
#: The rows that a task returns: its number, and the pickled WrittenSegments.
_SCHEMA = "task int, written binary"
#: Topics with a larger mean record are appended with the limit of bytes, whose cost is small then.
MEAN_BYTES = 1 << 10
#: Ids of the topics in which this process had to append a DataFrame again for its large rows.
_with_large_rows = set[str]()


def append_frame(topic: Topic, rows: DataFrame, options: WriteOptions, *, shuffle: bool = False) -> AppendResult:
    """Append rows with the columns of a topic in one commit, from the snapshot that `topic` has."""
    snapshot, app_id, batch_id = topic.snapshot, options.app_id, options.batch_id
    batch = _micro_batch(rows)
    check_named(batch, options)
    codec_of(topic.config, options.compression)
    check_writable(rows.schema, topic.config)
    planned = PlannedTopic.of(snapshot, app_id, batch_id)
    if planned.is_done:
        topic.storage.sync(paths.COMMITS_DIR)
        return replayed(snapshot, app_id, batch_id) or AppendResult(None)
    try:
        check_room(snapshot, app_id, batch_id)
    except StorageFullError:
        # what the topic allows may have been raised since it was opened
        check_room(topic.refresh().snapshot, app_id, batch_id)
    if (table := few_rows(rows)) is not None:
        written = [write_rows(options.storage, planned, options.compression, [table], options.timestamp_unit)]
    elif shuffle:
        rows = rows.withColumn("partition", partition_column(rows, topic.partitions))
        written = _written(by_id(rows, topic.partitions, "partition"), options, planned)
    else:
        limited = _written_by_row_limit(rows, options, planned, snapshot)
        written = _written(rows, options, planned) if limited is None else limited
    return commit_written(options, planned, written, topic.handle, snapshot, batch=batch)


def few_rows(rows: DataFrame) -> pa.Table | None:
    """The rows, if Spark's plan says that they are few; else, and on Spark Connect, None."""
    try:
        execution = rows._jdf.queryExecution()
    except AttributeError:
        return None
    plan = execution.optimizedPlan()
    if int(plan.stats().sizeInBytes()) > FEW_BYTES:
        return None
    most = plan.maxRows()
    if most.isDefined():
        return rows.toArrow() if int(most.get()) <= FEW_ROWS else None
    # of a small file: its rows may still be many, and a limit would mix the rows of several partitions
    if execution.executedPlan().nodeName() == "AdaptiveSparkPlan" or execution.toRdd().getNumPartitions() > 1:
        return None
    table = rows.limit(FEW_ROWS + 1).toArrow()
    return table if table.num_rows <= FEW_ROWS else None


def order_columns(order_by: OrderBy) -> list[Column]:
    """The columns to sort by. Raises InvalidRecordError for one that is not a name or a Column."""
    sort_columns = [order_by] if isinstance(order_by, str | Column) else list(order_by)
    if wrong := [type(column).__name__ for column in sort_columns if not isinstance(column, str | Column)]:
        raise InvalidRecordError("order_by has names of columns, or Columns", type=wrong[0])
    return [F.col(column) if isinstance(column, str) else column for column in sort_columns]


def in_order(df: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The rows sorted by `columns`, a task for each range; rows that are equal in them keep their order."""
    if not columns:
        return df
    numbered = df.withColumn(_POSITION, F.monotonically_increasing_id())
    return numbered.repartitionByRange(*columns).sortWithinPartitions(*columns, _POSITION).drop(_POSITION)


def _written_by_row_limit(
    rows: DataFrame, options: WriteOptions, planned: PlannedTopic, snapshot: Snapshot
) -> list[WrittenSegments] | None:
    """The segments that the tasks wrote; None if some rows are too large for batches without a limit of bytes."""
    if snapshot.topic_id in _with_large_rows or _mean_bytes(snapshot) > MEAN_BYTES:
        return None
    limit = RowLimit.of(rows)
    if limit is None:
        return None
    try:
        return _written(limit.rows, options, planned, limit.large)
    except _LargeRowError:
        _with_large_rows.add(snapshot.topic_id)
        return None


def _mean_bytes(snapshot: Snapshot) -> int:
    segments = snapshot.table.segments()
    return int(numbers_of(segments["log_bytes"]).sum() // max(numbers_of(segments["record_count"]).sum(), 1))


class _LargeRowError(Exception):
    """A task got a row that is too large."""


def _written(
    rows: DataFrame, options: WriteOptions, planned: PlannedTopic, large: str | None = None
) -> list[WrittenSegments]:
    """The segments that the tasks of the DataFrame wrote, in the order of its partitions.

    Raises _LargeRowError if `large` is the value of a row.
    """
    storage, compression, unit = options.storage, options.compression, options.timestamp_unit

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = TaskWriter(storage, planned, compression, unit)
        written = None
        for batch in batches:
            if large is not None and has_large_row(batch, large):
                writer.abort()
                break
            writer.append(batch)
        else:
            written = writer.close()
        # a task has to read all of its rows
        for _ in batches:
            pass
        context = TaskContext.get()
        number = integers([context.partitionId() if context else 0], pa.int32())
        yield from pa.table({"task": number, "written": column_of([pickle.dumps(written)], pa.binary())}).to_batches()

    results = sorted(map_in_arrow(rows, write, _SCHEMA).collect(), key=lambda row: int(row["task"]))
    written = [pickle.loads(row["written"]) for row in results]
    if None in written:
        raise _LargeRowError
    return written


def _micro_batch(rows: DataFrame) -> MicroBatch | None:
    """The micro-batch of the foreachBatch function that appends; None outside of one, and on Spark Connect."""
    try:
        context = rows.sparkSession.sparkContext
    except Exception:  # each kind of session without a context raises another error
        return None
    return micro_batch(context.getLocalProperty)
