"""Appends of a DataFrame and of files to a topic, in Spark tasks.

Spark can limit the bytes of a batch that it sends to Python, but for small rows, counting the bytes takes longer than
sending them. So an append first limits only the rows of a batch. A batch of large rows could exceed the memory of the
JVM, so Spark replaces each large row by a mark. If a task gets a mark, the append starts again with a limit of bytes.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from distlog.core import paths
from distlog.core.arrays import column_of, integers, numbers_of
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import InvalidRecordError, StorageFullError
from distlog.core.files import file_reader
from distlog.core.files.input_files import InputFile
from distlog.core.format.kernels.native import release_compiler
from distlog.core.format.record_encoder import codec_of
from distlog.core.write.append import AppendResult, check_room_for_batch_id, earlier_result
from distlog.spark import sink
from distlog.spark.executor import run_tasks
from distlog.spark.spark_session import ARROW_POOL, cores
from distlog.spark.versions import map_in_arrow, repartition_by

if TYPE_CHECKING:
    # slow to import, and Python workers don't need it
    from distlog.core.topic import Topic

OrderBy = str | Column | Iterable[str | Column]
"""A column to sort by, or several: names or Columns."""
#: The driver writes a DataFrame of up to FEW_ROWS and about FEW_BYTES itself, since Python workers start slowly.
FEW_ROWS, FEW_BYTES = 10_000, 1 << 20
#: A temporary column that keeps the order of rows with equal sort columns.
_POSITION_COLUMN = "distlog position"
#: The row that a task returns: its number, and its pickled WrittenSegments, or None after a large row.
_SCHEMA = "task int, report binary"
#: If the mean record of a topic is larger, an append has the limit of bytes: at 1000 bytes it takes 10 % less CPU.
MAX_MEAN_BYTES = 512
#: Ids of the topics in which this process had to append a DataFrame again for its large rows.
_large_row_topics = set[str]()
#: Without a limit of bytes, a batch has up to BATCH_ROWS rows (Spark's default) of up to ROW_BYTES: 40 MB, less than
#: Spark's default maxBytesPerBatch of 64 MiB. Smaller batches take more CPU for each row: 12 % with 4096 rows.
BATCH_ROWS, ROW_BYTES = 10_000, 4 << 10
_ROW_LIMIT_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
#: Leaves of plans that contain no Python function; an RDD or cached rows may contain one. _ROW_LIMIT_SETTINGS would
#: remove the limit of bytes from the batches of that function, too.
_LEAVES_WITHOUT_PYTHON = {"DataSourceV2Relation", "DataSourceV2ScanRelation", "HiveTableRelation"}
_LEAVES_WITHOUT_PYTHON |= {"LocalRelation", "LogicalRelation", "OneRowRelation", "Range"}
#: The driver reads inputs of up to this size itself, since starting Python workers would take longer.
SMALL_INPUT_BYTES = 4 << 20
#: The bytes of a task: a smaller task is not worth its start, and a larger task repeats too much after a failure.
MIN_TASK_BYTES, MAX_TASK_BYTES = 8 << 20, 512 << 20
_TASKS_PER_CORE = 4
#: Splits are smaller than tasks, so that tasks have equal work; but each split costs a read.
_SPLITS_PER_TASK, _MIN_SPLIT_BYTES = 4, 4 << 20
#: The most bytes that a task holds for its bundles, objects with the segments of several partitions: a worker stays
#: below 300 MB. On an object store, it is at least a MiB for each partition, since more bundles take more requests.
HELD_BYTES, _HELD_BYTES_PER_PARTITION = 18 << 20, 1 << 20
#: How long Arrow's pool keeps free memory in a task.
_POOL_DECAY_MS = 100


def append_frame(topic: Topic, rows: DataFrame, options: sink.WriteOptions, *, shuffle: bool = False) -> AppendResult:
    """Append rows with the columns of a topic in one commit, from the snapshot that `topic` has."""
    snapshot, app_id, batch_id = topic.snapshot, options.app_id, options.batch_id
    batch = _micro_batch(rows)
    sink.check_has_app_id(batch, options)
    options.check(rows.schema, topic.config)
    if (earlier := earlier_result(snapshot, app_id, batch_id)) is not None:
        topic.storage.sync(paths.COMMITS_DIR)  # the earlier commit is visible, but may not be durable yet
        return earlier
    planned = sink.PlannedTopic.of(snapshot, app_id, batch_id)
    try:
        check_room_for_batch_id(snapshot, app_id, batch_id)
    except StorageFullError:
        # `batch.ids.bytes` may have been raised since the topic was opened
        check_room_for_batch_id(topic.refresh().snapshot, app_id, batch_id)
    if (table := few_rows(rows)) is not None:
        task_reports = [sink.write_rows(options, planned, [table])]
    elif shuffle:
        rows = rows.withColumn("partition", sink.partition_column(rows, topic.partitions))
        task_reports = _write(repartition_by(rows, topic.partitions, "partition"), options, planned)
    else:
        reports = _write_by_row_limit(rows, options, planned, snapshot)
        task_reports = _write(rows, options, planned) if reports is None else reports
    return sink.commit_written(options, planned, task_reports, topic.handle, snapshot, batch=batch)


def few_rows(rows: DataFrame) -> pa.Table | None:
    """Return the rows if they are few; else, and on Spark Connect, None."""
    try:
        execution = rows._jdf.queryExecution()
    except AttributeError:
        return None
    plan = execution.optimizedPlan()
    if int(plan.stats().sizeInBytes()) > FEW_BYTES:
        return None
    max_rows = plan.maxRows()
    if max_rows.isDefined():
        return rows.toArrow() if int(max_rows.get()) <= FEW_ROWS else None
    # `limit` would mix the rows of several partitions; an adaptive plan has no number of partitions before its run
    if execution.executedPlan().nodeName() == "AdaptiveSparkPlan" or execution.toRdd().getNumPartitions() > 1:
        return None
    table = rows.limit(FEW_ROWS + 1).toArrow()
    return table if table.num_rows <= FEW_ROWS else None


def order_columns(order_by: OrderBy) -> list[Column]:
    sort_columns = [order_by] if isinstance(order_by, str | Column) else list(order_by)
    if wrong := [type(column).__name__ for column in sort_columns if not isinstance(column, str | Column)]:
        raise InvalidRecordError("order_by must have names of columns, or Columns", type=wrong[0])
    return [F.col(column) if isinstance(column, str) else column for column in sort_columns]


def in_order(df: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Sort the rows by `columns`, with a task for each range. Rows with equal `columns` keep their order."""
    if not columns:
        return df
    rows = df.withColumn(_POSITION_COLUMN, F.monotonically_increasing_id()).repartitionByRange(*columns)
    return rows.sortWithinPartitions(*columns, _POSITION_COLUMN).drop(_POSITION_COLUMN)


