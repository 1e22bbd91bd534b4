"""A topic as a table, each record once; a Parquet table by a stream that ends when all is read.

The stream continues where the last one stopped. Each batch is a folder of the table, named by its number. A batch
that Spark repeats has the same records, and replaces its folder: all readers of Parquet see each record once. Tables
of Delta and Iceberg, which have commits of their own, are in the module `lake`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery

from distlog.core import paths
from distlog.core.errors import InvalidConfigError, StorageError
from distlog.core.opening import open as open_topic
from distlog.core.read.lookup import EARLIEST
from distlog.core.schemas.decoding import OnError
from distlog.core.schemas.registry import SchemaRegistry, SchemaTopic
from distlog.core.storage.storage import parse_url
from distlog.core.topic import Topic
from distlog.spark.frames import stream
from distlog.spark.lake import LakeFormat, fill, lake_table
from distlog.spark.stream_plan import Limits
from distlog.spark.values import ValueFormat, decode

#: The formats of a table.
Output = Literal["parquet"] | LakeFormat
#: Makes the rows of a table of a topic's records.
Shaped = Callable[[DataFrame], DataFrame]
#: The columns of a table in addition to the value's fields; `batch` is the name of the folder that a row is in.
COLUMNS = ("partition", "offset", "timestamp", "key")
BATCH = "batch"
#: Marks a row of a compacted topic that deletes its key.
DELETED = "deleted"
#: Folders of the table that no reader of Parquet looks into: whose table it is, and how far it is.
_MARK, _CHECKPOINT = "_distlog", "_checkpoint"


@dataclass(frozen=True, slots=True)
class TableReport:
    """The rows and batches that one run added to a table, and the seconds that it took."""

    table: str
    rows: int
    batches: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {"table": self.table, "rows": self.rows, "batches": self.batches, "seconds": round(self.seconds, 3)}


def to_table(
    spark: SparkSession,
    url: str | Topic,
    table: str,
    *,
    output: Output = "parquet",
    format: ValueFormat | Literal["binary"] = "binary",
    schema: Any = None,
    registry: SchemaRegistry | SchemaTopic | Mapping[int, Any] | str | None = None,
    message: str | None = None,
    framed: bool = False,
    flatten: bool = True,
    on_error: OnError = "fail",
    changes: bool = False,
    checkpoint: str | None = None,
    max_offsets: int | None = None,
    max_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TableReport:
    """Add the records that a topic has and its table lacks to the table, each record once.

    The columns are `partition`, `offset`, `timestamp`, `key` and the fields of the value. The state of a table of
    Parquet is in `checkpoint`; Delta and Iceberg keep it themselves. Run one at a time. It does not run on Spark
    Connect. For a compacted topic, Delta and Iceberg get one row for each key, which a record without a value
    deletes.

    Args:
        spark: The session.
        url: The topic.
        table: For `parquet` a folder of Spark's file systems; for `delta` that or a name in a catalog; for `iceberg`
            a name in a catalog.
        output: The format of the table.
        format: The format of the values, as in `decode`; `binary` leaves them unchanged.
        schema: As in `decode`.
        registry: As in `decode`.
        message: As in `decode`.
        framed: As in `decode`.
        flatten: As in `decode`.
        on_error: As in `decode`.
        changes: Add all changes of a compacted topic, with true in the column `deleted` where a key was deleted;
            Parquet, which cannot change a row, has no other way.
        checkpoint: The folder of the state of a table of Parquet; default in the table's folder.
        max_offsets: The most offsets of a batch, about; default all.
        max_bytes: The most bytes of log of a batch, about; default all.
        storage_options: Options of the storage.

    Returns:
        The report.

    Raises:
        InvalidConfigError: The table is of another topic or checkpoint; its folder is a topic, holds this topic or
            lies in it; or Spark lacks what the table's format needs.
        DistlogError: As `stream` and `decode` raise.

    Examples:
        >>> table = f"{topic.url}-table"
        >>> to_table(spark, topic, table, format="json", schema="page string").rows
        3
    """
    started = time.monotonic()
    topic = url if isinstance(url, Topic) else open_topic(url, storage_options=storage_options)
    for folder in (table if output == "parquet" or "/" in table else None, checkpoint):
        if folder is not None:
            _check_location(spark, topic, folder)

    def shaped(rows: DataFrame) -> DataFrame:
        if changes:
            rows = rows.withColumn(DELETED, F.col("value").isNull())
        if format == "binary":
            return rows
        options = {"message": message, "framed": framed, "flatten": flatten, "on_error": on_error}
        return decode(rows, format, schema, registry=registry, **options)  # type: ignore[arg-type]

    limits = Limits(max_offsets, max_bytes)
    if output == "parquet":
        table = table.rstrip("/")
        rows, batches = _to_parquet(spark, topic, table, shaped, changes, checkpoint, limits)
    else:
        lake = lake_table(spark, output, table)
        if checkpoint is not None:
            raise InvalidConfigError("a table of Delta or Iceberg has no checkpoint: its commits hold the offsets")
        keyed = "compact" in topic.config.cleanup_policy and not changes
        rows, batches = fill(lake, topic, [*COLUMNS, "value"], shaped, keyed=keyed, limits=limits)
    return TableReport(table, rows, batches, time.monotonic() - started)


def _check_location(spark: SparkSession, topic: Topic, folder: str) -> None:
    """Raise InvalidConfigError for a folder in which Spark's files and a topic's files would be mixed."""
    context: Any = spark.sparkContext
    make_path = context._jvm.org.apache.hadoop.fs.Path
    files = make_path(folder).getFileSystem(context._jsc.hadoopConfiguration())
    try:
        location, topic_url = parse_url(files.makeQualified(make_path(folder)).toString()).url, topic.url
    except StorageError:
        # no topic can be there
        return
    if topic.storage.is_local:
        location, topic_url = os.path.realpath(location), os.path.realpath(topic_url)
    if f"{topic_url}/".startswith(f"{location.rstrip('/')}/") or f"{location}/".startswith(f"{topic_url}/"):
        text = "the folder is the topic's, holds it or lies in it: choose one outside of the topic"
        raise InvalidConfigError(text, folder=folder, topic=topic.url)
    if files.exists(make_path(folder, paths.COMMITS_DIR)):
        raise InvalidConfigError("the folder is a topic: choose another one", folder=folder)


def _to_parquet(
    spark: SparkSession,
    topic: Topic,
    table: str,
    shaped: Shaped,
    changes: bool,
    checkpoint: str | None,
    limits: Limits,
) -> tuple[int, int]:
    if "compact" in topic.config.cleanup_policy and not changes:
        raise InvalidConfigError(
            "the topic is compacted, and Parquet cannot change the row of a key: changes=True (--changes) makes a "
            "table of all changes, of which a query takes the last of each key; Delta and Iceberg (--output) can",
            topic=topic.name,
        )
    most = limits.max_offsets, limits.max_bytes
    rows = shaped(stream(spark, topic, [*COLUMNS, "value"], start=EARLIEST, max_offsets=most[0], max_bytes=most[1]))
    # Spark ignores case when it reads folders, which would hide the field
    if BATCH in map(str.lower, rows.columns):
        text = f"the table's folders are called {BATCH}, so no field can be: flatten=False makes one column"
        raise InvalidConfigError(text)
    writer = _Writer(table, topic.snapshot.topic_id)
    query = rows.writeStream.foreachBatch(writer.write).trigger(availableNow=True)
    _await(query.option("checkpointLocation", checkpoint or f"{table}/{_CHECKPOINT}").start(), writer)
    return writer.rows, writer.batches


def _await(query: StreamingQuery, writer: _Writer) -> None:
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
        raise
    except Exception:
        if writer.refused is not None:
            raise writer.refused from None
        raise


@dataclass(slots=True)
class _Writer:
    """Writes the batches of a query, each in place of what the same batch wrote before."""

    table: str
    topic_id: str
    rows: int = 0
    batches: int = 0
    refused: InvalidConfigError | None = None
    _is_checked: bool = field(default=False)

    def write(self, frame: DataFrame, batch: int) -> None:
        if not self._is_checked:
            self._check(frame.sparkSession)
        observation = Observation(f"batch {batch}")
        watched = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
        watched.write.mode("overwrite").parquet(f"{self.table}/{BATCH}={batch}")
        self.rows += int(observation.get["rows"])
        self.batches += 1

    def _check(self, spark: SparkSession) -> None:
        """Refuse a table of another query, whose batches have the same numbers."""
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        mark = json.dumps({"query": query, "topic": self.topic_id})
        marks = _texts(spark, f"{self.table}/{_MARK}")
        if not marks:
            if _has_rows(spark, self.table):
                self._refuse("the folder has Parquet files that are not a table of a topic: choose another folder")
            frame = spark.createDataFrame([(mark,)], "value string").coalesce(1)
            frame.write.mode("overwrite").text(f"{self.table}/{_MARK}")
        elif marks != [mark]:
            self._refuse(
                "the table is of another topic or checkpoint: give the checkpoint that it was made with, or another "
                "table; without its checkpoint, delete the table and make it again"
            )
        self._is_checked = True

    def _refuse(self, text: str) -> None:
        self.refused = InvalidConfigError(text, table=self.table)
        raise self.refused


def _named(folder: str) -> str:
    """Escape a path so that Spark does not read it as a pattern."""
    return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", folder)


def _texts(spark: SparkSession, folder: str) -> list[str]:
    try:
        return [row.value for row in spark.read.text(_named(folder)).collect()]
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []


def _has_rows(spark: SparkSession, folder: str) -> bool:
    try:
        spark.read.parquet(_named(folder))
    except AnalysisException as error:
        if error.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise
        return False
    return True
