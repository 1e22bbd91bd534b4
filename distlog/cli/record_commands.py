"""The commands that append and print records."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

import distlog
from distlog.cli import options
from distlog.cli.input import STANDARD_INPUT, Interrupt, RecordAppender, Source, StreamReading
from distlog.cli.options import AtTime, AtVersion, Json, StorageOptions, Url, open_at, settings, usage
from distlog.console import arguments, output
from distlog.console.arguments import FromEnd, registry_at
from distlog.core import extra, optional
from distlog.core.arrays import MAX_INT
from distlog.core.display import Progress, counted
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.files.file_reader import FileReader
from distlog.core.files.input_files import ReadOptions
from distlog.core.format.record_batch import COLUMNS
from distlog.core.kafka.dump import DumpedFile
from distlog.core.kafka.dump import dump as dump_files
from distlog.core.kafka.dump_lines import DumpOptions, DumpOutput
from distlog.core.read.consumer import Consumer, Start, ends_of
from distlog.core.read.keys import key_array
from distlog.core.read.lookup import EARLIEST
from distlog.core.read.row_lines import csv_rows
from distlog.core.read.scan import first, slices_of
from distlog.core.segments.chunks import IsolationLevel, TimeRange
from distlog.core.storage.storage import InputStorage
from distlog.core.times import now_ms
from distlog.core.topic import Topic

#: The printed columns unless --columns is given; JSON has all columns.
_DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "timestamp_type")


class OnErrorChoice(str, Enum):
    FAIL = "fail"
    NULL = "null"


class ResultFormat(str, Enum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


RecordFormat = Annotated[
    Any,
    typer.Option(
        "--format",
        metavar="FORMAT",
        parser=usage(lambda text: text if text in ("json", "csv") else output.Conversions.parse(text)),
        help="Print json, csv, or a text like '%k %v\\n', without adding a newline: %v %s value, %k key, "
        "%p partition, %o offset, %T ms since 1970, %h headers, %t topic, %S %K bytes of value and key, %%.",
    ),
]


def append(
    url: Url,
    files: options.Files = None,
    *,
    kind: options.InputFormat = None,
    key: options.Key = None,
    value: options.Value = None,
    timestamp: options.Timestamp = None,
    timestamp_unit: options.TimeUnit = options.Unit.MS,
    pattern: options.Pattern = None,
    time_format: options.TimeFormat = None,
    key_separator: options.KeySeparator = None,
    headers: options.Headers,
    partition: options.Partition = None,
    bad_lines: options.OnBadLine = options.BadLines.FAIL,
    commit_interval: options.CommitInterval = 5.0,
    app_id: options.AppId = None,
    batch_id: options.BatchId = None,
    compression: options.Compression = None,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Append files in one commit, or a stream.

    Either all files are appended or none. A stream is committed every few seconds, and when Ctrl-C or SIGTERM ends
    it. At a bad line in a stream, the earlier lines are committed.
    """
    reader = FileReader(
        ReadOptions(
            format=kind.value if kind else None,
            key=key,
            value=value,
            timestamp=timestamp,
            timestamp_unit=timestamp_unit.value,
            pattern=pattern,
            time_format=time_format,
            key_separator=key_separator,
            headers=tuple(headers),
            partition=partition,
            bad_lines=bad_lines.value,
            now_ms=now_ms(),
        ),
        InputStorage(dict(storage)),
    )
    source = Source(reader, files or [STANDARD_INPUT])
    identity = source.batch_identity(app_id, batch_id)
    topic = distlog.open(url, storage_options=dict(storage))
    period_s = commit_interval if source.has_stream else None
    with Interrupt() as interrupt, RecordAppender(topic, compression, period_s, time.monotonic, identity) as appender:
        _append_until_end(source, appender, interrupt)
    if not interrupt.signal and (warning := source.missing_records_warning()):  # files without records
        print(f"distlog: {warning}", file=sys.stderr)
    _report(appender, interrupt.signal, as_json=as_json)
    if interrupt.signal:
        raise typer.Exit(128 + interrupt.signal)


