"""A scan: its plan (offsets, times and isolation as slices of segments), and its records in many shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa

from distlog.core import display, extra, optional
from distlog.core.arrays import (
    MAX_LONG,
    MIN_LONG,
    Longs,
    count_of,
    integers,
    table_of_numbers,
    whole_number,
    whole_numbers,
)
from distlog.core.commits.snapshot import Snapshot, check_partition
from distlog.core.display import Progress, SegmentColumns, counted, scan_figure, size_text
from distlog.core.errors import InvalidConfigError, InvalidRecordError, OffsetOutOfRangeError
from distlog.core.format.record_batch import COLUMNS, SCHEMA
from distlog.core.read.keys import located_slices
from distlog.core.read.lookup import EARLIEST, LATEST, Record, first_records, start_by_index
from distlog.core.schemas.avro import avro_decoder
from distlog.core.schemas.decoding import (
    DECODING_COLUMNS,
    Decoder,
    OnError,
    check_on_error,
    decoded_batch,
    schema_with,
)
from distlog.core.schemas.protobuf import protobuf_decoder
from distlog.core.schemas.registry import SchemaRegistry, SchemaTopic, registry_of
from distlog.core.segments.chunks import (
    ALWAYS,
    READ_UNCOMMITTED,
    Isolation,
    IsolationLevel,
    OutOfRange,
    SegmentSlice,
    TimeRange,
    bounded_start,
    plan,
    windows,
)
from distlog.core.segments.producer_states import aborted_transactions, last_stable_offset
from distlog.core.segments.segment_parts import DEPTH
from distlog.core.segments.segment_reader import INDEX_WORTH_BYTES, SegmentReader, read_slices
from distlog.core.storage.calls import cores, in_order
from distlog.core.times import Time

if TYPE_CHECKING:
    import pandas as pd


class Scan:
    """Read records of one snapshot, again for each result that is requested; made by `Topic.scan`.

    It is an Arrow stream and an iterator of RecordBatches, in the order of (partition, offset); `len` counts records.
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
        """The Arrow schema of the columns that are read."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return read_slices(self.reader, self.slices, self.columns, self.isolation, self.max_workers)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The records as an Arrow stream, which DuckDB, Polars and others read without a copy."""
        batches = pa.RecordBatchReader.from_batches(self.schema, self)
        return batches.__arrow_c_stream__(requested_schema)

    def to_table(self, *, progress: bool | None = None) -> pa.Table:
        """Read all records as one Arrow table.

        Args:
            progress: Whether to show progress. Default: a notebook or an interactive terminal shows it after a
                second.

        Returns:
            The table, with the columns of `schema`.

        Examples:
            >>> topic.scan(columns="offset").to_table().num_rows
            3
        """
        return pa.Table.from_batches(self._watched(self, progress), self.schema)

    def to_pandas(self, *, text: bool = False, progress: bool | None = None) -> pd.DataFrame:
        """Read all records as a pandas DataFrame; pandas must be installed.

        Args:
            text: Make keys and values texts of UTF-8.
            progress: As in `to_table`.

        Returns:
            The DataFrame.

        Raises:
            InvalidRecordError: With `text`, a key or a value is not UTF-8.

        Examples:
            >>> topic.scan(partitions=0).to_pandas(text=True)["key"].tolist()
            ['anna', 'bert']
        """
        optional("pandas", "to_pandas()", "pandas")
        table = self.to_table(progress=progress)
        return (as_text(table) if text else table).to_pandas()

    def to_polars(self, *, progress: bool | None = None) -> Any:
        """Read all records as a Polars DataFrame; Polars must be installed.

        Args:
            progress: As in `to_table`.

        Returns:
            The DataFrame.

        Examples:
            >>> topic.scan(columns=["partition", "offset"]).to_polars().shape
            (3, 2)
        """
        return optional("polars", "to_polars()", "polars").DataFrame(self.to_table(progress=progress))

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return the records as a DuckDB relation, which reads them each time it is used; DuckDB must be installed.

        Args:
            connection: The DuckDB connection; default DuckDB's own.

        Returns:
            The relation.

        Examples:
            >>> topic.scan().to_duckdb().order("key").project("key").fetchall()
            [(b'anna',), (b'bert',), (b'carl',)]
        """
        return (connection or optional("duckdb", "to_duckdb()", extra("duckdb"))).from_arrow(self)

    def avro(
        self,
        schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        registry: SchemaRegistry | SchemaTopic | Mapping[int, Any] | str | None = None,
        flatten: bool = True,
        on_error: OnError = "fail",
        progress: bool | None = None,
    ) -> pa.Table:
        r"""Read all records as one Arrow table, with the fields of the Avro values in place of column `value`.

        A null value has null fields. fastavro must be installed.

        Args:
            schema: The schema of the columns; Avro resolves each value's schema to it. Without a `registry`, all
                values must be written with this schema, and have no header. Default: the schema with the highest id
                in the scan; all records are then held in memory.
            registry: A registry, or the source of one: each value begins with the id of its schema.
            flatten: Make each field a column; else one column `value` has the fields as its parts.
            on_error: With `null`, a value that cannot be decoded gets null fields.
            progress: As in `to_table`.

        Returns:
            The table.

        Raises:
            InvalidRecordError: A value cannot be decoded, with its partition and offset, and `on_error` is fail.
            InvalidConfigError: Arrow has no columns for the schema, or two columns have one name.
            StorageError: The registry does not answer.

        Examples:
            >>> values = topic.append([{"value": b"\x02"}], partition=1)
            >>> count = {"name": "count", "type": "long"}
            >>> schema = {"type": "record", "name": "Click", "fields": [count]}
            >>> topic.scan(1, start=1, columns="value").avro(schema).to_pylist()
            [{'count': 1}]
        """
        check_on_error(on_error)
        decoder_of = partial(avro_decoder, schema, registry_of(registry))
        return self._decoded(decoder_of, schema is None, on_error, flatten, progress)

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
        r"""Read all records as one Arrow table, with the fields of the Protobuf values in place of column `value`.

        A null value has null fields. protobuf and ptars must be installed; texts and a registry need grpcio-tools
        too.

        Args:
            schema: A generated class, its descriptor, or the text of a .proto file. Default: the message type of the
                last record among those with the highest schema id in the scan.
            message: The full name of the message in the text; default its first.
            registry: As in `avro`.
            flatten: As in `avro`.
            on_error: As in `avro`.
            progress: As in `to_table`.

        Returns:
            The table.

        Raises:
            InvalidRecordError: As in `avro`.
            InvalidConfigError: The schema is not valid, or two columns have one name.
            StorageError: The registry does not answer.

        Examples:
            >>> values = topic.append([{"value": b"\x08\x01"}], partition=1)
            >>> schema = 'syntax = "proto3"; message Click { int64 count = 1; }'
            >>> topic.scan(1, start=1, columns="value").protobuf(schema).to_pylist()
            [{'count': 1}]
        """
        check_on_error(on_error)
        decoder_of = partial(protobuf_decoder, schema, message, registry_of(registry))
        return self._decoded(decoder_of, schema is None, on_error, flatten, progress)

    def head(self, limit: int = 10) -> pa.Table:
        """Read the first records; a small limit reads little.

        Args:
            limit: The most records, 0 or more.

        Returns:
            The table.

        Raises:
            InvalidConfigError: The limit is negative.

        Examples:
            >>> topic.scan(columns="key").head(1).to_pylist()
            [{'key': b'anna'}]
        """
        batches = first(self.reader, self.slices, self.columns, count_of("limit", limit), self.isolation)
        return pa.Table.from_batches(batches, self.schema)

    def tail(self, limit: int = 10) -> pa.Table:
        """Read the last records, in their order; a small limit reads little.

        Args:
            limit: The most records, 0 or more.

        Returns:
            The table.

        Examples:
            >>> topic.scan(columns="key").tail(1).to_pylist()
            [{'key': b'carl'}]
        """
        missing, parts = count_of("limit", limit), list[pa.RecordBatch]()
        # the windows go back from the end, each with twice the offsets of the last
        for window in windows(self.slices[::-1], min(missing, FIRST_OFFSETS), from_end=True) if missing else ():
            batches = list(read_slices(self.reader, window, self.columns, self.isolation, max_workers=1))
            parts, missing = batches + parts, missing - sum(batch.num_rows for batch in batches)
            if missing <= 0:
                break
        surplus = max(-missing, 0)  # the earliest window may have had more records than were missing
        return pa.Table.from_batches(parts, self.schema).slice(surplus)

    def sample(self, limit: int = 10, seed: int | None = None) -> pa.Table:
        """Read distinct random records, in their order; each record has the same chance.

        It reads the chosen records, and segments whose metadata does not have their number of records.

        Args:
            limit: The most records, 0 or more.
            seed: The same seed chooses the same records.

        Returns:
            The table.

        Examples:
            >>> topic.scan().sample(2, seed=7).num_rows
            2
        """
        most, workers = count_of("limit", limit), self.max_workers
        counts = [count_records(self.reader, [part], self.isolation, workers) for part in self.slices]
        sizes = np.array(counts, np.int64)
        total = int(sizes.sum())
        # the records of all slices are numbered from 0 on
        numbers = np.sort(np.random.default_rng(seed).choice(total, min(most, total), replace=False))
        slices, rows = _sampled_slices(self.slices, sizes, numbers)
        # `rows` has the rows of the records in all that the slices yield; `begin` is the first row of a batch
        begin, batches = 0, list[pa.RecordBatch]()
        for batch in read_slices(self.reader, slices, self.columns, self.isolation, workers):
            low, high = np.searchsorted(rows, [begin, begin + batch.num_rows])
            batches.append(batch.take(integers(rows[low:high] - begin)))
            begin += batch.num_rows
        return pa.Table.from_batches(batches, self.schema)

    def plot(self, *, exact: bool = False, progress: bool | None = None) -> Any:
        """Draw the records over time, and bytes by partition, from metadata; matplotlib must be installed.

        Args:
            exact: Read the times of all records; else they are estimates from the times of segments.
            progress: As in `to_table`.

        Returns:
            The matplotlib figure.

        Examples:
            >>> figure = topic.scan().plot(exact=True)
        """
        columns = slice_columns(self.slices)
        times = self.times(progress) if exact else None
        records, segments = counted(int(columns.records.sum()), "record"), counted(len(self.slices), "segment")
        size = size_text(int(columns.bytes.sum()))
        title = f"Scan of {self.reader.topic}: at most {records}, about {size} in {segments}"
        return scan_figure(title, columns, times)

    def times(self, progress: bool | None = None) -> Iterator[pa.RecordBatch]:
        """Read the times of all records.

        Args:
            progress: As in `to_table`.

        Returns:
            Batches with the column `timestamp` alone.

        Examples:
            >>> sum(batch.num_rows for batch in topic.scan().times())
            3
        """
        batches = read_slices(self.reader, self.slices, ("timestamp",), self.isolation, self.max_workers)
        return self._watched(batches, progress)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True

    def count(self) -> int:
        """Count the records; a segment is only read if its metadata does not have the number.

        Examples:
            >>> topic.scan(partitions=0).count()
            2
        """
        return count_records(self.reader, self.slices, self.isolation, self.max_workers)

    def _decoded(
        self,
        decoder_of: Callable[[Iterable[pa.Array]], Decoder],
        uses_newest_schema: bool,
        on_error: OnError,
        flatten: bool,
        progress: bool | None,
    ) -> pa.Table:
        """Read all records with decoded values; `decoder_of` gets the values, to find their newest schema."""
        names = list(dict.fromkeys((*self.columns, *DECODING_COLUMNS)))
        records = read_slices(self.reader, self.slices, names, self.isolation, self.max_workers)
        batches: Iterable[pa.RecordBatch] = self._watched(records, progress)
        if uses_newest_schema:
            batches = list(batches)  # all batches first, since the newest schema gives the columns
        decoder = decoder_of(batch.column("value") for batch in batches)
        schema = schema_with(self.schema, decoder, flatten)
        decoded = (decoded_batch(batch, schema, decoder, on_error, flatten) for batch in batches)
        return pa.Table.from_batches(decoded, schema)

    def _watched(self, batches: Iterable[pa.RecordBatch], progress: bool | None) -> Iterator[pa.RecordBatch]:
        return Progress("reading", total_rows=max_record_count(self.slices), shown=progress).of(batches)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __repr__(self) -> str:
        size = sum(part.estimated_bytes for part in self.slices)
        return f"Scan(segments={len(self.slices)}, bytes={size}, columns={list(self.columns)})"

    def _repr_html_(self) -> str:
        return f"<p>Scan of {', '.join(self.columns)}</p>{display.html(sizes_by_partition(self.slices))}"


#: The number of offsets that are read first, unless fewer records are requested.
FIRST_OFFSETS = 10_000


def first(
    reader: SegmentReader,
    slices: Iterable[SegmentSlice],
    columns: Sequence[str],
    limit: int,
    isolation: Isolation = READ_UNCOMMITTED,
) -> Iterator[pa.RecordBatch]:
    if limit <= 0:
        return
    # each window has twice the offsets of the last one, since few offsets may have records (in the slices' times)
    for window in windows(slices, min(limit, FIRST_OFFSETS)):
        for batch in read_slices(reader, window, columns, isolation, max_workers=1):
            yield batch.slice(0, limit)
            limit -= batch.num_rows
            if limit <= 0:
                return


#: The cost of a record that is read alone, as the bytes that a sequential read gets in that time.
POINT_BYTES = 1 << 20


def _sampled_slices(slices: Sequence[SegmentSlice], sizes: Longs, numbers: Longs) -> tuple[list[SegmentSlice], Longs]:
    """Return the slices to read for some records, and the row of each record in what these slices yield.

    `numbers` counts the records of `slices` from 0; `sizes` has the number of records of each slice.
    """
    parts: list[SegmentSlice] = []
    rows: list[Longs] = [np.empty(0, np.int64)]
    rows_before = 0
    for part, size, end in zip(slices, sizes.tolist(), np.cumsum(sizes).tolist(), strict=True):
        start = end - size
        numbers_in_slice = numbers[np.searchsorted(numbers, start) : np.searchsorted(numbers, end)] - start
        if not len(numbers_in_slice):
            continue
        are_points_cheaper = part.segment.log_bytes > max(len(numbers_in_slice) * POINT_BYTES, INDEX_WORTH_BYTES)
        if are_points_cheaper and is_every_offset_a_record(part):
            offsets = (part.span[0] + numbers_in_slice).tolist()
            parts += [part._replace(start_offset=offset, end_offset=offset + 1) for offset in offsets]
            rows.append(rows_before + np.arange(len(numbers_in_slice)))
            rows_before += len(numbers_in_slice)
        else:
            parts.append(part)
            rows.append(rows_before + numbers_in_slice)
            rows_before += size
    return parts, np.concatenate(rows)


def slice_columns(slices: Sequence[SegmentSlice]) -> SegmentColumns:
    """Return the largest possible number of records, the size and the times of each slice, for a plot."""
    rows = []
    for part in slices:
        segment = part.segment
        oldest = segment.min_timestamp if segment.min_timestamp >= 0 else segment.first_timestamp
        newest = segment.max_timestamp
        if newest >= 0:
            oldest, newest = max(oldest, part.times.oldest), min(newest, part.times.newest)
        rows.append((segment.partition, max_record_count([part]), part.estimated_bytes, oldest, newest))
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return SegmentColumns(np.unique(columns[0]), *columns)


#: Attributes for plots and Spark, which completion does not offer.
_INTERNAL = {"isolation", "max_workers", "reader", "slices", "times"}


def check_columns(columns: str | Iterable[str] | None) -> tuple[str, ...]:
    names = COLUMNS if columns is None else names_of(columns)
    for name in names:
        if name not in COLUMNS:
            raise InvalidRecordError(f"there is no column {name}: choose from {', '.join(COLUMNS)}")
    return names


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
        raise InvalidConfigError("columns must be a name or some names", got=type(columns).__name__)
    return tuple(columns)


def checked_workers(max_workers: int | None) -> int:
    workers = cores() if max_workers is None else whole_number("max_workers", max_workers)
    if workers < 1:
        raise InvalidConfigError("max_workers must be at least 1", value=workers)
    return workers


def records_of(
    reader: SegmentReader,
    snapshot: Snapshot,
    partition: int,
    start: int | None,
    limit: int | None,
    isolation: IsolationLevel = "read_uncommitted",
) -> Iterator[Record]:
    """Yield up to `limit` records of a partition from `start` on (None: no bound), if possible by a point read."""
    low = None if start is None else whole_number("start", start)
    most = MAX_LONG if limit is None else count_of("limit", limit)
    if most == 0:
        return
    if isolation == "read_uncommitted":
        state = snapshot.partitions[partition]
        offset = bounded_start(partition, state.log_start_offset if low is None else low, state, "fail")
        row = state.segments.find(offset)
        if row < len(state.segments):
            for record in first_records(reader, state.segments[row], offset, most):
                yield record
                low, most = record.offset + 1, most - 1
        slices, visible = slices_of(reader, snapshot, partition, low), READ_UNCOMMITTED
    else:
        parts, visible = plan_slices(reader, snapshot, {partition: (low, None)}, isolation)
        slices = iter(parts)
    for batch in first(reader, slices, COLUMNS, most, visible):
        yield from to_records(batch)


def to_records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records of a batch with all columns of SCHEMA."""
    times_ms = batch.column("timestamp").cast("int64")
    batch = batch.set_column(SCHEMA.get_field_index("timestamp"), "timestamp", times_ms)
    for row in batch.to_pylist():
        yield Record(**{**row, "headers": [(header["key"], header["value"]) for header in row["headers"]]})


