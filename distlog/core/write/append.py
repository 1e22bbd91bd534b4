"""Appends in bulk: an Appender writes rows as segments, and one commit adds them all."""

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
import numpy.typing as npt
import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import BLOCK_BYTES, integers, join, numbers_of
from distlog.core.commits import fields
from distlog.core.commits.actions import RESERVED_APPS, TABLE_ROWS, Action, Add, AddTable, SetTransaction
from distlog.core.commits.commit_log import CommitRace, CurrentSnapshot
from distlog.core.commits.segment_table import SegmentInfo, SegmentTable, moved
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.display import Progress, Shown, counted
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
from distlog.core.storage.parallel import Task, WorkerThreads, cores, in_order
from distlog.core.storage.storage import Storage
from distlog.core.times import NO_TIMESTAMP, check_unit, in_ms, iso, wrong_unit
from distlog.core.write.rows import Appendable, Longs, Partitioner, batches, normalize, parts_of, rows_of

BatchId = int | str
"""A batch in its application: a number from 0 on, or text of 1 to 1000 characters."""


#: The number of partitions that the text of a result names.
_SPANS = 4
#: The number of partitions whose files are uploaded at the same time.
_CLOSERS = 8
#: A slice of fewer bytes is written faster than threads can share it.
_SHARED_BYTES = 1 << 20
#: An append to this number of partitions, with this number of bytes each on average, may write them in one bundle
#: without a writer for each, which needs 90 kB.
SMALL_PARTITIONS, SMALL_PART = 64, 1 << 14
#: Bytes of rows that are gathered to find that out: always, and at most, if the partitions may be small.
SMALL_BYTES, MOST_SMALL_BYTES = 32 << 20, 256 << 20
#: The least bytes that a writer gathers before it writes: they can be written past the page cache.
LEAST_GATHERED = 256 << 10


