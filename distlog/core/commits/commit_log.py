"""A topic's commit log: load its state, follow it, and add to it."""

from __future__ import annotations

import itertools
import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random

from distlog.core import paths
from distlog.core.commits.actions import MAX_PARTITIONS, Action, Create, SetConfig, SetPartitions
from distlog.core.commits.checkpoint import CHECKPOINT_COMMITS, CheckpointWriter
from distlog.core.commits.commit_json import CREATE, Commit
from distlog.core.commits.commit_race import (
    CROWDED_S,
    JUST_NOW_S,
    LONGEST_POLL_S,
    POLL_S,
    CommitRetries,
    Followed,
    GroupCommit,
)
from distlog.core.commits.prepared_commit import CommitPreparation, PreparedCommit, check_read_version
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
)
from distlog.core.locks import process_lock
from distlog.core.storage.locks_and_pages import make_lock
from distlog.core.storage.storage import PutTime, Storage

_log = logging.getLogger(__name__)

# Finds out that a topic's folder was deleted beneath a process that goes on, or its commits behind the log floor.
#
# Its next commit would be the only one there: no process could read it, nor make the topic anew. In a topic that was
# made anew it would not follow the commit before it, and nobody could read that topic: so the commit that is there
# must be the same one. On a local disk each look is next to nothing. On an object store it is a request, made once in
# LOOK_S. Meanwhile such a process may have put commits: so it looks for one that was there at the look before.


#: How often one looks on an object store.
LOOK_S = 60.0

#: Its id is within so many first bytes of a commit, as this library writes it.
_BEGIN_BYTES = 256


class DeletionCheck:
    """Looks for the commits in `storage`; safe between threads. `monotonic` is in seconds."""

    def __init__(self, storage: Storage, monotonic: Callable[[], float]) -> None:
        self._storage, self._monotonic = storage, monotonic
        # on an object store: the time, and the version and id of the commit that is looked for next
        self._seen: tuple[float, int, str] | None = None
        # on a disk: the id of the commit that was read last, and its file's number and time
        self._same: tuple[str, int, int] | None = None

    def is_there(self, head: Snapshot) -> bool:
        """True if the commit of `head`, or one before it, is there still, as far as one looks."""
        if self._storage.is_local:
            return self._is_on_disk(head)
        now_s = self._monotonic()
        looked_s, version, commit_id = self._seen or (now_s, head.version, head.commit_id)
        if now_s - looked_s >= LOOK_S:
            try:
                begin = self._storage.read(paths.commit_file(version), 0, _BEGIN_BYTES)
            except FileNotFoundError:
                return False
            if not self._is_of(begin, version, commit_id):
                return False
            looked_s, version, commit_id = now_s, head.version, head.commit_id
        self._seen = looked_s, version, commit_id
        return True

    def _is_on_disk(self, head: Snapshot) -> bool:
        name = paths.commit_file(head.version)
        try:
            status = os.stat(self._storage.local_path(name))
            file = (head.commit_id, status.st_ino, status.st_mtime_ns)
            if file == self._same:
                return True
            with self._storage.opened(name) as descriptor:
                begin = os.pread(descriptor, _BEGIN_BYTES, 0)
        except OSError:
            return False
        if not self._is_of(begin, head.version, head.commit_id):
            return False
        self._same = file
        return True

    def _is_of(self, begin: bytes, version: int, commit_id: str) -> bool:
        """True if the commit of `version`, whose file has `begin`, is the one of `commit_id`."""
        if commit_id.encode() in begin:
            return True
        commit = CommitFiles(self._storage).read(version)
        return commit is not None and commit.id == commit_id

    def forget(self) -> None:
        """Begin anew: the version of the look before may be behind the log floor."""
        self._seen = None


