"""Rows of Parquet as records: columns of each file, and whole rows as JSON."""

from __future__ import annotations

import decimal
import json
from datetime import date, datetime, time, timezone
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_reads import rows, tables

from distlog.core.errors import InvalidRecordError
from distlog.core.files import table_rows
from distlog.core.files.file_reader import FileReader
from distlog.core.files.input_files import ReadOptions
from distlog.core.storage.storage import InputStorage

MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123456)
INNER = pa.struct([("t", pa.timestamp("us")), ("x", pa.int32())])
TABLE = pa.table(
    {
        "id": pa.array([1, 2]),
        "at": pa.array([MOMENT.replace(tzinfo=timezone.utc), None], pa.timestamp("us", "America/New_York")),
        "local": pa.array([MOMENT, None], pa.timestamp("us")),
        "day": pa.array([date(2024, 1, 2), None]),
        "clock": pa.array([time(1, 2, 3, 4), None]),
        "price": pa.array([decimal.Decimal("1.10"), None]),
        "ratio": pa.array([0.1, float("nan")]),
        "flag": pa.array([True, None]),
        "big": pa.array([2**64 - 1, None], pa.uint64()),
        "text": pa.array(['say "hi"\n', "é"]),
        "blob": pa.array([b"\xff\x00", b"plain"]),
        "nested": pa.array([{"t": MOMENT, "x": None}, None], INNER),
        "items": pa.array([[{"t": None, "x": 1}, None], []], pa.list_(INNER)),
        "attributes": pa.array([[("k", 1), ("l", None)], None], pa.map_(pa.string(), pa.int64())),
        "counts": pa.array([[(7, ["a"])], []], pa.map_(pa.int32(), pa.list_(pa.string()))),
        "word": pa.array(["a", "a"]).dictionary_encode(),
    }
)
FIRST = {
    "id": 1,
    "at": "2023-11-14T22:13:20.123456Z",
    "local": "2023-11-14T22:13:20.123456",
    "day": "2024-01-02",
    "clock": "01:02:03.000004",
    "price": 1.10,
    "ratio": 0.1,
    "flag": True,
    "big": 2**64 - 1,
    "text": 'say "hi"\n',
    "blob": {"base64": "/wA="},
    "nested": {"t": "2023-11-14T22:13:20.123456", "x": None},
    "items": [{"t": None, "x": 1}, None],
    "attributes": {"k": 1, "l": None},
    "counts": {"7": ["a"]},
    "word": "a",
}
SECOND = {
    **dict.fromkeys(FIRST),
    "id": 2,
    "ratio": "NaN",
    "text": "é",
    "blob": "plain",
    "items": [],
    "counts": {},
    "word": "a",
}


def test_a_row_as_json_has_all_of_its_columns(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    values = [value for _, value, _ in rows([tmp_path])]
    assert [json.loads(value) for value in values] == [FIRST, SECOND]
    assert b'"price": 1.10,' in values[0]


def test_a_column_as_key_or_value_equals_its_value_in_a_row(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    for name in ("nested", "items", "attributes", "counts", "ratio", "big", "flag"):
        key, value, _ = rows([tmp_path], key=name, value=name)[0]
        assert json.loads(key) == json.loads(value) == FIRST[name]
    for name in ("at", "local", "day", "clock", "text", "word"):
        assert rows([tmp_path], key=name)[0][0].decode() == FIRST[name]
    assert rows([tmp_path], key="blob")[0][0] == b"\xff\x00"
    assert [key for key, _, _ in rows([tmp_path], key="nested")][1] is None


def test_each_row_has_the_columns_of_its_own_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"more": ["x"], "id": [2]}), tmp_path / "b.parquet")
    assert rows([tmp_path], key="id") == [(b"1", b'{"id": 1}', None), (b"2", b'{"more": "x", "id": 2}', None)]
    with pytest.raises(InvalidRecordError, match="no column more; it has id") as raised:
        rows([tmp_path], timestamp="more")
    assert raised.value.details["file"] == str(tmp_path / "a.parquet")


def test_times_of_columns_are_milliseconds_in_utc(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    ms = 1_700_000_000_123
    assert [[row[2] for row in rows([tmp_path], timestamp=name)] for name in ("at", "local")] == [[ms, None]] * 2
    with pytest.raises(InvalidRecordError, match="not a time") as raised:
        rows([tmp_path], timestamp="text")
    assert raised.value.details == {"file": str(tmp_path / "a.parquet"), "row": 0}


def test_records_have_the_columns_of_a_topic(tmp_path: Path) -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {"key": ["k"], "value": [b"v"], "timestamp": [5], "partition": pa.array([1], pa.int32()), "offset": [9]}
    pq.write_table(pa.table({**columns, "headers": pa.array([[("h", b"1")]], headers)}), tmp_path / "a.parquet")
    (table,) = tables([tmp_path], format="records", headers=(("more", "2"),))
    assert table.to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "timestamp": 5,
            "partition": 1,
            "headers": [{"key": "h", "value": b"1"}, {"key": "more", "value": b"2"}],
        }
    ]
    (table,) = tables([tmp_path], format="records", partition=3)
    assert table["partition"].to_pylist() == [3]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidRecordError, match="the Parquet file cannot be read") as raised:
        rows([path])
    assert raised.value.details["file"] == str(path)


@pytest.mark.parametrize("split_bytes", [None, 1])
def test_a_bad_time_is_named_by_its_row_in_the_file(tmp_path: Path, split_bytes: int | None) -> None:
    times = [*["2024-01-01"] * 250, "soon"]
    pq.write_table(pa.table({"at": times}), tmp_path / "a.parquet", row_group_size=100)
    with pytest.raises(InvalidRecordError, match="time") as raised:
        rows([tmp_path], split_bytes, timestamp="at")
    assert raised.value.details == {"file": str(tmp_path / "a.parquet"), "row": 250}


@pytest.mark.parametrize(("together", "largest"), [(1 << 20, 600_000), (1 << 18, 80_000)])
def test_a_large_row_group_is_never_in_memory_at_once(
    monkeypatch: pytest.MonkeyPatch, together: int, largest: int
) -> None:
    """One of two columns of 600 kB is read: in a single request, or in requests of a buffer and a page."""
    monkeypatch.setattr(table_rows, "_MAX_GROUP_FETCH", together)
    monkeypatch.setattr(table_rows, "_OBJECT_BUFFER_BYTES", 1 << 16)
    count, sizes = 60_000, list[int]()

    class Measured(InputStorage):
        def read(self, url: str, start: int, end: int) -> bytes:
            sizes.append(end - start)
            return super().read(url, start, end)

    numbers = pa.array([f"{number:010d}" for number in range(count)])
    table = pa.table({"unread": numbers, "value": numbers})
    url = "memory://row-groups/a.parquet"
    with fsspec.open(url, "wb") as file:
        pq.write_table(
            table,
            file,
            row_group_size=count,
            data_page_size=1 << 14,
            compression="none",
            use_dictionary=False,
            column_encoding="DELTA_LENGTH_BYTE_ARRAY",
        )
    reader = FileReader(ReadOptions(value="value"), Measured())
    reading = reader.read(reader.splits(reader.files([url])))
    values = [value for part in reading for value in part.records["value"].to_pylist()]
    assert values == [b"%010d" % number for number in range(count)]
    assert max(sizes) == pytest.approx(largest, rel=0.2)
    assert sum(sizes) < 800_000
