"""A topic: the object that users hold. It decides nothing itself; every method calls the layer that does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from distlog.core.commits.format.actions import Drop
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import DistlogError, TopicNotFoundError
from distlog.core.following.group_positions import delete_group, reset_group
from distlog.core.following.start import Start
from distlog.core.log.sealed_commit import every_partition, sealed_commit
from distlog.core.log.transaction_coordinator import end_transactions
from distlog.core.maintenance.compact_or_merge import CompactReport, compact_or_merge
from distlog.core.maintenance.delete_records import delete_records
from distlog.core.maintenance.integrity.rebuild import rebuild_indexes
from distlog.core.maintenance.integrity.rebuild_report import RebuildReport
from distlog.core.maintenance.reports import DeleteRecordsReport, RestoreReport, RetentionReport
from distlog.core.maintenance.restore import restore
from distlog.core.maintenance.retention import plan_retention, retention
from distlog.core.maintenance.vacuuming.vacuum import VacuumReport, vacuum
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.alter_topic import alter_config, create_partitions
from distlog.core.topics.appending.append_commit import AppendResult, BatchId
from distlog.core.topics.appending.appendable import Appendable
from distlog.core.topics.appending.appender import Appender
from distlog.core.topics.appending.transaction import Transaction, open_appender
from distlog.core.topics.producing.producer import Producer, checked_timeout
from distlog.core.topics.producing.producing_topic import ProducingTopic
from distlog.core.topics.readable_topic import ReadableTopic
from distlog.core.topics.writing.commit_destination import CommitDestination
from distlog.core.topics.writing.delivery import OnDelivery
from distlog.core.topics.writing.destination import Destination
from distlog.core.topics.writing.in_place_destination import InPlaceDestination
from distlog.core.topics.writing.writer import Writer
from distlog.core.whole_number import whole_number


class Topic(ReadableTopic):
    """A topic at one snapshot. Readers see this until `refresh`, or until an append of this object moves it on.

    Cheap to hold and to pickle: a copy opens the same version again. Made by `distlog.create` and `distlog.open`.
    """

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
        progress: bool | None = None,
    ) -> AppendResult:
        """Append Arrow, Polars, pandas, DuckDB or an iterable of dicts in one commit, all partitions or none.

        Columns: value, and perhaps key, timestamp (ms or Arrow timestamps; missing is now), headers, partition
        (missing: murmur2 of the key, without a key sticky runs); `partition` is for all rows. `compression` is used
        if the topic's is producer. The same (app_id, batch_id) again returns the first result. By default who types
        in a notebook or a terminal sees the `progress` after a second; true: on any terminal, false: never.

        Raises InvalidRecordError, TopicNotFoundError (it was dropped), StorageError, CommitConflictError (nothing
        was appended), CommitStateUnknownError (it may have been; repeat with the same app_id and batch_id).
        """
        with self.transaction(app_id, batch_id, compression) as transaction:
            transaction.append(table, partition, progress=progress)
        return transaction.result

    def transaction(
        self, app_id: str | None = None, batch_id: BatchId | None = None, compression: str | None = None
    ) -> Transaction:
        """Several appends that become visible together at the end of a `with` block, or not at all."""
        return Transaction(self.handle, self.current, app_id, batch_id, compression)

    def writer(
        self, *, linger_ms: int = 100, compression: str | None = None, on_delivery: OnDelivery | None = None
    ) -> Writer:
        """A buffered writer of single records, sent in the background; `on_delivery` is called per outcome."""
        self._check_writable()
        return Writer(self, linger_ms=linger_ms, compression=compression, on_delivery=on_delivery)

    def producer(
        self,
        transactional_id: str | None = None,
        *,
        transaction_timeout_ms: int = 60_000,
        linger_ms: int = 100,
        compression: str | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Producer:
        """A writer that sends again what failed, for two minutes, and doubles nothing (Kafka's idempotent producer).

        A producer with a `transactional_id` has transactions: see `Producer.begin`. It ends all earlier ones with
        that id, in all processes, and aborts what they have not committed: what they append then raises
        ProducerFencedError. Others may abort a transaction that is open for longer than `transaction_timeout_ms`.
        """
        self._check_writable()
        timeout_ms = checked_timeout(transaction_timeout_ms)
        producing = ProducingTopic(self.handle, self.current, self.live.look_again, transactional_id, timeout_ms)
        return Producer(producing, linger_ms=linger_ms, compression=compression, on_delivery=on_delivery)

    def end_transactions(self) -> int:
        """Abort transactions of producers that are open for longer than their timeout, and finish those decided.

        Returns how many have ended; one look at the topic if there are none. Retention and compaction do it too.
        Until then readers of committed records stop before them.
        """
        self._check_writable()
        return end_transactions(self.handle, self.current)

    def destination(self, compression: str | None = None) -> Destination:
        """Where a writer's buffers go: in place on a disk of this machine, else into commits."""
        if self.storage.is_local_disk:
            return InPlaceDestination(self.handle, self.current, compression, self.live.look_again)
        return CommitDestination(self.handle, self.current, compression)

    def appender(self, compression: str | None = None) -> Appender:
        """An Appender, which writes rows of this topic as segments that wait for a commit."""
        return open_appender(self.handle, self.current, compression)

    def alter_config(self, settings: Mapping[str, object | None]) -> TopicConfig:
        """Set Kafka-named settings (None: back to the default) in one commit; returns the new config.

        Each append uses the new config from then on.
        """
        self._check_writable()
        self.advance(alter_config(self.handle, self.snapshot, settings))
        return self.config

    def create_partitions(self, count: int) -> None:
        """Raise the number of partitions to `count`; what there is stays where it is.

        Keys go to other partitions from then on, as in Kafka: the order of a key's records holds on each side of the
        change. Raises InvalidPartitionsError unless there are fewer now.
        """
        self._check_writable()
        self.advance(create_partitions(self.handle, self.snapshot, whole_number("count", count)))

    def drop(self) -> None:
        """End the topic: it cannot be opened or appended to any more; open snapshots can be read until vacuum.

        Writers in all processes get a TopicNotFoundError, also when the topic is created again.
        """
        self._check_writable()
        sealed_commit(self.handle, self.snapshot, "drop", lambda snapshot: [Drop()], every_partition)

    def reset_group(self, group: str, to: Start) -> dict[int, int]:
        """Set a group's positions, all or those of the partitions given; returns all its positions.

        `to` is what `start` is for `follow`. Its members lose their partitions, and begin anew at these positions.
        """
        self._check_writable()
        snapshot = self.refresh().live_snapshot
        for partition in to if isinstance(to, Mapping) else ():
            self.check_partition(partition)
        return reset_group(self.handle, snapshot, group, to)

    def delete_group(self, group: str) -> None:
        """Forget a group's positions; a member that lives makes it anew. Raises InvalidConfigError for no group."""
        self._check_writable()
        delete_group(self.handle, self.snapshot.topic_id, group)

    def retention(self, *, dry_run: bool = False) -> RetentionReport:
        """Delete whole segments at the old end, by the config's `retention.*`; `dry_run` only reports.

        Only metadata changes; `vacuum` deletes the files when `file.delete.delay.ms` has passed.
        """
        self._check_writable()
        deleted, after = retention(self.handle, self.snapshot, dry_run=dry_run)
        self.advance(after)
        self._end_transactions_beside(dry_run)
        return RetentionReport(after.version, tuple(deleted), dry_run, after.config)

    def restore(self, version: int, *, dry_run: bool = False) -> RestoreReport:
        """Bring back, in one commit, what was there at `version` and vacuum has not deleted; newer records stay.

        It takes back what retention, `delete_records` and compaction did since. Raises OffsetOutOfRangeError for a
        version that there is not, TopicNotFoundError if it is of a dropped topic.
        """
        self._check_writable()
        chosen = whole_number("version", version)
        found, after = restore(self.handle, self.snapshot, chosen, dry_run=dry_run)
        self.advance(after)
        expired = plan_retention(after, self.handle.trusted_ms())
        return RestoreReport(after.version, chosen, tuple(found), sum(len(one.segments) for one in expired), dry_run)

    def delete_records(self, before: Mapping[int, int]) -> DeleteRecordsReport:
        """Delete the records below an offset, by partition; -1 is the log end. They are not read any more.

        Raises OffsetOutOfRangeError above the log end, InvalidConfigError if `cleanup.policy` is only compact.
        """
        self._check_writable()
        starts, after = delete_records(self.handle, self.snapshot, before)
        self.advance(after)
        return DeleteRecordsReport(after.version, starts)

    def compact(self, *, dry_run: bool = False) -> CompactReport:
        """Keep the last record of each key; if the topic is not compacted, merge small segments as they are."""
        self._check_writable()
        report, after = compact_or_merge(self.handle, self.snapshot, dry_run=dry_run)
        self.advance(after)
        self._end_transactions_beside(dry_run)
        return report

    def vacuum(self, *, dry_run: bool = False) -> VacuumReport:
        """Delete the files that no reader can need and no writer can still commit; `dry_run` only reports."""
        self._check_writable()
        report = vacuum(self.storage, self.log, dry_run=dry_run)
        with suppress(TopicNotFoundError):  # it was dropped, and its files are deleted all the same
            self.refresh()
        return report

    def rebuild_indexes(self, *, force: bool = False, dry_run: bool = False) -> RebuildReport:
        """Make bad and missing index files again from the logs; with `force` all that the config would make anew."""
        self._check_writable()
        report, after = rebuild_indexes(self.handle, self.snapshot, force=force, dry_run=dry_run)
        self.advance(after)
        return report

    def _end_transactions_beside(self, dry_run: bool) -> None:
        """End transactions, if there are any: what fails of this is logged, and is not what the caller asked for."""
        if self.snapshot.producer_transactions and not dry_run:
            with suppress(DistlogError):
                self.end_transactions()

    def _check_writable(self) -> None:
        self.current.check_writable(self.storage)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.handle, self.version, self.current.pinned)


def _reopen(handle: TopicHandle, version: int, pinned: bool) -> Topic:
    return Topic(handle, handle.log.load(version), pinned=pinned)
