"""Maintenance that reads the logs of a topic, spread over Spark tasks: the same reports as those of `Topic`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.config import TopicConfig
from distlog.core.indexes.index_cache import IndexCache
from distlog.core.maintenance.compact_or_merge import CompactReport
from distlog.core.maintenance.compaction.compact import DEDUPE_BUFFER_BYTES
from distlog.core.maintenance.integrity.rebuild import finish_rebuild, rebuild_segment, write_indexes
from distlog.core.maintenance.integrity.rebuild_report import RebuildReport, SegmentRebuild
from distlog.core.maintenance.integrity.verify import VerifyReport, settled
from distlog.core.maintenance.integrity.verify_commits import verify_commits, verify_table
from distlog.core.maintenance.integrity.verify_segment import verify_segment
from distlog.core.maintenance.merge import merge_by, merge_or_tell
from distlog.core.maintenance.merge_plan import MergeGroup
from distlog.core.maintenance.reports import Unmergeable
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.topics.open_topic import open as open_topic
from distlog.core.topics.topic import Topic
from distlog.spark.source.splits import SplitSize, pack
from distlog.spark.spark_session import cores
from distlog.spark.tasks.compaction import compact_in_tasks
from distlog.spark.tasks.run import run_tasks

Result = TypeVar("Result")


def verify(spark: SparkSession, url: str, *, storage_options: Mapping[str, Any] | None = None) -> VerifyReport:
    """Check everything about the topic, as `Topic.verify` does, its segments in parallel.

    Raises TopicNotFoundError, StorageError.
    """
    topic = open_topic(url, storage_options=storage_options)
    reader, snapshot = topic.reader, topic.snapshot
    whole = (*verify_commits(topic.storage, snapshot), *verify_table(snapshot))
    verdicts = _each_segment(spark, topic, verify_segment)
    return VerifyReport(snapshot.version, settled(reader, topic.log, snapshot, verdicts), whole)


def rebuild_indexes(
    spark: SparkSession,
    url: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> RebuildReport:
    """Make the index files of all segments right, as `Topic.rebuild_indexes` does, in parallel and in one commit.

    Raises TopicNotFoundError, StorageError, CommitStateUnknownError.
    """
    topic = open_topic(url, storage_options=storage_options)
    rebuild = partial(_rebuild, config=topic.config, force=force, dry_run=dry_run)
    rebuilt = _each_segment(spark, topic, rebuild)
    return finish_rebuild(topic.reader, topic.log, topic.snapshot, rebuilt, dry_run=dry_run)[0]


def _rebuild(
    reader: SegmentReader, segment: SegmentInfo, *, config: TopicConfig, force: bool, dry_run: bool
) -> SegmentRebuild:
    return write_indexes(reader, rebuild_segment(reader, segment, config, force=force), dry_run=dry_run)


def compact(
    spark: SparkSession,
    url: str,
    *,
    dry_run: bool = False,
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> CompactReport:
    """Compact or merge, as `Topic.compact` does: a task per partition that is due, or per segment that is merged.

    A partition with more keys than fit in `dedupe_buffer_bytes`, 24 bytes each, is shared by many tasks, of which
    none needs more than that for keys. A partition that cannot be cleaned, and segments that cannot be merged, are
    named in the report, and the others go on. Raises TopicNotFoundError, CommitConflictError,
    CommitStateUnknownError, and Spark's own exceptions with the text of ours.
    """
    topic = open_topic(url, storage_options=storage_options)
    if "compact" in topic.config.cleanup_policy:
        return compact_in_tasks(spark, topic, dedupe_buffer_bytes, dry_run=dry_run)

    def merge_each(groups: Sequence[MergeGroup], begin: int) -> list[SegmentInfo | Unmergeable]:
        return run_tasks(spark, partial(_merge, topic, begin), groups)

    return merge_by(topic.log, topic.snapshot, merge_each, dry_run=dry_run)[0]


def _merge(topic: Topic, begin: int, group: MergeGroup) -> SegmentInfo | Unmergeable:
    clock, config = topic.clock, topic.config
    return merge_or_tell(topic.reader, group, config, begin=begin, clock=clock, new_id=lambda: uuid.uuid4().hex)


def _each_segment(
    spark: SparkSession, topic: Topic, work: Callable[[SegmentReader, SegmentInfo], Result]
) -> list[Result]:
    """`work` of every live segment, by partition and base offset; a task takes segments that are near each other."""
    storage, name = topic.storage, topic.name

    def of_group(segments: list[SegmentInfo]) -> list[Result]:
        reader = SegmentReader(storage, name, IndexCache())
        return [work(reader, segment) for segment in segments]

    segments = [segment for state in topic.snapshot.partitions for segment in state.segments]
    target = SplitSize(cores(spark)).target_bytes(sum(segment.log_bytes for segment in segments))
    return list(chain.from_iterable(run_tasks(spark, of_group, list(pack(segments, target)))))
