"""Compaction on one core, without Spark, by share of duplicate keys, against Arrow on Parquet files.

    python -m benchmarks.compaction [FOLDER]

100-byte values, 16-byte keys, uncompressed, from and to FOLDER (default: a temporary folder, in memory where the
system has one). The peer reads the same records from a Parquet file, groups them by key, takes the last of each and
writes the result, with one thread and everything in memory. Time is CPU time, which other processes disturb less. A
row's `ratio` is how many times as many records distlog processes per second.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import distlog
from benchmarks import spark_compaction
from benchmarks.keyed_tables import memory_folder, tables
from distlog.core.maintain.compaction import compact

RECORDS = 2_000_000
DUPLICATES = (0.0, 0.5, 0.9, 0.99)
_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.bytes": 256 << 20}


def run(records: int = RECORDS, folder: str | None = None) -> list[dict[str, Any]]:
    """Returns one dict per share of duplicates, then the rows of `spark_compaction`."""
    alone = [_run(records, share, folder or memory_folder()) for share in DUPLICATES]
    return alone + spark_compaction.run()


def _run(records: int, duplicates: float, folder: str | None) -> dict[str, Any]:
    work = tempfile.mkdtemp(dir=folder)
    try:
        _compact(f"{work}/warm", 1000, duplicates)
        spent, log_bytes = _compact(f"{work}/log", records, duplicates)
        peer = _group_by(f"{work}/peer", records, duplicates)
    finally:
        shutil.rmtree(work)
    return {
        "benchmark": "compaction",
        "case": f"{duplicates:.0%} duplicates, {log_bytes / spent / 1e6:.0f} MB/s",
        "distlog": round(records / spent / 1e6, 2),
        "peer": round(records / peer / 1e6, 2),
        "peer_name": "Arrow: Parquet, group_by(key), take, Parquet",
        "unit": "M records/s of CPU time",
        "ratio": round(peer / spent, 2),
    }


def _compact(url: str, records: int, duplicates: float) -> tuple[float, int]:
    topic = distlog.create(url, config=_CONFIG)
    for table in tables(records, duplicates):
        topic.append(table)
    log_bytes = int(topic.snapshot.partitions[0].segments.log_bytes.sum())
    start = time.process_time()
    compact(topic.handle, topic.snapshot)
    return time.process_time() - start, log_bytes


def _group_by(path: str, records: int, duplicates: float) -> float:
    table = pa.concat_tables(tables(records, duplicates)).append_column("offset", pa.array(range(records)))
    pq.write_table(table, path, compression="none", use_dictionary=False)
    start = time.process_time()
    table = pq.read_table(path, use_threads=False)
    last = table.group_by("key", use_threads=False).aggregate([("offset", "max")])["offset_max"]
    newest = table.take(last.take(pc.sort_indices(last)))
    pq.write_table(newest, path, compression="none", use_dictionary=False)
    return time.process_time() - start


if __name__ == "__main__":
    for row in run(folder=sys.argv[1] if len(sys.argv) > 1 else None):
        print(json.dumps(row))
