"""Who leads a partition: whoever began its newest epoch. Who led it before can append nothing any more.

The topic's commit log counts the epochs of each partition, as batches of the application `leader:<partition>`. An
append of a leader is refused when a newer epoch has begun: in a commit by its plan, which sees all commits before it,
and in place under the partition's lock, by the newest snapshot. On a local disk, whoever begins an epoch waits for
the appends that are under way. So what it reads then is all that earlier leaders have appended. No clock is asked.

Leaders alone look at this: it keeps them from each other, not others from the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pyarrow as pa

from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.format.actions import Action, SetTransaction
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import LeaderFencedError
from distlog.core.log.append_barrier import wait_for_appends
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appending.append_commit import AppendResult, commit_append
from distlog.core.topics.appending.transaction import open_appender
from distlog.core.topics.writing.commit_destination import CommitDestination
from distlog.core.topics.writing.destination import Destination
from distlog.core.topics.writing.in_place_destination import InPlaceDestination


class Leadership:
    """The partitions of a topic that this process leads; safe between threads, but for `begin` and `end`."""

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot) -> None:
        self._handle, self._current = handle, current
        self._epochs: Mapping[int, int] = {}

    @property
    def partitions(self) -> Collection[int]:
        """Those that this process leads, as far as it knows."""
        return self._epochs.keys()

    def begin(self, partitions: Collection[int], may_lead: Callable[[], None] = lambda: None) -> None:
        """Lead partitions, in one commit; when this returns, nobody else appends to them as their leader.

        `may_lead` is called before each try, and may raise. Raises the errors of `CommitLog.commit`, and StorageError
        if a process that stands still holds a partition's lock.
        """
        begun: dict[int, int] = {}

        def plan(snapshot: Snapshot) -> list[Action]:
            may_lead()
            begun.update({number: _epoch(snapshot, number) + 1 for number in partitions})
            return [SetTransaction(_app_id(number), epoch, {}, in_order=True) for number, epoch in begun.items()]

        if not partitions:
            return
        _, after = self._handle.log.commit(self._current.refresh(), "lead", plan)
        self._current.advance(after)
        if self._handle.storage.is_local_disk:
            wait_for_appends(self._handle, after, partitions)
        self._epochs = {**self._epochs, **begun}

    def end(self, partitions: Collection[int]) -> None:
        """Append nothing more to these partitions."""
        self._epochs = {number: epoch for number, epoch in self._epochs.items() if number not in partitions}

    def lost(self) -> set[int]:
        """The partitions that others have begun to lead meanwhile. Raises StorageError."""
        snapshot = self._current.refresh()
        return {number for number, epoch in self._epochs.items() if _epoch(snapshot, number) != epoch}

    def check(self, snapshot: Snapshot, partitions: Collection[int]) -> None:
        """Raise LeaderFencedError unless this process leads all of these partitions at this snapshot."""
        epochs = self._epochs
        for number in partitions:
            if epochs.get(number) != _epoch(snapshot, number):
                raise LeaderFencedError(
                    "nothing was appended: another process leads the partition",
                    partition=number,
                    epoch=epochs.get(number),
                    newest=_epoch(snapshot, number),
                )


def _app_id(partition: int) -> str:
    return f"leader:{partition}"


def _epoch(snapshot: Snapshot, partition: int) -> int:
    newest = snapshot.transactions.newest(_app_id(partition))
    return -1 if newest is None else newest


class LedTopic:
    """A topic as the writer of a leader sees it: it takes records of the partitions that the process leads."""

    def __init__(
        self, handle: TopicHandle, current: CurrentSnapshot, moved_on: Callable[[], None], leadership: Leadership
    ) -> None:
        self.handle, self.current, self._moved_on = handle, current, moved_on
        self._leadership = leadership

    def destination(self, compression: str | None) -> Destination:
        """Where buffers go: in place on a disk of this machine, else into commits."""
        handle, current, leadership = self.handle, self.current, self._leadership
        if handle.storage.is_local_disk:
            return _LedInPlace(handle, current, compression, self._moved_on, leadership)
        return _LedCommits(handle, current, compression, leadership)


class _LedInPlace(InPlaceDestination):
    """Appends in place what the leader of each partition sends."""

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        compression: str | None,
        moved_on: Callable[[], None],
        leadership: Leadership,
    ) -> None:
        self._leadership = leadership
        super().__init__(handle, current, compression, moved_on)

    def _fence_of(self, partition: int) -> Callable[[Snapshot], None]:
        return lambda snapshot: self._leadership.check(snapshot, (partition,))


class _LedCommits(CommitDestination):
    """Commits each buffer, if this process leads all of its partitions then."""

    def __init__(
        self, handle: TopicHandle, current: CurrentSnapshot, compression: str | None, leadership: Leadership
    ) -> None:
        super().__init__(handle, current, compression)
        self._leadership = leadership

    def _commit(self, records: pa.RecordBatch) -> AppendResult:
        """Raises as `Topic.append` does, and LeaderFencedError."""
        read_version = self._current.refresh().version
        appender = open_appender(self._handle, self._current, self._compression)
        try:
            appender.append(records)
            segments = appender.close()
        except BaseException:
            appender.abort()
            raise
        led = {segment.partition for segment in segments}
        result, after = commit_append(
            self._handle,
            self._current.snapshot,
            segments,
            read_version=read_version,
            written_by=appender.config,
            check=lambda snapshot: self._leadership.check(snapshot, led),
        )
        self._current.advance(after)
        return result
