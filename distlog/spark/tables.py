"""Copies a topic into a table of Parquet, Delta or Iceberg, each record once.

A stream (`availableNow`) writes Parquet, and stops at the log's end. Each batch is a folder, named by the batch's
number. A repeated batch has the same records, and replaces its folder. A commit of Delta or Iceberg carries the next
offsets, as Delta's `userMetadata` or in Iceberg's snapshot summary, so rows and offsets are written atomically. If no
commit has the offsets, because the table's history was cut or restored, they are computed from the rows. For a
compacted topic, an idempotent `MERGE INTO` writes the last record of each key; a separate commit has the offsets.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

import pyspark
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from distlog.core import paths
from distlog.core.commits.snapshot import PartitionState
from distlog.core.errors import CommitConflictError, InvalidConfigError, StorageError
from distlog.core.opening import open as open_topic
from distlog.core.read.lookup import EARLIEST
from distlog.core.schemas.decoding import OnError, ValueFormat
from distlog.core.schemas.registry import SchemaRegistry, SchemaTopic
from distlog.core.storage.storage import parse_url
from distlog.core.topic import Topic
from distlog.spark.batch_source import schema_of
from distlog.spark.frames import read, stream
from distlog.spark.options import out_of_range_error
from distlog.spark.stream_plan import Admission, Ends, Limits
from distlog.spark.values import decode, quoted

LakeFormat = Literal["delta", "iceberg"]
"""The formats of tables whose own commits hold the offsets."""
Output = Literal["parquet"] | LakeFormat
"""The formats of tables."""
ToTableRows = Callable[[DataFrame], DataFrame]
COLUMNS = ("partition", "offset", "timestamp", "key")  # in addition to the value's fields
BATCH_COLUMN = "batch"  # in Parquet, a row's batch, which Spark reads from the name of the row's folder
DELETED_COLUMN = "deleted"  # marks a change that deletes its key
#: Folders in the table that readers of Parquet skip: the first has the ids of the table's topic and query.
_OWNER_FOLDER, _CHECKPOINT_FOLDER = "_distlog", "_checkpoint"
TOPIC_PROPERTY = "distlog.topic"  # the property of a table with the topic's id
_JSON_NAME = "distlog"  # the name of the JSON object that a commit carries
_TOMBSTONE_COLUMN = "__distlog_deletes"  # a temporary column: true for a tombstone, a record that deletes its key
#: Errors of the JVM if a jar was built for another release of Spark.
_JAR_ERRORS = ("NoSuchMethodError", "NoClassDefFoundError", "IncompatibleClassChangeError", "AbstractMethodError")
_RECENT_COMMITS = 100  # the newest commits, which are searched before the whole history is


@dataclass(frozen=True, slots=True)
class TableReport:
    """The rows and batches that one run added to a table, and the seconds that it took."""

    table: str
    rows: int
    batches: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the totals."""
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
    """Add the new records of a topic to a table, each record once.

    The columns are `partition`, `offset`, `timestamp`, `key` and the fields of the value. The state of a table of
    Parquet is in `checkpoint`; Delta and Iceberg keep it themselves. Run one update of a table at a time. It does not
    run on Spark Connect. For a compacted topic, Delta and Iceberg get one row for each key; a record without a value
    deletes the row.

    Args:
        spark: The session.
        url: The topic.
        table: For `parquet` a folder of Spark's file systems; for `delta` a folder, or a name in a catalog; for
            `iceberg` a name in a catalog.
        output: The format of the table: parquet, delta or iceberg.
        format: The format of the values: json, avro or protobuf as in `decode`; binary leaves them unchanged.
        schema: As in `decode`.
        registry: As in `decode`.
        message: As in `decode`.
        framed: As in `decode`.
        flatten: As in `decode`.
        on_error: As in `decode`.
        changes: Add all changes of a compacted topic, with true in the column `deleted` where a key was deleted;
            Parquet needs this, since it cannot change a row.
        checkpoint: The folder of the state of a table of Parquet; default in the table's folder.
        max_offsets: The approximate maximum of offsets in a batch; default all.
        max_bytes: The approximate maximum of log bytes in a batch; default all.
        storage_options: Options of the storage.

    Returns:
        The report.

    Raises:
        InvalidConfigError: The table is of another topic or checkpoint, its folder is a topic's or overlaps this
            topic's, or Spark lacks what the table's format needs.
        DistlogError: As `stream` and `decode` raise.

    Examples:
        >>> table = f"{topic.url}-table"
        >>> to_table(spark, topic, table, format="json", schema="page string").rows
        3
    """
    start_s = time.monotonic()
    topic = url if isinstance(url, Topic) else open_topic(url, storage_options=storage_options)
    # for Delta and Iceberg, a table without a / is a name in a catalog
    is_folder = output == "parquet" or "/" in table
    for folder in (table if is_folder else None, checkpoint):
        if folder is not None:
            _check_location(spark, topic, folder)

    def to_table_rows(rows: DataFrame) -> DataFrame:
        if changes:
            rows = rows.withColumn(DELETED_COLUMN, F.col("value").isNull())
        if format == "binary":
            return rows
        options = {"message": message, "framed": framed, "flatten": flatten, "on_error": on_error}
        return decode(rows, format, schema, registry=registry, **options)  # type: ignore[arg-type]

    limits = Limits(max_offsets, max_bytes)
    if output == "parquet":
        table = table.rstrip("/")
        rows, batches = _to_parquet(spark, topic, table, to_table_rows, changes, checkpoint, limits)
    else:
        lake = _FORMATS[output](spark, table)
        if checkpoint is not None:
            raise InvalidConfigError("a table of Delta or Iceberg has no checkpoint: its commits hold the offsets")
        keyed = "compact" in topic.config.cleanup_policy and not changes
        with lake.explain_jar_mismatch():
            update = TableUpdate(lake, topic.refresh(), [*COLUMNS, "value"], to_table_rows, keyed, limits)
            rows, batches = update.run()
    return TableReport(table, rows, batches, time.monotonic() - start_s)


