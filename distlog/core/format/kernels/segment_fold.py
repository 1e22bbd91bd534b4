"""Updates the numbers of a segment with its next batches, and makes their index entries."""

from __future__ import annotations

import numpy as np

from distlog.core.format.kernels.batch_scan import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    TRANSACTIONAL,
)
from distlog.core.format.kernels.crc import crc_with_batch
from distlog.core.format.kernels.index import LAST_ENTRY_TIMESTAMP, MAX_OFFSET, MAX_TIMESTAMP, STATE_SIZE, add_batch
from distlog.core.format.kernels.native import fill_kernel, inlined, put_int_at
from distlog.core.integers import MAX_INT

#: The numbers of a segment, int64, after the STATE_SIZE numbers of the index rule and before numbers that are not
#: used here. MAX_OFFSET is relative to BASE_OFFSET.
(
    BASE_OFFSET,
    NEXT_OFFSET,
    POSITION,
    RECORDS,
    FIRST_TIMESTAMP,
    MIN_TIMESTAMP,
    OFFSET_OF_MAX,
    ROLL_TIMESTAMP,
    FIRST_CRC,
    LAST_CRC,
    CODECS,
    LEADER_EPOCH,
    PRODUCER_BITS,
    CRC,
) = range(STATE_SIZE, STATE_SIZE + 14)

#: The flags of PRODUCER_BITS: a batch is part of a transaction or ends it; a batch has a producer id.
TRANSACTIONS, PRODUCERS = 1, 2

#: The status of a fold: success; batches do not fill the bytes; a batch starts at too low an offset; an index cannot
#: hold the offsets or the position of a batch.
OK, NOT_WHOLE, NOT_NEXT, BAD_OFFSET, BAD_POSITION = range(5)

#: The bytes of an entry of the offset index, and of the time index.
OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE = 8, 12

_UNKNOWN = -1
#: Reading a batch from this size takes longer than joining its checksum.
_JOINED_FROM = 4096


@inlined
def _check(numbers: np.ndarray, batches: np.ndarray, size: int) -> tuple[int, int]:
    # Whether `batches`, which fill `size` bytes, may come next: (status, the row with that status).
    position = 0
    next_offset = numbers[NEXT_OFFSET]
    for row in range(batches.size):
        batch = batches[row]
        if batch["position"] != position or not 0 <= batch["size"] <= size - position:
            return NOT_WHOLE, row
        if batch["base_offset"] < numbers[BASE_OFFSET]:
            return BAD_OFFSET, row
        if batch["base_offset"] < next_offset:
            return NOT_NEXT, row
        next_offset = batch["base_offset"] + batch["last_offset_delta"] + 1
        if next_offset - 1 - numbers[BASE_OFFSET] > MAX_INT:
            return BAD_OFFSET, row
        position += batch["size"]
        if numbers[POSITION] + position > MAX_INT:
            return BAD_POSITION, row
    return (OK if position == size else NOT_WHOLE), batches.size


@inlined
def _begin(numbers: np.ndarray, batch: np.void, oldest: int) -> None:
    # The base timestamp of an unusual batch is not the one that readers get, or it is a delete horizon.
    unusual = batch["attributes"] & (APPEND_TIME | DELETE_HORIZON)
    numbers[FIRST_TIMESTAMP] = max(batch["max_timestamp"] if unusual else batch["base_timestamp"], _UNKNOWN)
    numbers[ROLL_TIMESTAMP] = max(batch["max_timestamp"], _UNKNOWN)
    numbers[MIN_TIMESTAMP] = oldest
    numbers[FIRST_CRC] = batch["crc"]


@inlined
def _pass(numbers: np.ndarray, data: np.ndarray, batch: np.void) -> None:
    attributes = batch["attributes"]
    # control batches, and batches that compaction emptied, have no codec
    if batch["record_count"] > 0 and attributes & CONTROL == 0:
        numbers[CODECS] |= 1 << (attributes & CODEC_MASK)
    if attributes & (TRANSACTIONAL | CONTROL):
        numbers[PRODUCER_BITS] |= TRANSACTIONS
    if batch["producer_id"] >= 0:
        numbers[PRODUCER_BITS] |= PRODUCERS
    numbers[NEXT_OFFSET] = batch["base_offset"] + batch["last_offset_delta"] + 1
    numbers[POSITION] += batch["size"]
    numbers[RECORDS] += batch["record_count"]
    numbers[LAST_CRC] = batch["crc"]
    numbers[LEADER_EPOCH] = max(np.int64(batch["leader_epoch"]), _UNKNOWN)
    numbers[CRC] = crc_with_batch(numbers[CRC], data, batch, CRC_START, _JOINED_FROM)


