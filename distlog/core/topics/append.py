"""Appends rows: routes them, writes them as unreferenced segments, then adds all segments in one commit.

The two halves are separate, since a Spark job runs the first in its tasks and the second in its driver.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from distlog.core.batches.record_input import RecordInput
from distlog.core.commits import fields
from distlog.core.commits.actions import Action, Add, SetTransaction
from distlog.core.commits.commit import UNNAMED, Origin
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidRecordError
from distlog.core.log.sealed_commit import sealed_commit
from distlog.core.maintenance.retention import records_beyond
from distlog.core.segments.segment_writer import SegmentWriter, codec_of
from distlog.core.storage.crew import Crew
from distlog.core.storage.parallel import cores, in_order
from distlog.core.storage.storage import Storage
from distlog.core.storage.task import Task
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appendable import Appendable, batches, normalize
from distlog.core.topics.partition_queue import PartitionQueue
from distlog.core.topics.partitioner import Longs, Partitioner
from distlog.core.topics.placement import offsets_of, place

#: How many partitions' files are closed, that is uploaded, at the same time.
_CLOSERS = 8
#: A slice of fewer bytes is written faster than threads can share it.
_SHARED_BYTES = 1 << 20
BatchId = int | str


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result of an append: the version of its commit and, by partition, the (first, end) offsets it got.

    `replayed`: this (app_id, batch_id) was committed before, with this result. `version` is None when nothing was
    committed, as in place. `expired` counts records older than `retention.ms`, which the next retention deletes.
    """

    version: int | None
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    replayed: bool = False
    expired: int = field(default=0, compare=False)

    @property
    def record_count(self) -> int:
        """How many records were appended."""
        return sum(end - first for first, end in self.offsets.values())


