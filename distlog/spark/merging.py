"""Merges small segments as Spark tasks: bundles are read once, and the shuffle brings together what becomes one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from distlog.core.arrays import byte_array, integers, join, new_array, numbers_of
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.errors import StorageError
from distlog.core.kernels.record_write import copy_slices
from distlog.core.maintenance.merge_job import MergedJob, MergeJob, read_logs
from distlog.core.storage.backend import MAX_MERGED_BYTES
from distlog.core.topic_handle import TopicHandle
from distlog.spark.spark_session import cores
from distlog.spark.tasks import ITEM, PART, RESULT, SparkRun, frame_of, rows, run_stage, target_cost
from distlog.spark.versions import HAS_ARROW_FUNCTIONS

# ---
# A `Run` of merge jobs that chooses how their logs are read.
#
# A task for each job reads the parts of its partitions from every bundle: the more data, the fewer partitions fit
# into one job, and the more requests it takes. So if that is worth it, the jobs are done in two stages. Tasks of the
# first one read bundles whole, each once, and send the parts to the jobs that they belong to. In the second one each
# job has its parts in memory, checks them, and writes. Spark's shuffle files have the bytes of logs meanwhile.
# Whatever fails, nothing counts before the driver commits, and the second stage reads for itself what it did not get.


#: The memory of a task that merges, if the caller does not say.
MERGE_MEMORY_BYTES = 192 << 20
#: A shuffle is worth it if it saves so many requests, for each request that it leaves, and so many in all.
WORTH_TIMES, WORTH_REQUESTS = 3, 1000
#: A task of the first stage reads so many bytes at once.
READ_BYTES = 32 << 20

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MergeRun:
    """A `Run` of merge jobs as Spark tasks, of which those of at most `job_bytes` may get their logs by a shuffle."""

    spark: SparkSession
    handle: TopicHandle
    job_bytes: int
    worth_requests: int = WORTH_REQUESTS

    def __call__(self, work: Callable[[Any], Any], items: Sequence[Any], /) -> Iterable[Any]:
        """The results, once all are there. Raises Spark's exceptions with the text of distlog's."""
        fits = [one.log_bytes <= self.job_bytes for one in items]
        parts = _Parts.of([one if each else None for one, each in zip(items, fits, strict=True)])
        if not (HAS_ARROW_FUNCTIONS and parts.is_worth_it(self.worth_requests)):
            return SparkRun(self.spark)(work, items)
        done = dict(self._shuffled(work, items, parts))
        others = [number for number in range(len(items)) if number not in done]
        done.update(zip(others, SparkRun(self.spark)(work, [items[number] for number in others]), strict=True))
        return [done[number] for number in range(len(items))]

    def _shuffled(
        self, work: Callable[[Any], Any], items: Sequence[MergeJob], parts: _Parts
    ) -> Iterator[tuple[int, MergedJob]]:
        jobs = np.unique(parts.jobs).tolist()
        target = target_cost([items[number] for number in jobs], cores(self.spark))
        reading = [pickle.dumps(one) for one in parts.of_jobs(jobs).tasks(target)]
        writing = [pickle.dumps((number, items[number])) for number in jobs]
        handle = self.handle
        read = run_stage(frame_of(self.spark, ITEM, reading), len(reading), lambda: SendParts(handle))
        items_too = read.unionAll(frame_of(self.spark, ITEM, writing))
        made = run_stage(items_too, len(writing), lambda: MergeParts(handle, work))
        for row in made.select("data").collect():
            yield pickle.loads(row["data"])


# ---
# The parts of bundles that jobs read, and the requests that it takes.


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts of bundles, by bundle and position; part i is segment `numbers[i]` of job `jobs[i]`."""

    segments: SegmentTable
    jobs: Longs
    numbers: Longs

    @classmethod
    def of(cls, jobs: Sequence[MergeJob | None]) -> _Parts:
        """The parts of bundles that jobs read, without the places that are None."""
        tables = [SegmentTable.of([]).columns(), *(one.inputs.columns() for one in jobs if one is not None)]
        inputs = join(tables)
        counts = [0 if one is None else len(one.inputs) for one in jobs]
        owners = np.repeat(np.arange(len(jobs)), counts)
        numbers = np.concatenate([np.zeros(0, np.int64), *map(np.arange, counts)])
        positions, stems = numbers_of(inputs["log_position"]), pc.rank(inputs["stem"], tiebreaker="dense")
        order = np.lexsort((positions, numbers_of(stems.cast(pa.int64()))))
        order = order[positions[order] >= 0]
        return cls(SegmentTable(inputs.take(integers(order))), owners[order], numbers[order])

    def is_worth_it(self, requests: int) -> bool:
        """True if a shuffle saves that many requests, and most of them."""
        if not len(self.jobs):
            return False
        by_jobs, at_once = self._requests(by_job=True), self._requests(by_job=False)
        return by_jobs - at_once >= max(requests, WORTH_TIMES * at_once)

    def _requests(self, *, by_job: bool) -> int:
        stems = self._stems()
        apart = stems[1:] != stems[:-1]
        if by_job:
            apart |= self.jobs[1:] != self.jobs[:-1]
        firsts = np.append(0, np.flatnonzero(apart) + 1)
        sizes = np.add.reduceat(self.segments.log_bytes, firsts)
        return int((-(-sizes // MAX_MERGED_BYTES)).sum())

    def _stems(self) -> Longs:
        codes: Longs = numbers_of(self.segments.columns()["stem"].dictionary_encode().indices).astype(np.int64)
        return codes

    def of_jobs(self, jobs: Sequence[int]) -> _Parts:
        """The same parts, with the places of their jobs among `jobs`."""
        return _Parts(self.segments, np.searchsorted(np.array(jobs), self.jobs), self.numbers)

    def tasks(self, target_bytes: int) -> Iterator[_Parts]:
        """The parts for each task that reads: about `target_bytes`, of whole bundles if these are smaller."""
        stems, sizes = self._stems(), self.segments.log_bytes
        ends, last_of_bundle = np.cumsum(sizes), np.append(stems[1:] != stems[:-1], True)
        bundles = np.cumsum(np.append(0, last_of_bundle[:-1]))
        is_larger = np.bincount(bundles, sizes, len(bundles))[bundles] > target_bytes
        may_cut = np.flatnonzero(last_of_bundle | is_larger)
        cuts = may_cut[np.unique(ends[may_cut] // target_bytes, return_index=True)[1]] + 1
        for first, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(stems)], strict=True):
            if first < end:
                yield self.part(first, end)

    def part(self, first: int, end: int) -> _Parts:
        """The parts [first, end)."""
        return _Parts(self.segments.part(first, end), self.jobs[first:end], self.numbers[first:end])


# ---
# The two stages. A job is sent some of its parts: how many, their numbers in the job, and their logs.


class SendParts:
    """Reads parts of bundles, and sends them to their jobs; parts that cannot be read are left out."""

    def __init__(self, handle: TopicHandle) -> None:
        self._handle = handle

    def take(self, kind: int, data: memoryview) -> Iterator[pa.RecordBatch]:
        """Read all parts of an item, READ_BYTES at once."""
        parts: _Parts = pickle.loads(data)
        for some in parts.tasks(READ_BYTES):
            yield from self._sent(some)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Send nothing: all is sent already."""
        yield from ()

    def _sent(self, parts: _Parts) -> Iterator[pa.RecordBatch]:
        try:
            logs = read_logs(self._handle.storage, self._handle.name, parts.segments)
        except (FileNotFoundError, StorageError):
            # the job looks for itself, and tells which part is damaged or gone
            return
        order = np.argsort(parts.jobs, kind="stable")
        ends = np.cumsum(parts.segments.log_bytes)
        starts = ends - parts.segments.log_bytes
        for some in np.split(order, np.flatnonzero(np.diff(parts.jobs[order])) + 1):
            # neighbours in the bundle mostly
            head = np.array([len(some), *parts.numbers[some].tolist()], np.int64)
            pieces = (logs[starts[at] : ends[at]].tobytes() for at in some.tolist())
            yield rows([int(parts.jobs[some[0]])], PART, [b"".join([head.tobytes(), *pieces])])


class MergeParts:
    """Does a job by `work`, as `do_job`, with the parts that it got; sends its number, and what it made."""

    def __init__(self, handle: TopicHandle, work: Callable[..., MergedJob]) -> None:
        self._handle, self._work = handle, work

    def take(self, kind: int, data: memoryview) -> Iterator[pa.RecordBatch]:
        """Take the item, or parts, which are put where they belong: no row is kept."""
        if kind == ITEM:
            self._number, self._job = pickle.loads(data)
            sizes = self._job.inputs.log_bytes
            self._sizes, self._places = sizes, np.cumsum(sizes) - sizes
            self._all, self._lacks = new_array(int(sizes.sum()), np.uint8), np.ones(len(sizes), bool)
        else:
            count = int(np.frombuffer(data, np.int64, 1)[0])
            given = np.frombuffer(data, np.int64, count, 8)
            sizes = self._sizes[given]
            starts = 8 * (count + 1) + np.cumsum(sizes) - sizes
            copy_slices(self._all, self._places[given], byte_array(data), starts, sizes)
            self._lacks[given] = False
        yield from ()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Do the job."""
        done = self._work(self._job, read=self._logs)
        yield rows([0], RESULT, [pickle.dumps((self._number, done))])

    def _logs(self) -> npt.NDArray[np.uint8]:
        """The logs of the job; those that no part has are read. To be called once."""
        logs, lacks = self._all, np.flatnonzero(self._lacks)
        # the work lets go of the logs when it has made batches of them
        del self._all
        if len(lacks):
            left = SegmentTable(self._job.inputs.columns().take(integers(lacks)))
            read, sizes = read_logs(self._handle.storage, self._handle.name, left), self._sizes[lacks]
            copy_slices(logs, self._places[lacks], read, np.cumsum(sizes) - sizes, sizes)
        return logs
