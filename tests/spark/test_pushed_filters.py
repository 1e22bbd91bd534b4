"""Filters that Spark pushes down: they narrow what is planned, and never the answer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_reads import (
    PARTITIONS,
    RECORDS,
    TINY_BATCHES,
    at_s,
    load,
    message,
    offsets,
    refusal,
    rows,
    source,
)
from planned_reads import url as url
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from searches import examples

import distlog
from distlog.core.errors import InvalidConfigError
from distlog.spark.batch_source import Split, schema_of

pytestmark = pytest.mark.spark


FIRST, LAST = (0, 20), (20, 40)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("partition",), 1)], {1: (0, 40)}),
        ([In(("partition",), [2, 0])], {0: (0, 40), 2: (0, 40)}),
        ([GreaterThan(("partition",), 1)], {2: (0, 40)}),
        ([LessThan(("partition",), 1), LessThanOrEqual(("offset",), 9)], {0: (0, 10)}),
        ([GreaterThanOrEqual(("offset",), 38)], dict.fromkeys(range(3), (38, 40))),
        ([GreaterThan(("offset",), 3), LessThan(("offset",), 6)], dict.fromkeys(range(3), (4, 6))),
        ([EqualTo(("offset",), 7)], dict.fromkeys(range(3), (7, 8))),
        ([In(("offset",), [9, 4])], dict.fromkeys(range(3), (4, 10))),
        ([GreaterThan(("offset",), 100)], {}),
        ([LessThan(("offset",), -3)], {}),
        ([GreaterThanOrEqual(("timestamp",), at_s(39.0005))], {}),
        ([GreaterThan(("timestamp",), at_s(38.5))], dict.fromkeys(range(3), LAST)),
        ([GreaterThan(("timestamp",), at_s(4e9))], {}),
        ([GreaterThan(("timestamp",), at_s(-7))], dict.fromkeys(range(3), (0, 40))),
        ([LessThan(("timestamp",), at_s(-7))], {}),
        ([GreaterThan(("timestamp",), datetime(2100, 1, 1))], dict.fromkeys(range(3), (0, 40))),
        ([LessThan(("timestamp",), at_s(3)), EqualTo(("value",), b"v2")], dict.fromkeys(range(3), FIRST)),
        ([In(("timestamp",), [at_s(39), at_s(38.7)])], dict.fromkeys(range(3), LAST)),
        (
            [EqualTo(("timestamp",), at_s(1)), LessThanOrEqual(("timestamp",), at_s(39))],
            dict.fromkeys(range(3), FIRST),
        ),
        ([IsNotNull(("offset",)), Not(EqualTo(("offset",), 3))], dict.fromkeys(range(3), (0, 40))),
        ([EqualNullSafe(("partition",), 1), EqualTo(("offset",), True)], dict.fromkeys(range(3), (0, 40))),
        ([In(("offset",), []), EqualTo(("offset", "inner"), 3)], dict.fromkeys(range(3), (0, 40))),
    ],
)
def test_pushed_filters_narrow_the_plan_and_are_all_returned(
    url: str, filters: list[Filter], expected: dict[int, tuple[int, int]]
) -> None:
    reader = source(url, pushFilters="true").reader(schema_of(None, False))
    assert list(reader.pushFilters(filters)) == filters
    slices = [item for part in reader.partitions() if isinstance(part, Split) for item in part.slices]
    spans = {
        number: (
            min(max(item.start_offset, item.segment.base_offset) for item in own_slices),
            max(min(item.end_offset, item.segment.next_offset) for item in own_slices),
        )
        for number in range(PARTITIONS)
        if (own_slices := [item for item in slices if item.segment.partition == number])
    }
    assert spans == expected


@pytest.mark.parametrize(
    ("options", "filters", "count"),
    [
        ({"keys": '["k1", "k2"]'}, [], 2),
        ({"keys": "[]"}, [], 0),
        ({"pushFilters": "true"}, [EqualTo(("key",), b"k3")], 1),
        ({"pushFilters": "true"}, [In(("key",), [bytearray(b"k3"), b"k4", b"k39"])], 3),
        ({"pushFilters": "true"}, [In(("key",), [b"k3", b"k4"]), EqualTo(("key",), b"k4")], 1),
        ({"pushFilters": "true", "keys": '["k3"]'}, [EqualTo(("key",), b"k4")], 0),
        ({"pushFilters": "true"}, [LessThan(("key",), b"k4")], RECORDS),
    ],
)
def test_keys_select_records(url: str, options: dict[str, str], filters: list[Filter], count: int) -> None:
    reader = source(url, **options).reader(schema_of(["key"], False))
    if filters:
        list(reader.pushFilters(filters))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == PARTITIONS * count


@pytest.mark.parametrize("keys", ["anna", '"anna"', "[1]"])
def test_keys_must_be_a_list_of_texts(url: str, keys: str) -> None:
    with pytest.raises(InvalidConfigError, match="option keys must be a list of texts in JSON"):
        source(url, keys=keys).reader(schema_of(["key"], False))


def test_pushed_filters_on_times_drop_no_matching_row(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    for times in ([9, 2, 7], [-1, 5], [-1, -1], [1, 3]):
        topic.append([{"value": b"v", "timestamp": 1000 * time if time > 0 else time} for time in times])
    for kind, passes in (
        (LessThan, lambda time, bound: time < bound),
        (LessThanOrEqual, lambda time, bound: time <= bound),
        (GreaterThan, lambda time, bound: time > bound),
        (GreaterThanOrEqual, lambda time, bound: time >= bound),
        (EqualTo, lambda time, bound: time == bound),
    ):
        for bound in (
            at_s(-1),
            at_s(-0.001),
            at_s(-0.0005),
            at_s(0),
            at_s(2.9995),
            at_s(3),
            at_s(7),
            at_s(9),
            at_s(9.0001),
        ):
            reader = source(topic.url, pushFilters="true").reader(schema_of(["timestamp"], False))
            list(reader.pushFilters([kind(("timestamp",), bound)]))  # type: ignore[arg-type]
            times_read = [
                row["timestamp"] for part in reader.partitions() for b in reader.read(part) for row in b.to_pylist()
            ]
            every = [row["timestamp"] for part in rows(topic.url) for row in part]
            assert [time for time in times_read if passes(time, bound)] == [
                time for time in every if passes(time, bound)
            ]
            assert len(times_read) <= len(every)


@pytest.fixture(scope="module")
def backfilled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a topic of two partitions with times that step back, the second with a record without a time."""
    topic = distlog.create(str(tmp_path_factory.mktemp("backfilled") / "clicks"), partitions=2)
    for partition, times in ((0, (8, 9)), (0, (1, 5)), (1, (5, 2)), (1, (-1, 6, 3))):
        topic.append([{"value": b"v", "timestamp": time} for time in times], partition=partition)
    return topic.url


