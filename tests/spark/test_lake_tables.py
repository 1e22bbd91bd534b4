"""Tables of Delta and Iceberg, with each PySpark that they run with: a program does it, where their jars are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pyspark
import pytest
from job_runs import job as job
from pyspark.sql import SparkSession

import distlog
from distlog.spark import lake, to_table
from tools.spark_versions import place_of, with_pyspark

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).parents[1] / "support" / "lake_steps.py"
POM = Path(__file__).parents[2] / "tools" / "tables" / "pom.xml"
JARS = os.environ.get("DISTLOG_TABLE_JARS", "")
VERSIONS = sorted(lake.DeltaTable.jars)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_each_record_is_there_once_and_each_key_has_its_last(version: str, tmp_path: Path) -> None:
    """Also after a run was killed between a commit of the table and whatever would follow, and after a restore."""
    jars = [str(path) for path in Path(JARS, version).glob("*.jar")] if JARS else []
    if not jars or not place_of(version).exists():
        pytest.skip(f"needs PySpark {version}, Delta and Iceberg for it, and DISTLOG_TABLE_JARS: make table-jars")
    submit = f"--jars {','.join(jars)} pyspark-shell"
    environment = {**with_pyspark(place_of(version)), "PYSPARK_SUBMIT_ARGS": submit}
    program = [sys.executable, str(PROGRAM), str(tmp_path)]
    killed = subprocess.run([*program, "killed"], env=environment, capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    assert found == dict.fromkeys(found, "yes")


def test_the_jars_that_are_tried_are_the_ones_that_errors_name() -> None:
    space = {"": "http://maven.apache.org/POM/4.0.0"}
    for profile in ET.parse(POM).getroot().iterfind("profiles/profile", space):
        parts = [
            [each.findtext(part, "", space) for part in ("groupId", "artifactId", "version")]
            for each in profile.iterfind("dependencies/dependency", space)
        ]
        version = profile.findtext("id", "", space)
        assert [":".join(each) for each in parts] == [
            kind.jars[version] for kind in (lake.DeltaTable, lake.IcebergTable)
        ]


def test_what_spark_lacks_is_told(
    spark: SparkSession, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), config={"retention.ms": -1})
    given = ("to_table", "--topic", topic.url, "--table", tmp_path / "table", "--output", "delta")
    version = ".".join(pyspark.__version__.split(".")[:2])
    assert f"none was tried with PySpark {version}: take a PySpark that has one, io.delta:" in job(*given).err
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    for output, table in (("delta", str(tmp_path / "table")), ("iceberg", "lake.db.clicks")):
        jar = lake._FORMATS[output].jars["4.1"]  # type: ignore[index]
        with pytest.raises(distlog.InvalidConfigError, match=f"start it with --packages {jar}"):
            to_table(spark, topic, table, output=output)  # type: ignore[arg-type]
    with pytest.raises(distlog.InvalidConfigError, match="begins with / or a scheme"):
        to_table(spark, topic, "tables/clicks", output="delta")
    with pytest.raises(distlog.InvalidConfigError, match="a name in a catalog"):
        to_table(spark, topic, str(tmp_path / "table"), output="iceberg")
    assert not (tmp_path / "table").exists()
