"""docs/dump.md cannot drift: its commands run, and its table has all options."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import golden
import pytest
from command_line import CommandLine

from distlog.cli.app import command

TEXT = (Path(__file__).parents[2] / "docs" / "dump.md").read_text(encoding="utf-8")
FOLDER = golden.partitions()["first.txn-0"].folder


def test_the_commands_run(tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FOLDER, tmp_path / "partition")
    monkeypatch.chdir(tmp_path / "partition")
    commands = re.findall(r"^distlog (dump .*)$", TEXT, re.MULTILINE)
    assert len(commands) == 6
    for line in commands:
        outcome = cli.bare(*shlex.split(line))
        assert (outcome.status, outcome.err) == (0, ""), line
        assert len(outcome.out.splitlines()) > 1


def test_the_options_are_in_the_table() -> None:
    names = {name for option in command("dump").params for name in option.opts if name.startswith("--")} - {"--help"}
    assert set(re.findall(r"^\| `(--[a-z-]+)", TEXT, re.MULTILINE)) == names
