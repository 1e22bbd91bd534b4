"""All readers of a segment read a part of a bundle: the same records, few requests, and errors with positions."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from bundled import bundles, changed, rows, segments
from topics import NOW, topic_on

from distlog.core.commits.segment_table import OWN_FILE
from distlog.core.errors import CorruptRecordError, SnapshotTooOldError
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

WIDE = {"batch.bytes": "20000"}
COUNT = 500


def wide(storage: Storage, partitions: int = 3) -> Topic:
    topic = topic_on(storage, partitions, WIDE)
    topic.append(rows(partitions, COUNT, size=1000))
    return topic


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "t"))


@pytest.fixture
def remote(storage_url: Address) -> Storage:
    return Storage(*storage_url).child("t")


def value(partition: int, row: int) -> Any:
    return rows(3, 1, row, size=1000)[partition]["value"]


def test_all_readers_return_the_appended_records(remote: Storage) -> None:
    topic = wide(remote)
    assert topic.scan(partitions=[1]).to_table()["value"].to_pylist() == [value(1, row) for row in range(COUNT)]
    assert [record.value for record in topic.records(partition=2, start=333, limit=2)] == [
        value(2, 333),
        value(2, 334),
    ]
    fetched = topic.read(1, 250, max_bytes=30_000)
    assert bytes(fetched) in remote.read(bundles(remote)[0])
    assert fetched.next_offset > 250
    assert topic.offsets_for_times(dict.fromkeys(range(3), NOW + 400)) == dict.fromkeys(range(3), (400, NOW + 400))
    late = topic.scan(start_time=NOW + 490, columns=["partition", "timestamp"]).to_table()
    assert late.num_rows == 30
    assert topic.verify().ok


def test_a_fetched_part_is_sent_from_the_bundle(local: Storage) -> None:
    topic = wide(local)
    fetched = topic.read(2, 100, max_bytes=200_000)
    assert fetched.path is not None
    assert fetched.path.endswith(".bundle")
    sender, right = socket.socketpair()
    with sender, right:
        sender.settimeout(10)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sent = fetched.send_to(sender)
        sender.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: right.recv(1 << 20), b""))
    assert received == bytes(fetched)
    assert sent == len(received)
    topic.append(rows(3, 2))
    moved = topic.read(2, COUNT, max_bytes=200_000)
    assert bytes(moved)[:8] == COUNT.to_bytes(8, "big")


def test_one_partition_reads_little_more_than_its_bytes(remote: Storage) -> None:
    topic = topic_on(remote, 50)
    for first in (0, 20, 40):
        topic.append(rows(50, 20, first, size=100))
    partition_bytes = sum(segment.log_bytes for segment in segments(topic) if segment.partition == 17)
    old_counters = remote.counters.bytes_read, remote.counters.gets
    assert topic.scan(partitions=[17]).to_table().num_rows == 60
    assert remote.counters.bytes_read - old_counters[0] == partition_bytes
    assert remote.counters.gets - old_counters[1] <= 3


def test_a_scan_of_all_partitions_reads_a_remote_bundle_with_one_request(memory_url: Address) -> None:
    topic = topic_on(Storage(*memory_url).child("t"), 50)
    topic.append(rows(50, 20, size=100))
    old_gets = topic.storage.counters.gets
    assert topic.scan().to_table().num_rows == 1000
    assert topic.storage.counters.gets - old_gets == 1


@pytest.mark.s3
def test_the_indexes_of_many_parts_come_with_one_request_a_bundle(s3_url: Address) -> None:
    topic = wide(Storage(*s3_url).child("t"))
    topic.append(rows(3, COUNT, COUNT, size=1000))
    old_gets = topic.storage.counters.gets
    topic.reader.fetch_indexes(segments(topic))
    assert topic.storage.counters.gets - old_gets == 2
    for segment in segments(topic):
        assert topic.reader.offset_index(segment)
    assert topic.storage.counters.gets - old_gets == 2


def test_a_damaged_bundle_loses_only_the_damaged_parts(remote: Storage) -> None:
    topic = wide(remote)
    hurt = segments(topic)[1]
    log_position = hurt.log_position + hurt.log_bytes // 2
    changed(remote, bundles(remote)[0], lambda data: data.__setitem__(log_position, data[log_position] ^ 1))
    for number in (0, 2):
        assert topic.scan(partitions=[number]).to_table().num_rows == COUNT
    with pytest.raises(CorruptRecordError) as caught:
        topic.scan(partitions=[1]).to_table()
    details = caught.value.details
    assert (details["file"], details["partition"]) == (bundles(remote)[0], 1)
    assert log_position - 20_100 <= details["position"] <= log_position
    assert 0 < details["offset"] < COUNT
    report = topic.verify()
    assert {anomaly.partition for anomaly in report.anomalies} == {1}
    assert {(anomaly.file, anomaly.position) for anomaly in report.anomalies} >= {
        (details["file"], details["position"])
    }
    if remote.is_local:
        point = next(iter(topic.records(partition=1, start=0, limit=1)))
        assert point.value == value(1, 0)


def test_parts_before_a_truncation_are_read(remote: Storage) -> None:
    topic = wide(remote)
    cut = segments(topic)[1].log_position + 300_000
    changed(remote, bundles(remote)[0], lambda data: data.__delitem__(slice(cut, None)))
    assert topic.scan(partitions=[0]).to_table().num_rows == COUNT
    assert topic.offsets_for_times({0: NOW + 400})[0] == (400, NOW + 400)
    for number in (1, 2):
        with pytest.raises(CorruptRecordError, match="shorter than its segment") as caught:
            topic.scan(partitions=[number]).to_table()
        assert caught.value.details == {"file": bundles(remote)[0], "position": cut, "partition": number}
    assert {anomaly.partition for anomaly in topic.verify().anomalies} == {0, 1, 2}
    anomalies = [anomaly for anomaly in topic.verify().anomalies if anomaly.partition == 0]
    assert {anomaly.word for anomaly in anomalies} == {"corrupt_index"}


def test_a_deleted_bundle_is_an_outdated_snapshot(remote: Storage) -> None:
    topic = wide(remote)
    remote.delete(bundles(remote))
    with pytest.raises(SnapshotTooOldError, match="vacuum deletes"):
        topic.scan(partitions=[1]).to_table()
    assert {anomaly.word for anomaly in topic.verify().anomalies} == {"missing_segment", "missing_index"}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_damaged_index_is_rebuilt_as_a_file(remote: Storage, suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    topic = wide(remote)
    index = topic.reader.part(segments(topic)[1], suffix)
    changed(remote, index.name, lambda data: data.__setitem__(index.begin + 1, 77))
    assert topic.offsets_for_times({1: NOW + 400})[1] == (400, NOW + 400)
    assert [segment.value for segment in topic.records(partition=1, start=333, limit=1)] == [value(1, 333)]
    assert "the checksum of the index file differs" in caplog.text
    (anomaly,) = topic.verify().anomalies
    assert (anomaly.file, anomaly.partition) == (index.name, 1)
    assert index.begin <= (anomaly.position or 0) < index.begin + index.size
    data = remote.read(index.name)
    topic.rebuild_indexes()
    assert remote.read(index.name) == data
    positions = [(segment.offset_index_position, segment.time_index_position) for segment in segments(topic)]
    assert [OWN_FILE in position for position in positions] == [False, True, False]
    assert topic.reader.name(segments(topic)[1], suffix).startswith("t-1/")
    assert topic.reader.name(segments(topic)[1]) == index.name
    caplog.clear()
    assert topic.verify().ok
    assert topic.offsets_for_times({1: NOW + 400})[1] == (400, NOW + 400)
    assert [segment.value for segment in topic.records(partition=1, start=333, limit=1)] == [value(1, 333)]
    assert "scanning the log" not in caplog.text


def test_all_indexes_can_be_rebuilt_while_readers_use_the_old_ones(local: Storage) -> None:
    topic = topic_on(local, 3, {**WIDE, "index.interval.bytes": "50000"})
    topic.append(rows(3, COUNT, size=1000))
    old = topic_on(local)
    topic.alter_config({"index.interval.bytes": "100000"})
    topic.rebuild_indexes(force=True)
    assert topic.verify().ok
    assert old.verify().ok
    assert old.offsets_for_times({1: NOW + 400}) == topic.offsets_for_times({1: NOW + 400})
