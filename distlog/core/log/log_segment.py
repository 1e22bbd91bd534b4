"""One active segment on a local disk (Kafka's `LogSegment`)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from operator import itemgetter
from random import Random
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from distlog.core.arrays import MAX_INT, MAX_LONG, Longs, numbers_of
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptRecordError, RecordTooLargeError, StorageError
from distlog.core.format.indexes import OFFSET_ENTRY, TIME_ENTRY, AbortedTransaction
from distlog.core.format.kernels.segments import (
    BASE_OFFSET,
    MAX_TIMESTAMP,
    NEXT_OFFSET,
    OFFSET_OF_MAX,
    POSITION,
    PRODUCER_BITS,
    PRODUCERS,
    ROLL_TIMESTAMP,
    TRANSACTIONS,
)
from distlog.core.format.record_batch import LOG_OVERHEAD, Batches, check_crcs
from distlog.core.format.record_decoder import decode
from distlog.core.format.record_encoder import jittered, time_span
from distlog.core.log.partition_files import (
    NOTHING_DURABLE,
    WALK_BYTES,
    DamagedLogError,
    DurableEnd,
    FileCalls,
    SegmentFiles,
    TrailingBytes,
    batches_from,
    inspect_tail,
    next_offset_of,
    sound_batches,
)
from distlog.core.segments.producer_states import OpenTransactions
from distlog.core.segments.segment_state import (
    FROM_HEADERS,
    OFFSET_INDEX,
    TIME_INDEX,
    TXN_INDEX,
    IndexEntries,
    Numbers,
    SegmentState,
    UnfitBatchError,
    emptied,
    field_numbers,
    fold,
    fold_seal,
    pack_state,
)

# A recovery walks batches, and folds their headers into the segment's state and indexes as appends do (Kafka's
# `LogSegment.recover`). It compares checksums, but decompresses nothing.
#
# Acknowledged records are never cut off (`DurableEnd`). A log that ends before its durable end raises
# DamagedLogError, and so do sound batches after a damaged one, since no crash explains them. If the damage is a
# memory page of zeros, it is a torn write: the device did not write the page before a power loss, or the kernel
# dropped it. No sync covered this page, or anything written after it.

_log = logging.getLogger("distlog")

#: The indexes of state fields in a `Numbers` array; _FLUSHED and _ENDS have the indexes of an offset and a position.
_CREATED, _UNSTABLE, _FLUSHED_MS = field_numbers(("created_ms", "first_unstable_offset", "flushed_ms"))
_FLUSHED, _ENDS = list(field_numbers(("flushed_offset", "flushed_position"))), [NEXT_OFFSET, POSITION]
#: Texts of errors: why a segment refuses changes, and what to do about a damaged log.
_TORN = "a torn write could not be cut off; try again, which recovers the segment first"
_SYNC_FAILED = "a sync failed, so its durable end is unknown; try again, which recovers the segment first"
_REMEDY = "restore the file, or run `distlog repair`, which cuts it and reports the lost records"
#: The bytes that are read at once to find a batch by its offset, and by a time.
_HEADER_STEP, _TIME_STEP = 16 << 10, 256 << 10


def _field_property(field: int) -> property:
    return property(lambda segment: int(segment._numbers[field]))


class ReadableSegment:
    """A segment in `folder`, up to the end in its state; needs no lock."""

    def __init__(
        self, folder: str, state: SegmentState, config: TopicConfig, calls: FileCalls = os, *, writable: bool = False
    ) -> None:
        self.stem, self.config = state.stem, config
        self._files = SegmentFiles.of(folder, state.stem, config, calls, writable=writable)
        if self._files.log.checked_size() > MAX_INT:
            text = f"a log file cannot have more than {MAX_INT} bytes: verify, then restore it from a copy"
            raise StorageError(text, file=self.file)
        self._numbers, self._interval = state.numbers(), config.index_interval_bytes

    @property
    def state(self) -> SegmentState:
        return SegmentState.of_numbers(self.stem, self._numbers)

    def packed_state(self) -> bytes:
        return pack_state(self.stem, self._numbers)

    @property
    def file(self) -> str:
        return self._files.log.path

    @property
    def is_preallocated(self) -> bool:
        return self._files.preallocated_bytes > 0

    @property
    def is_open(self) -> bool:
        return self._files.log.is_open

    base_offset = _field_property(BASE_OFFSET)
    next_offset = _field_property(NEXT_OFFSET)
    # in ms; -1 if there is none
    max_timestamp = _field_property(MAX_TIMESTAMP)
    size = _field_property(POSITION)  # of the log up to the state's end

    @property
    def has_producers(self) -> bool:
        return bool(self._numbers[PRODUCER_BITS] & PRODUCERS)

    @property
    def unflushed(self) -> Unflushed:
        return Unflushed.of(self._numbers)

    def translate_offset(self, offset: int) -> BatchLocation | None:
        """Return the first batch whose last offset is at least `offset`."""
        for batches in self._from_offset(offset, _HEADER_STEP):
            rows = batches.rows
            last = rows["base_offset"] + rows["last_offset_delta"]
            row = int(np.searchsorted(last, offset))
            if row < len(rows):
                position, size, base_offset = (int(rows[name][row]) for name in ("position", "size", "base_offset"))
                return BatchLocation(base_offset, int(last[row]), batches.position + position, size)
        return None

    def find_offset_by_timestamp(self, timestamp: int) -> int | None:
        """Return the offset of the first record at or after `timestamp` (ms)."""
        _, relative_offset = self._files.times.floor(timestamp, int(self._numbers[TIME_INDEX]))
        for batches in self._from_offset(self.base_offset + relative_offset, _TIME_STEP):
            data, file, position = batches.data, self.file, batches.position
            for row in np.flatnonzero(batches.rows["max_timestamp"] >= timestamp).tolist():
                batch = batches.rows[row : row + 1]
                check_crcs(data, batch, file=file, file_position=position)
                records = decode(data, batch, columns=("offset", "timestamp"), file=file, file_position=position)
                matches = np.flatnonzero(numbers_of(records.column(1).cast("int64")) >= timestamp)
                if len(matches):
                    return int(records.column(0)[int(matches[0])].as_py())
        return None

    def _from_offset(self, offset: int, step: int) -> Iterator[Batches]:
        """Return batches from the index entry of `offset` on, or from the log's start if the index does not fit."""
        relative_offset, position = self._files.offsets.floor(
            offset - self.base_offset, int(self._numbers[OFFSET_INDEX])
        )
        walk = batches_from(self._files.log, position, self.size, step)
        if relative_offset < 0:
            return walk
        with suppress(CorruptRecordError):
            first = next(walk, None)
            if first is not None and next_offset_of(first.rows[:1]) == self.base_offset + relative_offset + 1:
                return chain([first], walk)
        # a recovery in another process may have dropped the entry or its batch
        return batches_from(self._files.log, 0, self.size, step)

    def batches(self, position: int) -> Iterator[Batches]:
        return batches_from(self._files.log, position, self.size, WALK_BYTES)

    def trailing(self, numbers: Numbers | None = None) -> TrailingBytes:
        """Inspect the bytes after the end in `numbers`, by default the state's."""
        numbers, size = self._numbers if numbers is None else numbers, self._files.log.checked_size()
        # accept offsets from BASE_OFFSET on: no checksum covers the last batch's offset, so NEXT_OFFSET may be wrong
        trailing = inspect_tail(self._files.log, int(numbers[POSITION]), size, int(numbers[BASE_OFFSET]))
        # zeros after other bytes are a part of the tail, unless they are preallocated space
        includes_zeros = trailing.end > trailing.position and not self.is_preallocated
        return trailing._replace(end=size) if includes_zeros else trailing

    def damage(
        self, durable: DurableEnd, numbers: Numbers | None = None, *, is_end_given: bool = False
    ) -> DamagedLogError | None:
        """Return an error if the end in `numbers` is before `durable`, or if sound batches follow this end."""
        numbers = self._numbers if numbers is None else numbers
        trailing = self.trailing(numbers)
        offset, position = int(numbers[NEXT_OFFSET]), int(numbers[POSITION])
        location = {"file": self.file, "position": position, "offset": offset}
        if position < durable.position or offset < durable.offset:
            text = f"the active log lacks records that were acknowledged, from this offset on: {_REMEDY}"
            return DamagedLogError(text, **location, end_offset=durable.offset)
        # if the end is given, as after a failed sync, sound batches may follow it
        if trailing.sound is None or trailing.is_hole or is_end_given:
            return None
        text = f"a batch of the active log is damaged, and sound batches follow it: {_REMEDY}"
        return DamagedLogError(text, **location, sound_position=trailing.sound[0], sound_offset=trailing.sound[1])

    def last_sound_offset(self) -> int:
        """Return the offset after the last sound batch past the state's end, or 0."""
        sound, end_offset = self.trailing().sound, 0
        if sound is not None:
            position, offset = sound
            for batches in sound_batches(self._files.log, position, self._files.log.checked_size(), offset):
                end_offset = next_offset_of(batches.rows)
        return end_offset

    def may_have_its_end(self) -> bool:
        """False if the indexes find no batch that ends at the state's end."""
        if not self.has_index_lengths():
            return True
        try:
            last = self.translate_offset(self.next_offset - 1) if self.size else None
        except CorruptRecordError:
            return False
        return not self.size or (last is not None and last.position + last.size == self.size)

    def scan_tail(self, transactions: OpenTransactions, end: int | None = None) -> SegmentState:
        """Return the state after the sound batches up to the position `end`; changes no file."""
        numbers, _ = self._walk(self._numbers, self._observe_log(transactions), end)
        return SegmentState.of_numbers(self.stem, numbers)

    def _walk(
        self, numbers: Numbers, transactions: OpenTransactions, end: int | None = None
    ) -> tuple[Numbers, list[tuple[Numbers, IndexEntries]]]:
        """Fold the sound batches up to `end`; returns the numbers, and (numbers before, entries) of each step."""
        steps = list[tuple[Numbers, IndexEntries]]()
        numbers = _with_unstable(numbers, transactions)
        end = self._files.log.checked_size() if end is None else end
        for batches in sound_batches(self._files.log, int(numbers[POSITION]), end, int(numbers[NEXT_OFFSET])):
            first_offsets = transactions.first_offsets
            aborted = transactions.observe(batches.data, batches.rows)
            try:
                folded = fold(numbers, batches.data, batches.rows, self._interval, aborted=aborted)
            except UnfitBatchError as error:
                # a batch's offset is damaged, which no checksum covers: add the batches before this one, and end here
                transactions.first_offsets = first_offsets
                if error.row:
                    sound_end = batches.position + batches.first(error.row).data.nbytes
                    numbers, more_steps = self._walk(numbers, transactions, sound_end)
                    steps += more_steps
                break
            steps.append((numbers, folded.entries))
            numbers = _with_unstable(folded.numbers, transactions)
        return numbers, steps

    def _observe_log(self, transactions: OpenTransactions) -> OpenTransactions:
        """Advance `transactions` from the segment's start to the state's end; returns them."""
        if self._numbers[PRODUCER_BITS] & TRANSACTIONS:
            for batches in self.batches(0):
                transactions.observe(batches.data, batches.rows)
        return transactions

    def has_lost_its_end(self) -> bool:
        """True if the sound batches end after the flushed part, before the state's end: the kernel dropped pages."""
        log, end = self._files.log, self.size
        if log.was_replaced or not os.path.exists(log.path):
            return False
        sound_numbers = self._numbers.copy()
        sound_numbers[_ENDS] = self.base_offset, 0
        for batches in sound_batches(log, 0, end, self.base_offset):
            sound_numbers[_ENDS] = next_offset_of(batches.rows), batches.end
        durable = DurableEnd(*self._numbers[_FLUSHED].tolist())
        # `damage` is None if the flushed part is sound, and no sound batch follows, except after a hole of zeros
        return sound_numbers[POSITION] < end and self.damage(durable, sound_numbers) is None

    def has_its_bytes(self) -> bool:
        """True if the log has the state's length, and the indexes its entries; does not read the log."""
        return self._files.log.checked_size() >= self.size and self._files.has_entries(self._numbers)

    def has_index_lengths(self) -> bool:
        return self._files.has_index_lengths(self._numbers)

    def bytes_past_end(self) -> int:
        """Return the log's bytes past the state's end, less preallocated ones; below 0 if it is short or replaced."""
        log, position = self._files.log, self.size
        trailing_bytes: int = log.checked_size() - position
        if log.was_replaced:
            return -1
        # no batch begins with LOG_OVERHEAD zeros, so they are preallocated space
        if trailing_bytes > 0 and self.is_preallocated and not any(log.read(position, position + LOG_OVERHEAD)):
            return 0
        return trailing_bytes

    def close(self) -> None:
        self._files.close()


