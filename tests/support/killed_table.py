"""A run of to_table that is killed within a batch: in its middle, or when it is written and not yet noted.

python killed_table.py TOPIC TABLE BATCH (before|after)
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark.sql import DataFrame

from distlog.spark import session, tables, to_table


def main(url: str, table: str, killed: str, when: str) -> None:
    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.local.dir": f"{table}.spark"}
    spark = session("killed", **settings)
    jvm = spark.sparkContext._gateway.proc.pid
    write: Any = tables._Writer.write

    def write_and_die(self: Any, frame: DataFrame, batch: int) -> None:
        dies = batch == int(killed)
        if dies and when == "before":  # a part of the batch is there
            frame.limit(1).write.parquet(f"{table}/batch={batch}")
        if not dies or when == "after":
            write(self, frame, batch)
        if dies:
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    tables._Writer.write = write_and_die  # type: ignore[method-assign]
    to_table(spark, url, table, max_offsets=10)


if __name__ == "__main__":
    main(*sys.argv[1:])
