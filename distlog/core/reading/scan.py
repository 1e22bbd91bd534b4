"""A scan: the records of one snapshot as Arrow, in (partition, offset) order; their number, and the first of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from distlog.core.batches.record_batch import COLUMNS, SCHEMA
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.reading.pipeline import read
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.slices import SegmentSlice, windows
from distlog.core.reading.time_range import ALWAYS
from distlog.core.storage.parallel import cores
from distlog.core.transactions.isolation import READ_UNCOMMITTED, Isolation
from distlog.core.whole_number import whole_number

if TYPE_CHECKING:
    import pandas as pd

#: How many offsets `first` looks at to begin with, unless its limit is smaller.
FIRST_OFFSETS = 10_000


def check_columns(columns: str | Iterable[str] | None) -> tuple[str, ...]:
    """The columns asked for, all of them by default; InvalidRecordError names one that does not exist."""
    chosen = COLUMNS if columns is None else names_of(columns)
    for name in chosen:
        if name not in COLUMNS:
            raise InvalidRecordError(f"no column {name}; there are {', '.join(COLUMNS)}")
    return chosen


def as_text(table: pa.Table) -> pa.Table:
    """The table with its key and value as texts; InvalidRecordError names a column that is not UTF-8."""
    for number, name in enumerate(table.schema.names):
        if pa.types.is_binary(table.schema.field(name).type):
            try:
                table = table.set_column(number, name, table[name].cast(pa.string()))
            except pa.ArrowInvalid as error:
                raise InvalidRecordError(f"column {name} is not text: read it as bytes ({error})") from None
    return table


def names_of(columns: str | Iterable[str]) -> tuple[str, ...]:
    """The names of columns, of which one needs no list."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def first(
    reader: SegmentReader,
    slices: Iterable[SegmentSlice],
    columns: Sequence[str],
    limit: int,
    isolation: Isolation = READ_UNCOMMITTED,
) -> Iterator[pa.RecordBatch]:
    """The first `limit` records of `slices`, or all if there are fewer; a small limit reads little."""
    # each window has more offsets: few of them may be records, or have the times asked for
    for window in windows(slices, min(limit, FIRST_OFFSETS)) if limit > 0 else ():
        for batch in read(reader, window, columns, isolation, max_workers=1):
            yield batch.slice(0, limit)
            limit -= batch.num_rows
            if limit <= 0:
                return


def _known_count(piece: SegmentSlice) -> int | None:
    """How many records the slice has; None if the metadata do not tell."""
    segment = piece.segment
    if piece.times != ALWAYS:
        return None
    if segment.dense and (piece.start_position, piece.end_position) == (0, segment.log_bytes):
        start, end = piece.span
        return end - start
    return segment.record_count if piece.whole and not segment.has_transactions else None


def checked_workers(asked: int | None) -> int:
    """How many threads decode: those asked for, or as many as there are cores; raises InvalidConfigError."""
    workers = cores() if asked is None else whole_number("max_workers", asked)
    if workers < 1:
        raise InvalidConfigError("max_workers must be at least 1", value=workers)
    return workers


class Scan:
    """A read of one snapshot, run when its result is asked for, and again each time.

    `max_workers` threads decode local files, the caller among them: by default as many as there are cores.
    """

    def __init__(
        self,
        reader: SegmentReader,
        slices: list[SegmentSlice],
        columns: Sequence[str],
        isolation: Isolation,
        max_workers: int | None = None,
    ) -> None:
        self._reader, self.slices, self.columns, self.isolation = reader, slices, tuple(columns), isolation
        self.max_workers = checked_workers(max_workers)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns asked for."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return read(self._reader, self.slices, self.columns, self.isolation, self.max_workers)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The records as an Arrow stream, which DuckDB, Polars and others read without a copy."""
        batches = pa.RecordBatchReader.from_batches(self.schema, self)
        return batches.__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """All records as one Arrow table."""
        return pa.Table.from_batches(self, self.schema)

    def to_pandas(self, *, text: bool = False) -> pd.DataFrame:
        """All records as a pandas DataFrame; pandas must be installed. `text` makes keys and values texts of UTF-8.

        Raises InvalidRecordError if some key or value is not UTF-8.
        """
        table = self.to_table()
        return (as_text(table) if text else table).to_pandas()

    def to_polars(self) -> Any:
        """All records as a Polars DataFrame; Polars must be installed."""
        return importlib.import_module("polars").DataFrame(self)

    def to_duckdb(self, connection: Any = None) -> Any:
        """The records as a DuckDB relation, which reads them when it is used; DuckDB must be installed."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self)
        return (connection or importlib.import_module("duckdb")).from_arrow(reader)

    def head(self, limit: int = 10) -> pa.Table:
        """The first records; a small limit reads little."""
        batches = first(self._reader, self.slices, self.columns, whole_number("limit", limit), self.isolation)
        return pa.Table.from_batches(batches, self.schema)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True

    def count(self) -> int:
        """The number of records; a segment is only read if its metadata does not say how many of them it has."""
        known = [_known_count(piece) for piece in self.slices]
        unknown = [piece for piece, count in zip(self.slices, known, strict=True) if count is None]
        batches = read(self._reader, unknown, ("offset",), self.isolation, self.max_workers)
        looked_at = sum(len(batch) for batch in batches)
        return looked_at + sum(count for count in known if count is not None)

    def __repr__(self) -> str:
        size = sum(piece.estimated_bytes for piece in self.slices)
        return f"Scan(segments={len(self.slices)}, bytes={size}, columns={list(self.columns)})"