def _check_location(spark: SparkSession, topic: Topic, folder: str) -> None:
    """Raise InvalidConfigError for a folder that would mix Spark's files with a topic's files."""
    context: Any = spark.sparkContext
    make_path = context._jvm.org.apache.hadoop.fs.Path
    files = make_path(folder).getFileSystem(context._jsc.hadoopConfiguration())
    try:
        location, topic_url = parse_url(files.makeQualified(make_path(folder)).toString()).url, topic.url
    except StorageError:
        return  # no topic can be there
    if topic.storage.is_local:
        location, topic_url = os.path.realpath(location), os.path.realpath(topic_url)
    # the folder is the topic's folder or contains it, or lies in it; a / ends each name, since /ab does not lie in /a
    if f"{topic_url}/".startswith(f"{location.rstrip('/')}/") or f"{location}/".startswith(f"{topic_url}/"):
        text = "the folder is the topic's folder, contains it or is in it: choose one outside of the topic"
        raise InvalidConfigError(text, folder=folder, topic=topic.url)
    if files.exists(make_path(folder, paths.COMMITS_DIR)):
        raise InvalidConfigError("the folder is a topic: choose another one", folder=folder)


def _to_parquet(
    spark: SparkSession,
    topic: Topic,
    table: str,
    to_table_rows: ToTableRows,
    changes: bool,
    checkpoint: str | None,
    limits: Limits,
) -> tuple[int, int]:
    if "compact" in topic.config.cleanup_policy and not changes:
        raise InvalidConfigError(
            "the topic is compacted, and Parquet cannot change the row of a key: changes=True (--changes) makes a "
            "table of all changes, and queries select the last one of a key; or use Delta or Iceberg (--output)",
            topic=topic.name,
        )
    names, max_offsets, max_bytes = [*COLUMNS, "value"], limits.max_offsets, limits.max_bytes
    rows = to_table_rows(stream(spark, topic, names, start=EARLIEST, max_offsets=max_offsets, max_bytes=max_bytes))
    # Spark ignores case when it reads folders, so the folder's column would hide the field
    if BATCH_COLUMN in map(str.lower, rows.columns):
        text = f"no field can be called {BATCH_COLUMN}, like the table's folders: flatten=False makes one column"
        raise InvalidConfigError(text)
    writer = _ParquetWriter(table, topic.snapshot.topic_id)
    sink = rows.writeStream.foreachBatch(writer.write).trigger(availableNow=True)
    query = sink.option("checkpointLocation", checkpoint or f"{table}/{_CHECKPOINT_FOLDER}").start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
        raise
    except Exception:
        # Spark raises an error of its own for an error of `writer.write`: raise the writer's error instead
        if writer.error is not None:
            raise writer.error from None
        raise
    return writer.rows, writer.batches


