"""`distlog.spark.append`: the writing tasks, the order of rows, files of retried tasks, and reads of the input."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import distlog
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.spark import append

pytestmark = pytest.mark.spark


@pytest.fixture
def ranges(spark: SparkSession) -> Iterator[int]:
    """Return the number of ranges of a sort: Spark merges small ones by default."""
    settings = {"spark.sql.adaptive.coalescePartitions.enabled": "false", "spark.sql.shuffle.partitions": "5"}
    old_settings = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield 5
    for name, value in old_settings.items():
        spark.conf.set(name, value or "")


def values(topic: distlog.Topic, partition: int | None = None) -> list[bytes]:
    all_values: list[bytes] = topic.refresh().scan(partitions=partition).to_table()["value"].to_pylist()
    return all_values


def segments(topic: distlog.Topic) -> int:
    return topic.refresh().segments().num_rows


def test_tasks_write_rows_in_the_order_of_sparks_partitions(spark: SparkSession, topic: distlog.Topic) -> None:
    rows = spark.range(0, 50_000, 1, 5).selectExpr("cast(id as string) value", "cast(id % 2 as int) partition")
    result = append(rows, topic)
    assert (result.version, result.offsets) == (1, {0: (0, 25_000), 1: (0, 25_000)})
    for partition in (0, 1):
        assert values(topic, partition) == [b"%d" % number for number in range(partition, 50_000, 2)]
    assert segments(topic) == 10


def test_all_columns_pass_through_tasks_unchanged(spark: SparkSession, topic: distlog.Topic) -> None:
    rows = spark.sql(
        "select encode('k', 'utf-8') key, cast(null as string) value, timestamp_millis(1700000000123) timestamp,"
        " array(struct('h' as key, encode('x', 'utf-8') as value)) headers, 1 partition from range(0, 20000, 1, 2)"
    )
    assert append(rows, topic).offsets == {1: (0, 20_000)}
    last = topic.refresh().scan().to_table().slice(19_999).to_pylist()[0]
    assert (last["key"], last["value"], last["headers"]) == (b"k", None, [{"key": "h", "value": b"x"}])
    assert last["timestamp"].timestamp() == 1_700_000_000.123


def test_few_rows_are_written_by_the_driver(spark: SparkSession, topic: distlog.Topic, tmp_path: Path) -> None:
    pq.write_table(pa.table({"value": [b"%d" % number for number in range(1000)]}), tmp_path / "few.parquet")
    by_plan = spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) value")
    for rows in (by_plan, spark.read.parquet(str(tmp_path / "few.parquet"))):
        append(rows.withColumn("partition", F.lit(0)), topic)
        with pytest.raises(InvalidRecordError, match="partition"):
            append(rows.withColumn("partition", F.lit(2)), topic)
    assert values(topic, 0) == 2 * [b"%d" % number for number in range(1000)]
    assert segments(topic) == 2


def test_a_small_file_of_many_rows_is_written_by_tasks(
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"value": pa.nulls(30_000, pa.binary())}), tmp_path / "nulls.parquet")
    assert append(spark.read.parquet(str(tmp_path / "nulls.parquet")), topic).record_count == 30_000


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_failed_attempts_leave_no_readable_records(spark: SparkSession, topic: distlog.Topic) -> None:
    def fail_late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context
        yield from batches
        if context.attemptNumber() == 0 and context.partitionId() == 1:
            raise ValueError("the first attempt fails when its rows are written")

    rows = spark.range(0, 60_000, 1, 3).selectExpr("cast(id as string) value", "0 partition")
    append(rows.mapInArrow(fail_late, rows.schema), topic)
    assert values(topic, 0) == [b"%d" % number for number in range(60_000)]


def test_order_by_sorts_the_log_in_parallel_and_keeps_the_order_of_equal_keys(
    spark: SparkSession, topic: distlog.Topic, ranges: int
) -> None:
    # later partitions of Spark have earlier times, and each time is in every partition
    rows = spark.range(0, 60_000, 1, 6).selectExpr(
        "cast(id as string) value", "(59999 - id) % 700 at", "cast(id % 3 = 0 as int) partition"
    )
    append(rows, topic, value="value", order_by=["at"])
    for partition in (0, 1):
        mine = [number for number in range(60_000) if (number % 3 == 0) == bool(partition)]
        mine.sort(key=lambda number: (59_999 - number) % 700)
        assert values(topic, partition) == [b"%d" % number for number in mine]
    assert segments(topic) == 2 * ranges


@pytest.mark.usefixtures("ranges")
def test_order_by_takes_columns_in_falling_order_and_rows_without_a_key(
    spark: SparkSession, topic: distlog.Topic
) -> None:
    numbers = random.Random(0).sample(range(20_000), 20_000)
    table = pa.table({"value": [str(number) for number in numbers], "at": pa.array(numbers, pa.int32())})
    rows = spark.createDataFrame(table).withColumn("partition", F.lit(0))
    append(rows, topic, value="value", order_by=F.when(F.col("at") >= 10, F.col("at")).desc_nulls_first())
    nulls = [number for number in numbers if number < 10]
    assert values(topic, 0) == [b"%d" % number for number in [*nulls, *range(19_999, 9, -1)]]


def test_invalid_order_by_is_refused(spark: SparkSession, topic: distlog.Topic) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) value", "id at")
    with pytest.raises(InvalidConfigError, match="give shuffle or order_by"):
        append(rows, topic, value="value", order_by="at", shuffle=True)
    wrong: Any = [1]
    with pytest.raises(InvalidRecordError, match=r"names of columns, or Columns \(type=int\)"):
        append(rows, topic, value="value", order_by=wrong)
    assert topic.refresh().version == 0
