"""Copy a topic from a Kafka cluster to distlog, or back, by Spark's own Kafka connector.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 examples/kafka_copy.py \\
        --servers localhost:9092 --topic clicks --log logs/clicks --checkpoint /tmp/from-kafka
    spark-submit --packages ... examples/kafka_copy.py --back --servers ... --topic clicks --log logs/clicks ...

From Kafka each record is copied once, to the partition that it had. Spark's Kafka sink writes at least once, so a
record may be in Kafka twice after a crash. Both directions are one query whose two ends change places: the columns
and the options of the two formats are the same.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import distlog.spark

COLUMNS = ("key", "value", "headers", "partition", "timestamp")
#: Spark's Kafka sink gives each record the time of its copy.
KAFKA_COLUMNS = ("key", "value", "headers", "partition")


def from_kafka(spark: SparkSession, servers: str, topic: str, log: str, checkpoint: str) -> StreamingQuery:
    """Start the copy from Kafka, or continue from its checkpoint; it ends when all records are copied."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}
    records = spark.readStream.format("kafka").options(**options, startingOffsets="earliest").load()
    stream = records.select(*COLUMNS).writeStream.format("distlog")
    return stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(log)


def to_kafka(spark: SparkSession, servers: str, topic: str, log: str, checkpoint: str) -> StreamingQuery:
    """Begin the copy to Kafka."""
    options = {"startingOffsets": "earliest", "includeHeaders": "true"}
    records = spark.readStream.format("distlog").options(**options).load(log)
    stream = records.select(*KAFKA_COLUMNS).writeStream.format("kafka")
    stream = stream.options(**{"kafka.bootstrap.servers": servers, "topic": topic})
    return stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("servers", "topic", "log", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--back", action="store_true", help="from distlog to Kafka")
    arguments = parser.parse_args()
    copy = to_kafka if arguments.back else from_kafka
    session = distlog.spark.session("Kafka copy")
    copy(session, arguments.servers, arguments.topic, arguments.log, arguments.checkpoint).awaitTermination()
