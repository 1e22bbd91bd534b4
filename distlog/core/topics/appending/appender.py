"""The first half of an append: routes rows, and writes them as segments that no commit names yet.

The segments of several partitions share bundles; an append that meets one partition writes files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from distlog.core import paths
from distlog.core.batches.record_input import RecordInput
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.config import TopicConfig
from distlog.core.display.progress import Progress
from distlog.core.segments.bundles import Bundles
from distlog.core.segments.segment_writer import SegmentWriter, codec_of
from distlog.core.storage.crew import Crew
from distlog.core.storage.parallel import cores, in_order
from distlog.core.storage.storage import Storage
from distlog.core.storage.task import Task
from distlog.core.topics.appending.appendable import Appendable, batches, normalize, rows_of
from distlog.core.topics.appending.partition_queue import PartitionQueue
from distlog.core.topics.appending.partitioner import Longs, Partitioner

#: How many partitions' files are closed, that is uploaded, at the same time. What goes to bundles takes no time.
_CLOSERS = 8
#: A slice of fewer bytes is written faster than threads can share it.
_SHARED_BYTES = 1 << 20


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
        self._storage, self._topic, self._read_version = storage, topic, read_version
        #: The settings by which records are checked and written.
        self.config = config
        self._workers = workers or cores()
        self._clock, self._random, self._new_id = clock, random, new_id
        self._codec = codec_of(config, compression)
        self._partitioner = Partitioner(partitions, first_partition)
        self._queues: dict[int, PartitionQueue] = {}
        self._bundles = Bundles(storage, lambda: paths.new_stem(read_version, new_id()))
        self._is_closing = False

    def append(self, data: Appendable, partition: int | None = None, progress: bool | None = False) -> int:
        """Take Arrow, pandas or dicts; returns the number of rows. InvalidRecordError tells what does not fit.

        After an error only `abort` may be called: some of the rows may have been taken.
        """
        ahead = 2 * self._workers if self._workers > 1 else 0
        with Progress("appending", total_rows=rows_of(data), shown=progress) as done:
            for rows in in_order(self._tasks(data, partition), ahead, workers=self._workers, joined=True):
                done.add(rows)
        return done.rows

    def _tasks(self, data: Appendable, partition: int | None) -> Iterator[Callable[[], int]]:
        """Yield calls that each write some rows and return their number, slice by slice, in each by partition."""
        rows = 0
        for batch in batches(data):
            records = normalize(batch, self.config, self._clock(), rows)
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

    def _task(self, source: RecordInput, parts: Sequence[tuple[int, Longs]]) -> Callable[[], int]:
        writes = [self._queues[number].put(source, chosen) for number, chosen in parts]
        return partial(_write, writes, sum(len(chosen) for _, chosen in parts))

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
        )

    def close(self) -> list[SegmentInfo]:
        """Make all files durable; returns the segments by partition, in order. An error leaves nothing open."""
        self._is_closing = True
        queues = [self._queues[partition] for partition in sorted(self._queues)]
        uploads = any(queue.is_uploading for queue in queues)
        crew = Crew(_CLOSERS if uploads else self._workers - 1, "distlog-close")
        closing = [Task(queue.close) for queue in queues]
        try:
            for queue, task in zip(queues, closing, strict=True):
                if queue.is_uploading or not uploads:
                    crew.put(task.run)
            segments = [segment for task in closing for segment in task.wait()]
            self._bundles.close()
            return [self._bundles.placed(segment) for segment in segments]
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
