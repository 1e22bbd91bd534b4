"""The jobs: what they take, do, print and return."""

from __future__ import annotations

import base64
import json
import runpy
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from submitted import JOBS, NO_TOPIC, Ran

import distlog
from distlog.console.arguments import offsets, partitions
from distlog.core.errors import InvalidConfigError
from distlog.spark.jobs.job import reason
from distlog.spark.jobs.job_inputs import Input, java_pattern
from distlog.spark.jobs.time_format import spark_pattern

pytestmark = pytest.mark.spark

LOG_LINES = [
    '10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /a" 200',
    '10.0.0.2 - - [17/May/2015:12:05:43 +0200] "GET /b" 404',
    '10.0.0.1 - - [17/May/2015:10:05:47 +0000] "GET /c" 200',
]
PATTERN = r"^(?P<key>\S+) \S+ \S+ \[(?P<timestamp>[^]]+)\]"
TIME_FORMAT = "%d/%b/%Y:%H:%M:%S %z"


@pytest.fixture
def job(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a job by its name and arguments in this process."""
    assert spark

    def run(name: str, *given: object) -> Ran:
        module = runpy.run_path(str(JOBS / f"{name}.py"))
        capfd.readouterr()
        status = module["main"]([str(each) for each in given])
        return Ran(status, *capfd.readouterr())

    return run


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "clicks")


def lines_file(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def records(url: str, **options: Any) -> list[tuple[Any, Any, Any]]:
    """(key, value, time in ms) of all records, in order of partition and offset."""
    table = distlog.open(url, **options).scan().to_table()
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), times, strict=True))


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp() * 1000)


def test_lines_of_a_web_server_become_records(job: Any, url: str, tmp_path: Path) -> None:
    log = lines_file(tmp_path, "access.log", LOG_LINES)
    ran = job(
        *("append", "--input", log, "--topic", url, "--create", "--partitions", 3, "--config", "batch.bytes=99"),
        *("--pattern", PATTERN, "--time-format", TIME_FORMAT, "--json"),
    )
    assert (ran.status, ran.err) == (0, "")
    seconds = ran.facts.pop("seconds")
    topic = distlog.open(url)
    assert ran.facts == {
        "topic": url,
        "version": 1,
        "records": 3,
        "offsets": {str(number): [0, end] for number, end in topic.end_offsets().items() if end},
        "replayed": False,
        "skipped": 0,
        "expired": 3,
        "seconds": seconds,
    }
    assert topic.partitions == 3
    assert topic.config.batch_bytes == 99
    at = [ms("2015-05-17 10:05:03"), ms("2015-05-17 10:05:43"), ms("2015-05-17 10:05:47")]
    keys = [b"10.0.0.1", b"10.0.0.2", b"10.0.0.1"]
    expected = [(key, line.encode(), time) for key, line, time in zip(keys, LOG_LINES, at, strict=True)]
    assert sorted(records(url)) == sorted(expected)


def rows(spark: SparkSession, path: Path, **given: Any) -> list[tuple[Any, Any, Any, str | None]]:
    """(key, value, time in ms, what is wrong) of what is in a file; a part that the rows do not have is None."""
    df = Input(paths=[str(path)], **given).rows(spark)
    if "timestamp" in df.columns:
        df = df.withColumn("timestamp", F.unix_millis("timestamp"))
    found = [row.asDict() for row in df.collect()]
    return [tuple(row.get(name) for name in ("key", "value", "timestamp", "bad")) for row in found]  # type: ignore[misc]


def test_lines_are_kept_byte_by_byte(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"a=1 caf\xe9\n\nb=2 \xff\xfe\n")
    assert [row[1] for row in rows(spark, log)] == [b"a=1 caf\xe9", b"", b"b=2 \xff\xfe"]


def test_groups_of_a_pattern_are_key_value_and_time(spark: SparkSession, tmp_path: Path) -> None:
    log = lines_file(tmp_path, "app.log", ["a=1 @5", "=2 @2015-05-17", "a:3 @6", "a=4 @soon"])
    pattern = r"^(?P<key>\w*)=(?P<value>\d) @(?P<timestamp>.+)"
    assert rows(spark, log, pattern=pattern) == [
        (b"a", b"1", 5, None),
        (None, b"2", ms("2015-05-17"), None),
        (None, None, None, "the pattern does not match: a:3 @6"),
        (b"a", b"4", None, "not a time: soon"),
    ]


def test_json_lines_are_values_and_their_fields_keys_and_times(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        '{"user": "ann", "at": 1431857103000, "n": {"x": 1}}',
        '{"user": 7, "at": "2015-05-17T10:05:04Z", "n": null}',
        "",
        '{"at": "2015-05-17 10:05:05"}',
        '{"at": "soon"}',
        "[7]",
        '{"at": ',
    ]
    path = lines_file(tmp_path, "events.jsonl", lines)
    found = rows(spark, path, key="user", timestamp="at")
    assert found[:3] == [
        (b"ann", lines[0].encode(), 1431857103000, None),
        (b"7", lines[1].encode(), 1431857104000, None),
        (None, lines[3].encode(), 1431857105000, None),
    ]
    assert [row[3] for row in found[3:]] == [
        "not a time: soon",
        *(f"not a JSON object: {line}" for line in lines[5:]),
    ]
    assert [row[1] for row in rows(spark, path, value="n")[:3]] == [b'{"x":1}', None, None]


def test_rows_of_csv_are_values_and_their_columns_keys_and_times(spark: SparkSession, tmp_path: Path) -> None:
    path = lines_file(
        tmp_path, "events.csv", ["id,name,at", '1,"a, b",17.05.2015', "2,c,18.05.2015", "3,d", "4,e,5,6"]
    )
    found = rows(spark, path, key="id", timestamp="at", time_format="%d.%m.%Y")
    assert found[:2] == [
        (b"1", b'{"id":"1","name":"a, b","at":"17.05.2015"}', ms("2015-05-17"), None),
        (b"2", b'{"id":"2","name":"c","at":"18.05.2015"}', ms("2015-05-18"), None),
    ]
    bad = [row[3] for row in rows(spark, path, value="name")]
    assert bad == [None, None, *(f"not a row of the header's columns: {line}" for line in ("3,d", "4,e,5,6"))]
    with pytest.raises(InvalidConfigError, match="the input has no column ID2; it has id, name, at"):
        rows(spark, path, key="ID2")


def test_rows_of_parquet_have_types(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    times = pa.array([1000, 2000], pa.timestamp("ms", "UTC"))
    table = pa.table({"id": [1, 2], "body": [b"\xff\x00", None], "at": times, "tags": [["a"], []], "ms": [5, 6]})
    pq.write_table(table, path)
    assert rows(spark, path, key="id", value="body", timestamp="at") == [
        (b"1", b"\xff\x00", 1000, None),
        (b"2", None, 2000, None),
    ]
    (key, value, time, _) = rows(spark, path, key="tags", timestamp="ms")[0]
    assert (key, time) == (b'["a"]', 5)
    assert json.loads(value) == {
        "id": 1,
        "body": base64.b64encode(b"\xff\x00").decode(),
        "at": "1970-01-01T00:00:01.000Z",
        "tags": ["a"],
        "ms": 5,
    }


def test_a_bad_line_fails_the_job_or_is_counted(job: Any, url: str, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "a.log", [LOG_LINES[0], "garbage", *LOG_LINES[1:]])
    topic = distlog.create(url)
    given = ("append", "--input", path, "--topic", url, "--pattern", PATTERN, "--time-format", TIME_FORMAT)
    failed = job(*given)
    assert (failed.status, failed.out) == (1, "")
    shown = "the pattern does not match: garbage (--bad-lines skip leaves such lines out)"
    assert failed.err == f"append.py: {shown}\n"
    assert topic.refresh().version == 0
    skipped = job(*given, "--bad-lines", "skip", "--json")
    assert (skipped.facts["records"], skipped.facts["skipped"]) == (3, 1)
    assert "left out 1 bad line" in job(*given, "--bad-lines", "skip").out


def test_a_job_that_is_repeated_appends_once(job: Any, url: str, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "a.txt", ["x", "y"])
    given = ("append", "--input", path, "--topic", url, "--create", "--app-id", "nightly", "--batch-id", "2015-05-17")
    first, again = (job(*given, "--json").facts for _ in range(2))
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert first["offsets"] == again["offsets"] == {"0": [0, 2]}
    assert "had appended 2 records" in job(*given).out
    assert len(records(url)) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--pattern", "("), "the pattern is not a regular expression"),
        (("--pattern", "(a)"), "the pattern needs a group named key, value or timestamp"),
        (("--pattern", "(?P<timestamp>.*)", "--time-format", "%Q"), "a time format cannot have %Q"),
        (("--format", "csv", "--pattern", "(?P<key>.)"), "--pattern needs --format text"),
        (("--key", "user"), "text has no columns"),
        (("--format", "xml"), "invalid choice: 'xml'"),
        (("--config", "retention.ms"), "write NAME=VALUE"),
        (("--create", "--partitions", "2", "--config", "retention=5"), "unknown setting retention"),
        (("--app-id", "x"), "give --app-id and --batch-id together"),
    ],
)
def test_a_wrong_command_line_is_status_2(
    job: Any, url: str, tmp_path: Path, given: tuple[str, ...], message: str
) -> None:
    if "--create" not in given:
        distlog.create(url)
    ran = job("append", "--input", lines_file(tmp_path, "a.txt", ["x"]), "--topic", url, *given)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err


def test_a_topic_that_exists_is_created_with_the_same_partitions_only(job: Any, url: str, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "a.txt", ["x"])
    distlog.create(url, partitions=3)
    assert job("append", "--input", path, "--topic", url, "--create").status == 0
    ran = job("append", "--input", path, "--topic", url, "--create", "--partitions", 2)
    assert (ran.status, "partitions=3 asked=2" in ran.err) == (2, True)


def test_a_failure_is_status_1_and_one_line(job: Any, url: str, tmp_path: Path) -> None:
    ran = job("append", "--input", tmp_path / "nothing.txt", "--topic", url, "--create")
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "nothing.txt" in ran.err
    ran = job("append", "--input", lines_file(tmp_path, "a.txt", ["x"]), "--topic", url + "-not")
    assert (ran.status, ran.err) == (1, f"append.py: {NO_TOPIC} (url={url}-not)\n")


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
    first, second, facts = (json.loads(line) for line in ran.out.splitlines())
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
    assert {**facts, "seconds": 0} == {"topic": filled, "records": 2, "output": None, "seconds": 0}


def test_read_writes_files(job: Any, filled: str, tmp_path: Path) -> None:
    since, until = "2015-05-17T00:00:10Z", str(ms("2015-05-17 00:00:20"))
    given = ("--since", since, "--until", until, "--partitions", "1")
    ran = job("read", "--topic", filled, *given, "--output", tmp_path / "out", "--json")
    assert (ran.facts["records"], ran.facts["output"]) == (5, str(tmp_path / "out"))
    table = pq.read_table(tmp_path / "out")
    assert sorted(table["offset"].to_pylist()) == [5, 6, 7, 8, 9]
    assert table.schema.field("value").type == pa.binary()
    ran = job("read", "--topic", filled, "--output", tmp_path / "json", "--format", "json", "--limit", 3)
    assert ran.status == 0
    rows = [json.loads(line) for part in (tmp_path / "json").glob("*.txt") for line in part.open()]
    assert [row["value"] for row in rows] == ["[v0]", "[v2]", "[v4]"]


def test_read_takes_times_for_those_of_records_and_counts_what_it_gave(job: Any, url: str, tmp_path: Path) -> None:
    topic = distlog.create(url)
    for day in ("2025-10-02", "2025-10-03", "2025-09-30", "2025-10-01"):
        topic.append([{"value": day.encode(), "timestamp": ms(day) + 80_000 * number} for number in range(1000)])
    october = ("--topic", url, "--since", "2025-10-01")
    ran = job("read", *october, "--until", "2025-10-02", "--output", tmp_path / "day", "--json")
    assert ran.facts["records"] == 1000
    assert set(pq.read_table(tmp_path / "day")["value"].to_pylist()) == {b"2025-10-01"}
    assert job("read", *october, "--output", tmp_path / "october", "--json").facts["records"] == 3000
    assert b"2025-09-30" not in pq.read_table(tmp_path / "october")["value"].to_pylist()
    ran = job("read", *october, "--until", "2025-10-02", "--limit", 7, "--json")
    assert [json.loads(line)["value"] for line in ran.out.splitlines()[:-1]] == ["2025-10-01"] * 7
    assert ran.facts["records"] == 7


def test_read_refuses_a_wrong_command_line(job: Any, filled: str) -> None:
    for given in (
        ("--start", "x"),
        ("--start", "1", "--since", "5"),
        ("--since", "soon"),
        ("--until", "-5"),
        ("--partitions", "a"),
        ("--format", "json"),
    ):
        assert job("read", "--topic", filled, *given).status == 2
    lost = job("read", "--topic", filled, "--start", 99)
    assert (lost.status, "log_end_offset=25" in lost.err) == (1, True)


def test_arguments_are_parsed() -> None:
    assert partitions("0,3") == [0, 3]
    assert offsets("7") == 7
    assert offsets("0:7,12:0") == {0: 7, 12: 0}
    for text in ("", "-1", "1,x", "1;2"):
        with pytest.raises(ValueError, match="is not a list of partitions like 0,1"):
            partitions(text)
    for text in ("", "-1", "0:", "0:1,2", "0:1:2"):
        with pytest.raises(ValueError, match="neither an offset like 10 nor"):
            offsets(text)


def test_time_formats_become_sparks() -> None:
    assert spark_pattern("%d/%b/%Y:%H:%M:%S %z") == "dd/MMM/yyyy:HH:mm:ss [XXX][XX]"
    assert spark_pattern("%FT%T.%fZ") == "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
    assert spark_pattern("it's %Y%%") == "'it''s 'yyyy%"
    for wrong in ("%", "%Y%", "%Q", "%a %d"):
        with pytest.raises(ValueError, match="%"):
            spark_pattern(wrong)


def test_patterns_become_javas() -> None:
    assert java_pattern(r"(?P<a_b>x)(y)(?P<key>\S+)(?P=a_b)\(?P<") == (r"(x)(y)(\S+)\1\(?P<", {"key": 3})
    with pytest.raises(InvalidConfigError, match="needs a group"):
        java_pattern("(?P<other>x)")


def test_ids_that_no_commit_can_hold_are_refused_before_anything_is_written(
    job: Any, url: str, tmp_path: Path
) -> None:
    log = lines_file(tmp_path, "access.log", LOG_LINES)
    given = ("--input", log, "--topic", url, "--create", "--app-id", "x" * 1001, "--batch-id", "1")
    ran = job("append", *given)
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1), ran.err
    assert "give app_id and batch_id together" in ran.err
    assert list(Path(url).glob("clicks-*/*")) == []


def test_of_a_stack_trace_one_line_is_shown() -> None:
    python = "Job aborted\nTraceback ...\ndistlog.core.errors.InvalidRecordError: bad row (row=3)\n\n\tat org.apache"
    assert reason(Exception(python)) == "InvalidRecordError: bad row (row=3)"
    raised = "boom [USER_RAISED_EXCEPTION] not a time: x SQLSTATE: P0001\n\tat a.b.C: d"
    assert reason(Exception(raised)) == "not a time: x"
    assert reason(KeyError()) == "KeyError"
    assert reason(ValueError("two\nlines")) == "two lines"


def test_a_limit_is_planned_as_offsets_so_no_task_is_cut_off(job: Any, url: str) -> None:
    topic = distlog.create(url, 3)
    for partition in range(3):
        topic.append([{"value": b"%d" % number} for number in range(10)], partition=partition)
    ran = job("read", "--topic", url, "--limit", 14, "--json")
    assert (ran.status, ran.facts["records"], ran.out.count("\n")) == (0, 14, 15)
    assert job("read", "--topic", url, "--limit", 0, "--json").facts["records"] == 0
    assert job("read", "--topic", url, "--limit", -1).status == 2
