"""Loads the state of a topic, from the newest usable checkpoint and the commits after it, and writes checkpoints.

The *hint* is a file with the name of the last checkpoint. If it is missing or wrong, a listing finds the checkpoints.
"""

from __future__ import annotations

import bisect
import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType

import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import MAX_LONG
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import Commit
from distlog.core.commits.snapshot import Snapshot, fold
from distlog.core.errors import (
    CorruptMetadataError,
    DistlogError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedVersionError,
)
from distlog.core.storage.calls import Task, begin, in_parallel
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage

_log = logging.getLogger(__name__)
_NO_TIMES = range(0)
_MAX_HINT_BYTES = 200
_UNUSABLE_TEXT = "cannot use the checkpoint %s, reading an older one or all commits instead, which takes longer: %s"
NO_DEFAULTS: Mapping[str, object] = MappingProxyType({})
#: The commits in the first group that is read after a checkpoint (often only few follow it), and the most in a group.
_FIRST_GROUP, MAX_GROUP = 4, 64
#: If all commits exist, only this many of the newest checkpoints, and of the newest full ones, are tried.
CHECKPOINT_TRIES = 2
ONE_PAGE = 1000  # the names in one page of a listing, on each kind of object store
LISTING_TRIES = 3  # how often a load lists the commits, if vacuum deletes listed ones before they are read


class BelowHorizonError(Exception):
    """The versions that a process has read may be below the log retention horizon: it must load the topic again."""


