"""Kernels for segments: they compute the state and index entries, search indexes, and find groups to merge."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.arrays import MAX_INT
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

#: The indexes into the state of a segment, an array of the int64 fields of `SegmentState`. `add_batch` updates the
#: first STATE_SIZE fields. SINCE_ENTRY: the log bytes since the last offset entry. MAX_TIMESTAMP_DELTA: the relative
#: last offset of the batch with the largest timestamp.
SINCE_ENTRY, MAX_TIMESTAMP, MAX_TIMESTAMP_DELTA, LAST_ENTRY_TIMESTAMP, BATCHES = range(5)
STATE_SIZE = 5

#: The next fields. Kernels do not use the fields after these.
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

#: The status of a fold, which adds batches to a state. NOT_WHOLE: the batches do not fill the bytes. NOT_NEXT: a
#: batch starts below the next offset. BAD_OFFSET, BAD_POSITION: an index cannot have an offset or the position.
OK, NOT_WHOLE, NOT_NEXT, BAD_OFFSET, BAD_POSITION = range(5)

OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE = 8, 12

_UNKNOWN = -1
#: From this size on, combining the checksums of log and batch (`crc_with_batch`) is faster than reading the batch.
_COMBINE_FROM_BYTES = 4096

#: The positions of limits in the array `limits` of `find_groups`. A group is a run of segments to merge. It fits into
#: `SEGMENT_BYTES`, `SEGMENT_MS` of time, and fewer than `INDEX_ENTRIES` entries, at most one per `INTERVAL_BYTES`. It
#: is worth merging if it has `MIN_GROWTH` times the bytes of its largest segment. A group of more than `LARGE_BYTES`
#: that later segments may still join must have `LARGE_GROWTH` times these bytes instead.
SEGMENT_BYTES, SEGMENT_MS, INDEX_ENTRIES, INTERVAL_BYTES, MIN_GROWTH, LARGE_GROWTH, LARGE_BYTES = range(7)

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

WARM_BYTES = 8192  # a search of an index tries this many of its last bytes first


# A batch gets index entries if more than `index.interval.bytes` lie between it and the last offset entry. The first
# batch never gets one. The offset entry is (last offset, start position). The time entry is (largest timestamp so
# far, last offset of the batch that has it). A seal (the end of a segment) adds an entry with the largest timestamp.
@inlined
def add_batch(size: int, last_offset: int, max_timestamp: int, interval: int, state: np.ndarray) -> tuple[bool, bool]:
    """Add the next batch to the first fields of `state`; returns whether it gets an offset and a time entry."""
    if max_timestamp > state[MAX_TIMESTAMP]:
        state[MAX_TIMESTAMP] = max_timestamp
        state[MAX_TIMESTAMP_DELTA] = last_offset
    gets_offset_entry = state[SINCE_ENTRY] > interval
    gets_time_entry = gets_offset_entry and state[MAX_TIMESTAMP] > state[LAST_ENTRY_TIMESTAMP]
    if gets_offset_entry:
        state[SINCE_ENTRY] = 0
    if gets_time_entry:
        state[LAST_ENTRY_TIMESTAMP] = state[MAX_TIMESTAMP]
    state[SINCE_ENTRY] += size
    state[BATCHES] += 1
    return gets_offset_entry, gets_time_entry


@fill_kernel
def count_until_full(
    sizes: np.ndarray, max_timestamps: np.ndarray, interval: int, state: np.ndarray, free_slots: np.ndarray
) -> int:
    """Return how many batches, at least one, fit in indexes with `free_slots`; changes `free_slots` and `state`."""
    for row in range(sizes.size):
        if state[BATCHES] > 0 and (free_slots[0] <= 0 or free_slots[1] <= 0):
            return row
        gets_offset_entry, gets_time_entry = add_batch(sizes[row], 0, max_timestamps[row], interval, state)
        free_slots[0] -= gets_offset_entry
        free_slots[1] -= gets_time_entry
    return sizes.size


#: The faults of batches to append; the first in this order is reported. BAD_SIZES: they do not fill their bytes.
#: BAD_FORMAT: their format is not 2, or they have refused attributes. BAD_OFFSETS: their offsets do not count from 0.
NO_FAULT, BAD_SIZES, BAD_FORMAT, BAD_OFFSETS = range(4)

_FORMAT = 2


@fill_kernel
def inspect_batches(batches: np.ndarray, size: int, refused: int) -> tuple[int, int, int, int, bool]:
    """Check that `batches` (BATCH rows) fill `size` bytes, count from 0, and have none of the attributes `refused`.

    Returns the fault, the largest size, the next offset, the largest timestamp, and whether a batch has a producer.
    """
    fault = NO_FAULT
    position = next_offset = largest_bytes = 0
    max_timestamp = batches[0]["max_timestamp"]
    has_producers = False
    for row in range(batches.size):
        batch = batches[row]
        if batch["position"] != position or not HEADER_SIZE <= batch["size"] <= size - position:
            return BAD_SIZES, largest_bytes, next_offset, max_timestamp, has_producers
        if batch["magic"] != _FORMAT or batch["attributes"] & refused:
            fault = BAD_FORMAT
        elif batch["base_offset"] != next_offset and fault == NO_FAULT:
            fault = BAD_OFFSETS
        position += batch["size"]
        next_offset = batch["base_offset"] + batch["last_offset_delta"] + 1
        largest_bytes = max(largest_bytes, batch["size"])
        max_timestamp = max(max_timestamp, batch["max_timestamp"])
        has_producers |= batch["producer_id"] >= 0
    return (fault if position == size else BAD_SIZES), largest_bytes, next_offset, max_timestamp, has_producers


@fill_kernel
def move_batches(data: np.ndarray, batches: np.ndarray, first_offset: int, moved: np.ndarray) -> None:
    """Add `first_offset` to the offsets of `batches`: in `data`, and in the copies of the rows in `moved`."""
    for row in range(batches.size):
        moved[row] = batches[row]
        base_offset = batches[row]["base_offset"] + first_offset
        moved[row]["base_offset"] = base_offset
        put_int_at(data, batches[row]["position"], 8, base_offset)


# A search compares one field of each entry of an index: `stride` is the size of an entry, `start` the position of the
# field in it, and `width` its size, 4 or 8 bytes. The search is Kafka's (`AbstractIndex.indexSlotRangeFor`): most
# lookups are near the end, so the last WARM_BYTES are searched first, and their pages stay in the cache.
#
# If keys do not ascend, as in a damaged index, a search may return a wrong slot, but its key is not above the target.


@inlined
def read_int(data: Bytes, position: int, width: int) -> int:
    """Return the signed big-endian integer of `width` bytes, 4 or 8; the caller checks the bounds."""
    # `int_at` needs a literal width
    value: int = int_at(data, position, 4) if width == 4 else int_at(data, position, 8)
    return value


@fill_kernel
def floor_slot(data: Bytes, entries: int, target: int, stride: int, start: int, width: int) -> int:
    """Return the last of the first `entries` slots whose key is not above `target`, or -1."""
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
    """Return (`floor_slot`, the key there, the integer of 4 bytes after the key), or (-1, 0, 0) without a slot."""
    slot = floor_slot(data, entries, target, stride, 0, width)
    if slot < 0:
        return slot, 0, 0
    position = slot * stride
    return slot, read_int(data, position, width), read_int(data, position + width, 4)


@fill_kernel
def first_bad_slot(data: Bytes, entries: int, step: int, largest: int, stride: int, start: int, width: int) -> int:
    """Return the first slot with a value below 0, above `largest`, or below the previous value + `step`; or -1."""
    previous = -step
    for slot in range(min(entries, data.size // stride)):
        value = read_int(data, slot * stride + start, width)
        # `previous + step` could overflow
        if value < 0 or value > largest or value - step < previous:
            return slot
        previous = value
    return -1


@inlined
def _status_of(state: np.ndarray, batches: np.ndarray, size: int) -> tuple[int, int]:
    """Check that `batches` fill `size` bytes and may come after `state`; returns the status and the first bad row."""
    position = 0
    next_offset = state[NEXT_OFFSET]
    for row in range(batches.size):
        batch = batches[row]
        if batch["position"] != position or not 0 <= batch["size"] <= size - position:
            return NOT_WHOLE, row
        if batch["base_offset"] < state[BASE_OFFSET]:
            return BAD_OFFSET, row
        if batch["base_offset"] < next_offset:
            return NOT_NEXT, row
        next_offset = batch["base_offset"] + batch["last_offset_delta"] + 1
        if next_offset - 1 - state[BASE_OFFSET] > MAX_INT:
            return BAD_OFFSET, row
        position += batch["size"]
        if state[POSITION] + position > MAX_INT:
            return BAD_POSITION, row
    return (OK if position == size else NOT_WHOLE), batches.size


@inlined
def _add_header(state: np.ndarray, data: np.ndarray, batch: np.void) -> None:
    attributes = batch["attributes"]
    # a control batch, and a batch that compaction emptied, count for no codec
    if batch["record_count"] > 0 and attributes & CONTROL == 0:
        state[CODECS] |= 1 << (attributes & CODEC_MASK)
    if attributes & (TRANSACTIONAL | CONTROL):
        state[PRODUCER_BITS] |= TRANSACTIONS
    if batch["producer_id"] >= 0:
        state[PRODUCER_BITS] |= PRODUCERS
    state[NEXT_OFFSET] = batch["base_offset"] + batch["last_offset_delta"] + 1
    state[POSITION] += batch["size"]
    state[RECORDS] += batch["record_count"]
    state[LAST_CRC] = batch["crc"]
    state[LEADER_EPOCH] = max(np.int64(batch["leader_epoch"]), _UNKNOWN)
    state[CRC] = crc_with_batch(state[CRC], data, batch, CRC_START, _COMBINE_FROM_BYTES)


@inlined
def _add(
    state: np.ndarray,
    data: np.ndarray,
    batch: np.void,
    offset_of_max_timestamp: int,
    oldest: int,
    interval: int,
    offset_entries: np.ndarray,
    offset_count: int,
    time_entries: np.ndarray,
    time_count: int,
) -> tuple[int, int]:
    """Add a batch and its index entries; returns the new numbers of offset and of time entries."""
    if state[POSITION] == 0:
        # with these attributes the base timestamp is not the time of a record: it may be a delete horizon
        has_other_base = batch["attributes"] & (APPEND_TIME | DELETE_HORIZON)
        first_timestamp = batch["max_timestamp"] if has_other_base else batch["base_timestamp"]
        state[FIRST_TIMESTAMP] = max(first_timestamp, _UNKNOWN)
        state[ROLL_TIMESTAMP] = max(batch["max_timestamp"], _UNKNOWN)
        state[MIN_TIMESTAMP] = oldest
        state[FIRST_CRC] = batch["crc"]
    elif oldest == state[FIRST_TIMESTAMP] and oldest < state[MIN_TIMESTAMP]:
        # All records so far are newer than FIRST_TIMESTAMP. If MIN_TIMESTAMP became equal to it, lookups by time
        # would return the first record (`_by_metadata`). MIN_TIMESTAMP is only a lower bound, so it may be less.
        oldest -= 1
    state[MIN_TIMESTAMP] = max(min(state[MIN_TIMESTAMP], oldest), _UNKNOWN)
    if batch["max_timestamp"] > state[MAX_TIMESTAMP]:
        state[OFFSET_OF_MAX] = offset_of_max_timestamp
    relative = batch["base_offset"] + batch["last_offset_delta"] - state[BASE_OFFSET]
    gets_offset_entry, gets_time_entry = add_batch(batch["size"], relative, batch["max_timestamp"], interval, state)
    if gets_offset_entry:
        put_int_at(offset_entries, OFFSET_ENTRY_SIZE * offset_count, 4, relative)
        put_int_at(offset_entries, OFFSET_ENTRY_SIZE * offset_count + 4, 4, state[POSITION])
        offset_count += 1
    if gets_time_entry:
        _put_time_entry(state, time_entries, time_count)
        time_count += 1
    _add_header(state, data, batch)
    return offset_count, time_count


@inlined
def _put_time_entry(state: np.ndarray, time_entries: np.ndarray, time_count: int) -> None:
    put_int_at(time_entries, TIME_ENTRY_SIZE * time_count, 8, state[MAX_TIMESTAMP])
    put_int_at(time_entries, TIME_ENTRY_SIZE * time_count + 8, 4, state[MAX_TIMESTAMP_DELTA])


@fill_kernel
def fold_batches(
    state: np.ndarray,
    data: np.ndarray,
    batches: np.ndarray,
    offsets_of_max_timestamp: np.ndarray,
    min_timestamps: np.ndarray,
    interval: int,
    offset_entries: np.ndarray,
    time_entries: np.ndarray,
) -> tuple[int, int, int]:
    """Update `state` with `batches` (BATCH rows, with right checksums), which fill `data`.

    Returns (OK, number of offset entries, number of time entries). If a row is bad, changes nothing and returns
    (another status, row, 0). `offsets_of_max_timestamp` has, for each batch, the offset of the first record with the
    largest timestamp. If it or `min_timestamps` is empty, the headers give the values, or -1 if a header is
    ambiguous. `offset_entries` and `time_entries` are bytes with room for an entry per batch.
    """
    status, row = _status_of(state, batches, data.size)
    if status != OK:
        return status, row, 0
    offset_count = time_count = 0
    for row in range(batches.size):
        batch = batches[row]
        has_one_time = batch["record_count"] <= 1 or batch["attributes"] & APPEND_TIME != 0
        header_oldest = batch["max_timestamp"] if has_one_time else _UNKNOWN
        oldest = min_timestamps[row] if min_timestamps.size else header_oldest
        # the delta shows that compaction has removed no other record of the batch, so the record has the base offset
        has_one_offset = batch["record_count"] == 1 and batch["last_offset_delta"] == 0
        header_offset = batch["base_offset"] if has_one_offset else _UNKNOWN
        offset = offsets_of_max_timestamp[row] if offsets_of_max_timestamp.size else header_offset
        offset_count, time_count = _add(
            state, data, batch, offset, oldest, interval, offset_entries, offset_count, time_entries, time_count
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
    states: np.ndarray,
    offset_entries: np.ndarray,
    time_entries: np.ndarray,
    entry_counts: np.ndarray,
) -> int:
    """Fold `batches` (BATCH rows), which fill `data`, as `fold_batches` and a seal do; returns -1, or the bad row.

    Segment i has the next `counts[i]` batches, at least one, and starts with the state `empty`. Fills a row of
    `states` per segment, where the offset of the largest timestamp is unknown. Writes the entries of all segments
    back to back, and their numbers per segment to `entry_counts`. `offset_entries` has room for an entry per batch,
    `time_entries` for an entry per batch and segment. `state` is scratch memory, as large as `empty`.
    """
    row = position = offset_count = time_count = 0
    for segment in range(counts.size):
        for index in range(empty.size):
            state[index] = empty[index]
        offset_entries_before = offset_count
        time_entries_before = time_count
        end = row + counts[segment]
        while row < end:
            batch = batches[row]
            last = batch["base_offset"] + batch["last_offset_delta"]
            fits = batch["position"] == position and 0 <= batch["size"] <= data.size - position
            fits &= state[NEXT_OFFSET] <= batch["base_offset"] and last - state[BASE_OFFSET] <= MAX_INT
            if not fits or state[POSITION] + batch["size"] > MAX_INT:
                return row
            oldest = min_timestamps[row]
            offset_count, time_count = _add(
                state, data, batch, _UNKNOWN, oldest, interval, offset_entries, offset_count, time_entries, time_count
            )
            position += batch["size"]
            row += 1
        if state[MAX_TIMESTAMP] > state[LAST_ENTRY_TIMESTAMP]:
            _put_time_entry(state, time_entries, time_count)
            time_count += 1
        for index in range(empty.size):
            states[segment, index] = state[index]
        entry_counts[segment, 0] = offset_count - offset_entries_before
        entry_counts[segment, 1] = time_count - time_entries_before
    return -1 if position == data.size else row


@inlined
def _add_groups(
    sizes: np.ndarray,
    start: int,
    end: int,
    may_grow: bool,
    limits: np.ndarray,
    untried: np.ndarray,
    groups: np.ndarray,
    count: int,
) -> int:
    """Append the groups in rows [start, end) that are worth merging; returns their new number.

    `untried` is a stack of ranges of rows. If a range is not worth merging, the rows before and after its largest
    segment are tried. `may_grow` is whether later segments may join the group.
    """
    untried[0, 0] = start
    untried[0, 1] = end
    untried_count = 1
    while untried_count > 0:
        untried_count -= 1
        first = untried[untried_count, 0]
        end = untried[untried_count, 1]
        if end - first < 2:
            continue
        total = 0
        largest = first
        for row in range(first, end):
            total += sizes[row]
            if sizes[row] > sizes[largest]:
                largest = row
        growth = limits[LARGE_GROWTH] if may_grow and total > limits[LARGE_BYTES] else limits[MIN_GROWTH]
        if growth * sizes[largest] <= total:
            groups[count, 0] = first
            groups[count, 1] = end
            count += 1
            continue
        # the segments before the largest are tried next, then those after it
        untried[untried_count, 0] = largest + 1
        untried[untried_count, 1] = end
        untried[untried_count + 1, 0] = first
        untried[untried_count + 1, 1] = largest
        untried_count += 2
    return count


@fill_kernel
def find_groups(
    partitions: np.ndarray,
    sizes: np.ndarray,
    base_offsets: np.ndarray,
    next_offsets: np.ndarray,
    oldest_ms: np.ndarray,
    newest_ms: np.ndarray,
    records: np.ndarray,
    log_starts: np.ndarray,
    limits: np.ndarray,
    untried: np.ndarray,
    groups: np.ndarray,
) -> int:
    """Fill `groups` with the first and end rows of each group worth merging; returns their number.

    `partitions` has the partition of each segment, `log_starts` the log start offset of each partition, and `limits`
    the limits of a plan. `untried` is scratch memory for one range more than there are rows.
    """
    start = -1
    count = base_offset = first_ms = size = last_ms = record_count = 0
    for row in range(partitions.size):
        if start >= 0 and partitions[row] != partitions[row - 1]:
            count = _add_groups(sizes, start, row, True, limits, untried, groups, count)
            start = -1
        # retention deletes a segment below the log start
        if next_offsets[row] <= log_starts[partitions[row]]:
            continue
        may_merge = sizes[row] < limits[SEGMENT_BYTES]
        if start >= 0:
            grown_size = size + sizes[row]
            record_count += records[row]
            last_ms = max(last_ms, newest_ms[row])
            # an entry comes after more than INTERVAL_BYTES, and after at least one record
            entries = min(grown_size // (limits[INTERVAL_BYTES] + 1), record_count)
            if (
                may_merge
                and grown_size <= limits[SEGMENT_BYTES]
                and next_offsets[row] - base_offset <= MAX_INT
                and last_ms - first_ms <= limits[SEGMENT_MS]
                and entries < limits[INDEX_ENTRIES]
            ):
                size = grown_size
            else:
                count = _add_groups(sizes, start, row, False, limits, untried, groups, count)
                start = -1
        if start < 0 and may_merge:
            start = row
            base_offset = base_offsets[row]
            first_ms = oldest_ms[row]
            size = sizes[row]
            last_ms = newest_ms[row]
            record_count = records[row]
    if start >= 0:
        count = _add_groups(sizes, start, partitions.size, True, limits, untried, groups, count)
    return count
