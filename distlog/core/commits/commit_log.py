"""A topic's commit log: loads the state of the topic, follows it, and commits the next version.

Vacuum may delete commits below the *log retention horizon* (`log_floor`). So after a pause, a missing commit file
does not prove that its version was never committed: see "Old commits" in docs/design/commit-log.md.

A *stem* is the name of a segment's files without the suffix. In a new segment, it begins with the version that the
writer had read when it started the files. Vacuum may delete uncommitted files whose version is below the *vacuum
horizon* (`gc_floor`), so no commit may add them.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from distlog.core import paths
from distlog.core.arrays import numbers_of
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import (
    CREATE,
    MAX_PARTITIONS,
    Action,
    Add,
    AddTable,
    Commit,
    Create,
    SetConfig,
    SetPartitions,
    first_stem_below,
    with_tables,
)
from distlog.core.commits.segment_table import TIME_OF_COMMIT, SegmentInfo, appended_at, with_numbers
from distlog.core.commits.snapshot import Snapshot, apply, least_retention_ms
from distlog.core.commits.snapshot_loader import (
    MAX_GROUP,
    NO_DEFAULTS,
    BelowHorizonError,
    CheckpointWriter,
    CommitFiles,
    SnapshotLoader,
    deleted_error,
)
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
from distlog.core.storage.calls import process_lock
from distlog.core.storage.locks_and_pages import ensure_lock_file
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, PutTime, Storage

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

#: How long a commit is tried by default, in seconds.
TIMEOUT_S = 600.0
#: For this many seconds after a group commit (group_commit.py), an append does not first request the newest commit.
_RECENT_GROUP_COMMIT_S = 1.0
#: This computer's clock may be this many ms ahead of the last commit's time, or of the store's time.
MAX_CLOCK_AHEAD_MS = 5 * 60_000
#: On an object store, a process checks this often that an earlier commit still exists, in seconds (`_commit_exists`).
EXISTENCE_CHECK_S = 60.0
_HEAD_BYTES = 256  # commit files that this library wrote have the commit's id within this many bytes from the start
PINNED_REASON = "a topic opened at a version or time is read-only: open it without them to change or consume it"
#: Operations whose commits give way to appends.
MAINTENANCE = frozenset({"retention", "compact", "rebuild", "gc"})
#: The longest usual pause after a lost race (another writer's commit came first), in seconds. It does not grow with
#: each loss: writers that started last would then win most races.
PAUSE_S = 0.05
MAINTENANCE_PAUSE_S = 1.0
#: A writer's turn (`RaceBackoff`) comes when it has tried for this share of the time that winners tried on average.
#: With a share of 1, all writers would wait whenever all have tried for less than the average.
TURN_SHARE = 0.6
#: The longest wait for a turn, in seconds.
LONGEST_TURN_WAIT_S = 5.0
#: Writers take no turns if the winners had tried for less than this, in seconds: waiting would cost more.
_USELESS_TURN_S = 0.5
#: The number of versions to read at once after several lost races, since several commits may follow the winner's.
_PROBE_COUNT = 4


class CommitLog:
    """The commits of the topic in `storage`; `clock` is in ms, `sleep` and `monotonic` in seconds."""

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Callable[[], int],
        random: Random,
        writer: str,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        checkpoint_commits: int = checkpoint.CHECKPOINT_COMMITS,
        defaults: Mapping[str, object] = NO_DEFAULTS,
    ) -> None:
        self.storage, self._clock, self._writer, self.defaults = storage, clock, writer, defaults
        self.random, self.sleep, self.monotonic = random, sleep, monotonic
        self.files, self.loader = CommitFiles(storage), SnapshotLoader(storage, defaults)
        # for `_commit_exists`: the time of the last check, and the version and id of the commit to check next
        self._last_check: tuple[float, int, str] | None = None
        self._checkpoint_commits, self._commit_count = checkpoint_commits, 0
        #: The time of the last append if it was in a group commit, in seconds of `monotonic`; otherwise -inf.
        self.last_group_commit_s = -math.inf

    @cached_property
    def checkpoints(self) -> CheckpointWriter:
        return CheckpointWriter(self.storage, self._checkpoint_commits, self.loader)

    def create(
        self,
        partitions: int,
        config: TopicConfig,
        *,
        topic_id: str | None = None,
        imported: Sequence[Action] = (),
        absent_ms: int | None = None,
    ) -> Snapshot:
        """Create the topic; `absent_ms` is the store's time of an earlier listing that had no commits."""
        actions = [*creation(self.storage.url, partitions, config), *imported]
        head = self._dropped_head(absent_ms)
        # after the load, so that nothing is written if the topic exists
        self.storage.probe_put_if_absent(paths.COMMITS_DIR)
        operation = "import" if imported else CREATE
        while True:
            attempt = self.prepare(operation, head, actions, topic_id=topic_id or str(uuid.uuid4()))
            put_time = PutTime()
            winner = self.put_if_next(attempt, TIMEOUT_S, put_time)
            if winner is None and self._is_first_or_next(head, attempt, put_time):
                # vacuum and restore lock this file, and could not create it on a full disk
                if self.storage.is_local:
                    with suppress(StorageError):
                        ensure_lock_file(self.storage.local_path(paths.REMOVED_FILES_LOCK))
                return attempt.after
            head = self._dropped_head()

    def _is_first_or_next(self, head: Snapshot | None, attempt: PreparedCommit, put_time: PutTime) -> bool:
        """True if the commit that was put is in the log: as the first commit, or as the next one after `head`."""
        if head is not None:
            return self.confirm_put(head, attempt, put_time) is None
        listed_ms = self.loader.listed_ms
        put_ms = put_time.time_ms or self.storage.replied_ms()
        if listed_ms and put_ms - listed_ms < LEAST_COMMIT_RETENTION_MS // 2:
            return True  # vacuum cannot have deleted a commit from after the listing yet (`Snapshot.is_fresh_at`)
        # another writer may have created the topic, and vacuum may have deleted its first commits
        files = self.storage.list_after(paths.COMMITS_DIR, paths.last_part(paths.commit_file(0)))
        return all(not paths.parse_commit_file(file.name) for file in files)

    def _dropped_head(self, absent_ms: int | None = None) -> Snapshot | None:
        """Return the head of a dropped topic, or None if there are no commits; raises TopicExistsError."""
        head = self.loader.load() if absent_ms is None else self.loader.load_unlisted(absent_ms)
        if head and not head.dropped:
            self.sync()  # the caller may rely on the commit that created the topic
            raise TopicExistsError("the topic exists already: open it, or drop it first", url=self.storage.url)
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
        by_listing: bool = False,
    ) -> Snapshot:
        """The snapshot at the head, at `version` or at a time; raises TopicNotFoundError.

        If `cached` is still usable, only the commits after it are read. The result may be a version before the head
        that is at most `recent_ms` old. `by_listing` finds the head of a short log on an object store by a listing.
        """
        if timestamp_ms is not None:
            snapshot = self.loader.load_at(timestamp_ms)
        elif by_listing and not self.storage.is_local:
            snapshot = self.loader.load_by_listing()
        else:
            now_ms = self._clock()
            # the times up to now that are less than `recent_ms` old
            recent_times = range(now_ms + 1 - recent_ms, now_ms + 1)
            snapshot = self.loader.load(version, cached, recent_times=recent_times)
        if snapshot and snapshot.dropped and not include_dropped:
            self.sync()
            snapshot = None
        if snapshot is None:
            text = "there is no topic here: check the address, or create the topic"
            raise TopicNotFoundError(text, url=self.storage.url)
        return snapshot

    def refresh(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot at the head, from an older one; TopicNotFoundError if the topic was dropped since."""
        try:
            head = self.existing_head(self.loader.follow(snapshot))
        except BelowHorizonError:
            head = self.reload(snapshot)
        except CorruptMetadataError:
            if self._commit_exists(snapshot):
                raise
            head = self.reload(snapshot)  # the commits may belong to a topic that was created again
        if not head.continues(snapshot):
            self.sync()
            text = "the topic was dropped, or its id changed: open it again if it exists"
            raise TopicNotFoundError(text, url=self.storage.url)
        return head

    def history(self, limit: int | None = None) -> list[Commit]:
        """The last `limit` commits, or all that are kept, newest first; raises as `load` does."""
        while True:
            head = self.load(include_dropped=True)
            end = head.version + 1
            with suppress(OffsetOutOfRangeError):  # if the horizon rises concurrently, try again
                return self.commits(max(head.log_floor, 0 if limit is None else end - limit), end)[::-1]

    def commits(self, start: int, end: int) -> list[Commit]:
        """The commits of the versions `start` to `end - 1`; OffsetOutOfRangeError if vacuum deleted some."""
        groups = self.files.follow(start, end=end, known_version=end - 1, first_group=MAX_GROUP)
        try:
            commits = [commit for group in groups for commit in group]
            for commit, next_commit in itertools.pairwise(commits):
                if next_commit.prev != commit.id:
                    # the file is damaged, or vacuum deleted it and a paused process then put another commit there
                    text = "the next commit does not follow the commit in this file: restore the file from a copy"
                    file = paths.commit_file(commit.version)
                    raise CorruptMetadataError(text, file=file, version=next_commit.version)
        except CorruptMetadataError as error:
            horizon = self.loader.horizon_above(error)
            if horizon is None:
                raise
            raise deleted_error(horizon, end - 1, version=start) from None
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
        """Make the commit of `actions` after `head`; raises CommitConflictError, TransactionTooOldError."""
        last_commit_ms = head.timestamp_ms if head else 0
        timestamp_ms = max(trusted_ms(self._clock(), self.storage, last_commit_ms), last_commit_ms + 1)
        actions = tuple(with_commit_time(action, timestamp_ms) for action in with_tables(actions))
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
        if head and (stem := first_stem_below(actions, head.gc_floor)):
            check_read_version(head, paths.stem_read_version(stem))
        data = commit.encode()
        if len(data) > MAX_CONDITIONAL_BYTES:
            text = "nothing was committed: the metadata of this append or change is too large; split it into several"
            raise CommitConflictError(text, size=len(data), max_size=MAX_CONDITIONAL_BYTES)
        try:
            # decode the commit as readers will, so that no invalid one is put
            commit = Commit.decode(data, paths.commit_file(commit.version))
            return PreparedCommit(commit, data, apply(head, commit))
        except CorruptMetadataError as error:
            text = f"nothing was committed, as the commit is invalid: {error.__cause__}; refresh the topic and retry"
            raise CommitConflictError(text, operation=operation) from error

    def put_if_next(self, attempt: PreparedCommit, timeout_s: float, put_time: PutTime) -> bytes | None:
        """Put the attempt's commit; returns None if its version was free, else the bytes of the version's commit."""
        file, replied_ms = paths.commit_file(attempt.commit.version), self.storage.replied_ms()
        # the caller's deadline may have passed since it was checked: a put without time could only fail
        timeout_s = max(timeout_s, 1.0)
        existing = self.storage.put_if_absent(file, attempt.data, timeout_s=timeout_s, put_time=put_time)
        # if the time of the put is unknown, note the earlier time of the last reply before the put
        attempt.after.note_seen(put_time.time_ms or replied_ms)
        return None if existing == attempt.data else existing

    def confirm_put(self, head: Snapshot, attempt: PreparedCommit, put_time: PutTime) -> Snapshot | None:
        """Return None if the commit that was put after `head` is in the log; else the newest head.

        The name of a commit that vacuum deleted is free again. So if `head` is old, the put may have succeeded after
        another commit of this version was deleted. Raises CommitStateUnknownError if the deleted commit may be this
        one, from an earlier try of the put.
        """
        if head.is_fresh_at(put_time.time_ms or self.storage.replied_ms()):
            return None
        version = attempt.commit.version
        try:
            reloaded_head = None if self.loader.is_newest(head, version) else self.reload(head)
        except StorageError as error:
            text = "the commit was put, but may not be in the log: check whether its records exist"
            raise CommitStateUnknownError(text, version=version) from error
        if reloaded_head is None or reloaded_head.log_floor <= version:
            return None
        now_ms = self.storage.replied_ms() or self.storage.now_ms(paths.COMMITS_DIR)
        # vacuum may have deleted this commit if its put is of unknown time, or this old: the other half is a reserve
        if not put_time.time_ms or now_ms - put_time.time_ms >= least_retention_ms(head.config) // 2:
            raise CommitStateUnknownError(
                "it is unknown whether the commit was in the log before vacuum deleted its file: this process was "
                "paused for longer than commit.retention.ms; check whether its records exist",
                version=version,
                log_floor=reloaded_head.log_floor,
            )
        return reloaded_head

    def write_due_checkpoint(self, former: Snapshot, snapshot: Snapshot) -> None:
        """Write a checkpoint if one is due at `snapshot`, the state after this process's commit on `former`."""
        self._commit_count += 1
        # counted from version 0 instead of the last checkpoint, so that the checkpoint is due for only one writer
        former_count, count = (state.commit_bytes // checkpoint.CHECKPOINT_BYTES for state in (former, snapshot))
        if count > former_count or snapshot.version % self._checkpoint_commits == 0:
            # a process with few commits, like a job, may end before a thread has written the checkpoint
            self.checkpoints.write(snapshot, may_return_early=self._commit_count >= self._checkpoint_commits)

    def existing_head(self, head: Snapshot) -> Snapshot:
        """Return `head`, or the newest head if an earlier commit no longer exists; raises TopicNotFoundError."""
        if self._commit_exists(head):
            return head
        try:
            newest = self.reload(head)
        except CorruptMetadataError:  # commits that were put after the deletion lack the earlier ones
            raise self._folder_deleted_error() from None
        if newest.topic_id == head.topic_id:
            # the topic is the same, so vacuum deleted the commit of the last check: start from a newer one
            self._last_check = None
        return newest

    # If a topic's folder was deleted, or has a new topic, a commit of the former topic would make it unreadable. So a
    # writer checks that an earlier commit still exists. On a local disk, this is the commit before its own. On an
    # object store, it is the head of the previous check, since later commits may already be in the new topic.
    def _commit_exists(self, head: Snapshot) -> bool:
        """False if the commit that is checked was deleted or replaced."""
        if self.storage.is_local:
            try:
                with self.storage.opened_file(paths.commit_file(head.version)) as file:
                    first_bytes = os.pread(file, _HEAD_BYTES, 0)
            except OSError:
                return False
            return self._has_id(first_bytes, head.version, head.commit_id)
        now_s = self.monotonic()
        checked_s, version, commit_id = self._last_check or (now_s, head.version, head.commit_id)
        if now_s - checked_s >= EXISTENCE_CHECK_S:
            try:
                first_bytes = self.storage.read(paths.commit_file(version), 0, _HEAD_BYTES)
            except FileNotFoundError:
                return False
            if not self._has_id(first_bytes, version, commit_id):
                return False
            checked_s, version, commit_id = now_s, head.version, head.commit_id
        self._last_check = checked_s, version, commit_id
        return True

    def _has_id(self, first_bytes: bytes, version: int, commit_id: str) -> bool:
        if commit_id.encode() in first_bytes:
            return True
        commit = self.files.read(version)
        return commit is not None and commit.id == commit_id

    def reload(self, snapshot: Snapshot) -> Snapshot:
        """Load the head again, not based on `snapshot`; raises TopicNotFoundError if the folder was deleted."""
        head = self.loader.load()
        if head is None or head.version < snapshot.version:
            raise self._folder_deleted_error()
        _log.info("version %d is too old: the topic was loaded again, at version %d", snapshot.version, head.version)
        return head

    def _folder_deleted_error(self) -> TopicNotFoundError:
        text = "the topic's folder was deleted: records appended since are lost; open the topic again, or create it"
        return TopicNotFoundError(text, url=self.storage.url)

    # A visible commit may not be durable: on a local disk, its writer may have died before it synced the folder. So
    # the folder is synced before a caller relies on a commit of another writer. A put syncs the folder, too.
    def sync(self) -> None:
        self.storage.sync(paths.COMMITS_DIR)


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A commit that may be put: its actions, its bytes, and the state `after` it."""

    commit: Commit
    data: bytes
    after: Snapshot


class CommitRace:
    """The race of one commit for the next version: iterate over heads, and put the actions made from a head.

        with CommitRace(log, snapshot, "config") as race:
            for head in race:
                race.put([SetConfig(settings)])
        return race.commit, race.snapshot

    The first head is `snapshot`, without a request. After a lost race, the next head is the newest one. If the loop
    puts nothing, it gets the same head again, or the head passed to `restart_from`. Leave the loop to commit nothing.

    `read_version` is the version that the writer had read when it started its oldest new data file. Iterating raises
    CommitConflictError if nothing was committed, and its subclass TransactionTooOldError if the data files must be
    written again. It raises CommitStateUnknownError if the commit may exist: the data files must be kept.
    """

    def __init__(
        self,
        log: CommitLog,
        snapshot: Snapshot,
        operation: str,
        *,
        read_version: int | None = None,
        write_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._log, self._start, self._read_version = log, snapshot, read_version
        self.backoff = RaceBackoff(operation, timeout_s, clock=log.monotonic, sleep=log.sleep, random=log.random)
        self._operation, self._write_id = operation, write_id
        #: The commit, once it is in the log; None if nothing was committed.
        self.commit: Commit | None = None
        #: The head that the next put follows; once there is a commit, the snapshot after it.
        self.snapshot = snapshot
        #: True while a put has no clear result, so that its commit may be in the log.
        self.is_in_doubt = False

    def __iter__(self) -> Iterator[Snapshot]:
        while self.commit is None:
            self.snapshot = head = self._log.existing_head(self.snapshot)
            self._check_head(head)
            yield head

    def restart_from(self, head: Snapshot) -> None:
        self.snapshot = head

    def put(self, actions: Sequence[Action]) -> None:
        """Put `actions`, made from the last head, as the next version; after a lost race `commit` stays None."""
        head, log = self.snapshot, self._log
        attempt, put_time = self._prepare(actions), PutTime()
        self.is_in_doubt = True
        winner = log.put_if_next(attempt, self.backoff.remaining_s(), put_time)
        newer = log.confirm_put(head, attempt, put_time) if winner is None else None
        if winner is None and newer is None:
            self.commit, self.snapshot = attempt.commit, attempt.after
        self.is_in_doubt = False  # not earlier: an interrupt before this line leaves the put in doubt
        if self.commit is not None:
            log.write_due_checkpoint(head, self.snapshot)
        elif winner is not None:
            self._lose_to(log.files.decode(head.version + 1, winner))
        elif newer is not None:
            self.snapshot = newer

    def as_committed(self, segments: Sequence[SegmentInfo]) -> Sequence[SegmentInfo]:
        """Return the `segments` of the last put with their final offsets, which only AppendRace changes."""
        return segments

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self.commit is None:
            # the caller may rely on another writer's commit, which may not be durable yet
            self._log.sync()

    def _prepare(self, actions: Sequence[Action], next_append: str | None = None) -> PreparedCommit:
        return self._log.prepare(
            self._operation,
            self.snapshot,
            actions,
            write_id=self._write_id,
            waited_ms=self.backoff.waited_ms(),
            next_append=next_append,
        )

    def _lose_to(self, winner: Commit) -> None:
        self.backoff.note_loss(winner)
        self.backoff.wait()
        self._follow(winner)

    def _follow(self, winner: Commit) -> None:
        log, base = self._log, self.snapshot
        try:
            self.snapshot = log.loader.follow(apply(base, winner), first_group=self.backoff.probe_count(), base=base)
        except BelowHorizonError:
            self.snapshot = log.reload(base)

    def _check_head(self, head: Snapshot) -> None:
        if not head.continues(self._start):
            self._log.sync()
            text = "nothing was committed: the topic was dropped, or its id changed; open it again if it exists"
            raise CommitConflictError(text, url=self._log.storage.url)
        head.requires.check_writable()
        check_read_version(head, self._read_version)


class RaceBackoff:
    """How long a writer waits after a lost race, until it gives up `timeout_s` seconds from now.

    A commit stores for how long its writer had tried. Other writers wait until they have tried for about as long, so
    writers roughly take turns. `clock` and `sleep` are in seconds.
    """

    def __init__(
        self,
        operation: str,
        timeout_s: float,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        random: Random,
    ) -> None:
        self._is_maintenance = operation in MAINTENANCE
        self._clock, self._sleep, self._random = clock, sleep, random
        self._started_s = clock()
        self._deadline_s = self._started_s + timeout_s
        self._losses, self._winners_tried_s = 0, 0.0

    def set_timeout(self, timeout_s: float) -> None:
        self._deadline_s = self._clock() + timeout_s

    def remaining_s(self) -> float:
        return self._deadline_s - self._clock()

    def waited_ms(self) -> int:
        """The time for which this writer has tried, in ms; 0 until it has lost a race."""
        return int((self._clock() - self._started_s) * 1000) if self._losses else 0

    def probe_count(self) -> int:
        return 1 if self._losses < 2 else _PROBE_COUNT

    def note_loss(self, winner: Commit) -> None:
        """Note a lost race; raises CommitConflictError when no time is left for another try."""
        self.check_deadline()
        self._losses += 1
        self._winners_tried_s += winner.waited_ms / 1000

    def check_deadline(self) -> None:
        if self._clock() >= self._deadline_s:
            raise CommitConflictError("nothing was committed: other commits came first until the deadline; try again")

    def wait(self) -> None:
        now_s = self._clock()
        self._sleep(max(0.0, min(self._pause_s(now_s - self._started_s), self._deadline_s - now_s)))

    def _pause_s(self, tried_s: float) -> float:
        if self._is_maintenance:
            return self._random.uniform(0, MAINTENANCE_PAUSE_S)
        mean_winner_s = self._winners_tried_s / self._losses
        if mean_winner_s <= _USELESS_TURN_S:
            return self._random.uniform(0, PAUSE_S)
        turn_s = min(TURN_SHARE * mean_winner_s, LONGEST_TURN_WAIT_S)
        if tried_s < turn_s:
            return self._random.uniform(0.5, 1) * (turn_s - tried_s)
        # the turn has come; a writer that has tried for longer than the winners goes first
        return 0.0 if tried_s > mean_winner_s else self._random.uniform(0, PAUSE_S)


def creation(url: str, partitions: int, config: TopicConfig) -> list[Action]:
    """The actions of a new topic at `url`; raises InvalidTopicError, InvalidPartitionsError."""
    check_partition_count(partitions)
    name = paths.check_topic_name(paths.last_part(url.rstrip("/")))
    if not paths.may_be_topic_folder(name):
        raise InvalidTopicError(
            "a topic cannot have the name of a folder of distlog's own: choose another", topic=name
        )
    settings = {setting: str(value) for setting, value in config.overrides().items()}
    return [Create(name), SetPartitions(partitions), SetConfig(settings)]


def check_partition_count(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitionsError(f"a topic must have 1 to {MAX_PARTITIONS} partitions", partitions=count)


class CurrentSnapshot:
    """Holds the newest snapshot that a topic or consumer has read, or a pinned one; thread-safe."""

    def __init__(
        self, log: CommitLog, snapshot: Snapshot, *, pinned: bool = False, pin_reason: str = PINNED_REASON
    ) -> None:
        self.snapshot, self.pinned, self._pin_reason = snapshot, pinned, pin_reason
        self._log, self._lock = log, process_lock()
        #: A token, replaced when ends of active segments may have changed. Ends read with an earlier token are stale.
        self.tails = object()

    def expire_tails(self) -> None:
        self.tails = object()

    def refresh(self) -> Snapshot:
        """Move on to the newest version, and return it; one GET if there is no new commit."""
        if not self.pinned:
            self.advance(self._log.refresh(self.snapshot))
        return self.snapshot

    def for_append(self) -> Snapshot:
        """Return the snapshot from which an append starts: refreshed, unless it follows a recent group commit."""
        # after a recent group commit, the append joins the queue, where its writer reads the newest commits
        follows_group_commit = self._log.monotonic() < self._log.last_group_commit_s + _RECENT_GROUP_COMMIT_S
        return self.snapshot if follows_group_commit else self.refresh()

    def advance(self, snapshot: Snapshot) -> None:
        with self._lock:
            if snapshot.version > self.snapshot.version:
                self.snapshot = snapshot

    def check_writable(self, storage: Storage) -> None:
        """Raise ReadOnlyTopicError if the topic is pinned, as after `open` with a version or timestamp."""
        if self.pinned:
            raise ReadOnlyTopicError(self._pin_reason, url=storage.url, version=self.snapshot.version)


def with_commit_time(action: Action, time_ms: int) -> Action:
    """Return `action` with the commit's time in segments that need an append time, or that have a later time."""
    if isinstance(action, AddTable):
        rows, created = action.rows, numbers_of(action.rows["created_ms"])
        if (created > time_ms).any():
            rows = with_numbers(rows, {"created_ms": np.minimum(created, time_ms)})
        needs_time = numbers_of(rows["append_time_ms"]) == TIME_OF_COMMIT
        return AddTable(appended_at(rows, needs_time, time_ms) if needs_time.any() else rows)
    if not isinstance(action, Add):
        return action
    segment = action.segment
    if segment.created_ms > time_ms:
        segment = dataclasses.replace(segment, created_ms=time_ms)
    return Add(segment.appended_at(time_ms) if segment.append_time_ms == TIME_OF_COMMIT else segment)


# One bad clock must not damage a topic. A slow clock does no harm, since the times of commits only increase. The
# store's time is requested only if the clock is far ahead of the last commit, so a busy writer never requests it.
def trusted_ms(now_ms: int, storage: Storage, last_commit_ms: int = 0) -> int:
    """Return `now_ms`, or the storage's time with a warning if the clock is more than MAX_CLOCK_AHEAD_MS ahead."""
    if now_ms <= last_commit_ms + MAX_CLOCK_AHEAD_MS:
        return now_ms
    store_ms = storage.now_ms(paths.COMMITS_DIR)
    if now_ms <= store_ms + MAX_CLOCK_AHEAD_MS:
        return now_ms
    ahead_s = (now_ms - store_ms) // 1000
    _log.warning("this computer's clock is %d s ahead of the storage's time, which is used: set the clock", ahead_s)
    return store_ms


def check_read_version(head: Snapshot, read_version: int | None) -> None:
    if read_version is not None and read_version < head.gc_floor:
        text = "the data files are so old that vacuum may have deleted them: write them again"
        raise TransactionTooOldError(text, read_version=read_version, gc_floor=head.gc_floor)
