"""Reads a segment that is being appended to, up to the end that its numbers had at one moment.

`reading.files.segment_reader` reads sealed segments, from maps; here everything is read in place (`ActiveIndex`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import numpy as np

from distlog.core.arrow_arrays import numbers_of
from distlog.core.batches.record_batch import check_crcs
from distlog.core.batches.record_decoder import decode
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.index_build import MAX_TIMESTAMP
from distlog.core.kernels.segment_fold import BASE_OFFSET, OFFSET_OF_MAX, POSITION
from distlog.core.log.segment.batch_walk import Batches, batches_from
from distlog.core.log.segment.segment_files import SegmentFiles
from distlog.core.segments.segment_state import Numbers
from distlog.core.segments.state_fold import OFFSET_INDEX, TIME_INDEX

#: Bytes read to find a batch by its header, and to look for a time.
_HEADER_STEP, _TIME_STEP = 16 << 10, 256 << 10


class BatchPlace(NamedTuple):
    """Where a batch is: its offsets, its position in the log file, and its size."""

    base_offset: int
    last_offset: int
    position: int
    size: int


class ReadBatches(NamedTuple):
    """The result of a read: bytes that begin with a batch, and may end inside one.

    `is_cut` says that not even the first batch is whole.
    """

    start_offset: int
    base_offset: int
    position: int
    data: memoryview
    is_cut: bool


class TimedOffset(NamedTuple):
    """A record that was found by its time (ms), and the leader epoch of its batch; -1 if that has none."""

    timestamp: int
    offset: int
    leader_epoch: int


def translate(files: SegmentFiles, numbers: Numbers, offset: int) -> BatchPlace | None:
    """The first batch whose last offset is `offset` or above; None if there is none."""
    for found in _from_offset(files, numbers, offset, _HEADER_STEP):
        rows = found.rows
        last = rows["base_offset"] + rows["last_offset_delta"]
        row = int(np.searchsorted(last, offset))
        if row < len(rows):
            position, size, base_offset = (int(rows[name][row]) for name in ("position", "size", "base_offset"))
            return BatchPlace(base_offset, int(last[row]), found.position + position, size)
    return None


def read(
    files: SegmentFiles,
    numbers: Numbers,
    start_offset: int,
    max_size: int,
    max_position: int | None = None,
    *,
    min_one_batch: bool = False,
) -> ReadBatches | None:
    """Read from the batch that holds `start_offset`, or the next one, on; None if there is none.

    Gives at most `max_size` bytes, but with `min_one_batch` at least the whole first batch. Gives no bytes from
    `max_position` on. Raises ValueError for a negative size.
    """
    if max_size < 0:
        raise ValueError(f"a size must not be negative: {max_size}")
    place = translate(files, numbers, start_offset)
    if place is None:
        return None
    wanted = max(max_size, place.size) if min_one_batch else max_size
    limit = int(numbers[POSITION]) if max_position is None else min(max_position, int(numbers[POSITION]))
    data = files.log.read(place.position, min(place.position + wanted, max(limit, place.position)))
    return ReadBatches(start_offset, int(numbers[BASE_OFFSET]), place.position, data, data.nbytes < place.size)


def find_offset_by_timestamp(
    files: SegmentFiles, numbers: Numbers, timestamp: int, starting_offset: int
) -> TimedOffset | None:
    """The first record at or after `timestamp` (ms) from `starting_offset` on; None if there is none."""
    _, delta = files.times.floor(timestamp, int(numbers[TIME_INDEX]))
    begin = max(int(numbers[BASE_OFFSET]) + delta, starting_offset)
    for found in _from_offset(files, numbers, begin, _TIME_STEP):
        for row in np.flatnonzero(found.rows["max_timestamp"] >= timestamp):
            match = _first_in_batch(files, found, int(row), timestamp, starting_offset)
            if match is not None:
                return match
    return None


def with_newest_offset(files: SegmentFiles, numbers: Numbers) -> Numbers:
    """`numbers` with the offset of the first record with the largest timestamp; searched if no header told it.

    It stays unknown if its batch is damaged: who appends, or drops the topic, must be able to end the segment.
    """
    if numbers[OFFSET_OF_MAX] >= 0 or numbers[MAX_TIMESTAMP] < 0:
        return numbers
    known = numbers.copy()
    with suppress(CorruptRecordError):
        found = find_offset_by_timestamp(files, numbers, int(numbers[MAX_TIMESTAMP]), int(numbers[BASE_OFFSET]))
        known[OFFSET_OF_MAX] = -1 if found is None else found.offset
    return known


def _first_in_batch(
    files: SegmentFiles, found: Batches, row: int, timestamp: int, starting_offset: int
) -> TimedOffset | None:
    batch, where = found.rows[row : row + 1], found.position
    check_crcs(found.data, batch, file=files.log.path, file_position=where)
    records = decode(
        found.data,
        batch,
        columns=("offset", "timestamp"),
        start_offset=starting_offset,
        file=files.log.path,
        file_position=where,
    )
    timestamps = numbers_of(records.column(1).cast("int64"))
    matches = np.flatnonzero(timestamps >= timestamp)
    if not len(matches):
        return None
    first = int(matches[0])
    return TimedOffset(int(timestamps[first]), records.column(0)[first].as_py(), int(batch["leader_epoch"][0]))


def _from_offset(files: SegmentFiles, numbers: Numbers, offset: int, step: int) -> Iterator[Batches]:
    """Batches from the index's entry for `offset` on; from the log's start if the index does not fit the log."""
    base_offset, end = int(numbers[BASE_OFFSET]), int(numbers[POSITION])
    delta, position = files.offsets.floor(offset - base_offset, int(numbers[OFFSET_INDEX]))
    walk = batches_from(files.log, position, end, step)
    if delta < 0:
        return walk
    with suppress(CorruptRecordError):
        first = next(walk, None)
        if first is not None and _ends_at(first, base_offset + delta):
            return chain([first], walk)
    # a recovery in another process may have dropped this entry or batch meanwhile
    return batches_from(files.log, 0, end, step)


def _ends_at(found: Batches, offset: int) -> bool:
    first = found.rows[0]
    return int(first["base_offset"]) + int(first["last_offset_delta"]) == offset
