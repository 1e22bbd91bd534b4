"""Uses of Spark what the tests use, for `make spark-classes`: the JVM archives the classes that it has loaded."""

from __future__ import annotations

import tempfile

import distlog
from distlog.spark import append, read, register, session


def main() -> None:
    """Write, read, join and stream, in both ways of distlog."""
    spark = session("classes", **{"spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        register(spark)
        source, copy = distlog.create(f"{folder}/source", 2), distlog.create(f"{folder}/copy", 2)
        rows = spark.range(100).selectExpr("cast(id as string) as key", "cast(id as string) as value")
        append(rows, source.url)
        rows.write.format("distlog").mode("append").save(source.url)
        read(spark, source.url).createOrReplaceTempView("read")
        spark.read.format("distlog").load(source.url).createOrReplaceTempView("loaded")
        frame = spark.sql("SELECT a.key, count(*) FROM read a JOIN loaded b ON a.key = b.key GROUP BY 1 ORDER BY 2")
        frame.explain("cost")
        frame.collect()
        stream = spark.readStream.format("distlog").option("startingOffsets", "earliest").load(source.url)
        writer = stream.writeStream.format("distlog").option("checkpointLocation", f"{folder}/checkpoint")
        writer.trigger(availableNow=True).start(copy.url).awaitTermination()
        spark.stop()


if __name__ == "__main__":
    main()
