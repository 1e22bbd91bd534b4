"""Maintenance that reads the logs of a topic, spread over Spark tasks: the same reports as those of `Topic`."""

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
from distlog.spark.tasks.run import TaskRun


def verify(spark: SparkSession, url: str, *, storage_options: Mapping[str, Any] | None = None) -> VerifyReport:
    """Check everything about the topic, as `Topic.verify` does, its segments in parallel.

    Raises TopicNotFoundError, StorageError.
    """
    topic = open_topic(url, storage_options=storage_options)
    return verify_by(topic.handle, topic.snapshot, TaskRun(spark))


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
    return rebuild_by(topic.handle, topic.snapshot, TaskRun(spark), force=force, dry_run=dry_run)[0]


def compact(
    spark: SparkSession,
    url: str,
    *,
    dry_run: bool = False,
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> CompactReport:
    """Compact or merge, as `Topic.compact` does, partitions or groups of segments in parallel.

    A partition with more keys than fit in `dedupe_buffer_bytes`, 24 bytes each, is shared by many tasks, of which
    none needs more than that for keys. A partition that cannot be cleaned, and segments that cannot be merged, are
    named in the report, and the others go on. Raises TopicNotFoundError, CommitConflictError,
    CommitStateUnknownError, and Spark's own exceptions with the text of ours.
    """
    topic = open_topic(url, storage_options=storage_options)
    clean = partial(clean_in_tasks, spark, topic.handle, dedupe_buffer_bytes)
    return compact_or_merge(topic.handle, topic.snapshot, TaskRun(spark), clean, dry_run=dry_run)[0]
