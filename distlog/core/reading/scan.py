"""Running a read: slices of segments in, Arrow record batches out, in (partition, offset) order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import pyarrow as pa

from distlog.core.batches.record_batch import COLUMNS, SCHEMA
from distlog.core.errors import InvalidRecordError
from distlog.core.reading.chunk import Chunk
from distlog.core.reading.read_ahead import DEPTH, in_order
from distlog.core.reading.segment_reader import CHUNK_BYTES, INDEX_WORTH_BYTES, SegmentReader
from distlog.core.reading.slices import SegmentSlice, windows
from distlog.core.reading.time_range import ALWAYS
from distlog.core.transactions.isolation import READ_UNCOMMITTED, Isolation

if TYPE_CHECKING:
    import pandas as pd

#: Segments up to this size are read whole and decoded together.
SMALL_BYTES = 1 << 20
#: Offsets that `first` looks at to begin with, when its limit is not smaller.
FIRST_OFFSETS = 10_000


def check_columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    """The columns asked for, all of them by default; InvalidRecordError names one that does not exist."""
    chosen = COLUMNS if columns is None else tuple(columns)
    for name in chosen:
        if name not in COLUMNS:
            raise InvalidRecordError(f"no column {name}; there are {', '.join(COLUMNS)}")
    return chosen


def read(
    reader: SegmentReader,
    slices: Iterable[SegmentSlice],
    columns: Sequence[str] = COLUMNS,
    isolation: Isolation = READ_UNCOMMITTED,
) -> Iterator[pa.RecordBatch]:
    """The records of `slices`, in order, in batches of some MB where there is that much.

    Memory is bounded by a few chunks whatever the size of a segment. Raises CorruptRecordError, and
    SnapshotTooOldError for a file that vacuum has removed since the snapshot.
    """
    for chunk in _chunks(reader, slices):
        yield from chunk.records(columns, isolation)


def _chunks(reader: SegmentReader, slices: Iterable[SegmentSlice]) -> Iterator[Chunk]:
    tasks = (partial(_begun, reader, group) for group in _groups(slices))
    # local files answer at once: one group ahead hides what opening them costs
    for chunks in in_order(tasks, 1 if reader.storage.is_local else DEPTH):
        yield from chunks


def _begun(reader: SegmentReader, group: list[SegmentSlice]) -> Iterable[Chunk]:
    """The chunks of `group`, the first of them read."""
    if _small(group[0]):
        return [reader.whole(group)]
    chunks = reader.chunks(group[0])
    return chain(list(islice(chunks, 1)), chunks)


def _small(piece: SegmentSlice) -> bool:
    size = piece.segment.log_bytes
    uncut = (piece.start_position, piece.end_position) == (0, size)
    return uncut and (size <= INDEX_WORTH_BYTES or (piece.whole and size <= SMALL_BYTES))


def _groups(slices: Iterable[SegmentSlice]) -> Iterator[list[SegmentSlice]]:
    """Runs of small segments worth a chunk; a large one alone."""
    group: list[SegmentSlice] = []
    held = 0
    for piece in slices:
        size = piece.segment.log_bytes
        if group and (not _small(piece) or held + size > CHUNK_BYTES):
            yield group
            group, held = [], 0
        if _small(piece):
            group.append(piece)
            held += size
        else:
            yield [piece]
    if group:
        yield group


def first(
    reader: SegmentReader, slices: Iterable[SegmentSlice], columns: Sequence[str], limit: int
) -> Iterator[pa.RecordBatch]:
    """The first `limit` records of `slices`, all where there are fewer; a small limit reads little."""
    # more and more offsets are looked at: few of them may be records, or of the times asked for
    for window in windows(slices, min(limit, FIRST_OFFSETS)) if limit > 0 else ():
        for batch in read(reader, window, columns):
            yield batch.slice(0, limit)
            limit -= batch.num_rows
            if limit <= 0:
                return


def _known_count(piece: SegmentSlice) -> int | None:
    """How many records of the slice there are, or None where metadata do not tell."""
    segment = piece.segment
    if piece.times != ALWAYS:
        return None
    if segment.dense and (piece.start_position, piece.end_position) == (0, segment.log_bytes):
        start, end = piece.span
        return end - start
    return segment.record_count if piece.whole and not segment.has_transactions else None


class Scan:
    """A read of one snapshot, run when its result is asked for, and again each time."""

    def __init__(
        self, reader: SegmentReader, slices: list[SegmentSlice], columns: Sequence[str], isolation: Isolation
    ) -> None:
        self._reader, self.slices, self.columns, self.isolation = reader, slices, tuple(columns), isolation

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns asked for."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return read(self._reader, self.slices, self.columns, self.isolation)

    def to_table(self) -> pa.Table:
        """All records as one Arrow table."""
        return pa.Table.from_batches(self, self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """All records as a pandas DataFrame; pandas must be installed."""
        return self.to_table().to_pandas()

    def count(self) -> int:
        """How many records there are: from metadata alone where every offset of a segment is a record of the scan."""
        known = [_known_count(piece) for piece in self.slices]
        unknown = [piece for piece, count in zip(self.slices, known, strict=True) if count is None]
        looked_at = sum(len(batch) for batch in read(self._reader, unknown, ("offset",), self.isolation))
        return looked_at + sum(count for count in known if count is not None)

    def __repr__(self) -> str:
        size = sum(piece.estimated_bytes for piece in self.slices)
        return f"Scan(segments={len(self.slices)}, bytes={size}, columns={list(self.columns)})"
