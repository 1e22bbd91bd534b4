"""Finds where in a log the batches of a slice begin and end, by the segment's offset index."""

from __future__ import annotations

from distlog.core.indexes.growing_index import GrowingOffsetIndex
from distlog.core.indexes.offset_index import OffsetIndex
from distlog.core.reading.slices.slices import SegmentSlice


def bounds_by(index: OffsetIndex | GrowingOffsetIndex, part: SegmentSlice) -> tuple[int, int]:
    """Positions by the offset index: of a batch at or before the first owned one, and behind the last owned one.

    Raises CorruptIndexError.
    """
    segment = part.segment
    by_offset = index.lookup(part.start_offset - segment.shift).position
    start = max(by_offset, index.position_floor(part.start_position).position)
    if start >= part.end_position:
        # by the index there is nothing to read; the log's last part is read to confirm it
        start = index.position_floor(part.end_position - 1).position
    if part.end_offset >= segment.next_offset:
        return start, part.end_position
    stop = _end_of(index, part.end_offset - 1 - segment.shift)
    return start, part.end_position if stop is None else min(stop, part.end_position)


def _end_of(index: OffsetIndex | GrowingOffsetIndex, last_offset: int) -> int | None:
    """A position behind the batch that holds `last_offset`, or None if the index does not reach that far."""
    entry = index.ceiling(last_offset)
    after = index.ceiling(entry.offset + 1) if entry else None
    return after.position if after else None
