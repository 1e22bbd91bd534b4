"""Finds segment files and bundles that no version since the gc floor references, and no pinned version.

A bundle is referenced as long as one of its parts is.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from distlog.core import paths
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.format.actions import Drop, Remove, Restore
from distlog.core.commits.format.commit import Commit
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.storage.storage import FileInfo

#: (partition, stem): together they name a segment's files; (None, stem) names the bundle that it may be in.
Stem = tuple[int | None, str]


@dataclass(frozen=True, slots=True)
class Referenced:
    """The segments and bundles of `topic` that a version from a floor to `head` references, or a `pinned` version.

    `restored` are the versions behind the floor in which a log may begin earlier than in the version before.
    """

    topic: str
    head: int
    pinned: tuple[int, ...]
    restored: tuple[int, ...]
    stems: Set[Stem]

    @classmethod
    def since(cls, log: CommitLog, head: Snapshot, floor: int, now_ms: int) -> Referenced:
        """What is referenced by versions from `floor` to that of `head`, or by pins that last beyond `now_ms`.

        These versions reference the files that are live at the head, and those that a commit after `floor` removed.
        Both ends are versions, so the answer does not depend on commits made meanwhile.
        """
        commits = log.commits(floor + 1, head.version + 1)
        pinned = tuple(pin.version for pin in head.pins.values() if pin.until_ms > now_ms)
        stems = _stems(head) | removed_stems(commits)
        for version in (*pinned, *_before_drops(commits)):
            stems |= _stems(log.load(version=version, include_dropped=True))
        return cls(head.name, head.version, pinned, tuple(_restores(commits)), stems)


def unreferenced_files(
    found: Iterable[FileInfo],
    log: CommitLog,
    referenced: Referenced,
    *,
    floor: int,
    removed: Set[Stem] = frozenset(),
) -> list[FileInfo]:
    """The segment files and bundles that no version will reference.

    Their transaction read a version below the gc `floor`, or their segment is in `removed`.
    """
    segment_files = [(file, stem) for file in found if (stem := stem_of(file.name, referenced.topic))]
    unreferenced = [(file, stem) for file, stem in segment_files if stem not in referenced.stems]
    if any(paths.stem_read_version(stem) is None for _, (_, stem) in unreferenced):
        # a file of Kafka's does not say when it came here: it is deleted only after a commit has removed it
        commits = log.commits(0, referenced.head + 1)
        removed = removed | removed_stems(commits)
        for version in _before_drops(commits):
            removed |= _stems(log.load(version=version, include_dropped=True))
    return [file for file, stem in unreferenced if stem in removed or is_below(stem, floor)]


def stem_of(name: str, topic: str) -> Stem | None:
    """The stem of a file of segments, from its relative name; None for any other file."""
    bundle = paths.parse_bundle_file(name)
    return (None, bundle) if bundle else paths.parse_segment_file(name, topic)


def is_below(stem: Stem, version: int) -> bool:
    """Whether the file's writer read a version below `version`; False for a file of Kafka's, which does not tell."""
    read_version = paths.stem_read_version(stem[1])
    return read_version is not None and read_version < version


def removed_stems(commits: Iterable[Commit]) -> set[Stem]:
    """The segments that `commits` removed, and their bundles."""
    removed = (action for commit in commits for action in commit.actions if isinstance(action, Remove))
    return _with_bundles((action.partition, action.stem) for action in removed)


def _stems(snapshot: Snapshot) -> set[Stem]:
    """The segments of a snapshot, including the active ones, which still grow, and their bundles."""
    partitions = list(enumerate(snapshot.partitions))
    sealed = {(number, stem) for number, state in partitions for stem in state.segments.columns()["stem"].to_pylist()}
    return _with_bundles(sealed | {(number, state.active.stem) for number, state in partitions if state.active})


def _with_bundles(stems: Iterable[tuple[int, str]]) -> set[Stem]:
    return {stem for number, name in stems for stem in ((number, name), (None, name))}


def _restores(commits: Iterable[Commit]) -> list[int]:
    """The versions that a restore made."""
    return [commit.version for commit in commits if any(isinstance(action, Restore) for action in commit.actions)]


def _before_drops(commits: Iterable[Commit]) -> list[int]:
    """The versions right before each drop in `commits`: a drop removes every segment without naming any."""
    return [commit.version - 1 for commit in commits if any(isinstance(action, Drop) for action in commit.actions)]
