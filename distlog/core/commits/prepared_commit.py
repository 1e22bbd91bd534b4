"""One attempt to commit: a commit is made, with its time and features, and read back, before it is put."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from distlog.core import paths
from distlog.core.arrays import numbers_of
from distlog.core.commits.actions import (
    Action,
    Add,
    AddTable,
    Remove,
    RemoveTable,
    Restore,
    Seal,
    without_tables,
)
from distlog.core.commits.commit_json import Commit, in_tables
from distlog.core.commits.segment_table import BY_COMMIT, appended_at, with_numbers
from distlog.core.commits.snapshot import Snapshot, apply
from distlog.core.errors import CommitConflictError, CorruptMetadataError, TransactionTooOldError
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A commit before it is put: the commit, its bytes, and the state after it."""

    commit: Commit
    data: bytes
    after: Snapshot


_log = logging.getLogger(__name__)


def with_append_times(actions: Sequence[Action], time_ms: int) -> tuple[Action, ...]:
    """The `actions` of a commit of `time_ms`; segments that wait for the commit's time get it.

    The times of commits increase, and so do the times of a partition's segments.
    """
    return tuple(_timed(action, time_ms) for action in actions)


def _timed(action: Action, time_ms: int) -> Action:
    if isinstance(action, AddTable):
        waits = numbers_of(action.rows["append_time_ms"]) == BY_COMMIT
        return AddTable(appended_at(action.rows, waits, time_ms)) if waits.any() else action
    if isinstance(action, Add) and action.segment.append_time_ms == BY_COMMIT:
        return dataclasses.replace(action, segment=action.segment.appended_at(time_ms))
    return action


# This process's time, unless its clock is far ahead of the store's: one bad clock must not damage a topic.
#
# A slow clock does no harm: the times of commits only increase. The store is asked for its time only if
# the clock is far ahead of a time that is known to have passed. So a busy writer never asks.


#: A clock is trusted up to this far ahead of a time that has passed, or of the store's time.
AHEAD_MS = 5 * 60_000


def trusted_ms(now_ms: int, storage: Storage, passed_ms: int = 0) -> int:
    """`now_ms`, or the store's own time, with a warning, if `now_ms` is more than AHEAD_MS later.

    `storage` is a topic's. It is not asked if `now_ms` is at most AHEAD_MS after `passed_ms`, which has passed.
    """
    if now_ms <= passed_ms + AHEAD_MS:
        return now_ms
    store_ms = storage.now_ms(paths.COMMITS_DIR)
    if now_ms <= store_ms + AHEAD_MS:
        return now_ms
    ahead_s = (now_ms - store_ms) // 1000
    _log.warning(
        "this computer's clock is %d s ahead of the storage's: set it; until then the storage's time is used", ahead_s
    )
    return store_ms


def not_after(timestamp_ms: int, action: Action) -> Action:
    """`action` for a commit of `timestamp_ms`: a segment with a later time, of a bad clock, gets that time.

    Retention uses this time if the records' own times are in the future.
    """
    if isinstance(action, AddTable):
        created = numbers_of(action.rows["created_ms"])
        if not (created > timestamp_ms).any():
            return action
        return AddTable(with_numbers(action.rows, {"created_ms": np.minimum(created, timestamp_ms)}))
    if not isinstance(action, Add) or action.segment.created_ms <= timestamp_ms:
        return action
    return dataclasses.replace(action, segment=dataclasses.replace(action.segment, created_ms=timestamp_ms))


def check_read_version(head: Snapshot, read_version: int | None) -> None:
    """Raise TransactionTooOldError if `read_version`, at which the files were started, is below `gc_floor`."""
    if read_version is not None and read_version < head.gc_floor:
        raise TransactionTooOldError(
            "the data files are too old to be committed: write them again",
            read_version=read_version,
            gc_floor=head.gc_floor,
        )


def oldest_read_version(actions: Sequence[Action]) -> int | None:
    """The oldest read version of the files that `actions` add; None if there are none.

    Restored files do not count: their version is checked.
    """
    removed_pairs = {(action.partition, action.stem) for action in actions if isinstance(action, (Remove, Seal))}
    restored = {action.partition for action in actions if isinstance(action, Restore)}
    removed = [action.rows for action in actions if isinstance(action, RemoveTable)]
    if restored or removed_pairs or removed:
        removed_pairs.update(
            pair for rows in removed for pair in zip(*(column.to_pylist() for column in rows), strict=True)
        )
        segments = (action.segment for action in without_tables(actions) if isinstance(action, Add))
        added = {
            segment.stem
            for segment in segments
            if segment.partition not in restored and (segment.partition, segment.stem) not in removed_pairs
        }
    else:
        added = {action.segment.stem for action in actions if isinstance(action, Add)}
        for action in actions:
            if isinstance(action, AddTable):
                added.update(pc.unique(action.rows["stem"]).to_pylist())
    return min((version for version in map(paths.stem_read_version, added) if version is not None), default=None)


class CommitPreparation:
    """The attempts of one commit, a new one after each lost race.

    `writer` is the author of the commit, `write_id` its write; `clock` gives the time in ms.
    """

    def __init__(
        self,
        storage: Storage,
        operation: str,
        *,
        writer: str,
        write_id: str | None,
        clock: Callable[[], int],
    ) -> None:
        self._storage, self._operation, self._clock = storage, operation, clock
        self._writer, self._write_id = writer, write_id

    def make(
        self,
        head: Snapshot | None,
        topic_id: str,
        actions: Sequence[Action],
        waited_ms: int = 0,
        next_append: str | None = None,
    ) -> PreparedCommit:
        """Make the commit of `actions` after `head`; `next_append` is the queued append whose writer commits next.

        Raises CommitConflictError when readers would refuse the commit, TransactionTooOldError when files are too
        old.
        """
        passed_ms = head.timestamp_ms if head else 0
        timestamp_ms = max(trusted_ms(self._clock(), self._storage, passed_ms), passed_ms + 1)
        actions = in_tables(actions)
        actions = with_append_times([not_after(timestamp_ms, action) for action in actions], timestamp_ms)
        commit = Commit(
            version=head.version + 1 if head else 0,
            id=str(uuid.uuid4()),
            prev=head.commit_id if head else None,
            topic_id=topic_id,
            timestamp_ms=timestamp_ms,
            operation=self._operation,
            writer=self._writer,
            waited_ms=waited_ms,
            write_id=self._write_id,
            next_append=next_append,
            actions=actions,
        )
        if head:
            check_read_version(head, oldest_read_version(actions))
        data = commit.encode()
        if len(data) > MAX_CONDITIONAL_BYTES:
            raise CommitConflictError(
                f"nothing was committed: a commit takes up to {MAX_CONDITIONAL_BYTES} bytes; do it in several",
                size=len(data),
            )
        try:
            commit = Commit.decode(data, paths.commit_file(commit.version))
            return PreparedCommit(commit, data, apply(head, commit))
        except CorruptMetadataError as error:
            raise CommitConflictError(
                f"nothing was committed: {error.__cause__}", operation=self._operation
            ) from error
