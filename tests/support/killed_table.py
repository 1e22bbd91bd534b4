"""Two runs of to_table that are killed at once: one within a batch, one when it is written and not yet noted.

python killed_table.py BATCH TOPIC TABLE_OF_A_PART TABLE_OF_ALL
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from pyspark.sql import DataFrame

from distlog.spark import session, tables, to_table


def main(killed: str, url: str, part: str, whole: str) -> None:
    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.local.dir": f"{part}.spark"}
    spark = session("killed", **settings)
    jvm = spark.sparkContext._gateway.proc.pid
    write: Any = tables._Writer.write
    is_partly_there = threading.Event()

    def write_and_die(self: Any, frame: DataFrame, batch: int) -> None:
        dies = batch == int(killed)
        if dies and self.table == part:
            frame.limit(1).write.parquet(f"{part}/batch={batch}")
            is_partly_there.set()
            threading.Event().wait()
        write(self, frame, batch)
        if dies:
            is_partly_there.wait()
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    tables._Writer.write = write_and_die  # type: ignore[method-assign]
    threading.Thread(target=to_table, args=(spark, url, part), kwargs={"max_offsets": 10}, daemon=True).start()
    to_table(spark, url, whole, max_offsets=10)


if __name__ == "__main__":
    main(*sys.argv[1:])
