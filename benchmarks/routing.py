"""Routing of records to partitions: by key against kafka-python's hash, and grouping against numpy's stable argsort.

    python benchmarks/routing.py

A row's `ratio` is how many times as many rows per second distlog processes as its peer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.partitioner.default import murmur2

from distlog.core.write.rows import Partitioner, group_by_partition

ROWS = 2_000_000
ROUNDS = 7
PARTITIONS = 16


def run(rows: int = ROWS) -> list[dict[str, Any]]:
    """Hash keys of three sizes, and group rows over some and over many partitions; one dict per case."""
    return [
        *(_keys(rows, size) for size in (8, 16, 100)),
        *(_groups(rows, partitions) for partitions in (PARTITIONS, 4096)),
    ]


def _keys(rows: int, size: int) -> dict[str, Any]:
    data = np.random.default_rng(7).integers(0, 256, rows * size, dtype=np.uint8)
    ends = pa.py_buffer(np.arange(0, rows * size + 1, size, dtype=np.int32))
    keys = pa.Array.from_buffers(pa.binary(), rows, [None, ends, pa.py_buffer(data)])
    few = keys[: rows // 500].to_pylist()
    return _row(
        f"partition by key of {size} bytes",
        rows / _seconds(lambda: Partitioner(PARTITIONS, 0).assign(keys, keys)),
        len(few) / _seconds(lambda: [(murmur2(key) & 0x7FFFFFFF) % PARTITIONS for key in few]),
        "kafka-python's murmur2",
    )


def _groups(rows: int, partitions: int) -> dict[str, Any]:
    assigned = np.random.default_rng(7).integers(0, partitions, rows).astype(np.int32)
    return _row(
        f"group rows of {partitions} partitions",
        rows / _seconds(lambda: group_by_partition(assigned, partitions)),
        rows / _seconds(lambda: (np.argsort(assigned, kind="stable"), np.bincount(assigned))),
        "numpy argsort(kind='stable'), bincount",
    )


def _row(case: str, distlog: float, peer: float, name: str) -> dict[str, Any]:
    return {
        "benchmark": "routing",
        "case": case,
        "distlog": round(distlog / 1e6, 2),
        "peer": round(peer / 1e6, 3),
        "peer_name": name,
        "unit": "M rows/s",
        "ratio": round(distlog / peer, 1),
    }


def _seconds(function: Callable[[], Any]) -> float:
    # The best of some rounds; the first one compiles and warms up.
    function()
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        function()
        rounds.append(time.perf_counter() - start)
    return min(rounds)


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row))
