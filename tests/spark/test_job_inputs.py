"""What the job that appends makes of files: lines, patterns, JSON, CSV and Parquet."""

from __future__ import annotations

import base64
import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_runs import lines_file, ms, rows
from pyspark.sql import SparkSession

from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.spark.jobs.append_job import NO_TIME, JobInput, check_lines, java_pattern
from distlog.spark.jobs.job import reason, spark_pattern

pytestmark = pytest.mark.spark


def test_lines_are_kept_byte_by_byte(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"a=1 caf\xe9\n\nb=2 \xff\xfe\n")
    assert [row[1] for row in rows(spark, log)] == [b"a=1 caf\xe9", b"", b"b=2 \xff\xfe"]


def test_groups_of_a_pattern_are_key_value_and_time(spark: SparkSession, tmp_path: Path) -> None:
    log = lines_file(tmp_path, "app.log", ["a=1 @5", "=2 @2015-05-17", "a:3 @6", "a=4 @soon", "b= @7"])
    pattern = r"^(?P<key>\w*)=(?P<value>\d?) @(?P<timestamp>.+)"
    assert rows(spark, log, pattern=pattern) == [
        (b"a", b"1", 5, None),
        (None, b"2", ms("2015-05-17"), None),
        (None, None, None, "the pattern does not match: a:3 @6"),
        (b"a", b"4", None, f"{NO_TIME}: soon"),
        (b"b", b"", 7, None),
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
        f"{NO_TIME}: soon",
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
    with pytest.raises(InvalidRecordError, match="the input has no column ID2; it has id, name, at"):
        rows(spark, path, key="ID2")


def test_columns_of_csv_have_the_same_names_in_all_files(spark: SparkSession, tmp_path: Path) -> None:
    first, second = lines_file(tmp_path, "a.csv", ["k,v", "1,a"]), lines_file(tmp_path, "b.csv", ["v,k", "b,2"])
    source = JobInput(paths=[str(first), str(second)], key="k", value="v")
    with pytest.raises(Exception, match=r"b\.csv") as raised:
        source.rows(spark).collect()
    assert "b.csv" in reason(raised.value)
    assert "CSV header does not conform" in reason(raised.value)
    assert "\tat " not in reason(raised.value)
    for head in ("k,k", ",,"):
        with pytest.raises(InvalidRecordError, match="names of the columns, each once"):
            rows(spark, lines_file(tmp_path, "c.csv", [head, "1,2"]))
    odd = lines_file(tmp_path, "d.csv", ["k,K,_corrupt_record,bad", "1,2,3,4"])
    assert rows(spark, odd, key="K") == [(b"2", b'{"k":"1","K":"2","_corrupt_record":"3","bad":"4"}', None, None)]
    for lines in ([], ["k,v"]):
        assert rows(spark, lines_file(tmp_path, "e.csv", lines)) == []


def test_no_line_of_a_quoted_field_with_line_ends_becomes_a_row(spark: SparkSession, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "a.csv", ["k,v", '1,"x', '2,y"', "3,z"])
    for skip in (False, True):
        with pytest.raises(Exception, match="a quoted field must end on its line"):
            check_lines(JobInput(paths=[str(path)]).rows(spark), skip=skip).rows.collect()


def test_what_spark_would_change_in_csv_is_bad(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'k,v\n1,"a"b\n2,\xff\n\0x,1\n3,5" x\n4,"' + b'""' * 20_000 + b'"')
    found = rows(spark, path, key="k", value="v")
    text, no_text, *others = (row[3] for row in found)
    assert text == 'there is text behind the end of a quoted field: 1,"a"b'
    assert no_text == "not UTF-8: 2,\ufffd"
    assert [row[:2] for row in found[2:]] == [(b"\0x", b"1"), (b"3", b'5" x'), (b"4", b'"' * 20_000)]
    assert others == [None] * 3


def test_numbers_of_json_are_keys_and_values_as_they_were_written(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["1.10", "12345678901234567.89", "1e400", "-0.0", "1.5", "2E-7", "9007199254740993"]
    lines = [f'{{"k": {text}, "v":{text}}}' for text in texts] + [
        '{"k":"1.10","v":"1e2"}',
        '{"a":{"k":2.50},"k":7.5}',
    ]
    found = rows(spark, lines_file(tmp_path, "a.jsonl", lines), key="k", value="v")
    assert [row[0] for row in found] == [text.encode() for text in (*texts, "1.10", "7.5")]
    assert [row[1] for row in found[:-1]] == [text.encode() for text in (*texts, "1e2")]
    hidden = lines_file(tmp_path, "b.jsonl", ['{"\\u006b": 1.10}'])
    assert "a number would become another one" in str(rows(spark, hidden, key="k")[0][3])


def test_an_object_as_a_key_or_value_loses_no_digit(spark: SparkSession, tmp_path: Path) -> None:
    kept = [
        '{"x":1.5,"y":12345678901234567890}',
        '[0.30000000000000004,"12345678901234567.89"]',
        '{"s":"1e400","z":0.0}',
        r'["pi\" is 3.14159265358979323846",3.14]',
    ]
    lost = ['{"x":12345678901234567.89}', '["3.14",3.14159265358979323846]', "[1e400]", '{"a":[{"x":1e-400}]}']
    lines = [f'{{"k": {text}, "v":{text}, "other": 0.12345678901234567891}}' for text in (*kept, *lost)]
    found = rows(spark, lines_file(tmp_path, "a.jsonl", lines), key="k", value="v")
    assert [row[:2] for row in found[:4]] == [(text.encode(), text.encode()) for text in kept]
    told = [str(row[3]) for row in found]
    assert ["a number would become another one" in text for text in told] == [False] * 4 + [True] * 4


@pytest.mark.parametrize(
    "line", ['{"k":"a"}{"k":"b"}', '{"k":"a"} x', '{"k":"a"},{"k":"b"}', '{"k":"a"}]', "{'k':'a'}"]
)
def test_a_line_of_json_is_one_object_and_nothing_else(spark: SparkSession, tmp_path: Path, line: str) -> None:
    assert rows(spark, lines_file(tmp_path, "a.jsonl", [line]), key="k")[0][3] == f"not a JSON object: {line}"


def test_text_of_json_that_is_none_is_bad(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"k":"\xff"}\n')
    assert "not a JSON object" in str(rows(spark, path, key="k")[0][3])
    path = tmp_path / "a.log"
    path.write_bytes(b"a=\xff\n")
    assert rows(spark, path, pattern="(?P<key>.*)=(?P<value>.*)")[0][3] == "not UTF-8: a=\ufffd"
    assert rows(spark, path, pattern="(?P<key>.*)=") == [(b"a", b"a=\xff", None, None)]


def test_numbers_that_json_has_not_are_taken_in_lines_but_not_as_keys(spark: SparkSession, tmp_path: Path) -> None:
    lines = ['{"x": 1}', '{"k":"a", "x": NaN}', " \t", '{"k":NaN}', '{"k":-Infinity}', '{"k":"NaN"}']
    found = rows(spark, lines_file(tmp_path, "a.jsonl", lines), key="k")
    assert [row[0] for row in found if row[3] is None] == [None, b"a", b"NaN"]
    assert found[1][1] == lines[1].encode()
    assert all("a number would become another one" in str(row[3]) for row in found[2:4])
    assert rows(spark, lines_file(tmp_path, "b.jsonl", lines[:2]), key="k")[1][0] == b"a"


def test_text_with_the_character_for_lost_ones_is_text(spark: SparkSession, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "a.csv", ["é\ufffd,v", "ü,a\ufffd€"])
    assert rows(spark, path, key="é\ufffd", value="v") == [("ü".encode(), "a\ufffd€".encode(), None, None)]


def test_a_field_that_no_line_of_json_has_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "a.jsonl", ['{"user":null}', '{"at":5}', "x"])
    assert [row[0] for row in rows(spark, path, key="user")][:2] == [None, None]
    assert [row[2] for row in rows(spark, path, timestamp="at")][:2] == [None, 5]
    with pytest.raises(InvalidRecordError, match="no line has a field usr; the first has user"):
        rows(spark, path, key="usr")
    assert rows(spark, lines_file(tmp_path, "b.jsonl", []), key="usr") == []


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
        "at": "1970-01-01T00:00:01.000000Z",
        "tags": ["a"],
        "ms": 5,
    }


