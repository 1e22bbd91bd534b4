"""Commands show a topic as it was at a version or a time."""

from __future__ import annotations

import json

import pytest
from command_line import CommandLine


@pytest.fixture
def old(filled: CommandLine) -> CommandLine:
    """Version 1 has the records 0 to 4, version 2 also 5, and of version 3 is only 5 left."""
    filled.ok("append", stdin=b"v5")
    filled.ok("delete-records", "--before", "0:5")
    return filled


def read_values(cli: CommandLine, *options: str) -> list[str]:
    return [json.loads(line)["value"] for line in cli.ok("read", "--json", *options).out.splitlines()]


def test_read_shows_what_a_version_had(old: CommandLine) -> None:
    assert read_values(old) == ["v5"]
    assert read_values(old, "--version", "2") == [f"v{n}" for n in range(6)]
    assert read_values(old, "--version", "1", "--tail", "2") == ["v3", "v4"]
    assert read_values(old, "--version", "0") == []


def test_read_shows_what_there_was_at_a_time(old: CommandLine) -> None:
    times = {row["version"]: row["timestamp"] for row in old.ok("history", "--json").json["commits"]}
    assert read_values(old, "--timestamp", str(times[1])) == [f"v{n}" for n in range(5)]
    assert read_values(old, "--timestamp", "now") == ["v5"]
    outcome = old("read", "--timestamp", "1970-01-02")
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(("command", "rows"), [("describe", "0 0 5 1"), ("segments", "0 0 5"), ("offsets", "0 0 5")])
def test_what_is_told_of_a_topic_is_that_of_the_version(old: CommandLine, command: str, rows: str) -> None:
    shown = old.ok(command, "--version", "1").rows
    assert shown[-1][: len(rows.split())] == rows.split()
    assert old.ok(command).rows != shown


def test_an_offset_of_a_time_is_that_of_the_version(old: CommandLine) -> None:
    (row,) = old.ok("offsets", "--time", "earliest", "--version", "1", "--json").json["partitions"]
    assert row["offset"] == 0
    (row,) = old.ok("offsets", "--time", "earliest", "--json").json["partitions"]
    assert row["offset"] == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--version", "1", "--timestamp", "now"], "a version or a time, not both"),
        (["--version", "1", "--follow"], "an old version gets no records"),
        (["--version", "x"], "`distlog history` lists them"),
        (["--timestamp", "soon"], "is no time: write a date"),
    ],
)
def test_what_does_not_go_together_is_a_wrong_command_line(old: CommandLine, options: list[str], words: str) -> None:
    outcome = old("read", *options, "--json")
    assert (outcome.status, words in outcome.json["error"]) == (2, True)


def test_a_version_that_is_not_there_yet_is_a_failure(old: CommandLine) -> None:
    assert old("read", "--version", "9").status == 1
