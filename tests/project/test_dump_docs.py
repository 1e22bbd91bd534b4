"""docs/dump.md cannot drift: its commands run, and its options are those of the command."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import golden
import pytest
from command_line import CommandLine
from typer.main import get_command

from distlog.cli.app import app

TEXT = (Path(__file__).parents[2] / "docs" / "dump.md").read_text(encoding="utf-8")
FOLDER = golden.partitions()["first.txn-0"].folder


def test_the_commands_run(tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FOLDER, tmp_path / "partition")
    monkeypatch.chdir(tmp_path / "partition")
    commands = re.findall(r"^\$ distlog (dump .*)$", TEXT, re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        outcome = cli.bare(*shlex.split(command))
        assert (outcome.status, outcome.err) == (0, ""), command
        assert len(outcome.out.splitlines()) > 1


def test_the_options_are_in_the_table() -> None:
    dump = get_command(app).commands["dump"]  # type: ignore[attr-defined]
    known = {name for option in dump.params for name in option.opts if name.startswith("--")} - {"--help"}
    assert set(re.findall(r"^\| `(--[a-z-]+)", TEXT, re.MULTILINE)) == known
