"""A topic's commit log: load its state, follow it, and add to it.

Optimistic: a plan is made from a snapshot and put as the next version unless somebody else was first;
who loses applies what won and plans again. Nothing is locked, and no commit is ever changed or deleted.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import (
    MAX_PARTITIONS,
    Action,
    Add,
    Commit,
    Create,
    Remove,
    Seal,
    SetConfig,
    SetPartitions,
)
from distlog.core.commits.append_time import with_append_times
from distlog.core.commits.commit_files import CommitFiles
from distlog.core.commits.features import APPEND_TIME, NOTHING, Requires
from distlog.core.commits.fold import apply
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import SnapshotLoader
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CommitConflictError,
    CorruptMetadataError,
    InvalidConfigError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionTooOldError,
)
from distlog.core.storage.storage import Storage

Plan = Callable[[Snapshot], Sequence[Action] | None]

CHECKPOINT_COMMITS = 100
CHECKPOINT_BYTES = 8 << 20
# Longest pause after a lost race, in seconds. Short and not growing, else who came last would win;
# maintenance waits longer, so that appends win.
PAUSE_S = 0.05
MAINTENANCE_PAUSE_S = 1.0
MAINTENANCE = frozenset({"retention", "compact", "rebuild", "gc"})

TIMEOUT_S = 600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Attempt:
    commit: Commit
    data: bytes
    after: Snapshot


class CommitLog:
    """The commits of the topic in `storage`, for many readers and writers in as many processes.

    `clock` gives the time in ms; `random` spreads the pauses of `sleep`, in seconds, and `monotonic`
    measures deadlines, in seconds. `writer` says in each commit who made it. A checkpoint is written
    after `checkpoint_commits` commits, or CHECKPOINT_BYTES of them.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Callable[[], int],
        random: Random,
        writer: str,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        checkpoint_commits: int = CHECKPOINT_COMMITS,
    ) -> None:
        self._storage = storage
        self._files = CommitFiles(storage)
        self._loader = SnapshotLoader(storage)
        self._clock = clock
        self._random = random
        self._writer = writer
        self._sleep = sleep
        self._monotonic = monotonic
        self._checkpoint_commits = checkpoint_commits

    def create(self, partitions: int, config: TopicConfig) -> Snapshot:
        """Create the topic, named as the storage's folder is; after a drop its versions go on.

        Raises TopicExistsError, InvalidTopicError, InvalidConfigError, StorageError when the storage cannot
        hold a log, and CommitStateUnknownError.
        """
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise InvalidConfigError(f"a topic has 1 to {MAX_PARTITIONS} partitions", partitions=partitions)
        name = paths.check_topic_name(self._storage.url.rstrip("/").rpartition("/")[2])
        settings = {setting: str(value) for setting, value in config.overrides().items()}
        actions: list[Action] = [Create(name), SetPartitions(partitions), SetConfig(settings)]
        head = self._head_to_create_on()
        self._storage.probe_put_if_absent(paths.COMMITS_DIR)
        while True:
            attempt = self._attempt(head, str(uuid.uuid4()), "create", actions)
            if self._put(attempt, TIMEOUT_S) is None:
                return attempt.after
            head = self._head_to_create_on()

    def _head_to_create_on(self) -> Snapshot | None:
        head = self._loader.load()
        if head and not head.dropped:
            raise TopicExistsError("there is a topic already", url=self._storage.url)
        return head

    def load(
        self, version: int | None = None, timestamp_ms: int | None = None, *, include_dropped: bool = False
    ) -> Snapshot:
        """The snapshot at the head, at `version`, or of the newest commit that is not after `timestamp_ms`.

        Raises TopicNotFoundError when there is no topic, or it was dropped by then (unless
        `include_dropped`, as vacuum asks), OffsetOutOfRangeError for a version or time that the topic does
        not have, CorruptMetadataError, UnsupportedVersionError.
        """
        snapshot = self._loader.load_at(timestamp_ms) if timestamp_ms is not None else self._loader.load(version)
        if snapshot is None or (snapshot.dropped and not include_dropped):
            raise TopicNotFoundError("there is no topic here", url=self._storage.url)
        return snapshot

    def refresh(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot at the head, from an older one of the same topic; one request when nothing is new.

        Raises TopicNotFoundError when the topic was dropped meanwhile, even if it was created again: the
        new one has other offsets.
        """
        head = self._loader.follow(snapshot)
        if _is_gone(head, snapshot):
            raise TopicNotFoundError("the topic was dropped; open it again if it exists", url=self._storage.url)
        return head

    def commit(
        self,
        snapshot: Snapshot,
        operation: str,
        plan: Plan,
        *,
        begin: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[Commit | None, Snapshot]:
        """Commit what `plan` makes of `snapshot`, or of what others made of that meanwhile, and the new state.

        `plan` gives the actions for the snapshot it is called with, or None when there is nothing to do, or
        raises what tells its caller why not; it is called again after each lost race. `begin` is the oldest
        version that a new data file was begun at. On a fresh snapshot and without a race this is one PUT.

        Raises CommitConflictError when nothing was and nothing will be committed, as its subclass
        TransactionTooOldError when the data files must be written again; CommitStateUnknownError when that
        is not known: the data files must stay. UnsupportedVersionError when a newer library owns the topic.
        """
        deadline = self._monotonic() + timeout_s
        head = snapshot
        while True:
            _check_writable(head, begin)
            actions = plan(head)
            if actions is None:
                return None, head
            attempt = self._attempt(head, head.topic_id, operation, actions)
            winner = self._put(attempt, deadline - self._monotonic())
            if winner is None:
                self._write_checkpoint_if_due(head, attempt.after)
                return attempt.commit, attempt.after
            self._pause(operation, deadline)
            head = self._catch_up(head, winner)
            if _is_gone(head, snapshot):
                raise CommitConflictError("nothing was committed: the topic was dropped", url=self._storage.url)

    def history(self, limit: int | None = None) -> list[Commit]:
        """The last `limit` commits, or all of them, newest first; raises as `load` does."""
        end = self.load(include_dropped=True).version + 1
        start = 0 if limit is None else max(0, end - limit)
        groups = self._files.follow(start, end=end, known=end - 1, group=64)
        commits = [commit for group in groups for commit in group]
        for before, after in itertools.pairwise(commits):
            if after.prev != before.id:
                raise CorruptMetadataError("a commit does not follow the one before it", version=after.version)
        return commits[::-1]

    def _attempt(self, head: Snapshot | None, topic_id: str, operation: str, actions: Sequence[Action]) -> _Attempt:
        """The commit of `actions` after `head`, read back and applied as every reader will, before it is put."""
        timestamp_ms = max(self._clock(), head.timestamp_ms + 1 if head else 0)
        actions = with_append_times(actions, timestamp_ms)
        commit = Commit(
            version=head.version + 1 if head else 0,
            id=str(uuid.uuid4()),
            prev=head.commit_id if head else None,
            topic_id=topic_id,
            timestamp_ms=timestamp_ms,
            operation=operation,
            writer=self._writer,
            actions=actions,
            requires=_features(actions).beyond(head.requires if head else NOTHING),
        )
        if head:
            _check_begin(head, _oldest_begin(actions))
        data = commit.encode()
        try:
            commit = Commit.decode(data, paths.commit_file(commit.version))
            return _Attempt(commit, data, apply(head, commit))
        except CorruptMetadataError as error:
            raise CommitConflictError(f"nothing was committed: {error.__cause__}", operation=operation) from error

    def _put(self, attempt: _Attempt, timeout_s: float) -> bytes | None:
        """Put the attempt's commit; None when it stands, else the bytes of the one that was first."""
        file = paths.commit_file(attempt.commit.version)
        standing = self._storage.put_if_absent(file, attempt.data, timeout_s=max(timeout_s, 1.0))
        return None if standing == attempt.data else standing

    def _pause(self, operation: str, deadline: float) -> None:
        if self._monotonic() >= deadline:
            raise CommitConflictError("nothing was committed: others were first until the deadline; try again")
        longest = MAINTENANCE_PAUSE_S if operation in MAINTENANCE else PAUSE_S
        self._sleep(self._random.uniform(0, longest))

    def _catch_up(self, head: Snapshot, winner: bytes) -> Snapshot:
        commit = Commit.decode(winner, paths.commit_file(head.version + 1))
        return self._loader.follow(apply(head, commit))

    def _write_checkpoint_if_due(self, before: Snapshot, after: Snapshot) -> None:
        # By number and by bytes since version 0, so that of many writers one writes it.
        full = before.commit_bytes // CHECKPOINT_BYTES < after.commit_bytes // CHECKPOINT_BYTES
        if not full and after.version % self._checkpoint_commits:
            return
        try:
            checkpoint.write(self._storage, after)
        except Exception as error:
            _log.warning("no checkpoint of version %d: %s", after.version, error)


def _is_gone(head: Snapshot, snapshot: Snapshot) -> bool:
    return head.topic_id != snapshot.topic_id or (head.dropped and not snapshot.dropped)


def _check_writable(head: Snapshot, begin: int | None) -> None:
    head.requires.check_writable()
    _check_begin(head, begin)


def _check_begin(head: Snapshot, begin: int | None) -> None:
    if begin is not None and begin < head.gc_floor:
        raise TransactionTooOldError(
            "the data files are too old to be committed: write them again", begin=begin, gc_floor=head.gc_floor
        )


def _features(actions: Sequence[Action]) -> Requires:
    """What a library must know to make sense of `actions`."""
    has_append_time = any(isinstance(action, Add) and action.segment.append_time_ms >= 0 for action in actions)
    return Requires(reader=(APPEND_TIME,)) if has_append_time else NOTHING


def _oldest_begin(actions: Sequence[Action]) -> int | None:
    """The oldest version at which a file that `actions` bring in was begun."""
    known = {action.stem for action in actions if isinstance(action, (Remove, Seal))}
    added = {action.segment.stem for action in actions if isinstance(action, Add)} - known
    return min((begin for begin in map(paths.stem_begin, added) if begin is not None), default=None)