class LogSegment(ReadableSegment):
    """A segment for appends under the partition's lock. After an incomplete change, it refuses further changes."""

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
        # the stem is the seed of the jitter, so all processes have the same jitter
        self._clock, self._span_ms = clock, jittered(time_span(config), config, Random(state.stem))
        self._refusal: str | None = None
        self._has_durable_txn_index = False

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
    ) -> LogSegment:
        segment = cls(folder, SegmentState.new(stem, base_offset, clock()), config, clock=clock, calls=calls)
        segment._files.create()
        return segment

    @property
    def sync_failed(self) -> bool:
        return self._refusal == _SYNC_FAILED

    @property
    def is_torn(self) -> bool:
        return self._refusal == _TORN

    def resume(self, state: SegmentState) -> None:
        self._numbers = state.numbers()

    def append(
        self,
        data: bytes | memoryview,
        rows: npt.NDArray[Any],
        *,
        offsets_of_max_timestamp: Longs = FROM_HEADERS,
        min_timestamps: Longs = FROM_HEADERS,
        aborted: Sequence[AbortedTransaction] = (),
        first_unstable_offset: int | None = None,
    ) -> None:
        """Append `data` with the headers `rows` (BATCH rows). After an error nothing has changed, or it `is_torn`."""
        if not len(rows):
            return
        numbers_before = self._changeable_numbers()
        numbers_after, entries = fold(
            numbers_before, data, rows, self._interval, offsets_of_max_timestamp, min_timestamps, aborted
        )
        if first_unstable_offset is not None:
            numbers_after[_UNSTABLE] = first_unstable_offset
        try:
            self._files.log.write(data, int(numbers_before[POSITION]))
            if any(entries):
                self._files.write_entries(numbers_before, entries)
        except BaseException:
            try:
                self._files.cut(numbers_before)
            except StorageError:
                self._refusal = _TORN
            raise
        self._numbers = numbers_after

    def should_roll(self, size: int, max_timestamp: int, max_offset: int) -> bool:
        """True if batches of `size` bytes need a new segment (Kafka's `LogSegment.shouldRoll`)."""
        numbers, max_index_bytes = self._numbers, self.config.segment_index_bytes
        # an index stores offsets relative to the base offset, as int32
        if not 0 <= max_offset - self.base_offset <= MAX_INT:
            return True
        if self.size == 0:
            return False  # a new segment is never rolled
        offsets_bytes, times_bytes = int(numbers[OFFSET_INDEX]), int(numbers[TIME_INDEX])
        has_full_offsets = offsets_bytes + OFFSET_ENTRY.itemsize > max_index_bytes
        # one slot of the time index is for the entry that the seal adds
        has_full_times = times_bytes + 2 * TIME_ENTRY.itemsize > max_index_bytes
        if has_full_offsets or has_full_times or self.size + size > self.config.segment_size:
            return True
        first_ms = int(numbers[ROLL_TIMESTAMP])
        age_ms = max_timestamp - first_ms if first_ms >= 0 else self._clock() - int(numbers[_CREATED])
        return age_ms > self._span_ms

    def recover_tail(self, transactions: OpenTransactions, durable: DurableEnd = NOTHING_DURABLE) -> None:
        """Recover from the state's end on, like `recover`."""
        self._recover(self._numbers, self._observe_log(transactions), durable)

    def rewrite_unflushed(self, transactions: OpenTransactions, *, only_read: bool = False) -> bool:
        """Rewrite (or with `only_read` read) the bytes that may not be durable; False if the kernel lost some.

        After a failed sync, Linux keeps the bytes in memory, but does not write them again by itself.
        """
        numbers, files, end = self._changeable_numbers(), self._files, self.size
        offset, position = numbers[_FLUSHED].tolist()
        for batches in sound_batches(files.log, position, end, offset):
            if not only_read:
                files.log.write(batches.data, batches.position)
            offset, position = next_offset_of(batches.rows), batches.end
        if position < end:
            sound_numbers = numbers.copy()
            sound_numbers[_ENDS] = offset, position
            error = self.damage(NOTHING_DURABLE, sound_numbers)
            if error is not None:
                raise error
            return False
        if not files.has_entries(numbers):
            if not self.make_indexes(transactions):
                return False
        elif only_read:
            return True
        files.rewrite_entries(self._numbers)
        return files.has_entries(self._numbers)

    def make_indexes(self, transactions: OpenTransactions) -> bool:
        """Rebuild the indexes from the log; returns False, and changes nothing, if a batch is damaged."""
        numbers = self._changeable_numbers()
        rebuilt = emptied(self.stem, numbers)
        rebuilt[_FLUSHED], rebuilt[_FLUSHED_MS] = numbers[_FLUSHED], numbers[_FLUSHED_MS]  # the log is not changed
        rebuilt, steps = self._walk(rebuilt, transactions, self.size)
        if rebuilt[POSITION] < self.size:
            return False
        for numbers_before, entries in steps:
            self._files.write_entries(numbers_before, entries)
        self._files.clear_after_entries(rebuilt)
        self._numbers = rebuilt
        return True

    def open(self) -> None:
        self._files.open()

    def fail_by_other_sync(self) -> NoReturn:
        """Refuse changes until a recovery, since a sync of another process failed. Raises StorageError."""
        self._refusal = _SYNC_FAILED
        raise StorageError(f"cannot change the segment: {_SYNC_FAILED}", file=self._files.log.path)

    def cut_bytes_past_end(self) -> None:
        """Cut off all bytes after the state's end, which a failed append wrote."""
        self._warn_of_cut(self._numbers)
        self._files.cut(self._numbers)
        self._refusal = None

    def _warn_of_cut(self, numbers: Numbers) -> None:
        trailing = self.trailing(numbers)
        if trailing.end > trailing.position:
            _log.warning(
                "%s: recovery cuts off %d bytes after position %d: the records from offset %d on%s",
                self.file,
                trailing.end - trailing.position,
                trailing.position,
                int(numbers[NEXT_OFFSET]),
                "" if trailing.sound is None else f", with sound batches from offset {trailing.sound[1]} on",
            )

    def recover(self, transactions: OpenTransactions, durable: DurableEnd = NOTHING_DURABLE) -> None:
        """Walk the whole log, rebuild its indexes, and cut off a torn write. Raises the error of `damage`."""
        self._recover(emptied(self.stem, self._numbers), transactions, durable)

    def drop_unflushed(self, transactions: OpenTransactions) -> None:
        """Cut off everything after the flushed end, since a sync failed, and log the loss."""
        numbers_before, flushed = self._numbers, self._numbers[_FLUSHED]
        durable = DurableEnd(*flushed.tolist())
        self._recover(emptied(self.stem, numbers_before), transactions, durable, durable.position)
        if self.next_offset < numbers_before[NEXT_OFFSET]:
            _log.warning(
                "%s: the disk lost records that were not synced: offsets %d to %d, between positions %d and %d",
                self.file,
                self.next_offset,
                int(numbers_before[NEXT_OFFSET]),
                self.size,
                int(numbers_before[POSITION]),
            )
        self._numbers[_FLUSHED] = np.minimum(flushed, self._numbers[_ENDS])
        self._numbers[_FLUSHED_MS] = numbers_before[_FLUSHED_MS]

    def note_flushed(self, offset: int, position: int, started_ms: int) -> None:
        for field, flushed in zip(_FLUSHED, (offset, position), strict=True):
            self._numbers[field] = max(int(self._numbers[field]), flushed)
        self._numbers[_FLUSHED_MS] = started_ms

    def flush(self) -> None:
        """Sync all appends. Don't repeat a failed sync, since the next one would succeed without the lost records."""
        offset, position = self._changeable_numbers()[_ENDS].tolist()
        started_ms = self._clock()
        self._sync()
        self.note_flushed(offset, position, started_ms)

    def seal(self) -> SegmentState:
        """End the segment (Kafka's `onBecomeInactiveSegment`): add its last time entry, trim and sync its files."""
        numbers_before = self._changeable_numbers().copy()
        if numbers_before[MAX_TIMESTAMP] >= 0 and numbers_before[OFFSET_OF_MAX] < 0:
            # a recovery reads only headers, which lack this offset; it stays unknown if a batch is damaged
            with suppress(CorruptRecordError):
                newest = self.find_offset_by_timestamp(int(numbers_before[MAX_TIMESTAMP]))
                numbers_before[OFFSET_OF_MAX] = -1 if newest is None else newest
        numbers_after, entries = fold_seal(numbers_before)
        self._files.write_entries(numbers_before, entries)
        self._files.trim(numbers_after)
        self._numbers = numbers_after
        self.flush()
        self._refusal = "it is sealed; the next append starts another one"
        return self.state

    def _changeable_numbers(self) -> Numbers:
        """Return the state's numbers; StorageError if the segment refuses changes."""
        if self._refusal:
            raise StorageError(f"cannot change the segment: {self._refusal}", file=self._files.log.path)
        return self._numbers

    def _recover(
        self, numbers: Numbers, transactions: OpenTransactions, durable: DurableEnd, end: int | None = None
    ) -> None:
        """Walk from `numbers` up to `end` or damage, write index entries, and cut all files where the walk ended."""
        numbers, steps = self._walk(numbers, transactions, end)
        error = self.damage(durable, numbers, is_end_given=end is not None)
        if error is not None:
            raise error
        self._warn_of_cut(numbers)
        for numbers_before, entries in steps:
            self._files.write_entries(numbers_before, entries)
        self._files.cut(numbers)
        self._numbers, self._refusal = numbers, None

    def _sync(self) -> None:
        # a failed open is not a failed sync, since no records are lost
        self._files.open()
        try:
            self._files.sync()
            if self._numbers[TXN_INDEX] > 0 and not self._has_durable_txn_index:
                # the transaction index was created with its first entry, so its name may not be durable
                self._files.sync_names()
                self._has_durable_txn_index = True
        except StorageError:
            self._refusal = _SYNC_FAILED
            raise


