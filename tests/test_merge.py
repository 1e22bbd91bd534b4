"""Merging small segments: the same records at the same offsets, in fewer files."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distlog
from distlog.core.errors import CorruptRecordError
from distlog.core.maintenance.delete_records import delete_records
from distlog.core.maintenance.merge import MergeGroup, commit_merge, merge, merge_group, plan_merge
from distlog.core.maintenance.retention import retention
from distlog.core.topics.topic import Topic

NOW = 1_700_000_000_000


def topic_of(folder: Path | str, appends: int, **config: Any) -> Topic:
    """A topic of two partitions and `appends` commits of ten records each."""
    settings = {name.replace("_", "."): value for name, value in {"retention_ms": -1, **config}.items()}
    topic = distlog.create(f"{folder}/log", partitions=2, config=settings)
    for number in range(appends):
        rows = [
            {"value": f"{number}.{row}", "key": f"{row}", "timestamp": NOW + 10 * number - row} for row in range(10)
        ]
        topic.append(rows)
    return topic


def merged(topic: Topic, **options: Any) -> list[MergeGroup]:
    groups, snapshot = merge(
        topic.reader, topic.log, topic.snapshot, topic.clock, new_id=lambda: uuid.uuid4().hex, **options
    )
    topic.advance(snapshot)
    return groups


def test_small_segments_become_one_with_the_same_records_at_the_same_offsets(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 8)
    before, ends = topic.scan().to_table(), topic.end_offsets()
    groups = merged(topic)
    assert [len(group.segments) for group in groups] == [8, 8]
    assert topic.segments().num_rows == 2
    assert topic.scan().to_table() == before
    assert topic.end_offsets() == ends
    assert distlog.open(topic.url).scan().to_table() == before


def test_the_merged_segment_is_described_as_one_that_was_written_so(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 3, index_interval_bytes=10)
    for state in topic.snapshot.partitions:
        parts = list(state.segments)
        (group,) = [group for group in merged(topic) if group.segments[0].partition == parts[0].partition] or [None]
        if group is None:
            continue
        one = topic.snapshot.partitions[parts[0].partition].segments[0]
        assert (one.base_offset, one.next_offset) == (parts[0].base_offset, parts[-1].next_offset)
        assert one.record_count == sum(part.record_count for part in parts)
        assert one.log_bytes == sum(part.log_bytes for part in parts)
        assert one.offset_index_bytes == 8 * 2
        assert one.max_timestamp == max(part.max_timestamp for part in parts)
        assert one.min_timestamp == min(part.min_timestamp for part in parts)
        assert one.dense
    times = topic.offsets_for_times(distlog.MAX_TIMESTAMP)
    records = topic.scan().to_table()
    for partition, found in times.items():
        mine = records.filter(np.array(records["partition"]) == partition)
        stamps = mine["timestamp"].cast("int64").to_numpy()
        assert found == (int(mine["offset"].to_numpy()[stamps.argmax()]), int(stamps.max()))


def test_batches_are_copied_byte_for_byte_but_for_their_base_offset(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4, compression_type="zstd")
    before = {partition: bytes(topic.read(partition, offset)) for partition, offset in topic.start_offsets().items()}
    merged(topic)
    for partition, data in before.items():
        assert bytes(topic.read(partition, 0)).startswith(data)


def test_groups_stay_below_segment_bytes(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 9)
    size = int(topic.segments()["log_bytes"].to_numpy().max())
    topic.alter_config({"segment.bytes": 4 * size})
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


def test_a_compacted_topic_is_left_to_compaction(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    topic.alter_config({"cleanup.policy": "compact"})
    assert merged(topic) == []


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    files = sorted(tmp_path.rglob("*"))
    assert len(merged(topic, dry_run=True)) == 2
    assert sorted(tmp_path.rglob("*")) == files


def test_a_group_that_lost_a_segment_meanwhile_is_left_out(tmp_path: Path) -> None:
    """1. Both groups are written. 2. Retention takes the first segments of partition 0. 3. Only the other commits."""
    topic = topic_of(tmp_path, 4)
    snapshot = topic.snapshot
    pairs = [
        (
            group,
            merge_group(topic.reader, group, topic.config, begin=snapshot.version, clock=topic.clock, new_id=new_id),
        )
        for group in plan_merge(snapshot)
    ]
    before = topic.scan(partitions=[1]).to_table()
    first = snapshot.partitions[0].segments[0]
    delete_records(topic.log, snapshot, {0: first.next_offset})
    retention(topic.log, snapshot, topic.clock)
    done, after = commit_merge(topic.log, snapshot, pairs, begin=snapshot.version)
    topic.advance(after)
    assert [group.segments[0].partition for group in done] == [1]
    assert topic.scan(partitions=[1]).to_table() == before
    assert topic.start_offsets()[0] == first.next_offset


def new_id() -> str:
    """A stem's unique part."""
    return uuid.uuid4().hex


def test_appends_during_a_merge_are_kept(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    stale = topic.snapshot
    other = distlog.open(topic.url)
    other.append([{"value": "meanwhile", "key": "0"}])
    before = other.scan().to_table()
    pairs = [
        (group, merge_group(topic.reader, group, topic.config, begin=stale.version, clock=topic.clock, new_id=new_id))
        for group in plan_merge(stale)
    ]
    done, _ = commit_merge(topic.log, stale, pairs, begin=stale.version)
    assert len(done) == 2
    assert distlog.open(topic.url).scan().to_table() == before


def test_a_corrupt_batch_stops_the_merge_and_changes_nothing(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    log = sorted(tmp_path.glob("log/log-0/*.log"))[1]
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    version = topic.version
    with pytest.raises(CorruptRecordError, match="fails its checksum"):
        merged(topic)
    assert topic.refresh().version == version


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.sampled_from(["uncompressed", "lz4"]),
    st.integers(1, 400),
)
def test_any_sequence_of_appends_and_merges_reads_the_same(sizes: list[int], codec: str, batch_bytes: int) -> None:
    config = {"batch.bytes": batch_bytes, "compression.type": codec, "segment.bytes": 3000, "retention.ms": -1}
    topic = distlog.create(f"memory://merge/{uuid.uuid4().hex}/log", config=config)
    values: list[bytes] = []
    for number, size in enumerate(sizes):
        rows = [b"%d.%d" % (number, row) for row in range(size)]
        topic.append([{"value": row} for row in rows])
        values += rows
        if number % 3 == 2:
            merged(topic)
    table = topic.scan().to_table()
    assert table["value"].to_pylist() == values
    assert table["offset"].to_pylist() == list(range(len(values)))
