"""Topics in one process on a local disk: an append against Parquet, a scan of many small segments against one large.

The peers: `pyarrow.parquet`, uncompressed, written and read in the same process, with its threads if the scan has
threads; the same scan by one worker; the same records in one segment.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import distlog
from distlog.core.topic import Topic

ROWS = 1_000_000
ROUNDS = 5


def table(rows: int, value_bytes: int, seed: int = 1) -> pa.Table:
    """`rows` records with keys of 16 random bytes and values of `value_bytes` random bytes."""
    random = np.random.default_rng(seed)

    def column(width: int) -> pa.Array:
        data = pa.py_buffer(random.integers(0, 256, rows * width, dtype=np.uint8))
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, data]).cast(pa.binary())

    times = pa.array(np.arange(rows) + 1_700_000_000_000)
    return pa.table({"key": column(16), "value": column(value_bytes), "timestamp": times})


def best(*functions: Callable[[], Any]) -> list[float]:
    """Seconds of the fastest of some rounds of each function, in turn, after one round that compiles and warms up."""
    rounds = [[_seconds(function) for function in functions] for _ in range(1 + ROUNDS)]
    return [min(times) for times in zip(*rounds[1:], strict=True)]


def _seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def run(rows: int = ROWS) -> list[dict[str, Any]]:
    """One dict per case, in M records/s."""
    with tempfile.TemporaryDirectory() as folder:
        return [*_append(folder, rows), *_small_segments(folder, rows)]


def _append(folder: str, rows: int) -> list[dict[str, Any]]:
    records = table(rows, 100)
    numbers = iter(range(10**6))

    def ours() -> Topic:
        topic = distlog.create(f"{folder}/append-{next(numbers)}", partitions=4)
        topic.append(records)
        return topic

    def theirs() -> str:
        path = f"{folder}/{next(numbers)}.parquet"
        pq.write_table(records, path, compression="none", use_dictionary=False)
        return path

    topic, path = ours(), theirs()
    written = best(ours, theirs)
    read = best(
        lambda: _drain(topic),
        lambda: pq.read_table(path),
        lambda: _drain(topic, max_workers=1),
        lambda: pq.read_table(path, use_threads=False),
    )
    return [
        _row("append, 4 partitions, durable", rows, *written, "pyarrow.parquet, not synced"),
        _row("scan all columns, all cores", rows, read[0], read[1], "pyarrow.parquet, with its threads"),
        _row("scan all columns, all cores", rows, read[0], read[2], "the same scan, one worker"),
        _row("scan all columns, one worker", rows, read[2], read[3], "pyarrow.parquet, one thread"),
    ]


def _small_segments(folder: str, rows: int) -> list[dict[str, Any]]:
    records = table(rows, 100)
    rows_each = rows // 1000
    small = distlog.create(f"{folder}/small", config={"internal.segment.bytes": rows_each * 130})
    large = distlog.create(f"{folder}/large")
    for topic in (small, large):
        topic.append(records)
    count = small.segments().num_rows
    pq.write_table(records, f"{folder}/scan.parquet", compression="none", use_dictionary=False)
    scans = best(
        lambda: _drain(small),
        lambda: _drain(large),
        lambda: _drain(small, max_workers=1),
        lambda: pq.read_table(f"{folder}/scan.parquet"),
    )
    case = f"scan {count:,} small segments, all cores"
    return [
        _row(case, rows, scans[0], scans[1], "one large segment"),
        _row(case, rows, scans[0], scans[2], "the same scan, one worker"),
        _row(case, rows, scans[0], scans[3], "pyarrow.parquet, with its threads"),
    ]


def _drain(topic: Topic, max_workers: int | None = None) -> int:
    return sum(batch.num_rows for batch in topic.scan(max_workers=max_workers))


def _row(case: str, rows: int, ours: float, theirs: float, peer: str) -> dict[str, Any]:
    return {
        "benchmark": "topics",
        "case": case,
        "distlog": round(rows / ours / 1e6, 2),
        "peer": round(rows / theirs / 1e6, 2),
        "peer_name": peer,
        "unit": "M records/s",
        "ratio": round(theirs / ours, 2),
    }
