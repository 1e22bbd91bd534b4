"""Finds the commit of a Spark write by its `write_id` and, for a batch of a stream, its `run_id`.

Both ids are in the commit. With them the driver finds the offsets that its write got, Spark may ask twice for one
commit, and two writes of one micro-batch are not taken for a write that is repeated after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass

from distlog.core import paths
from distlog.core.commits.commit_files import CommitFiles
from distlog.core.commits.format.actions import Add, Seal, SetTransaction
from distlog.core.commits.format.commit import Commit
from distlog.core.config import MAX_LONG, TopicConfig
from distlog.core.maintenance.retention import records_beyond
from distlog.core.storage.storage import Storage
from distlog.core.topics.appending.append_commit import AppendResult, BatchId
from distlog.core.topics.appending.placement import offsets_of


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A batch of a streaming query.

    The query's id lasts as long as its checkpoint; the run's id lasts until the query is stopped. `run_id` is None if
    Spark does not give it.
    """

    query_id: str
    batch_id: int
    run_id: str | None


def find_write(
    storage: Storage, write_id: str, after: int, head: int | None = None, config: TopicConfig | None = None
) -> AppendResult | None:
    """The result of the write `write_id`, or None if it is not committed in a version later than `after`.

    The commit found is made durable. `head` is the last version to look at; without it this finds the head. It reads
    no manifests of other writes' commits. Without `config` nothing counts as expired.
    """
    files = CommitFiles(storage)
    known, end = (-1, MAX_LONG) if head is None else (head, head + 1)
    for commits in files.follow(after + 1, end=end, known=known, whole_from=MAX_LONG):
        for commit in commits:
            if commit.write_id == write_id:
                storage.sync(paths.COMMITS_DIR)
                return _result(files.expanded(commit), config)
    return None


def is_of_run(storage: Storage, version: int, run_id: str | None) -> bool:
    """Whether the commit of `version` was made in this run of a streaming query; False if `run_id` is None."""
    return run_id is not None and CommitFiles(storage).read_existing(version, whole=False).run_id == run_id


def holds_batch(storage: Storage, version: int, app_id: str | None, batch_id: BatchId | None) -> bool:
    """Whether the commit of `version` is the commit of the application's batch."""
    commit = CommitFiles(storage).read(version)
    made = (action for action in commit.actions if isinstance(action, SetTransaction)) if commit else ()
    return any((one.app_id, one.batch_id) == (app_id, batch_id) for one in made)


def _result(commit: Commit, config: TopicConfig | None) -> AppendResult:
    # the commit also adds the active segments that it sealed, with records of others
    sealed = {(action.partition, action.stem) for action in commit.actions if isinstance(action, Seal)}
    added = (action.segment for action in commit.actions if isinstance(action, Add))
    segments = [segment for segment in added if (segment.partition, segment.stem) not in sealed]
    expired = 0 if config is None else records_beyond(segments, config, commit.timestamp_ms)
    return AppendResult(commit.version, offsets_of(segments), expired=expired)
