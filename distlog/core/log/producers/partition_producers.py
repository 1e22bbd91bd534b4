"""What a partition's log says of its producers, as far as one process has read it: under the partition's lock.

Any process may append. So before it checks a batch, a process reads the batches that others appended since. What
the log said before the active segment is kept in the segment's `.snapshot`, in Kafka's format. Who needs it and does
not find it, or finds it damaged, reads the segments before: from the last one that has a snapshot, and only those
that have batches of producers.

A snapshot has but the last batch of each producer, and five may be in flight. So before a process that began with a
snapshot refuses a batch, it looks for the others in the segments before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import TRANSACTIONAL
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import OutOfOrderSequenceError
from distlog.core.indexes.transaction_index import AbortedTransaction
from distlog.core.log.producers.stored_producers import StoredProducers
from distlog.core.log.segment.log_segment import LogSegment
from distlog.core.topic_handle import TopicHandle
from distlog.core.transactions.open_transactions import OpenTransactions
from distlog.core.transactions.producer_state import KnownBatch
from distlog.core.transactions.producer_states import EXPIRATION_CHECK_MS, FirstBatch, ProducerStates, any_first


class Effect(NamedTuple):
    """The transactions that batches abort, and the first unstable offset behind them; None if it stays."""

    aborted: Sequence[AbortedTransaction]
    first_unstable_offset: int | None


NO_EFFECT = Effect((), None)


class _Read(NamedTuple):
    """How far the log was read: to this position of the segment `stem`, and this offset."""

    stem: str
    position: int
    offset: int


_NOTHING = _Read("", 0, 0)


class PartitionProducers:
    """The producers of a partition of a topic; `first` see `ProducerStates.check`.

    All methods need the partition's lock, and get the active `segment` at its end. They raise StorageError, and
    CorruptRecordError for a damaged segment.
    """

    def __init__(
        self, handle: TopicHandle, partition: int, snapshots: CurrentSnapshot, first: FirstBatch = any_first
    ) -> None:
        self._partition, self._snapshots, self._clock, self._first = partition, snapshots, handle.clock, first
        self._stored = StoredProducers(handle.storage, handle.name, partition)
        self._states, self._read, self._expired_ms = ProducerStates(), _NOTHING, 0
        # a look reads many batches, so that clients cannot have one for each batch that is refused
        self._has_looked_back = False

    def check(self, rows: npt.NDArray[Any], segment: LogSegment) -> KnownBatch | None:
        """See `ProducerStates.check`."""
        self.catch_up(segment)
        now_ms = self._clock()
        is_time = now_ms - self._expired_ms >= EXPIRATION_CHECK_MS
        self._states.expire(now_ms, None if is_time else set(rows["producer_id"].tolist()))
        self._expired_ms = now_ms if is_time else self._expired_ms
        try:
            return self._states.check(rows, self._first)
        except OutOfOrderSequenceError:
            if self._has_looked_back:
                raise
        self._look_back()
        return self._states.check(rows, self._first)

    def entries(self, segment: LogSegment | None) -> npt.NDArray[np.void]:
        """What is known of each producer now, as a producer snapshot has it (ENTRY rows); without an active segment,
        by the sealed ones.
        """
        if segment is None:
            state = self._snapshots.refresh().partitions[self._partition]
            states = self._stored.behind(state.segments, state.log_end_offset)
        else:
            self.catch_up(segment)
            states = self._states
        states.expire(self._clock())
        return states.entries()

    def has_open(self, producer_id: int, epoch: int, segment: LogSegment) -> bool:
        """See `ProducerStates.has_open`."""
        self.catch_up(segment)
        return self._states.has_open(producer_id, epoch)

    def effect_of(self, data: npt.NDArray[Any], rows: npt.NDArray[Any]) -> Effect:
        """What batches that come next do to the transactions: to those open behind all that was read."""
        if not (rows["attributes"] & TRANSACTIONAL).any():
            return NO_EFFECT
        transactions = OpenTransactions(self._states.opened)
        return Effect(transactions.see(data, rows), transactions.first_offset)

    def appended(self, data: npt.NDArray[Any], rows: npt.NDArray[Any], segment: LogSegment) -> None:
        """Take the batches that were appended after their `check`."""
        self._states.see(data, rows, heard_ms=self._clock())
        self._read = _Read(segment.stem, segment.size, segment.next_offset)

    def catch_up(self, segment: LogSegment) -> None:
        """Read what the log has behind what was read; a segment that is met first gets its snapshot."""
        stem, position, _ = self._read
        if segment.stem != stem or segment.size < position:
            self._begin(segment)
            position = 0
        if segment.has_producers:
            for found in segment.batches(position):
                self._states.see(found.data, found.rows, heard_ms=self._clock())
        self._read = _Read(segment.stem, segment.size, segment.next_offset)

    def _begin(self, segment: LogSegment) -> None:
        """Know the states where the segment begins, and have them in its snapshot."""
        segments = self._snapshots.refresh().partitions[self._partition].segments
        if not self._ends_at(segments, segment):
            stored = self._stored.before(segment.stem)
            self._states = stored or self._stored.behind(segments, segment.base_offset)
            self._states.expire(self._clock())
            self._has_looked_back = False
            if stored is not None:
                return
        if segment.base_offset:
            self._stored.keep(segment.stem, self._states)

    def _look_back(self) -> None:
        """Know the last batches before the active segment, not only the last one of each producer."""
        segments = self._snapshots.refresh().partitions[self._partition].segments
        self._states.recall(self._stored.last(segments))
        self._has_looked_back = True

    def _ends_at(self, segments: Sequence[SegmentInfo], segment: LogSegment) -> bool:
        """Whether what was read ends where `segment` begins: it was sealed there, and nothing came between."""
        end = [(segments[-1].stem, segments[-1].next_offset)] if len(segments) else []
        read = self._read
        return end == [(read.stem, read.offset)] and segment.base_offset == read.offset
