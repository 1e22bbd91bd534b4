"""The first half of an append: routes rows, and writes them as segments that no commit names yet."""

from __future__ import annotations

import copy
import operator
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from random import Random
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import BLOCK_BYTES, flags_of, integers, join, numbers_of
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.config import TopicConfig
from distlog.core.display import Progress
from distlog.core.errors import InvalidRecordError, StorageError
from distlog.core.format.kernels import keys as kernels
from distlog.core.format.kernels.keys import first_out_of_range
from distlog.core.format.record_encoder import RecordInput
from distlog.core.segments.segment_writer import Bundles, SegmentWriter, SmallSegments, batch_format, codec_of
from distlog.core.storage.parallel import Task, WorkerThreads, cores, in_order
from distlog.core.storage.storage import Storage
from distlog.core.times import check_unit
from distlog.core.write.rows import Appendable, batches, normalize, rows_of

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_BYTE = np.dtype(np.uint8)


class StickyState(NamedTuple):
    """The partition that records without a key go to now, and the bytes that it got in this run."""

    partition: int
    used_bytes: int


def assign_partitions(
    keys: pa.Array[Any], values: pa.Array[Any], partitions: int, sticky: StickyState, run_bytes: int
) -> tuple[Ints, StickyState]:
    """The partition of each record, by its key or by sticky runs of about `run_bytes`; and the next state."""
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys and {len(values)} values")
    key_offsets, key_data, valid = _buffers(keys)
    value_offsets, _, _ = _buffers(values)
    assigned = np.empty(len(keys), np.int32)
    partition, used_bytes = kernels.assign(
        key_offsets, key_data, valid, keys.offset, value_offsets, partitions, *sticky, run_bytes, assigned
    )
    if partition < 0:
        raise ValueError("the offsets of the key column do not fit its data")
    return assigned, StickyState(partition, used_bytes)


def group_by_partition(partitions: Ints, count: int) -> tuple[Longs, Longs]:
    """(the row numbers, grouped by partition and in order within each; the number of rows of each partition)."""
    order = np.empty(len(partitions), np.int64)
    counts = np.zeros(count, np.int64)
    if kernels.group(partitions, order, counts, np.empty(count, np.int64)) >= 0:
        raise ValueError(f"a partition is not between 0 and {count - 1}")
    return order, counts


def _buffers(array: pa.Array[Any]) -> tuple[Ints | Longs, Bytes, Bytes]:
    # (the offsets of this slice, the data, the validity bits of the whole array, or nothing if all are valid)
    valid, offsets, data = array.buffers()
    kind = np.dtype(np.int64 if pa.types.is_large_binary(array.type) else np.int32)
    slice_offsets = _view(offsets, kind)[array.offset : array.offset + len(array) + 1]
    return slice_offsets, _view(data), _view(valid if array.null_count else None)


def _view(buffer: pa.Buffer | None, kind: np.dtype[Any] = _BYTE) -> npt.NDArray[Any]:
    return np.frombuffer(memoryview(buffer) if buffer else b"", kind)


#: Bytes of keys and values after which records without a key go to the next partition.
STICKY_BYTES = 131_072


class Partitioner:
    """Splits batches of records by partition, as Kafka's `BuiltInPartitioner`.

    A record without a partition goes to `(murmur2(key) & 0x7fffffff) % partitions`; without a key, to one partition
    for a run of bytes, `first` at first, then to the next. The state stays from batch to batch.
    """

    def __init__(self, partitions: int, first: int) -> None:
        self._partitions = partitions
        self._sticky = StickyState(first % partitions, 0)

    def group(self, records: pa.RecordBatch, first_row: int = 0) -> tuple[Longs, Longs]:
        return group_by_partition(self._assign(records, first_row), self._partitions)

    def split(
        self, records: pa.RecordBatch, partition: int | None = None, first_row: int = 0
    ) -> Iterator[tuple[int, Longs]]:
        """Yield (partition, its row numbers in order). InvalidRecordError counts rows from `first_row`."""
        if partition is not None:
            yield self._checked(partition), np.arange(records.num_rows)
        elif self._partitions == 1 and "partition" not in records.schema.names:
            yield 0, np.arange(records.num_rows)
        elif records.num_rows:
            yield from parts_of(*self.group(records, first_row))

    def _assign(self, records: pa.RecordBatch, first_row: int) -> npt.NDArray[np.int32]:
        assigned, self._sticky = assign_partitions(
            records.column("key"), records.column("value"), self._partitions, self._sticky, STICKY_BYTES
        )
        if "partition" not in records.schema.names:
            return assigned
        column = records.column("partition")
        partitions = np.where(
            flags_of(column.is_valid()), numbers_of(column.fill_null(integers([0], column.type)[0])), assigned
        )
        partitions = partitions.astype(np.int32)
        bad = first_out_of_range(partitions, self._partitions)
        if bad >= 0:
            self._checked(int(partitions[bad]), first_row + bad)
        return partitions

    def _checked(self, partition: int, row: int | None = None) -> int:
        if isinstance(partition, bool) or not hasattr(partition, "__index__"):
            raise InvalidRecordError("a partition must be an integer", got=type(partition).__name__)
        if not 0 <= partition < self._partitions:
            raise InvalidRecordError(
                f"the topic has partitions 0 to {self._partitions - 1}", partition=partition, row=row
            )
        return operator.index(partition)


