"""The log retention horizon (`log_floor`): the version below which vacuum deletes commits and checkpoints.

A commit raises the horizon; then a checkpoint at or above it is read back; then the names below it are deleted, after
a crash by the next run. The horizon is at most the head of `commit.retention.ms` ago by the
store's clock. So a commit exists for this time after the next one was written: `Snapshot.is_fresh_at` relies on it.
"""

from __future__ import annotations

import itertools
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.arrays import numbers_of
from distlog.core.commits import actions, checkpoint, fields
from distlog.core.commits.actions import REMOVE_TABLE, Remove, read_table
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import CHECKPOINTS_TRIED, CommitFiles
from distlog.core.errors import CorruptMetadataError, OffsetOutOfRangeError, StorageError
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, FileInfo, Storage

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
    """The highest version for the log retention horizon: the head `commit.retention.ms` ago, or -1."""
    kept_ms = head.commits_kept_ms
    head_then = None if kept_ms is None else folder.head_at(now_ms - kept_ms, now_ms)
    return min(-1 if head_then is None else head_then, gc_floor)


def next_log_floor(
    storage: Storage, log: CommitLog, head: Snapshot, folder: CommitsFolder, highest: int, *, dry_run: bool
) -> int:
    """The next log retention horizon, at most `highest`: the newest sound full checkpoint kept for time travel.

    If that would keep many more commits than necessary, writes a checkpoint.
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
    """The names of the first checkpoint of each KEPT_EVERY versions, in order, the same in each vacuum."""
    first: dict[int, str] = {}
    for name in sorted(file.name for file in checkpoints):
        first.setdefault((paths.parse_checkpoint_file(name) or 0) // KEPT_EVERY, name)
    return [name for number, name in first.items() if number]


def with_bases(names: Iterable[str]) -> set[str]:
    """The checkpoints `names`, and the full ones that incremental ones need."""
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
    """True if FULL_CHECKPOINTS from the horizon of `head` on, or one at `head`, were read back; writes one if needed.

    `newest` is one that this process wrote since the listing.
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
    # the listing lacks one of `next_log_floor`, and has ones that other processes deleted
    try:
        return is_sound(storage, checkpoint.write(storage, head))
    except (CorruptMetadataError, StorageError, ValueError) as error:
        _log.warning("the log keeps old commits, as there is no checkpoint of version %d: %s", head.version, error)
        return False


def delete_below(storage: Storage, files: Sequence[FileInfo]) -> None:
    """Delete the files of versions below the log retention horizon, oldest first.

    So the remaining commits of a disk have no gap. A store deletes the names of a request in any order; there a
    process lists the commits to find later ones (`SnapshotLoader.is_newest`).
    """
    names = sorted(file.name for file in files)
    for start in range(0, len(names), NAMES_AT_ONCE):
        storage.delete(names[start : start + NAMES_AT_ONCE])


def obsolete_checkpoints(
    checkpoints: Iterable[FileInfo], gc_floor: int, log_floor: int, highest: int
) -> list[FileInfo]:
    """The checkpoints below `gc_floor` that loads do not need, or that have another one close by.

    A load tries the newest checkpoints up to its version, then full ones. Versions from `gc_floor` on are opened
    often, earlier ones down to `log_floor` for time travel. A full checkpoint stays while an incremental one needs
    it. Full ones up to `highest` stay too: another run may be about to raise the log retention horizon to one.
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


#: (partition, stem): together they name a segment's files; (None, stem) names the bundle that it may be in.
FoundStem = tuple[int | None, str]
Numbers = npt.NDArray[np.int64]

#: Commits that are read at the same time.
_AT_ONCE = 64
#: Hashes in a sorted run.
_RUN = 1 << 20
#: Two odd numbers that spread bits (the golden ratio, and a factor of SplitMix64).
_SPREAD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_BUNDLE = -1


class StemSet:
    """A set of FoundStem of eight bytes each, with false positives."""

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.uint64]] = []
        self._new: list[npt.NDArray[np.uint64]] = []
        self._count = 0
        #: The partitions that have segments of a broker in it.
        self.kafka_partitions: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._runs or self._new)

    def __contains__(self, stem: FoundStem) -> bool:
        return bool(self.has([stem])[0])

    def add(self, partitions: Numbers, stems: Sequence[str], rows: Numbers) -> None:
        """Add the segments (partition, `stems[row]`), and the bundles that they may be in."""
        if not len(partitions):
            return
        numbers = _numbers_of(stems)
        of_kafka = np.array([paths.stem_read_version(stem) is None for stem in stems])[rows]
        self.kafka_partitions.update(np.unique(partitions[of_kafka]).tolist())
        self._add(_hashes(partitions, numbers[rows]))
        self._add(_hashes(np.full(len(stems), _BUNDLE), numbers))

    def has(self, stems: Sequence[FoundStem]) -> npt.NDArray[np.bool_]:
        """Flag the `stems` in the set."""
        self._sort()
        partitions = np.array([_BUNDLE if number is None else number for number, _ in stems], np.int64)
        hashes = _hashes(partitions, _numbers_of([stem for _, stem in stems]))
        flags = np.zeros(len(stems), bool)
        for run in self._runs:
            flags |= run[np.minimum(run.searchsorted(hashes), len(run) - 1)] == hashes
        return flags

    def _add(self, hashes: npt.NDArray[np.uint64]) -> None:
        self._new.append(hashes)
        self._count += len(hashes)
        if self._count >= _RUN:
            self._sort()

    def _sort(self) -> None:
        if self._new:
            self._runs.append(np.unique(np.concatenate(self._new)))
            self._new, self._count = [], 0


def _numbers_of(stems: Iterable[str]) -> npt.NDArray[np.uint64]:
    # the end of a uuid, or of an offset
    return np.array([int(stem[-16:], 16) for stem in stems], np.uint64)


def _hashes(partitions: Numbers, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    spread = (partitions + 2).astype(np.uint64) * _SPREAD
    hashes: npt.NDArray[np.uint64] = (numbers ^ spread) * _MIX
    return hashes


@dataclass(slots=True)
class Removals:
    """The removals of the commits of some versions: `stems`, and, if needed, the same ones `exactly`.

    `restored` are the versions of restores, `before_drops` those right before a drop, which names no segment.
    """

    stems: StemSet = field(default_factory=StemSet)
    exactly: set[FoundStem] | None = None
    restored: list[int] = field(default_factory=list)
    before_drops: list[int] = field(default_factory=list)

    def remove(self, partitions: Numbers, stems: Sequence[str], stem_rows: Numbers) -> None:
        """Note the segments (partition, `stems[row]`)."""
        self.stems.add(partitions, stems, stem_rows)
        if self.exactly is not None:
            rows = zip(partitions.tolist(), (stems[number] for number in stem_rows.tolist()), strict=True)
            self.exactly.update(stem for number, name in rows for stem in ((number, name), (None, name)))

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Note the segments of a snapshot, with the active ones."""
        for number, state in enumerate(snapshot.partitions):
            stems = state.segments.columns()["stem"].to_pylist()
            stems += [state.active.stem] if state.active else []
            self.remove(np.full(len(stems), number), stems, np.arange(len(stems)))


