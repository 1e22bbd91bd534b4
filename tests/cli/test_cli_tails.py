"""The command line shows what a writer has appended in place and not sealed; the writer is a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from live_writer import LiveWriter
from topics import NOW

COUNT = 40


@pytest.fixture
def live(cli: CommandLine) -> Iterator[CommandLine]:
    """A topic whose records are all in a segment that its writer, which still runs, has not sealed."""
    cli.ok("create")
    writer = LiveWriter(cli.url, 0, COUNT)
    try:
        writer.wait_for(COUNT)
        yield cli
    finally:
        writer.kill()


def numbers(cli: CommandLine, *options: str) -> list[int]:
    """The offsets of the records that `read` shows, whose values tell the same numbers."""
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
