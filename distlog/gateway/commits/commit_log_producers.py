"""What a partition on an object store says of its idempotent producers, as far as this gateway has read it.

A commit's segments carry the sequence numbers in their batches. A gateway that begins reads the segments of the last
REMEMBERED_MS, and later those that others commit. So a batch that is sent again is known, also after the gateway was
killed, as long as the client tries no longer than that (delivery.timeout.ms is two minutes by default). Transactions
that are open for longer are known, too: it reads from the first unstable offset on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.commits.state.snapshot import PartitionState
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.stable_offset import last_stable_offset
from distlog.core.reading.whole_log import whole_log
from distlog.core.transactions.producer_state import KnownBatch
from distlog.core.transactions.producer_states import FirstBatch, ProducerStates, any_first

#: How far back a gateway reads when it begins.
REMEMBERED_MS = 15 * 60_000


class CommitLogProducers:
    """The producers of one partition; for one thread at a time. `clock` tells the time in ms.

    `first` may refuse the first batch of a producer that is not known.
    """

    def __init__(self, reader: SegmentReader, clock: Callable[[], int], first: FirstBatch = any_first) -> None:
        self._reader, self._clock, self._first = reader, clock, first
        self._states, self._next_offset = ProducerStates(whole=False), -1

    def catch_up(self, state: PartitionState) -> None:
        """Read what the partition has behind what was read. Raises StorageError, CorruptRecordError."""
        segments = state.segments
        # a merge may have put what was read and what is new into one segment
        self._states.offset = max(self._next_offset, 0)
        first = segments.find(self._next_offset) if self._next_offset >= 0 else self._first_remembered(state)
        for number in range(first, len(segments)):
            segment = segments[number]
            if segment.may_have_producers:
                for chunk in whole_log(self._reader, segment):
                    self._states.see(chunk.data, chunk.batches, segment.shift, heard_ms=self._clock())
            self._next_offset = segment.next_offset
        self._next_offset = max(self._next_offset, state.log_end_offset)
        self._states.expire(self._clock())

    def _first_remembered(self, state: PartitionState) -> int:
        # not the last old one: a job may have committed now what it wrote long ago
        young = np.flatnonzero(state.segments.array("created_ms") >= self._clock() - REMEMBERED_MS)
        first = int(young[0]) if len(young) else len(state.segments)
        return min(first, state.segments.find(last_stable_offset(self._reader, state)))

    @property
    def opened(self) -> Mapping[int, int]:
        """The first offsets of the transactions that are open behind what was read, by producer id."""
        return self._states.opened

    def entries(self) -> npt.NDArray[np.void]:
        """See `ProducerStates.entries`."""
        return self._states.entries()

    def has_read(self, state: PartitionState) -> bool:
        """Whether nothing of the partition is behind what was read."""
        return self._next_offset >= state.log_end_offset

    def check(self, rows: npt.NDArray[Any]) -> KnownBatch | None:
        """See `ProducerStates.check`; the batches are at the offsets from 0 on."""
        return self._states.check(rows, self._first)

    def appended(self, data: Any, rows: npt.NDArray[Any], first_offset: int) -> None:
        """Take batches that were committed at `first_offset`, after their `check`."""
        if first_offset != self._next_offset:
            # others came between: all is read by the next `catch_up`
            return
        self._states.see(data, rows, first_offset, heard_ms=self._clock())
        self._next_offset = first_offset + int(np.sum(rows["last_offset_delta"].astype(np.int64) + 1))


class ProducersByPartition(dict[int, CommitLogProducers]):
    """The producers of each partition that was asked for; `begin` makes what reads them."""

    def __init__(self, begin: Callable[[int], CommitLogProducers]) -> None:
        super().__init__()
        self._begin = begin

    def __missing__(self, partition: int) -> CommitLogProducers:
        """Begin with a partition."""
        return self.setdefault(partition, self._begin(partition))
