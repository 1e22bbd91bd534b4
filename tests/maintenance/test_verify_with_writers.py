"""Verify and rebuild with concurrent direct appends."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from active_segments import FailingCalls
from commits import put_commit
from compacting import CompactedTopic
from partition_logs import Process, append, append_rows, encoded, new_topic
from producers import Producers
from raw_batches import batch, record
from topics import NOW
from transacting import Sender

import distlog
from distlog.core.errors import StorageError
from distlog.core.format.record_batch import read_headers
from distlog.core.maintain import verify as verify_module
from distlog.core.maintain.verify import VerifyReport, verify
from distlog.core.maintain.verify_segment import SegmentVerdict, verify_segment
from distlog.core.topic import Topic


@pytest.fixture
def process(tmp_path: Path) -> Process:
    process = Process(new_topic(tmp_path / "events", partitions=2))
    append(process[0], b"sealed")
    process[0].roll()
    for number in range(5):
        append(process[0], b"%d" % number, b"again", time=NOW + number)
    return process


def log_of(process: Process) -> Path:
    active = process.head().partitions[0].active
    assert active
    return Path(process.handle.storage.url) / "events-0" / f"{active.stem}.log"


def anomalies_of(report: VerifyReport) -> list[tuple[str, int | None, int | None]]:
    """Return the kind, the position and the offset of each anomaly."""
    return [(anomaly.word, anomaly.position, anomaly.offset) for anomaly in report.anomalies]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_sound_active_segment_passes_and_nothing_is_written(process: Process) -> None:
    folder = Path(process.handle.storage.url)
    old_files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    report = process.topic().verify()
    assert anomalies_of(report) == []
    assert [(segment.segment.is_active, segment.records, segment.batches) for segment in report.segments] == [
        (False, 1, 1),
        (True, 10, 5),
    ]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == old_files


@pytest.mark.parametrize("settings", [{"preallocate": True}, {"segment_index_bytes": 12}, {}])
def test_space_past_the_end_is_not_an_anomaly(tmp_path: Path, settings: dict[str, Any]) -> None:
    process = Process(new_topic(tmp_path / "events", internal_segment_bytes=1 << 16, **settings))
    append(process[0], b"a")
    assert anomalies_of(process.topic().verify()) == []


def test_a_maximum_timestamp_without_a_header_is_not_an_anomaly(process: Process) -> None:
    rows = [record(0, 5, None, b"new"), record(1, 0, None, b"old"), record(2, 5, None, b"new")]
    data, _ = encoded(b"x")
    raw = bytearray(batch(rows, base_timestamp=NOW + 50, max_timestamp=NOW + 55))
    data = type(data)((len(raw),), data.dtype)
    data[:] = raw
    append_rows(process[0], data, read_headers(data.data))
    topic = process.topic()
    assert topic.live_snapshot.partitions[0].segments[-1].offset_of_max_timestamp == -1
    assert anomalies_of(topic.verify()) == []


def test_a_damaged_batch_of_an_active_segment_is_named(process: Process) -> None:
    path = log_of(process)
    topic = process.topic()
    size = path.stat().st_size
    flip(path, size - 2)
    ((word, position, offset),) = anomalies_of(topic.verify())
    assert (word, position, offset) == ("corrupt_batch", size // 5 * 4, 9)


def test_an_active_log_shorter_than_its_page_is_an_anomaly(process: Process) -> None:
    topic = process.topic()
    assert topic.end_offsets() == {0: 11, 1: 0}
    os.truncate(log_of(process), 100)
    assert {"lost_records", "metadata_mismatch", "corrupt_batch"} == {
        word for word, _, _ in anomalies_of(topic.verify())
    }


def test_concurrent_appends_are_not_read(process: Process) -> None:
    topic = process.topic()

    def report_progress(records: int, size: int) -> None:
        append(process[0], b"later")

    report = verify(topic.handle, topic.live_snapshot, on_progress=report_progress)
    assert (anomalies_of(report), report.segments[-1].records) == ([], 10)


def rolled(process: Process) -> None:
    process[0].roll()
    append(process[0], b"next")


def merged(process: Process) -> None:
    """Seal and merge the segment, and vacuum."""
    process.topic().alter_config({"file.delete.delay.ms": 0})
    for _ in range(2):
        process.topic().append([{"value": b"large" * 30, "partition": 0}])
    assert process.topic().compact()
    for _ in range(2):
        put_commit(process.handle.log, process.head(), "config", lambda _: [])
    assert process.topic().vacuum().files


@pytest.mark.parametrize("change", [rolled, merged])
def test_a_concurrently_sealed_or_removed_segment_is_not_an_anomaly(
    process: Process, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = process.topic()
    snapshot = topic.live_snapshot

    def late(*arguments: Any) -> SegmentVerdict:
        if arguments[1].is_active and not monkeypatch_done:
            monkeypatch_done.append(True)
            change(process)
        return verify_segment(*arguments)

    monkeypatch_done = list[bool]()
    monkeypatch.setattr(verify_module, "verify_segment", late)
    report = verify(topic.handle, snapshot)
    assert anomalies_of(report) == []
    assert monkeypatch_done


def test_a_damaged_segment_is_named_when_sealed_concurrently(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = process.topic()
    snapshot = topic.live_snapshot
    path = log_of(process)
    flip(path, path.stat().st_size - 2)
    process[0].roll()
    ((word, _, offset),) = anomalies_of(verify(topic.handle, snapshot))
    assert (word, offset) == ("corrupt_batch", 9)


def test_a_segment_emptied_by_a_failed_sync_is_not_an_anomaly(tmp_path: Path) -> None:
    calls = FailingCalls()
    process = Process(new_topic(tmp_path / "events"), calls=calls)
    append(process[0], b"a")
    topic = process.topic()
    snapshot = topic.live_snapshot
    calls.fail("fsync", code=errno.EIO)
    with pytest.raises(StorageError):
        process[0].flush()
    report = verify(topic.handle, snapshot)
    assert (anomalies_of(report), report.segments) == ([], ())


def test_a_version_is_verified_without_active_segments(process: Process) -> None:
    pinned = Topic(process.handle, process.head(), pinned=True)
    report = pinned.verify()
    assert (anomalies_of(report), len(report.segments)) == ([], 1)


def test_a_rebuild_of_all_indexes_leaves_the_active_segment_alone(process: Process) -> None:
    folder, stem = log_of(process).parent, log_of(process).stem
    old_files = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.glob(f"{stem}*")}
    assert len(old_files) == 3
    topic = process.topic()
    topic.alter_config({"retention.ms": 1})
    append(process[0], b"b")
    append(process[0], b"c")
    stem = log_of(process).stem
    old_files = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.glob(f"{stem}*")}
    report = process.topic().rebuild_indexes(force=True)
    assert len(report.segments) == 2
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.glob(f"{stem}*")} == old_files
    assert append(process[0], b"d") == (13, 14)
    assert process.anomalies() == ()


def test_the_aborted_transactions_of_an_active_segment_are_checked_up_to_its_end(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log")
    Producers(log).send(1, 1).abort(1).send(2, 2).abort(2).roll()
    (segment,) = log.segments()
    active = dataclasses.replace(segment, is_active=True)
    topic = log.topic()
    name = topic.reader.name(active, ".txnindex")
    data = log.storage.read(name)
    log.storage.put(name, data + data[-34:])
    assert verify_segment(topic.reader, active).anomalies == ()
    log.storage.put(name, data[:34] + bytes(34))
    (wrong,) = verify_segment(topic.reader, active).anomalies
    assert wrong.word == "corrupt_index"


def test_a_missing_index_of_an_active_segment_is_reported_as_rebuilt_by_the_next_append(
    tmp_path: Path,
) -> None:
    """A power loss can remove its name; the transactions are found in the log until then."""
    sender = Sender(Process(new_topic(tmp_path / "events")))
    sender.begin().send(0, b"aborted").abort()
    sender.send(0, b"kept")
    (index,) = (tmp_path / "events" / "events-0").glob("*.txnindex")
    index.unlink()
    (wrong,) = distlog.open(str(tmp_path / "events")).verify().anomalies
    assert (wrong.word, wrong.message) == (
        "missing_index",
        "the index file is missing: the next append or roll rebuilds it",
    )
    committed = distlog.open(str(tmp_path / "events")).scan(columns=["value"], isolation="read_committed").to_table()
    assert committed["value"].to_pylist() == [b"kept"]
    with distlog.open(str(tmp_path / "events")).writer() as writer:
        writer.append(b"next")
    assert index.exists()
    assert distlog.open(str(tmp_path / "events")).verify().ok
