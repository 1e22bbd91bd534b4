"""When a segment ends in one append: by record time, by its indexes, by size."""

from __future__ import annotations

import itertools
import random
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from searches import examples
from topics import Clock, contents, topic_on

from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.config import TopicConfig
from distlog.core.format.record_batch import read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.format.record_encoder import RecordInput
from distlog.core.segments.segment_writer import SegmentWriter
from distlog.core.storage.storage import Storage

NOW = 1_700_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR


def write(
    timestamps: list[int],
    *,
    steps: int = 0,
    size: int = 0,
    clock: Clock | None = None,
    seed: int = 0,
    **config: object,
) -> list[tuple[SegmentInfo, bytes]]:
    """Return the segments of records with these times, and their logs; appended in `steps`, an hour apart."""
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    ids = (f"{number:032x}" for number in itertools.count())
    writer = SegmentWriter(
        storage,
        "t",
        0,
        0,
        TopicConfig.parse({name.replace("_", "."): value for name, value in config.items()}),
        codec="none",
        clock=clock or Clock(NOW),
        new_id=ids.__next__,
        random=random.Random(seed),
    )
    for start in range(0, len(timestamps), steps or len(timestamps) or 1):
        part = timestamps[start : start + (steps or len(timestamps))]
        columns = {"key": pa.nulls(len(part), pa.binary()), "value": pa.array([bytes(size)] * len(part))}
        batch = pa.RecordBatch.from_pydict({"timestamp": pa.array(part, pa.int64()), **columns})
        writer.append(RecordInput.from_arrow(batch), np.arange(batch.num_rows))
        if clock:
            clock.now_ms += HOUR
    return [(segment, storage.read(f"t-0/{segment.stem}.log")) for segment in writer.close()]


def times(written: list[tuple[SegmentInfo, bytes]]) -> list[list[int]]:
    return [
        decode(log, read_headers(log), columns=["timestamp"])["timestamp"].cast("int64").to_pylist()
        for _, log in written
    ]


def hours(days: float) -> list[int]:
    return [NOW + hour * HOUR for hour in range(int(days * 24))]


@pytest.mark.parametrize("batch_bytes", [100, 131_072, 1 << 20])
def test_a_bulk_append_of_thirty_days_is_a_segment_per_day(batch_bytes: int) -> None:
    written = write(hours(30), segment_ms=DAY, batch_bytes=batch_bytes)
    segment_times = times(written)
    assert [time for segment in segment_times for time in segment] == hours(30)
    assert len(segment_times) == 29
    assert {segment[-1] - segment[0] for segment in segment_times[:-1]} == {DAY}


def test_records_without_a_time_roll_by_the_clock() -> None:
    segment_times = times(write([-1] * 9000, steps=3000, size=1000, clock=Clock(NOW), segment_ms=HOUR))
    assert len(segment_times) == 2


def test_jitter_shortens_segment_ms_at_random() -> None:
    spans = set()
    for seed in range(20):
        segment_times = times(write(hours(10), segment_ms=DAY, segment_jitter_ms=10 * HOUR, seed=seed))
        spans |= {segment[-1] - segment[0] for segment in segment_times[:-1]}
    assert 14 * HOUR <= min(spans) < max(spans) <= DAY
    assert len(spans) > 3


def test_jitter_above_segment_ms_is_lowered() -> None:
    for seed in range(20):
        assert 1 <= len(write(hours(2), segment_ms=DAY, segment_jitter_ms=9000 * DAY, seed=seed)) <= 48


def test_a_compacted_topic_rolls_when_its_records_must_be_compacted() -> None:
    lag = {"max_compaction_lag_ms": 6 * HOUR, "segment_ms": DAY}
    assert len(write(hours(2), cleanup_policy="compact", **lag)) == 7
    assert len(write(hours(2), **lag)) == 2


def test_log_append_time_has_one_time_for_an_append() -> None:
    clock = Clock(NOW)
    late = [NOW] * 100
    assert len(write(late, steps=1, clock=clock, segment_ms=DAY, message_timestamp_type="LogAppendTime")) == 1


@pytest.mark.long
# with a small limit, nearly each record has a segment
@pytest.mark.parametrize(("index_bytes", "length"), [(4, 5), (12, 5), (24, 10), (80, 30), (100, 30)])
def test_no_index_grows_above_segment_index_bytes(index_bytes: int, length: int) -> None:
    written = write(hours(length), segment_index_bytes=index_bytes, index_interval_bytes=0, batch_bytes=1)
    assert [time for segment in times(written) for time in segment] == hours(length)
    sizes = [(segment.offset_index_bytes, segment.time_index_bytes) for segment, _ in written]
    limit = max(index_bytes, 12)  # the largest time has a reserved entry
    assert max(map(max, sizes)) <= limit
    if index_bytes == 80:
        # five entries are full, since one is reserved for the largest time; the first batch has none
        assert set(sizes[:-1]) == {(40, 60)}
        assert len(written) == 120


def kafka_rolls(batches: Any, span: int, limit: int) -> list[int]:
    """Return how many `batches` (smallest, first and largest time, size) each segment takes, in plain Python."""
    counts: list[int] = []
    size = begin = 0
    for smallest, first, largest, length in batches:
        if not counts or size + length > limit or (begin >= 0 and largest - begin > span):
            counts.append(0)
            size = 0
            begin = first if 0 <= first == smallest and largest - first <= span else largest
        counts[-1] += 1
        size += length
    return counts


@given(
    st.lists(st.integers(-1, 40), min_size=1, max_size=80),
    st.integers(1, 50),
    st.integers(1, 100),
    st.integers(100, 2000),
    st.integers(1, 80),
)
@examples(80)
def test_segments_end_by_kafkas_rule(data: list[int], span: int, batch: int, segment: int, steps: int) -> None:
    written = write(data, steps=steps, segment_ms=span, batch_bytes=batch, internal_segment_bytes=segment)
    assert [time for segment_times in times(written) for time in segment_times] == data
    rows, counts = [], []
    for _, log in written:
        headers = read_headers(log)
        counts.append(len(headers))
        for header in headers:
            part = log[header["position"] : header["position"] + header["size"]]
            timestamps = (
                decode(part, read_headers(part), columns=["timestamp"])["timestamp"].cast("int64").to_pylist()
            )
            rows.append((min(timestamps), timestamps[0], max(timestamps), len(part)))
    assert kafka_rolls(rows, span, segment) == counts


def test_retention_removes_a_bulk_load_in_parts() -> None:
    clock = Clock(NOW + 30 * DAY)
    config = {"segment.ms": DAY, "retention.ms": 10 * DAY}
    topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}"), 1, config, clock)
    topic.append([{"value": b"%d" % time, "timestamp": time} for time in hours(30)])
    topic.retention()
    remaining = [int(value or b"") for value in contents(topic)[0]]
    assert remaining[-1] == hours(30)[-1]
    assert 10 * DAY <= NOW + 30 * DAY - remaining[0] <= 11 * DAY + HOUR
