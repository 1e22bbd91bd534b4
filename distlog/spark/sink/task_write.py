"""What a task of a write does: it writes its rows as unreferenced segments, and tells the driver about them.

Each attempt of a task writes files under its own names, and leaves them there when it fails, is repeated or is
aborted. Only the files of the attempt whose message Spark passes to `commit` become part of the topic. So nothing is
ever undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from distlog.core.commits.format.fields import LONGEST_NAME
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import CommitConflictError
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.core.topics.appending.appender import Appender
from distlog.spark.sink.commits import MicroBatch
from distlog.spark.sink.topic_facts import TopicFacts
from distlog.spark.worker import settle


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The segments that a task wrote, the micro-batch that it was part of, if any, and the topic as it saw it."""

    segments: tuple[SegmentInfo, ...] = ()
    micro_batch: MicroBatch | None = None
    topic: TopicFacts | None = None


def write_rows(
    storage: Storage, topic: TopicFacts, compression: str | None, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Write all rows of a task; `compression` is the codec that the write asks for.

    Raises InvalidRecordError for a row that does not fit; then nothing of the task is kept.
    """
    context = TaskContext.get()
    appender = Appender(
        storage,
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
        compression=compression,
    )
    try:
        for batch in batches:
            appender.append(batch)
            settle()
        return Written(tuple(appender.close()), _micro_batch(context), topic)
    except BaseException:
        appender.abort()
        raise


def all_written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """What each task has written; raises CommitConflictError if one did not tell."""
    written = [message for message in messages if isinstance(message, Written)]
    if len(written) < len(messages):
        raise CommitConflictError("nothing was committed: a task did not report what it wrote; write again")
    return written


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
