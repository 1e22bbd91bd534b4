"""The driver of the streaming campaign: a query that copies one topic to another until the campaign ends it.

A query that fails after a kill restarts from its checkpoint in the same session.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from distlog.spark import session

CONF = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    "spark.log.level": "OFF",
    # the cause of a failure, which is not in its message
    "spark.sql.pyspark.jvmStacktrace.enabled": "true",
}


@dataclass(frozen=True)
class Job:
    """The settings of a driver, as a JSON file; it writes the errors of its queries to `failures`."""

    source: str
    target: str
    folder: str
    options: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    @property
    def failures(self) -> Path:
        return Path(self.folder, "failures")

    @property
    def end(self) -> Path:
        """The existence of this file makes the driver copy the remaining records, and end."""
        return Path(self.folder, "end")

    def write(self) -> Path:
        path = Path(self.folder, "job.json")
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


def begin(spark: SparkSession, job: Job) -> StreamingQuery:
    """Start the query: every record goes to its partition of the other topic."""
    records = (
        spark.readStream.format("distlog")
        .options(**job.options, startingOffsets="earliest", maxOffsetsPerTrigger="400")
        .load(job.source)
    )
    copied = records.select("partition", "key", "value", "timestamp").writeStream
    copied = copied.option("checkpointLocation", str(job.checkpoint))
    return copied.format("distlog").options(**job.options).start(job.target)


def copy(spark: SparkSession, job: Job) -> bool:
    """Run the query until it fails or should end; returns whether it ended."""
    try:
        query = begin(spark, job)
        while not query.awaitTermination(1):
            if job.end.exists():
                query.processAllAvailable()
                query.stop()
                return True
    except StreamingQueryException as error:
        written, number = Path(job.folder, "failure"), len(list(job.failures.iterdir()))
        written.write_text(str(error), encoding="utf-8")
        # atomic, even if this process is killed
        written.replace(job.failures / f"{number:04d}")
    return False


def main(path: str) -> None:
    job = Job(**json.loads(Path(path).read_text(encoding="utf-8")))
    spark = session("pipeline", **CONF | dict(job.conf))
    while not copy(spark, job):
        pass
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