@inlined
def _add(
    numbers: np.ndarray,
    data: np.ndarray,
    batch: np.void,
    newest_offset: int,
    oldest: int,
    interval: int,
    offset_entries: np.ndarray,
    offset_count: int,
    time_entries: np.ndarray,
    time_count: int,
) -> tuple[int, int]:
    # Add a batch, with the first record of the largest timestamp at `newest_offset`; returns the numbers of entries.
    if numbers[POSITION] == 0:
        _begin(numbers, batch, oldest)
    elif oldest == numbers[FIRST_TIMESTAMP] and oldest < numbers[MIN_TIMESTAMP]:
        # no record has the first batch's base timestamp, so the minimum must differ from it
        oldest -= 1
    numbers[MIN_TIMESTAMP] = max(min(numbers[MIN_TIMESTAMP], oldest), _UNKNOWN)
    if batch["max_timestamp"] > numbers[MAX_TIMESTAMP]:
        numbers[OFFSET_OF_MAX] = newest_offset
    relative = batch["base_offset"] + batch["last_offset_delta"] - numbers[BASE_OFFSET]
    offset_due, time_due = add_batch(batch["size"], relative, batch["max_timestamp"], interval, numbers)
    if offset_due:
        put_int_at(offset_entries, OFFSET_ENTRY_SIZE * offset_count, 4, relative)
        put_int_at(offset_entries, OFFSET_ENTRY_SIZE * offset_count + 4, 4, numbers[POSITION])
        offset_count += 1
    if time_due:
        _put_time(numbers, time_entries, time_count)
        time_count += 1
    _pass(numbers, data, batch)
    return offset_count, time_count


@inlined
def _put_time(numbers: np.ndarray, time_entries: np.ndarray, time_count: int) -> None:
    put_int_at(time_entries, TIME_ENTRY_SIZE * time_count, 8, numbers[MAX_TIMESTAMP])
    put_int_at(time_entries, TIME_ENTRY_SIZE * time_count + 8, 4, numbers[MAX_OFFSET])


@fill_kernel
def fold_batches(
    numbers: np.ndarray,
    data: np.ndarray,
    batches: np.ndarray,
    newest_offsets: np.ndarray,
    min_timestamps: np.ndarray,
    interval: int,
    offset_entries: np.ndarray,
    time_entries: np.ndarray,
) -> tuple[int, int, int]:
    """Update `numbers` with `batches` (BATCH rows), which fill `data`: (OK, number of offset and of time entries).

    With another status, the second item is the bad row, and nothing was changed. `newest_offsets`, of each batch's
    first record with the largest timestamp, and `min_timestamps` may be empty: then unambiguous headers give them,
    and they are otherwise unknown (-1). `offset_entries` and `time_entries` are bytes with room for an entry per
    batch. The checksums in the batches must be right.
    """
    status, row = _check(numbers, batches, data.size)
    if status != OK:
        return status, row, 0
    offset_count = 0
    time_count = 0
    for row in range(batches.size):
        batch = batches[row]
        # true if all records of the batch have its largest timestamp
        is_of_one_time = batch["record_count"] <= 1 or batch["attributes"] & APPEND_TIME != 0
        by_header = batch["max_timestamp"] if is_of_one_time else _UNKNOWN
        oldest = min_timestamps[row] if min_timestamps.size else by_header
        # the offset of the batch's only record, if compaction has removed none
        is_only = batch["record_count"] == 1 and batch["last_offset_delta"] == 0
        only_offset = batch["base_offset"] if is_only else _UNKNOWN
        newest = newest_offsets[row] if newest_offsets.size else only_offset
        offset_count, time_count = _add(
            numbers,
            data,
            batch,
            newest,
            oldest,
            interval,
            offset_entries,
            offset_count,
            time_entries,
            time_count,
        )
    return OK, offset_count, time_count


@fill_kernel
def fold_segments(
    empty: np.ndarray,
    state: np.ndarray,
    data: np.ndarray,
    batches: np.ndarray,
    counts: np.ndarray,
    min_timestamps: np.ndarray,
    interval: int,
    numbers: np.ndarray,
    offset_entries: np.ndarray,
    time_entries: np.ndarray,
    entry_counts: np.ndarray,
) -> int:
    """Fold `batches` (BATCH rows), which fill `data`, as `fold_batches` and a seal do; returns -1, or the bad row.

    A segment has the next `counts` batches, at least one, and starts with the numbers of `empty`. Fills `numbers`, a
    row per segment, without the offset of the largest timestamp; the entries of all segments in a row, with room for
    one per batch and segment; and the numbers of offset and time entries per segment. `state` has the size of
    `empty`.
    """
    row = 0
    position = 0
    offset_count = 0
    time_count = 0
    for segment in range(counts.size):
        for index in range(empty.size):
            state[index] = empty[index]
        first_offset = offset_count
        first_time = time_count
        end = row + counts[segment]
        while row < end:
            batch = batches[row]
            last = batch["base_offset"] + batch["last_offset_delta"]
            fits = batch["position"] == position and 0 <= batch["size"] <= data.size - position
            fits &= state[NEXT_OFFSET] <= batch["base_offset"] and last - state[BASE_OFFSET] <= MAX_INT
            if not fits or state[POSITION] + batch["size"] > MAX_INT:
                return row
            offset_count, time_count = _add(
                state,
                data,
                batch,
                _UNKNOWN,
                min_timestamps[row],
                interval,
                offset_entries,
                offset_count,
                time_entries,
                time_count,
            )
            position += batch["size"]
            row += 1
        if state[MAX_TIMESTAMP] > state[LAST_ENTRY_TIMESTAMP]:
            _put_time(state, time_entries, time_count)
            time_count += 1
        for index in range(empty.size):
            numbers[segment, index] = state[index]
        entry_counts[segment, 0] = offset_count - first_offset
        entry_counts[segment, 1] = time_count - first_time
    return -1 if position == data.size else row
