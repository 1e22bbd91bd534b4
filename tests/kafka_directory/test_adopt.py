"""Adoption: what a stopped broker left opens as topics, in place and by copy, and all of distlog works on it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Address
from log_dirs import STAGES, contents, copy_of, golden_of, partition_of, read

import distlog
from distlog import InvalidConfigError, InvalidTopicError, StorageError, TopicExistsError
from distlog.core.maintenance.vacuum import vacuum
from distlog.core.transactions.producer_states import read_producer_snapshot

HOLD_THE_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("way", ["in place", "copied"])
def test_every_partition_reads_as_a_consumer_of_the_broker_read_it(stage: str, way: str, tmp_path: Path) -> None:
    log_dir = copy_of(stage, tmp_path)
    before = contents(log_dir)
    report = distlog.adopt(log_dir, None if way == "in place" else str(tmp_path / "topics"))
    assert report.ok
    for name, partition in golden_of(stage).items():
        topic_name, _, number = name.rpartition("-")
        topic = report.topics[topic_name]
        assert read(topic, int(number)) == partition.records()
        if partition.expected.with_name(partition.expected.name.replace(".jsonl", ".committed.jsonl")).exists():
            assert read(topic, int(number), committed=True) == partition.records(committed=True)
    assert all(topic.verify().ok for topic in report.topics.values())
    assert {name: found for name, found in contents(log_dir).items() if name in before} == before


def test_in_place_nothing_is_copied_and_the_topics_are_in_the_log_directory(tmp_path: Path) -> None:
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
    # the broker's settings are not known: nothing is deleted for want of them
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


def test_the_topic_has_the_id_that_the_broker_gave_it(tmp_path: Path) -> None:
    report = distlog.adopt(copy_of("first", tmp_path))
    (log_dir,) = {Path(topic.url).parent for topic in report.topics.values()}
    report.topics["multi"].export(tmp_path / "again")
    for number in range(3):
        name = f"multi-{number}/partition.metadata"
        assert (tmp_path / "again" / name).read_bytes() == (log_dir / name).read_bytes()


def test_one_topic_of_many(tmp_path: Path) -> None:
    report = distlog.adopt(copy_of("first", tmp_path), topics=["multi"])
    assert (list(report.topics), report.topic.partitions) == (["multi"], 3)
    with pytest.raises(InvalidTopicError, match="no partition of this topic"):
        distlog.adopt(copy_of("first", tmp_path / "other"), topics=["absent"])


def test_a_partition_that_is_not_there_is_named(tmp_path: Path) -> None:
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


def test_another_topic_at_the_address_is_not_touched(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    distlog.create(str(tmp_path / "topics" / "txn")).append([{"value": b"ours"}])
    report = distlog.adopt(log_dir, str(tmp_path / "topics"))
    assert not report.ok
    assert [each.name for each in report.adopted if isinstance(each.error, TopicExistsError)] == ["txn"]
    assert distlog.open(str(tmp_path / "topics" / "txn")).end_offsets() == {0: 1}
    with pytest.raises(TopicExistsError):
        distlog.adopt(log_dir / "txn-0", str(tmp_path / "topics" / "txn"))


def test_an_address_where_an_adopted_topic_was_dropped_is_not_used_again(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    distlog.adopt(log_dir, topics=["txn"]).topic.drop()
    assert isinstance(distlog.adopt(log_dir, topics=["txn"]).adopted[0].error, TopicExistsError)


def test_a_dry_run_only_says_what_would_be_done(tmp_path: Path) -> None:
    log_dir = copy_of("crashed", tmp_path)
    before = contents(tmp_path)
    report = distlog.adopt(log_dir, dry_run=True)
    assert str(report).startswith("would adopt 1 topic, ")
    assert report.to_dict()["partitions"][0]["log_end_offset"] == 200
    assert (report.topics, contents(tmp_path)) == ({}, before)


def test_a_directory_that_is_no_brokers_is_refused(tmp_path: Path) -> None:
    for name in ("", "absent", "clicks-0"):
        (tmp_path / "clicks-0").mkdir(exist_ok=True)
        with pytest.raises(InvalidTopicError):
            distlog.adopt(tmp_path / name)
    with pytest.raises(InvalidConfigError):
        distlog.adopt(copy_of("crashed", tmp_path), config={"no.such": 1})


def test_the_folder_of_a_topic_is_no_log_directory(tmp_path: Path) -> None:
    """Its partitions' folders are named as a broker's, and hold logs."""
    topic = distlog.create(str(tmp_path / "clicks"))
    with topic.writer() as writer:
        writer.append(b"kept")
    before = contents(tmp_path)
    for call in (
        lambda: distlog.adopt(tmp_path / "clicks"),
        lambda: distlog.adopt(tmp_path / "clicks" / "clicks-0"),
        lambda: distlog.adopt(tmp_path / "clicks" / "clicks-0", str(tmp_path / "copy")),
        lambda: topic.export(tmp_path / "clicks"),
    ):
        with pytest.raises(InvalidTopicError, match="the folder of a topic, not a broker's log directory"):
            call()
    assert contents(tmp_path) == before


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


def test_a_topic_whose_folder_would_look_like_a_partition_is_copied_only(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    (log_dir / "txn-0").rename(log_dir / "year-2024-0")
    report = distlog.adopt(log_dir, topics=["year-2024"])
    assert not report.ok
    assert not (log_dir / "year-2024").exists()
    assert distlog.adopt(log_dir, str(tmp_path / "topics"), topics=["year-2024"]).ok


@pytest.mark.long
def test_retention_compaction_and_vacuum_work_and_leave_the_brokers_files(tmp_path: Path) -> None:
    log_dir = copy_of("logs", tmp_path)
    before = contents(log_dir)
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "file.delete.delay.ms": "0"}
    for topic in distlog.adopt(log_dir, config=config).topics.values():
        topic.append([{"key": b"after", "value": b"%d" % number} for number in range(3)])
        assert topic.compact().to_dict()["ok"]
        assert topic.vacuum().files
        topic.alter_config({"cleanup.policy": "delete", "retention.bytes": "0"})
        assert topic.retention().partitions
        assert topic.vacuum().files
        assert topic.verify().ok
    assert {name: found for name, found in contents(log_dir).items() if name in before} == before


def test_vacuum_of_a_dropped_topic_deletes_what_was_adopted_for_it(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    before = contents(log_dir)
    topic = distlog.adopt(log_dir, topics=["txn"], config={"file.delete.delay.ms": "0"}).topic
    topic.drop()
    vacuum(topic.storage, topic.log)
    assert list((log_dir / "txn" / "txn-0").glob("*.log")) == []
    assert {name: found for name, found in contents(log_dir).items() if name in before} == before


def test_producers_after_the_last_snapshot_are_found_in_the_log(tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "txn-0")
    right = (folder / "00000000000000000713.snapshot").read_bytes()
    (folder / "00000000000000000713.snapshot").unlink()
    distlog.adopt(folder)
    made = (folder.parent / "txn" / "txn-0" / "00000000000000000713.snapshot").read_bytes()
    entries = [sorted(read_producer_snapshot(data).tolist()) for data in (made, right)]
    assert entries[0] == entries[1]
    shutil.rmtree(folder.parent / "txn")
    for file in folder.glob("*.snapshot"):
        file.write_bytes(b"damaged")
    assert distlog.adopt(folder).ok
    made = (folder.parent / "txn" / "txn-0" / "00000000000000000713.snapshot").read_bytes()
    assert sorted(read_producer_snapshot(made).tolist()) == entries[1]
