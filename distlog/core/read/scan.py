"""A scan: the records of one snapshot, in (partition, offset) order, in whatever shape they are wanted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core import display, extra, optional
from distlog.core.arrays import integers, table_of_numbers
from distlog.core.commits.snapshot import Snapshot
from distlog.core.display import Progress, counted, size_text
from distlog.core.errors import InvalidConfigError, InvalidRecordError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.format.record_batch import COLUMNS, SCHEMA
from distlog.core.integers import MAX_LONG, MIN_LONG, count_of, whole_number, whole_numbers
from distlog.core.plots import SegmentColumns, scan_figure
from distlog.core.read.lookup import EARLIEST, LATEST, first_records, start_by_index
from distlog.core.schemas.avro import avro_table
from distlog.core.schemas.decoding import NEEDED, OnError, check_on_error, without_headers
from distlog.core.schemas.protobuf import protobuf_table
from distlog.core.schemas.registry import SchemaRegistry, SchemaTopic, registry_of
from distlog.core.segments.chunks import READ_UNCOMMITTED, Isolation, IsolationLevel
from distlog.core.segments.segment_parts import DEPTH
from distlog.core.segments.segment_reader import INDEX_WORTH_BYTES, SegmentReader, read_slices
from distlog.core.segments.slices import (
    ALWAYS,
    OutOfRange,
    SegmentSlice,
    TimeRange,
    bounded_start,
    plan,
    windows,
    windows_from_end,
)
from distlog.core.segments.transactions import aborted_transactions, last_stable_offset
from distlog.core.storage.parallel import cores, in_order
from distlog.core.times import Time

if TYPE_CHECKING:
    import pandas as pd


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
        self.reader, self.slices, self.columns, self.isolation = reader, slices, tuple(columns), isolation
        self.max_workers = checked_workers(max_workers)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns asked for."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return read_slices(self.reader, self.slices, self.columns, self.isolation, self.max_workers)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The records as an Arrow stream, which DuckDB, Polars and others read without a copy."""
        batches = pa.RecordBatchReader.from_batches(self.schema, self)
        return batches.__arrow_c_stream__(requested_schema)

    def to_table(self, *, progress: bool | None = None) -> pa.Table:
        """All records as one Arrow table.

        By default a notebook or an interactive terminal shows the `progress` of reads longer than a second; true
        shows it to every terminal, false to none.
        """
        return pa.Table.from_batches(self._watched(self, progress), self.schema)

    def to_pandas(self, *, text: bool = False, progress: bool | None = None) -> pd.DataFrame:
        """All records as a pandas DataFrame; pandas must be installed. `text` makes keys and values texts of UTF-8.

        Raises InvalidRecordError if some key or value is not UTF-8. `progress` as in `to_table`.
        """
        optional("pandas", "to_pandas()", "pandas")
        table = self.to_table(progress=progress)
        return (as_text(table) if text else table).to_pandas()

    def to_polars(self, *, progress: bool | None = None) -> Any:
        """All records as a Polars DataFrame; Polars must be installed. `progress` as in `to_table`."""
        return optional("polars", "to_polars()", "polars").DataFrame(self.to_table(progress=progress))

    def to_duckdb(self, connection: Any = None) -> Any:
        """The records as a DuckDB relation, which reads them each time it is used; DuckDB must be installed."""
        return (connection or optional("duckdb", "to_duckdb()", extra("duckdb"))).from_arrow(self)

    def json(
        self,
        *paths: str,
        framed: bool = False,
        on_error: OnError = "fail",
        progress: bool | None = None,
        **named: str,
    ) -> pa.Table:
        """All records as one Arrow table, with fields of the value, which is JSON, in place of `value`.

        A path is `$.user.name`, `$.tags[0]` or `$."odd.name"`; `json("$.user", city="$.address.city")` makes the
        columns `user` and `city`. A column is int64, double or bool if all its values are, and no whole number
        changes; else it is text, an object or an array as JSON. A missing field is null, and so is each one of a null
        value. With `framed`, values begin with the header of a registry's JSON Schema, which is passed over. DuckDB
        must be installed.

        Raises InvalidRecordError, with partition and offset, for a value that is no JSON, unless `on_error` is null:
        then its fields are null. Raises InvalidConfigError for a wrong path, or for two columns of one name.
        `progress` as in `to_table`.
        """
        others = [name for name in self.columns if name != "value"]
        chosen = named_paths(paths, named, others)
        check_on_error(on_error)
        batches: Iterable[pa.RecordBatch] = self._needed(progress)
        if framed:
            batches = without_headers(batches, on_error)
        return json_fields(batches, self.columns, chosen, on_error)

    def avro(
        self,
        schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        registry: SchemaRegistry | SchemaTopic | Mapping[int, Any] | str | None = None,
        flatten: bool = True,
        on_error: OnError = "fail",
        progress: bool | None = None,
    ) -> pa.Table:
        """All records as one Arrow table, with the fields of the value, which is Avro, in place of `value`.

        With a `registry` (what `SchemaRegistry` takes) each value begins with the id of the schema that wrote it. The
        columns are those of `schema`, to which Avro resolves the others, or of the highest id in the scan; then the
        scan is held in memory meanwhile. A `schema` alone wrote the values, which have no header. Without `flatten`
        the fields are the parts of one column `value`. A null value has null fields. fastavro must be installed.

        Raises InvalidRecordError, with partition and offset, for a value that cannot be decoded, unless `on_error` is
        null: then its fields are null. Raises InvalidConfigError for a schema that Arrow has no columns for, and for
        two columns of one name, and StorageError if the registry cannot be asked. `progress` as in `to_table`.
        """
        check_on_error(on_error)
        source = None if registry is None else registry_of(registry)
        return avro_table(self._needed(progress), self.schema, schema, source, on_error, flatten)

    def protobuf(
        self,
        schema: Any = None,
        *,
        message: str | None = None,
        registry: SchemaRegistry | SchemaTopic | Mapping[int, Any] | str | None = None,
        flatten: bool = True,
        on_error: OnError = "fail",
        progress: bool | None = None,
    ) -> pa.Table:
        """All records as one Arrow table, with the fields of the value, a message of Protobuf, in place of `value`.

        A `schema` is a generated class, its descriptor, or the text of a .proto file, with the full name of its
        `message` if that is not the first. Without one the columns are those of the last message with the highest
        id. All else is as in `avro`. protobuf and ptars must be installed, for texts and a registry grpcio-tools.
        """
        check_on_error(on_error)
        source = None if registry is None else registry_of(registry)
        return protobuf_table(self._needed(progress), self.schema, schema, message, source, on_error, flatten)

    def head(self, limit: int = 10) -> pa.Table:
        """The first records; a small limit reads little. Raises InvalidConfigError for a negative limit."""
        batches = first(self.reader, self.slices, self.columns, count_of("limit", limit), self.isolation)
        return pa.Table.from_batches(batches, self.schema)

    def tail(self, limit: int = 10) -> pa.Table:
        """The last records, in their order; a small limit reads little. Raises as `head` does."""
        missing, parts = count_of("limit", limit), list[pa.RecordBatch]()
        for window in windows_from_end(self.slices, min(missing, FIRST_OFFSETS)) if missing else ():
            batches = list(read_slices(self.reader, window, self.columns, self.isolation, max_workers=1))
            parts, missing = batches + parts, missing - sum(batch.num_rows for batch in batches)
            if missing <= 0:
                break
        return pa.Table.from_batches(parts, self.schema).slice(max(-missing, 0))

    def sample(self, limit: int = 10, seed: int | None = None) -> pa.Table:
        """Different records by chance, each with the same chance, in their order; the same ones for the same `seed`.

        Reads what it chooses, and segments whose metadata does not say how many records they have. Raises as `head`.
        """
        most, workers = count_of("limit", limit), self.max_workers
        sizes = np.array(
            [count_records(self.reader, [piece], self.isolation, workers) for piece in self.slices], np.int64
        )
        total = int(sizes.sum())
        chosen = np.sort(np.random.default_rng(seed).choice(total, min(most, total), replace=False))
        pieces, rows = _to_read(self.slices, sizes, chosen)
        begin, parts = 0, list[pa.RecordBatch]()
        for batch in read_slices(self.reader, pieces, self.columns, self.isolation, workers):
            low, high = np.searchsorted(rows, [begin, begin + batch.num_rows])
            parts.append(batch.take(integers(rows[low:high] - begin)))
            begin += batch.num_rows
        return pa.Table.from_batches(parts, self.schema)

    def plot(self, *, exact: bool = False, progress: bool | None = None) -> Any:
        """A matplotlib figure: the records over time, and bytes by partition; matplotlib must be installed.

        It is drawn from metadata. Records over time are estimates from the times of segments; `exact` reads the times
        of all records. `progress` as in `to_table`.
        """
        facts, times = slice_facts(self.slices), self.times(progress) if exact else None
        records, segments = counted(int(facts.records.sum()), "record"), counted(len(self.slices), "segment")
        size = size_text(int(facts.bytes.sum()))
        return scan_figure(
            f"Scan of {self.reader.topic}: at most {records}, about {size} in {segments}", facts, times
        )

    def times(self, progress: bool | None = None) -> Iterator[pa.RecordBatch]:
        """Batches with the column `timestamp` alone. `progress` as in `to_table`."""
        batches = read_slices(self.reader, self.slices, ("timestamp",), self.isolation, self.max_workers)
        return self._watched(batches, progress)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True

    def count(self) -> int:
        """The number of records; a segment is only read if its metadata does not say how many of them it has."""
        return count_records(self.reader, self.slices, self.isolation, self.max_workers)

    def _needed(self, progress: bool | None) -> Iterator[pa.RecordBatch]:
        columns = list(dict.fromkeys((*self.columns, *NEEDED)))
        batches = read_slices(self.reader, self.slices, columns, self.isolation, self.max_workers)
        return self._watched(batches, progress)

    def _watched(self, batches: Iterable[pa.RecordBatch], progress: bool | None) -> Iterator[pa.RecordBatch]:
        return Progress("reading", total_rows=most_records(self.slices), shown=progress).of(batches)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __repr__(self) -> str:
        size = sum(piece.estimated_bytes for piece in self.slices)
        return f"Scan(segments={len(self.slices)}, bytes={size}, columns={list(self.columns)})"

    def _repr_html_(self) -> str:
        return f"<p>Scan of {', '.join(self.columns)}</p>{display.html(sizes_by_partition(self.slices))}"