def _append_until_end(source: Source, appender: RecordAppender, interrupt: Interrupt) -> None:
    """Append records until the end of the source or a signal. A signal discards records of files, not of a stream."""
    is_error_reported = False
    with Progress("appending", total_bytes=source.shown_size) as progress:
        for reading in source.readings(appender.wait):  # of a stream, or of the files between two streams
            for part in interrupt.until(iter(reading)):
                # a stream yields None after `appender.wait()` seconds without input: a commit may be due
                if part is not None:
                    appender.append(part)
                    progress.add(part.records.num_rows, part.input_bytes)
                appender.commit_if_due()
                # warn early if no line has the field that --key, --value or --timestamp names: a stream may never end
                if appender.records and not is_error_reported and (field_error := source.seen_fields.error()):
                    print(f"distlog: so far {field_error}", file=sys.stderr, flush=True)
                    is_error_reported = True
            if interrupt.signal and not source.has_stream:
                appender.abort()
                return
            if isinstance(reading, StreamReading):
                # unfinished CSV rows at the end of the stream, which a signal may have ended within a row
                for part in reading.remaining():
                    appender.append(part)
            if interrupt.signal:
                return
    if field_error := source.seen_fields.error():
        appender.abort()
        raise field_error


def _report(appender: RecordAppender, signal_number: int, *, as_json: bool) -> None:
    ranges = "".join(f", partition {number} [{start}, {end})" for number, (start, end) in appender.offsets.items())
    verb = "had appended" if appender.is_replayed else "appended"
    text = f"{verb} {counted(appender.records, 'record')}{ranges}"
    if signal_number:
        text = f"interrupted: {text}"
    if appender.skipped:
        text += f"; skipped {counted(appender.skipped, 'bad line')}"
    fields = {
        "version": appender.version,
        "records": appender.records,
        "offsets": appender.offsets,
        "replayed": appender.is_replayed,
        "skipped": appender.skipped,
        "interrupted": signal_number != 0,
    }
    output.print_report(output.Summary(text, fields), as_json=as_json)


