"""Reads commits by their numbers: the head of a topic is the last one before the first that is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from distlog.core import paths
from distlog.core.commits.actions import Commit
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptMetadataError
from distlog.core.storage.background import in_parallel
from distlog.core.storage.storage import Storage

_LARGEST_GROUP = 64


class CommitFiles:
    """The commit files of one topic."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def read(self, version: int) -> Commit | None:
        """The commit of `version`, or None if there is none yet; raises CorruptMetadataError."""
        file = paths.commit_file(version)
        try:
            commit = Commit.decode(self._storage.read(file), file)
        except FileNotFoundError:
            return None
        if commit.version != version:
            raise CorruptMetadataError("the commit is not of the version in its name", file=file)
        return commit

    def read_existing(self, version: int) -> Commit:
        """The commit of `version`, which is known to exist; raises CorruptMetadataError if it does not."""
        commit = self.read(version)
        if commit is None:
            file = paths.commit_file(version)
            raise CorruptMetadataError("a commit below the head is missing; restore it from a copy", file=file)
        return commit

    def read_many(self, versions: Sequence[int]) -> list[Commit | None]:
        """`read` of each of `versions`; at the same time, where a request takes long."""
        if self._storage.is_local or len(versions) == 1:
            return [self.read(version) for version in versions]
        return in_parallel(self.read, versions)

    def follow(self, start: int, *, end: int = MAX_LONG, known: int = -1, group: int = 1) -> Iterator[list[Commit]]:
        """The commits from `start` up to `end` or the head, in groups that grow, `group` at first.

        `known` is a version that is known to exist. Raises CorruptMetadataError at a hole below it, or below a
        commit that was seen; with a `group` of one, as there is nothing behind to see, the hole is the head.
        """
        while start < end:
            # Two more than what is known to exist: the one that is not there, and what must not be behind it.
            size = min(max(group, known + 3 - start), _LARGEST_GROUP)
            found = self.read_many(range(start, min(start + size, end)))
            commits = list(_until_missing(found))
            if commits:
                yield commits
            start += len(commits)
            if len(commits) == len(found):
                group = min(4 * group, _LARGEST_GROUP)
            elif start <= known or self._is_seen_behind(start, found[len(commits) + 1 :], size):
                # What was missing may have been written between two of our reads, before its successor was.
                self.read_existing(start)
            else:
                return

    def _is_seen_behind(self, missing: int, found: Sequence[Commit | None], size: int) -> bool:
        if size > 1 and not found:
            return self.read(missing + 1) is not None
        return any(found)


def _until_missing(commits: Iterable[Commit | None]) -> Iterator[Commit]:
    for commit in commits:
        if commit is None:
            return
        yield commit
