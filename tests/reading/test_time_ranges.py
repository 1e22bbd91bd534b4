"""Reads by time return exactly the records in the range, in any order, from any writer."""

from __future__ import annotations

import logging
import pickle
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import golden
import memory_files
import pyarrow as pa
import pytest
from adopted import Rows, adopt, adopt_golden, with_indexes
from days import DAY, OCTOBER, of_day, timestamps
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from searches import FACTOR, examples, pairs
from topics import TINY, stored

import distlog
from distlog import Topic
from distlog.cli import record_commands
from distlog.core.format.record_batch import COLUMNS
from distlog.core.format.record_encoder import encode
from distlog.core.read import scan as scan_module
from distlog.core.read.scan import Scan
from distlog.core.segments import segment_reader
from distlog.core.segments.chunks import split_by_bytes

GOLDEN = golden.partitions()


@pytest.fixture
def backfilled(memory_url: Any) -> Topic:
    """Return a topic with October from the 2nd on, followed by a backfill of September and the first of October."""
    topic = distlog.create(memory_url.url)
    for day in (1, 2, 3, -1, 0):
        topic.append(of_day(day))
    return topic


def test_lookups_by_time_return_the_first_offset(backfilled: Topic) -> None:
    assert backfilled.offsets_for_times(OCTOBER) == {0: (0, OCTOBER + DAY)}


WAYS = ("small", "by-index", "without-index")


@pytest.fixture(params=WAYS)
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small":
        return
    worth = 0 if request.param == "by-index" else 1 << 40
    for module in (segment_reader, scan_module):
        monkeypatch.setattr(module, "INDEX_WORTH_BYTES", worth)
    monkeypatch.setattr(segment_reader, "SMALL_BYTES", 0)
    monkeypatch.setattr(segment_reader, "GROUP_BYTES", 0)


TIMES = st.integers(0, 25)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from([b"a", b"b", b"c", b"d"]),
            "value": st.none() | st.binary(max_size=8),
            "timestamp": TIMES | st.just(-1),
            "partition": st.integers(0, 1),
        }
    ),
    max_size=30,
)
#: A list is appended, "compact" compacts or merges, a number is deleted below.
STEPS = st.lists(RECORDS | st.just("compact") | st.integers(0, 20), min_size=1, max_size=6)


def topic_of(url: str, steps: list[Any], policy: str, codec: str, segment_bytes: int) -> Topic:
    config = {**TINY, "cleanup.policy": policy, "compression.type": codec, "min.cleanable.dirty.ratio": 0}
    topic = distlog.create(url, 2, {**config, "internal.segment.bytes": segment_bytes, "index.interval.bytes": 60})
    for step in steps:
        if step == "compact":
            topic.compact()
            topic.alter_config({"internal.segment.bytes": 1000})
        elif isinstance(step, list):
            topic.append(step)
        elif "delete" in policy:
            topic.delete_records({0: min(step, topic.end_offsets()[0])} if step > topic.start_offsets()[0] else {})
    return topic


def of_times(rows: Rows, start: int | None, end: int | None) -> Rows:
    """The model: rows between the times; a row without a time only without bounds."""
    return [
        row
        for row in rows
        if (start is None and end is None)
        or (row["timestamp"] >= (start or 0) and (end is None or row["timestamp"] < end))
    ]


def by_command_line(topic: Topic, start: int | None, end: int | None, limit: int | None) -> Rows:
    batches = record_commands.read_batches(
        topic, [0, 1], record_commands.Bounds(since=start, until=end), limit, COLUMNS
    )
    return [row for batch in batches for row in stored(pa.Table.from_batches([batch]))]


def in_groups(topic: Topic, scan: Scan, target_bytes: int) -> Rows:
    """Return the records of tasks with some slices each, pickled."""
    groups = pickle.loads(pickle.dumps(split_by_bytes(scan.slices, target_bytes)))
    scans = [Scan(topic.reader, group, COLUMNS, scan.isolation) for group in groups]
    assert sum(part.count() for part in scans) == scan.count()
    return [row for part in scans for row in stored(part.to_table())]


