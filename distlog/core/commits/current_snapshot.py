"""The newest snapshot that one object has seen."""

from __future__ import annotations

from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import ReadOnlyTopicError
from distlog.core.locks import process_lock
from distlog.core.storage.storage import Storage

#: How long after an append of many writers the next one may start from the snapshot of that one, in seconds.
JUST_NOW_S = 1.0
#: Why a pinned topic is read-only.
AT_A_VERSION = (
    "opened at a version or time, where nothing new comes, so read-only; "
    "open it without version and timestamp to change or follow it"
)


class CurrentSnapshot:
    """Holds the newest snapshot that one object has seen; safe between threads.

    A pinned snapshot never changes; errors show the `pin_reason`.
    """

    def __init__(
        self, log: CommitLog, snapshot: Snapshot, *, pinned: bool = False, pin_reason: str = AT_A_VERSION
    ) -> None:
        self.snapshot, self.pinned, self._pin_reason = snapshot, pinned, pin_reason
        self._log, self._lock = log, process_lock()

    def refresh(self) -> Snapshot:
        """Move on to the newest version, and return it; one GET if there is nothing new."""
        if not self.pinned:
            self.advance(self._log.refresh(self.snapshot))
        return self.snapshot

    def recent(self) -> Snapshot:
        """As `refresh`; after a group commit its own snapshot, as the next append follows the log anyway."""
        return self.snapshot if self._log.queue.was_crowded(JUST_NOW_S) else self.refresh()

    def advance(self, snapshot: Snapshot) -> None:
        """Move on to `snapshot`, unless another thread has moved on to a newer one."""
        with self._lock:
            if snapshot.version > self.snapshot.version:
                self.snapshot = snapshot

    def check_writable(self, storage: Storage) -> None:
        """Raise ReadOnlyTopicError if the topic is pinned, as one that was opened at a chosen version or time."""
        if self.pinned:
            raise ReadOnlyTopicError(self._pin_reason, url=storage.url, version=self.snapshot.version)
