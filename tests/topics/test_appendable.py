"""Inputs of an append: Arrow, pandas and dicts become the same columns, and invalid values are named."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidRecordError
from distlog.core.format.record_batch import HEADERS_TYPE
from distlog.core.write.rows import SLICE_BYTES, batches, normalize

NOW = 1_700_000_000_000


def normalized(data: Any, config: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    parsed = TopicConfig.parse(config or {})
    return [row for batch in batches(data) for row in normalize(batch, parsed, NOW).to_pylist()]


def test_arrow_pandas_and_dicts_become_the_same_columns() -> None:
    rows = [{"key": b"a", "value": b"1", "timestamp": 5}, {"key": None, "value": b"2", "timestamp": 6}]
    table = pa.table({"key": pa.array([b"a", None], pa.binary()), "value": [b"1", b"2"], "timestamp": [5, 6]})
    expected = normalized(rows)
    assert normalized(table) == expected
    assert normalized(table.to_batches()[0]) == expected
    assert normalized(pa.RecordBatchReader.from_batches(table.schema, table.to_batches())) == expected
    pandas = pytest.importorskip("pandas")
    assert normalized(pandas.DataFrame({"key": [b"a", None], "value": [b"1", b"2"], "timestamp": [5, 6]})) == expected


def test_an_index_of_pandas_with_the_name_of_a_column_is_that_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"key": ["a", "a", "b"], "value": ["1", "2", "3"]})
    last = normalized(frame.groupby("key").last())
    assert [(row["key"], row["value"]) for row in last] == [(b"a", b"2"), (b"b", b"3")]
    hours = pandas.date_range("2023-01-01", periods=2, freq="h", tz="Europe/Berlin", name="timestamp")
    timed = normalized(pandas.DataFrame({"value": ["1", "2"]}, index=hours))
    assert [row["timestamp"] for row in timed] == [1_672_527_600_000, 1_672_531_200_000]
    levels = pandas.MultiIndex.from_tuples([("a", 7)], names=["key", "offset"])
    assert normalized(pandas.DataFrame({"value": ["1"]}, index=levels))[0]["key"] == b"a"
    indexed = pandas.DataFrame({"key": ["own"], "value": ["1"]}, index=pandas.Index(["other"], name="key"))
    assert normalized(indexed)[0]["key"] == b"own"


def test_a_column_of_dates_is_their_midnights_in_utc() -> None:
    dates = pa.table({"value": ["a", "b"], "timestamp": [date(2023, 1, 2), None]})
    assert [row["timestamp"] for row in normalized(dates)] == [1_672_617_600_000, NOW]
    assert normalized(dates.set_column(1, "timestamp", dates["timestamp"].cast(pa.date64()))) == normalized(dates)


def test_categories_of_polars_are_text() -> None:
    texts = pa.array(["b", "é"], pa.string_view())
    categories = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), texts)
    rows = normalized(pa.table({"key": categories, "value": categories}))
    assert [row["key"] for row in rows] == [row["value"] for row in rows] == ["é".encode(), None, b"b"]


def test_text_becomes_utf8_bytes() -> None:
    assert normalized([{"key": "ключ", "value": "значение"}])[0]["key"] == "ключ".encode()
    assert normalized(pa.table({"value": pa.array(["é"], pa.large_string())}))[0]["value"] == "é".encode()


def test_a_missing_or_null_timestamp_is_now() -> None:
    assert [row["timestamp"] for row in normalized([{"value": b"1"}])] == [NOW]
    assert [
        row["timestamp"] for row in normalized([{"value": b"1", "timestamp": None}, {"value": b"", "timestamp": 3}])
    ] == [
        NOW,
        3,
    ]


def test_log_append_time_ignores_the_timestamps_given() -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    assert normalized([{"value": b"1", "timestamp": 3}], config)[0]["timestamp"] == NOW


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_arrow_timestamps_of_any_unit_and_zone_become_milliseconds(unit: str) -> None:
    moment = datetime(2023, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    column = pa.array([moment], pa.timestamp(unit, "Europe/Paris"))
    table = pa.table({"value": [b"v"], "timestamp": column})
    assert normalized(table)[0]["timestamp"] == int(moment.timestamp() * 1000)


def test_a_datetime_in_a_dict_becomes_milliseconds() -> None:
    moment = datetime(2023, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc)
    assert normalized([{"value": b"v", "timestamp": moment}])[0]["timestamp"] == 1_672_628_645_678


def test_headers_are_pairs_or_mappings_with_text_keys() -> None:
    rows = [{"value": b"v", "headers": [("h", b"1"), {"key": "h", "value": None}]}, {"value": b"v", "headers": None}]
    assert [row["headers"] for row in normalized(rows)] == [
        [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        None,
    ]


def test_a_scans_own_columns_are_accepted_and_assigned_again() -> None:
    table = pa.table({"value": [b"v"], "offset": [7], "timestamp_type": [0], "topic": ["t"]})
    assert set(normalized(table)[0]) == {"timestamp", "key", "value"}


def test_no_rows_are_accepted() -> None:
    assert normalized([]) == []
    assert normalized(pa.table({"value": pa.array([], pa.binary())})) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"value": b"v", "vlaue": b"x"}], "unknown column vlaue"),
        ([{"value": b"v", 3: b"x"}], "unknown column 3"),
        ([{"vlaue": b"v"}], "unknown column vlaue"),
        (
            [{"value": b"v", "page": 1, "user": 2}],
            "unknown column page, user: rename it, leave it out, or put it into",
        ),
        (
            pa.table({"user": [1], "page": [1]}),
            r"page, user: .*; the columns are partition, timestamp, key, value, headers$",
        ),
        (pa.table({"value": [b"v"], "vlaue": [b"v"]}), "unknown column vlaue"),
        (pa.table({"key": [b"k"]}), "the data has no column value"),
        ([{"value": b""}, {"key": b"k"}], "a record needs a value; None is allowed, .*row=1"),
        (pa.Table.from_arrays([pa.array([b"a"])] * 2, ["value", "value"]), "two columns have the same name"),
        (pa.table({"value": [3]}), "column value must be binary, not int64"),
        ([{"value": b""}, {"value": 3}], "value must be bytes, text or None .*row=1 got=int"),
        ([{"value": "\ud800"}], "value is not valid text: it holds a lone surrogate"),
        ([{"value": b"v", "timestamp": "soon"}], "timestamp must be ms since 1970, .*row=0 got="),
        ([{"value": b"v", "timestamp": 1.5}], "multiply seconds with a fraction by 1000.*row=0 got=1.5"),
        ([{"value": b"v", "timestamp": True}], "timestamp must be an integer .*row=0 got=bool"),
        ([{"value": b"v", "timestamp": 2**63}], "column timestamp must be int64"),
        ([{"value": b"v", "timestamp": -2}], r"before 1970; -1 means none.*row=0 timestamp=-2"),
        (pa.table({"value": [b"v"], "timestamp": [1.5]}), "column timestamp must be a timestamp"),
        (pa.table({"value": [b"v"], "timestamp": pa.array([2**64 - 1], pa.uint64())}), "column timestamp must fit"),
        (pa.table({"value": [b"v"], "timestamp": pa.array([2**61], pa.timestamp("s"))}), "column timestamp must fit"),
        ([{"value": b"v", "partition": "x"}], "partition must be an integer .*row=0 got=str"),
        ([{"value": b"v", "partition": 0.7}], "partition must be an integer .*row=0 got=float"),
        (pa.table({"value": [b"v"], "partition": [2**40]}), "column partition must be int32"),
        (pa.table({"value": [b"v"], "headers": ["h"]}), "column headers must be list"),
        ([{"value": b"v", "headers": [{"key": 3, "value": b""}]}], "a header must be"),
        ([{"value": b"v", "headers": [{"key": "h"}]}], "a header must be"),
        ([{"value": b"v", "headers": [("h", b"1", 2)]}], "a header must be"),
        ([{"value": b"v", "headers": ["hv"]}], "a header must be"),
        ([{"value": b"v", "headers": [("h", 3)]}], "a header's value must be bytes"),
        ([{"value": b"v", "headers": {"key": "h", "value": b"1"}}], "is one header: give a list of dicts"),
        ([{"value": b"v", "headers": {"h": 5}}], "a header's value must be bytes"),
        ([{"value": b"v", "headers": "hv"}], "headers must be a list"),
        ([b"v"], "a record must be a dict"),
        (b"v", "append takes Arrow"),
        ({"value": b"v"}, "append takes Arrow"),
        (7, "append takes Arrow"),
        (None, "append takes Arrow"),
    ],
)
def test_an_invalid_value_is_refused_by_name(rows: Any, message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        normalized(rows)


def test_invalid_pandas_input_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidRecordError, match=r"cannot become an Arrow column.*value"):
        normalized(pandas.DataFrame({"value": [b"x", 3]}))
    with pytest.raises(InvalidRecordError, match=r"no columns.*type=Series|must be a dict"):
        normalized(pandas.Series([b"x"]))


def test_errors_count_rows_from_the_first_row_of_the_append() -> None:
    rows = [{"value": b"v", "timestamp": NOW}] * 70_000
    with pytest.raises(InvalidRecordError, match="row=70000"):
        normalized([*rows, {"value": 3}])
    batch = pa.RecordBatch.from_pylist([{"value": b"v", "timestamp": -2}])
    with pytest.raises(InvalidRecordError, match="row=100 timestamp=-2"):
        normalize(batch, TopicConfig(), NOW, 100)
    with pytest.raises(InvalidRecordError, match="row=100"):
        normalize(batch.drop_columns(["timestamp"]), TopicConfig.parse({"cleanup.policy": "compact"}), NOW, 100)


def test_large_inputs_come_in_slices_of_some_mib() -> None:
    value = b"x" * (SLICE_BYTES // 8)
    for data in ([{"value": value}] * 33, pa.table({"value": [value] * 33})):
        all_batches = list(batches(data))
        assert len(all_batches) > 3
        assert all(batch.nbytes < 2 * SLICE_BYTES for batch in all_batches)
        assert sum(batch.num_rows for batch in all_batches) == 33


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.string_view()], ids=str)
def test_repeated_values_of_a_dictionary_count_by_their_size(kind: pa.DataType) -> None:
    texts = pa.array(["x" * 10_000, "y" * 10_000, None]).cast(kind)
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2] * 1500).slice(1), texts)
    slices = list(batches(pa.table({"value": column})))
    sizes = [normalize(part, TopicConfig(), NOW).column("value").nbytes for part in slices]
    assert 3 <= len(slices) <= 5
    assert max(sizes) < 1.1 * SLICE_BYTES
    assert sum(part.num_rows for part in slices) == len(column)


def test_an_iterator_of_dicts_is_read_lazily() -> None:
    number = 0

    def rows() -> Iterator[dict[str, bytes]]:
        nonlocal number
        for number in range(1, 1001):  # noqa: B007 - counted for the test
            yield {"value": b"x" * (1 << 20)}

    next(batches(rows()))
    assert number < 20


def test_a_compacted_topic_refuses_a_null_key_and_names_the_row() -> None:
    rows = [{"key": b"k", "value": b"v"}, {"key": None, "value": b"v"}]
    with pytest.raises(InvalidRecordError, match=r"needs a key .*set cleanup.policy=delete \(row=1\)"):
        normalized(rows, {"cleanup.policy": "compact,delete"})


def test_the_timestamp_limits_of_the_topic_apply() -> None:
    config = {"message.timestamp.before.max.ms": 1000, "message.timestamp.after.max.ms": 10}
    good = [NOW - 1000, NOW + 10, -1]
    assert [
        row["timestamp"] for row in normalized([{"value": b"", "timestamp": time} for time in good], config)
    ] == good
    for bad in (NOW - 1001, NOW + 11):
        with pytest.raises(InvalidRecordError, match=f"row=1 timestamp={bad}"):
            normalized([{"value": b"", "timestamp": NOW}, {"value": b"", "timestamp": bad}], config)


def test_null_typed_columns_are_nulls() -> None:
    table = pa.table({"key": pa.nulls(2), "value": [b"1", b"2"], "headers": pa.nulls(2), "timestamp": pa.nulls(2)})
    assert normalized(table)[0] == {"timestamp": NOW, "key": None, "value": b"1"}


def test_headers_of_another_struct_layout_are_cast() -> None:
    kind = pa.list_(pa.field("element", pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])))
    table = pa.table({"value": [b"v"], "headers": pa.array([[{"key": "k", "value": b"v"}]], kind)})
    batch = normalize(table.to_batches()[0], TopicConfig(), NOW)
    assert batch.column("headers").type == HEADERS_TYPE


@pytest.mark.parametrize("fields", [("key", "val"), ("key",), ("key", "value", "more"), ("key", "key", "value")])
def test_a_header_with_other_fields_is_refused_since_a_cast_would_lose_them(fields: tuple[str, ...]) -> None:
    pair = pa.StructArray.from_arrays([pa.array(["h"])] * len(fields), list(fields))
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pair)
    with pytest.raises(InvalidRecordError, match=r"headers must be .* with the fields key and value only"):
        normalized(pa.table({"value": ["v"], "headers": headers}))


@pytest.mark.parametrize("kind", [pa.list_(pa.null()), pa.large_list(pa.null()), pa.list_(pa.null(), 0)], ids=str)
def test_headers_of_rows_that_have_none_need_no_fields(kind: pa.DataType) -> None:
    table = normalized(pa.table({"value": ["v", "w"], "headers": pa.array([[], None], kind)}))
    assert [row["headers"] or [] for row in table] == [[], []]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]), 1),
        pa.large_list(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])),
        pa.map_(pa.string(), pa.binary()),
    ],
    ids=str,
)
def test_headers_are_lists_or_maps_with_their_fields_in_any_order_also_in_slices(kind: pa.DataType) -> None:
    rows: list[Any] = [[{"key": name, "value": value}] for name, value in (("a", b"1"), ("b", None), ("c", b""))]
    pairs = [[(header["key"], header["value"]) for header in row] for row in rows]
    column = pa.array([*(pairs if pa.types.is_map(kind) else rows), None], kind).slice(1)
    table = normalized(pa.table({"value": ["v"] * 3, "headers": column}))
    assert [row["headers"] or [] for row in table] == [*rows[1:], []]
