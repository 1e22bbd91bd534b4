"""Vacuum: deletes the files that no reader can need and no writer can still commit, and old commits.

The name of a segment's file has the version that its writer had read. If it is below the vacuum horizon (`gc_floor`,
`floor`), the file is deleted, unless a version from the horizon on references it. Commits and checkpoints below the
log retention horizon (`log_floor`) are deleted. A commit exists for `commit.retention.ms` after the next one was
written (`Snapshot.is_fresh_at`).
"""

from __future__ import annotations

import itertools
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import MAX_LONG, Flags, Longs, numbers_of, table_of_rows
from distlog.core.commits import actions, checkpoint, fields
from distlog.core.commits.actions import REMOVE_TABLE, Action, Remove, SetLogHorizon, SetVacuumHorizon, read_table
from distlog.core.commits.commit_log import CommitLog, CommitRace
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import CHECKPOINT_TRIES, CommitFiles
from distlog.core.display import Displayable, counted
from distlog.core.errors import (
    CommitConflictError,
    CorruptMetadataError,
    OffsetOutOfRangeError,
    StorageError,
    StorageFullError,
)
from distlog.core.read.consumer_group import group_files, group_folders
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.locks_and_pages import FileLock, copy_path, flocked
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, FileInfo, Storage, UnfinishedUpload

#: Vacuum keeps temporary files that are younger than this, even if `file.delete.delay.ms` is shorter, since a put may
#: still write them. This leaves it ample time: a put that fails is aborted after ten minutes.
LONGEST_PUT_MS = 3_600_000
FILES_AT_ONCE = 10_000  # segment files that are checked together
#: One checkpoint in this many versions is kept for time travel. Its version may become the log retention horizon.
KEPT_EVERY = 1000
#: The log retention horizon is raised once it lags by one eighth of the kept commits, and by at least 16 commits.
STEP_PART, MIN_STEP = 8, 16
NAMES_AT_ONCE = 1000  # names that one call deletes
#: How many full checkpoints vacuum ensures from the log retention horizon on, since one may be damaged.
FULL_CHECKPOINTS = 2
_AT_ONCE = 64  # commits that are read at the same time
_RUN = 1 << 20  # a StemSet sorts its new hashes when it has this many
#: Two odd numbers that spread bits (the golden ratio, and a factor of SplitMix64).
_SPREAD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_BUNDLE = -1  # stands for the partition of a bundle in a hash
_log = logging.getLogger(__name__)

#: (partition, stem): together they name a segment's files; (None, stem) names the bundle that it may be in.
FileStem = tuple[int | None, str]


def vacuum(storage: Storage, log: CommitLog, *, dry_run: bool = False) -> VacuumReport:
    """Delete the files that no reader or writer can need, also of a dropped topic."""
    try:
        return _vacuum(storage, log, dry_run=dry_run)
    except (CorruptMetadataError, OffsetOutOfRangeError) as error:
        if isinstance(error, CorruptMetadataError) and log.loader.horizon_above(error) is None:
            raise  # the commit in the error is not below the horizon, so no vacuum has deleted it
        raise CommitConflictError("another vacuum has deleted old commits concurrently: run vacuum again") from None


def removed_files_held(storage: Storage) -> AbstractContextManager[object]:
    """Hold the lock on removed files. Raises LockHeldError, or StorageFullError if a full disk lacks its file."""
    # A restore checks that files exist, and then commits. If vacuum commits a horizon in between, the restore checks
    # again. On a full disk, vacuum deletes files before that commit, so it holds this lock, as each restore does.
    return flocked(storage.local_path(paths.REMOVED_FILES_LOCK)) if storage.is_local else nullcontext()