@pytest.mark.long
@pytest.mark.usefixtures("each_way")
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=STEPS,
    policy=st.sampled_from(["delete", "compact", "compact,delete"]),
    codec=st.sampled_from(["uncompressed", "zstd"]),
    segment_bytes=st.sampled_from([200, 600, 5000]),
    start=TIMES | st.none(),
    end=TIMES | st.none(),
    offset=st.integers(0, 40),
    limit=st.integers(0, 12),
    target_bytes=st.integers(50, 1000),
)
def test_any_range_of_times_equals_the_model(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Any],
    policy: str,
    codec: str,
    segment_bytes: int,
    start: int | None,
    end: int | None,
    offset: int,
    limit: int,
    target_bytes: int,
) -> None:
    url = f"memory://{tmp_path_factory.mktemp('ranges').name}/t"
    topic = topic_of(url, steps, policy, codec, segment_bytes)
    every = stored(topic.scan().to_table())
    expected = of_times(every, start, end)
    scan = topic.scan(start_time=start, end_time=end)
    assert stored(scan.to_table()) == expected
    assert scan.count() == len(expected)
    values = topic.scan(start_time=start, end_time=end, columns=["value"])
    assert values.to_table().to_pydict() == {"value": [row["value"] for row in expected]}
    assert topic.scan(start_time=start, end_time=end, columns=[]).count() == len(expected)
    assert in_groups(topic, scan, target_bytes) == expected
    assert by_command_line(topic, start, end, None) == expected
    assert by_command_line(topic, start, end, limit) == expected[:limit]
    later = topic.scan([0], start=offset, end_time=end, out_of_range="latest")
    below = [row for row in of_times(every, None, end) if row["partition"] == 0 and row["offset"] >= offset]
    assert stored(later.to_table()) == (below if offset >= topic.start_offsets()[0] else [])
    assert later.count() == later.to_table().num_rows


@pytest.fixture(scope="module")
def adopted_urls(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return the URL of a topic with a broker's files, created on first use."""

    @cache
    def adopt_log(name: str) -> tuple[str, dict[str, Any]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("files")))
            return adopt_golden(f"memory://{uuid.uuid4().hex}", GOLDEN[name]).url, memory_files.held()

    def url(name: str) -> str:
        adopted, files = adopt_log(name)
        memory_files.hold(files)
        return adopted

    return url


@pytest.mark.long
@pytest.mark.parametrize(("name", "each_way"), pairs(GOLDEN, WAYS), indirect=["each_way"])
@pytest.mark.usefixtures("each_way")
def test_a_brokers_log_is_read_by_its_times(adopted_urls: Callable[[str], str], name: str) -> None:
    topic = distlog.open(adopted_urls(name))
    chance = random.Random(name)
    for isolation in ("read_uncommitted", "read_committed"):
        every = topic.scan(isolation=isolation).to_table()
        times = every["timestamp"].cast("int64").to_numpy()
        known_times = times[times >= 0].tolist() or [5]
        for _ in range(FACTOR):
            low, high = sorted(chance.choices(known_times, k=2))
            for start, end in ((low, high), (low, high + 1), (low, None), (None, high)):
                scan = topic.scan(start_time=start, end_time=end, isolation=isolation)
                expected = every.filter((times >= (start or 0)) & (times < (2**63 - 1 if end is None else end)))
                assert scan.to_table().equals(expected)
                assert scan.count() == expected.num_rows


def test_the_start_is_inclusive_and_the_end_exclusive(memory_url: Any) -> None:
    topic = distlog.create(memory_url.url, config={"message.timestamp.after.max.ms": 2**63 - 1})
    topic.append([{"value": b"v", "timestamp": time} for time in (5, 3, 4, 2**63 - 1, 3, 0)])
    assert timestamps(topic, start_time=3, end_time=5) == [3, 4, 3]
    assert timestamps(topic, start_time=4) == [5, 4, 2**63 - 1]
    assert timestamps(topic, start_time=2**63 - 1) == [2**63 - 1]
    assert timestamps(topic, end_time=2**63 + 5) == [5, 3, 4, 2**63 - 1, 3, 0]
    assert timestamps(topic, start_time=4, end_time=4) == timestamps(topic, start_time=5, end_time=3) == []
    assert timestamps(topic, end_time=0) == timestamps(topic, start_time=2**63 + 5, end_time=2**65) == []


