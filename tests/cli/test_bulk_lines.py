"""Blocks of lines are read by Arrow, as line by line: the same records, the same bad lines, no object per record."""

from __future__ import annotations

import csv
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
    "csv": lambda: line_formats.csv_format(Fields("k", None, "t")),
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
            patch.setattr(line_formats, "_all_rows", lambda *_: None)
        else:
            patch.setattr(line_formats, "parsed_one_by_one", refused)
            patch.setattr(line_formats, "_sorted_out", refused)
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
        ("csv", b"k,t,x\na,5,\nb,,\xc3\xa9"),
        ("csv", b'k,t,x\r\na,2020-01-01T00:00:00Z,"1,2"\r\nb,2020-01-01T00:00:00+01:00,3\r'),
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


@pytest.mark.parametrize(
    "block",
    [
        b"k,t\n",
        b"k,t\na,1\n\nb,2",
        b'k,t\n"a\nb",1\nc,2',
        b"k,t\na,1,2\nb\nc,3",
        b"k,t\na,x\nb,-7\nc,1969-01-01\nd,2020-01-01",
        b"k,t\n\xff,1\n",
        b"k,t\n\xff,1,2\n\xff,3",
        b"k,t\na\0b,1",
        b"k,t\na,1\n   \nb,2",
    ],
)
def test_unusual_rows_are_the_same_as_one_by_one(block: bytes) -> None:
    same_both_ways("csv", block)


def test_a_carriage_return_within_a_row_is_named() -> None:
    parsed = line_formats.csv_format(Fields(value="a"))(b"a,b\n1,2\n3,\r4\n5,6", 0)
    assert facts(parsed) == ([{"value": b"1"}, {"value": b"5"}], [(3, 1)])
    assert "carriage return" in parsed.bad[0].reason


def test_as_many_rows_as_lines_need_not_be_one_in_each() -> None:
    parsed = line_formats.csv_format(Fields(value="a"))(b'a,b\n1,2\r3,4\n"5\n6,7', 0)
    assert facts(parsed) == ([], [(2, 0), (3, 0), (4, 0)])


def test_blank_lines_of_one_column_are_no_rows() -> None:
    parsed = line_formats.csv_format(Fields(value="a"))(b"a\n1\n  \n\n2", 0)
    assert parsed.records.to_pylist() == [{"value": b"1"}, {"value": b"2"}]


FIELDS = st.sampled_from(["value", "key", "timestamp", "partition", "headers", "offset", "k", "v", "t", "x"])
LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 2**64) | st.text(max_size=3) | st.sampled_from(["7", "2020-01-01"])
)
VALUES = LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(FIELDS, LEAVES, max_size=2)
OBJECTS = st.dictionaries(FIELDS, VALUES, max_size=4) | st.fixed_dictionaries({"value": st.text(), "k": st.text()})


@given(st.lists(OBJECTS | LEAVES, min_size=1, max_size=4), st.sampled_from(["records", "key", "all"]))
def test_any_objects_are_the_same_as_one_by_one(objects: list[object], name: str) -> None:
    same_both_ways(name, lines(*objects))


LINES = st.text('ab,"\r 1-:TZ\v\f\x85é', max_size=8)


def read_alone(fields: Fields, head: str, row: str) -> Parsed:
    return line_formats.csv_format(fields)(f"{head}\n{row}".encode(), 0)


@given(st.lists(LINES, max_size=5), st.sampled_from(["k,t", "k"]))
def test_no_row_depends_on_the_lines_around_it(rows: list[str], head: str) -> None:
    fields = Fields("k", None, "t" if head == "k,t" else None)
    # but those behind a quoted field that is open
    rows = [row for row in rows if not any("quoted" in bad.reason for bad in read_alone(fields, head, row).bad)]
    parsed = line_formats.csv_format(fields)("\n".join([head, *rows]).encode(), 0)
    records: list[dict[str, Any]] = []
    bad: list[tuple[int, int]] = []
    for number, row in enumerate(rows, 2):
        alone = read_alone(fields, head, row)
        bad += [(number, len(records))] * len(alone.bad)
        records += alone.records.to_pylist()
    assert facts(parsed) == (records, bad)


@pytest.mark.parametrize("line", ['"a,1', 'a,"1', '"a""', '"a"b",1', "a,1\r2", "a", "a,1,2"])
def test_the_same_line_is_bad_at_any_place(line: str) -> None:
    good = "a,1"
    for place in range(3):
        rows = [good, good]
        rows.insert(place, line)
        parsed = line_formats.csv_format(Fields("k", "t"))("\n".join(["k,t", *rows]).encode(), 0)
        is_row, is_open = line == '"a"b",1', line in ('"a,1', 'a,"1', '"a""')
        assert (parsed.records.num_rows, [bad.line for bad in parsed.bad]) == (
            (3, []) if is_row else (place, [*range(place + 2, 5)]) if is_open else (2, [place + 2])
        )


CELLS = st.text('ab,"\n1', max_size=5)


@given(st.lists(st.tuples(CELLS, CELLS), max_size=6), st.lists(st.integers(0, 40), max_size=4))
def test_no_line_of_a_quoted_field_with_line_ends_is_a_row(rows: list[tuple[str, str]], cuts: list[int]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    lines = text.getvalue().encode().removesuffix(b"\n").split(b"\n")
    parse = line_formats.csv_format(Fields("k", "v"))
    parse(b"k,v", 0)
    records: list[dict[str, Any]] = []
    bad: list[int] = []
    edges = sorted({0, len(lines), *(cut for cut in cuts if cut < len(lines))})
    for start, end in itertools.pairwise(edges):
        parsed = parse(b"\n".join(lines[start:end]), 1 + start)
        records += parsed.records.to_pylist()
        bad += [each.line for each in parsed.bad]
    whole = [row for row in rows if "\n" not in "".join(row)]
    assert records == [{"key": key.encode(), "value": value.encode()} for key, value in whole]
    assert len(bad) == (len(lines) - len(whole) if rows else 0)


def test_a_quote_within_a_quoted_field_shows_that_the_first_one_was_stray() -> None:
    rows = ['1,"a', "2,b", '3,"c"', '"4",d', '5,"e', 'f","g', 'h",i', "6,j"]
    parsed = line_formats.csv_format(Fields("k", "v"))("\n".join(["k,v", *rows]).encode(), 0)
    assert facts(parsed) == (
        [{"key": key, "value": value} for key, value in ((b"3", b"c"), (b"4", b"d"), (b"6", b"j"))],
        [(2, 0), (3, 0), (6, 2), (7, 2), (8, 2)],
    )
    assert parsed.bad[-1].reason == "the line is inside of a quoted field, which began on line 7"


def test_a_quoted_field_that_does_not_end_is_no_line_to_leave_out() -> None:
    parse = line_formats.csv_format(Fields("k", "v"))
    before = parse(b'k,v\n1,a\n2,"b\n' + b"3,c\n" * 500, 0)
    after = parse(b"4,d\n" * 600, 504)
    assert (before.records.num_rows, after.records.num_rows) == (1, 0)
    assert [bad.line for bad in (*before.bad, *after.bad) if bad.is_last] == [3]
    assert "has not ended 1000 lines later" in after.bad[-1].reason


def test_times_are_cut_to_milliseconds() -> None:
    texts = pa.array(["1970-01-01T00:00:00.001999Z", None])
    assert times_of(texts).to_pylist() == [1, None]
    assert times_of(pa.array(["7", "2020-01-01"])) is None
    assert times_of(pa.array([1.5])) is None
