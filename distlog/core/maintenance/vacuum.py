"""Vacuum: delete the files that no reader can need and no writer can still commit.

A commit raises the gc floor first: from then on a commit whose files were begun below it is refused
(TransactionTooOldError), so what is unnamed and begun below the floor stays unnamed for ever, whatever the clocks
say. The clock only chooses the floor: the version at the head when `file.delete.delay.ms` ago. Files that a snapshot
since that version names are kept, and those of pinned versions. Commits are never deleted. With the segments go
checkpoints that loading such a version does not need, and what is left of puts that nobody finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distlog.core import paths
from distlog.core.commits.actions import Commit, Drop, GcFloor, Remove
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import OffsetOutOfRangeError
from distlog.core.maintenance.obsolete_files import obsolete_checkpoints, torn_puts
from distlog.core.maintenance.unnamed_manifests import unnamed_manifests
from distlog.core.storage.storage import FileInfo, Storage

#: (partition, stem): what names a segment's files
Stem = tuple[int, str]


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """The files that were, or with `dry_run` would be, deleted, and the gc floor that makes it safe."""

    files: tuple[FileInfo, ...]
    gc_floor: int
    dry_run: bool

    @property
    def bytes(self) -> int:
        """The size of the files together."""
        return sum(file.size for file in self.files)

    def __str__(self) -> str:
        return f"{'would delete' if self.dry_run else 'deleted'} {len(self.files):,} files, {self.bytes:,} bytes"

    def to_table(self) -> pa.Table:
        """A row per file: its name in the topic's folder, and its size."""
        rows = [{"name": file.name, "bytes": file.size} for file in self.files]
        return pa.Table.from_pylist(rows, pa.schema([("name", pa.string()), ("bytes", pa.int64())]))

    def to_dict(self) -> dict[str, Any]:
        """The sums, without the files."""
        facts: dict[str, Any] = {"gc_floor": self.gc_floor, "dry_run": self.dry_run}
        return {**facts, "files": len(self.files), "bytes": self.bytes}


def vacuum(storage: Storage, log: CommitLog, clock: Callable[[], int], *, dry_run: bool = False) -> VacuumReport:
    """Delete what nobody can need any more; works on a dropped topic too.

    Raises CommitStateUnknownError when the floor's commit got no answer; nothing was deleted then.
    """
    head = log.load(include_dropped=True)
    floor = _version_at(log, clock() - head.config.file_delete_delay_ms)
    if floor is None:
        return VacuumReport((), head.gc_floor, dry_run)
    if not dry_run:
        # also where the floor is there already: whoever put it may not have synced it
        _, head = log.commit(head, "gc", lambda current: [GcFloor(floor)] if floor > current.gc_floor else None)
    pinned = [pin.version for pin in head.pins.values() if pin.until_ms > clock()]
    # listed after the floor was committed: what is begun below it from here on is refused
    found = _files(storage, head.name)
    garbage = [
        *_garbage(found, log, head, floor, pinned),
        *obsolete_checkpoints(found, floor, pinned),
        *unnamed_manifests(storage, found, floor, head.version),
        *torn_puts(storage, found, clock(), head.config.file_delete_delay_ms),
    ]
    if not dry_run:
        storage.delete([file.name for file in garbage])
    return VacuumReport(tuple(garbage), max(floor, head.gc_floor), dry_run)


def _version_at(log: CommitLog, timestamp_ms: int) -> int | None:
    try:
        return log.load(timestamp_ms=timestamp_ms, include_dropped=True).version
    except OffsetOutOfRangeError:
        return None


def _files(storage: Storage, topic: str) -> list[FileInfo]:
    """All files in the folders of the topic's commits and partitions."""
    folders = (name for name in storage.list_folders() if name.startswith(f"{topic}-"))
    return [file for folder in (paths.COMMITS_DIR, *folders) for file in storage.list(folder)]


def _garbage(
    found: Iterable[FileInfo], log: CommitLog, head: Snapshot, floor: int, pinned: Sequence[int]
) -> list[FileInfo]:
    recent = log.history(head.version - floor)
    kept = _stems(head) | _removed(recent)
    for version in (*pinned, *_before_drops(recent)):
        kept |= _stems(log.load(version=version))
    unnamed = [(file, stem) for file, stem in _segment_files(found, head.name) if stem not in kept]
    adopted = {stem for _, stem in unnamed if paths.stem_begin(stem[1]) is None}
    # a file of Kafka's does not say when it came here: it goes only after a commit has let it go
    gone = _removed(log.history()) if adopted else set()
    return [file for file, stem in unnamed if _is_garbage(stem, floor, gone)]


def _is_garbage(stem: Stem, floor: int, gone: set[Stem]) -> bool:
    begin = paths.stem_begin(stem[1])
    return stem in gone if begin is None else begin < floor


def _segment_files(found: Iterable[FileInfo], topic: str) -> Iterator[tuple[FileInfo, Stem]]:
    for file in found:
        stem = paths.parse_segment_file(file.name, topic)
        if stem is not None:
            yield file, stem


def _stems(snapshot: Snapshot) -> set[Stem]:
    return {
        (number, stem)
        for number, state in enumerate(snapshot.partitions)
        for stem in state.segments.columns()["stem"].to_pylist()
    }


def _before_drops(commits: Iterable[Commit]) -> list[int]:
    """The last versions of topics that were dropped in `commits`: a drop lets go everything without naming it."""
    return [commit.version - 1 for commit in commits if any(isinstance(action, Drop) for action in commit.actions)]


def _removed(commits: Iterable[Commit]) -> set[Stem]:
    return {
        (action.partition, action.stem)
        for commit in commits
        for action in commit.actions
        if isinstance(action, Remove)
    }
