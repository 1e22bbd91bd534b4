"""The snapshot that readers see: the commit log's newest, with the active segments up to their ends."""

from __future__ import annotations

from typing import NamedTuple

from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import SnapshotTooOldError
from distlog.core.log.tails import with_tails
from distlog.core.topic_handle import TopicHandle


class LiveSnapshot:
    """What one topic object reads. It moves on when `current` does, and with `refresh`; safe between threads.

    A topic that was opened at a version or a time has no tails: a version counts only what was sealed in it.
    """

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot) -> None:
        self._handle, self._current = handle, current
        self._seen: _Seen | None = None
        # made anew by `look_again`: a look that began before it does not count
        self._wanted = object()

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot to read, never one to commit from; its tails are of the last `refresh`, or later."""
        seen, committed = self._seen, self._current.snapshot
        if seen is None or seen.committed is not committed or seen.wanted is not self._wanted:
            seen = self._look(committed)
        return seen.live

    def refresh(self) -> Snapshot:
        """Move on to the newest version and the ends of its active segments; one GET if there is nothing new."""
        self.look_again()
        try:
            return self._look(self._current.refresh()).live
        except SnapshotTooOldError:
            # an active segment was sealed, removed and vacuumed after the version was read
            return self._look(self._current.refresh()).live

    def look_again(self) -> None:
        """Have the ends of the active segments read again when the snapshot is wanted next."""
        self._wanted = object()

    def _look(self, committed: Snapshot) -> _Seen:
        wanted = self._wanted
        live = committed if self._current.pinned else with_tails(self._handle, committed)
        self._seen = seen = _Seen(committed, live, wanted)
        return seen


class _Seen(NamedTuple):
    committed: Snapshot
    live: Snapshot
    wanted: object