class Appender:
    """Writes rows as segments of one topic that wait for a commit; not thread-safe.

    `read_version` is the version that was seen before the first byte was written; `first_partition` is where records
    without a key start. `compression` is what `codec_of` takes; raises its InvalidConfigError. Up to `workers`
    threads, including the caller's, write partitions side by side: by default as many as there are cores. Any of them
    calls `clock` and `new_id`.
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
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        workers: int | None = None,
    ) -> None:
        self._storage, self._topic, self._config, self._read_version = storage, topic, config, read_version
        self._workers = workers or cores()
        self._clock, self._random, self._new_id = clock, random, new_id
        self._codec = codec_of(config, compression)
        self._partitioner = Partitioner(partitions, first_partition)
        self._queues: dict[int, PartitionQueue] = {}
        self._is_closing = False

    def append(self, data: Appendable, partition: int | None = None) -> int:
        """Take Arrow, pandas or dicts; returns the number of rows. InvalidRecordError tells what does not fit.

        After an error only `abort` may be called: some of the rows may have been taken.
        """
        ahead = 2 * self._workers if self._workers > 1 else 0
        return sum(in_order(self._tasks(data, partition), ahead, workers=self._workers, joined=True))

    def _tasks(self, data: Appendable, partition: int | None) -> Iterator[Callable[[], int]]:
        """Yield calls that each write some rows and return their number, slice by slice, in each by partition."""
        rows = 0
        for batch in batches(data):
            records = normalize(batch, self._config, self._clock(), rows)
            source = RecordInput.from_arrow(records)
            parts = list(self._partitioner.split(records, partition, rows))
            rows += records.num_rows
            if self._workers > 1 and records.nbytes >= _SHARED_BYTES:
                yield from (self._task(source, [part]) for part in parts)
            else:
                yield self._task(source, parts)

    def _task(self, source: RecordInput, parts: Sequence[tuple[int, Longs]]) -> Callable[[], int]:
        writes = [self._queue(number).put(source, chosen) for number, chosen in parts]
        return partial(_write, writes, sum(len(chosen) for _, chosen in parts))

    def _queue(self, partition: int) -> PartitionQueue:
        if partition not in self._queues:
            self._queues[partition] = PartitionQueue(self._writer(partition))
        return self._queues[partition]

    def _writer(self, partition: int) -> SegmentWriter:
        return SegmentWriter(
            self._storage,
            self._topic,
            partition,
            self._read_version,
            self._config,
            codec=self._codec,
            clock=self._clock,
            new_id=self._new_id,
            random=self._random,
        )

    def close(self) -> list[SegmentInfo]:
        """Make all files durable; returns the segments by partition, in order. An error leaves nothing open."""
        self._is_closing = True
        queues = [self._queues[partition] for partition in sorted(self._queues)]
        crew = Crew(_CLOSERS, "distlog-close")
        closing = [Task(queue.close) for queue in queues]
        try:
            for task in closing:
                crew.put(task.run)
            return [segment for task in closing for segment in task.wait()]
        except BaseException:
            for queue, task in zip(queues, closing, strict=True):
                # aborted only when its thread has left it; after a second interrupt nobody waits for that
                task.when_over(queue.abort)
            raise
        finally:
            crew.end(joined=True)

    def abort(self) -> None:
        """Abort; the files written stay unreferenced, for vacuum to delete. A `close` that fails aborts by itself."""
        if not self._is_closing:
            for queue in list(self._queues.values()):
                queue.abort()


def _write(writes: Sequence[Callable[[], None]], rows: int) -> int:
    for write in writes:
        write()
    return rows


def commit_append(
    handle: TopicHandle,
    snapshot: Snapshot,
    segments: Sequence[SegmentInfo],
    *,
    read_version: int,
    app_id: str | None = None,
    batch_id: BatchId | None = None,
    in_order: bool = False,
    origin: Origin = UNNAMED,
) -> tuple[AppendResult, Snapshot]:
    """Add `segments` behind the log ends, all or none, in one commit that has `origin`.

    Their partitions' active segments are sealed with it. If the same (app_id, batch_id) was committed before, or
    `in_order` a later one, this is a replay (see `replayed`), and nothing is sealed. Raises CommitConflictError if
    the topic was dropped, TransactionTooOldError, StorageError (a lock is not free), CommitStateUnknownError.
    """
    check_batch(app_id, batch_id)
    partitions = {segment.partition for segment in segments}
    placed: list[SegmentInfo] = []

    def before(current: Snapshot) -> AppendResult | None:
        return replayed(current, app_id, batch_id, in_order=in_order)

    def needed(current: Snapshot) -> Collection[int]:
        return () if before(current) else partitions

    def plan(current: Snapshot) -> list[Action] | None:
        placed.clear()
        if before(current):
            return None
        placed.extend(place(current, segments))
        actions: list[Action] = [Add(segment) for segment in placed]
        if app_id is not None and batch_id is not None:
            actions.append(SetTransaction(app_id, batch_id, offsets_of(placed), in_order))
        return actions or None

    commit, snapshot = sealed_commit(
        handle, snapshot, "append", plan, needed, read_version=read_version, origin=origin
    )
    if commit is None:
        return before(snapshot) or AppendResult(None), snapshot
    old = records_beyond(placed, snapshot.config, commit.timestamp_ms)
    return AppendResult(commit.version, offsets_of(placed), expired=old), snapshot


def replayed(
    snapshot: Snapshot, app_id: str | None, batch_id: BatchId | None, *, in_order: bool = False
) -> AppendResult | None:
    """The result of the first commit of (app_id, batch_id); None if it was not committed before.

    `in_order` says that the application numbers its batches, and commits them one after the other. Then a batch below
    its newest was committed too, if it had rows; the result has no version and no offsets if it is forgotten. Such a
    batch is a replay without `in_order` too.
    """
    if app_id is None or batch_id is None:
        return None
    is_numbered = in_order and isinstance(batch_id, int)
    if is_numbered and _is_next(snapshot.transactions.newest(app_id), batch_id):
        return None
    found = snapshot.transaction(app_id, batch_id)
    if found is None:
        is_before = is_numbered or snapshot.transactions.is_forgotten(app_id, batch_id)
        return AppendResult(None, replayed=True) if is_before else None
    return AppendResult(found.version, found.offsets, replayed=True)


def _is_next(newest: int | None, batch_id: BatchId) -> bool:
    return newest is None or (isinstance(batch_id, int) and newest < batch_id)


def check_batch(app_id: str | None, batch_id: BatchId | None) -> None:
    """Raise InvalidRecordError unless both or neither are given, of types that a commit can hold."""
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
