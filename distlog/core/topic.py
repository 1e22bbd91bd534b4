"""The public `Topic` class, a thin facade over the layers below."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core import display
from distlog.core.arrays import MAX_LONG, booleans, count_of, integers, numbers_of, table_of_rows, whole_number
from distlog.core.commits.actions import (
    Add,
    Commit,
    Drop,
    Remove,
    SetConfig,
    SetPartitions,
    SetTopicId,
    SetTransaction,
    each_action,
)
from distlog.core.commits.commit_log import (
    PINNED_REASON,
    CommitLog,
    CommitRace,
    CurrentSnapshot,
    check_partition_count,
)
from distlog.core.commits.snapshot import Snapshot, check_partition
from distlog.core.config import TopicConfig
from distlog.core.display import Listing, SegmentColumns, counted, size_text, topic_figure
from distlog.core.errors import InvalidConfigError, InvalidPartitionsError, TopicNotFoundError
from distlog.core.kafka.export import ExportReport, export_topic
from distlog.core.kafka.transactions import (
    ListedTransaction,
    TransactionsReport,
    abort_transaction,
    list_producers,
    list_transactions,
)
from distlog.core.log.active_partition import ActiveSeals, seal_all
from distlog.core.log.live_snapshot import LiveSnapshot, with_tails
from distlog.core.log.partition_files import DamagedLogError
from distlog.core.maintain.compaction import DEDUPE_BUFFER_BYTES, CompactionReport, compact
from distlog.core.maintain.executor import Executor, LocalExecutor
from distlog.core.maintain.merge import MergeReport, job_bytes_of, merge
from distlog.core.maintain.restore import RestoreReport, restore
from distlog.core.maintain.retention import (
    DeleteRecordsReport,
    RetentionReport,
    delete_records,
    plan_retention,
    retention,
)
from distlog.core.maintain.vacuum import VacuumReport, vacuum
from distlog.core.maintain.verify import RebuildReport, RepairReport, VerifyReport, rebuild_indexes, repair, verify
from distlog.core.read.consumer import LEASE_S, ConsumeOptions, Consumer, Start, reset_group
from distlog.core.read.consumer_group import GroupLog, carry_over_groups, delete_group, group_table
from distlog.core.read.fetch import MAX_TIMEOUT_MS, FetchedBatches, fetch, fetch_committed
from distlog.core.read.keys import Keys, key_array
from distlog.core.read.last_records import last_records
from distlog.core.read.lookup import OffsetAndTime, Record, offsets_for_times
from distlog.core.read.scan import (
    Scan,
    check_choice,
    check_columns,
    offset_bounds,
    plan_slices,
    records_of,
    time_bounds,
)
from distlog.core.segments.chunks import IsolationLevel, OutOfRange
from distlog.core.segments.producer_states import last_stable_offset
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle
from distlog.core.storage.storage import Storage
from distlog.core.times import Time, to_ms
from distlog.core.write.append import Appender, AppendResult, BatchId, Transaction, checked_batch_id, open_appender
from distlog.core.write.engine import Engine
from distlog.core.write.producer import Producer, producer_sender
from distlog.core.write.rows import Appendable
from distlog.core.write.writer import OnDelivery, RecordSender, Writer, engine_of

if TYPE_CHECKING:
    from distlog.core.read.dataset import TopicDataset


_TIME = pa.timestamp("ms", "UTC")
_HISTORY_SCHEMA = pa.schema(
    {
        "version": pa.int64(),
        "timestamp": _TIME,
        **dict.fromkeys(("operation", "writer"), pa.string()),
        **dict.fromkeys(("segments_added", "segments_removed", "records_added", "bytes_added"), pa.int64()),
        **dict.fromkeys(("app_id", "batch_id"), pa.string()),
    }
)
#: The columns that a listing shows; its table has more.
_COMMIT_COLUMNS = ("version", "timestamp", "operation", "writer", "records_added", "bytes_added", "segments_added")
_SEGMENT_COLUMNS = (
    "partition", "base_offset", "next_offset", "record_count", "log_bytes",
    "first_timestamp", "max_timestamp", "compression", "is_active",
)  # fmt: skip
#: The columns with times of a segment, which a snapshot has as ms.
_TIME_COLUMNS = ("first_timestamp", "min_timestamp", "max_timestamp", "append_time_ms", "created_ms")
#: The attributes that writers, transactions and Spark use. Completion does not offer them.
_INTERNAL = {
    "advance", "appender", "check_partition", "checked_snapshot", "clock", "current", "engine", "handle",
    "live", "live_snapshot", "log", "reader", "snapshot", "storage",
}  # fmt: skip


class Topic:
    """A topic, read as of one version until `refresh` or an append by this object moves on to a newer version.

    Made by `distlog.create` and `distlog.open`. Cheap to hold and to pickle: a copy opens the same version again. A
    pinned topic, opened at a version or a time, raises ReadOnlyTopicError in `consume` and in methods that change it.
    """

    def __init__(
        self, handle: TopicHandle, snapshot: Snapshot, *, pinned: bool = False, pin_reason: str = PINNED_REASON
    ) -> None:
        self.handle = handle
        self.current = CurrentSnapshot(handle.log, snapshot, pinned=pinned, pin_reason=pin_reason)
        self.live = LiveSnapshot(handle, self.current)

    @property
    def storage(self) -> Storage:
        """The topic's folder."""
        return self.handle.storage

    @property
    def log(self) -> CommitLog:
        """The topic's commits."""
        return self.handle.log

    @property
    def reader(self) -> SegmentReader:
        """The reader of this topic's segments."""
        return self.handle.reader

    @property
    def clock(self) -> Callable[[], int]:
        """The clock for the times of new records, in ms since 1970."""
        return self.handle.clock

    @property
    def snapshot(self) -> Snapshot:
        """The state after the last commit read. It lacks active segments, to which direct appends write."""
        return self.current.snapshot

    @property
    def live_snapshot(self) -> Snapshot:
        """The snapshot that this object reads, with the active segments up to their ends at the last refresh."""
        return self.live.snapshot

    @property
    def checked_snapshot(self) -> Snapshot:
        """The snapshot that `verify` checks: `live_snapshot`, without active segments whose end is unknown."""
        try:
            return self.live_snapshot
        except DamagedLogError:
            return with_tails(self.handle, self.current.refresh(), only_sound=True)

    @property
    def url(self) -> str:
        """The topic's address, without credentials."""
        return self.storage.url

    @property
    def name(self) -> str:
        """The topic's name: its folder's name, the last part of its address."""
        return self.storage.name

    @property
    def version(self) -> int:
        """The version of the snapshot that this object reads."""
        return self.snapshot.version

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""
        return self.snapshot.config

    @property
    def partitions(self) -> int:
        """The number of partitions, which are numbered from 0."""
        return len(self.snapshot.partitions)

    def start_offsets(self) -> dict[int, int]:
        """Return the first readable offset of each partition.

        Examples:
            >>> topic.start_offsets()
            {0: 0, 1: 0}
        """
        return dict(enumerate(self.live_snapshot.partitions.log_start_offsets.tolist()))

    def end_offsets(self) -> dict[int, int]:
        """Return the next offset to be assigned in each partition.

        Examples:
            >>> topic.end_offsets()
            {0: 2, 1: 1}
        """
        return dict(enumerate(self.live_snapshot.partitions.log_end_offsets.tolist()))

    def check_partition(self, partition: int) -> None:
        """Raise TopicNotFoundError unless the topic has this partition."""
        check_partition(whole_number("partition", partition), self.partitions)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, version={self.version}, partitions={self.partitions})"

    def _repr_html_(self) -> str:
        table = _partition_table(self.live_snapshot)
        records, size = (sum(table[name].to_pylist()) for name in ("records", "bytes"))
        return (
            f"<p><b>{escape(self.name)}</b> version {self.version} at {escape(self.url)}: "
            f"{counted(records, 'record')}, {size_text(size)}</p>{display.html(table)}"
        )

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def scan(
        self,
        partitions: int | Iterable[int] | None = None,
        start: int | Mapping[int, int] | None = None,
        end: int | Mapping[int, int] | None = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        columns: str | Iterable[str] | None = None,
        isolation: IsolationLevel = "read_uncommitted",
        out_of_range: OutOfRange = "fail",
        max_workers: int | None = None,
        keys: Keys | None = None,
    ) -> Scan:
        """Plan a read of records, all by default; the Scan reads them when its result is asked for.

        Args:
            partitions: Partitions to read; default all.
            start: The first offset, or one by partition; EARLIEST or LATEST.
            end: The offset after the last one, or one by partition; an end past the log end means the log end.
            start_time: The earliest time of records. They may be in any order; a record without a timestamp is left
                out.
            end_time: The first time that is not read, in whole milliseconds.
            columns: Columns to read: partition, offset, timestamp, timestamp_type, key, value, headers; default all.
            isolation: `read_committed` hides records of open and aborted transactions (KIP-98).
            out_of_range: The action for a start outside of the log: fail, or start at the earliest or latest offset.
            max_workers: Threads that decode, the caller among them; default one per core.
            keys: A key, or some keys: only their records are returned; a str stands for its UTF-8. With
                `key.index.enable` few other records are read.

        Returns:
            The scan, in the order of (partition, offset).

        Raises:
            OffsetOutOfRangeError: A start is outside of the log, and `out_of_range` is fail; or an end is below 0.
            TopicNotFoundError: The topic does not have a partition.
            InvalidRecordError: A column does not exist.
            ValueError: The start or the end has an offset and a time, or a choice is wrong.

        Examples:
            >>> topic.scan(0, columns=["offset", "key"]).to_table().to_pylist()
            [{'offset': 0, 'key': b'anna'}, {'offset': 1, 'key': b'bert'}]
            >>> topic.scan(start_time="2025-01-01T00:00:01Z").count()
            2
            >>> topic.scan(keys="bert", columns=["partition", "offset"]).to_table().to_pylist()
            [{'partition': 0, 'offset': 1}]
        """
        names, snapshot = check_columns(columns), self.live_snapshot
        times = time_bounds(start, end, start_time, end_time)
        bounds = offset_bounds(snapshot, partitions, start, end)
        key_column = None if keys is None else key_array(keys)
        slices, isolation_filter = plan_slices(
            self.reader, snapshot, bounds, isolation, out_of_range, times, keys=key_column
        )
        return Scan(self.reader, slices, names, isolation_filter, max_workers)

    def dataset(
        self, isolation: IsolationLevel = "read_uncommitted", *, text: bool | Iterable[str] = False
    ) -> TopicDataset:
        """Return the records as an Arrow dataset, into which DuckDB and Polars push columns and filters.

        Args:
            isolation: As in `scan`.
            text: Whether keys and values are strings of UTF-8; or the columns that are, `key` or `value`.

        Returns:
            The dataset, of the snapshot that this object reads.

        Examples:
            >>> import duckdb
            >>> clicks = topic.dataset(text=True)
            >>> duckdb.sql("SELECT key FROM clicks WHERE partition = 1").fetchall()
            [('carl',)]
        """
        # pyarrow.dataset takes longer to import than all of distlog
        from distlog.core.read.dataset import TEXT_COLUMNS, TopicDataset

        check_choice("isolation", isolation, IsolationLevel)
        columns = tuple(text) if not isinstance(text, bool) else (TEXT_COLUMNS if text else ())
        if not set(columns) <= set(TEXT_COLUMNS):
            raise InvalidConfigError("text must be a bool, or some of key and value", text=repr(columns))
        return TopicDataset(self.reader, self.live_snapshot, isolation, text=columns)

    def consume(
        self,
        partitions: int | Iterable[int] | None = None,
        start: Start | None = None,
        group: str | None = None,
        timeout: float | None = None,
        columns: str | Iterable[str] | None = None,
        isolation: IsolationLevel = "read_uncommitted",
        out_of_range: OutOfRange = "fail",
        max_workers: int | None = None,
        poll_interval: float | None = None,
        lease: float = LEASE_S,
    ) -> Consumer:
        """Iterate over the records as they come, RecordBatch by RecordBatch, in order in each partition.

        The consumers of a group share the partitions, and `commit` stores the group's offsets in the topic.
        Partitions that are added later are read from offset 0.

        Args:
            partitions: Partitions to read; default all.
            start: The offset or the time to begin with, or one by partition; default EARLIEST. A group begins there
                only in partitions without a committed offset.
            group: The name of a consumer group.
            timeout: Seconds without a record after which the iteration ends; default never.
            columns: As in `scan`.
            isolation: As in `scan`.
            out_of_range: As in `scan`, also for a position that is no longer in the log.
            max_workers: As in `scan`.
            poll_interval: Seconds between polls, each of one request; default 0.005 on a local disk, else 1.
            lease: Seconds without a heartbeat after which a member is replaced; also the most time for a batch.

        Returns:
            The consumer.

        Raises:
            OffsetOutOfRangeError: The position is not in the log, and `out_of_range` is fail.
            TopicNotFoundError: The topic was dropped, or does not have a partition.
            InvalidConfigError: An option is out of range.

        Examples:
            >>> with topic.consume(timeout=0, columns="key") as consumer:
            ...     [key for batch in consumer for key in batch["key"].to_pylist()]
            [b'anna', b'bert', b'carl']
        """
        self.current.check_writable(self.storage)
        options = ConsumeOptions(
            partitions, start, group, timeout, columns, isolation, out_of_range, max_workers, poll_interval, lease
        )
        return options.begin(self.handle, self.snapshot)

    def records(
        self,
        partition: int = 0,
        start: int | None = None,
        limit: int | None = None,
        isolation: IsolationLevel = "read_uncommitted",
    ) -> Iterator[Record]:
        """Iterate over records as Python objects, for people; a small limit reads little.

        Args:
            partition: The partition.
            start: The first offset; default the log start.
            limit: The most records; default all.
            isolation: As in `scan`.

        Returns:
            An iterator of records.

        Raises:
            TopicNotFoundError: The topic does not have the partition.
            OffsetOutOfRangeError: The start is outside of the log.

        Examples:
            >>> [record.key for record in topic.records(partition=0, limit=1)]
            [b'anna']
        """
        self.check_partition(partition)
        return records_of(self.reader, self.live_snapshot, partition, start, limit, isolation)

    @overload
    def get(  # type: ignore[overload-overlap]
        self, keys: bytes | str, isolation: IsolationLevel = "read_committed"
    ) -> Record | None: ...
    @overload
    def get(
        self, keys: Iterable[bytes | str], isolation: IsolationLevel = "read_committed"
    ) -> dict[bytes, Record]: ...
    def get(self, keys: Keys, isolation: IsolationLevel = "read_committed") -> Record | dict[bytes, Record] | None:
        """Return the last record of a key, or of each of some keys; fast with `key.index.enable`.

        The record is the last one in the partition that the default partitioner chooses for the key. If the key has
        no record there, it is the newest of the last records in the other partitions.

        Args:
            keys: A key, or some keys; a str stands for its UTF-8.
            isolation: As in `scan`, but committed records alone by default.

        Returns:
            The record, None if there is none; for several keys the records by key. A tombstone's value is None.

        Raises:
            InvalidRecordError: A key is not bytes or str.

        Examples:
            >>> topic.get("bert").value
            b'{"page": "/help"}'
            >>> topic.get("nobody") is None
            True
        """
        check_choice("isolation", isolation, IsolationLevel)
        records = last_records(self.reader, self.live_snapshot, key_array(keys), isolation)
        if isinstance(keys, bytes | str):
            return next(iter(records.values()), None)
        return records

    def read(
        self,
        partition: int,
        offset: int,
        max_bytes: int = 1_048_576,
        *,
        isolation: IsolationLevel = "read_uncommitted",
        check_crcs: bool = False,
    ) -> FetchedBatches:
        """Read complete stored batches, the first of which holds `offset` (Kafka's fetch).

        As in a broker, headers and offsets are checked, and checksums are left to the receiver. `bytes()` of the
        result is a broker's response; `send_to` sends it to a socket from the page cache.

        Args:
            partition: The partition.
            offset: The first offset.
            max_bytes: The most bytes, but at least one batch; 0 reads nothing.
            isolation: `read_committed` ends at the last stable offset; `aborted` names the transactions whose records
                the receiver must drop, as in Kafka.
            check_crcs: Check the checksum of each batch.

        Returns:
            The batches, of one segment; empty at the log end.

        Raises:
            OffsetOutOfRangeError: The offset is outside of the log.
            TopicNotFoundError: The topic does not have the partition.
            CorruptRecordError: The first batch is damaged.
            ValueError: The isolation is unknown.

        Examples:
            >>> topic.read(partition=0, offset=1).next_offset
            2
        """
        self.check_partition(partition)
        check_choice("isolation", isolation, IsolationLevel)
        state = self.live_snapshot.partitions[partition]
        fetch_batches = fetch
        if isolation == "read_committed":
            fetch_batches = partial(fetch_committed, stable_offset=last_stable_offset(self.reader, state))
        return fetch_batches(self.reader, state, partition, offset, max_bytes, check=check_crcs)

    def offsets_for_times(self, times: Time | Mapping[int, Time]) -> dict[int, OffsetAndTime | None]:
        """Find the first record at or after a time, in each partition (Kafka's `offsetsForTimes`).

        End markers of transactions are not records, and never returned.

        Args:
            times: A time, or one by partition; or LATEST, EARLIEST, MAX_TIMESTAMP.

        Returns:
            Offset and timestamp in ms by partition, or None if no record is that late.

        Raises:
            TopicNotFoundError: The topic does not have a partition.
            ValueError: A time is not valid.

        Examples:
            >>> topic.offsets_for_times("2025-01-01T00:00:01Z")
            {0: (1, 1735689601000), 1: (0, 1735689602000)}
        """
        by_partition = times if isinstance(times, Mapping) else dict.fromkeys(range(self.partitions), times)
        for partition in by_partition:
            self.check_partition(partition)
        times_ms = {number: to_ms(time, round_up=True) for number, time in by_partition.items()}
        return offsets_for_times(self.reader, self.live_snapshot.partitions, times_ms)

    def history(self, limit: int | None = None) -> Listing:
        """List the commits, newest first.

        Args:
            limit: The most commits; default all.

        Returns:
            A row per commit: version, time, operation, writer, and the numbers added and removed.

        Examples:
            >>> topic.history()["operation"].to_pylist()
            ['append', 'create']
        """
        commits = self.log.history(None if limit is None else count_of("limit", limit))
        rows = [_history_row(commit) for commit in commits]
        return Listing(table_of_rows(rows, _HISTORY_SCHEMA), "commits", _COMMIT_COLUMNS)

    def segments(self) -> Listing:
        """List the live segments, a row each, by partition and base offset; a time that a segment lacks is null."""
        return Listing(_segment_table(self.live_snapshot), "segments", _SEGMENT_COLUMNS)

    def groups(self) -> Listing:
        """List the consumer groups, a row for each partition: committed offset, lag, and its consumer."""
        return group_table(self.storage, self.live_snapshot)

    def plot(self, *, exact: bool = False, progress: bool | None = None) -> Any:
        """Draw records over time, bytes by partition, and the ages of segments against retention, from metadata.

        matplotlib must be installed.

        Args:
            exact: Read the times of all records instead of estimating them from the times of segments.
            progress: As in `Scan.to_table`.

        Returns:
            The matplotlib figure.

        Examples:
            >>> figure = topic.plot()
        """
        snapshot, times = self.live_snapshot, self.scan().times(progress) if exact else None
        columns = _segment_columns(snapshot)
        title = (
            f"{self.name}, version {snapshot.version}: {counted(int(columns.records.sum()), 'record')}, "
            f"{size_text(int(columns.bytes.sum()))}, {counted(len(columns.bytes), 'segment')}, "
            f"{counted(len(columns.partitions), 'partition')}"
        )
        return topic_figure(title, columns, self.clock(), snapshot.config.retention_ms, times)

    def verify(self, *, executor: Executor | None = None) -> VerifyReport:
        """Check every checksum, record, index entry and metadata invariant of the snapshot; it changes nothing.

        Args:
            executor: Where the work runs, as `distlog.spark.SparkExecutor(spark)`; default this process.

        Returns:
            The report, with the anomalies.

        Examples:
            >>> topic.verify().ok
            True
        """
        return verify(self.handle, self.checked_snapshot, executor)

    def export(self, log_dir: str | os.PathLike[str], partitions: Iterable[int] | None = None) -> ExportReport:
        """Write the snapshot as files that a Kafka broker opens in its log directory.

        Exporting again adds new records. The broker must be stopped, and must not have written to these partitions.

        Args:
            log_dir: The broker's log directory, on a local disk.
            partitions: Partitions to export; default all.

        Returns:
            The report.

        Raises:
            StorageError: The broker runs, or has written to a partition.
            TopicExistsError: Another topic of this name was exported there.
            TopicNotFoundError: The topic does not have a partition.
            CorruptionError: A segment is damaged.

        Examples:
            >>> report = topic.export("kafka-logs", partitions=[0])
        """
        numbers = list(range(self.partitions) if partitions is None else partitions)
        for partition in numbers:
            self.check_partition(partition)
        return export_topic(self.handle, self.live_snapshot, log_dir, numbers)

    def refresh(self) -> Topic:
        """Move on to the newest version, and return this topic; one GET if there is no newer one."""
        self.live.refresh()
        return self

    def advance(self, snapshot: Snapshot) -> None:
        """Read `snapshot` from now on, unless another thread has moved on to a newer one."""
        self.current.advance(snapshot)

    def append(
        self,
        table: Appendable,
        partition: int | None = None,
        app_id: str | None = None,
        batch_id: BatchId | None = None,
        compression: str | None = None,
        *,
        timestamp_unit: str = "ms",
        progress: bool | None = None,
    ) -> AppendResult:
        """Append records in one commit, in all partitions or none.

        Columns: value, and optionally key, timestamp (default now), headers and partition (default by murmur2 of the
        key, or in sticky runs without a key). Times are Arrow's or Python's, ISO 8601 or numbers; times before 1990
        cause a TimestampWarning.

        Args:
            table: Arrow, Polars, pandas, DuckDB, or an iterable of dicts.
            partition: The partition of all rows.
            app_id: The application's id; an append that repeats its `batch_id` appends nothing and returns the first
                result.
            batch_id: The number or name of the batch in the application; with `app_id`.
            compression: The codec if the topic's `compression.type` is producer; default uncompressed.
            timestamp_unit: The unit of numbers for times: s, ms, us or ns since 1970.
            progress: As in `Scan.to_table`; by default only for more than 100,000 rows.

        Returns:
            The result, with the version and the offsets.

        Raises:
            InvalidRecordError: A record does not fit the topic's rules.
            TopicNotFoundError: The topic was dropped.
            StorageError: The storage fails; nothing was appended.
            CommitConflictError: Another commit prevents this one; nothing was appended.
            CommitStateUnknownError: The records may be appended; repeat with the same `app_id` and `batch_id`.

        Examples:
            >>> topic.append([{"key": b"dora", "value": b"{}"}], partition=1).offsets
            {1: (1, 2)}
        """
        with self.transaction(app_id, batch_id, compression, timestamp_unit=timestamp_unit) as transaction:
            transaction.append(table, partition, progress=progress)
        return transaction.result

    def transaction(
        self,
        app_id: str | None = None,
        batch_id: BatchId | None = None,
        compression: str | None = None,
        *,
        timestamp_unit: str = "ms",
    ) -> Transaction:
        """Begin several appends that become visible together at the end of a `with` block, or not at all.

        Args:
            app_id: As in `append`.
            batch_id: As in `append`.
            compression: As in `append`.
            timestamp_unit: As in `append`.

        Returns:
            The transaction.

        Examples:
            >>> with topic.transaction() as transaction:
            ...     rows = transaction.append([{"value": b"{}"}], partition=0)
            ...     rows = transaction.append([{"value": b"{}"}], partition=1)
            >>> transaction.result.offsets
            {0: (2, 3), 1: (1, 2)}
        """
        batch = checked_batch_id(app_id, batch_id)
        return Transaction(self.handle, self.current, app_id, batch, compression, timestamp_unit=timestamp_unit)

    def writer(
        self,
        *,
        linger_ms: int = 100,
        compression: str | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp_unit: str = "ms",
    ) -> Writer:
        """Open a buffered writer of single records, which are sent in the background.

        Args:
            linger_ms: How long a record waits for others, in ms (Kafka's `linger.ms`).
            compression: As in `append`.
            on_delivery: Called in the background with the Delivery of each partition of a buffer.
            timestamp_unit: As in `append`.

        Returns:
            The writer.

        Raises:
            InvalidConfigError: An option is out of range.

        Examples:
            >>> with topic.writer() as writer:
            ...     writer.append(b"{}", key=b"dora", partition=1)
            >>> topic.refresh().end_offsets()
            {0: 2, 1: 2}
        """
        self._check_writable()
        sender = RecordSender(self.handle, self.current, self.engine(), compression)
        return Writer(sender, linger_ms=linger_ms, on_delivery=on_delivery, timestamp_unit=timestamp_unit)

    def producer(
        self,
        transactional_id: str | None = None,
        *,
        linger_ms: int = 100,
        compression: str | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp_unit: str = "ms",
    ) -> Producer:
        """Open a writer that retries for two minutes without duplicates (Kafka's idempotent producer, KIP-98).

        Args:
            transactional_id: Gives the producer transactions (`Producer.begin`), and fences all earlier producers
                with this id, in all processes: their open transactions are aborted, and later appends raise
                ProducerFencedError.
            linger_ms: As in `writer`.
            compression: As in `append`.
            on_delivery: As in `writer`.
            timestamp_unit: As in `append`.

        Returns:
            The producer.

        Raises:
            InvalidConfigError: An option is out of range.

        Examples:
            >>> with topic.producer("billing") as producer, producer.begin():
            ...     producer.append(b"{}", partition=1)
            >>> producer.result.offsets
            {1: (1, 2)}
        """
        self._check_writable()
        sender = producer_sender(self.handle, self.current, self.engine(), compression, transactional_id)
        return Producer(sender, linger_ms=linger_ms, on_delivery=on_delivery, timestamp_unit=timestamp_unit)

    def open_transactions(self, *, max_timeout_ms: int = MAX_TIMEOUT_MS) -> TransactionsReport:
        """List the open transactions: readers of committed records stop at the first one in each partition.

        `hanging` has transactions that will never end (KIP-664): the coordinator does not have the transaction and
        `max_timeout_ms` has passed, or the coordinator has ended it in the other partitions.

        Args:
            max_timeout_ms: The brokers' `transaction.max.timeout.ms`, in ms.

        Returns:
            The report.

        Examples:
            >>> len(topic.open_transactions().transactions)
            0
        """
        return list_transactions(self.handle, self.live.refresh(), max_timeout_ms)

    def producers(self) -> Listing:
        """List the producers of each partition: epochs, last sequence numbers, starts of open transactions."""
        self._check_writable()
        return Listing(list_producers(self.handle, self.current), "producers")

    def abort_transaction(self, partition: int, start_offset: int) -> ListedTransaction:
        """Abort a hanging transaction, as `open_transactions` lists it (KIP-664).

        Args:
            partition: The partition.
            start_offset: The first offset of the transaction.

        Returns:
            The aborted transaction.

        Raises:
            CommitConflictError: No transaction is open there, or a coordinator will end it.
            TopicNotFoundError: The topic does not have the partition.

        Examples:
            >>> for listed in topic.open_transactions().hanging.transactions:
            ...     entry = listed.transaction
            ...     aborted = topic.abort_transaction(entry.partition, entry.start_offset)
        """
        self._check_writable()
        self.check_partition(partition)
        return abort_transaction(self.handle, self.current, partition, whole_number("start_offset", start_offset))

    def engine(self) -> Engine:
        """Return the engine that appends batches: directly to active segments on a local disk, else by commits."""
        return engine_of(self.handle, self.current)

    def appender(self, compression: str | None = None) -> Appender:
        """Return an Appender, which writes rows as segments that are not committed yet."""
        return open_appender(self.handle, self.current, compression)

    def alter_config(self, settings: Mapping[str, object | None]) -> TopicConfig:
        """Change settings in one commit; each later append uses the new config.

        Args:
            settings: Values by Kafka's names; None resets a setting to its default.

        Returns:
            The new config.

        Raises:
            InvalidConfigError: A setting is unknown or out of range.

        Examples:
            >>> topic.alter_config({"retention.ms": 86_400_000}).retention_ms
            86400000
        """
        self._check_writable()
        with CommitRace(self.log, self.snapshot, "config") as race, ActiveSeals(self.handle, race) as seals:
            for head in race:  # the snapshot that the commit would follow, a newer one after each lost race
                changed = SetConfig(head.config.changed(settings).overrides())
                # a direct append does not read the commits, except after a seal (the end of the active segment)
                if seals.seal(head, range(len(head.partitions))) is not None:  # None: `seal` only locked, try again
                    race.put([*seals.actions, changed])
        self.advance(race.snapshot)
        return self.config

    def create_partitions(self, count: int) -> None:
        """Raise the number of partitions; existing records stay where they are.

        As in Kafka, a key's new records may go to another partition, and lose their order after the earlier ones.

        Args:
            count: The new number of partitions.

        Raises:
            InvalidPartitionsError: The topic does not have fewer partitions now.

        Examples:
            >>> topic.create_partitions(4)
            >>> topic.partitions
            4
        """
        self._check_writable()
        number = whole_number("count", count)
        check_partition_count(number)
        # no active segment needs a seal, since writers read the commits before they choose a partition
        with CommitRace(self.log, self.snapshot, "partitions") as race:
            for head in race:
                check_grows(head, number)
                race.put([SetPartitions(number)])
        self.advance(race.snapshot)

    def assign_new_id(self) -> str:
        """Give the topic a new id, as a copy of a topic's folder needs, and return the id.

        No two topics of a root may have the same id: Kafka clients fetch by it, streaming queries store it, and
        appends check it. Records, offsets, settings and committed offsets stay. Open the topic again afterwards. As
        after a drop, objects that have it open, including this one, raise TopicNotFoundError at their next refresh.
        """
        self._check_writable()
        snapshot, topic_id = self.log.load(), str(uuid.uuid4())
        # copied twice: before the commit, so that members find their offsets at once, and after it, since vacuum may
        # have deleted the first copies while no topic had the new id
        carry_over_groups(self.storage, snapshot.topic_id, topic_id)
        seal_all(self.handle, snapshot, "new-id", [SetTopicId(topic_id)])
        carry_over_groups(self.storage, snapshot.topic_id, topic_id)
        return topic_id

    def seal(self) -> None:
        """Seal (end) the active segments in one commit, as a copy of the folder to an object store needs."""
        self._check_writable()
        if self.current.refresh().active_partitions:
            self.advance(seal_all(self.handle, self.snapshot, "seal"))

    def drop(self) -> None:
        """Drop the topic: it cannot be opened or appended to; open snapshots can be read until vacuum.

        Writers in all processes get a TopicNotFoundError, also when the topic is created again. An active segment
        that another program damaged is repaired first, as by `repair`: the segment is cut where the damage begins,
        and this is logged. To save the records after the damage, bring the file back before you drop the topic.
        """
        self._check_writable()
        try:
            seal_all(self.handle, self.snapshot, "drop", [Drop()])
        except DamagedLogError:
            self.repair()
            seal_all(self.handle, self.snapshot, "drop", [Drop()])

    def reset_group(self, group: str, to: Start | None = None, *, kafka: str | None = None) -> dict[int, int]:
        """Set a group's committed offsets. Its members lose their partitions, and start again at these offsets.

        Args:
            group: The name of the group.
            to: The offsets, as `start` of `consume`; other partitions keep theirs.
            kafka: Instead of `to`, a group of Kafka clients: the offsets that it committed through a gateway are
                copied. `group` must have no members.

        Returns:
            All committed offsets, by partition.

        Raises:
            InvalidConfigError: Both or neither of `to` and `kafka`.
            OffsetOutOfRangeError: An offset is outside of the log.
            GroupNotFoundError: The group `kafka` has no committed offset in the topic.
            CommitConflictError: With `kafka`, `group` has members.

        Examples:
            >>> topic.reset_group("billing", distlog.EARLIEST)
            {0: 0, 1: 0}
        """
        self._check_writable()
        snapshot = self.refresh().live_snapshot
        if isinstance(to, Mapping):
            for partition in to:
                self.check_partition(partition)
        return reset_group(self.handle, snapshot, group, to, kafka)

    def delete_group(self, group: str) -> None:
        """Delete a group's committed offsets; a live member creates the group again.

        Args:
            group: The name of the group.

        Raises:
            GroupNotFoundError: The group does not exist.

        Examples:
            >>> offsets = topic.reset_group("billing", distlog.LATEST)
            >>> topic.delete_group("billing")
        """
        self._check_writable()
        delete_group(GroupLog(self.storage, self.snapshot.topic_id, group))

    def retention(self, *, dry_run: bool = False) -> RetentionReport:
        """Delete whole segments at the old end, by the settings `retention.*`.

        Only metadata changes; `vacuum` deletes the files when `file.delete.delay.ms` has passed.

        Args:
            dry_run: Only report.

        Returns:
            The report.

        Examples:
            >>> topic.retention(dry_run=True).partitions
            ()
        """
        self._check_writable()
        deleted, snapshot = retention(self.handle, self.snapshot, dry_run=dry_run)
        self.advance(snapshot)
        return RetentionReport(snapshot.version, tuple(deleted), dry_run, snapshot.config)

    def restore(self, version: int, *, dry_run: bool = False) -> RestoreReport:
        """Bring back, in one commit, the records of a version that vacuum has not deleted; newer records stay.

        The restore reverts later changes by retention, `delete_records` and compaction. More than 500,000 segments
        take several commits, each of whole partitions.

        Args:
            version: The version.
            dry_run: Only report.

        Returns:
            The report.

        Raises:
            OffsetOutOfRangeError: The version does not exist.
            TopicNotFoundError: The version is of a topic that was dropped.

        Examples:
            >>> starts = topic.delete_records({0: 2}).log_start_offsets
            >>> report = topic.restore(version=1)
            >>> topic.start_offsets()
            {0: 0, 1: 0}
        """
        self._check_writable()
        version = whole_number("version", version)
        restored, snapshot = restore(self.handle, self.snapshot, version, dry_run=dry_run)
        self.advance(snapshot)
        expired_count = sum(len(plan.segments) for plan in plan_retention(snapshot, self.handle.trusted_ms()))
        return RestoreReport(snapshot.version, version, tuple(restored), expired_count, dry_run)

    def delete_records(self, offsets: Mapping[int, int]) -> DeleteRecordsReport:
        """Delete the records before an offset, by partition (Kafka's `deleteRecords`).

        Args:
            offsets: The new log start offsets; -1 is the log end.

        Returns:
            The report.

        Raises:
            OffsetOutOfRangeError: An offset is above the log end.
            InvalidConfigError: `cleanup.policy` is only compact.
            TopicNotFoundError: The topic does not have a partition.

        Examples:
            >>> topic.delete_records({0: 1}).log_start_offsets
            {0: 1}
        """
        self._check_writable()
        starts, snapshot = delete_records(self.handle, self.snapshot, offsets)
        self.advance(snapshot)
        return DeleteRecordsReport(snapshot.version, starts)

    def compact(
        self,
        *,
        dry_run: bool = False,
        executor: Executor | None = None,
        dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
        memory: int | None = None,
    ) -> CompactionReport | MergeReport:
        """Keep the last record of each key, or merge small segments if the topic is not compacted.

        The report names partitions that cannot be cleaned and segments that cannot be merged.

        Args:
            dry_run: Only report.
            executor: As in `verify`.
            dedupe_buffer_bytes: Bytes of memory for keys, 24 each. Spark tasks divide a partition that has more keys.
            memory: Bytes that a merge holds in one process; the more, the fewer requests for small segments. By
                default as few as possible: 360 MiB on an object store, 192 MiB in a Spark task.

        Returns:
            The report of the compaction or of the merge.

        Examples:
            >>> report = topic.compact(dry_run=True)
        """
        self._check_writable()
        executor = executor or LocalExecutor(self.storage)
        snapshot = self.log.refresh(self.snapshot)
        report: CompactionReport | MergeReport
        if "compact" in snapshot.config.cleanup_policy:
            report, snapshot = compact(
                self.handle, snapshot, executor.clean, dedupe_buffer_bytes=dedupe_buffer_bytes, dry_run=dry_run
            )
        else:
            job_bytes = job_bytes_of(executor.memory if memory is None else memory, executor.workers)
            report, snapshot = merge(self.handle, snapshot, executor, dry_run=dry_run, job_bytes=job_bytes)
        self.advance(snapshot)
        return report

    def vacuum(self, *, dry_run: bool = False) -> VacuumReport:
        """Delete the files that no reader can need and no writer can still commit.

        Args:
            dry_run: Only report.

        Returns:
            The report.

        Examples:
            >>> topic.vacuum(dry_run=True).files
            ()
        """
        self._check_writable()
        report = vacuum(self.storage, self.log, dry_run=dry_run)
        with suppress(TopicNotFoundError):  # the files of a dropped topic are deleted
            self.refresh()
        return report

    def repair(self, *, dry_run: bool = False) -> RepairReport:
        """Cut active segments that refuse appends because of damage.

        The report names the lost bytes and offsets; these offsets are assigned again. If you can, restore the file.

        Args:
            dry_run: Only report.

        Returns:
            The report.

        Examples:
            >>> topic.repair().partitions
            ()
        """
        self._check_writable()
        report, snapshot = repair(self.handle, self.snapshot, dry_run=dry_run)
        self.advance(snapshot)
        return report

    def rebuild_indexes(
        self, *, force: bool = False, dry_run: bool = False, executor: Executor | None = None
    ) -> RebuildReport:
        """Rebuild bad and missing index files from the logs.

        Args:
            force: Also rebuild good index files that were written with another config.
            dry_run: Only report.
            executor: As in `verify`.

        Returns:
            The report.

        Examples:
            >>> topic.rebuild_indexes().ok
            True
        """
        self._check_writable()
        report, snapshot = rebuild_indexes(self.handle, self.snapshot, executor, force=force, dry_run=dry_run)
        self.advance(snapshot)
        return report

    def _check_writable(self) -> None:
        self.current.check_writable(self.storage)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.handle, self.version, self.current.pinned)