def creation(url: str, partitions: int, config: TopicConfig) -> list[Action]:
    """The actions of a new topic at `url`, whose last part is its name.

    Raises InvalidTopicError, and InvalidPartitionsError for a number of partitions that no topic has.
    """
    check_partition_count(partitions)
    name = paths.check_topic_name(paths.last_part(url.rstrip("/")))
    if not paths.may_be_topic_folder(name):
        raise InvalidTopicError("this is the name of a folder of distlog's own: choose another", topic=name)
    settings = {setting: str(value) for setting, value in config.overrides().items()}
    return [Create(name), SetPartitions(partitions), SetConfig(settings)]


def check_partition_count(count: int) -> None:
    """Raise InvalidPartitionsError for a number of partitions that no topic has."""
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitionsError(f"a topic has 1 to {MAX_PARTITIONS} partitions", partitions=count)


def is_gone(head: Snapshot, snapshot: Snapshot) -> bool:
    """True if the topic of `snapshot` was dropped, or has another id, by `head`."""
    return head.topic_id != snapshot.topic_id or (head.dropped and not snapshot.dropped)


def check_writable(head: Snapshot, read_version: int | None) -> None:
    """Raise UnsupportedVersionError if only a newer library may write the topic; else as `check_read_version`."""
    head.requires.check_writable()
    check_read_version(head, read_version)


# Concurrency is optimistic. A writer plans its actions from a snapshot, and puts them as the next version, unless
# another writer was first. The loser applies the winner's commit and plans again. There are no locks, and no commit
# is ever changed. Vacuum deletes commits that are older than `commit.retention.ms`. So a name that is free proves
# nothing to a process that stood still: the commit of that name may have come and gone. Each snapshot knows when its
# next version was not there yet, by the store's clock. If the reply to a put, or "not there", carries a time of long
# after that, the process looks for the newest commit before it believes the reply. Usually it costs no request.
#
# A commit that is visible may not be durable yet: on a local disk, its writer may have died before it synced the
# folder. Our own put syncs the folder, and with it all earlier commits. If nothing is put, but the caller learns of
# a visible commit, the folder is synced first.


Plan = Callable[[Snapshot], Sequence[Action] | None]

TIMEOUT_S = 600.0


