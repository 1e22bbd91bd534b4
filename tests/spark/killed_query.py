"""A streaming query whose JVM is killed after the sink's commit of batch 1, before Spark notes that it is done.

python killed_query.py sink|foreachBatch FOLDER URL
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
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


def main(kind: str, folder: str, url: str) -> None:
    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.local.dir": folder}
    spark = session("killed", **settings)
    jvm = spark.sparkContext._gateway.proc.pid
    stream = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(f"{folder}/in")
    query = stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)

    def write_and_kill(frame: DataFrame, batch: int) -> None:
        frame.write.format("distlog").mode("append").save(url)
        if batch == KILLED_BATCH:
            os.kill(jvm, signal.SIGKILL)

    if kind == "sink":
        KilledSource.jvm = jvm
        spark.dataSource.register(KilledSource)
        query = query.format("killed").option("path", url)
    else:
        query = query.foreachBatch(write_and_kill)
    query.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
