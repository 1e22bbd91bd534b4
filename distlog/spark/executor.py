"""Runs maintenance in Spark tasks. Several tasks compact one large partition together, in three stages.

The first stage sends hashes of keys to buckets (shares of the keys). The second finds the superseded records of each
bucket: a later record has their key. The third rewrites groups of segments without the superseded records.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import ceil
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import BinaryType

from distlog.core.arrays import column_of, integers
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.maintain import survivors
from distlog.core.maintain.compaction import Cleanable, CleaningPlan, GroupToClean, clean_group, clean_or_failure
from distlog.core.maintain.executor import Item as SizedItem
from distlog.core.maintain.executor import WorkItem
from distlog.core.maintain.group_rewrite import RewriteFailure, RewrittenGroup, RewrittenPartition, result_or_failure
from distlog.core.segments.segment_reader import TopicHandle
from distlog.spark.batch_source import SplitSize, grouped
from distlog.spark.options import exclude_from_gc
from distlog.spark.spark_session import cores
from distlog.spark.versions import HAS_ARROW_FUNCTIONS, check_pyspark, repartition_by

MERGE_MEMORY_BYTES = 192 << 20
#: The fixed cost of a segment, as the bytes that could be read in the same time: one to three requests of about 30 ms
#: on an object store. A local file costs less.
SEGMENT_BYTES = 4 << 20
Input = TypeVar("Input")
Result = TypeVar("Result")
#: The rows between stages: the target that gets a row, the kind of the row, and its content.
_SPARK_SCHEMA = "target int, kind int, data binary"
_SCHEMA = pa.schema([("target", pa.int32()), ("kind", pa.int32()), ("data", pa.binary())])
#: Kinds of rows, in the order in which a target gets them: its work, keys of DIRTY and of CLEAN records, SUPERSEDED
#: offsets, results. A bad file gives a RESULT with the failure, since Spark would only repeat a task that raises.
ITEM, DIRTY, CLEAN, SUPERSEDED, RESULT = range(5)
_NO_OFFSETS = np.zeros(0, np.int64)
#: One task cleans a partition below this size in seconds, sooner than three stages would.
MIN_SHARED_BYTES = 1 << 30
#: The CPU time of the three stages, relative to one task that cleans the same partition, as measured.
_SHARED_CPU_FACTOR = 2


@dataclass(frozen=True, slots=True)
class SparkExecutor:
    """Run maintenance in the tasks of a Spark session: `compact`, `verify` and `rebuild_indexes` of a Topic take it.

    Errors of tasks are Spark's exceptions, with distlog's text.

    Args:
        spark: The session.
        memory: The memory of a task that merges, in bytes.

    Examples:
        >>> topic.verify(executor=SparkExecutor(spark)).ok
        True
    """

    spark: SparkSession
    memory: int = MERGE_MEMORY_BYTES

    @property
    def workers(self) -> int:
        """The number of items on which a task works concurrently."""
        return 1

    def map(self, work: Callable[[SizedItem], Result], items: Sequence[SizedItem], /) -> Iterable[Result]:
        """Return the results after all tasks. Each task gets adjacent items, of about equal total cost."""
        groups = list(pack(items, target_cost(items, cores(self.spark))))
        return chain.from_iterable(run_tasks(self.spark, partial(_map, work), groups))

    def clean(
        self, handle: TopicHandle, snapshot: Snapshot, due: Sequence[Cleanable], dedupe_buffer_bytes: int, /
    ) -> Sequence[RewrittenPartition | RewriteFailure]:
        """Run one round of compaction over all partitions that are due. Large partitions get several tasks."""
        plans = [CleaningPlan.of(snapshot, partition) for partition in due]
        large = large_plans(plans, dedupe_buffer_bytes, cores(self.spark))
        shared = {plan.partition for plan in large}
        small = [plan for plan in plans if plan.partition not in shared]
        work = partial(clean_or_failure, handle, dedupe_buffer_bytes=dedupe_buffer_bytes)
        return [*self.map(work, small), *clean_shared(self.spark, handle, large, dedupe_buffer_bytes)]


def _map(work: Callable[[Input], Result], items: Sequence[Input]) -> list[Result]:
    return list(map(work, items))


def cost(item: WorkItem) -> int:
    # an item without `segments` is itself a segment
    return item.log_bytes + SEGMENT_BYTES * len(getattr(item, "segments", (item,)))


def target_cost(items: Iterable[WorkItem], core_count: int) -> int:
    return SplitSize(core_count).target_bytes(sum(map(cost, items)))


def pack(items: Iterable[SizedItem], target: int) -> Iterator[list[SizedItem]]:
    """Yield the items, in order, in groups that cost at most `target`; a more expensive item is a group."""
    return grouped(items, cost, target)


def run_tasks(spark: SparkSession, work: Callable[[Input], Result], items: Sequence[Input]) -> list[Result]:
    """Run `work` on each item in a task. Spark repeats a failed task, so `work` must be idempotent."""
    if not items:
        return []

    def run(item: bytes) -> bytes:
        result = pickle.dumps(work(pickle.loads(item)))
        exclude_from_gc()
        return result

    pickled = column_of([pickle.dumps(item) for item in items], pa.binary())
    table = pa.table({"number": integers(range(len(items)), pa.int32()), "item": pickled})
    frame = repartition_by(spark.createDataFrame(table), len(items), "number")
    # nondeterministic, since Spark may call a deterministic function twice
    result = F.udf(run, BinaryType(), useArrow=False).asNondeterministic()(F.col("item")).alias("result")
    result_rows = frame.select("number", result).collect()
    return [pickle.loads(row["result"]) for row in sorted(result_rows, key=lambda row: int(row["number"]))]


class Stage(Protocol):
    """The work for one target (the number of an item): `receive` for each row, then `finish`. Spark may repeat it."""

    def receive(self, kind: int, data: memoryview) -> Iterable[pa.RecordBatch]: ...

    def finish(self) -> Iterable[pa.RecordBatch]: ...


def rows(targets: Iterable[int], kind: int, data: Sequence[bytes]) -> pa.RecordBatch:
    """Return rows to send: one element of `data` to each of `targets`."""
    kinds = integers([kind] * len(data), pa.int32())
    columns = [integers([*targets], pa.int32()), kinds, column_of(data, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def blob_rows(blobs: survivors.Blobs, targets: np.ndarray, kinds: np.ndarray) -> pa.RecordBatch:
    """Return blob i as a row to `targets[i]`, without a copy."""
    ends = np.append(0, blobs.ends * blobs.words.itemsize).astype(np.int32)  # in bytes, with Arrow's first 0
    data = pa.Array.from_buffers(pa.binary(), len(blobs.ends), [None, pa.py_buffer(ends), pa.py_buffer(blobs.words)])
    columns = [integers(targets, pa.int32()), integers(kinds, pa.int32()), data]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def frame_of(spark: SparkSession, kind: int, data: Sequence[bytes]) -> DataFrame:
    """Return the input of a stage: item i of `data` goes to target i."""
    return spark.createDataFrame(pa.Table.from_batches([rows(range(len(data)), kind, data)]))


def run_stage(frame: DataFrame, targets: int, make: Callable[[], Stage]) -> DataFrame:
    """Run a stage, made by `make`, for each target from 0 to `targets` - 1. Return the rows that the stages send."""

    class Distlog:  # Spark shows this name in plans
        def __init__(self) -> None:
            self._stages: dict[int, Stage] = {}

        def eval(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
            for row in zip(*(batch.column(name) for name in _SCHEMA.names), strict=True):
                target, kind, data = row[0].as_py(), row[1].as_py(), memoryview(row[2].as_buffer())
                # one Spark task may get several targets
                stage = self._stages.get(target) or self._stages.setdefault(target, make())
                yield from (pa.Table.from_batches([output]) for output in stage.receive(kind, data))

        def terminate(self) -> Iterator[pa.Table]:
            for stage in self._stages.values():
                yield from (pa.Table.from_batches([output]) for output in stage.finish())
            exclude_from_gc()

    check_pyspark(HAS_ARROW_FUNCTIONS, "work that tasks share by a shuffle", "4.1")
    shuffled = repartition_by(frame, targets, "target").sortWithinPartitions("kind")
    function: Any = F.arrow_udtf(Distlog, returnType=_SPARK_SCHEMA)
    outputs: DataFrame = function(shuffled.asTable())
    return outputs


@dataclass(frozen=True, slots=True)
class KeysItem:
    """Segments, clean below `start_offset`, whose keys a task sends to `buckets` targets from `first_bucket` on."""

    partition: int
    segments: list[SegmentInfo]
    verdicts: survivors.Verdicts  # the batches of the segments with special rules, such as aborted ones
    start_offset: int
    first_bucket: int
    buckets: int


class HashKeys:
    """Sends the hashes and offsets of a KeysItem's records to their buckets. The hashes use the run's secret."""

    def __init__(self, handle: TopicHandle, secret: bytes) -> None:
        self._reader, self._secret = handle.reader, secret

    def receive(self, kind: int, data: memoryview) -> Iterator[pa.RecordBatch]:
        """Read all segments, from offset 0 on (clean records, too), and send keys whenever BLOBS_BYTES are unsent."""
        item: KeysItem = pickle.loads(data)
        unsent, size = list[survivors.KeyedRecords](), 0
        reads = (
            records
            for segment in item.segments
            for records in survivors.keyed_records(self._reader, segment, 0, item.verdicts, self._secret)
        )
        while records := result_or_failure(item.partition, partial(next, reads, None)):
            if isinstance(records, RewriteFailure):
                yield rows([item.first_bucket], RESULT, [pickle.dumps(records)])
                continue  # the generator has ended, so the loop ends too
            unsent.append(records)
            size += survivors.exchanged_bytes(records)
            if size >= survivors.BLOBS_BYTES:
                yield _key_rows(item, unsent)
                unsent, size = [], 0
        yield _key_rows(item, unsent)

    def finish(self) -> Iterator[pa.RecordBatch]:
        yield from ()


def _key_rows(item: KeysItem, records: list[survivors.KeyedRecords]) -> pa.RecordBatch:
    blobs = survivors.keys_by_bucket(records, item.start_offset, item.buckets)
    # `keys_by_bucket` adds `item.buckets` to the buckets of clean records
    is_clean, bucket = np.divmod(blobs.targets, item.buckets)
    return blob_rows(blobs, item.first_bucket + bucket, np.where(is_clean, CLEAN, DIRTY))


@dataclass(frozen=True, slots=True)
class BucketItem:
    """The slots of a bucket's map of keys, the target of its partition's first group, and base offsets of groups."""

    slots: int
    first_group: int
    base_offsets: npt.NDArray[np.int64]


class FindSuperseded:
    """Sends the superseded offsets of a bucket to their groups."""

    def __init__(self) -> None:
        self._superseded: list[npt.NDArray[np.int64]] = []
        self._size = 0

    def receive(self, kind: int, data: memoryview) -> Iterator[pa.RecordBatch]:
        if kind == ITEM:
            self._item: BucketItem = pickle.loads(data)
            self._keys = survivors.OffsetMap(self._item.slots)
        elif kind == RESULT:
            yield rows([self._item.first_group], RESULT, [bytes(data)])
        else:
            # the map is complete at the first CLEAN row, since all DIRTY rows come before
            find = self._keys.put_rows if kind == DIRTY else self._keys.superseded_offsets
            superseded = find(survivors.key_rows(data))
            self._superseded.append(superseded)
            self._size += superseded.nbytes
            if self._size >= survivors.BLOBS_BYTES:
                yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        # with _NO_OFFSETS, since `concatenate` needs at least one array
        blobs = survivors.offsets_by_group(np.concatenate([*self._superseded, _NO_OFFSETS]), self._item.base_offsets)
        yield blob_rows(blobs, self._item.first_group + blobs.targets, np.full(len(blobs.ends), SUPERSEDED))
        self._superseded, self._size = [], 0


class RewriteGroup:
    """Writes the surviving records of a GroupToClean. Sends the RewrittenGroup, or the failure."""

    def __init__(self, handle: TopicHandle) -> None:
        self._handle = handle
        self._has_failed = False

    def receive(self, kind: int, data: memoryview) -> Iterator[pa.RecordBatch]:
        if kind == ITEM:
            item: GroupToClean = pickle.loads(data)
            self._item, start = item, item.group.base_offset
            # without empty segments, which may span any number of offsets: OffsetSurvivors has a bit for each offset
            end = max((segment.next_offset for segment in item.group.segments if segment.log_bytes), default=start)
            self._survivors = survivors.OffsetSurvivors(start, end, latest_offset=item.end_offset - 1)
        elif kind == SUPERSEDED:
            self._survivors.supersede(survivors.blob_offsets(data))
        else:
            self._has_failed = True
            yield rows([0], RESULT, [bytes(data)])

    def finish(self) -> Iterator[pa.RecordBatch]:
        if not self._has_failed:
            work = partial(clean_group, self._handle, self._item, self._survivors)
            result = result_or_failure(self._item.group.partition, work)
            yield rows([0], RESULT, [pickle.dumps(result)])


def large_plans(plans: Sequence[CleaningPlan], dedupe_buffer_bytes: int, core_count: int) -> list[CleaningPlan]:
    """Return the plans whose keys or work are too large for one task."""
    # one task takes longer for a partition above this size than the three stages for all partitions on all cores
    max_bytes = max(MIN_SHARED_BYTES, _SHARED_CPU_FACTOR * sum(plan.log_bytes for plan in plans) // core_count)
    return [
        plan
        for plan in plans
        if plan.log_bytes > max_bytes
        or survivors.map_slots(plan.dirty_records) * survivors.SLOT_BYTES > dedupe_buffer_bytes
    ]


def clean_shared(
    spark: SparkSession, handle: TopicHandle, plans: Sequence[CleaningPlan], dedupe_buffer_bytes: int
) -> list[RewrittenPartition | RewriteFailure]:
    """Clean each partition with several tasks, without a commit."""
    if not plans:
        return []
    # the time for delete horizons; it is the same for all plans, which are of one snapshot
    now_ms = plans[0].now_ms(handle)
    # by partition: the verdicts on the batches of producers (as in `clean_partition`), or the failure of a bad file
    to_judge = [plan for plan in plans if any(segment.may_have_producers for segment in plan.segments)]
    verdicts = SparkExecutor(spark).map(partial(_judge, handle, handle.trusted_ms()), to_judge)
    by_partition = dict(zip([plan.partition for plan in to_judge], verdicts, strict=True))
    outcomes = [(plan, by_partition.get(plan.partition, survivors.Verdicts())) for plan in plans]
    readable = [(plan, outcome) for plan, outcome in outcomes if isinstance(outcome, survivors.Verdicts)]
    stages = _plan_stages(readable, dedupe_buffer_bytes, now_ms, cores(spark))
    failures = [failure for _, failure in outcomes if isinstance(failure, RewriteFailure)]
    results = [*failures, *stages.run(spark, handle)]
    return [_cleaned(plan, [result for result in results if result.partition == plan.partition]) for plan in plans]


def _judge(handle: TopicHandle, now_ms: int, plan: CleaningPlan) -> survivors.Verdicts | RewriteFailure:
    work = partial(survivors.judge, handle.reader, plan.segments, now_ms, handle.producer_expiration_ms)
    return result_or_failure(plan.partition, work)


@dataclass(frozen=True, slots=True)
class _Stages:
    """The items of the three stages, for all shared partitions. A target is the index of an item in its list."""

    keys: list[KeysItem] = field(default_factory=list)
    buckets: list[BucketItem] = field(default_factory=list)
    groups: list[GroupToClean] = field(default_factory=list)

    def run(self, spark: SparkSession, handle: TopicHandle) -> list[RewrittenGroup | RewriteFailure]:
        """Run the stages as one Spark job. Returns the rewritten groups, and failures of partitions."""
        if not self.groups:
            return []
        # pass the secret in the function, like the storage's secrets: a shuffle would write a row with it to a disk
        secret = handle.random.randbytes(survivors.SECRET_BYTES)
        keys, buckets, groups = (
            frame_of(spark, ITEM, [pickle.dumps(item) for item in items])
            for items in (self.keys, self.buckets, self.groups)
        )
        hashed = run_stage(keys, len(self.keys), lambda: HashKeys(handle, secret))
        superseded = run_stage(hashed.unionAll(buckets), len(self.buckets), FindSuperseded)
        rewritten = run_stage(superseded.unionAll(groups), len(self.groups), lambda: RewriteGroup(handle))
        return [pickle.loads(row["data"]) for row in rewritten.select("data").collect()]


def _plan_stages(
    plans: Sequence[tuple[CleaningPlan, survivors.Verdicts]], dedupe_buffer_bytes: int, now_ms: int, core_count: int
) -> _Stages:
    """Plan the tasks. Tasks of the first stage read equal amounts; partitions with more records get more buckets."""
    stages, dirty_records = _Stages(), sum(plan.dirty_records for plan, _ in plans)
    target = target_cost((segment for plan, _ in plans for segment in plan.segments_to_clean), core_count)
    for plan, verdicts in plans:
        min_buckets = ceil(core_count * plan.dirty_records / max(dirty_records, 1))
        buckets, slots = survivors.plan_buckets(plan.dirty_records, dedupe_buffer_bytes, min_buckets)
        groups = plan.groups(verdicts, now_ms, plan.end_offset)
        for segments in pack(plan.segments_to_clean, target):
            segment_verdicts = verdicts.within(segments[0].base_offset, segments[-1].next_offset)
            stages.keys.append(
                KeysItem(plan.partition, segments, segment_verdicts, plan.start_offset, len(stages.buckets), buckets)
            )
        base_offsets = np.array([group.group.base_offset for group in groups])
        stages.buckets.extend([BucketItem(slots, len(stages.groups), base_offsets)] * buckets)
        stages.groups.extend(groups)
    return stages


def _cleaned(
    plan: CleaningPlan, results: Sequence[RewrittenGroup | RewriteFailure]
) -> RewrittenPartition | RewriteFailure:
    groups = list[RewrittenGroup]()
    for result in results:
        if isinstance(result, RewriteFailure):
            return result
        groups.append(result)
    groups.sort(key=lambda group: group.base_offset)
    return RewrittenPartition(plan.partition, tuple(groups), plan.start_offset, plan.end_offset)
