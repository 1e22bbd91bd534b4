"""A scan: the records of one snapshot, in (partition, offset) order, in whatever shape they are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from distlog.core.batches.record_batch import COLUMNS, SCHEMA
from distlog.core.display import tables
from distlog.core.display.progress import Progress
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.optional import optional
from distlog.core.reading import json_fields, scan_plot
from distlog.core.reading.counted_slices import by_partition, count, most_records
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.first_and_last import first, last
from distlog.core.reading.json_fields import OnError
from distlog.core.reading.pipeline import read
from distlog.core.reading.sample import sample
from distlog.core.reading.slices.slices import SegmentSlice
from distlog.core.storage.parallel import cores
from distlog.core.transactions.isolation import Isolation
from distlog.core.whole_number import count_of, whole_number

if TYPE_CHECKING:
    import pandas as pd


#: What plots and Spark use of a scan. Completion does not offer it.
_INTERNAL = {"isolation", "max_workers", "slices", "times"}


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

    def to_table(self, *, progress: bool | None = None) -> pa.Table:
        """All records as one Arrow table.

        By default who types in a notebook or a terminal sees the `progress` of what takes longer than a second; true
        shows it to every terminal, false to none.
        """
        return pa.Table.from_batches(self._watched(self, progress), self.schema)

    def to_pandas(self, *, text: bool = False, progress: bool | None = None) -> pd.DataFrame:
        """All records as a pandas DataFrame; pandas must be installed. `text` makes keys and values texts of UTF-8.

        Raises InvalidRecordError if some key or value is not UTF-8. `progress` as in `to_table`.
        """
        table = self.to_table(progress=progress)
        return (as_text(table) if text else table).to_pandas()

    def to_polars(self, *, progress: bool | None = None) -> Any:
        """All records as a Polars DataFrame; Polars must be installed. `progress` as in `to_table`."""
        return optional("polars", "to_polars()", "polars").DataFrame(self.to_table(progress=progress))

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

    def json(self, *paths: str, on_error: OnError = "fail", progress: bool | None = None, **named: str) -> pa.Table:
        """All records as one Arrow table, with fields of the value, which is JSON, in place of `value`.

        A path is `$.user.name`, `$.tags[0]` or `$."odd.name"`; `json("$.user", city="$.address.city")` makes the
        columns `user` and `city`. A column is int64, double or bool if all its values are; else it is text, an
        object or an array as JSON. A missing field is null, and so is each one of a null value. DuckDB must be
        installed.

        Raises InvalidRecordError, with partition and offset, for a value that is no JSON, unless `on_error` is null:
        then its fields are null. Raises InvalidConfigError for a wrong path, or for two columns of one name.
        `progress` as in `to_table`.
        """
        others = [name for name in self.columns if name != "value"]
        chosen = json_fields.named_paths(paths, named, others)
        columns = dict.fromkeys((*self.columns, *json_fields.NEEDED))
        batches = read(self._reader, self.slices, list(columns), self.isolation, self.max_workers)
        return json_fields.json_fields(self._watched(batches, progress), self.columns, chosen, on_error)

    def head(self, limit: int = 10) -> pa.Table:
        """The first records; a small limit reads little. Raises InvalidConfigError for a negative limit."""
        batches = first(self._reader, self.slices, self.columns, count_of("limit", limit), self.isolation)
        return pa.Table.from_batches(batches, self.schema)

    def tail(self, limit: int = 10) -> pa.Table:
        """The last records, in their order; a small limit reads little. Raises as `head` does."""
        batches = last(self._reader, self.slices, self.columns, count_of("limit", limit), self.isolation)
        return pa.Table.from_batches(batches, self.schema)

    def sample(self, limit: int = 10, seed: int | None = None) -> pa.Table:
        """Different records by chance, each with the same chance, in their order; the same ones for the same `seed`.

        Reads what it chooses, and segments whose metadata does not say how many records they have. Raises as `head`.
        """
        rows = count_of("limit", limit)
        chosen = sample(self._reader, self.slices, self.columns, self.isolation, rows, seed, self.max_workers)
        return pa.Table.from_batches(chosen, self.schema)

    def plot(self, *, exact: bool = False, progress: bool | None = None) -> Any:
        """A matplotlib figure: the records over time, and bytes by partition; matplotlib must be installed.

        It is drawn from metadata. Records over time are estimates from the times of segments; `exact` reads the times
        of all records. `progress` as in `to_table`.
        """
        return scan_plot.plot(self.slices, self._reader.topic, self.times(progress) if exact else None)

    def times(self, progress: bool | None = None) -> Iterator[pa.RecordBatch]:
        """Batches with the column `timestamp` alone. `progress` as in `to_table`."""
        batches = read(self._reader, self.slices, ("timestamp",), self.isolation, self.max_workers)
        return self._watched(batches, progress)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True

    def count(self) -> int:
        """The number of records; a segment is only read if its metadata does not say how many of them it has."""
        return count(self._reader, self.slices, self.isolation, self.max_workers)

    def _watched(self, batches: Iterable[pa.RecordBatch], progress: bool | None) -> Iterator[pa.RecordBatch]:
        return Progress("reading", total_rows=most_records(self.slices), shown=progress).of(batches)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __repr__(self) -> str:
        size = sum(piece.estimated_bytes for piece in self.slices)
        return f"Scan(segments={len(self.slices)}, bytes={size}, columns={list(self.columns)})"

    def _repr_html_(self) -> str:
        return f"<p>Scan of {', '.join(self.columns)}</p>{tables.html(by_partition(self.slices))}"
