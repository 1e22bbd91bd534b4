"""`distlog append` of files: their order, patterns, times, batches that are appended once, and warnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import CommandLine
from file_reads import written

import distlog


def records(topic: distlog.Topic) -> list[tuple[bytes | None, bytes | None, int]]:
    now = distlog.open(topic.url)
    actual = (record for partition in range(now.partitions) for record in now.records(partition))
    return [(record.key, record.value, record.timestamp) for record in actual]


def test_files_of_growing_sizes_stay_in_order_and_the_newest_of_a_key_is_last(
    cli: CommandLine, tmp_path: Path
) -> None:
    topic = distlog.create(cli.url, partitions=3)
    for day in range(9):
        lines = "".join(f'{{"k": "{row % 7}", "v": {day * 1000 + row}}}\n' for row in range(100 * (day + 1)))
        written(tmp_path, **{f"day-{day}__jsonl": lines})
    cli.ok("append", str(tmp_path), "--key", "k", "--value", "v")
    by_key: dict[bytes | None, list[int]] = {}
    for key, value, _ in records(topic):
        by_key.setdefault(key, []).append(int(value or b""))
    assert len(by_key) == 7
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_a_pattern_and_a_time_format_split_lines(cli: CommandLine, topic: distlog.Topic, tmp_path: Path) -> None:
    (path,) = written(tmp_path, access__log='ann [1/2/2024 3:04:05] "GET /"\nben [12/11/2024 13:14:15] "PUT /x"\n')
    arguments = ("--pattern", r'^(?P<key>\S+) \[(?P<timestamp>[^]]+)\] "(?P<value>.*)"$', "--time-format")
    cli.ok("append", str(path), *arguments, "%d/%m/%Y %H:%M:%S")
    assert records(topic) == [(b"ann", b"GET /", 1_706_756_645_000), (b"ben", b"PUT /x", 1_731_417_255_000)]
    assert cli("append", str(path), "--pattern", "(?P<key>").status == 2


def test_a_separator_may_be_a_tab(cli: CommandLine, topic: distlog.Topic) -> None:
    cli.ok("append", "--key-separator", r"\t", stdin=b"k\tv\tw\n")
    assert [row[:2] for row in records(topic)] == [(b"k", b"v\tw")]
    assert cli("append", "--key-separator", r"\q").status == 2


def test_a_batch_is_appended_once(cli: CommandLine, topic: distlog.Topic, tmp_path: Path) -> None:
    (path,) = written(tmp_path, a="1\n2\n")
    batch = ("append", str(path), "--app-id", "load", "--batch-id", "2024-01-01", "--json")
    documents = [cli.ok(*batch).json for _ in range(2)]
    assert [(entry["replayed"], entry["offsets"]) for entry in documents] == [
        (False, {"0": [0, 2]}),
        (True, {"0": [0, 2]}),
    ]
    assert len(records(topic)) == 2
    for wrong in (["--app-id", "load"], ["-", "--app-id", "load", "--batch-id", "1"]):
        assert cli("append", *wrong).status == 2


def test_files_without_records_are_named(cli: CommandLine, topic: distlog.Topic, tmp_path: Path) -> None:
    written(tmp_path, a__csv="k,v\n", b__jsonl="\n\n", c__log="", d__log="1\n")
    outcome = cli("append", str(tmp_path))
    assert (outcome.status, outcome.out) == (0, "appended 1 record, partition 0 [0, 1)\n")
    assert outcome.err == f"distlog: no records in 2 files: {tmp_path / 'a.csv'}, {tmp_path / 'b.jsonl'}\n"


@pytest.mark.parametrize("form", ["log", "jsonl", "csv"])
def test_a_line_above_the_limit_of_the_topic_is_named(cli: CommandLine, tmp_path: Path, form: str) -> None:
    topic = distlog.create(cli.url, config={"max.message.bytes": 2000})
    lines = {"log": "x" * 3000, "jsonl": json.dumps({"v": "x" * 3000}), "csv": "x" * 3000}
    (path,) = written(
        tmp_path, **{f"a__{form}": f"v\n\n{lines[form]}\n" if form == "csv" else f"\n\n{lines[form]}\n"}
    )
    outcome = cli("append", str(path), *([] if form == "log" else ["--value", "v"]))
    assert (outcome.status, outcome.out) == (1, "")
    assert f"file={path}" in outcome.err
    assert "line=3" in outcome.err
    assert records(topic) == []


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08\0", b"PAR1....", b"\xff\xfea\0"])
def test_a_binary_stream_is_refused(cli: CommandLine, topic: distlog.Topic, content: bytes) -> None:
    outcome = cli("append", stdin=content + b"\n")
    assert (outcome.status, outcome.out, records(topic)) == (1, "", [])
