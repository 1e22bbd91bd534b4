"""Records as Python values: checked one by one for a writer, and column by column for dicts, with one result."""

from __future__ import annotations

from datetime import date, datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.batches.record_encoder import encode
from distlog.core.errors import InvalidRecordError
from distlog.core.topics.appendable import SCHEMA, Row, batch_of, batch_of_fields, columns_of, row_of

NOW = 1_700_000_000_000
TAKEN = NOW + 5
BYTES = st.none() | st.binary(max_size=300)
ROWS = st.builds(
    Row,
    partition=st.none() | st.integers(0, 2**31 - 1),
    timestamp=st.none() | st.integers(-1, 2**63 - 1),
    key=BYTES,
    value=BYTES,
    headers=st.none() | st.lists(st.tuples(st.text(max_size=20), BYTES), max_size=4),
)


def fields(rows: list[Row]) -> list[Any]:
    """The fields of the rows, taken at TAKEN, one row behind the other."""
    return [field for row in rows for field in (*row, TAKEN)]


@given(st.lists(ROWS, min_size=1, max_size=20))
def test_rows_become_columns_and_nothing_is_lost(rows: list[Row]) -> None:
    batch = batch_of(columns_of(fields(rows)))
    found = [
        Row(
            row.get("partition"),
            row.get("timestamp"),
            row["key"],
            row["value"],
            row.get("headers") and [(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in batch.to_pylist()
    ]
    assert [row._replace(headers=row.headers or None) for row in found] == [
        row._replace(headers=row.headers or None) for row in rows
    ]


@given(st.lists(ROWS, min_size=1, max_size=20))
def test_a_record_without_a_timestamp_gets_that_of_when_it_was_taken(rows: list[Row]) -> None:
    dated = [row._replace(timestamp=TAKEN if row.timestamp is None else row.timestamp) for row in rows]
    wanted = batch_of(columns_of(fields(dated))).to_pylist()
    assert batch_of_fields(fields(rows), 1, TAKEN).to_pylist() == wanted
    in_ns = [field if place % 6 < 5 else TAKEN * 10**6 + 999_999 for place, field in enumerate(fields(rows))]
    assert batch_of_fields(in_ns, 10**6, TAKEN).to_pylist() == wanted


@given(ROWS)
def test_no_record_takes_more_than_its_max_bytes(row: Row) -> None:
    columns = {**columns_of(fields([row])), "timestamp": [row.timestamp or 0]}
    encoded = encode(batch_of(columns), max_batch_bytes=2**31 - 1)
    assert len(encoded.data) - 61 <= row.max_bytes


def test_every_header_counts_for_max_bytes() -> None:
    row = Row(None, NOW, None, None, [("", None)] * 1000)
    assert len(encode(batch_of(columns_of(fields([row])))).data) - 61 <= row.max_bytes


def test_what_callers_give_becomes_the_types_that_arrow_wants() -> None:
    moment = datetime(2026, 1, 2, tzinfo=timezone.utc)
    headers = [("a", "text"), {"key": "b", "value": None}, ["c", bytearray(b"x")]]
    assert row_of("é", memoryview(b"k"), moment, headers, np.int32(3)) == Row(
        3, 1_767_312_000_000, b"k", "é".encode(), [("a", b"text"), ("b", None), ("c", b"x")]
    )
    assert row_of(None) == Row(None, None, None, None, None)
    assert type(row_of(b"", partition=np.int64(1)).partition) is int


def test_a_dict_of_headers_is_a_list_of_its_pairs_and_a_date_its_midnight_in_utc() -> None:
    headers = {"trace": "a", "span": None}
    assert row_of(b"", headers=headers).headers == [("trace", b"a"), ("span", None)]
    batch = batch_of({"value": [b""], "headers": [headers], "timestamp": [date(2026, 1, 2)]})
    assert batch.to_pylist() == [
        {
            "value": b"",
            "headers": [{"key": "trace", "value": b"a"}, {"key": "span", "value": None}],
            "timestamp": 1_767_312_000_000,
        }
    ]


def test_what_a_caller_changes_afterwards_is_not_changed_here() -> None:
    value = bytearray(b"before")
    row = row_of(value, headers=[("h", value)])
    value[:] = b"after!"
    assert (row.value, row.headers) == (b"before", [("h", b"before")])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"value": 5}, "value must be bytes, text or None"),
        ({"key": 5}, "key must be bytes, text or None"),
        ({"key": "\ud800"}, "key is not valid text: it holds a lone surrogate"),
        ({"timestamp": -2}, "a whole number of milliseconds since 1970.*from 0 on.*got=-2"),
        ({"timestamp": datetime(1960, 1, 1)}, "milliseconds since 1970.*got=datetime"),
        ({"timestamp": 1.7e9}, "milliseconds since 1970.*multiply seconds with a fraction by 1000.*got=1700000000.0"),
        ({"timestamp": 2**63}, "timestamp must be an integer"),
        ({"timestamp": True}, "timestamp must be an integer"),
        ({"timestamp": "soon"}, "timestamp must be ms since 1970, a datetime, a date or ISO 8601"),
        ({"partition": -1}, "partition must be an integer from 0 to"),
        ({"partition": 2**31}, "partition must be an integer from 0 to"),
        ({"headers": {"h": 5}}, "a header's value must be bytes, text or None"),
        ({"headers": {b"h": b""}}, "a header must be"),
        ({"headers": 5}, "headers must be a list"),
        ({"headers": ["ab"]}, "a header must be"),
        ({"headers": [(b"h", b"")]}, "a header must be"),
        ({"headers": [("\ud800", b"")]}, "a header's key is not valid text: it holds a lone surrogate"),
        ({"headers": [("h", 5)]}, "a header's value must be bytes, text or None"),
    ],
)
def test_a_field_that_does_not_fit_is_refused_by_name_both_ways(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        row_of(**{"value": b"", **fields})
    if "from" not in message:  # ranges of whole columns are for `normalize` and the partitioner
        columns = {"value": [b"", b""], **{name: [None, value] for name, value in fields.items()}}
        with pytest.raises(InvalidRecordError, match=f"{message}|column .* must be int64"):
            batch_of(columns, first_row=6)


def test_the_row_of_a_value_that_does_not_fit_is_told() -> None:
    with pytest.raises(InvalidRecordError, match="row=8"):
        batch_of({"value": [b"", "", 5.0]}, first_row=6)


def test_a_batch_has_the_columns_that_were_given_in_the_order_of_the_schema() -> None:
    batch = batch_of({"value": [b"v"], "timestamp": [3]})
    assert batch.schema == pa.schema([SCHEMA.field("timestamp"), SCHEMA.field("value")])
