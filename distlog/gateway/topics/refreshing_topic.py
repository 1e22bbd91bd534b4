"""A topic that moves on when other processes change it."""

from __future__ import annotations

import os
import threading
import time

from distlog.core import paths
from distlog.core.commits.snapshot import Snapshot
from distlog.core.topic import Topic


class RefreshingTopic:
    """The topic in the folder `name`; safe between threads.

    On a local disk a check for the next commit costs next to nothing, so each use is fresh. On an object store it is
    a request.
    """

    def __init__(self, name: str, topic: Topic) -> None:
        self.name, self.topic = name, topic
        self.is_local = topic.storage.is_local_disk
        self._lock = threading.Lock()
        self._refreshed_ms = monotonic_ms()
        self._files: tuple[Snapshot | None, str, str] = None, "", ""

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot that is known, without active segments."""
        return self.topic.snapshot

    def refresh(self, max_age_ms: int = 0) -> Snapshot:
        """Load the newest version; on an object store, unless the last refresh was less than `max_age_ms` ago."""
        if self.is_local:
            if not self._has_changed():
                return self.snapshot
            # vacuum may have deleted what older versions had
            self.topic.reader.forget_deleted()
            return self.topic.current.refresh()
        called_ms = monotonic_ms()
        if called_ms - self._refreshed_ms >= max_age_ms:
            with self._lock:
                # another thread may have refreshed it concurrently
                if self._refreshed_ms <= called_ms:
                    started_ms = monotonic_ms()
                    self.topic.current.refresh()
                    self._refreshed_ms = started_ms
        return self.snapshot

    def _has_changed(self) -> bool:
        """True if there is a next commit, or the folder was deleted, and the last one with it."""
        cached, newest, following = self._files
        snapshot = self.snapshot
        if cached is not snapshot:
            newest, following = (
                self.topic.storage.local_path(paths.commit_file(snapshot.version + more)) for more in (0, 1)
            )
            self._files = snapshot, newest, following
        return os.path.exists(following) or not os.path.exists(newest)


def monotonic_ms() -> int:
    """The ms of a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000