#: (start offset, end offset) by partition. None is the log's start or end; EARLIEST and LATEST are offsets too.
Bounds = Mapping[int, tuple[int | None, int | None]]


def offset_bounds(
    snapshot: Snapshot,
    partitions: int | Iterable[int] | None,
    start: int | Mapping[int, int] | None,
    end: int | Mapping[int, int] | None,
) -> Bounds:
    count = len(snapshot.partitions)
    selected = range(count) if partitions is None else sorted({*whole_numbers("partition", partitions)})
    mapping_keys = [whole_numbers("partition", offsets) for offsets in (start, end) if isinstance(offsets, Mapping)]
    for number in chain(selected, *mapping_keys):
        check_partition(number, count)
    return {number: (_bound(number, start), _bound(number, end)) for number in selected}


def time_bounds(
    start: int | Mapping[int, int] | None,
    end: int | Mapping[int, int] | None,
    start_time: Time | None,
    end_time: Time | None,
) -> TimeRange:
    if (start is not None and start_time is not None) or (end is not None and end_time is not None):
        raise ValueError("set start or start_time, and end or end_time, not both")
    return TimeRange.between(start_time, end_time)


def _bound(partition: int, offset: int | Mapping[int, int] | None) -> int | None:
    value = offset.get(partition) if isinstance(offset, Mapping) else offset
    return None if value is None else whole_number("offset", value)


