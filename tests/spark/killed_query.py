"""Two streaming queries whose JVM is killed after each committed batch 1, before Spark notes that it is done.

python killed_query.py FOLDER_OF_FOREACHBATCH URL FOLDER_OF_SINK URL
"""

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

from distlog.spark import session
from distlog.spark.data_source import DistlogDataSource

KILLED_BATCH = 1


class KilledSource(DistlogDataSource):
    """The format distlog, until batch KILLED_BATCH is committed."""

    jvm = 0

    @classmethod
    def name(cls) -> str:
        return "killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        made = super().streamWriter(schema, overwrite)
        commit = made.commit

        def commit_and_kill(messages: Sequence[Any], batch: int) -> None:
            commit(messages, batch)
            if batch == KILLED_BATCH:
                os.kill(self.jvm, signal.SIGKILL)

        made.commit = commit_and_kill  # type: ignore[method-assign]
        return made


def main(each_folder: str, each_url: str, sink_folder: str, sink_url: str) -> None:
    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.local.dir": sink_folder}
    spark = session("killed", **settings)
    KilledSource.jvm = spark.sparkContext._gateway.proc.pid
    spark.dataSource.register(KilledSource)
    is_committed = threading.Event()

    def write_and_wait(frame: DataFrame, batch: int) -> None:
        frame.write.format("distlog").mode("append").save(each_url)
        if batch == KILLED_BATCH:
            is_committed.set()
            threading.Event().wait()

    def query(folder: str) -> DataStreamWriter:
        stream = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(f"{folder}/in")
        return stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)

    query(each_folder).foreachBatch(write_and_wait).start()
    is_committed.wait()
    query(sink_folder).format("killed").option("path", sink_url).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
