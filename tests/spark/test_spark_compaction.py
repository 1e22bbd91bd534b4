"""Compaction shared by Spark tasks equals compaction in one process, byte for byte."""

from __future__ import annotations

import dataclasses
import os
import pickle
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from addresses import Address
from commits import put_commit
from compacting import DAY, NOW, SECRET
from producers import Producers
from pyspark.sql import SparkSession
from raw_batches import batch, record
from shared_compaction import (
    CONFIG,
    FEW_KEYS,
    Partition,
    alone,
    contents,
    copy,
    keyed_topic,
    offsets,
    shared,
    with_clock,
    with_fixed_clock,
)

import distlog
from distlog.core.commits.actions import Cleaned
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.config import TopicConfig
from distlog.core.maintain.compaction import Cleanable, CleaningPlan, CompactionReport, GroupToClean, clean_partition
from distlog.core.maintain.group_rewrite import SegmentGroup, commit_rewrite
from distlog.core.maintain.survivors import SLOT_BYTES, Verdicts
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.topic import Topic
from distlog.spark import SparkExecutor
from distlog.spark.executor import (
    ITEM,
    MIN_SHARED_BYTES,
    RESULT,
    BucketItem,
    FindSuperseded,
    HashKeys,
    KeysItem,
    RewriteGroup,
    clean_shared,
    frame_of,
    large_plans,
    rows,
    run_stage,
)

pytestmark = pytest.mark.spark
GOLDEN = ("compact-none-0", "compact-lz4-0", "compact-zstd-0", "compact-txn-0")


def fill(url: str) -> distlog.Topic:
    """Fill partitions of every kind: of a broker, with transactions, without keys, partly clean, with tombstones."""
    topic = distlog.create(url, 9, CONFIG)
    for number, name in enumerate(GOLDEN):
        Partition(topic, number).adopt(f"first.{name}")
    transactions = Producers(Partition(topic, 4))
    transactions.send(1, 1, 2).send(2, 2, 3).send(1, 3, 4).abort(1).roll()
    transactions.commit(2).send(1, 2).commit(1).commit(1).plain(7).roll()
    Producers(Partition(topic, 5), transactional=False).send(1, 1, 2, 3).send(2, 3, 1, 4).send(3, 1, 4).roll()
    plain = [record(0, 0, None), record(1, 0, b"1"), record(2, 0, None), record(3, 0, b"2"), record(4, 0, b"1")]
    Partition(topic, 6).add(batch(plain, base_timestamp=NOW, max_timestamp=NOW))
    for number in (7, 8):
        partition = Partition(topic, number)
        for start in range(0, 60, 20):
            partition.append(*range(start, start + 40))
        partition.append(3, 50, value=None)
    return topic


def dirty_again(topic: distlog.Topic) -> None:
    """Append to the compacted topic; one partition stays clean, and its keys repeat."""
    for number in (7, 8):
        Partition(topic, number).append(*range(30, 70), 3)
    topic.refresh()
    put_commit(topic.log, topic.snapshot, "compact", lambda _: [Cleaned(8, topic.end_offsets()[8] - 21)])


def test_tasks_that_share_partitions_equal_one_process(spark: SparkSession, tmp_path: Path) -> None:
    topic = fill(f"{tmp_path}/log")
    for now in (NOW, NOW + 2 * DAY):
        twin = copy(topic, tmp_path / f"{now}")
        old_contents, version = contents(topic), topic.version
        report, expected = shared(spark, with_fixed_clock(topic, now)), alone(with_fixed_clock(twin, now))
        assert contents(topic) == contents(twin)
        assert contents(topic) != old_contents
        assert (topic.version, topic.history(1)["operation"].to_pylist()) == (version + 1, ["compact"])
        assert report == expected
        assert (report.ok, {partition.rounds for partition in report.partitions}) == (True, {1})
        dirty_again(topic)
    assert len({partition.unkeyed_records for partition in report.partitions}) == 1


def test_partitions_with_too_many_keys_are_shared_and_the_others_are_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    divided: list[int] = []

    def noted(spark: SparkSession, handle: TopicHandle, plans: Sequence[CleaningPlan], memory: int) -> list[Any]:
        divided.extend(plan.partition for plan in plans)
        return [*clean_shared(spark, handle, plans, memory)]

    monkeypatch.setattr("distlog.spark.executor.clean_shared", noted)
    topic = keyed_topic(f"{tmp_path}/log")
    Partition(topic, 1).append(*range(300))
    twin = copy(topic, tmp_path / "twin")
    # the keys of partition 0 fit, and the keys of partition 1 do not
    report = topic.refresh().compact(executor=SparkExecutor(spark), dedupe_buffer_bytes=300 * SLOT_BYTES)
    assert divided == [1]
    assert report == alone(twin)
    assert contents(topic) == contents(twin)
    assert offsets(topic, 1) == list(range(200, 500))


