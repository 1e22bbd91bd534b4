"""Spark: a topic next to a broker's topic with Spark's Kafka source and sink, and next to a Delta table.

    python -m benchmarks spark_peers

Each peer has a process and a session of Spark of its own, and distlog is measured there too, in turn with it. The
broker (`make kafka-jars`) writes to the page cache and its CPU time is counted, as its work is part of each read and
write; Delta (`make table-jars`) has the PySpark that it is made for. A peer without its jars is left out. Keys are 16
random bytes, values 100. Reads take these two columns. A small write is one of 1,000 rows, and "read after them" has
what all the small ones wrote. A stream copies small writes as they come, and each waits until it is copied; what the
query takes to begin and to end is left out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import truediv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import distlog
from benchmarks.kafka_peer import JARS, broker, has_kafka, tool
from benchmarks.spark_processes import cpu_seconds
from benchmarks.topics import table
from distlog.spark import append, read, session
from tools.spark_versions import path_of, with_pyspark

ROWS, SMALL, WRITES, ROUNDS = 2_000_000, 1_000, 20, 3
PARTITIONS = 4
COLUMNS = ("key", "value")
TABLE_JARS = os.environ.get("DISTLOG_TABLE_JARS", "")
#: The PySpark for the jars of Delta that are there for its minor version.
DELTA_SPARK = ("4.1.1", "4.1")
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
}
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
PEERS = {"kafka": "Spark's Kafka source and sink, with the broker", "delta": "a table of Delta"}


def run() -> list[dict[str, Any]]:
    """One dict per case and peer; none for a peer whose jars are not there."""
    rows = []
    for name, environment in environments().items():
        command = [sys.executable, "-m", "benchmarks.spark_peers", name]
        ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        rows += json.loads(ran.stdout.splitlines()[-1])
    return rows


def environments() -> dict[str, dict[str, str]]:
    """For each peer that can run, the environment of a process whose Spark session has its jars."""
    by_peer = {}
    connector = Path(JARS, "spark")
    if has_kafka() and connector.is_dir():
        by_peer["kafka"] = {**os.environ, **_submit(connector)}
    version, minor = DELTA_SPARK
    if TABLE_JARS and path_of(version).exists():
        by_peer["delta"] = {**with_pyspark(path_of(version)), **_submit(Path(TABLE_JARS, minor))}
    return by_peer


def _submit(jars: Path) -> dict[str, str]:
    return {"PYSPARK_SUBMIT_ARGS": f"--jars {','.join(map(str, jars.glob('*.jar')))} pyspark-shell"}


class Kind(ABC):
    """Where rows are written to, and read from, with Spark."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark, self._root = spark, root

    @abstractmethod
    def make(self, name: str) -> None:
        """An empty one of this name."""

    @abstractmethod
    def write(self, rows: DataFrame, name: str) -> None:
        """Add the rows."""

    @abstractmethod
    def read(self, name: str) -> DataFrame:
        """The whole topic, with two columns."""

    @abstractmethod
    def copy(self, source: str, target: str, checkpoint: str) -> StreamingQuery:
        """A query that copies all that is there and comes."""


class Topics(Kind):
    """Topics of distlog."""

    def make(self, name: str) -> None:
        distlog.create(f"{self._root}/{name}", PARTITIONS, config={"retention.ms": -1})

    def write(self, rows: DataFrame, name: str) -> None:
        append(rows, f"{self._root}/{name}")

    def read(self, name: str) -> DataFrame:
        return read(self._spark, f"{self._root}/{name}", COLUMNS)

    def copy(self, source: str, target: str, checkpoint: str) -> StreamingQuery:
        options = {"startingOffsets": "earliest", "columns": ",".join(COLUMNS)}
        stream = self._spark.readStream.format("distlog").options(**options).load(f"{self._root}/{source}")
        written = stream.writeStream.format("distlog").option("checkpointLocation", checkpoint)
        return written.start(f"{self._root}/{target}")


class FormatTopics(Topics):
    """Topics of distlog, read and written by `format("distlog")` alone."""

    def write(self, rows: DataFrame, name: str) -> None:
        rows.write.format("distlog").mode("append").save(f"{self._root}/{name}")

    def read(self, name: str) -> DataFrame:
        reader = self._spark.read.format("distlog").option("columns", ",".join(COLUMNS))
        return reader.load(f"{self._root}/{name}")


class KafkaTopics(Kind):
    """Topics of a broker."""

    def __init__(self, spark: SparkSession, root: str, address: str) -> None:
        super().__init__(spark, root)
        self._address = {"kafka.bootstrap.servers": address}

    def make(self, name: str) -> None:
        sizes = ("--partitions", str(PARTITIONS), "--replication-factor", "1")
        options = ("--bootstrap-server", self._address["kafka.bootstrap.servers"])
        tool("org.apache.kafka.tools.TopicCommand", *options, "--create", "--topic", name, *sizes)

    def write(self, rows: DataFrame, name: str) -> None:
        rows.select(*COLUMNS).write.format("kafka").options(**self._address, topic=name).save()

    def read(self, name: str) -> DataFrame:
        return self._spark.read.format("kafka").options(**self._address, subscribe=name).load().select(*COLUMNS)

    def copy(self, source: str, target: str, checkpoint: str) -> StreamingQuery:
        options = {**self._address, "startingOffsets": "earliest"}
        stream = self._spark.readStream.format("kafka").options(**options, subscribe=source).load()
        written = stream.select(*COLUMNS).writeStream.format("kafka").options(**self._address, topic=target)
        return written.option("checkpointLocation", checkpoint).start()


