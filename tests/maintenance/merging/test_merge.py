"""Merging small segments: the same records at the same offsets, in fewer files."""

from __future__ import annotations

import errno
import os
import re
import uuid
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
from conftest import Address
from hypothesis import given
from hypothesis import strategies as st
from searches import examples
from topics import Clock, files, topic_on

import distlog
from distlog.core.errors import StorageError
from distlog.core.maintenance.delete_records import delete_records
from distlog.core.maintenance.merging.merge import commit_merge, merge
from distlog.core.maintenance.merging.merge_job import merge_group
from distlog.core.maintenance.merging.merge_plan import MergeGroup, plan_merge
from distlog.core.maintenance.retention import retention
from distlog.core.reading import pipeline
from distlog.core.segments import segment_file
from distlog.core.storage.objects import upload as object_writer
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
    report, snapshot = merge(topic.handle, topic.snapshot, **options)
    topic.advance(snapshot)
    assert report.ok
    return list(report.groups)


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
    topic = topic_of(tmp_path, 3, index_interval_bytes=10, batch_bytes=80)
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
    topic = topic_of(tmp_path, 4, compression_type="zstd", batch_bytes=10)
    before = {partition: bytes(topic.read(partition, offset)) for partition, offset in topic.start_offsets().items()}
    merged(topic)
    for partition, data in before.items():
        assert bytes(topic.read(partition, 0)).startswith(data)


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


