"""Compaction as Spark tasks. One task cleans a small partition. Tasks share large ones, in one job for all of these.

A shared partition takes three stages. First, tasks read adjacent segments and send the hashes and offsets of their
records to buckets of hashes. Second, a task for each bucket finds the superseded offsets and sends them to groups of
segments. Third, a task for each group writes the records that stay.

A task needs memory for a few chunks. In the second stage it also needs the offset map of its bucket; the number of
buckets is chosen to fit the given memory. In the third stage it also needs a bit per offset.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.maintenance.compaction.batch_verdicts import Verdicts, judge
from distlog.core.maintenance.compaction.clean_partition import CleanedRange, clean_partition
from distlog.core.maintenance.compaction.cleanable import Cleanable
from distlog.core.maintenance.compaction.cleaning_plan import CleaningPlan, GroupToRewrite
from distlog.core.maintenance.compaction.group_rewrite import RewrittenGroup
from distlog.core.maintenance.compaction.key_exchange import map_slots, plan_buckets
from distlog.core.maintenance.compaction.key_hash import SECRET_BYTES
from distlog.core.maintenance.compaction.offset_map import SLOT_BYTES
from distlog.core.maintenance.compaction.report import Uncleanable, done_or_reason
from distlog.core.topic_handle import TopicHandle
from distlog.spark.spark_session import cores
from distlog.spark.tasks.compaction_stages import ITEM, BucketItem, FindSuperseded, HashKeys, KeysItem, RewriteGroup
from distlog.spark.tasks.exchange import frame_of, run_stage
from distlog.spark.tasks.run import SparkRun, pack, target_cost

#: One task cleans this many bytes in some seconds. Less is not worth a job of three stages.
ALONE_BYTES = 1 << 30
#: Measured: tasks that share a partition need twice the processor time of one task.
_COST_OF_SHARING = 2


def clean_in_tasks(
    spark: SparkSession, handle: TopicHandle, dedupe_buffer_bytes: int, snapshot: Snapshot, due: Sequence[Cleanable]
) -> list[CleanedRange | Uncleanable]:
    """Run one round of cleaning over all partitions that are due, for `compact`. Raises Spark's exceptions."""
    plans = [CleaningPlan.of(snapshot, one) for one in due]
    large = too_large(plans, dedupe_buffer_bytes, cores(spark))
    shared = {plan.partition for plan in large}
    small = [plan for plan in plans if plan.partition not in shared]
    work = partial(clean_partition, handle, dedupe_buffer_bytes=dedupe_buffer_bytes)
    alone = SparkRun(spark)(partial(done_or_reason, work), small)
    return [*alone, *clean_shared(spark, handle, large, dedupe_buffer_bytes)]


