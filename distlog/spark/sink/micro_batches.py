"""Tells a micro-batch that is written again after a restart from a second write of the same micro-batch.

A foreachBatch function may write twice to one topic. Without txnAppId both writes have the query and the batch as
their transaction, and the second would be taken for a repetition of the first, and lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from distlog.core.commits.format.actions import SetTransaction
from distlog.core.commits.format.fields import LONGEST_NAME
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import InvalidRecordError
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.spark.sink.commits import MicroBatch, is_of_run
from distlog.spark.sink.known_topics import KNOWN_TOPICS


def check_first_write(
    handle: TopicHandle, batch: MicroBatch, segments: Sequence[SegmentInfo], earlier: AppendResult
) -> None:
    """Raise InvalidRecordError unless this is the run's first write of a micro-batch that an earlier run committed.

    `earlier` is what was committed. One commit notes that this run has repeated the batch, so the run's next write of
    it is seen to be another.
    """
    if earlier.version is None:
        return
    records = sum(segment.record_count for segment in segments)
    is_second = is_of_run(handle.storage, earlier.version, batch.run_id)
    if records != earlier.record_count or is_second or not _is_first_of_run(handle, batch):
        raise InvalidRecordError(
            "another write has appended this micro-batch to the topic: give each write of a foreachBatch function "
            "its own txnAppId, and the batch's number as txnVersion",
            query=batch.query_id,
            batch=batch.batch_id,
            records=records,
            records_before=earlier.record_count,
        )


def _is_first_of_run(handle: TopicHandle, batch: MicroBatch) -> bool:
    if batch.run_id is None:
        return True
    note = SetTransaction(f"{batch.query_id} repeated", f"{batch.batch_id} in {batch.run_id}"[:LONGEST_NAME], {})

    def plan(current: Snapshot) -> list[SetTransaction] | None:
        return None if current.transaction(note.app_id, note.batch_id) else [note]

    _, snapshot = KNOWN_TOPICS.load(handle.storage)
    noted, snapshot = handle.log.commit(snapshot, "append", plan)
    KNOWN_TOPICS.keep(handle, snapshot)
    return noted is not None