class DeltaTables(Kind):
    """Tables of Delta."""

    def make(self, name: str) -> None:
        pass

    def write(self, rows: DataFrame, name: str) -> None:
        rows.write.format("delta").mode("append").save(f"{self._root}/delta-{name}")

    def read(self, name: str) -> DataFrame:
        return self._spark.read.format("delta").load(f"{self._root}/delta-{name}").select(*COLUMNS)

    def copy(self, source: str, target: str, checkpoint: str) -> StreamingQuery:
        stream = self._spark.readStream.format("delta").load(f"{self._root}/delta-{source}").select(*COLUMNS)
        written = stream.writeStream.format("delta").option("checkpointLocation", checkpoint)
        return written.start(f"{self._root}/delta-{target}")


def main(peer: str) -> None:
    """Measure distlog next to one peer; the rows are printed as a line of JSON."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="distlog-benchmark-"))
        address = stack.enter_context(broker(Path(folder))).address if peer == "kafka" else ""
        spark = session("benchmark", **SETTINGS, **(DELTA_SETTINGS if peer == "delta" else {}))
        theirs = KafkaTopics(spark, folder, address) if address else DeltaTables(spark, folder)
        kinds = {peer: theirs, "functions": Topics(spark, folder), "format": FormatTopics(spark, folder)}
        print(json.dumps(_measured(spark, folder, peer, kinds)))


def _measured(spark: SparkSession, folder: str, peer: str, kinds: Mapping[str, Kind]) -> list[dict[str, Any]]:
    """All kinds in turn, so that a slow moment affects all alike; a first round warms up."""
    files = [f"{folder}/{name}.parquet" for name in ("rows", "small")]
    for path, count in zip(files, (ROWS, SMALL), strict=True):
        pq.write_table(table(count, 100), path, row_group_size=-(-count // 4))
    rows, small = (spark.read.parquet(path) for path in files)
    seconds_by_case: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for number in range(1 + ROUNDS):
        for name, kind in kinds.items():
            for case, seconds in _round(kind, f"round-{number}-{name}", rows, small, folder):
                seconds_by_case[name, case].append(seconds)
    cases = dict.fromkeys(case for _, case in seconds_by_case)
    return [
        row
        for case in cases
        for ours in list(kinds)[1:]
        for row in _rows(peer, f"{case}, {ours}", seconds_by_case[ours, case][1:], seconds_by_case[peer, case][1:])
    ]


def _round(
    kind: Kind, name: str, rows: DataFrame, small: DataFrame, folder: str
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Each case, and the seconds that it took, on the clock and of CPU."""
    for size in ("large", "small", "copied"):
        kind.make(f"{name}-{size}")
    yield "write", _seconds(lambda: kind.write(rows, f"{name}-large"))
    yield "read", _seconds(lambda: _noop(kind.read(f"{name}-large")))
    yield f"{WRITES} small writes", _seconds(lambda: [kind.write(small, f"{name}-small") for _ in range(WRITES)])
    yield "read after them", _seconds(lambda: _noop(kind.read(f"{name}-small")))
    query = kind.copy(f"{name}-small", f"{name}-copied", f"{folder}/checkpoints/{name}")
    query.processAllAvailable()

    def write_and_wait() -> None:
        for _ in range(WRITES):
            kind.write(small, f"{name}-small")
            query.processAllAvailable()

    yield f"{WRITES} small writes, each copied by a stream", _seconds(write_and_wait)
    query.stop()
    copied, written = kind.read(f"{name}-copied").count(), 2 * WRITES * SMALL
    if copied != written:
        raise AssertionError(f"the stream copied {copied} of {written} rows of {name}")


def _seconds(work: Callable[[], Any]) -> tuple[float, float]:
    started, cpu_before_s = time.perf_counter(), cpu_seconds()
    work()
    return time.perf_counter() - started, cpu_seconds() - cpu_before_s


def _noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _rows(
    peer: str, case: str, ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]]
) -> Iterator[dict[str, Any]]:
    for index, unit in enumerate(("s", "CPU s")):
        mine, peers = ([pair[index] for pair in seconds] for seconds in (ours, theirs))
        yield {
            "benchmark": "spark_peers",
            "case": case,
            "distlog": statistics.median(mine),
            "peer": statistics.median(peers),
            "peer_name": PEERS[peer],
            "unit": unit,
            "ratio": statistics.median(map(truediv, peers, mine)),
        }


if __name__ == "__main__":
    main(sys.argv[1])
