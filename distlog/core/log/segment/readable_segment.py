"""A segment on a local disk as far as it is read. No lock is needed: nothing behind the known end is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from distlog.core.config import TopicConfig
from distlog.core.kernels.index_build import MAX_TIMESTAMP
from distlog.core.kernels.segment_fold import (
    BASE_OFFSET,
    NEXT_OFFSET,
    POSITION,
    PRODUCER_BITS,
    PRODUCERS,
    TRANSACTIONS,
)
from distlog.core.log.segment import segment_reads, segment_recovery
from distlog.core.log.segment.active_file import FileCalls
from distlog.core.log.segment.batch_walk import WALK_BYTES, Batches, batches_from
from distlog.core.log.segment.flush_policy import Unflushed
from distlog.core.log.segment.segment_files import SegmentFiles
from distlog.core.log.segment.segment_reads import BatchPlace, ReadBatches, TimedOffset
from distlog.core.segments.segment_state import SegmentState, pack_state
from distlog.core.transactions.open_transactions import OpenTransactions


class ReadableSegment:
    """A segment in `folder` whose state is known. Errors of the disk are raised as StorageError.

    Only a subclass may be `writable`, and gives the system `calls` that change files.
    """

    def __init__(
        self, folder: str, state: SegmentState, config: TopicConfig, calls: FileCalls = os, *, writable: bool = False
    ) -> None:
        self.stem, self.config = state.stem, config
        self._files = SegmentFiles.of(folder, state.stem, config, calls, writable=writable)
        self._files.check_size()
        self._numbers, self._interval = state.numbers(), config.index_interval_bytes

    @property
    def state(self) -> SegmentState:
        """The state now."""
        return SegmentState.of_numbers(self.stem, self._numbers)

    def packed_state(self) -> bytes:
        """`state.pack()`, without making a SegmentState."""
        return pack_state(self.stem, self._numbers)

    @property
    def is_open(self) -> bool:
        """Whether this process has the log open."""
        return self._files.log.is_open

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return int(self._numbers[BASE_OFFSET])

    @property
    def has_producers(self) -> bool:
        """Whether batches carry producer ids."""
        return bool(self._numbers[PRODUCER_BITS] & PRODUCERS)

    @property
    def next_offset(self) -> int:
        """The offset behind the last one."""
        return int(self._numbers[NEXT_OFFSET])

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in ms; -1 if there is none."""
        return int(self._numbers[MAX_TIMESTAMP])

    @property
    def size(self) -> int:
        """The bytes of the log."""
        return int(self._numbers[POSITION])

    @property
    def unflushed(self) -> Unflushed:
        """What is not known to be on the device."""
        return Unflushed.of(self._numbers)

    def read(
        self, start_offset: int, max_size: int, max_position: int | None = None, *, min_one_batch: bool = False
    ) -> ReadBatches | None:
        """See `segment_reads.read`."""
        return segment_reads.read(
            self._files, self._numbers, start_offset, max_size, max_position, min_one_batch=min_one_batch
        )

    def translate_offset(self, offset: int) -> BatchPlace | None:
        """See `segment_reads.translate`."""
        return segment_reads.translate(self._files, self._numbers, offset)

    def find_offset_by_timestamp(self, timestamp: int, starting_offset: int | None = None) -> TimedOffset | None:
        """See `segment_reads.find_offset_by_timestamp`; starts at the base offset by default."""
        begin = int(self._numbers[BASE_OFFSET]) if starting_offset is None else starting_offset
        return segment_reads.find_offset_by_timestamp(self._files, self._numbers, timestamp, begin)

    def batches(self, position: int) -> Iterator[Batches]:
        """The batches from `position` on; see `batches_from`."""
        return batches_from(self._files.log, position, self.size, WALK_BYTES)

    def look_through(self, transactions: OpenTransactions) -> SegmentState:
        """The state that `LogSegment.recover_tail` would come to; nothing is written or cut."""
        opened = self._open_at_end(transactions)
        numbers = segment_recovery.look_through(self._files, self._numbers, self._interval, opened)
        return SegmentState.of_numbers(self.stem, numbers)

    def _open_at_end(self, transactions: OpenTransactions) -> OpenTransactions:
        """The transactions that are open at the known end, if `transactions` are where the segment begins."""
        if self._numbers[PRODUCER_BITS] & TRANSACTIONS:
            for found in self.batches(0):
                transactions.see(found.data, found.rows)
        return transactions

    def has_its_bytes(self) -> bool:
        """Whether the log is as long as the state says, and the indexes have the entries that it counts.

        Reads the entries, and compares their checksums; reads nothing of the log.
        """
        return self._files.log.size() >= self.size and self._files.has_entries(self._numbers)

    def seems_to_have_entries(self) -> bool:
        """See `SegmentFiles.seems_to_have_entries`."""
        return self._files.seems_to_have_entries(self._numbers)

    def unknown_bytes(self) -> int:
        """See `segment_recovery.unknown_bytes`."""
        return segment_recovery.unknown_bytes(self._files, self._numbers)

    def close(self) -> None:
        """Close the files, which stay as they are; nothing is flushed."""
        self._files.close()


@contextmanager
def closed_on_error(segment: ReadableSegment) -> Iterator[None]:
    """Close the segment's files when the block raises."""
    try:
        yield
    except BaseException:
        segment.close()
        raise
