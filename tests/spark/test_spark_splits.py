"""Splits and row formats: the input of a task, and its batches for Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from searches import examples

import distlog
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.segments.chunks import READ_UNCOMMITTED, SegmentSlice
from distlog.spark.batch_source import (
    MAX_BYTES,
    MIN_BYTES,
    TYPES,
    Split,
    SplitReader,
    SplitSize,
    check_schema,
    check_writable,
    divide,
    schema_of,
    spark_batches,
)

pytestmark = pytest.mark.spark

RECORDS = 1200


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> distlog.Topic:
    url = str(tmp_path_factory.mktemp("splits") / "clicks")
    new_topic = distlog.create(url, partitions=3, config={"batch.bytes": "700", "internal.segment.bytes": "9000"})
    values = [{"value": bytes(index % 97), "timestamp": index} for index in range(RECORDS)]
    new_topic.append(values[:-5], partition=0)
    new_topic.append(values[-5:], partition=1)
    return new_topic


def read_offsets(topic: distlog.Topic, slices: list[SegmentSlice]) -> list[tuple[int, int]]:
    reader = SplitReader(topic.storage, topic.name, schema_of(["partition", "offset"], False))
    batches = reader.read(Split(slices, READ_UNCOMMITTED))
    return [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]


@examples(25)
@given(
    start=st.integers(0, RECORDS - 5),
    length=st.integers(0, RECORDS),
    splits=st.integers(1, 300),
    max_records=st.none() | st.integers(1, 400),
)
def test_every_record_is_in_exactly_one_split_and_in_order(
    topic: distlog.Topic, start: int, length: int, splits: int, max_records: int | None
) -> None:
    end = min(start + length, RECORDS - 5)
    slices = topic.scan(start={0: start}, end={0: end}).slices
    groups = divide(slices, SplitSize(2, splits, max_records))
    offsets = [read_offsets(topic, group) for group in groups]
    assert [row for rows in offsets for row in rows] == [(0, offset) for offset in range(start, end)] + [
        (1, offset) for offset in range(5)
    ]
    assert max_records is None or max(map(len, offsets)) <= max_records


def test_a_part_of_a_large_segment_is_shared_by_all_tasks(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), config={"batch.bytes": "500"})
    topic.append([{"value": bytes(90)} for _ in range(2000)])
    groups = divide(topic.scan(start=1500).slices, SplitSize(2, min_splits=5))
    sizes = [len(read_offsets(topic, group)) for group in groups]
    assert sum(sizes) == 500
    assert len(sizes) == 5
    assert max(sizes) <= 110


def test_tasks_are_equal_with_one_dominant_partition(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), 10, config={"batch.bytes": "500"})
    for partition in range(10):
        topic.append([{"value": bytes(90)} for _ in range(8100 if partition == 3 else 100)], partition=partition)
    groups = divide(topic.scan().slices, SplitSize(2, min_splits=9))
    offsets = [read_offsets(topic, group) for group in groups]
    assert len(offsets) == 9
    assert max(map(len, offsets)) < 1.2 * 9000 / 9
    assert sum(any(partition == 3 for partition, _ in rows) for rows in offsets) >= 8


def test_the_size_of_splits_follows_the_cores_between_two_bounds() -> None:
    assert SplitSize(2).target_bytes(1 << 20) == 1 << 20
    assert SplitSize(8).target_bytes(2 * MIN_BYTES) == MIN_BYTES
    assert SplitSize(2).target_bytes(800 << 20) == 100 << 20
    assert SplitSize(2).target_bytes((800 << 20) + 1) == (100 << 20) + 1
    assert SplitSize(2).target_bytes(1 << 40) == MAX_BYTES
    assert SplitSize(2, min_splits=100).target_bytes(1000) == 10
    assert SplitSize(2, min_splits=3).target_bytes(1 << 40) == MAX_BYTES
    assert SplitSize(2, min_splits=3).target_bytes(0) == 1


def test_no_core_is_idle_while_the_last_splits_are_read() -> None:
    assert SplitSize(2).target_bytes(3 * MIN_BYTES) == 3 * MIN_BYTES // 2
    assert SplitSize(2).target_bytes(4 * MIN_BYTES) == MIN_BYTES
    assert SplitSize(3).target_bytes(7 * MIN_BYTES) == -(-7 * MIN_BYTES // 6)


def test_no_slices_are_no_splits() -> None:
    assert divide([], SplitSize(2, 10, 10)) == []


def test_a_reader_pickles_small(topic: distlog.Topic) -> None:
    reader = SplitReader(topic.storage, topic.name, schema_of(None, True))
    assert len(pickle.dumps(reader)) < 10_000


def test_a_split_shows_its_size(topic: distlog.Topic) -> None:
    slices = topic.scan().slices
    size = sum(part.segment.log_bytes for part in slices)
    assert repr(Split(slices, READ_UNCOMMITTED)) == f"Split(segments={len(slices)}, bytes={size})"


def rows(topic: distlog.Topic, columns: list[str]) -> pa.Table:
    schema = schema_of(columns, False)
    reader = SplitReader(topic.storage, topic.name, schema)
    batches = reader.read(Split(topic.scan().slices, READ_UNCOMMITTED))
    return pa.Table.from_batches(batches, to_arrow_schema(schema, timezone="UTC"))


@pytest.fixture
def mixed(tmp_path: Path) -> distlog.Topic:
    topic = distlog.create(str(tmp_path / "mixed"))
    topic.append(
        [
            {"key": b"a", "value": b"1", "timestamp": 1_700_000_000_123, "headers": [("h", b"x"), ("i", None)]},
            {"key": None, "value": None, "timestamp": -1},
            {"key": b"", "value": b"", "timestamp": 0, "headers": [("j", b"")]},
        ]
    )
    return topic


def test_rows_have_the_columns_of_the_kafka_source(mixed: distlog.Topic) -> None:
    table = rows(mixed, list(TYPES))
    assert table.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_123_000, -1000, 0]
    assert table.drop_columns(["timestamp"]).to_pylist() == [
        {
            "key": key,
            "value": value,
            "topic": "mixed",
            "partition": 0,
            "offset": offset,
            "timestampType": 0,
            "headers": headers,
        }
        for offset, (key, value, headers) in enumerate(
            [
                (b"a", b"1", [{"key": "h", "value": b"x"}, {"key": "i", "value": None}]),
                (None, None, []),
                (b"", b"", [{"key": "j", "value": b""}]),
            ]
        )
    ]


def test_headers_are_never_null(mixed: distlog.Topic) -> None:
    assert rows(mixed, ["headers"]).column(0).null_count == 0


@pytest.mark.parametrize("columns", [["topic"], ["value"], ["timestampType", "offset"], ["headers", "topic", "key"]])
def test_columns_can_be_selected_in_any_order(mixed: distlog.Topic, columns: list[str]) -> None:
    table = rows(mixed, columns)
    assert table.schema.names == columns
    assert table.num_rows == 3


def test_batches_may_grow() -> None:
    batches = [pa.record_batch({"offset": list(range(rows))}) for rows in (0, 1, 5, 2)]
    formatted = list(spark_batches(batches, "mixed", schema_of(["topic", "offset"], False)))
    assert [batch.num_rows for batch in formatted] == [0, 1, 5, 2]
    assert {row["topic"] for batch in formatted for row in batch.to_pylist()} == {"mixed"}


def test_a_slice_of_headers_is_itself(mixed: distlog.Topic) -> None:
    schema = schema_of(["headers"], False)
    (batch,) = mixed.scan(columns=["headers"])
    (part,) = spark_batches([batch.slice(2, 1)], "mixed", schema)
    assert part.column(0).to_pylist() == [[{"key": "j", "value": b""}]]


def test_a_time_out_of_sparks_range_fails(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "far"), config={"message.timestamp.after.max.ms": 2**60})
    topic.append([{"value": b"x", "timestamp": 2**60}])
    with pytest.raises(InvalidRecordError, match=f"timestamp_ms={2**60}"):
        rows(topic, ["timestamp"])
    assert rows(topic, ["value"]).num_rows == 1


@pytest.mark.usefixtures("spark")
def test_a_schema_is_narrowed_by_names_and_types() -> None:
    check_schema(StructType.fromDDL("value binary, offset long"))
    check_schema(StructType.fromDDL("headers array<struct<key: string, value: binary>>"))
    for ddl, message in [
        ("offset int", "offset must be bigint, not int"),
        ("value string", "value must be binary, not string"),
        ("id long", "no column id: choose from key, value, topic"),
        ("key binary not null", "can hold nulls"),
        ("offset long, offset long", "name each column once"),
    ]:
        with pytest.raises(InvalidConfigError, match=message):
            check_schema(StructType.fromDDL(ddl))


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("ddl", "config", "message"),
    [
        ("key string", {}, "the data has no column value"),
        ("value binary", {"cleanup.policy": "compact"}, "the data has no column key"),
        ("value int", {}, "column value must be binary or string"),
        ("value binary, timestamp string", {}, "column timestamp must be timestamp or long"),
        ("value binary, timestamp timestamp_ntz", {}, "column timestamp must be timestamp or long"),
        ("value binary, partition string", {}, "column partition must be integer"),
        ("value binary, headers array<string>", {}, "column headers must be array"),
        ("value binary, id int", {}, "unknown column id"),
        ("value binary, value string", {}, "name each column once"),
    ],
)
def test_an_invalid_schema_is_refused(ddl: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        check_writable(StructType.fromDDL(ddl), distlog.TopicConfig.parse(config))


@pytest.mark.usefixtures("spark")
def test_the_rows_of_a_read_can_be_appended() -> None:
    check_writable(schema_of(list(TYPES), True), distlog.TopicConfig())
    check_writable(StructType.fromDDL("key string, value string, partition tinyint"), distlog.TopicConfig())