class Referenced:
    """The segments and bundles that a version of the topic from the vacuum horizon `floor` to `head` references.

    All commits from version `oldest` on exist.
    """

    def __init__(self, storage: Storage, log: CommitLog, head: Snapshot, floor: int, oldest: int = MAX_LONG) -> None:
        if floor + 1 < head.log_floor:
            # commits below `log_floor` that still exist are not used, since a paused process may have written them
            text = "commits that this run needs were deleted concurrently: run it again"
            raise OffsetOutOfRangeError(text, version=floor + 1, log_floor=head.log_floor)
        # what versions from `floor` on reference: what later commits removed, and what is live at `head`
        referenced = removals(storage, floor + 1, head.version + 1)
        referenced.add_snapshot(head)
        for version in referenced.before_drops:
            referenced.add_snapshot(log.load(version=version, include_dropped=True))
        self.topic, self.stems = head.name, referenced.stems
        #: Versions in which a log may begin earlier than in the previous version.
        self.restored = tuple(referenced.restored)
        self._storage, self._log, self._head, self._oldest = storage, log, head, min(oldest, head.log_floor)
        #: The segments that existing commits removed; None before they are read.
        self._removed: set[FileStem] | None = None

    def unreferenced(
        self, files: Sequence[FileInfo], floor: int, removed: Set[FileStem] = frozenset()
    ) -> list[FileInfo]:
        """Return the segment files and bundles among `files` that no version references, or will reference."""
        stemmed = [(file, stem) for file in files if (stem := stem_of(file.name, self.topic))]
        is_referenced = self.stems.has([stem for _, stem in stemmed]).tolist()
        return [
            file
            for (file, stem), is_needed in zip(stemmed, is_referenced, strict=True)
            if not is_needed and (is_below(stem, floor) or stem in removed or self._is_removed(stem))
        ]

    def _is_removed(self, stem: FileStem) -> bool:
        """Return whether a commit has removed a broker's segment, whose name has no version."""
        if paths.is_own_stem(stem[1]):
            return False
        if self._removed is None:
            end, log_floor = self._head.version + 1, self._head.log_floor
            try:
                self._removed = exact_removals(self._storage, self._log, max(self._oldest, 1), end)
            except (CorruptMetadataError, OffsetOutOfRangeError):
                # the topic was dropped below `log_floor`, or another run deleted older commits: use those after it
                if self._oldest >= log_floor:
                    raise
                self._removed = exact_removals(self._storage, self._log, log_floor + 1, end)
        return stem in self._removed


def stem_of(name: str, topic: str) -> FileStem | None:
    """Parse the stem in the relative name of a segment's file or a bundle; None for any other file."""
    bundle = paths.parse_bundle_file(name)
    return (None, bundle) if bundle else paths.parse_segment_file(name, topic)


def is_below(stem: FileStem, version: int) -> bool:
    """Return whether the file's writer read a version below `version`; False for a broker's file, which has none."""
    read_version = paths.stem_read_version(stem[1])
    return read_version is not None and read_version < version


def dead_uploads(storage: Storage, referenced: Referenced, floor: int, before_ms: int) -> list[UnfinishedUpload]:
    """Return the unfinished uploads to the topic's file names that no commit can need."""
    try:
        uploads = storage.uploads()
    except StorageError as error:
        _log.warning("unfinished uploads stay, as they cannot be listed (s3:ListBucketMultipartUploads): %s", error)
        return []
    return [upload for upload in uploads if _is_dead(upload, referenced, floor, before_ms)]


def _is_dead(upload: UnfinishedUpload, referenced: Referenced, floor: int, before_ms: int) -> bool:
    stem, pending = stem_of(upload.name, referenced.topic), paths.parse_pending_file(upload.name)
    # the commit log refuses files whose writer read a version below the horizon
    if pending is not None:
        return is_below((None, pending), floor)
    if stem is not None and stem not in referenced.stems:
        return is_below(stem, floor)
    # an upload without a read version is dead if it began before `before_ms`, since no upload takes that long
    is_of_topic = stem is not None or paths.parse_checkpoint_file(upload.name) is not None
    return is_of_topic and upload.started_ms < before_ms


def dead_appends(files: Iterable[FileInfo], floor: int) -> list[FileInfo]:
    """Return the pending appends (in the queue of commits) that began below `floor`: no commit can take them."""
    stemmed = ((file, paths.parse_pending_file(file.name)) for file in files)
    return [file for file, stem in stemmed if stem is not None and is_below((None, stem), floor)]


