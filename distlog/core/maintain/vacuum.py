"""Vacuum: deletes the files that no reader can need and no writer can still commit."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import table_of_rows
from distlog.core.commits.actions import (
    Action,
    Add,
    GcFloor,
    LogFloor,
    Remove,
    Restore,
    SetLogStartOffset,
    without_tables,
)
from distlog.core.commits.commit_log import CommitLog, CommitRace
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.display import Shown, counted
from distlog.core.errors import (
    CommitConflictError,
    CorruptMetadataError,
    OffsetOutOfRangeError,
    StorageError,
    StorageFullError,
)
from distlog.core.integers import MAX_LONG
from distlog.core.maintain.log_floor import (
    CommitsFolder,
    FoundStem,
    StemSet,
    delete_below,
    ensure_checkpoint,
    highest_log_floor,
    next_log_floor,
    obsolete_checkpoints,
    removals,
    removed_exactly,
)
from distlog.core.read.group_log import group_files, group_folders
from distlog.core.storage.locks_and_pages import FileLock, copy_of, flocked
from distlog.core.storage.storage import FileInfo, Storage, UnfinishedUpload


def vacuum(storage: Storage, log: CommitLog, *, dry_run: bool = False) -> VacuumReport:
    """Delete the files that no reader or writer can need, also of a dropped topic."""
    try:
        return _vacuum(storage, log, dry_run=dry_run)
    except (CorruptMetadataError, OffsetOutOfRangeError) as error:
        if isinstance(error, CorruptMetadataError) and log.loader.floor_above(error) is None:
            raise
        raise CommitConflictError(
            "another run of vacuum has deleted old commits concurrently: run it again"
        ) from None


#: (partition, stem): together they name a segment's files.
Stem = tuple[int, str]


@dataclass(slots=True)
class RemovedSegments:
    """The removals of the commits after the first `version`, up to the current one.

    `removed_at` is the version of the last commit that removed a segment. `added` are the segments as last added: a
    rebuild adds a segment again. `let_go` were removed at the start of their log; `cleaned_again` were written by
    compaction, and replaced.
    """

    version: int
    removed_at: dict[Stem, int] = field(default_factory=dict)
    added: dict[Stem, SegmentInfo] = field(default_factory=dict)
    let_go: dict[Stem, SegmentInfo] = field(default_factory=dict)
    cleaned_again: dict[Stem, SegmentInfo] = field(default_factory=dict)

    def read(self, log: CommitLog, head: int) -> None:
        """Read the commits up to version `head`."""
        if head > self.version:
            for commit in log.commits(self.version + 1, head + 1):
                restored = {action.partition for action in commit.actions if isinstance(action, Restore)}
                raised = {
                    action.partition for action in commit.actions if isinstance(action, SetLogStartOffset)
                } - restored
                for action in without_tables(commit.actions):
                    if isinstance(action, Add):
                        stem = (action.segment.partition, action.segment.stem)
                        self.added[stem] = action.segment
                        # it was restored, or a rebuild replaced it by itself
                        self.let_go.pop(stem, None)
                        self.cleaned_again.pop(stem, None)
                    elif isinstance(action, Remove):
                        stem = (action.partition, action.stem)
                        self.removed_at[stem] = commit.version
                        if action.partition in raised and stem in self.added:
                            self.let_go[stem] = self.added[stem]
                        elif action.partition not in restored and stem in self.added and self.added[stem].compacted:
                            self.cleaned_again[stem] = self.added[stem]
            self.version = head


# A restore checks that files exist, and then commits. On a full disk vacuum deletes files before it can commit its
# horizon, so the horizon cannot refuse a restore in between.
@contextmanager
def removed_files_held(storage: Storage) -> Iterator[None]:
    """Hold the topic's lock on removed files, which is only needed on a disk, since other storage is never full.

    Raises LockHeldError, or StorageFullError without space for the lock's file, which is created with the topic or
    here: without the lock a restored segment might lose its files.
    """
    if not storage.is_local:
        yield
        return
    with flocked(storage.local_path(paths.REMOVED_FILES_LOCK)):
        yield


@dataclass(frozen=True, slots=True)
class Referenced:
    """The segments and bundles of `topic` that a version from a vacuum horizon to `head` references.

    In the `restored` versions after the horizon a log may begin earlier than in the previous version. Commits from
    `log_floor` on exist, and those from `oldest` on too, unless another vacuum deletes them concurrently.
    """

    topic: str
    head: int
    restored: tuple[int, ...]
    stems: StemSet
    log_floor: int = 0
    oldest: int = 0

    @classmethod
    def since(
        cls, storage: Storage, log: CommitLog, head: Snapshot, floor: int, oldest: int = MAX_LONG
    ) -> Referenced:
        """Collect the files of the versions from `floor` to `head`: live at the head, or removed after `floor`.

        Raises OffsetOutOfRangeError if commits after `floor` were deleted: a remaining one could be of a paused
        process.
        """
        if floor + 1 < head.log_floor:
            text = "commits that this run needs were deleted concurrently"
            raise OffsetOutOfRangeError(text, version=floor + 1, log_floor=head.log_floor)
        removed = removals(storage, floor + 1, head.version + 1)
        removed.add_snapshot(head)
        for version in removed.before_drops:
            removed.add_snapshot(log.load(version=version, include_dropped=True))
        log_floor, restored = head.log_floor, tuple(removed.restored)
        return cls(head.name, head.version, restored, removed.stems, log_floor, min(oldest, log_floor))


class UnreferencedFiles:
    """Finds the segment files and bundles that no version will reference."""

    def __init__(
        self,
        storage: Storage,
        log: CommitLog,
        referenced: Referenced,
        *,
        floor: int,
        removed: Set[FoundStem] = frozenset(),
    ) -> None:
        self._storage, self._log, self._referenced, self._floor = storage, log, referenced, floor
        self._removed = removed
        self._knows_all_removed = False

    def among(self, files: Sequence[FileInfo]) -> list[FileInfo]:
        """The unreferenced ones of `files`."""
        stemmed = [(file, stem) for file in files if (stem := stem_of(file.name, self._referenced.topic))]
        if not stemmed:
            return []
        is_referenced = self._referenced.stems.has([stem for _, stem in stemmed])
        unreferenced = [name for name, held in zip(stemmed, is_referenced.tolist(), strict=True) if not held]
        return [file for file, stem in unreferenced if is_below(stem, self._floor) or self._is_removed(stem)]

    def _is_removed(self, stem: FoundStem) -> bool:
        """True if a commit has removed the segment; the names of Kafka's files have no version."""
        if paths.stem_read_version(stem[1]) is None and not self._knows_all_removed:
            live = self._referenced
            try:
                removed = removed_exactly(self._storage, self._log, max(live.oldest, 1), live.head + 1)
            except (CorruptMetadataError, OffsetOutOfRangeError):
                # of a topic that was dropped below the horizon, or deleted concurrently by another run
                if live.oldest >= live.log_floor:
                    raise
                removed = removed_exactly(self._storage, self._log, live.log_floor + 1, live.head + 1)
            self._removed = self._removed | removed
            self._knows_all_removed = True
        return stem in self._removed


