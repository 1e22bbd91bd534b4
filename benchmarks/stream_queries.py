"""The queries of the benchmark `streaming`: from topic to topic, from files to files, or from nothing to nothing."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

import distlog
from benchmarks.empty_stream import EmptySource

COLUMNS = ("key", "value", "timestamp")


class Copy(ABC):
    """A source, and queries that copy it, each to a target and with a checkpoint of its own below `root`."""

    name: str

    def __init__(self, spark: SparkSession, root: str, checkpoints: str, options: Mapping[str, str]) -> None:
        self.root, self._checkpoints, self._options = root, checkpoints, options
        self._reader: DataStreamReader = spark.readStream.format(self.name).options(**options)
        self._queries = 0

    @abstractmethod
    def feed(self, records: pa.Table) -> None:
        """Append to the source."""

    @abstractmethod
    def read_count(self) -> int:
        """A number that grows when a reader of the newest target can see another micro-batch."""

    def start(self, *, available_now: bool = False, **limit: str) -> StreamingQuery:
        """Begin a query; `limit` is the source's option for the size of a micro-batch."""
        self._queries += 1
        self._make_target()
        copied = self._reader.options(**limit).load(f"{self.root}/source").select(*COLUMNS).writeStream
        stream = copied.format(self.name).options(**self._options)
        stream = stream.option("checkpointLocation", f"{self._checkpoints}/{self.name}-{self._queries}")
        return (stream.trigger(availableNow=True) if available_now else stream).start(self.target)

    @property
    def target(self) -> str:
        """The target of the newest query."""
        return f"{self.root}/target-{self._queries}"

    @abstractmethod
    def _make_target(self) -> None: ...


class TopicCopy(Copy):
    """From topic to topic."""

    name = "distlog"

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        checkpoints: str,
        storage: Mapping[str, Any] | None = None,
        partitions: int = 4,
        merges: str = "auto",
    ) -> None:
        settings = {f"storage.{name}": str(value) for name, value in (storage or {}).items()}
        super().__init__(spark, root, checkpoints, {"mergeSegments": merges, **settings})
        self._reader = self._reader.options(startingOffsets="earliest", columns=",".join(COLUMNS))
        self._storage, self._partitions = dict(storage or {}), partitions
        self._source = self._create(f"{root}/source")

    def _create(self, url: str) -> distlog.Topic:
        return distlog.create(url, partitions=self._partitions, storage_options=self._storage)

    def feed(self, records: pa.Table) -> None:
        self._source.append(records)

    def read_count(self) -> int:
        # not the version: a merge has one too
        return sum(self._target.refresh().end_offsets().values())

    @property
    def own_requests(self) -> int:
        """Requests of this process, which feeds the source and reads the target, without the query's."""
        counted = (topic.storage.counters for topic in (self._source, self._target))
        return sum(counters.gets + counters.puts + counters.lists + counters.deletes for counters in counted)

    def _make_target(self) -> None:
        self._target = self._create(self.target)


class EmptyCopy(Copy):
    """From a source in Python that has its rows ready to a sink in Python that drops them: no other can be faster."""

    name = "empty"

    def __init__(self, spark: SparkSession, root: str, checkpoints: str, rows: int, tasks: int) -> None:
        spark.dataSource.register(EmptySource)
        super().__init__(spark, root, checkpoints, {"rows": str(rows), "tasks": str(tasks)})

    def feed(self, records: pa.Table) -> None:
        pass

    def read_count(self) -> int:
        return 0

    def _make_target(self) -> None:
        os.makedirs(self.target)


class FileCopy(Copy):
    """From Parquet files to Parquet files."""

    name = "parquet"

    def __init__(self, spark: SparkSession, root: str, checkpoints: str) -> None:
        super().__init__(spark, root, checkpoints, {})
        self._reader = self._reader.schema("key binary, value binary, timestamp timestamp")
        self._fed = 0
        os.makedirs(f"{root}/source")

    def feed(self, records: pa.Table) -> None:
        self._fed += 1
        times = records["timestamp"].cast(pa.timestamp("ms", "UTC"))
        new = f"{self.root}/new.parquet"
        pq.write_table(records.set_column(2, "timestamp", times), new, compression="none", use_dictionary=False)
        os.rename(new, f"{self.root}/source/{self._fed:06d}.parquet")

    def read_count(self) -> int:
        log = Path(self.target, "_spark_metadata")
        return sum(path.name.split(".")[0].isdecimal() for path in log.iterdir()) if log.exists() else 0

    def _make_target(self) -> None:
        pass
