"""The size of a batch by its limits: offsets as in Spark's Kafka source, bytes by metadata and offset indexes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from searches import examples
from streams import Stream
from topics import values

import distlog
from distlog import Topic
from distlog.core.errors import InvalidConfigError
from distlog.spark.stream_plan import Limits, StreamOptions, ends_by_bytes, ends_by_offsets

#: Batches of about 2 kB with an index entry each, in segments of about 600 kB.
LARGE = {
    "batch.bytes": 2000,
    "index.interval.bytes": 0,
    "internal.segment.bytes": 600_000,
    "compression.type": "uncompressed",
}


def topic_of(url: str, counts: dict[int, int], **config: Any) -> Topic:
    """Return a topic with these numbers of records of 100 bytes by partition."""
    topic = distlog.create(url, len(counts), {**LARGE, **config})
    for partition, count in counts.items():
        topic.append([{"value": bytes(100), "partition": partition}] * count)
    return topic


def batch_ends(topic: Topic, partition: int) -> list[int]:
    ends, offset = [], 0
    while offset < topic.end_offsets()[partition]:
        fetched = topic.read(partition, offset, max_bytes=1)
        offset = fetched.next_offset
        ends.append(offset)
    return ends


@given(
    sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    most=st.integers(1, 3000),
)
def test_a_limit_of_offsets_starves_no_partition(sizes: list[int], most: int) -> None:
    available = {number: (7, 7 + size) for number, size in enumerate(sizes)}
    offsets = {number: end - 7 for number, end in ends_by_offsets(available, most).items()}
    assert all(0 < offsets[number] <= size for number, size in enumerate(sizes) if size)
    assert sum(offsets.values()) <= most + sum(0 < most * size < sum(sizes) for size in sizes)
    assert sum(offsets.values()) >= min(most, sum(sizes))
    for number, size in enumerate(sizes):
        if size:
            share = most * size / sum(sizes)
            assert min(size, max(1, int(share))) <= offsets[number] <= min(size, max(1, int(share) + 1))


def test_bytes_end_at_a_batch_of_the_offset_index(tmp_path: Path) -> None:
    topic = topic_of(str(tmp_path / "clicks"), {0: 12_000})
    segments = topic.snapshot.partitions[0].segments
    batches, start, limit = batch_ends(topic, 0), 0, 50_000
    average = int(segments.log_bytes.sum()) / 12_000
    while start < 12_000:
        end = ends_by_bytes(topic.reader, topic.snapshot, {0: (start, 12_000)}, limit)[0]
        assert end in batches
        assert end > start
        is_segment_end = [base for base in segments.base_offsets.tolist() if base == end] or end == 12_000
        assert is_segment_end or limit - 5000 <= (end - start) * average
        assert (end - start) * average <= limit + 5000 or segments[-1].base_offset == start
        start = end


@pytest.mark.parametrize("limit", [1, 1999])
def test_at_least_one_batch_is_read(tmp_path: Path, limit: int) -> None:
    topic = topic_of(str(tmp_path / "clicks"), {0: 6000})
    first, second = batch_ends(topic, 0)[:2]
    # the first batch of a segment has no index entry, so it goes with the second
    assert ends_by_bytes(topic.reader, topic.snapshot, {0: (0, 6000)}, limit) == {0: second}
    assert ends_by_bytes(topic.reader, topic.snapshot, {0: (first, 6000)}, limit) == {0: second}
    assert ends_by_bytes(topic.reader, topic.snapshot, {0: (second, 6000)}, limit) == {0: batch_ends(topic, 0)[2]}


def test_bytes_are_spread_by_what_each_partition_has(tmp_path: Path) -> None:
    topic = topic_of(str(tmp_path / "clicks"), {0: 9000, 1: 3000, 2: 0})
    spans = {0: (0, 9000), 1: (0, 3000), 2: (0, 0)}
    ends = ends_by_bytes(topic.reader, topic.snapshot, spans, 300_000)
    assert ends[2] == 0
    assert ends[0] == pytest.approx(3 * ends[1], abs=120)
    assert ends_by_bytes(topic.reader, topic.snapshot, spans, 1 << 40) == {0: 9000, 1: 3000, 2: 0}


def test_small_segments_are_taken_whole_without_a_request(memory_url: Any) -> None:
    topic = topic_of(memory_url.url, {0: 100})
    for _ in range(9):
        topic.append([{"value": bytes(100), "partition": 0}] * 100)
    size = int(topic.snapshot.partitions[0].segments.log_bytes[0])
    old_gets = topic.storage.counters.gets
    for limit, end in ((1, 100), (size, 100), (2 * size - 1, 100), (2 * size, 200), (7 * size, 700)):
        assert ends_by_bytes(topic.reader, topic.snapshot, {0: (0, 1000)}, limit) == {0: end}
    assert ends_by_bytes(topic.reader, topic.snapshot, {0: (0, 150)}, size * 3 // 2) == {0: 150}
    assert ends_by_bytes(topic.reader, topic.snapshot, {0: (150, 1000)}, 1) == {0: 200}
    assert ends_by_bytes(topic.reader, topic.snapshot, {0: (150, 170)}, 1) == {0: 170}
    assert topic.storage.counters.gets == old_gets


def test_a_missing_index_only_reduces_precision(tmp_path: Path) -> None:
    topic = topic_of(str(tmp_path / "clicks"), {0: 6000})
    for index in Path(topic.url).glob("clicks-0/*.index"):
        index.unlink()
    ends = topic.snapshot.partitions[0].segments.next_offsets.tolist()
    assert ends_by_bytes(topic.reader, topic.snapshot, {0: (0, 6000)}, 1000) == {0: ends[0]}


def test_an_active_segment_is_cut_by_its_growing_index(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), config={"batch.bytes": 2000, "index.interval.bytes": 0})
    with topic.writer() as writer:
        for _ in range(5000):
            writer.append(bytes(100))
    topic.refresh()
    (tail,) = topic.live_snapshot.partitions[0].segments
    assert tail.is_active
    end = ends_by_bytes(topic.reader, topic.live_snapshot, {0: (0, 5000)}, tail.log_bytes // 2)[0]
    assert end in batch_ends(topic, 0)
    assert end == pytest.approx(2500, abs=40)


STEP = st.tuples(st.integers(0, 1), st.integers(1, 400))


@pytest.mark.long
@examples(10)
@given(
    steps=st.lists(STEP, min_size=1, max_size=8),
    offsets=st.none() | st.integers(1, 500),
    size=st.none() | st.integers(1, 100_000),
)
def test_any_limits_read_every_record_once_in_order(
    steps: list[tuple[int, int]], offsets: int | None, size: int | None
) -> None:
    topic = distlog.create(f"memory://{uuid.uuid4()}/clicks", 2, {**LARGE, "internal.segment.bytes": 30_000})
    for partition, count in steps:
        topic.append(values(range(count)), partition=partition)
    limits = {"maxOffsetsPerTrigger": offsets, "maxBytesPerTrigger": size}
    given_limits = {name: value for name, value in limits.items() if value is not None}
    stream = Stream(topic.url, startingOffsets="earliest", **given_limits)
    read_offsets: dict[int, list[int]] = {0: [], 1: []}
    for batch in stream.drain():
        assert batch
        for number, read in batch.items():
            read_offsets[number] += read
    assert read_offsets == {number: list(range(end)) for number, end in topic.end_offsets().items()}


def test_the_limits_are_parsed_as_sparks_kafka_source_does() -> None:
    def limits(**options: str) -> Limits:
        return StreamOptions.parse({"path": "memory://clicks", **options}).limits

    assert limits() == Limits(max_delay_s=900)
    assert limits(maxOffsetsPerTrigger="5", MINOFFSETSPERTRIGGER="5") == Limits(5, None, 5, 900)
    assert limits(maxBytesPerTrigger="7") == Limits(None, 7, None, 900)
    durations = {"250": 0.25, "90s": 90, "2m": 120, "2min": 120, "1h": 3600, "1 D": 86_400, "5ms": 0.005}
    assert {text: limits(maxTriggerDelay=text).max_delay_s for text in durations} == durations
    for wrong in ("", "x", "5 weeks", "-1s", "1.5h"):
        with pytest.raises(InvalidConfigError, match="maxTriggerDelay must be a duration"):
            limits(maxTriggerDelay=wrong or " ")
    with pytest.raises(InvalidConfigError, match="must not be above maxOffsetsPerTrigger"):
        limits(maxOffsetsPerTrigger="5", minOffsetsPerTrigger="6")
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"):
        with pytest.raises(InvalidConfigError, match="at least 1"):
            limits(**{name: "0"})
    with pytest.raises(InvalidConfigError, match="did you mean maxOffsetsPerTrigger"):
        limits(maxOffsetPerTrigger="5")


REFUSED = (
    "endingOffsets endingOffsetsByTimestamp endingTimestamp startTime endTime versionAsOf timestampAsOf pushFilters"
)


@pytest.mark.parametrize("option", REFUSED.split())
def test_options_of_batch_reads_are_refused(option: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"option {option} is for batch reads"):
        StreamOptions.parse({"path": "memory://clicks", option: "1"})
