"""Finding a key: one of a million in a topic of 100 segments, on a disk and on an S3 server with 30 ms a request.

The peers, each over the same records: a scan of the topic, DuckDB over Parquet files whose row groups have statistics
and bloom filters, and Spark over a Delta table (`make table-jars`). `python -m benchmarks.keys 10_000_000` measures
10 GB.

Delta has no statistics of binary columns, so the keys in its table are texts. The table is read as Spark wrote it,
and again after it was Z-ordered by key.

A row's `ratio` is how many times less distlog takes than its peer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import distlog
from benchmarks.s3_server import server_process
from benchmarks.spark_peers import DELTA_SETTINGS, SETTINGS, environments
from distlog.core.topic import Topic
from distlog.spark import session

ROWS, S3_ROWS, SEGMENTS, VALUE_BYTES = 1_000_000, 200_000, 100, 1000
#: The values of records of 100 bytes.
SMALL_VALUE_BYTES = 84
DELAY_S = 0.03
READS, DELTA_READS = 20, 5
#: The size of a Z-ordered file of Delta.
FILE_BYTES = 10 << 20


def run(rows: int = ROWS, s3_rows: int = S3_ROWS) -> list[dict[str, Any]]:
    """One dict per case: milliseconds, bytes and requests of reads by key."""
    with tempfile.TemporaryDirectory() as folder:
        topic = _topic(f"{folder}/topic", rows)
        measured = list(_local(topic, rows, folder))
    with server_process() as server:
        topic = _topic(f"{server.url}/topic", s3_rows, server.options)
        server.delay(DELAY_S)
        measured += _on_s3(topic)
    return measured


def _tables(rows: int, value_bytes: int) -> Iterator[pa.Table]:
    """The records of each segment; each key comes about ten times if there are ten million records."""
    random = np.random.default_rng(11)
    part = rows // SEGMENTS
    for _ in range(SEGMENTS):
        keys = random.integers(0, 1_000_000, part)
        values = pa.py_buffer(random.integers(0, 64, part * value_bytes, np.uint8))
        yield pa.table(
            {
                "key": pa.array([b"customer-%07d" % key for key in keys.tolist()], pa.binary()),
                "value": pa.Array.from_buffers(pa.binary(value_bytes), part, [None, values]).cast(pa.binary()),
                "timestamp": pa.array(np.full(part, 1_700_000_000_000)),
            }
        )


def _topic(url: str, rows: int, options: dict[str, Any] | None = None, value_bytes: int = VALUE_BYTES) -> Topic:
    config = {"key.index.enable": True, "segment.bytes": 1 << 30, "retention.ms": -1}
    topic = distlog.create(url, config=config, storage_options=options)
    for table in _tables(rows, value_bytes):
        topic.append(table)
    return topic


def _keys(count: int) -> list[bytes]:
    """The keys to find."""
    return [b"customer-%07d" % key for key in np.random.default_rng(5).integers(0, 1_000_000, count).tolist()]


def _local(topic: Topic, rows: int, folder: str) -> Iterator[dict[str, Any]]:
    segments = list(topic.snapshot.partitions[0].segments)
    log_bytes, index_bytes = (
        sum(getattr(segment, name) for segment in segments) for name in ("log_bytes", "key_index_bytes")
    )
    keys = _keys(READS)
    parquet = _parquet(topic, folder)
    connection = duckdb.connect()

    def by_duckdb(key: bytes) -> int:
        query = f"SELECT * FROM '{parquet}/*.parquet' WHERE key = '{key.decode()}'::BLOB"
        return len(connection.sql(query).fetchall())

    def by_key(key: bytes) -> int:
        return topic.scan(keys=key).to_table().num_rows

    def by_scan(key: bytes) -> int:
        counted = (pc.sum(pc.equal(batch["key"], key)).as_py() or 0 for batch in topic.scan(columns="key"))
        return sum(counted)

    assert [by_key(key) for key in keys] == [by_duckdb(key) for key in keys]
    assert by_scan(keys[0]) == by_key(keys[0])
    size = f"{log_bytes / 1e9:.1f} GB, {len(segments)} segments"
    ours = _milliseconds(by_key, keys)
    yield _row(f"records of a key, {size}", ours, _milliseconds(by_duckdb, keys), "ms", "Parquet with bloom filters")
    yield _row(f"records of a key, {size}", ours, _milliseconds(by_scan, keys[:3]), "ms", "a scan of the keys")
    counts = [by_key(key) for key in keys[:DELTA_READS]]
    yield from _next_to_delta(f"records of a key, {size}", ours, counts, parquet)
    yield _row("the last record of a key", _milliseconds(topic.get, keys), ours, "ms", "all records of the key")
    counters = topic.storage.counters
    old_bytes = counters.bytes_read
    for key in keys:
        by_key(key)
    read_bytes = (counters.bytes_read - old_bytes) / len(keys)
    yield _row("bytes for a key", read_bytes / 1e6, log_bytes / 1e6, "MB", "a scan of the log")
    yield _row("bytes of the index", index_bytes / 1e6, log_bytes / 1e6, "MB", "the log")
    small = _topic(f"{folder}/small", rows, value_bytes=SMALL_VALUE_BYTES)
    yield _grouped("SQL: count by key", topic, parquet, connection)
    yield _grouped("SQL: count by key, records of 100 bytes", small, _parquet(small, folder), connection)
    append_ns, plain_ns = (_append_ns(f"{folder}/{name}", name == "keyed") for name in ("keyed", "plain"))
    yield _row("CPU of an append from Arrow, 50 bytes", append_ns, plain_ns, "ns/record", "without key indexes")


def _next_to_delta(case: str, ours: float, counts: list[int], parquet: Path) -> Iterator[dict[str, Any]]:
    """A row for each layout of a Delta table of the Parquet files' records; none without Delta."""
    environment = environments().get("delta")
    if environment is None:
        print("Delta is left out: run make table-jars, and set DISTLOG_TABLE_JARS", file=sys.stderr)
        return
    command = [sys.executable, "-m", "benchmarks.keys", "delta", str(parquet)]
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    for name, (milliseconds, delta_counts) in json.loads(ran.stdout.splitlines()[-1]).items():
        assert delta_counts == counts
        yield _row(case, ours, milliseconds, "ms", f"a Delta table by Spark, {name}")


