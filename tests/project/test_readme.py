"""The README cannot drift: its examples run, its tables are the constants."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine

from distlog.core.batches import record_batch
from distlog.core.buffers import PAGE_BYTES
from distlog.core.commits import bundle_parts
from distlog.core.config import settings
from distlog.core.indexes.offset_index import ENTRY as OFFSET_ENTRY
from distlog.core.indexes.time_index import ENTRY as TIME_ENTRY
from distlog.core.indexes.transaction_index import ENTRY as TRANSACTION_ENTRY
from distlog.core.segments.bundles import LARGEST_BUNDLE, LARGEST_PART
from distlog.core.segments.segment_file import HELD_BYTES
from distlog.core.storage.objects.upload import SINGLE_PUT_BYTES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = r"```(\w+)\n(.*?)```"
BLOCKS = re.findall(BLOCK, README, re.DOTALL)


def table(heading: str, number: int = 0) -> list[list[str]]:
    """The rows of the given table under a heading, without its head."""
    section = README.split(f"{heading}\n", 1)[1].split("\n#", 1)[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[number].splitlines()[2:]]


def python(heading: str) -> str:
    """The first Python example under a heading."""
    section = README.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    return next(text for language, text in re.findall(BLOCK, section, re.DOTALL) if language == "python")


def test_the_ten_lines_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"folder": str(tmp_path)}
    exec(python("## Ten lines"), names)
    assert names["result"].record_count == 1000
    assert names["table"].num_rows == 501
    assert capsys.readouterr().out.startswith("1 {")


def test_the_lines_that_follow_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import distlog

    topic = distlog.create(f"{tmp_path}/clicks", partitions=2)
    topic.append([{"value": "v"}] * 3, partition=0)
    exec(python("### Following a topic"), {"topic": topic})
    assert capsys.readouterr().out.splitlines() == [
        "3 {0: 3, 1: 0}",
        "{'group': 'billing', 'partition': 0, 'position': 3, 'lag': 0}",
    ]


def test_the_lines_of_a_producer_run(tmp_path: Path) -> None:
    import distlog

    topic = distlog.create(f"{tmp_path}/clicks")
    exec(python("### Producers: each record once"), {"topic": topic})
    assert [(record.key, record.value) for record in topic.records(0)] == [(b"user-1", b"value")]


@pytest.mark.spark
def test_the_spark_lines_run(tmp_path: Path, spark: Any) -> None:
    import distlog

    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps({"user": f"u{n % 3}", "page": f"/{n}"}) + "\n" for n in range(30)))
    topic = distlog.create(f"{tmp_path}/clicks", partitions=2)
    exec(python("## Spark"), {"url": topic.url, "events_file": str(events)})
    assert topic.refresh().scan().count() == 60


@pytest.mark.spark
def test_the_lines_that_read_a_stream_run(tmp_path: Path, spark: Any) -> None:
    import distlog

    topic = distlog.create(f"{tmp_path}/clicks", partitions=2)
    topic.append([{"key": f"u{n}", "value": b"v"} for n in range(30)])
    names = {"spark": spark, "url": topic.url, "checkpoint": f"{tmp_path}/checkpoint", "output": f"{tmp_path}/output"}
    for _ in range(2):
        exec(python("### Structured Streaming: reading"), names)
        assert spark.read.parquet(names["output"]).distinct().count() == topic.refresh().scan().count()
        topic.append([{"key": f"w{n}", "value": b"v"} for n in range(5)])


def test_the_options_of_streams_are_in_the_table() -> None:
    pytest.importorskip("pyspark")
    from distlog.spark.source.read_options import READ_NAMES, STREAM_NAMES
    from distlog.spark.streaming.stream_options import BATCH_ONLY

    cells = " ".join(row[0] for row in table("### Structured Streaming: reading"))
    # the path names the topic already
    known = {*READ_NAMES, *STREAM_NAMES} - BATCH_ONLY.keys() - {"path", "subscribe"}
    assert set(re.findall(r"`([a-zA-Z.]+)`", cells)) == known


def test_the_examples_are_in_the_table() -> None:
    named = {row[0].strip("`") for row in table("### Examples of streams")}
    assert named == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}


@pytest.mark.spark
def test_the_lines_of_a_streaming_write_run(tmp_path: Path, spark: Any) -> None:
    import distlog

    (tmp_path / "events").mkdir()
    lines = "".join(json.dumps({"user": f"u{n % 3}", "page": f"/{n}"}) + "\n" for n in range(30))
    (tmp_path / "events" / "1.jsonl").write_text(lines)
    topic = distlog.create(f"{tmp_path}/clicks", partitions=2)
    names = {"events_folder": f"{tmp_path}/events", "checkpoint": f"{tmp_path}/checkpoint"}
    for _ in range(2):
        exec(python("### Structured Streaming: writing"), {"spark": spark, "url": topic.url, **names})
        assert topic.refresh().scan().count() == 30


def test_the_options_of_a_streaming_write_are_in_the_table() -> None:
    from distlog.spark.sink.write_options import WRITE_NAMES

    named = {row[0].strip("`") for row in table("### Structured Streaming: writing")} - {"storage.<name>"}
    others = {"path", "topicFacts", "txnVersion", "writeId", "kafka.compression.type"}
    assert named == set(WRITE_NAMES) - others


def test_the_lines_with_arrow_run(tmp_path: Path) -> None:
    import pyarrow

    import distlog

    pytest.importorskip("pandas")
    topic = distlog.create(f"{tmp_path}/clicks")
    topic.append([{"key": "k", "value": f"v{number}"} for number in range(20)])
    exec(python("### With Arrow, Polars, DuckDB and pandas"), {"topic": topic, "pyarrow": pyarrow})
    assert len(topic.scan()) == 25


def test_the_maintenance_lines_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import distlog

    topic = distlog.create(f"{tmp_path}/clicks")
    for number in range(20):
        topic.append([{"value": f"v{number}"}])
    exec(python("## Maintenance"), {"topic": topic})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "would delete 0 segments, 0 bytes, 0 records"
    assert said[1:3] == ["would restore 0 segments, 0 records, 0 bytes", "partition 0 starts at 10"]
    assert said[3].startswith("merged 10 segments into 1, ")
    assert said[-1].endswith("nothing wrong")


def test_the_commands_run(tmp_path: Path, cli: CommandLine) -> None:
    """Those that need a shell in one, the others in this process."""
    commands = next(text for language, text in BLOCKS if language == "console" and "distlog create" in text)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in commands.splitlines():
        command = line.removeprefix("$ ").replace("/data/logs", shlex.quote(str(tmp_path)))
        if "|" in command or "*" in command:
            run = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, timeout=60)
            status, err = run.returncode, run.stderr
        else:
            status, _, err = cli.bare(*shlex.split(command.removeprefix("distlog ")))
        # the topic holds one record, so offsets 10 and 100 of partition 0 are not there yet
        expected = 1 if "--offset 10" in line or "--before 0:100" in line else 0
        assert status == expected, (line, err)


def job_commands() -> list[str]:
    """What the README gives to spark-submit, each in one line."""
    text = "".join(text for language, text in BLOCKS if language == "console").replace("\\\n", " ")
    return re.findall(r"^\$ spark-submit (jobs/.*)$", text, re.MULTILINE)


def test_the_jobs_understand_their_command_lines() -> None:
    assert len(job_commands()) >= 10
    for command in job_commands():
        job, *arguments = shlex.split(command)
        given = runpy.run_path(str(ROOT / job))["parser"].parse_args(arguments)
        assert given.topic or given.root, command


def test_the_batch_header_is_as_the_table_says() -> None:
    types = {"q": "int64", "i": "int32", "b": "int8", "I": "uint32", "h": "int16"}
    sizes = {"int64": 8, "int32": 4, "int8": 1, "uint32": 4, "int16": 2}
    rows = table("### Record batch (format 2)")
    assert [row[1] for row in rows[:-1]] == [types[code] for code in record_batch.HEADER.format[1:]]
    position = 0
    for start, kind, _ in rows[:-1]:
        assert int(start) == position
        position += sizes[kind]
    assert int(rows[-1][0]) == position == record_batch.HEADER_SIZE


def test_the_attribute_bits_are_as_the_table_says() -> None:
    bits = [int(row[0], 16) for row in table("### Record batch (format 2)", 1)]
    assert bits == [
        record_batch.CODEC_MASK,
        record_batch.APPEND_TIME,
        record_batch.TRANSACTIONAL,
        record_batch.CONTROL,
        record_batch.DELETE_HORIZON,
    ]


def test_the_index_entries_are_as_the_table_says() -> None:
    sizes = {row[0]: int(row[1]) for row in table("### Indexes")}
    entries = {".index": OFFSET_ENTRY, ".timeindex": TIME_ENTRY, ".txnindex": TRANSACTION_ENTRY}
    assert sizes == {f"`{suffix}`": entry.itemsize for suffix, entry in entries.items()}


def test_the_settings_are_as_the_table_says() -> None:
    rows = [tuple(row) for row in table("### Settings of a topic")]
    assert rows == [(f"`{name}`", f"{default}", rule, meaning) for name, default, rule, meaning in settings()]


def test_the_places_and_limits_of_bundles_are_as_the_tables_say() -> None:
    assert [row[0].strip("`") for row in table("### Bundles")] == [field for field, _ in bundle_parts.PARTS]
    mebibyte = 1 << 20
    limits = [LARGEST_PART // mebibyte, LARGEST_BUNDLE // mebibyte]
    assert [row[1] for row in table("### Bundles", 1)] == [*(f"{limit} MiB" for limit in limits), ""]
    assert f"above {HELD_BYTES // mebibyte} MiB" in table("### Bundles", 1)[1][0]
    assert f"A bundle above {SINGLE_PUT_BYTES // mebibyte} MiB is a multipart upload" in README
    assert f"a multiple of {PAGE_BYTES} bytes" in README
