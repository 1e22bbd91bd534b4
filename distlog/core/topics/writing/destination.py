"""Where a writer's buffers go, and what became of one: in one commit, or in place, each partition by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.core.topics.writing.delivery import Delivery


class Failure(NamedTuple):
    """Records of one partition that were not appended, or, if `in_doubt`, may have been."""

    partition: int
    record_count: int
    error: BaseException
    in_doubt: bool

    @property
    def delivery(self) -> Delivery:
        """What a callback is told."""
        return Delivery(self.partition, None, None, self.record_count, self.error)


class Sent(NamedTuple):
    """What became of a buffer, by partition: the offsets that it got, and the partitions that failed."""

    result: AppendResult
    deliveries: list[Delivery]
    failures: Sequence[Failure] = ()


class Destination(Protocol):
    """Takes the buffers of one writer, one at a time."""

    def send(self, records: pa.RecordBatch) -> Sent:
        """Append the records; an error that is raised is about all of them."""
        ...

    @property
    def is_flushed(self) -> bool:
        """Whether all that was sent is known to be on the device."""
        ...

    def flush(self) -> None:
        """Return when all that was sent is on the device."""
        ...

    def close(self) -> None:
        """Flush, and close files; a later `send` opens them again."""
        ...

    def begin_child(self) -> None:
        """Become usable in a forked child, whatever the parent's threads were doing."""
        ...


class TransactionalDestination(Destination, Protocol):
    """What is sent between `begin` and `commit` is there for readers of committed records at once, or never."""

    def begin(self) -> None:
        """Begin a transaction, when the one before it has ended."""
        ...

    def commit(self) -> Sent:
        """Make all that was sent durable and visible; the deliveries are those that were not told by `send`."""
        ...

    def abort(self, *, has_failed: bool) -> None:
        """Take back all that was sent; `has_failed` says that nobody knows what became of the last records."""
        ...


class WritableTopic(Protocol):
    """What a writer needs of a topic."""

    @property
    def handle(self) -> TopicHandle:
        """The topic's handle."""
        ...

    @property
    def current(self) -> CurrentSnapshot:
        """Holds the topic's current snapshot: another one when the topic has changed."""
        ...

    def destination(self, compression: str | None) -> Destination:
        """Where buffers go."""
        ...
