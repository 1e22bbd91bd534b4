"""Streaming queries whose JVM is killed in batch KILLED_BATCH: python killed_driver.py FOLDER"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.types import StructType

from distlog.spark import session, tables, to_table
from distlog.spark.data_source import DistlogDataSource

KILLED_BATCH, KILLED_BATCH_OF_TABLES = 1, 2


class KilledSource(DistlogDataSource):
    """The format distlog, until batch KILLED_BATCH is committed."""

    jvm = 0

    @classmethod
    def name(cls) -> str:
        return "killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        writer = super().streamWriter(schema, overwrite)
        commit = writer.commit

        def commit_and_kill(messages: Sequence[Any], batch: int) -> None:
            commit(messages, batch)
            if batch == KILLED_BATCH:
                os.kill(self.jvm, signal.SIGKILL)

        writer.commit = commit_and_kill  # type: ignore[method-assign]
        return writer


def main(folder: str) -> None:
    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.local.dir": f"{folder}/spark"}
    spark = session("killed", **settings)
    KilledSource.jvm = spark.sparkContext._gateway.proc.pid
    spark.dataSource.register(KilledSource)
    reached = {name: threading.Event() for name in ("each", "part", "whole")}

    def wait_to_be_killed(name: str) -> None:
        reached[name].set()
        threading.Event().wait()

    def write_and_wait(frame: DataFrame, batch: int) -> None:
        writer = frame.write.format("distlog").mode("append").option("txnAppId", "each").option("txnVersion", batch)
        writer.save(f"{folder}/each/clicks")
        if batch == KILLED_BATCH:
            wait_to_be_killed("each")

    write: Any = tables._ParquetWriter.write

    def write_table_and_wait(self: Any, frame: DataFrame, batch: int) -> None:
        dies, name = batch == KILLED_BATCH_OF_TABLES, os.path.basename(self.table)
        if dies and name == "part":
            frame.limit(1).write.parquet(f"{self.table}/batch={batch}")
        else:
            write(self, frame, batch)
        if dies:
            wait_to_be_killed(name)

    def query(name: str) -> DataStreamWriter:
        stream = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(f"{folder}/{name}/in")
        checkpoint = f"{folder}/{name}/checkpoint"
        return stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)

    tables._ParquetWriter.write = write_table_and_wait  # type: ignore[method-assign]
    # one after the other: Spark serializes the environment of Python functions while another query may change it
    for name in ("part", "whole"):
        paths = (spark, f"{folder}/clicks", f"{folder}/{name}")
        threading.Thread(target=to_table, args=paths, kwargs={"max_offsets": 10}, daemon=True).start()
        reached[name].wait()
    query("each").foreachBatch(write_and_wait).start()
    reached["each"].wait()
    query("sink").format("killed").option("path", f"{folder}/sink/clicks").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