_end_fields = itemgetter(
    *field_numbers(("next_offset", "position", "flushed_offset", "flushed_position", "flushed_ms"))
)


class Unflushed(NamedTuple):
    """The size of the part of a log that may not be fsynced, and the time of the last sync, or of the creation."""

    messages: int
    size: int
    flushed_ms: int

    @classmethod
    def of(cls, numbers: Numbers) -> Unflushed:
        end, position, flushed_end, flushed_position, flushed_ms = _end_fields(numbers.tolist())
        return cls(end - flushed_end, position - flushed_position, flushed_ms)


def is_flush_due(unflushed: Unflushed, config: TopicConfig, clock: Callable[[], int]) -> bool:
    """True if `flush.messages` records are unflushed, or some are and the last sync was `flush.ms` ago."""
    if unflushed.messages <= 0:
        return False
    if unflushed.messages >= config.flush_messages:
        return True
    # `abs`, since the true age is unknown if the clock was set back: a flush is due sooner
    return config.flush_ms < MAX_LONG and abs(clock() - unflushed.flushed_ms) >= config.flush_ms


def check_batch_size(largest_bytes: int, config: TopicConfig) -> None:
    if largest_bytes > config.max_message_bytes:
        text = "a batch is larger than max.message.bytes: make smaller batches"
        raise RecordTooLargeError(text, size=largest_bytes, limit=config.max_message_bytes)


class BatchLocation(NamedTuple):
    """A batch's offsets, its position in the log file, and its size."""

    base_offset: int
    last_offset: int
    position: int
    size: int


@contextmanager
def closed_on_error(segment: ReadableSegment) -> Iterator[None]:
    try:
        yield
    except BaseException:
        segment.close()
        raise


def _with_unstable(numbers: Numbers, transactions: OpenTransactions) -> Numbers:
    changed: Numbers = numbers.copy()
    changed[_UNSTABLE] = transactions.first_offset
    return changed