def obsolete_producers(
    files: Iterable[FileInfo], head: Snapshot, referenced: Referenced, floor: int, load: Callable[[int], Snapshot]
) -> list[FileInfo]:
    """Return the obsolete files of producers and leader epochs among the topic's `files`."""
    # appends read producer snapshots, and a restore may return to any version from `floor` on. So a snapshot is
    # obsolete if it is below the log start of all these versions. Only a restore moves the log start back
    if head.dropped and referenced.stems:
        return []
    obsolete = [file for file in files if _is_obsolete(file.name, head, referenced)]
    producer_snapshots = {file.name for file in obsolete if paths.parse_producer_snapshot(file.name, head.name)}
    if head.dropped or not producer_snapshots:
        return obsolete
    earliest = [load(version) for version in (floor, *referenced.restored)]
    ids = (head.topic_id, *head.former_ids)
    versions = [snapshot for snapshot in earliest if snapshot.topic_id in ids]
    needed = {name for name in producer_snapshots if not all(_is_before_log(name, version) for version in versions)}
    return [file for file in obsolete if file.name not in needed]


def _is_obsolete(name: str, head: Snapshot, referenced: Referenced) -> bool:
    if paths.parse_producer_snapshot(name, head.name):
        return head.dropped or _is_before_log(name, head)
    number = paths.parse_leader_epochs(name, head.name)
    # a version that has a broker's segment needs its leader epochs
    return number is not None and number not in referenced.stems.kafka_partitions


def _is_before_log(name: str, snapshot: Snapshot) -> bool:
    """True if the producer snapshot is of an offset below the partition's first segment."""
    partition_and_offset = paths.parse_producer_snapshot(name, snapshot.name)
    if partition_and_offset is None or partition_and_offset[0] >= len(snapshot.partitions):
        return False
    state = snapshot.partitions[partition_and_offset[0]]
    return partition_and_offset[1] < (state.segments[0].base_offset if len(state.segments) else state.log_end_offset)


def delete_locks(storage: Storage, files: Sequence[FileInfo]) -> None:
    """Delete the free locks of a topic on a local disk, and hold each until it is deleted."""
    # the topic may have been created again, and two writers must not hold an old and a new file of a lock
    for name in dict.fromkeys(file.name.removesuffix(paths.PAGE_COPY) for file in files):
        lock = FileLock(storage.local_path(name))
        with suppress(StorageError), lock.held(0):
            # delete the lock after its copy: a process that creates the lock again creates the copy, too
            storage.delete([copy_path(name), name])
        lock.close()


