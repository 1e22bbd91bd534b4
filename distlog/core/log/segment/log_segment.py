"""One segment on a local disk that is appended to in place: Kafka's `LogSegment`.

It knows nothing of locks, commits and topics. Callers that append, recover, truncate or seal hold the partition's
lock; `readable_segment` has what needs none. Many processes have a segment open: `resume` takes over the state that
another one left. Its files are read and written, never mapped (`active_index` says why). `close` does not change
their length: only `seal` trims, since others may be appending.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.commits.format.segment_info import NO_OFFSET
from distlog.core.config import TopicConfig
from distlog.core.errors import StorageError
from distlog.core.indexes.transaction_index import AbortedTransaction
from distlog.core.kernels.segment_fold import NEXT_OFFSET, POSITION
from distlog.core.log.segment import segment_reads, segment_recovery
from distlog.core.log.segment.active_file import FileCalls
from distlog.core.log.segment.readable_segment import ReadableSegment
from distlog.core.log.segment.segment_recovery import Recovery
from distlog.core.log.segment.segment_roll import must_roll, time_span_of
from distlog.core.segments.segment_state import Numbers, SegmentState, emptied, places
from distlog.core.segments.state_fold import BY_HEADERS, TXN_INDEX, Longs, fold, fold_seal
from distlog.core.transactions.open_transactions import OpenTransactions

(_UNSTABLE,) = places(("first_unstable_offset",))
_FLUSHED = list(places(("flushed_offset", "flushed_position")))
_TORN = "what was half written could not be cut off: recover it"
(_FLUSHED_MS,) = places(("flushed_ms",))
_SYNC_FAILED = "a sync failed, so nobody knows what is on the device: recover it"


class LogSegment(ReadableSegment):
    """A segment that can be changed; `clock` tells the time in ms, `calls` are the system calls that change files.

    Errors of the disk are raised as StorageError, or StorageFullError if it is full. After an error that leaves doubt
    about the files' content, every change is refused until `recover`.
    """

    def __init__(
        self,
        folder: str,
        state: SegmentState,
        config: TopicConfig,
        *,
        clock: Callable[[], int],
        calls: FileCalls = os,
    ) -> None:
        super().__init__(folder, state, config, calls, writable=True)
        self._clock, self._span_ms = clock, time_span_of(state.stem, config)
        self._refusal: str | None = None
        self._has_durable_names = False

    @classmethod
    def create(
        cls,
        folder: str,
        stem: str,
        base_offset: int,
        config: TopicConfig,
        *,
        clock: Callable[[], int],
        calls: FileCalls = os,
        first_unstable_offset: int = NO_OFFSET,
    ) -> LogSegment:
        """Create a segment, with durable file names; `first_unstable_offset` is that of the log before it."""
        state = SegmentState.new(stem, base_offset, clock(), first_unstable_offset)
        segment = cls(folder, state, config, clock=clock, calls=calls)
        segment._files.create()
        return segment

    @property
    def sync_failed(self) -> bool:
        """Whether a sync failed, and nothing was recovered since."""
        return self._refusal == _SYNC_FAILED

    @property
    def is_torn(self) -> bool:
        """Whether an append failed and could not be taken back, and nothing was cut off since."""
        return self._refusal == _TORN

    def resume(self, state: SegmentState) -> None:
        """Take over the state of this segment that another process left."""
        if state.stem != self.stem:
            raise ValueError(f"this is the state of segment {state.stem}, not of {self.stem}")
        self._numbers = state.numbers()

    def append(
        self,
        data: bytes | memoryview,
        rows: npt.NDArray[Any],
        *,
        newest_offsets: Longs = BY_HEADERS,
        min_timestamps: Longs = BY_HEADERS,
        aborted: Sequence[AbortedTransaction] = (),
        first_unstable_offset: int | None = None,
    ) -> None:
        """Append batches: all of `data`, whose headers are `rows` (BATCH rows, absolute offsets).

        If known, `newest_offsets` gives the offset of the first record with the largest timestamp of each batch, and
        `min_timestamps` its smallest timestamp. `aborted` are the transactions whose markers are among the batches.
        `first_unstable_offset` is that of the log behind them, if it changes. The checksums in `rows` must be right.
        Raises the UnfitBatchError of `fold`, before anything is written. After other errors the files are as before.
        """
        if not len(rows):
            return
        before = self._usable()
        after, entries = fold(before, data, rows, self._interval, newest_offsets, min_timestamps, aborted)
        if first_unstable_offset is not None:
            after[_UNSTABLE] = first_unstable_offset
        try:
            self._files.log.write(data, int(before[POSITION]))
            if any(entries):
                self._files.write_entries(before, entries)
        except BaseException:
            self._take_back(before)
            raise
        self._numbers = after

    def should_roll(self, size: int, max_timestamp: int, max_offset: int) -> bool:
        """Whether batches of `size` bytes, with this largest timestamp (ms) and last offset, need a new segment."""
        return must_roll(self._numbers, self.config, self._span_ms, self._clock, size, max_timestamp, max_offset)

    def recover_tail(self, transactions: OpenTransactions) -> Recovery:
        """Walk the log behind the state's end, and cut off a torn end; see `recover`."""
        return self._recovered(self._numbers, self._open_at_end(transactions))

    def write_again(self, transactions: OpenTransactions, *, only_read: bool = False) -> bool:
        """Write what is not known to be on the device again, for the next sync: the end of one before is not known.

        After a sync that failed, Linux keeps the bytes, but would not write them. False if it no longer has them.
        `transactions` are those that were open before the segment. With `only_read` it is read and not written.
        """
        numbers, flushed = self._usable(), self._numbers[_FLUSHED].tolist()
        return self._took(
            segment_recovery.write_again(
                self._files, numbers, self._interval, transactions, *flushed, only_read=only_read
            )
        )

    def make_indexes(self, transactions: OpenTransactions) -> bool:
        """See `segment_recovery.with_new_indexes`; False if a batch is damaged, and then nothing is changed."""
        found = segment_recovery.with_new_indexes(self._files, self._usable(), self._interval, transactions)
        return self._took(found)

    def open(self) -> None:
        """Open all files now."""
        self._files.open()

    def sync_error(self) -> StorageError:
        """Refuse every change until `recover`, since a sync of another process failed; returns the error to raise."""
        self._refusal = _SYNC_FAILED
        return StorageError(f"cannot change the segment: {_SYNC_FAILED}", file=self._files.log.path)

    def drop_uncounted(self) -> None:
        """Cut off what is behind the state's end, also whole batches: their append failed."""
        self._files.cut(self._numbers)
        self._refusal = None

    def recover(self, transactions: OpenTransactions) -> Recovery:
        """Walk the whole log, make its indexes anew, and cut off a torn end.

        `transactions` are those that were open before the segment.
        """
        return self._recovered(emptied(self.stem, self._numbers), transactions)

    def truncate_to(self, offset: int, transactions: OpenTransactions) -> int:
        """Drop the batch that holds `offset`, or else the next one, and all behind it; returns the bytes dropped."""
        place = self.translate_offset(offset)
        if place is None:
            return 0
        dropped = self.size - place.position
        self._recovered(emptied(self.stem, self._numbers), transactions, place.position)
        return dropped

    def drop_unflushed(self, transactions: OpenTransactions) -> None:
        """After a failed sync, drop all that is not known to be on the device."""
        flushed = self._numbers[_FLUSHED]
        self._recovered(emptied(self.stem, self._numbers), transactions, int(flushed[1]))
        self._numbers[_FLUSHED] = np.minimum(flushed, self._numbers[[NEXT_OFFSET, POSITION]])

    def know_flushed(self, offset: int, position: int, since_ms: int) -> None:
        """Note that the log is on the device up to this offset and position, by a sync that began at `since_ms`."""
        self._numbers[_FLUSHED] = np.maximum(self._numbers[_FLUSHED], (offset, position))
        self._numbers[_FLUSHED_MS] = since_ms

    def flush(self) -> None:
        """Return when all earlier appends are on the device; other appends may go on meanwhile.

        An error is final: a second sync after a failed one would succeed, without what was lost.
        """
        (offset, position), since_ms = self._usable()[[NEXT_OFFSET, POSITION]].tolist(), self._clock()
        self._sync()
        self.know_flushed(offset, position, since_ms)

    def seal(self) -> SegmentState:
        """End the segment: add its last time entry, trim its files, and sync them.

        Kafka's `onBecomeInactiveSegment`. The segment can then only be read, until it is closed.
        """
        before = segment_reads.with_newest_offset(self._files, self._usable())
        after, entries = fold_seal(before)
        self._files.write_entries(before, entries)
        self._files.trim(after)
        self._numbers = after
        self.flush()
        self._refusal = "the segment is sealed"
        return self.state

    def _took(self, numbers: Numbers | None) -> bool:
        self._numbers = self._numbers if numbers is None else numbers
        return numbers is not None

    def _usable(self) -> Numbers:
        if self._refusal:
            raise StorageError(f"cannot change the segment: {self._refusal}", file=self._files.log.path)
        return self._numbers

    def _take_back(self, before: Numbers) -> None:
        """Cut off a write that failed halfway."""
        try:
            self._files.cut(before)
        except StorageError:
            self._refusal = _TORN

    def _recovered(self, numbers: Numbers, transactions: OpenTransactions, end: int | None = None) -> Recovery:
        recovery = segment_recovery.recover(self._files, numbers, self._interval, transactions, end)
        self._numbers, self._refusal = recovery.numbers, None
        return recovery

    def _sync(self) -> None:
        # a file that cannot be opened is no failed sync: nothing is lost
        self._files.open()
        try:
            self._files.sync()
            if self._numbers[TXN_INDEX] > 0 and not self._has_durable_names:
                # the transaction index's file was made with its first entry, so its name may not be durable
                self._files.sync_names()
                self._has_durable_names = True
        except StorageError:
            self._refusal = _SYNC_FAILED
            raise