class SnapshotLoader:
    """Loads snapshots of the topic in `storage`, also of a dropped topic; `defaults` are for its config."""

    def __init__(self, storage: Storage, defaults: Mapping[str, object] = NO_DEFAULTS) -> None:
        self._storage, self.defaults = storage, defaults
        self._files = CommitFiles(storage)
        #: The store's time before the last listing, and the lowest version in it.
        self.listed_ms = self._first_listed_version = 0
        #: The newest full checkpoint that this process has read at the head or written: incremental ones extend it.
        self.full_checkpoint: str | None = None
        #: Full checkpoints that could not be used, alone or by an incremental one: loads skip their incremental ones.
        self._unusable = set[str]()

    def load(
        self, version: int | None = None, cached: Snapshot | None = None, *, recent_times: range = _NO_TIMES
    ) -> Snapshot | None:
        """The snapshot at `version` or the head; None without a topic. Starts from `cached` if that is usable.

        A commit after `cached` with a time in `recent_times` (ms) may be returned instead of the head.
        """
        if version is not None and version < 0:
            raise OffsetOutOfRangeError("versions begin at 0", version=version)
        end = MAX_LONG if version is None else version + 1
        snapshot = self._from_cached(cached, end, recent_times) if cached and cached.version < end else None
        snapshot = snapshot or self._from_hint(end) or self._from_listings(end)
        if snapshot and version not in (None, snapshot.version):
            text = f"the version does not exist yet: the newest is {snapshot.version}"
            raise OffsetOutOfRangeError(text, version=version, head=snapshot.version)
        return self._with_defaults(snapshot)

    def _with_defaults(self, snapshot: Snapshot | None) -> Snapshot | None:
        if snapshot and self.defaults:
            return dataclasses.replace(snapshot, config=snapshot.config.with_defaults(self.defaults))
        return snapshot

    def load_by_listing(self) -> Snapshot | None:
        """The head, by a listing and requests for listed files only; by `load` if more than ONE_PAGE are listed."""
        return self._with_defaults(self._from_listings(MAX_LONG, only_listed=True))

    def load_unlisted(self, listed_ms: int) -> Snapshot | None:
        """The head of a topic created after a listing at `listed_ms` (the store's time); None without a topic."""
        if snapshot := self._from_hint(MAX_LONG):
            return self._with_defaults(snapshot)
        self.listed_ms = listed_ms
        with suppress(BelowHorizonError, CorruptMetadataError):
            snapshot = self._fold_from(None, MAX_LONG, known_version=-1)
            return self._with_defaults(self._if_fresh(snapshot, snapshot, MAX_LONG, listed_ms))
        return self._with_defaults(self._from_listings(MAX_LONG))

    def load_at(self, timestamp_ms: int) -> Snapshot | None:
        """The snapshot of the last commit at or before `timestamp_ms`; None without a topic."""
        head = self.load()
        if head is None or head.timestamp_ms <= timestamp_ms:
            return head
        versions = range(head.log_floor, head.version)
        try:
            earlier_count = bisect.bisect_right(versions, timestamp_ms, key=self._timestamp)
        except CorruptMetadataError as error:
            if self.horizon_above(error) is None:
                raise
            return self.load_at(timestamp_ms)  # the horizon rose after `head` was loaded
        if earlier_count == 0:
            bounds = {"first_ms": self._timestamp(head.log_floor), "last_ms": head.timestamp_ms}
            if head.log_floor:
                raise deleted_error(head.log_floor, head.version, timestamp_ms=timestamp_ms, **bounds)
            text = "the topic did not exist at that time: ask for the time of its first commit, or a later one"
            raise OffsetOutOfRangeError(text, timestamp_ms=timestamp_ms, **bounds)
        return self.load(versions[earlier_count - 1])

    def follow(
        self,
        snapshot: Snapshot,
        *,
        first_group: int = 1,
        base: Snapshot | None = None,
        commits: list[Commit] | None = None,
        one_request: bool = False,
    ) -> Snapshot:
        """Apply all later commits to `snapshot`, and add them to `commits`; `one_request` stops after the first ones.

        `base` is the last head that was loaded, if `snapshot` is this head with another writer's commit.
        """
        head, files, base = snapshot, CommitFiles(self._storage), base or snapshot
        try:
            for later in files.follow(snapshot.version + 1, first_group=first_group):
                head = fold(head, later)
                if commits is not None:
                    commits += later
                if one_request and later:
                    files.store_ms = 0  # unknown: the next version may not have been requested
                    break
        except CorruptMetadataError:
            # vacuum may have deleted a version, and a writer that was paused put another commit there
            if base.is_fresh_at(self._storage.replied_ms()):
                raise
            raise BelowHorizonError from None
        return self._if_newest(base, head, files.store_ms)

    def horizon_above(self, error: CorruptMetadataError) -> int | None:
        """Return the log retention horizon if the commit of `error` is below it; else None."""
        version = paths.parse_commit_file(str(error.details.get("file", "")))
        head = None if version is None else self.load()
        return head.log_floor if head and version is not None and version < head.log_floor else None

    def is_newest(self, base: Snapshot, version: int) -> bool:
        """True if vacuum has deleted no commit from `version` on; False also if that is unknown.

        If True, a commit that was put at `version` is in the log, and a `version` without a next one is the newest.
        On an object store, True if a listing has no later version, since vacuum never deletes the newest commit. On a
        disk, True if the commit of `base`, which was read before, still exists: vacuum deletes the oldest first.
        """
        if self._storage.is_local:
            commit = self._files.read(base.version)
            return commit is not None and commit.id == base.commit_id
        later = self._storage.list_after(paths.COMMITS_DIR, paths.last_part(paths.commit_file(version)))
        return all((paths.parse_commit_file(file.name) or 0) <= version for file in later)

    def _if_newest(self, base: Snapshot, head: Snapshot, store_ms: int) -> Snapshot:
        """Return `head`, which followed `base` and was newest at `store_ms`; BelowHorizonError if it may be old."""
        if not base.is_fresh_at(self._storage.replied_ms()) and not self.is_newest(base, head.version):
            raise BelowHorizonError
        head.note_seen(store_ms)
        return head

    def _from_cached(self, cached: Snapshot, end: int, recent_times: range) -> Snapshot | None:
        """Return None if `cached` cannot be used. If no commit follows it, its own is read, to detect a new topic."""
        try:
            snapshot, files = cached, CommitFiles(self._storage)
            for commits in files.follow(cached.version + 1, end=end):
                snapshot = fold(snapshot, commits)
                # a commit in that time range is new enough for the caller
                if snapshot.timestamp_ms in recent_times and not snapshot.dropped:
                    files.store_ms = 0  # unknown: the next version may not have been requested
                    break
            if snapshot is cached:
                _check_same_commit(cached, files.read_existing(cached.version))
            # a load that stops at `end` does not request the next version
            return self._if_newest(cached, snapshot, files.store_ms if snapshot.version + 1 < end else 0)
        except CorruptMetadataError as error:
            if self._has_commit(cached):
                _log.warning("the cached state of the topic is ignored: %s", error)
            return None
        except BelowHorizonError:
            return None

    def _has_commit(self, cached: Snapshot) -> bool:
        """True if the folder has the commit of `cached`, perhaps damaged; False after the topic was replaced."""
        try:
            commit = self._files.read(cached.version)
        except CorruptMetadataError:
            return True
        return commit is not None and commit.id == cached.commit_id

    def _from_hint(self, end: int) -> Snapshot | None:
        name = read_hint(self._storage)
        if not name or not _is_below(name, end):
            return None
        try:
            base, written_ms = self._read_with_time(name, end)
            if written_ms < MAX_LONG:  # otherwise it is unknown
                # the earlier of two times: a writer's clock may be wrong, and a repeated put changes the file's time
                base.note_seen(min(written_ms, base.timestamp_ms))
            files = CommitFiles(self._storage)
            snapshot = self._fold_from(base, end, base.version, files)
            assert snapshot is not None
            return self._if_newest(base, snapshot, files.store_ms if snapshot.version + 1 < end else 0)
        except (CorruptMetadataError, FileNotFoundError) as error:
            _log.warning(_UNUSABLE_TEXT, name, error)
        except BelowHorizonError:
            pass
        return None

    def _read(self, name: str, end: int) -> Snapshot:
        """The state of the checkpoint `name`, for a load of versions below `end`."""
        full = paths.base_of_checkpoint(name)  # None if `name` is a full checkpoint itself
        if full in self._unusable:
            raise CorruptMetadataError(f"the full checkpoint {full}, which it extends, cannot be used", file=name)
        try:
            snapshot = checkpoint.read(self._storage, name)
        except (CorruptMetadataError, FileNotFoundError):
            self._unusable.add(full or name)
            raise
        if end == MAX_LONG:
            self.full_checkpoint = full or name
        return snapshot

    def _read_with_time(self, name: str, end: int) -> tuple[Snapshot, int]:
        """The state of the checkpoint `name`, and the time of its version's commit file, as `modified_ms`."""
        commit = paths.commit_file(paths.parse_checkpoint_file(name) or 0)
        if self._storage.is_local:
            return self._read(name, end), self._storage.modified_ms(commit)
        calls: list[Callable[[], Snapshot | int]] = [
            partial(self._read, name, end),
            partial(self._storage.modified_ms, commit),
        ]
        base, written_ms = in_parallel(lambda call: call(), calls)
        assert isinstance(base, Snapshot)
        assert isinstance(written_ms, int)
        return base, written_ms

    def _from_listings(self, end: int, *, only_listed: bool = False) -> Snapshot | None:
        former_first_version = -1  # the lowest version in the former listing
        for _ in range(LISTING_TRIES):
            with suppress(BelowHorizonError):
                try:
                    return self._from_listing(end, only_listed=only_listed)
                except CorruptMetadataError:  # vacuum may have deleted listed commits: then list again
                    if former_first_version == self._first_listed_version:  # nothing was deleted since then
                        # the log is damaged, or vacuum deleted only some commits below the horizon, where `end` is
                        if end < MAX_LONG and (head := self.load()) and end <= head.log_floor:
                            raise deleted_error(head.log_floor, head.version, version=end - 1) from None
                        raise
                    former_first_version = self._first_listed_version
        text = "vacuum deletes commits faster than the storage returns them: try again"
        raise StorageError(text, file=paths.COMMITS_DIR)

    def _from_listing(self, end: int, *, only_listed: bool = False) -> Snapshot | None:
        self.listed_ms = listed_ms = self._storage.replied_ms()
        self._unusable.clear()
        first, newest, names = MAX_LONG, -1, list[str]()
        for count, file in enumerate(self._storage.list_after(paths.COMMITS_DIR), 1):
            if only_listed and count > ONE_PAGE:
                return self.load()
            version, checkpoint_version = paths.parse_commit_file(file.name), paths.parse_checkpoint_file(file.name)
            if version is not None:
                newest, first = max(newest, version), min(first, version)
            if checkpoint_version is not None:
                newest = max(newest, checkpoint_version)
                names.append(file.name)
        self._first_listed_version = first
        names.sort(reverse=True)
        if end < MAX_LONG:
            self._check_not_deleted(end - 1, names, newest)
        usable = [name for name in names if _is_below(name, end)]
        full = [name for name in usable if paths.base_of_checkpoint(name) is None]
        read_end = newest + 1 if only_listed else end
        if first == 0:
            # all commits exist, and make up for damaged checkpoints
            usable = list(dict.fromkeys((*usable[:CHECKPOINT_TRIES], *full[:CHECKPOINT_TRIES])))
        for name in usable:
            snapshot = self._from_checkpoint(name, end, newest, listed_ms, read_end)
            if snapshot:
                return snapshot
        if end <= first < MAX_LONG:
            raise deleted_error(first, newest, version=end - 1)
        snapshot = self._fold_from(None, read_end, newest)
        return self._if_fresh(snapshot, snapshot, end, listed_ms)

    def _if_fresh(self, head: Snapshot | None, base: Snapshot | None, end: int, listed_ms: int) -> Snapshot | None:
        """Same as `_if_newest` after a listing at `listed_ms`; not checked if `head` is the version before `end`."""
        if head is None or base is None or head.version + 1 == end:
            return head
        head.note_seen(listed_ms)
        if not head.is_fresh_at(self._storage.replied_ms()) and not self.is_newest(base, head.version):
            raise BelowHorizonError
        return head

    def _check_not_deleted(self, version: int, names: Iterable[str], newest: int) -> None:
        """Raise OffsetOutOfRangeError if `version` is below the horizon in the newest checkpoint of `names`."""
        for name in names:
            try:
                horizon = self._read(name, end=0).log_floor  # end=0, since this is not a load of the head
            except (CorruptMetadataError, FileNotFoundError, UnsupportedVersionError):
                continue  # a library that lacks a feature of the head may be able to read earlier versions
            if version < horizon:
                raise deleted_error(horizon, newest, version=version)
            return

    def _from_checkpoint(self, name: str, end: int, newest: int, listed_ms: int, read_end: int) -> Snapshot | None:
        """Apply the commits below `read_end` to the checkpoint `name`; None if the checkpoint cannot be used."""
        try:
            base = self._read(name, end)
            snapshot = self._fold_from(base, read_end, max(newest, base.version))
        except (CorruptMetadataError, FileNotFoundError) as error:
            _log.warning(_UNUSABLE_TEXT, name, error)
            return None
        return self._if_fresh(snapshot, base, end, listed_ms)

    def _fold_from(
        self, snapshot: Snapshot | None, end: int, known_version: int, files: CommitFiles | None = None
    ) -> Snapshot | None:
        """Apply the commits below `end` to `snapshot`, after a check of its own commit; None: start at version 0."""
        start, files = snapshot.version if snapshot else 0, files or CommitFiles(self._storage)
        for commits in files.follow(start, end=end, known_version=known_version, first_group=_FIRST_GROUP):
            if snapshot and commits[0].version == snapshot.version:
                _check_same_commit(snapshot, commits[0])
                commits = commits[1:]
            snapshot = fold(snapshot, commits) if commits else snapshot
        return snapshot

    def _timestamp(self, version: int) -> int:
        return self._files.read_existing(version).timestamp_ms


