"""Compaction as Spark tasks: small partitions one task each, large ones shared by tasks, in one job for all of them.

What is shared goes in three steps. Tasks read adjacent segments and send hashes and offsets of their records, by
buckets of hashes. A task for each bucket finds out which offsets are superseded, and sends them on by groups of
segments. A task for each group writes what stays of it. A task needs memory for a few chunks, in the second step for
the offset map of its bucket, of which there are as many as the given memory asks for, in the third for a bit per
offset.
"""

from __future__ import annotations

import pickle
import secrets
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import ceil

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.indexes.index_cache import IndexCache
from distlog.core.maintenance.compaction.batch_verdicts import Verdicts, has_producers, judge
from distlog.core.maintenance.compaction.cleanable import Cleanable
from distlog.core.maintenance.compaction.compact import CleanedRange, clean_partition, compact_rounds
from distlog.core.maintenance.compaction.group_rewrite import RewrittenGroup
from distlog.core.maintenance.compaction.key_exchange import map_slots, plan_buckets
from distlog.core.maintenance.compaction.key_hash import SECRET_BYTES
from distlog.core.maintenance.compaction.large_partition import LargePartition
from distlog.core.maintenance.compaction.offset_map import SLOT_BYTES
from distlog.core.maintenance.compaction.report import CompactionReport, Uncleanable, unless_uncleanable
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.topics.topic import Topic
from distlog.spark.source.splits import SplitSize, pack
from distlog.spark.spark_session import cores
from distlog.spark.tasks.compaction_stages import (
    ITEM,
    BucketItem,
    FindSuperseded,
    GroupItem,
    HashKeys,
    KeysItem,
    RewriteGroup,
)
from distlog.spark.tasks.exchange import frame_of, run_stage
from distlog.spark.tasks.run import run_tasks

#: What one task cleans in some seconds, so that sharing it would not be worth a job of three stages.
ALONE_BYTES = 1 << 30
#: Measured: tasks that share a partition take twice the processor time of one task.
_COST_OF_SHARING = 2


def compact_in_tasks(
    spark: SparkSession, topic: Topic, dedupe_buffer_bytes: int, *, dry_run: bool
) -> CompactionReport:
    """Compact the partitions of a compacted topic that are due; errors are those of `compact`, and Spark's own."""

    def clean(snapshot: Snapshot, due: Sequence[Cleanable]) -> list[CleanedRange | Uncleanable]:
        topic.advance(snapshot)
        large = too_large([LargePartition.plan(snapshot, one) for one in due], dedupe_buffer_bytes, cores(spark))
        shared = {plan.partition for plan in large}
        small = [one for one in due if one.partition not in shared]
        alone = run_tasks(spark, partial(_clean_alone, topic, dedupe_buffer_bytes), small)
        return [*alone, *clean_shared(spark, topic, large, dedupe_buffer_bytes)]

    return compact_rounds(topic.reader, topic.log, topic.snapshot, topic.clock, clean, dry_run=dry_run)[0]


