"""A program that uses the secrets of a storage on Spark in each way, and leaves them nowhere."""

from __future__ import annotations

import os
from pathlib import Path

from conftest import Address
from forked_programs import run
from spark_python import forked_python

_SETTINGS = """
import sys
import distlog
from distlog.spark import append, frames, read, register, session

url, endpoint, folder, *more = sys.argv[1:]
secrets = {"key": "HUSH-KEY", "secret": "HUSH-WORD", "token": "HUSH-TOKEN", "endpoint_url": endpoint}
settings = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": f"file://{folder}/events",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.debug.maxToStringFields": "1000",
}
"""
#: Appends, reads and streams, with a topic at argv[1], an S3 server at argv[2], and files in argv[3].
_USES = """
topic = distlog.create(url, storage_options=secrets)
rows = spark.range(3).selectExpr("cast(id as string) as value")
assert append(rows, url, storage_options=secrets).record_count == 3
assert append(rows, topic.refresh()).record_count == 3
read(spark, url, storage_options=secrets).createOrReplaceTempView("map_in_arrow")

register(spark, storage_options=secrets)
rows.write.format("distlog").mode("append").save(url)
loaded = spark.read.format("distlog").load(url)
loaded.createOrReplaceTempView("source")
for view in ("map_in_arrow", "source", *more_views(topic)):
    (row,) = spark.sql(f"SELECT count(*) AS rows FROM {view}").collect()
    assert row.rows == (6 if view == "map_in_arrow" else 9), (view, row)
    for mode in ("extended", "formatted", "cost"):
        spark.sql(f"SELECT * FROM {view}").explain(mode)

distlog.create(url + "-copy", storage_options=secrets)
stream = spark.readStream.format("distlog").option("startingOffsets", "earliest").load(url)
writer = stream.writeStream.format("distlog").option("checkpointLocation", f"{folder}/checkpoint")
query = writer.trigger(availableNow=True).start(url + "-copy")
query.awaitTermination()
query.explain(True)
assert distlog.open(url + "-copy", storage_options=secrets).scan().to_table().num_rows == 9
"""


def run_with_secrets(begin: str, address: Address, folder: Path, *more: object, end: str = "") -> tuple[str, str]:
    """Run `begin`, uses of secrets, and `end`; returns what `end` printed, and Spark's event log.

    `begin` makes `spark` of `settings`, and `more_views`, a function that gives names of further views of a topic.
    Both know `more`, as strings. Fails if a secret is printed, or stands in a file below `folder`.
    """
    (folder / "events").mkdir()
    program = f"{_SETTINGS}{begin}{_USES}print('used')\n{end}\nspark.stop()\n"
    given, environment = (
        (address.url, address.options["endpoint_url"], folder, *more),
        {**os.environ, **forked_python()},
    )
    ran = run(program, *given, env=environment, imports=["distlog.spark"], timeout=1000)
    _, used, printed = ran.stdout.partition("used\n")
    assert (ran.returncode, used) == (0, "used\n"), ran.stderr
    assert "HUSH" not in ran.stdout + ran.stderr
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if b"HUSH" in path.read_bytes()] == []
    events = next((folder / "events").iterdir()).read_text(encoding="utf-8")
    # the log is what it would stand in
    assert "SparkListenerSQLExecutionStart" in events
    return printed, events