def test_a_row_of_parquet_as_json_has_all_of_it(spark: SparkSession, tmp_path: Path) -> None:
    path, moment = tmp_path / "events.parquet", 1_700_000_000_123_456
    columns = {"zoned": pa.timestamp("us", "UTC"), "local": pa.timestamp("us")}
    pq.write_table(pa.table({name: pa.array([moment, None], kind) for name, kind in columns.items()}), path)
    assert [json.loads(row[1]) for row in rows(spark, path)] == [
        {"zoned": "2023-11-14T22:13:20.123456Z", "local": "2023-11-14T22:13:20.123456"},
        {"zoned": None, "local": None},
    ]


CELLS = ["plain", 'a "b" c', "C:\\new", "ends with \\", "a, b", " kept ", "", '"', 'x\\"y', '""', "null", "1.10"]


def test_every_row_that_python_writes_is_read_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id", 'the "name"'], *([cell, cell] for cell in CELLS)])
    assert [row[:2] for row in rows(spark, path, key="id", value='the "name"')] == [
        (cell.encode(), cell.encode()) for cell in CELLS
    ]
    assert [json.loads(row[1]) for row in rows(spark, path)] == [{"id": cell, 'the "name"': cell} for cell in CELLS]


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


@pytest.mark.parametrize(("unit", "number"), [("s", 1_700_000_000), ("us", 1_700_000_000_000_999)])
def test_numbers_count_the_unit_of_the_command_line(
    spark: SparkSession, unit: str, number: int, tmp_path: Path
) -> None:
    lines = lines_file(tmp_path, "in.jsonl", [f'{{"at": {number}}}', '{"at": -1}', '{"at": "2023-11-14T22:13:20Z"}'])
    source = JobInput(paths=[str(lines)], timestamp="at", timestamp_unit=unit)
    found = source.rows(spark).selectExpr("unix_millis(timestamp) AS ms", "bad").collect()
    assert [(row["ms"], row["bad"]) for row in found] == [
        (1_700_000_000_000, None),
        (-1, None),
        (1_700_000_000_000, None),
    ]


def test_a_line_is_read_once_for_all_that_is_taken_out_of_it(spark: SparkSession, tmp_path: Path) -> None:
    for name, reads in (("events.csv", "from_csv("), ("events.jsonl", "from_json(")):
        path = lines_file(
            tmp_path, name, ["user,at", "ann,1"] if name.endswith("csv") else ['{"user": "ann", "at": 1}']
        )
        made = JobInput(paths=[str(path)], key="user", timestamp="at").rows(spark)
        assert made._jdf.queryExecution().optimizedPlan().toString().count(reads) == 1
