"""A topic's commit log: load its state, follow it, and add to it.

Concurrency is optimistic. A writer plans its actions from a snapshot, and puts them as the next version, unless
another writer was first. The loser applies the winner's commit and plans again. There are no locks, and no commit is
ever changed or deleted.

A commit that is visible may not be durable yet: on a local disk, its writer may have died before it synced the
folder. Our own put syncs the folder, and with it all earlier commits. If nothing is put, but the caller learns of a
visible commit, the folder is synced first.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from random import Random

from distlog.core import paths
from distlog.core.commits import commit_rules
from distlog.core.commits.attempt import Attempt, Attempts
from distlog.core.commits.checkpoints import checkpoint
from distlog.core.commits.commit_files import CommitFiles
from distlog.core.commits.creation import creation
from distlog.core.commits.format.actions import Action
from distlog.core.commits.format.commit import UNNAMED, Commit, Origin
from distlog.core.commits.race import Race
from distlog.core.commits.snapshot_loader import NO_DEFAULTS, SnapshotLoader
from distlog.core.commits.state.fold import apply
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.commits.still_there import StillThere
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitConflictError, CorruptMetadataError, TopicExistsError, TopicNotFoundError
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage

Plan = Callable[[Snapshot], Sequence[Action] | None]

CHECKPOINT_COMMITS = 100
CHECKPOINT_BYTES = 8 << 20
TIMEOUT_S = 600.0

_log = logging.getLogger(__name__)


class CommitLog:
    """The commits of the topic in `storage`, for any number of readers and writers in any processes.

    `clock` gives the time in ms. `random` varies the pauses of `sleep`, in seconds. `monotonic` measures deadlines,
    in seconds. `writer` is stored in each commit as its author. A checkpoint is written after `checkpoint_commits`
    commits, or CHECKPOINT_BYTES of them. A commit of more than `commit_limit` bytes gets a manifest. `defaults` are
    settings for what a topic does not set itself (`TopicConfig.with_defaults`).
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
        defaults: Mapping[str, object] = NO_DEFAULTS,
    ) -> None:
        self._storage = storage
        self._files = CommitFiles(storage)
        self._loader = SnapshotLoader(storage, defaults)
        self._there = StillThere(storage, monotonic)
        self._clock = clock
        self._random = random
        self._writer = writer
        self._sleep = sleep
        self._monotonic = monotonic
        self._checkpoint_commits = checkpoint_commits
        self._commit_limit = commit_limit

    @property
    def defaults(self) -> Mapping[str, object]:
        """Settings for what the topic does not set itself."""
        return self._loader.defaults

    def create(
        self, partitions: int, config: TopicConfig, *, topic_id: str | None = None, imported: Sequence[Action] = ()
    ) -> Snapshot:
        """Create the topic, with the name of the storage's folder; after a drop the versions continue.

        It holds what is `imported` from the start. Without `topic_id` it gets a new one.
        Raises TopicExistsError, InvalidTopicError, InvalidConfigError, StorageError when the storage cannot hold a
        log, UnsupportedVersionError if only a newer library may write the dropped topic, and CommitStateUnknownError.
        """
        actions = [*creation(self._storage.url, partitions, config), *imported]
        head = self._head_to_create_on()
        self._storage.probe_put_if_absent(paths.COMMITS_DIR)
        limit = self._commit_limit if imported else MAX_CONDITIONAL_BYTES
        attempts = self._attempts("import" if imported else "create", UNNAMED, limit)
        while True:
            attempt = attempts.make(head, topic_id or str(uuid.uuid4()), actions)
            attempts.write_manifest()
            if self._put(attempt, TIMEOUT_S) is None:
                return attempt.after
            head = self._head_to_create_on()

    def _head_to_create_on(self) -> Snapshot | None:
        head = self._loader.load()
        if head and not head.dropped:
            self._sync()
            raise TopicExistsError("the topic exists already: open it, or drop it first", url=self._storage.url)
        if head:
            head.requires.check_writable()
        return head

    def load(
        self,
        version: int | None = None,
        timestamp_ms: int | None = None,
        *,
        include_dropped: bool = False,
        known: Snapshot | None = None,
        recent_ms: int = 0,
    ) -> Snapshot:
        """The snapshot at the head, at `version`, or of the newest commit that is not after `timestamp_ms`.

        With `known`, loaded here before, the head takes few requests; unlike `refresh`, this is right also if the
        topic was made anew since. A new commit that is at most `recent_ms` old is then taken for the head. Raises
        TopicNotFoundError when there is no topic, or it was dropped by then (unless `include_dropped`, as vacuum
        asks), OffsetOutOfRangeError for a version or time that the topic does not have, CorruptMetadataError,
        UnsupportedVersionError.
        """
        if timestamp_ms is not None:
            snapshot = self._loader.load_at(timestamp_ms)
        else:
            until = self._clock() + 1
            snapshot = self._loader.load(version, known, range(until - recent_ms, until))
        if snapshot and snapshot.dropped and not include_dropped:
            self._sync()
            snapshot = None
        if snapshot is None:
            raise TopicNotFoundError(
                "there is no topic here: check the address, or create the topic", url=self._storage.url
            )
        return snapshot

    def refresh(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot at the head, from an older one of the same topic; one request if there are no new commits.

        Raises TopicNotFoundError when the topic was dropped, even if it was created again: the new topic has other
        offsets.
        """
        head = self._loader.follow(snapshot)
        self._there.check(head)
        if commit_rules.is_gone(head, snapshot):
            self._sync()
            raise TopicNotFoundError(
                "the topic was dropped: if it was created again since, open it again", url=self._storage.url
            )
        return head

    def commit(
        self,
        snapshot: Snapshot,
        operation: str,
        plan: Plan,
        *,
        read_version: int | None = None,
        origin: Origin = UNNAMED,
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[Commit | None, Snapshot]:
        """Commit the actions that `plan` makes from `snapshot`; return the commit and the new snapshot.

        `plan` returns the actions for the snapshot that it gets, or None when there is nothing to do, or raises an
        error for the caller. After each lost race it is called again, with the newest snapshot. `read_version` is
        the oldest version that was read before a new data file was begun. `origin` is stored in the commit.
        On a fresh snapshot and without a race this is one PUT. The new snapshot is durable, also if there was nothing
        to do because another writer did it.

        Raises CommitConflictError when nothing was and nothing will be committed; its subclass TransactionTooOldError
        when the data files must be written again; CommitStateUnknownError when the commit may have happened, so that
        the data files must be kept; UnsupportedVersionError when only a newer library may write the topic.
        """
        race = self._race(operation, timeout_s)
        head, attempts = snapshot, self._attempts(operation, origin, self._commit_limit)
        while True:
            commit_rules.check_writable(head, read_version)
            self._there.check(head)
            actions = plan(head)
            if actions is None:
                self._sync()
                return None, head
            attempt = attempts.make(head, head.topic_id, actions, race.waited_ms())
            attempts.write_manifest()
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
                raise CorruptMetadataError(
                    "a commit does not follow the one before it: restore it from a copy", version=after.version
                )
        return commits

    def _attempts(self, operation: str, origin: Origin, limit: int) -> Attempts:
        author, clock = self._writer, self._clock
        return Attempts(self._storage, operation, writer=author, origin=origin, clock=clock, limit=limit)

    def _put(self, attempt: Attempt, timeout_s: float) -> bytes | None:
        """Put the attempt's commit; None if it was first, else the bytes of the commit that was."""
        file = paths.commit_file(attempt.commit.version)
        standing = self._storage.put_if_absent(file, attempt.data, timeout_s=max(timeout_s, 1.0))
        return None if standing == attempt.data else standing

    def _sync(self) -> None:
        self._storage.sync(paths.COMMITS_DIR)

    def _race(self, operation: str, timeout_s: float) -> Race:
        return Race(operation, timeout_s, clock=self._monotonic, sleep=self._sleep, random=self._random)

    def _write_checkpoint_if_due(self, before: Snapshot, after: Snapshot) -> None:
        # By number and by bytes since version 0, so that only one of many writers writes it.
        full = before.commit_bytes // CHECKPOINT_BYTES < after.commit_bytes // CHECKPOINT_BYTES
        if not full and after.version % self._checkpoint_commits:
            return
        try:
            checkpoint.write(self._storage, after)
        except Exception as error:
            _log.warning("cannot write the checkpoint of version %d: %s", after.version, error)
