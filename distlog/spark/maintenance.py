"""Maintenance that reads the logs of a topic, as Spark tasks. The reports are the same as those of `Topic`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from distlog.core.maintenance.compact_or_merge import CompactReport, compact_or_merge
from distlog.core.maintenance.compaction.clean_partition import DEDUPE_BUFFER_BYTES
from distlog.core.maintenance.integrity.rebuild import rebuild_indexes as rebuild_by
from distlog.core.maintenance.integrity.rebuild_report import RebuildReport
from distlog.core.maintenance.integrity.verify import VerifyReport
from distlog.core.maintenance.integrity.verify import verify as verify_by
from distlog.core.topics.open_topic import open as open_topic
from distlog.spark.tasks.compaction import clean_in_tasks
from distlog.spark.tasks.run import SparkRun


def verify(spark: SparkSession, url: str, *, storage_options: Mapping[str, Any] | None = None) -> VerifyReport:
    """Check everything about the topic, as `Topic.verify` does, but its segments in parallel.

    Raises TopicNotFoundError, StorageError.
    """
    topic = open_topic(url, storage_options=storage_options)
    return verify_by(topic.handle, topic.live_snapshot, SparkRun(spark))


def rebuild_indexes(
    spark: SparkSession,
    url: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> RebuildReport:
    """Repair the index files of all segments, as `Topic.rebuild_indexes` does, in parallel and in one commit.

    Raises TopicNotFoundError, StorageError, CommitStateUnknownError.
    """
    topic = open_topic(url, storage_options=storage_options)
    return rebuild_by(topic.handle, topic.snapshot, SparkRun(spark), force=force, dry_run=dry_run)[0]


def compact(
    spark: SparkSession,
    url: str,
    *,
    dry_run: bool = False,
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> CompactReport:
    """Compact partitions or merge groups of segments in parallel, as `Topic.compact` does.

    Keys need 24 bytes each. If the keys of a partition do not fit in `dedupe_buffer_bytes`, many tasks share the
    partition, and no task needs more memory than that for keys. The report names partitions that cannot be cleaned
    and segments that cannot be merged; the others go on. Raises TopicNotFoundError, CommitConflictError,
    CommitStateUnknownError, and Spark's own exceptions with the text of distlog's.
    """
    topic = open_topic(url, storage_options=storage_options)
    clean = partial(clean_in_tasks, spark, topic.handle, dedupe_buffer_bytes)
    return compact_or_merge(topic.handle, topic.snapshot, SparkRun(spark), clean, dry_run=dry_run)[0]
