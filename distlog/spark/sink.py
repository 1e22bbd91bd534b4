"""Writes rows of Spark to a topic, in a batch or for a micro-batch of a stream: options, tasks, and the commit."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from distlog.core import paths
from distlog.core.arrays import integers
from distlog.core.commits.fields import MAX_NAME_LENGTH
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import CommitFiles, SnapshotLoader
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitConflictError, CommitStateUnknownError, CorruptMetadataError, InvalidConfigError
from distlog.core.format.record_encoder import codec_of
from distlog.core.maintain.merge import merge_tails
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.storage import Storage
from distlog.core.times import check_unit, now_ms
from distlog.core.write.append import (
    Appender,
    AppendResult,
    BatchId,
    check_room_for_batch_id,
    checked_batch_id,
    commit_append,
    earlier_result,
)
from distlog.core.write.rows import Partitioner
from distlog.spark.batch_source import KNOWN_TOPICS, RECENT_MS, check_writable
from distlog.spark.options import Options, exclude_from_gc, is_spark_worker_for, storage_of
from distlog.spark.versions import HAS_ARROW_FUNCTIONS, DataSourceStreamArrowWriter, check_pyspark

WRITE_NAMES = ["compression", "kafka.compression.type", "mergeSegments", "path", "timestampUnit", "topic"]
WRITE_NAMES += ["txnAppId", "txnVersion"]
_log = logging.getLogger(__name__)
#: The main module of the process in which Spark commits the micro-batches of a Python sink.
COMMITTER_MODULE = "pyspark.sql.worker.python_streaming_sink_runner"


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """The topic of a write, as planned at `version`. `is_replayed`: whether an earlier write committed the batch."""

    version: int
    topic_id: str
    name: str
    config: TopicConfig
    partitions: int
    is_replayed: bool

    @classmethod
    def of(cls, snapshot: Snapshot, app_id: str | None, batch_id: BatchId | None) -> PlannedTopic:
        return cls(
            snapshot.version,
            snapshot.topic_id,
            snapshot.name,
            snapshot.config,
            len(snapshot.partitions),
            earlier_result(snapshot, app_id, batch_id) is not None,
        )

    def check(self, head: Snapshot) -> None:
        if self.topic_id != head.topic_id:
            text = "nothing was committed: the topic was dropped and created again during the write; write again"
            raise CommitConflictError(text)


def partition_column(rows: DataFrame, partitions: int) -> Column:
    """Return a row's `partition`, else the partition of its key; adjacent rows without keys share a partition."""
    check_pyspark(HAS_ARROW_FUNCTIONS, "an append with a shuffle", "4.1")
    partitioner = Partitioner(partitions, first=0)

    def route(keys: pa.Array, values: pa.Array) -> pa.Array:
        return integers(partitioner.assign(keys, values), pa.int32())

    key = F.col("key") if "key" in rows.columns else F.lit(None)
    router: Callable[[Column, Column], Column] = F.arrow_udf(route, "int")  # type: ignore[attr-defined]
    routed = router(key.cast("binary"), F.col("value").cast("binary"))
    return F.coalesce(F.col("partition"), routed) if "partition" in rows.columns else routed


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write: txnAppId and txnVersion make it idempotent, as Delta's do."""

    storage: Storage
    app_id: str | None = None
    batch_id: BatchId | None = None
    compression: str | None = None
    merge_segments: str = "auto"
    topic_name: str | None = None
    timestamp_unit: str = "ms"

    def merges(self, *, is_micro_batch: bool) -> bool:
        return self.merge_segments == "true" or (self.merge_segments == "auto" and is_micro_batch)

    @classmethod
    def parse(cls, texts: Mapping[str, str], *, is_stream: bool = False) -> WriteOptions:
        """Parse the options; a stream has no txnVersion. Raises InvalidConfigError, InvalidRecordError."""
        options = Options(texts, WRITE_NAMES)
        if options.text("tiered") is not None:
            raise InvalidConfigError("option tiered is for reads: only Kafka brokers add to their tiered storage")
        app_id, version = options.text("txnAppId"), options.text("txnVersion")
        if is_stream and version is not None:
            raise InvalidConfigError("leave txnVersion out: the versions of a stream are its batches' numbers")
        if not is_stream and (app_id is None) != (version is None):
            raise InvalidConfigError("give txnAppId and txnVersion together: one alone prevents no duplicates")
        batch_id = parse_batch_id(version)
        # check the app id of a stream with 0 as the batch id, since Spark passes the batch id only to the commit
        checked_batch_id(app_id, 0 if is_stream and app_id is not None else batch_id)
        codec = options.text("compression") or options.text("kafka.compression.type")
        merge = options.choice("mergeSegments", ("auto", "true", "false"))
        topic_name = options.text("topic")
        unit = check_unit(options.text("timestampUnit") or "ms")
        return cls(storage_of(texts), app_id, batch_id, codec, merge, topic_name, unit)

    def check(self, schema: StructType, config: TopicConfig) -> None:
        if self.topic_name not in (None, self.storage.name):
            text = "option topic must name the topic of the path: write to the path of the other topic"
            raise InvalidConfigError(text, topic=self.topic_name, path=self.storage.name)
        check_writable(schema, config)
        codec_of(config, self.compression)