@dataclass(frozen=True, slots=True, repr=False)
class AppendResult(Shown):
    """The result of an append: the version of its commit, or None, and the (first, end) offsets by partition.

    `replayed`: this (app_id, batch_id) was committed before, and the result is the first commit's.
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
        spans = [f"{number}: {first:,} to {end:,}" for number, (first, end) in list(self.offsets.items())[:_SPANS]]
        more = ["..."] if len(self.offsets) > _SPANS else []
        again = "appended before" if self.replayed else "appended"
        return (
            f"{again} {counted(self.record_count, 'record')}{version}; offsets {', '.join([*spans, *more]) or 'none'}"
        )

    def to_table(self) -> pa.Table:
        """Return a row per partition: the offsets from `start_offset` (in) to `end_offset` (out)."""
        firsts, ends = ([span[side] for span in self.offsets.values()] for side in (0, 1))
        columns = {"partition": list(self.offsets), "start_offset": firsts, "end_offset": ends}
        return pa.table({name: integers(column) for name, column in columns.items()})


class Appender:
    """Writes rows as segments of one topic, to be committed; not thread-safe.

    `read_version` is from before the first write; records without a key start at `first_partition`. Up to `workers`
    threads, with the caller's, write partitions in parallel, and call `clock` and `new_id`. `held_bytes` limits the
    small segments that are written together, by default to LARGEST_BUNDLE.
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
        #: The settings by which the records are checked and written.
        self.config = config
        self._workers = workers or cores()
        self._clock, self._random, self._new_id = clock, random, new_id
        self._codec, self._unit = codec_of(config, compression), check_unit(timestamp_unit)
        self._partitioner = Partitioner(partitions, first_partition)
        self._queues: dict[int, PartitionQueue] = {}
        self._new_stem: Callable[[], str] = lambda: paths.new_stem(read_version, new_id())
        self._bundles = Bundles(storage, self._new_stem, held_bytes)
        share = BLOCK_BYTES if held_bytes is None else held_bytes // (4 * partitions)
        self._gather_bytes = min(max(share, LEAST_GATHERED), BLOCK_BYTES)
        self._count = partitions
        self._small: _Small | None = None
        self._is_closing = False

    def append(self, data: Appendable, partition: int | None = None, progress: bool | None = False) -> int:
        """Append the rows; returns their number. After an error only `abort` may be called."""
        tasks_ahead = 2 * self._workers if self._workers > 1 else 0
        with (
            closing(batches(data, self._unit)) as slices,
            Progress("appending", total_rows=rows_of(data), shown=progress) as bar,
        ):
            for rows in in_order(self._tasks(slices, partition), tasks_ahead, workers=self._workers, joined=True):
                bar.add(rows)
        return bar.rows

    def _tasks(self, slices: Iterator[pa.RecordBatch], partition: int | None) -> Iterator[Callable[[], int]]:
        rows = 0
        if self._small is not None:
            small, self._small = self._small, None
            parts = list(parts_of(small.order, small.counts))
            self._open(parts)
            write = self._task(small.source, parts)
            # their rows were counted before
            yield lambda: 0 * write()
        elif not self._queues and partition is None and self._count >= SMALL_PARTITIONS:
            self._small, slices = self._gathered(slices)
            if self._small is not None:
                count = len(self._small.order)
                yield lambda: count
                return
        for batch in slices:
            records = normalize(batch, self.config, self._clock(), rows, self._unit)
            source = RecordInput.from_arrow(records)
            parts = list(self._partitioner.split(records, partition, rows))
            rows += records.num_rows
            self._open(parts)
            if self._workers > 1 and records.nbytes >= _SHARED_BYTES:
                yield from (self._task(source, [part]) for part in parts)
            else:
                yield self._task(source, parts)

    def _gathered(self, slices: Iterator[pa.RecordBatch]) -> tuple[_Small | None, Iterator[pa.RecordBatch]]:
        """(all rows, if they are few and for many partitions, the remaining slices)."""
        gathered, size = list[pa.RecordBatch](), 0
        most = max(SMALL_BYTES, min(SMALL_PART * self._count, MOST_SMALL_BYTES))
        for batch in slices:
            gathered.append(batch)
            size += batch.nbytes
            if size > most:
                return None, chain(gathered, slices)
        rows, size, normal, partitioner = 0, 0, list[pa.RecordBatch](), copy.copy(self._partitioner)
        for batch in gathered:
            normal.append(normalize(batch, self.config, self._clock(), rows, self._unit))
            rows += batch.num_rows
            # a dictionary's values are repeated here, so the records may be far larger than the input
            size += normal[-1].nbytes
            if size > SMALL_PART * self._count:
                return None, iter(gathered)
        if rows >= SMALL_PARTITIONS and all(batch.schema == normal[0].schema for batch in normal):
            records = join(normal)
            order, counts = partitioner.group(records)
            partitions = np.flatnonzero(counts)
            if len(partitions) >= SMALL_PARTITIONS and records.nbytes <= SMALL_PART * len(partitions):
                source = RecordInput.from_arrow(records)
                form = batch_format(self.config, self._codec, self._clock, self._random)
                row_counts = counts[partitions]
                segments = SmallSegments.of(source, records.nbytes, order, partitions, row_counts, form)
                if segments is not None:
                    self._partitioner = partitioner
                    return _Small(source, order, counts, segments), iter(())
        return None, iter(gathered)

    def _task(self, source: RecordInput, parts: Sequence[tuple[int, Longs]]) -> Callable[[], int]:
        writes = [self._queues[number].put(source, rows) for number, rows in parts]
        return partial(_write, writes, sum(len(rows) for _, rows in parts))

    def _open(self, parts: Sequence[tuple[int, Longs]]) -> None:
        """Open the queues of all partitions before a write: a segment that shares a bundle is held longer."""
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
        """Make all files durable; returns the segments, by partition. An error leaves nothing open."""
        self._is_closing = True
        if self._small is not None:
            return self._small.segments.write(self._storage, self._new_stem(), self._clock())
        queues = [self._queues[partition] for partition in sorted(self._queues)]
        uploads = any(queue.is_uploading for queue in queues)
        closers = WorkerThreads(_CLOSERS if uploads else self._workers - 1, "distlog-close")
        closing = [Task(queue.close) for queue in queues]
        try:
            for queue, task in zip(queues, closing, strict=True):
                if queue.is_uploading or not uploads:
                    closers.put(task.run)
            segments = [segment for task in closing for segment in task.wait()]
            self._bundles.close()
            return [self._bundles.placed(segment) for segment in segments]
        except BaseException:
            for queue, task in zip(queues, closing, strict=True):
                # only after its thread has left it; a second interrupt does not wait for that
                task.when_over(queue.abort)
            raise
        finally:
            closers.end(joined=True)

    def abort(self) -> None:
        """Abort; vacuum deletes the written files. A failed `close` aborts, too."""
        if not self._is_closing:
            for queue in list(self._queues.values()):
                queue.abort()


