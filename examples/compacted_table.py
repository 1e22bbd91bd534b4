"""Keep a table of the latest total of each key in a compacted topic, by a stream.

    python examples/compacted_table.py --source logs/orders --target logs/totals --checkpoint /tmp/totals

The target has `cleanup.policy=compact`: whoever reads it from its start after a compaction gets each key's last
value. Spark writes updates only by `foreachBatch`; with `app_id` and `batch_id` each batch is appended exactly once.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

import distlog.spark


def totals(records: DataFrame) -> DataFrame:
    """The sum of the values of each key, as text."""
    amount = sql.col("value").cast("string").cast("long")
    return records.groupBy("key").agg(sql.sum(amount).cast("string").alias("value"))


def start(spark: SparkSession, source: str, target: str, checkpoint: str) -> StreamingQuery:
    """Start the query, or continue from its checkpoint; it ends when all records are read."""

    def append(changed: DataFrame, batch: int) -> None:
        distlog.spark.append(changed, target, app_id="totals", batch_id=batch)

    records = spark.readStream.format("distlog").option("startingOffsets", "earliest").load(source)
    stream = totals(records).writeStream.foreachBatch(append).outputMode("update")
    return stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("source", "target", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    start(
        distlog.spark.session("totals"), arguments.source, arguments.target, arguments.checkpoint
    ).awaitTermination()
