"""Structured Streaming: a query from topic to topic, next to the same query from Parquet files to Parquet files.

    python -m benchmarks streaming

Throughput covers the micro-batches; the fixed time that a query takes to begin and to end is a row of its
own. Records have keys of 16 random bytes and values of 100. The latency is from a small append until a reader of the
target can see it, one append after the other. Idle is the CPU time of all processes of Spark while a query waits for
records. The requests are counted by moto's S3 server, without this process. Each query reads only the
columns that it writes: a topic by the option `columns`, files by their schema.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import truediv
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.s3_server import S3Server
from benchmarks.spark_processes import cpu_seconds
from benchmarks.stream_queries import Copy, EmptyCopy, FileCopy, TopicCopy
from benchmarks.topics import table
from distlog.spark import session

ROWS, APPENDS, BATCHES, ROUNDS = 4_000_000, 16, 4, 3
ROUND_TRIPS, WARM_UP = 200, 20
RATES, RATE_SECONDS = (1_000, 100_000), 15
IDLE_SECONDS = 10
#: As many as fit into the merges.
MERGED = 8
S3_BATCHES = 3 * MERGED
PATIENCE_S = 120
PEER = "the same query on Parquet files"
CEILING = "a source and a sink in Python that do nothing"
#: For each micro-batch, as many as distlog has.
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
    runs_by_query: list[list[_Run]] = [[], [], []]
    for _ in range(1 + ROUNDS):
        for copy, limit, runs in zip(copies, limits, runs_by_query, strict=True):
            runs.append(_Run.of(copy, limit))
            shutil.rmtree(copy.target)
    ours, *peers = (runs[1:] for runs in runs_by_query)
    return [
        {**row, "peer_name": name}
        for theirs, name in zip(peers, (PEER, CEILING), strict=True)
        for row in _throughput_rows(ours, theirs)
    ]


class _Run(NamedTuple):
    """The seconds of a query's micro-batches, and of all else: its processes begin, and end; its CPU seconds."""

    batches: float
    fixed_s: float
    cpu: float

    @classmethod
    def of(cls, copy: Copy, limit: Mapping[str, str]) -> _Run:
        started, cpu = time.perf_counter(), cpu_seconds()
        query = copy.start(available_now=True, **limit)
        query.awaitTermination()
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
        batches = sum(batch["durationMs"]["triggerExecution"] for batch in query.recentProgress) / 1000
        return cls(batches, seconds - batches, cpu)


def _throughput_rows(ours: Sequence[_Run], theirs: Sequence[_Run]) -> Iterator[dict[str, Any]]:
    seconds = [[run.batches for run in runs] for runs in (ours, theirs)]
    speeds = (ROWS / statistics.median(run_seconds) / 1e6 for run_seconds in seconds)
    ratio = statistics.median(map(truediv, seconds[1], seconds[0]))
    yield _row(f"pass-through, {BATCHES} micro-batches", *speeds, "M rows/s", ratio)
    rests = [statistics.median(run.fixed_s for run in runs) for runs in (ours, theirs)]
    yield _row("pass-through, begin and end of the query", *rests, "s", rests[1] / rests[0])
    spent = [statistics.median(run.cpu for run in runs) for runs in (ours, theirs)]
    yield _row("pass-through, CPU time of all processes, begin and end included", *spent, "s", spent[1] / spent[0])


def _latency(copies: Sequence[Copy]) -> list[dict[str, Any]]:
    latencies = []
    for copy in copies:
        copy.feed(table(10, 100))
        query = copy.start()
        latencies.append(sorted(_round_trips(copy, query, WARM_UP + ROUND_TRIPS)[WARM_UP:]))
        query.stop()
    rows = []
    for name, index in (("p50", len(latencies[0]) // 2), ("p99", -1 - len(latencies[0]) // 100)):
        ours, theirs = (sorted_latencies[index] * 1000 for sorted_latencies in latencies)
        rows.append(_row(f"latency {name}, topic to topic", ours, theirs, "ms", theirs / ours))
    return rows


def _round_trips(copy: Copy, query: StreamingQuery, count: int) -> list[float]:
    query.processAllAvailable()
    seconds = []
    for number in range(count):
        seen_before = copy.read_count()
        started = time.perf_counter()
        copy.feed(table(10, 100, number))
        while copy.read_count() == seen_before:
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
    durations = [
        batch["durationMs"]["triggerExecution"] for batch in query.recentProgress[1:] if batch["numInputRows"]
    ]
    query.stop()
    return float(np.median(durations))


def _idle(copies: Sequence[Copy]) -> list[dict[str, Any]]:
    rates = []
    for copy in copies:
        copy.feed(table(10, 100))
        query = copy.start()
        query.processAllAvailable()
        time.sleep(1)
        cpu_before_s = cpu_seconds()
        time.sleep(IDLE_SECONDS)
        rates.append((cpu_seconds() - cpu_before_s) / IDLE_SECONDS * 1000)
        query.stop()
    return [_row("idle, CPU of all processes", *rates, "ms/s", rates[1] / rates[0])]


def _on_s3(spark: SparkSession) -> Iterator[dict[str, Any]]:
    """The least: GETs for the source's commit, its end and its file, and for the target's last commit; 3 PUTs.

    A merge of eight micro-batches reads their files, and puts two and a commit.
    """
    least = 7.0
    case = "requests of a micro-batch on S3"
    with S3Server() as server:
        requests = _requests(spark, server, "false")
        yield {**_row(f"{case}, not merged", requests, least, "requests", least / requests), "peer_name": "the least"}
        least += (MERGED + 3) / MERGED
        requests = _requests(spark, server, "true")
        yield {**_row(f"{case}, merged", requests, least, "requests", least / requests), "peer_name": "the least"}


def _requests(spark: SparkSession, server: S3Server, merges: str) -> float:
    """The requests of a micro-batch, on average; some micro-batches poll before there are records."""
    with tempfile.TemporaryDirectory() as checkpoints:
        copy = TopicCopy(
            spark, f"{server.url}/merges-{merges}", checkpoints, server.options, partitions=1, merges=merges
        )
        copy.feed(table(10, 100))
        query = copy.start()
        _round_trips(copy, query, WARM_UP)
        requests_before = server.requests - copy.own_requests
        _round_trips(copy, query, S3_BATCHES)
        requests = (server.requests - copy.own_requests - requests_before) / S3_BATCHES
        query.stop()
        return requests


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
