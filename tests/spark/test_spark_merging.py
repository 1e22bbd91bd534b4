"""Merging by Spark: tasks merge the jobs, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundled import bundles, changed, rows, segments
from pyspark.sql import SparkSession
from topics import contents, topic_on

import distlog
from distlog.core.maintain.merge import MergeReport, merge
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.spark import SparkExecutor

pytestmark = pytest.mark.spark

PARTITIONS, APPENDS, SIZE = 16, 6, 4000
JOB_BYTES = 3 * APPENDS * SIZE


def bundled_topic(url: str) -> Topic:
    topic = topic_on(Storage(url).child("t"), PARTITIONS, {"retention.ms": -1})
    for first in range(APPENDS):
        topic.append(rows(PARTITIONS, 1, first, SIZE))
    return topic


def merged(spark: SparkSession, topic: Topic, before_commit: Callable[[], object] = lambda: None) -> MergeReport:
    class Late(SparkExecutor):
        def map(self, work: Any, items: Any, /) -> Any:
            results = [*SparkExecutor.map(self, work, items)]
            before_commit()
            return results

    report, after = merge(topic.handle, topic.snapshot, Late(spark), job_bytes=JOB_BYTES)
    topic.advance(after)
    return report


def one_per_partition(topic: Topic) -> bool:
    return [len(state.segments) for state in topic.refresh().snapshot.partitions] == [1] * PARTITIONS


def test_tasks_equal_a_merge_in_one_process(spark: SparkSession, tmp_path: Path) -> None:
    topic, twin = bundled_topic(str(tmp_path / "a")), bundled_topic(str(tmp_path / "b"))
    old_contents = contents(topic)
    assert merged(spark, topic).ok
    assert twin.compact().ok
    assert one_per_partition(topic)
    assert contents(topic) == old_contents == contents(twin)
    assert logs_of(topic) == logs_of(twin)
    assert topic.verify().ok


def logs_of(topic: Topic) -> list[bytes]:
    parts = [topic.reader.part(segment) for segment in segments(topic)]
    return [bytes(topic.storage.read(part.name, part.begin, part.begin + part.size)) for part in parts]


def test_a_damaged_part_stops_its_own_partition_alone(spark: SparkSession, tmp_path: Path) -> None:
    topic = bundled_topic(str(tmp_path))
    hurt, old_contents = topic.snapshot.partitions[5].segments[2], contents(topic)

    def flip(data: bytearray) -> None:
        data[hurt.log_position + 70] ^= 1

    changed(topic.storage, topic.reader.name(hurt), flip)
    report = merged(spark, topic)
    assert [(group.partition, "checksum" in group.reason) for group in report.failed] == [(5, True)]
    numbers = [number for number in range(PARTITIONS) if number != 5]
    table = topic.scan(partitions=numbers).to_table()
    assert table.num_rows == sum(len(old_contents[number]) for number in numbers)
    assert [len(state.segments) for state in topic.snapshot.partitions].count(1) == PARTITIONS - 1


def test_a_retried_task_loses_and_duplicates_nothing(spark: SparkSession, tmp_path: Path) -> None:
    topic = bundled_topic(str(tmp_path / "log"))
    old_contents, driver, flag = contents(topic), os.getpid(), tmp_path / "failed"

    class FailsOnce:
        def __call__(self) -> str:
            if os.getpid() != driver and not flag.exists():
                flag.touch()
                os._exit(1)
            return os.urandom(16).hex()

    handle = distlog.core.segments.segment_reader.TopicHandle.of(topic.storage, topic.name, new_id=FailsOnce())
    assert merged(spark, Topic(handle, topic.snapshot)).ok
    assert flag.exists()
    assert one_per_partition(topic)
    assert contents(topic) == old_contents
    assert topic.verify().ok


def test_a_job_that_fails_for_good_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    topic = bundled_topic(str(tmp_path))
    old_contents, version, driver = contents(topic), topic.version, os.getpid()

    def fails() -> str:
        if os.getpid() != driver:
            raise OSError("no more ids")
        return os.urandom(16).hex()

    handle = distlog.core.segments.segment_reader.TopicHandle.of(topic.storage, topic.name, new_id=fails)
    with pytest.raises(Exception, match="no more ids"):
        merged(spark, Topic(handle, topic.snapshot))
    assert topic.refresh().version == version
    assert contents(topic) == old_contents
    assert len(bundles(topic.storage)) == APPENDS


def test_groups_that_concurrently_lost_an_input_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    topic = bundled_topic(str(tmp_path))
    old_contents = contents(topic)

    def change_group() -> None:
        other = distlog.open(topic.url)
        other.delete_records({3: 2})
        other.retention()
        other.append(rows(PARTITIONS, 1, APPENDS, SIZE))

    report = merged(spark, topic, change_group)
    assert report.ok
    assert {group.partition for group in report.groups} == set(range(PARTITIONS)) - {3}
    after = contents(topic.refresh())
    assert after[3] == old_contents[3][2:] + after[3][-1:]
    assert {len(records) for number, records in after.items() if number != 3} == {APPENDS + 1}
    assert topic.verify().ok
