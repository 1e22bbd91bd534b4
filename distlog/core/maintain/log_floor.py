"""The log retention horizon (`log_floor`): the version below which vacuum deletes commits and checkpoints.

A commit raises the floor; then a checkpoint at or above it is read back; then the names below it are deleted. A
process that dies in between leaves names that mean nothing any more, and the next run deletes them. The floor is not
above the version that was the head `commit.retention.ms` ago by the store's own clock. So a commit is deleted that
long after the next one was written, at the earliest: `Snapshot.is_fresh_at` relies on it.
"""

from __future__ import annotations

import itertools
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import CHECKPOINTS_TRIED, CommitFiles
from distlog.core.errors import CorruptMetadataError, OffsetOutOfRangeError, StorageError
from distlog.core.storage.storage import FileInfo, Storage

#: Versions between two checkpoints that are kept for time travel, to which the horizon is raised.
KEPT_EVERY = 1000
#: The horizon lags by at most this part of the kept commits, and not by less than this number of commits.
STEP_PART, LEAST_STEP = 8, 16
#: Names deleted at once, smaller names first.
NAMES_AT_ONCE = 1000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CommitsFolder:
    """A listing of the folder of commits; 24 bytes a commit.

    `other_files` are not commits or checkpoints. Versions below `first`, the log retention horizon, are leftover
    or were put by paused writers: their times are meaningless.
    """

    versions: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    written_ms: array[int] = field(default_factory=lambda: array("q"))
    checkpoints: list[FileInfo] = field(default_factory=list)
    other_files: list[FileInfo] = field(default_factory=list)
    first: int = 0

    @classmethod
    def of(cls, files: Iterable[FileInfo]) -> CommitsFolder:
        """The folder with these `files`, as `storage.list_after(paths.COMMITS_DIR)` gives them."""
        folder = cls()
        for file in files:
            version = paths.parse_commit_file(file.name)
            if version is not None:
                folder.versions.append(version)
                folder.sizes.append(file.size)
                folder.written_ms.append(file.modified_ms)
            elif paths.parse_checkpoint_file(file.name) is not None:
                folder.checkpoints.append(file)
            else:
                folder.other_files.append(file)
        return folder

    def commits(self, end: int | None = None) -> Iterator[FileInfo]:
        """The files of the commits, in order; of versions below `end` only, if it is given."""
        order = np.argsort(np.frombuffer(self.versions, np.int64), kind="stable") if self.versions else ()
        for row in order:
            if end is not None and self.versions[row] >= end:
                return
            yield FileInfo(paths.commit_file(self.versions[row]), self.sizes[row], self.written_ms[row])

    def oldest(self) -> int:
        """The version from which on all commits are there; commits below a gap are left over."""
        versions = np.sort(np.frombuffer(self.versions, np.int64)) if self.versions else np.zeros(1, np.int64)
        gaps = np.flatnonzero(np.diff(versions) > 1)
        return int(versions[gaps[-1] + 1]) if len(gaps) else int(versions[0])

    def head_at(self, time_ms: int, now_ms: int) -> int | None:
        """The version that was the head at `time_ms`, or an earlier one; None when there was no version.

        Compares the times at which the storage wrote the commits' files. A commit whose time is after `now_ms` is
        skipped: a clock was set since, and its true time is unknown. If times go back from one commit to the next,
        the later time applies to the commits after it.
        """
        if not self.versions:
            return None
        versions, written = np.frombuffer(self.versions, np.int64), np.frombuffer(self.written_ms, np.int64)
        order = np.argsort(versions, kind="stable")
        order = order[versions[order] >= self.first]
        versions, written = versions[order], written[order]
        later = np.flatnonzero((time_ms < written) & (written <= now_ms))
        by_then = np.flatnonzero(written[: later[0] if len(later) else None] <= time_ms)
        return int(versions[by_then[-1]]) if len(by_then) else None


def highest_log_floor(head: Snapshot, folder: CommitsFolder, gc_floor: int, now_ms: int) -> int:
    """Return the highest version for the log retention horizon: the head `commit.retention.ms` ago; -1 if none."""
    kept_ms = head.commits_kept_ms
    head_then = None if kept_ms is None else folder.head_at(now_ms - kept_ms, now_ms)
    return min(-1 if head_then is None else head_then, gc_floor)