@dataclass(slots=True)
class _ParquetWriter:
    """Writes the batches of a query; a repeated batch replaces its folder."""

    table: str
    topic_id: str
    rows: int = 0
    batches: int = 0
    error: InvalidConfigError | None = None
    _is_checked: bool = field(default=False)

    def write(self, frame: DataFrame, batch: int) -> None:
        if not self._is_checked:
            self._check(frame.sparkSession)
        observation = Observation(f"batch {batch}")
        counted_rows = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
        counted_rows.write.mode("overwrite").parquet(f"{self.table}/{BATCH_COLUMN}={batch}")
        self.rows += int(observation.get["rows"])
        self.batches += 1

    def _check(self, spark: SparkSession) -> None:
        """Refuse a table of another query, whose batches have the same numbers."""
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        owner = json.dumps({"query": query, "topic": self.topic_id})
        owner_rows = _read_if_any(spark.read.text, f"{self.table}/{_OWNER_FOLDER}")
        owners = [row.value for row in owner_rows.collect()] if owner_rows is not None else []
        if not owners:
            if _read_if_any(spark.read.parquet, self.table) is not None:
                self._refuse("the folder has Parquet files that are not a table of a topic: choose another folder")
            frame = spark.createDataFrame([(owner,)], "value string").coalesce(1)
            frame.write.mode("overwrite").text(f"{self.table}/{_OWNER_FOLDER}")
        elif owners != [owner]:
            self._refuse(
                "the table is of another topic or checkpoint: give the checkpoint that it was made with, or another "
                "table; without its checkpoint, delete the table and make it again"
            )
        self._is_checked = True

    def _refuse(self, text: str) -> None:
        self.error = InvalidConfigError(text, table=self.table)
        raise self.error


