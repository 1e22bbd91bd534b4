"""Fields of JSON objects and of CSV become keys, values and timestamps; lines without them are named."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed_lines import bad_lines, csv, objects, parsed, records, rows

from distlog.core.errors import InvalidRecordError
from distlog.core.files.file_reader import FileReader
from distlog.core.files.input_files import ReadOptions
from distlog.core.files.record_times import TimeReader
from distlog.core.files.table_rows import header_names
from distlog.core.storage.storage import InputStorage
from distlog.core.times import to_ms

CELLS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def test_fields_of_an_object_are_the_parts_of_a_record() -> None:
    lines = b'{"user": "ann", "at": "1431857103000", "n": {"x": 1}}\n{"user": 7, "at": 5}\r\n\n{"user": null}'
    parser = objects(key="user", timestamp="at")
    first, second, third = lines.replace(b"\n\n", b"\n").split(b"\n")
    assert rows(parsed(parser, lines)) == [
        {"timestamp": 1431857103000, "key": b"ann", "value": first},
        {"timestamp": 5, "key": b"7", "value": second.strip()},
        {"timestamp": None, "key": None, "value": third},
    ]
    values = [row["value"] for row in rows(parsed(objects(value="n"), lines))]
    assert values == [b'{"x": 1}', None, None]


@pytest.mark.parametrize(
    "number", ["1.10", "12345678901234567.89", "1e2", "1E400", "-0.0", "0.1000000000000000055", '[{"x": [1.50, 2]}]']
)
def test_numbers_keep_their_digits(number: str) -> None:
    parsed_block = parsed(objects(key="n", value="n"), f'{{"n": {number}}}'.encode())
    assert [(row["key"], row["value"]) for row in rows(parsed_block)] == [(number.encode(), number.encode())]


def test_lines_without_an_object_and_invalid_times_are_named() -> None:
    block = b'[1]\n{"at": 1}\n{"at": "soon"}\n{no'
    parsed_block = parsed(objects(timestamp="at"), block)
    assert bad_lines(parsed_block, block) == [(1, 0), (3, 1), (4, 1)]
    assert "the line must be an object" in parsed_block.bad[0].reason
    (true,) = parsed(objects(timestamp="at"), b'{"at": true}').bad
    assert "not a time" in true.reason


def test_a_row_of_csv_is_an_object_unless_a_field_is_the_value() -> None:
    text = 'id,na"me\r\n1,"a ""b"", c"\r\n2,\n'
    objects_in_csv = [json.loads(row["value"]) for row in rows(csv(text)[0])]
    assert objects_in_csv == [{"id": "1", 'na"me': 'a "b", c'}, {"id": "2", 'na"me': ""}]
    assert rows(csv(text, key="id", value='na"me')[0]) == [
        {"key": b"1", "value": b'a "b", c'},
        {"key": b"2", "value": b""},
    ]


def test_times_of_csv_are_milliseconds_or_iso_8601() -> None:
    assert [row["timestamp"] for row in rows(csv("at\n5\n-1\n", timestamp="at")[0])] == [5, -1]
    parsed_block, block = csv("at,x\n1970-01-01T00:00:01Z,\n7,\nsoon,\n,\n", timestamp="at", value="x")
    assert [row["timestamp"] for row in rows(parsed_block)] == [1000, 7, None]
    assert bad_lines(parsed_block, block) == [(3, 2)]


def test_lines_with_a_wrong_number_of_fields_are_skipped_and_named() -> None:
    parsed_block, block = csv('a,b\n1,2\n\n3\n4,5,6\n7,8\n"x"y,9', value="a")
    assert rows(parsed_block) == [{"value": b"1"}, {"value": b"7"}]
    assert bad_lines(parsed_block, block) == [(3, 1), (4, 1), (6, 2)]
    assert parsed_block.bad[0].reason == "the row has 1 fields, not 2"
    assert "text after the end of a quoted field" in parsed_block.bad[2].reason


@pytest.mark.parametrize("head", ["", "a,a", "\xff"])
def test_invalid_names_are_refused(head: str) -> None:
    with pytest.raises(InvalidRecordError, match="names of the fields"):
        header_names(head.encode("latin-1"))
    for head in ('a,"b\nc"\n1,2', "a\rb", '"a"b'):
        with pytest.raises(InvalidRecordError, match="names of the fields"):
            csv(head)
    with pytest.raises(InvalidRecordError, match="no column c; it has a, b"):
        csv("a,b\n1,2", key="c")


@given(st.lists(st.tuples(CELLS, CELLS), max_size=8))
def test_rows_of_pythons_csv_round_trip(cells: list[tuple[str, str]]) -> None:
    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"'

    text = "a,b\n" + "".join(f"{quoted(a)},{quoted(b)}\n" for a, b in cells)
    parsed_block, _ = csv(text.removesuffix("\n"), key="a", value="b")
    assert not parsed_block.bad
    assert rows(parsed_block) == [{"key": a.encode(), "value": b.encode()} for a, b in cells]


@pytest.mark.parametrize(("unit", "number"), [("s", 1_700_000_000), ("us", 1_700_000_000_000_999)])
def test_numbers_have_the_unit_of_the_command_line_in_every_format(unit: str, number: int, tmp_path: Path) -> None:
    lines = b'{"at": %d}' % number
    odd = b'{"at": "%d"}\n{"at": %d, "x": {}}\n{"at": "2023-11-14T22:13:20Z"}' % (number, number)
    pq.write_table(pa.table({"at": [number], "value": ["v"]}), tmp_path / "file.parquet")
    reader = FileReader(ReadOptions(timestamp="at", timestamp_unit=unit), InputStorage())
    parquet = reader.read(reader.splits(reader.files([str(tmp_path)])))
    blocks = [parsed(objects(unit, timestamp="at"), block) for block in (lines, odd)]
    blocks.append(csv(f"at\n{number}\n{number}", unit, timestamp="at")[0])
    # whole records, which Arrow reads, and records of two types, which it does not read
    records_of_types = [b'{"value": "v", "timestamp": %s}' % time for time in (b"%d" % number, b'"%d"' % number)]
    blocks += [parsed(records(unit), line) for line in (*records_of_types, b"\n".join(records_of_types))]
    assert not any(block.bad for block in blocks)
    tables = [part.records for part in parquet] + [block.records for block in blocks]
    assert [set(table["timestamp"].to_pylist()) for table in tables] == [{1_700_000_000_000}] * 7


def test_milliseconds_that_are_called_seconds_make_bad_lines() -> None:
    lines = parsed(objects("s", timestamp="at"), b'{"at": 1700000000000}')
    for parsed_block in (lines, csv("at\n1700000000000", "s", timestamp="at")[0]):
        assert "looks like milliseconds: give the unit, ms" in parsed_block.bad[0].reason


NOW = to_ms("2026-03-01T12:00:00Z")


def read(column: pa.Array, time_format: str | None = None, unit: str = "ms") -> list[int | None]:
    times = TimeReader(unit, time_format, NOW).of_column(column)
    assert not times.faults
    return times.column.to_pylist()  # type: ignore[no-any-return]


def faults(texts: list[str], time_format: str | None) -> dict[int, str]:
    return TimeReader("ms", time_format, NOW).of_column(pa.array(texts)).faults


@pytest.mark.parametrize(
    ("form", "text", "iso"),
    [
        ("%d/%m/%Y %H:%M:%S", "1/2/2024 3:04:05", "2024-02-01T03:04:05Z"),
        ("%d/%b/%Y:%H:%M:%S %z", "10/Oct/2000:13:55:36 -0700", "2000-10-10T20:55:36Z"),
        ("%d/%b/%Y:%H:%M:%S %z", "10/Oct/2000:13:55:36 Z", "2000-10-10T13:55:36Z"),
        ("%Y-%m-%d %H:%M:%S", "2024-02-01 03:04:05", "2024-02-01T03:04:05Z"),
        ("%Y%m%d", "20240201", "2024-02-01T00:00:00Z"),
        ("%Y-%m-%dT%H:%M:%S.%f", "2024-02-01T03:04:05.123999", "2024-02-01T03:04:05.123Z"),
        ("%d.%m.%y", "1.2.68", "2068-02-01T00:00:00Z"),
        ("%d.%m.%y", "1.2.70", "1970-02-01T00:00:00Z"),
        ("%b %d %H:%M:%S", "Feb  3 01:02:03", "2026-02-03T01:02:03Z"),
        ("%b %d %H:%M:%S", "Mar  2 11:00:00", "2026-03-02T11:00:00Z"),
        ("%b %d %H:%M:%S", "Mar  3 01:02:03", "2025-03-03T01:02:03Z"),
        ("%b %d", "Feb 29", "2024-02-29T00:00:00Z"),
        ("%b %d %H:%M %z", "Dec 31 23:00 +0100", "2025-12-31T22:00:00Z"),
    ],
)
def test_a_format_is_that_of_strptime(form: str, text: str, iso: str) -> None:
    assert read(pa.array([text, "", None, text]), form) == [to_ms(iso), None, None, to_ms(iso)]
    assert TimeReader("ms", form, NOW).of_value(text) == to_ms(iso)


def test_texts_of_another_format_are_not_times() -> None:
    assert list(faults(["2024-02-01 10:00", "2024-02-01 10:00 +0000"], "%Y-%m-%d %H:%M %z")) == [0]
    assert list(faults(["Feb 30", "Feb 29", "x"], "%b %d")) == [0, 2]
    assert "before 1970" in faults(["1969"], "%Y")[0]
    assert "before 1970" in faults(["1.1.69"], "%d.%m.%y")[0]


def test_times_without_a_zone_are_utc_in_every_type() -> None:
    moment, ms = datetime(2024, 7, 1, 12), to_ms("2024-07-01T12:00:00Z")
    assert read(pa.array([moment, None])) == [ms, None]
    assert read(pa.array([moment.replace(tzinfo=timezone.utc)], pa.timestamp("us", "Europe/Berlin"))) == [ms]
    assert read(pa.array(["2024-07-01T12:00:00", "2024-07-01T14:00:00+02:00"])) == [ms, ms]
    assert read(pa.array([date(2024, 7, 1)])) == [to_ms("2024-07-01T00:00:00Z")]
    assert read(pa.array([ms // 1000, None]), unit="s") == [ms, None]
    assert read(pa.array([str(ms), str(ms)]).dictionary_encode()) == [ms, ms]


def test_fractions_of_a_millisecond_are_dropped() -> None:
    assert read(pa.array(["1970-01-01T00:00:00.001999Z", None])) == [1, None]
    assert read(pa.array([1_999_999], pa.timestamp("ns"))) == [1]
