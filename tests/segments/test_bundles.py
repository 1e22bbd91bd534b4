"""What appends write: one bundle for many partitions, byte for byte what their files would be; else files."""

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
    found = topic.reader.part(segment, suffix)
    return topic.storage.read(*found.full_range) if found.size else b""


def test_an_append_to_several_partitions_is_one_object(storage_url: Address) -> None:
    topic = topic_on(Storage(*storage_url).child("t"), 5)
    before = topic.storage.counters.puts
    topic.append(rows(5, 10))
    assert topic.storage.counters.puts - before == 2
    (name,) = files(topic.storage)
    assert {topic.reader.name(one) for one in segments(topic)} == named_files(topic) == {name}
    assert contents(topic) == {number: [row["value"] for row in rows(5, 10)[number::5]] for number in range(5)}
    assert topic.verify().ok


def test_an_append_to_one_partition_writes_files(storage_url: Address) -> None:
    topic = topic_on(Storage(*storage_url).child("t"), 5)
    topic.append(rows(1, 10))
    assert not bundles(topic.storage)
    assert all(not one.is_bundled for one in segments(topic))
    topic.append(rows(5, 10))
    assert len(bundles(topic.storage)) == 1


def test_each_part_is_what_its_file_would_be(local: Storage) -> None:
    topic = topic_on(local, 3, {"batch.bytes": "2000", "index.interval.bytes": "100"})
    alone = topic_on(Storage(local.url + "-alone"), 3, {"batch.bytes": "2000", "index.interval.bytes": "100"})
    records = rows(3, 300, size=50)
    topic.append(records)
    for number in range(3):
        alone.append([row for row in records if row["partition"] == number])
    for bundled, own in zip(segments(topic), segments(alone), strict=True):
        assert bundled.is_bundled
        assert not own.is_bundled
        assert bundled.offset_index_bytes
        for suffix in SUFFIXES:
            assert part(topic, bundled, suffix) == part(alone, own, suffix)


def test_logs_lie_by_partition_then_the_indexes_and_on_a_disk_each_log_begins_a_page(storage_url: Address) -> None:
    topic = topic_on(Storage(*storage_url).child("t"), 4, {"index.interval.bytes": "100", "batch.bytes": "500"})
    with topic.transaction() as transaction:
        for number in (2, 0, 3, 1):
            transaction.append([{"value": b"v" * 100}] * (10 + number), partition=number)
    found = [topic.reader.part(one, suffix) for suffix in SUFFIXES[:1] for one in segments(topic)]
    found += [topic.reader.part(one, suffix) for one in segments(topic) for suffix in SUFFIXES[1:]]
    page = PAGE_BYTES if topic.storage.is_local else 1
    position = 0
    for number, one in enumerate(found):
        position += -position % page if number < 4 else 0
        assert (one.begin, one.is_file) == (position, False)
        position += one.size
    assert topic.storage.size(found[0].name) == position


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


def test_a_large_log_gets_files_of_its_own_beside_the_bundle(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundling, "LARGEST_PART", 2_000_000)
    topic = topic_on(local, 3, {"batch.bytes": "100000"})
    large = [{"partition": 1, "value": os.urandom(1000)} for _ in range(2500)]
    topic.append([*rows(3, 100), *large])
    assert [one.is_bundled for one in segments(topic)] == [True, False, True]
    assert topic.reader.name(segments(topic)[1]).startswith("t-1/")
    assert [len(found) for found in contents(topic).values()] == [100, 2600, 100]
    assert topic.verify().ok


def test_parts_of_more_than_a_mebibyte_leave_a_bundle_that_holds_too_much(
    local: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "LARGEST_BUNDLE", 4 << 20)
    topic = topic_on(local, 4)
    for_all = [row for row in rows(4, 4_000, size=1_000) if row["partition"] > 0 or row["timestamp"] < NOW + 10]
    topic.append(for_all)
    assert [one.is_bundled for one in segments(topic)].count(False) > 0
    assert segments(topic)[0].is_bundled
    for number, found in contents(topic).items():
        assert found == [row["value"] for row in for_all if row["partition"] == number]
    assert topic.verify().ok


@pytest.mark.parametrize(("largest", "expected"), [(1_000, 9), (128 << 20, 3)])
def test_segments_that_roll_within_an_append_go_to_the_next_bundle(
    local: Storage, monkeypatch: pytest.MonkeyPatch, largest: int, expected: int
) -> None:
    monkeypatch.setattr(bundling, "LARGEST_BUNDLE", largest)
    topic = topic_on(local, 3, TINY)
    topic.append(rows(3, 60))
    for state in topic.snapshot.partitions:
        stems = [one.stem for one in state.segments]
        assert len(stems) == len(set(stems)) > 2
    assert all(one.is_bundled for one in segments(topic))
    assert len(bundles(local)) == expected
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


def test_append_times_and_compression_are_those_of_files(local: Storage) -> None:
    topic = topic_on(local, 3, {"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"})
    topic.append(rows(3, 10))
    assert {one.append_time_ms >= NOW for one in segments(topic)} == {True}
    assert {one.compression for one in segments(topic)} == {"lz4"}
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
    assert {len(found) for found in contents(topic).values()} == {10}
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
    assert [one.is_bundled for one in topic.snapshot.partitions[0].segments][::3] == [False, True]
    assert (segments(topic)[0].log_position, segments(topic)[0].time_index_position) == (OWN_FILE, OWN_FILE)
    assert {len(found) for found in contents(topic).values()} == {6_000}