@pytest.mark.s3
def test_tasks_share_a_partition_of_an_object_store(spark: SparkSession, s3_url: Address) -> None:
    topic = distlog.create(s3_url.url, 1, CONFIG, storage_options=s3_url.options)
    for turn in range(3):
        topic.append([{"key": f"key {n}", "value": f"{turn}"} for n in range(turn * 50, 200)])
    report = topic.compact(executor=SparkExecutor(spark), dedupe_buffer_bytes=FEW_KEYS)
    assert isinstance(report, CompactionReport)
    assert [partition.rounds for partition in report.partitions] == [1]
    rows = topic.refresh().scan(columns=["offset", "key", "value"]).to_table().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == {
        f"key {n}".encode(): f"{min(n // 50, 2)}".encode() for n in range(200)
    }
    assert [row["offset"] for row in rows] == [*range(50), *range(200, 250), *range(350, 450)]
    assert topic.verify().ok


def plan_of(partition: int, log_bytes: int, records: int = 1) -> CleaningPlan:
    """Return a plan of one dirty segment."""
    segment: Any = SimpleNamespace(log_bytes=log_bytes, record_count=records, base_offset=0, next_offset=1)
    return CleaningPlan(partition, 0, 1, [segment], 0, TopicConfig(), 0, 0)


def test_a_partition_is_shared_for_its_keys_or_for_cores_that_would_wait() -> None:
    def shared_of(*plans: CleaningPlan, cores: int) -> list[int]:
        return [plan.partition for plan in large_plans(plans, 1000 * SLOT_BYTES, cores)]

    assert shared_of(plan_of(0, 1, 899), plan_of(1, 1, 900), cores=9) == [1]
    assert shared_of(plan_of(0, MIN_SHARED_BYTES), cores=9) == []
    assert shared_of(plan_of(0, MIN_SHARED_BYTES + 1), plan_of(1, 5), cores=9) == [0]
    assert shared_of(plan_of(0, 9 * MIN_SHARED_BYTES), cores=2) == []
    assert shared_of(*(plan_of(number, 9 * MIN_SHARED_BYTES) for number in range(9)), cores=9) == []


