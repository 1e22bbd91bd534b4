"""`distlog.spark.append` in batches limited by rows: small rows, large rows, and Python in the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import distlog
from distlog.spark import append, read
from distlog.spark.appends import BATCH_ROWS, ROW_BYTES, RowLimit

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")]

SETTINGS = ("spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "clicks"))


def records(topic: distlog.Topic) -> pa.Table:
    return topic.refresh().scan(columns=["key", "value"]).to_table()


def jobs(spark: SparkSession, group: str, work: Callable[[], Any]) -> int:
    spark.sparkContext.setJobGroup(group, group)
    try:
        work()
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_small_rows_come_in_batches_of_rows_and_the_session_keeps_its_settings(
    spark: SparkSession, topic: distlog.Topic
) -> None:
    previous = {name: spark.conf.get(name) for name in SETTINGS}
    rows = spark.range(0, 3 * BATCH_ROWS, 1, 1).selectExpr("cast(id as string) value")
    limit = RowLimit.of(rows)
    assert limit

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"rows": [batch.num_rows for batch in batches]})

    assert [row[0] for row in limit.rows.mapInArrow(count, "rows long").collect()] == [BATCH_ROWS] * 3
    assert jobs(spark, "small", lambda: append(rows, topic)) == 1
    assert records(topic)["value"].to_pylist() == [b"%d" % number for number in range(3 * BATCH_ROWS)]
    assert {name: spark.conf.get(name) for name in SETTINGS} == previous


def test_rows_of_the_largest_size_go_in_one_job_and_a_longer_key_or_value_in_two(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, key, value, expected in (
        ("most", 4, ROW_BYTES - 4, 1),
        ("value", 4, ROW_BYTES - 3, 2),
        ("key", ROW_BYTES + 1, 0, 2),
    ):
        topic = distlog.create(str(tmp_path / name))
        rows = spark.range(0, 20_000, 1, 2).selectExpr(
            f"repeat('k', if(id = 15000, {key}, 1)) key",
            f"encode(repeat('v', if(id = 15000, {value}, 1)), 'utf-8') value",
        )
        assert jobs(spark, name, lambda topic=topic, rows=rows: append(rows, topic)) == expected
        table = records(topic)
        assert table.num_rows == 20_000
        assert table.slice(15_000, 1).to_pylist() == [{"key": b"k" * key, "value": b"v" * value}]


def test_nulls_are_small(spark: SparkSession, topic: distlog.Topic) -> None:
    rows = spark.range(0, 20_000, 1, 2).selectExpr(
        "if(id % 2 = 0, null, 'k') key", "if(id % 3 = 0, null, cast(id as string)) value"
    )
    assert jobs(spark, "nulls", lambda: append(rows, topic)) == 1
    expected = [(None if n % 2 == 0 else b"k", None if n % 3 == 0 else b"%d" % n) for n in range(20_000)]
    table = records(topic)
    assert list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == expected


def test_large_rows_among_small_ones_fit_in_the_memory_of_a_jvm(spark: SparkSession, tmp_path: Path) -> None:
    """Batches without a limit of bytes would have 700 MB each; the JVM has 1 GB."""
    topic = distlog.create(str(tmp_path / "clicks"), config={"max.message.bytes": 6_000_000})
    sizes = "case when id % 1000 = 1 then 5000000 when id % 2 = 0 then 300000 when id % 4 = 1 then 30000 else 5 end"
    rows = spark.range(0, 12_000, 1, 2).selectExpr(f"repeat('v', if(id % 6000 < 4000, {sizes}, 5)) value")
    append(rows, topic, compression="lz4")
    lengths = Counter(pc.binary_length(records(topic)["value"]).to_pylist())
    assert lengths == {5_000_000: 8, 300_000: 4000, 30_000: 1992, 5: 6000}


def test_a_topic_of_large_rows_needs_one_job_per_append(spark: SparkSession, topic: distlog.Topic) -> None:
    topic.append([{"value": b"v" * 2000}])
    rows = spark.range(0, 20_000, 1, 2).selectExpr(f"repeat('v', if(id = 5, {ROW_BYTES + 1}, 1)) value")
    assert jobs(spark, "known", lambda: append(rows, topic)) == 1


def test_rows_that_differ_each_time_are_written_once(spark: SparkSession, topic: distlog.Topic) -> None:
    rows = spark.range(0, 20_000, 1, 4).selectExpr(
        f"concat(reflect('java.util.UUID', 'randomUUID'), repeat('v', if(id = 19000, {ROW_BYTES}, 0))) value"
    )
    result: list[distlog.AppendResult] = []
    assert jobs(spark, "random", lambda: result.append(append(rows, topic))) == 2
    assert result[0].offsets == {0: (0, 20_000)}
    values = records(topic)["value"].to_pylist()
    assert len(set(values)) == 20_000
    assert [len(value) for value in values] == [36] * 19_000 + [36 + ROW_BYTES] + [36] * 999
    assert jobs(spark, "again", lambda: append(rows, topic)) == 1


def test_an_observation_counts_the_rows(spark: SparkSession, topic: distlog.Topic) -> None:
    observation = Observation()
    rows = spark.range(0, 20_000, 1, 2).selectExpr("cast(id as string) value")
    append(rows.observe(observation, F.count(F.lit(1)).alias("rows")), topic)
    assert observation.get == {"rows": 20_000}


def test_python_in_the_plan_keeps_its_limit_of_bytes(
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    rows = spark.range(0, 20_000, 1, 2).selectExpr("cast(id as string) value")
    rows.write.parquet(str(tmp_path / "rows"))

    @F.udtf(returnType="value string")
    class Twice:
        def eval(self, value: str) -> Iterator[tuple[str]]:
            yield from [(value,)] * 2

    same: Any = F.udf(lambda value: value)
    topic.append([{"value": b"v"}])
    limited = [
        rows,
        spark.read.parquet(str(tmp_path / "rows")).where("value > 3").orderBy("value"),
        rows.union(rows).repartition(3),
        spark.read.format("distlog").load(topic.url).select("value"),
    ]
    by_bytes: list[DataFrame] = [
        rows.mapInArrow(lambda batches: batches, rows.schema),
        rows.select(same("value").alias("value")),
        rows.join(Twice(F.lit("4")), "value"),
        rows.select(same("value").alias("value")).cache(),
        spark.createDataFrame([("v",)], "value string"),
        rows.selectExpr("value", "array(struct('h' as key, encode('x', 'utf-8') as value)) headers"),
        read(spark, topic.url, ["value"]),
    ]
    assert [RowLimit.of(frame) is not None for frame in [*limited, *by_bytes]] == [True] * 4 + [False] * 7
    by_bytes[3].unpersist()
