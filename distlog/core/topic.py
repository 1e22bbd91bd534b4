"""A topic: the object that users hold. It decides nothing itself; every method calls the layer that does."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core import display
from distlog.core.arrays import booleans, integers, numbers_of, table_of_rows
from distlog.core.commits.actions import (
    Add,
    Commit,
    Drop,
    Remove,
    SetConfig,
    SetPartitions,
    SetTopicId,
    SetTransaction,
    without_tables,
)
from distlog.core.commits.commit_log import AT_A_VERSION, CommitLog, CurrentSnapshot, check_partition_count
from distlog.core.commits.commit_race import CommitRace
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.display import Listing, counted, size_text
from distlog.core.errors import InvalidPartitionsError, TopicNotFoundError
from distlog.core.integers import MAX_LONG, count_of, whole_number
from distlog.core.kafka.export import ExportReport, export_topic
from distlog.core.kafka.transactions import (
    ListedTransaction,
    TransactionsReport,
    abort_transaction,
    list_producers,
    list_transactions,
)
from distlog.core.log.active_partition import ActiveSeals, seal_all
from distlog.core.log.live_snapshot import LiveSnapshot, with_sound_tails
from distlog.core.log.segment_files import DamagedLogError
from distlog.core.maintain.compaction import DEDUPE_BUFFER_BYTES, CompactionReport, compact
from distlog.core.maintain.executor import Executor, LocalExecutor
from distlog.core.maintain.merge import MergeReport, job_bytes_of, merge
from distlog.core.maintain.repair import RebuildReport, RepairReport, rebuild_indexes, repair
from distlog.core.maintain.restore import RestoreReport, restore
from distlog.core.maintain.retention import (
    DeleteRecordsReport,
    RetentionReport,
    delete_records,
    plan_retention,
    retention,
)
from distlog.core.maintain.vacuum import VacuumReport, vacuum
from distlog.core.maintain.verify import VerifyReport, verify
from distlog.core.plots import SegmentColumns, topic_figure
from distlog.core.read.consumer import LEASE_S, ConsumeOptions, Consumer, Start, reset_group
from distlog.core.read.fetch import MAX_TIMEOUT_MS, FetchedBatches, fetch, fetch_committed
from distlog.core.read.group_log import GroupLog, carry_over_groups, delete_group, group_table
from distlog.core.read.lookup import OffsetAndTime, offsets_for_times
from distlog.core.read.scan import (
    Record,
    Scan,
    check_choice,
    check_columns,
    offset_bounds,
    plan_slices,
    records_of,
    time_bounds,
)
from distlog.core.segments.chunks import IsolationLevel
from distlog.core.segments.producer_states import last_stable_offset
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle
from distlog.core.segments.slices import OutOfRange
from distlog.core.storage.storage import Storage
from distlog.core.times import Time, to_ms
from distlog.core.write.append import Appender, AppendResult, BatchId, Transaction, check_batch, open_appender
from distlog.core.write.engine import Engine
from distlog.core.write.producer import Producer, producer_sender
from distlog.core.write.rows import Appendable
from distlog.core.write.writer import OnDelivery, RecordSender, Writer, engine_of


class Topic:
    """A topic at one snapshot. Readers see this until `refresh`, or until an append of this object moves it on.

    Cheap to hold and to pickle: a copy opens the same version again. Made by `distlog.create` and `distlog.open`.

    `current` holds the commit log's snapshot; transactions and writers of this object share it, and move it on.
    `live` holds the snapshot that is read: the same, with the active segments.
    """

    def __init__(
        self, handle: TopicHandle, snapshot: Snapshot, *, pinned: bool = False, pin_reason: str = AT_A_VERSION
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
        """The time of new records, in ms since 1970."""
        return self.handle.clock

    @property
    def snapshot(self) -> Snapshot:
        """The commit log's snapshot, without active segments: the base of a commit."""
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
            return with_sound_tails(self.handle, self.current.refresh())

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
        """The first readable offset of each partition."""
        return dict(enumerate(self.live_snapshot.table.log_start_offsets.tolist()))

    def end_offsets(self) -> dict[int, int]:
        """The next offset to be assigned in each partition."""
        return dict(enumerate(self.live_snapshot.table.log_end_offsets.tolist()))

    def check_partition(self, partition: int) -> None:
        """Raise TopicNotFoundError unless the topic has this partition."""
        if not 0 <= whole_number("partition", partition) < self.partitions:
            raise TopicNotFoundError(f"the topic has partitions 0 to {self.partitions - 1}", partition=partition)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, version={self.version}, partitions={self.partitions})"

    def _repr_html_(self) -> str:
        table = partitions(self.live_snapshot)
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
    ) -> Scan:
        """The records from `start` (in) to `end` (out), all by default, as a Scan that runs when it is read.

        Both are an offset, or one by partition, EARLIEST or LATEST; an end past the log is the log end.
        Times are the records' times, in any order: from `start_time` (in) to `end_time` (out), to the
        millisecond, without records that have no timestamp. `max_workers` threads decode, the caller among
        them: by default as many as there are cores. Raises OffsetOutOfRangeError for a start outside of the log,
        unless `out_of_range` is earliest or latest, and for an end below 0; ValueError for an offset and a time on
        one side.
        """
        names, snapshot = check_columns(columns), self.live_snapshot
        times = time_bounds(start, end, start_time, end_time)
        bounds = offset_bounds(snapshot, partitions, start, end)
        slices, visible = plan_slices(self.reader, snapshot, bounds, isolation, out_of_range, times)
        return Scan(self.reader, slices, names, visible, max_workers)

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

        It starts at `start`: an offset, or one by partition; a datetime or ISO 8601 text; EARLIEST (the default) or
        LATEST. Partitions that are added later are read from offset 0. It ends when no record came for `timeout`
        seconds. It polls every `poll_interval` seconds: 0.005 on a local disk, else 1, with one request.

        The consumers of a `group` share the partitions, and `commit` stores the group's offsets in the topic; `start`
        applies only where the group has none. A member without a heartbeat for `lease` seconds is replaced,
        so each batch must be processed within that time.

        Raises OffsetOutOfRangeError when the position is not in the log any more, unless `out_of_range` is earliest
        or latest; TopicNotFoundError when the topic is dropped.
        """
        self.current.check_writable(self.storage)
        options = ConsumeOptions(
            *(partitions, start, group, timeout, columns),
            *(isolation, out_of_range, max_workers, poll_interval, lease),
        )
        return options.begin(self.handle, self.snapshot)

    def records(
        self,
        partition: int = 0,
        start: int | None = None,
        limit: int | None = None,
        isolation: IsolationLevel = "read_uncommitted",
    ) -> Iterator[Record]:
        """Records as Python objects, for people; a few at a time, so a small limit reads little."""
        self.check_partition(partition)
        return records_of(self.reader, self.live_snapshot, partition, start, limit, isolation)

    def read(
        self,
        partition: int,
        offset: int,
        max_bytes: int = 1_048_576,
        *,
        isolation: IsolationLevel = "read_uncommitted",
        check_crcs: bool = False,
    ) -> FetchedBatches:
        """Kafka's fetch: the stored batches from the one that holds `offset` on, whole, at least one.

        `bytes()` returns a broker's response; `send_to` sends it to a socket from the page cache. As a broker
        does, it checks the headers and offsets, and leaves checksums to the receiver, unless `check_crcs` is true.
        Empty at the log end, and if `max_bytes` is 0. With `isolation="read_committed"` it ends at the last stable
        offset, and its `aborted` names the transactions whose records the receiver must drop, as in Kafka.
        Raises OffsetOutOfRangeError below the log start and above the log end, CorruptRecordError, ValueError for an
        unknown isolation.
        """
        self.check_partition(partition)
        check_choice("isolation", isolation, IsolationLevel)
        state, fetch_batches = self.live_snapshot.partitions[partition], fetch
        if isolation == "read_committed":
            fetch_batches = partial(fetch_committed, stable_offset=last_stable_offset(self.reader, state))
        return fetch_batches(self.reader, state, partition, offset, max_bytes, check=check_crcs)

    def offsets_for_times(self, times: Time | Mapping[int, Time]) -> dict[int, OffsetAndTime | None]:
        """By partition, (offset, timestamp in ms) of the first record at or after the time, or None.

        `times` is one time for all partitions, or one by partition: ms since 1970, a datetime, ISO 8601 text, or
        LATEST, EARLIEST, MAX_TIMESTAMP. No lookup returns an end marker of a transaction, which is not a record.
        """
        by_partition = times if isinstance(times, Mapping) else dict.fromkeys(range(self.partitions), times)
        for partition in by_partition:
            self.check_partition(partition)
        times_ms = {number: to_ms(time, up=True) for number, time in by_partition.items()}
        return offsets_for_times(self.reader, self.live_snapshot.partitions, times_ms)

    def history(self, limit: int | None = None) -> Listing:
        """The commits, newest first: version, time, operation, writer, and the numbers added and removed."""
        commits = self.log.history(None if limit is None else count_of("limit", limit))
        return Listing(table_of_rows([_history_row(commit) for commit in commits], _HISTORY), "commits", _COMMIT)

    def segments(self) -> Listing:
        """The live segments, one row each, by partition and base offset."""
        return segments(self.live_snapshot)

    def groups(self) -> Listing:
        """The groups of consumers, a row for each partition: position, lag, and the consumer that has it."""
        return group_table(self.storage, self.live_snapshot)

    def plot(self, *, exact: bool = False, progress: bool | None = None) -> Any:
        """A matplotlib figure: records over time, bytes by partition, and the ages of segments against retention.

        It is drawn from metadata. Records over time are estimates from the times of segments; `exact` reads the times
        of all records. `progress` as in `Scan.to_table`. matplotlib must be installed.
        """
        snapshot, times = self.live_snapshot, self.scan().times(progress) if exact else None
        columns = segment_columns(snapshot)
        records, size = counted(int(columns.records.sum()), "record"), size_text(int(columns.bytes.sum()))
        segments, partitions = counted(len(columns.bytes), "segment"), counted(len(columns.partitions), "partition")
        title = f"{self.name}, version {snapshot.version}: {records}, {size}, {segments}, {partitions}"
        return topic_figure(title, columns, self.clock(), snapshot.config.retention_ms, times)

    def verify(self, *, executor: Executor | None = None) -> VerifyReport:
        """Check every checksum, record, index entry and metadata invariant of the snapshot; it changes nothing.

        `executor` is where the work runs, as `distlog.spark.SparkExecutor(spark)`; by default this process.
        """
        return verify(self.handle, self.checked_snapshot, executor)

    def export(self, log_dir: str | os.PathLike[str], partitions: Iterable[int] | None = None) -> ExportReport:
        """Write the snapshot, or some of its partitions, as files that a Kafka broker opens in its `log_dir`.

        Exporting again adds new records. The broker must be stopped, and must not have written to these partitions.
        Raises StorageError if it runs or has written, TopicExistsError where another topic of this name was exported,
        CorruptionError.
        """
        numbers = list(range(self.partitions) if partitions is None else partitions)
        for partition in numbers:
            self.check_partition(partition)
        return export_topic(self.handle, self.live_snapshot, log_dir, numbers)

    def refresh(self) -> Topic:
        """Move on to the newest version (one GET when there is nothing new); returns this topic."""
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
        """Append Arrow, Polars, pandas, DuckDB or an iterable of dicts in one commit, all partitions or none.

        Columns: value, and perhaps key, timestamp (missing: now), headers, partition (missing: murmur2 of the key,
        without a key sticky runs); `partition` is for all rows. Times are Arrow's or Python's, ISO 8601, or numbers
        of `timestamp_unit` since 1970: s, ms, us or ns; times before 1990 give a TimestampWarning. `compression`
        is used if the topic's is producer. The same (app_id, batch_id) again returns the first result. By default an
        interactive session, notebook or terminal, shows the `progress` after a second; true: any terminal does.

        Raises InvalidRecordError, TopicNotFoundError (it was dropped), StorageError, CommitConflictError (nothing
        was appended), CommitStateUnknownError (it may have been; repeat with the same app_id and batch_id).
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
        """Several appends that become visible together at the end of a `with` block, or not at all."""
        batch = check_batch(app_id, batch_id)
        return Transaction(self.handle, self.current, app_id, batch, compression, timestamp_unit=timestamp_unit)

    def writer(
        self,
        *,
        linger_ms: int = 100,
        compression: str | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp_unit: str = "ms",
    ) -> Writer:
        """A buffered writer of single records, sent in the background; `on_delivery` is called per outcome.

        Numbers for times count `timestamp_unit`, as in `append`.
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
        """A writer that sends failed records again, for two minutes, and doubles none (Kafka's idempotent producer).

        A producer with a `transactional_id` has transactions: see `Producer.begin`. It ends all earlier ones with
        that id, in all processes, and aborts their open transactions: their later appends raise
        ProducerFencedError.
        """
        self._check_writable()
        sender = producer_sender(self.handle, self.current, self.engine(), compression, transactional_id)
        return Producer(sender, linger_ms=linger_ms, on_delivery=on_delivery, timestamp_unit=timestamp_unit)

    def open_transactions(self, *, max_timeout_ms: int = MAX_TIMEOUT_MS) -> TransactionsReport:
        """The transactions that are open in the partitions: readers of committed records wait before them.

        Transactions in `hanging` will never be ended: their coordinator does not know them, and they are open for
        longer than `max_timeout_ms` (Kafka's `transaction.max.timeout.ms`), or it has ended them elsewhere.
        """
        return list_transactions(self.handle, self.live.refresh(), max_timeout_ms)

    def producers(self) -> Listing:
        """The producers of each partition: epochs, last sequence numbers, begins of open transactions."""
        self._check_writable()
        return Listing(list_producers(self.handle, self.current), "producers")

    def abort_transaction(self, partition: int, start_offset: int) -> ListedTransaction:
        """Abort the transaction that is open in the partition from this offset on, as `open_transactions` lists it.

        It is for one that hangs. Raises CommitConflictError if none is open there, or if a coordinator will end it.
        """
        self._check_writable()
        self.check_partition(partition)
        return abort_transaction(self.handle, self.current, partition, whole_number("start_offset", start_offset))

    def engine(self) -> Engine:
        """An engine, which takes batches of this topic: directly on a disk of this machine, else by commits."""
        return engine_of(self.handle, self.current, self.live.invalidate)

    def appender(self, compression: str | None = None) -> Appender:
        """An Appender, which writes rows of this topic as segments that wait for a commit."""
        return open_appender(self.handle, self.current, compression)

    def alter_config(self, settings: Mapping[str, object | None]) -> TopicConfig:
        """Set Kafka-named settings (None: back to the default) in one commit; returns the new config.

        Each append uses the new config from then on.
        """
        self._check_writable()
        with CommitRace(self.log, self.snapshot, "config") as race, ActiveSeals(self.handle, race) as seals:
            for head in race:
                changed = SetConfig(head.config.changed(settings).overrides())
                # the active segments are sealed, so that every process learns of the change
                if seals.seal(head, range(len(head.partitions))) is not None:
                    race.put([*seals.actions, changed])
        self.advance(race.after)
        return self.config

    def create_partitions(self, count: int) -> None:
        """Raise the number of partitions to `count`; existing records stay where they are.

        Keys go to other partitions from then on, as in Kafka: the order of a key's records holds on each side of the
        change. Raises InvalidPartitionsError unless there are fewer now.
        """
        self._check_writable()
        check_partition_count(number := whole_number("count", count))
        # nothing is sealed: writers read the commits before they choose a partition
        with CommitRace(self.log, self.snapshot, "partitions") as race:
            for head in race:
                check_grows(head, number)
                race.put([SetPartitions(number)])
        self.advance(race.after)

    def assign_new_id(self) -> str:
        """Give the topic a new id, as a copy of a topic's folder needs; returns the id.

        Kafka clients fetch by the id, streaming queries note it, and an append of another id is refused. So no two
        topics of a root may have the same one. Records, offsets, settings and the positions of groups stay.

        Open the topic again afterwards: as after a drop, each object that has it open, this one too, raises
        TopicNotFoundError at its next refresh. Raises ReadOnlyTopicError for a topic at a version or a time.
        """
        self._check_writable()
        snapshot, topic_id = self.log.load(), str(uuid.uuid4())
        # before the commit, so that no member finds its group without positions; and after it, since vacuum deletes
        # positions of an id that no topic has
        carry_over_groups(self.storage, snapshot.topic_id, topic_id)
        seal_all(self.handle, snapshot, "new-id", [SetTopicId(topic_id)])
        carry_over_groups(self.storage, snapshot.topic_id, topic_id)
        return topic_id

    def seal(self) -> None:
        """Seal the active segments in one commit, as a copy of the folder to an object store needs."""
        self._check_writable()
        if self.current.refresh().active_partitions:
            self.advance(seal_all(self.handle, self.snapshot, "seal"))

    def drop(self) -> None:
        """End the topic: it cannot be opened or appended to any more; open snapshots can be read until vacuum.

        Writers in all processes get a TopicNotFoundError, also when the topic is created again. An active segment
        that other hands damaged is repaired first, as `repair` does: it is cut where the damage begins, which is
        logged. To save the records after it, bring the file back before you drop the topic.
        """
        self._check_writable()
        try:
            seal_all(self.handle, self.snapshot, "drop", [Drop()])
        except DamagedLogError:
            self.repair()
            seal_all(self.handle, self.snapshot, "drop", [Drop()])

    def reset_group(self, group: str, to: Start | None = None, *, kafka: str | None = None) -> dict[int, int]:
        """Set a group's positions, in all partitions or in the given ones; returns all its positions.

        `to` is as `start` of `consume`. Its members lose their partitions, and start again at these positions.
        `kafka` in its place takes over the positions that this group of Kafka clients has committed through a
        gateway; then the group must have no members. Raises InvalidConfigError, OffsetOutOfRangeError,
        GroupNotFoundError, CommitConflictError.
        """
        self._check_writable()
        snapshot = self.refresh().live_snapshot
        for partition in to if isinstance(to, Mapping) else ():
            self.check_partition(partition)
        return reset_group(self.handle, snapshot, group, to, kafka)

    def delete_group(self, group: str) -> None:
        """Forget a group's positions; a live member creates it again. Raises GroupNotFoundError."""
        self._check_writable()
        delete_group(GroupLog(self.storage, self.snapshot.topic_id, group))

    def retention(self, *, dry_run: bool = False) -> RetentionReport:
        """Delete whole segments at the old end, by the config's `retention.*`; `dry_run` only reports.

        Only metadata changes; `vacuum` deletes the files when `file.delete.delay.ms` has passed.
        """
        self._check_writable()
        deleted, after = retention(self.handle, self.snapshot, dry_run=dry_run)
        self.advance(after)
        return RetentionReport(after.version, tuple(deleted), dry_run, after.config)

    def restore(self, version: int, *, dry_run: bool = False) -> RestoreReport:
        """Bring back, in one commit, the records of `version` that vacuum has not deleted; newer records stay.

        More than 500,000 segments take several commits, each of whole partitions. The changes that retention,
        `delete_records` and compaction made since are reverted. Raises OffsetOutOfRangeError for a version that does
        not exist, TopicNotFoundError if it is of a dropped topic.
        """
        self._check_writable()
        version = whole_number("version", version)
        restored, after = restore(self.handle, self.snapshot, version, dry_run=dry_run)
        self.advance(after)
        expired = plan_retention(after, self.handle.trusted_ms())
        return RestoreReport(
            after.version, version, tuple(restored), sum(len(segment.segments) for segment in expired), dry_run
        )

    def delete_records(self, offsets: Mapping[int, int]) -> DeleteRecordsReport:
        """Delete the records below an offset, by partition; -1 is the log end. They are not read any more.

        Raises OffsetOutOfRangeError above the log end, InvalidConfigError if `cleanup.policy` is only compact.
        """
        self._check_writable()
        starts, after = delete_records(self.handle, self.snapshot, offsets)
        self.advance(after)
        return DeleteRecordsReport(after.version, starts)

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
            dry_run: Change nothing, and report what would be done.
            executor: Where the work runs, as `distlog.spark.SparkExecutor(spark)`. Default: this process.
            dedupe_buffer_bytes: Bytes of memory for keys, 24 each. Spark tasks share a partition with more keys.
            memory: Bytes that a merge holds in one process. With more, fewer requests read small segments. By default
                as few as possible: 360 MiB on an object store, 192 MiB in a Spark task.
        """
        self._check_writable()
        executor = executor or LocalExecutor(self.storage)
        snapshot = self.log.refresh(self.snapshot)
        report: CompactionReport | MergeReport
        if "compact" in snapshot.config.cleanup_policy:
            report, after = compact(
                self.handle, snapshot, executor.clean, dedupe_buffer_bytes=dedupe_buffer_bytes, dry_run=dry_run
            )
        else:
            job_bytes = job_bytes_of(executor.memory if memory is None else memory, executor.workers)
            report, after = merge(self.handle, snapshot, executor, dry_run=dry_run, job_bytes=job_bytes)
        self.advance(after)
        return report

    def vacuum(self, *, dry_run: bool = False) -> VacuumReport:
        """Delete the files that no reader can need and no writer can still commit; `dry_run` only reports."""
        self._check_writable()
        report = vacuum(self.storage, self.log, dry_run=dry_run)
        with suppress(TopicNotFoundError):  # it was dropped, and its files are deleted all the same
            self.refresh()
        return report

    def repair(self, *, dry_run: bool = False) -> RepairReport:
        """Cut active segments that refuse appends because of damage; `dry_run` only reports.

        The report names the lost bytes and offsets; these offsets are given again. Bring the file back instead,
        if you can.
        """
        self._check_writable()
        report, after = repair(self.handle, self.snapshot, dry_run=dry_run)
        self.advance(after)
        return report

    def rebuild_indexes(
        self, *, force: bool = False, dry_run: bool = False, executor: Executor | None = None
    ) -> RebuildReport:
        """Make bad and missing index files again from the logs; with `force` also good ones of another config.

        `executor` is where the work runs, as `distlog.spark.SparkExecutor(spark)`; by default this process.
        """
        self._check_writable()
        report, after = rebuild_indexes(self.handle, self.snapshot, executor, force=force, dry_run=dry_run)
        self.advance(after)
        return report

    def _check_writable(self) -> None:
        self.current.check_writable(self.storage)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.handle, self.version, self.current.pinned)


def check_grows(snapshot: Snapshot, count: int) -> None:
    if count <= len(snapshot.partitions):
        raise InvalidPartitionsError(
            "a topic's partitions can only become more", partitions=len(snapshot.partitions), requested=count
        )


_ADDED = ("segments_added", "segments_removed", "records_added", "bytes_added")
_HISTORY = pa.schema(
    [
        *(("version", pa.int64()), ("timestamp", pa.timestamp("ms", "UTC"))),
        *(("operation", pa.string()), ("writer", pa.string())),
        *((name, pa.int64()) for name in _ADDED),
        *(("app_id", pa.string()), ("batch_id", pa.string())),
    ]
)


#: The columns that are shown of a commit and of a segment; the tables have more.
_COMMIT = ("version", "timestamp", "operation", "writer", "records_added", "bytes_added", "segments_added")
_SEGMENT = (
    *("partition", "base_offset", "next_offset", "record_count", "log_bytes"),
    *("first_timestamp", "max_timestamp", "compression", "is_active"),
)
#: The times of a segment, which a snapshot holds as ms.
_TIMES = ("first_timestamp", "min_timestamp", "max_timestamp", "append_time_ms", "created_ms")


def _history_row(commit: Commit) -> dict[str, object]:
    actions = list(without_tables(commit.actions))
    added = [action.segment for action in actions if isinstance(action, Add)]
    batch = next((action for action in commit.actions if isinstance(action, SetTransaction)), None)
    # a damaged commit may claim a version without a number
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


def segments(snapshot: Snapshot) -> Listing:
    """One row per live segment, with everything that the snapshot holds; a time that it lacks is null."""
    table = pa.Table.from_batches([state.segments.columns() for state in snapshot.partitions])
    for name in _TIMES:
        table = table.set_column(table.schema.get_field_index(name), name, _times(table[name]))
    is_active = booleans(np.concatenate([_active(partition) for partition in snapshot.partitions]))
    return Listing(table.append_column("is_active", is_active), "segments", _SEGMENT)


def _active(state: PartitionState) -> npt.NDArray[np.bool_]:
    is_active = np.zeros(len(state.segments), np.bool_)
    is_active[-1:] = [segment.is_active for segment in state.segments[-1:]]
    return is_active


def partitions(snapshot: Snapshot) -> pa.Table:
    states = snapshot.partitions
    newest = [int(state.segments.max_timestamps.max(initial=-1)) for state in states]
    columns = {
        "partition": range(len(states)),
        "log_start_offset": [state.log_start_offset for state in states],
        "log_end_offset": [state.log_end_offset for state in states],
        "segments": [len(state.segments) for state in states],
        "records": [int(state.segments.record_counts.sum()) for state in states],
        "bytes": [int(state.segments.log_bytes.sum()) for state in states],
    }
    table = pa.table({name: integers(column) for name, column in columns.items()})
    return table.append_column("newest_record", _times(integers(newest)))


def _times(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    values = numbers_of(column)
    valid = pc.if_else(booleans(values >= 0), integers(values), pa.nulls(len(values), pa.int64()))
    return pa.chunked_array([valid.cast(pa.timestamp("ms", "UTC"))])


def segment_columns(snapshot: Snapshot) -> SegmentColumns:
    tables = [state.segments for state in snapshot.partitions]
    names = ("record_count", "log_bytes", "min_timestamp", "first_timestamp", "max_timestamp")
    records, size, oldest, first, last = (np.concatenate([table.array(name) for table in tables]) for name in names)
    numbers = np.arange(len(tables))
    partition = np.repeat(numbers, [len(table) for table in tables])
    return SegmentColumns(numbers, partition, records, size, np.where(oldest >= 0, oldest, first), last)


#: The attributes that writers, transactions and Spark use. Completion does not offer them.
_INTERNAL = {
    *("advance", "appender", "check_partition", "checked_snapshot", "clock", "current", "engine", "handle"),
    *("live", "live_snapshot", "log", "reader", "snapshot", "storage"),
}


def _reopen(handle: TopicHandle, version: int, pinned: bool) -> Topic:
    return Topic(handle, handle.log.load(version), pinned=pinned)