@dataclass(frozen=True, slots=True, repr=False)
class VacuumReport(Displayable):
    """The files that vacuum deleted, or would delete with `dry_run`, and the vacuum horizon that makes it safe."""

    files: tuple[FileInfo, ...]
    gc_floor: int
    dry_run: bool
    uploads: tuple[UnfinishedUpload, ...] = ()
    log_floor: int = 0

    @property
    def bytes(self) -> int:
        """The total size of the files, without uploads, whose size is unknown."""
        return sum(file.size for file in self.files)

    def __str__(self) -> str:
        verb, uploads_verb = ("would delete", "would abort") if self.dry_run else ("deleted", "aborted")
        text = f"{verb} {counted(len(self.files), 'file')}, {counted(self.bytes, 'byte')}"
        return f"{text}; {uploads_verb} {counted(len(self.uploads), 'unfinished upload')}" if self.uploads else text

    def to_table(self) -> pa.Table:
        """Return a row per file and per upload: the name in the topic's folder, and the bytes, null for an upload."""
        rows = [{"name": file.name, "bytes": file.size} for file in self.files]
        rows += [{"name": upload.name} for upload in self.uploads]
        return table_of_rows(rows, pa.schema([("name", pa.string()), ("bytes", pa.int64())]))

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, without the list of files."""
        summary: dict[str, Any] = {"gc_floor": self.gc_floor, "dry_run": self.dry_run}
        return {**summary, "files": len(self.files), "bytes": self.bytes, "uploads": len(self.uploads)}


def _vacuum(storage: Storage, log: CommitLog, *, dry_run: bool) -> VacuumReport:
    folder = CommitsFolder.of(storage.list_after(paths.COMMITS_DIR))
    # list groups before the head is read, or a group of a topic that is created in between would look orphaned
    groups = group_folders(storage)
    head = log.load(include_dropped=True)
    folder.log_floor = head.log_floor
    now_ms = storage.now_ms(paths.COMMITS_DIR)
    delay_ms = head.config.file_delete_delay_ms
    floor = folder.head_at(now_ms - delay_ms, now_ms)
    if floor is None:
        return VacuumReport((), head.gc_floor, dry_run)
    highest = highest_log_floor(head, folder, max(floor, head.gc_floor), now_ms)
    log_floor = next_log_floor(storage, log, head, folder, highest, dry_run=dry_run)
    folders = _segment_folders(storage, head.name)
    garbage = list[FileInfo]()
    if not dry_run:
        # even if the horizon is committed already: this call syncs that commit, which may not be durable yet
        head, garbage = _raise_floor(storage, log, head, floor, folders, log_floor)
        log_floor = head.log_floor
    referenced = Referenced(storage, log, head, floor, folder.oldest())
    files = list(folder.other_files)
    for chunk in _chunks_of(storage, folders):
        garbage += referenced.unreferenced(chunk, floor)
        files += [file for file in chunk if not stem_of(file.name, head.name)]
    before_ms = now_ms - max(delay_ms, LONGEST_PUT_MS)
    live_id = None if head.dropped else head.topic_id
    live_files, dropped_files = group_files(storage, groups, live_id, now_ms - delay_ms)
    garbage += [
        *dropped_files,
        *obsolete_producers(files, head, referenced, floor, partial(log.load, include_dropped=True)),
        # if the writer of a temporary file is only slow, its put fails
        *(file for file in (*files, *live_files) if paths.is_left_over(file.name) and file.modified_ms < before_ms),
        *dead_appends(files, floor),
    ]
    obsolete = obsolete_checkpoints(folder.checkpoints, floor, log_floor, highest)
    old_commits = list(folder.commits_below(log_floor))
    # a dropped topic without kept versions needs no locks
    needs_no_locks = storage.is_local and head.dropped and not referenced.stems
    locks = [file for file in files if needs_no_locks and paths.is_lock_file(file.name)]
    uploads = dead_uploads(storage, referenced, floor, before_ms)
    if not dry_run:
        storage.delete([file.name for file in garbage])
        delete_locks(storage, locks)
        storage.abort_uploads(uploads)
        # delete commits and checkpoints last: without them, the other garbage would not be found again
        if not old_commits or ensure_checkpoint(storage, head, folder, log.loader.full_checkpoint):
            delete_below(storage, obsolete)
            delete_below(storage, old_commits)
        else:
            obsolete, old_commits = [], []
    files = [*garbage, *locks, *obsolete, *old_commits]
    return VacuumReport(tuple(files), max(floor, head.gc_floor), dry_run, tuple(uploads), log_floor)


def _segment_folders(storage: Storage, topic: str) -> list[str]:
    """List the folders of partitions, bundles and pending appends. Raises StorageError for links."""

    def is_of_topic(name: str) -> bool:
        return name.startswith(f"{topic}-") or name in (paths.BUNDLES_DIR, paths.PENDING_DIR)

    if any(map(is_of_topic, storage.links())):
        storage.refuse_links()
    folders = [name for name in storage.list_folders() if is_of_topic(name)]
    for folder in folders:
        storage.refuse_links(folder)
    return folders


def _chunks_of(storage: Storage, folders: Iterable[str]) -> Iterator[list[FileInfo]]:
    files = (file for folder in folders for file in storage.list_after(folder))
    while chunk := list(itertools.islice(files, FILES_AT_ONCE)):
        yield chunk


def _raise_floor(
    storage: Storage, log: CommitLog, head: Snapshot, floor: int, folders: Sequence[str], log_floor: int
) -> tuple[Snapshot, list[FileInfo]]:
    """Commit the horizons of vacuum and of commits. Returns the state after, and files deleted to make room."""
    freed, kept_ms = list[FileInfo](), head.commits_kept_ms
    with suppress(StorageFullError):
        return _commit_floors(log, head, floor, log_floor, kept_ms), freed
    try:
        with removed_files_held(storage):
            head = log.load(include_dropped=True)
            freed += _free(storage, log, head, floor, folders)
            return _commit_floors(log, head, floor, log_floor, kept_ms), freed
    except StorageFullError as error:
        text = f"no space for vacuum's commit of under 4 KiB, though it deleted {counted(len(freed), 'file')} first"
        raise StorageFullError(f"{text}: delete other files, then vacuum again", **error.details) from error


def _commit_floors(log: CommitLog, snapshot: Snapshot, floor: int, log_floor: int, kept_ms: int | None) -> Snapshot:
    """Commit the horizons, `log_floor` only if commits are still kept for `kept_ms`. Returns the new state."""
    with CommitRace(log, snapshot, "gc") as race:
        for head in race:  # again with the newest state if another commit was first
            horizons: list[Action] = [SetVacuumHorizon(floor)] if floor > head.gc_floor else []
            if head.commits_kept_ms == kept_ms and head.log_floor < log_floor:
                horizons.append(SetLogHorizon(log_floor))
            if not horizons:
                break
            race.put(horizons)
    return race.snapshot


def _free(storage: Storage, log: CommitLog, head: Snapshot, floor: int, folders: Sequence[str]) -> list[FileInfo]:
    """Delete and return the garbage below the present horizon, and what commits up to `floor` removed, logs first."""
    referenced = Referenced(storage, log, head, floor)
    removed = removals(storage, head.gc_floor + 1, floor + 1, exact=True).exact_stems or set()
    chunks = _chunks_of(storage, folders)
    freed = [file for chunk in chunks for file in referenced.unreferenced(chunk, head.gc_floor, removed)]
    for is_log in (True, False):
        storage.delete([file.name for file in freed if file.name.endswith((".log", ".bundle")) == is_log])
    return freed


@dataclass(slots=True)
class CommitsFolder:
    """A listing of the folder of commits, in the order of their `versions`. It takes 24 bytes a commit."""

    versions: Longs
    sizes: Longs
    written_ms: Longs
    checkpoints: list[FileInfo]
    other_files: list[FileInfo]
    #: The log retention horizon. Earlier commits are left over, or from paused writers, so their times are not used.
    log_floor: int = 0

    @classmethod
    def of(cls, files: Iterable[FileInfo]) -> CommitsFolder:
        """Return the folder with these `files`, as `storage.list_after(paths.COMMITS_DIR)` lists them."""
        commits, checkpoints, other_files = array("q"), list[FileInfo](), list[FileInfo]()
        for file in files:
            version = paths.parse_commit_file(file.name)
            if version is not None:
                commits.extend((version, file.size, file.modified_ms))
            elif paths.parse_checkpoint_file(file.name) is not None:
                checkpoints.append(file)
            else:
                other_files.append(file)
        rows = np.array(commits, np.int64).reshape(-1, 3)
        versions, sizes, written_ms = rows[np.argsort(rows[:, 0])].T
        return cls(versions, sizes, written_ms, checkpoints, other_files)

    def commits_below(self, end: int) -> Iterator[FileInfo]:
        for row in range(int(self.versions.searchsorted(end))):
            version = int(self.versions[row])
            yield FileInfo(paths.commit_file(version), int(self.sizes[row]), int(self.written_ms[row]))

    def oldest(self) -> int:
        """Return the version from which on all commits exist; commits below a gap are left over."""
        gaps = np.flatnonzero(np.diff(self.versions) > 1)
        first = gaps[-1] + 1 if len(gaps) else 0
        return int(self.versions[first]) if len(self.versions) else 0

    def head_at(self, time_ms: int, now_ms: int) -> int | None:
        """Return the version that was the head at `time_ms`, or an earlier version; None if there was no version."""
        # times may decrease if a clock was set back: all commits from the first one after `time_ms` on are later than
        # it. A commit after `now_ms` is skipped, because its true time is unknown
        first = self.versions.searchsorted(self.log_floor)
        versions, written = self.versions[first:], self.written_ms[first:]
        later = np.flatnonzero((time_ms < written) & (written <= now_ms))
        by_then = np.flatnonzero(written[: later[0] if len(later) else None] <= time_ms)
        return int(versions[by_then[-1]]) if len(by_then) else None


def highest_log_floor(head: Snapshot, folder: CommitsFolder, gc_floor: int, now_ms: int) -> int:
    """Return the highest log retention horizon: the head `commit.retention.ms` ago, at most `gc_floor`; or -1."""
    kept_ms = head.commits_kept_ms
    head_then = None if kept_ms is None else folder.head_at(now_ms - kept_ms, now_ms)
    return min(-1 if head_then is None else head_then, gc_floor)


def next_log_floor(
    storage: Storage, log: CommitLog, head: Snapshot, folder: CommitsFolder, highest: int, *, dry_run: bool
) -> int:
    """Return the next log retention horizon: a version up to `highest` with a full checkpoint; may write one."""
    floor = head.log_floor
    for name in sorted(with_bases(kept_for_time_travel(folder.checkpoints)), reverse=True):
        is_full, version = paths.base_of_checkpoint(name) is None, _version_of(name)
        if is_full and floor < version <= highest and is_sound(storage, name):
            floor = version
    step = min(KEPT_EVERY, max(MIN_STEP, (head.version - highest) // STEP_PART))
    if highest - floor < step or dry_run:
        return floor
    # choose a version without a checkpoint: a paused run that deletes an old checkpoint would delete the new one
    written = {paths.parse_checkpoint_file(file.name) for file in folder.checkpoints}
    version = next(version for version in range(highest, floor - 1, -1) if version == floor or version not in written)
    try:
        name = checkpoint.write(storage, log.load(version, include_dropped=True), is_newest=False)
    except (CorruptMetadataError, OffsetOutOfRangeError, StorageError, ValueError) as error:
        _log.warning("the log keeps old commits, as there is no checkpoint of version %d: %s", version, error)
        return floor
    return version if is_sound(storage, name) else floor


def _version_of(checkpoint_file: str) -> int:
    return paths.parse_checkpoint_file(checkpoint_file) or 0


def kept_for_time_travel(checkpoints: Iterable[FileInfo]) -> list[str]:
    """Return the names of the first checkpoint of each KEPT_EVERY versions, in order. Each vacuum keeps the same."""
    first: dict[int, str] = {}
    for name in sorted(file.name for file in checkpoints):
        first.setdefault(_version_of(name) // KEPT_EVERY, name)
    # the first versions need no checkpoint: they are loaded from the first commit, or from the horizon's checkpoint
    return [name for number, name in first.items() if number > 0]


def with_bases(names: Iterable[str]) -> set[str]:
    """Return the checkpoints `names`, and the full checkpoints that the incremental checkpoints need."""
    return {needed for name in names for needed in (name, paths.base_of_checkpoint(name)) if needed is not None}


def is_sound(storage: Storage, name: str) -> bool:
    """Return whether a reader would accept the checkpoint: complete, and of the commit of its version."""
    try:
        state = checkpoint.read(storage, name)
        commit = CommitFiles(storage).read(state.version)
    except (CorruptMetadataError, FileNotFoundError) as error:
        _log.warning("the checkpoint %s is ignored: %s", name, error)
        return False
    return commit is not None and commit.id == state.commit_id


def ensure_checkpoint(storage: Storage, head: Snapshot, folder: CommitsFolder, newest: str | None = None) -> bool:
    """Return whether FULL_CHECKPOINTS checkpoints from the horizon on, or the head's, are sound; may write one."""
    storage.sync(paths.COMMITS_DIR)
    names = {file.name for file in folder.checkpoints if paths.base_of_checkpoint(file.name) is None}
    names |= {newest} if newest else set()
    above = (name for name in sorted(names, reverse=True) if _version_of(name) >= head.log_floor)
    sound = itertools.islice((name for name in above if is_sound(storage, name)), FULL_CHECKPOINTS)  # reads no more
    versions = set(map(_version_of, sound))
    if len(versions) >= FULL_CHECKPOINTS or head.version in versions:
        return True
    # too few, but `folder` is outdated: it lacks one that `next_log_floor` wrote, and may have deleted ones
    try:
        return is_sound(storage, checkpoint.write(storage, head))
    except (CorruptMetadataError, StorageError, ValueError) as error:
        _log.warning("the log keeps old commits, as there is no checkpoint of version %d: %s", head.version, error)
        return False


