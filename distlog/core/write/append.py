"""Appends in bulk: an Appender writes rows as segments, and one commit adds all segments."""

from __future__ import annotations

import copy
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from random import Random
from types import TracebackType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import BLOCK_BYTES, Longs, integers, join, numbers_of
from distlog.core.commits import fields
from distlog.core.commits.actions import RESERVED_APPS, TABLE_ROWS, Action, Add, AddTable, SetTransaction
from distlog.core.commits.commit_log import CommitRace, CurrentSnapshot
from distlog.core.commits.segment_table import SegmentInfo, SegmentTable, moved
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.display import Displayable, Progress, counted
from distlog.core.errors import (
    CommitConflictError,
    InvalidRecordError,
    RetentionWarning,
    StorageError,
    StorageFullError,
    TimestampWarning,
)
from distlog.core.format.record_encoder import RecordInput, batch_format, codec_of
from distlog.core.log.active_partition import ActiveSeals
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.segments.segment_writer import Bundles, SegmentWriter, SmallSegments
from distlog.core.storage.calls import Task, WorkerThreads, cores, in_order
from distlog.core.storage.storage import Storage
from distlog.core.times import NO_TIMESTAMP, check_unit, in_ms, iso, wrong_unit
from distlog.core.write.rows import Appendable, Partitioner, batches, normalize, row_count, rows_by_partition

BatchId = int | str
"""The id of a batch in its application: a number from 0 on, or text of 1 to 1000 characters."""

#: The number of partitions whose offsets the text of a result shows.
_SHOWN_PARTITIONS = 4
_UPLOAD_THREADS = 8
_SHARED_BYTES = 1 << 20  # a slice of fewer bytes is written faster than threads can share it
#: Rows for at least MANY_PARTITIONS, with at most SMALL_PART_BYTES per partition on average, may be written as one
#: bundle (a file with small segments of several partitions), since a SegmentWriter per partition needs 90 kB each.
MANY_PARTITIONS, SMALL_PART_BYTES = 64, 1 << 14
#: An append to many partitions first gathers rows, to find out whether they fit a bundle: up to SMALL_PART_BYTES for
#: each partition of the topic, but at least the first and at most the second number of bytes.
MIN_BUNDLE_CHECK_BYTES, MAX_BUNDLE_CHECK_BYTES = 32 << 20, 256 << 20
#: An append of up to this many rows has no progress bar unless it is asked for: the bar would only jump to its end.
_QUICK_ROWS = 100_000
#: The fewest bytes that a writer gathers before it writes, so that they can be written past the page cache.
MIN_GATHER_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, repr=False)
class AppendResult(Displayable):
    """The result of an append: the version of its commit, or None, and the (first, end) offsets by partition.

    `replayed` is True if this (app_id, batch_id) was committed before: the result is the first commit's.
    """

    version: int | None
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    replayed: bool = False

    @property
    def record_count(self) -> int:
        """The number of records that were appended."""
        return sum(end - first for first, end in self.offsets.values())

    def __str__(self) -> str:
        version = "" if self.version is None else f", version {self.version}"
        shown = list(self.offsets.items())[:_SHOWN_PARTITIONS]
        spans = [f"{partition}: {first:,} to {end:,}" for partition, (first, end) in shown]
        ellipsis = ["..."] if len(self.offsets) > _SHOWN_PARTITIONS else []
        verb = "appended before" if self.replayed else "appended"
        spans_text = ", ".join([*spans, *ellipsis]) or "none"
        return f"{verb} {counted(self.record_count, 'record')}{version}; offsets {spans_text}"

    def to_table(self) -> pa.Table:
        """Return a row per partition: the offsets from `start_offset` up to but not including `end_offset`."""
        firsts, ends = ([span[side] for span in self.offsets.values()] for side in (0, 1))
        columns = {"partition": list(self.offsets), "start_offset": firsts, "end_offset": ends}
        return pa.table({name: integers(column) for name, column in columns.items()})


