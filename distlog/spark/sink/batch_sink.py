"""The batch sink: each task writes its rows as unreferenced segments, then the driver commits them all at once.

`abort` deletes nothing: the outcome of the commit may be unknown, and another attempt of a task may still be writing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from distlog.core import paths
from distlog.core.commits.format.commit import Origin
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CommitConflictError
from distlog.core.segments.segment_writer import codec_of
from distlog.core.topic_handle import TopicHandle
from distlog.spark.sink.commits import find_write, holds_batch
from distlog.spark.sink.known_topics import KNOWN_TOPICS
from distlog.spark.sink.micro_batches import check_first_write
from distlog.spark.sink.task_write import Written, all_written, write_rows
from distlog.spark.sink.topic_facts import TopicFacts
from distlog.spark.sink.write_commit import Transaction, commit_segments
from distlog.spark.sink.write_options import WriteOptions
from distlog.spark.source.kafka_rows import check_writable
from distlog.spark.worker import settle


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
            _, snapshot = KNOWN_TOPICS.load(options.storage)
            topic = TopicFacts.of(snapshot, options.app_id, options.batch_id)
        options.check_topic(topic.name)
        check_writable(schema, topic.config)
        codec_of(topic.config, options.compression)
        return cls(options, topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. They become visible with the commit."""
        if not self._topic.is_done:
            return write_rows(self._options.storage, self._topic, self._options.compression, iterator)
        for _ in iterator:  # Spark fails a task that does not read all its rows
            pass
        return Written()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the segments of all tasks, in the order of the tasks, in one commit; a second call adds no other.

        Raises CommitConflictError (nothing was appended) or CommitStateUnknownError (the rows may have been appended;
        repeat the write with the same txnAppId and txnVersion).
        """
        settle()
        written = all_written(messages)
        if self._topic.done_in is not None:
            self._check_done(self._topic.done_in)
            return
        handle, snapshot = KNOWN_TOPICS.load(self._options.storage)
        self._topic.check(snapshot)
        if not find_write(self._options.storage, self._write_id, self._topic.version, snapshot.version):
            self._append(handle, snapshot, written)

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
        options = self._options
        segments = [segment for message in written for segment in message.segments]
        batch = next((message.micro_batch for message in written if message.micro_batch), None)
        is_batch_its_transaction = options.app_id is None and batch is not None
        if batch is not None and is_batch_its_transaction:
            if not segments:
                return
            transaction = Transaction(batch.query_id, batch.batch_id, in_order=True)
        else:
            transaction = Transaction(options.app_id, options.batch_id)
        result = commit_segments(
            handle,
            snapshot,
            self._topic,
            segments,
            transaction,
            Origin(self._write_id, batch.run_id if batch else None),
            merges=options.merges(is_micro_batch=batch is not None),
        )
        if batch is not None and is_batch_its_transaction and result.replayed:
            check_first_write(handle, batch, segments, result)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: vacuum deletes the files."""
