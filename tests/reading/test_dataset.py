"""A topic as an Arrow dataset: filters of DuckDB, Polars and Arrow return what they must, and bound what is read."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import duckdb
import golden
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from adopted import adopt_golden
from hypothesis import given
from hypothesis import strategies as st
from topics import NOW, TINY, topic_on

import distlog
from distlog.core.read import dataset
from distlog.core.read.conditions import Conditions
from distlog.core.storage.storage import Storage


def topic_of(storage: Storage, config: dict[str, str], count: int = 60) -> distlog.Topic:
    """A topic of 3 partitions with `count` records each, a ms apart, in segments that overlap in time."""
    topic = topic_on(storage, 3, config)
    for start in range(0, count, 20):
        for partition in range(3):
            rows = range(start, min(start + 20, count))
            records = [{"key": f"k{row % 7}", "value": f"v{row}", "timestamp": NOW + row ^ 3} for row in rows]
            topic.append(records, partition=partition)
    return topic


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> distlog.Topic:
    return topic_of(Storage(str(tmp_path_factory.mktemp("small") / "t")), TINY)


NAMES = {"partition": st.integers(-1, 4), "offset": st.integers(-2, 70), "timestamp": st.integers(-3, 70)}


def comparison(name: str, operator: str, number: int) -> pc.Expression:
    field, value = pc.field(name), pa.scalar(number)
    if name == "timestamp":
        # a filter may be finer than the column
        value = pa.scalar(1000 * (NOW + number) + number % 3, pa.timestamp("us", "UTC"))
    operators = {
        "=": field == value,
        "!=": field != value,
        "<": field < value,
        "<=": field <= value,
        ">": field > value,
        ">=": field >= value,
    }
    return operators[operator]


LEAVES = st.one_of(
    *(
        st.builds(comparison, st.just(name), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), numbers)
        for name, numbers in NAMES.items()
    ),
    st.lists(st.integers(-1, 70), min_size=1, max_size=3).map(lambda numbers: pc.field("offset").isin(numbers)),
    st.lists(st.integers(-1, 4), min_size=1, max_size=3).map(lambda numbers: pc.field("partition").isin(numbers)),
    st.sampled_from(["k1", "k5", "none"]).map(lambda key: pc.field("key") == key.encode()),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda first, second: first & second, inner, inner),
        st.builds(lambda first, second: first | second, inner, inner),
        inner.map(lambda expression: ~expression),
    ),
    max_leaves=5,
)


@given(condition=FILTERS, columns=st.lists(st.sampled_from(["offset", "key", "value"]), unique=True, min_size=1))
def test_a_filter_returns_the_records_of_the_whole_topic_that_pass_it(
    small: distlog.Topic, condition: pc.Expression, columns: list[str]
) -> None:
    dataset, everything = small.dataset(), small.scan().to_table()
    expected = everything.filter(condition)
    assert dataset.to_table(filter=condition).equals(expected)
    assert dataset.to_table(columns, filter=condition).equals(expected.select(columns))
    assert dataset.count_rows(condition) == len(expected)
    assert dataset.head(3, filter=condition).equals(expected.slice(0, 3))
    assert dataset.filter(condition).count_rows(pc.field("offset") > 5) == len(
        expected.filter(pc.field("offset") > 5)
    )


def test_records_without_a_time_and_of_aborted_transactions_are_as_in_a_scan(memory_url: Any) -> None:
    for name in ("first.txn-0", "logs.v0-none-0", "logs.mixed-0"):
        topic = adopt_golden(f"{memory_url.url}/{name}", golden.partitions()[name])
        for isolation in ("read_uncommitted", "read_committed"):
            everything = topic.scan(isolation=isolation).to_table()
            dataset = topic.dataset(isolation)
            assert dataset.to_table().equals(everything)
            assert dataset.count_rows() == len(everything)
            for condition in (
                pc.field("timestamp") < datetime(2000, 1, 1, tzinfo=timezone.utc),
                pc.field("offset") > 3,
            ):
                assert dataset.to_table(filter=condition).equals(everything.filter(condition))


def test_a_filter_reads_only_the_segments_that_may_have_its_records(storage: Storage) -> None:
    topic = topic_on(storage, 1)
    for number in range(20):
        records = [{"value": b"x" * 5000, "timestamp": NOW + 1000 * number + row} for row in range(20)]
        topic.append(records)
    dataset, counters = topic.dataset(), topic.storage.counters
    start = datetime.fromtimestamp((NOW + 3000) / 1000, timezone.utc)

    def bytes_of(run: Any) -> int:
        old_bytes = counters.bytes_read
        run()
        return int(counters.bytes_read - old_bytes)

    everything = bytes_of(dataset.to_table)
    assert everything > 20 * 100_000
    for condition in (
        (pc.field("offset") >= 60) & (pc.field("offset") < 80),
        (pc.field("timestamp") >= start)
        & (pc.field("timestamp") < datetime.fromtimestamp(start.timestamp() + 1, timezone.utc)),
        pc.field("offset").isin([61, 65]),
    ):
        assert 0 < bytes_of(lambda condition=condition: dataset.to_table(filter=condition)) < everything / 18
    assert bytes_of(lambda: dataset.to_table(filter=pc.field("partition") == 7)) == 0
    assert bytes_of(lambda: dataset.head(1)) < everything / 3
    # counts: all from metadata, or but for the segments at the edges
    assert bytes_of(dataset.count_rows) == 0
    clicks = topic.dataset()
    connection = duckdb.connect()
    connection.register("clicks", clicks)
    assert bytes_of(lambda: connection.sql("SELECT count(*) FROM clicks").fetchall()) == 0
    query = (
        f"SELECT count(*) FROM clicks WHERE timestamp >= to_timestamp({start.timestamp()}) + INTERVAL 5 MILLISECOND"
    )
    assert bytes_of(lambda: connection.sql(query).fetchall()) < everything / 18
    assert connection.sql(query).fetchall() == [(335,)]


def test_duckdb_and_polars_push_their_filters_down(small: distlog.Topic) -> None:
    clicks = small.dataset(text=True)
    connection = duckdb.connect()
    connection.register("clicks", clicks)
    query = 'SELECT key, count(*) FROM clicks WHERE "offset" BETWEEN 7 AND 20 AND partition IN (0, 2) GROUP BY key'
    counts = dict(connection.sql(query).fetchall())
    table = small.scan().to_table()
    rows = table.filter((pc.field("offset") >= 7) & (pc.field("offset") <= 20) & (pc.field("partition") != 1))
    expected = {row["values"].decode(): row["counts"] for row in pc.value_counts(rows["key"]).to_pylist()}
    assert counts == expected
    frame = pl.scan_pyarrow_dataset(small.dataset()).filter(pl.col("offset") < 3, pl.col("key") == b"k1")
    assert frame.select("offset").collect()["offset"].to_list() == [1, 1, 1]


def test_a_dataset_keeps_its_snapshot_also_in_another_process(storage: Storage) -> None:
    topic = topic_of(storage, {})
    dataset = topic.dataset(text=["key"])
    copy = pickle.loads(pickle.dumps(dataset))
    topic.append([{"value": "new"}])
    assert dataset.count_rows() == copy.count_rows() == 180
    assert copy.schema == dataset.schema
    assert [copy.schema.field(name).type for name in ("key", "value")] == [pa.string(), pa.binary()]
    assert copy.to_table().equals(dataset.to_table())
    assert "version=9" in repr(copy)


def test_text_that_is_not_utf8_is_an_error_with_partition_and_offset(storage: Storage) -> None:
    topic = topic_of(storage, {})
    topic.append([{"key": b"\xff", "value": "v"}], partition=2)
    with pytest.raises(
        distlog.InvalidRecordError, match=r"key of a record of .* is not UTF-8.*partition=2 offset=60"
    ):
        topic.dataset(text=True).to_table()
    clicks = topic.dataset(text=True)
    connection = duckdb.connect()
    connection.register("bad", clicks)
    with pytest.raises(duckdb.Error, match=r"key of a record of .* is not UTF-8.*partition=2 offset=60"):
        connection.sql("SELECT max(key) FROM bad").fetchall()
    with pytest.raises(distlog.InvalidConfigError, match="key and value"):
        topic.dataset(text=["headers"])


def test_methods_of_arrow_that_have_no_files_to_work_on_do_not_end_the_process(small: distlog.Topic) -> None:
    dataset = small.dataset()
    assert dataset.sort_by([("offset", "descending")]).head(1)["offset"].to_pylist() == [59]
    assert dataset.take([0, 5])["offset"].to_pylist() == [0, 5]
    columns = dataset.scanner(["offset", "partition"]).to_table()
    assert ds.dataset(columns).join(ds.dataset(columns), ["offset", "partition"]).count_rows() == 180
    for call in (
        dataset.get_fragments,
        lambda: ds.dataset([dataset, dataset]),
        lambda: dataset.replace_schema(dataset.schema),
    ):
        with pytest.raises(NotImplementedError):
            call()
    with pytest.raises(OSError, match="a topic has no Arrow files"):
        ds.Scanner.from_dataset(dataset).to_table()
    with pytest.raises(distlog.InvalidRecordError, match="no column x"):
        dataset.to_table(["x"])


def test_a_filter_without_an_encoding_bounds_nothing(small: distlog.Topic) -> None:
    schema = small.dataset().schema
    for condition in (pc.field("offset").cast("double") > 1.5, pc.field("offset") > pc.field("partition")):
        conditions = Conditions.of_expression(condition, schema, range(3))
        assert conditions == Conditions(frozenset({0, 1, 2}), is_exact=False)
    assert small.dataset().count_rows(pc.field("offset").cast("double") > 1.5) == 3 * 58


def test_a_limit_ends_the_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = distlog.create(f"{tmp_path}/t", config={"segment.bytes": 1 << 20, "retention.ms": -1})
    for _ in range(40):
        topic.append([{"value": random.randbytes(1 << 19)}])
    batches, read = list[pa.RecordBatch](), dataset.read_slices

    def noted(*arguments: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(*arguments):
            batches.append(batch)
            yield batch

    monkeypatch.setattr(dataset, "read_slices", noted)
    connection = duckdb.connect()
    connection.register("clicks", topic.dataset())
    assert len(connection.sql("SELECT value FROM clicks LIMIT 1").fetchall()) == 1
    assert topic.dataset().head(1, filter=pc.field("key").is_null()).num_rows == 1
    assert next(topic.dataset().to_batches()).num_rows > 0
    count = len(batches)
    assert len(connection.sql("SELECT value FROM clicks").fetchall()) == 40
    assert count < 6
    assert len(batches) - count > 3