def parts_of(order: Longs, counts: Longs) -> Iterator[tuple[int, Longs]]:
    ends = np.cumsum(counts)
    for number in np.flatnonzero(counts).tolist():
        yield number, order[ends[number] - counts[number] : ends[number]]


class PartitionQueue:
    """A SegmentWriter for many threads: one at a time writes the rows, in the order of `put`."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._writer, self._lock = writer, threading.Lock()
        self._waiting = deque[tuple[RecordInput, npt.NDArray[np.int64]]]()
        self._put = self._written = 0
        self._is_aborted = False
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None

    def put(self, source: RecordInput, rows: npt.NDArray[np.int64]) -> Callable[[], None]:
        """Queue the `rows` of `source`; returns a call that writes them, and all earlier ones.

        The call raises the writer's error, and so do the calls for all later rows; then only `abort` may be called.
        """
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
            raise StorageError("cannot write: the append was aborted")
        if self._error is not None:
            # with its first traceback: each raise adds to it, and so would keep the caller's objects alive
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
        """Abort the segments, now or when the thread that writes them has finished its rows."""
        self._is_aborted = True
        if self._lock.acquire(blocking=False):
            try:
                self._writer.abort()
            finally:
                self._lock.release()


#: How many partitions' files are closed, that is uploaded, at the same time. Parts of bundles take no time.
_CLOSERS = 8
#: A slice of fewer bytes is written faster than threads can share it.
_SHARED_BYTES = 1 << 20
#: An append to this many partitions may write their segments without a writer for each, if the rows of a partition
#: have at most this many bytes on average.
SMALL_PARTITIONS, SMALL_PART = 64, 1 << 14
#: All rows are gathered for that if they have at most the first, or if they may be small, the second. That takes
#: twice their bytes, where a writer takes 90 kB.
SMALL_BYTES, MOST_SMALL_BYTES = 32 << 20, 256 << 20
#: The least that a writer gathers before it hands batches on: it can be written past the page cache.
LEAST_GATHERED = 256 << 10


class _Small(NamedTuple):
    source: RecordInput
    order: Longs
    counts: Longs
    segments: SmallSegments


class Appender:
    """Writes rows as segments of one topic that wait for a commit; not thread-safe.

    `read_version` is the version from before the first byte was written; records without a key start at
    `first_partition`. Up to `workers` threads, including the caller's, write partitions in parallel, and call `clock`
    and `new_id`. `held_bytes` limits the small segments that are held until they are written together: by default
    LARGEST_BUNDLE.
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
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        workers: int | None = None,
        held_bytes: int | None = None,
    ) -> None:
        self._storage, self._topic, self._read_version = storage, topic, read_version
        #: The settings by which records are checked and written.
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
        """Append the rows, and return their number. After an error only `abort` may be called."""
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
            for number, _ in parts:
                self._open(number)
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
            # all at once: a segment that shares a bundle is held longer
            for number, _ in parts:
                self._open(number)
            if self._workers > 1 and records.nbytes >= _SHARED_BYTES:
                yield from (self._task(source, [part]) for part in parts)
            else:
                yield self._task(source, parts)

    def _gathered(self, slices: Iterator[pa.RecordBatch]) -> tuple[_Small | None, Iterator[pa.RecordBatch]]:
        """(all rows, if they are few and meet many partitions, the slices that were not taken)."""
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
            # a dictionary's values are repeated here, so the records may be far larger than what was given
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

    def _open(self, partition: int) -> None:
        if partition not in self._queues:
            self._bundles.join(partition)
            self._queues[partition] = PartitionQueue(self._writer(partition))

    def _writer(self, partition: int) -> SegmentWriter:
        return SegmentWriter(
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

    def close(self) -> Sequence[SegmentInfo]:
        """Make all files durable; returns the segments by partition, in order. An error leaves nothing open."""
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
                # aborted only when its thread has left it; a second interrupt does not wait for that
                task.when_over(queue.abort)
            raise
        finally:
            closers.end(joined=True)

    def abort(self) -> None:
        """Abort; vacuum deletes the written files. A `close` that fails aborts by itself."""
        if not self._is_closing:
            for queue in list(self._queues.values()):
                queue.abort()


def _write(writes: Sequence[Callable[[], None]], rows: int) -> int:
    for write in writes:
        write()
    return rows
