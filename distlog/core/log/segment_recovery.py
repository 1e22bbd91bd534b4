"""Recovers a segment after a crash: walks its log, keeps the whole batches, and cuts off a torn write."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.arrays import new_array
from distlog.core.errors import CorruptRecordError
from distlog.core.format.kernels.segment_fold import BASE_OFFSET, NEXT_OFFSET, POSITION
from distlog.core.format.record_batch import (
    CRC_AT,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    Batches,
    BatchWalk,
    size_of_first,
)
from distlog.core.integers import MAX_INT
from distlog.core.log.segment_files import ActiveFile, SegmentFiles
from distlog.core.segments.segment_state import Folded, Numbers, UnfitBatchError, emptied, field_numbers, fold
from distlog.core.segments.transactions import OpenTransactions

#: Bytes per read where a whole file is read.
WALK_BYTES = 4 << 20
#: A device loses unsynced bytes in units of this size.
_SECTOR = 512
_MAGIC_AT, _MAGIC, _OFFSET_BYTES = 16, 2, 8
#: Bytes to compare after a bad batch, in addition to twice the tail's size. Hostile records may hold any
#: number of headers that claim any size.
_SPARE_CHECKS = 64 << 20


def batches_from(file: ActiveFile, position: int, end: int, step: int) -> Iterator[Batches]:
    """The whole batches between `position`, where one begins, and `end`, about `step` bytes at a time.

    Checksums are left to the caller. Raises CorruptRecordError for bytes that cannot be a batch; a batch that the end
    cuts short is ignored.
    """
    return iter(BatchWalk(_reader(file), position, end, step, "raise", file.path))


def _reader(file: ActiveFile) -> Callable[[int, int], memoryview]:
    buffer = new_array(0, np.uint8)

    def read(start: int, end: int) -> memoryview:
        # callers are done with a step's batches when they ask for the next, so one buffer is enough
        nonlocal buffer
        if buffer.size < end - start:
            buffer = new_array(end - start, np.uint8)
        return buffer.data[: file.read_into(buffer.data[: end - start], start)]

    return read


def sound_batches(file: ActiveFile, position: int, end: int, next_offset: int) -> Iterator[Batches]:
    """The batches from `position` on up to the first that is torn, fails its checksum or is out of order."""
    walk = BatchWalk(_reader(file), position, end, WALK_BYTES, "stop", file.path, checked=True)
    for batches in walk:
        count = _in_order(batches.rows, next_offset)
        sound = walk.stop(batches, count) if count < len(batches.rows) else batches
        if count:
            yield sound
            next_offset = next_offset_of(sound.rows)


def _in_order(rows: npt.NDArray[Any], next_offset: int) -> int:
    """The number of batches before the first one that begins below the end of the batch before it."""
    ends = rows["base_offset"] + rows["last_offset_delta"] + 1
    bad = rows["base_offset"] < np.concatenate([[next_offset], ends[:-1]])
    return int(bad.argmax()) if bad.any() else len(rows)


class TrailingBytes(NamedTuple):
    """The tail after the last sound batch of a log: from `position` on, up to `end`, where only zeros follow.

    `sound` is the position and the base offset of the first sound batch there. `is_hole` says that a device has
    lost what stood at `position`: its head is zeros, or its part of a sector.
    """

    position: int
    end: int
    sound: tuple[int, int] | None
    is_hole: bool


def inspect_tail(file: ActiveFile, position: int, end: int, base_offset: int) -> TrailingBytes:
    """The tail between `position`, where the sound batches end, and `end`; a sound batch has `base_offset` or above.

    A batch at `position` itself matches with any offset. Space that was allocated and never written is not read.
    """
    head = file.read(position, min(position + LOG_OVERHEAD, end)) if position < end else memoryview(b"")
    if HEADER_SIZE <= (size := size_of_first(head)) <= end - position and _is_sound(file, position, size):
        return TrailingBytes(position, end, (position, int.from_bytes(head[:8], "big", signed=True)), is_hole=False)
    begin, last, sound, to_check = position, position, None, 2 * (end - position) + _SPARE_CHECKS
    while True:
        begin, stop = file.next_data(begin, end)
        if begin == stop:
            break
        stop = min(begin + WALK_BYTES, stop)
        data = np.frombuffer(file.read(begin, min(stop + HEADER_SIZE, end)), np.uint8)
        written = data[: stop - begin] != 0
        if written.any():
            last = begin + written.size - int(written[::-1].argmax())
            for batch_position, offset, size in (
                _headers_in(data, begin, stop, end, base_offset) if sound is None else ()
            ):
                to_check -= size
                # a tail that would take too long to check counts as sound: nothing is cut then
                if to_check < 0 or _is_sound(file, batch_position, size):
                    sound = batch_position, offset
                    break
        begin = stop
    return TrailingBytes(position, last, sound, last > position and _is_hole(file, position, end))


def _headers_in(
    data: npt.NDArray[np.uint8], begin: int, stop: int, end: int, base_offset: int
) -> Iterator[tuple[int, int, int]]:
    """The positions, base offsets and sizes of what may be a batch from `begin`, where `data` begins, to `stop`."""
    count = min(stop - begin, data.size - HEADER_SIZE + 1)
    field_numbers = np.flatnonzero(data[_MAGIC_AT : _MAGIC_AT + max(count, 0)] == _MAGIC)
    heads = data[field_numbers[:, None] + np.arange(LOG_OVERHEAD)]
    offsets = np.ascontiguousarray(heads[:, :8]).view(">i8")[:, 0].astype(np.int64)
    sizes = np.ascontiguousarray(heads[:, 8:]).view(">i4")[:, 0].astype(np.int64) + LOG_OVERHEAD
    fits = (offsets >= base_offset) & (offsets - base_offset <= MAX_INT) & (sizes >= HEADER_SIZE)
    fits &= sizes <= end - begin - field_numbers
    yield from zip((begin + field_numbers[fits]).tolist(), offsets[fits].tolist(), sizes[fits].tolist(), strict=True)


def _is_sound(file: ActiveFile, position: int, size: int) -> bool:
    expected = int.from_bytes(file.read(position + CRC_AT, position + CRC_START), "big")
    checksum, end = 0, position + size
    for start in range(position + CRC_START, end, WALK_BYTES):
        checksum = crc32c(file.read(start, min(start + WALK_BYTES, end)), checksum)
    return checksum == expected


def _is_hole(file: ActiveFile, position: int, end: int) -> bool:
    """True if the batch at `position` has only zeros in one of its sectors, of which others may have more bytes."""
    head = file.read(position, min(position + LOG_OVERHEAD, end))
    if not any(head):
        return True
    size = LOG_OVERHEAD + int.from_bytes(head[8:], "big", signed=True)
    batch_end = position + (size if HEADER_SIZE <= size <= end - position else HEADER_SIZE)
    # an offset begins with zeros, and a record without headers ends with one
    begin, stop = position + (to_sector if (to_sector := -position % _SECTOR) <= _OFFSET_BYTES else 0), batch_end - 1
    for step in range(begin - begin % _SECTOR, stop, WALK_BYTES):
        start = max(step, begin)
        data = np.frombuffer(file.read(start, min(step + WALK_BYTES, stop)), np.uint8)
        sectors = np.maximum(np.arange(step - start, data.size, _SECTOR), 0)
        if not np.maximum.reduceat(data, sectors).all():
            return True
    return False


# The walk folds headers as appends do, so it gets the same state and indexes as they did (Kafka's
# `LogSegment.recover`). It compares checksums, and decompresses nothing.
#
# Acknowledged records are never cut (`DurableEnd`). A log that ends below its flushed end, or a bad batch with sound
# ones after it, was not caused by a crash: DamagedLogError. There is one exception, a page that the device did not
# write. A power loss leaves zeros there, and so does the kernel when it drops a page; later batches may be in it
# or after it. No sync covered that page, or it would be on disk, so no sync covered anything written after it
# So that is a torn write too, unless it was acknowledged.

(_UNSTABLE,) = field_numbers(("first_unstable_offset",))
_FLUSHED = list(field_numbers(("flushed_offset", "flushed_position", "flushed_ms")))
_log = logging.getLogger("distlog")
_REMEDY = "restore the file, or run `distlog repair`, which cuts it and reports the lost records"


class DamagedLogError(CorruptRecordError):
    """An active log lacks what was acknowledged, by other hands than a crash: nothing is appended, cut or changed."""


@dataclass(frozen=True, slots=True)
class DurableEnd:
    """The end that a recovery must find: the log up to there is fsynced, or was written since the boot."""

    offset: int = 0
    position: int = 0


#: For the crash of a process while the machine keeps running.
NOTHING_DURABLE = DurableEnd()


def recover(
    files: SegmentFiles,
    numbers: Numbers,
    interval: int,
    transactions: OpenTransactions,
    durable: DurableEnd,
    end: int | None = None,
) -> Numbers:
    """Walk from what `numbers` count up to `end`, write index entries, and cut all files after the last sound batch.

    `transactions` are open where the walk begins. Raises DamagedLogError for a cut that `durable` forbids, before
    any change. Each cut is logged.
    """
    entries = list[tuple[Numbers, Folded]]()
    numbers = _with_unstable(numbers, transactions)
    for numbers_before, folded in _folds(
        files, numbers, interval, transactions, files.log.size() if end is None else end
    ):
        entries.append((numbers_before, folded))
        numbers = folded.numbers
    trailing = trailing_bytes(files, numbers)
    error = damage(files, numbers, trailing, durable, is_end_known=end is not None)
    if error is not None:
        raise error
    log_cut(files, numbers, trailing)
    for numbers_before, folded in entries:
        files.write_entries(numbers_before, folded.entries)
    files.cut(numbers)
    return numbers


def trailing_bytes(files: SegmentFiles, numbers: Numbers) -> TrailingBytes:
    size = files.log.size()
    # a bad offset, which no checksum covers, may be higher than the offsets of later sound batches
    trailing = inspect_tail(files.log, int(numbers[POSITION]), size, int(numbers[BASE_OFFSET]))
    # only the end of preallocated space was never written
    return trailing._replace(end=size) if trailing.end > trailing.position and not files.log_bytes else trailing


def damage(
    files: SegmentFiles, numbers: Numbers, trailing: TrailingBytes, durable: DurableEnd, *, is_end_known: bool = False
) -> DamagedLogError | None:
    """Return the error if the log, with sound batches up to `numbers`, lost durable ones or has later sound ones."""
    offset, position = int(numbers[NEXT_OFFSET]), int(numbers[POSITION])
    location = {"file": files.log.path, "position": position, "offset": offset}
    if position < durable.position or offset < durable.offset:
        return DamagedLogError(
            f"the active log lacks records that were acknowledged, from this offset on: {_REMEDY}",
            **location,
            end_offset=durable.offset,
        )
    if trailing.sound is None or trailing.is_hole or is_end_known:
        return None
    return DamagedLogError(
        f"a batch of the active log is damaged, and sound ones follow it: {_REMEDY}",
        **location,
        sound_position=trailing.sound[0],
        sound_offset=trailing.sound[1],
    )


def log_cut(files: SegmentFiles, numbers: Numbers, trailing: TrailingBytes) -> None:
    """Log the cut after the end in `numbers`, if it is more than zeros."""
    if trailing.end > trailing.position:
        _log.warning(
            "%s: recovery cuts off %d bytes after position %d, the records from offset %d on%s",
            files.log.path,
            trailing.end - trailing.position,
            trailing.position,
            int(numbers[NEXT_OFFSET]),
            "" if trailing.sound is None else f", with sound batches from offset {trailing.sound[1]} on",
        )


def log_lost(files: SegmentFiles, numbers: Numbers, counted: Numbers) -> None:
    """Log the records in `counted` after the end in `numbers`, even if the log lost them earlier."""
    if counted[NEXT_OFFSET] > numbers[NEXT_OFFSET]:
        _log.warning(
            "%s: the disk lost records that were not synced: offsets %d to %d, between positions %d and %d",
            files.log.path,
            *(int(state[field]) for field in (NEXT_OFFSET, POSITION) for state in (numbers, counted)),
        )


def has_lost_its_end(files: SegmentFiles, numbers: Numbers) -> bool:
    """True if the log has its flushed part, but not its whole end: zeros replace it, or the file is too short.

    A kernel that could not write pages leaves that, with an error or without. A missing or replaced file, and a
    bad batch that has lost no page with sound ones after it, have another cause.
    """
    if files.log.was_replaced or not os.path.exists(files.log.path):
        return False
    sound, end = numbers.copy(), int(numbers[POSITION])
    sound[[POSITION, NEXT_OFFSET]] = 0, numbers[BASE_OFFSET]
    for batches in sound_batches(files.log, 0, end, int(numbers[BASE_OFFSET])):
        sound[[POSITION, NEXT_OFFSET]] = batches.end, next_offset_of(batches.rows)
    flushed_offset, flushed_position, _ = numbers[_FLUSHED].tolist()
    durable = DurableEnd(flushed_offset, flushed_position)
    return sound[POSITION] < end and damage(files, sound, trailing_bytes(files, sound), durable) is None


def write_again(
    files: SegmentFiles,
    numbers: Numbers,
    interval: int,
    transactions: OpenTransactions,
    flushed_offset: int,
    flushed_position: int,
    *,
    only_read: bool,
) -> Numbers | None:
    """Write the log after `flushed_position`, and the indexes, again as they are; None if batches are damaged.

    With `only_read` they are only compared with their checksums. Damaged indexes are rebuilt, and the returned
    numbers include them. `transactions` are open where the segment begins.
    """
    position, end = flushed_position, int(numbers[POSITION])
    for batches in sound_batches(files.log, position, end, flushed_offset):
        if not only_read:
            files.log.write(batches.data, batches.position)
        position, flushed_offset = batches.end, next_offset_of(batches.rows)
    if position < end:
        sound = numbers.copy()
        sound[[POSITION, NEXT_OFFSET]] = position, flushed_offset
        error = damage(files, sound, trailing_bytes(files, sound), NOTHING_DURABLE)
        if error is not None:
            raise error
        return None
    if not files.has_entries(numbers):
        rebuilt = with_new_indexes(files, numbers, interval, transactions)
        if rebuilt is None:
            return None
        numbers = rebuilt
    elif only_read:
        return numbers
    files.write_entries_again(numbers)
    return numbers if files.has_entries(numbers) else None


def with_new_indexes(
    files: SegmentFiles, numbers: Numbers, interval: int, transactions: OpenTransactions
) -> Numbers | None:
    """Make the indexes again from the log, and return the numbers with them; None, unchanged, after damage."""
    end, rebuilt, entries = int(numbers[POSITION]), emptied(files.stem, numbers), list[tuple[Numbers, Folded]]()
    rebuilt[_FLUSHED] = numbers[_FLUSHED]
    for numbers_before, folded in _folds(files, rebuilt, interval, transactions, end):
        entries.append((numbers_before, folded))
        rebuilt = folded.numbers
    if rebuilt[POSITION] < end:
        return None
    for numbers_before, folded in entries:
        files.write_entries(numbers_before, folded.entries)
    files.clear_after_entries(rebuilt)
    return rebuilt


def scan_tail(
    files: SegmentFiles, numbers: Numbers, interval: int, transactions: OpenTransactions, end: int | None = None
) -> Numbers:
    """The numbers that `recover` would return, for a process that may only read: nothing is written or cut."""
    numbers = _with_unstable(numbers, transactions)
    for _, folded in _folds(files, numbers, interval, transactions, files.log.size() if end is None else end):
        numbers = folded.numbers
    return numbers


def unknown_bytes(files: SegmentFiles, numbers: Numbers) -> int:
    """Count the log's bytes after its end by `numbers`, without preallocated ones; negative if it is shorter."""
    position = int(numbers[POSITION])
    trailing = files.log.size() - position
    if files.log.was_replaced:
        return -1
    # no batch begins with LOG_OVERHEAD zeros
    if trailing > 0 and files.log_bytes and not any(files.log.read(position, position + LOG_OVERHEAD)):
        return 0
    return trailing


