"""The commands that read and append records: which records they read, and what they accept as a record."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from hypothesis import example, given
from hypothesis import strategies as st
from live_writer import LiveWriter
from searches import examples
from topics import NOW

import distlog
from distlog.cli import record_commands
from distlog.console import arguments


def test_read_prints_lines_with_titles_once(filled: CommandLine) -> None:
    shown = filled.ok("read", "--offset", "3").rows
    assert shown[0] == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert shown[1:] == [
        ["0", "3", "1970-01-01T00:00:04.004Z", "k3", "v3", ""],
        ["0", "4", "1970-01-01T00:00:05.005Z", "k4", "v4", ""],
    ]


def test_read_as_json_is_an_object_a_line(filled: CommandLine) -> None:
    (line,) = filled.ok("read", "--partition", "0", "--offset", "4", "--limit", "1", "--json").out.splitlines()
    assert json.loads(line) == {
        "partition": 0,
        "offset": 4,
        "timestamp": 5005,
        "timestamp_type": 0,
        "key": "k4",
        "value": "v4",
        "headers": [],
    }


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ([], "01234"),
        (["--limit", "2"], "01"),
        (["--limit", "0"], ""),
        (["--offset", "3", "--limit", "9"], "34"),
        (["--offset", "5"], ""),
        (["--since", "2500"], "234"),
        (["--until", "1970-01-01T00:00:03Z"], "01"),
        (["--since", "2000", "--until", "4000"], "12"),
        (["--since", "9999"], ""),
        (["--offset", "4", "--until", "2000"], ""),
        (["--since", "2000", "--limit", "2"], "12"),
        (["--until", "4000", "--limit", "9"], "012"),
    ],
)
def test_read_keeps_within_its_bounds(filled: CommandLine, options: list[str], offsets: str) -> None:
    lines = filled.ok("read", *options, "--columns", "offset", "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [{"offset": int(offset)} for offset in offsets]


def test_a_partition_that_is_named_twice_is_read_once(filled: CommandLine) -> None:
    assert filled.ok("read", "-p", "0", "-p", "0").out == filled.ok("read", "-p", "0").out


def test_times_are_those_of_the_records_also_where_they_step_back(cli: CommandLine) -> None:
    cli.ok("create", "--partitions", "2")
    for partition, times in (("0", (9, 3, 5)), ("1", (4, 8, 2))):
        lines = "\n".join(json.dumps({"value": "v", "timestamp": time}) for time in times)
        cli.ok("append", "--partition", partition, "--format", "records", stdin=lines.encode())

    def read(*options: str) -> list[list[str]]:
        return cli.ok("read", *options, "--columns", "partition,offset").rows[1:]

    assert read("--since", "4") == [["0", "0"], ["0", "2"], ["1", "0"], ["1", "1"]]
    assert read("--since", "3", "--until", "5", "--limit", "5") == [["0", "1"], ["1", "0"]]
    assert read("--since", "3", "--until", "9", "--limit", "3") == [["0", "1"], ["0", "2"], ["1", "0"]]


def test_a_limit_spans_partitions_and_many_small_appends(cli: CommandLine) -> None:
    cli.ok("create", "--partitions", "3")
    for partition in "012":
        for _ in range(3):
            cli.ok("append", "--partition", partition, stdin=b"a\nb\n")
    lines = cli.ok("read", "--limit", "8", "--columns", "partition,offset").rows[1:]
    assert lines == [["0", str(n)] for n in range(6)] + [["1", "0"], ["1", "1"]]
    assert cli.ok("read", "--partition", "2", "--partition", "0", "--columns", "partition").out.count("\n") == 13


@pytest.mark.long
@example(offsets=set(range(10, 100)), start=0, limit=5)
@examples(30)
@given(offsets=st.sets(st.integers(0, 400)), start=st.integers(0, 401), limit=st.none() | st.integers(0, 50))
def test_a_limit_spans_the_gaps_of_a_compaction(offsets: set[int], start: int, limit: int | None) -> None:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "internal.segment.bytes": 2000}
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/gaps", config=config)
    topic.append([{"key": b"%d" % n if n in offsets else b"again", "value": b"v"} for n in range(401)])
    topic.compact()
    remaining_offsets = topic.scan(columns=["offset"]).to_table()["offset"].to_pylist()
    batches = record_commands.read_batches(topic, [0], record_commands.Bounds(offset=start), limit, ["offset"])
    expected = [offset for offset in remaining_offsets if offset >= start][:limit]
    assert [offset for batch in batches for offset in batch.column(0).to_pylist()] == expected
    assert [record.offset for record in topic.records(start=start, limit=limit)] == expected


def test_append_takes_lines_of_text_from_standard_input(cli: CommandLine) -> None:
    cli.ok("create")
    assert cli.ok("append", stdin=b"one\ntwo\n").out == "appended 2 records, partition 0 [0, 2)\n"
    assert cli.ok("append", "-", "--json", stdin=b"three").json == {
        "version": 2,
        "records": 1,
        "offsets": {"0": [2, 3]},
        "replayed": False,
        "skipped": 0,
        "interrupted": False,
    }
    assert [row[0] for row in cli.ok("read", "--columns", "value").rows[1:]] == ["one", "two", "three"]


def test_append_takes_a_file_with_keys(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("create")
    (tmp_path / "lines").write_bytes(b"a:1\nb:2\n")
    cli.ok("append", str(tmp_path / "lines"), "--key-separator", ":")
    assert cli.ok("read", "--columns", "key,value").rows[1:] == [["a", "1"], ["b", "2"]]


def test_a_key_decides_the_partition_as_in_kafka(cli: CommandLine) -> None:
    cli.ok("create", "--partitions", "4")
    cli.ok("append", "--key-separator", "=", stdin=b"\n".join(b"%d=v" % n for n in range(20)))
    first = {row[1]: row[0] for row in cli.ok("read", "--columns", "partition,key").rows[1:]}
    cli.ok("append", "--key-separator", "=", stdin=b"7=w")
    assert cli.ok("read", "--columns", "value,partition", "--partition", first["7"]).rows[-1] == ["w", first["7"]]


def test_an_append_of_nothing_commits_nothing(cli: CommandLine) -> None:
    cli.ok("create")
    document = cli.ok("append", "--json").json
    assert (document["version"], document["records"], document["offsets"]) == (None, 0, {})
    assert distlog.open(cli.url).version == 0


def test_json_of_read_can_be_appended(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("create")
    records = [
        {"key": b"\xff\x00", "value": "é\n".encode(), "timestamp": 7, "headers": [("h", b"\xfe"), ("n", None)]},
        {"key": None, "value": None, "timestamp": 8, "headers": []},
    ]
    distlog.open(cli.url).append(records)
    printed = cli.ok("read", "--json").out
    cli.ok("append", "--format", "records", stdin=printed.encode())
    lines = [json.loads(line) for line in cli.ok("read", "--json").out.splitlines()]
    assert [{**line, "offset": 0} for line in lines[:2]] == [{**line, "offset": 0} for line in lines[2:]]
    assert lines[0]["key"] == {"base64": "/wA="}


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--tail", "2"], "34"),
        (["--tail", "9"], "01234"),
        (["--tail", "0"], ""),
        (["-o", "-2"], "34"),
        (["--tail", "3", "-n", "1"], "2"),
        (["-o", "earliest", "-n", "2"], "01"),
        (["-p", "0", "-o", "3"], "34"),
        (["--since", "-1h"], ""),
        (["--until", "now"], "01234"),
        (["--tail", "2", "-f", "--timeout", "0"], "34"),
    ],
)
def test_read_accepts_the_offsets_of_kcat(filled: CommandLine, options: list[str], offsets: str) -> None:
    lines = filled.ok("read", *options, "--columns", "offset", "--json").out.splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [int(offset) for offset in offsets]


def test_read_prints_in_a_format_of_choice(filled: CommandLine) -> None:
    assert filled.ok("read", "-n", "2", "--format", r"%o %k=%v\n").out == "0 k0=v0\n1 k1=v1\n"
    assert filled.ok("read", "-o", "-1", "--format", "csv", "--columns", "offset,value").out == (
        '"offset","value"\n4,"v4"\n'
    )
    assert filled.ok("read", "--format", "json").out == filled.ok("read", "--json").out
    for wrong in (["--format", "%v", "--columns", "value"], ["--format", "csv", "--json"], ["--format", "%"]):
        assert filled("read", *wrong).status == 2


def test_csv_of_read_can_be_appended(filled: CommandLine) -> None:
    printed = filled.ok("read", "--format", "csv").out
    fields = ("--key", "key", "--value", "value", "--timestamp", "timestamp")
    filled.ok("append", "--format", "csv", *fields, stdin=printed.encode())
    lines = filled.ok("read", "--format", r"%k %v %T\n").out.splitlines()
    assert lines[:5] == lines[5:]


def test_a_time_ago_counts_from_now() -> None:
    assert arguments.time("-90s", lambda: 100_000) == 10_000
    assert arguments.time("-2d", lambda: 3 * 86_400_000) == 86_400_000
    assert arguments.time("now", lambda: 7) == 7
    for wrong in ("-1w", "1h", "-h", "soon"):
        with pytest.raises(ValueError, match="is not a time: write 2026-01-31, 2026"):
            arguments.time(wrong)


COUNT = 40


@pytest.fixture
def live(cli: CommandLine) -> Iterator[CommandLine]:
    """A topic with all records in an unsealed segment of a live writer."""
    cli.ok("create")
    writer = LiveWriter(cli.url, 0, COUNT)
    try:
        writer.wait_for(COUNT)
        yield cli
    finally:
        writer.kill()


def numbers(cli: CommandLine, *options: str) -> list[int]:
    """Return the offsets that `read` prints, which the values repeat."""
    rows = [json.loads(line) for line in cli.ok("read", *options, "--json").out.splitlines()]
    assert [int(row["value"]) for row in rows] == [row["offset"] for row in rows]
    return [row["offset"] for row in rows]


def test_read_shows_the_tail(live: CommandLine) -> None:
    assert numbers(live) == list(range(COUNT))
    assert numbers(live, "--partition", "0", "--offset", "35", "--limit", "3") == [35, 36, 37]
    assert numbers(live, "--since", str(NOW + 38)) == [38, 39]


def test_describe_and_segments_count_the_tail(live: CommandLine) -> None:
    (segment,) = live.ok("segments", "--json").json["segments"]
    (log,) = Path(live.url).glob("*-0/*.log")
    assert (segment["base_offset"], segment["next_offset"]) == (0, COUNT)
    assert segment["log_bytes"] == log.stat().st_size
    partition = live.ok("describe").rows[2]
    assert partition == ["0", "0", str(COUNT), "1", str(log.stat().st_size)]
