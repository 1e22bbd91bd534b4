"""Reads of one record out of many, by offset and by time, in a warm process: median and worst times.

The peers, each over the same records: sqlite3, by primary key and by an index of times; one row group of a Parquet
file, uncompressed; aiokafka's parser over the one batch, read from a position that it is given.

A row's `ratio` is how many times faster distlog is than its peer.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import distlog
from benchmarks.topics import table
from distlog.core.format.record_batch import read_headers
from distlog.core.topic import Topic

ROWS = 1_000_000
READS, ROUNDS = 2_000, 5
#: Parquet's smallest sensible groups: as many records as a batch of 128 KiB has.
GROUP_ROWS = 1_000

Point = Callable[[int], Any]


def run(rows: int = ROWS, reads: int = READS) -> list[dict[str, Any]]:
    """One dict per case, in microseconds: the median and the 99th percentile of single reads."""
    records = table(rows, 100)
    first_time = records["timestamp"][0].as_py()
    targets = np.random.default_rng(3).integers(0, rows, reads).tolist()
    rows_: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        topic = _topic(f"{folder}/none", records)
        rival = _sqlite(f"{folder}/records.db", records)

        def by_offset(offset: int) -> Any:
            return list(topic.records(0, offset, 1))

        peers: list[tuple[str, Point]] = [("sqlite3, by primary key", lambda offset: _by_key(rival, offset))]
        peers += [("a row group of Parquet", _parquet(f"{folder}/records.parquet", records)), *_kafka(topic)]
        for name, peer in peers:
            rows_ += _rows("by offset", name, by_offset, peer, targets)
        rows_ += _rows(
            "by time",
            "sqlite3, by an index",
            lambda offset: topic.offsets_for_times(first_time + offset),
            lambda offset: _by_time(rival, first_time + offset),
            targets,
        )
        for codec in ("lz4", "zstd"):
            packed = _topic(f"{folder}/{codec}", records, codec)
            rows_ += _rows(
                f"by offset, {codec}",
                "the same, uncompressed",
                lambda offset, packed=packed: list(packed.records(0, offset, 1)),  # type: ignore[misc]
                by_offset,
                targets,
            )
    return rows_


def _topic(url: str, records: pa.Table, codec: str = "uncompressed") -> Topic:
    """Two large segments."""
    topic = distlog.create(url, config={"compression.type": codec})
    half = records.num_rows // 2
    topic.append(records.slice(0, half))
    topic.append(records.slice(half))
    return topic


def _sqlite(path: str, records: pa.Table) -> sqlite3.Connection:
    rival = sqlite3.connect(path)
    rival.execute("create table records (offset integer primary key, timestamp integer, key blob, value blob)")
    columns = (records[name].to_pylist() for name in ("timestamp", "key", "value"))
    rival.executemany("insert into records values (?, ?, ?, ?)", zip(range(records.num_rows), *columns, strict=True))
    rival.execute("create index times on records (timestamp)")
    rival.commit()
    return rival


def _by_key(rival: sqlite3.Connection, offset: int) -> Any:
    return rival.execute("select * from records where offset = ?", (offset,)).fetchall()


def _by_time(rival: sqlite3.Connection, time_ms: int) -> Any:
    query = "select offset, timestamp from records where timestamp >= ? order by timestamp limit 1"
    return rival.execute(query, (time_ms,)).fetchall()


def _parquet(path: str, records: pa.Table) -> Point:
    pq.write_table(records, path, compression="none", use_dictionary=False, row_group_size=GROUP_ROWS)
    file = pq.ParquetFile(path, memory_map=True)
    return lambda offset: file.read_row_group(offset // GROUP_ROWS).slice(offset % GROUP_ROWS, 1).to_pylist()


def _kafka(topic: Topic) -> Iterator[tuple[str, Point]]:
    """aiokafka's parser over the batch that holds the offset."""
    try:
        from aiokafka.record.memory_records import MemoryRecords
    except ImportError:
        return
    segments = list(topic.snapshot.partitions[0].segments)
    files = [os.open(topic.storage.local_path(topic.reader.name(segment)), os.O_RDONLY) for segment in segments]
    sizes = [segment.log_bytes for segment in segments]
    batches = [read_headers(os.pread(file, size, 0)) for file, size in zip(files, sizes, strict=True)]
    bases = np.array([segment.base_offset for segment in segments])

    def read(offset: int) -> Any:
        number = int(np.searchsorted(bases, offset, side="right")) - 1
        stored = offset - int(bases[number])
        row = batches[number][np.searchsorted(batches[number]["base_offset"], stored, side="right") - 1]
        data = os.pread(files[number], int(row["size"]), int(row["position"]))
        batch = MemoryRecords(data).next_batch()
        if not batch.validate_crc():
            raise ValueError("checksum")
        return next(record for record in batch if record.offset == stored)

    yield "aiokafka over the batch", read


def _rows(case: str, name: str, ours: Point, theirs: Point, targets: list[int]) -> Iterator[dict[str, Any]]:
    """The median and the 99th percentile of both, in turn: the best of some rounds, after one that warms up."""
    for function in (ours, theirs):
        for target in targets:
            function(target)
    rounds = np.array(
        [
            [[_seconds(read, target) for target in targets_] for read in (ours, theirs)]
            for targets_ in _rounds(targets)
        ]
    )
    for percentile in (50, 99):
        distlog_us, peer_us = (np.percentile(rounds, percentile, axis=2).min(axis=0) * 1e6).tolist()
        yield {
            "benchmark": "points",
            "case": f"{case}, p{percentile}",
            "distlog": round(distlog_us, 1),
            "peer": round(peer_us, 1),
            "peer_name": name,
            "unit": "us",
            "ratio": round(peer_us / distlog_us, 2),
        }


def _rounds(targets: list[int]) -> list[list[int]]:
    return [targets[number::ROUNDS] for number in range(ROUNDS)]


def _seconds(function: Point, target: int) -> float:
    started = time.perf_counter()
    function(target)
    return time.perf_counter() - started
