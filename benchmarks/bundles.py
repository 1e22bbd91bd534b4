"""Appends by many tasks into many partitions: one bundle a task, next to the two files a partition that it replaces.

The peer of the times is distlog itself, made to write files. Requests and bytes are what the storage counts; their
peer is what cannot be avoided. DISTLOG_BENCH_S3_ENDPOINT, _KEY, _SECRET and _BUCKET name another S3 server than
moto's.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

import distlog
from benchmarks.requests import server
from distlog.core.segments.segment_writer import Bundles
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.core.topic import Topic
from distlog.core.write.append import Appender, commit_append

TASKS, PARTITIONS, VALUE_BYTES = 8, 200, 100
#: Records of one task on a server, on a disk, and for the scans.
FEW, MEDIUM, MANY = 5_000, 20_000, 200_000


def run() -> list[dict[str, Any]]:
    """Returns one dict per case: seconds, requests and bytes of bundles, and of the files that they replace."""
    with server() as (url, options):
        rows = list(_cases("S3", url, options, FEW))
    with tempfile.TemporaryDirectory() as folder:
        rows += _cases("a local disk", folder, {}, MEDIUM)
        rows += _scans(folder)
    return rows


def _cases(where: str, url: str, options: dict[str, Any], records: int) -> Iterator[dict[str, Any]]:
    case, tables = f"{TASKS} tasks into {PARTITIONS} partitions, {where}", _tables(records)
    former, bundled = _new(url, options), _new(url, options)
    for topic in (former, bundled):
        # imports, kernels and folders
        _append(topic, tables[:1])
    with _files():
        seconds_before, puts_before = _measured(former.storage, lambda: _append(former, tables))
    seconds, puts = _measured(bundled.storage, lambda: _append(bundled, tables))
    yield _row(f"append by {case}", "s", seconds, seconds_before, f"{puts_before} objects")
    yield _row(f"objects put by {case}", "requests", puts, TASKS + 1, "a PUT a task, and the commit")
    partition_bytes = sum(segment.log_bytes for segment in bundled.refresh().snapshot.partitions[7].segments)
    counters = bundled.storage.counters
    bytes_before = counters.bytes_read
    bundled.scan(partitions=[7]).to_table()
    yield _row(
        f"read for one of {PARTITIONS} partitions, {where}",
        "bytes",
        counters.bytes_read - bytes_before,
        partition_bytes,
        "",
    )


def _scans(folder: str) -> Iterator[dict[str, Any]]:
    tables = _tables(MANY)
    former, bundled = _new(folder, {}), _new(folder, {})
    with _files():
        _append(former, tables)
    _append(bundled, tables)
    times: dict[str, list[float]] = {"before": [], "after": []}
    for _ in range(5):
        for name, topic in (("before", former), ("after", bundled)):
            times[name].append(_seconds(lambda topic=topic: topic.refresh().scan().to_table()))  # type: ignore[misc]
    yield _row("scan of all partitions of appends, a local disk", "s", min(times["after"]), min(times["before"]), "")


def _tables(records: int) -> list[pa.Table]:
    values = np.random.default_rng(0).integers(32, 127, (records, VALUE_BYTES), np.uint8)
    value = pa.FixedSizeBinaryArray.from_buffers(pa.binary(VALUE_BYTES), records, [None, pa.py_buffer(values)])
    partition = pa.array(np.arange(records) % PARTITIONS, pa.int32())
    return [pa.table({"partition": partition, "value": value.cast(pa.binary())})] * TASKS


def _new(url: str, options: dict[str, Any]) -> Topic:
    return distlog.create(f"{url}/{uuid.uuid4().hex}", partitions=PARTITIONS, storage_options=options)


def _append(topic: Topic, tables: list[pa.Table]) -> None:
    """Run the tasks of a write, one after the other, and then its driver."""
    snapshot, segments = topic.refresh().snapshot, []
    for table in tables:
        task = Appender(
            topic.storage,
            topic.name,
            snapshot.config,
            PARTITIONS,
            read_version=snapshot.version,
            first_partition=0,
            clock=now_ms,
            random=Random(),
            workers=1,
        )
        task.append(table)
        segments += task.close()
    commit_append(topic.handle, snapshot, segments, read_version=snapshot.version)


@contextmanager
def _files() -> Iterator[None]:
    """Let appends write files, as an append to one partition does."""
    join = Bundles.join
    Bundles.join = lambda self, partition: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Bundles.join = join  # type: ignore[method-assign]


def _measured(storage: Storage, action: Callable[[], object]) -> tuple[float, int]:
    puts = storage.counters.puts
    return _seconds(action), storage.counters.puts - puts


def _seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _row(case: str, unit: str, measured: float, peer: float, peer_note: str) -> dict[str, Any]:
    return {
        "benchmark": "bundles",
        "case": case,
        "distlog": round(measured, 4),
        "peer": round(peer, 4),
        "peer_name": f"files of each partition, {peer_note}" if unit == "s" else peer_note or "its own bytes",
        "unit": unit,
        "ratio": round(peer / measured, 2),
    }