def parse_batch_id(batch_id: BatchId | None) -> BatchId | None:
    """Parse digits as a number, since a stream's ids are numbers. Too many digits stay a text, to be refused."""
    if batch_id is None:
        return None
    text = str(batch_id)
    is_number = len(text) <= MAX_NAME_LENGTH and text.isascii() and text.isdecimal()
    return int(text) if is_number else text


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A batch of a streaming query; the query's id lasts as long as its checkpoint."""

    query_id: str
    batch_id: int


def is_committed(storage: Storage, write_id: str, read_version: int, newest: int) -> bool:
    """Return whether the write was committed after `read_version`; if so, sync it. Raises CommitStateUnknownError."""
    try:
        for commits in CommitFiles(storage).follow(read_version + 1, end=newest + 1, known_version=newest):
            if any(commit.write_id == write_id for commit in commits):
                storage.sync(paths.COMMITS_DIR)  # the commit is visible, but may not be durable yet
                return True
    except CorruptMetadataError as error:
        # vacuum may have deleted a commit below the log retention horizon; for a damaged one, this is None
        horizon = SnapshotLoader(storage).horizon_above(error)
        if horizon is None:
            raise
        text = "the write took longer than commits are kept: check whether its records exist"
        raise CommitStateUnknownError(text, read_version=read_version, log_floor=horizon) from None
    return False


@dataclass(frozen=True)
class WrittenSegments(WriterCommitMessage):
    """The segments that a task wrote, its micro-batch, if any, and the topic that it wrote to."""

    segments: tuple[SegmentInfo, ...] = ()
    micro_batch: MicroBatch | None = None
    topic: PlannedTopic | None = None