def delete_below(storage: Storage, files: Sequence[FileInfo]) -> None:
    """Delete the files of versions below the log retention horizon, oldest first, so that a disk has no gap."""
    # an object store deletes names in any order, so its commits may have gaps (see `SnapshotLoader.is_newest`)
    names = sorted(file.name for file in files)
    for start in range(0, len(names), NAMES_AT_ONCE):
        storage.delete(names[start : start + NAMES_AT_ONCE])


def obsolete_checkpoints(
    checkpoints: Iterable[FileInfo], gc_floor: int, log_floor: int, highest: int
) -> list[FileInfo]:
    """Return the checkpoints that loads do not need; those from `kept_for_time_travel` stay."""
    # versions from `gc_floor` on are opened often, earlier versions only for time travel
    files = {file.name: file for file in checkpoints}
    versions = {name: _version_of(name) for name in files}
    full = {name for name in files if paths.base_of_checkpoint(name) is None}
    unusable = {name for name in files if any(versions.get(needed, -1) < log_floor for needed in with_bases([name]))}
    usable = sorted(files.keys() - unusable)
    retained = {name for name in usable if versions[name] > gc_floor or versions[name] == log_floor}
    # another run may be about to raise the log horizon to a full one
    retained.update(name for name in full.intersection(usable) if versions[name] <= highest)
    retained.update(kept_for_time_travel(files[name] for name in usable))
    # a load of `gc_floor` tries the newest checkpoints up to it, then full ones
    up_to_floor = [name for name in usable if versions[name] <= gc_floor]
    retained.update(up_to_floor[-CHECKPOINT_TRIES:])
    retained.update([name for name in up_to_floor if name in full][-CHECKPOINT_TRIES:])
    return [files[name] for name in sorted(files.keys() - with_bases(retained))]