def stem_of(name: str, topic: str) -> FoundStem | None:
    """The stem of a segment's file or a bundle, by its relative name; None for any other file."""
    bundle = paths.parse_bundle_file(name)
    return (None, bundle) if bundle else paths.parse_segment_file(name, topic)


def is_below(stem: FoundStem, version: int) -> bool:
    """True if the file's writer read a version below `version`; False for Kafka's files, which have none."""
    read_version = paths.stem_read_version(stem[1])
    return read_version is not None and read_version < version


_log = logging.getLogger(__name__)


def dead_uploads(storage: Storage, referenced: Referenced, floor: int, before_ms: int) -> list[UnfinishedUpload]:
    """The unfinished uploads to a topic's own file names that no commit can need.

    An upload to an unreferenced segment or bundle, or to a pending append, is dead if its writer read a version below
    `floor`, the vacuum horizon: its commit would be refused. An upload to a referenced segment or bundle, or to a
    checkpoint, is dead if it was started before `before_ms`, since these take less time.
    """
    try:
        uploads = storage.uploads()
    except StorageError as error:
        _log.warning("unfinished uploads stay, as they cannot be listed (s3:ListBucketMultipartUploads): %s", error)
        return []
    return [upload for upload in uploads if _is_dead(upload, referenced, floor, before_ms)]