def plan_slices(
    reader: SegmentReader,
    snapshot: Snapshot,
    bounds: Bounds,
    isolation: IsolationLevel = "read_uncommitted",
    out_of_range: OutOfRange = "fail",
    times: TimeRange = ALWAYS,
    keys: pa.Array | None = None,
) -> tuple[list[SegmentSlice], Isolation]:
    """Return the slices between `bounds`, and the isolation that filters their batches.

    Reads only metadata, with three exceptions. If a large segment begins before `times`, it reads the time index, and
    the batch to which that points. For read_committed it reads the transaction indexes, and the segments with
    transactions if the metadata lacks the last stable offset. For `keys` it reads blocks of the key indexes.
    """
    check_choice("isolation", isolation, IsolationLevel)
    check_choice("out_of_range", out_of_range, OutOfRange)
    start, end, aborted = {}, {}, {}
    for number, (low, high) in bounds.items():
        state = snapshot.partitions[number]
        special = {EARLIEST: state.log_start_offset, LATEST: state.log_end_offset}
        start[number] = special[EARLIEST] if low is None else special.get(low, low)
        end[number] = special[LATEST] if high is None else special.get(high, high)
        if end[number] < 0:
            text = "an end must be an offset from 0 on, or LATEST; tail(n) reads the last n records"
            raise OffsetOutOfRangeError(text, partition=number, end=high)
        if isolation == "read_uncommitted":
            continue
        end[number] = min(end[number], last_stable_offset(reader, state))
        first_offset = bounded_start(number, start[number], state, out_of_range)
        if transactions := aborted_transactions(reader, state, first_offset):
            aborted[number] = transactions
    slices = plan(snapshot, start, end, out_of_range, times)
    if keys is not None:
        slices = list(located_slices(reader, slices, keys))
    return _with_indexed_starts(reader, slices), Isolation.of(aborted)


