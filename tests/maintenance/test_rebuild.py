"""Index rebuild: wrong indexes are named and rebuilt byte for byte, and right ones stay."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from adopted import adopt_golden, forget_fields, rows
from commits import put_commit
from rebuilding import (
    BROKER_INTERVAL,
    GOLDEN,
    SUFFIXES,
    contents,
    damage,
    index_states,
    name_of,
    rebuilt,
    segments_of,
    topic_at,
    with_index,
    written_files,
)

import distlog
from distlog import Topic
from distlog.core.commits import actions
from distlog.core.commits.actions import Add, Remove
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.maintain import verify
from distlog.core.maintain.verify import SegmentRebuild, commit_index_fields, rebuild_segment
from distlog.core.segments import segment_reader
from distlog.core.segments.segment_parts import INDEX_FIELDS, index_fields_of


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return topic_at(tmp_path)


def all_rebuilt(topic: Topic, *, force: bool = False) -> list[SegmentRebuild]:
    """The rebuilds of all segments, before the commit of their new fields."""
    return [rebuild_segment(topic.reader, segment, topic.config, force=force) for segment in segments_of(topic)]


def test_right_indexes_stay_unchanged(topic: Topic, tmp_path: Path) -> None:
    old_files = written_files(tmp_path)
    report = rebuilt(topic)
    assert index_states(report) == ["fine fine"] * 2
    assert report.ok
    assert written_files(tmp_path) == old_files
    assert topic.version == 2


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["missing", "truncated", "corrupted", "too long", "stale"])
def test_each_damage_is_named_and_repaired_byte_for_byte(topic: Topic, suffix: str, kind: str) -> None:
    old_contents = contents(topic)
    damage(topic, suffix, kind)
    report = rebuilt(topic)
    assert report.segments[0].states[suffix] == ("corrupted" if kind == "too long" else kind)
    assert index_states(report)[1] == "fine fine"
    assert contents(topic) == old_contents
    assert report.ok
    assert topic.version == 2, "sizes did not change, so there is nothing to commit"
    assert index_states(rebuilt(topic)) == ["fine fine"] * 2


def test_many_rebuilt_segments_are_recorded_by_several_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = distlog.create(f"{tmp_path}/many", 700)
    topic.append([{"partition": number, "value": b""} for number in range(700)])
    learned = [dataclasses.replace(rebuilt, fields={"leader_epoch": 7}) for rebuilt in all_rebuilt(topic)]
    monkeypatch.setattr(actions, "MAX_COMMIT_ROWS", 600)
    monkeypatch.setattr(verify, "MAX_SEGMENTS", 300)
    after = commit_index_fields(topic.handle, topic.snapshot, learned)
    assert after.version == topic.version + 3
    assert {segment.leader_epoch for state in after.partitions for segment in state.segments} == {7}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_changed_byte_is_detected(topic: Topic, suffix: str) -> None:
    right = contents(topic)
    name = name_of(topic, suffix)
    assert len(right[name]) >= 9 * 8
    for position in range(len(right[name])):
        data = bytearray(right[name])
        data[position] ^= 1 << position % 8
        topic.storage.put(name, data)
        rebuilt = rebuild_segment(topic.reader, segments_of(topic)[0], topic.config)
        assert rebuilt.states[suffix] in ("corrupted", "stale")
        assert rebuilt.written == {suffix: len(right[name])}
        assert contents(topic) == right


def test_an_index_of_another_interval_is_right_unless_forced(topic: Topic) -> None:
    wide = contents(topic)
    topic.alter_config({"index.interval.bytes": 0})
    assert index_states(rebuilt(topic)) == ["fine fine"] * 2
    assert contents(topic) == wide
    old_table = topic.scan().to_table()
    report = rebuilt(topic, force=True)
    assert len(report.rebuilt) == 2
    narrow = contents(topic)
    assert all(len(narrow[name]) > len(wide[name]) for name in wide)
    newest = topic.log.history(1)[0]
    assert newest.operation == "rebuild"
    assert [type(action) for action in newest.actions] == [Remove, Add, Remove, Add]
    for segment in segments_of(distlog.open(topic.url)):
        assert segment.offset_index_bytes == len(narrow[topic.reader.name(segment, ".index")])
        assert segment.time_index_bytes == len(narrow[topic.reader.name(segment, ".timeindex")])
    assert distlog.open(topic.url).scan().to_table() == old_table
    topic.alter_config({"index.interval.bytes": 300})
    rebuilt(topic, force=True)
    assert contents(topic) == wide
    assert not rebuilt(topic, force=True).rebuilt


def test_an_index_that_becomes_empty_is_forgotten(topic: Topic) -> None:
    topic.alter_config({"index.interval.bytes": 100_000})
    rebuilt(topic, force=True)
    assert [segment.offset_index_bytes for segment in segments_of(topic)] == [0, 0]
    assert [segment.time_index_bytes for segment in segments_of(topic)] == [12, 12]
    assert index_states(rebuilt(topic)) == ["fine fine"] * 2


def test_an_uncommitted_index_is_rebuilt(topic: Topic) -> None:
    old_segments = segments_of(topic)
    topic.alter_config({"index.interval.bytes": 100_000})
    rebuilt(topic, force=True)
    topic.alter_config({"index.interval.bytes": 300})
    assert index_states(rebuilt(topic)) == ["missing fine"] * 2
    assert [segment.offset_index_bytes for segment in segments_of(topic)] == [
        segment.offset_index_bytes for segment in old_segments
    ]


def test_a_crash_between_the_files_and_the_commit_is_repaired(topic: Topic) -> None:
    wide = contents(topic)
    topic.alter_config({"index.interval.bytes": 0})
    all_rebuilt(topic, force=True)
    topic.alter_config({"index.interval.bytes": 300})
    assert index_states(rebuilt(topic)) == ["corrupted corrupted"] * 2
    assert contents(topic) == wide


def test_a_damaged_log_is_reported_and_other_segments_are_rebuilt(topic: Topic) -> None:
    old_contents = contents(topic)
    log = name_of(topic, ".log")
    data = bytearray(topic.storage.read(log))
    data[300] ^= 1
    topic.storage.put(log, data)
    damage(topic, ".index", "missing")
    second = name_of(topic, ".timeindex", 1)
    topic.storage.delete([second])
    report = rebuilt(topic)
    assert not report.ok
    assert "checksum" in (report.segments[0].error or "")
    assert log in (report.segments[0].error or "")
    assert index_states(report) == ["missing fine", "fine missing"]
    assert topic.storage.read(second) == old_contents[second]
    assert topic.storage.read(log) == data


@pytest.mark.parametrize("position", [7, 15])
def test_a_log_changed_outside_of_its_checksums_gives_no_index(topic: Topic, position: int) -> None:
    log = name_of(topic, ".log")
    data = bytearray(topic.storage.read(log))
    data[position] ^= 1
    topic.storage.put(log, data)
    damage(topic, ".index", "missing")
    report = rebuilt(topic)
    assert report.segments[0].error
    assert not report.segments[0].written


def test_a_dry_run_has_the_same_report_and_writes_nothing(topic: Topic, tmp_path: Path) -> None:
    damage(topic, ".index", "stale")
    old_files = written_files(tmp_path)
    tried = rebuilt(topic, dry_run=True)
    assert written_files(tmp_path) == old_files
    assert tried.segments == rebuilt(topic).segments


def test_a_concurrently_removed_segment_is_left_out_of_the_commit(topic: Topic) -> None:
    topic.alter_config({"index.interval.bytes": 0})
    rebuilt = all_rebuilt(topic, force=True)
    first = segments_of(topic)[0]
    put_commit(topic.log, topic.snapshot, "retention", lambda snapshot: [Remove(0, first.stem)])
    topic.advance(commit_index_fields(topic.handle, topic.snapshot, rebuilt))
    (remaining,) = segments_of(topic)
    assert remaining.offset_index_bytes == len(topic.storage.read(topic.reader.name(remaining, ".index")))


def test_a_concurrently_vacuumed_segment_is_not_damaged(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rebuild takes its snapshot, retention and vacuum delete the first segment, and the rebuild reads it."""
    first, stale, refresh = segments_of(topic)[0], topic.snapshot, topic.log.refresh
    put_commit(topic.log, stale, "retention", lambda snapshot: [Remove(0, first.stem)])
    topic.storage.delete([topic.reader.name(first, suffix) for suffix in (".log", *SUFFIXES)])
    answers = iter([lambda snapshot: stale, refresh])
    monkeypatch.setattr(topic.log, "refresh", lambda snapshot: next(answers)(snapshot))
    report = rebuilt(topic)
    assert [segment.segment.stem for segment in report.segments] == [segments_of(topic)[0].stem]
    assert report.ok
    assert next(answers, None) is None


