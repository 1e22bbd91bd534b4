"""The batch sink: each task writes its rows as segments that nobody names, then the driver commits them all at once.

A task that fails, is repeated or is given up leaves files under names of its own; only those of the attempt whose
message Spark hands to `commit` become part of the topic. So nothing is ever undone, and `abort` deletes nothing: the
outcome of the commit may be unknown, and another attempt may still be writing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitConflictError, InvalidRecordError
from distlog.core.segments.segment_writer import codec_of
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.core.topics.append import Appender, BatchId, commit_append, replayed
from distlog.spark.options import WriteOptions
from distlog.spark.sink.commits import MicroBatch, commit_log, find_write, is_of_run
from distlog.spark.source.kafka_rows import check_writable
from distlog.spark.tasks.worker import freeze_imports


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task wrote, and the micro-batch that it was part of, if any."""

    segments: tuple[SegmentInfo, ...] = ()
    micro_batch: MicroBatch | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The topic as the tasks need to know it; `begin` is the version that was seen before the first byte.

    `compression` is what the write asks for.
    """

    storage: Storage
    name: str
    topic_id: str
    config: TopicConfig
    partitions: int
    begin: int
    compression: str | None = None

    @classmethod
    def of(cls, options: WriteOptions, snapshot: Snapshot) -> Target:
        """The topic of `snapshot`; InvalidConfigError for a codec that there is not."""
        codec_of(snapshot.config, options.compression)
        return cls(
            options.storage,
            snapshot.name,
            snapshot.topic_id,
            snapshot.config,
            len(snapshot.partitions),
            snapshot.version,
            options.compression,
        )


class TaskWriter:
    """What runs in a task: rows in, segments out."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write all rows; InvalidRecordError tells what does not fit, and then nothing of the task is kept."""
        context = TaskContext.get()
        target = self._target
        appender = Appender(
            target.storage,
            target.name,
            target.config,
            target.partitions,
            begin=target.begin,
            # many small writes of one task each must not all begin at partition 0
            first_partition=target.begin + (context.partitionId() if context else 0),
            clock=now_ms,
            random=Random(),
            # a task has one core
            workers=1,
            compression=target.compression,
        )
        try:
            for batch in batches:
                appender.append(batch)
                freeze_imports()
            return Written(tuple(appender.close()), _micro_batch(context))
        except BaseException:
            appender.abort()
            raise


class DistlogWriter(DataSourceArrowWriter):
    """Spark's view of one write; made in the planner, copied to every task, and used again by the driver's commit."""

    def __init__(self, target: Target, app_id: str | None, batch_id: BatchId | None, write_id: str) -> None:
        self._target, self._app_id, self._batch_id, self._write_id = target, app_id, batch_id, write_id
        self._replayed = False

    @classmethod
    def open(cls, options: WriteOptions, schema: StructType) -> DistlogWriter:
        """Look at the topic, and refuse before any task runs what could not be written.

        Raises TopicNotFoundError, InvalidRecordError, InvalidConfigError.
        """
        snapshot = commit_log(options.storage).load()
        check_writable(schema, snapshot.config)
        target = Target.of(options, snapshot)
        writer = cls(target, options.app_id, options.batch_id, options.write_id or uuid.uuid4().hex)
        writer._replayed = replayed(snapshot, options.app_id, options.batch_id) is not None
        return writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task; they become visible with the commit."""
        if not self._replayed:
            return TaskWriter(self._target).write(iterator)
        for _ in iterator:  # Spark fails a task that leaves rows behind
            pass
        return Written()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Name the segments of all tasks, in the order of the tasks, in one commit.

        Raises CommitConflictError (nothing was appended) or CommitStateUnknownError (it may have been; repeat with
        the same txnAppId and txnVersion).
        """
        freeze_imports()
        written = [message for message in messages if isinstance(message, Written)]
        if len(written) < len(messages):
            raise CommitConflictError("nothing was committed: a task did not say what it wrote")
        if self._replayed:
            return
        batch = next((message.micro_batch for message in written if message.micro_batch), None)
        append_segments(
            self._target,
            [segment for message in written for segment in message.segments],
            self._write_id,
            (self._app_id, self._batch_id),
            batch,
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave everything to vacuum."""


def append_segments(
    target: Target,
    segments: Sequence[SegmentInfo],
    write_id: str,
    transaction: tuple[str | None, BatchId | None],
    micro_batch: MicroBatch | None,
) -> None:
    """Commit what tasks wrote, once, however often it is asked for.

    Without a transaction of its own, the write of a micro-batch takes the query and the batch as such.
    """
    log = commit_log(target.storage, write_id, micro_batch.run_id if micro_batch else "")
    snapshot = log.load()
    if snapshot.topic_id != target.topic_id:
        raise CommitConflictError("nothing was committed: the topic was dropped and created again meanwhile")
    if snapshot.version > target.begin and find_write(target.storage, write_id, target.begin):
        return
    app_id, batch_id = transaction
    if app_id is None and micro_batch is not None:
        app_id, batch_id = micro_batch.query_id, micro_batch.batch_id
        _check_is_repeated(target.storage, snapshot, micro_batch, segments)
    commit_append(log, snapshot, segments, begin=target.begin, app_id=app_id, batch_id=batch_id)


def _check_is_repeated(
    storage: Storage, snapshot: Snapshot, micro_batch: MicroBatch, segments: Sequence[SegmentInfo]
) -> None:
    """Raise InvalidRecordError for a second write of one micro-batch, which would be taken for a repeated first."""
    earlier = replayed(snapshot, micro_batch.query_id, micro_batch.batch_id)
    if earlier is None or earlier.version is None:
        return
    records = sum(segment.record_count for segment in segments)
    if records != earlier.record_count or is_of_run(storage, earlier.version, micro_batch.run_id):
        raise InvalidRecordError(
            "this micro-batch was appended to the topic before, and not by this same write: give each write of a "
            "foreachBatch function its own txnAppId, and the batch's number as txnVersion",
            query=micro_batch.query_id,
            batch=micro_batch.batch_id,
            records=records,
            records_before=earlier.record_count,
        )


def _micro_batch(context: TaskContext | None) -> MicroBatch | None:
    """The micro-batch that a task is part of: Spark tells it to tasks alone."""
    if context is None:
        return None
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if not query_id or not batch_id:
        return None
    return MicroBatch(query_id, int(batch_id), context.getLocalProperty("spark.jobGroup.id") or "")
