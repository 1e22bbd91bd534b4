"""Compaction, verify and index rebuild as Spark tasks have the results of one process."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from addresses import Address
from pyspark import TaskContext
from pyspark.sql import SparkSession
from topics import NOW, TINY, named_files

import distlog
from distlog.core import paths
from distlog.spark import SparkExecutor
from distlog.spark.executor import SEGMENT_BYTES, cost, pack, run_tasks, target_cost

pytestmark = pytest.mark.spark

JOBS = Path(__file__).parents[2] / "jobs"


def topic_of_many_segments(url: str, options: dict[str, Any] | None = None) -> distlog.Topic:
    topic = distlog.create(url, 2, TINY, options)
    for partition in range(2):
        rows = [{"value": b"v%d" % number, "timestamp": NOW + number} for number in range(100)]
        topic.append(rows, partition=partition)
    assert topic.segments().num_rows > 4
    return topic


def damage(topic: distlog.Topic) -> list[str]:
    """Remove the first offset index, damage the last time index, and return their names."""
    segments = [segment for state in topic.snapshot.partitions for segment in state.segments]
    missing, bad = topic.reader.name(segments[0], ".index"), topic.reader.name(segments[-1], ".timeindex")
    topic.storage.delete([missing])
    topic.storage.put(bad, b"\xff" * segments[-1].time_index_bytes)
    return [missing, bad]


def bytes_of(topic: distlog.Topic) -> dict[str, bytes]:
    folders = (
        folder for folder in topic.storage.list_folders() if folder == paths.BUNDLES_DIR or not folder.startswith("_")
    )
    names = [file.name for folder in folders for file in topic.storage.list(folder)]
    return {name: topic.storage.read(name) for name in names}


def test_results_come_in_the_order_of_the_items(spark: SparkSession) -> None:
    items = list(range(7, 0, -1))
    assert run_tasks(spark, lambda item: (item, os.getpid() != driver), items) == [(item, True) for item in items]
    assert run_tasks(spark, lambda item: item, []) == []


driver = os.getpid()


def test_a_task_that_fails_once_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    flag = tmp_path / "failed"

    def fail_once(item: int) -> int:
        if item == 1 and not flag.exists():
            flag.touch()
            raise ValueError("once")
        return item

    assert run_tasks(spark, fail_once, [0, 1, 2]) == [0, 1, 2]
    assert flag.exists()


def sizes(items: Sequence[Any], target: int) -> list[list[int]]:
    return [[item.log_bytes for item in group] for group in pack(items, target)]


def test_segments_are_packed_in_their_order() -> None:
    segments = [SimpleNamespace(log_bytes=count * SEGMENT_BYTES) for count in (2, 3, 3, 19, 0, 8, 0)]
    packed = [[size // SEGMENT_BYTES for size in group] for group in sizes(segments, 10 * SEGMENT_BYTES)]
    assert packed == [[2, 3], [3], [19], [0, 8], [0]]
    assert sizes([], 10) == []


def test_thousands_of_tiny_segments_are_spread_over_the_cores() -> None:
    segments = [SimpleNamespace(log_bytes=1000) for _ in range(5000)]
    groups = sizes(segments, target_cost(segments, 8))
    assert len(groups) >= 8 * 4
    assert max(map(len, groups)) <= 128 << 20 >> 22
    assert len(sizes(segments[:10], target_cost(segments[:10], 8))) == 1


def test_a_group_of_segments_costs_the_sum_of_its_segments() -> None:
    tiny = [SimpleNamespace(log_bytes=1000) for _ in range(1000)]
    groups = [SimpleNamespace(log_bytes=1000 * 1000, segments=tiny) for _ in range(10)]
    assert sizes(groups, target_cost(groups, 8)) == [[1000 * 1000]] * 10
    assert cost(groups[0]) == sum(map(cost, tiny))


def test_a_task_takes_items_that_are_next_to_each_other_up_to_its_share_of_bytes(spark: SparkSession) -> None:
    def where(item: Any) -> tuple[int, int]:
        context = TaskContext.get()
        assert context is not None
        return item.number, context.partitionId()

    run = SparkExecutor(spark).map
    small = list(run(where, [SimpleNamespace(number=number, log_bytes=1) for number in range(10)]))
    assert [number for number, _ in small] == list(range(10))
    assert len({task for _, task in small}) == 1
    large = list(run(where, [SimpleNamespace(number=number, log_bytes=60 << 20) for number in range(4)]))
    assert [number for number, _ in large] == list(range(4))
    assert len({task for _, task in large}) == 4
    assert list(run(where, [])) == []


def test_a_whole_topic_is_verified_by_tasks_as_by_one_process(spark: SparkSession, tmp_path: Path) -> None:
    topic = topic_of_many_segments(f"{tmp_path}/log")
    assert topic.refresh().verify(executor=SparkExecutor(spark)) == topic.verify()
    assert topic.refresh().verify(executor=SparkExecutor(spark)).ok
    damage(topic)
    report = topic.refresh().verify(executor=SparkExecutor(spark))
    assert report == distlog.open(topic.url).verify()
    assert [anomaly.word for anomaly in report.anomalies][:1] == ["missing_index"]
    assert len(report.anomalies) >= 2


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.s3)])
def test_indexes_are_made_again_byte_by_byte(spark: SparkSession, request: pytest.FixtureRequest, kind: str) -> None:
    address: Address = (
        request.getfixturevalue("s3_url")
        if kind == "s3"
        else Address(str(request.getfixturevalue("tmp_path") / "log"), {})
    )
    topic = topic_of_many_segments(f"{address.url}/log", address.options)
    old_bytes = bytes_of(topic)
    names = damage(topic)
    executor = SparkExecutor(spark)
    would = topic.refresh().rebuild_indexes(dry_run=True, executor=executor)
    assert (would.ok, len(would.rebuilt)) == (True, 2)
    assert {name for name in names if bytes_of(topic).get(name) == old_bytes[name]} == set()
    report = topic.refresh().rebuild_indexes(executor=executor)
    assert (report.segments, report.dry_run) == (would.segments, False)
    assert bytes_of(topic) == old_bytes
    assert topic.refresh().verify(executor=executor).ok
    assert topic.refresh().rebuild_indexes(executor=executor).rebuilt == ()


def test_new_sizes_of_indexes_are_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    topic = topic_of_many_segments(f"{tmp_path}/log")
    topic.alter_config({"index.interval.bytes": "1000"})
    version = topic.version
    report = topic.rebuild_indexes(force=True, executor=SparkExecutor(spark))
    assert report.version == topic.version == version + 1
    assert topic.refresh().history(1)["operation"].to_pylist() == ["rebuild"]
    assert topic.verify().ok


def test_a_damaged_log_is_reported_and_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    topic = topic_of_many_segments(f"{tmp_path}/log")
    segment = topic.snapshot.partitions[1].segments[0]
    name = topic.reader.name(segment)
    data = bytearray(topic.storage.read(name))
    data[-1] ^= 1
    topic.storage.put(name, data)
    old_bytes = bytes_of(topic)
    report = topic.refresh().rebuild_indexes(force=True, executor=SparkExecutor(spark))
    assert [
        bool(segment_report.error) for segment_report in report.segments if segment_report.segment == segment
    ] == [True]
    assert (report.ok, sum(segment_report.error is not None for segment_report in report.segments)) == (False, 1)
    assert bytes_of(topic) == old_bytes


def run_job(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments, "--json"])
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOBS / f"{name}.py"), run_name="__main__")
    return ended.value.code, json.loads(capfd.readouterr().out.splitlines()[-1])


def test_the_jobs_over_a_root(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark
    for name in ("a", "b"):
        topic = topic_of_many_segments(f"{tmp_path}/{name}")
    names = damage(topic)
    status, summary = run_job(capfd, monkeypatch, "verify", "--root", str(tmp_path))
    assert (status, summary["failed"]) == (1, 1)
    assert [topic_summary["ok"] for topic_summary in summary["topics"]] == [True, False]
    assert {anomaly["file"] for anomaly in summary["topics"][1]["anomalies"]} == set(names)
    status, summary = run_job(capfd, monkeypatch, "rebuild_index", "--topic", topic.url, "--dry-run")
    assert (status, summary["topics"][0]["segments_rebuilt"]) == (0, 2)
    status, summary = run_job(capfd, monkeypatch, "rebuild_index", "--root", str(tmp_path))
    assert (status, [topic_summary["segments_rebuilt"] for topic_summary in summary["topics"]]) == (0, [0, 2])
    status, summary = run_job(capfd, monkeypatch, "verify", "--topic", topic.url)
    assert (status, summary["topics"][0]["ok"]) == (0, True)


def keyed(topic: distlog.Topic, rounds: int) -> dict[int, dict[bytes, tuple[int, bytes]]]:
    """Append keys repeatedly to two partitions; return {partition: {key: (last offset, last value)}}."""
    last: dict[int, dict[bytes, tuple[int, bytes]]] = {0: {}, 1: {}}
    for number in range(rounds):
        for partition in range(2):
            rows = [{"key": b"k%d" % key, "value": b"%d %d" % (number, key)} for key in range(partition + 2)]
            first, _ = topic.append(rows, partition=partition).offsets[partition]
            last[partition] |= {row["key"]: (first + index, row["value"]) for index, row in enumerate(rows)}
    return last


def survivors(topic: distlog.Topic) -> dict[int, dict[bytes, tuple[int, bytes]]]:
    """As `keyed`; each key must exist once."""
    table = topic.scan(columns=["partition", "key", "offset", "value"]).to_table().to_pylist()
    assert len({(row["partition"], row["key"]) for row in table}) == len(table)
    return {
        number: {row["key"]: (row["offset"], row["value"]) for row in table if row["partition"] == number}
        for number in range(2)
    }


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.s3)])
def test_a_task_per_partition_keeps_the_last_of_each_key(
    spark: SparkSession, request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    address: Address = request.getfixturevalue("s3_url") if kind == "s3" else Address(str(tmp_path), {})
    topic = distlog.create(f"{address.url}/log", 2, {"cleanup.policy": "compact"}, address.options)
    last = keyed(topic, 5)
    would = topic.refresh().compact(dry_run=True, executor=SparkExecutor(spark)).to_dict()
    assert (would["records_before"], would["records_after"], topic.refresh().version) == (25, 25, 10)
    document = topic.refresh().compact(executor=SparkExecutor(spark)).to_dict()
    assert (document["segments_before"], document["segments_after"], document["records_after"]) == (10, 2, 5)
    assert survivors(topic.refresh()) == last
    assert topic.end_offsets() == {0: 10, 1: 15}
    assert topic.verify().ok
    assert topic.refresh().compact(executor=SparkExecutor(spark)).to_table().num_rows == 0


def test_small_segments_are_merged_by_tasks(spark: SparkSession, tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", 2)
    keyed(topic, 4)
    old_table = topic.scan().to_table()
    would = topic.refresh().compact(dry_run=True, executor=SparkExecutor(spark)).to_dict()
    document = topic.refresh().compact(executor=SparkExecutor(spark)).to_dict()
    assert (document["segments_before"], document["segments_after"], document["version"]) == (8, 2, 9)
    before_it = {"version": 8, "backlog": 8, "most_segments": 4}
    assert would == {**document, "dry_run": True, **before_it}
    assert topic.refresh().scan().to_table() == old_table
    assert topic.verify().ok
    assert topic.refresh().compact(executor=SparkExecutor(spark)).to_dict()["segments_before"] == 0


def test_unmergeable_segments_are_reported_and_others_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", 2)
    keyed(topic, 4)
    name = topic.reader.name(topic.snapshot.partitions[0].segments[1])
    data = bytearray(topic.storage.read(name))
    data[70] ^= 1
    topic.storage.put(name, data)
    document = topic.refresh().compact(executor=SparkExecutor(spark)).to_dict()
    assert (document["ok"], document["segments_before"], document["segments_after"]) == (False, 4, 1)
    assert [group["partition"] for group in document["failed"]] == [0]
    assert [len(state.segments) for state in topic.refresh().snapshot.partitions] == [4, 1]


def test_all_due_maintenance(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark
    settings = {"file.delete.delay.ms": 0}
    compacted = distlog.create(f"{tmp_path}/a", 2, {**settings, "cleanup.policy": "compact"})
    last = keyed(compacted, 3)
    plain = distlog.create(f"{tmp_path}/b", 2, settings)
    keyed(plain, 3)
    old = distlog.create(f"{tmp_path}/c", 1, settings)
    old.append([{"value": "old", "timestamp": 1}])
    distlog.create(f"{tmp_path}/d", 1, settings).drop()
    status, summary = run_job(capfd, monkeypatch, "maintain", "--root", str(tmp_path), "--dry-run")
    assert (status, [topic_summary["compact"]["segments_before"] for topic_summary in summary["topics"][:3]]) == (
        0,
        [6, 6, 0],
    )
    assert compacted.refresh().scan().count() == 15
    status, summary = run_job(capfd, monkeypatch, "maintain", "--root", str(tmp_path))
    by_name = {topic_summary["topic"].rpartition("/")[2]: topic_summary for topic_summary in summary["topics"]}
    assert (status, summary["failed"], [*by_name]) == (0, 0, ["a", "b", "c", "d"])
    assert [*by_name["d"]] == ["topic", "vacuum", "ok"]
    assert list(by_name["a"]) == ["topic", "retention", "compact", "vacuum", "ok"]
    assert survivors(compacted.refresh()) == last
    assert len(plain.refresh().segments()) == 2
    assert (by_name["c"]["retention"]["segments"], len(old.refresh().segments())) == (1, 0)
    for topic in (compacted, plain, old):
        assert set(bytes_of(topic)) == named_files(topic)
        assert topic.verify().ok


def test_the_compact_job(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark
    topic = distlog.create(f"{tmp_path}/a", 2)
    keyed(topic, 2)
    status, summary = run_job(capfd, monkeypatch, "compact", "--topic", topic.url)
    assert (status, summary["topics"][0]["segments_after"], len(topic.refresh().segments())) == (0, 2, 2)
