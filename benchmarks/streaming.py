"""Structured Streaming: a query from topic to topic, beside the same query from Parquet files to Parquet files.

    python -m benchmarks streaming

Records have keys of 16 random bytes and values of 100. The latency is from a small append until a reader of the
target can see it, one append after the other. Idle is the CPU time of all processes of Spark while a query waits for
records. The requests are those that moto's S3 server gets.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from operator import truediv
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.s3_server import S3Server
from benchmarks.spark_processes import cpu_seconds
from benchmarks.stream_queries import Copy, EmptyCopy, FileCopy, TopicCopy
from benchmarks.topics import table
from distlog.spark import session

ROWS, APPENDS, BATCHES, ROUNDS = 4_000_000, 16, 4, 3
ROUND_TRIPS, WARM_UP = 60, 10
RATES, RATE_SECONDS = (1_000, 100_000), 15
IDLE_SECONDS = 10
S3_BATCHES = 20
PATIENCE_S = 120
PEER = "the same query on Parquet files"
CEILING = "a source and a sink in Python that do nothing"
#: Of each micro-batch, as many as distlog has.
TASKS = 2


def run() -> list[dict[str, Any]]:
    """One dict per case."""
    spark = session("benchmark", **{"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"})
    cases = (_throughput, _latency, _at_rates, _idle)
    rows = [row for case in cases for row in _in_folder(spark, case)]
    return [*rows, *_on_s3(spark)]


def _in_folder(spark: SparkSession, case: Callable[[Sequence[Copy]], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    folder = tempfile.mkdtemp(prefix="distlog-benchmark-")
    try:
        checkpoints = f"{folder}/checkpoints"
        return case(
            [TopicCopy(spark, f"{folder}/topics", checkpoints), FileCopy(spark, f"{folder}/files", checkpoints)]
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _throughput(copies: Sequence[Copy]) -> list[dict[str, Any]]:
    """All that is there, in a few micro-batches; all kinds in turn."""
    part = str(ROWS // BATCHES)
    limits = (
        {"maxOffsetsPerTrigger": part},
        {"maxFilesPerTrigger": str(APPENDS // BATCHES)},
        {"maxRowsPerTrigger": part},
    )
    root = copies[0].root
    copies = *copies, EmptyCopy(SparkSession.active(), f"{root}-empty", f"{root}-checkpoints", ROWS, TASKS)
    for seed in range(APPENDS):
        for copy in copies:
            copy.feed(table(ROWS // APPENDS, 100, seed))
    seconds: list[list[float]] = [[], [], []]
    for _ in range(1 + ROUNDS):
        for copy, limit, found in zip(copies, limits, seconds, strict=True):
            started = time.perf_counter()
            copy.start(available_now=True, **limit).awaitTermination()
            found.append(time.perf_counter() - started)
            shutil.rmtree(copy.target)
    ours, *others = (each[1:] for each in seconds)
    return [
        {**_throughput_row(ours, theirs), "peer_name": name}
        for theirs, name in zip(others, (PEER, CEILING), strict=True)
    ]


def _throughput_row(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    speeds = (ROWS / statistics.median(each) / 1e6 for each in (ours, theirs))
    return _row("pass-through, 4 micro-batches", *speeds, "M rows/s", statistics.median(map(truediv, theirs, ours)))


def _latency(copies: Sequence[Copy]) -> list[dict[str, Any]]:
    found = []
    for copy in copies:
        copy.feed(table(10, 100))
        query = copy.start()
        found.append(sorted(_round_trips(copy, query, WARM_UP + ROUND_TRIPS)[WARM_UP:]))
        query.stop()
    rows = []
    for name, place in (("p50", len(found[0]) // 2), ("p99", -1 - len(found[0]) // 100)):
        ours, theirs = (each[place] * 1000 for each in found)
        rows.append(_row(f"latency {name}, topic to topic", ours, theirs, "ms", theirs / ours))
    return rows


def _round_trips(copy: Copy, query: StreamingQuery, count: int) -> list[float]:
    query.processAllAvailable()
    seconds = []
    for number in range(count):
        before = copy.seen()
        started = time.perf_counter()
        copy.feed(table(10, 100, number))
        while copy.seen() == before:
            time.sleep(0.002)
        seconds.append(time.perf_counter() - started)
    return seconds


def _at_rates(copies: Sequence[Copy]) -> list[dict[str, Any]]:
    """How long a micro-batch takes while records come at a rate, ten appends a second."""
    rows = []
    for rate in RATES:
        ours, theirs = (_batch_ms(copy, rate) for copy in copies)
        rows.append(_row(f"micro-batch p50 at {rate:,} records/s", ours, theirs, "ms", theirs / ours))
    return rows


def _batch_ms(copy: Copy, rate: int) -> float:
    records = table(rate // 10, 100)
    copy.feed(records)
    query = copy.start()
    query.processAllAvailable()
    is_over = threading.Event()
    feeding = threading.Thread(target=lambda: [copy.feed(records) for _ in iter(lambda: is_over.wait(0.1), True)])
    feeding.start()
    time.sleep(RATE_SECONDS)
    is_over.set()
    feeding.join()
    query.processAllAvailable()
    found = [batch["durationMs"]["triggerExecution"] for batch in query.recentProgress[1:] if batch["numInputRows"]]
    query.stop()
    return float(np.median(found))


def _idle(copies: Sequence[Copy]) -> list[dict[str, Any]]:
    found = []
    for copy in copies:
        copy.feed(table(10, 100))
        query = copy.start()
        query.processAllAvailable()
        time.sleep(1)
        before = cpu_seconds()
        time.sleep(IDLE_SECONDS)
        found.append((cpu_seconds() - before) / IDLE_SECONDS * 1000)
        query.stop()
    return [_row("idle, CPU of all processes", *found, "ms/s", found[1] / found[0])]


def _on_s3(spark: SparkSession) -> Iterator[dict[str, Any]]:
    """The least: GETs for the commit and the file of the source and for a newer commit of the target; 3 PUTs."""
    with S3Server() as server, tempfile.TemporaryDirectory() as checkpoints:
        copy = TopicCopy(spark, f"{server.url}/topics", checkpoints, server.options, partitions=1)
        copy.feed(table(10, 100))
        query = copy.start()
        _round_trips(copy, query, WARM_UP)
        before = server.requests - copy.own_requests
        _round_trips(copy, query, S3_BATCHES)
        made = (server.requests - copy.own_requests - before) / S3_BATCHES
        query.stop()
        yield {**_row("requests of a micro-batch on S3", made, 6.0, "requests", 6.0 / made), "peer_name": "the least"}


def _row(case: str, ours: float, theirs: float, unit: str, ratio: float) -> dict[str, Any]:
    return {
        "benchmark": "streaming",
        "case": case,
        "distlog": round(ours, 2),
        "peer": round(theirs, 2),
        "peer_name": PEER,
        "unit": unit,
        "ratio": round(ratio, 2),
    }
