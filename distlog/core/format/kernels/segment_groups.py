"""Finds adjacent segments that are worth merging, over columns of the segments of many partitions."""

from __future__ import annotations

import numpy as np

from distlog.core.format.kernels.native import fill_kernel, inlined
from distlog.core.integers import MAX_INT

#: The limits of a plan, an int64 each. A group fits into `SEGMENT_BYTES`, `SEGMENT_MS` of time, and fewer than
#: `INDEX_ENTRIES` entries, at most one per `INTERVAL_BYTES`. It is worth merging with `GROWTH` times the bytes of its
#: largest segment, or `LARGE_GROWTH` if it has more than `LARGE_BYTES` and may still grow.
SEGMENT_BYTES, SEGMENT_MS, INDEX_ENTRIES, INTERVAL_BYTES, GROWTH, LARGE_GROWTH, LARGE_BYTES = range(7)


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
