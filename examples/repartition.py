"""Copy a topic, and what is appended during the copy, to a topic with another number of partitions.

    distlog create logs/clicks-16 --partitions 16
    python examples/repartition.py --source logs/clicks --target logs/clicks-16 --checkpoint /tmp/clicks-16

Records with a key go where Kafka's producer would send them. So records of one key stay in order if all were in one
partition before, as they are when the producer chose it by the key.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import distlog.spark


def start(spark: SparkSession, source: str, target: str, checkpoint: str) -> StreamingQuery:
    """Start the copy, or continue from its checkpoint; it ends when all records are copied."""
    options = {"startingOffsets": "earliest", "includeHeaders": "true"}
    records = spark.readStream.format("distlog").options(**options).load(source)
    stream = records.select("key", "value", "timestamp", "headers").writeStream.format("distlog")
    return stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("source", "target", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    start(
        distlog.spark.session("repartition"), arguments.source, arguments.target, arguments.checkpoint
    ).awaitTermination()