class TaskWriter:
    """Writes the rows of a task. Only files of the attempt that Spark passes to `commit` become part of the topic."""

    def __init__(self, options: WriteOptions, topic: PlannedTopic, held_bytes: int | None = None) -> None:
        self._topic, self._context = topic, TaskContext.get()
        self._appender = Appender(
            options.storage,
            topic.name,
            topic.config,
            topic.partitions,
            read_version=topic.version,
            # writes and tasks begin with different partitions, since versions and ids of tasks differ
            first_partition=topic.version + (self._context.partitionId() if self._context else 0),
            clock=now_ms,
            random=Random(),
            workers=1,  # a task has one core
            compression=options.compression,
            timestamp_unit=options.timestamp_unit,
            held_bytes=held_bytes,
        )

    def append(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Write rows. Raises InvalidRecordError for a bad row, and drops the rows of the task."""
        try:
            self._appender.append(rows)
        except BaseException:
            self.abort()
            raise
        exclude_from_gc()  # Spark collects garbage after each task, which is slow with the objects of numba

    def close(self) -> WrittenSegments:
        segments = tuple(self._appender.close())
        batch = micro_batch_of(self._context.getLocalProperty) if self._context else None
        return WrittenSegments(segments, batch, self._topic)

    def abort(self) -> None:
        """Write no more; files that were written stay, for vacuum to delete."""
        self._appender.abort()


def write_rows(
    options: WriteOptions, topic: PlannedTopic, batches: Iterable[pa.RecordBatch | pa.Table]
) -> WrittenSegments:
    writer = TaskWriter(options, topic)
    for batch in batches:
        writer.append(batch)
    return writer.close()


def written_segments(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenSegments]:
    """Return the reports of all tasks. Raises CommitConflictError if a task sent none."""
    task_reports = [message for message in messages if isinstance(message, WrittenSegments)]
    if len(task_reports) < len(messages):
        raise CommitConflictError("nothing was committed: a task did not report what it wrote; write again")
    return task_reports


def micro_batch_of(local_property: Callable[[str], str | None]) -> MicroBatch | None:
    """Return the micro-batch of a task, or of a function of foreachBatch, by Spark's local properties."""
    query_id = local_property("sql.streaming.queryId")
    batch_id = local_property("streaming.sql.batchId")  # Spark spells it so, unlike the id of the query
    return MicroBatch(query_id, int(batch_id)) if query_id and batch_id else None


def check_has_app_id(batch: MicroBatch | None, options: WriteOptions) -> None:
    """Raise InvalidConfigError for an unnamed append in foreachBatch, since Spark may repeat it."""
    if batch is not None and options.app_id is None:
        text = (
            "nothing was appended: Spark may repeat a batch of foreachBatch, so name it: "
            'append(df, url, app_id="NAME", batch_id=batch_id), or '
            'df.write.format("distlog").option("txnAppId", "NAME").option("txnVersion", batch_id)'
        )
        raise InvalidConfigError(text, query=batch.query_id, batch=batch.batch_id)


def commit_written(
    options: WriteOptions,
    topic: PlannedTopic,
    task_reports: Sequence[WrittenSegments],
    handle: TopicHandle,
    snapshot: Snapshot,
    *,
    batch: MicroBatch | None = None,
    write_id: str | None = None,
) -> AppendResult:
    """Append the segments of the tasks, in their order, in one commit, and merge small segments."""
    segments = [segment for report in task_reports for segment in report.segments]
    batch = next((report.micro_batch for report in task_reports if report.micro_batch), batch)
    check_has_app_id(batch, options)
    if batch is not None and not segments:  # a micro-batch without rows makes no commit
        return earlier_result(snapshot, options.app_id, options.batch_id) or AppendResult(None)
    topic.check(snapshot)
    result, snapshot = commit_append(
        handle,
        snapshot,
        segments,
        read_version=topic.version,
        app_id=options.app_id,
        batch_id=options.batch_id,
        # with `in_order`, a number below the newest counts as committed, as Spark's own numbers of batches ascend
        in_order=batch is not None and options.batch_id == batch.batch_id,
        write_id=write_id,
        checked_config=topic.config,
    )
    KNOWN_TOPICS.keep(handle, snapshot)
    if options.merges(is_micro_batch=batch is not None) and not result.replayed:
        _merge(handle, snapshot, segments)
    return result


def _merge(handle: TopicHandle, snapshot: Snapshot, appended: Sequence[SegmentInfo]) -> None:
    """Merge small segments. A failure does not fail the write, which is committed."""
    try:
        report, snapshot = merge_tails(handle, snapshot, appended)
    except Exception as error:
        text = "small segments of %s were not merged, a later write tries again: %s"
        _log.warning(text, handle.storage.name, error)
        return
    KNOWN_TOPICS.keep(handle, snapshot)
    for failure in report.failed if report else ():
        _log.warning("cannot merge %s", failure)


class DistlogWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, topic: PlannedTopic) -> None:
        self._options, self._topic = options, topic
        self._write_id = uuid.uuid4().hex

    @classmethod
    def open(cls, options: WriteOptions, schema: StructType) -> DistlogWriter:
        """Load the topic, and check the write before any task runs."""
        _, snapshot = KNOWN_TOPICS.load(options.storage)
        check_room_for_batch_id(snapshot, options.app_id, options.batch_id)
        options.check(schema, snapshot.config)
        return cls(options, PlannedTopic.of(snapshot, options.app_id, options.batch_id))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._topic.is_replayed:
            return write_rows(self._options, self._topic, iterator)
        for _ in iterator:  # Spark fails a task that does not read all its rows
            pass
        return WrittenSegments()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the segments of all tasks, in their order, in one commit; a second call adds nothing."""
        exclude_from_gc()
        task_reports = written_segments(messages)
        if self._topic.is_replayed:
            self._options.storage.sync(paths.COMMITS_DIR)
            return
        handle, snapshot = KNOWN_TOPICS.load(self._options.storage)
        self._topic.check(snapshot)
        if not is_committed(self._options.storage, self._write_id, self._topic.version, snapshot.version):
            commit_written(self._options, self._topic, task_reports, handle, snapshot, write_id=self._write_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None: ...


class DistlogStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch. `topic` is None in the process that commits, since the tasks report their topic."""

    def __init__(self, options: WriteOptions, topic: PlannedTopic | None) -> None:
        self._options, self._topic = options, topic

    @classmethod
    def open(cls, options: WriteOptions, schema: StructType) -> DistlogStreamWriter:
        """Load the topic and check the write before any task runs, but not in the process that commits."""
        if is_spark_worker_for(COMMITTER_MODULE):
            return cls(options, None)
        _, snapshot = KNOWN_TOPICS.load(options.storage, recent_ms=RECENT_MS)
        options.check(schema, snapshot.config)
        return cls(options, PlannedTopic.of(snapshot, None, None))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._topic is None:
            text = "cannot write rows in the process that only commits the micro-batch"
            raise RuntimeError(f"{text}: please report this bug of distlog or Spark")
        return write_rows(self._options, self._topic, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Commit the segments of all tasks, unless this batch, or a later one, is committed already."""
        exclude_from_gc()
        task_reports = written_segments(messages)
        topic = next((report.topic for report in task_reports if report.segments), None)
        if topic is None:
            return
        batch = next((report.micro_batch for report in task_reports if report.micro_batch), None)
        handle, snapshot = KNOWN_TOPICS.load_planned(self._options.storage, topic.topic_id, topic.version)
        app_id = self._options.app_id or (batch and batch.query_id)
        if not app_id:
            text = "nothing was committed: Spark did not pass the id of the query; give the option txnAppId"
            raise CommitConflictError(text)
        options = replace(self._options, app_id=app_id, batch_id=batchId)
        # used if no task reported its micro-batch; its query id is not used, since `options` has an app id
        default_batch = MicroBatch(app_id, batchId)
        result = commit_written(options, topic, task_reports, handle, snapshot, batch=default_batch)
        if result.replayed:
            records = sum(segment.record_count for report in task_reports for segment in report.segments)
            _log_skipped(handle, app_id, batchId, records, result)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Delete nothing, since the outcome of the commit may be unknown. Vacuum deletes unused files."""


def _log_skipped(handle: TopicHandle, app_id: str, batch_id: int, records: int, earlier: AppendResult) -> None:
    """Log that a batch was repeated; warn if the topic may lack its rows."""
    name = handle.storage.name
    if earlier.version is None:
        text = (
            "batch %d of %s was skipped, since %s has a later one: if the query has a new checkpoint, give it a "
            "txnAppId that was never used"
        )
        _log.warning(text, batch_id, app_id, name)
    elif records != earlier.record_count:
        text = (
            "batch %d of %s was skipped: it has %d records now, and had %d in version %d of %s; if the checkpoint is "
            "an older copy, or lost its newest files, records are left out: begin with a new checkpoint"
        )
        _log.warning(text, batch_id, app_id, records, earlier.record_count, earlier.version, name)
    else:
        _log.info("batch %d of %s is in version %d of %s already", batch_id, app_id, earlier.version, name)