class Silent:
    """A stage with a secret that returns its input."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def receive(self, kind: int, data: memoryview) -> list[Any]:
        return [rows([0], kind, [bytes(data)])]

    def finish(self) -> list[Any]:
        return []


def test_plans_do_not_show_the_secret(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    def make() -> Silent:
        return Silent("s3cr3t")

    frame = run_stage(frame_of(spark, 0, [b"an item"]), 1, make)
    frame.explain(extended=True)
    plan = capsys.readouterr().out
    assert "Physical Plan" in plan
    assert "Distlog" in plan
    assert "s3cr3t" not in plan
    assert "an item" not in plan


def test_the_job_accepts_the_size_of_the_dedupe_buffer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark
    topic, sizes = keyed_topic(f"{tmp_path}/log", 1), list[int]()

    clean = SparkExecutor.clean

    def noted(executor: SparkExecutor, handle: Any, snapshot: Any, due: Any, dedupe_buffer_bytes: int) -> Any:
        sizes.append(dedupe_buffer_bytes)
        return clean(executor, handle, snapshot, due, dedupe_buffer_bytes)

    monkeypatch.setattr(SparkExecutor, "clean", noted)
    script = str(Path(__file__).parents[2] / "jobs" / "compact.py")
    for arguments, status in ((["--dedupe-buffer-size", "128"], 2), (["--dedupe-buffer-size", "2097152"], 0)):
        monkeypatch.setattr(sys, "argv", [script, "--topic", topic.url, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(script, run_name="__main__")
        assert ended.value.code == status
    assert (sizes, len(offsets(topic))) == ([2097152], 100)


def sent(stage: Any, *arguments: tuple[int, bytes]) -> list[tuple[int, int, bytes]]:
    batches = [batch for kind, data in arguments for batch in stage.receive(kind, memoryview(data))] + [
        *stage.finish()
    ]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_a_first_stage_failure_is_raised_instead_of_a_result(tmp_path: Path) -> None:
    topic = keyed_topic(f"{tmp_path}/log", 1)
    segments = list(topic.snapshot.partitions[0].segments)
    topic.storage.delete([topic.reader.name(segments[1])])
    keys = KeysItem(0, segments, Verdicts(), 0, first_bucket=3, buckets=1)
    rows_of_keys = sent(HashKeys(topic.handle, SECRET), (ITEM, pickle.dumps(keys)))
    ((target, _, failure),) = (row for row in rows_of_keys if row[1] == RESULT)
    assert (target, pickle.loads(failure).partition) == (3, 0)
    bucket = BucketItem(9, first_group=5, base_offsets=np.array([0]))
    assert (5, RESULT, failure) in sent(FindSuperseded(), (ITEM, pickle.dumps(bucket)), (RESULT, failure))
    # this group is sound, but its keys are incomplete
    group = GroupToClean(
        SegmentGroup(SegmentTable.of(segments[:1])), Verdicts(), 200, NOW, topic.config, topic.version
    )
    stage = RewriteGroup(topic.handle)
    assert sent(stage, (ITEM, pickle.dumps(group)), (RESULT, failure)) == [(0, RESULT, failure)]


def test_concurrently_appended_records_stay_dirty(spark: SparkSession, tmp_path: Path) -> None:
    topic = keyed_topic(f"{tmp_path}/log", 1)
    end = topic.end_offsets()[0]
    report = shared(spark, with_fixed_clock(topic, NOW), before_commit=lambda: Partition(topic, 0).append(5, 6))
    assert (report.ok, report.partitions[0].skipped_groups) == (True, 0)
    assert offsets(topic)[-2:] == [end, end + 1]
    assert topic.snapshot.partitions[0].first_dirty_offset == end
    assert shared(spark, with_fixed_clock(topic, NOW)).ok
    assert len(offsets(topic)) == 100


def test_a_group_with_a_missing_input_is_dropped_and_others_are_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = keyed_topic(f"{tmp_path}/log")
    dirty: list[int] = []

    def replace_one_group() -> None:
        now = with_fixed_clock(topic, NOW)
        dirty.append(now.snapshot.partitions[0].first_dirty_offset)
        if len(dirty) == 1:
            due = Cleanable(0, 0, topic.end_offsets()[0], 0, 1, False)
            rewritten = clean_partition(now.handle, CleaningPlan.of(now.snapshot, due))
            other = dataclasses.replace(rewritten, end_offset=0, groups=rewritten.groups[1:2])
            commit_rewrite(now.handle, now.snapshot, [other])

    report = shared(spark, with_fixed_clock(topic, NOW), before_commit=replace_one_group)
    rounds = {partition.partition: (partition.rounds, partition.skipped_groups) for partition in report.partitions}
    # dropped groups are planned again, from the present segments
    assert (rounds, dirty) == ({0: (2, 1), 1: (1, 0)}, [0, 80])
    assert (len(offsets(topic, 0)), len(offsets(topic, 1))) == (100, 100)
    assert topic.verify().ok


def test_a_partition_with_a_missing_file_is_named_once(spark: SparkSession, tmp_path: Path) -> None:
    topic = keyed_topic(f"{tmp_path}/log")
    segment = topic.snapshot.partitions[0].segments[-1]
    old_stems = [info.stem for info in topic.snapshot.partitions[0].segments]
    topic.storage.delete([topic.reader.name(segment)])
    report = shared(spark, with_fixed_clock(topic, NOW))
    (error,) = (info.error for info in report.partitions if info.partition == 0)
    assert error is not None
    assert segment.stem in error
    assert (report.ok, len(report.partitions)) == (False, 2)
    assert len(offsets(topic, 1)) == 100
    assert [info.stem for info in topic.snapshot.partitions[0].segments] == old_stems


def test_a_damaged_batch_stops_only_its_partition(spark: SparkSession, tmp_path: Path) -> None:
    topic = keyed_topic(f"{tmp_path}/log")
    name = topic.reader.name(topic.snapshot.partitions[1].segments[0])
    data = bytearray(topic.storage.read(name))
    data[-1] ^= 0xFF
    topic.storage.put(name, data)
    report = shared(spark, with_fixed_clock(topic, NOW))
    assert [partition.partition for partition in report.partitions if partition.error] == [1]
    assert len(offsets(topic, 0)) == 100


def test_a_retried_task_duplicates_nothing(spark: SparkSession, tmp_path: Path) -> None:
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
    assert report == alone(with_fixed_clock(twin, NOW))
    assert contents(topic) == contents(twin)
    assert topic.verify().ok
