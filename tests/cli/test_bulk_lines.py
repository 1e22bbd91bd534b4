"""Blocks of lines are read by Arrow, as line by line: the same records, the same bad lines, no object per record."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.cli import line_formats
from distlog.cli.line_formats import Fields, LineFormat, Parsed, json_fields, jsonl_format, times_of

FORMATS: dict[str, Callable[[], LineFormat]] = {
    "records": jsonl_format,
    "seconds": lambda: jsonl_format("s"),
    "key": lambda: json_fields(Fields(key="k")),
    "all": lambda: json_fields(Fields("k", "v", "t")),
}


@contextmanager
def line_by_line(is_allowed: bool) -> Iterator[None]:
    """Only line by line, or never."""

    def refused(*_: object) -> Any:
        raise AssertionError("the lines are looked at one by one")

    with pytest.MonkeyPatch.context() as patch:
        if is_allowed:
            patch.setattr(line_formats, "_records_in_bulk", lambda *_: None)
            patch.setattr(line_formats, "_objects_in_bulk", lambda *_: None)
        else:
            patch.setattr(line_formats, "parsed_one_by_one", refused)
        yield


def facts(parsed: Parsed) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    return parsed.records.to_pylist(), [(bad.line, bad.records_before) for bad in parsed.bad]


def same_both_ways(name: str, block: bytes) -> Parsed:
    """What both ways make of a block."""
    parsed = FORMATS[name]()(block, 10)
    with line_by_line(is_allowed=True):
        other = FORMATS[name]()(block, 10)
    assert facts(parsed) == facts(other), block
    names = parsed.records.schema.names
    assert parsed.records.schema.equals(other.records.select(names).schema)
    return parsed


def lines(*objects: object) -> bytes:
    return "\n".join(json.dumps(each) for each in objects).encode()


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("records", lines({"value": "a", "key": None, "timestamp": 5}, {"value": "é", "headers": []})),
        ("records", lines({"value": "a", "headers": [{"key": "h", "value": "1"}], "offset": 4, "topic": "t"})),
        (
            "records",
            lines({"value": "a", "timestamp": "2020-01-01T00:00:00.25Z", "partition": 3, "timestampType": 1}),
        ),
        ("records", lines({"value": None, "key": "deleted"}, {"value": "a"})),
        ("key", lines({"k": "a", "x": [[{}]]}, {"k": None}, {}) + b"\r"),
        ("key", lines({"k": 7, "x": "1"}, {"k": 8, "x": 2.5}).replace(b"\n", b"\r\n")),
        ("key", lines({"k": True, "x": "}{"})),
        ("all", lines({"k": "a", "v": "b", "t": "2020-01-01"}, {"k": "c", "v": "d", "t": "2020-01-02 10:11:12"})),
        ("all", lines({"k": "a", "v": "b", "t": "17"}, {"k": "c", "v": "d", "t": None})),
    ],
)
def test_usual_lines_are_read_without_an_object_for_each(name: str, block: bytes) -> None:
    same_both_ways(name, block)
    with line_by_line(is_allowed=False):
        FORMATS[name]()(block, 0)


@pytest.mark.parametrize("name", ["records", "key", "all"])
@pytest.mark.parametrize(
    "block",
    [
        b'{"value": "a", "k": "a"}{"value": "b"}\n{"value": "c"',
        b'{"value": "a"}{"value": "b"}',
        b'{"value": "a",\n"key": "b"}',
        b'{"value": "a", "k": {"k": "x"}\n{"value": "b"}}',
        b'{"value": "a"}\n{"value": "b"}{"value": "c"}\n{"value":\n"d"}',
        b'{"k": "a"}\n{"k": "b"}{"k": "c"}\n{"k":\n"d"}',
        b'{"value": "\xff", "k": "\xff"}',
        b'{"value": "a", "topic": "\xff", "x": "\xff"}',
        b'{"value": "a", "value": "b", "k": 1, "k": 2}',
        b'{"value": "a", "offset": "x", "timestamp_type": []}',
        b'{"value": {"base64": "YQ=="}, "k": {"base64": "YQ=="}}\n{"value": "b", "k": [1]}',
        b'{"value": "a", "k": 1, "t": 1}\n{"value": "b", "k": 1.0, "t": 1.5}\n{"value": "b", "k": "c", "t": "x"}',
        b'{"value": "a", "k": 123456789012345678901234567890}',
        b'{"value": "a", "timestamp": -5, "t": -5}\n{"value": "a", "timestamp": -1, "t": -1}',
        b'{"value": "a", "timestamp": "1969-01-01", "t": "1969-01-01"}',
        b'{"value": "a", "partition": -2}\n{"value": "a", "partition": 2147483648}',
        b'{"value": "a", "headers": [{"key": "h", "value": null}]}\n{"value": "a", "headers": [{"key": "h"}]}',
        b'{"value": "a", "headers": [null]}\n{"value": "a", "headers": null}',
        b'{"key": "value"}\n{"value": null}',
        b'  {"value": "a"}\n\n{"value": "b"}  \n',
        b'\xef\xbb\xbf{"value": "a"}',
        b'{"value": "a", "x": NaN}',
        b"[1]\n7\nnull\n{",
        b"null",
        b"null\n{}",
        b'{"value": "a"}null{"value": "b"}',
        b"",
    ],
)
def test_unusual_lines_are_the_same_as_one_by_one(name: str, block: bytes) -> None:
    same_both_ways(name, block)


FIELDS = st.sampled_from(["value", "key", "timestamp", "partition", "headers", "offset", "k", "v", "t", "x"])
LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 2**64) | st.text(max_size=3) | st.sampled_from(["7", "2020-01-01"])
)
VALUES = LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(FIELDS, LEAVES, max_size=2)
OBJECTS = st.dictionaries(FIELDS, VALUES, max_size=4) | st.fixed_dictionaries({"value": st.text(), "k": st.text()})


@given(st.lists(OBJECTS | LEAVES, min_size=1, max_size=4), st.sampled_from(["records", "key", "all"]))
def test_any_objects_are_the_same_as_one_by_one(objects: list[object], name: str) -> None:
    same_both_ways(name, lines(*objects))


# ---
# Rows of CSV.


def rows_of(text: bytes, fields: Fields, cuts: list[int] | None = None) -> Parsed:
    """What is made of a text that comes in blocks, which end at some of its lines."""
    rows, lines = line_formats.CsvRows(fields), text.split(b"\n")
    edges = sorted({0, len(lines), *(cut for cut in cuts or () if cut < len(lines))})
    parts = [rows.parse(b"\n".join(lines[start:end]), start) for start, end in itertools.pairwise(edges)]
    parts.append(rows.rest())
    before = itertools.accumulate((part.records.num_rows for part in parts), initial=0)
    bad = [(each, count) for part, count in zip(parts, before, strict=False) for each in part.bad]
    records = pa.concat_tables([part.records for part in parts], promote_options="default")
    return Parsed(
        records, [dataclasses.replace(each, records_before=each.records_before + count) for each, count in bad]
    )


def row_by_row(text: str, width: int) -> tuple[list[tuple[str, ...]], list[tuple[int, int]]]:
    """The rows of CSV and its bad lines, by RFC 4180, one character after the other."""
    rows: list[tuple[str, ...]] = []
    bad: list[tuple[int, int]] = []
    line, position = 1, 0
    while position < len(text):
        end = text.find("\n", position) + 1 or len(text)
        if not text[position:end].strip(" \t\r\n\v\f"):
            line, position = line + 1, end
            continue
        found = one_row(text, position)
        if found is None or len(found[0]) != width:
            bad.append((line, len(rows)))
        else:
            rows.append(tuple(found[0]))
        end = found[1] if found else end
        line, position = line + text.count("\n", position, end), end
    return rows, bad


def one_row(text: str, position: int) -> tuple[list[str], int] | None:
    """The fields of the row that begins there, and where it ends; None if there is none."""
    fields: list[str] = []
    while True:
        if text.startswith('"', position):
            end = position + 1
            while text.startswith('""', end) or not text.startswith('"', end):
                end += 2 if text.startswith('""', end) else 1
                if end > len(text):
                    return None
            fields.append(text[position + 1 : end].replace('""', '"'))
            position = end + 1
        else:
            end = min(at for mark in ",\r\n" if (at := (text + mark).find(mark, position)) >= 0)
            fields.append(text[position:end])
            position = end
        if not text.startswith(",", position):
            break
        position += 1
    for mark in ("\r\n", "\n"):
        if text.startswith(mark, position):
            return fields, position + len(mark)
    return (fields, len(text)) if text[position:] in ("", "\r") else None


@given(st.text('ab,"\n\r 1\v\x85é', max_size=30), st.lists(st.integers(1, 8), max_size=3), st.booleans())
def test_rows_of_csv_are_those_of_rfc_4180_in_any_blocks(text: str, cuts: list[int], has_two: bool) -> None:
    head, fields = ("k,v", Fields("k", "v")) if has_two else ("k", Fields("k"))
    rows, bad = row_by_row(text, 1 + has_two)
    parsed = rows_of(f"{head}\n{text}".encode(), fields, cuts)
    assert [(each.line - 1, each.records_before) for each in parsed.bad] == bad
    found = parsed.records.to_pylist()
    assert [tuple(row[name] for name in ("key", "value")[: 1 + has_two]) for row in found] == [
        tuple(cell.encode() for cell in row) for row in rows
    ]


CELLS = st.text('ab,"\n\r1', max_size=5)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1), st.lists(st.integers(0, 40), max_size=4))
def test_rows_that_python_writes_are_read_in_any_blocks(rows: list[tuple[str, str]], cuts: list[int]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("k", "v"), *rows])
    parsed = rows_of(text.getvalue().encode(), Fields("k", "v"), cuts)
    assert parsed.records.to_pylist() == [{"key": key.encode(), "value": value.encode()} for key, value in rows]
    assert not parsed.bad


@pytest.mark.parametrize("rows", ["1,2\r\n3,4\r", '"1","2"\n3,"4"\r', '1,2\n"3",4'])
def test_a_block_of_plain_rows_is_read_at_once(monkeypatch: pytest.MonkeyPatch, rows: str) -> None:
    """The expression for any rows takes as long as all the rest."""
    source = line_formats.CsvRows(Fields("a", "b"))
    source.parse(b"a,b", 0)
    monkeypatch.setattr(line_formats, "_ROW", None)
    parsed = source.parse(rows.encode(), 1)
    assert facts(parsed) == ([{"key": b"1", "value": b"2"}, {"key": b"3", "value": b"4"}], [])


def test_a_block_of_rows_of_one_field_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = line_formats.CsvRows(Fields(value="a"))
    source.parse(b"a", 0)
    with monkeypatch.context() as patch:
        patch.setattr(line_formats, "_ROW", None)
        assert facts(source.parse(b'1\n""', 1)) == ([{"value": b"1"}, {"value": b""}], [])
    assert facts(source.parse(b"1\n \n2", 3)) == ([{"value": b"1"}, {"value": b"2"}], [])


def test_a_carriage_return_within_a_row_is_named() -> None:
    parsed = rows_of(b"a,b\n1,2\n3,\r4\n5,6", Fields(value="a"))
    assert facts(parsed) == ([{"value": b"1"}, {"value": b"5"}], [(3, 1)])
    assert "carriage return" in parsed.bad[0].reason


def test_behind_a_stray_quote_the_next_line_is_a_row() -> None:
    rows = ['1,"a', "2,b", '3,"c"', '"4",d', '5,"e', 'f","g', 'h",i', "6,j", '7,"k\nl"', '8,"m', "9,n"]
    parsed = rows_of("\n".join(["k,v", *rows]).encode(), Fields("k", "v"))
    keys = [row["key"].decode() for row in parsed.records.to_pylist()]
    assert keys == ["2", "3", "4", "6", "7", "9"]
    assert [bad.line for bad in parsed.bad] == [2, 6, 12]


def test_times_that_are_none_are_named_by_the_first_line_of_their_row() -> None:
    parsed = rows_of(b'k,t\n"a\nb",x\n\n"c\n",5\nd,y', Fields("k", None, "t"), [3])
    assert facts(parsed)[1] == [(2, 0), (7, 1)]


def test_times_are_cut_to_milliseconds() -> None:
    texts = pa.array(["1970-01-01T00:00:00.001999Z", None])
    assert times_of(texts).to_pylist() == [1, None]
    assert times_of(pa.array(["7", "2020-01-01"])) is None
    assert times_of(pa.array([1.5])) is None