class CheckpointWriter:
    """Writes checkpoints, which are due every `commits` commits, large ones in a thread; a failure logs a warning."""

    def __init__(self, storage: Storage, commits: int, loader: SnapshotLoader) -> None:
        self._storage, self._commits, self._loader = storage, commits, loader
        self._task: Task[None] | None = None
        self._process = os.getpid()

    def write(self, snapshot: Snapshot, *, may_return_early: bool) -> None:
        """Write a checkpoint of `snapshot`; a large one in the background if this call `may_return_early`."""
        if self._process != os.getpid():
            # a forked child has none of its parent's threads, and may end without waiting for its own (`os._exit`)
            self._process, self._task, may_return_early = os.getpid(), None, False
        if checkpoint.row_count(snapshot) < checkpoint.LARGE_ROWS or not may_return_early:
            self._write(snapshot)
        elif self._task is None or self._task.is_done:
            self._task = begin(partial(self._write_if_exists, snapshot))
        else:
            _log.warning("no checkpoint of version %d: the previous one is still being written", snapshot.version)

    def wait(self) -> None:
        if self._task is not None and self._process == os.getpid():
            self._task.wait()

    def _write_if_exists(self, snapshot: Snapshot) -> None:
        try:
            # if the topic's folder was deleted since, the checkpoint must not create it again
            self._storage.size(paths.commit_file(snapshot.version))
        except (FileNotFoundError, StorageError) as error:
            _log.warning("no checkpoint of version %d, since its commit cannot be found: %s", snapshot.version, error)
        else:
            self._write(snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        try:
            if not self._write_incremental(snapshot):
                self._loader.full_checkpoint = checkpoint.write(self._storage, snapshot)
        except (DistlogError, MemoryError, OverflowError, ValueError, OSError, pa.ArrowException) as error:
            _log.warning("cannot write the checkpoint of version %d: %s", snapshot.version, error)

    def _write_incremental(self, snapshot: Snapshot) -> bool:
        """Write an incremental checkpoint; False if a full one is due, as for few rows or without a usable base."""
        base, horizon = self._loader.full_checkpoint, max(snapshot.gc_floor, snapshot.log_floor)
        if (
            base is None
            or checkpoint.row_count(snapshot) < checkpoint.LARGE_ROWS
            # vacuum may soon delete a base below the horizons
            or not horizon <= (paths.parse_checkpoint_file(base) or 0) < snapshot.version
        ):
            return False
        try:
            return checkpoint.write_incremental(self._storage, snapshot, base, self._commits) is not None
        except (CorruptMetadataError, FileNotFoundError) as error:
            _log.warning("the full checkpoint %s is ignored, so the next one is full: %s", base, error)
            return False


class CommitFiles:
    """Reads the files of commits one by one, or follows them from a version on."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.store_ms = 0  # the store's time before the last request of `follow` was sent; 0 if unknown

    def read(self, version: int) -> Commit | None:
        """The commit of `version`, or None if there is none yet; raises CorruptMetadataError."""
        try:
            data = self._storage.read(paths.commit_file(version), 0, MAX_CONDITIONAL_BYTES + 1)
        except FileNotFoundError:
            return None
        return self.decode(version, data)

    def decode(self, version: int, data: bytes) -> Commit:
        """The commit of `version` from the first MAX_CONDITIONAL_BYTES + 1 bytes of its file; otherwise as `read`."""
        file = paths.commit_file(version)
        if len(data) > MAX_CONDITIONAL_BYTES:
            text = "the commit is larger than any commit may be: restore the file from a copy"
            raise CorruptMetadataError(text, file=file)
        commit = Commit.decode(data, file)
        if commit.version != version:
            text = "the commit has another version than its file's name: restore the file from a copy"
            raise CorruptMetadataError(text, file=file)
        return commit

    def read_existing(self, version: int) -> Commit:
        """`read` of a commit that is known to exist; raises CorruptMetadataError if it does not."""
        commit = self.read(version)
        if commit is None:
            file = paths.commit_file(version)
            raise CorruptMetadataError("a commit is missing: restore the file from a copy", file=file)
        return commit

    def follow(
        self, start: int, *, end: int = MAX_LONG, known_version: int = -1, first_group: int = 1
    ) -> Iterator[list[Commit]]:
        """The commits from version `start` to `end - 1` or to the head, in groups that are read at once.

        Each group after the `first_group` is as large as all groups before it. `known_version` is known to exist.
        Raises CorruptMetadataError for a missing version below it, or below a commit that was read.
        """
        first = start
        while start < end:
            self.store_ms = self._storage.replied_ms()
            # with two versions after the known one: if the first does not exist, the second shows whether it is a gap
            size = min(max(first_group, start - first, known_version + 3 - start), MAX_GROUP)
            read_all = map if self._storage.is_local else in_parallel
            next_commits = list(read_all(self.read, range(start, min(start + size, end))))
            commits = list(_until_missing(next_commits))
            if commits:
                yield commits
            start += len(commits)
            if len(commits) == len(next_commits):
                continue
            later = next_commits[len(commits) + 1 :]
            is_gap = start <= known_version or any(later)
            # if the missing version is the last of its group, the next version is requested to detect a gap; but not
            # after a group of one, since a refresh is one request
            if is_gap or (not later and size > 1 and self.read(start + 1) is not None):
                # the log is damaged, unless the missing version and the next one were written between two reads
                self.read_existing(start)
                continue
            return


def deleted_error(horizon: int, head: int, **request: int) -> OffsetOutOfRangeError:
    text = f"the log starts at version {horizon}, since older commits were deleted (commit.retention.ms)"
    return OffsetOutOfRangeError(text, **request, log_floor=horizon, head=head)


def read_hint(storage: Storage) -> str | None:
    """The name of a checkpoint in the hint, or None."""
    try:
        name = storage.read(paths.LAST_CHECKPOINT, 0, _MAX_HINT_BYTES + 1).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    return None if paths.parse_checkpoint_file(name) is None else name


def _until_missing(commits: Iterable[Commit | None]) -> Iterator[Commit]:
    for commit in commits:
        if commit is None:
            return
        yield commit


def _is_below(name: str, end: int) -> bool:
    version = paths.parse_checkpoint_file(name)
    return version is not None and version < end


def _check_same_commit(snapshot: Snapshot, commit: Commit) -> None:
    if commit.id != snapshot.commit_id:
        text = "the state is of another topic, or of another commit of this version"
        raise CorruptMetadataError(text, version=snapshot.version)