def test_bounds_between_two_milliseconds_are_exact(memory_url: Any) -> None:
    """A reader that continues a microsecond after the last record does not return that record again."""
    topic = distlog.create(memory_url.url)
    topic.append([{"value": b"%d" % n, "timestamp": OCTOBER + n} for n in range(3)])
    between = datetime.fromtimestamp(OCTOBER / 1000, timezone.utc) + timedelta(microseconds=1)
    assert topic.scan(start_time=between).to_table()["value"].to_pylist() == [b"1", b"2"]
    assert topic.scan(end_time=between).to_table()["value"].to_pylist() == [b"0"]
    assert topic.offsets_for_times(between) == {0: (1, OCTOBER + 1)}
    (batch,) = topic.consume(start=between, timeout=0)
    assert batch["value"].to_pylist() == [b"1", b"2"]


def test_a_record_without_a_timestamp_is_in_no_range(memory_url: Any) -> None:
    topic = distlog.create(memory_url.url)
    topic.append([{"value": b"v", "timestamp": time} for time in (-1, 0, -1, 7)])
    topic.append([{"value": b"v", "timestamp": -1}] * 3)
    assert timestamps(topic, start_time=0) == timestamps(topic, end_time=8) == [0, 7]
    assert topic.scan(start_time=0).count() == topic.scan(end_time=2**63).count() == 2
    assert topic.scan().count() == 7


@pytest.mark.parametrize("wrong", [-1, distlog.EARLIEST, "1969-12-31", "soon", 1.5])
def test_an_impossible_time_is_refused(backfilled: Topic, wrong: Any) -> None:
    for bound in ("start_time", "end_time"):
        with pytest.raises(ValueError, match=r"ms since 1970|must not be before 1970"):
            backfilled.scan(**{bound: wrong})


def test_a_side_has_an_offset_or_a_time(backfilled: Topic) -> None:
    for side in ("start", "end"):
        with pytest.raises(ValueError, match="not both"):
            backfilled.scan(**{side: 1, f"{side}_time": 1})


