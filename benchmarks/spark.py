"""Spark: a scan against ready-made batches and Parquet, an append against a sink that drops its rows and Parquet.

    python -m benchmarks spark

Keys are 16 random bytes, values 16, 100 or 1000. Scans read these two columns, appends write a timestamp too. All
figures include Spark's own cost. Ready-made batches are the scan's, kept in memory: no Python source can give
Spark more. Likewise, no Python sink can take more than the one that drops its rows. Spark limits the batches of a
data source by bytes, which costs it a sum after each row. "append and read back" is the first read of what was just
written; the other reads are of files in the page cache. Earlier output is removed between the
measurements. A ratio is the median of the ratios of the rounds: a virtual machine that gets its memory page by page
makes single runs differ by a third.
"""

from __future__ import annotations

import pickle
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from operator import truediv
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
from benchmarks.spark_processes import cpu_seconds
from distlog.spark import append, read, session
from distlog.spark.data_source import DistlogDataSource
from distlog.spark.options import exclude_from_gc

#: The number of rows for each size of value: some 200 to 700 MB.
ROWS = {16: 6_000_000, 100: 5_000_000, 1000: 600_000}
ROUNDS = 5
KEY_BYTES = 16
PARTITIONS = 4
TASKS = 8
COLUMNS = ["key", "value"]
_BUFFER = bytearray(1 << 20)
CASES = (
    ("scan", "ready", "scan, data source", "a Python source of ready-made batches"),
    ("scan", "scan none", "scan, data source", "Spark's Parquet scan, uncompressed"),
    ("scan", "scan snappy", "scan, data source", "Spark's Parquet scan, snappy"),
    ("read", "ready", "scan, distlog.spark.read", "a Python source of ready-made batches"),
    ("read", "scan none", "scan, distlog.spark.read", "Spark's Parquet scan, uncompressed"),
    ("read", "scan snappy", "scan, distlog.spark.read", "Spark's Parquet scan, snappy"),
    ("append", "drop", "append", "a Python sink that drops its rows"),
    ("append", "write none", "append", "Spark's Parquet write, uncompressed"),
    ("append", "write snappy", "append", "Spark's Parquet write, snappy"),
    ("append", "save", "append", "distlog's data source"),
    ("append and read", "write and scan", "append and read back", "Spark's Parquet, uncompressed"),
)