def check_grows(snapshot: Snapshot, count: int) -> None:
    if count <= len(snapshot.partitions):
        text = "the number of partitions can only grow"
        raise InvalidPartitionsError(text, partitions=len(snapshot.partitions), requested=count)


def _history_row(commit: Commit) -> dict[str, object]:
    actions = list(each_action(commit.actions))
    added = [action.segment for action in actions if isinstance(action, Add)]
    batch = next((action for action in commit.actions if isinstance(action, SetTransaction)), None)
    # a damaged commit may claim more records or bytes than an int64 holds
    return {
        "version": commit.version,
        "timestamp": commit.timestamp_ms,
        "operation": commit.operation,
        "writer": commit.writer,
        "segments_added": len(added),
        "segments_removed": sum(isinstance(action, Remove) for action in actions),
        "records_added": min(sum(segment.record_count for segment in added), MAX_LONG),
        "bytes_added": min(sum(segment.log_bytes for segment in added), MAX_LONG),
        "app_id": batch.app_id if batch else None,
        "batch_id": str(batch.batch_id) if batch else None,
    }


def _segment_table(snapshot: Snapshot) -> pa.Table:
    states = snapshot.partitions
    table = pa.Table.from_batches([state.segments.columns() for state in states])
    for name in _TIME_COLUMNS:
        table = table.set_column(table.schema.get_field_index(name), name, _times(table[name]))
    is_active = np.zeros(len(table), np.bool_)
    for end, state in zip(np.cumsum([len(state.segments) for state in states]), states, strict=True):
        if len(state.segments):
            is_active[end - 1] = state.segments[-1].is_active  # only the last one of a partition can be active
    return table.append_column("is_active", booleans(is_active))


