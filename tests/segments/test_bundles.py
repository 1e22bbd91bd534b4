"""Appends write one bundle for many partitions, with the bytes of separate files; otherwise files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from addresses import Address
from bundled import bundles, rows, segments
from full_disk import fail_writes
from topics import NOW, TINY, contents, files, named_files, topic_on

from distlog.core.arrays import PAGE_BYTES
from distlog.core.commits.segment_table import OWN_FILE, SegmentInfo
from distlog.core.errors import StorageError
from distlog.core.segments import segment_writer as bundling
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

SUFFIXES = (".log", ".index", ".timeindex")


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "t"))


def part(topic: Topic, segment: SegmentInfo, suffix: str) -> bytes:
    location = topic.reader.part(segment, suffix)
    return topic.storage.read(*location.full_range) if location.size else b""


def test_an_append_to_several_partitions_is_one_object(storage_url: Address) -> None:
    topic = topic_on(Storage(*storage_url).child("t"), 5)
    puts = topic.storage.counters.puts
    topic.append(rows(5, 10))
    assert topic.storage.counters.puts - puts == 2
    (name,) = files(topic.storage)
    assert {topic.reader.name(segment) for segment in segments(topic)} == named_files(topic) == {name}
    assert contents(topic) == {number: [row["value"] for row in rows(5, 10)[number::5]] for number in range(5)}
    assert topic.verify().ok


def test_an_append_to_one_partition_writes_files(storage_url: Address) -> None:
    topic = topic_on(Storage(*storage_url).child("t"), 5)
    topic.append(rows(1, 10))
    assert not bundles(topic.storage)
    assert all(not segment.is_bundled for segment in segments(topic))
    topic.append(rows(5, 10))
    assert len(bundles(topic.storage)) == 1


def test_each_part_equals_its_own_file(local: Storage) -> None:
    topic = topic_on(local, 3, {"batch.bytes": "2000", "index.interval.bytes": "100"})
    alone = topic_on(Storage(local.url + "-alone"), 3, {"batch.bytes": "2000", "index.interval.bytes": "100"})
    records = rows(3, 300, size=50)
    topic.append(records)
    for number in range(3):
        alone.append([row for row in records if row["partition"] == number])
    for bundled, single in zip(segments(topic), segments(alone), strict=True):
        assert bundled.is_bundled
        assert not single.is_bundled
        assert bundled.offset_index_bytes
        for suffix in SUFFIXES:
            assert part(topic, bundled, suffix) == part(alone, single, suffix)


def test_logs_come_before_indexes_and_start_at_pages_on_a_disk(storage_url: Address) -> None:
    topic = topic_on(Storage(*storage_url).child("t"), 4, {"index.interval.bytes": "100", "batch.bytes": "500"})
    with topic.transaction() as transaction:
        for number in (2, 0, 3, 1):
            transaction.append([{"value": b"v" * 100}] * (10 + number), partition=number)
    parts = [topic.reader.part(segment, suffix) for suffix in SUFFIXES[:1] for segment in segments(topic)]
    parts += [topic.reader.part(segment, suffix) for segment in segments(topic) for suffix in SUFFIXES[1:]]
    page = PAGE_BYTES if topic.storage.is_local else 1
    position = 0
    for number, location in enumerate(parts):
        position += -position % page if number < 4 else 0
        assert (location.begin, location.is_file) == (position, False)
        position += location.size
    assert topic.storage.size(parts[0].name) == position


def test_a_bundle_on_a_disk_is_one_sync_and_the_commit_another(
    local: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_on(local, 50)
    topic.append(rows(50, 1))
    synced: list[str] = []
    sync = os.fsync

    def noted(file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        if not os.path.isdir(path):
            synced.append(os.path.basename(os.path.dirname(path)))
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    topic.append(rows(50, 1))
    assert synced == ["_bundles", "_commits"]


def test_a_large_log_gets_its_own_files(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundling, "LARGEST_PART", 2_000_000)
    topic = topic_on(local, 3, {"batch.bytes": "100000"})
    large = [{"partition": 1, "value": os.urandom(1000)} for _ in range(2500)]
    topic.append([*rows(3, 100), *large])
    assert [segment.is_bundled for segment in segments(topic)] == [True, False, True]
    assert topic.reader.name(segments(topic)[1]).startswith("t-1/")
    assert [len(stored) for stored in contents(topic).values()] == [100, 2600, 100]
    assert topic.verify().ok


def test_parts_of_more_than_a_mebibyte_leave_a_bundle_that_holds_too_much(
    local: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "LARGEST_BUNDLE", 4 << 20)
    topic = topic_on(local, 4)
    for_all = [row for row in rows(4, 4_000, size=1_000) if row["partition"] > 0 or row["timestamp"] < NOW + 10]
    topic.append(for_all)
    assert [segment.is_bundled for segment in segments(topic)].count(False) > 0
    assert segments(topic)[0].is_bundled
    for number, stored in contents(topic).items():
        assert stored == [row["value"] for row in for_all if row["partition"] == number]
    assert topic.verify().ok


@pytest.mark.parametrize(("largest", "expected"), [(1_000, range(4, 10)), (128 << 20, range(3, 4))])
def test_segments_that_roll_within_an_append_go_to_the_next_bundle(
    local: Storage, monkeypatch: pytest.MonkeyPatch, largest: int, expected: range
) -> None:
    monkeypatch.setattr(bundling, "LARGEST_BUNDLE", largest)
    topic = topic_on(local, 3, TINY)
    topic.append(rows(3, 60))
    for state in topic.snapshot.partitions:
        stems = [segment.stem for segment in state.segments]
        assert len(stems) == len(set(stems)) > 2
    assert all(segment.is_bundled for segment in segments(topic))
    # the last segments of partitions end in any order
    assert len(bundles(local)) in expected
    assert files(local) == named_files(topic)
    assert contents(topic) == {number: [row["value"] for row in rows(3, 60)[number::3]] for number in range(3)}
    assert topic.verify().ok


@pytest.mark.parametrize("put_bytes", [0, 16 << 20])
def test_a_bundle_is_the_same_streamed_or_put_at_once(
    storage_url: Address, monkeypatch: pytest.MonkeyPatch, put_bytes: int
) -> None:
    monkeypatch.setattr(bundling, "_PUT_BYTES", put_bytes)
    topic = topic_on(Storage(*storage_url).child("t"), 4)
    topic.append(rows(4, 300, size=1000))
    assert len(bundles(topic.storage)) == 1
    assert topic.verify().ok


def test_append_times_and_compression_equal_separate_files(local: Storage) -> None:
    topic = topic_on(local, 3, {"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"})
    topic.append(rows(3, 10))
    assert {segment.append_time_ms >= NOW for segment in segments(topic)} == {True}
    assert {segment.compression for segment in segments(topic)} == {"lz4"}
    assert {row["timestamp_type"] for row in topic.scan().to_table().to_pylist()} == {1}
    assert topic.verify().ok


def test_an_append_that_fails_leaves_no_bundle(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_on(local, 3)

    with monkeypatch.context() as patch:
        fail_writes(patch)
        with pytest.raises(StorageError, match="No space left"):
            topic.append(rows(3, 10))
    assert not files(local)
    topic.append(rows(3, 10))
    assert {len(stored) for stored in contents(topic).values()} == {10}
    transaction = topic.transaction()
    transaction.append(rows(3, 10))
    transaction.abort()
    assert len(bundles(local)) == 1


def test_segments_that_were_sealed_before_a_second_partition_came_are_files(local: Storage) -> None:
    topic = topic_on(local, 2, {"internal.segment.bytes": "1500000"})
    values = [{"value": b"v" * 1000}] * 6_000
    with topic.transaction() as transaction:
        transaction.append(values, partition=0)
        transaction.append(values, partition=1)
    assert [segment.is_bundled for segment in topic.snapshot.partitions[0].segments][::3] == [False, True]
    assert (segments(topic)[0].log_position, segments(topic)[0].time_index_position) == (OWN_FILE, OWN_FILE)
    assert {len(stored) for stored in contents(topic).values()} == {6_000}
