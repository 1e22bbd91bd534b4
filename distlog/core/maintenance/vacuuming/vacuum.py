"""Vacuum: deletes the files that no reader can need and no writer can still commit.

First a commit raises the gc floor, which is a version. From then on a commit is refused if its transaction read a
version below the floor (TransactionTooOldError). So an unreferenced file of such a transaction stays unreferenced,
whatever the clocks say. The versions from the floor to that commit decide which files are kept. A later commit can
only reference files that these versions reference, or files of transactions that read at or above the floor.

The clock only chooses the floor: the version that was the head `file.delete.delay.ms` ago. Both the times of commits
and the present time come from the store's own clock, never from a process's. Vacuum also deletes checkpoints that
loads of the kept versions do not need, and what brokers and retention left of producers where the log begins later.
And it deletes what dead writers left: unfinished uploads, torn puts, probes, and the locks and groups of a dropped
topic. It never deletes a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from distlog.core import paths
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.format.actions import Action, GcFloor
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.display.shown import Shown
from distlog.core.display.units import counted
from distlog.core.errors import StorageFullError
from distlog.core.groups.admin import group_files, group_folders
from distlog.core.maintenance.removed_files import removed_files_held
from distlog.core.maintenance.vacuuming.dead_uploads import dead_uploads
from distlog.core.maintenance.vacuuming.obsolete_files import (
    LONGEST_PUT_MS,
    delete_locks,
    left_over_files,
    lock_files,
    obsolete_checkpoints,
    obsolete_producers,
)
from distlog.core.maintenance.vacuuming.unreferenced_files import Referenced, removed_stems, unreferenced_files
from distlog.core.maintenance.vacuuming.unreferenced_manifests import unreferenced_manifests
from distlog.core.storage.storage import FileInfo, Storage, UnfinishedUpload


@dataclass(frozen=True, slots=True, repr=False)
class VacuumReport(Shown):
    """What vacuum deleted, or would delete with `dry_run`, and the gc floor that makes it safe.

    `uploads` are the uploads of dead writers that it aborted, or would abort.
    """

    files: tuple[FileInfo, ...]
    gc_floor: int
    dry_run: bool
    uploads: tuple[UnfinishedUpload, ...] = ()

    @property
    def bytes(self) -> int:
        """The total size of the files. Uploads do not count: their size is not known."""
        return sum(file.size for file in self.files)

    def __str__(self) -> str:
        verb, done = ("would delete", "would abort") if self.dry_run else ("deleted", "aborted")
        text = f"{verb} {counted(len(self.files), 'file')}, {counted(self.bytes, 'byte')}"
        return f"{text}; {done} {counted(len(self.uploads), 'unfinished upload')}" if self.uploads else text

    def to_table(self) -> pa.Table:
        """A row per file and per upload: the name in the topic's folder, and the bytes, null for an upload."""
        rows = [{"name": file.name, "bytes": file.size} for file in self.files]
        rows += [{"name": upload.name} for upload in self.uploads]
        return pa.Table.from_pylist(rows, pa.schema([("name", pa.string()), ("bytes", pa.int64())]))

    def to_dict(self) -> dict[str, Any]:
        """The totals, without the list of files."""
        facts: dict[str, Any] = {"gc_floor": self.gc_floor, "dry_run": self.dry_run}
        return {**facts, "files": len(self.files), "bytes": self.bytes, "uploads": len(self.uploads)}


