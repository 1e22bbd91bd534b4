"""Merging by Spark: bundles are read once, parts are shuffled to the jobs that merge them, and nothing is lost."""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bundled import bundles, changed, rows, segments
from conftest import Address
from pyspark.sql import SparkSession
from topics import contents, topic_on

import distlog
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.maintenance.merge import MergeReport, merge
from distlog.core.maintenance.merge_job import do_job, jobs, read_logs
from distlog.core.maintenance.merge_plan import plan_merge
from distlog.core.storage.storage import Storage
from distlog.core.topics.topic import Topic
from distlog.spark import merging
from distlog.spark.merging import MergeParts, MergeRun, SendParts, _Parts
from distlog.spark.tasks import ITEM, PART

pytestmark = pytest.mark.spark

PARTITIONS, APPENDS, SIZE = 16, 6, 4000
#: Two partitions make a job.
JOB_BYTES = 3 * APPENDS * SIZE


def bundled_topic(url: str, options: dict[str, Any] | None = None) -> Topic:
    topic = topic_on(Storage(url, options or {}).child("t"), PARTITIONS, {"retention.ms": -1})
    for first in range(APPENDS):
        topic.append(rows(PARTITIONS, 1, first, SIZE))
    return topic


def merged(spark: SparkSession, topic: Topic, before_commit: Callable[[], object] = lambda: None) -> MergeReport:
    """Merge by a shuffle, however little it saves."""
    run = MergeRun(spark, topic.handle, JOB_BYTES, worth_requests=1)

    def late(work: Any, items: Any) -> Any:
        done = [*run(work, items)]
        before_commit()
        return done

    report, after = merge(topic.handle, topic.snapshot, late, job_bytes=JOB_BYTES)
    topic.advance(after)
    return report


def one_per_partition(topic: Topic) -> bool:
    return [len(state.segments) for state in topic.refresh().snapshot.partitions] == [1] * PARTITIONS


def test_a_shuffle_makes_what_a_merge_in_one_process_makes(spark: SparkSession, tmp_path: Path) -> None:
    topic, twin = bundled_topic(str(tmp_path / "a")), bundled_topic(str(tmp_path / "b"))
    before = contents(topic)
    assert merged(spark, topic).ok
    assert twin.compact().ok
    assert one_per_partition(topic)
    assert contents(topic) == before == contents(twin)
    assert logs_of(topic) == logs_of(twin)
    assert topic.verify().ok


def logs_of(topic: Topic) -> list[bytes]:
    parts = [topic.reader.part(one) for one in segments(topic)]
    return [bytes(topic.storage.read(part.name, part.begin, part.begin + part.size)) for part in parts]


def stages(topic: Topic, lost: int = -1) -> tuple[list[Any], int]:
    """What the two stages of a merge make, in this process, and the requests that read; one row may be lost."""
    planned = jobs(plan_merge(topic.snapshot), JOB_BYTES)
    gets = topic.storage.counters.gets
    parts = _Parts.of(planned)
    assert parts.is_worth_it(1)
    sent = [row for some in parts.tasks(1 << 20) for row in SendParts(topic.handle).take(ITEM, pickle.dumps(some))]
    work = partial(do_job, topic.handle, config=topic.config, read_version=topic.version)
    found = []
    for number, job in enumerate(planned):
        stage = MergeParts(topic.handle, work)
        [*stage.take(ITEM, memoryview(pickle.dumps((number, job))))]
        for at, batch in enumerate(sent):
            target, kind, data = (column[0].as_py() for column in batch.columns)
            if target == number and at != lost:
                assert kind == PART
                [*stage.take(kind, memoryview(data))]
        (batch,) = stage.finish()
        found.append(pickle.loads(batch["data"][0].as_py())[1])
    return found, topic.storage.counters.gets - gets


@pytest.mark.s3
def test_a_bundle_is_read_once_however_many_jobs_need_it(s3_url: Address) -> None:
    topic = bundled_topic(*s3_url)
    found, gets = stages(topic)
    assert len(found) == PARTITIONS // 2
    assert gets == APPENDS
    assert all(one.counts.tolist() == [1, 1] and not one.failed for one in found)
    _, gets = stages(topic, lost=3)
    assert gets == APPENDS + 1, "a part that did not come is read by the job"


def test_a_damaged_part_stops_its_own_partition_alone(spark: SparkSession, tmp_path: Path) -> None:
    topic = bundled_topic(str(tmp_path))
    hurt, before = topic.snapshot.partitions[5].segments[2], contents(topic)

    def flip(data: bytearray) -> None:
        data[hurt.log_position + 70] ^= 1

    changed(topic.storage, topic.reader.name(hurt), flip)
    report = merged(spark, topic)
    assert [(one.partition, "checksum" in one.reason) for one in report.failed] == [(5, True)]
    kept = [number for number in range(PARTITIONS) if number != 5]
    found = topic.scan(partitions=kept).to_table()
    assert found.num_rows == sum(len(before[number]) for number in kept)
    assert [len(state.segments) for state in topic.snapshot.partitions].count(1) == PARTITIONS - 1


