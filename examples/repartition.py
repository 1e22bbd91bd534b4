"""Copy a topic, and what is appended to it meanwhile, to a topic with another number of partitions.

    distlog create logs/clicks-16 --partitions 16
    python examples/repartition.py --source logs/clicks --target logs/clicks-16 --checkpoint /tmp/clicks-16

Records with a key go where Kafka's producer would send them. So records of one key stay in order if all of them were
in one partition before, as they are when the producer chose it by the key.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import distlog.spark


def start(spark: SparkSession, source: str, target: str, checkpoint: str) -> StreamingQuery:
    """Begin the copy, or go on where its checkpoint says; it ends when all that is there was copied."""
    options = {"startingOffsets": "earliest", "includeHeaders": "true"}
    records = spark.readStream.format("distlog").options(**options).load(source)
    stream = records.select("key", "value", "timestamp", "headers").writeStream.format("distlog")
    return stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("source", "target", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    chosen = parser.parse_args()
    start(distlog.spark.session("repartition"), chosen.source, chosen.target, chosen.checkpoint).awaitTermination()
