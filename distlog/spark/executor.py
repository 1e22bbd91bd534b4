"""Runs the maintenance of topics in Spark tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession

from distlog.core.commits.snapshot import Snapshot
from distlog.core.maintain.compaction import Cleanable, CleaningPlan, clean_or_failure
from distlog.core.maintain.executor import Item
from distlog.core.maintain.group_rewrite import RewriteFailure, RewrittenPartition
from distlog.core.segments.topic_handle import TopicHandle
from distlog.spark.shared_compaction import clean_shared, too_large
from distlog.spark.spark_session import cores
from distlog.spark.tasks import map_items

#: The memory of a task that merges.
MERGE_MEMORY_BYTES = 192 << 20

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SparkExecutor:
    """Run maintenance in the tasks of a Spark session: `topic.compact(executor=SparkExecutor(spark))`.

    `verify` and `rebuild_indexes` take it too. Errors of tasks are Spark's exceptions, with distlog's text.
    """

    spark: SparkSession
    memory: int = MERGE_MEMORY_BYTES

    @property
    def workers(self) -> int:
        """Items that one task works on at the same time."""
        return 1

    def map(self, work: Callable[[Item], Result], items: Sequence[Item], /) -> Iterable[Result]:
        """Return the results when all tasks have ended."""
        return map_items(self.spark, work, items)

    def clean(
        self, handle: TopicHandle, snapshot: Snapshot, due: Sequence[Cleanable], dedupe_buffer_bytes: int, /
    ) -> Sequence[RewrittenPartition | RewriteFailure]:
        """Run one round of compaction over all partitions that are due: a task each, and many for large ones."""
        plans = [CleaningPlan.of(snapshot, partition) for partition in due]
        large = too_large(plans, dedupe_buffer_bytes, cores(self.spark))
        shared = {plan.partition for plan in large}
        small = [plan for plan in plans if plan.partition not in shared]
        work = partial(clean_or_failure, handle, dedupe_buffer_bytes=dedupe_buffer_bytes)
        return [*self.map(work, small), *clean_shared(self.spark, handle, large, dedupe_buffer_bytes)]
