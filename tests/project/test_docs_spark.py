"""The examples in docs/spark.md and docs/streaming.md run, and their tables have the options that there are."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
from docs_pages import ROOT, examples, python, read, table

import distlog

SPARK, STREAMING, README = read("docs/spark.md"), read("docs/streaming.md"), read("README.md")
JOBS = [
    command.removeprefix("spark-submit ")
    for text in (SPARK, README)
    for example in examples(text)
    if example.language == "sh"
    for command in example.commands
    if command.startswith("spark-submit ")
]


def events(folder: Path) -> str:
    """A folder with a file of thirty events."""
    (folder / "events").mkdir()
    lines = "".join(json.dumps({"user": f"u{n % 3}", "page": f"/{n}"}) + "\n" for n in range(30))
    (folder / "events" / "1.jsonl").write_text(lines)
    return f"{folder}/events"


def lines(page: str) -> str:
    """The first example of a page that uses distlog.spark."""
    return next(one.text for one in examples(page) if "from distlog.spark import" in one.text)


def options(text: str, heading: str) -> set[str]:
    """The options in the first column of the table under a heading; `storage.<name>` stands for many."""
    cells = " ".join(row[0] for row in table(text, heading))
    return set(re.findall(r"`([a-zA-Z.]+)`", cells))


@pytest.mark.spark
def test_the_lines_of_spark_run(tmp_path: Path, spark: Any) -> None:
    topic = distlog.create(f"{tmp_path}/clicks", partitions=2)
    exec(lines(SPARK), {"url": topic.url, "events_file": f"{events(tmp_path)}/1.jsonl"})
    assert topic.refresh().scan().count() == 60


@pytest.mark.spark
def test_the_lines_of_sql_run(tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    topic = distlog.create(f"{tmp_path}/clicks")
    topic.append([{"key": f"u{n % 3}", "value": b"v"} for n in range(30)])
    exec(python(SPARK, "## SQL"), {"spark": spark, "root": str(tmp_path)})
    assert "|  u2|   10|" in capsys.readouterr().out


def test_the_lines_of_the_readme_are_the_same() -> None:
    assert lines(README) == lines(SPARK)


@pytest.mark.spark
def test_the_lines_that_read_a_stream_run(tmp_path: Path, spark: Any) -> None:
    topic = distlog.create(f"{tmp_path}/clicks", partitions=2)
    topic.append([{"key": f"u{n}", "value": b"v"} for n in range(30)])
    names = {"spark": spark, "url": topic.url, "checkpoint": f"{tmp_path}/checkpoint", "output": f"{tmp_path}/output"}
    for _ in range(2):
        exec(python(STREAMING, "## Reading"), names)
        assert spark.read.parquet(names["output"]).distinct().count() == topic.refresh().scan().count()
        topic.append([{"key": f"w{n}", "value": b"v"} for n in range(5)])
    exec(python(STREAMING, "### How far a query is behind"), names)
    assert names["behind"] == 5


@pytest.mark.spark
def test_the_lines_of_a_streaming_write_run(tmp_path: Path, spark: Any) -> None:
    topic = distlog.create(f"{tmp_path}/clicks", partitions=2)
    names = {"events_folder": events(tmp_path), "checkpoint": f"{tmp_path}/checkpoint"}
    for _ in range(2):
        exec(python(STREAMING, "## Writing"), {"spark": spark, "url": topic.url, **names})
        assert topic.refresh().scan().count() == 30


def test_these_are_all_examples_in_python() -> None:
    run = [[one for one in examples(text) if one.language == "python" and not one.why] for text in (SPARK, STREAMING)]
    assert [len(found) for found in run] == [2, 3]


def test_the_options_of_reads_are_in_the_tables() -> None:
    pytest.importorskip("pyspark")
    from distlog.spark.read_options import READ_NAMES, STREAM_NAMES
    from distlog.spark.stream_plan import BATCH_ONLY

    assert options(SPARK, "## Read") == {*READ_NAMES} - {"path"}
    # the path names the topic already
    assert options(STREAMING, "## Reading") == {*READ_NAMES, *STREAM_NAMES} - BATCH_ONLY.keys() - {
        "path",
        "subscribe",
    }


def test_the_options_of_writes_are_in_the_tables() -> None:
    pytest.importorskip("pyspark")
    from distlog.spark.sink import WRITE_NAMES

    known = set(WRITE_NAMES) - {"path"}
    assert options(SPARK, "## Append") == known
    assert options(STREAMING, "## Writing") == known - {"txnVersion", "kafka.compression.type"}


def test_the_examples_are_in_the_table() -> None:
    named = {row[0].strip("`") for row in table(STREAMING, "## Whole examples")}
    assert named == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}


def test_the_jobs_understand_their_command_lines() -> None:
    pytest.importorskip("pyspark")
    assert len(JOBS) > 4
    for command in JOBS:
        job, *arguments = shlex.split(command)
        given = runpy.run_path(str(ROOT / job))["parser"].parse_args(arguments)
        assert given.topic or given.root, command
