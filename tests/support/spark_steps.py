"""A program that does with a PySpark, the one on its path, each thing once, and prints what went well as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark

import distlog
from distlog.spark import SparkExecutor, append, lag, read, register, register_tables, session, stream


class Steps:
    """The steps, each with its own topics; a step raises if its result is wrong."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.spark: Any = session(
            "steps",
            **{
                "spark.master": "local[2]",
                "spark.ui.enabled": "false",
                "spark.local.dir": str(folder / "local"),
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.sql.shuffle.partitions": "2",
            },
        )

    def _topic(self, name: str, rows: int = 0, **config: object) -> distlog.Topic:
        topic = distlog.create(str(self._folder / name / "clicks"), 2, config)
        for half in (range(rows // 2), range(rows // 2, rows)):
            if half:
                topic.append([{"key": b"%d" % (n % 5), "value": b"%d" % n} for n in half])
        return topic

    def _rows(self, count: int = 20) -> Any:
        return self.spark.range(0, count, 1, 2).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")

    def _finish(self, writer: Any, name: str) -> Any:
        checkpoint = str(self._folder / f"{name}.checkpoint")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def _through(self, frame: Callable[[], Any], name: str) -> list[int]:
        """How many rows each micro-batch of a stream has."""
        counts: list[int] = []
        writer = frame().writeStream.foreachBatch(lambda batch, number: counts.append(batch.count()))
        self._finish(writer, name)
        return counts

    def functions(self) -> None:
        topic = self._topic("functions")
        assert append(self._rows(), topic).record_count == 20
        assert read(self.spark, topic, ["offset", "value", "timestamp"], limit=7).count() == 7

    def format(self) -> None:
        topic = self._topic("format")
        self._rows().write.format("distlog").mode("append").save(topic.url)
        frame = self.spark.read.format("distlog").option("includeHeaders", "true").load(topic.url)
        assert sorted(int(row.value) for row in frame.collect()) == list(range(20))

    def sql(self) -> None:
        self._topic("sql", 8)
        register_tables(self.spark, str(self._folder / "sql"))
        assert self.spark.sql("SELECT count(*) FROM clicks").first()[0] == 8

    def secrets(self) -> None:
        """Storage options of a session, which Spark does not show."""
        topic = self._topic("secrets", 8)
        other = self.spark.newSession()
        register(other, {"auto_mkdir": True})
        assert other.read.format("distlog").load(topic.url).count() == 8

    def shuffle(self) -> None:
        topic = self._topic("shuffle")
        append(self._rows(), topic, shuffle=True)
        assert sum(topic.refresh().end_offsets().values()) == 20

    def push(self) -> None:
        topic = self._topic("push", 20)
        name = "spark.sql.python.filterPushdown.enabled"
        self.spark.conf.set(name, "true")
        try:
            frame = self.spark.read.format("distlog").option("pushFilters", "true").load(topic.url)
            assert frame.where("partition = 1").count() == topic.end_offsets()[1]
        finally:
            self.spark.conf.unset(name)

    def source(self) -> None:
        """A stream out of a topic, twice from one checkpoint, also with a new partition."""
        topic = self._topic("source", 20)

        def frame() -> Any:
            return self.spark.readStream.format("distlog").option("startingOffsets", "earliest").load(topic.url)

        assert sum(self._through(frame, "source")) == 20
        topic.create_partitions(3)
        topic.append([{"value": b"%d" % n, "partition": n} for n in (0, 2, 2)])
        assert sum(self._through(frame, "source")) == 3
        assert sum(self._through(frame, "source")) == 0
        latest = self._through(lambda: stream(self.spark, topic, columns=["offset"]), "latest")
        assert sum(latest) == 0

    def limits(self) -> None:
        topic = self._topic("limits", 20)
        rows = self._through(lambda: stream(self.spark, topic, start=distlog.EARLIEST, max_offsets=8), "limits")
        assert sum(rows) == 20
        assert len(rows) > 2

    def lag(self) -> None:
        topic = self._topic("behind", 20)
        frame = stream(self.spark, topic, start=distlog.EARLIEST)
        query = self._finish(frame.writeStream.format("noop"), "behind")
        assert lag(query).column("lag").to_pylist() == [0, 0]
        topic.append([{"value": b"v", "partition": 1}])
        assert lag(query, topic).column("lag").to_pylist() == [0, 1]

    def sink(self) -> None:
        source, topic = self._topic("sink", 20), self._topic("sunk")

        def frame() -> Any:
            return stream(self.spark, source, start=distlog.EARLIEST).select("key", "value").writeStream

        for _ in range(2):
            self._finish(frame().format("distlog").option("path", topic.url), "sunk")
            assert sum(topic.refresh().end_offsets().values()) == 20

    def each_batch(self) -> None:
        source, topic = self._topic("each", 20), self._topic("every")
        frame = stream(self.spark, source, start=distlog.EARLIEST).select("key", "value")

        def write(batch: Any, number: int) -> None:
            append(batch, topic.url, app_id="each", batch_id=number)

        self._finish(frame.writeStream.foreachBatch(write), "each")
        for commit_file in (self._folder / "each.checkpoint" / "commits").glob("*0*"):
            commit_file.unlink()
        self._finish(frame.writeStream.foreachBatch(write), "each")
        assert sum(topic.refresh().end_offsets().values()) == 20

    def maintain(self) -> None:
        topic = self._topic("maintain", 40, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        topic.append([{"key": b"last", "value": b"v", "partition": n} for n in (0, 1)])
        executor = SparkExecutor(self.spark)
        topic.compact(executor=executor)
        topic.rebuild_indexes(force=True, executor=executor)
        assert topic.verify(executor=executor).ok
        assert len(topic.refresh().scan(columns="key").to_table()) < 30

    def compact_large(self) -> None:
        """The compaction of a partition that many tasks share."""
        topic = self._topic("large", 40, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        topic.append([{"key": b"last", "value": b"v", "partition": n} for n in (0, 1)])
        topic.compact(executor=SparkExecutor(self.spark), dedupe_buffer_bytes=64)
        assert len(topic.refresh().scan(columns="key").to_table()) < 30


#: The names of the steps in the table in docs/spark-setup.md.
LABELS = {
    "functions": "`append` and `read`",
    "format": '`format("distlog")`, read and write',
    "sql": "`register_tables`",
    "secrets": "`register(spark, storage_options=...)`",
    "shuffle": "`append(..., shuffle=True)`",
    "push": "`pushFilters`",
    "source": "a stream out of a topic",
    "limits": "limits of micro-batches, as `maxOffsetsPerTrigger`",
    "behind": "`lag`",
    "sink": "a stream into a topic",
    "each_batch": "`append` in `foreachBatch`, once for each batch",
    "maintain": "`compact`, `verify` and `rebuild_indexes` as tasks",
    "compact_large": "`compact` with tasks that share a partition",
}


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(Path(folder))
        for name, label in LABELS.items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            try:
                getattr(steps, name)()
                results[label] = "yes"
            except Exception as error:
                lines = [line for line in str(error).splitlines() if f"and this is {pyspark.__version__}" in line]
                results[label] = lines[0] if lines else f"{type(error).__name__}: {error}"
            print(name, results[label], file=sys.stderr, flush=True)
        steps.spark.stop()
    print(json.dumps(results))


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    main()
