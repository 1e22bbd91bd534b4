"""docs/groups.md cannot drift: its examples run, and its numbers are those of the code."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from topics import values

import distlog
from distlog.core.following.begin import LEASE_S
from distlog.core.groups.group_log import KEPT

TEXT = (Path(__file__).parents[2] / "docs" / "groups.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The text of the example in a language."""
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found
    return found[1]


def test_the_python_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topic = distlog.create(f"{tmp_path}/clicks")
    topic.append(values(range(3)))
    exec(block("python"), {"distlog": distlog, "topic": topic})
    assert capsys.readouterr().out == "3 records, now at {0: 3}\n[0]\n"


def test_the_commands_run(tmp_path: Path) -> None:
    distlog.create(f"{tmp_path}/clicks").append(values(range(3)))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    lines = block("console").splitlines()
    assert len(lines) == 4
    for line in lines:
        command = line.removeprefix("$ ").replace("/data/logs", shlex.quote(str(tmp_path)))
        run = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, timeout=300)
        assert (run.returncode, run.stderr) == (0, ""), line


def test_its_numbers_are_those_of_the_code() -> None:
    assert f"(default {LEASE_S:g})" in TEXT
    assert f"the last {KEPT} to {2 * KEPT} are kept" in TEXT
