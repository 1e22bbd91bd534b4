"""Compacts the topics of the gateways themselves on an object store, where each commit is a segment of its own.

Whoever takes over a partition reads all of it. So whoever leads it keeps its segments few, whether the root is
maintained or not. A process that does not lead it any more, or a cleaner, may do the same at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.errors import DistlogError
from distlog.core.maintenance.compaction.cleanable import first_dirty_offset
from distlog.core.maintenance.compaction.compact import compact
from distlog.core.topic_handle import TopicHandle, topic_log
from distlog.core.topics.topic import Topic

#: So many new segments are worth a compaction of a small partition.
LEAST_SEGMENTS = 64
#: A compaction writes again what is clean: one more segment to wait for, for each so many bytes of that.
CLEAN_BYTES_PER_SEGMENT = 64 << 10
#: How often a gateway looks; to look is no request.
PERIOD_MS = 5000
#: What has become many segments is compacted whatever its share of the bytes is.
_DEFAULTS = {"min.cleanable.dirty.ratio": 0.0}

_log = logging.getLogger("distlog.gateway")


class OwnCompaction:
    """Compacts partitions of one topic when they have many new segments; for one thread."""

    def __init__(self) -> None:
        self._topic_id, self._tried = "", dict[int, int]()

    def step(self, topic: Topic, partitions: Collection[int]) -> None:
        """Compact those of `partitions` that need it by what is known of the topic; an error is logged."""
        snapshot = topic.snapshot
        if snapshot.topic_id != self._topic_id:
            # one that was dropped and made again has other offsets
            self._topic_id, self._tried = snapshot.topic_id, {}
        due = list(self._due(snapshot, partitions))
        # one that cannot be cleaned, or only in part while a transaction is open, waits for as many segments again
        self._tried.update({number: snapshot.partitions[number].log_end_offset for number in due})
        if due:
            try:
                _compact(topic, snapshot, due)
            except Exception as error:
                # there is a next time, and the thread must live to see it
                is_mistake = not isinstance(error, DistlogError)
                _log.warning("%s was not compacted: %s", topic.name, error, exc_info=is_mistake)

    def _due(self, snapshot: Snapshot, partitions: Collection[int]) -> Iterator[int]:
        for number in sorted(partitions):
            state = snapshot.partitions[number]
            if _new_segments(state, self._tried.get(number, 0)) >= _worth_it(state):
                yield number


def _new_segments(state: PartitionState, tried: int) -> int:
    return len(state.segments) - state.segments.find(max(first_dirty_offset(state), tried))


def _worth_it(state: PartitionState) -> int:
    table = state.segments
    clean_bytes = int(table.log_bytes[: table.find(first_dirty_offset(state))].sum())
    return max(LEAST_SEGMENTS, clean_bytes // CLEAN_BYTES_PER_SEGMENT)


def _compact(topic: Topic, known: Snapshot, partitions: list[int]) -> None:
    log = topic_log(topic.storage, topic.handle.clock, engine="gateway", defaults=_DEFAULTS)
    handle = TopicHandle.of(topic.storage, topic.name, log, topic.handle.clock)
    report, _ = compact(handle, log.load(known=known), partitions=partitions)
    for failed in report.partitions:
        if failed.error is not None:
            _log.warning("cannot compact partition %d of %s: %s", failed.partition, topic.name, failed.error)
