"""How many records slices hold: from the metadata where these tell, else by reading."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.pipeline import read
from distlog.core.reading.slices.slices import SegmentSlice
from distlog.core.reading.slices.time_range import ALWAYS
from distlog.core.transactions.isolation import Isolation


def is_every_offset_a_record(piece: SegmentSlice) -> bool:
    """Whether each offset of the slice's span is known to be a record that a reader gets."""
    uncut = (piece.start_position, piece.end_position) == (0, piece.segment.log_bytes)
    return piece.times == ALWAYS and piece.segment.dense and uncut


def known_count(piece: SegmentSlice) -> int | None:
    """How many records the slice has; None if the metadata do not tell."""
    if is_every_offset_a_record(piece):
        start, end = piece.span
        return end - start
    is_whole = piece.times == ALWAYS and piece.whole and not piece.segment.has_transactions
    return piece.segment.record_count if is_whole else None


def most_records(slices: Sequence[SegmentSlice]) -> int:
    """How many records there are at the most, as far as the metadata tell."""
    known = ((piece, known_count(piece)) for piece in slices)
    return sum(piece.span[1] - piece.span[0] if number is None else number for piece, number in known)


def count(reader: SegmentReader, slices: Sequence[SegmentSlice], isolation: Isolation, max_workers: int) -> int:
    """The number of records; a segment is only read if its metadata does not say how many of them it has."""
    known = [known_count(piece) for piece in slices]
    unknown = [piece for piece, number in zip(slices, known, strict=True) if number is None]
    looked_at = sum(len(batch) for batch in read(reader, unknown, ("offset",), isolation, max_workers))
    return looked_at + sum(number for number in known if number is not None)


def by_partition(slices: Sequence[SegmentSlice]) -> pa.Table:
    """One row per partition: the offsets to look at, in how many segments, and about how many bytes of them."""
    names = ("partition", "start_offset", "end_offset", "segments", "bytes")
    rows: dict[int, dict[str, int]] = {}
    for piece in slices:
        (start, end), partition = piece.span, piece.segment.partition
        row = rows.setdefault(partition, dict(zip(names, (partition, start, end, 0, 0), strict=True)))
        row |= {"end_offset": end, "segments": row["segments"] + 1, "bytes": row["bytes"] + piece.estimated_bytes}
    return pa.Table.from_pylist(list(rows.values()), pa.schema([(name, pa.int64()) for name in names]))
