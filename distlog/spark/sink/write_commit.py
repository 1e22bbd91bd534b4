"""The commit of a write, in the driver: the segments of all its tasks, and then a merge of small ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from distlog.core.commits.format.commit import Origin
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.maintenance.merging.tail_merge import merge_tails
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appending.append_commit import AppendResult, BatchId, commit_append
from distlog.spark.sink.known_topics import KNOWN_TOPICS
from distlog.spark.sink.topic_facts import TopicFacts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The (app_id, batch_id) of a write; (None, None) for a write without one. `in_order` is that of `replayed`."""

    app_id: str | None = None
    batch_id: BatchId | None = None
    in_order: bool = False


def commit_segments(
    handle: TopicHandle,
    snapshot: Snapshot,
    planned: TopicFacts,
    segments: Sequence[SegmentInfo],
    transaction: Transaction,
    origin: Origin,
    *,
    merges: bool,
) -> AppendResult:
    """Append `segments` in one commit, then merge if the write `merges`; raises what `commit_append` raises.

    `planned` is the topic as the tasks saw it: CommitConflictError if it was dropped since, or made a compacted one.
    """
    planned.check(snapshot)
    result, snapshot = commit_append(
        handle,
        snapshot,
        segments,
        read_version=planned.version,
        app_id=transaction.app_id,
        batch_id=transaction.batch_id,
        in_order=transaction.in_order,
        origin=origin,
        written_by=planned.config,
    )
    KNOWN_TOPICS.keep(handle, snapshot)
    if merges and not result.replayed:
        _merge(handle, snapshot, segments)
    return result


def _merge(handle: TopicHandle, snapshot: Snapshot, appended: Sequence[SegmentInfo]) -> None:
    """Merge small segments. The write is committed and goes on without the merge if that fails."""
    try:
        report, snapshot = merge_tails(handle, snapshot, appended)
    except Exception as error:
        _log.warning("small segments of %s were not merged, a later write tries again: %s", handle.name, error)
        return
    KNOWN_TOPICS.keep(handle, snapshot)
    for one in report.failed if report else ():
        _log.warning("%s", one)