def test_a_scan_without_times_reads_no_timestamps(backfilled: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> Iterator[Any]:
        raise AssertionError("a record was asked")

    monkeypatch.setattr("distlog.core.format.record_decoder.records_in_time", never)
    assert backfilled.scan().to_table().num_rows == 5000
    assert backfilled.scan(start_time=OCTOBER, end_time=OCTOBER + 2 * DAY).to_table().num_rows == 2000
    with pytest.raises(AssertionError, match="a record was asked"):
        backfilled.scan(start_time=OCTOBER + 1).to_table()


@pytest.fixture
def hundred_days(memory_url: Any) -> Topic:
    topic = distlog.create(memory_url.url)
    days = list(range(100))
    random.Random(1).shuffle(days)
    for day in days:
        topic.append(of_day(day, 24))
    return topic


def test_a_day_out_of_a_hundred_segments_touches_one(hundred_days: Topic) -> None:
    assert len(hundred_days.snapshot.partitions[0].segments) == 100
    counters = hundred_days.storage.counters
    counters.gets = counters.bytes_read = 0
    scan = hundred_days.scan(start_time=OCTOBER + 50 * DAY, end_time=OCTOBER + 51 * DAY)
    (part,) = scan.slices
    assert scan.count() == 24
    assert counters.gets == 0
    assert scan.to_table().num_rows == 24
    assert (counters.gets, counters.bytes_read) == (1, part.segment.log_bytes)
    half_days = hundred_days.scan(start_time=OCTOBER + 50 * DAY + DAY // 2, end_time=OCTOBER + 53 * DAY + DAY // 2)
    counters.gets = 0
    assert half_days.count() == 72
    assert counters.gets == 2


def unordered(url: str, batch_bytes: int = 16_384) -> Topic:
    """Return one large segment of rising times, with every seventh record late."""
    topic = distlog.create(url, config={"batch.bytes": str(batch_bytes)})
    times = [10 * number - 500 * (number % 7 == 0) * (number > 100) for number in range(60_000)]
    topic.append(pa.table({"value": [bytes(100)] * len(times), "timestamp": pa.array(times)}))
    return topic


def test_a_large_segment_is_read_from_the_position_of_its_time_index(
    memory_url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    topic = unordered(memory_url.url)
    times = timestamps(topic)
    (info,) = topic.snapshot.partitions[0].segments
    counters = topic.storage.counters
    counters.bytes_read = 0
    scan = topic.scan(start_time=550_000)
    assert 50_000 < scan.slices[0].start_offset <= times.index(next(time for time in times if time >= 550_000))
    assert scan.count() == sum(time >= 550_000 for time in times)
    assert counters.bytes_read < info.log_bytes // 5
    counters.bytes_read = 0
    assert topic.scan(start_time=550_000, end_time=550_100).count() == sum(
        550_000 <= record_time < 550_100 for record_time in times
    )
    assert counters.bytes_read < info.log_bytes // 5


def rows_of(topic: Topic, start: int) -> int:
    return topic.scan(start_time=start).to_table().num_rows


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: bytes(len(data)),
        lambda data: data[:-1],
        lambda data: data[:8] + (2**31 - 1).to_bytes(4, "big") + data[12:],
        # every entry claims that no time up to the last record is as late as its own
        lambda data: b"".join(data[number : number + 8] + data[-4:] for number in range(0, len(data), 12)),
    ],
)
def test_a_wrong_time_index_logs_a_warning_and_loses_no_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[bytes], bytes]
) -> None:
    topic = unordered(str(tmp_path / "t"))
    expected = rows_of(topic, 300_000)
    (file,) = (tmp_path / "t" / "t-0").glob("*.timeindex")
    file.write_bytes(spoil(file.read_bytes()))
    with caplog.at_level(logging.WARNING, "distlog"):
        assert rows_of(distlog.open(topic.url), 300_000) == expected
    assert caplog.messages


def test_batches_that_are_too_old_are_not_decoded(memory_url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = distlog.create(memory_url.url, config={"batch.bytes": "100"})
    topic.append([{"value": bytes(60), "timestamp": time} for time in (*range(100, 150), 5, 160, *range(50))])
    decoded = count_decoded(monkeypatch)
    assert timestamps(topic, start_time=148) == [148, 149, 160]
    assert sum(decoded) == 3


def test_batches_of_one_time_that_are_too_late_are_not_decoded(
    memory_url: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [{"timestamp": [time] * 3, "key": [b"k"] * 3, "value": [b"v"] * 3} for time in (9, 2, 7, 4)]
    parts = [
        bytes(
            encode(pa.record_batch(columns), base_offset=3 * row, append_time=lambda row=row: (9, 2, 7, 4)[row]).data
        )
        for row, columns in enumerate(times)
    ]
    topic = adopt(memory_url.url, [(0, with_indexes(b"".join(parts), 0))], 12)
    decoded = count_decoded(monkeypatch)
    assert timestamps(topic, start_time=3, end_time=7) == [4, 4, 4]
    assert sum(decoded) == 3


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []
    module = "distlog.core.format.record_decoder"
    original = __import__(module, fromlist=["scan_sections"]).scan_sections

    def counted(*arguments: Any) -> int:
        counts.append(original(*arguments))
        return counts[-1]

    monkeypatch.setattr(f"{module}.scan_sections", counted)
    return counts


def test_a_small_limit_reads_little_of_a_long_partition(memory_url: Any) -> None:
    topic = distlog.create(memory_url.url)
    for day in range(40):
        topic.append(of_day(day, 10))
    counters = topic.storage.counters
    counters.gets = 0
    bounds = record_commands.Bounds(since=OCTOBER + 20 * DAY + DAY // 2)
    (batch,) = record_commands.read_batches(topic, [0], bounds, 3, ["timestamp"])
    assert batch.num_rows == 3
    assert counters.gets <= 3
