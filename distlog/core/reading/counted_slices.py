"""How many records slices hold: from the metadata where these tell, else by reading."""

from __future__ import annotations

from collections.abc import Sequence

from distlog.core.reading.pipeline import read
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.slices import SegmentSlice
from distlog.core.reading.time_range import ALWAYS
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


def count(reader: SegmentReader, slices: Sequence[SegmentSlice], isolation: Isolation, max_workers: int) -> int:
    """The number of records; a segment is only read if its metadata does not say how many of them it has."""
    known = [known_count(piece) for piece in slices]
    unknown = [piece for piece, number in zip(slices, known, strict=True) if number is None]
    looked_at = sum(len(batch) for batch in read(reader, unknown, ("offset",), isolation, max_workers))
    return looked_at + sum(number for number in known if number is not None)
