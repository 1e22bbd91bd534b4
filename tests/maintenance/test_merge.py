"""Merging small segments: the same records at the same offsets in fewer files, with concurrent changes."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from searches import examples
from small_segments import merged, topic_of

import distlog


def test_small_segments_become_one_with_the_same_records_at_the_same_offsets(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 8)
    old_rows, ends = topic.scan().to_table(), topic.end_offsets()
    groups = merged(topic)
    assert [len(group.segments) for group in groups] == [8, 8]
    assert topic.segments().num_rows == 2
    assert topic.scan().to_table() == old_rows
    assert topic.end_offsets() == ends
    assert distlog.open(topic.url).scan().to_table() == old_rows


def test_the_merged_segment_has_the_description_of_a_written_one(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 3, index_interval_bytes=10, batch_bytes=80)
    for state in topic.snapshot.partitions:
        parts = list(state.segments)
        (group,) = [group for group in merged(topic) if group.segments[0].partition == parts[0].partition] or [None]
        if group is None:
            continue
        segment = topic.snapshot.partitions[parts[0].partition].segments[0]
        assert (segment.base_offset, segment.next_offset) == (parts[0].base_offset, parts[-1].next_offset)
        assert segment.record_count == sum(part.record_count for part in parts)
        assert segment.log_bytes == sum(part.log_bytes for part in parts)
        assert segment.offset_index_bytes == 8 * 2
        assert segment.max_timestamp == max(part.max_timestamp for part in parts)
        assert segment.min_timestamp == min(part.min_timestamp for part in parts)
        assert segment.dense
    times = topic.offsets_for_times(distlog.MAX_TIMESTAMP)
    records = topic.scan().to_table()
    for partition, partition_times in times.items():
        mine = records.filter(np.array(records["partition"]) == partition)
        stamps = mine["timestamp"].cast("int64").to_numpy()
        assert partition_times == (int(mine["offset"].to_numpy()[stamps.argmax()]), int(stamps.max()))


def test_batches_are_copied_byte_for_byte_but_for_their_base_offset(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4, compression_type="zstd", batch_bytes=10)
    old_data = {
        partition: bytes(topic.read(partition, offset)) for partition, offset in topic.start_offsets().items()
    }
    merged(topic)
    for partition, data in old_data.items():
        assert bytes(topic.read(partition, 0)).startswith(data)


def test_a_merged_segment_names_each_codec_once_however_often_it_was_merged(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 0)
    row = {"key": b"k", "value": b"v"}
    for codecs in ("gzip", "gzip", "lz4"), ("gzip", "lz4", "gzip", "lz4"):
        for codec in codecs:
            topic.append([row], compression=codec)
        assert len(merged(topic)) == 1
    segments = [segment for state in topic.snapshot.partitions for segment in state.segments]
    assert [(segment.compression, segment.record_count) for segment in segments] == [("gzip,lz4", 7)]


def test_a_compacted_topic_is_left_to_compaction(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    topic.alter_config({"cleanup.policy": "compact"})
    assert merged(topic) == []


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    files = sorted(tmp_path.rglob("*"))
    assert len(merged(topic, dry_run=True)) == 2
    assert sorted(tmp_path.rglob("*")) == files


def test_a_merge_reports_its_backlog(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    would = topic.compact(dry_run=True).to_dict()
    assert (would["backlog"], would["most_segments"]) == (8, 4)
    report = topic.compact()
    assert (report.to_dict()["backlog"], report.to_dict()["most_segments"]) == (0, 1)
    assert "left to merge" not in str(report)


@examples(12)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.sampled_from(["uncompressed", "lz4"]),
    st.integers(1, 400),
)
def test_any_sequence_of_appends_and_merges_reads_the_same(sizes: list[int], codec: str, batch_bytes: int) -> None:
    config = {
        "batch.bytes": batch_bytes,
        "compression.type": codec,
        "internal.segment.bytes": 3000,
        "retention.ms": -1,
    }
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
