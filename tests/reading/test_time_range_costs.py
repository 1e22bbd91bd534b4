"""Reads by time cost what they find: no segment, batch or request without any record of those times."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from adopted import adopt, with_indexes
from days import DAY, OCTOBER, of_day, timestamps

import distlog
from distlog import Topic
from distlog.cli import reading
from distlog.core.batches.record_encoder import encode


@pytest.fixture
def hundred_days(memory_url: Any) -> Topic:
    """A hundred segments, one for each day, in no order."""
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
    found = hundred_days.scan(start_time=OCTOBER + 50 * DAY, end_time=OCTOBER + 51 * DAY)
    (piece,) = found.slices
    assert found.count() == 24
    assert counters.gets == 0
    assert found.to_table().num_rows == 24
    assert (counters.gets, counters.bytes_read) == (1, piece.segment.log_bytes)
    half_days = hundred_days.scan(start_time=OCTOBER + 50 * DAY + DAY // 2, end_time=OCTOBER + 53 * DAY + DAY // 2)
    counters.gets = 0
    assert half_days.count() == 72
    assert counters.gets == 2


def unordered(url: str, batch_bytes: int = 16_384) -> Topic:
    """One large segment of times that rise, but for each seventh record, which is late by a while."""
    topic = distlog.create(url, config={"batch.bytes": str(batch_bytes)})
    times = [10 * number - 500 * (number % 7 == 0) * (number > 100) for number in range(60_000)]
    topic.append(pa.table({"value": [bytes(100)] * len(times), "timestamp": pa.array(times)}))
    return topic


def test_a_large_segment_is_read_from_where_its_time_index_says(
    memory_url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    topic = unordered(memory_url.url)
    times = timestamps(topic)
    (info,) = topic.snapshot.partitions[0].segments
    counters = topic.storage.counters
    counters.bytes_read = 0
    found = topic.scan(start_time=550_000)
    assert 50_000 < found.slices[0].start_offset <= times.index(next(time for time in times if time >= 550_000))
    assert found.count() == sum(time >= 550_000 for time in times)
    assert counters.bytes_read < info.log_bytes // 5
    counters.bytes_read = 0
    assert topic.scan(start_time=550_000, end_time=550_100).count() == sum(
        550_000 <= each < 550_100 for each in times
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
        # every entry says that nothing is as late as it is up to the last record
        lambda data: b"".join(data[at : at + 8] + data[-4:] for at in range(0, len(data), 12)),
    ],
)
def test_a_wrong_time_index_costs_time_and_a_warning_but_no_record(
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
        bytes(encode(pa.record_batch(each), base_offset=3 * row, append_time=lambda row=row: (9, 2, 7, 4)[row]).data)
        for row, each in enumerate(times)
    ]
    topic = adopt(memory_url.url, [(0, with_indexes(b"".join(parts), 0))], 12)
    decoded = count_decoded(monkeypatch)
    assert timestamps(topic, start_time=3, end_time=7) == [4, 4, 4]
    assert sum(decoded) == 3


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each pass of the decoder finds from here on."""
    counts: list[int] = []
    module = "distlog.core.batches.record_decoder"
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
    bounds = reading.Bounds(since=OCTOBER + 20 * DAY + DAY // 2)
    (batch,) = reading.batches(topic, [0], bounds, 3, ["timestamp"])
    assert batch.num_rows == 3
    assert counters.gets <= 3
