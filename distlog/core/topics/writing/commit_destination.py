"""Buffers that are committed, each in one commit over all of its partitions: on object stores and network mounts."""

from __future__ import annotations

import pyarrow as pa

from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.core.topics.appending.transaction import Transaction
from distlog.core.topics.writing.delivery import delivered
from distlog.core.topics.writing.destination import Sent


class CommitDestination:
    """Commits each buffer. A commit is on the device, so there is nothing to flush, and no file stays open."""

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot, compression: str | None) -> None:
        self._handle, self._current, self._compression = handle, current, compression

    def send(self, records: pa.RecordBatch) -> Sent:
        """Commit the records, all or none. Raises as `Topic.append` does."""
        result = self._commit(records)
        return Sent(result, delivered(result))

    def _commit(self, records: pa.RecordBatch) -> AppendResult:
        with Transaction(self._handle, self._current, compression=self._compression) as transaction:
            transaction.append(records)
        return transaction.result

    @property
    def is_flushed(self) -> bool:
        """True: see the class."""
        return True

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""

    def begin_child(self) -> None:
        """There is nothing that a fork could harm."""
