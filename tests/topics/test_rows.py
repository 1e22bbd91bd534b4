"""Records as Python values: checked one by one for a writer, and by column for dicts, with one result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distlog
from distlog.core.errors import InvalidRecordError
from distlog.core.format.record_encoder import encode
from distlog.core.write.rows import SCHEMA, Row, batch_of, batch_of_fields, columns_of, row_of

NOW = 1_700_000_000_000
TAKEN_MS = NOW + 5
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
    """Return the fields of the rows, with TAKEN as the present time."""
    return [field for row in rows for field in (*row, TAKEN_MS)]


@given(st.lists(ROWS, min_size=1, max_size=20))
def test_rows_become_columns_and_nothing_is_lost(rows: list[Row]) -> None:
    batch = batch_of(columns_of(fields(rows)))
    records = [
        Row(
            row.get("partition"),
            row.get("timestamp"),
            row["key"],
            row["value"],
            row.get("headers") and [(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in batch.to_pylist()
    ]
    assert [row._replace(headers=row.headers or None) for row in records] == [
        row._replace(headers=row.headers or None) for row in rows
    ]


@given(st.lists(ROWS, min_size=1, max_size=20))
def test_a_record_without_a_timestamp_gets_its_append_time(rows: list[Row]) -> None:
    dated = [row._replace(timestamp=TAKEN_MS if row.timestamp is None else row.timestamp) for row in rows]
    expected = batch_of(columns_of(fields(dated))).to_pylist()
    assert batch_of_fields(fields(rows), 1, TAKEN_MS).to_pylist() == expected
    in_ns = [field if number % 6 < 5 else TAKEN_MS * 10**6 + 999_999 for number, field in enumerate(fields(rows))]
    assert batch_of_fields(in_ns, 10**6, TAKEN_MS).to_pylist() == expected


@given(ROWS)
def test_no_record_takes_more_than_its_max_bytes(row: Row) -> None:
    columns = {**columns_of(fields([row])), "timestamp": [row.timestamp or 0]}
    encoded = encode(batch_of(columns), max_batch_bytes=2**31 - 1)
    assert len(encoded.data) - 61 <= row.max_bytes


def test_every_header_counts_for_max_bytes() -> None:
    row = Row(None, NOW, None, None, [("", None)] * 1000)
    assert len(encode(batch_of(columns_of(fields([row])))).data) - 61 <= row.max_bytes


def test_values_become_arrow_types() -> None:
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


def test_later_changes_by_the_caller_have_no_effect() -> None:
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
        ({"timestamp": -2}, "a whole number of milliseconds since 1970.*at least 0.*got=-2"),
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
def test_an_invalid_field_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        row_of(**{"value": b"", **fields})
    if "from" not in message and "at least" not in message:
        columns = {"value": [b"", b""], **{name: [None, value] for name, value in fields.items()}}
        with pytest.raises(InvalidRecordError, match=f"{message}|column .* must be int64"):
            batch_of(columns, first_row=6)


def test_the_row_of_an_invalid_value_is_named() -> None:
    with pytest.raises(InvalidRecordError, match="row=8"):
        batch_of({"value": [b"", "", 5.0]}, first_row=6)


def test_a_batch_has_its_columns_in_schema_order() -> None:
    batch = batch_of({"value": [b"v"], "timestamp": [3]})
    assert batch.schema == pa.schema([SCHEMA.field("timestamp"), SCHEMA.field("value")])


MS = 1_700_000_000_123
UNITS = {"s": MS // 1000, "ms": MS, "us": MS * 1000 + 999, "ns": MS * 1_000_000 + 999}
EXPECTED = {unit: MS // 1000 * 1000 if unit == "s" else MS for unit in UNITS}
OLD = {"message.timestamp.before.max.ms": 2**62, "retention.ms": -1}


@pytest.fixture(params=["local", "memory"])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[distlog.Topic]:
    """A topic with direct appends, or with commits; an unexpected warning fails the test."""
    root = tmp_path if request.param == "local" else f"memory://units-{request.node.name}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield distlog.create(f"{root}/clicks", config=OLD)


def times(topic: distlog.Topic) -> list[int]:
    return topic.refresh().scan(columns=["timestamp"]).to_table()["timestamp"].cast("int64").to_pylist()


@pytest.mark.parametrize("unit", UNITS)
def test_a_number_has_the_named_unit(topic: distlog.Topic, unit: str) -> None:
    number, date = UNITS[unit], datetime.fromtimestamp(5e8 * 2, timezone.utc)
    topic.append([{"value": "plain", "timestamp": number}, {"value": "none", "timestamp": -1}], timestamp_unit=unit)
    topic.append(
        [{"value": "v", "timestamp": time} for time in (number, str(number), date, "2001-09-09T01:46:40Z")],
        timestamp_unit=unit,
    )
    topic.append(pa.table({"value": ["a", "b"], "timestamp": pa.array([number, -1])}), timestamp_unit=unit)
    topic.append(pa.table({"value": ["a"], "timestamp": pa.array([date])}), timestamp_unit=unit)
    with topic.writer(timestamp_unit=unit) as writer:
        writer.append("v", timestamp=number)
        writer.append("v", timestamp=date)
    same = EXPECTED[unit]
    assert times(topic) == [same, -1, same, same, 10**12, 10**12, same, -1, 10**12, same, 10**12]


def test_an_unknown_unit_is_refused_before_writing(topic: distlog.Topic) -> None:
    open_calls: list[Callable[..., Any]] = [topic.transaction, topic.writer, topic.producer]
    for begin in open_calls:
        with pytest.raises(distlog.InvalidConfigError, match="timestamp_unit must be one of s, ms, us, ns"):
            begin(timestamp_unit="seconds")
    assert topic.refresh().version == 0


def test_milliseconds_given_as_seconds_are_refused(topic: distlog.Topic) -> None:
    mixed = [{"value": "v", "timestamp": None}, {"value": "v", "timestamp": MS}]
    for rows in (mixed, pa.Table.from_pylist(mixed), [*mixed, {"value": "v", "timestamp": "2020-01-01"}]):
        with pytest.raises(distlog.InvalidRecordError, match=r"looks like milliseconds: give the unit, ms.*row=1"):
            topic.append(rows, timestamp_unit="s")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1.7e9]), "int64 milliseconds.*multiply seconds by 1000"),
        (pa.array([-315_619_200]), "milliseconds since 1970, and cannot be before 1970"),
        (pa.array([datetime(1960, 1, 1)]), "milliseconds since 1970, and cannot be before 1970"),
    ],
)
@pytest.mark.parametrize("unit", ["ms", "s", "us"])
def test_fractions_and_times_before_1970_are_refused_by_their_unit(
    topic: distlog.Topic, column: pa.Array, words: str, unit: str
) -> None:
    with pytest.raises(distlog.InvalidRecordError, match=words):
        topic.append(pa.table({"value": ["v"], "timestamp": column}), timestamp_unit=unit)


def test_seconds_as_milliseconds_warn_once_per_topic(topic: distlog.Topic) -> None:
    rows = [{"value": "v", "timestamp": MS}, {"value": "v", "timestamp": MS // 1000}]
    words = r"clicks: .* 1970-01-20T.*1700000000 .*looks like seconds"
    with pytest.warns(distlog.TimestampWarning, match=words) as warned:
        topic.append(rows)
    topic.append(rows)
    with topic.writer() as writer:
        writer.append("v", timestamp=MS // 1000)
    assert [(warning.category, warning.filename) for warning in warned] == [(distlog.TimestampWarning, __file__)]


def test_a_writer_warns_before_it_accepts_the_record(topic: distlog.Topic) -> None:
    with topic.writer() as writer:
        with pytest.raises(distlog.TimestampWarning, match="before 1990"):
            writer.append("v", timestamp=MS // 1000)
        writer.append("v", timestamp=MS)
    assert times(topic) == [MS]


def test_with_warnings_as_errors_nothing_is_appended(topic: distlog.Topic) -> None:
    with pytest.raises(distlog.TimestampWarning, match="before 1990"):
        topic.append([{"value": "v", "timestamp": MS // 1000}])
    assert topic.refresh().version == 0


def test_usual_and_missing_times_do_not_warn(topic: distlog.Topic) -> None:
    topic.append([{"value": "v", "timestamp": 631_152_000_000}, {"value": "v", "timestamp": -1}])
    with pytest.warns(distlog.TimestampWarning, match="1989-12-31T23:59:59.999Z.*taken for milliseconds; if"):
        topic.append([{"value": "v", "timestamp": 631_151_999_999}])
