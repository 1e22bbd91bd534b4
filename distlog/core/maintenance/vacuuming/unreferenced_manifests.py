"""Finds manifests that no commit names: their commit lost a race, or their writer died before it committed."""

from __future__ import annotations

from collections.abc import Iterable

from distlog.core import paths
from distlog.core.commits.commit_files import CommitFiles
from distlog.core.commits.format.actions import GcFloor, Manifest
from distlog.core.commits.format.commit import Commit
from distlog.core.storage.storage import FileInfo, Storage


def unreferenced_manifests(storage: Storage, found: Iterable[FileInfo], floor: int, head: int) -> list[FileInfo]:
    """The manifests that no commit up to `head` names and whose writers read a version below `floor`.

    `found` are the topic's files. `floor` is a gc floor that was committed, so no later commit will name these
    manifests. For each manifest, commits are read from the version after the one its writer read, up to the first
    commit that raises the gc floor above the writer's version.
    """
    search = _Search(CommitFiles(storage), head)
    read = [(version, file) for file in found if (version := paths.manifest_read_version(file.name)) is not None]
    return [file for version, file in read if version < floor and not search.is_referenced(file.name, version)]


class _Search:
    """Looks for manifests in the commits; reads each commit once."""

    def __init__(self, files: CommitFiles, head: int) -> None:
        self._files, self._head = files, head
        self._seen: dict[int, tuple[frozenset[str], int]] = {}

    def is_referenced(self, name: str, read_version: int) -> bool:
        for version in range(read_version + 1, self._head + 1):
            names, floor = self._of(version)
            if name in names:
                return True
            if floor > read_version:
                return False
        return False

    def _of(self, version: int) -> tuple[frozenset[str], int]:
        if version not in self._seen:
            commit = self._files.read_existing(version, whole=False)
            self._seen[version] = _names(commit), _floor(commit)
        return self._seen[version]


def _names(commit: Commit) -> frozenset[str]:
    return frozenset(action.file for action in commit.actions if isinstance(action, Manifest))


def _floor(commit: Commit) -> int:
    return max((action.version for action in commit.actions if isinstance(action, GcFloor)), default=0)
