"""Fields of JSON objects and of CSV become keys, values and timestamps; lines that have none are named."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.cli.input import Format, Input
from distlog.cli.line_formats import CsvRows, Fields, Parsed, json_fields, jsonl_format
from distlog.core.errors import InvalidRecordError

CELLS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def rows(parsed: Parsed) -> list[dict[str, object]]:
    return parsed.records.to_pylist()


def csv(text: str, **fields: str) -> Parsed:
    return CsvRows(Fields(**fields)).parse(text.encode(), 0)


def bad(parsed: Parsed) -> list[tuple[int, int, str]]:
    return [(each.line, each.records_before, each.reason) for each in parsed.bad]


def test_fields_of_an_object_are_the_parts_of_a_record() -> None:
    lines = b'{"user": "ann", "at": "1431857103000", "n": {"x": 1}}\n{"user": 7, "at": 5}\r\n\n{"user": null}'
    parse = json_fields(Fields(key="user", timestamp="at"))
    first, second, third = lines.replace(b"\n\n", b"\n").split(b"\n")
    assert rows(parse(lines, 0)) == [
        {"timestamp": 1431857103000, "key": b"ann", "value": first},
        {"timestamp": 5, "key": b"7", "value": second.strip()},
        {"timestamp": None, "key": None, "value": third},
    ]
    values = [row["value"] for row in rows(json_fields(Fields(value="n"))(lines, 0))]
    assert values == [b'{"x": 1}', None, None]


@pytest.mark.parametrize(
    "number", ["1.10", "12345678901234567.89", "1e2", "1E400", "-0.0", "0.1000000000000000055", '[{"x": [1.50, 2]}]']
)
def test_numbers_stay_as_they_were_written(number: str) -> None:
    parsed = json_fields(Fields(key="n", value="n"))(f'{{"n": {number}}}'.encode(), 0)
    assert [(row["key"], row["value"]) for row in rows(parsed)] == [(number.encode(), number.encode())]


def test_lines_that_are_no_objects_and_times_that_are_none_are_named() -> None:
    parsed = json_fields(Fields(timestamp="at"))(b'[1]\n{"at": 1}\n{"at": "soon"}\n{no', 9)
    assert [(each[0], each[1]) for each in bad(parsed)] == [(10, 0), (12, 1), (13, 1)]
    assert "it must be an object" in parsed.bad[0].reason
    (true,) = json_fields(Fields(timestamp="at"))(b'{"at": true}', 0).bad
    assert "from 0 on, -1 for none, or null, not True" in true.reason


def test_a_row_of_csv_is_an_object_unless_a_field_is_the_value() -> None:
    text = 'id,na"me\r\n1,"a ""b"", c"\r\n2,\n'
    found = [json.loads(str(row["value"])) for row in rows(csv(text))]
    assert found == [{"id": "1", 'na"me': 'a "b", c'}, {"id": "2", 'na"me': ""}]
    assert rows(csv(text, key="id", value='na"me')) == [
        {"key": b"1", "value": b'a "b", c'},
        {"key": b"2", "value": b""},
    ]


def test_times_of_csv_are_milliseconds_or_iso_8601() -> None:
    assert [row["timestamp"] for row in rows(csv("at\n5\n-1\n", timestamp="at"))] == [5, -1]
    parsed = csv("at,x\n1970-01-01T00:00:01Z,\n7,\nsoon,\n,\n", timestamp="at", value="x")
    assert [row["timestamp"] for row in rows(parsed)] == [1000, 7, None]
    assert bad(parsed) == [(4, 2, parsed.bad[0].reason)]


def test_lines_with_other_fields_than_the_names_are_left_out_and_named_by_their_number() -> None:
    parsed = csv('a,b\n1,2\n\n3\n4,5,6\n7,8\n"x"y,9', value="a")
    assert rows(parsed) == [{"value": b"1"}, {"value": b"7"}]
    assert [each[:2] for each in bad(parsed)] == [(4, 1), (5, 1), (7, 2)]
    assert parsed.bad[0].reason == "the row has 1 fields, not 2"
    assert "text behind the end of a quoted field" in parsed.bad[2].reason


def test_the_names_stand_in_the_first_block_alone() -> None:
    parse = CsvRows(Fields(value="a")).parse
    assert rows(parse("\ufeffa\nx".encode(), 0)) == [{"value": b"x"}]
    assert rows(parse(b"y\na", 2)) == [{"value": b"y"}, {"value": b"a"}]


@pytest.mark.parametrize("head", ["", "a,a", "\xff"])
def test_names_that_are_none_are_refused(head: str) -> None:
    with pytest.raises(InvalidRecordError, match="names of the fields"):
        CsvRows(Fields()).parse(head.encode("latin-1"), 0)
    for head in ('a,"b\nc"\n1,2', "a\rb", '"a"b'):
        with pytest.raises(InvalidRecordError, match="names of the fields"):
            csv(head)
    with pytest.raises(InvalidRecordError, match="no field c; it has a, b"):
        csv("a,b\n1,2", key="c")


@given(st.lists(st.tuples(CELLS, CELLS), max_size=8))
def test_every_row_that_python_writes_is_read_as_it_was(cells: list[tuple[str, str]]) -> None:
    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"'

    text = "a,b\n" + "".join(f"{quoted(a)},{quoted(b)}\n" for a, b in cells)
    parsed = csv(text.removesuffix("\n"), key="a", value="b")
    assert not parsed.bad
    assert rows(parsed) == [{"key": a.encode(), "value": b.encode()} for a, b in cells]


@pytest.mark.parametrize(("unit", "number"), [("s", 1_700_000_000), ("us", 1_700_000_000_000_999)])
def test_numbers_count_the_unit_of_the_command_line_in_every_format(unit: str, number: int, tmp_path: Path) -> None:
    fields = Fields(timestamp="at", timestamp_unit=unit)
    lines = b'{"at": %d}' % number
    odd = b'{"at": "%d"}\n{"at": %d, "x": {}}\n{"at": "2023-11-14T22:13:20Z"}' % (number, number)
    text = b"at\n%d\n%d" % (number, number)
    pq.write_table(pa.table({"at": [number], "value": ["v"]}), tmp_path / "file.parquet")
    parquet = Input(Format.PARQUET, fields).parts(str(tmp_path / "file.parquet"), lambda: None)
    found = [json_fields(fields)(lines, 0), json_fields(fields)(odd, 0), CsvRows(fields).parse(text, 0)]
    found += [part.parsed for part in parquet if part]
    # whole records, as Arrow reads them, and of two types, which it does not read
    whole = [b'{"value": "v", "timestamp": %s}' % time for time in (b"%d" % number, b'"%d"' % number)]
    found += [jsonl_format(unit)(line, 0) for line in (*whole, b"\n".join(whole))]
    assert [set(one.records["timestamp"].to_pylist()) for one in found] == [{1_700_000_000_000}] * 7
    assert not any(one.bad for one in found)


def test_milliseconds_that_are_called_seconds_make_bad_lines() -> None:
    fields = Fields(timestamp="at", timestamp_unit="s")
    for parsed in (json_fields(fields)(b'{"at": 1700000000000}', 0), CsvRows(fields).parse(b"at\n1700000000000", 0)):
        assert "looks like milliseconds: give the unit, ms" in parsed.bad[0].reason
