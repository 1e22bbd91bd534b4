"""Checks that a topic's commits still exist: its folder may be deleted while a process uses it."""

from __future__ import annotations

import os
from collections.abc import Callable

from distlog.core import paths
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import CommitFiles
from distlog.core.storage.storage import Storage

# The next commit of the process would be the only one there: no process could read it or create the topic again.
# In a topic that was created again it would not follow the commit before it, and nobody could read that topic: so the
# commit that exists must be the same one. On a local disk each check costs next to nothing. On an object store it is
# a request, made once in CHECK_S. In that time the process may have put commits: so it checks one that existed at the
# last check.


#: How often to check on an object store.
CHECK_S = 60.0

#: The id of a commit is within its first bytes, as this library writes it.
_HEAD_BYTES = 256


class TopicExistence:
    """Checks that the commits in `storage` exist; safe between threads. `monotonic` is in seconds."""

    def __init__(self, storage: Storage, monotonic: Callable[[], float]) -> None:
        self._storage, self._monotonic = storage, monotonic
        # on an object store: the time, and the version and id of the commit to check next
        self._last_check: tuple[float, int, str] | None = None
        # on a disk: the id of the commit that was read last, and its file's number and time
        self._last_file: tuple[str, int, int] | None = None

    def check(self, head: Snapshot) -> bool:
        """True if the commit of `head`, or one before it, still exists, as far as this checks."""
        if self._storage.is_local:
            return self._is_on_disk(head)
        now_s = self._monotonic()
        checked_s, version, commit_id = self._last_check or (now_s, head.version, head.commit_id)
        if now_s - checked_s >= CHECK_S:
            try:
                first_bytes = self._storage.read(paths.commit_file(version), 0, _HEAD_BYTES)
            except FileNotFoundError:
                return False
            if not self._is_of(first_bytes, version, commit_id):
                return False
            checked_s, version, commit_id = now_s, head.version, head.commit_id
        self._last_check = checked_s, version, commit_id
        return True

    def _is_on_disk(self, head: Snapshot) -> bool:
        name = paths.commit_file(head.version)
        try:
            status = os.stat(self._storage.local_path(name))
            file = (head.commit_id, status.st_ino, status.st_mtime_ns)
            if file == self._last_file:
                return True
            with self._storage.opened_file(name) as descriptor:
                first_bytes = os.pread(descriptor, _HEAD_BYTES, 0)
        except OSError:
            return False
        if not self._is_of(first_bytes, head.version, head.commit_id):
            return False
        self._last_file = file
        return True

    def _is_of(self, first_bytes: bytes, version: int, commit_id: str) -> bool:
        """True if the commit of `version`, whose file starts with `first_bytes`, is the one of `commit_id`."""
        if commit_id.encode() in first_bytes:
            return True
        commit = CommitFiles(self._storage).read(version)
        return commit is not None and commit.id == commit_id

    def forget(self) -> None:
        """Start again: the version of the last check may be below the log retention horizon."""
        self._last_check = None