class _Small(NamedTuple):
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
        self._waiting = deque[tuple[RecordInput, npt.NDArray[np.int64]]]()
        self._put = self._written = 0
        self._is_aborted = False
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None

    def put(self, source: RecordInput, rows: npt.NDArray[np.int64]) -> Callable[[], None]:
        """Queue the `rows` of `source`; returns a call that writes these and earlier rows, or raises their error."""
        self._waiting.append((source, rows))
        self._put += 1
        return partial(self._write_up_to, self._put)

    def _write_up_to(self, count: int) -> None:
        try:
            with self._lock:
                while self._written < count:
                    self._write_next()
        finally:
            if self._is_aborted:
                self.abort()

    def _write_next(self) -> None:
        if self._is_aborted:
            raise StorageError("cannot write: the append was aborted, and appends nothing; begin a new one")
        if self._error is not None:
            # with its first traceback: each raise adds frames, which would keep the caller's objects alive
            raise self._error.with_traceback(self._trace)
        try:
            self._writer.append(*self._waiting[0])
        except BaseException as error:
            self._error, self._trace = error, error.__traceback__
            raise
        self._waiting.popleft()
        self._written += 1

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

    `result` has the version and the offsets afterwards. If the block or an append raises, nothing is appended, and
    `commit` raises the append's error again. A forked child can only abort its copy.
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
        snapshot = current.recent()
        self._read_version = snapshot.version
        self._is_replay = replayed(snapshot, app_id, batch_id) is not None
        check_room_for_batch_id(snapshot, app_id, batch_id)
        self._appender: Appender | None = open_appender(handle, current, compression, timestamp_unit)
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None
        self._process = os.getpid()
        self.result = AppendResult(None)

    def append(self, data: Appendable, partition: int | None = None, *, progress: bool | None = None) -> int:
        """Append records.

        Args:
            data: As `table` of `Topic.append`.
            partition: The partition of all rows.
            progress: As in `Scan.to_table`.

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
            self._error, self._trace = error, error.__traceback__
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
            written_by=appender.config,
        )
        self._current.advance(snapshot)
        return self.result

    def _open_appender(self) -> Appender:
        if self._process != os.getpid():
            raise InvalidRecordError("the transaction was started before a fork: start another one in this process")
        if self._error is not None:
            # with its first traceback: each raise adds frames, which would keep the caller's objects alive
            raise self._error.with_traceback(self._trace)
        if self._appender is None:
            raise InvalidRecordError("the transaction has ended; begin another")
        return self._appender

    def abort(self) -> None:
        """Append nothing; the written files stay unreferenced until vacuum."""
        if self._appender is not None:
            self._appender.abort()
        self._appender = self._error = self._trace = None

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
        elif self._appender is not None or self._error is not None:
            self.commit()


def at_log_ends(snapshot: Snapshot, segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
    ends = snapshot.partitions.log_end_offsets.tolist()
    placed = []
    for segment in segments:
        if segment.partition >= len(ends):
            raise CommitConflictError("the topic no longer has this partition", partition=segment.partition)
        placed.append(segment.moved_to(ends[segment.partition]))
        ends[segment.partition] = placed[-1].next_offset
    return placed


def offsets_of(segments: Iterable[SegmentInfo]) -> dict[int, tuple[int, int]]:
    if isinstance(segments, SegmentTable):
        numbers, firsts = np.unique(segments.array("partition"), return_index=True)
        lasts = np.append(firsts, len(segments))[1:] - 1
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
    written_by: TopicConfig | None = None,
) -> tuple[AppendResult, Snapshot]:
    """Add `segments` at the log ends, and seal their partitions' active segments, in one commit or none.

    `written_by` are the settings by which the records were checked; None: they fit any topic. If the same (app_id,
    batch_id), or `in_order` a later one, was committed before, this is a replay, and nothing is sealed.
    """
    _check_stored(app_id, batch_id)
    if len(segments) >= TABLE_ROWS and not isinstance(segments, SegmentTable):
        segments = SegmentTable.of(sorted(segments, key=lambda segment: segment.partition))
    batch = None if app_id is None or batch_id is None else SetTransaction(app_id, batch_id, {}, in_order)
    # before the commit: where warnings are errors, nothing is appended
    warn_of_times(handle.storage.name, snapshot, segments, handle.clock())
    if handle.storage.is_local or write_id is not None:
        race = CommitRace(handle.log, snapshot, "append", read_version=read_version, write_id=write_id)
    else:
        is_keyed = written_by is None or "compact" in written_by.cleanup_policy
        race = handle.append_queue.race(snapshot, segments, batch, read_version=read_version, is_keyed=is_keyed)
    placed: Sequence[SegmentInfo] = ()
    with race, ActiveSeals(handle, race) as seals:
        for head in race:
            if earlier := replayed(head, app_id, batch_id, in_order=in_order):
                return earlier, head
            sealed = seals.seal(head, set(_column(segments, "partition").tolist()))
            if sealed is None:
                continue
            if written_by is not None:
                check_keyed(sealed.config, written_by)
            check_room_for_batch_id(sealed, app_id, batch_id, in_order=in_order)
            placed, actions = _placed(sealed, segments)
            if batch is not None:
                actions.append(replace(batch, offsets=offsets_of(placed)))
            if not actions:
                return AppendResult(None), head
            race.put([*seals.actions, *actions])
    assert race.commit is not None
    return AppendResult(race.commit.version, offsets_of(race.placed(placed))), race.after


def _placed(head: Snapshot, segments: Sequence[SegmentInfo]) -> tuple[Sequence[SegmentInfo], list[Action]]:
    if isinstance(segments, SegmentTable):
        # as `at_log_ends`, in columns
        rows = segments.columns()
        owners, ends = numbers_of(rows["partition"]), head.partitions.log_end_offsets
        if len(owners) and owners[-1] >= len(ends):
            raise CommitConflictError("the topic no longer has this partition", partition=int(owners[-1]))
        counts = numbers_of(rows["next_offset"]) - numbers_of(rows["base_offset"])
        sums = np.cumsum(counts) - counts
        firsts = np.searchsorted(owners, owners)
        table = SegmentTable(moved(rows, ends[owners] + sums - sums[firsts]))
        return table, [AddTable(table.columns())]
    placed = at_log_ends(head, segments)
    return placed, [*map(Add, placed)]


def _column(segments: Sequence[SegmentInfo], name: str) -> Longs:
    if isinstance(segments, SegmentTable):
        return segments.array(name)
    return np.array([getattr(segment, name) for segment in segments], np.int64)


def check_keyed(config: TopicConfig, written_by: TopicConfig) -> None:
    """Raise CommitConflictError if the topic has become compacted, since the records were not checked for keys."""
    if "compact" in config.cleanup_policy and "compact" not in written_by.cleanup_policy:
        raise CommitConflictError(
            "nothing was committed: the topic has become compacted, so each record needs a key; write again"
        )


def replayed(
    snapshot: Snapshot, app_id: str | None, batch_id: BatchId | None, *, in_order: bool = False
) -> AppendResult | None:
    """The result of the first commit of (app_id, batch_id), or None.

    `in_order`: the application commits its batches in the order of their numbers. So a batch below its newest was
    committed too, if it had rows; its result has no version and no offsets once they are forgotten.
    """
    if app_id is None or batch_id is None or not snapshot.transactions.has(app_id, batch_id, in_order=in_order):
        return None
    earlier = snapshot.transactions.get(app_id, batch_id)
    return AppendResult(earlier.version, earlier.offsets, True) if earlier else AppendResult(None, replayed=True)


def check_room_for_batch_id(
    snapshot: Snapshot, app_id: str | None, batch_id: BatchId | None, *, in_order: bool = False
) -> None:
    """Raise StorageFullError if the topic can remember no new batch: a forgotten one would be a duplicate."""
    most = snapshot.config.batch_ids_bytes
    if batch_id is None or in_order or snapshot.transactions.size <= most:
        return
    if replayed(snapshot, app_id, batch_id) is None:
        raise StorageFullError(
            "nothing was appended: the batch ids that the topic remembers, with their offsets, have reached "
            "batch.ids.bytes; raise the setting, or wait: ids are forgotten after 30 days",
            batches=len(snapshot.transactions),
            bytes=snapshot.transactions.size,
            most=most,
        )


def check_batch(app_id: str | None, batch_id: BatchId | None) -> BatchId | None:
    """The batch's id, also from numpy; InvalidRecordError for one id alone, or an app_id of distlog's."""
    number: object = batch_id
    if isinstance(number, np.integer):
        batch_id = int(number)
    _check_stored(app_id, batch_id)
    if app_id is not None and app_id.startswith(RESERVED_APPS):
        begin = ", ".join(repr(prefix) for prefix in RESERVED_APPS)
        raise InvalidRecordError(
            f"application ids that begin with {begin} are reserved: give another app_id", app_id=app_id[:100]
        )
    return batch_id


def _check_stored(app_id: str | None, batch_id: BatchId | None) -> None:
    if app_id is None and batch_id is None:
        return
    try:
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


#: 1990: seconds that are taken for milliseconds are before it.
USUAL_MS = 631_152_000_000
_warned = set[tuple[str, type[Warning]]]()


def warn_of_times(topic: str, snapshot: Snapshot, segments: Sequence[SegmentInfo], now_ms: int) -> None:
    times_ms = np.concatenate([_column(segments, name) for name in ("min_timestamp", "max_timestamp")])
    early_ms = times_ms[(times_ms > NO_TIMESTAMP) & (times_ms < USUAL_MS)]
    if len(early_ms):
        warn_of_early(topic, snapshot.topic_id, int(early_ms.min()))
    if expired := _records_beyond(segments, snapshot.config, now_ms):
        text = (
            f"{counted(expired, 'record')} {'is' if expired == 1 else 'are'} older than "
            f"retention.ms={snapshot.config.retention_ms}, so the next retention deletes them: to keep them, set "
            "retention.ms higher, or to -1"
        )
        _warn(topic, snapshot.topic_id, text, RetentionWarning)


def warn_of_early(topic: str, topic_id: str, early_ms: int) -> None:
    is_second = not is_early(in_ms(early_ms, "s")) and wrong_unit(early_ms, "s") is None
    looks = ", and looks like seconds" if is_second else ""
    text = (
        f"records have times before 1990, as {iso(early_ms)}: {early_ms} was taken for milliseconds{looks}; if "
        "numbers count another unit, convert them, or name it: timestamp_unit is s, ms, us or ns"
    )
    _warn(topic, topic_id, text, TimestampWarning)


def is_early(timestamp: int) -> bool:
    return NO_TIMESTAMP < timestamp < USUAL_MS


def _warn(topic: str, topic_id: str, text: str, category: type[Warning]) -> None:
    if (topic_id, category) not in _warned:
        warnings.warn(f"{topic}: {text}", category, stacklevel=_caller())
        # not if warnings raise
        _warned.add((topic_id, category))


def _caller() -> int:
    """The stack level, from the caller, of the first function outside distlog."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("distlog."):
        frame, level = frame.f_back, level + 1
    return level


def _records_beyond(segments: Sequence[SegmentInfo], config: TopicConfig, now_ms: int) -> int:
    """The number of records in segments that retention will delete by their time."""
    if "delete" not in config.cleanup_policy or config.retention_ms < 0:
        return 0
    newest_ms = _column(segments, "max_timestamp")
    is_expired = (newest_ms >= 0) & (newest_ms < now_ms - config.retention_ms)
    return int(_column(segments, "record_count")[is_expired].sum())
