"""Rows of CSV by RFC 4180, in blocks of any size, and malformed lines."""

from __future__ import annotations

import csv
import io
import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from parsed_lines import bad_lines

from distlog.core.files.record_times import TimeReader, times_of
from distlog.core.files.table_rows import CsvRows, header_names
from distlog.core.files.text_lines import BadLine, Parsed


def rows_of(text: bytes, fields: dict[str, str], cuts: list[int] | None = None) -> Parsed:
    """Parse a text in blocks that end at the lines `cuts`."""
    head, _, text = text.partition(b"\n")
    parser, lines = CsvRows(header_names(head), fields, TimeReader()), text.split(b"\n")
    edges = sorted({0, len(lines), *(cut for cut in cuts or () if cut < len(lines))})
    parts, bad, carried, start_byte = list[pa.Table](), list[BadLine](), b"", 0
    for start, end in itertools.pairwise(edges):
        block = carried + b"\n".join(lines[start:end])
        parsed = parser.parse(block, len(block), is_last=end == len(lines))
        count = sum(part.num_rows for part in parts)
        bad += [BadLine(start_byte + line.position, count + line.records_before, line.reason) for line in parsed.bad]
        parts.append(parsed.records)
        carried, start_byte = (block + b"\n")[parsed.consumed :], start_byte + parsed.consumed
    return Parsed(pa.concat_tables(parts, promote_options="default"), bad, start_byte)


def outcome_of(parsed: Parsed, text: bytes) -> tuple[list[dict[str, object]], list[tuple[int, int]]]:
    """Return the records, and the numbers of bad lines in the whole text with the records before each."""
    return parsed.records.to_pylist(), [
        (line + 1, records) for line, records in bad_lines(parsed, text.partition(b"\n")[2])
    ]


def row_by_row(text: str, width: int) -> tuple[list[tuple[str, ...]], list[tuple[int, int]]]:
    """Parse CSV and its bad lines by RFC 4180, character by character."""
    rows: list[tuple[str, ...]] = []
    bad: list[tuple[int, int]] = []
    line, position = 1, 0
    while position < len(text):
        end = text.find("\n", position) + 1 or len(text)
        if not text[position:end].strip(" \t\r\n\v\f"):
            line, position = line + 1, end
            continue
        row = one_row(text, position)
        if row is None or len(row[0]) != width:
            bad.append((line, len(rows)))
        else:
            rows.append(tuple(row[0]))
        end = row[1] if row else end
        line, position = line + text.count("\n", position, end), end
    return rows, bad


def one_row(text: str, position: int) -> tuple[list[str], int] | None:
    """Return the fields of the row at `position` and its end, or None if the row is malformed."""
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
            end = min((text + mark).find(mark, position) for mark in ",\r\n")
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
def test_rows_of_csv_follow_rfc_4180_in_any_blocks(text: str, cuts: list[int], has_two: bool) -> None:
    head, fields = ("k,v", {"key": "k", "value": "v"}) if has_two else ("k", {"key": "k"})
    rows, bad = row_by_row(text, 1 + has_two)
    parsed = rows_of(f"{head}\n{text}".encode(), fields, cuts)
    assert bad_lines(parsed, text.encode()) == bad
    records = parsed.records.to_pylist()
    assert [tuple(row[name] for name in ("key", "value")[: 1 + has_two]) for row in records] == [
        tuple(cell.encode() for cell in row) for row in rows
    ]


CELLS = st.text('ab,"\n\r1', max_size=5)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1), st.lists(st.integers(0, 40), max_size=4))
def test_rows_that_python_writes_are_read_in_any_blocks(rows: list[tuple[str, str]], cuts: list[int]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("k", "v"), *rows])
    parsed = rows_of(text.getvalue().encode(), {"key": "k", "value": "v"}, cuts)
    assert parsed.records.to_pylist() == [{"key": key.encode(), "value": value.encode()} for key, value in rows]
    assert not parsed.bad


def test_a_carriage_return_within_a_row_is_named() -> None:
    text = b"a,b\n1,2\n3,\r4\n5,6"
    parsed = rows_of(text, {"value": "a"})
    assert outcome_of(parsed, text) == ([{"value": b"1"}, {"value": b"5"}], [(3, 1)])
    assert "carriage return" in parsed.bad[0].reason


def test_the_line_after_a_stray_quote_is_a_row() -> None:
    rows = ['1,"a', "2,b", '3,"c"', '"4",d', '5,"e', 'f","g', 'h",i', "6,j", '7,"k\nl"', '8,"m', "9,n"]
    text = "\n".join(["k,v", *rows]).encode()
    parsed = rows_of(text, {"key": "k", "value": "v"})
    keys = [row["key"].decode() for row in parsed.records.to_pylist()]
    assert keys == ["2", "3", "4", "6", "7", "9"]
    assert [line for line, _ in outcome_of(parsed, text)[1]] == [2, 6, 12]


def test_invalid_times_are_named_by_the_first_line_of_their_row() -> None:
    text = b'k,t\n"a\nb",x\n\n"c\n",5\nd,y'
    parsed = rows_of(text, {"key": "k", "timestamp": "t"}, [2])
    assert outcome_of(parsed, text)[1] == [(2, 0), (7, 1)]


def test_times_are_cut_to_milliseconds() -> None:
    texts = pa.array(["1970-01-01T00:00:00.001999Z", None])
    assert times_of(texts).to_pylist() == [1, None]
    assert times_of(pa.array(["7", "2020-01-01"])) is None
    assert times_of(pa.array([1.5])) is None
