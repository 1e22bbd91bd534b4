"""Adoption: the directory of a stopped broker opens as topics, directly or as a copy, for all of distlog."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from addresses import Address
from dying_calls import Died, DyingCalls, before_call
from log_dirs import STAGES, contents, copy_of, golden_of, partition_of, read

import distlog
from distlog import InvalidConfigError, InvalidTopicError, StorageError, TopicExistsError, TopicNotFoundError
from distlog.core.format.record_batch import read_headers
from distlog.core.maintain.vacuum import vacuum
from distlog.core.segments.producer_states import read_producer_snapshot

HOLD_THE_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("way", ["in place", "copied"])
def test_every_partition_has_the_records_of_the_brokers_consumer(stage: str, way: str, tmp_path: Path) -> None:
    log_dir = copy_of(stage, tmp_path)
    old_contents = contents(log_dir)
    report = distlog.adopt(log_dir, None if way == "in place" else str(tmp_path / "topics"))
    assert report.ok
    for name, partition in golden_of(stage).items():
        topic_name, _, number = name.rpartition("-")
        topic = report.topics[topic_name]
        assert read(topic, int(number)) == partition.records()
        if partition.expected.with_name(partition.expected.name.replace(".jsonl", ".committed.jsonl")).exists():
            assert read(topic, int(number), committed=True) == partition.records(committed=True)
    assert all(topic.verify().ok for topic in report.topics.values())
    assert {name: records for name, records in contents(log_dir).items() if name in old_contents} == old_contents


def test_a_direct_adoption_copies_nothing_and_keeps_topics_in_the_log_directory(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    report = distlog.adopt(log_dir)
    topic = distlog.open(str(log_dir / "txn"))
    assert topic.version == report.topics["txn"].version == 0
    assert [row["operation"] for row in topic.history().to_pylist()] == ["import"]
    for segment in topic.segments().to_pylist():
        for suffix in (".log", ".index"):
            name = f"txn-0/{segment['stem']}{suffix}"
            assert os.path.samefile(log_dir / name, log_dir / "txn" / name)


def test_a_topic_is_copied_to_any_storage(storage_url: Address, tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "txn-0")
    report = distlog.adopt(folder, f"{storage_url.url}/events", storage_options=storage_url.options)
    topic = distlog.open(f"{storage_url.url}/events", storage_options=storage_url.options)
    assert topic.name == "events"
    assert read(topic, committed=True) == golden_of("first")["txn-0"].records(committed=True)
    assert report.topic.verify().ok
    # the broker's settings are unknown, so nothing is deleted
    assert report.topic.retention().partitions == ()


def test_log_start_first_dirty_offset_producers_and_leader_epochs_come_along(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    report = distlog.adopt(log_dir)
    assert report.topics["deleted-records"].start_offsets() == {0: 137}
    snapshot = (log_dir / "txn" / "txn-0" / "00000000000000000713.snapshot").read_bytes()
    assert snapshot == (log_dir / "txn-0" / "00000000000000000713.snapshot").read_bytes()
    assert len(read_producer_snapshot(snapshot)) == 3
    epochs = (log_dir / "txn" / "txn-0" / "leader-epoch-checkpoint").read_bytes()
    assert epochs == (log_dir / "txn-0" / "leader-epoch-checkpoint").read_bytes()
    cleaned = distlog.adopt(copy_of("cleaned", tmp_path / "cleaned")).topics["compact-none"]
    assert cleaned.snapshot.partitions[0].first_dirty_offset == 546


def test_the_topic_keeps_the_brokers_id(tmp_path: Path) -> None:
    report = distlog.adopt(copy_of("first", tmp_path))
    (log_dir,) = {Path(topic.url).parent for topic in report.topics.values()}
    report.topics["multi"].export(tmp_path / "again")
    for number in range(3):
        name = f"multi-{number}/partition.metadata"
        assert (tmp_path / "again" / name).read_bytes() == (log_dir / name).read_bytes()


def test_one_topic_of_many(tmp_path: Path) -> None:
    report = distlog.adopt(copy_of("first", tmp_path), topics=["multi"])
    assert (list(report.topics), report.topic.partitions) == (["multi"], 3)
    with pytest.raises(InvalidTopicError, match="no partition of the topic"):
        distlog.adopt(copy_of("first", tmp_path / "other"), topics=["absent"])


def test_a_missing_partition_is_named(tmp_path: Path) -> None:
    report = distlog.adopt(partition_of("first", tmp_path, "multi-2"))
    assert report.topic.partitions == 3
    assert report.notes == (
        "multi: partition 0 is not in this directory: it is empty here",
        "multi: partition 1 is not in this directory: it is empty here",
    )


def test_a_second_adoption_leaves_the_topics_of_the_first(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    distlog.adopt(log_dir, topics=["txn"]).topic.append([{"value": b"ours"}])
    report = distlog.adopt(log_dir)
    assert report.ok
    assert "txn: was adopted before" in report.notes
    assert report.topics["txn"].end_offsets() == {0: 714}


def test_another_topic_at_the_address_is_unchanged(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    distlog.create(str(tmp_path / "topics" / "txn")).append([{"value": b"ours"}])
    report = distlog.adopt(log_dir, str(tmp_path / "topics"))
    assert not report.ok
    assert [topic.name for topic in report.adopted if isinstance(topic.error, TopicExistsError)] == ["txn"]
    assert distlog.open(str(tmp_path / "topics" / "txn")).end_offsets() == {0: 1}
    with pytest.raises(TopicExistsError):
        distlog.adopt(log_dir / "txn-0", str(tmp_path / "topics" / "txn"))


def test_the_address_of_a_dropped_adopted_topic_is_refused(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    distlog.adopt(log_dir, topics=["txn"]).topic.drop()
    assert isinstance(distlog.adopt(log_dir, topics=["txn"]).adopted[0].error, TopicExistsError)


def test_a_dry_run_only_reports(tmp_path: Path) -> None:
    log_dir = copy_of("crashed", tmp_path)
    old_contents = contents(tmp_path)
    report = distlog.adopt(log_dir, dry_run=True)
    assert str(report).startswith("would adopt 1 topic, ")
    assert report.to_dict()["partitions"][0]["log_end_offset"] == 200
    assert (report.topics, contents(tmp_path)) == ({}, old_contents)


def test_a_directory_without_a_brokers_files_is_refused(tmp_path: Path) -> None:
    for name in ("", "absent", "clicks-0"):
        (tmp_path / "clicks-0").mkdir(exist_ok=True)
        with pytest.raises(InvalidTopicError):
            distlog.adopt(tmp_path / name)
    with pytest.raises(InvalidConfigError):
        distlog.adopt(copy_of("crashed", tmp_path), config={"no.such": 1})


def test_the_folder_of_a_topic_is_refused(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    with topic.writer() as writer:
        writer.append(b"kept")
    old_contents = contents(tmp_path)
    for call in (
        lambda: distlog.adopt(tmp_path / "clicks"),
        lambda: distlog.adopt(tmp_path / "clicks" / "clicks-0"),
        lambda: distlog.adopt(tmp_path / "clicks" / "clicks-0", str(tmp_path / "copy")),
        lambda: topic.export(tmp_path / "clicks"),
    ):
        with pytest.raises(InvalidTopicError, match="the folder of a topic, not a broker's log directory"):
            call()
    assert contents(tmp_path) == old_contents


def test_a_log_directory_whose_lock_a_process_holds_is_refused(tmp_path: Path) -> None:
    log_dir = copy_of("crashed", tmp_path)
    (log_dir / ".lock").touch()
    command = [sys.executable, "-c", HOLD_THE_LOCK, str(log_dir / ".lock")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(StorageError, match="a broker is running"):
        distlog.adopt(log_dir)
    holder.communicate()
    assert distlog.adopt(log_dir).ok
    with (log_dir / ".lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_topic_with_a_partition_like_folder_is_copied(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    (log_dir / "txn-0").rename(log_dir / "year-2024-0")
    report = distlog.adopt(log_dir, topics=["year-2024"])
    assert not report.ok
    assert not (log_dir / "year-2024").exists()
    assert distlog.adopt(log_dir, str(tmp_path / "topics"), topics=["year-2024"]).ok


@pytest.mark.long
def test_retention_compaction_and_vacuum_work_and_leave_the_brokers_files(tmp_path: Path) -> None:
    log_dir = copy_of("logs", tmp_path)
    old_contents = contents(log_dir)
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "file.delete.delay.ms": "0"}
    for topic in distlog.adopt(log_dir, config=config).topics.values():
        topic.append([{"key": b"after", "value": b"%d" % number} for number in range(3)])
        assert topic.compact().to_dict()["ok"]
        assert topic.vacuum().files
        topic.alter_config({"cleanup.policy": "delete", "retention.bytes": "0"})
        assert topic.retention().partitions
        assert topic.vacuum().files
        assert topic.verify().ok
    assert {name: records for name, records in contents(log_dir).items() if name in old_contents} == old_contents


def test_vacuum_of_a_dropped_topic_deletes_adopted_files(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    old_contents = contents(log_dir)
    topic = distlog.adopt(log_dir, topics=["txn"], config={"file.delete.delay.ms": "0"}).topic
    topic.drop()
    vacuum(topic.storage, topic.log)
    assert list((log_dir / "txn" / "txn-0").glob("*.log")) == []
    assert {name: records for name, records in contents(log_dir).items() if name in old_contents} == old_contents


def test_producers_after_the_last_snapshot_are_found_in_the_log(tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "txn-0")
    right = (folder / "00000000000000000713.snapshot").read_bytes()
    (folder / "00000000000000000713.snapshot").unlink()
    distlog.adopt(folder)
    snapshot = (folder.parent / "txn" / "txn-0" / "00000000000000000713.snapshot").read_bytes()
    entries = [sorted(read_producer_snapshot(data).tolist()) for data in (snapshot, right)]
    assert entries[0] == entries[1]
    shutil.rmtree(folder.parent / "txn")
    for file in folder.glob("*.snapshot"):
        file.write_bytes(b"damaged")
    assert distlog.adopt(folder).ok
    snapshot = (folder.parent / "txn" / "txn-0" / "00000000000000000713.snapshot").read_bytes()
    assert sorted(read_producer_snapshot(snapshot).tolist()) == entries[1]


KEPT_SUFFIXES = {"leader-epoch-checkpoint", ".snapshot"}


def leftover(folder: Path) -> set[str]:
    return {path.suffix or path.name for path in folder.iterdir()}


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    folder = partition_of("first", tmp_path, "idempotent-0")
    return distlog.adopt(folder, str(tmp_path / "idempotent"), config={"file.delete.delay.ms": 0}).topic


def test_a_dropped_topic_that_was_adopted_leaves_no_file(topic: distlog.Topic, tmp_path: Path) -> None:
    folder = tmp_path / "idempotent" / "idempotent-0"
    topic.vacuum()
    assert leftover(folder) >= KEPT_SUFFIXES
    topic.drop()
    topic.vacuum()
    assert leftover(folder) == set()


def test_without_a_brokers_segment_its_leader_epochs_go_and_its_producers_stay(
    topic: distlog.Topic, tmp_path: Path
) -> None:
    folder = tmp_path / "idempotent" / "idempotent-0"
    end = topic.end_offsets()[0]
    topic.delete_records({0: -1})
    topic.retention()
    topic.vacuum()
    assert [path.name for path in folder.iterdir() if path.suffix] == [f"{end:020d}.snapshot"]
    assert "leader-epoch-checkpoint" not in leftover(folder)


@pytest.mark.parametrize("way", ["in place", "copied"])
def test_a_concurrent_adoption_to_one_address_is_refused(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = golden_of("first")["java-lz4-0"].records()
    folder = partition_of("first", tmp_path, "java-lz4-0")
    target = str(tmp_path / "copies" / "java-lz4") if way == "copied" else None
    calls = []

    def adopt_again() -> None:
        with pytest.raises(StorageError, match="another adoption") as error:
            distlog.adopt(folder, target)
        calls.append(error)

    before_call(monkeypatch, "link", lambda _, to: "/_commits/" in to, adopt_again)
    topic = distlog.adopt(folder, target).topic
    assert calls
    assert read(topic) == records
    assert topic.verify().ok


def test_a_concurrent_export_into_one_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [distlog.create(str(tmp_path / name)) for name in ("first", "second")]
    target, calls = tmp_path / "logs", []

    def export_another() -> None:
        with pytest.raises(StorageError, match="another export or import") as error:
            topics[1].export(target)
        calls.append(error)

    before_call(monkeypatch, "replace", lambda _, to: to.endswith("-checkpoint"), export_another)
    topics[0].export(target)
    assert calls
    topics[1].export(target)
    assert (target / "replication-offset-checkpoint").read_text() == "0\n2\nfirst 0 0\nsecond 0 0\n"


CALLS = ("link", "unlink", "replace", "rename", "mkdir", "fsync")


@pytest.mark.long
@pytest.mark.parametrize("way", ["in place", "copied"])
def test_a_crash_at_any_step_leaves_the_brokers_files_or_an_adopted_topic(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, died, fail_at = golden_of("first")["java-lz4-0"].records(), 0, 0
    while True:
        # 1. one index is missing, so that adoption must write a file
        folder = partition_of("first", tmp_path / str(fail_at), "java-lz4-0")
        next(folder.glob("*.index")).unlink()
        old_contents = contents(folder.parent)
        target = None if way == "in place" else str(tmp_path / str(fail_at) / "copies" / "java-lz4")
        url = str(folder.parent / "java-lz4") if target is None else target
        # 2. the adoption dies
        with monkeypatch.context() as patch:
            deaths = DyingCalls(fail_at, patch, CALLS)
            try:
                distlog.adopt(folder, target)
            except Died:
                died += 1
        # 3. the topic is whole or missing
        try:
            assert read(distlog.open(url)) == records
        except TopicNotFoundError:
            assert deaths.count > fail_at
        # 4. the broker's files are unchanged, and the next adoption succeeds
        after = contents(folder.parent)
        assert {name: after[name] for name in old_contents} == old_contents
        topic = distlog.adopt(folder, target).topic
        assert read(topic) == records
        assert topic.verify().ok
        if deaths.count <= fail_at:
            break
        fail_at += 1
    assert died > 15


def test_foreign_files_at_the_address_are_unchanged(tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "txn-0")
    other = tmp_path / "topics" / "txn" / "txn-0"
    other.mkdir(parents=True)
    (other / "00000000000000000000.log").write_bytes(b"of another broker")
    with pytest.raises(StorageError, match="the topic's folder has other files"):
        distlog.adopt(folder, str(tmp_path / "topics" / "txn"))
    assert (other / "00000000000000000000.log").read_bytes() == b"of another broker"


DAMAGES = {
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(37) + data[37:],
}


def producers(folder: Path) -> list[tuple[int, ...]]:
    (snapshot,) = (folder.parent / "txn" / "txn-0").glob("*.snapshot")
    return sorted(read_producer_snapshot(snapshot.read_bytes()).tolist())


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_previous_snapshot_and_the_log_replace_a_damaged_snapshot(damage: str, tmp_path: Path) -> None:
    """testLoadFromEmptySnapshotFile, testLoadFromTruncatedSnapshotFile, testLoadFromCorruptSnapshotFile."""
    folder = partition_of("first", tmp_path, "txn-0")
    distlog.adopt(folder)
    right = producers(folder)
    shutil.rmtree(folder.parent / "txn")
    *_, previous, newest = sorted(folder.glob("*.snapshot"))
    assert (
        read_producer_snapshot(previous.read_bytes()).tolist() != read_producer_snapshot(newest.read_bytes()).tolist()
    )
    newest.write_bytes(DAMAGES[damage](newest.read_bytes()))
    distlog.adopt(folder)
    assert producers(folder) == right


def test_a_stray_snapshot_past_the_log_end_is_ignored(tmp_path: Path) -> None:
    """testRemoveExpiredPidsOnReload, testRemoveAllStraySnapshots."""
    folder = partition_of("first", tmp_path, "txn-0")
    distlog.adopt(folder)
    right = producers(folder)
    shutil.rmtree(folder.parent / "txn")
    first = sorted(folder.glob("*.snapshot"))[0]
    shutil.copy(first, folder / f"{10**6:020d}.snapshot")
    assert distlog.adopt(folder).ok
    assert producers(folder) == right


def moved(log: Path, batch: int, base_offset: int) -> int:
    """Append a batch of the log again at another offset, which is outside its checksum; return its position."""
    data = log.read_bytes()
    row = read_headers(data)[batch]
    again = data[row["position"] : row["position"] + row["size"]]
    log.write_bytes(data + base_offset.to_bytes(8, "big") + again[8:])
    return len(data)


@pytest.mark.parametrize("clean", [False, True])
def test_descending_offsets_end_the_log(clean: bool, tmp_path: Path) -> None:
    """Step 8 of the loader: InvalidOffset."""
    folder = partition_of("first", tmp_path, "codec-none-0")
    if not clean:
        (folder.parent / ".kafka_cleanshutdown").unlink()
    last = sorted(folder.glob("*.log"))[-1]
    position = moved(last, 0, int(last.stem))
    report = distlog.adopt(folder)
    assert f"{last.name}: cut" in report.notes[0]
    assert f"from position {position}: a record batch cannot follow the earlier batches" in report.notes[0]
    assert read(report.topic) == golden_of("first")["codec-none-0"].records()
