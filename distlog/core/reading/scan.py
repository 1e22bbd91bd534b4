"""A scan: the records of one snapshot, in (partition, offset) order, in whatever shape they are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from distlog.core.batches.record_batch import COLUMNS, SCHEMA
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.optional import optional
from distlog.core.reading import json_fields
from distlog.core.reading.counted_slices import count
from distlog.core.reading.first_and_last import first, last
from distlog.core.reading.json_fields import OnError
from distlog.core.reading.pipeline import read
from distlog.core.reading.sample import sample
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.slices import SegmentSlice
from distlog.core.storage.parallel import cores
from distlog.core.transactions.isolation import Isolation
from distlog.core.whole_number import whole_number

if TYPE_CHECKING:
    import pandas as pd


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
        return optional("polars", "to_polars()", "polars").DataFrame(self)

    def to_duckdb(self, connection: Any = None) -> Any:
        """The records as a DuckDB relation, which reads them when it is used; DuckDB must be installed."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self)
        return (connection or optional("duckdb", "to_duckdb()", "'distlog[duckdb]'")).from_arrow(reader)

    def to_spark(self, spark: Any) -> Any:
        """The records as a DataFrame of a Spark session, with the names and types of Spark's Kafka source.

        Tasks read them when it is used, from the storage, which must be one that all executors reach. PySpark and
        pandas must be installed.
        """
        frames = optional("distlog.spark.frames", "to_spark()", "'distlog[spark]' pandas")
        return frames.of_slices(
            spark, self._reader.storage, self._reader.topic, self.slices, self.columns, self.isolation
        )

    def json(self, *paths: str, on_error: OnError = "fail", **named: str) -> pa.Table:
        """All records as one Arrow table, with fields of the value, which is JSON, in place of `value`.

        A path is `$.user.name`, `$.tags[0]` or `$."odd.name"`; `json("$.user", city="$.address.city")` makes the
        columns `user` and `city`. A column is int64, double or bool if all its values are; else it is text, an
        object or an array as JSON. A missing field is null, and so is each one of a null value. DuckDB must be
        installed.

        Raises InvalidRecordError, with partition and offset, for a value that is no JSON, unless `on_error` is null:
        then its fields are null. Raises InvalidConfigError for a wrong path, or for two columns of one name.
        """
        others = [name for name in self.columns if name != "value"]
        chosen = json_fields.named_paths(paths, named, others)
        columns = dict.fromkeys((*self.columns, *json_fields.NEEDED))
        batches = read(self._reader, self.slices, list(columns), self.isolation, self.max_workers)
        return json_fields.json_fields(batches, self.columns, chosen, on_error)

    def head(self, limit: int = 10) -> pa.Table:
        """The first records; a small limit reads little."""
        batches = first(self._reader, self.slices, self.columns, whole_number("limit", limit), self.isolation)
        return pa.Table.from_batches(batches, self.schema)

    def tail(self, limit: int = 10) -> pa.Table:
        """The last records, in their order; a small limit reads little."""
        batches = last(self._reader, self.slices, self.columns, whole_number("limit", limit), self.isolation)
        return pa.Table.from_batches(batches, self.schema)

    def sample(self, limit: int = 10, seed: int | None = None) -> pa.Table:
        """Different records by chance, each with the same chance, in their order; the same ones for the same `seed`.

        Reads what it chooses, and segments whose metadata does not say how many records they have.
        """
        rows = max(0, whole_number("limit", limit))
        chosen = sample(self._reader, self.slices, self.columns, self.isolation, rows, seed, self.max_workers)
        return pa.Table.from_batches(chosen, self.schema)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True

    def count(self) -> int:
        """The number of records; a segment is only read if its metadata does not say how many of them it has."""
        return count(self._reader, self.slices, self.isolation, self.max_workers)

    def __repr__(self) -> str:
        size = sum(piece.estimated_bytes for piece in self.slices)
        return f"Scan(segments={len(self.slices)}, bytes={size}, columns={list(self.columns)})"