def too_large(plans: Sequence[CleaningPlan], dedupe_buffer_bytes: int, cores: int) -> list[CleaningPlan]:
    """The partitions that tasks share: one has too many keys for one task, or the other cores would wait for it."""
    most_bytes = max(ALONE_BYTES, _COST_OF_SHARING * sum(plan.log_bytes for plan in plans) // cores)
    return [
        plan
        for plan in plans
        if map_slots(plan.dirty_records) * SLOT_BYTES > dedupe_buffer_bytes or plan.log_bytes > most_bytes
    ]


def clean_shared(
    spark: SparkSession, handle: TopicHandle, plans: Sequence[CleaningPlan], dedupe_buffer_bytes: int
) -> list[CleanedRange | Uncleanable]:
    """Run one round of cleaning over each partition, which tasks share. Commits nothing."""
    if not plans:
        return []
    now_ms = handle.trusted_ms()
    judged = list(zip(plans, _judge_all(spark, handle, plans, now_ms), strict=True))
    known = [(plan, verdicts) for plan, verdicts in judged if isinstance(verdicts, Verdicts)]
    stages = _plan_stages(known, dedupe_buffer_bytes, now_ms, cores(spark))
    done = [*(one for _, one in judged if isinstance(one, Uncleanable)), *stages.run(spark, handle)]
    return [_cleaned(plan, [one for one in done if one.partition == plan.partition]) for plan in plans]


def _judge_all(
    spark: SparkSession, handle: TopicHandle, plans: Sequence[CleaningPlan], now_ms: int
) -> list[Verdicts | Uncleanable]:
    """The verdicts on the batches of each partition. Tasks find them if there is something to read."""
    read = [plan for plan in plans if any(segment.may_have_producers for segment in plan.segments)]
    judged = SparkRun(spark)(partial(done_or_reason, partial(_judge, handle, now_ms)), read)
    found = {plan.partition: verdicts for plan, verdicts in zip(read, judged, strict=True)}
    return [found.get(plan.partition, Verdicts()) for plan in plans]


def _judge(handle: TopicHandle, now_ms: int, plan: CleaningPlan) -> Verdicts:
    return judge(handle.reader, plan.segments, now_ms)


@dataclass(frozen=True, slots=True)
class _Stages:
    """The items of the three stages, one for each task, of all partitions that are shared."""

    keys: list[KeysItem] = field(default_factory=list)
    buckets: list[BucketItem] = field(default_factory=list)
    groups: list[GroupToRewrite] = field(default_factory=list)

    def run(self, spark: SparkSession, handle: TopicHandle) -> list[RewrittenGroup | Uncleanable]:
        """Run the stages as one Spark job. Returns the rewritten groups, or the reasons why a partition has none."""
        if not self.groups:
            return []
        # sent with the code, like the storage's own secrets, and not in a row: a shuffle would write it to a disk
        secret = handle.random.randbytes(SECRET_BYTES)
        keys, buckets, groups = (_frame(spark, items) for items in (self.keys, self.buckets, self.groups))
        hashed = run_stage(keys, len(self.keys), lambda: HashKeys(handle, secret))
        superseded = run_stage(hashed.unionAll(buckets), len(self.buckets), FindSuperseded)
        rewritten = run_stage(superseded.unionAll(groups), len(self.groups), lambda: RewriteGroup(handle))
        return [pickle.loads(row["data"]) for row in rewritten.select("data").collect()]


def _plan_stages(
    plans: Sequence[tuple[CleaningPlan, Verdicts]], dedupe_buffer_bytes: int, now_ms: int, cores: int
) -> _Stages:
    """Plan the tasks: those of the first stage read about the same amount; buckets are allotted by records."""
    stages, records = _Stages(), sum(plan.dirty_records for plan, _ in plans)
    target = target_cost((segment for plan, _ in plans for segment in plan.cleaned), cores)
    for plan, verdicts in plans:
        share = ceil(cores * plan.dirty_records / max(records, 1))
        buckets, slots = plan_buckets(plan.dirty_records, dedupe_buffer_bytes, share)
        groups = plan.groups(verdicts, now_ms, plan.end_offset)
        for part in pack(plan.cleaned, target):
            own = verdicts.within(part[0].base_offset, part[-1].next_offset)
            stages.keys.append(KeysItem(plan.partition, part, own, plan.start_offset, len(stages.buckets), buckets))
        base_offsets = np.array([group.segments[0].base_offset for group in groups])
        stages.buckets.extend([BucketItem(slots, len(stages.groups), base_offsets)] * buckets)
        stages.groups.extend(groups)
    return stages


def _frame(spark: SparkSession, items: Iterable[object]) -> DataFrame:
    return frame_of(spark, ITEM, [pickle.dumps(item) for item in items])


def _cleaned(plan: CleaningPlan, done: Sequence[RewrittenGroup | Uncleanable]) -> CleanedRange | Uncleanable:
    """The cleaned partition with its groups in order, or the first reason why a group is missing."""
    groups = list[RewrittenGroup]()
    for one in done:
        if isinstance(one, Uncleanable):
            return one
        groups.append(one)
    groups.sort(key=lambda group: group.base_offset)
    return CleanedRange(plan.partition, plan.start_offset, plan.end_offset, tuple(groups))
