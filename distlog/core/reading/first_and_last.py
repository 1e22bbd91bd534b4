"""The first and the last records of a read: a small number of them reads little."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.pipeline import read
from distlog.core.reading.slices.slices import SegmentSlice, windows, windows_from_end
from distlog.core.transactions.isolation import READ_UNCOMMITTED, Isolation

#: How many offsets are looked at to begin with, unless fewer records are asked for.
FIRST_OFFSETS = 10_000


def first(
    reader: SegmentReader,
    slices: Iterable[SegmentSlice],
    columns: Sequence[str],
    limit: int,
    isolation: Isolation = READ_UNCOMMITTED,
) -> Iterator[pa.RecordBatch]:
    """The first `limit` records of `slices`, or all if there are fewer."""
    # each window has more offsets: few of them may be records, or have the times asked for
    for window in windows(slices, min(limit, FIRST_OFFSETS)) if limit > 0 else ():
        for batch in read(reader, window, columns, isolation, max_workers=1):
            yield batch.slice(0, limit)
            limit -= batch.num_rows
            if limit <= 0:
                return


def last(
    reader: SegmentReader,
    slices: Sequence[SegmentSlice],
    columns: Sequence[str],
    limit: int,
    isolation: Isolation = READ_UNCOMMITTED,
) -> list[pa.RecordBatch]:
    """The last `limit` records of `slices` in their order, or all if there are fewer."""
    found: list[pa.RecordBatch] = []
    for window in windows_from_end(slices, min(limit, FIRST_OFFSETS)) if limit > 0 else ():
        batches = list(read(reader, window, columns, isolation, max_workers=1))
        found, limit = batches + found, limit - sum(batch.num_rows for batch in batches)
        if limit <= 0:
            break
    return _without_first(found, max(-limit, 0))


def _without_first(batches: list[pa.RecordBatch], rows: int) -> list[pa.RecordBatch]:
    left = []
    for batch in batches:
        left.append(batch.slice(min(rows, batch.num_rows)))
        rows -= min(rows, batch.num_rows)
    return left
