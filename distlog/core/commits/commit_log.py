"""A topic's commit log: load its state, follow it, prepare and put commits."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import numpy as np
import pyarrow.compute as pc

from distlog.core import paths
from distlog.core.arrays import numbers_of
from distlog.core.commits.actions import (
    CREATE,
    MAX_PARTITIONS,
    Action,
    Add,
    AddTable,
    Commit,
    Create,
    Remove,
    RemoveTable,
    Restore,
    Seal,
    SetConfig,
    SetPartitions,
    in_tables,
    without_tables,
)
from distlog.core.commits.checkpoint import CHECKPOINT_COMMITS, CheckpointWriter
from distlog.core.commits.pending_queue import PendingAppendQueue
from distlog.core.commits.segment_table import BY_COMMIT, appended_at, with_numbers
from distlog.core.commits.snapshot import Snapshot, apply
from distlog.core.commits.snapshot_loader import NO_DEFAULTS, BehindFloorError, CommitFiles, SnapshotLoader
from distlog.core.config import LEAST_COMMIT_RETENTION_MS, TopicConfig
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptMetadataError,
    InvalidPartitionsError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    ReadOnlyTopicError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionTooOldError,
)
from distlog.core.storage.locks_and_pages import make_lock
from distlog.core.storage.parallel import process_lock
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, PutTime, Storage

_log = logging.getLogger(__name__)

#: How long a commit races with others, in seconds.
TIMEOUT_S = 600.0

# Concurrency is optimistic (see `CommitRace`): there are no locks, and no commit is ever changed. Vacuum deletes
# commits older than `commit.retention.ms`. So a free name proves nothing to a process that was paused: the commit of
# that name may have been deleted. Each snapshot has a time of the store's clock at which its next version did not
# exist. If the response to a put, or "not found", has a time long after that, the process searches the newest commit
# before it trusts the response. Usually this costs no request.
#
# A visible commit may not be durable: on a local disk, its writer may have died before it synced the folder. A put
# syncs the folder, with all earlier commits. Without a put, the folder is synced before the caller gets the commit.


class CommitLog:
    """The commits of the topic in `storage`, for any number of readers and writers in any processes.

    `clock` is in ms, `sleep` and `monotonic` in seconds. `random` varies the pauses. `writer` is the author in each
    commit. `defaults` are settings that the topic does not set itself (`TopicConfig.with_defaults`).
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
        defaults: Mapping[str, object] = NO_DEFAULTS,
    ) -> None:
        self._storage, self._clock, self._writer = storage, clock, writer
        self.random, self.pause, self.monotonic = random, sleep, monotonic
        self.files, self.queue = CommitFiles(storage), PendingAppendQueue(storage, monotonic)
        self.checkpoints = CheckpointWriter(storage, checkpoint_commits)
        self.loader = SnapshotLoader(storage, defaults, self.checkpoints.note_base)
        self._existence = TopicExistence(storage, monotonic)

    @property
    def url(self) -> str:
        return self._storage.url

    @property
    def defaults(self) -> Mapping[str, object]:
        return self.loader.defaults

    def create(
        self,
        partitions: int,
        config: TopicConfig,
        *,
        topic_id: str | None = None,
        imported: Sequence[Action] = (),
        absent_ms: int | None = None,
    ) -> Snapshot:
        """Create the topic, with the name of the storage's folder; after a drop the versions continue.

        `absent_ms` is the `listed_ms` of `SnapshotLoader.load_unlisted`. Raises TopicExistsError, InvalidTopicError,
        InvalidConfigError, StorageError when the storage cannot hold a log, UnsupportedVersionError if only a newer
        library may write the dropped topic, and CommitStateUnknownError.
        """
        actions = [*creation(self._storage.url, partitions, config), *imported]
        head = self._head_to_create_on(absent_ms)
        self._storage.probe_put_if_absent(paths.COMMITS_DIR)
        operation = "import" if imported else CREATE
        while True:
            attempt = self.prepare(operation, head, actions, topic_id=topic_id or str(uuid.uuid4()))
            put_time = PutTime()
            winner = self.put_if_next(attempt, TIMEOUT_S, put_time)
            if winner is None and self._is_first_or_next(head, attempt, put_time):
                # vacuum takes the lock on a full disk, and restore: they make it too, if there is space then
                if self._storage.is_local:
                    with suppress(StorageError):
                        make_lock(self._storage.local_path(paths.REMOVED_FILES_LOCK))
                return attempt.after
            head = self._head_to_create_on()

    def _is_first_or_next(self, head: Snapshot | None, attempt: PreparedCommit, put_time: PutTime) -> bool:
        if head is not None:
            return self.confirm_put(head, attempt, put_time) is None
        waited_ms = (put_time.time_ms or self._storage.replied_ms()) - self.loader.listed_ms
        if self.loader.listed_ms and waited_ms < LEAST_COMMIT_RETENTION_MS // 2:
            return True
        # another writer may have made the topic since, and its first commits may have been deleted
        files = self._storage.list_after(paths.COMMITS_DIR, paths.last_part(paths.commit_file(0)))
        return all(not paths.parse_commit_file(file.name) for file in files)

    def _head_to_create_on(self, absent_ms: int | None = None) -> Snapshot | None:
        head = self.loader.load() if absent_ms is None else self.loader.load_unlisted(absent_ms)
        if head and not head.dropped:
            self.sync()
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
        cached: Snapshot | None = None,
        recent_ms: int = 0,
        few: bool = False,
    ) -> Snapshot:
        """The snapshot at the head, at `version`, or of the newest commit that is not after `timestamp_ms`.

        With `cached`, loaded here before, the head takes few requests, also if the topic was created again since; a
        new commit at most `recent_ms` old is then taken for the head. `few` takes fewer requests if the topic has few
        commits. Raises TopicNotFoundError when there is no topic, or it was dropped by then (unless
        `include_dropped`), OffsetOutOfRangeError for a version or time that the topic does not have,
        CorruptMetadataError, UnsupportedVersionError.
        """
        if timestamp_ms is not None:
            snapshot = self.loader.load_at(timestamp_ms)
        elif few and not self._storage.is_local:
            snapshot = self.loader.load_few()
        else:
            until = self._clock() + 1
            snapshot = self.loader.load(version, cached, range(until - recent_ms, until))
        if snapshot and snapshot.dropped and not include_dropped:
            self.sync()
            snapshot = None
        if snapshot is None:
            raise TopicNotFoundError(
                "there is no topic here: check the address, or create the topic", url=self._storage.url
            )
        return snapshot

    def refresh(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot at the head, from an older one of the same topic; one request if there are no new commits.

        Raises TopicNotFoundError when the topic was dropped, even if it was created again.
        """
        try:
            head = self.still_exists(self.loader.follow(snapshot))
        except BehindFloorError:
            head = self.reload(snapshot)
        except CorruptMetadataError:
            if self._existence.check(snapshot):
                raise
            # the commits may belong to a topic that was created again
            head = self.reload(snapshot)
        if not head.continues(snapshot):
            self.sync()
            raise TopicNotFoundError(
                "the topic was dropped, or the one at this address has another id: if it exists, open it again",
                url=self._storage.url,
            )
        return head

    def history(self, limit: int | None = None) -> list[Commit]:
        """The last `limit` commits, or all that are kept, newest first; raises as `load` does."""
        while True:
            head = self.load(include_dropped=True)
            end = head.version + 1
            # the horizon may rise concurrently
            with suppress(OffsetOutOfRangeError):
                return self.commits(max(head.log_floor, 0 if limit is None else end - limit), end)[::-1]

    def commits(self, start: int, end: int) -> list[Commit]:
        """The commits of the versions `start` (in) to `end` (out), which must exist, oldest first.

        Raises CorruptMetadataError, and OffsetOutOfRangeError if vacuum deleted some concurrently.
        """
        groups = self.files.follow(start, end=end, existing=end - 1, group=64)
        try:
            commits = [commit for group in groups for commit in group]
            for commit, after in itertools.pairwise(commits):
                if after.prev != commit.id:
                    # below the log retention horizon it may be the late one of a process that was paused
                    text = "the next commit does not follow this one: restore it from a copy"
                    file = paths.commit_file(commit.version)
                    raise CorruptMetadataError(text, file=file, version=after.version)
        except CorruptMetadataError as error:
            floor = self.loader.floor_above(error)
            if floor is None:
                raise
            text = f"the log starts at version {floor}: older commits were deleted (commit.retention.ms)"
            raise OffsetOutOfRangeError(text, version=start, log_floor=floor, head=end - 1) from None
        return commits

    def prepare(
        self,
        operation: str,
        head: Snapshot | None,
        actions: Sequence[Action],
        *,
        topic_id: str | None = None,
        write_id: str | None = None,
        waited_ms: int = 0,
        next_append: str | None = None,
    ) -> PreparedCommit:
        """Make the commit of `actions` after `head`; `next_append` is the queued append whose writer commits next.

        `topic_id` is the head's by default. Raises CommitConflictError when readers would refuse it,
        TransactionTooOldError when files are too old.
        """
        passed_ms = head.timestamp_ms if head else 0
        timestamp_ms = max(trusted_ms(self._clock(), self._storage, passed_ms), passed_ms + 1)
        actions = in_tables(actions)
        actions = with_append_times([not_after(timestamp_ms, action) for action in actions], timestamp_ms)
        commit = Commit(
            version=head.version + 1 if head else 0,
            id=str(uuid.uuid4()),
            prev=head.commit_id if head else None,
            topic_id=topic_id or (head.topic_id if head else str(uuid.uuid4())),
            timestamp_ms=timestamp_ms,
            operation=operation,
            writer=self._writer,
            waited_ms=waited_ms,
            write_id=write_id,
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
            raise CommitConflictError(f"nothing was committed: {error.__cause__}", operation=operation) from error

    def put_if_next(self, attempt: PreparedCommit, timeout_s: float, put_time: PutTime) -> bytes | None:
        """Put the attempt's commit; None if it was first, else the bytes of the commit that was."""
        asked_ms = self._storage.replied_ms()
        file, timeout_s = paths.commit_file(attempt.commit.version), max(timeout_s, 1.0)
        existing = self._storage.put_if_absent(file, attempt.data, timeout_s=timeout_s, put_time=put_time)
        attempt.after.note_seen(put_time.time_ms or asked_ms)
        return None if existing == attempt.data else existing

    def confirm_put(self, head: Snapshot, attempt: PreparedCommit, put_time: PutTime) -> Snapshot | None:
        """None if the commit that was put after `head` is in the log; else the newest head.

        Long after `head` was read, the version may have been committed before, and deleted: then nothing was
        committed. Raises CommitStateUnknownError if that may have been an earlier try of this commit.
        """
        if head.is_fresh_at(put_time.time_ms or self._storage.replied_ms()):
            return None
        version = attempt.commit.version
        try:
            newest = None if self.loader.is_newest(head, version) else self.reload(head)
        except StorageError as error:
            text = "the commit was put, and it is unknown whether it is in the log: check whether its records exist"
            raise CommitStateUnknownError(text, version=version) from error
        if newest is None or newest.log_floor <= version:
            return None
        # a network disk returns its time only on request
        now_ms = self._storage.replied_ms() or self._storage.now_ms(paths.COMMITS_DIR)
        if not put_time.time_ms or now_ms - put_time.time_ms >= head.config.known_retention_ms // 2:
            raise CommitStateUnknownError(
                "the commit may have been read, and deleted since by retention: this process was paused for "
                "longer than commit.retention.ms; check whether its records exist",
                version=version,
                log_floor=newest.log_floor,
            )
        return newest

    def still_exists(self, head: Snapshot) -> Snapshot:
        """Return `head`, or the newest one if its commit may be deleted; TopicNotFoundError if none exists."""
        if self._existence.check(head):
            return head
        try:
            newest = self.reload(head)
        except CorruptMetadataError:
            raise self._deleted() from None
        if newest.topic_id == head.topic_id:
            self._existence.forget()
        return newest

    def reload(self, snapshot: Snapshot) -> Snapshot:
        """Load the head without `snapshot`; raises TopicNotFoundError if the folder was deleted."""
        head = self.loader.load()
        if head is None or head.version < snapshot.version:
            raise self._deleted()
        _log.info("version %d is too old: the topic was loaded again, at version %d", snapshot.version, head.version)
        return head

    def _deleted(self) -> TopicNotFoundError:
        text = "the topic's folder was deleted: records appended since are lost; open it again, or create the topic"
        return TopicNotFoundError(text, url=self._storage.url)

    def sync(self) -> None:
        """Make the visible commits durable."""
        self._storage.sync(paths.COMMITS_DIR)


def creation(url: str, partitions: int, config: TopicConfig) -> list[Action]:
    """The actions of a new topic at `url`; raises InvalidTopicError, InvalidPartitionsError."""
    check_partition_count(partitions)
    name = paths.check_topic_name(paths.last_part(url.rstrip("/")))
    if not paths.may_be_topic_folder(name):
        raise InvalidTopicError("this is the name of a folder of distlog's own: choose another", topic=name)
    settings = {setting: str(value) for setting, value in config.overrides().items()}
    return [Create(name), SetPartitions(partitions), SetConfig(settings)]


def check_partition_count(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitionsError(f"a topic has 1 to {MAX_PARTITIONS} partitions", partitions=count)


# A commit in a folder that was deleted would be the only one there, and one in a topic that was created again would
# not follow the commit before it: nobody could read that topic. So a writer checks that the commit before its own
# exists and is the same one. On a local disk a check costs little. On an object store it is a request in CHECK_S, for
# a commit that existed at the last check, since the process may have put commits since.


#: How often to check on an object store.
CHECK_S = 60.0

#: The id of a commit is within its first bytes, as this library writes it.
_HEAD_BYTES = 256


class TopicExistence:
    """Checks that the commits in `storage` exist; safe between threads. `monotonic` is in seconds."""

    def __init__(self, storage: Storage, monotonic: Callable[[], float]) -> None:
        self._storage, self._monotonic = storage, monotonic
        # on an object store: the time, and the version and id of the commit to check next
        self._last_check: tuple[float, int, str] | None = None
        # on a disk: the id of the commit that was read last, and its file's number and time
        self._last_file: tuple[str, int, int] | None = None

    def check(self, head: Snapshot) -> bool:
        """True if the commit of `head`, or one before it, still exists, as far as this checks."""
        if self._storage.is_local:
            return self._is_on_disk(head)
        now_s = self._monotonic()
        checked_s, version, commit_id = self._last_check or (now_s, head.version, head.commit_id)
        if now_s - checked_s >= CHECK_S:
            try:
                first_bytes = self._storage.read(paths.commit_file(version), 0, _HEAD_BYTES)
            except FileNotFoundError:
                return False
            if not self._is_of(first_bytes, version, commit_id):
                return False
            checked_s, version, commit_id = now_s, head.version, head.commit_id
        self._last_check = checked_s, version, commit_id
        return True

    def _is_on_disk(self, head: Snapshot) -> bool:
        name = paths.commit_file(head.version)
        try:
            status = os.stat(self._storage.local_path(name))
            file = (head.commit_id, status.st_ino, status.st_mtime_ns)
            if file == self._last_file:
                return True
            with self._storage.opened_file(name) as descriptor:
                first_bytes = os.pread(descriptor, _HEAD_BYTES, 0)
        except OSError:
            return False
        if not self._is_of(first_bytes, head.version, head.commit_id):
            return False
        self._last_file = file
        return True

    def _is_of(self, first_bytes: bytes, version: int, commit_id: str) -> bool:
        """True if the commit of `version`, whose file starts with `first_bytes`, is the one of `commit_id`."""
        if commit_id.encode() in first_bytes:
            return True
        commit = CommitFiles(self._storage).read(version)
        return commit is not None and commit.id == commit_id

    def forget(self) -> None:
        """Start again: the version of the last check may be below the log retention horizon."""
        self._last_check = None


#: How long after an append of many writers the next one may start from the snapshot of that one, in seconds.
JUST_NOW_S = 1.0
#: Why a pinned topic is read-only.
AT_A_VERSION = (
    "opened at a version or time, where nothing new comes, so read-only; "
    "open it without version and timestamp to change or follow it"
)


class CurrentSnapshot:
    """Holds the newest snapshot that one object has seen; safe between threads.

    A pinned snapshot never changes; errors show the `pin_reason`.
    """

    def __init__(
        self, log: CommitLog, snapshot: Snapshot, *, pinned: bool = False, pin_reason: str = AT_A_VERSION
    ) -> None:
        self.snapshot, self.pinned, self._pin_reason = snapshot, pinned, pin_reason
        self._log, self._lock = log, process_lock()

    def refresh(self) -> Snapshot:
        """Move on to the newest version, and return it; one GET if there is nothing new."""
        if not self.pinned:
            self.advance(self._log.refresh(self.snapshot))
        return self.snapshot

    def recent(self) -> Snapshot:
        """As `refresh`; after a group commit its own snapshot, as the next append follows the log anyway."""
        return self.snapshot if self._log.queue.was_crowded(JUST_NOW_S) else self.refresh()

    def advance(self, snapshot: Snapshot) -> None:
        """Move on to `snapshot`, unless another thread has moved on to a newer one."""
        with self._lock:
            if snapshot.version > self.snapshot.version:
                self.snapshot = snapshot

    def check_writable(self, storage: Storage) -> None:
        """Raise ReadOnlyTopicError if the topic is pinned, as one that was opened at a chosen version or time."""
        if self.pinned:
            raise ReadOnlyTopicError(self._pin_reason, url=storage.url, version=self.snapshot.version)


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A commit before it is put: the commit, its bytes, and the state after it."""

    commit: Commit
    data: bytes
    after: Snapshot


def with_append_times(actions: Sequence[Action], time_ms: int) -> tuple[Action, ...]:
    """The `actions` of a commit of `time_ms`; segments that wait for the commit's time get it."""
    return tuple(_timed(action, time_ms) for action in actions)


def _timed(action: Action, time_ms: int) -> Action:
    if isinstance(action, AddTable):
        waits = numbers_of(action.rows["append_time_ms"]) == BY_COMMIT
        return AddTable(appended_at(action.rows, waits, time_ms)) if waits.any() else action
    if isinstance(action, Add) and action.segment.append_time_ms == BY_COMMIT:
        return dataclasses.replace(action, segment=action.segment.appended_at(time_ms))
    return action


# One bad clock must not damage a topic. A slow clock does no harm, since the times of commits only increase. The
# store is asked only if the clock is far ahead of a time that has passed, so a busy writer never asks.


#: A clock is trusted up to this far ahead of a time that has passed, or of the store's time.
AHEAD_MS = 5 * 60_000


def trusted_ms(now_ms: int, storage: Storage, passed_ms: int = 0) -> int:
    """`now_ms`, or with a warning the time of the topic's `storage` if that is more than AHEAD_MS earlier.

    The storage is not asked if `now_ms` is at most AHEAD_MS after `passed_ms`, which has passed.
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
    """`action` for a commit of `timestamp_ms`: a segment with a later time, of a bad clock, gets that time."""
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
    """The oldest read version of the files that `actions` add; None if none do. Restored files have a check."""
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
