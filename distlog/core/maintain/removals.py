"""The removals of commits, for vacuum: read commit by commit, and kept in eight bytes a segment.

A day of a busy topic has millions of parts. So a commit is not made into actions here: of its JSON only the removals
count, and what is kept of a removed segment is a hash. If two segments had one hash, a file would stay too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.arrays import numbers_of
from distlog.core.commits import commit_json, fields
from distlog.core.commits.action_table import REMOVE_TABLE, read_table
from distlog.core.commits.actions import Remove
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CorruptMetadataError
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage

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
    """A set of FoundStem that grows by eight bytes for each; it may seem to hold one that it does not."""

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
        """Add the segments (partition, `stems[which]`), row by row, and the bundles that they may be in."""
        if not len(partitions):
            return
        numbers = _numbers_of(stems)
        of_kafka = np.array([paths.stem_read_version(stem) is None for stem in stems])[rows]
        self.kafka_partitions.update(np.unique(partitions[of_kafka]).tolist())
        self._add(_hashes(partitions, numbers[rows]))
        self._add(_hashes(np.full(len(stems), _BUNDLE), numbers))

    def has(self, stems: Sequence[FoundStem]) -> npt.NDArray[np.bool_]:
        """Flag the `stems` that it holds."""
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
    """The removals of the commits of some versions: `stems`, and, if they are wanted, the same ones `exactly`.

    `restored` are the versions that a restore made, `before_drops` those right before a drop, which removes every
    segment without naming any.
    """

    stems: StemSet = field(default_factory=StemSet)
    exactly: set[FoundStem] | None = None
    restored: list[int] = field(default_factory=list)
    before_drops: list[int] = field(default_factory=list)

    def remove(self, partitions: Numbers, stems: Sequence[str], stem_rows: Numbers) -> None:
        """Note the segments (partition, `stems[which]`), row by row."""
        self.stems.add(partitions, stems, stem_rows)
        if self.exactly is not None:
            rows = zip(partitions.tolist(), (stems[number] for number in stem_rows.tolist()), strict=True)
            self.exactly.update(stem for number, name in rows for stem in ((number, name), (None, name)))

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Note the segments of a snapshot, including the active ones, which still grow."""
        for number, state in enumerate(snapshot.partitions):
            stems = state.segments.columns()["stem"].to_pylist()
            stems += [state.active.stem] if state.active else []
            self.remove(np.full(len(stems), number), stems, np.arange(len(stems)))


def removals(storage: Storage, start: int, end: int, *, exactly: bool = False) -> Removals:
    """Collect what the commits of the versions `start` (in) to `end` (out), which must exist, removed."""
    removed = Removals(exactly=set() if exactly else None)
    previous_id: str | None = None
    for file, data in _files(storage, start, end):
        previous_id = _read(storage, removed, file, data, previous_id)
    return removed


def _read(storage: Storage, removals_so_far: Removals, file: str, data: bytes, previous_id: str | None) -> str:
    """Note what the commit `file` removed, which follows the one with the id `previous_id`; returns its id."""
    try:
        body = commit_json.parse(data, file)
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
    """The segments that those commits removed, one by one, and what a drop among them removed."""
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
    for name, body in map(commit_json.named, items):
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
            commit_json.check_known(name)
    partitions = np.array([file.partition for file in single], np.int64)
    removals_so_far.remove(partitions, [file.stem for file in single], np.arange(len(single)))
