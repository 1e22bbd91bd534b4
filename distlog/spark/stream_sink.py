"""The sink of Structured Streaming: each micro-batch is one commit, and each is committed once.

The commit names the query and the number of the micro-batch. So a batch that Spark runs again, since the driver
died before Spark noted that it was done, finds its first commit. Its files are then named by no commit, and vacuum
deletes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from distlog.core.errors import CommitConflictError
from distlog.core.segments.segment_writer import codec_of
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.write.append import AppendResult
from distlog.spark.batch_source import check_writable
from distlog.spark.known_topics import KNOWN_TOPICS, RECENT_MS
from distlog.spark.options import freeze_objects, works_for
from distlog.spark.sink import PlannedTopic, WriteOptions, all_written, commit_segments, write_rows
from distlog.spark.versions import DataSourceStreamArrowWriter

#: The module of Spark that makes a sink to commit with, in a process of its own.
COMMITTER = "pyspark.sql.worker.python_streaming_sink_runner"

_log = logging.getLogger(__name__)


class DistlogStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch, as Spark sees it.

    Spark makes one in the planner and copies it to every task. It makes another in the process that commits, so what
    that one must know is in the messages of the tasks.
    """

    def __init__(self, options: WriteOptions, topic: PlannedTopic | None) -> None:
        self._options, self._topic = options, topic

    @classmethod
    def open(cls, options: WriteOptions, schema: StructType) -> DistlogStreamWriter:
        """Load the topic, and check the write before any task runs; for a commit neither is needed."""
        if works_for(COMMITTER):
            return cls(options, None)
        _, snapshot = KNOWN_TOPICS.load(options.storage, recent_ms=RECENT_MS)
        options.check_topic()
        check_writable(schema, snapshot.config)
        codec_of(snapshot.config, options.compression)
        return cls(options, PlannedTopic.of(snapshot, None, None))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. They become visible with the commit."""
        options = self._options
        if self._topic is None:
            raise RuntimeError("the process that commits a micro-batch did not plan it")
        return write_rows(options.storage, self._topic, options.compression, iterator, options.timestamp_unit)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Commit the segments of all tasks, in the order of the tasks, unless this batch or a later one was before.

        A batch without rows makes no commit. Raises CommitConflictError (nothing was appended) or
        CommitStateUnknownError (the rows may have been appended). After both the query can be started again.
        """
        freeze_objects()
        written = all_written(messages)
        segments = [segment for message in written for segment in message.segments]
        planned = next((message.topic for message in written if message.segments), None)
        if planned is None:
            return
        batch = next((message.micro_batch for message in written if message.micro_batch), None)
        handle, snapshot = KNOWN_TOPICS.load_planned(self._options.storage, planned.topic_id, planned.version)
        app_id = self._options.app_id or (batch and batch.query_id)
        if not app_id:
            raise CommitConflictError(
                "nothing was committed: Spark did not pass the id of the query; give the option txnAppId"
            )
        result = commit_segments(
            handle,
            snapshot,
            planned,
            segments,
            app_id=app_id,
            batch_id=batchId,
            in_order=True,
            merges=self._options.merges(is_micro_batch=True),
        )
        if result.replayed:
            _log_skipped(handle, app_id, batchId, sum(segment.record_count for segment in segments), result)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Do nothing: vacuum deletes the files. The outcome of the commit may be unknown."""


def _log_skipped(handle: TopicHandle, app_id: str, batch_id: int, records: int, earlier: AppendResult) -> None:
    """Log quietly that a batch came again; warn if rows are left out that the topic may not have."""
    name = handle.storage.name
    if earlier.version is None:
        _log.warning(
            "batch %d of %s was skipped, since %s has a later one: if the query has a new checkpoint, give it a "
            "txnAppId that was never used",
            batch_id,
            app_id,
            name,
        )
    elif records != earlier.record_count:
        _log.warning(
            "batch %d of %s was skipped: it has %d records now, and had %d in version %d of %s; if the checkpoint is "
            "an older copy, or lost its newest files, records are left out: begin with a new checkpoint",
            batch_id,
            app_id,
            records,
            earlier.record_count,
            earlier.version,
            name,
        )
    else:
        _log.info("batch %d of %s is in version %d of %s already", batch_id, app_id, earlier.version, name)