class StemSet:
    """A set of FileStem, stored as sorted runs of 8-byte hashes. It may report a stem that was not added."""

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.uint64]] = []
        self._new: list[npt.NDArray[np.uint64]] = []
        self._count = 0
        #: The partitions with segments in this set that a broker wrote.
        self.kafka_partitions: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._runs or self._new)

    def __contains__(self, stem: FileStem) -> bool:
        return bool(self.has([stem])[0])

    def add(self, partitions: Longs, stems: Sequence[str], rows: Longs) -> None:
        """Add the segments (partitions[i], stems[rows[i]]), and the bundles that they may be in."""
        if not len(partitions):
            return
        numbers = _stem_numbers(stems)
        is_of_kafka = np.array([not paths.is_own_stem(stem) for stem in stems])[rows]
        self.kafka_partitions.update(np.unique(partitions[is_of_kafka]).tolist())
        self._new += [_hashes(partitions, numbers[rows]), _hashes(np.full(len(stems), _BUNDLE), numbers)]
        self._count += len(rows) + len(stems)
        if self._count >= _RUN:
            self._sort()

    def has(self, stems: Sequence[FileStem]) -> Flags:
        self._sort()
        partitions = np.array([_BUNDLE if number is None else number for number, _ in stems], np.int64)
        hashes = _hashes(partitions, _stem_numbers([stem for _, stem in stems]))
        flags = np.zeros(len(stems), bool)
        for run in self._runs:
            flags |= run[np.minimum(run.searchsorted(hashes), len(run) - 1)] == hashes
        return flags

    def _sort(self) -> None:
        if self._new:
            self._runs.append(np.unique(np.concatenate(self._new)))
            self._new, self._count = [], 0


