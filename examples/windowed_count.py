"""Count records by key and minute with a watermark, and append each finished count to another topic.

    python examples/windowed_count.py --source logs/clicks --target logs/clicks-per-minute --checkpoint /tmp/counts

A count is finished when the watermark has passed its window; later records of that window are dropped.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

import distlog.spark


def counts(records: DataFrame) -> DataFrame:
    """One row for each key and minute: the count as JSON, under the key."""
    minutes = sql.window("timestamp", "1 minute")
    counted = records.withWatermark("timestamp", "10 minutes").groupBy(minutes, "key").count()
    value = sql.to_json(sql.struct(sql.col("window.start").alias("minute"), "count"))
    return counted.select("key", value.alias("value"), sql.col("window.start").alias("timestamp"))


def start(spark: SparkSession, source: str, target: str, checkpoint: str) -> StreamingQuery:
    """Start the query, or continue from its checkpoint; it ends when all records are read."""
    records = spark.readStream.format("distlog").option("startingOffsets", "earliest").load(source)
    stream = counts(records).writeStream.format("distlog").outputMode("append")
    return stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("source", "target", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    start(
        distlog.spark.session("windowed count"), arguments.source, arguments.target, arguments.checkpoint
    ).awaitTermination()