def test_the_report_as_a_table_and_as_json(topic: Topic) -> None:
    damage(topic, ".index", "truncated")
    report = rebuilt(topic)
    rows = report.to_table().to_pylist()
    assert [(row["offset_index"], row["files_written"]) for row in rows] == [("truncated", 1), ("fine", 0)]
    summary = json.loads(json.dumps(report.to_dict()))
    assert summary["segments_checked"] == 2
    assert summary["segments_rebuilt"] == 1
    assert summary["segments"] == rows[:1]
    assert summary["bytes_written"] == segments_of(topic)[0].offset_index_bytes


def test_the_result_of_a_task_pickles(topic: Topic) -> None:
    damage(topic, ".timeindex", "missing")
    rebuilt = rebuild_segment(pickle.loads(pickle.dumps(topic.reader)), segments_of(topic)[0], topic.config)
    assert pickle.loads(pickle.dumps(rebuilt)) == rebuilt


@pytest.mark.s3
def test_on_an_object_store_readers_use_the_new_index(s3_url: Address) -> None:
    topic = topic_at(s3_url.url, **s3_url.options)
    old_contents = contents(topic)
    for suffix in SUFFIXES:
        damage(topic, suffix, "stale")
    assert index_states(rebuilt(topic)) == ["stale stale", "fine fine"]
    assert contents(topic) == old_contents
    topic.alter_config({"index.interval.bytes": 0})
    assert len(rebuilt(topic, force=True).rebuilt) == 2
    reopened = distlog.open(topic.url, storage_options=s3_url.options)
    assert index_states(rebuilt(reopened)) == ["fine fine"] * 2