def _is_dead(upload: UnfinishedUpload, referenced: Referenced, floor: int, before_ms: int) -> bool:
    stem = stem_of(upload.name, referenced.topic)
    if stem is not None and stem not in referenced.stems:
        return is_below(stem, floor)
    pending = paths.parse_pending_file(upload.name)
    if pending is not None:
        return is_below((None, pending), floor)
    is_known = stem is not None or paths.parse_checkpoint_file(upload.name) is not None
    return is_known and upload.started_ms < before_ms


#: Vacuum keeps younger leftovers, however short `file.delete.delay.ms` is; a failing put is aborted after ten
#: minutes.
LONGEST_PUT_MS = 3_600_000
#: Segment files that are checked together.
FILES_AT_ONCE = 10_000


def dead_appends(files: Iterable[FileInfo], floor: int) -> list[FileInfo]:
    """The pending appends that were started below `floor`: no commit can take them."""
    stemmed = ((file, paths.parse_pending_file(file.name)) for file in files)
    return [file for file, stem in stemmed if stem is not None and is_below((None, stem), floor)]


def obsolete_producers(
    files: Iterable[FileInfo], head: Snapshot, referenced: Referenced, floor: int, load: Callable[[int], Snapshot]
) -> list[FileInfo]:
    """The files of producers and leader epochs, of the topic's `files`, that nothing needs any longer.

    Only appends at the log's end read producer snapshots, so these are obsolete below the log start of every version
    from `floor` on, to which a restore may return. The log start only falls by restores. Leader epochs are needed
    while a version has a broker's segment.
    """
    if head.dropped and referenced.stems:
        return []
    obsolete = [file for file in files if _is_obsolete(file.name, head, referenced)]
    of_producers = {file.name for file in obsolete if paths.parse_producer_snapshot(file.name, head.name)}
    if head.dropped or not of_producers:
        return obsolete
    earliest = [load(version) for version in (floor, *referenced.restored)]
    ids = (head.topic_id, *head.former_ids)
    versions = [version for version in earliest if version.topic_id in ids]
    needed = {name for name in of_producers if not all(_is_below(name, version) for version in versions)}
    return [file for file in obsolete if file.name not in needed]


def _is_obsolete(name: str, head: Snapshot, referenced: Referenced) -> bool:
    if paths.parse_producer_snapshot(name, head.name):
        return head.dropped or _is_below(name, head)
    number = paths.parse_leader_epochs(name, head.name)
    return number is not None and number not in referenced.stems.kafka_partitions


def _is_below(name: str, snapshot: Snapshot) -> bool:
    """True if the producer snapshot is of an offset before the log's begin."""
    partition_and_offset = paths.parse_producer_snapshot(name, snapshot.name)
    if partition_and_offset is None or partition_and_offset[0] >= len(snapshot.partitions):
        return False
    state = snapshot.partitions[partition_and_offset[0]]
    return partition_and_offset[1] < (state.segments[0].base_offset if len(state.segments) else state.log_end_offset)


def delete_locks(storage: Storage, files: Sequence[FileInfo]) -> None:
    """Delete free locks of a topic on a local disk.

    Each is held while it is deleted: the topic may have been created again, and two writers must not hold an old and
    a new file.
    """
    for name in dict.fromkeys(file.name.removesuffix(paths.PAGE_COPY) for file in files):
        lock = FileLock(storage.local_path(name))
        with suppress(StorageError), lock.held(0):
            # the lock last: the process that creates the next lock creates the next copy, too
            storage.delete([copy_of(name), name])
        lock.close()