class Appender:
    """Writes rows as segments of one topic, to be committed; not thread-safe.

    `read_version` is the version that the caller read before the first write. Records without a key start at
    `first_partition`. Up to `workers` threads, including the caller, write partitions in parallel, and each calls
    `clock` and `new_id`. `held_bytes` limits the memory for segments that wait for a bundle; default as in Bundles.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        config: TopicConfig,
        partitions: int,
        *,
        read_version: int,
        first_partition: int,
        clock: Callable[[], int],
        random: Random,
        compression: str | None = None,
        timestamp_unit: str = "ms",
        new_id: Callable[[], str] = paths.new_id,
        workers: int | None = None,
        held_bytes: int | None = None,
    ) -> None:
        self._storage, self._topic, self._read_version = storage, topic, read_version
        self.config = config
        self._workers = workers or cores()
        self._clock, self._random, self._new_id = clock, random, new_id
        self._codec, self._unit = codec_of(config, compression), check_unit(timestamp_unit)
        self._partitioner = Partitioner(partitions, first_partition)
        self._queues: dict[int, PartitionQueue] = {}
        self._new_stem: Callable[[], str] = lambda: paths.new_stem(read_version, new_id())
        self._bundles = Bundles(storage, self._new_stem, held_bytes)
        # the writers of all partitions together gather a quarter of `held_bytes`
        partition_bytes = BLOCK_BYTES if held_bytes is None else held_bytes // (4 * partitions)
        self._gather_bytes = min(max(partition_bytes, MIN_GATHER_BYTES), BLOCK_BYTES)
        self._partition_count = partitions
        #: Gathered rows that `close` writes as one bundle, unless another append follows.
        self._small_parts: _SmallParts | None = None
        self._is_closing = False

    def append(self, data: Appendable, partition: int | None = None, progress: bool | None = False) -> int:
        """Append the rows, and return their number. After an error only `abort` may be called."""
        tasks_ahead = 2 * self._workers if self._workers > 1 else 0  # so that no thread waits for the next slice
        total_rows = row_count(data)
        with closing(batches(data, self._unit)) as slices:
            counts = in_order(self._tasks(slices, partition), tasks_ahead, workers=self._workers, joined=True)
            if not progress and total_rows is not None and total_rows <= _QUICK_ROWS:
                return sum(counts)
            with Progress("appending", total_rows=total_rows, shown=progress) as bar:
                for count in counts:
                    bar.add(count)
            return bar.rows

    def _tasks(self, slices: Iterator[pa.RecordBatch], partition: int | None) -> Iterator[Callable[[], int]]:
        """Yield calls that write rows and return their number."""
        rows = 0
        if self._small_parts is not None:
            gathered, self._small_parts = self._small_parts, None
            parts = list(rows_by_partition(gathered.order, gathered.counts))
            self._open_queues(parts)
            # 0 rows, since the append that gathered these rows has counted them
            yield partial(_write, self._put_in_queues(gathered.source, parts), 0)
        elif not self._queues and partition is None and self._partition_count >= MANY_PARTITIONS:
            self._small_parts, slices = self._gather_small_parts(slices)
            if self._small_parts is not None:
                count = len(self._small_parts.order)
                yield lambda: count
                return
        for batch in slices:
            records = normalize(batch, self.config, self._clock(), rows, self._unit)
            source = RecordInput.from_arrow(records)
            parts = list(self._partitioner.split(records, partition, rows))
            rows += records.num_rows
            self._open_queues(parts)
            if self._workers > 1 and records.nbytes >= _SHARED_BYTES:
                yield from (self._task(source, [part]) for part in parts)
            else:
                yield self._task(source, parts)

    def _gather_small_parts(
        self, slices: Iterator[pa.RecordBatch]
    ) -> tuple[_SmallParts | None, Iterator[pa.RecordBatch]]:
        """Return all rows as small parts, and no slices; or None, and all slices, if they do not fit one bundle."""
        gathered, size = list[pa.RecordBatch](), 0
        max_bytes = max(MIN_BUNDLE_CHECK_BYTES, min(SMALL_PART_BYTES * self._partition_count, MAX_BUNDLE_CHECK_BYTES))
        for batch in slices:
            gathered.append(batch)
            size += batch.nbytes
            if size > max_bytes:
                return None, chain(gathered, slices)
        # use a copy, since the rows are partitioned again if they do not fit
        partitioner = copy.copy(self._partitioner)
        normalized = list[pa.RecordBatch]()
        rows, record_bytes = 0, 0
        for batch in gathered:
            normalized.append(normalize(batch, self.config, self._clock(), rows, self._unit))
            rows += batch.num_rows
            # records repeat the values of a dictionary array, so they may be far larger than the input
            record_bytes += normalized[-1].nbytes
            if record_bytes > SMALL_PART_BYTES * self._partition_count:
                return None, iter(gathered)
        if rows >= MANY_PARTITIONS and all(batch.schema == normalized[0].schema for batch in normalized):
            records = join(normalized)
            order, counts = partitioner.group(records)  # row numbers by partition, and row counts
            partitions = np.flatnonzero(counts)
            if len(partitions) >= MANY_PARTITIONS and records.nbytes <= SMALL_PART_BYTES * len(partitions):
                source = RecordInput.from_arrow(records)
                form = batch_format(self.config, self._codec, self._clock, self._random)
                row_counts = counts[partitions]
                segments = SmallSegments.of(source, records.nbytes, order, partitions, row_counts, form)
                if segments is not None:
                    self._partitioner = partitioner
                    return _SmallParts(source, order, counts, segments), iter(())
        return None, iter(gathered)

    def _task(self, source: RecordInput, parts: Sequence[tuple[int, Longs]]) -> Callable[[], int]:
        return partial(_write, self._put_in_queues(source, parts), sum(len(rows) for _, rows in parts))

    def _put_in_queues(self, source: RecordInput, parts: Sequence[tuple[int, Longs]]) -> list[Callable[[], None]]:
        return [self._queues[partition].put(source, rows) for partition, rows in parts]

    def _open_queues(self, parts: Sequence[tuple[int, Longs]]) -> None:
        """Open the queues of all `parts` before a write, which uses a bundle if several partitions have joined it."""
        for partition, _ in parts:
            if partition not in self._queues:
                self._bundles.join(partition)
                writer = SegmentWriter(
                    self._storage,
                    self._topic,
                    partition,
                    self._read_version,
                    self.config,
                    codec=self._codec,
                    clock=self._clock,
                    new_id=self._new_id,
                    random=self._random,
                    bundles=self._bundles,
                    gather_bytes=self._gather_bytes,
                )
                self._queues[partition] = PartitionQueue(writer)

    def close(self) -> Sequence[SegmentInfo]:
        """Make all files durable, and return the segments, sorted by partition. An error leaves nothing open."""
        self._is_closing = True
        if self._small_parts is not None:
            return self._small_parts.segments.write(self._storage, self._new_stem(), self._clock())
        queues = [self._queues[partition] for partition in sorted(self._queues)]
        has_uploads = any(queue.is_uploading for queue in queues)
        closers = WorkerThreads(_UPLOAD_THREADS if has_uploads else self._workers - 1, "distlog-close")
        tasks = [Task(queue.close) for queue in queues]
        try:
            # while other queues upload, this thread closes the queues that upload nothing, in `wait` below
            for queue, task in zip(queues, tasks, strict=True):
                if queue.is_uploading or not has_uploads:
                    closers.put(task.run)
            segments = [segment for task in tasks for segment in task.wait()]
            self._bundles.close()
            return [self._bundles.with_positions(segment) for segment in segments]
        except BaseException:
            for queue, task in zip(queues, tasks, strict=True):
                # `abort` runs once the task has ended; waiting here could be interrupted, and leave the queue open
                task.cancel(queue.abort)
            raise
        finally:
            closers.end(joined=True)

    def abort(self) -> None:
        """Abort; vacuum deletes the written files. A failed `close` aborts, too."""
        if not self._is_closing:
            for queue in list(self._queues.values()):
                queue.abort()


class _SmallParts(NamedTuple):
    """Few rows for each of many partitions; `order` and `counts` are the result of `group_by_partition`."""

    source: RecordInput
    order: Longs
    counts: Longs
    segments: SmallSegments


def _write(writes: Sequence[Callable[[], None]], rows: int) -> int:
    for write in writes:
        write()
    return rows


class PartitionQueue:
    """A SegmentWriter for many threads: one thread at a time writes the rows, in the order of `put`."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._writer, self._lock = writer, threading.Lock()
        self._queue = deque[tuple[RecordInput, Longs]]()
        self._put_count = self._written_count = 0
        self._is_aborted = False
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None

    def put(self, source: RecordInput, rows: Longs) -> Callable[[], None]:
        """Queue the `rows` of `source`. Returns a call that writes these and earlier rows, or raises the error."""
        self._queue.append((source, rows))
        self._put_count += 1
        return partial(self._write_up_to, self._put_count)

    def _write_up_to(self, count: int) -> None:
        try:
            with self._lock:
                while self._written_count < count:
                    self._write_next()
        finally:
            if self._is_aborted:
                self.abort()

    def _write_next(self) -> None:
        if self._is_aborted:
            raise StorageError("cannot write: the append was aborted, so nothing was appended; start a new append")
        if self._error is not None:
            # raise with the first traceback, since each raise adds frames, which would keep objects alive
            raise self._error.with_traceback(self._traceback)
        try:
            self._writer.append(*self._queue[0])
        except BaseException as error:
            self._error, self._traceback = error, error.__traceback__
            raise
        self._queue.popleft()
        self._written_count += 1

    def close(self) -> list[SegmentInfo]:
        return self._writer.close()

    @property
    def is_uploading(self) -> bool:
        return self._writer.is_uploading

    def abort(self) -> None:
        """Abort the segments, now or when the writing thread has finished its rows."""
        self._is_aborted = True
        if self._lock.acquire(blocking=False):
            try:
                self._writer.abort()
            finally:
                self._lock.release()