def checksums(topic: Topic) -> list[tuple[int, int]]:
    return [(segment.offset_index_crc32c, segment.time_index_crc32c) for segment in segments_of(topic)]


@pytest.fixture
def by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", 0)


def part_of(topic: Topic, segment: SegmentInfo) -> list[int]:
    return topic.scan(start=segment.next_offset - 1, end=segment.next_offset).to_table()["offset"].to_pylist()


@pytest.mark.usefixtures("by_index")
def test_checksums_of_rebuilt_indexes_are_committed(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    topic.alter_config({"index.interval.bytes": 0})
    rebuilt(topic, force=True)
    for segment in segments_of(topic):
        files = {suffix: topic.storage.read(topic.reader.name(segment, suffix)) for suffix in SUFFIXES}
        fields = index_fields_of(files)
        assert fields == {name: getattr(segment, name) for name in fields}
        assert part_of(topic, segment) == [segment.next_offset - 1]
    assert caplog.text == ""


@pytest.mark.usefixtures("by_index")
def test_between_the_files_and_the_commit_readers_scan(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    old_contents = contents(topic)
    name = name_of(topic, ".index")
    other = bytearray(old_contents[name])
    other[-1] += 1
    topic.storage.put(name, other)
    segment = segments_of(topic)[0]
    assert part_of(topic, segment) == [segment.next_offset - 1]
    assert "scanning the log instead; rebuild the indexes" in caplog.text
    assert topic.scan(start=30, end=31).to_table().num_rows == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_index_that_fits_but_was_not_committed_is_rebuilt(topic: Topic, suffix: str) -> None:
    """A crash between the files and the commit can leave indexes of another interval and the same size."""
    segment = segments_of(topic)[0]
    field = INDEX_FIELDS[suffix].checksum
    value = getattr(segment, field)
    fields: dict[str, Any] = {field: value ^ 1}
    wrong = dataclasses.replace(segment, **fields)
    _, after = put_commit(topic.log, topic.snapshot, "rebuild", lambda _: [Remove(0, segment.stem), Add(wrong)])
    topic.advance(after)
    assert topic.verify().ok is False
    report = rebuilt(topic)
    assert report.segments[0].states[suffix] == "corrupted"
    assert report.ok
    assert getattr(segments_of(topic)[0], field) == value
    assert topic.verify().ok


@pytest.mark.parametrize("force", [True, False])
def test_a_missing_index_that_should_be_empty_now_is_forgotten(topic: Topic, force: bool) -> None:
    topic.alter_config({"index.interval.bytes": 100_000})
    damage(topic, ".index", "missing")
    report = rebuilt(topic, force=force)
    assert report.ok
    assert segments_of(topic)[0].offset_index_bytes == 0
    assert topic.verify().ok
    assert not rebuilt(topic, force=force).rebuilt


def test_a_dry_run_commits_no_checksum(topic: Topic) -> None:
    forget_fields(topic)
    version = topic.version
    rebuilt(topic, dry_run=True)
    assert topic.refresh().version == version


def test_a_transaction_index_of_another_checksum_is_reported(tmp_path: Path) -> None:
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN["first.txn-0"])
    name = name_of(topic, ".txnindex")
    data = bytearray(topic.storage.read(name))
    # the first offset of a transaction, which no check of the file alone can detect
    data[17] ^= 1
    topic.storage.put(name, data)
    assert not topic.verify().ok
    report = rebuilt(topic)
    assert report.segments[0].states[".txnindex"] == "corrupted"
    assert report.ok
    assert topic.verify().ok


@pytest.fixture(params=[name for name in GOLDEN if not name.startswith("crashed")])
def adopted(request: pytest.FixtureRequest, tmp_path: Path) -> Topic:
    config = {"index.interval.bytes": BROKER_INTERVAL, "retention.ms": -1}
    return adopt_golden(str(tmp_path / "log"), GOLDEN[request.param], config=config)


def test_a_brokers_indexes_are_right(adopted: Topic) -> None:
    report = rebuilt(adopted)
    wrong = {
        name
        for segment in report.segments
        for name, state in segment.states.items()
        if state not in ("fine", "missing")
    }
    assert (wrong, report.ok) == (set(), True)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("first.")])
