"""Export: a topic as a broker's log directory, repeatedly, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adopted import rows
from dying_calls import Died, DyingCalls
from hypothesis import given
from hypothesis import strategies as st
from log_dirs import STAGES, contents, copy_of
from searches import examples

import distlog
from distlog import CorruptMetadataError, StorageError, Topic
from distlog.core.errors import TopicExistsError
from distlog.core.format.record_batch import APPEND_TIME, check_crcs, read_headers
from distlog.core.kafka.partition_folder import read_epochs, read_offsets
from distlog.core.segments.producer_states import read_producer_snapshot

NOW = 1_700_000_000_000
KEPT_SETTINGS = {"retention.ms": -1, "index.interval.bytes": 300, "batch.bytes": 200}


def topic_at(folder: Path, partitions: int = 1, **config: Any) -> Topic:
    named = {name.replace("_", "."): value for name, value in config.items()}
    return distlog.create(str(folder / "clicks"), partitions, {**KEPT_SETTINGS, **named})


def append(topic: Topic, count: int = 50, partition: int | None = None, first: int = 0) -> None:
    records = [
        {"key": b"k%d" % (row % 7), "value": b"v%d" % row, "timestamp": NOW + row}
        for row in range(first, first + count)
    ]
    topic.append(records, partition=partition)


def written(report: Any) -> list[int]:
    return [row["segments_written"] for row in report.to_dict()["partitions"]]


def offsets_in(log_dir: Path, name: str) -> dict[str, int]:
    offsets = read_offsets((log_dir / name).read_bytes())
    return {f"{topic}-{partition}": offset for (topic, partition), offset in offsets.items()}


@pytest.mark.parametrize("stage", STAGES)
def test_an_adopted_log_is_exported_byte_for_byte(stage: str, tmp_path: Path) -> None:
    log_dir, exported = copy_of(stage, tmp_path), tmp_path / "exported"
    old_contents = contents(log_dir)
    for topic in distlog.adopt(log_dir, str(tmp_path / "topics")).topics.values():
        topic.export(exported)
    after = contents(exported)
    suffixes = (".log", ".index", ".timeindex", ".txnindex")
    files = [name for name in old_contents if name.endswith(suffixes)]
    assert sorted(name for name in after if name.endswith(suffixes)) == sorted(files)
    remade = {name for name in files if len(old_contents[name][0]) > 60_000 and name.endswith("index")}
    assert bool(remade) == (stage == "crashed")
    same = [name for name in files if name not in remade]
    assert {name: after[name][0] for name in same} == {name: old_contents[name][0] for name in same}
    for name in files:
        if name.endswith(".log"):
            assert abs(after[name][1] - old_contents[name][1]) < 2_000_000


def test_files_are_named_by_base_offset_and_hold_the_offsets_that_readers_see(tmp_path: Path) -> None:
    topic = topic_at(tmp_path)
    for run in range(3):
        append(topic, first=50 * run)
    topic.export(tmp_path / "kafka")
    folder = tmp_path / "kafka" / "clicks-0"
    assert sorted(path.name for path in folder.glob("*.log")) == [f"{base:020d}.log" for base in (0, 50, 100)]
    for log in folder.glob("*.log"):
        data = log.read_bytes()
        batches = read_headers(data)
        check_crcs(data, batches)
        assert batches["base_offset"][0] == int(log.stem)
        assert log.with_suffix(".index").exists()
        assert log.with_suffix(".timeindex").exists()
        segment = topic.segments().to_pylist()[int(log.stem) // 50]
        assert log.stat().st_mtime == pytest.approx(segment["created_ms"].timestamp(), abs=0.002)
    assert offsets_in(tmp_path / "kafka", "recovery-point-offset-checkpoint") == {"clicks-0": 150}
    assert offsets_in(tmp_path / "kafka", "replication-offset-checkpoint") == {"clicks-0": 150}
    assert not (tmp_path / "kafka" / "log-start-offset-checkpoint").exists()
    assert len(read_producer_snapshot((folder / f"{150:020d}.snapshot").read_bytes())) == 0
    assert read_epochs((folder / "leader-epoch-checkpoint").read_bytes()) == []


def test_append_times_are_written_into_the_batches(tmp_path: Path) -> None:
    topic = topic_at(tmp_path, **{"message_timestamp_type": "LogAppendTime"})
    append(topic)
    append(topic)
    topic.export(tmp_path / "kafka")
    times = {row["offset"]: row["timestamp"] for row in rows(topic.scan().to_table())}
    for log in (tmp_path / "kafka").rglob("*.log"):
        data = log.read_bytes()
        batches = read_headers(data)
        check_crcs(data, batches)
        assert (batches["attributes"] & APPEND_TIME != 0).all()
        assert batches["max_timestamp"].tolist() == [times[offset] for offset in batches["base_offset"].tolist()]
    again = distlog.adopt(tmp_path / "kafka", str(tmp_path / "again")).topic
    assert rows(again.scan().to_table()) == rows(topic.scan().to_table())
    assert again.verify().ok


def test_a_repeated_export_adds_new_and_removes_deleted_segments(tmp_path: Path) -> None:
    topic, kafka = topic_at(tmp_path, 2), tmp_path / "kafka"
    for partition in (0, 0, 1):
        append(topic, partition=partition)
    assert written(topic.export(kafka)) == [2, 1]
    old_contents = contents(kafka)
    assert written(topic.export(kafka)) == [0, 0]
    assert contents(kafka) == old_contents
    append(topic, partition=1)
    assert written(topic.export(kafka, partitions=[1])) == [1]
    topic.delete_records({0: 70})
    topic.alter_config({"retention.bytes": 0})
    topic.retention()
    assert written(topic.export(kafka)) in ([0, 0], [0, 1], [1, 1])
    assert_same(topic, kafka, tmp_path / "first")
    topic.alter_config({"retention.bytes": -1, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    append(topic, partition=0)
    topic.compact()
    topic.export(kafka)
    assert_same(topic, kafka, tmp_path / "second")


def assert_same(topic: Topic, kafka: Path, folder: Path) -> None:
    again = distlog.adopt(kafka, str(folder)).topic
    assert again.start_offsets() == topic.start_offsets()
    assert again.end_offsets() == topic.end_offsets()
    assert rows(again.scan().to_table()) == rows(topic.scan().to_table())
    assert again.verify().ok


def test_a_directly_appended_tail_is_exported_and_grows(tmp_path: Path) -> None:
    topic, kafka = topic_at(tmp_path), tmp_path / "kafka"
    with topic.writer() as writer:
        for number in range(30):
            writer.append(b"first %d" % number, timestamp=NOW + number)
        writer.flush()
        topic.refresh()
        assert written(topic.export(kafka)) == [1]
        writer.append(b"second", timestamp=NOW + 100)
        writer.flush()
        topic.refresh()
        assert written(topic.export(kafka)) == [1]
        assert_same(topic, kafka, tmp_path / "again")


def test_a_start_emptied_by_compaction_gets_an_empty_file(tmp_path: Path) -> None:
    topic = topic_at(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    for _ in range(3):
        topic.append([{"key": b"only", "value": b"v", "timestamp": NOW}])
    topic.compact()
    append(topic, 5)
    topic.export(tmp_path / "kafka")
    folder = tmp_path / "kafka" / "clicks-0"
    assert min(int(log.stem) for log in folder.glob("*.log")) == 0
    assert_same(topic, tmp_path / "kafka", tmp_path / "again")


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_an_exported_log_with_an_empty_file_is_adopted(policy: str, tmp_path: Path) -> None:
    topic = topic_at(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0, internal_segment_bytes=400)
    for _ in range(3):
        topic.append([{"key": b"only", "value": b"v" * 300, "timestamp": NOW}])
    topic.compact()
    topic.export(tmp_path / "kafka")
    settings = {"cleanup.policy": policy, "min.cleanable.dirty.ratio": 0}
    assert distlog.adopt(tmp_path / "kafka", str(tmp_path / "topics"), config=settings).ok
    adopted = distlog.open(str(tmp_path / "topics" / "clicks"))
    for number in range(4):
        adopted.append([{"key": b"%d" % number, "value": b"w", "timestamp": NOW}])
    adopted.compact()
    assert [record.offset for record in adopted.records()] == [2, 3, 4, 5, 6]
    assert adopted.verify().ok


def test_an_empty_topic_is_an_empty_file_at_its_log_end(tmp_path: Path) -> None:
    topic = topic_at(tmp_path, 2)
    append(topic, partition=1)
    topic.delete_records({1: -1})
    topic.alter_config({"retention.ms": 0})
    topic.retention()
    topic.export(tmp_path / "kafka")
    logs = {
        str(log.relative_to(tmp_path / "kafka")): log.stat().st_size for log in (tmp_path / "kafka").rglob("*.log")
    }
    assert logs == {f"clicks-0/{0:020d}.log": 0, f"clicks-1/{50:020d}.log": 0}
    # a broker takes the modification time as the largest timestamp: a search by time must skip the file
    assert max(log.stat().st_mtime for log in (tmp_path / "kafka").rglob("*.log")) < 0
    assert_same(topic, tmp_path / "kafka", tmp_path / "again")


def test_checkpoints_of_other_topics_stay(tmp_path: Path) -> None:
    kafka = copy_of("first", tmp_path)
    topic = topic_at(tmp_path)
    append(topic)
    topic.delete_records({0: 10})
    old_offsets = offsets_in(kafka, "recovery-point-offset-checkpoint")
    topic.export(kafka)
    assert offsets_in(kafka, "recovery-point-offset-checkpoint") == {**old_offsets, "clicks-0": 50}
    assert offsets_in(kafka, "log-start-offset-checkpoint") == {"deleted-records-0": 137, "clicks-0": 10}


def test_a_folder_with_foreign_changes_is_refused(tmp_path: Path) -> None:
    topic, kafka = topic_at(tmp_path), tmp_path / "kafka"
    append(topic)
    topic.export(kafka)
    log = kafka / "clicks-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + b"more")
    with pytest.raises(StorageError, match="a broker has written to the folder since the last export"):
        topic.export(kafka)
    (kafka / "clicks-0" / ".distlog-export.json").write_text("{}")
    with pytest.raises(CorruptMetadataError, match="not the record of an export"):
        topic.export(kafka)
    (kafka / "clicks-0" / ".distlog-export.json").unlink()
    with pytest.raises(StorageError, match="has records that no export wrote"):
        topic.export(kafka)


def test_another_topic_of_the_same_name_is_not_replaced(tmp_path: Path) -> None:
    for root in ("one", "other"):
        distlog.create(f"{tmp_path}/{root}/clicks", partitions=2).append([{"value": root}], partition=0)
    distlog.open(f"{tmp_path}/one/clicks").export(tmp_path / "kafka", partitions=[0])
    old_files = {path: path.read_bytes() for path in (tmp_path / "kafka").rglob("*") if path.is_file()}
    with pytest.raises(TopicExistsError, match="the directory has an export of another topic"):
        distlog.open(f"{tmp_path}/other/clicks").export(tmp_path / "kafka")
    assert {path: path.read_bytes() for path in (tmp_path / "kafka").rglob("*") if path.is_file()} == old_files


def test_an_invalid_log_directory_is_named(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", Path("/proc/nowhere")):
        with pytest.raises(StorageError, match="cannot open the log directory") as caught:
            topic.export(str(target))
        assert str(target) in str(caught.value)


def test_the_empty_log_of_a_brokers_new_topic_is_replaced(tmp_path: Path) -> None:
    topic, folder = topic_at(tmp_path), tmp_path / "kafka" / "clicks-0"
    append(topic)
    folder.mkdir(parents=True)
    for suffix in (".log", ".index", ".timeindex"):
        (folder / f"{0:020d}{suffix}").write_bytes(b"" if suffix == ".log" else bytes(64))
    metadata = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    (folder / "partition.metadata").write_bytes(metadata)
    topic.export(tmp_path / "kafka")
    assert (folder / "partition.metadata").read_bytes() == metadata
    again = distlog.adopt(tmp_path / "kafka", str(tmp_path / "again")).topic
    assert rows(again.scan().to_table()) == rows(topic.scan().to_table())


@pytest.mark.long
def test_an_export_continues_after_a_crash_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_at(tmp_path)
    append(topic)
    steps = 0
    for fail_at in range(100):
        kafka = tmp_path / f"kafka{fail_at}"
        topic.export(kafka)
        append(topic, 3)
        with monkeypatch.context() as patch:
            calls = DyingCalls(fail_at, patch, ("replace", "link", "utime", "unlink"))
            try:
                topic.export(kafka)
            except Died:
                steps += 1
        topic.export(kafka)
        assert_same(topic, kafka, tmp_path / f"again{fail_at}")
        if calls.count <= fail_at:
            break
    assert steps > 8


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 40)),
        st.tuples(st.just("delete"), st.integers(0, 1), st.integers(0, 100)),
        st.tuples(st.just("compact"), st.just(0), st.just(0)),
        st.tuples(st.just("export"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=8,
)


@examples(15)
@given(steps=STEPS)
def test_export_and_adoption_round_trip(steps: list[tuple[str, int, int]], tmp_path_factory: Any) -> None:
    """adopt(export(t)) equals t, with any changes between exports into the same folder."""
    folder = tmp_path_factory.mktemp("trip")
    topic = topic_at(folder, 2, cleanup_policy="compact,delete", min_cleanable_dirty_ratio=0)
    for number, (step, partition, count) in enumerate(steps):
        if step == "append":
            append(topic, count, partition, first=number)
        elif step == "delete":
            topic.delete_records({partition: min(count, topic.end_offsets()[partition])})
        elif step == "compact":
            topic.compact()
        else:
            topic.export(folder / "kafka")
    topic.export(folder / "kafka")
    assert_same(topic, folder / "kafka", folder / "again")
    assert np.all([path.stat().st_size % 8 == 0 for path in (folder / "kafka").rglob("*.index")])
