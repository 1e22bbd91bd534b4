"""Records in a custom format, as kcat prints them, and as CSV."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.console.output import Conversions
from distlog.core.format.record_batch import HEADERS_TYPE
from distlog.core.read.row_lines import csv_rows

BYTES = st.none() | st.binary(max_size=8)


def batch(*records: tuple[bytes | None, bytes | None], headers: object = ()) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "partition": pa.array([3] * len(records), pa.int32()),
            "offset": pa.array(range(7, 7 + len(records)), pa.int64()),
            "timestamp": pa.array([1500] * len(records), pa.timestamp("ms", "UTC")),
            "key": pa.array([key for key, _ in records], pa.binary()),
            "value": pa.array([value for _, value in records], pa.binary()),
            "headers": pa.array([headers] * len(records), HEADERS_TYPE),
        }
    )


def shown(text: str, *records: tuple[bytes | None, bytes | None], headers: object = ()) -> bytes:
    return bytes(Conversions.parse(text).texts(batch(*records, headers=headers), "clicks"))


def test_each_conversion() -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    text = r"%t-%p@%o %T [%h] %k(%K) %v=%s(%S) 100%%\t\x41\\n\n"
    assert shown(text, (b"k\xff", b"v\n"), headers=headers) == (
        b"clicks-3@7 1500 [a=1,b=] k\xff(2) v\n=v\n(2) 100%\tA\\n\n"
    )
    assert shown("%k(%K)%v(%S);", (None, None), (b"", b"")) == b"(-1)(-1);(0)(0);"
    assert shown("%t ", (b"", b""), (b"", b"")) == b"clicks clicks "
    assert shown("%v") == b""


@given(st.lists(st.tuples(BYTES, BYTES), max_size=5))
def test_keys_and_values_come_byte_by_byte(records: list[tuple[bytes | None, bytes | None]]) -> None:
    expected = b"".join(b"%d:%b>%b|" % (7 + n, key or b"", value or b"") for n, (key, value) in enumerate(records))
    assert shown("%o:%k>%v|", *records) == expected


def test_only_the_columns_that_are_shown_are_read() -> None:
    assert Conversions.parse("%k %v %s %K").columns == ("key", "value")
    assert Conversions.parse("%t").columns == ("offset",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lines", "is not json, csv"),
        ("", "is not json, csv"),
        ("%q", "unknown conversion %q: use %v"),
        ("%v%", "ends with a single %"),
        ("%v\\", "ends with"),
        (r"%v\q", r"unknown escape \\q"),
        (r"%v\x4", r"unknown escape \\x"),
    ],
)
def test_a_wrong_format_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Conversions.parse(text)


def test_csv_keeps_binary_bytes() -> None:
    columns = batch((b'"\xff', None)).select(["key", "value", "offset"])
    assert bytes(csv_rows(columns, titles=False)) == b'"""\xff",,7\n'


@given(st.lists(st.tuples(st.none() | st.text(max_size=5), st.text(max_size=5)), min_size=1, max_size=5))
def test_other_readers_can_read_the_csv(records: list[tuple[str | None, str]]) -> None:
    rows = batch(*((None if key is None else key.encode(), value.encode()) for key, value in records))
    text = bytes(csv_rows(rows, titles=True)).decode()
    table = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    assert [(row["key"], row["value"]) for row in table] == [(key or "", value) for key, value in records]
    assert (table[0]["offset"], table[0]["timestamp"], table[0]["headers"]) == ("7", "1970-01-01T00:00:01.500Z", "")
    assert not bytes(csv_rows(rows, titles=False)).startswith(b'"partition"')