def read(
    url: Url,
    *,
    partition: options.Partitions = None,
    offset: options.StartOffset = None,
    tail: options.Tail = None,
    limit: options.Limit = None,
    since: options.Since = None,
    until: options.Until = None,
    key: options.Keys = None,
    columns: options.Columns = None,
    record_format: RecordFormat = None,
    follow: options.Follow = False,
    group: options.Group = None,
    timeout: options.Timeout = None,
    committed: options.Committed = False,
    version: AtVersion = None,
    timestamp: AtTime = None,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Print records.

    With --json, each line is an object that append --format records can read.
    """
    if isinstance(offset, FromEnd) and tail is None:
        # `--offset -5`, which is FromEnd(5), is `--tail 5`
        offset, tail = None, int(offset)
    bounds = Bounds(
        offset=offset,
        tail=tail,
        since=since,
        until=until,
        keys=tuple(key or ()),
        isolation="read_committed" if committed else "read_uncommitted",
    )
    follows = follow or group is not None or timeout is not None
    _check_combination(bounds, follows=follows, is_old=version is not None or timestamp is not None)
    topic = open_at(url, version, timestamp, storage)
    printed_columns, print_records = batch_printer(topic.name, columns, record_format, as_json=as_json)
    if follows:
        batches = consumed_batches(topic, partition, bounds, limit, printed_columns, group, timeout)
    else:
        batches = read_batches(topic, partition or range(topic.partitions), bounds, limit, printed_columns)
    for number, batch in enumerate(batches):
        print_records(batch, number == 0)
        if follows:
            sys.stdout.flush()
    # flush here and not at exit, so that an error of the last write is reported
    sys.stdout.flush()


def _check_combination(bounds: Bounds, *, follows: bool, is_old: bool) -> None:
    if sum(bound is not None for bound in (bounds.offset, bounds.tail, bounds.since)) > 1:
        raise typer.BadParameter("--offset, --tail and --since cannot be combined", param_hint="--offset")
    if bounds.until is not None and follows:
        raise typer.BadParameter("cannot be combined with --follow, --group or --timeout", param_hint="--until")
    if bounds.keys and follows:
        raise typer.BadParameter("cannot be combined with --follow, --group or --timeout", param_hint="--key")
    if bounds.offset == distlog.LATEST and not follows:
        raise typer.BadParameter("latest needs --follow, --group or --timeout", param_hint="--offset")
    if is_old and follows:
        text = "an old version gets no new records: omit --version and --timestamp"
        raise typer.BadParameter(text, param_hint="--follow")


def sql(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="Path or URL of a folder of topics, or of one topic.")],
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A statement of DuckDB's SQL; topics are its tables.")
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the query from FILE.")
    ] = None,
    result_format: Annotated[
        ResultFormat, typer.Option("--format", metavar="FORMAT", help="Print or write table, json, csv or parquet.")
    ] = ResultFormat.TABLE,
    output_file: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the result to FILE, which is replaced."),
    ] = None,
    values: Annotated[list[Any], settings("--values", "Decode values: clicks=avro, protobuf or json.")],
    schema: Annotated[
        list[Any], settings("--schema", "Decode values by a schema in a file: clicks=click.avsc, a .proto, or JSON.")
    ],
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use this schema registry, or its topic. Default: $DISTLOG_SCHEMA_REGISTRY, or ROOT/_schemas.",
        ),
    ] = None,
    on_error: Annotated[
        OnErrorChoice, typer.Option(help="Fail at a value that cannot be decoded, or read it as null.")
    ] = OnErrorChoice.FAIL,
    blobs: Annotated[bool, typer.Option("--blobs", help="Read keys and values as blobs.")] = False,
    version: Annotated[
        list[Any] | None,
        typer.Option(
            metavar="TOPIC=N",
            parser=usage(arguments.topic_version),
            help="Read TOPIC as of version N; N alone for the only topic. May be repeated.",
        ),
    ] = None,
    timestamp: AtTime = None,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Run a query of SQL over topics.

    Each topic is a table with the columns partition, offset, timestamp, timestamp_type, key, value and headers. Write
    "offset" in quotes, since SQL has a word OFFSET. Fields of JSON are value->>'$.name'; with --values, fields of
    values are value.name.
    """
    if (query is None) == (file is None):
        raise typer.BadParameter("give one query, as an argument or with --file", param_hint="QUERY")
    if as_json:
        result_format = ResultFormat.JSON
    if output_file is None and result_format is ResultFormat.PARQUET:
        raise typer.BadParameter("parquet needs --output FILE", param_hint="--format")
    if output_file is not None and result_format is ResultFormat.TABLE:
        raise typer.BadParameter("--output needs --format json, csv or parquet", param_hint="--output")
    # by topic; the key None is for a version without a topic, which must be the only version
    versions = dict(version or ())
    if None in versions and len(versions) > 1:
        raise typer.BadParameter("give one version, or versions by topic: clicks=3", param_hint="--version")
    text = query if file is None else file.read_text(encoding="utf-8")
    duckdb = optional("duckdb", "distlog sql", extra("duckdb"))
    try:
        relation = distlog.sql(
            str(text),
            root,
            values=dict(values),
            schemas={topic: Path(path).read_text(encoding="utf-8") for topic, path in schema},
            registry=registry_at(registry, storage=dict(storage)),
            on_error=on_error.value,
            blobs=blobs,
            version=versions.get(None, versions or None),  # of the only topic, by topic, or the newest
            timestamp=timestamp,
            storage_options=dict(storage),
        )
    except duckdb.Error as error:
        raise typer.BadParameter(str(error), param_hint="QUERY") from None
    try:
        _write_result(relation, result_format, output_file)
    except duckdb.Error as error:
        # the query runs here, since relations are lazy; DuckDB adds the stack of the Python code that it has called
        raise InvalidRecordError(str(error).partition(". Detail:")[0]) from error


def _write_result(relation: Any, result_format: ResultFormat, output_file: str | None) -> None:
    """Print the rows of a DuckDB relation, or write them to `output_file`. Some statements return None."""
    if relation is None:
        return
    if output_file is not None:
        # a text in $$ needs no escapes
        relation.query("result", f"COPY result TO $${output_file}$$ (FORMAT {result_format.value})")
        return
    # a row is one JSON text, or the text of each value
    columns = "to_json(result)" if result_format is ResultFormat.JSON else "COLUMNS(*)::VARCHAR"
    texts = pa.RecordBatchReader.from_stream(relation.query("result", f"SELECT {columns} FROM result"))
    if result_format is ResultFormat.CSV:
        from pyarrow.csv import CSVWriter, WriteOptions

        sys.stdout.flush()
        with CSVWriter(sys.stdout.buffer, texts.schema, write_options=WriteOptions(quoting_style="needed")) as writer:
            for batch in texts:
                writer.write_batch(batch)
        return
    printer = output.RowPrinter()
    for batch in texts:
        if result_format is ResultFormat.JSON:
            sys.stdout.writelines(f"{line}\n" for line in batch.column(0).to_pylist())
        else:
            printer.print(batch.to_pylist(), batch.schema.names)
    if result_format is ResultFormat.TABLE and not printer.has_printed_titles:
        printer.print((), texts.schema.names)


def dump(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="Paths or URLs of .log, .index, .timeindex, .txnindex, .snapshot or leader-epoch-checkpoint files.",
        ),
    ] = None,
    *,
    more_files: Annotated[
        list[str] | None,
        typer.Option("--files", metavar="FILE,...", help="Dump comma-separated files, as kafka-dump-log does."),
    ] = None,
    print_data_log: Annotated[
        bool, typer.Option("--print-data-log", help="Print records with keys and payloads.")
    ] = False,
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", help="Print records without keys and payloads.")
    ] = False,
    skip_record_metadata: Annotated[
        bool, typer.Option("--skip-record-metadata", help="Print only the keys and payloads of records.")
    ] = False,
    verify_index_only: Annotated[
        bool, typer.Option("--verify-index-only", help="Compare indexes with their logs, without printing entries.")
    ] = False,
    index_sanity_check: Annotated[
        bool, typer.Option("--index-sanity-check", help="Check indexes as a broker does at startup.")
    ] = False,
    max_bytes: Annotated[
        int, typer.Option(min=0, metavar="N", show_default=False, help="Read only the first N bytes of each log.")
    ] = MAX_INT,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Print the contents of Kafka's files.

    The output is the same as from kafka-dump-log. With --json, each line is an object. Damage is reported on standard
    error, or in the objects.
    """
    addresses = [*(files or ()), *(file for text in more_files or () for file in text.split(",") if file)]
    if not addresses:
        raise typer.BadParameter("missing argument FILE, or option --files")
    dump_options = DumpOptions(
        print_data_log=print_data_log,
        deep_iteration=deep_iteration,
        skip_record_metadata=skip_record_metadata,
        verify_index_only=verify_index_only,
        index_sanity_check=index_sanity_check,
        max_bytes=max_bytes,
    )
    sys.stdout.flush()
    dump_output = DumpOutput(sys.stdout.buffer, sys.stderr.buffer, as_json)
    dump_files((DumpedFile.from_address(file, dict(storage)) for file in addresses), dump_options, dump_output)
    sys.stdout.buffer.flush()
    if dump_output.failures:
        raise typer.Exit(output.FAILED)


def batch_printer(
    topic: str, columns: Sequence[str] | None, record_format: str | output.Conversions | None, *, as_json: bool
) -> tuple[Sequence[str], Callable[[pa.RecordBatch, bool], None]]:
    """Return the columns to print, and the function that prints a batch; its flag is true for the first batch."""
    if as_json and record_format not in (None, "json"):
        raise InvalidConfigError("--json and --format cannot be combined")
    if isinstance(record_format, output.Conversions):
        if columns:
            raise InvalidConfigError("--columns cannot be combined with a --format that has conversions")
        return record_format.columns, lambda batch, _: output.print_bytes(record_format.texts(batch, topic))
    if record_format == "csv":
        return columns or _DEFAULT_COLUMNS, lambda batch, titles: output.print_bytes(csv_rows(batch, titles=titles))
    if as_json or record_format == "json":
        return columns or COLUMNS, lambda batch, _: output.print_objects(batch)
    printer = output.RowPrinter()
    return columns or _DEFAULT_COLUMNS, lambda batch, _: output.print_batch(batch, printer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The records to read: from `offset` on, at the last `tail` offsets, or at times [`since`, `until`) in ms."""

    offset: int | None = None
    tail: int | None = None
    since: int | None = None
    until: int | None = None
    keys: tuple[str, ...] = ()
    isolation: IsolationLevel = "read_uncommitted"

    def start(self, topic: Topic, partition: int) -> int | None:
        """Return the first offset to read; None for the log start."""
        if self.tail is None:
            return None if self.offset == EARLIEST else self.offset
        state = topic.live_snapshot.partitions[partition]
        return max(state.log_start_offset, state.log_end_offset - self.tail)


