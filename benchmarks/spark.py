"""Spark: a scan beside ready-made batches and Parquet, an append beside a sink that drops its rows and Parquet.

    python -m benchmarks spark

Rows have a key of 16 bytes and a value of 100. What Spark itself takes is in all figures: ready-made batches are the
most that a Python source can give it, dropped rows the most that a Python sink can take.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import distlog
from distlog.spark import append, read, session

ROWS = 5_000_000
ROUNDS = 5
KEY_BYTES, VALUE_BYTES = 16, 100
PARTITIONS = 4
TASKS = 8
COLUMNS = ["partition", "offset", "timestamp", "key", "value"]
SCHEMA = "partition int, offset long, timestamp timestamp, key binary, value binary"
#: About what a batch of the source holds.
BATCH_ROWS = 32_000


def run(rows: int = ROWS, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Measure every case beside its peers in turn, the best of `rounds`; one dict per pair."""
    spark = session("benchmark", **{"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"})
    spark.dataSource.register(ReadyBatches)
    spark.dataSource.register(DroppedRows)
    folder = Path(tempfile.mkdtemp(prefix="distlog-benchmark-"))
    try:
        return _measure(spark, folder, rows, rounds)
    finally:
        shutil.rmtree(folder)


def _measure(spark: SparkSession, folder: Path, rows: int, rounds: int) -> list[dict[str, Any]]:
    source, url = str(folder / "rows.parquet"), str(folder / "scanned")
    pq.write_table(_table(rows), source, compression="none", row_group_size=rows // TASKS)
    distlog.create(url, PARTITIONS)
    append(spark.read.parquet(source), url)
    table = spark.read.parquet(source)
    seconds = _best(
        rounds,
        {
            "scan": lambda: _noop(spark.read.format("distlog").option("columns", ",".join(COLUMNS)).load(url)),
            "read": lambda: _noop(read(spark, url, COLUMNS)),
            "ready": lambda: _noop(spark.read.format("ready").option("rows", rows).load()),
            "scan parquet": lambda: _noop(spark.read.parquet(source)),
            "append": lambda: _append_anew(table, folder / "appended"),
            "drop": lambda: table.write.format("dropped").mode("append").save(),
            "write parquet": lambda: _write_parquet(table, str(folder / "written")),
        },
    )
    pairs = [
        ("scan", "ready", "scan, data source", "a Python source of ready-made batches"),
        ("read", "ready", "scan, distlog.spark.read", "a Python source of ready-made batches"),
        ("read", "scan parquet", "scan, distlog.spark.read", "Spark's Parquet scan, uncompressed"),
        ("append", "drop", "append", "a Python sink that drops its rows"),
        ("append", "write parquet", "append", "Spark's Parquet write, uncompressed"),
    ]
    return [_row(case, rows / seconds[mine], rows / seconds[peer], name) for mine, peer, case, name in pairs]


def _row(case: str, mine: float, peer: float, peer_name: str) -> dict[str, Any]:
    return {
        "benchmark": "spark",
        "case": f"{case}, {VALUE_BYTES}-byte values",
        "distlog": mine / 1e6,
        "peer": peer / 1e6,
        "peer_name": peer_name,
        "unit": "M rows/s",
        "ratio": mine / peer,
    }


def _best(rounds: int, actions: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The least seconds that each takes, in turn, so that a slow moment of the machine meets all of them alike."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def _noop(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def _write_parquet(df: DataFrame, path: str) -> None:
    df.write.mode("overwrite").option("compression", "none").parquet(path)


def _append_anew(df: DataFrame, folder: Path) -> None:
    """As Parquet's overwriting does it: what was there goes first, and its memory is used again."""
    shutil.rmtree(folder, ignore_errors=True)
    distlog.create(str(folder), PARTITIONS)
    append(df, str(folder))


def _random_bytes(rows: int, size: int) -> pa.Array:
    data = np.random.default_rng(size).integers(0, 256, rows * size, dtype=np.uint8)
    ends = np.arange(0, rows * size + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _table(rows: int) -> pa.Table:
    times = pa.array(1_700_000_000_000_000 + 1000 * np.arange(rows), pa.timestamp("us", "UTC"))
    keys, values = _random_bytes(rows, KEY_BYTES), _random_bytes(rows, VALUE_BYTES)
    return pa.table({"key": keys, "value": values, "timestamp": times})


class ReadyBatches(DataSource):
    """Gives Spark one batch, made once, again and again: what is left is Spark's own cost."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(int(self.options["rows"]))


class ReadyReader(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        numbers = np.arange(BATCH_ROWS)
        columns = [
            pa.array(numbers.astype(np.int32)),
            pa.array(numbers),
            pa.array(numbers).view(pa.timestamp("us", "UTC")),
            _random_bytes(BATCH_ROWS, KEY_BYTES),
            _random_bytes(BATCH_ROWS, VALUE_BYTES),
        ]
        batch = pa.record_batch(columns, names=COLUMNS)
        wanted = self._rows // TASKS
        for start in range(0, wanted, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, wanted - start))


class DroppedRows(DataSource):
    """Takes all rows from Spark and does nothing with them."""

    @classmethod
    def name(cls) -> str:
        return "dropped"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DroppingWriter()


class DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