def slices_of(
    reader: SegmentReader,
    snapshot: Snapshot,
    partition: int,
    start: int | None,
    times: TimeRange = ALWAYS,
    keys: pa.Array | None = None,
) -> Iterator[SegmentSlice]:
    """Yield the slices of `plan_slices` for one partition from `start` on, planned when they are needed."""
    state = snapshot.partitions[partition]
    low = bounded_start(partition, state.log_start_offset if start is None else start, state, "fail")
    row, count = state.segments.find(low), 1
    while row < len(state.segments):
        row, count = row + count, 2 * count  # one segment first, then twice as many each time
        end = int(state.segments.base_offsets[row]) if row < len(state.segments) else state.log_end_offset
        yield from plan_slices(reader, snapshot, {partition: (low, end)}, times=times, keys=keys)[0]
        low = end


def _with_indexed_starts(reader: SegmentReader, parts: list[SegmentSlice]) -> list[SegmentSlice]:
    """Move the starts of large segments past offsets that the time index proves too old; drop empty slices."""
    rows = [
        row
        for row, part in enumerate(parts)
        if part.times.oldest > MIN_LONG and part.segment.log_bytes > INDEX_WORTH_BYTES and not part.is_located
    ]
    reader.fetch_indexes([parts[row].segment for row in rows])
    starts = in_order((partial(start_by_index, reader, parts[row]) for row in rows), DEPTH)
    for row, start in zip(rows, starts, strict=True):
        parts[row] = parts[row]._replace(start_offset=start)
    return [part for part in parts if part.span[0] < part.span[1]] if rows else parts


