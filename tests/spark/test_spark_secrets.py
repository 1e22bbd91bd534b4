"""Secrets of a storage reach the tasks, but stand in no plan and in no line of Spark's event log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Address
from forked_programs import run as run_program
from spark_python import forked_python

from distlog.core.errors import InvalidConfigError
from distlog.spark.options import check_hidden

pytestmark = pytest.mark.spark

#: Appends, reads and streams in each way, with a topic at argv[1], an S3 server at argv[2], and files in argv[3].
PROGRAM = """
import sys
import distlog
from distlog.spark import append, frames, read, register, session

url, endpoint, folder, kind = sys.argv[1:]
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
if kind == "connect":
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.remote("local[1]")
    for name, value in settings.items():
        builder.config(name, value)
    spark = builder.getOrCreate()
else:
    spark = session("secrets", **{"spark.master": "local[1]"}, **settings)

topic = distlog.create(url, storage_options=secrets)
rows = spark.range(3).selectExpr("cast(id as string) as value")
assert append(rows, url, storage_options=secrets).record_count == 3
assert append(rows, topic.refresh()).record_count == 3
read(spark, url, storage_options=secrets).createOrReplaceTempView("map_in_arrow")

register(spark, storage_options=secrets)
rows.write.format("distlog").mode("append").save(url)
loaded = spark.read.format("distlog").load(url)
loaded.createOrReplaceTempView("source")
views = ["map_in_arrow", "source"]
if kind != "connect":
    def none() -> None:
        raise ImportError
    frames.require_minimum_pandas_version = none
    read(spark, topic.refresh()).createOrReplaceTempView("no_pandas")
    views.append("no_pandas")
for view in views:
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
spark.stop()
print("done")
"""


@pytest.mark.s3
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_secrets_stand_in_no_event_no_plan_no_log_and_no_checkpoint(
    kind: str, s3_url: Address, tmp_path: Path
) -> None:
    if kind == "connect":
        pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    (tmp_path / "events").mkdir()
    given, environment = (
        (s3_url.url, s3_url.options["endpoint_url"], tmp_path, kind),
        {**os.environ, **forked_python()},
    )
    run = run_program(PROGRAM, *given, env=environment, imports=["distlog.spark"], timeout=1000)
    assert (run.returncode, run.stdout.splitlines()[-1:]) == (0, ["done"]), run.stderr
    assert "HUSH" not in run.stdout + run.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if b"HUSH" in path.read_bytes()] == []
    events = next((tmp_path / "events").iterdir()).read_text(encoding="utf-8")
    # the log is what it would stand in
    assert "SparkListenerSQLExecutionStart" in events
    assert ("SparkListenerConnectOperationStarted" in events) == (kind == "connect")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("account_key", "x"),
        ("connection_string", "AccountName=a;AccountKey=x"),
        ("sas", "x"),
        ("passwd", "x"),
        ("passphrase", "x"),
        ("credential", "x"),
        ("client_kwargs", '{"verify": false, "passwd": "x"}'),
        ("client_kwargs", '{"inner": {"account_key": "x"}}'),
        ("client_kwargs", '{"headers": {"X-Api-Key": "x"}}'),
        ("client_kwargs", '{"connection-string": "x"}'),
        ("endpoint_url", "https://user:hush@host/"),
    ],
)
def test_an_option_with_a_secret_that_spark_would_show_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"storage.{name} holds a secret.*register") as refused:
        check_hidden({f"storage.{name}": value})
    assert value not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("storage.endpoint_url", "https://private.host:9000/"),
        ("storage.secret", "hidden by Spark"),
        ("storage.token", "hidden by Spark"),
        ("storage.client_kwargs", '{"region_name": "us-east-1", "verify": false}'),
        ("storage.client_kwargs", '{"aws_secret_access_key": "hidden by Spark"}'),
        ("path", "/data/passwd"),
        ("storage.use_ssl", "true"),
    ],
)
def test_other_options_pass(name: str, value: str) -> None:
    check_hidden({name: value})
