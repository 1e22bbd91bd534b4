"""A topic's commit log: load its state, follow it, and add to it.

Optimistic: a plan is made from a snapshot and put as the next version unless somebody else was first;
who loses applies what won and plans again. Nothing is locked, and no commit is ever changed or deleted.

A commit that is seen may not be durable yet: on a local disk, who put it may have died before it synced the
folder. Our own put syncs the folder, and with it all commits that ours stands on. Where nothing is put, and a
caller is told of what was seen, the folder is synced first.
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
from distlog.core.commits import checkpoint, commit_rules
from distlog.core.commits.actions import (
    MAX_PARTITIONS,
    Action,
    Commit,
    Create,
    SetConfig,
    SetPartitions,
)
from distlog.core.commits.append_time import with_append_times
from distlog.core.commits.commit_files import CommitFiles
from distlog.core.commits.features import NOTHING
from distlog.core.commits.fold import apply
from distlog.core.commits.manifest import CommitWriter
from distlog.core.commits.race import Race
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import SnapshotLoader
from distlog.core.commits.store_time import not_after, trusted_ms
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CommitConflictError,
    CorruptMetadataError,
    InvalidConfigError,
    TopicExistsError,
    TopicNotFoundError,
)
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage

Plan = Callable[[Snapshot], Sequence[Action] | None]

CHECKPOINT_COMMITS = 100
CHECKPOINT_BYTES = 8 << 20
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
    after `checkpoint_commits` commits, or CHECKPOINT_BYTES of them. A commit of more than `commit_limit` bytes
    gets a manifest.
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
        commit_limit: int = MAX_CONDITIONAL_BYTES,
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
        self._commit_limit = commit_limit

    def create(self, partitions: int, config: TopicConfig) -> Snapshot:
        """Create the topic, named as the storage's folder is; after a drop its versions go on.

        Raises TopicExistsError, InvalidTopicError, InvalidConfigError, StorageError when the storage cannot
        hold a log, UnsupportedVersionError where a newer library owned what was dropped, and
        CommitStateUnknownError.
        """
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise InvalidConfigError(f"a topic has 1 to {MAX_PARTITIONS} partitions", partitions=partitions)
        name = paths.check_topic_name(self._storage.url.rstrip("/").rpartition("/")[2])
        settings = {setting: str(value) for setting, value in config.overrides().items()}
        actions: list[Action] = [Create(name), SetPartitions(partitions), SetConfig(settings)]
        head = self._head_to_create_on()
        self._storage.probe_put_if_absent(paths.COMMITS_DIR)
        writer = CommitWriter(self._storage)
        while True:
            attempt = self._attempt(writer, head, str(uuid.uuid4()), "create", actions)
            if self._put(attempt, TIMEOUT_S) is None:
                return attempt.after
            head = self._head_to_create_on()

    def _head_to_create_on(self) -> Snapshot | None:
        head = self._loader.load()
        if head and not head.dropped:
            self._sync()
            raise TopicExistsError("there is a topic already", url=self._storage.url)
        if head:
            head.requires.check_writable()
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
        if snapshot and snapshot.dropped and not include_dropped:
            self._sync()
            snapshot = None
        if snapshot is None:
            raise TopicNotFoundError("there is no topic here", url=self._storage.url)
        return snapshot

    def refresh(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot at the head, from an older one of the same topic; one request when nothing is new.

        Raises TopicNotFoundError when the topic was dropped meanwhile, even if it was created again: the
        new one has other offsets.
        """
        head = self._loader.follow(snapshot)
        if commit_rules.is_gone(head, snapshot):
            self._sync()
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
        version that a new data file was begun at. On a fresh snapshot and without a race this is one PUT. What
        the new state says is durable, also where nothing was to do because another did it.

        Raises CommitConflictError when nothing was and nothing will be committed, as its subclass
        TransactionTooOldError when the data files must be written again; CommitStateUnknownError when that
        is not known: the data files must stay. UnsupportedVersionError when a newer library owns the topic.
        """
        race = self._race(operation, timeout_s)
        head, writer = snapshot, CommitWriter(self._storage, self._commit_limit)
        while True:
            commit_rules.check_writable(head, begin)
            actions = plan(head)
            if actions is None:
                self._sync()
                return None, head
            attempt = self._attempt(writer, head, head.topic_id, operation, actions, race.waited_ms())
            writer.write_manifest()
            winner = self._put(attempt, race.left_s())
            if winner is None:
                self._write_checkpoint_if_due(head, attempt.after)
                return attempt.commit, attempt.after
            commit = self._files.decode(head.version + 1, winner)
            race.lost_to(commit)
            head = self._loader.follow(apply(head, commit), group=race.probes())
            if commit_rules.is_gone(head, snapshot):
                self._sync()
                raise CommitConflictError("nothing was committed: the topic was dropped", url=self._storage.url)

    def history(self, limit: int | None = None) -> list[Commit]:
        """The last `limit` commits, or all of them, newest first; raises as `load` does."""
        end = self.load(include_dropped=True).version + 1
        return self.commits(0 if limit is None else max(0, end - limit), end)[::-1]

    def commits(self, start: int, end: int) -> list[Commit]:
        """The commits of the versions `start` (in) to `end` (out), which must exist, oldest first.

        Raises CorruptMetadataError.
        """
        groups = self._files.follow(start, end=end, known=end - 1, group=64)
        commits = [commit for group in groups for commit in group]
        for before, after in itertools.pairwise(commits):
            if after.prev != before.id:
                raise CorruptMetadataError("a commit does not follow the one before it", version=after.version)
        return commits

    def _attempt(
        self,
        writer: CommitWriter,
        head: Snapshot | None,
        topic_id: str,
        operation: str,
        actions: Sequence[Action],
        waited_ms: int = 0,
    ) -> _Attempt:
        """The commit of `actions` after `head`, read back and applied as every reader will, before it is put."""
        passed_ms = head.timestamp_ms if head else 0
        timestamp_ms = max(trusted_ms(self._clock(), self._storage, passed_ms), passed_ms + 1)
        actions = with_append_times([not_after(timestamp_ms, action) for action in actions], timestamp_ms)
        commit = Commit(
            version=head.version + 1 if head else 0,
            id=str(uuid.uuid4()),
            prev=head.commit_id if head else None,
            topic_id=topic_id,
            timestamp_ms=timestamp_ms,
            operation=operation,
            writer=self._writer,
            waited_ms=waited_ms,
            actions=actions,
            requires=commit_rules.features(actions).beyond(head.requires if head else NOTHING),
        )
        if head:
            commit_rules.check_begin(head, commit_rules.oldest_begin(actions))
        data = writer.encode(commit, *((head.version, head.gc_floor) if head else (0, 0)))
        try:
            commit = writer.decode(data, paths.commit_file(commit.version))
            return _Attempt(commit, data, apply(head, commit))
        except CorruptMetadataError as error:
            raise CommitConflictError(f"nothing was committed: {error.__cause__}", operation=operation) from error

    def _put(self, attempt: _Attempt, timeout_s: float) -> bytes | None:
        """Put the attempt's commit; None when it stands, else the bytes of the one that was first."""
        file = paths.commit_file(attempt.commit.version)
        standing = self._storage.put_if_absent(file, attempt.data, timeout_s=max(timeout_s, 1.0))
        return None if standing == attempt.data else standing

    def _sync(self) -> None:
        self._storage.sync(paths.COMMITS_DIR)

    def _race(self, operation: str, timeout_s: float) -> Race:
        return Race(operation, timeout_s, clock=self._monotonic, sleep=self._sleep, random=self._random)

    def _write_checkpoint_if_due(self, before: Snapshot, after: Snapshot) -> None:
        # By number and by bytes since version 0, so that of many writers one writes it.
        full = before.commit_bytes // CHECKPOINT_BYTES < after.commit_bytes // CHECKPOINT_BYTES
        if not full and after.version % self._checkpoint_commits:
            return
        try:
            checkpoint.write(self._storage, after)
        except Exception as error:
            _log.warning("no checkpoint of version %d: %s", after.version, error)
