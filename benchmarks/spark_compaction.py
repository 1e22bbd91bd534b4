"""Compaction of one partition as a Spark job, its time and the memory of its tasks.

    python -m benchmarks.spark_compaction [--records N] [--keys N,N,...] [--rounds N]

Time is the job's, whose tasks share the partition, next to Spark's own way to the same records: Parquet, grouped
by key, the last value of each, Parquet, in the same session, in turn, the best of some rounds. Memory is the largest
resident set of a Python worker of Spark, next to one task which holds all keys in one map.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import distlog
from benchmarks.keyed_tables import memory_folder, tables
from benchmarks.spark_processes import python_processes
from distlog.spark import SparkExecutor, session

RECORDS = 3_000_000
DUPLICATES = (0.1, 0.9)
ROUNDS = 2
KEYS = (1_000_000, 3_000_000)
#: Memory for keys: of the job, and of one task that takes all keys in one map.
BUFFER_BYTES, UNBOUNDED = 32 << 20, 1 << 40
_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.bytes": 128 << 20}


def run(records: int = RECORDS, keys: Sequence[int] = KEYS, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """One dict per share of duplicates, and one per number of keys."""
    spark = session("benchmark", **{"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"})
    times = [
        _in_folder(lambda folder, share=share: _times(spark, folder, records, share, rounds)) for share in DUPLICATES
    ]
    return times + [_in_folder(lambda folder, count=count: _memory(spark, folder, count)) for count in keys]


def _in_folder(measure: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(dir=memory_folder(), prefix="distlog-benchmark-"))
    try:
        return measure(folder)
    finally:
        shutil.rmtree(folder)


def _times(spark: SparkSession, folder: Path, records: int, duplicates: float, rounds: int) -> dict[str, Any]:
    _fill(folder, records, duplicates)
    _write_parquet(folder, records, duplicates)
    # as many buckets as cores, and not the short way
    buffer_bytes = records * 24
    ours = peer = float("inf")
    for _ in range(rounds + 1):
        ours = min(ours, _seconds(lambda: _compact(spark, folder, buffer_bytes)))
        peer = min(peer, _seconds(lambda: _group_by(spark, folder)))
    return {
        "benchmark": "spark compaction",
        "case": f"{duplicates:.0%} duplicates of {records / 1e6:g} M records",
        "distlog": round(records / ours / 1e6, 2),
        "peer": round(records / peer / 1e6, 2),
        "peer_name": "Spark: Parquet, groupBy(key), max_by, Parquet",
        "unit": "M records/s",
        "ratio": round(peer / ours, 2),
    }


def _memory(spark: SparkSession, folder: Path, keys: int) -> dict[str, Any]:
    _fill(folder, round(keys / 0.9), 0.1)
    _compact(spark, folder, BUFFER_BYTES)
    shared = _peak_bytes(lambda: _compact(spark, folder, BUFFER_BYTES))
    alone = _peak_bytes(lambda: _compact(spark, folder, UNBOUNDED))
    return {
        "benchmark": "spark compaction",
        "case": f"peak memory of a task, {keys / 1e6:g} M keys, a buffer of {BUFFER_BYTES >> 20} MiB",
        "distlog": round(shared / 1e6),
        "peer": round(alone / 1e6),
        "peer_name": "one task with all keys",
        "unit": "MB",
        "ratio": round(alone / shared, 2),
    }


def _fill(folder: Path, records: int, duplicates: float) -> None:
    topic = distlog.create(str(folder / "log"), config=_CONFIG)
    for table in tables(records, duplicates):
        topic.append(table)


def _compact(spark: SparkSession, folder: Path, buffer_bytes: int) -> None:
    """Compact a copy whose files are hard links to the original ones."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "log", copy, copy_function=os.link)
    executor = SparkExecutor(spark)
    report = distlog.open(copy).compact(executor=executor, dedupe_buffer_bytes=buffer_bytes).to_dict()
    assert report["ok"]
    assert report["records_after"] < report["records_before"]


def _write_parquet(folder: Path, records: int, duplicates: float) -> None:
    (folder / "rows").mkdir()
    first = 0
    for number, table in enumerate(tables(records, duplicates)):
        offsets = pa.array(range(first, first + len(table)))
        rows = table.append_column("offset", offsets)
        pq.write_table(rows, folder / "rows" / f"{number}.parquet", compression="none", use_dictionary=False)
        first += len(table)


def _group_by(spark: SparkSession, folder: Path) -> None:
    last = F.max_by(F.struct("value", "offset"), "offset").alias("last")
    grouped = spark.read.parquet(str(folder / "rows")).groupBy("key").agg(last)
    newest = grouped.select("key", "last.*").write.mode("overwrite")
    newest.option("compression", "none").parquet(str(folder / "kept"))


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _peak_bytes(action: Callable[[], object]) -> int:
    """The largest resident set of a Python worker below this process while `action` runs (Linux)."""
    for worker in python_processes():
        (worker / "clear_refs").write_text("5")
    action()
    return max(_high_water_mark(worker) for worker in python_processes())


def _high_water_mark(path: Path) -> int:
    (line,) = (line for line in (path / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--keys", type=lambda text: [int(part) for part in text.split(",") if part], default=KEYS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    for row in run(arguments.records, arguments.keys, arguments.rounds):
        print(json.dumps(row))