def next_log_floor(
    storage: Storage, log: CommitLog, head: Snapshot, folder: CommitsFolder, highest: int, *, dry_run: bool
) -> int:
    """Return the version to raise the log retention horizon to, at most `highest`; `head.log_floor` if it stays.

    It is the newest version with a sound full checkpoint that is kept for time travel. If that would keep many more
    commits than necessary, writes a checkpoint.
    """
    floor = head.log_floor
    for name in sorted(with_bases(kept_for_time_travel(folder.checkpoints)), reverse=True):
        version = paths.parse_checkpoint_file(name) or 0
        if paths.base_of_checkpoint(name) is None and floor < version <= highest and is_sound(storage, name):
            floor = version
    step = min(KEPT_EVERY, max(LEAST_STEP, (head.version - highest) // STEP_PART))
    if highest - floor < step or dry_run:
        return floor
    # another, paused run may be about to delete a writer's checkpoint, and would delete a new one of the same name
    written = {paths.parse_checkpoint_file(file.name) for file in folder.checkpoints}
    version = next(version for version in range(highest, floor - 1, -1) if version == floor or version not in written)
    try:
        name = checkpoint.write(storage, log.load(version, include_dropped=True), is_newest=False)
    except (CorruptMetadataError, OffsetOutOfRangeError, StorageError, ValueError) as error:
        _log.warning("the log keeps old commits, as there is no checkpoint of version %d: %s", version, error)
        return floor
    return version if is_sound(storage, name) else floor


def kept_for_time_travel(checkpoints: Iterable[FileInfo]) -> list[str]:
    """The names of the first checkpoint of each KEPT_EVERY versions, in order; each vacuum finds the same ones."""
    first: dict[int, str] = {}
    for name in sorted(file.name for file in checkpoints):
        first.setdefault((paths.parse_checkpoint_file(name) or 0) // KEPT_EVERY, name)
    return [name for number, name in first.items() if number]


def with_bases(names: Iterable[str]) -> set[str]:
    """Return `names` of checkpoints, and the full ones that the incremental ones need."""
    return {needed for name in names for needed in (name, paths.base_of_checkpoint(name)) if needed is not None}


def is_sound(storage: Storage, name: str) -> bool:
    """True if a reader would accept the checkpoint: complete, and of the commit of its version."""
    try:
        state = checkpoint.read(storage, name)
        commit = CommitFiles(storage).read(state.version)
    except (CorruptMetadataError, FileNotFoundError) as error:
        _log.warning("the checkpoint %s is not usable: %s", name, error)
        return False
    return commit is not None and commit.id == state.commit_id


#: Full checkpoints from the log retention horizon on, if it has enough versions: one may be damaged.
FULL_CHECKPOINTS = 2


def ensure_checkpoint(storage: Storage, head: Snapshot, folder: CommitsFolder, newest: str | None = None) -> bool:
    """True if FULL_CHECKPOINTS durable ones from the floor of `head` on were read back; else writes one at `head`.

    One at the head is enough, as no version is above it. `newest` is one that this process wrote since the listing.
    """
    storage.sync(paths.COMMITS_DIR)
    names = {file.name for file in folder.checkpoints if paths.base_of_checkpoint(file.name) is None}
    names |= {newest} if newest else set()
    above = [
        name for name in sorted(names, reverse=True) if (paths.parse_checkpoint_file(name) or 0) >= head.log_floor
    ]
    sound = itertools.islice((name for name in above if is_sound(storage, name)), FULL_CHECKPOINTS)
    versions = {paths.parse_checkpoint_file(name) for name in sound}
    if len(versions) >= FULL_CHECKPOINTS or head.version in versions:
        return True
    # one that `next_log_floor` wrote is not in the listing, or another process deleted what was
    try:
        return is_sound(storage, checkpoint.write(storage, head))
    except (CorruptMetadataError, StorageError, ValueError) as error:
        _log.warning("the log keeps old commits, as there is no checkpoint of version %d: %s", head.version, error)
        return False


def delete_below(storage: Storage, files: Sequence[FileInfo]) -> None:
    """Delete the files of versions below the floor, oldest first.

    A disk deletes them in order, so the remaining commits have no gap. A store deletes the names of one request in
    any order; there a process lists the commits to find later ones (`SnapshotLoader.is_newest`).
    """
    names = sorted(file.name for file in files)
    for start in range(0, len(names), NAMES_AT_ONCE):
        storage.delete(names[start : start + NAMES_AT_ONCE])


def obsolete_checkpoints(
    checkpoints: Iterable[FileInfo], gc_floor: int, log_floor: int, highest: int
) -> list[FileInfo]:
    """List the checkpoints below `gc_floor` that loads do not need, or that have another one close by.

    A load tries the newest checkpoints up to its version, the second one if the first is damaged, then full ones.
    Versions from `gc_floor` on are opened often, earlier ones down to `log_floor` for time travel. A full checkpoint
    stays while an incremental one needs it. Full ones up to `highest` stay too: another run may have written one, and
    may be about to raise the log retention horizon to it.
    """
    files = {file.name: file for file in checkpoints}
    versions = {name: paths.parse_checkpoint_file(name) or 0 for name in files}
    full = {name for name in files if paths.base_of_checkpoint(name) is None}
    below = {name for name in files if any(versions.get(needed, -1) < log_floor for needed in with_bases([name]))}
    usable = sorted(files.keys() - below)
    retained = {name for name in usable if versions[name] > gc_floor or versions[name] == log_floor}
    retained.update(name for name in full.intersection(usable) if versions[name] <= highest)
    retained.update(kept_for_time_travel(files[name] for name in usable))
    by_then = [name for name in usable if versions[name] <= gc_floor]
    retained.update(by_then[-CHECKPOINTS_TRIED:])
    retained.update([name for name in by_then if name in full][-CHECKPOINTS_TRIED:])
    return [files[name] for name in sorted(files.keys() - with_bases(retained))]
