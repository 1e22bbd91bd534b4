"""A topic as the writer of a producer sees it: whatever it sends goes there once."""

from __future__ import annotations

from collections.abc import Callable

from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.producing.committed_transactions import CommittedTransactions
from distlog.core.topics.producing.idempotent_destination import IdempotentCommits, IdempotentDestination
from distlog.core.topics.producing.in_place_transactions import InPlaceTransactions
from distlog.core.topics.writing.destination import Destination


class ProducingTopic:
    """The topic, for one producer; `moved_on` is called after each append in place."""

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        moved_on: Callable[[], None],
        transactional_id: str | None,
        timeout_ms: int,
    ) -> None:
        self.handle, self.current, self._moved_on = handle, current, moved_on
        self._transactional_id, self._timeout_ms = transactional_id, timeout_ms

    def destination(self, compression: str | None) -> Destination:
        """Where buffers go: in place on a disk of this machine, else into commits."""
        id_, handle, current = self._transactional_id, self.handle, self.current
        if id_ is None and handle.storage.is_local_disk:
            return IdempotentDestination(handle, current, compression, self._moved_on, None)
        if id_ is None:
            return IdempotentCommits(handle, current, compression, None)
        if handle.storage.is_local_disk:
            return InPlaceTransactions(handle, current, compression, self._moved_on, id_, self._timeout_ms)
        return CommittedTransactions(handle, current, compression, id_)