def run(rows: Mapping[int, int] = ROWS, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Measure every case and its peers in turn, `rounds` times; one dict per pair and size of value."""
    spark = session("benchmark", **{"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"})
    spark.dataSource.register(ReadyBatches)
    spark.dataSource.register(DroppedRows)
    return [row for value_bytes, count in rows.items() for row in _of_size(spark, value_bytes, count, rounds)]


def _of_size(spark: SparkSession, value_bytes: int, rows: int, rounds: int) -> list[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="distlog-benchmark-"))
    try:
        measured = _rounds(rounds, _actions(spark, folder, value_bytes, rows), folder)
    finally:
        shutil.rmtree(folder)
    return [
        {
            "benchmark": "spark",
            "case": f"{case}, {value_bytes}-byte values{kind}",
            "distlog": rows / statistics.median(seconds[ours]) / 1e6,
            "peer": rows / statistics.median(seconds[peer]) / 1e6,
            "peer_name": peer_name,
            "unit": unit,
            "ratio": statistics.median(map(truediv, seconds[peer], seconds[ours])),
        }
        for seconds, kind, unit in zip(measured, ("", ", CPU time"), ("M rows/s", "M rows/CPU s"), strict=True)
        for ours, peer, case, peer_name in CASES
    ]


def _actions(spark: SparkSession, folder: Path, value_bytes: int, rows: int) -> dict[str, Callable[[], object]]:
    source, snappy, url = (str(folder / name) for name in ("rows.parquet", "snappy.parquet", "scanned"))
    for path, codec in ((source, "none"), (snappy, "snappy")):
        pq.write_table(_table(rows, value_bytes), path, compression=codec, row_group_size=rows // TASKS)
    distlog.create(url, PARTITIONS, config={"retention.ms": -1})
    append(spark.read.parquet(source), url)
    table = spark.read.parquet(source)
    by_source = spark.read.option("columns", ",".join(COLUMNS))
    generated = str(folder / "made")

    def append_all() -> None:
        distlog.create(generated, PARTITIONS, config={"retention.ms": -1})
        append(table, generated)

    def save_all() -> None:
        distlog.create(generated, PARTITIONS, config={"retention.ms": -1})
        table.write.format("distlog").mode("append").save(generated)

    def write_parquet(codec: str = "none") -> None:
        table.write.option("compression", codec).parquet(generated)

    def append_and_read() -> None:
        append_all()
        _noop(read(spark, generated, COLUMNS))

    def write_and_scan() -> None:
        write_parquet()
        _noop(spark.read.parquet(generated).select(*COLUMNS))

    return {
        "scan": lambda: _noop(by_source.format("distlog").load(url)),
        "read": lambda: _noop(read(spark, url, COLUMNS)),
        "ready": lambda: _noop(by_source.format("ready").load(url)),
        "scan none": lambda: _noop(spark.read.parquet(source).select(*COLUMNS)),
        "scan snappy": lambda: _noop(spark.read.parquet(snappy).select(*COLUMNS)),
        "append": append_all,
        "save": save_all,
        "drop": lambda: table.write.format("dropped").mode("append").save(),
        "write none": write_parquet,
        "write snappy": lambda: write_parquet("snappy"),
        "append and read": append_and_read,
        "write and scan": write_and_scan,
    }


def _rounds(
    rounds: int, actions: Mapping[str, Callable[[], object]], folder: Path
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The seconds of each, and of CPU, in turn, so that a slow moment affects all alike; a first round warms up.

    The output of an action is removed before the next action, and its input is in the page cache.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    spent: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(1 + rounds):
        for name, action in actions.items():
            shutil.rmtree(folder / "made", ignore_errors=True)
            _read_through(folder)
            started, cpu_started = time.perf_counter(), cpu_seconds()
            action()
            seconds[name].append(time.perf_counter() - started)
            spent[name].append(cpu_seconds() - cpu_started)
    return {name: round_[1:] for name, round_ in seconds.items()}, {
        name: round_[1:] for name, round_ in spent.items()
    }


def _read_through(folder: Path) -> None:
    """Read all files into the page cache: some machines drop pages of the cache by themselves."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(_BUFFER):
                    pass


def _noop(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def _strings(data: np.ndarray, rows: int, size: int) -> pa.Array:
    ends = np.arange(0, rows * size + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _random_strings(rows: int, size: int) -> pa.Array:
    return _strings(np.random.default_rng(size).integers(0, 256, rows * size, dtype=np.uint8), rows, size)


def _table(rows: int, value_bytes: int) -> pa.Table:
    times = pa.array(1_700_000_000_000_000 + 1000 * np.arange(rows), pa.timestamp("us", "UTC"))
    keys, values = _random_strings(rows, KEY_BYTES), _random_strings(rows, value_bytes)
    return pa.table({"key": keys, "value": values, "timestamp": times})


class ReadyBatches(DistlogDataSource):
    """Gives Spark the same batches as a scan, but made in advance: the measured time is Spark's own cost."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(super().reader(schema))


class ReadyReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader) -> None:
        self._reader, self._splits = reader, reader.partitions()

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(len(self._splits))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        exclude_from_gc()
        key = pickle.dumps(self._splits)
        if key not in _batches_made:
            _batches_made.clear()
            _batches_made[key] = [list(self._reader.read(split)) for split in self._splits]
        return iter(_batches_made[key][partition.value])


#: The batches of the splits that were asked for last, in each worker of Spark.
_batches_made: dict[bytes, list[list[pa.RecordBatch]]] = {}


class DroppedRows(DataSource):
    """Takes all rows from Spark and does nothing with them."""

    @classmethod
    def name(cls) -> str:
        return "dropped"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DroppingWriter()


class DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        exclude_from_gc()
        for _ in iterator:
            pass
        return WriterCommitMessage()
