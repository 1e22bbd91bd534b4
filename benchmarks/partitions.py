"""Metadata of many partitions: what an append to each one takes, its commit, and opening the topic after it.

The growth with the number of partitions, in CPU time, requests and bytes. The peers, in the same process:
`pyarrow.parquet` writes the same records into memory, writes the metadata of the commit, and reads that again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import distlog
from benchmarks.cpu_time import ROUNDS, best
from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import AddTable, Commit
from distlog.core.commits.snapshot import apply

SIZES = 100, 1_000, 10_000
RECORDS = 10


def run(sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """One dict per case and number of partitions."""
    return [row for partitions in sizes for row in _of(partitions)]


def records(partitions: int, seed: int) -> pa.Table:
    """RECORDS records for each partition, of random sizes and times."""
    random, count = np.random.default_rng(seed), partitions * RECORDS
    data, ends = random.bytes(150 * count), np.cumsum(random.integers(50, 150, count))
    starts = np.append(0, ends[:-1])
    columns = {
        "partition": pa.array(np.arange(count) % partitions, pa.int32()),
        "value": pa.array([data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]),
        "timestamp": pa.array(int(time.time() * 1000) - random.integers(0, 1000, count)),
    }
    return pa.table(columns)


def _of(partitions: int) -> list[dict[str, Any]]:
    topic = distlog.create(f"memory://partitions/{uuid.uuid4().hex}", partitions=partitions)
    storage, tables = topic.storage, [records(partitions, seed) for seed in range(1 + ROUNDS)]
    append = best(partial(_next, map(topic.append, tables)))
    counts_before = storage.counters.gets, storage.counters.puts
    topic.append(tables[0])
    requests = storage.counters.gets + storage.counters.puts - sum(counts_before)
    written = best(partial(_next, map(_parquet, tables)))
    data = storage.read(paths.commit_file(topic.version))
    metadata = [action.rows for action in Commit.decode(data, "").actions if isinstance(action, AddTable)]
    earlier = distlog.open(topic.url, version=topic.version - 1).snapshot
    fold = best(lambda: apply(earlier, Commit.decode(data, "")))
    rows = pa.Table.from_batches([topic.snapshot.partitions.segments()])
    plain = _parquet(rows)
    checkpoint.write(storage, topic.snapshot)
    open_time = best(lambda: distlog.open(topic.url))
    read = best(lambda: pq.read_table(pa.BufferReader(plain)))
    encoded, packed = best(lambda: checkpoint.encode(topic.snapshot)), best(lambda: _parquet(rows))
    of = f", {partitions:,} partitions"
    cases = [
        _row(
            f"append of {RECORDS} records to each{of}",
            "ms",
            1000 * append,
            1000 * written,
            "pyarrow.parquet, in memory",
        ),
        _row(f"requests of an append{of}", "requests", float(requests), 2.0, "a PUT of data, one of a commit"),
        _row(
            f"decode and apply its commit{of}",
            "ms",
            1000 * fold,
            1000 * read,
            "pyarrow.parquet reads the metadata of all commits",
        ),
        _row(f"a checkpoint{of}", "ms", 1000 * encoded, 1000 * packed, "pyarrow.parquet writes its rows"),
        _row(f"open by a checkpoint{of}", "ms", 1000 * open_time, 1000 * read, "pyarrow.parquet reads its rows"),
    ]
    if metadata:
        size = len(_parquet(pa.Table.from_batches(metadata))) / partitions
        cases.append(
            _row(f"bytes of a commit for a part{of}", "bytes", len(data) / partitions, size, "pyarrow.parquet, zstd")
        )
    return cases


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def _next(results: Iterator[object]) -> object:
    return next(results)


def _row(case: str, unit: str, ours: float, theirs: float, peer: str) -> dict[str, Any]:
    ratio = theirs / ours if ours else 0.0
    numbers = {"distlog": ours, "peer": theirs, "unit": unit, "ratio": ratio, "peer_name": peer}
    return {"benchmark": "partitions", "case": case, **numbers}