def removals(storage: Storage, start: int, end: int, *, exactly: bool = False) -> Removals:
    """The removals of the commits of versions [start, end), which must exist."""
    removed = Removals(exactly=set() if exactly else None)
    previous_id: str | None = None
    for file, data in _files(storage, start, end):
        previous_id = _read(storage, removed, file, data, previous_id)
    return removed


def _read(storage: Storage, removals_so_far: Removals, file: str, data: bytes, previous_id: str | None) -> str:
    """Note the removals of the commit `file`, which must follow `previous_id`; returns its id."""
    try:
        body = actions.parse(data, file)
        version, commit_id = fields.LONG(body.get("version")), fields.UUID(body.get("id"))
        if paths.commit_file(version) != file:
            raise ValueError("it is not of the version in its name")
        if previous_id not in (None, body.get("prev")):
            raise ValueError("it does not follow the commit before it")
        _add_actions(storage, removals_so_far, version, body.get("actions"))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptMetadataError(f"not a commit: {error}; restore the file from a copy", file=file) from error
    return str(commit_id)


def removed_exactly(storage: Storage, log: CommitLog, start: int, end: int) -> set[FoundStem]:
    """The segments that these commits removed, also by a drop, exactly."""
    removed = removals(storage, start, end, exactly=True)
    for version in removed.before_drops:
        removed.add_snapshot(log.load(version=version, include_dropped=True))
    return removed.exactly or set()


def _files(storage: Storage, start: int, end: int) -> Iterator[tuple[str, bytes]]:
    def read(name: str) -> bytes:
        try:
            return storage.read(name, 0, MAX_CONDITIONAL_BYTES + 1)
        except FileNotFoundError:
            raise CorruptMetadataError(
                "a commit below the head is missing; restore it from a copy", file=name
            ) from None

    for first in range(start, end, _AT_ONCE):
        names = [paths.commit_file(version) for version in range(first, min(first + _AT_ONCE, end))]
        yield from zip(names, map(read, names) if storage.is_local else in_parallel(read, names), strict=True)


def _add_actions(storage: Storage, removals_so_far: Removals, version: int, items: Any) -> None:
    if not isinstance(items, list):
        raise ValueError("actions must be a list")
    single = list[Remove]()
    for name, body in map(actions.named, items):
        if name == "remove":
            single.append(fields.read(Remove, body))
        elif name == REMOVE_TABLE:
            rows = read_table(name, body).rows
            coded = rows["stem"].dictionary_encode()
            removals_so_far.remove(
                numbers_of(rows["partition"]), coded.dictionary.to_pylist(), numbers_of(coded.indices)
            )
        elif name == "restore":
            removals_so_far.restored = (
                removals_so_far.restored
                if version in removals_so_far.restored[-1:]
                else [*removals_so_far.restored, version]
            )
        elif name == "drop":
            removals_so_far.before_drops.append(version - 1)
        else:
            actions.check_known(name)
    partitions = np.array([file.partition for file in single], np.int64)
    removals_so_far.remove(partitions, [file.stem for file in single], np.arange(len(single)))
