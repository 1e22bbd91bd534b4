"""What an encoder takes: Arrow columns of any type and slice; what it refuses it names, by row or column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from encoded_rows import ROWS, Row, back, simple, table
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.batches.record_batch import HEADERS_TYPE
from distlog.core.batches.record_encoder import encode
from distlog.core.errors import InvalidRecordError

KINDS = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view()]


@pytest.mark.parametrize("key_kind", KINDS)
@pytest.mark.parametrize("value_kind", KINDS)
def test_keys_and_values_of_every_arrow_type_of_bytes(key_kind: pa.DataType, value_kind: pa.DataType) -> None:
    rows = [(row, None if row % 3 else b"key%d" % row, b"" if row % 4 else b"v" * row, []) for row in range(30)]
    source = table(rows)
    for at, name, kind in ((1, "key", key_kind), (2, "value", value_kind)):
        source = source.set_column(at, name, source[name].cast(kind))
    assert back(encode(source)) == rows
    assert back(encode(source.slice(7, 11))) == rows[7:18]


def test_columns_of_type_null_are_all_null() -> None:
    rows = [(row, None, None, []) for row in range(5)]
    columns = {"timestamp": pa.array(range(5)), "key": pa.nulls(5), "value": pa.nulls(5), "headers": pa.nulls(5)}
    assert back(encode(pa.RecordBatch.from_pydict(columns))) == rows
    assert back(encode(pa.RecordBatch.from_pydict(columns).slice(1, 3))) == rows[1:4]


@given(ROWS, st.data())
def test_any_slice_of_the_input_is_encoded(rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    assert back(encode(table(rows).slice(start, end - start))) == rows[start:end]


def test_timestamps_of_any_zone_and_sliced_are_taken_as_they_are() -> None:
    for kind in (pa.timestamp("ms"), pa.timestamp("ms", "UTC"), pa.timestamp("ms", "Europe/Berlin"), pa.int64()):
        source = table(simple(9)).set_column(0, "timestamp", pa.array(range(1000, 1009), pa.int64()).cast(kind))
        assert back(encode(source.slice(4, 3))) == simple(9)[4:7]


def headers_column(kind: pa.DataType, rows: list[Any]) -> pa.RecordBatch:
    return table(simple(len(rows))).set_column(3, "headers", pa.array(rows, kind))


def test_null_headers_are_no_headers_even_where_their_slots_hold_some() -> None:
    source = headers_column(HEADERS_TYPE, [[{"key": "a", "value": b"1"}], None, [], [{"key": "b", "value": None}]])
    assert [row[3] for row in back(encode(source))] == [[("a", b"1")], [], [], [("b", None)]]
    full = pa.array([[{"key": "a", "value": b"1"}], [{"key": "b", "value": b"2"}]], HEADERS_TYPE)
    bitmap = pa.py_buffer(b"\x01")
    masked = pa.Array.from_buffers(HEADERS_TYPE, 2, [bitmap, full.buffers()[1]], children=[full.values])
    source = table(simple(2)).set_column(3, "headers", masked)
    assert [row[3] for row in back(encode(source))] == [[("a", b"1")], []]


def test_headers_of_other_list_and_string_types() -> None:
    rows = [[{"key": "a", "value": b"1"}], None, [{"key": "b", "value": None}] * 2]
    large = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    source = headers_column(large, rows)
    assert [row[3] for row in back(encode(source))] == [[("a", b"1")], [], [("b", None)] * 2]


def test_other_columns_are_not_looked_at() -> None:
    source = table(simple(2)).append_column("offset", pa.array([55, 3])).append_column("extra", pa.array(["x", "y"]))
    assert back(encode(source)) == simple(2)


@pytest.mark.parametrize("timestamp", [-2, -(2**63)])
def test_a_negative_timestamp_is_refused_and_named(timestamp: int) -> None:
    with pytest.raises(InvalidRecordError, match=r"timestamp is negative.*row=2"):
        encode(table([*simple(2), (timestamp, None, None, [])]))


def test_a_null_timestamp_is_refused_and_named() -> None:
    rows = table(simple(3)).set_column(0, "timestamp", pa.array([1, None, 3], pa.int64()))
    with pytest.raises(InvalidRecordError, match=r"timestamp is null \(row=1\)"):
        encode(rows)


@pytest.mark.parametrize("name", ["timestamp", "key", "value"])
def test_a_missing_column_is_refused_and_named(name: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"column={name}"):
        encode(table(simple(1)).drop_columns([name]))


def test_a_column_of_a_wrong_type_is_refused() -> None:
    rows = table(simple(1))
    with pytest.raises(InvalidRecordError, match="must be binary"):
        encode(rows.set_column(1, "key", pa.array([1.5])))
    with pytest.raises(InvalidRecordError, match="headers like"):
        encode(rows.set_column(3, "headers", pa.array(["h"])))
    for stamps in (pa.array([1], pa.timestamp("us")), pa.array([1], pa.int32()), pa.array(["1"])):
        with pytest.raises(InvalidRecordError, match=r"timestamp\[ms\] or int64"):
            encode(rows.set_column(0, "timestamp", stamps))


def test_a_null_header_or_header_key_is_refused_and_named_but_not_outside_the_slice() -> None:
    good = [{"key": "a", "value": b"1"}]
    for bad in ([None], [{"key": None, "value": b"1"}]):
        source = headers_column(HEADERS_TYPE, [good, good, bad, good])
        with pytest.raises(InvalidRecordError, match=r"key of a header is null \(row=2\)"):
            encode(source)
        with pytest.raises(InvalidRecordError, match=r"\(row=1\)"):
            encode(source.slice(1))
        assert len(back(encode(source.slice(0, 2)))) == 2
        assert len(back(encode(source.slice(3)))) == 1