_INTEGERS = {"BIGINT", "UBIGINT"}
#: The type of a column whose values are all of these kinds; else it is text.
_TYPES = ((_INTEGERS, pa.int64()), ({*_INTEGERS, "DOUBLE"}, pa.float64()), ({"BOOLEAN"}, pa.bool_()))
#: Nothing is read but the batch, and nothing is fetched. One thread, since the scan decodes ahead in others.
_SETTINGS = {
    "threads": "1",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def named_paths(paths: Sequence[str], named: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
    names = [path.removeprefix("$").removeprefix(".") or "value" if isinstance(path, str) else "" for path in paths]
    by_name = {**dict(zip(names, paths, strict=True)), **named}
    for name, path in by_name.items():
        if not isinstance(path, str) or not path.startswith("$"):
            raise InvalidConfigError("a path begins with $, as in $.user.name or $.tags[0]", path=repr(path))
        if name in columns:
            raise InvalidConfigError(
                f"a column is called {name} already: give another name, as in json(my_name={path!r})", path=path
            )
    if not by_name or len(by_name) < len(paths) + len(named):
        raise InvalidConfigError("json needs paths, each column once: json('$.user', city='$.address.city')")
    return by_name


def json_fields(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], paths: Mapping[str, str], on_error: OnError
) -> pa.Table:
    """The `columns` of batches that have NEEDED too, with the fields at `paths` instead of `value`, or at the end."""
    check_on_error(on_error)
    taker = _Taker(paths, on_error)
    others = [name for name in columns if name != "value"]
    chunks: dict[str, list[pa.Array]] = {name: [] for name in (*others, *paths)}
    for batch in batches:
        for name in others:
            chunks[name].append(batch.column(name))
        for name, texts in zip(paths, taker.take(batch), strict=True):
            chunks[name] += texts.chunks
    made = {name: pa.chunked_array(chunks[name], SCHEMA.field(name).type) for name in others}
    made |= {name: _typed(pa.chunked_array(chunks[name], pa.string()), taker.kinds[name]) for name in paths}
    at = list(columns).index("value") if "value" in columns else len(columns)
    return pa.table({name: made[name] for name in (*columns[:at], *paths, *columns[at + 1 :])})


class _Taker:
    """Extracts the fields as texts, with DuckDB; `kinds` are the kinds of JSON values of each field.

    pyarrow's JSON reader takes twice the processor time, needs every type beforehand, and fails where two records
    have different types in one field.
    """

    def __init__(self, paths: Mapping[str, str], on_error: OnError) -> None:
        self._duckdb = optional("duckdb", "json()", extra("duckdb"))
        self._connection = self._duckdb.connect(":memory:", config=_SETTINGS)
        self._paths, self._on_error = list(paths.values()), on_error
        self.kinds: dict[str, set[str]] = {name: set() for name in paths}
        self._valid = "value" if on_error == "fail" else "CASE WHEN json_valid(value) THEN value END"
        numbers = range(1, len(paths) + 1)
        fields = ", ".join(f"texts[{number}], kinds[{number}]" for number in numbers)
        self._query = (
            f"SELECT {fields} FROM (SELECT json_extract_string(value, $paths) AS texts, "
            "json_type(value, $paths) AS kinds FROM (SELECT {} AS value FROM given))"
        )

    def take(self, batch: pa.RecordBatch) -> list[pa.ChunkedArray]:
        texts = _texts(batch.column("value"))
        if self._on_error == "fail" and texts.null_count > batch.column("value").null_count:
            self._fail(batch, texts)
        try:
            try:
                columns = self._run(self._query.format("value"), texts, {"paths": self._paths})
            except self._duckdb.InvalidInputException:
                texts = with_whole_characters(texts)
                columns = self._run(self._query.format(self._valid), texts, {"paths": self._paths})
        except self._duckdb.BinderException as error:
            reason = str(error).removeprefix("Binder Error: ")
            raise InvalidConfigError(f"a path is wrong: {reason}", paths=self._paths) from None
        except self._duckdb.InvalidInputException:
            self._fail(batch, texts)
            raise
        for kinds, column in zip(self.kinds.values(), columns.columns[1::2], strict=True):
            kinds.update(pc.unique(column).drop_null().to_pylist())
        return list(columns.columns[::2])

    def _fail(self, batch: pa.RecordBatch, texts: pa.Array) -> None:
        valid = self._run("SELECT coalesce(json_valid(value), false) FROM given", texts).column(0)
        bad = pc.and_(pc.is_valid(batch.column("value")), pc.invert(valid.combine_chunks()))
        for row in np.flatnonzero(bad.to_numpy(zero_copy_only=False))[:1].tolist():
            raise InvalidRecordError(
                "the value is no JSON; on_error='null' leaves the fields of such records null",
                partition=batch.column("partition")[row].as_py(),
                offset=batch.column("offset")[row].as_py(),
            )

    def _run(self, query: str, texts: pa.Array, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        self._connection.register("given", pa.table({"value": texts}))
        try:
            return self._connection.sql(query, params=parameters).to_arrow_table()
        except RuntimeError as error:
            # DuckDB's words for Ctrl-C
            if str(error) == "Query interrupted":
                raise KeyboardInterrupt from None
            raise


#: Escapes of JSON: those that stay, two surrogates that are one character among them, and halves of a character.
_ESCAPES = re.compile(
    rb"(\\(?:[^u]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_REPLACEMENT = rb"\ufffd"


def with_whole_characters(texts: pa.Array) -> pa.Array:
    """Texts of JSON in which U+FFFD replaces each escaped surrogate without its other half, such as `\\ud83d`.

    Programs that cut text by UTF-16 write them. They are JSON, but not a character, and DuckDB refuses the value.
    """
    valid, ends, data = texts.buffers()
    whole = _ESCAPES.sub(lambda escape: escape[1] or _REPLACEMENT, data) if data is not None else b""
    return pa.Array.from_buffers(texts.type, len(texts), [valid, ends, pa.py_buffer(whole)], offset=texts.offset)


def _texts(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        half = len(values) // 2
        if not half:
            return pa.nulls(1, pa.string())
        return pa.concat_arrays([_texts(values.slice(0, half)), _texts(values.slice(half))])


def _typed(texts: pa.ChunkedArray, kinds: set[str]) -> pa.ChunkedArray:
    kinds = kinds - {"NULL"}
    for accepted, kind in _TYPES:
        if kinds and kinds <= accepted:
            try:
                numbers = texts.cast(kind)
            except pa.ArrowInvalid:
                return texts  # numbers that the type cannot hold stay as they are written
            return numbers if kind != pa.float64() or _are_held(texts, numbers) else texts
    return texts


def _are_held(texts: pa.ChunkedArray, doubles: pa.ChunkedArray) -> bool:
    whole = pc.unique(texts.filter(pc.match_substring_regex(texts, "^-?[0-9]{16,}$"))).to_pylist()
    infinite = pc.and_(pc.is_inf(doubles), pc.match_substring_regex(texts, "^-?[0-9]"))
    return not pc.any(infinite).as_py() and all(float(each) == int(each) for each in whole)


#: How many offsets are read at first, unless fewer records are asked for.
FIRST_OFFSETS = 10_000


def first(
    reader: SegmentReader,
    slices: Iterable[SegmentSlice],
    columns: Sequence[str],
    limit: int,
    isolation: Isolation = READ_UNCOMMITTED,
) -> Iterator[pa.RecordBatch]:
    # each window has more offsets: few of them may be records, or have the times asked for
    for window in windows(slices, min(limit, FIRST_OFFSETS)) if limit > 0 else ():
        for batch in read_slices(reader, window, columns, isolation, max_workers=1):
            yield batch.slice(0, limit)
            limit -= batch.num_rows
            if limit <= 0:
                return


#: The cost of a record that is read alone, as the bytes that a sequential read gets in that time.
POINT_BYTES = 1 << 20

Longs = npt.NDArray[np.int64]


def _to_read(slices: Sequence[SegmentSlice], sizes: Longs, chosen: Longs) -> tuple[list[SegmentSlice], Longs]:
    """The ranges to read for the records of these numbers, and their row numbers in the ranges."""
    pieces: list[SegmentSlice] = []
    rows: list[Longs] = [np.empty(0, np.int64)]
    begin = 0
    for piece, size, end in zip(slices, sizes.tolist(), np.cumsum(sizes).tolist(), strict=True):
        own = chosen[np.searchsorted(chosen, end - size) : np.searchsorted(chosen, end)] - (end - size)
        if not len(own):
            continue
        is_worth_points = piece.segment.log_bytes > max(len(own) * POINT_BYTES, INDEX_WORTH_BYTES)
        if is_worth_points and is_every_offset_a_record(piece):
            first = piece.span[0]
            pieces += [piece._replace(start_offset=first + one, end_offset=first + one + 1) for one in own.tolist()]
            own, size = np.arange(len(own)), len(own)
        else:
            pieces.append(piece)
        rows.append(begin + own)
        begin += size
    return pieces, np.concatenate(rows)


def slice_facts(slices: Sequence[SegmentSlice]) -> SegmentColumns:
    rows = []
    for piece in slices:
        segment = piece.segment
        first = segment.min_timestamp if segment.min_timestamp >= 0 else segment.first_timestamp
        last = segment.max_timestamp
        if last >= 0:
            first, last = max(first, piece.times.oldest), min(last, piece.times.newest)
        rows.append((segment.partition, most_records([piece]), piece.estimated_bytes, first, last))
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return SegmentColumns(np.unique(columns[0]), *columns)


#: The attributes that plots and Spark use. Completion does not offer them.
_INTERNAL = {"isolation", "max_workers", "reader", "slices", "times"}


def check_columns(columns: str | Iterable[str] | None) -> tuple[str, ...]:
    chosen = COLUMNS if columns is None else names_of(columns)
    for name in chosen:
        if name not in COLUMNS:
            raise InvalidRecordError(f"no column {name}; there are {', '.join(COLUMNS)}")
    return chosen


def as_text(table: pa.Table) -> pa.Table:
    for number, name in enumerate(table.schema.names):
        if pa.types.is_binary(table.schema.field(name).type):
            try:
                table = table.set_column(number, name, table[name].cast(pa.string()))
            except pa.ArrowInvalid as error:
                raise InvalidRecordError(f"column {name} is not text: read it as bytes ({error})") from None
    return table


def names_of(columns: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(columns, str):
        return (columns,)
    if not isinstance(columns, Iterable):
        raise InvalidConfigError("columns are a name or some names", got=type(columns).__name__)
    return tuple(columns)


def checked_workers(max_workers: int | None) -> int:
    workers = cores() if max_workers is None else whole_number("max_workers", max_workers)
    if workers < 1:
        raise InvalidConfigError("max_workers must be at least 1", value=workers)
    return workers


class Record(NamedTuple):
    """One record; `timestamp` in ms, -1 for none; `timestamp_type` 0 CreateTime, 1 LogAppendTime, -1 none."""

    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def records_of(
    reader: SegmentReader,
    snapshot: Snapshot,
    partition: int,
    start: int | None,
    limit: int | None,
    isolation: IsolationLevel = "read_uncommitted",
) -> Iterator[Record]:
    low = None if start is None else whole_number("start", start)
    most = MAX_LONG if limit is None else count_of("limit", limit)
    if most == 0:
        return
    if isolation == "read_uncommitted":
        state = snapshot.partitions[partition]
        offset = bounded_start(partition, state.log_start_offset if low is None else low, state, "fail")
        row = state.segments.find(offset)
        for record in first_records(reader, state.segments[row], offset, most) if row < len(state.segments) else ():
            yield Record(partition, *record)
            low, most = record.offset + 1, most - 1
        slices, visible = slices_of(reader, snapshot, partition, low), READ_UNCOMMITTED
    else:
        pieces, visible = plan_slices(reader, snapshot, {partition: (low, None)}, isolation)
        slices = iter(pieces)
    for batch in first(reader, slices, COLUMNS, most, visible):
        batch = batch.set_column(2, "timestamp", batch.column("timestamp").cast("int64"))
        for row in batch.to_pylist():
            yield Record(**{**row, "headers": [(each["key"], each["value"]) for each in row["headers"]]})


#: By partition (start offset, end offset); None is the log's own bound.
Bounds = Mapping[int, tuple[int | None, int | None]]


def offset_bounds(
    snapshot: Snapshot,
    partitions: int | Iterable[int] | None,
    start: int | Mapping[int, int] | None,
    end: int | Mapping[int, int] | None,
) -> Bounds:
    chosen = (
        range(len(snapshot.partitions)) if partitions is None else sorted({*whole_numbers("partition", partitions)})
    )
    for number in (*chosen, *_partitions_of(start), *_partitions_of(end)):
        if not 0 <= number < len(snapshot.partitions):
            raise TopicNotFoundError(
                f"the topic has partitions 0 to {len(snapshot.partitions) - 1}", partition=number
            )
    return {number: (_bound(number, start), _bound(number, end)) for number in chosen}


def time_bounds(
    start: int | Mapping[int, int] | None,
    end: int | Mapping[int, int] | None,
    start_time: Time | None,
    end_time: Time | None,
) -> TimeRange:
    if (start is not None and start_time is not None) or (end is not None and end_time is not None):
        raise ValueError("give start or start_time, and end or end_time, not both")
    return TimeRange.between(start_time, end_time)


def _partitions_of(offsets: int | Mapping[int, int] | None) -> list[int]:
    return whole_numbers("partition", offsets) if isinstance(offsets, Mapping) else []


def _bound(partition: int, offset: int | Mapping[int, int] | None) -> int | None:
    own = offset.get(partition) if isinstance(offset, Mapping) else offset
    return None if own is None else whole_number("offset", own)


def plan_slices(
    reader: SegmentReader,
    snapshot: Snapshot,
    wanted: Bounds,
    isolation: IsolationLevel = "read_uncommitted",
    out_of_range: OutOfRange = "fail",
    times: TimeRange = ALWAYS,
) -> tuple[list[SegmentSlice], Isolation]:
    """The slices of what is asked, and the isolation that filters their batches. A bound may be EARLIEST or LATEST.

    Reads no data, with two exceptions. For a large segment that lies in `times` only from some record on, it reads
    the time index and the batch that this leads to. For read_committed it reads the transaction indexes, and the
    segments with transactions if the metadata does not have the last stable offset.
    """
    check_choice("isolation", isolation, IsolationLevel)
    check_choice("out_of_range", out_of_range, OutOfRange)
    start, end = {}, {}
    aborted = {}
    for number, (low, high) in wanted.items():
        state = snapshot.partitions[number]
        special = {EARLIEST: state.log_start_offset, LATEST: state.log_end_offset}
        start[number] = special[EARLIEST] if low is None else special.get(low, low)
        end[number] = special[LATEST] if high is None else special.get(high, high)
        if end[number] < 0:
            raise OffsetOutOfRangeError(
                "an end is an offset from 0 on, or LATEST: the last n records are tail(n)", partition=number, end=high
            )
        if isolation == "read_uncommitted":
            continue
        end[number] = min(end[number], last_stable_offset(reader, state))
        # a transaction that ended before the first offset has no later records
        first = bounded_start(number, start[number], state, out_of_range)
        if transactions := aborted_transactions(reader, state, first):
            aborted[number] = transactions
    chosen = plan(snapshot, start, end, out_of_range, times)
    return _begun_later(reader, chosen), Isolation.of(aborted)


def slices_of(
    reader: SegmentReader, snapshot: Snapshot, partition: int, start: int | None, times: TimeRange = ALWAYS
) -> Iterator[SegmentSlice]:
    """The slices of `plan_slices` for one partition from `start` on, planned some segments at a time when needed."""
    state = snapshot.partitions[partition]
    low = bounded_start(partition, state.log_start_offset if start is None else start, state, "fail")
    row, count = state.segments.find(low), 1
    while row < len(state.segments):
        row, count = row + count, 2 * count
        end = int(state.segments.base_offsets[row]) if row < len(state.segments) else state.log_end_offset
        yield from plan_slices(reader, snapshot, {partition: (low, end)}, times=times)[0]
        low = end


def _begun_later(reader: SegmentReader, pieces: list[SegmentSlice]) -> list[SegmentSlice]:
    """The slices without the first offsets that time indexes rule out; a few indexes are read at once."""
    # an index is worth its request to skip the old part of a large segment
    rows = [
        row
        for row, piece in enumerate(pieces)
        if piece.times.oldest > MIN_LONG and piece.segment.log_bytes > INDEX_WORTH_BYTES
    ]
    reader.fetch_indexes([pieces[row].segment for row in rows])
    starts = in_order((partial(start_by_index, reader, pieces[row]) for row in rows), DEPTH)
    for row, start in zip(rows, starts, strict=True):
        pieces[row] = pieces[row]._replace(start_offset=start)
    return [piece for piece in pieces if piece.span[0] < piece.span[1]] if rows else pieces


def check_choice(name: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, not {value}")


def is_every_offset_a_record(piece: SegmentSlice) -> bool:
    uncut = (piece.start_position, piece.end_position) == (0, piece.segment.log_bytes)
    return piece.times == ALWAYS and piece.segment.dense and uncut


def known_count(piece: SegmentSlice) -> int | None:
    if is_every_offset_a_record(piece):
        start, end = piece.span
        return end - start
    is_whole = piece.times == ALWAYS and piece.covers_segment and not piece.segment.has_transactions
    return piece.segment.record_count if is_whole else None


def most_records(slices: Sequence[SegmentSlice]) -> int:
    known = ((piece, known_count(piece)) for piece in slices)
    return sum(piece.span[1] - piece.span[0] if number is None else number for piece, number in known)


def count_records(
    reader: SegmentReader, slices: Sequence[SegmentSlice], isolation: Isolation, max_workers: int
) -> int:
    """The number of records; a segment is only read if its metadata does not say how many of them it has."""
    known = [known_count(piece) for piece in slices]
    unknown = [piece for piece, number in zip(slices, known, strict=True) if number is None]
    looked_at = sum(len(batch) for batch in read_slices(reader, unknown, ("offset",), isolation, max_workers))
    return looked_at + sum(number for number in known if number is not None)


def sizes_by_partition(slices: Sequence[SegmentSlice]) -> pa.Table:
    names = ("partition", "start_offset", "end_offset", "segments", "bytes")
    rows: dict[int, dict[str, int]] = {}
    for piece in slices:
        (start, end), partition = piece.span, piece.segment.partition
        row = rows.setdefault(partition, dict(zip(names, (partition, start, end, 0, 0), strict=True)))
        row |= {"end_offset": end, "segments": row["segments"] + 1, "bytes": row["bytes"] + piece.estimated_bytes}
    return table_of_numbers(list(rows.values()), names)