@dataclass(frozen=True, slots=True, repr=False)
class VacuumReport(Shown):
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
    # before the head: a group of a topic that is created later must not look like one of a dropped topic
    groups = group_folders(storage)
    head = log.load(include_dropped=True)
    folder.first = head.log_floor
    now_ms = storage.now_ms(paths.COMMITS_DIR)
    delay_ms = head.config.file_delete_delay_ms
    floor = head_at(folder, now_ms - delay_ms, now_ms)
    if floor is None:
        return VacuumReport((), head.gc_floor, dry_run)
    highest = highest_log_floor(head, folder, max(floor, head.gc_floor), now_ms)
    log_floor = next_log_floor(storage, log, head, folder, highest, dry_run=dry_run)
    folders, garbage = _segment_folders(storage, head.name), list[FileInfo]()
    if not dry_run:
        # even if the horizon is committed already: that writer may not have synced it
        head = _raise_floor(storage, log, head, floor, folders, garbage, log_floor)
        log_floor = head.log_floor
    referenced = Referenced.since(storage, log, head, floor, folder.oldest())
    unreferenced = UnreferencedFiles(storage, log, referenced, floor=floor)
    files = list(folder.other_files)
    for chunk in _chunks_of(storage, folders):
        garbage += unreferenced.among(chunk)
        files += [file for file in chunk if not stem_of(file.name, head.name)]
    left_before_ms = now_ms - max(delay_ms, LONGEST_PUT_MS)
    of_topic, of_others = group_files(storage, groups, None if head.dropped else head.topic_id)
    garbage += [
        *of_others,
        *obsolete_producers(files, head, referenced, floor, partial(log.load, include_dropped=True)),
        # a slow writer without its temporary file fails, and has put nothing
        *(
            file
            for file in (*files, *of_topic)
            if paths.is_left_over(file.name) and file.modified_ms < left_before_ms
        ),
        *dead_appends(files, floor),
    ]
    obsolete = obsolete_checkpoints(folder.checkpoints, floor, log_floor, highest)
    old_commits = list(folder.commits(log_floor))
    # a dropped topic without kept versions needs no locks
    needs_no_locks = storage.is_local and head.dropped and not referenced.stems
    locks = [file for file in files if needs_no_locks and paths.is_lock_file(file.name)]
    uploads = dead_uploads(storage, referenced, floor, left_before_ms)
    if not dry_run:
        storage.delete([file.name for file in garbage])
        delete_locks(storage, locks)
        storage.abort_uploads(uploads)
        # last: these files are needed to find other garbage
        if not old_commits or ensure_checkpoint(storage, head, folder, log.loader.full_checkpoint):
            delete_below(storage, obsolete)
            delete_below(storage, old_commits)
        else:
            obsolete, old_commits = [], []
    files = [*garbage, *locks, *obsolete, *old_commits]
    return VacuumReport(tuple(files), max(floor, head.gc_floor), dry_run, tuple(uploads), log_floor)


def head_at(commits: CommitsFolder, time_ms: int, now_ms: int) -> int | None:
    return commits.head_at(time_ms, now_ms)


def _segment_folders(storage: Storage, topic: str) -> list[str]:
    """The folders of partitions, bundles and pending appends; StorageError for a link among or in them."""

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
    storage: Storage,
    log: CommitLog,
    head: Snapshot,
    floor: int,
    folders: Sequence[str],
    freed: list[FileInfo],
    log_floor: int,
) -> Snapshot:
    """Commit the vacuum and log retention horizons; returns the state right after."""
    kept_ms = head.commits_kept_ms
    try:
        return _commit_floors(log, head, floor, log_floor, kept_ms)
    except StorageFullError:
        try:
            with removed_files_held(storage):
                head = log.load(include_dropped=True)
                freed += _free(storage, log, head, floor, folders)
                return _commit_floors(log, head, floor, log_floor, kept_ms)
        except StorageFullError as error:
            text = (
                f"no space for vacuum's commit of under 4 KiB, though it deleted {counted(len(freed), 'file')} first"
            )
            raise StorageFullError(f"{text}: free a little elsewhere, then vacuum again", **error.details) from error


def _commit_floors(log: CommitLog, snapshot: Snapshot, floor: int, log_floor: int, kept_ms: int | None) -> Snapshot:
    """The state after the commit of the horizons, the log's only if `kept_ms` is still the time to keep commits."""
    with CommitRace(log, snapshot, "gc") as race:
        for head in race:
            actions: list[Action] = [GcFloor(floor)] if floor > head.gc_floor else []
            if head.commits_kept_ms == kept_ms and head.log_floor < log_floor:
                actions.append(LogFloor(log_floor))
            if not actions:
                break
            race.put(actions)
    return race.after


def _free(storage: Storage, log: CommitLog, head: Snapshot, floor: int, folders: Sequence[str]) -> list[FileInfo]:
    """Delete and return the files that need no new horizon, the logs first."""
    referenced = Referenced.since(storage, log, head, floor)
    removed = removals(storage, head.gc_floor + 1, floor + 1, exactly=True).exactly or set()
    unreferenced = UnreferencedFiles(storage, log, referenced, floor=head.gc_floor, removed=removed)
    freed = [file for chunk in _chunks_of(storage, folders) for file in unreferenced.among(chunk)]
    for is_log in (True, False):
        storage.delete([file.name for file in freed if file.name.endswith((".log", ".bundle")) == is_log])
    return freed
