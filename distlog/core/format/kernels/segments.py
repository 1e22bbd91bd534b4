"""Kernels of segments: their numbers and index entries, searches of their indexes, and groups to merge."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.format.kernels.batch_scan import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER_SIZE,
    TRANSACTIONAL,
    crc_with_batch,
)
from distlog.core.format.kernels.native import fill_kernel, inlined, int_at, put_int_at
from distlog.core.integers import MAX_INT

#: The state of a segment so far, an int64 each: log bytes since the last offset entry, the largest timestamp, the
#: last offset of the batch that has it, the timestamp of the last time entry, the number of batches.
SINCE_ENTRY, MAX_TIMESTAMP, MAX_OFFSET, LAST_ENTRY_TIMESTAMP, BATCHES = range(5)
STATE_SIZE = 5

#: The numbers of a segment, int64, after the STATE_SIZE numbers above, which `add_batch` keeps, and before numbers
#: that are not used here. OFFSET_OF_MAX is the offset of the first record with the largest timestamp, or -1;
#: MAX_OFFSET is the last offset of that record's batch, relative to BASE_OFFSET.
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
#: From this size on, reading a batch takes longer than combining its checksum with the checksum before it.
_JOINED_FROM = 4096

#: The limits of a plan, an int64 each. A group fits into `SEGMENT_BYTES`, `SEGMENT_MS` of time, and fewer than
#: `INDEX_ENTRIES` entries, at most one per `INTERVAL_BYTES`. It is worth merging with `GROWTH` times the bytes of its
#: largest segment, or `LARGE_GROWTH` if it has more than `LARGE_BYTES` and may still grow.
SEGMENT_BYTES, SEGMENT_MS, INDEX_ENTRIES, INTERVAL_BYTES, GROWTH, LARGE_GROWTH, LARGE_BYTES = range(7)

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

WARM_BYTES = 8192


# A batch gets an entry when more than `index.interval.bytes` have passed since the last one; the first batch never
# does. The entry is (last offset, start position) in the offset index, and (largest timestamp so far, last offset
# of its batch) in the time index. On close the time index gets a last entry with the maximum; a slot is reserved
# for it.
@inlined
def add_batch(size: int, last_offset: int, max_timestamp: int, interval: int, state: np.ndarray) -> tuple[bool, bool]:
    """Add the next batch: whether it gets an offset entry, and whether a time entry (MAX_TIMESTAMP, MAX_OFFSET)."""
    if max_timestamp > state[MAX_TIMESTAMP]:
        state[MAX_TIMESTAMP] = max_timestamp
        state[MAX_OFFSET] = last_offset
    offset_due = state[SINCE_ENTRY] > interval
    time_due = offset_due and state[MAX_TIMESTAMP] > state[LAST_ENTRY_TIMESTAMP]
    if offset_due:
        state[SINCE_ENTRY] = 0
    if time_due:
        state[LAST_ENTRY_TIMESTAMP] = state[MAX_TIMESTAMP]
    state[SINCE_ENTRY] += size
    state[BATCHES] += 1
    return offset_due, time_due


@fill_kernel
def count_until_full(
    sizes: np.ndarray, max_timestamps: np.ndarray, interval: int, state: np.ndarray, room: np.ndarray
) -> int:
    """Return how many batches, at least one, fit in an index with `room` entries; changes `room` and `state`."""
    for row in range(sizes.size):
        if state[BATCHES] > 0 and (room[0] <= 0 or room[1] <= 0):
            return row
        offset_due, time_due = add_batch(sizes[row], 0, max_timestamps[row], interval, state)
        room[0] -= offset_due
        room[1] -= time_due
    return sizes.size


#: The faults of batches: none; they do not fill their bytes; they have another format than 2, or refused attributes;
#: their offsets do not count from 0.
ALL_FINE, NOT_ALL, BAD_FORMAT, UNFIT_OFFSETS = range(4)

_FORMAT = 2


@fill_kernel
def inspect_batches(batches: np.ndarray, size: int, refused: int) -> tuple[int, int, int, int, bool]:
    """Check that `batches` (BATCH rows) fill `size` bytes, with offsets from 0 and without the attributes `refused`.

    Returns the fault, the size of the largest batch, the next offset, the largest timestamp, and whether any batch
    has a producer id. `batches` must not be empty.
    """
    fault = ALL_FINE
    position = 0
    end_offset = 0
    largest = 0
    newest = batches[0]["max_timestamp"]
    has_producers = False
    for row in range(batches.size):
        batch = batches[row]
        if batch["position"] != position or not HEADER_SIZE <= batch["size"] <= size - position:
            return NOT_ALL, largest, end_offset, newest, has_producers
        if batch["magic"] != _FORMAT or batch["attributes"] & refused:
            fault = BAD_FORMAT
        elif batch["base_offset"] != end_offset and fault == ALL_FINE:
            fault = UNFIT_OFFSETS
        position += batch["size"]
        end_offset = batch["base_offset"] + batch["last_offset_delta"] + 1
        largest = max(largest, batch["size"])
        newest = max(newest, batch["max_timestamp"])
        has_producers |= batch["producer_id"] >= 0
    return (fault if position == size else NOT_ALL), largest, end_offset, newest, has_producers


@fill_kernel
def move_batches(data: np.ndarray, batches: np.ndarray, first_offset: int, moved: np.ndarray) -> None:
    """Fill `moved` with `batches`, which `inspect_batches` checked, at offsets from `first_offset`."""
    for row in range(batches.size):
        moved[row] = batches[row]
        base_offset = batches[row]["base_offset"] + first_offset
        moved[row]["base_offset"] = base_offset
        put_int_at(data, batches[row]["position"], 8, base_offset)


# A *column* is one field of every entry, given as three integers: `stride`, the size of an entry; `start`, the
# position of the field in it; `width`, 4 or 8 bytes. The search is Kafka's (`AbstractIndex.indexSlotRangeFor`): most
# lookups are near the end, so the last 8192 bytes are searched first, and their pages stay hot.
#
# Bytes that are not ordered give a wrong slot. It is still between -1 and the last slot, and its key is not above
# the target: no input makes a kernel read outside the array.


@inlined
def read_int(data: Bytes, position: int, width: int) -> int:
    """The signed big-endian integer of `width` bytes, 4 or 8, at `position`; the caller checks the bounds."""
    value: int = int_at(data, position, 4) if width == 4 else int_at(data, position, 8)
    return value


@fill_kernel
def floor_slot(data: Bytes, entries: int, target: int, stride: int, start: int, width: int) -> int:
    """The last of the first `entries` slots whose key is not above `target`, or -1."""
    last = min(entries, data.size // stride) - 1
    if last < 0:
        return -1
    warm = max(0, last - WARM_BYTES // stride)
    if read_int(data, warm * stride + start, width) < target:
        low, high = warm, last
    elif read_int(data, start, width) > target:
        return -1
    else:
        low, high = 0, warm
    while low < high:
        middle = (low + high + 1) >> 1
        if read_int(data, middle * stride + start, width) <= target:
            low = middle
        else:
            high = middle - 1
    return low


@fill_kernel
def floor_entry(data: Bytes, entries: int, target: int, stride: int, width: int) -> tuple[int, int, int]:
    """(`floor_slot`, the key there, the integer of 4 bytes after it), in one call; (-1, 0, 0) if there is none."""
    slot = floor_slot(data, entries, target, stride, 0, width)
    if slot < 0:
        return slot, 0, 0
    position = slot * stride
    return slot, read_int(data, position, width), read_int(data, position + width, 4)


@fill_kernel
def first_bad_slot(data: Bytes, entries: int, step: int, largest: int, stride: int, start: int, width: int) -> int:
    """The first slot whose value is negative, above `largest`, or less than `step` above the one before it; or -1."""
    previous = -step
    for slot in range(min(entries, data.size // stride)):
        value = read_int(data, slot * stride + start, width)
        if value < 0 or value > largest or value - step < previous:
            return slot
        previous = value
    return -1


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
        # no record of the first batch has its base timestamp: if the minimum were equal to it, a lookup by time would
        # take the segment's first record for its oldest
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
            numbers, data, batch, newest, oldest, interval, offset_entries, offset_count, time_entries, time_count
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
    one per batch and segment; and the numbers of offset and time entries per segment. `state` is scratch, as large
    as `empty`.
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


@inlined
def _add_groups(
    sizes: np.ndarray,
    start: int,
    end: int,
    may_grow: bool,
    limits: np.ndarray,
    waiting: np.ndarray,
    groups: np.ndarray,
    count: int,
) -> int:
    # Append the groups of [start, end) that are worth merging to the `count` groups; returns their new number.
    waiting[0, 0] = start
    waiting[0, 1] = end
    pending = 1
    while pending > 0:
        pending -= 1
        first = waiting[pending, 0]
        last = waiting[pending, 1]
        if last - first < 2:
            continue
        total = 0
        middle = first
        for row in range(first, last):
            total += sizes[row]
            if sizes[row] > sizes[middle]:
                middle = row
        growth = limits[LARGE_GROWTH] if may_grow and total > limits[LARGE_BYTES] else limits[GROWTH]
        if growth * sizes[middle] <= total:
            groups[count, 0] = first
            groups[count, 1] = last
            count += 1
            continue
        # first the segments before the largest; the segments after it, which may grow, wait
        waiting[pending, 0] = middle + 1
        waiting[pending, 1] = last
        waiting[pending + 1, 0] = first
        waiting[pending + 1, 1] = middle
        pending += 2
    return count


@fill_kernel
def find_groups(
    owners: np.ndarray,
    sizes: np.ndarray,
    base_offsets: np.ndarray,
    next_offsets: np.ndarray,
    oldest_ms: np.ndarray,
    newest_ms: np.ndarray,
    records: np.ndarray,
    floors: np.ndarray,
    limits: np.ndarray,
    waiting: np.ndarray,
    groups: np.ndarray,
) -> int:
    """Fill `groups` with the first and end rows of each group worth merging; returns their number."""
    count = 0
    start = -1
    base = 0
    begin_ms = 0
    size = 0
    latest_ms = 0
    held = 0
    for row in range(owners.size):
        if start >= 0 and owners[row] != owners[row - 1]:
            count = _add_groups(sizes, start, row, True, limits, waiting, groups, count)
            start = -1
        if next_offsets[row] <= floors[owners[row]]:
            continue
        fits = sizes[row] < limits[SEGMENT_BYTES]
        if start >= 0:
            more = size + sizes[row]
            held += records[row]
            latest_ms = max(latest_ms, newest_ms[row])
            entries = min(more // (limits[INTERVAL_BYTES] + 1), held)
            if (
                fits
                and more <= limits[SEGMENT_BYTES]
                and next_offsets[row] - base <= MAX_INT
                and latest_ms - begin_ms <= limits[SEGMENT_MS]
                and entries < limits[INDEX_ENTRIES]
            ):
                size = more
            else:
                count = _add_groups(sizes, start, row, False, limits, waiting, groups, count)
                start = -1
        if start < 0 and fits:
            start = row
            base = base_offsets[row]
            begin_ms = oldest_ms[row]
            size = sizes[row]
            latest_ms = newest_ms[row]
            held = records[row]
    if start >= 0:
        count = _add_groups(sizes, start, owners.size, True, limits, waiting, groups, count)
    return count
