"""Tables of Delta and Iceberg, with each supported PySpark: a program runs where their jars are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from job_runs import job as job
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

import distlog
from distlog.spark import tables, to_table
from distlog.spark.stream_plan import Limits
from tools.spark_versions import path_of, with_pyspark

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).parents[1] / "support" / "lake_steps.py"
POM = Path(__file__).parents[2] / "tools" / "tables" / "pom.xml"
JARS = os.environ.get("DISTLOG_TABLE_JARS", "")
#: The PySpark of both formats, by the minor version of their jars.
VERSIONS = {"4.0": "4.0", "4.1": "4.1.1"}


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_each_record_is_stored_once_and_each_key_has_its_last(version: str, tmp_path: Path) -> None:
    """Also after a kill between a commit of the table and the next step, and after a restore."""
    jars = [str(path) for path in Path(JARS, version).glob("*.jar")] if JARS else []
    folder = path_of(VERSIONS[version])
    if not jars or not folder.exists():
        pytest.skip(
            f"needs PySpark {VERSIONS[version]}, Delta and Iceberg for it, and DISTLOG_TABLE_JARS: make table-jars"
        )
    submit = f"--jars {','.join(jars)} pyspark-shell"
    environment = {**with_pyspark(folder), "PYSPARK_SUBMIT_ARGS": submit}
    program = [sys.executable, str(PROGRAM), str(tmp_path)]
    killed = subprocess.run([*program, "killed"], env=environment, capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    results: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    assert results == dict.fromkeys(results, "yes")


def test_errors_name_the_tested_jars() -> None:
    space = {"": "http://maven.apache.org/POM/4.0.0"}
    for profile in ET.parse(POM).getroot().iterfind("profiles/profile", space):
        parts = [
            [jar.findtext(part, "", space) for part in ("groupId", "artifactId", "version")]
            for jar in profile.iterfind("dependencies/dependency", space)
        ]
        version = profile.findtext("id", "", space)
        jars = [kind.jars for kind in (tables.DeltaTable, tables.IcebergTable)]
        assert [":".join(jar) for jar in parts] == [jar.get(VERSIONS[version]) or jar[version] for jar in jars]


def test_missing_parts_of_spark_are_named(
    spark: SparkSession, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), config={"retention.ms": -1})
    arguments = ("to_table", "--topic", topic.url, "--table", tmp_path / "table", "--output", "delta")
    message = f"none was tried with PySpark {pyspark.__version__}: use a PySpark that has one, io.delta:"
    assert message in job(*arguments).err
    monkeypatch.setattr(pyspark, "__version__", "4.1.1")
    with pytest.raises(
        distlog.InvalidConfigError, match=r"start it with --packages io\.delta:delta-spark_4\.1_2\.13:"
    ):
        to_table(spark, topic, str(tmp_path / "table"), output="delta")
    with pytest.raises(
        distlog.InvalidConfigError, match=r"--packages org\.apache\.iceberg:iceberg-spark-runtime-4\.1_2\.13:"
    ):
        to_table(spark, topic, "lake.db.clicks", output="iceberg")
    with pytest.raises(distlog.InvalidConfigError, match="begins with / or a scheme"):
        to_table(spark, topic, "tables/clicks", output="delta")
    with pytest.raises(distlog.InvalidConfigError, match="needs the name of its catalog"):
        to_table(spark, topic, str(tmp_path / "table"), output="iceberg")
    assert not (tmp_path / "table").exists()


def test_a_wrong_jar_is_named(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), config={"retention.ms": -1})

    def properties(table: tables.LakeTable) -> None:
        jvm: Any = table.spark.sparkContext._jvm
        raise Py4JJavaError("An error", jvm.java.lang.NoSuchMethodError("void ParquetToSparkSchemaConverter"))

    for name in ("_check_jar", "_check_settings"):
        monkeypatch.setattr(tables.LakeTable, name, lambda _: None)
        monkeypatch.setattr(tables.DeltaTable, name, lambda _: None)
    monkeypatch.setattr(tables.LakeTable, "properties", properties)
    with pytest.raises(distlog.InvalidConfigError, match=f"Delta does not fit PySpark {pyspark.__version__}: use a"):
        to_table(spark, topic, str(tmp_path / "table"), output="delta")


class MemoryTable(tables.LakeTable):
    format = "delta"

    def __post_init__(self) -> None:
        self.name, self.rows, self.frames = self.requested_name, list[tuple[int, int]](), list[Any]()
        # its rows are requested while it has no mark
        self.spark.createDataFrame([], "partition int, offset long").createOrReplaceTempView(self.name)

    def _identifier(self) -> str:
        return self.requested_name

    def _check_settings(self) -> None:
        """It needs none."""

    def properties(self) -> dict[str, str]:
        return {}

    def marks(self) -> Iterator[Any]:
        return reversed(self.frames)

    def last_number(self) -> int:
        return 0

    def options(self, mark: Any) -> dict[str, str]:
        return {}

    def append(self, rows: DataFrame, mark: Any) -> None:
        added = [(row.partition, row.offset) for row in rows.collect()]
        self.rows += added
        self.frames.append((mark, len(added)))


def filled(table: MemoryTable, topic: distlog.Topic) -> list[tuple[int, int]]:
    """Return the partitions and offsets in the table after a run, in order."""
    limits = Limits(None, None)
    tables.TableUpdate(table, topic, ["partition", "offset"], lambda rows: rows, False, limits).run()
    return sorted(table.rows)


def test_records_of_new_and_empty_partitions_are_not_skipped(spark: SparkSession, tmp_path: Path) -> None:
    """A first run; records in other partitions, some of which are deleted; a second run."""
    topic = distlog.create(str(tmp_path / "clicks"), 3, config={"retention.ms": -1})
    topic.append([{"value": "v", "partition": number} for number in (0, 1)])
    topic.delete_records({1: 1})
    table = MemoryTable(spark, "clicks")
    assert filled(table, topic) == [(0, 0)]
    topic.create_partitions(4)
    topic.append([{"value": "v", "partition": number} for number in (1, 2, 2, 3, 3)])
    rows = [(0, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert filled(table, topic) == rows
    for number in (2, 3):
        topic_rows = MemoryTable(spark, "clicks")
        topic_rows.frames.append(table.frames[0])
        topic.delete_records({number: 1})
        with pytest.raises(distlog.OffsetOutOfRangeError, match=f"partition={number} offset=0 log_start_offset=1"):
            filled(topic_rows, topic)
        topic.restore(topic.version - 1)
