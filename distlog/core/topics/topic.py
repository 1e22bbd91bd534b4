"""A topic: what users hold. It decides nothing itself, every method hands over to the layer that does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from distlog.core.commits.actions import Drop, SetConfig
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig, whole_number
from distlog.core.errors import TopicNotFoundError
from distlog.core.maintenance.compact_or_merge import CompactReport, compact_or_merge
from distlog.core.maintenance.delete_records import delete_records
from distlog.core.maintenance.integrity.rebuild import rebuild_indexes
from distlog.core.maintenance.integrity.rebuild_report import RebuildReport
from distlog.core.maintenance.integrity.verify import VerifyReport, verify
from distlog.core.maintenance.reports import DeleteRecordsReport, RetentionReport
from distlog.core.maintenance.retention import retention
from distlog.core.maintenance.vacuum import VacuumReport, vacuum
from distlog.core.reading import scan_plan
from distlog.core.reading.fetch import FetchedBatches, fetch
from distlog.core.reading.scan import Scan, check_columns
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.slices import OutOfRange
from distlog.core.reading.time_lookup import Found, offset_for_time
from distlog.core.storage.storage import Storage
from distlog.core.times import Time, to_ms
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics import metadata_tables
from distlog.core.topics.append import Appender, AppendResult, BatchId
from distlog.core.topics.current_snapshot import CurrentSnapshot
from distlog.core.topics.delivery import OnDelivery
from distlog.core.topics.record import Record, records_of
from distlog.core.topics.records import Appendable
from distlog.core.topics.transaction import Transaction, open_appender
from distlog.core.topics.writer import Writer
from distlog.core.transactions.isolation import IsolationLevel


class Topic:
    """A topic at one snapshot: readers see that until `refresh`, or until an append of this object moves it on.

    Cheap to hold and to pickle: a copy opens the same version again. Made by `distlog.create` and `distlog.open`.
    """

    def __init__(self, handle: TopicHandle, snapshot: Snapshot, *, pinned: bool = False) -> None:
        self.handle = handle
        self._current = CurrentSnapshot(handle.log, snapshot, pinned=pinned)

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
        """What reads this topic's segments."""
        return self.handle.reader

    @property
    def clock(self) -> Callable[[], int]:
        """The time of new records, in ms since 1970."""
        return self.handle.clock

    @property
    def snapshot(self) -> Snapshot:
        """What this object reads."""
        return self._current.snapshot

    @property
    def url(self) -> str:
        """The topic's address, without credentials."""
        return self.storage.url

    @property
    def name(self) -> str:
        """The topic's name: the last part of its address when it was created."""
        return self.snapshot.name

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
        """How many partitions there are, numbered from 0."""
        return len(self.snapshot.partitions)

    def refresh(self) -> Topic:
        """Move on to the newest version (one GET when there is nothing new); returns this topic."""
        self._current.refresh()
        return self

    def advance(self, snapshot: Snapshot) -> None:
        """Read `snapshot` from now on, unless another thread is further already."""
        self._current.advance(snapshot)

    def append(
        self,
        table: Appendable,
        partition: int | None = None,
        app_id: str | None = None,
        batch_id: BatchId | None = None,
        compression: str | None = None,
    ) -> AppendResult:
        """Append Arrow, pandas or an iterable of dicts in one commit, all partitions or none.

        Columns: value, and perhaps key, timestamp (ms or Arrow timestamps; missing is now), headers, partition
        (missing: murmur2 of the key, without a key sticky runs); `partition` is for all rows. `compression` counts
        where the topic's is producer. The same (app_id, batch_id) again returns the first result.

        Raises InvalidRecordError, TopicNotFoundError (it was dropped), StorageError, CommitConflictError (nothing
        was appended), CommitStateUnknownError (it may have been; repeat with the same app_id and batch_id).
        """
        with self.transaction(app_id, batch_id, compression) as transaction:
            transaction.append(table, partition)
        return transaction.result

    def transaction(
        self, app_id: str | None = None, batch_id: BatchId | None = None, compression: str | None = None
    ) -> Transaction:
        """Several appends that become visible together at the end of a `with` block, or not at all."""
        return Transaction(self.handle, self._current, app_id, batch_id, compression)

    def writer(
        self, *, linger_ms: int = 100, compression: str | None = None, on_delivery: OnDelivery | None = None
    ) -> Writer:
        """A buffered writer of single records, committed in the background; `on_delivery` is told each outcome."""
        self._check_writable()
        return Writer(self, linger_ms=linger_ms, compression=compression, on_delivery=on_delivery)

    def appender(self, compression: str | None = None) -> Appender:
        """What writes rows of this topic as segments that wait for a commit."""
        return open_appender(self.handle, self._current, compression)

    def scan(
        self,
        partitions: Iterable[int] | None = None,
        start: int | Mapping[int, int] | None = None,
        end: int | Mapping[int, int] | None = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        columns: Iterable[str] | None = None,
        isolation: IsolationLevel = "read_uncommitted",
        out_of_range: OutOfRange = "fail",
        max_workers: int | None = None,
    ) -> Scan:
        """The records from `start` (in) to `end` (out), all by default, as a Scan that runs when it is read.

        Times are those of the records, in whatever order: from `start_time` (in) to `end_time` (out), to the
        millisecond, without records that have no timestamp. `max_workers` threads decode, the caller among
        them: by default as many as there are cores. Raises OffsetOutOfRangeError for a start outside of the log,
        unless `out_of_range` is earliest or latest; ValueError for an offset and a time on one side.
        """
        chosen, snapshot = check_columns(columns), self.snapshot
        times = scan_plan.times(start, end, start_time, end_time)
        bounds = scan_plan.bounds(snapshot, partitions, start, end)
        slices, visible = scan_plan.plan(self.reader, snapshot, bounds, isolation, out_of_range, times)
        return Scan(self.reader, slices, chosen, visible, max_workers)

    def records(self, partition: int = 0, start: int | None = None, limit: int | None = None) -> Iterator[Record]:
        """Records as Python objects, for people; a few at a time, so a small limit reads little."""
        self.check_partition(partition)
        return records_of(self.reader, self.snapshot, partition, start, limit)

    def read(self, partition: int, offset: int, max_bytes: int = 1_048_576) -> FetchedBatches:
        """Kafka's fetch: the stored batches from the one that holds `offset` on, whole, at least one.

        Empty at the log end, and where `max_bytes` is 0. Raises OffsetOutOfRangeError below the log start and above
        the log end.
        """
        self.check_partition(partition)
        return fetch(self.reader, self.snapshot.partitions[partition], partition, offset, max_bytes)

    def start_offsets(self) -> dict[int, int]:
        """The first readable offset of each partition."""
        return {number: state.log_start_offset for number, state in enumerate(self.snapshot.partitions)}

    def end_offsets(self) -> dict[int, int]:
        """The next offset to be assigned in each partition."""
        return {number: state.log_end_offset for number, state in enumerate(self.snapshot.partitions)}

    def offsets_for_times(self, times: Time | Mapping[int, Time]) -> dict[int, Found | None]:
        """By partition, (offset, timestamp in ms) of the first record at or after the time, or None.

        `times` is one time for all partitions, or one by partition: ms since 1970, a datetime, ISO 8601 text, or
        LATEST, EARLIEST, MAX_TIMESTAMP.
        """
        asked = times if isinstance(times, Mapping) else dict.fromkeys(range(self.partitions), times)
        for partition in asked:
            self.check_partition(partition)
        states = self.snapshot.partitions
        return {number: offset_for_time(self.reader, states[number], to_ms(time)) for number, time in asked.items()}

    def history(self, limit: int | None = None) -> pa.Table:
        """The commits, newest first: version, time, operation, writer, and what they added and removed."""
        return metadata_tables.history(self.log.history(limit))

    def segments(self) -> pa.Table:
        """The live segments, one row each, by partition and base offset."""
        return metadata_tables.segments(self.snapshot)

    def alter_config(self, settings: Mapping[str, object | None]) -> TopicConfig:
        """Set Kafka-named settings (None: back to the default) in one commit; the new config."""
        self._check_writable()
        _, after = self.log.commit(
            self.snapshot, "config", lambda current: [SetConfig(current.config.changed(settings).overrides())]
        )
        self.advance(after)
        return self.config

    def drop(self) -> None:
        """End the topic: nobody can open or append to it from here on; who holds a snapshot reads on until vacuum."""
        self._check_writable()
        self.log.commit(self.snapshot, "drop", lambda snapshot: [Drop()])

    def retention(self, *, dry_run: bool = False) -> RetentionReport:
        """Delete whole segments at the old end, as the config's `retention.*` say; `dry_run` only reports.

        Only metadata changes; `vacuum` deletes their files when `file.delete.delay.ms` have passed.
        """
        self._check_writable()
        deleted, after = retention(self.handle, self.snapshot, dry_run=dry_run)
        self.advance(after)
        return RetentionReport(after.version, tuple(deleted), dry_run)

    def delete_records(self, before: Mapping[int, int]) -> DeleteRecordsReport:
        """Delete the records below an offset, by partition; -1 is the log end. Nobody sees them any more.

        Raises OffsetOutOfRangeError above the log end, InvalidConfigError where `cleanup.policy` is only compact.
        """
        self._check_writable()
        starts, after = delete_records(self.handle, self.snapshot, before)
        self.advance(after)
        return DeleteRecordsReport(after.version, starts)

    def compact(self, *, dry_run: bool = False) -> CompactReport:
        """Of each key keep the last record, or where the topic is not compacted, merge small segments as they are."""
        self._check_writable()
        report, after = compact_or_merge(self.handle, self.snapshot, dry_run=dry_run)
        self.advance(after)
        return report

    def vacuum(self, *, dry_run: bool = False) -> VacuumReport:
        """Delete the files that no reader can need and no writer can still commit; `dry_run` only reports."""
        self._check_writable()
        report = vacuum(self.storage, self.log, dry_run=dry_run)
        self.refresh()
        return report

    def rebuild_indexes(self, *, force: bool = False, dry_run: bool = False) -> RebuildReport:
        """Make bad and missing index files again from the logs, with `force` all that the config would make anew."""
        self._check_writable()
        report, after = rebuild_indexes(self.handle, self.snapshot, force=force, dry_run=dry_run)
        self.advance(after)
        return report

    def verify(self) -> VerifyReport:
        """Check every checksum, record, index entry and metadata invariant of the snapshot; it changes nothing."""
        return verify(self.handle, self.snapshot)

    def check_partition(self, partition: int) -> None:
        """Raise TopicNotFoundError unless the topic has this partition."""
        if not 0 <= whole_number("partition", partition) < self.partitions:
            raise TopicNotFoundError(f"the topic has partitions 0 to {self.partitions - 1}", partition=partition)

    def _check_writable(self) -> None:
        self._current.check_writable(self.storage)

    def __repr__(self) -> str:
        return f"Topic({self.url!r}, version={self.version}, partitions={self.partitions})"

    def _repr_html_(self) -> str:
        return metadata_tables.html(self.snapshot, self.url)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.handle, self.version, self._current.pinned)


def _reopen(handle: TopicHandle, version: int, pinned: bool) -> Topic:
    return Topic(handle, handle.log.load(version), pinned=pinned)