def _stem_numbers(stems: Iterable[str]) -> npt.NDArray[np.uint64]:
    # the last 16 digits of a uuid, or of an offset
    return np.array([int(stem[-16:], 16) for stem in stems], np.uint64)


def _hashes(partitions: Longs, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    spread = (partitions + 2).astype(np.uint64) * _SPREAD  # at least 1, for a bundle
    hashes: npt.NDArray[np.uint64] = (numbers ^ spread) * _MIX
    return hashes


@dataclass(slots=True)
class Removals:
    """The segments that the commits of some versions removed, and the live ones of added snapshots."""

    stems: StemSet = field(default_factory=StemSet)
    #: The same stems without false positives, if they are needed.
    exact_stems: set[FileStem] | None = None
    #: The versions of restores, and the versions right before drops: a drop does not name the segments it removes.
    restored: list[int] = field(default_factory=list)
    before_drops: list[int] = field(default_factory=list)

    def add(self, partitions: Longs, stems: Sequence[str], stem_rows: Longs) -> None:
        """Add the segments (partitions[i], stems[stem_rows[i]])."""
        self.stems.add(partitions, stems, stem_rows)
        if self.exact_stems is not None:
            rows = zip(partitions.tolist(), (stems[number] for number in stem_rows.tolist()), strict=True)
            self.exact_stems.update(stem for number, name in rows for stem in ((number, name), (None, name)))

    def add_snapshot(self, snapshot: Snapshot) -> None:
        for number, state in enumerate(snapshot.partitions):
            stems = state.segments.columns()["stem"].to_pylist()
            stems += [state.active.stem] if state.active else []
            self.add(np.full(len(stems), number), stems, np.arange(len(stems)))


def removals(storage: Storage, start: int, end: int, *, exact: bool = False) -> Removals:
    """Read the removals of the commits of versions [start, end), which must exist."""
    removed = Removals(exact_stems=set() if exact else None)
    previous_id: str | None = None
    for file, data in _files(storage, start, end):
        try:
            body = actions.parse(data, file)
            version, commit_id = fields.LONG(body.get("version")), fields.UUID(body.get("id"))
            if paths.commit_file(version) != file:
                raise ValueError("its version is not the one in the file's name")
            if previous_id not in (None, body.get("prev")):
                raise ValueError("it does not follow the commit of the version before")
            _add_actions(removed, version, body.get("actions"))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise CorruptMetadataError(f"not a commit: {error}; restore the file from a copy", file=file) from error
        previous_id = str(commit_id)
    return removed


def exact_removals(storage: Storage, log: CommitLog, start: int, end: int) -> set[FileStem]:
    """Return exactly the segments that these commits removed, also by drops."""
    removed = removals(storage, start, end, exact=True)
    for version in removed.before_drops:
        removed.add_snapshot(log.load(version=version, include_dropped=True))
    return removed.exact_stems or set()


def _files(storage: Storage, start: int, end: int) -> Iterator[tuple[str, bytes]]:
    def read(name: str) -> bytes:
        try:
            return storage.read(name, 0, MAX_CONDITIONAL_BYTES + 1)  # no commit is larger
        except FileNotFoundError:
            raise CorruptMetadataError("a commit is missing: restore the file from a copy", file=name) from None

    for first in range(start, end, _AT_ONCE):
        names = [paths.commit_file(version) for version in range(first, min(first + _AT_ONCE, end))]
        yield from zip(names, map(read, names) if storage.is_local else in_parallel(read, names), strict=True)


def _add_actions(removed: Removals, version: int, items: Any) -> None:
    if not isinstance(items, list):
        raise ValueError("actions must be a list")
    removes = list[Remove]()
    for name, body in map(actions.name_and_body, items):
        if name == "remove":
            removes.append(fields.read(Remove, body))
        elif name == REMOVE_TABLE:
            rows = read_table(name, body).rows
            stems = rows["stem"].dictionary_encode()
            removed.add(numbers_of(rows["partition"]), stems.dictionary.to_pylist(), numbers_of(stems.indices))
        elif name == "restore":
            if version not in removed.restored[-1:]:
                removed.restored.append(version)
        elif name == "drop":
            removed.before_drops.append(version - 1)
        else:
            actions.check_known(name)
    partitions = np.array([action.partition for action in removes], np.int64)
    removed.add(partitions, [action.stem for action in removes], np.arange(len(removes)))