def test_a_bundle_that_is_gone_fails_the_groups_that_need_it(spark: SparkSession, tmp_path: Path) -> None:
    topic = bundled_topic(str(tmp_path))
    version = topic.version
    topic.storage.delete([topic.reader.name(topic.snapshot.partitions[0].segments[2])])
    report = merged(spark, topic)
    assert [one.partition for one in report.failed] == list(range(PARTITIONS))
    assert topic.refresh().version == version


def test_a_task_that_fails_once_is_tried_again_and_nothing_is_lost_or_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = bundled_topic(str(tmp_path / "log"))
    before, driver, flag = contents(topic), os.getpid(), tmp_path / "failed"

    class FailsOnce:
        """Gives the ids of new bundles; the first task that asks is killed."""

        def __call__(self) -> str:
            if os.getpid() != driver and not flag.exists():
                flag.touch()
                os._exit(1)
            return os.urandom(16).hex()

    handle = distlog.core.topic_handle.TopicHandle.of(topic.storage, topic.name, new_id=FailsOnce())
    assert merged(spark, Topic(handle, topic.snapshot)).ok
    assert flag.exists()
    assert one_per_partition(topic)
    assert contents(topic) == before
    assert topic.verify().ok


def test_a_job_that_fails_for_good_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    topic = bundled_topic(str(tmp_path))
    before, version, driver = contents(topic), topic.version, os.getpid()

    def fails() -> str:
        if os.getpid() != driver:
            raise OSError("no more ids")
        return os.urandom(16).hex()

    handle = distlog.core.topic_handle.TopicHandle.of(topic.storage, topic.name, new_id=fails)
    with pytest.raises(Exception, match="no more ids"):
        merged(spark, Topic(handle, topic.snapshot))
    assert topic.refresh().version == version
    assert contents(topic) == before
    assert len(bundles(topic.storage)) == APPENDS


def test_groups_that_lost_an_input_meanwhile_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    topic = bundled_topic(str(tmp_path))
    before = contents(topic)

    def meanwhile() -> None:
        other = distlog.open(topic.url)
        other.delete_records({3: 2})
        other.retention()
        other.append(rows(PARTITIONS, 1, APPENDS, SIZE))

    report = merged(spark, topic, meanwhile)
    assert report.ok
    assert {group.partition for group in report.groups} == set(range(PARTITIONS)) - {3}
    after = contents(topic.refresh())
    assert after[3] == before[3][2:] + after[3][-1:]
    assert {len(found) for number, found in after.items() if number != 3} == {APPENDS + 1}
    assert topic.verify().ok


def test_a_large_bundle_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = bundled_topic(str(tmp_path))
    parts, looks = _Parts.of(jobs(plan_merge(topic.snapshot), JOB_BYTES)), list[int]()

    def looked(storage: Storage, name: str, read: SegmentTable) -> Any:
        looks.append(int(read.log_bytes.sum()))
        return read_logs(storage, name, read)

    monkeypatch.setattr(merging, "READ_BYTES", 2 * SIZE)
    monkeypatch.setattr(merging, "read_logs", looked)
    [*SendParts(topic.handle).take(ITEM, memoryview(pickle.dumps(parts)))]
    assert sum(looks) == int(parts.segments.log_bytes.sum())
    assert len(looks) > 3 * APPENDS, "a bundle has sixteen parts of more than SIZE bytes"
    assert max(looks) < 4 * SIZE
    whole = [*parts.tasks(100 * SIZE)]
    assert all(len(one.segments) % PARTITIONS == 0 for one in whole), "smaller bundles are not cut"


def test_a_job_keeps_no_row_that_it_got(tmp_path: Path) -> None:
    topic = bundled_topic(str(tmp_path))
    (job, *_) = jobs(plan_merge(topic.snapshot), JOB_BYTES)
    stage = MergeParts(topic.handle, partial(do_job, topic.handle, config=topic.config, read_version=topic.version))
    [*stage.take(ITEM, memoryview(pickle.dumps((0, job))))]
    for batch in SendParts(topic.handle).take(ITEM, memoryview(pickle.dumps(_Parts.of([job])))):
        row = memoryview(batch["data"][0].as_py())
        kept = weakref.ref(row)
        [*stage.take(PART, row)]
        del row
        assert kept() is None
    topic.storage.delete(bundles(topic.storage))
    (done,) = stage.finish()
    assert not pickle.loads(done["data"][0].as_py())[1].failed, "all logs came as rows"


def test_few_requests_are_not_worth_a_shuffle(tmp_path: Path) -> None:
    topic = bundled_topic(str(tmp_path))
    planned = jobs(plan_merge(topic.snapshot), JOB_BYTES)
    parts = _Parts.of(planned)
    # eight jobs of two partitions read each of six bundles
    assert parts.is_worth_it(8 * APPENDS - APPENDS)
    assert not parts.is_worth_it(8 * APPENDS - APPENDS + 1)
    together = _Parts.of(jobs(plan_merge(topic.snapshot), 4 * JOB_BYTES))
    assert not together.is_worth_it(1), "two jobs share the bundles: a shuffle would save half"
