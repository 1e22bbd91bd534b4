"""Spark estimates the size of a read: joins broadcast a small topic and never a large one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

import distlog
from distlog.spark import read

pytestmark = pytest.mark.spark

LARGE, SMALL, THRESHOLD = 2000, 20, 40_000
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "EiB": 1 << 60}


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> tuple[distlog.Topic, distlog.Topic]:
    """Return a topic above the threshold in several tasks, and one below with keys that are in both."""
    new_topics, root = [], tmp_path_factory.mktemp("joins")
    for name, count in (("large", LARGE), ("small", SMALL)):
        topic = distlog.create(str(root / name), partitions=2)
        topic.append([{"key": b"%d" % i, "value": b"%0100d" % i, "partition": i % 2} for i in range(count)])
        new_topics.append(topic)
    return new_topics[0], new_topics[1]


@pytest.fixture(params=["aqe", "planned once", "cbo"])
def planner(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    settings = {
        "spark.sql.autoBroadcastJoinThreshold": str(THRESHOLD),
        "spark.sql.adaptive.enabled": str(request.param != "planned once").lower(),
        "spark.sql.cbo.enabled": str(request.param == "cbo").lower(),
    }
    old_settings = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in old_settings.items():
        spark.conf.set(name, str(value))


def plan(frame: DataFrame, capsys: pytest.CaptureFixture[str], mode: str = "simple") -> str:
    frame.explain(mode)
    return capsys.readouterr().out


def size_of(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> float:
    """Return Spark's estimate of bytes in the plan's first line."""
    number, unit = re.findall(r"sizeInBytes=([\d.]+) (\w+)", plan(frame, capsys, "cost"))[0]
    return float(number) * UNITS[unit]


def test_the_estimate_is_the_size_of_the_rows(
    planner: SparkSession,
    topics: tuple[distlog.Topic, distlog.Topic],
    capsys: pytest.CaptureFixture[str],
) -> None:
    large, small = topics
    for topic, count in ((large, LARGE), (small, SMALL)):
        for columns, width in ((["key", "value"], 110), (["offset", "partition"], 24), (None, 180)):
            for tasks in (1, 5):
                estimate = size_of(read(planner, topic, columns, min_partitions=tasks), capsys)
                assert count * width / 2 < estimate < count * width * 2, (columns, tasks)
    assert size_of(read(planner, large, ["value"], limit=LARGE // 100), capsys) < 2 * LARGE
    assert size_of(read(planner, large, ["value"], end={0: 5}, partitions=[0]), capsys) < 5000
    assert size_of(read(planner, large, ["value"], end={0: 0}, partitions=[0]), capsys) < 100


def test_joins_broadcast_a_small_topic_and_never_a_large_one(
    planner: SparkSession,
    topics: tuple[distlog.Topic, distlog.Topic],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, topic in zip(("large", "small"), topics, strict=True):
        read(planner, topic, ["key", "value"], min_partitions=4).createOrReplaceTempView(name)
    for query, expected, broadcast in (
        ("SELECT * FROM large a JOIN large b ON a.key = b.key", LARGE, False),
        ("SELECT * FROM large a LEFT JOIN large b ON a.key = b.key", LARGE, False),
        ("SELECT * FROM large WHERE key IN (SELECT key FROM large)", LARGE, False),
        ("SELECT * FROM large EXCEPT SELECT * FROM large", 0, False),
        ("SELECT * FROM large a JOIN (SELECT * FROM small UNION ALL SELECT * FROM large) b ON a.key = b.key",
         LARGE + SMALL, False),
        ("SELECT * FROM large a JOIN small b ON a.key = b.key", SMALL, True),
        ("SELECT * FROM small a JOIN large b ON a.key = b.key", SMALL, True),
        ("SELECT * FROM large WHERE key IN (SELECT key FROM small)", SMALL, True),
        ("SELECT * FROM large EXCEPT SELECT * FROM small", LARGE - SMALL, True),
    ):  # fmt: skip
        frame = planner.sql(query)
        assert ("BroadcastHashJoin" in plan(frame, capsys)) == broadcast, query
        assert len(frame.collect()) == expected, query
        run = plan(frame, capsys)
        assert ("BroadcastHashJoin" in run) == broadcast, query
        assert "isFinalPlan=false" not in run


@pytest.mark.parametrize("planner", ["aqe", "planned once"], indirect=True)
def test_the_format_is_broadcast_only_if_it_proves_small_at_run_time(
    planner: SparkSession,
    topics: tuple[distlog.Topic, distlog.Topic],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Spark requests no size from a Python data source, and assumes the largest."""
    for name, topic in zip(("large", "small"), topics, strict=True):
        loaded = planner.read.format("distlog").load(topic.url).select("key", "value")
        assert size_of(loaded, capsys) > THRESHOLD
        loaded.createOrReplaceTempView(name)
    is_adaptive = planner.conf.get("spark.sql.adaptive.enabled") == "true"
    for query, expected, broadcast in (
        ("SELECT * FROM large a JOIN large b ON a.key = b.key", LARGE, False),
        ("SELECT * FROM large WHERE key IN (SELECT key FROM large)", LARGE, False),
        ("SELECT * FROM large EXCEPT SELECT * FROM large", 0, False),
        ("SELECT * FROM large a JOIN (SELECT * FROM small UNION ALL SELECT * FROM large) b ON a.key = b.key",
         LARGE + SMALL, False),
        ("SELECT * FROM large a JOIN small b ON a.key = b.key", SMALL, True),
        ("SELECT * FROM large WHERE key IN (SELECT key FROM small)", SMALL, True),
    ):  # fmt: skip
        frame = planner.sql(query)
        assert "BroadcastHashJoin" not in plan(frame, capsys), query
        assert len(frame.collect()) == expected, query
        run = plan(frame, capsys).partition("== Initial Plan ==")[0]
        assert ("BroadcastHashJoin" in run) == (broadcast and is_adaptive), query