def test_rebuilt_indexes_equal_the_brokers_byte_for_byte(name: str, tmp_path: Path) -> None:
    config = {"index.interval.bytes": BROKER_INTERVAL, "retention.ms": -1}
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN[name], config=config)
    old_contents = contents(topic)
    topic.storage.delete(list(old_contents))
    report = rebuilt(topic)
    assert set(index_states(report)) == {"missing missing"}
    assert contents(topic) == old_contents


def test_the_indexes_of_a_killed_broker_are_trimmed(tmp_path: Path) -> None:
    partition = GOLDEN["crashed.crashed-0"]
    topic = adopt_golden(str(tmp_path / "log"), partition, config={"index.interval.bytes": BROKER_INTERVAL})
    segment = segments_of(topic)[-1]
    for suffix in SUFFIXES:
        topic.storage.put(topic.reader.name(segment, suffix), partition.logs[-1].with_suffix(suffix).read_bytes())
    assert index_states(rebuilt(topic)) == ["fine fine", "corrupted corrupted"]
    assert 0 < segment.offset_index_bytes < 1000
    assert index_states(rebuilt(topic)) == ["fine fine"] * 2
    trimmed = topic.storage.read(topic.reader.name(segment, ".index"))
    assert partition.logs[-1].with_suffix(".index").read_bytes().startswith(trimmed)


@pytest.mark.parametrize("kind", ["missing", "truncated", "corrupted", "stale"])
def test_a_transaction_index_is_rebuilt_byte_for_byte(tmp_path: Path, kind: str) -> None:
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN["first.txn-0"])
    assert rebuilt(topic).ok
    name = name_of(topic, ".txnindex")
    right = topic.storage.read(name)
    data = bytearray(right)
    if kind == "missing":
        topic.storage.delete([name])
    elif kind == "truncated":
        topic.storage.put(name, data[:-1])
    else:
        # a transaction that starts after its end, and the producer of another one
        data[10 if kind == "corrupted" else 9] += 1
        topic.storage.put(name, data)
    report = rebuilt(topic)
    assert report.segments[0].states[".txnindex"] == kind
    assert report.ok
    assert [segment.written for segment in report.rebuilt] == [{".txnindex": len(right)}]
    assert topic.storage.read(name) == right
    assert topic.verify().ok


def test_an_uncommitted_transaction_index_is_rebuilt(tmp_path: Path) -> None:
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN["first.txn-0"])
    right = [topic.storage.read(topic.reader.name(segment, ".txnindex")) for segment in with_index(topic)]
    changed = [dataclasses.replace(info, txn_index_bytes=0, txn_index_crc32c=0) for info in segments_of(topic)]
    removed = [Remove(info.partition, info.stem) for info in changed]
    topic.advance(put_commit(topic.log, topic.snapshot, "rebuild", lambda _: [*removed, *map(Add, changed)])[1])
    committed = topic.scan(isolation="read_committed")
    assert committed.to_table().num_rows > len(GOLDEN["first.txn-0"].records(committed=True))
    assert {anomaly.word for anomaly in topic.verify().anomalies} == {"index_mismatch"}
    assert rebuilt(topic).ok
    assert [topic.storage.read(topic.reader.name(segment, ".txnindex")) for segment in with_index(topic)] == right
    assert rows(topic.scan(isolation="read_committed").to_table()) == GOLDEN["first.txn-0"].records(committed=True)
    assert topic.verify().ok
