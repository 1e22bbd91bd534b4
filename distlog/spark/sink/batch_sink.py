"""The batch sink: each task writes its rows as unreferenced segments, then the driver commits them all at once.

Each attempt of a task writes files under its own names, and leaves them there when it fails, is repeated or is
aborted. Only the files of the attempt whose message Spark passes to `commit` become part of the topic. So nothing is
ever undone. `abort` deletes nothing either: the outcome of the commit may be unknown, and another attempt may still
be writing.
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

from distlog.core import paths
from distlog.core.commits.commit import Origin
from distlog.core.commits.fields import LONGEST_NAME
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CommitConflictError, InvalidRecordError
from distlog.core.segments.segment_writer import codec_of
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.core.topic_handle import TopicHandle, topic_log
from distlog.core.topics.append import Appender, commit_append, replayed
from distlog.spark.sink.commits import MicroBatch, find_write, holds_batch, is_of_run
from distlog.spark.sink.topic_facts import TopicFacts
from distlog.spark.sink.write_options import WriteOptions
from distlog.spark.source.kafka_rows import check_writable
from distlog.spark.tasks.worker import freeze_imports


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The segments that a task wrote, and the micro-batch that it was part of, if any."""

    segments: tuple[SegmentInfo, ...] = ()
    micro_batch: MicroBatch | None = None


class TaskWriter:
    """Runs in a task: takes rows and writes segments. `compression` is the codec that the write asks for."""

    def __init__(self, storage: Storage, topic: TopicFacts, compression: str | None) -> None:
        self._storage, self._topic, self._compression = storage, topic, compression

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write all rows. Raises InvalidRecordError for a row that does not fit; then nothing of the task is kept."""
        context = TaskContext.get()
        topic = self._topic
        appender = Appender(
            self._storage,
            topic.name,
            topic.config,
            topic.partitions,
            read_version=topic.version,
            # so that many small writes, of one task each, do not all begin at partition 0
            first_partition=topic.version + (context.partitionId() if context else 0),
            clock=now_ms,
            random=Random(),
            # a task has one core
            workers=1,
            compression=self._compression,
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
    """One write, as Spark sees it.

    Spark makes it in the planner, copies it to every task, and uses it again for the driver's commit.
    """

    def __init__(self, options: WriteOptions, topic: TopicFacts) -> None:
        self._options, self._topic = options, topic
        self._write_id = options.write_id or uuid.uuid4().hex

    @classmethod
    def open(cls, options: WriteOptions, schema: StructType) -> DistlogWriter:
        """Load the facts of the topic, unless the driver passed them, and check the write before any task runs.

        Raises TopicNotFoundError, InvalidRecordError, InvalidConfigError.
        """
        topic = options.topic
        if topic is None:
            topic = TopicFacts.of(topic_log(options.storage, engine="spark").load(), options.app_id, options.batch_id)
        check_writable(schema, topic.config)
        codec_of(topic.config, options.compression)
        return cls(options, topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. They become visible with the commit."""
        if not self._topic.is_done:
            return TaskWriter(self._options.storage, self._topic, self._options.compression).write(iterator)
        for _ in iterator:  # Spark fails a task that does not read all its rows
            pass
        return Written()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the segments of all tasks, in the order of the tasks, in one commit; a second call adds no other.

        Raises CommitConflictError (nothing was appended) or CommitStateUnknownError (the rows may have been appended;
        repeat the write with the same txnAppId and txnVersion).
        """
        freeze_imports()
        written = [message for message in messages if isinstance(message, Written)]
        if len(written) < len(messages):
            raise CommitConflictError("nothing was committed: a task did not report what it wrote; write again")
        if self._topic.done_in is not None:
            self._check_done(self._topic.done_in)
            return
        log = topic_log(self._options.storage, engine="spark")
        snapshot = log.load()
        self._topic.check(snapshot)
        if not find_write(self._options.storage, self._write_id, self._topic.version, snapshot.version):
            self._append(TopicHandle.of(self._options.storage, snapshot.name, log), snapshot, written)

    def _check_done(self, version: int) -> None:
        """Check that the batch was committed, as the driver found, and make that commit durable.

        The rows of this write are gone, so the driver's word is not enough.
        """
        storage, app_id, batch_id = self._options.storage, self._options.app_id, self._options.batch_id
        if not holds_batch(storage, version, app_id, batch_id):
            raise CommitConflictError(
                "nothing was committed: option topicFacts wrongly says that this txnVersion was committed; "
                "leave the option out",
                version=version,
            )
        storage.sync(paths.COMMITS_DIR)

    def _append(self, handle: TopicHandle, snapshot: Snapshot, written: Sequence[Written]) -> None:
        """Append the segments in one commit.

        A micro-batch's write without a transaction of its own uses the query and the batch as its transaction.
        """
        segments = [segment for message in written for segment in message.segments]
        batch = next((message.micro_batch for message in written if message.micro_batch), None)
        app_id, batch_id = self._options.app_id, self._options.batch_id
        if app_id is None and batch is not None:
            app_id, batch_id = batch.query_id, batch.batch_id
            _check_is_repeated(self._options.storage, snapshot, batch, segments)
        commit_append(
            handle,
            snapshot,
            segments,
            read_version=self._topic.version,
            app_id=app_id,
            batch_id=batch_id,
            origin=Origin(self._write_id, batch.run_id if batch else None),
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: vacuum deletes the files."""


def _check_is_repeated(
    storage: Storage, snapshot: Snapshot, micro_batch: MicroBatch, segments: Sequence[SegmentInfo]
) -> None:
    """Raise InvalidRecordError for a second write of one micro-batch.

    Without this check it would be taken for a repetition of the first write.
    """
    earlier = replayed(snapshot, micro_batch.query_id, micro_batch.batch_id)
    if earlier is None or earlier.version is None:
        return
    records = sum(segment.record_count for segment in segments)
    if records != earlier.record_count or is_of_run(storage, earlier.version, micro_batch.run_id):
        raise InvalidRecordError(
            "another write has appended this micro-batch to the topic: give each write of a foreachBatch function "
            "its own txnAppId, and the batch's number as txnVersion",
            query=micro_batch.query_id,
            batch=micro_batch.batch_id,
            records=records,
            records_before=earlier.record_count,
        )


def _micro_batch(context: TaskContext | None) -> MicroBatch | None:
    """The micro-batch that a task is part of, or None. Spark tells it only to tasks."""
    if context is None:
        return None
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if not query_id or not batch_id:
        return None
    run_id = context.getLocalProperty("spark.jobGroup.id") or ""
    return MicroBatch(query_id, int(batch_id), run_id[:LONGEST_NAME] or None)
