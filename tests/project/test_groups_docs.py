"""docs/groups.md cannot drift: its examples run, and its numbers match the code."""

from __future__ import annotations

import shlex
from pathlib import Path

from command_line import CommandLine
from docs_pages import Reader, examples, read
from topics import values

import distlog
from distlog.core.read.consumer import LEASE_S
from distlog.core.read.consumer_group import FREQUENT, RARE, RETAINED_VERSIONS

TEXT = read("docs/groups.md")


def test_the_python_example_runs(reader: Reader) -> None:
    reader.pastes("docs/groups.md")


def test_the_commands_run(tmp_path: Path, cli: CommandLine) -> None:
    distlog.create(f"{tmp_path}/clicks").append(values(range(3)))
    lines = next(example.commands for example in examples(TEXT) if example.language == "sh")
    assert len(lines) == 6
    for line in lines:
        command = line.removeprefix("distlog ").replace("/data/logs", shlex.quote(str(tmp_path)))
        # present records come at once
        run = cli.bare(*shlex.split(command.replace("--timeout 1", "--timeout 0.1")))
        assert (run.status, run.err) == (0, ""), line


def test_its_numbers_match_the_code() -> None:
    assert f"(default {LEASE_S:g})" in TEXT
    assert RARE.heartbeat == RARE.refresh == RARE.list == 1 / 2
    assert (FREQUENT.heartbeat, FREQUENT.refresh, FREQUENT.list) == (1 / 3, 1 / 20, 1 / 4)
    assert f"the last {RETAINED_VERSIONS} to {2 * RETAINED_VERSIONS} are kept" in TEXT
