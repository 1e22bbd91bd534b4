"""By Spark Connect, in one JVM: tasks append, sizes of reads are estimated, topics are tables, secrets hidden."""

from __future__ import annotations

import pytest
from addresses import S3Server
from secret_uses import Ran, run_with_secrets

import distlog

pytestmark = [pytest.mark.spark, pytest.mark.s3]

LARGE, SMALL, THRESHOLD = 5000, 50, 100_000
APPENDED = 2 * "{0: (0, 25000), 1: (0, 25000)}\n" + "[True, True] 10\n"
SIZES = """
from distlog.spark import register_tables

threshold, large, small, appended = more
rows = spark.range(0, 50_000, 1, 5).selectExpr("cast(id as string) value", "cast(id % 2 as int) partition")
for _ in range(2):
    print(append(rows, appended, app_id="nightly", batch_id=1).offsets)
in_order = [
    distlog.open(appended).scan(partitions=number).to_table()["value"].to_pylist()
    == [b"%d" % value for value in range(number, 50_000, 2)]
    for number in (0, 1)
]
print(in_order, distlog.open(appended).segments().num_rows)
spark.conf.set("spark.sql.autoBroadcastJoinThreshold", threshold)
for name, url in (("large", large), ("small", small)):
    read(spark, url, ["key", "value"], min_partitions=2).createOrReplaceTempView(name)
for other in ("large", "small"):
    joined = spark.sql(f"SELECT a.key FROM large a JOIN {other} b ON a.key = b.key")
    joined.explain()
    print(joined.count())
for name in register_tables(spark, large.rpartition("/")[0]):
    print(name, spark.sql(f"SELECT count(*) FROM {name}").first()[0])
"""


@pytest.fixture(scope="module")
def ran(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    root, urls = tmp_path_factory.mktemp("sizes"), []
    for name, count in (("large", LARGE), ("small", SMALL)):
        topic = distlog.create(str(root / name), partitions=2)
        topic.append([{"key": b"%d" % i, "value": b"%0100d" % i, "partition": i % 2} for i in range(count)])
        urls.append(topic.url)
    urls.append(distlog.create(str(tmp_path_factory.mktemp("appended") / "topic"), partitions=2).url)
    folder = tmp_path_factory.mktemp("secrets")
    return run_with_secrets(s3_server.address(), folder, THRESHOLD, *urls, end=SIZES)


def test_secrets_are_in_no_event_plan_log_or_checkpoint(ran: Ran) -> None:
    assert "SparkListenerConnectOperationStarted" not in ran.classic_events
    assert "SparkListenerConnectOperationStarted" in ran.all_events


def test_tasks_append_rows_in_order_and_a_repeated_append_adds_nothing(ran: Ran) -> None:
    assert ran.printed.startswith(APPENDED)


def test_sizes_are_known_and_topics_are_views(ran: Ran) -> None:
    joins, *views = ran.printed.partition(APPENDED)[2].rsplit("\n", 3)[:-1]
    assert views == [f"`large` {LARGE}", f"`small` {SMALL}"]
    large, small = joins.split(f"{LARGE}\n")
    assert ("SortMergeJoin" in large, "BroadcastHashJoin" in large) == (True, False)
    assert ("BroadcastHashJoin" in small, small.splitlines()[-1]) == (True, str(SMALL))
