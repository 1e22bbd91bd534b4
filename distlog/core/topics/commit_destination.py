"""Buffers that are committed, each in one commit over all of its partitions: on object stores and network mounts."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from distlog.core.topics.append_commit import AppendResult
from distlog.core.topics.delivery import delivered
from distlog.core.topics.destination import Sent


class CommittingTopic(Protocol):
    """What it needs of a topic."""

    def append(self, table: pa.RecordBatch, *, compression: str | None) -> AppendResult:
        """Commit records."""
        ...


class CommitDestination:
    """Commits each buffer. A commit is on the device, so there is nothing to flush."""

    def __init__(self, topic: CommittingTopic, compression: str | None) -> None:
        self._topic, self._compression = topic, compression

    def send(self, records: pa.RecordBatch) -> Sent:
        """Commit the records, all or none. Raises as `Topic.append` does."""
        result = self._topic.append(records, compression=self._compression)
        return Sent(result, delivered(result))

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