def test_what_a_bulk_append_rolled_by_time_is_not_merged_again(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/log", config={"segment.ms": 86_400_000, "retention.ms": -1})
    topic.append([{"value": "v", "timestamp": NOW + hour * 3_600_000} for hour in range(240)])
    before = topic.segments()
    assert before.num_rows == 10
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
    before = topic.scan().to_table()
    merged(topic)
    assert topic.segments().num_rows == 2
    assert topic.scan().to_table() == before


def test_times_that_grow_a_little_out_of_order_merge_to_no_more_than_segment_ms_however_often(tmp_path: Path) -> None:
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
    assert max(max(each.offset_index_bytes, each.time_index_bytes) for each in segments) <= 80
    assert len(segments) < 40


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


def test_a_group_that_lost_a_segment_meanwhile_is_left_out(tmp_path: Path) -> None:
    """1. Both groups are written. 2. Retention takes the first segments of partition 0. 3. Only the other commits."""
    topic = topic_of(tmp_path, 4)
    snapshot = topic.snapshot
    pairs = [
        (
            group,
            merge_group(topic.handle, group, config=topic.config, read_version=snapshot.version),
        )
        for group in plan_merge(snapshot)
    ]
    before = topic.scan(partitions=[1]).to_table()
    first = snapshot.partitions[0].segments[0]
    delete_records(topic.handle, snapshot, {0: first.next_offset})
    retention(topic.handle, snapshot)
    done, after = commit_merge(topic.handle, snapshot, pairs)
    topic.advance(after)
    assert [group.segments[0].partition for group in done] == [1]
    assert topic.scan(partitions=[1]).to_table() == before
    assert topic.start_offsets()[0] == first.next_offset


def test_appends_during_a_merge_are_kept(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    stale = topic.snapshot
    other = distlog.open(topic.url)
    other.append([{"value": "meanwhile", "key": "0"}])
    before = other.scan().to_table()
    pairs = [
        (group, merge_group(topic.handle, group, config=topic.config, read_version=stale.version))
        for group in plan_merge(stale)
    ]
    done, _ = commit_merge(topic.handle, stale, pairs)
    assert len(done) == 2
    assert distlog.open(topic.url).scan().to_table() == before


def spoil(topic: Topic, partition: int, index: int) -> None:
    """Change a byte of a record in the partition's segment of that number."""
    log = topic.reader.part(topic.snapshot.partitions[partition].segments[index])
    data = bytearray(topic.storage.read(log.name))
    data[log.begin + 70] ^= 1
    topic.storage.put(log.name, data)


def test_a_group_with_a_corrupt_batch_is_told_of_and_the_others_are_merged(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    spoil(topic, 0, 1)
    before, end = topic.scan(partitions=[1]).to_table(), topic.end_offsets()[0]
    report = topic.compact()
    assert not report.ok
    assert [len(state.segments) for state in topic.snapshot.partitions] == [4, 1]
    assert topic.scan(partitions=[1]).to_table() == before
    facts = report.to_dict()
    assert (facts["ok"], facts["segments_before"], facts["segments_after"]) == (False, 4, 1)
    (failed,) = facts["failed"]
    assert (failed["partition"], failed["base_offset"], failed["next_offset"]) == (0, 0, end)
    assert "fails its checksum" in failed["reason"]
    assert (facts["backlog"], facts["most_segments"]) == (4, 4)
    assert "4 segments left to merge" in str(report)
    text = f"merged 4 segments into 1, .*; cannot merge offsets 0 to {end} of partition 0: .*fails its checksum"
    assert re.match(text, str(report))


def test_a_merge_says_how_far_it_is_behind(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    would = topic.compact(dry_run=True).to_dict()
    assert (would["backlog"], would["most_segments"]) == (8, 4)
    done = topic.compact()
    assert (done.to_dict()["backlog"], done.to_dict()["most_segments"]) == (0, 1)
    assert "left to merge" not in str(done)


def test_a_merge_of_which_every_group_fails_commits_nothing(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, 4)
    spoil(topic, 0, 1)
    spoil(topic, 1, 3)
    version = topic.version
    assert [one.partition for one in topic.compact().failed] == [0, 1]
    assert topic.refresh().version == version


def large_topic(address: Address, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """A topic of three segments that are streamed to where they are merged, of which the last is corrupt."""
    topic = distlog.create(address.url, config={"retention.ms": -1}, storage_options=address.options)
    for number in range(3):
        topic.append([{"value": bytes([number]) * 25_000}])
    spoil(topic, 0, 2)
    monkeypatch.setattr(segment_file, "HELD_BYTES", 1000)
    monkeypatch.setattr(pipeline, "INDEX_WORTH_BYTES", 0)
    monkeypatch.setattr(pipeline, "SMALL_BYTES", 0)
    monkeypatch.setattr(object_writer, "PART_BYTES", 10_000)
    monkeypatch.setattr(object_writer, "SINGLE_PUT_BYTES", 20_000)
    return topic


def test_a_merge_that_fails_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = large_topic(Address(str(tmp_path / "log"), {}), monkeypatch)
    before, opened = files(topic.storage), os.listdir("/proc/self/fd")
    assert not topic.compact().ok
    assert files(topic.storage) == before
    assert len(os.listdir("/proc/self/fd")) == len(opened)


def test_what_a_merge_cannot_write_to_the_end_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = large_topic(Address(str(tmp_path / "log"), {}), monkeypatch)
    spoil(topic, 0, 2)  # as it was
    before = files(topic.storage)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        topic.compact()
    monkeypatch.undo()
    assert files(topic.storage) == before


@pytest.mark.s3
def test_a_merge_that_fails_leaves_no_upload(s3_url: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = large_topic(s3_url, monkeypatch)
    before, begun = files(topic.storage), []
    make = object_writer.MultipartUpload.__init__
    monkeypatch.setattr(object_writer.MultipartUpload, "__init__", lambda *given: begun.append(make(*given)))
    assert not topic.compact().ok
    assert begun
    assert files(topic.storage) == before
    assert uploads(s3_url) == []


def uploads(address: Address) -> list[str]:
    """The keys of the uploads below an address that were begun and not ended."""
    bucket, _, folder = address.url.removeprefix("s3://").partition("/")
    client = boto3.client(
        "s3",
        endpoint_url=address.options["endpoint_url"],
        aws_access_key_id=address.options["key"],
        aws_secret_access_key=address.options["secret"],
        region_name="us-east-1",
    )
    found = client.list_multipart_uploads(Bucket=bucket, Prefix=folder)
    return [upload["Key"] for upload in found.get("Uploads", [])]


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
