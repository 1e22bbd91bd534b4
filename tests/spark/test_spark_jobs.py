"""The jobs: their arguments, effects, output and exit status."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from addresses import Address
from job_runs import job as job
from job_runs import lines_file, ms, records
from submitted import NO_TOPIC

import distlog
from distlog.console.arguments import offsets, partitions
from distlog.jobs.job import reason

pytestmark = pytest.mark.spark
LOG_LINES = [
    '10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /a" 200',
    '10.0.0.2 - - [17/May/2015:12:05:43 +0200] "GET /b" 404',
    '10.0.0.1 - - [17/May/2015:10:05:47 +0000] "GET /c" 200',
]
PATTERN = r"^(?P<key>\S+) \S+ \S+ \[(?P<timestamp>[^]]+)\]"
TIME_FORMAT = "%d/%b/%Y:%H:%M:%S %z"


def test_lines_of_a_web_server_become_records(job: Any, url: str, tmp_path: Path) -> None:
    log = lines_file(tmp_path, "access.log", LOG_LINES)
    ran = job(
        *("append", "--input", log, "--topic", url, "--create", "--partitions", 3, "--config", "batch.bytes=99"),
        *("--pattern", PATTERN, "--time-format", TIME_FORMAT, "--json"),
    )
    assert (ran.status, ran.err) == (0, "")
    seconds = ran.summary.pop("seconds")
    topic = distlog.open(url)
    assert ran.summary == {
        "topic": url,
        "version": 1,
        "records": 3,
        "offsets": {str(number): [0, end] for number, end in topic.end_offsets().items() if end},
        "replayed": False,
        "skipped": 0,
        "seconds": seconds,
    }
    assert topic.partitions == 3
    assert topic.config.batch_bytes == 99
    times = [ms("2015-05-17 10:05:03"), ms("2015-05-17 10:05:43"), ms("2015-05-17 10:05:47")]
    keys = [b"10.0.0.1", b"10.0.0.2", b"10.0.0.1"]
    expected = [(key, line.encode(), time) for key, line, time in zip(keys, LOG_LINES, times, strict=True)]
    assert sorted(records(url)) == sorted(expected)


@pytest.mark.s3
def test_an_append_to_an_object_store(job: Any, s3_url: Address, tmp_path: Path) -> None:
    log = lines_file(tmp_path, "access.log", LOG_LINES)
    storage = [part for name, value in s3_url.options.items() for part in ("--storage", f"{name}={value}")]
    arguments = ("--pattern", PATTERN, "--time-format", TIME_FORMAT, "--create", "--partitions", 2, "--json")
    ran = job("append", "--input", log, "--topic", s3_url.url, *arguments, *storage)
    assert (ran.status, ran.err, ran.summary["records"]) == (0, "", 3)
    assert distlog.open(s3_url.url, storage_options=s3_url.options).scan().count() == 3
    assert s3_url.options["secret"] not in ran.out


def test_a_bad_line_fails_the_job_or_is_counted(job: Any, url: str, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "a.log", [LOG_LINES[0], "garbage", *LOG_LINES[1:]])
    topic = distlog.create(url)
    arguments = ("append", "--input", path, "--topic", url, "--pattern", PATTERN, "--time-format", TIME_FORMAT)
    failed = job(*arguments)
    assert (failed.status, failed.out) == (1, "")
    shown = "the pattern does not match: garbage (--bad-lines skip leaves bad lines out)"
    assert failed.err == f"append.py: {shown} (file={path} line=2)\n"
    assert topic.refresh().version == 0
    skipped = job(*arguments, "--bad-lines", "skip", "--json")
    assert (skipped.summary["records"], skipped.summary["skipped"]) == (3, 1)
    assert "skipped 1 bad line" in job(*arguments, "--bad-lines", "skip").out


def test_a_job_that_is_repeated_appends_once(job: Any, url: str, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "a.txt", ["x", "y"])
    arguments = (
        "append",
        "--input",
        path,
        "--topic",
        url,
        "--create",
        "--app-id",
        "nightly",
        "--batch-id",
        "2015-05-17",
    )
    first, again = (job(*arguments, "--json").summary for _ in range(2))
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert first["offsets"] == again["offsets"] == {"0": [0, 2]}
    assert "had appended 2 records" in job(*arguments).out
    assert len(records(url)) == 2


def test_a_job_without_rows_reports_no_version(job: Any, url: str, tmp_path: Path) -> None:
    ran = job("append", "--input", lines_file(tmp_path, "a.txt", []), "--topic", url, "--create")
    assert (ran.status, ran.out.startswith(f"appended 0 records to {url} in ")) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pattern", "("), "the pattern is not a regular expression"),
        (("--pattern", "(a)"), "the pattern needs a group named key, value or timestamp"),
        (("--pattern", "(?P<timestamp>.*)", "--time-format", "%Q"), "not a time format of strptime"),
        (("--format", "csv", "--pattern", "(?P<key>.)"), "--pattern needs --format text"),
        (("--format", "text", "--key", "user"), "a line of text has no fields"),
        (("--format", "xml"), "invalid choice: 'xml'"),
        (("--config", "retention.ms"), "write NAME=VALUE"),
        (("--create", "--partitions", "2", "--config", "retention=5"), "unknown setting retention"),
        (("--partitions", "2"), "--partitions and --config need --create"),
        (("--config", "retention.ms=5"), "--partitions and --config need --create"),
        (
            ("--compression", "lzma"),
            "append.py: compression must be one of none, gzip, snappy, lz4, zstd (value=lzma)",
        ),
        (("--app-id", "x"), "give --app-id and --batch-id together: one alone prevents no duplicates"),
    ],
)
def test_a_wrong_command_line_is_status_2(
    job: Any, url: str, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    if "--create" not in arguments:
        distlog.create(url)
    ran = job("append", "--input", lines_file(tmp_path, "a.txt", ["x"]), "--topic", url, *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err


def test_a_topic_that_exists_is_created_with_the_same_partitions_only(job: Any, url: str, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "a.txt", ["x"])
    distlog.create(url, partitions=3)
    assert job("append", "--input", path, "--topic", url, "--create").status == 0
    ran = job("append", "--input", path, "--topic", url, "--create", "--partitions", 2)
    assert (ran.status, "partitions=3 requested=2" in ran.err) == (2, True)


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "jsonl"])
def test_a_missing_column_is_status_1(job: Any, url: str, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"a": ["1"]}), file)
    else:
        text = b'{"a": 1}\n' if kind == "jsonl" else b"a,b\n1,2\n"
        file.write_bytes(gzip.compress(text) if kind == "csv.gz" else text)
    ran = job("append", "--input", file, "--topic", url, "--create", "--key", "user")
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
    # only after all lines of JSON is a field known to be missing
    assert Path(url).exists() == (kind == "jsonl")


def test_a_failure_is_status_1_and_one_line(job: Any, url: str, tmp_path: Path) -> None:
    ran = job("append", "--input", tmp_path / "nothing.txt", "--topic", url, "--create")
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "nothing.txt" in ran.err
    assert not Path(url).exists()
    ran = job("append", "--input", lines_file(tmp_path, "a.txt", ["x"]), "--topic", url + "-not")
    assert (ran.status, ran.err) == (1, f"append.py: {NO_TOPIC} (url={url}-not)\n")


def test_arguments_are_parsed() -> None:
    assert partitions("0,3") == [0, 3]
    assert offsets("7") == 7
    assert offsets("0:7,12:0") == {0: 7, 12: 0}
    for text in ("", "-1", "1,x", "1;2"):
        with pytest.raises(ValueError, match=r"is not a list of partitions \(0,1\)"):
            partitions(text)
    for text in ("", "-1", "0:", "0:1,2", "0:1:2"):
        with pytest.raises(ValueError, match="is not an offset"):
            offsets(text)


def test_ids_that_no_commit_can_hold_are_refused_before_anything_is_written(
    job: Any, url: str, tmp_path: Path
) -> None:
    log = lines_file(tmp_path, "access.log", LOG_LINES)
    arguments = ("--input", log, "--topic", url, "--create", "--app-id", "x" * 1001, "--batch-id", "1")
    ran = job("append", *arguments)
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1), ran.err
    assert "give app_id and batch_id together" in ran.err
    assert list(Path(url).glob("clicks-*/*")) == []


def test_one_line_of_a_stack_trace_is_shown() -> None:
    python = "Job aborted\nTraceback ...\ndistlog.core.errors.InvalidRecordError: bad row (row=3)\n\n\tat org.apache"
    assert reason(Exception(python)) == "InvalidRecordError: bad row (row=3)"
    raised = "boom [USER_RAISED_EXCEPTION] not a time: x SQLSTATE: P0001\n\tat a.b.C: d"
    assert reason(Exception(raised)) == "not a time: x"
    assert reason(KeyError()) == "KeyError"
    assert reason(ValueError("two\nlines")) == "two lines"
