"""Finds adjacent segments that are worth merging, over columns of the segments of many partitions."""

from __future__ import annotations

import numpy as np

from distlog.core.config import MAX_INT
from distlog.core.kernels.native import fill_kernel, inlined

#: The limits of a plan, an int64 each. A group fits into `SEGMENT_BYTES`, `SEGMENT_MS` of time, and fewer than
#: `INDEX_ENTRIES` entries, of which there is at most one for `INTERVAL_BYTES`. It is worth it with `GROWTH` times the
#: bytes of its largest segment, or `LARGE_GROWTH` if it has more than `LARGE_BYTES` and more may still join it.
SEGMENT_BYTES, SEGMENT_MS, INDEX_ENTRIES, INTERVAL_BYTES, GROWTH, LARGE_GROWTH, LARGE_BYTES = range(7)


@inlined
def _worth(
    sizes: np.ndarray,
    start: int,
    end: int,
    may_grow: bool,
    limits: np.ndarray,
    waiting: np.ndarray,
    found: np.ndarray,
    count: int,
) -> int:
    # Put the groups of [start, end) that are worth it into `found` behind the first `count`; returns how many then.
    waiting[0, 0] = start
    waiting[0, 1] = end
    left = 1
    while left > 0:
        left -= 1
        first = waiting[left, 0]
        last = waiting[left, 1]
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
            found[count, 0] = first
            found[count, 1] = last
            count += 1
            continue
        # the segments before the largest come first, and what is behind it, which may grow, waits
        waiting[left, 0] = middle + 1
        waiting[left, 1] = last
        waiting[left + 1, 0] = first
        waiting[left + 1, 1] = middle
        left += 2
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
    found: np.ndarray,
) -> int:
    """Fill `found` with the first and end rows of each group worth merging; returns how many there are."""
    count = 0
    start = -1
    base = 0
    begin_ms = 0
    size = 0
    latest_ms = 0
    held = 0
    for row in range(owners.size):
        if start >= 0 and owners[row] != owners[row - 1]:
            count = _worth(sizes, start, row, True, limits, waiting, found, count)
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
                count = _worth(sizes, start, row, False, limits, waiting, found, count)
                start = -1
        if start < 0 and fits:
            start = row
            base = base_offsets[row]
            begin_ms = oldest_ms[row]
            size = sizes[row]
            latest_ms = newest_ms[row]
            held = records[row]
    if start >= 0:
        count = _worth(sizes, start, owners.size, True, limits, waiting, found, count)
    return count
