"""The time that a query of Structured Streaming takes to begin and to end, for sources and sinks of Spark, of Python
and ours.

    python -m benchmarks stream_begins

Each query has one micro-batch of 1,000 rows, so the rest is what every query takes. The time without the
micro-batch is elapsed time; the CPU time is of all processes and of the whole query. The first round warms up.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import distlog
from benchmarks.empty_stream import EmptySource
from benchmarks.spark_processes import cpu_seconds
from benchmarks.topics import table
from distlog.spark import session

ROWS, TASKS, ROUNDS = 1_000, 2, 5
OURS = ("distlog", "distlog")
#: The source and the sink of each query next to ours, and how it is called.
PEERS: Mapping[tuple[str, str], str] = {
    ("rate", "noop"): "Spark's rate source to its sink noop: no Python",
    ("files", "parquet"): "Parquet files to Parquet files: no Python",
    ("empty", "noop"): "a source in Python that does nothing, to noop",
    ("empty", "empty"): "a source and a sink in Python that do nothing",
    ("distlog", "noop"): "a topic to noop",
    ("rate", "distlog"): "the rate source to a topic",
}


class _Query(NamedTuple):
    """Seconds that one query took: on the clock without its micro-batch, and of CPU."""

    fixed_s: float
    cpu: float


def run(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Two dicts for each peer."""
    spark = session("benchmark", **{"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"})
    spark.dataSource.register(EmptySource)
    folder = Path(tempfile.mkdtemp(prefix="distlog-benchmark-"))
    try:
        sources = _sources(spark, folder)
        numbers = count()
        queries_by_pair: dict[tuple[str, str], list[_Query]] = {pair: [] for pair in (OURS, *PEERS)}
        for _ in range(1 + rounds):
            for pair, queries in queries_by_pair.items():
                queries.append(_query(sources[pair[0]](), pair[1], folder / str(next(numbers))))
    finally:
        shutil.rmtree(folder)
    medians = {
        pair: _Query(*map(statistics.median, zip(*queries[1:], strict=True)))
        for pair, queries in queries_by_pair.items()
    }
    return [
        _row(case, side, medians[OURS], medians[pair], name)
        for case, side in (("CPU time of a query of one small micro-batch", 1), ("begin and end of a query", 0))
        for pair, name in PEERS.items()
    ]


def _sources(spark: SparkSession, folder: Path) -> dict[str, Callable[[], DataFrame]]:
    rows = table(ROWS, 100)
    distlog.create(f"{folder}/topic", TASKS).append(rows)
    files = folder / "files"
    files.mkdir()
    times = rows["timestamp"].cast(pa.timestamp("us", "UTC"))
    pq.write_table(rows.set_column(2, "timestamp", times), files / "rows.parquet", use_dictionary=False)
    text = "CAST(CAST(value AS string) AS binary)"
    rate = {"rowsPerBatch": str(ROWS), "numPartitions": str(TASKS)}
    empty = {"rows": str(ROWS), "maxRowsPerTrigger": str(ROWS), "tasks": str(TASKS)}
    ours = {"startingOffsets": "earliest", "columns": "key,value,timestamp"}
    return {
        "rate": lambda: (
            spark.readStream.format("rate-micro-batch")
            .options(**rate)
            .load()
            .selectExpr(f"{text} key", f"{text} value", "timestamp")
        ),
        "files": lambda: spark.readStream.schema("key binary, value binary, timestamp timestamp").parquet(str(files)),
        "empty": lambda: spark.readStream.format("empty").options(**empty).load(),
        "distlog": lambda: spark.readStream.format("distlog").options(**ours).load(f"{folder}/topic"),
    }


def _query(rows: DataFrame, sink: str, folder: Path) -> _Query:
    if sink == "distlog":
        distlog.create(f"{folder}/target", TASKS)
    stream = rows.writeStream.format(sink).option("checkpointLocation", f"{folder}/checkpoint")
    stream = stream.trigger(availableNow=True)
    started, cpu = time.perf_counter(), cpu_seconds()
    query = stream.start() if sink == "noop" else stream.start(f"{folder}/target")
    query.awaitTermination()
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    batches = sum(batch["durationMs"]["triggerExecution"] for batch in query.recentProgress) / 1000
    return _Query(seconds - batches, cpu)


def _row(case: str, side: int, ours: _Query, theirs: _Query, name: str) -> dict[str, Any]:
    return {
        "benchmark": "stream-begins",
        "case": f"{case}, topic to topic",
        "distlog": round(ours[side], 2),
        "peer": round(theirs[side], 2),
        "peer_name": name,
        "unit": "s",
        "ratio": round(theirs[side] / ours[side], 2),
    }
