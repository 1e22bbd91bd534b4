"""Waits for the appends in place that are under way, so that all later ones know the newest commit."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing

from distlog.core import paths
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.storage.local.file_lock import TIMEOUT_S, FileLock
from distlog.core.topic_handle import TopicHandle


def wait_for_appends(
    handle: TopicHandle,
    snapshot: Snapshot,
    partitions: Iterable[int] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Return when each append to a partition, or to these, that is under way now has ended, in whichever process.

    Raises StorageError, which names the process, if one holds a partition's lock for longer than `timeout_s`.
    """
    for partition in range(len(snapshot.partitions)) if partitions is None else partitions:
        folder = handle.storage.local_path(paths.partition_dir(handle.name, partition))
        path = os.path.join(folder, paths.LOCK_FILE)
        # who appends holds the lock, so its file is there
        if os.path.exists(path):
            with closing(FileLock(path)) as lock, lock.held(timeout_s):
                pass
