"""A program that fills tables of Delta and Iceberg with the PySpark on its path, and prints what went well as JSON.

python lake_steps.py FOLDER killed     dies while it fills the first tables
python lake_steps.py FOLDER            continues with these, and does all other steps
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import distlog
from distlog.spark import session, tables, to_table

FORMATS = ("delta", "iceberg")
KINDS = ("records", "keys")
SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
_COLUMNS = "partition int, offset long, timestamp timestamp, key binary, value binary"
DELTA = "io.delta.sql.DeltaSparkSessionExtension"
#: For the procedures of Iceberg, which `to_table` does not need.
ICEBERG = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def started(folder: Path, extensions: str) -> Any:
    settings = {
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.extensions": extensions,
    }
    return session("lake", **SETTINGS, **settings)


def table_name(folder: Path, format: str, name: str) -> str:
    return str(folder / "tables" / name) if format == "delta" else f"lake.db.{name}"


def topic_of(folder: Path, name: str, **config: Any) -> distlog.Topic:
    """A topic with 45 records; of a compacted one with 9 keys, of which the third batch of ten deletes one."""
    topic = distlog.create(str(folder / name), 2, config={"retention.ms": -1, **config})
    add(topic, 0, 45)
    return topic


def add(topic: distlog.Topic, first: int, count: int) -> None:
    is_keyed = "compact" in topic.config.cleanup_policy
    rows = range(first, first + count)
    keys = [f"k{n % 10 if is_keyed else n}" for n in rows]
    # a key stays in one partition; k5 is deleted by 15 and 35, k7 by 47
    topic.append(
        [
            {"key": key, "value": None if is_keyed and n in (15, 35, 47) else f"v{n}", "partition": n % 2}
            for n, key in zip(rows, keys, strict=True)
        ]
    )


def stored(topic: distlog.Topic) -> list[tuple[int, int, bytes, bytes]]:
    """The expected table of a topic: all records, or the last of each key that is not deleted."""
    rows = topic.refresh().scan(columns=["partition", "offset", "key", "value"]).to_table().to_pylist()
    if "compact" in topic.config.cleanup_policy:
        last = {row["key"]: row for row in sorted(rows, key=lambda row: row["offset"])}
        rows = [row for row in last.values() if row["value"] is not None]
    return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in rows)


class Steps:
    """The steps for each format, each with its own table; a step raises if its result is wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spark = started(folder, f"{DELTA},{ICEBERG}")

    def _topic(self, format: str, name: str, **config: Any) -> distlog.Topic:
        return topic_of(self.folder, f"{name}-{format}", **config)

    def _fill(self, topic: distlog.Topic, output: Any, name: str, **options: Any) -> Any:
        return to_table(self.spark, topic, table_name(self.folder, output, name), output=output, **options)

    def _sql(self, format: str, name: str) -> str:
        return f"delta.`{self.folder}/tables/{name}`" if format == "delta" else f"lake.db.{name}"

    def _check(self, topic: distlog.Topic, format: str, name: str) -> None:
        stored_rows = (
            self.spark.table(self._sql(format, name)).select("partition", "offset", "key", "value").collect()
        )
        rows = sorted((row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in stored_rows)
        assert rows == stored(topic), (rows, stored(topic))

    def _refuses(self, message: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(distlog.DistlogError, match=message):
            self._fill(*arguments, **options)

    def each_run_adds_what_is_new(self, format: str) -> None:
        topic = self._topic(format, "new")
        report = self._fill(topic, format, "new")
        assert (report.rows, report.batches) == (45, 1), report
        self._check(topic, format, "new")
        add(topic, 45, 25)
        report = self._fill(topic, format, "new", max_offsets=10)
        assert (report.rows, report.batches) == (25, 3), report
        assert self._fill(topic, format, "new").batches == 0
        self._check(topic, format, "new")
        self._refuses("has no checkpoint", topic, format, "new", checkpoint="/state")
        self._refuses("belongs to another topic", self._topic(format, "other"), format, "new")

    def a_killed_run_is_finished(self, format: str) -> None:
        topic = distlog.open(str(self.folder / "records"))
        name = f"killed_records_{format}"
        assert self.spark.table(self._sql(format, name)).count() == 20
        report = self._fill(topic, format, name)
        assert (report.rows, report.batches) == (25, 1), report
        self._check(topic, format, name)

    def a_killed_merge_is_finished(self, format: str) -> None:
        topic = distlog.open(str(self.folder / "keys"))
        name = f"killed_keys_{format}"
        deleted = self.spark.table(self._sql(format, name)).where("key = cast('k5' AS binary)")
        assert deleted.count() == 0
        report = self._fill(topic, format, name, max_offsets=10)
        assert report.batches == 4, report
        self._check(topic, format, name)
        add(topic, 45, 5)
        self._fill(topic, format, name)
        self._check(topic, format, name)
        self._refuses("one row for each key", topic, format, name, changes=True)

    def a_first_merge_that_was_not_noted_is_done_again(self, format: str) -> None:
        topic, name = self._topic(format, "first", **{"cleanup.policy": "compact"}), self._sql(format, "first")
        self.spark.createDataFrame([], _COLUMNS).writeTo(name).using(format).create()
        append = tables.LakeTable.append

        def append_no_end(table: Any, rows: DataFrame, mark: Any) -> None:
            if mark.offsets:
                raise OSError("the merge is not noted")
            append(table, rows, mark)

        tables.LakeTable.append = append_no_end  # type: ignore[method-assign]
        with pytest.raises(OSError, match="not noted"):
            self._fill(topic, format, "first")
        tables.LakeTable.append = append  # type: ignore[method-assign]
        assert self.spark.table(name).count() > 0
        assert self._fill(topic, format, "first").batches == 1
        self._check(topic, format, "first")

    def changes_and_columns(self, format: str) -> None:
        topic = self._topic(format, "changes", **{"cleanup.policy": "compact"})
        self._fill(topic, format, "changes", changes=True)
        table = self.spark.table(self._sql(format, "changes"))
        assert (table.count(), table.where("deleted").count()) == (45, 2)
        topic = distlog.create(str(self.folder / f"json-{format}"), config={"cleanup.policy": "compact"})
        topic.append([{"key": "a", "value": '{"user": "ann"}'}, {"key": "b", "value": '{"user": "bob"}'}])
        self._fill(topic, format, "json", format="json", schema="user string")
        topic.append([{"key": "a", "value": '{"user": "eve"}'}, {"key": "b", "value": None}])
        self._fill(topic, format, "json", format="json", schema="user string")
        table = self.spark.table(self._sql(format, "json"))
        assert table.columns == ["partition", "offset", "timestamp", "key", "user"]
        assert [(bytes(row.key), row.user) for row in table.collect()] == [(b"a", "eve")]

    def without_history_the_rows_tell(self, format: str) -> None:
        topic = self._topic(format, "cut")
        self._fill(topic, format, "cut")
        name = self._sql(format, "cut")
        add(topic, 45, 5)
        if format == "delta":
            self._fill(topic, format, "cut")
            self.spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 1").collect()
        else:
            self.spark.sql(f"DELETE FROM {name} WHERE offset < 3")
            older = "older_than => TIMESTAMP '2200-01-01 00:00:00'"
            self.spark.sql(
                f"CALL lake.system.expire_snapshots(table => 'db.cut', {older}, retain_last => 1)"
            ).collect()
        report = self._fill(topic, format, "cut")
        assert report.rows == 5, report
        add(topic, 50, 5)
        assert self._fill(topic, format, "cut").rows == 5
        table = self.spark.table(name)
        assert (table.count(), table.select("partition", "offset").distinct().count()) == ((55, 55), (49, 49))[
            format == "iceberg"
        ]

    def a_table_of_somebody_else(self, format: str) -> None:
        topic, name = self._topic(format, "made"), self._sql(format, "made")
        self.spark.createDataFrame([], _COLUMNS).writeTo(name).using(format).create()
        self._fill(topic, format, "made")
        self._check(topic, format, "made")
        name = self._sql(format, "foreign")
        self.spark.createDataFrame([(0, 7)], "partition int, offset long").writeTo(name).using(format).create()
        self._refuses("the table has rows", topic, format, "foreign")
        if format == "iceberg":
            with pytest.raises(distlog.InvalidConfigError, match=r"give it spark.sql.catalog.pond="):
                to_table(self.spark, topic, "pond.db.made", output="iceberg")

    def two_runs_at_once(self, format: str) -> None:
        topic, append = self._topic(format, "twice"), tables.LakeTable.append
        self._fill(topic, format, "twice")
        add(topic, 45, 5)

        def append_second(table: Any, rows: DataFrame, mark: Any) -> None:
            tables.LakeTable.append = append  # type: ignore[method-assign]
            assert self._fill(topic, format, "twice").rows == 5
            append(table, rows, mark)

        tables.LakeTable.append = append_second  # type: ignore[method-assign]
        if format == "delta":
            assert self._fill(topic, format, "twice").rows == 0
            self._check(topic, format, "twice")
        else:
            self._refuses("two concurrent runs", topic, format, "twice")


STEPS = [name for name in vars(Steps) if not name.startswith("_")]


def be_killed(folder: Path) -> None:
    """Fill a table of each format and kind at once, and die when each has done the second of its batches.

    Tables of records have the commit then, and tables of keys the merged rows, before the note.
    """
    spark = started(folder, DELTA)
    jvm = spark.sparkContext._gateway.proc.pid
    append, barrier = tables.LakeTable.append, threading.Barrier(len(FORMATS) * len(KINDS) + 1)

    def append_and_wait(table: tables.LakeTable, rows: DataFrame, mark: Any) -> None:
        if not mark.keyed or mark.number < 2:
            append(table, rows, mark)
        if mark.number == 2:
            barrier.wait()
            threading.Event().wait()

    tables.LakeTable.append = append_and_wait  # type: ignore[method-assign]
    topics = {
        "records": topic_of(folder, "records"),
        "keys": topic_of(folder, "keys", **{"cleanup.policy": "compact"}),
    }
    for format in FORMATS:
        for kind in KINDS:
            name = table_name(folder, format, f"killed_{kind}_{format}")
            options = {"output": format, "max_offsets": 10}
            threading.Thread(target=to_table, args=(spark, topics[kind], name), kwargs=options, daemon=True).start()
    barrier.wait(1200)
    os.kill(jvm, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _outcome(step: Callable[[str], None], format: str) -> str:
    try:
        step(format)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:2000]
    return "yes"


def main(folder: str, killed: str = "") -> None:
    if killed:
        be_killed(Path(folder))
    steps = Steps(Path(folder))
    results = {f"{format} {name}": _outcome(getattr(steps, name), format) for format in FORMATS for name in STEPS}
    steps.spark.stop()
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
