"""The rule that decides which batches get index entries (Kafka's `LogSegment.append`).

A batch gets an entry when more than `index.interval.bytes` have passed since the last one; the first batch never
does. The entry is (last offset, start position) in the offset index, and (largest timestamp so far, last offset of
its batch) in the time index. On close the time index gets a last entry with the maximum; a slot is reserved for it.
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import fill_kernel, inlined

#: The state of a segment so far, an int64 each: log bytes since the last offset entry, the largest timestamp, the
#: last offset of the batch that has it, the timestamp of the last time entry, the number of batches.
SINCE_ENTRY, MAX_TIMESTAMP, MAX_OFFSET, LAST_ENTRY_TIMESTAMP, BATCHES = range(5)
STATE_SIZE = 5


@inlined
def add_batch(size: int, last_offset: int, max_timestamp: int, interval: int, state: np.ndarray) -> tuple[bool, bool]:
    """Take the next batch: whether it gets an offset entry, and whether a time entry (MAX_TIMESTAMP, MAX_OFFSET)."""
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
    sizes: np.ndarray, max_timestamps: np.ndarray, interval: int, state: np.ndarray, left: np.ndarray
) -> int:
    """How many of the batches may be added before an index is full; the first batch of a segment always may.

    `left` tells how many offset and time entries still fit. It and `state` are changed.
    """
    for row in range(sizes.size):
        if state[BATCHES] > 0 and (left[0] <= 0 or left[1] <= 0):
            return row
        offset_due, time_due = add_batch(sizes[row], 0, max_timestamps[row], interval, state)
        left[0] -= offset_due
        left[1] -= time_due
    return sizes.size
