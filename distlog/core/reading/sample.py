"""Some records of a read by chance, each with the same chance, without reading all of them where that can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrow_arrays import integers
from distlog.core.reading.counted_slices import count, is_every_offset_a_record
from distlog.core.reading.files.segment_reader import INDEX_WORTH_BYTES, SegmentReader
from distlog.core.reading.pipeline import read
from distlog.core.reading.slices.slices import SegmentSlice
from distlog.core.transactions.isolation import Isolation

#: What one record costs that is read alone, in bytes that could be read in a row meanwhile.
POINT_BYTES = 1 << 20

Longs = npt.NDArray[np.int64]


def sample(
    reader: SegmentReader,
    slices: Sequence[SegmentSlice],
    columns: Sequence[str],
    isolation: Isolation,
    limit: int,
    seed: int | None,
    max_workers: int,
) -> Iterator[pa.RecordBatch]:
    """`limit` different records in their order, or all if there are fewer; the same ones for the same `seed`.

    Reads what was chosen, and segments whose metadata does not say how many records they have.
    """
    sizes = np.array([count(reader, [piece], isolation, max_workers) for piece in slices], np.int64)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    chosen = np.sort(np.random.default_rng(seed).choice(total, min(limit, total), replace=False))
    pieces, rows = _to_read(slices, sizes, ends, chosen)
    begin = 0
    for batch in read(reader, pieces, columns, isolation, max_workers):
        low, high = np.searchsorted(rows, [begin, begin + batch.num_rows])
        yield batch.take(integers(rows[low:high] - begin))
        begin += batch.num_rows


def _to_read(
    slices: Sequence[SegmentSlice], sizes: Longs, ends: Longs, chosen: Longs
) -> tuple[list[SegmentSlice], Longs]:
    """What to read for the records of these numbers, and which rows of that they are."""
    pieces: list[SegmentSlice] = []
    rows: list[Longs] = [np.empty(0, np.int64)]
    begin = 0
    for piece, size, end in zip(slices, sizes.tolist(), ends.tolist(), strict=True):
        own = chosen[np.searchsorted(chosen, end - size) : np.searchsorted(chosen, end)] - (end - size)
        if not len(own):
            continue
        if _is_read_by_points(piece, len(own)):
            first = piece.span[0]
            pieces += [piece._replace(start_offset=first + one, end_offset=first + one + 1) for one in own.tolist()]
            own, size = np.arange(len(own)), len(own)
        else:
            pieces.append(piece)
        rows.append(begin + own)
        begin += size
    return pieces, np.concatenate(rows)


def _is_read_by_points(piece: SegmentSlice, points: int) -> bool:
    size = piece.segment.log_bytes
    return is_every_offset_a_record(piece) and size > max(points * POINT_BYTES, INDEX_WORTH_BYTES)