def _folds(
    files: SegmentFiles, numbers: Numbers, interval: int, transactions: OpenTransactions, end: int
) -> Iterator[tuple[Numbers, Folded]]:
    for batches in sound_batches(files.log, int(numbers[POSITION]), end, int(numbers[NEXT_OFFSET])):
        aborted = transactions.observe(batches.data, batches.rows)
        try:
            folded = fold(numbers, batches.data, batches.rows, interval, aborted=aborted)
        except UnfitBatchError as error:
            # its offset is damaged, which no checksum covers: the walk ends before it
            if error.row:
                yield from _folds(
                    files, numbers, interval, transactions, batches.position + batches.first(error.row).data.nbytes
                )
            return
        after = _with_unstable(folded.numbers, transactions)
        yield numbers, Folded(after, folded.entries)
        numbers = after


def _with_unstable(numbers: Numbers, transactions: OpenTransactions) -> Numbers:
    changed: Numbers = numbers.copy()
    changed[_UNSTABLE] = transactions.first_offset
    return changed


def next_offset_of(rows: npt.NDArray[Any]) -> int:
    return int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1]) + 1


def new_epochs(rows: npt.NDArray[Any], latest: int) -> list[tuple[int, int]]:
    """(leader epoch, start offset) of each epoch above `latest` that begins in these batches."""
    highest = np.maximum.accumulate(np.concatenate([[latest], rows["leader_epoch"]]))
    rises = np.flatnonzero(highest[1:] > highest[:-1])
    epochs: list[int] = rows["leader_epoch"][rises].tolist()
    return list(zip(epochs, rows["base_offset"][rises].tolist(), strict=True))
