"""Builds and searches the raw bytes of index files."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.format.kernels.native import fill_kernel, inlined, kernel

# A batch gets an entry when more than `index.interval.bytes` have passed since the last one; the first batch never
# does. The entry is (last offset, start position) in the offset index, and (largest timestamp so far, last offset
# of its batch) in the time index. On close the time index gets a last entry with the maximum; a slot is reserved
# for it.


#: The state of a segment so far, an int64 each: log bytes since the last offset entry, the largest timestamp, the
#: last offset of the batch that has it, the timestamp of the last time entry, the number of batches.
SINCE_ENTRY, MAX_TIMESTAMP, MAX_OFFSET, LAST_ENTRY_TIMESTAMP, BATCHES = range(5)
STATE_SIZE = 5


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


# A *column* is one field of every entry, given as three integers: `stride`, the size of an entry; `start`, the
# position of the field in it; `width`, 4 or 8 bytes. The search is Kafka's (`AbstractIndex.indexSlotRangeFor`): most
# lookups are near the end, so the last 8192 bytes are searched first, and their pages stay hot.
#
# Bytes that are not ordered give a wrong slot. It is still between -1 and the last slot, and its key is not above
# the target: no input makes a kernel read outside the array.


Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

WARM_BYTES = 8192


@kernel
def read_int(data: Bytes, position: int, width: int) -> int:
    """The signed big-endian integer of `width` bytes, 4 or 8, at `position`; the caller checks the bounds."""
    high = _word(data, position)
    return high if width == 4 else (high << 32) | (_word(data, position + 4) & 0xFFFFFFFF)


@kernel
def _word(data: Bytes, position: int) -> int:
    # Unrolled, with indexes that cannot be negative, so that the compiler makes it one load and one byte swap.
    index = np.uintp(position)
    high = (np.int64(np.int8(data[index])) << 24) | (np.int64(data[index + np.uintp(1)]) << 16)
    return int(high | (np.int64(data[index + np.uintp(2)]) << 8) | np.int64(data[index + np.uintp(3)]))


@kernel
def floor_slot(data: Bytes, entries: int, target: int, stride: int, start: int, width: int) -> int:
    """The last of the first `entries` slots whose key is not above `target`, or -1."""
    last = min(entries, len(data) // stride) - 1
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


@kernel
def floor_entry(data: Bytes, entries: int, target: int, stride: int, width: int) -> tuple[int, int, int]:
    """(`floor_slot`, the key there, the integer of 4 bytes after it), in one call; (-1, 0, 0) if there is none."""
    slot = floor_slot(data, entries, target, stride, 0, width)
    if slot < 0:
        return slot, 0, 0
    position = slot * stride
    return slot, read_int(data, position, width), read_int(data, position + width, 4)


@kernel
def first_bad_slot(data: Bytes, entries: int, step: int, largest: int, stride: int, start: int, width: int) -> int:
    """The first slot whose value is negative, above `largest` or not `step` above the one before it, or -1."""
    previous = -step
    for slot in range(min(entries, len(data) // stride)):
        value = read_int(data, slot * stride + start, width)
        if value < 0 or value > largest or value - step < previous:
            return slot
        previous = value
    return -1
