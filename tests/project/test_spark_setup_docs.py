"""docs/spark-setup.md cannot drift: its jobs exist and take what it gives them, its statuses are those of jobs."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from distlog.console.report import DONE, FAILED, INTERRUPTED, WRONG_USAGE

pytest.importorskip("pyspark")

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "spark-setup.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ .*?(?:distlog\.jobs\.|jobs/)(\w+)(?:\.py)? (.*)$", TEXT, re.MULTILINE)


def test_the_jobs_understand_their_command_lines() -> None:
    assert len(COMMANDS) == 3
    for name, given in COMMANDS:
        assert import_module(f"distlog.jobs.{name}").parser.parse_args(shlex.split(given)).topic


def test_all_jobs_are_named_and_are_programs_for_spark_submit_too() -> None:
    names = {path.stem for path in (ROOT / "distlog" / "jobs").glob("*.py")} - {"__init__"}
    assert names == {path.stem for path in (ROOT / "jobs").glob("*.py")}
    (listed,) = re.findall(r"^They are (.*?);", TEXT, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == names


def test_the_statuses_are_those_of_the_jobs() -> None:
    rows = re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)
    assert list(map(int, rows)) == [DONE, FAILED, WRONG_USAGE, INTERRUPTED]