def _read_if_any(read_folder: Callable[[str], DataFrame], folder: str) -> DataFrame | None:
    """Read a folder by `spark.read.text` or `parquet`; returns None if there are no files."""
    try:
        return read_folder(re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", folder))  # Spark reads a path as a pattern
    except AnalysisException as error:
        if error.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise
        return None


@dataclass(frozen=True, slots=True)
class _CommitMark:
    """The mark in a table's commit: next offsets, and a `number` that counts up: only concurrent runs repeat one."""

    topic: str
    keyed: bool
    number: int
    run: str
    offsets: Ends

    def to_json(self) -> str:
        return json.dumps({_JSON_NAME: asdict(self)}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | None) -> _CommitMark | None:
        """Parse an untrusted text; returns None if it is not a mark."""
        try:
            mark = json.loads(text or "")[_JSON_NAME]
            offsets = {int(partition): int(offset) for partition, offset in mark["offsets"].items()}
            return cls(str(mark["topic"]), bool(mark["keyed"]), int(mark["number"]), str(mark["run"]), offsets)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


@dataclass(slots=True)
class LakeTable(ABC):
    """A table of Delta or Iceberg, with the name that the user gives, and its name in SQL."""

    spark: SparkSession
    requested_name: str
    name: str = field(init=False)

    format: ClassVar[LakeFormat]
    #: The tested jar by PySpark's minor version, or by its full version if the jar fits only that version.
    jars: ClassVar[Mapping[str, str]]
    main_class: ClassVar[str]

    def __post_init__(self) -> None:
        self.name = self._identifier()
        self._check_jar()
        self._check_settings()

    @abstractmethod
    def _identifier(self) -> str:
        """Return the table's name in SQL. Raises InvalidConfigError for a name that the format cannot have."""

    @abstractmethod
    def _check_settings(self) -> None:
        """Raise InvalidConfigError if the session lacks a setting that the format needs."""

    @abstractmethod
    def marks(self) -> Iterator[tuple[_CommitMark, int]]:
        """Yield the marks of the commits, newest first, with the number of rows that each commit added."""

    @abstractmethod
    def last_number(self) -> int:
        """Return a number from which a table without marks can count: Delta skips an append with a former number."""

    @abstractmethod
    def options(self, mark: _CommitMark) -> dict[str, str]:
        """Return the options of an append that carries the mark."""

    def _check_jar(self) -> None:
        thread = self.spark.sparkContext._jvm.java.lang.Thread.currentThread()  # type: ignore[union-attr]
        try:
            thread.getContextClassLoader().loadClass(self.main_class)
        except Py4JJavaError:
            minor = ".".join(pyspark.__version__.split(".")[:2])
            jar = self.jars.get(pyspark.__version__, self.jars.get(minor))
            if jar is None:
                reason = f"none was tried with PySpark {pyspark.__version__}: {self._remedy()}"
                raise InvalidConfigError(f"Spark has no jar of {self.format.capitalize()}, and {reason}") from None
            text = f"Spark has no jar of {self.format.capitalize()}: start it with --packages {jar}"
            raise InvalidConfigError(text, pyspark=pyspark.__version__) from None

    def _remedy(self) -> str:
        alternatives = ", ".join(f"{jar} (PySpark {version})" for version, jar in self.jars.items())
        return f"use a PySpark that has one, {alternatives}, or start this one with a jar that fits it"

    @contextmanager
    def explain_jar_mismatch(self) -> Iterator[None]:
        """Raise InvalidConfigError in place of the JVM's error if the jar does not fit this Spark."""
        try:
            yield
        except Py4JJavaError as error:
            if not any(name in str(error) for name in _JAR_ERRORS):
                raise
            text = f"the jar of {self.format.capitalize()} does not fit PySpark {pyspark.__version__}"
            raise InvalidConfigError(f"{text}: {self._remedy()}") from error

    def properties(self) -> dict[str, str] | None:
        try:
            if not self.spark.catalog.tableExists(self.name):
                return None
        except AnalysisException as error:
            if "DELTA_MISSING_DELTA_TABLE" not in str(error):
                raise
            return None
        return {row.key: row.value for row in self.spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect()}

    def append(self, rows: DataFrame, mark: _CommitMark) -> None:
        rows.writeTo(self.name).options(**self.options(mark)).append()

    def merge(self, rows: DataFrame) -> None:
        """Replace or delete the row of each key in `rows`, unless the table has the same row or a newer one."""
        view = f"distlog_{uuid.uuid4().hex}"
        names = [quoted(name) for name in rows.columns if name != _TOMBSTONE_COLUMN]
        # offsets of two partitions cannot be compared, so a row of another partition is always replaced
        newer = "(t.partition <> s.partition OR t.offset < s.offset)"
        assignments = ", ".join(f"t.{name} = s.{name}" for name in names)
        rows.createOrReplaceTempView(view)
        try:
            self.spark.sql(
                f"MERGE INTO {self.name} AS t USING {view} AS s ON t.key = s.key "
                f"WHEN MATCHED AND {newer} AND s.{_TOMBSTONE_COLUMN} THEN DELETE "
                f"WHEN MATCHED AND {newer} THEN UPDATE SET {assignments} "
                f"WHEN NOT MATCHED AND NOT s.{_TOMBSTONE_COLUMN} THEN "
                f"INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
            )
        finally:
            self.spark.catalog.dropTempView(view)


@dataclass(slots=True)
class DeltaTable(LakeTable):
    format = "delta"
    jars: ClassVar[Mapping[str, str]] = {
        "4.0": "io.delta:delta-spark_2.13:4.0.0",
        "4.1.1": "io.delta:delta-spark_4.1_2.13:4.2.0",
    }
    main_class = "io.delta.sql.DeltaSparkSessionExtension"

    def _identifier(self) -> str:
        if "/" not in self.requested_name:
            return self.requested_name
        if not self.requested_name.startswith("/") and "://" not in self.requested_name:
            text = "the path of a table of Delta begins with / or a scheme"
            raise InvalidConfigError(text, table=self.requested_name)
        return f"delta.{quoted(self.requested_name)}"

    def _check_settings(self) -> None:
        catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        has_catalog = self.spark.conf.get("spark.sql.catalog.spark_catalog", "") == catalog
        if self.main_class not in (self.spark.conf.get("spark.sql.extensions", "") or "") or not has_catalog:
            raise InvalidConfigError(
                f"Delta needs the settings spark.sql.extensions={self.main_class} and "
                f"spark.sql.catalog.spark_catalog={catalog}: give them when Spark starts"
            )

    def marks(self) -> Iterator[tuple[_CommitMark, int]]:
        """Yield the marks since the last restore: earlier commits do not describe the restored table."""
        for commit in self._history(_RECENT_COMMITS) or self._history(None):  # all commits, if the mark may be older
            if commit.operation == "RESTORE":
                return
            if mark := _CommitMark.parse(commit.userMetadata):
                yield mark, int((commit.operationMetrics or {}).get("numOutputRows", 0))

    def _history(self, max_commits: int | None) -> list[Any]:
        """Return the newest `max_commits`, newest first; [] if only an older commit can have the newest mark."""
        limit = "" if max_commits is None else f" LIMIT {max_commits}"
        commits = self.spark.sql(f"DESCRIBE HISTORY {self.name}{limit}").collect()
        is_marked = any(_CommitMark.parse(commit.userMetadata) or commit.operation == "RESTORE" for commit in commits)
        return commits if max_commits is None or is_marked or len(commits) < max_commits else []

    def last_number(self) -> int:
        """Return the table's version: each mark has a commit of its own, so former marks have smaller numbers."""
        return int(self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1").collect()[0].version)

    def options(self, mark: _CommitMark) -> dict[str, str]:
        """As in `LakeTable`; with `txnVersion`, Delta accepts only one of two runs with the same number."""
        return {"userMetadata": mark.to_json(), "txnAppId": f"distlog-{mark.topic}", "txnVersion": str(mark.number)}


@dataclass(slots=True)
class IcebergTable(LakeTable):
    format = "iceberg"
    jars: ClassVar[Mapping[str, str]] = {
        "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1",
        "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    }
    main_class = "org.apache.iceberg.spark.SparkCatalog"

    def _identifier(self) -> str:
        if "/" in self.requested_name or "." not in self.requested_name:
            text = "an Iceberg table needs the name of its catalog, as in lake.logs.clicks: give a name, not a path"
            raise InvalidConfigError(text, table=self.requested_name)
        return self.requested_name

    def _check_settings(self) -> None:
        catalog = self.requested_name.split(".")[0].strip("`")
        if not self.spark.conf.get(f"spark.sql.catalog.{catalog}", ""):
            raise InvalidConfigError(
                f"Spark has no catalog of this name: give it spark.sql.catalog.{catalog}={self.main_class}, with its "
                f"type and its address",
                table=self.requested_name,
            )

    def marks(self) -> Iterator[tuple[_CommitMark, int]]:
        """Yield the marks of the current snapshot and its ancestors."""
        # a catalog caches a table for half a minute, and another process may have written to it since
        self.spark.catalog.refreshTable(self.name)
        current = self.spark.sql(f"SELECT snapshot_id FROM {self.name}.refs WHERE name = 'main'").collect()
        columns = f"snapshot_id, parent_id, summary['{_JSON_NAME}'] AS mark, summary['added-records'] AS added"
        rows = self.spark.sql(f"SELECT {columns} FROM {self.name}.snapshots").collect()
        snapshots = {row.snapshot_id: row for row in rows}
        snapshot = snapshots.get(current[0].snapshot_id) if current else None
        while snapshot is not None:
            if mark := _CommitMark.parse(snapshot.mark):
                yield mark, int(snapshot.added or 0)
            snapshot = snapshots.get(snapshot.parent_id)

    def last_number(self) -> int:
        """Return 0, since an append to Iceberg succeeds with any number."""
        return 0

    def options(self, mark: _CommitMark) -> dict[str, str]:
        return {f"snapshot-property.{_JSON_NAME}": mark.to_json()}


_FORMATS: Mapping[LakeFormat, type[LakeTable]] = {"delta": DeltaTable, "iceberg": IcebergTable}


def _next_offset(mark: _CommitMark, number: int, state: PartitionState) -> int:
    """Return the first offset that the table lacks. Raises OffsetOutOfRangeError if it was deleted."""
    # A table without rows starts at the log's start. If it has rows, a partition without an offset starts at 0: if
    # the topic has deleted records of the partition, the table lacks them, and this raises an error.
    offset = mark.offsets.get(number, 0 if mark.offsets else state.log_start_offset)
    if not state.log_start_offset <= offset <= state.log_end_offset:
        text = "the records after the table's end were deleted from the topic: make another table"
        raise out_of_range_error(text, state, number, offset)
    return offset


@dataclass(slots=True)
class TableUpdate:
    """Adds the records that a table lacks, in batches within `limits`; if `keyed`, one row for each key."""

    table: LakeTable
    topic: Topic
    columns: list[str]
    to_table_rows: ToTableRows
    keyed: bool
    limits: Limits
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self) -> tuple[int, int]:
        """Return the numbers of added rows and batches."""
        snapshot = self.topic.live_snapshot
        admission = Admission(self.limits, time.monotonic)  # for the ends of the batches
        rows = batches = 0
        self._create_if_missing()
        while True:
            mark = self._newest_mark()
            states = snapshot.partitions
            starts = {number: _next_offset(mark, number, state) for number, state in enumerate(states)}
            # the partitions with records that the table lacks; the condition is evaluated first, and assigns `end`
            available = {n: (start, end) for n, start in starts.items() if start < (end := states[n].log_end_offset)}
            if not available:
                return rows, batches
            ends = admission.ends(self.topic.reader, snapshot, available)
            batch_starts = {number: start for number, (start, _) in available.items()}
            frame = read(self.table.spark, self.topic, self.columns, batch_starts, ends, partitions=list(available))
            new_mark = _CommitMark(snapshot.topic_id, self.keyed, mark.number + 1, self.run_id, {**starts, **ends})
            rows += self._merge(frame, new_mark) if self.keyed else self._append(frame, new_mark)
            batches += 1

    def _create_if_missing(self) -> None:
        """Create a missing table. Its property names the topic until a commit has a mark."""
        properties = self.table.properties()
        topic_id = self.topic.snapshot.topic_id
        if properties is None:
            writer = self._no_rows().writeTo(self.table.name).using(self.table.format)
            writer.tableProperty(TOPIC_PROPERTY, topic_id).create()
        elif properties.get(TOPIC_PROPERTY, topic_id) != topic_id:
            self._refuse()

    def _no_rows(self) -> DataFrame:
        nothing = self.table.spark.createDataFrame([], schema_of(self.columns, include_headers=False))
        return self._rows(nothing).drop(_TOMBSTONE_COLUMN)

    def _newest_mark(self) -> _CommitMark:
        mark, _ = next(self.table.marks(), (None, 0))
        if mark is None:
            return self._mark_by_rows()
        if mark.topic != self.topic.snapshot.topic_id:
            self._refuse()
        if mark.keyed != self.keyed:
            kinds = ("all records", "one row for each key")
            text = f"the table has {kinds[mark.keyed]}, and not {kinds[self.keyed]}: choose another table"
            raise InvalidConfigError(text, table=self.table.requested_name)
        return mark

    def _mark_by_rows(self) -> _CommitMark:
        """Return a mark for a table without marks: its offsets follow the last rows. Raises InvalidConfigError."""
        number = self.table.last_number()
        last_offsets = self.table.spark.table(self.table.name).groupBy("partition").agg(F.max("offset").alias("last"))
        offsets = {row.partition: row.last + 1 for row in last_offsets.collect()}
        has_topic = TOPIC_PROPERTY in (self.table.properties() or {})
        if offsets and not has_topic:
            text = (
                f"the table has rows, but its commits and its property {TOPIC_PROPERTY} name no topic: "
                "choose another table, or set the property to the topic's id"
            )
            raise InvalidConfigError(text, table=self.table.requested_name, topic_id=self.topic.snapshot.topic_id)
        mark = _CommitMark(self.topic.snapshot.topic_id, self.keyed, number, self.run_id, offsets)
        if self.keyed and not has_topic:
            # A merge carries no mark, and a table that was created elsewhere does not name the topic. If a run were
            # killed after its first merge, the next run would refuse the rows. So append a mark before the merge.
            self.table.append(self._no_rows(), mark)
        return mark

    def _rows(self, frame: DataFrame) -> DataFrame:
        """Return the table's rows of records; with `keyed` the last of each key, marked if it deletes the key."""
        if not self.keyed:
            return self.to_table_rows(frame)
        # a key must stay in one partition, so the partition only makes the order total
        last = F.max_by(F.struct(*frame.columns), F.struct("offset", "partition")).alias("last")
        newest_rows = frame.where("key IS NOT NULL").groupBy("key").agg(last).select("last.*")
        return self.to_table_rows(newest_rows.withColumn(_TOMBSTONE_COLUMN, F.col("value").isNull()))

    def _append(self, frame: DataFrame, mark: _CommitMark) -> int:
        self.table.append(self._rows(frame), mark)
        same_number = [(other, rows) for other, rows in self.table.marks() if other.number == mark.number]
        if len(same_number) > 1:
            text = (
                f"two concurrent runs added the same records, in the commits whose mark {_JSON_NAME} has the number "
                f"{mark.number}: restore the table to the commit before these, and run one at a time"
            )
            raise CommitConflictError(text, table=self.table.requested_name)
        # if another run committed first, Delta skips this append without an error, so no commit has this mark: 0 rows
        return sum(rows for other, rows in same_number if other == mark)

    def _merge(self, frame: DataFrame, mark: _CommitMark) -> int:
        rows = self._rows(frame).persist()
        try:
            count = rows.count()
            self.table.merge(rows)
            self.table.append(rows.drop(_TOMBSTONE_COLUMN).limit(0), mark)
        finally:
            rows.unpersist()
        return count

    def _refuse(self) -> None:
        text = "the table belongs to another topic, or to a dropped topic of this name: choose another table"
        raise InvalidConfigError(text, table=self.table.requested_name)
