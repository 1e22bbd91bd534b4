"""A topic as a stream sees it: the newest snapshot, asked for as often as it is cheap."""

from __future__ import annotations

from collections.abc import Callable

from distlog.core.commits.commit_files import CommitFiles
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CorruptMetadataError, SnapshotTooOldError, TopicNotFoundError
from distlog.core.log.live_snapshot import LiveSnapshot
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle, topic_log

#: How long the snapshot of a remote storage is taken to be the newest.
FRESH_S = 0.5
#: An idle stream asks again after this time (`spark.sql.streaming.pollingDelay`).
POLL_S = 0.01
#: How often to check that the last commit is there still: a folder that was deleted shows nothing new.
CHECK_S = 10.0
#: Four times what it takes to look at one active segment: with many of them, looks are rarer than that.
TAIL_S = 0.0004


class WatchedTopic:
    """The newest snapshot of the topic in `storage`, also after it was dropped or created again.

    A look costs one request if there is nothing new. On a remote storage there is at most one in FRESH_S seconds by
    `clock`. On a local disk each call of `look` looks, unless an idle stream would need a fifth of a core for it.
    """

    #: Reads the topic of the last look.
    reader: SegmentReader

    def __init__(self, storage: Storage, clock: Callable[[], float]) -> None:
        self._storage, self._clock = storage, clock
        self._log = topic_log(storage)
        self._live: LiveSnapshot | None = None
        self._known: Snapshot | None = None
        self._next_look = self._next_check = 0.0

    @property
    def known(self) -> Snapshot:
        """The snapshot of the last look, or of a first one now."""
        return self._known or self.look()

    def look(self) -> Snapshot:
        """The newest snapshot, with the active segments up to their ends now; it may say that the topic is dropped.

        Raises TopicNotFoundError if there is no topic and never was one.
        """
        now = self._clock()
        if self._known is None or now >= self._next_look:
            self._known = self._newest(now)
            self._next_look = now + self._fresh_s(self._known)
        return self._known

    def _fresh_s(self, snapshot: Snapshot) -> float:
        if not self._storage.is_local_disk:
            return FRESH_S
        active = sum(state.active is not None for state in snapshot.partitions)
        return min(max(TAIL_S * active - POLL_S, 0.0), FRESH_S)

    def _newest(self, now: float) -> Snapshot:
        try:
            if self._live and self._is_there(self._live.snapshot, now):
                return self._live.refresh()
        except (TopicNotFoundError, CorruptMetadataError, SnapshotTooOldError):
            # it was dropped, and perhaps created again: the versions go on, unless its folder was deleted
            pass
        self._live = None
        return self._loaded(now)

    def _is_there(self, snapshot: Snapshot, now: float) -> bool:
        """Whether the commit of `snapshot` is still in the folder; looked at once in CHECK_S seconds."""
        if now < self._next_check:
            return True
        self._next_check = now + CHECK_S
        commit = CommitFiles(self._storage).read(snapshot.version, whole=False)
        return commit is not None and commit.id == snapshot.commit_id

    def _loaded(self, now: float) -> Snapshot:
        self._next_check = now + CHECK_S
        snapshot = self._log.load(include_dropped=True)
        handle = TopicHandle.of(self._storage, snapshot.name, self._log)
        self._live, self.reader = LiveSnapshot(handle, CurrentSnapshot(self._log, snapshot)), handle.reader
        return self._live.snapshot