def check_choice(name: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, not {value}")


def is_every_offset_a_record(part: SegmentSlice) -> bool:
    is_uncut = (part.start_position, part.end_position) == (0, part.segment.log_bytes)
    return not part.is_filtered and part.segment.dense and is_uncut


def known_count(part: SegmentSlice) -> int | None:
    if is_every_offset_a_record(part):
        start, end = part.span
        return end - start
    is_whole = not part.is_filtered and part.covers_segment and not part.segment.has_transactions
    return part.segment.record_count if is_whole else None


def max_record_count(slices: Sequence[SegmentSlice]) -> int:
    return sum(part.span[1] - part.span[0] if (n := known_count(part)) is None else n for part in slices)


def count_records(
    reader: SegmentReader, slices: Sequence[SegmentSlice], isolation: Isolation, max_workers: int
) -> int:
    """Count the records. Reads only segments whose metadata lacks their number of records."""
    counts = [known_count(part) for part in slices]
    unknown = [part for part, count in zip(slices, counts, strict=True) if count is None]
    batches = read_slices(reader, unknown, ("offset",), isolation, max_workers)
    return sum(map(len, batches)) + sum(count for count in counts if count is not None)


def sizes_by_partition(slices: Sequence[SegmentSlice]) -> pa.Table:
    names = ("partition", "start_offset", "end_offset", "segments", "bytes")
    rows: dict[int, dict[str, int]] = {}
    for part in slices:
        (start, end), partition = part.span, part.segment.partition
        row = rows.setdefault(partition, dict(zip(names, (partition, start, end, 0, 0), strict=True)))
        row |= {"end_offset": end, "segments": row["segments"] + 1, "bytes": row["bytes"] + part.estimated_bytes}
    return table_of_numbers(list(rows.values()), names)
