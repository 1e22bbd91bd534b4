"""Reads commits by version. The head of a topic is the last commit before the first missing version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from distlog.core import paths
from distlog.core.commits.format import manifest
from distlog.core.commits.format.commit import Commit
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptMetadataError
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage

_LARGEST_GROUP = 64


class CommitFiles:
    """The commit files of one topic."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def read(self, version: int, *, whole: bool = True) -> Commit | None:
        """The commit of `version`, or None if there is none yet; raises CorruptMetadataError.

        If not `whole`, the manifest is not read, and its actions are missing.
        """
        try:
            data = self._storage.read(paths.commit_file(version), 0, MAX_CONDITIONAL_BYTES + 1)
        except FileNotFoundError:
            return None
        return self.decode(version, data, whole=whole)

    def decode(self, version: int, data: bytes, *, whole: bool = True) -> Commit:
        """The commit of `version`, whose file begins with `data`; otherwise as `read`."""
        file = paths.commit_file(version)
        if len(data) > MAX_CONDITIONAL_BYTES:
            raise CorruptMetadataError(
                "the commit is larger than any commit may be; restore it from a copy", file=file
            )
        commit = Commit.decode(data, file)
        if commit.version != version:
            raise CorruptMetadataError("the commit is not of the version in its name", file=file)
        return self.expanded(commit) if whole else commit

    def expanded(self, commit: Commit) -> Commit:
        """A commit with the actions of its manifest; raises CorruptMetadataError."""
        return manifest.expanded(commit, partial(manifest.read, self._storage))

    def read_existing(self, version: int, *, whole: bool = True) -> Commit:
        """`read` of a commit that is known to exist; raises CorruptMetadataError if it does not."""
        commit = self.read(version, whole=whole)
        if commit is None:
            file = paths.commit_file(version)
            raise CorruptMetadataError("a commit below the head is missing; restore it from a copy", file=file)
        return commit

    def read_many(self, versions: Sequence[int], whole_from: int = 0) -> list[Commit | None]:
        """`read` of each of `versions`, whole from `whole_from` on; in parallel, if requests are slow."""
        if self._storage.is_local or len(versions) == 1:
            return [self.read(version, whole=version >= whole_from) for version in versions]
        return in_parallel(lambda version: self.read(version, whole=version >= whole_from), versions)

    def follow(
        self, start: int, *, end: int = MAX_LONG, known: int = -1, group: int = 1, whole_from: int = 0
    ) -> Iterator[list[Commit]]:
        """The commits from `start` (in) to `end` (out) or to the head, in groups that grow from `group` on.

        A group is as large as all groups before it together: most often there is just one new commit. The version
        `known` is known to exist. Commits below `whole_from` lack the actions of their manifests. Raises
        CorruptMetadataError for a missing version below `known`, or below a commit that was read. With a `group` of
        one, nothing beyond it is read, so a missing version is the end.
        """
        first = start
        while start < end:
            # Two versions beyond `known`: the first is expected to be missing, and then the second must be missing
            # too.
            size = min(max(group, start - first, known + 3 - start), _LARGEST_GROUP)
            found = self.read_many(range(start, min(start + size, end)), whole_from)
            commits = list(_until_missing(found))
            if commits:
                yield commits
            start += len(commits)
            if len(commits) == len(found):
                continue
            if start <= known or self._is_seen_behind(start, found[len(commits) + 1 :], size):
                # A missing version may have been written, and the next one after it, between two of our reads.
                self.read_existing(start, whole=False)
                continue
            return

    def _is_seen_behind(self, missing: int, found: Sequence[Commit | None], size: int) -> bool:
        if size > 1 and not found:
            return self.read(missing + 1, whole=False) is not None
        return any(found)


def _until_missing(commits: Iterable[Commit | None]) -> Iterator[Commit]:
    for commit in commits:
        if commit is None:
            return
        yield commit
