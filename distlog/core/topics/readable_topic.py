"""The part of a topic that reads: its snapshot, records, offsets, history and segments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from distlog.core.consumer_offsets.kafka_positions import KafkaPositions
from distlog.core.display.listing import Listing
from distlog.core.following.begin import LEASE_S, Following
from distlog.core.following.follower import Follower
from distlog.core.following.start import Start
from distlog.core.groups.admin import group_table
from distlog.core.kafka_directory.export import ExportReport, export_topic
from distlog.core.maintenance.integrity.verify import VerifyReport, verify
from distlog.core.reading import scan_plan
from distlog.core.reading.fetch import FetchedBatches, fetch, fetch_committed
from distlog.core.reading.scan import Scan, check_columns
from distlog.core.reading.slices.slices import OutOfRange
from distlog.core.reading.stable_offset import last_stable_offset
from distlog.core.reading.time_lookup import Found, offset_for_time
from distlog.core.times import Time, to_ms
from distlog.core.topics import metadata_tables, topic_plot
from distlog.core.topics.record import Record, records_of
from distlog.core.topics.snapshot_of_topic import SnapshotOfTopic
from distlog.core.transactions.isolation import IsolationLevel
from distlog.core.whole_number import count_of


class ReadableTopic(SnapshotOfTopic):
    """A topic as readers use it: one snapshot, and the ways to read it."""

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

        Times are those of the records, in whatever order: from `start_time` (in) to `end_time` (out), to the
        millisecond, without records that have no timestamp. `max_workers` threads decode, the caller among
        them: by default as many as there are cores. Raises OffsetOutOfRangeError for a start outside of the log,
        unless `out_of_range` is earliest or latest; ValueError for an offset and a time on one side.
        """
        chosen, snapshot = check_columns(columns), self.live_snapshot
        times = scan_plan.times(start, end, start_time, end_time)
        bounds = scan_plan.bounds(snapshot, partitions, start, end)
        slices, visible = scan_plan.plan(self.reader, snapshot, bounds, isolation, out_of_range, times)
        return Scan(self.reader, slices, chosen, visible, max_workers)

    def follow(
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
    ) -> Follower:
        """Iterate over the records as they come, RecordBatch by RecordBatch, in order in each partition.

        It begins at `start`: an offset, or one by partition; a datetime or ISO 8601 text; EARLIEST (the default) or
        LATEST. Partitions that are added later are read from their start. It ends when nothing came for `timeout`
        seconds. It looks at least each `poll_interval` seconds: 0.005 on a local disk, else 1, with one request.

        The followers of a `group` share the partitions, and the topic keeps its positions, which `commit` moves on;
        `start` counts only where the group has none. A member that is not heard of for `lease` seconds is replaced,
        so each batch must be processed within that time.

        Raises OffsetOutOfRangeError when the position is not in the log any more, unless `out_of_range` is earliest
        or latest; TopicNotFoundError when the topic is dropped.
        """
        self.current.check_writable(self.storage)
        return Following(
            partitions=partitions,
            start=start,
            group=group,
            timeout=timeout,
            columns=columns,
            isolation=isolation,
            out_of_range=out_of_range,
            max_workers=max_workers,
            poll_interval=poll_interval,
            lease=lease,
        ).begin(self.handle, self.snapshot)

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

        `bytes()` of it is what a broker answers; `send_to` sends that to a socket from the page cache. As a broker
        does, it checks the headers and offsets, and leaves checksums to the receiver, unless `check_crcs` is true.
        Empty at the log end, and if `max_bytes` is 0. With `isolation="read_committed"` it ends at the last stable
        offset, and its `aborted` names the transactions whose records the receiver must drop, as in Kafka.
        Raises OffsetOutOfRangeError below the log start and above the log end, CorruptRecordError, ValueError for an
        unknown isolation.
        """
        self.check_partition(partition)
        scan_plan.check_choice("isolation", isolation, IsolationLevel)
        state, read = self.live_snapshot.partitions[partition], fetch
        if isolation == "read_committed":
            read = partial(fetch_committed, stable_offset=last_stable_offset(self.reader, state))
        return read(self.reader, state, partition, offset, max_bytes, check=check_crcs)

    def offsets_for_times(self, times: Time | Mapping[int, Time]) -> dict[int, Found | None]:
        """By partition, (offset, timestamp in ms) of the first record at or after the time, or None.

        `times` is one time for all partitions, or one by partition: ms since 1970, a datetime, ISO 8601 text, or
        LATEST, EARLIEST, MAX_TIMESTAMP.
        """
        asked = times if isinstance(times, Mapping) else dict.fromkeys(range(self.partitions), times)
        for partition in asked:
            self.check_partition(partition)
        states = self.live_snapshot.partitions
        return {number: offset_for_time(self.reader, states[number], to_ms(time)) for number, time in asked.items()}

    def history(self, limit: int | None = None) -> Listing:
        """The commits, newest first: version, time, operation, writer, and what they added and removed."""
        return metadata_tables.history(self.log.history(None if limit is None else count_of("limit", limit)))

    def segments(self) -> Listing:
        """The live segments, one row each, by partition and base offset."""
        return metadata_tables.segments(self.live_snapshot)

    def groups(self) -> Listing:
        """The groups that read the topic, a row for each partition: position, lag, and the follower that has it.

        Those of Kafka's clients too, whose positions a gateway keeps.
        """
        return group_table(self.storage, self.live_snapshot, KafkaPositions(self.handle).by_group())

    def plot(self, *, exact: bool = False, progress: bool | None = None) -> Any:
        """A matplotlib figure: records over time, bytes by partition, and the ages of segments against retention.

        It is drawn from metadata. Records over time are estimates from the times of segments; `exact` reads the times
        of all records. `progress` as in `Scan.to_table`. matplotlib must be installed.
        """
        return topic_plot.plot(self.live_snapshot, self.clock(), self.scan().times(progress) if exact else None)

    def verify(self) -> VerifyReport:
        """Check every checksum, record, index entry and metadata invariant of the snapshot; it changes nothing."""
        return verify(self.handle, self.live_snapshot)

    def export(self, log_dir: str | os.PathLike[str], partitions: Iterable[int] | None = None) -> ExportReport:
        """Write the snapshot, or some of its partitions, as files that a Kafka broker opens in its `log_dir`.

        Exporting again adds what is new. The broker must be stopped, and must not have written to these partitions.
        Raises StorageError if it runs or has written, TopicExistsError where another topic of this name was exported,
        CorruptionError.
        """
        chosen = list(range(self.partitions) if partitions is None else partitions)
        for partition in chosen:
            self.check_partition(partition)
        return export_topic(self.handle, self.live_snapshot, log_dir, chosen)
