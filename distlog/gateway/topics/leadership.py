"""A partition's leader is the process that began its newest epoch. Earlier leaders can append nothing any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping

from distlog.core.commits.actions import LEADER_APP, SetTransaction
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.commit_race import CommitRace
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError, LeaderFencedError
from distlog.core.log.active_seals import wait_for_appends
from distlog.core.maintain.cleaning_plan import first_dirty_offset
from distlog.core.maintain.compaction import compact
from distlog.core.segments.topic_handle import TopicHandle, topic_log
from distlog.core.topic import Topic

_log = logging.getLogger("distlog.gateway")

#: How long the beginning of an epoch waits for appends of the one before, which take milliseconds; then it fails, and
#: is tried again.
_LOCK_WAIT_S = 5.0


class Leadership:
    """The partitions of a topic that this process leads; safe between threads, but for `begin` and `end`."""

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot) -> None:
        self._handle, self._current = handle, current
        self._epochs: Mapping[int, int] = {}

    @property
    def partitions(self) -> Collection[int]:
        """The partitions that this process leads, as far as it knows."""
        return self._epochs.keys()

    def begin(self, partitions: Collection[int], may_lead: Callable[[], None] = lambda: None) -> None:
        """Lead partitions, in one commit; when this returns, no other process appends to them as their leader.

        `may_lead` is called before each try, and may raise. Raises the errors of `CommitRace`; LockHeldError
        if a stopped process holds a partition's lock, and then leads none.
        """
        if not partitions:
            return
        with CommitRace(self._handle.log, self._current.refresh(), "lead") as race:
            for head in race:
                may_lead()
                epochs = {number: _epoch(head, number) + 1 for number in partitions}
                race.put([SetTransaction(_app_id(n), epoch, {}, in_order=True) for n, epoch in epochs.items()])
        self._current.advance(race.after)
        if self._handle.storage.is_local_disk:
            wait_for_appends(self._handle, race.after, partitions, _LOCK_WAIT_S)
        self._epochs = {**self._epochs, **epochs}

    def end(self, partitions: Collection[int]) -> None:
        """Append nothing more to these partitions."""
        self._epochs = {number: epoch for number, epoch in self._epochs.items() if number not in partitions}

    def lost_partitions(self) -> set[int]:
        """The partitions that other processes lead now. Raises StorageError."""
        snapshot = self._current.refresh()
        return {number for number, epoch in self._epochs.items() if _epoch(snapshot, number) != epoch}

    def check(self, head: Snapshot, partitions: Collection[int]) -> None:
        """Raise LeaderFencedError unless this process leads all `partitions` at this head."""
        epochs = self._epochs
        for number in partitions:
            if epochs.get(number) != _epoch(head, number):
                raise LeaderFencedError(
                    "nothing was appended: another process leads the partition",
                    partition=number,
                    epoch=epochs.get(number),
                    newest=_epoch(head, number),
                )


def _app_id(partition: int) -> str:
    return f"{LEADER_APP}{partition}"


def _epoch(snapshot: Snapshot, partition: int) -> int:
    newest = snapshot.transactions.newest(_app_id(partition))
    return -1 if newest is None else newest


# A gateway that takes over a partition reads it completely. So its leader keeps the segments few, whether the root is
# maintained or not. A process that leads it no more, or a cleaner, may do the same at the same time.

#: This many new segments are worth a compaction of a small partition.
LEAST_SEGMENTS = 64
#: A compaction rewrites the clean part: it waits for one more segment for each CLEAN_BYTES_PER_SEGMENT.
CLEAN_BYTES_PER_SEGMENT = 64 << 10
#: How often a gateway checks, which takes no request.
PERIOD_MS = 5000
#: Many segments are compacted regardless of their share of the bytes.
_DEFAULTS = {"min.cleanable.dirty.ratio": 0.0}


class OwnCompaction:
    """Compacts partitions of one topic when they have many new segments; for one thread."""

    def __init__(self) -> None:
        self._topic_id, self._tried_ends = "", dict[int, int]()

    def step(self, topic: Topic, partitions: Collection[int]) -> None:
        """Compact the `partitions` that need it, by the known snapshot of the topic; an error is logged."""
        snapshot = topic.snapshot
        if snapshot.topic_id != self._topic_id:
            # a new topic of the same name has other offsets
            self._topic_id, self._tried_ends = snapshot.topic_id, {}
        due = list(self._due(snapshot, partitions))
        # a partition that cannot be cleaned, or only in part while a transaction is open, waits for as many segments
        # again
        self._tried_ends.update({number: snapshot.partitions[number].log_end_offset for number in due})
        if due:
            try:
                log = topic_log(topic.storage, topic.handle.clock, engine="gateway", defaults=_DEFAULTS)
                handle = TopicHandle.of(
                    topic.storage,
                    topic.handle.name,
                    log,
                    topic.handle.clock,
                    producer_expiration_ms=topic.handle.producer_expiration_ms,
                )
                report, _ = compact(handle, log.load(cached=snapshot), partitions=due)
                for failed in report.partitions:
                    if failed.error is not None:
                        _log.warning(
                            "cannot compact partition %d of %s: %s", failed.partition, topic.name, failed.error
                        )
            except Exception as error:
                # there is a next time, and the thread must live to see it
                is_mistake = not isinstance(error, DistlogError)
                _log.warning("%s was not compacted: %s", topic.name, error, exc_info=is_mistake)

    def _due(self, snapshot: Snapshot, partitions: Collection[int]) -> Iterator[int]:
        for number in sorted(partitions):
            state = snapshot.partitions[number]
            table, dirty = state.segments, first_dirty_offset(state)
            new_segments = len(table) - table.find(max(dirty, self._tried_ends.get(number, 0)))
            clean_bytes = int(table.log_bytes[: table.find(dirty)].sum())
            if new_segments >= max(LEAST_SEGMENTS, clean_bytes // CLEAN_BYTES_PER_SEGMENT):
                yield number
