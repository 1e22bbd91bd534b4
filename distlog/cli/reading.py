"""Reads and prints the records for `distlog read`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any

import pyarrow as pa
import typer

from distlog.cli.options import usage
from distlog.console.output import TERMINATED, RowPrinter
from distlog.console.record_lines import Conversions, print_batch, print_bytes, print_objects
from distlog.core.errors import InvalidConfigError
from distlog.core.format.record_batch import COLUMNS
from distlog.core.read import scan_plan
from distlog.core.read.consumed_log import Start, ends_of
from distlog.core.read.consumer import Consumer
from distlog.core.read.row_lines import csv_rows
from distlog.core.read.scan import first
from distlog.core.read.time_lookup import EARLIEST
from distlog.core.segments.chunks import IsolationLevel
from distlog.core.segments.slices import TimeRange
from distlog.core.topic import Topic

#: The columns for people by default. JSON has all.
_FOR_PEOPLE = tuple(name for name in COLUMNS if name != "timestamp_type")


@dataclass(frozen=True, slots=True)
class Printing:
    """The columns to print. `show` is called with a batch, and whether it is the first."""

    columns: Sequence[str]
    show: Callable[[pa.RecordBatch, bool], None]


RecordFormat = Annotated[
    Any,
    typer.Option(
        "--format",
        metavar="FORMAT",
        parser=usage(lambda text: text if text in ("json", "csv") else Conversions.parse(text)),
        help="Print json, csv, or a text like '%k %v\\n', without adding a newline: %v %s value, %k key, "
        "%p partition, %o offset, %T ms since 1970, %h headers, %t topic, %S %K bytes of value and key, %%.",
    ),
]


def printing(
    topic: str, columns: Sequence[str] | None, record_format: str | Conversions | None, *, as_json: bool
) -> Printing:
    """Return the printer for records of a topic. Raises InvalidConfigError for options that cannot be combined."""
    if as_json and record_format not in (None, "json"):
        raise InvalidConfigError("--json and --format cannot be combined")
    if isinstance(record_format, Conversions):
        if columns:
            raise InvalidConfigError("--columns cannot be combined with a --format that has conversions")
        return Printing(record_format.columns, lambda batch, _: print_bytes(record_format.texts(batch, topic)))
    if record_format == "csv":
        return Printing(columns or _FOR_PEOPLE, lambda batch, first: print_bytes(csv_rows(batch, titles=first)))
    if as_json or record_format == "json":
        return Printing(columns or COLUMNS, lambda batch, _: print_objects(batch))
    printer = RowPrinter()
    return Printing(columns or _FOR_PEOPLE, lambda batch, _: print_batch(batch, printer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Records from `offset` on, or of times [`since`, `until`) in ms, or of the last `tail` offsets of partitions."""

    offset: int | None = None
    tail: int | None = None
    since: int | None = None
    until: int | None = None
    isolation: IsolationLevel = "read_uncommitted"

    def start(self, topic: Topic, partition: int) -> int | None:
        """The offset at which to start in a partition."""
        if self.tail is None:
            return None if self.offset == EARLIEST else self.offset
        state = topic.live_snapshot.partitions[partition]
        return max(state.log_start_offset, state.log_end_offset - self.tail)


def batches(
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
    if limit is None or bounds.isolation == "read_committed":
        scan = topic.scan(
            [partition],
            start,
            start_time=bounds.since,
            end_time=bounds.until,
            columns=columns,
            isolation=bounds.isolation,
        )
        return scan if limit is None else first(topic.reader, scan.slices, columns, limit, scan.isolation)
    times = TimeRange.between(bounds.since, bounds.until)
    slices = scan_plan.slices_of(topic.reader, topic.live_snapshot, partition, start, times)
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
    start: Start | None = {number: bounds.start(topic, number) or 0 for number in range(topic.partitions)}
    if bounds.tail is None:
        start = bounds.offset if bounds.since is None else datetime.fromtimestamp(bounds.since / 1000, timezone.utc)
    read_columns = (*columns, *(name for name in ("partition", "offset") if name not in columns))
    consumer = topic.consume(partitions, start, group, timeout, read_columns, isolation=bounds.isolation)
    with consumer, _ended_by_signal(consumer) as signals:
        while limit is None or limit > 0:
            batch = next(consumer, None)
            if batch is None:
                break
            batch = batch.slice(0, limit)
            limit = None if limit is None else limit - batch.num_rows
            ends = ends_of(batch)
            yield batch.select(list(columns))
            if group is not None:
                consumer.commit(ends)
    if signals:
        raise typer.Exit(TERMINATED)


@contextmanager
def _ended_by_signal(consumer: Consumer) -> Iterator[list[int]]:
    """End the iteration at SIGTERM, so that the group need not wait for the lease; yields the received signals."""
    signals: list[int] = []

    def end(number: int, _: object) -> None:
        signals.append(number)
        consumer.close()

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, previous)