def read_batches(
    topic: Topic, partitions: Sequence[int], bounds: Bounds, limit: int | None, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the records within `bounds`, at most `limit` records in total."""
    for partition in partitions:
        topic.check_partition(partition)
    for partition in dict.fromkeys(partitions):
        for batch in _from_partition(topic, partition, bounds, limit, columns):
            yield batch
            limit = None if limit is None else limit - batch.num_rows


def _from_partition(
    topic: Topic, partition: int, bounds: Bounds, limit: int | None, columns: Sequence[str]
) -> Iterable[pa.RecordBatch]:
    start = bounds.start(topic, partition)
    # plan all segments; `slices_of` below plans only as many as a limit needs, but cannot plan committed reads
    if limit is None or bounds.isolation == "read_committed":
        scan = topic.scan(
            [partition],
            start,
            start_time=bounds.since,
            end_time=bounds.until,
            columns=columns,
            isolation=bounds.isolation,
            keys=bounds.keys or None,
        )
        return scan if limit is None else first(topic.reader, scan.slices, columns, limit, scan.isolation)
    times = TimeRange.between(bounds.since, bounds.until)
    keys = key_array(bounds.keys) if bounds.keys else None
    slices = slices_of(topic.reader, topic.live_snapshot, partition, start, times, keys)
    return first(topic.reader, slices, columns, limit)


def consumed_batches(
    topic: Topic,
    partitions: Sequence[int] | None,
    bounds: Bounds,
    limit: int | None,
    columns: Sequence[str],
    group: str | None,
    timeout: float | None,
) -> Iterator[pa.RecordBatch]:
    """Yield new records in batches; a batch is committed to the group before the next one is read."""
    start: Start | None = bounds.offset
    if bounds.tail is not None:
        # `or 0` is for mypy: with a tail, `start` never returns None
        start = {number: bounds.start(topic, number) or 0 for number in range(topic.partitions)}
    elif bounds.since is not None:
        start = datetime.fromtimestamp(bounds.since / 1000, timezone.utc)
    read_columns = (*columns, *(name for name in ("partition", "offset") if name not in columns))
    consumer = topic.consume(partitions, start, group, timeout, read_columns, isolation=bounds.isolation)
    with consumer, _closing_at_sigterm(consumer) as signals:
        while limit is None or limit > 0:
            batch = next(consumer, None)
            if batch is None:
                break
            batch = batch.slice(0, limit)
            limit = None if limit is None else limit - batch.num_rows
            # the offset after the last record of each partition; committed after the caller has printed the batch
            end_offsets = ends_of(batch)
            yield batch.select(list(columns))
            if group is not None:
                consumer.commit(end_offsets)
    if signals:
        raise typer.Exit(output.TERMINATED)


@contextmanager
def _closing_at_sigterm(consumer: Consumer) -> Iterator[list[int]]:
    """Close the consumer at SIGTERM, so that its group doesn't wait for its lease; yields the received signals."""
    signals: list[int] = []

    def close(number: int, _: object) -> None:
        signals.append(number)
        consumer.close()

    previous_handler = signal.signal(signal.SIGTERM, close)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
