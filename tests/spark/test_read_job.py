"""The job that reads: its output and its files."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_runs import job as job
from job_runs import ms

import distlog

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> str:
    topic = distlog.create(str(tmp_path_factory.mktemp("jobs") / "clicks"), partitions=2)
    topic.append(
        [
            {
                "key": b"k%d" % number,
                "value": b'say "hi"\t\xff' if number == 3 else b"[v%d]" % number,
                "timestamp": ms("2015-05-17") + 1000 * number,
                "partition": number % 2,
                "headers": [("h", b"x"), ("i", None)] if number == 2 else [],
            }
            for number in range(50)
        ]
    )
    return topic.url


def test_read_prints_the_first_records(job: Any, filled: str) -> None:
    ran = job("read", "--topic", filled, "--limit", 2)
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[:2] == ["partition\toffset\ttimestamp\tkey\tvalue", "0\t0\t2015-05-17T00:00:00.000Z\tk0\t[v0]"]
    assert lines[3].startswith(f"read 2 records of {filled} to the console")
    assert len(job("read", "--topic", filled).out.splitlines()) == 22
    ran = job("read", "--topic", filled, "--partitions", 1, "--start", 1, "--limit", 1)
    assert ran.out.splitlines()[1] == '1\t1\t2015-05-17T00:00:03.000Z\tk3\tsay "hi"\\t\\xff'


def test_read_prints_json_with_a_summary_last(job: Any, filled: str) -> None:
    ran = job("read", "--topic", filled, "--start", "0:1,1:1", "--end", 2, "--json")
    first, second, summary = (json.loads(line) for line in ran.out.splitlines())
    assert first == {
        "partition": 0,
        "offset": 1,
        "timestamp": ms("2015-05-17 00:00:02"),
        "timestamp_type": 0,
        "key": "k2",
        "value": "[v2]",
        "headers": [{"key": "h", "value": "x"}, {"key": "i", "value": None}],
    }
    assert second["value"] == {"base64": base64.b64encode(b'say "hi"\t\xff').decode()}
    assert second["headers"] == []
    assert {**summary, "seconds": 0} == {"topic": filled, "records": 2, "output": None, "seconds": 0}


def test_read_writes_files(job: Any, filled: str, tmp_path: Path) -> None:
    since, until = "2015-05-17T00:00:10Z", str(ms("2015-05-17 00:00:20"))
    arguments = ("--since", since, "--until", until, "--partitions", "1")
    ran = job("read", "--topic", filled, *arguments, "--output", tmp_path / "out", "--json")
    assert (ran.summary["records"], ran.summary["output"]) == (5, str(tmp_path / "out"))
    table = pq.read_table(tmp_path / "out")
    assert sorted(table["offset"].to_pylist()) == [5, 6, 7, 8, 9]
    assert table.schema.field("value").type == pa.binary()
    ran = job("read", "--topic", filled, "--output", tmp_path / "json", "--format", "json", "--limit", 3)
    assert ran.status == 0
    rows = [json.loads(line) for part in (tmp_path / "json").glob("*.txt") for line in part.open()]
    assert [row["value"] for row in rows] == ["[v0]", "[v2]", "[v4]"]


def test_read_selects_by_record_times_and_counts_records(job: Any, url: str, tmp_path: Path) -> None:
    topic = distlog.create(url)
    for day in ("2025-10-02", "2025-10-03", "2025-09-30", "2025-10-01"):
        topic.append([{"value": day.encode(), "timestamp": ms(day) + 80_000 * number} for number in range(1000)])
    october = ("--topic", url, "--since", "2025-10-01")
    ran = job("read", *october, "--until", "2025-10-02", "--output", tmp_path / "day", "--json")
    assert ran.summary["records"] == 1000
    assert set(pq.read_table(tmp_path / "day")["value"].to_pylist()) == {b"2025-10-01"}
    assert job("read", *october, "--output", tmp_path / "october", "--json").summary["records"] == 3000
    assert b"2025-09-30" not in pq.read_table(tmp_path / "october")["value"].to_pylist()
    ran = job("read", *october, "--until", "2025-10-02", "--limit", 7, "--json")
    assert [json.loads(line)["value"] for line in ran.out.splitlines()[:-1]] == ["2025-10-01"] * 7
    assert ran.summary["records"] == 7


def test_read_refuses_a_wrong_command_line(job: Any, filled: str) -> None:
    for arguments in (
        ("--start", "x"),
        ("--start", "1", "--since", "5"),
        ("--since", "soon"),
        ("--until", "-5"),
        ("--partitions", "a"),
        ("--format", "json"),
    ):
        assert job("read", "--topic", filled, *arguments).status == 2
    lost_read = job("read", "--topic", filled, "--start", 99)
    assert (lost_read.status, "log_end_offset=25" in lost_read.err) == (1, True)


def test_a_limit_is_planned_as_offsets_so_no_task_is_cut_off(job: Any, url: str) -> None:
    topic = distlog.create(url, 3)
    for partition in range(3):
        topic.append([{"value": b"%d" % number} for number in range(10)], partition=partition)
    ran = job("read", "--topic", url, "--limit", 14, "--json")
    assert (ran.status, ran.summary["records"], ran.out.count("\n")) == (0, 14, 15)
    assert job("read", "--topic", url, "--limit", 0, "--json").summary["records"] == 0
    assert job("read", "--topic", url, "--limit", -1).status == 2