class CommitLog:
    """The commits of the topic in `storage`, for any number of readers and writers in any processes.

    `clock` gives the time in ms. `random` varies the pauses of `sleep`, in seconds. `monotonic` measures deadlines,
    in seconds. `writer` is stored in each commit as its author. A checkpoint is written after `checkpoint_commits`
    commits (see `CheckpointWriter`). `defaults` are settings for what a topic does not set itself
    (`TopicConfig.with_defaults`).
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
        self._storage = storage
        self._files = CommitFiles(storage)
        self.checkpoints = CheckpointWriter(storage, checkpoint_commits)
        self._loader = SnapshotLoader(storage, defaults, self.checkpoints.note_base)
        self._there = DeletionCheck(storage, monotonic)
        self._clock = clock
        self._random = random
        self._writer = writer
        self._sleep = sleep
        self._monotonic = monotonic
        self._crowded_at, self._may_join_line, self._has_short_names = -math.inf, True, False
        self._next_append: str | None = None
        self._past = Followed()

    @property
    def defaults(self) -> Mapping[str, object]:
        """Settings for what the topic does not set itself."""
        return self._loader.defaults

    def was_crowded(self, within_s: float) -> bool:
        """True if the last append was in a crowd of writers, and ended at most so many seconds ago."""
        return self._monotonic() < self._crowded_at + within_s

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

        It holds what is `imported` from the start. Without `topic_id` it gets a new one. `absent_ms` is the
        `listed_ms` of `SnapshotLoader.load_unlisted`, if there was such a listing. Raises TopicExistsError,
        InvalidTopicError, InvalidConfigError, StorageError when the storage cannot hold a log,
        UnsupportedVersionError if only a newer library may write the dropped topic, and CommitStateUnknownError.
        """
        actions = [*creation(self._storage.url, partitions, config), *imported]
        head = self._head_to_create_on(absent_ms)
        self._storage.probe_put_if_absent(paths.COMMITS_DIR)
        attempts = self._attempts("import" if imported else CREATE, None)
        while True:
            attempt = attempts.make(head, topic_id or str(uuid.uuid4()), actions)
            put_time = PutTime()
            if self._put(attempt, TIMEOUT_S, put_time) is None and self._begins_or_follows(head, attempt, put_time):
                # vacuum takes it on a full disk, and restore: they make it too, if there is a place then
                if self._storage.is_local:
                    with suppress(StorageError):
                        make_lock(self._storage.local_path(paths.REMOVED_FILES_LOCK))
                return attempt.after
            head = self._head_to_create_on()

    def _begins_or_follows(self, head: Snapshot | None, attempt: PreparedCommit, put_time: PutTime) -> bool:
        if head is not None:
            return self._newer_head(head, attempt, put_time) is None
        waited_ms = (put_time.time_ms or self._storage.replied_ms()) - self._loader.listed_ms
        if self._loader.listed_ms and waited_ms < LEAST_COMMIT_RETENTION_MS // 2:
            return True
        # another writer may have made the topic since, and its first commits may have been deleted
        files = self._storage.list_after(paths.COMMITS_DIR, paths.last_part(paths.commit_file(0)))
        return all(not paths.parse_commit_file(file.name) for file in files)

    def _head_to_create_on(self, absent_ms: int | None = None) -> Snapshot | None:
        head = self._loader.load() if absent_ms is None else self._loader.load_unlisted(absent_ms)
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
        few: bool = False,
    ) -> Snapshot:
        """The snapshot at the head, at `version`, or of the newest commit that is not after `timestamp_ms`.

        With `known`, loaded here before, the head takes few requests; unlike `refresh`, this is right also if the
        topic was made anew since. A new commit that is at most `recent_ms` old is then taken for the head. With `few`
        the head takes fewer requests if the topic has few commits (see `SnapshotLoader.load_few`). Raises
        TopicNotFoundError when there is no topic, or it was dropped by then (unless `include_dropped`, as vacuum
        asks), OffsetOutOfRangeError for a version or time that the topic does not have, CorruptMetadataError,
        UnsupportedVersionError.
        """
        if timestamp_ms is not None:
            snapshot = self._loader.load_at(timestamp_ms)
        elif few and not self._storage.is_local:
            snapshot = self._loader.load_few()
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
        try:
            head = self._there_still(self._loader.follow(snapshot))
        except BehindFloorError:
            head = self._anew(snapshot)
        except CorruptMetadataError:
            if self._there.is_there(snapshot):
                raise
            # the commits may be those of a topic that was made anew
            head = self._anew(snapshot)
        if is_gone(head, snapshot):
            self._sync()
            raise TopicNotFoundError(
                "the topic was dropped, or has another id: if it exists, open it again", url=self._storage.url
            )
        return head

    def commit(
        self,
        snapshot: Snapshot,
        operation: str,
        plan: Plan,
        *,
        read_version: int | None = None,
        write_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
        group: GroupCommit | None = None,
    ) -> tuple[Commit | None, Snapshot]:
        """Commit the actions that `plan` makes from `snapshot`; return the commit and the new snapshot.

        `plan` returns the actions for the snapshot that it gets, or None when there is nothing to do, or raises an
        error for the caller. After each lost race it is called again, with the newest snapshot. `read_version` is
        the oldest version that was read before a new data file was begun. `write_id` is stored in the commit.
        On a fresh snapshot and without a race this is one PUT. The new snapshot is durable, also if there was nothing
        to do because another writer did it.

        Raises CommitConflictError when nothing was and nothing will be committed; its subclass TransactionTooOldError
        when the data files must be written again; CommitStateUnknownError when the commit may have happened, so that
        the data files must be kept; UnsupportedVersionError when only a newer library may write the topic.
        """
        race = CommitRetries(operation, timeout_s, clock=self._monotonic, sleep=self._sleep, random=self._random)
        head, attempts = snapshot, self._attempts(operation, write_id)
        if group is None or not self._may_join_line:
            group = GroupCommit(self._storage, None, snapshot)
        group.knows(self._past, has_short_names=self._has_short_names)
        joins_line = self.was_crowded(CROWDED_S)
        # a later commit may have the append whose turn the last one said it is
        next_append = self._next_append if snapshot.commit_id == self._past.commit_id else None
        while True:
            head = self._there_still(head)
            self._catch_up(group, head)
            if group.found is not None:
                self._leave_line(group, group.found, group.followed)
                return group.found, snapshot if is_gone(head, snapshot) else head
            self._check_goes_on(head, snapshot)
            check_writable(head, read_version)
            actions = plan(head)
            if actions is None:
                self._sync()
                group.withdraw()
                return None, head
            if joins_line and group.joins_line(self._monotonic(), next_append):
                joins_line, head = False, self._wait_in_line(group, head, race)
                continue
            attempt = _prepared(attempts, head, actions, race.waited_ms(), group)
            put_time = PutTime()
            winner = self._put(attempt, race.left_s(), put_time)
            if winner is not None:
                joins_line, head = self._lose(head, winner, group, race)
                continue
            newer = self._newer_head(head, attempt, put_time)
            if newer is None:
                self.checkpoints.write_if_due(head, attempt.after)
                self._leave_line(group, attempt.commit, group.followed.then(attempt.commit))
                return attempt.commit, attempt.after
            head = newer

    def _lose(self, head: Snapshot, winner: bytes, group: GroupCommit, race: CommitRetries) -> tuple[bool, Snapshot]:
        """After a lost race: whether the append now waits in line, and the newest head.

        Of two writers each wins the next race most often, since the other one writes a file meanwhile; so one waits
        in line when it has lost again.
        """
        commit = self._files.decode(head.version + 1, winner)
        race.lost_to(commit)
        if not group.may_wait(self._monotonic()) or (commit.next_append is None and race.probes() == 1):
            race.wait()
        head = self._followed(apply(head, commit), head, group, [commit], race.probes())
        return group.meets_many and group.may_wait(self._monotonic()), head

    def _wait_in_line(self, group: GroupCommit, head: Snapshot, race: CommitRetries) -> Snapshot:
        """Wait until the append was committed by another writer, or it is this one's turn; returns the head then."""
        looks = 0
        while not group.is_first(self._monotonic()):
            if looks:
                # the longer none comes, the longer the next one takes
                self._sleep(self._random.uniform(0.5, 1.5) * min(POLL_S * looks, LONGEST_POLL_S))
            before, head = head, self._followed(head, head, group, [], stops=True)
            looks = looks + 1 if head is before else min(looks, 1)
            if group.found is None:
                race.check_time()
        return head

    def _followed(
        self,
        snapshot: Snapshot,
        base: Snapshot,
        group: GroupCommit,
        commits: list[Commit],
        probes: int = 1,
        *,
        stops: bool = False,
    ) -> Snapshot:
        """`snapshot`, made of `base` and `commits`, with all later ones, or the newest head; `group` sees them.

        It sees none before all are believed: a commit may stand where a later one was deleted. If it `stops`, one
        request is enough.
        """

        def saw(commit: Commit) -> bool:
            commits.append(commit)
            return stops

        try:
            head = self._loader.follow(snapshot, group=probes, base=base, saw=saw)
        except BehindFloorError:
            head = self._anew(base)
            self._catch_up(group, head)
        else:
            for commit in commits:
                group.saw(commit)
        return head

    def _catch_up(self, group: GroupCommit, head: Snapshot) -> None:
        """Show `group` the commits up to `head` that it has not seen, if they are there, and lead there."""
        version, commit_id = group.followed.version, group.followed.commit_id
        if version == head.version:
            return
        try:
            commits = self.commits(version + 1, head.version + 1) if group.is_left else []
        except (CorruptMetadataError, OffsetOutOfRangeError):
            commits = []
        if commits and commits[0].prev == commit_id and commits[-1].id == head.commit_id:
            for commit in commits:
                group.saw(commit)
        else:
            group.lost_track(head)

    def _leave_line(self, group: GroupCommit, commit: Commit, followed: Followed) -> None:
        """Delete from the line what is committed, and note whether it was long."""
        is_crowd = group.meets_many or group.is_crowd(commit)
        self._crowded_at = self._monotonic() if is_crowd else -math.inf
        self._next_append, self._past, self._has_short_names = commit.next_append, followed, group.has_short_names
        try:
            group.clear()
        except StorageError as error:
            _log.warning("cannot delete appends that are committed, so others are not waited for: %s", error)
            self._may_join_line = False

    def history(self, limit: int | None = None) -> list[Commit]:
        """The last `limit` commits, or all that are kept, newest first; raises as `load` does."""
        while True:
            head = self.load(include_dropped=True)
            end = head.version + 1
            # the floor may rise meanwhile
            with suppress(OffsetOutOfRangeError):
                return self.commits(max(head.log_floor, 0 if limit is None else end - limit), end)[::-1]

    def commits(self, start: int, end: int) -> list[Commit]:
        """The commits of the versions `start` (in) to `end` (out), which must exist, oldest first.

        Raises CorruptMetadataError, and OffsetOutOfRangeError if vacuum has deleted some meanwhile.
        """
        groups = self._files.follow(start, end=end, known=end - 1, group=64)
        try:
            commits = [commit for group in groups for commit in group]
            for before, after in itertools.pairwise(commits):
                if after.prev != before.id:
                    # below the log floor it may be the late one of a process that stood still
                    text = "the next commit does not follow this one: restore it from a copy"
                    file = paths.commit_file(before.version)
                    raise CorruptMetadataError(text, file=file, version=after.version)
        except CorruptMetadataError as error:
            floor = self._loader.floor_above(error)
            if floor is None:
                raise
            text = f"the log begins at version {floor}: older commits were deleted meanwhile (commit.retention.ms)"
            raise OffsetOutOfRangeError(text, version=start, log_floor=floor, head=end - 1) from None
        return commits

    def floor_above(self, error: CorruptMetadataError) -> int | None:
        """The log floor, if the commit that `error` is about is below it by now; else None."""
        return self._loader.floor_above(error)

    def _attempts(self, operation: str, write_id: str | None) -> CommitPreparation:
        author, clock = self._writer, self._clock
        return CommitPreparation(self._storage, operation, writer=author, write_id=write_id, clock=clock)

    def _put(self, attempt: PreparedCommit, timeout_s: float, put_time: PutTime) -> bytes | None:
        """Put the attempt's commit; None if it was first, else the bytes of the commit that was."""
        asked_ms = self._storage.replied_ms()
        file, timeout_s = paths.commit_file(attempt.commit.version), max(timeout_s, 1.0)
        existing = self._storage.put_if_absent(file, attempt.data, timeout_s=timeout_s, put_time=put_time)
        attempt.after.note_seen(put_time.time_ms or asked_ms)
        return None if existing == attempt.data else existing

    def _newer_head(self, head: Snapshot, attempt: PreparedCommit, put_time: PutTime) -> Snapshot | None:
        """None if the commit that was put behind `head` is in the log; else the newest head.

        If the put came long after the last look at `head`, the version may have been committed and deleted before:
        then nothing was committed. Raises CommitStateUnknownError if an earlier try may have been that commit, so
        that it was read, and deleted with the others since.
        """
        if head.is_fresh_at(put_time.time_ms or self._storage.replied_ms()):
            return None
        version = attempt.commit.version
        try:
            newest = None if self._loader.is_newest(head, version) else self._anew(head)
        except StorageError as error:
            text = (
                "the commit was put, and it is not known whether it is in the log; look whether its records are there"
            )
            raise CommitStateUnknownError(text, version=version) from error
        if newest is None:
            return None
        if newest.log_floor <= version:
            return None
        # a network disk tells its time only if it is asked
        now_ms = self._storage.replied_ms() or self._storage.now_ms(paths.COMMITS_DIR)
        if not put_time.time_ms or now_ms - put_time.time_ms >= head.config.look_retention_ms // 2:
            raise CommitStateUnknownError(
                "the commit may have been read, and deleted since with all of its age: this process stood still for "
                "longer than commits are kept; look whether its records are there",
                version=version,
                log_floor=newest.log_floor,
            )
        return newest

    def _there_still(self, head: Snapshot) -> Snapshot:
        """`head`, or the newest one if its commit is behind the log floor; TopicNotFoundError if all are gone."""
        if self._there.is_there(head):
            return head
        try:
            newest = self._anew(head)
        except CorruptMetadataError:
            raise self._deleted() from None
        if newest.topic_id == head.topic_id:
            self._there.forget()
        return newest

    def _anew(self, known: Snapshot) -> Snapshot:
        """The head, loaded without `known`, whose commit may be behind the log floor.

        Raises TopicNotFoundError if there is none: then the folder was deleted.
        """
        head = self._loader.load()
        if head is None or head.version < known.version:
            raise self._deleted()
        _log.info("version %d is long past: the topic is read anew, at version %d", known.version, head.version)
        return head

    def _deleted(self) -> TopicNotFoundError:
        text = "the topic's folder was deleted: records appended since are lost; open it again, or create the topic"
        return TopicNotFoundError(text, url=self._storage.url)

    def _check_goes_on(self, head: Snapshot, snapshot: Snapshot) -> None:
        if is_gone(head, snapshot):
            self._sync()
            raise CommitConflictError(
                "nothing was committed: the topic was dropped, or has another id", url=self._storage.url
            )

    def _sync(self) -> None:
        self._storage.sync(paths.COMMITS_DIR)