def _write_by_row_limit(
    rows: DataFrame, options: sink.WriteOptions, planned: sink.PlannedTopic, snapshot: Snapshot
) -> list[sink.WrittenSegments] | None:
    """Write the rows; return None if rows are too large for batches without a limit of bytes."""
    segments = snapshot.partitions.segments()
    records = max(numbers_of(segments["record_count"]).sum(), 1)
    if snapshot.topic_id in _large_row_topics or numbers_of(segments["log_bytes"]).sum() // records > MAX_MEAN_BYTES:
        return None
    limit = RowLimit.of(rows)
    if limit is None:
        return None
    try:
        return _write(limit.rows, options, planned, limit.large_row_mark)
    except _LargeRowError:
        _large_row_topics.add(snapshot.topic_id)
        return None


class _LargeRowError(Exception):
    """Raised if a task got the mark of a large row."""


def _write(
    rows: DataFrame, options: sink.WriteOptions, planned: sink.PlannedTopic, large_row_mark: str | None = None
) -> list[sink.WrittenSegments]:
    """Write the rows; return the segments in the order of tasks. Raises _LargeRowError for a marked row."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer, report = sink.TaskWriter(options, planned), None
        for batch in batches:
            if large_row_mark is not None and has_large_row(batch, large_row_mark):
                writer.abort()
                break
            writer.append(batch)
        else:
            report = writer.close()
        for _ in batches:  # Spark fails a task that does not read all its rows
            pass
        context = TaskContext.get()
        number = integers([context.partitionId() if context else 0], pa.int32())
        yield from pa.table({"task": number, "report": column_of([pickle.dumps(report)], pa.binary())}).to_batches()

    results = sorted(map_in_arrow(rows, write, _SCHEMA).collect(), key=lambda row: int(row["task"]))
    task_reports = [pickle.loads(row["report"]) for row in results]
    if None in task_reports:
        raise _LargeRowError
    return task_reports


def _micro_batch(rows: DataFrame) -> sink.MicroBatch | None:
    """Return the micro-batch of the foreachBatch function that appends, if any; None on Spark Connect."""
    try:
        context = rows.sparkSession.sparkContext
    except Exception:  # each kind of session without a context raises another error
        return None
    return sink.micro_batch_of(context.getLocalProperty)


@dataclass(frozen=True, slots=True)
class RowLimit:
    """Rows in batches without a limit of bytes. The random `large_row_mark` replaces each row above ROW_BYTES."""

    rows: DataFrame
    large_row_mark: str

    @classmethod
    def of(cls, rows: DataFrame) -> RowLimit | None:
        """Return None if batches need the limit of bytes, for the rows or for a Python function in their plan."""
        # headers are arrays of any size, and Spark Connect shows no plan
        if "headers" in rows.columns or not hasattr(rows, "_jdf") or not _allows_settings(rows):
            return None
        large_row_mark = uuid.uuid4().hex
        size = sum((F.coalesce(F.octet_length(name), F.lit(0)) for name in _text_columns(rows)), F.lit(0))
        # a large row loses its key, and the mark replaces its value
        marked = {name: F.when(size <= ROW_BYTES, F.col(name)) for name in _text_columns(rows)}
        marked["value"] = marked["value"].otherwise(F.lit(large_row_mark).cast(rows.schema["value"].dataType))
        return cls(_with_settings(rows.withColumns(marked)), large_row_mark)


def has_large_row(batch: pa.RecordBatch, large_row_mark: str) -> bool:
    values = batch.column("value")
    return bool(pc.index(values, pa.scalar(large_row_mark).cast(values.type)).as_py() >= 0)


def _text_columns(rows: DataFrame) -> list[str]:
    return [name for name in ("key", "value") if name in rows.columns]


def _allows_settings(rows: DataFrame) -> bool:
    """Return whether the plan of `rows` does the same in a session with _ROW_LIMIT_SETTINGS."""
    frame: Any = rows
    patterns = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    plan = frame._jdf.queryExecution().optimizedPlan()
    if plan.containsPattern(patterns.PYTHON_UDF()) or plan.containsPattern(patterns.EVAL_PYTHON_UDTF()):
        return False
    # an Observation waits for the end of a query of its own session
    if "CollectMetrics" in plan.toString():
        return False
    leaves = plan.collectLeaves()
    return {leaves.apply(n).getClass().getSimpleName() for n in range(leaves.size())} <= _LEAVES_WITHOUT_PYTHON


def _with_settings(rows: DataFrame) -> DataFrame:
    """Return the rows in a separate session, so that no other query gets _ROW_LIMIT_SETTINGS."""
    frame: Any = rows
    session = frame.sparkSession._jsparkSession.cloneSession()
    for name, value in _ROW_LIMIT_SETTINGS.items():
        session.conf().set(name, value)
    datasets = frame.sparkSession._jvm.org.apache.spark.sql.classic.Dataset
    return DataFrame(datasets.ofRows(session, frame._jdf.queryExecution().analyzed()), rows.sparkSession)


@dataclass(frozen=True, slots=True)
class FilesResult:
    """The result of the commit, the number of skipped bad lines, and the files with bytes but no records."""

    appended: AppendResult
    skipped: int = 0
    without_records: Sequence[str] = ()


def append_files(
    spark: SparkSession,
    topic: Topic,
    reader: file_reader.FileReader,
    files: Sequence[InputFile],
    options: sink.WriteOptions,
) -> FilesResult:
    """Append the records of `files` in one commit; partitions keep the order of files and lines."""
    snapshot, app_id, batch_id = topic.snapshot, options.app_id, options.batch_id
    codec_of(topic.config, options.compression)  # raises if the compression is unknown
    check_room_for_batch_id(snapshot, app_id, batch_id)
    if (earlier := earlier_result(snapshot, app_id, batch_id)) is not None:
        topic.storage.sync(paths.COMMITS_DIR)
        return FilesResult(earlier)
    planned = sink.PlannedTopic.of(snapshot, app_id, batch_id)
    runs = _plan_runs(reader, files, cores(spark))  # a run: consecutive splits of files, for one task
    work = RunWork(reader, options, planned)
    is_small = sum(map(_cost, files)) <= SMALL_INPUT_BYTES
    first_runs = _finished_runs([work(run) for run in runs] if is_small else run_tasks(spark, work, runs))
    finished_runs = _repeat_runs(spark, work, runs, first_runs)
    reports = [finished.report for finished in finished_runs]
    file_reader.check_fields(reports)
    task_reports = [finished.written for finished in finished_runs]
    appended = sink.commit_written(options, planned, task_reports, topic.handle, snapshot)
    names = [
        name for result in finished_runs for name in file_reader.files_without_records(result.run, result.report)
    ]
    return FilesResult(appended, sum(report.skipped for report in reports), names)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    run: file_reader.Run
    written: sink.WrittenSegments
    report: file_reader.RunReport


@dataclass(frozen=True, slots=True)
class RunWork:
    """The work of a task: reads a run of splits, and writes their records as segments for a later commit."""

    reader: file_reader.FileReader
    options: sink.WriteOptions
    planned: sink.PlannedTopic

    def __call__(self, run: file_reader.Run) -> FinishedRun | InvalidRecordError:
        """Run the task. An error of the input is returned, since Spark would repeat a task that raises."""
        _spare_memory()
        storage, held_bytes = self.options.storage, HELD_BYTES
        if not storage.is_local:
            held_bytes = max(HELD_BYTES, _HELD_BYTES_PER_PARTITION * self.planned.partitions)
        writer = sink.TaskWriter(self.options, self.planned, held_bytes)
        reading = self.reader.read(run)
        try:
            for part in reading:
                try:
                    writer.append(part.records)
                except InvalidRecordError as error:
                    raise part.located(error) from None
                # the first call frees the compiler's memory, since the first records have loaded all large kernels
                release_compiler()
        except InvalidRecordError as error:
            writer.abort()
            return error
        return FinishedRun(run, writer.close(), reading.report)


def _spare_memory() -> None:
    """Make the allocator of Arrow return free memory in a Python worker; by default it keeps much."""
    if TaskContext.get() is None:
        return
    if os.environ.get(ARROW_POOL, "jemalloc") == "jemalloc" and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
        pa.jemalloc_set_decay_ms(_POOL_DECAY_MS)


def _finished_runs(results: Sequence[FinishedRun | InvalidRecordError]) -> list[FinishedRun]:
    finished_runs = [result for result in results if isinstance(result, FinishedRun)]
    if len(finished_runs) < len(results):
        raise next(result for result in results if isinstance(result, InvalidRecordError))
    return finished_runs


def _plan_runs(reader: file_reader.FileReader, files: Sequence[InputFile], core_count: int) -> list[file_reader.Run]:
    """Return a run of consecutive splits for each task, with about equal work."""
    total = max(sum(map(_cost, files)), 1)
    task_bytes = min(max(total // (core_count * _TASKS_PER_CORE), MIN_TASK_BYTES), MAX_TASK_BYTES)
    splits = reader.splits(files, max(task_bytes // _SPLITS_PER_TASK, _MIN_SPLIT_BYTES))
    return file_reader.pack(splits, -(-total // task_bytes))


def _cost(file: InputFile) -> int:
    return file.size + file_reader.OPEN_BYTES


def _repeat_runs(
    spark: SparkSession, work: RunWork, runs: Sequence[file_reader.Run], finished_runs: Sequence[FinishedRun]
) -> Sequence[FinishedRun]:
    """Repeat the runs that began within a quoted field of CSV, and return all finished runs."""
    repeats = file_reader.runs_to_repeat(runs, [finished_run.report for finished_run in finished_runs])
    if not repeats:
        return finished_runs
    repeated_runs = _finished_runs(run_tasks(spark, work, [repeat.run for repeat in repeats]))
    # each repeated run replaces the runs [first, end) of its repeat
    all_runs, end = list[FinishedRun](), 0
    for repeat, repeated_run in zip(repeats, repeated_runs, strict=True):
        all_runs += [*finished_runs[end : repeat.first], repeated_run]
        end = repeat.end
    return [*all_runs, *finished_runs[end:]]
