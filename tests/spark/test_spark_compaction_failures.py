"""Compaction that Spark tasks share, when something fails or changes beside it."""

from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compacting import NOW, SECRET
from pyspark.sql import SparkSession
from shared_compaction import Partition, alone, at, contents, copy, keyed_topic, offsets, shared, with_clock

from distlog.core.commits.segment_table import SegmentTable
from distlog.core.maintenance.cleaning_plan import Cleanable
from distlog.core.maintenance.compaction import CleaningPlan, GroupToClean, clean_partition
from distlog.core.maintenance.group_rewrite import SegmentGroup, commit_rewrite
from distlog.core.maintenance.record_keys import Verdicts
from distlog.core.topics.topic import Topic
from distlog.spark.tasks import ITEM, RESULT, BucketItem, FindSuperseded, HashKeys, KeysItem, RewriteGroup

pytestmark = pytest.mark.spark


def sent(stage: Any, *taken: tuple[int, bytes]) -> list[tuple[int, int, bytes]]:
    """The rows that a stage sends for what it takes."""
    batches = [batch for kind, data in taken for batch in stage.take(kind, memoryview(data))] + [*stage.finish()]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_a_failure_of_the_first_stage_goes_to_the_end_in_place_of_a_result(tmp_path: Path) -> None:
    topic = keyed_topic(f"{tmp_path}/log", 1)
    segments = list(topic.snapshot.partitions[0].segments)
    topic.storage.delete([topic.reader.name(segments[1])])
    keys = KeysItem(0, segments, Verdicts(), 0, first_bucket=3, buckets=1)
    rows_of_keys = sent(HashKeys(topic.handle, SECRET), (ITEM, pickle.dumps(keys)))
    ((target, _, failure),) = (row for row in rows_of_keys if row[1] == RESULT)
    assert (target, pickle.loads(failure).partition) == (3, 0)
    bucket = BucketItem(9, first_group=5, base_offsets=np.array([0]))
    assert (5, RESULT, failure) in sent(FindSuperseded(), (ITEM, pickle.dumps(bucket)), (RESULT, failure))
    # of this group nothing is wrong, but not all keys are known
    group = GroupToClean(
        SegmentGroup(SegmentTable.of(segments[:1])), Verdicts(), 200, NOW, topic.config, topic.version
    )
    stage = RewriteGroup(topic.handle)
    assert sent(stage, (ITEM, pickle.dumps(group)), (RESULT, failure)) == [(0, RESULT, failure)]


def test_what_is_appended_meanwhile_stays_dirty(spark: SparkSession, tmp_path: Path) -> None:
    topic = keyed_topic(f"{tmp_path}/log", 1)
    end = topic.end_offsets()[0]
    report = shared(spark, at(topic, NOW), before_commit=lambda: Partition(topic, 0).append(5, 6))
    assert (report.ok, report.partitions[0].skipped_groups) == (True, 0)
    assert offsets(topic)[-2:] == [end, end + 1]
    assert topic.snapshot.partitions[0].first_dirty_offset == end
    assert shared(spark, at(topic, NOW)).ok
    assert len(offsets(topic)) == 100


def test_a_group_of_which_an_input_is_gone_is_dropped_and_the_rest_is_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = keyed_topic(f"{tmp_path}/log")
    dirty: list[int] = []

    def replace_one_group() -> None:
        now = at(topic, NOW)
        dirty.append(now.snapshot.partitions[0].first_dirty_offset)
        if len(dirty) == 1:
            due = Cleanable(0, 0, topic.end_offsets()[0], 0, 1, False)
            done = clean_partition(now.handle, CleaningPlan.of(now.snapshot, due))
            other = dataclasses.replace(done, end_offset=0, groups=done.groups[1:2])
            commit_rewrite(now.handle, now.snapshot, [other])

    report = shared(spark, at(topic, NOW), before_commit=replace_one_group)
    found = {one.partition: (one.rounds, one.skipped_groups) for one in report.partitions}
    # what was dropped is planned anew, from what is there now
    assert (found, dirty) == ({0: (2, 1), 1: (1, 0)}, [0, 80])
    assert (len(offsets(topic, 0)), len(offsets(topic, 1))) == (100, 100)
    assert topic.verify().ok


def test_a_partition_of_which_a_file_is_gone_is_named_and_not_tried_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = keyed_topic(f"{tmp_path}/log")
    segment = topic.snapshot.partitions[0].segments[-1]
    before = [one.stem for one in topic.snapshot.partitions[0].segments]
    topic.storage.delete([topic.reader.name(segment)])
    report = shared(spark, at(topic, NOW))
    (error,) = (one.error for one in report.partitions if one.partition == 0)
    assert error is not None
    assert segment.stem in error
    assert (report.ok, len(report.partitions)) == (False, 2)
    assert len(offsets(topic, 1)) == 100
    assert [one.stem for one in topic.snapshot.partitions[0].segments] == before


def test_a_batch_that_is_damaged_stops_its_own_partition_alone(spark: SparkSession, tmp_path: Path) -> None:
    topic = keyed_topic(f"{tmp_path}/log")
    name = topic.reader.name(topic.snapshot.partitions[1].segments[0])
    data = bytearray(topic.storage.read(name))
    data[-1] ^= 0xFF
    topic.storage.put(name, data)
    report = shared(spark, at(topic, NOW))
    assert [one.partition for one in report.partitions if one.error] == [1]
    assert len(offsets(topic, 0)) == 100


def test_a_task_that_fails_once_is_tried_again_and_nothing_is_twice(spark: SparkSession, tmp_path: Path) -> None:
    topic = keyed_topic(f"{tmp_path}/log", 1)
    twin = copy(topic, tmp_path / "twin")
    driver, flag = os.getpid(), tmp_path / "failed"

    def fails_once() -> int:
        if os.getpid() != driver and not flag.exists():
            flag.touch()
            raise OSError("once")
        return NOW

    failing = Topic(with_clock(topic, fails_once), topic.log.load())
    report = shared(spark, failing)
    assert flag.exists()
    assert report == alone(at(twin, NOW))
    assert contents(topic) == contents(twin)
    assert topic.verify().ok