def _prepared(
    attempts: CommitPreparation, head: Snapshot, actions: Sequence[Action], waited_ms: int, group: GroupCommit
) -> PreparedCommit:
    """The commit of `actions`, and of the appends that wait, unless readers would refuse it with these."""
    try:
        others = group.others(head, actions)
        return attempts.make(head, head.topic_id, [*actions, *others], waited_ms, group.next_append)
    except CommitConflictError:
        if not group.go_alone():
            raise
    return attempts.make(head, head.topic_id, actions, waited_ms)


#: Why a pinned topic is read-only.
AT_A_VERSION = (
    "opened at a version or time, where nothing new comes, so read-only; "
    "open it without version and timestamp to change or follow it"
)


class CurrentSnapshot:
    """Holds the newest snapshot that one object has seen; safe between threads.

    A pinned one stays as it is; `why` says so in errors.
    """

    def __init__(self, log: CommitLog, snapshot: Snapshot, *, pinned: bool = False, why: str = AT_A_VERSION) -> None:
        self.snapshot, self.pinned, self._why = snapshot, pinned, why
        self._log, self._lock = log, process_lock()

    def refresh(self) -> Snapshot:
        """Move on to the newest version, and return it; one GET if there is nothing new."""
        if not self.pinned:
            self.advance(self._log.refresh(self.snapshot))
        return self.snapshot

    def recent(self) -> Snapshot:
        """As `refresh`; in a crowd that of the append that has just ended, as the next one follows the log."""
        return self.snapshot if self._log.was_crowded(JUST_NOW_S) else self.refresh()

    def advance(self, snapshot: Snapshot) -> None:
        """Move on to `snapshot`, unless another thread has moved on to a newer one."""
        with self._lock:
            if snapshot.version > self.snapshot.version:
                self.snapshot = snapshot

    def check_writable(self, storage: Storage) -> None:
        """Raise ReadOnlyTopicError if the topic is pinned, as one that was opened at a chosen version or time."""
        if self.pinned:
            raise ReadOnlyTopicError(self._why, url=storage.url, version=self.snapshot.version)
