"""Packs and cuts slices of segments into splits, one for each Spark task: few, and similar in size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from pyspark.sql.datasource import InputPartition

from distlog.core.reading.slices.slices import SegmentSlice, split_by_bytes
from distlog.core.transactions.isolation import Isolation

#: Splits usually have from MIN_BYTES to MAX_BYTES. A task costs 20 to 60 ms, so it should have at least MIN_BYTES to
#: read. Splits of more than MAX_BYTES would leave cores idle at the end of a job.
MIN_BYTES = 64 << 20
MAX_BYTES = 128 << 20
SPLITS_PER_CORE = 4


class Split(InputPartition):
    """All that a task needs to know: slices to read in their order, and the isolation, which says what is visible."""

    def __init__(self, slices: Sequence[SegmentSlice], isolation: Isolation) -> None:
        super().__init__(None)
        self.slices, self.isolation = list(slices), isolation

    def __repr__(self) -> str:
        return f"Split(segments={len(self.slices)}, bytes={sum(piece.estimated_bytes for piece in self.slices)})"


@dataclass(frozen=True, slots=True)
class SplitSize:
    """How large splits are: for `cores` cores, at least `min_splits` splits, at most `max_records` records in each.

    None sets no limit.
    """

    cores: int
    min_splits: int | None = None
    max_records: int | None = None

    def target_bytes(self, total_bytes: int) -> int:
        """Log bytes of one split, chosen so that all cores have equal work, also in the last round of tasks."""
        usual = min(max(ceil(total_bytes / (SPLITS_PER_CORE * self.cores)), MIN_BYTES), MAX_BYTES)
        count = ceil(total_bytes / usual)
        if count > self.cores:
            # as many for each core, and one less for each if they would be small: twice MIN_BYTES is no more than MAX
            count = ceil(count / self.cores) * self.cores
            count -= self.cores * (total_bytes < count * MIN_BYTES)
        return max(ceil(total_bytes / max(count, self.min_splits or 1)), 1)


def split(slices: Sequence[SegmentSlice], size: SplitSize) -> list[list[SegmentSlice]]:
    """Groups of slices that together hold exactly the records of `slices`, in order. No group is empty."""
    target = size.target_bytes(sum(piece.estimated_bytes for piece in slices))
    pieces = [part for piece in slices for part in _cut_by_offsets(piece, target, size.max_records)]
    groups = split_by_bytes(pieces, target)
    if size.max_records is None:
        return groups
    return [part for group in groups for part in _pack_by_records(group, size.max_records)]


def _cut_by_offsets(piece: SegmentSlice, target_bytes: int, max_records: int | None) -> Iterator[SegmentSlice]:
    """Cut a slice by offsets if a cut by bytes cannot: for a limit of records, or if only some offsets are wanted."""
    start = max(piece.start_offset, piece.segment.base_offset)
    end = min(piece.end_offset, piece.segment.next_offset)
    parts = 1 if piece.whole else max(1, round(piece.estimated_bytes / target_bytes))
    if max_records is not None:
        parts = max(parts, -(-(end - start) // max_records))
    edges = [start + (end - start) * part // parts for part in range(parts + 1)]
    return (piece._replace(start_offset=low, end_offset=high) for low, high in pairwise(edges))


def _pack_by_records(slices: Iterable[SegmentSlice], max_records: int) -> Iterator[list[SegmentSlice]]:
    group: list[SegmentSlice] = []
    held = 0
    for piece in slices:
        records = piece.end_offset - piece.start_offset
        if group and held + records > max_records:
            yield group
            group, held = [], 0
        group.append(piece)
        held += records
    if group:
        yield group
