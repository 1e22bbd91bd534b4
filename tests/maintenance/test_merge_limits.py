"""The size of a merged segment: in bytes, in time, and in its indexes; and groups that are not worth a merge."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest
from small_segments import NOW, merged, topic_of
from topics import Clock, topic_on

import distlog
from distlog.core.maintain.merge import merge_groups, plan_merge


def test_groups_stay_below_segment_bytes(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 9)
    size = int(topic.segments()["log_bytes"].to_numpy().max())
    topic.alter_config({"internal.segment.bytes": 4 * size})
    groups = merged(topic)
    assert all(group.log_bytes <= 4 * size for group in groups)
    assert topic.segments().num_rows < 18


def test_a_large_segment_is_not_copied_again_for_a_small_one(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 8)
    merged(topic)
    topic.append([{"value": "small", "key": "1", "timestamp": NOW}])
    assert merged(topic) == []


def test_segments_whose_ages_differ_by_more_than_segment_ms_stay_apart(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", config={"segment.ms": 1000, "retention.ms": -1})
    for timestamp in (0, 500, 1000, 1500, 5000, 5100):
        topic.append([{"value": "v", "timestamp": NOW + timestamp}])
    merged(topic)
    assert topic.segments()["base_offset"].to_pylist() == [0, 3, 4]


def test_segments_rolled_by_time_are_not_merged_again(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", config={"segment.ms": 86_400_000, "retention.ms": -1})
    topic.append([{"value": "v", "timestamp": NOW + hour * 3_600_000} for hour in range(240)])
    old_segments = topic.segments()
    assert old_segments.num_rows == 10
    assert merged(topic) == []
    topic.append([{"value": "v", "timestamp": NOW + 240 * 3_600_000}])
    merged(topic)
    spans = [segment.max_timestamp - segment.first_timestamp for segment in topic.snapshot.partitions[0].segments]
    assert max(spans) <= 86_400_000


def test_small_appends_merge_to_segments_of_segment_ms_of_record_time(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", config={"segment.ms": 1000, "retention.ms": -1})
    for start in range(0, 5000, 100):
        topic.append([{"value": "v", "timestamp": NOW + start}, {"value": "v", "timestamp": NOW + start + 99}])
    merged(topic)
    segments = topic.snapshot.partitions[0].segments
    spans = [segment.max_timestamp - segment.first_timestamp for segment in segments]
    assert len(segments) == 5
    assert max(spans) <= 1000


def test_segments_that_each_span_more_than_segment_ms_merge_while_their_newest_records_agree(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", config={"segment.ms": 1000, "retention.ms": -1})
    for number in range(10):
        times = [NOW + number, NOW + 100_000 + number, NOW + number]
        topic.append([{"value": "v", "timestamp": time} for time in times])
    old_table = topic.scan().to_table()
    merged(topic)
    assert topic.segments().num_rows == 2
    assert topic.scan().to_table() == old_table


@pytest.mark.long
def test_slightly_unordered_times_merge_up_to_segment_ms(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", config={"segment.ms": 1000, "retention.ms": -1})
    for start in range(0, 5000, 50):
        topic.append([{"value": "v", "timestamp": NOW + start + late} for late in (1, 0, 49)])
        merged(topic)
    segments = topic.snapshot.partitions[0].segments
    assert len(segments) <= 25
    assert max(segment.max_timestamp - segment.first_timestamp for segment in segments) <= 1000


def test_records_without_a_time_do_not_grow_younger_by_merging(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", config={"segment.ms": 1000, "retention.ms": -1})
    clock = Clock(NOW)
    topic = topic_on(topic.storage, clock=clock)
    for _ in range(8):
        topic.append([{"value": "v", "timestamp": -1}])
        clock.now_ms += 300
    merged(topic)
    segments = topic.snapshot.partitions[0].segments
    assert [segment.created_ms - NOW for segment in segments] == [900, 2100]


def test_the_indexes_of_a_merged_segment_stay_below_segment_index_bytes(tmp_path: Path) -> None:
    config = {"segment.index.bytes": 80, "index.interval.bytes": 0, "retention.ms": -1}
    topic = distlog.create(f"{tmp_path}/log", config=config)
    for number in range(40):
        topic.append([{"value": "v", "timestamp": NOW + number}])
    merged(topic)
    segments = list(topic.snapshot.partitions[0].segments)
    assert max(max(segment.offset_index_bytes, segment.time_index_bytes) for segment in segments) <= 80
    assert len(segments) < 40


@pytest.mark.parametrize("times", ["out of order", "none", "of the append"])
def test_each_part_of_a_split_group_has_its_own_largest_time(times: str) -> None:
    config = {"batch.bytes": 100, "index.interval.bytes": 0, "segment.ms": 2**62, "retention.ms": -1}
    if times == "of the append":
        config["message.timestamp.type"] = "LogAppendTime"
    topic = distlog.create(f"memory://limits/{uuid.uuid4().hex}/log", config=config)
    source = random.Random(1)
    for _ in range(10):
        times_made = [NOW + source.randrange(1000) if times == "out of order" else -1 for _ in range(7)]
        # records of this size stay single batches, so each has an index entry
        topic.append([{"value": b"v" * 90, "timestamp": time} for time in times_made])
    old_table = topic.scan().to_table()
    groups = plan_merge(topic.snapshot)
    assert len(groups) == 1
    topic.alter_config({"segment.index.bytes": 120})
    _, after = merge_groups(topic.handle, topic.snapshot, groups)
    topic.advance(after)
    assert topic.segments().num_rows > 3
    assert topic.scan().to_table() == old_table
    assert topic.verify().ok
    read = old_table["timestamp"].cast("int64").to_pylist()
    for segment in topic.snapshot.partitions[0].segments:
        segment_rows = read[segment.base_offset : segment.next_offset]
        first = segment.base_offset + segment_rows.index(max(segment_rows)) if max(segment_rows) >= 0 else -1
        assert (segment.max_timestamp, segment.offset_of_max_timestamp) == (max(segment_rows), first)