def vacuum(storage: Storage, log: CommitLog, *, dry_run: bool = False) -> VacuumReport:
    """Delete the files that no reader or writer can need; works for a dropped topic too.

    Raises CommitStateUnknownError when the floor's commit got no answer, CommitConflictError when the topic was
    dropped meanwhile, and StorageFullError when there is no space for the commit of a few hundred bytes. Even then
    nothing was deleted that a later vacuum would keep.
    """
    commits = storage.list(paths.COMMITS_DIR)
    # before the head: a group of a topic that is created later must not look like one of a dropped topic
    groups = group_folders(storage)
    head = log.load(include_dropped=True)
    now_ms = storage.now_ms(paths.COMMITS_DIR)
    delay_ms = head.config.file_delete_delay_ms
    floor = head_at(commits, now_ms - delay_ms, now_ms)
    if floor is None:
        return VacuumReport((), head.gc_floor, dry_run)
    found = [*commits, *_segment_files(storage, head.name)]
    if not dry_run:
        # even if the floor is there already: the writer that put it may not have synced it
        head = _raise_floor(storage, log, head, floor, found, now_ms)
    referenced = Referenced.since(log, head, floor, now_ms)
    left_before_ms = now_ms - max(delay_ms, LONGEST_PUT_MS)
    of_topic, of_others = group_files(storage, groups, None if head.dropped else head.topic_id)
    garbage = [
        *of_others,
        *unreferenced_files(found, log, referenced, floor=floor),
        *obsolete_checkpoints(found, floor, referenced.pinned),
        *obsolete_producers(found, head, referenced, floor, partial(log.load, include_dropped=True)),
        *unreferenced_manifests(storage, found, floor, head.version),
        *left_over_files([*found, *of_topic], left_before_ms),
    ]
    locks = lock_files(found) if storage.is_local and _is_over(head, referenced) else []
    uploads = dead_uploads(storage, referenced, floor, left_before_ms)
    if not dry_run:
        storage.delete([file.name for file in garbage])
        delete_locks(storage, locks)
        storage.abort_uploads(uploads)
    return VacuumReport((*garbage, *locks), max(floor, head.gc_floor), dry_run, tuple(uploads))


def _is_over(head: Snapshot, referenced: Referenced) -> bool:
    """Whether the topic was dropped, in a version that is kept no more."""
    return head.dropped and not referenced.stems


def head_at(commits: Iterable[FileInfo], time_ms: int, now_ms: int) -> int | None:
    """The version that was the head at `time_ms`, or an earlier one; None when there was no version.

    It is found from the times at which the storage says the commits' files were written. If such a time is after
    `now_ms`, a clock was set since and the true time is unknown: the search passes over that commit, and does not
    return it. If times go back from one commit to the next, the later time holds for the commits after it.
    """
    written = sorted(
        (version, file.modified_ms)
        for file in commits
        if (version := paths.parse_commit_file(file.name.rpartition("/")[2])) is not None
    )
    head = None
    for version, written_ms in written:
        if time_ms < written_ms <= now_ms:
            break
        if written_ms <= time_ms:
            head = version
    return head


def _segment_files(storage: Storage, topic: str) -> list[FileInfo]:
    folders = (name for name in storage.list_folders() if name.startswith(f"{topic}-") or name == paths.BUNDLES_DIR)
    return [file for folder in folders for file in storage.list(folder)]


def _raise_floor(
    storage: Storage, log: CommitLog, head: Snapshot, floor: int, found: Sequence[FileInfo], now_ms: int
) -> Snapshot:
    """Commit the gc floor; returns the state right after it, from which everything else is decided.

    On a full disk, unreferenced files that need no new floor are deleted first. These are files of transactions that
    read below the present floor, and files that commits up to `floor` removed, which only a restore can bring back:
    none runs meanwhile.
    """

    def plan(current: Snapshot) -> list[Action] | None:
        return [GcFloor(floor)] if floor > current.gc_floor else None

    try:
        return log.commit(head, "gc", plan)[1]
    except StorageFullError:
        with removed_files_held(storage):
            head = log.load(include_dropped=True)
            freed = counted(_free(storage, log, head, floor, found, now_ms), "file")
            try:
                return log.commit(head, "gc", plan)[1]
            except StorageFullError as error:
                text = f"no space for vacuum's commit of under 4 KiB, though it deleted {freed} first"
                raise StorageFullError(
                    f"{text}: free a little elsewhere, then vacuum again", **error.details
                ) from error


def _free(
    storage: Storage, log: CommitLog, head: Snapshot, floor: int, found: Sequence[FileInfo], now_ms: int
) -> int:
    """Delete what needs no new floor, and return how many files; the logs go first.

    So after a crash no restore takes a segment to be whole that lost an index.
    """
    referenced = Referenced.since(log, head, floor, now_ms)
    removed = removed_stems(log.commits(head.gc_floor + 1, floor + 1))
    freed = unreferenced_files(found, log, referenced, floor=head.gc_floor, removed=removed)
    for is_log in (True, False):
        storage.delete([file.name for file in freed if file.name.endswith((".log", ".bundle")) == is_log])
    return len(freed)