def _read_delta(parquet: str) -> None:
    """Print, as a line of JSON by layout, the milliseconds of a read by key, and the counts of the keys' records."""
    spark = session("benchmark", **SETTINGS, **DELTA_SETTINGS)
    path = f"{parquet}-delta"
    records = spark.read.parquet(parquet)
    records.withColumn("key", records["key"].cast("string")).write.format("delta").save(path)
    table = spark.read.format("delta").load(path)
    keys, measured = _keys(DELTA_READS), {}

    def by_key(key: bytes) -> int:
        return len(table.where(table["key"] == key.decode()).collect())

    measured["in the order of offsets"] = _milliseconds(by_key, keys), [by_key(key) for key in keys]
    # one file of the default size would have all records
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", FILE_BYTES)
    spark.sql(f"OPTIMIZE delta.`{path}` ZORDER BY (key)")
    table = spark.read.format("delta").load(path)
    measured["Z-ordered by key"] = _milliseconds(by_key, keys), [by_key(key) for key in keys]
    print(json.dumps(measured))


def _grouped(case: str, topic: Topic, parquet: Path, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    connection.register("records", topic.dataset())
    by_dataset, by_parquet = (
        _milliseconds(partial(_count_by_key, connection, source), _keys(3))
        for source in ("records", f"'{parquet}/*.parquet'")
    )
    return _row(case, by_dataset, by_parquet, "ms", "DuckDB over Parquet")


def _count_by_key(connection: duckdb.DuckDBPyConnection, source: str, _: bytes) -> list[Any]:
    return connection.sql(f"SELECT key, count(*) FROM {source} GROUP BY key").fetchall()


def _append_ns(url: str, has_keys: bool) -> float:
    count = 1_000_000
    keys = pa.array([b"customer-%07d" % key for key in range(count)], pa.binary())
    table = pa.table({"key": keys, "value": keys, "timestamp": pa.array(np.full(count, 1_700_000_000_000))})
    topic = distlog.create(url, config={"key.index.enable": has_keys, "retention.ms": -1})
    rounds = []
    for _ in range(5):
        start = time.process_time()
        topic.append(table)
        rounds.append(1e9 * (time.process_time() - start) / count)
    return min(rounds)


def _parquet(topic: Topic, folder: str) -> Path:
    """The records as a Parquet file for each segment; DuckDB writes bloom filters of the keys."""
    target = Path(tempfile.mkdtemp(dir=folder))
    for number, segment in enumerate(topic.snapshot.partitions[0].segments):
        records = topic.scan(start=segment.base_offset, end=segment.next_offset).to_table()
        duckdb.sql(
            f"COPY records TO '{target}/{number}.parquet' "
            "(FORMAT parquet, COMPRESSION uncompressed, ROW_GROUP_SIZE 20000, DICTIONARY_SIZE_LIMIT 20000)"
        )
        del records
    return target


def _on_s3(topic: Topic) -> Iterator[dict[str, Any]]:
    segments = list(topic.snapshot.partitions[0].segments)
    keys = _keys(5)
    topic.scan(keys=keys[0]).to_table()
    counters = topic.storage.counters
    old_requests, old_bytes = counters.gets, counters.bytes_read
    hits = 0
    rounds = []
    for key in keys:
        start = time.perf_counter()
        scan = topic.scan(keys=key)
        scan.to_table()
        rounds.append(1e3 * (time.perf_counter() - start))
        hits += len(scan.slices)
    requests = (counters.gets - old_requests) / len(keys)
    read_bytes = (counters.bytes_read - old_bytes) / len(keys)
    start = time.perf_counter()
    topic.scan(columns="key").to_table()
    scan_ms = 1e3 * (time.perf_counter() - start)
    log_bytes = sum(segment.log_bytes for segment in segments)
    case = f"{len(segments)} segments on S3, 30 ms a request"
    yield _row(f"a key, {case}", median(rounds), scan_ms, "ms", "a scan of the keys")
    yield _row(f"requests for a key, {case}", requests, len(segments) + hits / len(keys), "requests", "one each")
    yield _row(f"bytes for a key, {case}", read_bytes / 1e6, log_bytes / 1e6, "MB", "a scan of the log")


def _milliseconds(read: Callable[[bytes], Any], keys: list[bytes]) -> float:
    read(keys[0])
    rounds = []
    for key in keys:
        start = time.perf_counter()
        read(key)
        rounds.append(1e3 * (time.perf_counter() - start))
    return median(rounds)


def _row(case: str, ours: float, theirs: float, unit: str, name: str) -> dict[str, Any]:
    return {
        "benchmark": "keys",
        "case": case,
        "distlog": round(ours, 3),
        "peer": round(theirs, 3),
        "peer_name": name,
        "unit": unit,
        "ratio": round(theirs / ours, 2),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["delta"]:
        _read_delta(sys.argv[2])
    else:
        for row in run(*map(int, sys.argv[1:])):
            print(json.dumps(row))
