"""The examples in docs/spark.md and docs/streaming.md run, and their tables have all options."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from docs_pages import ROOT, Reader, examples, read, table

import distlog

SPARK, STREAMING, README = read("docs/spark.md"), read("docs/streaming.md"), read("README.md")
JOBS = [
    command.removeprefix("spark-submit ")
    for example in examples(SPARK)
    if example.language == "sh"
    for command in example.commands
]


def lines(page: str) -> str:
    return next(example.text for example in examples(page) if "from distlog.spark import" in example.text)


def options(text: str, heading: str) -> set[str]:
    """Return the options in the first column of a table; `storage.<name>` stands for many."""
    cells = " ".join(row[0] for row in table(text, heading))
    return set(re.findall(r"`([a-zA-Z.]+)`", cells))


@pytest.mark.spark
@pytest.mark.parametrize("page", ["docs/spark.md", "docs/streaming.md"])
def test_the_lines_of_spark_run(page: str, reader: Reader, spark: Any) -> None:
    reader.pastes(page)
    if page == "docs/streaming.md":
        assert reader.names["behind"] == 5
        assert distlog.open(reader.names["topic"].url).scan().count() == 37


def test_the_lines_of_the_readme_are_the_same() -> None:
    assert lines(README) == lines(SPARK)


def test_all_python_examples_run() -> None:
    run = [
        [example for example in examples(text) if example.language == "python" and not example.reason]
        for text in (SPARK, STREAMING)
    ]
    assert [len(examples) for examples in run] == [2, 4]


def test_the_options_of_reads_are_in_the_tables() -> None:
    pytest.importorskip("pyspark")
    from distlog.spark.options import READ_NAMES, STREAM_NAMES
    from distlog.spark.stream_plan import BATCH_ONLY

    assert options(SPARK, "## Read") == {*READ_NAMES} - {"path"}
    assert options(STREAMING, "## Reading") == {*READ_NAMES, *STREAM_NAMES} - BATCH_ONLY.keys() - {
        "path",
        "subscribe",
    }


def test_the_options_of_writes_are_in_the_tables() -> None:
    pytest.importorskip("pyspark")
    from distlog.spark.sink import WRITE_NAMES

    names = set(WRITE_NAMES) - {"path"}
    assert options(SPARK, "## Append") == names
    assert options(STREAMING, "## Writing") == names - {"txnVersion", "kafka.compression.type"}


def test_the_examples_are_in_the_table() -> None:
    named = {row[0].strip("`") for row in table(STREAMING, "## Whole examples")}
    assert named == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}


def test_the_jobs_parse_their_command_lines() -> None:
    pytest.importorskip("pyspark")
    assert len(JOBS) == 4
    for command in JOBS:
        job, *arguments = shlex.split(command)
        options = import_module("distlog.jobs.__main__").JOBS[Path(job).stem].parser.parse_args(arguments)
        assert options.topic or options.root, command
