"""A web server's log through all jobs, from the first line to the last maintenance: lines in, latest lines out."""

from __future__ import annotations

import json
import random
import runpy
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import Address
from pyspark.sql import SparkSession
from topics import files, named_files

import distlog

pytestmark = pytest.mark.spark

JOBS = Path(__file__).parents[2] / "jobs"
PATTERN = r"^(?P<key>\S+) \S+ \S+ \[(?P<timestamp>[^\]]+)\]"
TIME_FORMAT = "%d/%b/%Y:%H:%M:%S %z"
START = datetime(2015, 5, 17, 10, 5, 3, tzinfo=timezone.utc)


class Line(NamedTuple):
    """A line of the log, the address it begins with and its time in ms."""

    key: bytes
    value: bytes
    timestamp: int


class Row(NamedTuple):
    """A record of a topic."""

    partition: int
    offset: int
    line: Line


def generated(count: int) -> list[Line]:
    """Requests of some addresses, some seconds apart, not always in the order of time."""
    source = random.Random(7)
    lines = []
    for number in range(count):
        at = START + timedelta(seconds=3 * number + source.randrange(-5, 6))
        key = f"10.0.{source.randrange(3)}.{int(source.paretovariate(0.7)) % 60}"
        text = f'{key} - - [{at:{TIME_FORMAT}}] "GET /{number}?q=\\"x\\" HTTP/1.1" 200 {source.randrange(9999)} "ünï"'
        lines.append(Line(key.encode(), text.encode(), int(at.timestamp() * 1000)))
    return lines


class Jobs:
    """Runs jobs on one topic in this process; each must return 0."""

    def __init__(self, address: Address, capfd: pytest.CaptureFixture[str]) -> None:
        self.url, self._options, self._capfd = f"{address.url}/access", address.options, capfd

    def __call__(self, name: str, *given: object) -> dict[str, Any]:
        """What the job says with --json."""
        storage = [part for pair in self._options.items() for part in ("--storage", "=".join(pair))]
        arguments = ["--topic", self.url, "--json", *storage, *map(str, given)]
        self._capfd.readouterr()
        assert runpy.run_path(str(JOBS / f"{name}.py"))["main"](arguments) == 0
        facts: dict[str, Any] = json.loads(self._capfd.readouterr().out.splitlines()[-1])
        return facts if name == "append" else facts["topics"][0]  # type: ignore[no-any-return]

    def topic(self) -> distlog.Topic:
        return distlog.open(self.url, storage_options=self._options)

    def rows(self) -> list[Row]:
        table = self.topic().scan().to_table()
        columns = [table[name].to_pylist() for name in ("partition", "offset", "key", "value")]
        times = table["timestamp"].cast("int64").to_pylist()
        return [Row(*row[:2], Line(*row[2:])) for row in zip(*columns, times, strict=True)]


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.s3)])
def test_every_line_comes_in_and_the_last_of_each_address_stays(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    assert spark
    address = request.getfixturevalue("s3_url") if kind == "s3" else Address(str(tmp_path), {})
    run, lines = Jobs(address, capfd), generated(500)
    log = tmp_path / "access.log"
    log.write_bytes(b"".join(line.value + b"\n" for line in lines))
    config = ("--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0")
    shape = ("--pattern", PATTERN, "--time-format", TIME_FORMAT, "--create", "--partitions", 3)
    delay = ("--config", "file.delete.delay.ms=0")
    assert run("append", "--input", log, "--format", "text", *shape, *config, *delay)["records"] == len(lines)
    before = run.rows()
    check_appended(run.topic(), before, lines)
    run("compact")
    check_latest(before, run.rows(), lines)
    assert run("retention")["segments"] == 0
    assert run("vacuum")["files"] > 0
    assert files(run.topic().storage) == named_files(run.topic())
    assert run("verify")["ok"]
    assert run("rebuild_index", "--force")["ok"]
    assert run("maintain")["ok"]
    check_latest(before, run.rows(), lines)


def check_appended(topic: distlog.Topic, rows: list[Row], lines: list[Line]) -> None:
    """Every line is there, in order within its partition, without gaps, and times lead where a plain scan does."""
    assert sorted(row.line for row in rows) == sorted(lines)
    for partition, end in topic.end_offsets().items():
        own = [row for row in rows if row.partition == partition]
        keys = {row.line.key for row in own}
        assert [row.offset for row in own] == list(range(end))
        assert [row.line for row in own] == [line for line in lines if line.key in keys]
    times = sorted(line.timestamp for line in lines)
    for time in (0, times[0], times[0] + 1, times[250], times[400] + 500, times[-1], times[-1] + 1):
        for partition, found in topic.offsets_for_times(time).items():
            later = [row for row in rows if row.partition == partition and row.line.timestamp >= time]
            assert found == ((later[0].offset, later[0].line.timestamp) if later else None)


def check_latest(before: list[Row], after: list[Row], lines: list[Line]) -> None:
    """Of each address the last line is left, at the offset that it had."""
    assert after == sorted({row.line.key: row for row in before}.values())
    assert {row.line.key: row.line for row in after} == {line.key: line for line in lines}
