"""docs/spark-setup.md and docs/cluster.md cannot drift: jobs, arguments, exit statuses and limits are the code's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from distlog.console.output import FAILED, INTERRUPTED, SUCCESS, WRONG_USAGE
from tools.spark_versions import VERSIONS, table_of

pytest.importorskip("pyspark")

from spark_steps import LABELS

from distlog.jobs.__main__ import JOBS
from distlog.spark.appends import BATCH_ROWS, MAX_MEAN_BYTES, ROW_BYTES
from distlog.spark.versions import OLDEST

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "spark-setup.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(?:py|spark-).*?(?:distlog\.jobs |jobs/)(\w+)(?:\.py)? (.*)$", TEXT, re.MULTILINE)


def test_the_jobs_parse_their_command_lines() -> None:
    assert len(COMMANDS) == 3
    for name, arguments in COMMANDS:
        assert JOBS[name].parser.parse_args(shlex.split(arguments)).topic


def test_all_jobs_are_named_and_are_programs_for_spark_submit_too() -> None:
    names = {path.stem for path in (ROOT / "jobs").glob("*.py")}
    assert names == JOBS.keys()
    (listed,) = re.findall(r"^They are (.*?);", TEXT, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == names


def test_the_exit_statuses_match_the_jobs() -> None:
    rows = re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)
    assert list(map(int, rows)) == [SUCCESS, FAILED, WRONG_USAGE, INTERRUPTED]


def test_the_table_of_versions_has_what_is_tried_and_the_requirement_has_its_versions() -> None:
    versions, table = table_of(TEXT)
    assert tuple(versions) == VERSIONS
    assert list(table) == list(LABELS.values())
    assert {result for row in table.values() for result in row.values()} == {"yes", "no"}
    assert {row[VERSIONS[-1]] for row in table.values()} == {"yes"}
    next_minor = f"4.{int(VERSIONS[-1].split('.')[1]) + 1}"
    assert f'"pyspark>={VERSIONS[0]},<{next_minor}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert VERSIONS[0] == ".".join(map(str, OLDEST))


def test_the_limits_of_an_appends_batches_are_named() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    for limit in (f"{BATCH_ROWS:,} rows", f"{ROW_BYTES >> 10} KiB", f"above {MAX_MEAN_BYTES} bytes"):
        assert limit in page
