"""Programs that use the secrets of a storage on Spark in each way, and leave them nowhere."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from addresses import Address
from forked_programs import Program, run
from spark_python import forked_python

_SETTINGS = """
import sys
import distlog
from distlog.spark import append, frames, read, register, session

url, endpoint, folder, port, *more = sys.argv[1:]
secrets = {"key": "HUSH-KEY", "secret": "HUSH-WORD", "token": "HUSH-TOKEN", "endpoint_url": endpoint}
events = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": "file://EVENTS",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.ui.enabled": "false",
}
settings = {"spark.sql.shuffle.partitions": "1", "spark.sql.debug.maxToStringFields": "1000"}
"""
#: A session of its own, which serves Spark Connect.
_CLASSIC = """
served = {"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin", "spark.connect.grpc.binding.port": port}
spark = session("secrets", **{"spark.master": "local[1]"}, **events, **settings, **served)
"""
_CONNECTED = """
from pyspark.sql import SparkSession

builder = SparkSession.builder.remote(f"sc://127.0.0.1:{port}")
for name, value in settings.items():
    builder.config(name, value)
spark = builder.getOrCreate()
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
for view in ("map_in_arrow", "source"):
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


class Ran(NamedTuple):
    """The output of `end`, and Spark's events before and after the program by Spark Connect."""

    printed: str
    classic_events: str
    all_events: str


def run_with_secrets(address: Address, folder: Path, *more: object, end: str = "") -> Ran:
    """Use secrets in a session of Spark, then in one by its Spark Connect, which ends with `end`.

    `end` has the session `spark`, and `more`, as strings. Fails if a secret is printed, or stands in a file below
    `folder`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("events", "classic", "connected"):
        (folder / name).mkdir()
    environment = {**os.environ, **forked_python()}
    begin = _SETTINGS.replace("EVENTS", str(folder / "events"))
    endpoint = address.options["endpoint_url"], folder / "classic", port
    text = f"{begin}{_CLASSIC}{_USES}print('used', flush=True)\nsys.stdin.read()\nspark.stop()\n"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with tempfile.TemporaryFile("w+") as said:
        options: dict[str, Any] = {"env": environment, "imports": ["distlog.spark"], "stderr": said, **streams}
        with Program(text, f"{address.url}/classic", *endpoint, **options) as classic:
            assert classic.stdout is not None
            shown = "".join(takewhile(lambda line: line != "used\n", classic.stdout))
            classic_events = _events(folder)
            text = f"{begin}{_CONNECTED}{_USES}print('used')\n{end}\nspark.stop()\n"
            endpoint = address.options["endpoint_url"], folder / "connected", port
            program = text, f"{address.url}/connected", *endpoint, *more
            ran = run(*program, env=environment, imports=["distlog.spark"], timeout=1000)
            shown += classic.communicate(timeout=300)[0]
        said.seek(0)
        shown += said.read()
    assert classic.returncode == 0, shown
    connected, used, printed = ran.stdout.partition("used\n")
    assert (ran.returncode, used) == (0, "used\n"), ran.stderr
    assert "HUSH" not in shown + connected + printed + ran.stderr
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if b"HUSH" in path.read_bytes()] == []
    return Ran(printed, classic_events, _events(folder))


def _events(folder: Path) -> str:
    """Spark's event log so far; it is what a secret would stand in."""
    (log,) = (folder / "events").iterdir()
    events = log.read_text(encoding="utf-8")
    assert "SparkListenerSQLExecutionStart" in events
    return events