class Transaction:
    """Appends to any partitions of a topic that become visible together when the `with` block ends without an error.

    Then `result` has the version and the offsets. If the block or an append raises, nothing is appended, and `commit`
    raises the append's error again. A forked child can only abort its copy.
    """

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        app_id: str | None = None,
        batch_id: BatchId | None = None,
        compression: str | None = None,
        *,
        timestamp_unit: str = "ms",
    ) -> None:
        self._handle, self._current, self._app_id, self._batch_id = handle, current, app_id, batch_id
        snapshot = current.for_append()
        self._read_version = snapshot.version
        self._is_replay = earlier_result(snapshot, app_id, batch_id) is not None
        check_room_for_batch_id(snapshot, app_id, batch_id)
        self._appender: Appender | None = open_appender(handle, current, compression, timestamp_unit)
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._process = os.getpid()
        self.result = AppendResult(None)

    def append(self, data: Appendable, partition: int | None = None, *, progress: bool | None = None) -> int:
        """Append records.

        Args:
            data: The records, in a form that `Topic.append` accepts.
            partition: The partition of all records; default as in `Topic.append`.
            progress: As in `Scan.to_table`; by default only for more than 100,000 rows.

        Returns:
            The number of rows; 0 for a repeated (app_id, batch_id).

        Raises:
            InvalidRecordError: A record does not fit the topic's rules; the transaction is aborted.

        Examples:
            >>> with topic.transaction("loader", batch_id=1) as transaction:
            ...     print(transaction.append([{"value": b"{}"}] * 3))
            3
        """
        appender = self._open_appender()
        if self._is_replay:
            return 0
        try:
            return appender.append(data, partition, progress)
        except BaseException as error:
            self.abort()
            self._error, self._traceback = error, error.__traceback__
            raise

    def commit(self) -> AppendResult:
        """Make all appends durable and visible at once, and return the result, also in `result`.

        Raises:
            CommitConflictError: Another commit prevents this one; nothing was appended.
            StorageError: The storage fails; nothing was appended.
            CommitStateUnknownError: The records may be appended.
        """
        appender, self._appender = self._open_appender(), None
        segments, snapshot = appender.close(), self._current.snapshot
        self.result, snapshot = commit_append(
            self._handle,
            snapshot,
            segments,
            read_version=self._read_version,
            app_id=self._app_id,
            batch_id=self._batch_id,
            checked_config=appender.config,
        )
        self._current.advance(snapshot)
        return self.result

    def _open_appender(self) -> Appender:
        if self._process != os.getpid():
            raise InvalidRecordError("the transaction was started before a fork: start another one in this process")
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)
        if self._appender is None:
            raise InvalidRecordError("the transaction has ended: start another one")
        return self._appender

    def abort(self) -> None:
        """End the transaction without an append. Vacuum deletes its files, which no commit names."""
        if self._appender is not None:
            self._appender.abort()
        self._appender = self._error = self._traceback = None

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
        elif self._appender is not None or self._error is not None:
            self.commit()


