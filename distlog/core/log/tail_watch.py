"""Tells a reader on a local disk that nothing is new, at next to no cost, so that it may look often."""

from __future__ import annotations

import os
from contextlib import suppress

from distlog.core import paths
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.storage.local.durable_files import failing_as
from distlog.core.storage.local.shared_page import WatchedPage
from distlog.core.topic_handle import TopicHandle


class TailWatch:
    """Watches the next commit's name and the pages of the active segments of a topic on a local disk.

    An append in place changes the page of its partition, and everything else is a commit.
    """

    def __init__(self, handle: TopicHandle) -> None:
        self._handle = handle
        self._pages: dict[int, WatchedPage] = {}
        self._of: Snapshot | None = None
        self._next_commit, self._active = "", list[int]()

    def changed(self, snapshot: Snapshot) -> bool:
        """Whether there may be something new since the last call, which was followed by a refresh to `snapshot`.

        A partition without an active segment can only get one by a commit. Raises StorageError.
        """
        if snapshot is not self._of:
            self._next_commit = self._handle.storage.local_path(paths.commit_file(snapshot.version + 1))
            self._active = [number for number, state in enumerate(snapshot.partitions) if state.active is not None]
            self._of = snapshot
        found = os.path.exists(self._next_commit)
        for number in self._active:
            # each page, even after one that changed: what is noted now is what the refresh sees, or older
            found = self._page_changed(number) or found
        return found

    def _page_changed(self, partition: int) -> bool:
        page = self._pages.get(partition)
        if page is None:
            folder = self._handle.storage.local_path(paths.partition_dir(self._handle.name, partition))
            path = os.path.join(folder, paths.LOCK_FILE)
            with failing_as("read", path), suppress(FileNotFoundError):
                page = self._pages[partition] = WatchedPage(path)
        # without a lock's file, as after it was copied from elsewhere, only a refresh can tell
        return page is None or page.changed()