def too_large(plans: Sequence[LargePartition], dedupe_buffer_bytes: int, cores: int) -> list[LargePartition]:
    """The partitions that one task does not clean alone: their keys are too many, or the other cores would wait."""
    most_bytes = max(ALONE_BYTES, _COST_OF_SHARING * sum(plan.log_bytes for plan in plans) // cores)
    return [
        plan
        for plan in plans
        if map_slots(plan.dirty_records) * SLOT_BYTES > dedupe_buffer_bytes or plan.log_bytes > most_bytes
    ]


def _clean_alone(topic: Topic, dedupe_buffer_bytes: int, due: Cleanable) -> CleanedRange | Uncleanable:
    # as a value: an exception would be tried again, and then end the job for every partition
    work = partial(
        clean_partition,
        topic.reader,
        topic.snapshot,
        due,
        topic.clock,
        lambda: uuid.uuid4().hex,
        secrets.token_bytes,
        dedupe_buffer_bytes,
    )
    return unless_uncleanable(due.partition, work)


def clean_shared(
    spark: SparkSession, topic: Topic, plans: Sequence[LargePartition], dedupe_buffer_bytes: int
) -> list[CleanedRange | Uncleanable]:
    """One round over each partition, which tasks share; nothing is committed."""
    now_ms = topic.log.trusted_ms(topic.clock())
    judged = list(zip(plans, _judge(spark, topic, plans, now_ms), strict=True))
    known = [(plan, verdicts) for plan, verdicts in judged if isinstance(verdicts, Verdicts)]
    failed = {found.partition: found for _, found in judged if isinstance(found, Uncleanable)}
    groups = defaultdict[int, list[RewrittenGroup]](list)
    for done in _share(spark, topic, known, dedupe_buffer_bytes, now_ms) if known else ():
        if isinstance(done, Uncleanable):
            failed[done.partition] = done
        else:
            groups[done.partition].append(done)
    return [failed.get(plan.partition) or _cleaned(plan, groups[plan.partition]) for plan in plans]


def _judge(
    spark: SparkSession, topic: Topic, plans: Sequence[LargePartition], now_ms: int
) -> list[Verdicts | Uncleanable]:
    """The verdicts on the batches of each partition, by a task each where there is something to read."""
    storage, name = topic.storage, topic.name

    def judged(plan: LargePartition) -> Verdicts | Uncleanable:
        reader = SegmentReader(storage, name, IndexCache())
        return unless_uncleanable(plan.partition, partial(judge, reader, plan.segments, now_ms))

    read = [plan for plan in plans if any(map(has_producers, plan.segments))]
    found = {plan.partition: verdicts for plan, verdicts in zip(read, run_tasks(spark, judged, read), strict=True)}
    return [found.get(plan.partition, Verdicts()) for plan in plans]


def _share(
    spark: SparkSession,
    topic: Topic,
    plans: Sequence[tuple[LargePartition, Verdicts]],
    dedupe_buffer_bytes: int,
    now_ms: int,
) -> Iterator[RewrittenGroup | Uncleanable]:
    """What became of every group of the partitions, or why it was given up; one Spark job."""
    records = sum(plan.dirty_records for plan, _ in plans)
    target = SplitSize(cores(spark)).target_bytes(sum(one.log_bytes for plan, _ in plans for one in plan.cleaned))
    keys, buckets, groups = list[KeysItem](), list[BucketItem](), list[GroupItem]()
    for plan, verdicts in plans:
        share = ceil(cores(spark) * plan.dirty_records / max(records, 1))
        count, slots = plan_buckets(plan.dirty_records, dedupe_buffer_bytes, share)
        keys += [_keys_item(plan, part, verdicts, len(buckets), count) for part in pack(plan.cleaned, target)]
        buckets += [BucketItem(slots, len(groups), np.array([group[0].base_offset for group in plan.groups]))] * count
        groups += [_group_item(topic, plan, group, verdicts, now_ms) for group in plan.groups]
    storage, name, clock = topic.storage, topic.name, topic.clock
    # with the code, as the storage's own secrets, and not in a row, which a shuffle would write to a disk
    secret = secrets.token_bytes(SECRET_BYTES)
    hashed = run_stage(_frame(spark, keys), len(keys), lambda: HashKeys(storage, name, secret))
    superseded = run_stage(hashed.unionAll(_frame(spark, buckets)), len(buckets), FindSuperseded)
    rewritten = run_stage(
        superseded.unionAll(_frame(spark, groups)), len(groups), lambda: RewriteGroup(storage, name, clock)
    )
    return (pickle.loads(row["data"]) for row in rewritten.select("data").collect())


def _frame(spark: SparkSession, items: Iterable[object]) -> DataFrame:
    return frame_of(spark, ITEM, [pickle.dumps(item) for item in items])


def _keys_item(
    plan: LargePartition, segments: list[SegmentInfo], verdicts: Verdicts, first_bucket: int, buckets: int
) -> KeysItem:
    own = verdicts.within(segments[0].base_offset, segments[-1].next_offset)
    return KeysItem(plan.partition, segments, own, plan.start_offset, first_bucket, buckets)


def _group_item(
    topic: Topic, plan: LargePartition, group: list[SegmentInfo], verdicts: Verdicts, now_ms: int
) -> GroupItem:
    own = verdicts.within(group[0].base_offset, group[-1].next_offset)
    return GroupItem(group, own, plan.end_offset, topic.config, topic.version, now_ms)


def _cleaned(plan: LargePartition, groups: Iterable[RewrittenGroup]) -> CleanedRange:
    ordered = tuple(sorted(groups, key=lambda group: group.base_offset))
    return CleanedRange(plan.partition, plan.start_offset, plan.end_offset, ordered)