def _partition_table(snapshot: Snapshot) -> pa.Table:
    states = snapshot.partitions
    columns = {
        "partition": range(len(states)),
        "log_start_offset": [state.log_start_offset for state in states],
        "log_end_offset": [state.log_end_offset for state in states],
        "segments": [len(state.segments) for state in states],
        "records": [int(state.segments.record_counts.sum()) for state in states],
        "bytes": [int(state.segments.log_bytes.sum()) for state in states],
    }
    table = pa.table({name: integers(column) for name, column in columns.items()})
    max_timestamps = [int(state.segments.max_timestamps.max(initial=-1)) for state in states]
    return table.append_column("newest_record", _times(integers(max_timestamps)))


def _times(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    values = numbers_of(column)
    valid = pc.if_else(booleans(values >= 0), integers(values), pa.nulls(len(values), pa.int64()))
    return pa.chunked_array([valid.cast(_TIME)])


def _segment_columns(snapshot: Snapshot) -> SegmentColumns:
    tables = [state.segments for state in snapshot.partitions]
    names = ("record_count", "log_bytes", "min_timestamp", "first_timestamp", "max_timestamp")
    records, size, oldest, first, last = (np.concatenate([table.array(name) for table in tables]) for name in names)
    numbers = np.arange(len(tables))
    partition = np.repeat(numbers, [len(table) for table in tables])
    # a segment whose smallest timestamp is unknown (-1) gets its first timestamp instead
    return SegmentColumns(numbers, partition, records, size, np.where(oldest >= 0, oldest, first), last)


def _reopen(handle: TopicHandle, version: int, pinned: bool) -> Topic:
    return Topic(handle, handle.log.load(version), pinned=pinned)
