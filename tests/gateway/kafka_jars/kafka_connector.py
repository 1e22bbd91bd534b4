"""Spark's own Kafka source and sink, through the gateway: python kafka_connector.py ADDRESS JARS FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(address: str, jars: str, folder: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = (
        builder.config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar"))))
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    position = {"kafka.bootstrap.servers": address}
    rows = spark.range(1000).selectExpr("cast(id % 7 AS string) AS key", "cast(id AS string) AS value")
    rows.write.format("kafka").options(**position, topic="clicks").save()
    read = spark.read.format("kafka").options(**position, subscribe="clicks").load()
    print("batch", read.count(), read.selectExpr("sum(cast(cast(value AS string) AS long))").head()[0])
    stream = (
        spark.readStream.format("kafka").options(**position, subscribe="clicks", startingOffsets="earliest").load()
    )
    copied = stream.selectExpr("key", "value").writeStream.format("kafka").options(**position, topic="copies")
    query = copied.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    print("stream", spark.read.format("kafka").options(**position, subscribe="copies").load().count())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