TIMES = st.integers(0, 25)


@examples(20)
@given(
    appends=st.lists(
        st.tuples(st.integers(0, 1), st.lists(TIMES | st.just(-1), min_size=1, max_size=20)), min_size=1, max_size=5
    ),
    start=TIMES,
    end=TIMES | st.none(),
    splits=st.integers(1, 9),
)
def test_any_range_of_times_equals_the_model(
    tmp_path_factory: pytest.TempPathFactory,
    appends: list[tuple[int, list[int]]],
    start: int,
    end: int | None,
    splits: int,
) -> None:
    topic = distlog.create(
        str(tmp_path_factory.mktemp("times") / "clicks"), 2, {"internal.segment.bytes": 400, **TINY_BATCHES}
    )
    model: list[list[int]] = [[], []]
    for partition, times in appends:
        topic.append([{"value": b"v", "timestamp": time} for time in times], partition=partition)
        model[partition] += times
    bounds = {"startTime": start} | ({} if end is None else {"endTime": end})
    expected = {
        partition: matching
        for partition, times in enumerate(model)
        if (matching := [row for row, time in enumerate(times) if start <= time and (end is None or time < end)])
    }
    assert offsets(topic.url, minPartitions=splits, **bounds) == expected
    planned = source(topic.url, columns="value", **bounds)
    reader = planned.reader(schema_of(["value"], False))
    counts = [batch.num_rows for part in reader.partitions() for batch in reader.read(part)]
    assert sum(counts) == sum(map(len, expected.values()))


def test_times_of_records_are_an_exact_filter_and_those_of_kafka_first_offsets(backfilled: str) -> None:
    assert offsets(backfilled, startTime=5) == {0: [0, 1, 3], 1: [0, 3]}
    assert offsets(backfilled, endTime="1970-01-01T00:00:00.005") == {0: [2], 1: [1, 4]}
    assert offsets(backfilled, startTime=2, endTime=6) == {0: [3], 1: [0, 1, 4]}
    assert offsets(backfilled, startTime=100) == {}
    assert offsets(backfilled, startingTimestamp=5) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3, 4]}
    assert offsets(backfilled, endingTimestamp=6) == {1: [0, 1, 2]}
    assert offsets(backfilled, startTime=3, startingOffsets='{"clicks": {"0": 1, "1": 1}}') == {0: [1, 3], 1: [3, 4]}
    for option in ("startTime", "endTime"):
        assert "milliseconds since 1970" in refusal(backfilled, **{option: -1})


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_pushed_filters_need_sparks_consent(spark: SparkSession, url: str) -> None:
    assert "filterPushdown.enabled" in message(load(spark, url, pushFilters="true").collect)


@pytest.mark.usefixtures("pushdown")
def test_pushed_filters_do_not_change_the_answer(spark: SparkSession, url: str) -> None:
    for condition in (
        "partition in (0, 2) and offset between 2 and 4",
        "timestamp >= timestamp'1970-01-01 00:00:39'",
        "timestamp < timestamp'1970-01-01 00:00:03'",
        "timestamp in (timestamp'1970-01-01 00:00:07', timestamp'1970-01-01 00:00:21')",
        "value = X'7632' or offset = 3",
    ):
        pushed = load(spark, url, pushFilters="true").where(condition).collect()
        assert pushed == load(spark, url).where(condition).collect() != []


@pytest.mark.usefixtures("pushdown")
def test_pushed_filters_leak_into_the_next_scan_of_the_same_frame(spark: SparkSession, url: str) -> None:
    """This documents Spark 4.3.0, and is the reason for the default: when it fails, Spark was fixed."""
    leaky, sound = load(spark, url, pushFilters="true"), load(spark, url)
    for df in (leaky, sound):
        assert df.where("partition = 0 and offset < 5").count() == 5
    assert leaky.count() < PARTITIONS * RECORDS
    assert sound.count() == PARTITIONS * RECORDS
