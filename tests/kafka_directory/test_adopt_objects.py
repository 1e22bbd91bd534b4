"""Adoption of a log directory on object storage: to any storage, or next to the broker's files in the bucket."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from addresses import Address, S3Server
from log_dirs import contents, copy_of, golden_of, partition_of, read

import distlog
from distlog import CorruptRecordError, InvalidTopicError, StorageError
from distlog.core.segments.producer_states import ProducerStates, read_producer_snapshot
from distlog.core.storage.storage import Storage

TOPICS = ("txn", "multi", "deleted-records", "codec-none")


def uploaded(folder: Path, address: Address) -> Storage:
    storage = Storage(address.url, address.options)
    storage.put_many({name: data for name, (data, _) in contents(folder).items()})
    return storage


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_dir = copy_of("first", tmp_path_factory.mktemp("broker"))
    for folder in log_dir.glob("*-[0-9]"):
        if folder.name.rpartition("-")[0] not in TOPICS:
            shutil.rmtree(folder)
    return log_dir


@pytest.fixture(scope="module")
def logs(s3_server: S3Server, on_disk: Path) -> Storage:
    address = s3_server.address()
    return uploaded(on_disk, address._replace(url=f"{address.url}/kafka-logs"))


@pytest.mark.s3
@pytest.mark.parametrize("target", ["in the bucket", "on disk"])
def test_a_log_directory_in_a_bucket_has_the_records_of_the_brokers_consumer(
    target: str, logs: Storage, tmp_path: Path
) -> None:
    old_sizes = {file.name: file.size for file in logs.list("txn-0")}
    url = None if target == "in the bucket" else str(tmp_path / "topics")
    report = distlog.adopt(logs.url, url, topics=TOPICS, storage_options=logs.options)
    (note,) = report.notes
    assert "txn: partition 0: the transaction of producer 7 is open" in note
    assert (report.ok, sorted(report.topics)) == (True, sorted(TOPICS))
    assert report.topics["txn"].url == f"{url or logs.url}/txn"
    for name, partition in golden_of("first").items():
        topic, _, number = name.rpartition("-")
        if topic in TOPICS:
            assert read(report.topics[topic], int(number)) == partition.records()
    assert read(report.topics["txn"], committed=True) == golden_of("first")["txn-0"].records(committed=True)
    assert report.topics["deleted-records"].start_offsets() == {0: 137}
    assert report.topics["txn"].verify().ok
    assert {file.name: file.size for file in logs.list("txn-0")} == old_sizes
    again = distlog.adopt(logs.url, url, topics=["txn"], storage_options=logs.options)
    assert again.notes == ("txn: was adopted before",)


@pytest.mark.s3
def test_adoption_from_a_bucket_equals_adoption_from_a_disk(logs: Storage, on_disk: Path, tmp_path: Path) -> None:
    remote = distlog.adopt(logs.url, str(tmp_path / "a"), topics=["txn"], storage_options=logs.options)
    local = distlog.adopt(on_disk, str(tmp_path / "b"), topics=["txn"])
    segments = [
        [dataclasses.replace(segment, created_ms=0) for segment in report.topic.snapshot.partitions[0].segments]
        for report in (remote, local)
    ]
    assert segments[0] == segments[1]
    files = [{name: data for name, (data, _) in contents(tmp_path / way / "txn" / "txn-0").items()} for way in "ab"]
    assert files[0] == files[1]


@pytest.mark.s3
def test_the_producers_of_what_is_adopted_to_a_bucket_are_in_its_commit(
    logs: Storage, on_disk: Path, tmp_path: Path
) -> None:
    local = distlog.adopt(on_disk, str(tmp_path / "b"), topics=["txn"]).topics["txn"]
    target = f"{logs.url}/of-txn"
    remote = distlog.adopt(logs.url, target, topics=["txn"], storage_options=logs.options).topics["txn"]
    stored = max((tmp_path / "b" / "txn" / "txn-0").glob("*.snapshot"))
    producers = remote.refresh().snapshot.partitions[0].producers
    assert np.array_equal(
        ProducerStates(dict(producers.items())).entries(), read_producer_snapshot(stored.read_bytes())
    )
    assert len(producers.open_transactions) == 1
    assert [row["producer_id"] for row in remote.producers().to_table().to_pylist()] == [
        producer for producer, _ in producers.items()
    ]
    assert not local.refresh().snapshot.partitions[0].producers


def requests(storage: Storage) -> tuple[int, int, int]:
    return storage.counters.lists, storage.counters.gets, storage.counters.puts


@pytest.mark.s3
def test_a_dry_run_reads_each_log_and_each_index_once(logs: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storages = list[Storage]()
    begin = Storage.__init__

    def note(storage: Storage, *arguments: object) -> None:
        begin(storage, *arguments)  # type: ignore[arg-type]
        storages.append(storage)

    monkeypatch.setattr(Storage, "__init__", note)
    target = f"{logs.url}/of-nobody"
    report = distlog.adopt(f"{logs.url}/codec-none-0", target, storage_options=logs.options, dry_run=True)
    (partition,) = report.adopted[0].partitions
    listed, got, put = (sum(count) for count in zip(*map(requests, storages), strict=True))
    files = sum(len(segment.files) for segment in partition.segments)
    # four checkpoints, the newest snapshot, the leader epochs and the topic's id; five search for a topic
    assert (len(partition.segments), got, put) == (4, files + 7 + 5, 0)
    # the given folder, and the same as a log directory; its siblings, the folders and the files; the address
    # of the topic
    assert listed == 5


@pytest.mark.s3
def test_a_large_log_is_read_window_by_window(s3_url: Address, tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    topic.append([{"value": os.urandom(1_000_000)} for _ in range(22)])
    topic.export(tmp_path / "kafka")
    remote = uploaded(tmp_path / "kafka", s3_url._replace(url=f"{s3_url.url}/logs"))
    adopted = distlog.adopt(remote.url, storage_options=remote.options)
    assert adopted.topic.snapshot.partitions[0].segments[0].log_bytes > 22_000_000
    assert read(adopted.topic) == read(topic)
    assert adopted.topic.verify().ok


@pytest.mark.s3
def test_a_torn_write_is_not_copied(s3_url: Address, tmp_path: Path) -> None:
    folder = partition_of("crashed", tmp_path, "crashed-0")
    last = sorted(folder.glob("*.log"))[-1]
    content = last.read_bytes()
    last.write_bytes(content + content[:100])
    remote = uploaded(folder.parent, s3_url)
    report = distlog.adopt(f"{remote.url}/crashed-0", f"{remote.url}/topic", storage_options=remote.options)
    assert f"{last.name}: cut" in report.notes[0]
    segment = report.topic.snapshot.partitions[0].segments[-1]
    assert remote.size(f"topic/topic-0/{segment.stem}.log") == segment.log_bytes
    assert read(report.topic) == golden_of("crashed")["crashed-0"].records()
    assert report.topic.verify().ok


@pytest.mark.s3
def test_damage_names_the_object(s3_url: Address, tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "codec-none-0")
    path = sorted(folder.glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    data[16] = 9
    path.write_bytes(data)
    logs = uploaded(folder.parent, s3_url)
    with pytest.raises(CorruptRecordError, match=f"{logs.url}/codec-none-0/{path.name}"):
        distlog.adopt(f"{logs.url}/codec-none-0", str(tmp_path / "t"), storage_options=logs.options)
    assert not (tmp_path / "t").exists()


@pytest.mark.s3
def test_an_object_that_shrinks_during_adoption_raises(
    logs: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Storage.list

    def longer(storage: Storage, folder: str = "") -> list[object]:
        return [dataclasses.replace(file, size=file.size + 1) for file in listed(storage, folder)]

    monkeypatch.setattr(Storage, "list", longer)
    with pytest.raises(StorageError, match="shorter than expected"):
        distlog.adopt(f"{logs.url}/codec-none-0", str(tmp_path / "t"), storage_options=logs.options)


@pytest.mark.s3
def test_a_url_without_partitions_is_refused(s3_url: Address, tmp_path: Path) -> None:
    for url in (s3_url.url, f"{s3_url.url}/clicks-0"):
        with pytest.raises(InvalidTopicError, match="not a broker's log directory, and not a"):
            distlog.adopt(url, str(tmp_path / "t"), storage_options=s3_url.options)