def moved_to_log_ends(head: Snapshot, segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
    """Return the segments with the offsets that follow the log ends of `head`. Raises CommitConflictError."""
    ends = head.partitions.log_end_offsets.tolist()
    moved_segments = list[SegmentInfo]()
    for segment in segments:
        if segment.partition >= len(ends):
            text = "the topic no longer has this partition: open the topic again"
            raise CommitConflictError(text, partition=segment.partition)
        moved_segments.append(segment.moved_to(ends[segment.partition]))
        ends[segment.partition] = moved_segments[-1].next_offset
    return moved_segments


def offsets_of(segments: Iterable[SegmentInfo]) -> dict[int, tuple[int, int]]:
    """Return the first offset and the end offset of the segments of each partition."""
    if isinstance(segments, SegmentTable):
        numbers, firsts = np.unique(segments.array("partition"), return_index=True)
        lasts = np.append(firsts, len(segments))[1:] - 1  # the row before the first of the next partition
        spans = zip(segments.base_offsets[firsts].tolist(), segments.next_offsets[lasts].tolist(), strict=True)
        return dict(zip(numbers.tolist(), spans, strict=True))
    offsets: dict[int, tuple[int, int]] = {}
    for segment in segments:
        first, _ = offsets.get(segment.partition, (segment.base_offset, 0))
        offsets[segment.partition] = (first, segment.next_offset)
    return offsets


def commit_append(
    handle: TopicHandle,
    snapshot: Snapshot,
    segments: Sequence[SegmentInfo],
    *,
    read_version: int | None,
    app_id: str | None = None,
    batch_id: BatchId | None = None,
    in_order: bool = False,
    write_id: str | None = None,
    checked_config: TopicConfig | None = None,
) -> tuple[AppendResult, Snapshot]:
    """Add `segments` at the log ends in one commit, or return the first result of a repeated (app_id, batch_id).

    `checked_config` is the config by which the records were checked. With `in_order` the app's batch ids only grow:
    a lower id is a repeated one. CommitRace explains `read_version`, and Commit `write_id`.
    """
    _check_batch_id(app_id, batch_id)
    if len(segments) >= TABLE_ROWS and not isinstance(segments, SegmentTable):
        segments = SegmentTable.of(sorted(segments, key=lambda segment: segment.partition))
    batch = None if app_id is None or batch_id is None else SetTransaction(app_id, batch_id, {}, in_order)
    # warn before the commit, so that nothing is appended if warnings raise
    warn_of_times(handle.storage.name, snapshot, segments, handle.clock())
    # `append_queue` can commit the appends of several writers together (group commit), at other offsets than ours. It
    # is not used on a local disk, where a commit is fast, or with a `write_id`, which is for one commit only
    if handle.storage.is_local or write_id is not None:
        race = CommitRace(handle.log, snapshot, "append", read_version=read_version, write_id=write_id)
    else:
        is_keyed = checked_config is None or "compact" in checked_config.cleanup_policy
        race = handle.append_queue.race(snapshot, segments, batch, read_version=read_version, is_keyed=is_keyed)
    segments_at_ends: Sequence[SegmentInfo] = ()
    with race, ActiveSeals(handle, race) as seals:
        for head in race:  # the snapshot that the commit would follow, a newer one after each lost race
            if first_result := earlier_result(head, app_id, batch_id, in_order=in_order):
                return first_result, head
            sealed = seals.seal(head, set(_column(segments, "partition").tolist()))
            if sealed is None:
                continue  # `seal` has only locked the partitions: the next head includes the commits until then
            if checked_config is not None:
                check_not_newly_compacted(sealed.config, checked_config)
            check_room_for_batch_id(sealed, app_id, batch_id, in_order=in_order)
            segments_at_ends, actions = _moved_and_added(sealed, segments)
            if batch is not None:
                actions.append(replace(batch, offsets=offsets_of(segments_at_ends)))
            if not actions:
                return AppendResult(None), head
            race.put([*seals.actions, *actions])
    assert race.commit is not None
    return AppendResult(race.commit.version, offsets_of(race.as_committed(segments_at_ends))), race.snapshot


def _moved_and_added(head: Snapshot, segments: Sequence[SegmentInfo]) -> tuple[Sequence[SegmentInfo], list[Action]]:
    if isinstance(segments, SegmentTable):
        columns = segments.columns()  # the steps of `moved_to_log_ends` on whole columns
        partitions, ends = numbers_of(columns["partition"]), head.partitions.log_end_offsets
        if len(partitions) and partitions[-1] >= len(ends):
            text = "the topic no longer has this partition: open the topic again"
            raise CommitConflictError(text, partition=int(partitions[-1]))
        counts = numbers_of(columns["next_offset"]) - numbers_of(columns["base_offset"])
        counts_before = np.cumsum(counts) - counts
        # for each segment, the row of its partition's first segment: the rows are sorted by partition
        first_rows = np.searchsorted(partitions, partitions)
        table = SegmentTable(moved(columns, ends[partitions] + counts_before - counts_before[first_rows]))
        return table, [AddTable(table.columns())]
    moved_segments = moved_to_log_ends(head, segments)
    return moved_segments, [*map(Add, moved_segments)]


def _column(segments: Sequence[SegmentInfo], name: str) -> Longs:
    if isinstance(segments, SegmentTable):
        return segments.array(name)
    return np.array([getattr(segment, name) for segment in segments], np.int64)


def check_not_newly_compacted(config: TopicConfig, checked_config: TopicConfig) -> None:
    """Raise CommitConflictError if the topic has become compacted, since the records were not checked for keys."""
    if "compact" in config.cleanup_policy and "compact" not in checked_config.cleanup_policy:
        text = "nothing was appended: the topic has become compacted; append again, with a key in each record"
        raise CommitConflictError(text)


def earlier_result(
    snapshot: Snapshot, app_id: str | None, batch_id: BatchId | None, *, in_order: bool = False
) -> AppendResult | None:
    """Return the result of (app_id, batch_id) if it was committed: empty if only a later id shows this; else None."""
    if app_id is None or batch_id is None or not snapshot.transactions.has(app_id, batch_id, in_order=in_order):
        return None
    earlier = snapshot.transactions.get(app_id, batch_id)
    return AppendResult(earlier.version, earlier.offsets, True) if earlier else AppendResult(None, replayed=True)


def check_room_for_batch_id(
    snapshot: Snapshot, app_id: str | None, batch_id: BatchId | None, *, in_order: bool = False
) -> None:
    """Raise StorageFullError if the topic has no room for a new batch id, by which a retry would be recognized."""
    limit = snapshot.config.batch_ids_bytes
    if batch_id is None or in_order or snapshot.transactions.size <= limit:
        return
    if earlier_result(snapshot, app_id, batch_id) is None:
        raise StorageFullError(
            "nothing was appended: the batch ids that the topic remembers, with their offsets, have reached "
            "batch.ids.bytes; raise the setting, or wait: ids are forgotten after 30 days",
            batches=len(snapshot.transactions),
            bytes=snapshot.transactions.size,
            limit=limit,
        )


def checked_batch_id(app_id: str | None, batch_id: BatchId | None) -> BatchId | None:
    """Return the batch id, as an int if it is numpy's. Raises InvalidRecordError for invalid or reserved ids."""
    untyped_id: object = batch_id  # BatchId lacks numpy's integers
    if isinstance(untyped_id, np.integer):
        batch_id = int(untyped_id)
    _check_batch_id(app_id, batch_id)
    if app_id is not None and app_id.startswith(RESERVED_APPS):
        prefixes = ", ".join(repr(prefix) for prefix in RESERVED_APPS)
        text = f"application ids that begin with {prefixes} are reserved: give another app_id"
        raise InvalidRecordError(text, app_id=app_id[:100])
    return batch_id


def _check_batch_id(app_id: str | None, batch_id: BatchId | None) -> None:
    if app_id is None and batch_id is None:
        return
    try:  # the calls are for their errors only
        fields.NAME(app_id).encode()
        str(fields.batch_id(batch_id)).encode()
    except ValueError:
        raise InvalidRecordError(
            "give app_id and batch_id together: text of 1 to 1000 characters, or for batch_id an integer, at least 0",
            app_id=ascii(app_id)[:100],
            batch_id=ascii(batch_id)[:100],
        ) from None


def open_appender(
    handle: TopicHandle, current: CurrentSnapshot, compression: str | None = None, timestamp_unit: str = "ms"
) -> Appender:
    current.check_writable(handle.storage)
    snapshot = current.snapshot
    partitions = len(snapshot.partitions)
    return Appender(
        handle.storage,
        handle.name,
        snapshot.config,
        partitions,
        read_version=snapshot.version,
        first_partition=handle.random.randrange(partitions),
        clock=handle.clock,
        random=handle.random,
        new_id=handle.new_id,
        compression=compression,
        timestamp_unit=timestamp_unit,
    )


#: The start of 1990. A time before it is probably a number of seconds that was taken for milliseconds.
EARLIEST_USUAL_MS = 631_152_000_000
_warned = set[tuple[str, type[Warning]]]()


def warn_of_times(topic: str, snapshot: Snapshot, segments: Sequence[SegmentInfo], now_ms: int) -> None:
    times_ms = np.concatenate([_column(segments, name) for name in ("min_timestamp", "max_timestamp")])
    early_ms = times_ms[(times_ms > NO_TIMESTAMP) & (times_ms < EARLIEST_USUAL_MS)]
    if len(early_ms):
        warn_of_early(topic, snapshot.topic_id, int(early_ms.min()))
    if expired := _expired_record_count(segments, snapshot.config, now_ms):
        text = (
            f"{counted(expired, 'record')} {'is' if expired == 1 else 'are'} older than "
            f"retention.ms={snapshot.config.retention_ms}, so the next retention deletes them: to keep them, set "
            "retention.ms higher, or to -1"
        )
        _warn_once(topic, snapshot.topic_id, text, RetentionWarning)


def warn_of_early(topic: str, topic_id: str, early_ms: int) -> None:
    may_be_seconds = not is_early(in_ms(early_ms, "s")) and wrong_unit(early_ms, "s") is None
    hint = ", and looks like seconds" if may_be_seconds else ""
    text = (
        f"records have times before 1990, as {iso(early_ms)}: {early_ms} was taken for milliseconds{hint}; if "
        "your timestamps are in another unit, convert them, or set timestamp_unit to s, us or ns"
    )
    _warn_once(topic, topic_id, text, TimestampWarning)


def is_early(timestamp: int) -> bool:
    return NO_TIMESTAMP < timestamp < EARLIEST_USUAL_MS


def _warn_once(topic: str, topic_id: str, text: str, category: type[Warning]) -> None:
    if (topic_id, category) not in _warned:
        warnings.warn(f"{topic}: {text}", category, stacklevel=_caller_stack_level())
        _warned.add((topic_id, category))  # not reached if warnings are errors


def _caller_stack_level() -> int:
    """Return the `stacklevel` with which a warning of the caller points to the first function outside distlog."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("distlog."):
        frame, level = frame.f_back, level + 1
    return level


def _expired_record_count(segments: Sequence[SegmentInfo], config: TopicConfig, now_ms: int) -> int:
    """Return the number of records in the segments that the next retention deletes because of their age."""
    if "delete" not in config.cleanup_policy or config.retention_ms < 0:
        return 0
    newest_ms = _column(segments, "max_timestamp")
    is_expired = (newest_ms >= 0) & (newest_ms < now_ms - config.retention_ms)
    return int(_column(segments, "record_count")[is_expired].sum())
